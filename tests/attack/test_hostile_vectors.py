"""A foreign vector that differs in very many lines costs the reader of the report little."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from treaty_client.authoring.new_project import NewProtocol, write_project

TREATY = [sys.executable, "-c", "from treaty_command.main import main; main()"]
LINES = 1_000


def vector(arguments: list[str], expected: list[str]) -> dict[str, Any]:
    """A request whose arguments are not those that its vector expects."""
    message = {"id": "1", "type": "request", "item": arguments}
    invoke = {"call": "1", "operation": "getItem", "arguments": {"item": expected}}
    step = {"event": {"received": {"data": {"json": message}}}, "effects": [{"invoke": invoke}]}
    return {"title": "A costly difference", "role": "provider", "steps": [step]}


@pytest.mark.threat(170)
def test_a_report_of_many_differences_is_short_and_soon_there(tmp_path: Path) -> None:
    folder = tmp_path / "hostile"
    write_project(folder, NewProtocol("hostile", "science/hostile"))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["operations"]["getItem"]["arguments"] = {"type": "object", "required": ["item"]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for path in (folder / "vectors").iterdir():
        path.unlink()
    # Lines that resemble each other: comparing their characters takes minutes.
    costly = vector([f"{n}-{'ab' * 20}" for n in range(LINES)], [f"{'ba' * 20}-{n}" for n in range(LINES)])
    (folder / "vectors" / "costly.json").write_text(json.dumps(costly))
    done = subprocess.run(
        [*TREATY, "test", str(folder), "--home", str(tmp_path / "home")],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "costly.json, step 1" in done.stdout
    assert "returned by the handler" in done.stdout
    assert "- " in done.stdout and len(done.stdout) < 10_000
