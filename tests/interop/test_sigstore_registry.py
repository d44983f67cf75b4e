"""The guide to the stock `sigstore` command, run as it is written against a registry that really serves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from ports import free_port

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/guides/sigstore.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """`treaty-registry serve` on a free port: its URL."""
    port = free_port()
    command = [str(BIN / "treaty-registry"), "serve", "--data", str(tmp_path / "registry"), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while True:
            assert process.poll() is None and time.monotonic() < deadline
            try:
                if httpx.get(f"{url}/health/ready").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def run(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(folder), **variables}
    return subprocess.run(["bash", "-euc", script], cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_stock_command_signs_and_verifies_with_a_did(registry: str, tmp_path: Path) -> None:
    make, download, sign, verify = re.findall(r"^```sh\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)[0].splitlines()
    (tmp_path / "FILE").write_bytes(b"a handler")
    origin = f"{registry.rpartition(':')[2]}.localhost"
    names = {"REGISTRY": registry, "ORIGIN": origin, "TREATY_HOME": str(tmp_path / "home"), "DID": ""}
    made = run(f"treaty trust add {registry} --yes\n{make}\n{download}\n{sign}", tmp_path, **names)
    assert made.returncode == 0, made.stdout + made.stderr
    shown = run(
        "treaty identity show --json | python -c 'import json, sys; print(json.load(sys.stdin)[\"did\"])'", tmp_path, **names
    )
    names["DID"] = shown.stdout.strip()
    good = run(verify, tmp_path, **names)
    assert good.returncode == 0, good.stderr
    assert run(verify, tmp_path, **{**names, "DID": "did:wba:other.example"}).returncode != 0
    (tmp_path / "FILE").write_bytes(b"a handler, tampered with")
    assert run(verify, tmp_path, **names).returncode != 0
