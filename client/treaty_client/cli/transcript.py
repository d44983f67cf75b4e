"""`treaty transcript show|replay`: show a recorded session, and check it by repeating it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cyclopts import App
from rich.markup import escape

from treaty_consensus.canonical import b64decode
from treaty_consensus.errors import NotFound, TooLarge, TreatyError
from treaty_consensus.printable import printable

from ..anp import frame
from ..anp.frame import ProtocolType
from ..anp.hello_profile.messages import CARRIES
from ..anp.transcript import MAX_TRANSCRIPT, Note, parse_transcript
from ..anp.transcript import replay as replay_transcript
from ..codes import TranscriptCode
from .context import Options

app = App(name="transcript", help="Show a recorded session, or replay it to the byte.")
_MAX_SHOWN = 160


@app.command
def show(file: Path, /, *, options: Options = Options()) -> None:
    """Show a recorded session: each call and its results.

    Parameters
    ----------
    file
        A transcript that an agent wrote.
    """
    profile, notes = parse_transcript(_read(file))
    began = notes[0].seconds or 0.0
    for note in notes:
        when = "        " if note.seconds is None else f"{note.seconds - began:8.3f}"
        options.output.say(f"[dim]{when}[/] [bold]{escape(printable(note.name, 40))}[/] {escape(_about(note))}")
        for action in note.actions:
            options.output.say(f"           [dim]→[/] {escape(_shown(action))}")
    value = [{"note": n.name, "at": n.at, "with": dict(n.arguments), "did": [dict(a) for a in n.actions]} for n in notes]
    options.output.result({"profile": profile, "notes": value})


@app.command
def replay(file: Path, /, *, options: Options = Options()) -> None:
    """Repeat a recorded session, and check that each result equals the recorded one to the byte.

    Parameters
    ----------
    file
        A transcript that an agent wrote.
    """
    calls = replay_transcript(_read(file))
    options.output.result({"calls": calls}, f"[green]✓[/] {calls} calls give the recorded results.")


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            # One byte more than the cap shows that the file is too large.
            data = file.read(MAX_TRANSCRIPT + 1)
    except OSError as error:
        raise NotFound(TranscriptCode.FILE, f"{path}: {error.strerror or 'it cannot be read'}.") from error
    if len(data) > MAX_TRANSCRIPT:
        raise TooLarge(TranscriptCode.TOO_LARGE, f"A transcript has at most {MAX_TRANSCRIPT} bytes.")
    return data


def _about(note: Note) -> str:
    """Return the arguments in one line. The settings of the machine are only in `--json`."""
    if "timeouts" in note.arguments:
        return ""
    return ", ".join(_shown(value) for value in note.arguments.values())


def _shown(value: Any) -> str:
    """Return a value in one line, frames by their type. The transcript may come from a stranger and contain anything."""
    if isinstance(value, dict) and len(value) == 1:
        [(name, content)] = value.items()
        if name == "bytes" and isinstance(content, str):
            return _frame(content)
        value = content if name == "map" else f"{name} {_fields(content)}"
    return printable(str(value), _MAX_SHOWN)


def _fields(content: Any) -> str:
    if not isinstance(content, dict):
        return str(content)
    return ", ".join(f"{name}: {_shown(value)}" for name, value in content.items())


def _frame(text: str) -> str:
    try:
        type, payload = frame.decode(b64decode(text, limit=frame.MAX_FRAME * 2))
    except TreatyError:
        return f"{len(text)} characters of base64 that are not a frame"
    first, carries, carried = payload.partition(CARRIES) if type is ProtocolType.META else (payload, b"", b"")
    return _payload(type, first) + (f", {_payload(ProtocolType.APPLICATION, carried)}" if carries else "")


def _payload(type: ProtocolType, payload: bytes) -> str:
    return f"PT={type:02b} {printable(payload.decode('utf-8', 'replace'), _MAX_SHOWN)}"
