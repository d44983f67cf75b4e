"""The guide to deploying: a log is served behind the proxies that it names, and its limit of open files is that of the code."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from registry_process import empty

from treaty_io.admission.connections import MAX_OPEN_FILES
from treaty_registry.networks import TrustedProxies

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "deploying.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.mark.deep
async def test_a_log_is_served_behind_its_proxies(data: Path) -> None:
    begin = "treaty-registry init --data registry --origin registry.example"
    (command,) = [block for block in blocks("console") if "--trusted-proxy" in block]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    begun = await asyncio.create_subprocess_exec("bash", "-euc", begin, cwd=data, env=environment, stdout=subprocess.DEVNULL)
    assert await begun.wait() == 0
    program, serve, option, folder, *options = shlex.split(command)
    assert (program, serve, option) == ("treaty-registry", "serve", "--data")
    async with empty(data / folder, *options) as server:
        await server.start()
        assert await server.ready()
        assert (server.about["origin"], server.about["base_url"]) == ("registry.example", "https://registry.example")
        assert await server.stop() == 0
    proxies = TrustedProxies.parse(value for name, value in pairwise(options) if name == "--trusted-proxy")
    assert proxies.trusts("10.0.0.7") and not proxies.trusts("10.0.0.8")
    assert proxies.client("10.0.0.7", ["192.0.2.1, 198.51.100.7", "fd00:1::1"]) == "198.51.100.7"


def test_its_limit_of_open_files_is_that_of_the_code() -> None:
    assert f"{MAX_OPEN_FILES:,}" in GUIDE
