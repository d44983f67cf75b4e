"""The guide's rotation of keys is executed, as its commands are without a running server."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from treaty_registry.cli import main

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "operating.md").read_text(encoding="utf-8")


def test_the_keys_of_a_log_are_rotated(
    data: Path, database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TREATY_REGISTRY_DATA", str(data))
    monkeypatch.setenv("TREATY_DATABASE_URL", database)

    def run(command: str) -> tuple[int, Any]:
        with pytest.raises(SystemExit) as ended:
            main([*shlex.split(command)[1:], "--json"])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), json.loads(printed.out or printed.err)

    prepare, rotate, retire = re.findall(r"^```sh\n(treaty-registry .*)\n```$", GUIDE, re.MULTILINE)
    assert run("treaty-registry init --origin registry.example")[0] == 0
    status, output = run(prepare)
    assert status == 0 and len(output["keys"]) == 3
    assert run(prepare)[1]["error"]["code"] == "keys.exists"
    assert run(retire)[1]["error"]["code"] == "keys.not-prepared"
    assert "90" in rotate
    status, done = run(rotate.replace("90", "0"))
    assert status == 0 and done["index"] == 2
    assert [done["log_key"], done["clock_key"], f"authority {done['authority']}"] == output["keys"]
    status, moved = run(retire)
    assert status == 0 and sorted(map(str, (data / "keys" / "retired").iterdir())) == sorted(moved["retired"])
    assert run(rotate)[1]["error"]["code"] == "keys.not-prepared"
