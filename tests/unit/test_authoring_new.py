"""`treaty new`: each kind of project passes at once, asks only on a terminal, and its handler survives hostile messages."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import random
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from treaty_agent import Agent, AgentConfig, Identity, LocalProtocols, OperationError
from treaty_client.authoring.building import build
from treaty_client.authoring.check import check_project
from treaty_client.authoring.file_changes import MAX_FILES, fingerprint
from treaty_client.authoring.new_project import KINDS, Form, Kind, NewProtocol, forms_of, write_project
from treaty_client.protocols.project import load_project
from treaty_consensus.errors import Conflict, Malformed
from treaty_handler import Opened, PeerJoined, Received, encode_json
from treaty_sandbox import SandboxPool
from treaty_sandbox.vectors import LOCAL, PEER

TREATY = [sys.executable, "-c", "from treaty_command.main import main; main()"]


def treaty(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run the command without a terminal."""
    return subprocess.run(
        [*TREATY, *arguments, "--home", str(home)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind in KINDS for form in forms_of(kind)])
async def test_a_new_project_passes_at_once_with_every_outcome_reached(tmp_path: Path, kind: Kind, form: Form) -> None:
    paths = write_project(tmp_path / "weather", NewProtocol("weather-report", "science/weather", kind, form, "Tell the weather."))
    assert all(path.is_file() for path in paths)
    check = await check_project(tmp_path / "weather")
    assert check.passed, check
    assert check.coverage is not None
    assert check.coverage.missed == ()
    assert check.package is not None
    assert check.package.is_declarative == (form == "declarative")
    assert not any("@" in path.read_text() for path in paths)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
async def test_the_handlers_of_the_templates_survive_strangers(tmp_path: Path, kind: Kind) -> None:
    """Foreign bytes never raise, in any role, whatever is a text, a number, a list or absent in them."""
    write_project(tmp_path / "weather", NewProtocol("weather", "science/weather", kind, "python"))
    package = build(load_project(tmp_path / "weather"))
    draw = random.Random(7)
    odd: list[Any] = [None, 0, -1, 2**53 - 1, 1.5, "", "x" * 2000, [], {}, True, ["request"], {"id": "1"}, "1", "request"]
    names = ("id", "type", "item", "text", "code", "message", "count", "name", "from")
    types = ("request", "response", "error", "item", "more", "cancel", "end", "event")
    async with SandboxPool(size=0) as pool:
        for role in package.manifest.roles:
            worker = await pool.load(package, local=LOCAL, peers=[PEER])
            session = await worker.open(role)
            await session.handle(Opened())
            if package.manifest.roles[role].is_shared:
                await session.handle(PeerJoined(peer=PEER, role="member"))
            for _ in range(400):
                message = {name: draw.choice(odd) for name in names if draw.random() < 0.8}
                message |= {"type": draw.choice(types)} if draw.random() < 0.8 else {}
                message |= {"id": str(draw.randrange(5))} if draw.random() < 0.5 else {}
                await session.handle(Received(peer=PEER, data=encode_json(message)))
            for data in (b"", b"\xff", b"[]", b"7", b"{", b"[" * 5000):
                await session.handle(Received(peer=PEER, data=data))
            assert worker.alive
            await worker.close()


@pytest.mark.parametrize(
    ("choices", "field_name"),
    [
        (("Weather", "a/b"), "name"),
        (("weather", "A"), "topic"),
        (("weather", "a/b", "datagram"), "kind"),
        (("weather", "a/b", "request", "rust"), "form"),
        (("weather", "a/b", "shared", "declarative"), "form"),
        (('a"\n[handler]', "a/b"), "name"),
    ],
)
def test_a_choice_that_is_not_legal_names_the_legal_ones(choices: Any, field_name: str) -> None:
    with pytest.raises(Malformed, match=f"^{field_name} = ") as caught:
        NewProtocol(*choices)
    assert caught.value.code == "system.usage"
    assert f"--{field_name}" in caught.value.fix


@pytest.mark.deep
async def test_a_new_room_runs_with_several_members_and_records_them(tmp_path: Path) -> None:
    folder, recordings = tmp_path / "board", tmp_path / "recordings"
    write_project(folder, NewProtocol("board", "social/board", "shared", "python", "Post texts."))
    source = LocalProtocols([folder])
    uri, lines = source.uri("board"), asyncio.Queue[tuple[str, str]]()

    async def post(text: str) -> None:
        if text.isupper():
            raise OperationError(403, "Not so loud.")

    async def hears(speaker: str, text: str) -> None:
        lines.put_nowait((speaker, text))

    hears.__name__ = "heard"
    async with AsyncExitStack() as stack:
        room, ada, bob = [
            await stack.enter_async_context(
                Agent(Identity.create(), source, AgentConfig(home=tmp_path / name, recordings=recorder))
            )
            for name, recorder in (("room", recordings), ("ada", None), ("bob", None))
        ]
        room.provides(uri, role="room")(post)
        port = await stack.enter_async_context(room.listen("127.0.0.1", 0))
        joining = [
            agent.connect(f"ws://127.0.0.1:{port}", protocols=[uri], role="member", serving=[hears]) for agent in (ada, bob)
        ]
        sessions = [await stack.enter_async_context(joined) for joined in joining]
        assert await sessions[0].call("post", text="Hello.") is None
        with pytest.raises(OperationError) as caught:
            await sessions[1].call("post", text="HELLO.")
        assert caught.value.status == 403
        await room.shared(uri).call("announce", text="We close.")
        heard_lines = sorted([await lines.get() for _ in range(4)])
        assert heard_lines == sorted([(ada.did, "Hello."), ("", "We close.")] * 2)
    # A recording of the room has each member by a name of its own, and is a vector of the project.
    [recording] = recordings.glob("board-1.0-room-*.json")
    assert all(f'"{name}"' in recording.read_text() for name in ("did:example:peer", "did:example:peer2"))
    added = treaty("record", str(folder), str(recording), home=tmp_path / "home")
    assert added.returncode == 0, added.stderr
    assert len(list((folder / "vectors").glob("*.json"))) == 6
    tested = treaty("test", str(folder), "--json", home=tmp_path / "home")
    assert json.loads(tested.stdout)["passed"] is True


