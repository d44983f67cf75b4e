"""mypy and pyright accept what the documentation shows of typed Python, and find the faults in it: stubs, functions, examples."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from type_checkers import mypy_faults, pyright_faults

from treaty_client.authoring.building import build
from treaty_client.authoring.new_project import KINDS, Kind, NewProtocol, forms_of, write_project
from treaty_client.authoring.stubs import write_stubs
from treaty_client.protocols.project import load_project

ROOT = Path(__file__).parents[2]
HEAD = "from treaty_agent import CallContext\n\n\n"
USES = {
    "request": HEAD + "async def use(it: Requester) -> str:\n"
    '    return (await it.getItem(item="x"))["text"]\n\n\n'
    "def handles(peer: Peer, session: Session) -> list[Requester]:\n    return [Requester(peer), Requester(session)]\n\n\n"
    "class Given:\n"
    "    async def getItem(self, item: str, context: CallContext | None = None) -> GetItemResult:\n"
    '        return {"text": item}\n\n\n'
    "def provide(agent: Agent) -> None:\n    provide_provider(agent, Given())\n",
    "stream": 'async def use(it: Requester) -> list[str]:\n    return [item async for item in it.findItems(text="x")]\n',
    "event": 'async def use(it: Reporter) -> None:\n    await it.happened(name="x")\n',
    "shared": 'async def use(it: Member) -> None:\n    await it.post(text="x")\n\n\n'
    "def handle(shared: SharedSession) -> Room:\n    return Room(shared)\n",
}
WRONG: list[tuple[Kind, str, str]] = [
    ("request", '="x"', "=7"),
    ("request", '["text"]', '["texts"]'),
    ("request", "item: str, context", "item: int, context"),
    ("request", "item: str, context", "context"),
    ("request", "CallContext | None = None", "CallContext"),
    ("request", "Peer", "CallContext"),
    ("stream", '="x"', "=7"),
    ("event", '="x"', "=7"),
    ("shared", '="x"', "=7"),
    ("shared", "SharedSession", "Peer"),
]


def stubs(folder: Path, kind: Kind) -> str:
    write_project(folder, NewProtocol("weather", "a/b", kind, forms_of(kind)[0]))
    return write_stubs(build(load_project(folder)))


@pytest.mark.deep
def test_both_checkers_accept_each_kind_and_find_each_fault(tmp_path: Path, type_cache: Path) -> None:
    modules = {kind: stubs(tmp_path / kind, kind) for kind in KINDS}
    for kind, module in modules.items():
        (tmp_path / f"right_{kind}.py").write_text(f"{module}\n\n{USES[kind]}")
    wrong = set()
    for number, (kind, right, fault) in enumerate(WRONG):
        assert right in USES[kind]
        name = f"wrong_{kind}_{number}.py"
        wrong.add(name)
        (tmp_path / name).write_text(f"{modules[kind]}\n\n{USES[kind].replace(right, fault)}")
    files = sorted(tmp_path.glob("*.py"))
    assert {fault.partition(":")[0] for fault in mypy_faults(type_cache, *files)} == wrong
    assert {fault.partition(":")[0] for fault in pyright_faults(tmp_path, *files)} == wrong
    # A linter and a formatter leave the module of a right application as it is.
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--check", *map(str, files)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.deep
def test_both_checkers_accept_the_guide_and_the_examples(tmp_path: Path, type_cache: Path) -> None:
    guide = (ROOT / "docs" / "guides" / "handlers.md").read_text(encoding="utf-8")
    [application] = [
        block for block in re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL) if "weather_report" in block
    ]
    (tmp_path / "weather_report.py").write_text(stubs(tmp_path / "weather", "stream"))
    (tmp_path / "application.py").write_text(application)
    examples = ROOT / "examples"
    # Without the modules that start its world, which import those of the demo.
    agency = [examples / "agency" / f"{name}.py" for name in ("ledger", "payments", "settings", "traveller", "vendor")]
    paths = [tmp_path / "weather_report.py", tmp_path / "application.py", *sorted(examples.glob("*.py")), *agency]
    assert mypy_faults(type_cache, *paths, imports=[tmp_path, examples]) == []
    assert pyright_faults(tmp_path, *paths, imports=[tmp_path, examples]) == []
