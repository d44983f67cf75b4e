"""`treaty transcript show|replay`: what was said in a session, and whether it really comes out so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cyclopts import App
from rich.markup import escape

from treaty_consensus.canonical import b64decode
from treaty_consensus.errors import NotFound, TooLarge, TreatyError
from treaty_consensus.printable import printable

from ..meta import frame
from ..meta.transcript import MAX_TRANSCRIPT, Note, parse_transcript
from ..meta.transcript import replay as replay_transcript
from .context import Options

app = App(name="transcript", help="Read a session that was recorded, or replay it to the byte.")
_MAX_SHOWN = 160


@app.command
def show(file: Path, /, *, options: Options = Options()) -> None:
    """Show a session call by call: what happened, and what came of it.

    Parameters
    ----------
    file
        A transcript that an agent wrote.
    """
    notes = parse_transcript(_read(file))
    began = notes[0].at or 0.0
    for note in notes:
        when = "        " if note.at is None else f"{note.at - began:8.3f}"
        options.output.say(f"[dim]{when}[/] [bold]{escape(printable(note.name, 40))}[/] {escape(_about(note))}")
        for action in note.actions:
            options.output.say(f"           [dim]→[/] {escape(_shown(action))}")
    value = [{"note": n.name, "at": n.at, "with": dict(n.arguments), "did": [dict(a) for a in n.actions]} for n in notes]
    options.output.result({"notes": value})


@app.command
def replay(file: Path, /, *, options: Options = Options()) -> None:
    """Repeat a session, and check that everything comes out as it is written down, to the byte.

    Parameters
    ----------
    file
        A transcript that an agent wrote.
    """
    calls = replay_transcript(_read(file))
    options.output.result({"calls": calls}, f"[green]✓[/] {calls} calls come out as they were written down.")


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TRANSCRIPT + 1)
    except OSError as error:
        raise NotFound("transcript.file", f"{path}: {error.strerror or 'it cannot be read'}.") from error
    if len(data) > MAX_TRANSCRIPT:
        raise TooLarge("transcript.too-large", f"A transcript has at most {MAX_TRANSCRIPT} bytes.")
    return data


def _about(note: Note) -> str:
    """The arguments in a line; how the machine was made is for `--json`."""
    if "hello" in note.arguments:
        return ""
    return ", ".join(_shown(value) for value in note.arguments.values())


def _shown(value: Any) -> str:
    """A value in a line, frames by their type. Whoever wrote the transcript may have written anything."""
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
        return f"{len(text)} characters of base64 that are no frame"
    return f"PT={type:02b} {printable(payload.decode('utf-8', 'replace'), _MAX_SHOWN)}"