def test_a_folder_with_files_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(Conflict) as caught:
        write_project(tmp_path, NewProtocol("weather", "a/b"))
    assert caught.value.code == "system.exists"
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.deep
def test_without_a_terminal_nothing_is_asked(tmp_path: Path) -> None:
    refused = treaty("new", str(tmp_path / "weather"), "--json", home=tmp_path / "home")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["error"]["code"] == "system.usage"
    assert not (tmp_path / "weather").exists()
    output = treaty(
        "new", str(tmp_path / "weather"), "--topic", "science/weather", "--summary", "Tell it.", "--json", home=tmp_path / "home"
    )
    assert (output.returncode, output.stderr) == (0, "")
    value = json.loads(output.stdout)
    assert (value["name"], value["kind"], value["form"]) == ("weather", "request", "declarative")
    tested = treaty("test", str(tmp_path / "weather"), "--json", home=tmp_path / "home")
    assert tested.returncode == 0
    assert json.loads(tested.stdout)["passed"] is True


def test_on_a_terminal_five_questions_are_asked(tmp_path: Path) -> None:
    own, theirs = pty.openpty()
    process = subprocess.Popen(
        [*TREATY, "new", str(tmp_path / "weather"), "--home", str(tmp_path / "home")],
        stdin=theirs,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    os.write(own, b"forecast\nscience/forecast\nTell the weather.\nevent\npython\n")
    output, _ = process.communicate(timeout=60)
    os.close(own)
    assert process.returncode == 0
    assert all(question in output for question in ("Name", "Topic", "Summary", "Kind of exchange", "Declarative"))
    project = load_project(tmp_path / "weather")
    assert (project.name, project.topic) == ("forecast", "science/forecast")
    assert project.handler is not None
    assert "handler" in project.handler.sources["__init__.py"].decode()


def test_the_end_of_the_input_at_a_question_writes_nothing(tmp_path: Path) -> None:
    own, theirs = pty.openpty()
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*TREATY, "new", str(tmp_path / "weather"), "--home", str(tmp_path / "home")],
        stdin=theirs,
        stdout=pipe,
        stderr=pipe,
        text=True,
    )
    os.close(theirs)
    os.write(own, b"forecast\n\x04")  # Ctrl-D at the second question
    _, errors = process.communicate(timeout=60)
    os.close(own)
    assert process.returncode == 2
    assert "system.usage" in errors and "treaty new --help" in errors and "Traceback" not in errors
    assert not (tmp_path / "weather").exists()


@pytest.mark.deep
def test_a_failed_check_has_status_1_and_one_json_value(tmp_path: Path) -> None:
    write_project(tmp_path / "weather", NewProtocol("weather", "a/b"))
    (tmp_path / "weather" / "manifest.json").write_text("{}")
    done = treaty("test", str(tmp_path / "weather"), "--json", home=tmp_path / "home")
    assert done.returncode == 1
    value = json.loads(done.stdout)
    assert value["passed"] is False
    assert {problem["file"] for problem in value["problems"]} == {"protocol.toml", "manifest.json"}
    for_people = treaty("test", str(tmp_path / "weather"), home=tmp_path / "home")
    assert for_people.returncode == 1
    assert "✗" in for_people.stdout


@pytest.mark.sample(1)
@pytest.mark.parametrize("changed", ["document.md", "vectors/provider.json", "handler/__init__.py", "protocol.toml"])
def test_files_of_tools_do_not_hide_a_change(tmp_path: Path, changed: str) -> None:
    """A repository and an environment beside the project have more files than are watched."""
    folder = tmp_path / "weather"
    write_project(folder, NewProtocol("weather", "science/weather", "request", "python"))
    for place in (".git", ".venv", "handler/__pycache__"):
        (folder / place).mkdir()
        for number in range(MAX_FILES // 2):
            (folder / place / str(number)).touch()
    before = fingerprint(folder)
    assert fingerprint(folder) == before
    (folder / ".git" / "index").write_text("x")
    assert fingerprint(folder) == before
    (folder / changed).write_text("a change of another length")
    assert fingerprint(folder) != before


def test_watching_checks_again_when_a_file_changes(tmp_path: Path) -> None:
    folder = tmp_path / "weather"
    write_project(folder, NewProtocol("weather", "a/b", summary="Tell the weather."))
    # As in an empty environment: each result must come when it is there.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    arguments = ["test", str(folder), "--watch", "--json", "--home", str(tmp_path / "home")]
    process = subprocess.Popen([*TREATY, *arguments], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline())["passed"] is True
        toml = (folder / "protocol.toml").read_text()
        (folder / "protocol.toml").write_text(toml.replace('origin = "standard"', 'origin = "me"'))
        second = json.loads(process.stdout.readline())
        assert [problem["field"] for problem in second["problems"]] == ["origin"]
        (folder / "protocol.toml").write_text(toml)
        assert json.loads(process.stdout.readline())["passed"] is True
    finally:
        process.terminate()
        process.wait(timeout=30)
