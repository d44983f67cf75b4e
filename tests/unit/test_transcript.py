"""Transcripts: every session replays, and nothing else does; the recorder's bounds; the command that reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from meta_peers import TIMEOUTS, source_hello

from treaty_anp.hello_profile.machine import Machine
from treaty_anp.transcript import MAX_TRANSCRIPT, TranscriptRecorder, parse_transcript, replay
from treaty_command.main import main
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Malformed, Refused, TooLarge, Untrusted


def recorded(*texts: str, **options: Any) -> TranscriptRecorder:
    """A source that hears these messages, in vain."""
    recorder = TranscriptRecorder(**options)
    machine, _ = Machine.initiator(source_hello(), now=1.25, timeouts=TIMEOUTS, recorder=recorder)
    for number, text in enumerate(texts):
        machine.receive(text, 2.0 + number / 3)
    machine.fail(Refused("some.code", "A sentence.", fix="A fix."))
    return recorder


def sealed(*lines: object) -> bytes:
    """A transcript of these lines, with the digest it needs."""
    written = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
    return written + json.dumps({"end": hex_digest(written)}, separators=(",", ":")).encode() + b"\n"


def test_what_was_recorded_replays() -> None:
    data = recorded("no hello").transcript()
    assert replay(data) == 3
    profile, (first, second, third) = parse_transcript(data)
    assert profile == "hello"
    assert (first.name, first.at, second.name, second.arguments["message"]) == ("initiator", 1.25, "receive", "no hello")
    assert third.arguments["error"]["error"] == {
        "family": "Refused", "code": "some.code", "message": "A sentence.", "fix": "A fix.",
    }  # fmt: skip
    assert data.startswith(b'{"profile":"hello","transcript":2}\n')
    assert json.loads(data.splitlines()[-1]) == {"end": hex_digest(b"".join(data.splitlines(keepends=True)[:-1]))}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}\n",
        b'{"transcript":3}\n{"end":"00"}\n',
        sealed(b'{"profile":"hello","transcript":2}\n'),
        sealed(b'{"profile":"hello","transcript":2}\n', {"note": "receive", "with": {}, "at": 1.0, "did": []}),
        sealed(b'{"profile":"hello","transcript":2}\n', {"note": "initiator", "with": {}, "at": 1.0}),
        sealed(
            b'{"profile":"hello","transcript":2}\n',
            {"note": "initiator", "with": {"own": {"Popen": {"args": "x"}}}, "at": 1.0, "did": []},
        ),
        sealed(b'{"profile":"hello","transcript":2}\n', {"note": "initiator", "with": {"own": 7}, "at": 1.0, "did": []}),
        sealed(b'{"profile":"hello","transcript":2}\n', b"no json\n"),
    ],
)
def test_what_is_no_transcript_is_refused(data: bytes) -> None:
    with pytest.raises((Malformed, Untrusted)) as refusal:
        replay(data)
    assert refusal.value.code.startswith("transcript.")


@pytest.mark.parametrize("name", ["_receive", "both_list", "__init__", "source", "recorder", "require", "shutdown"])
def test_only_what_a_session_does_is_repeated(name: str) -> None:
    lines = recorded().transcript().splitlines(keepends=True)[:2]
    with pytest.raises(Malformed):
        replay(sealed(*lines, {"note": name, "with": {}, "at": None, "did": []}))


def test_a_transcript_that_says_something_else_does_not_replay() -> None:
    lines = recorded("no hello").transcript().splitlines(keepends=True)[:-1]
    forged = lines[2].replace(b'"at":2.0', b'"at":2.5')
    assert forged != lines[2]
    assert replay(sealed(*lines[:2], forged, *lines[3:])) == 3  # another time would have changed nothing
    with pytest.raises(Untrusted) as difference:
        replay(sealed(*lines[:2], lines[2].replace(b"no hello", b"no Hello!").replace(b'"did":[', b'"did":[{},'), *lines[3:]))
    assert difference.value.code == "transcript.differs"


def test_a_session_that_is_too_long_is_cut_and_still_replays() -> None:
    recorder = recorded(*["x" * 1000] * 50, limit=20_000)
    data = recorder.transcript()
    assert len(data) < 20_000
    assert b'{"cut":true}\n{"end":' in data
    assert replay(data) >= 1
    with pytest.raises(TooLarge):
        parse_transcript(b" " * (MAX_TRANSCRIPT + 1))


def test_only_talks_are_kept_where_no_more_is_wanted() -> None:
    assert replay(recorded(only_talks=True).transcript()) == 2
    recorder = TranscriptRecorder(only_talks=True)
    from treaty_anp.hello_profile.actions import Running

    recorder.note("tick", {}, 1.0, [Running()])
    recorder.note("tick", {}, 2.0, [])
    assert recorder.transcript() == b""


def test_the_command_shows_and_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "session.jsonl"
    path.write_bytes(recorded("\x1b[31mno [bold]hello").transcript())
    main(["transcript", "show", str(path)])
    output = capsys.readouterr().out
    assert "receive" in output
    assert "no [bold]hello" in output
    assert "\x1b[31mno" not in output
    main(["transcript", "show", str(path), "--json"])
    assert [note["note"] for note in json.loads(capsys.readouterr().out)["notes"]] == ["initiator", "receive", "fail"]
    main(["transcript", "replay", str(path), "--json"])
    assert json.loads(capsys.readouterr().out) == {"calls": 3}
    forged = [{"SendBinary": 5}, {"bytes": 7}, {"SendBinary": {"data": {"bytes": "no base64"}}}, {}, {"a": 1, "b": [2]}]
    path.write_bytes(sealed(b'{"profile":"hello","transcript":2}\n', {"note": "initiator", "with": {}, "at": None, "did": forged},
                            {"note": "[/]x\x1b", "with": {"a": 1}, "at": 1.0, "did": []}))  # fmt: skip
    main(["transcript", "show", str(path)])
    assert "[/]x\\x1b" in capsys.readouterr().out
    path.write_bytes(path.read_bytes()[:-5])
    for command in (["show", str(path)], ["replay", str(path)], ["show", str(tmp_path / "absent")]):
        with pytest.raises(SystemExit):
            main(["transcript", *command])
        assert "transcript." in capsys.readouterr().err
