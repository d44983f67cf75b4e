"""`treaty transcript show|replay`: show a recorded session, and check it by repeating it."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App
from rich.markup import escape

from treaty_anp.transcript import MAX_TRANSCRIPT, Note, parse_transcript, shown
from treaty_anp.transcript import replay as replay_transcript
from treaty_consensus.errors import NotFound, TooLarge
from treaty_consensus.printable import printable
from treaty_io.codes import TranscriptCode

from .context import Options

app = App(name="transcript", help="Show a recorded session, or replay it to the byte.")


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
            options.output.say(f"           [dim]→[/] {escape(shown(action))}")
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
        raise NotFound(TranscriptCode.FORM, f"{path}: {error.strerror or 'it cannot be read'}.") from error
    if len(data) > MAX_TRANSCRIPT:
        raise TooLarge(TranscriptCode.FORM, f"A transcript has at most {MAX_TRANSCRIPT} bytes.")
    return data


def _about(note: Note) -> str:
    """Return the arguments in one line. The settings of the machine are only in `--json`."""
    if "timeouts" in note.arguments:
        return ""
    return ", ".join(shown(value) for value in note.arguments.values())
