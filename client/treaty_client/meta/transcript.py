"""Transcripts: a session of one side written down, so that it can be read, kept as evidence, and replayed to the byte.

UTF-8, one JSON object a line, at most 16 MiB:

    {"transcript": 1}
    {"note": "source", "with": {"hello": {"Hello": {…}}, "timeouts": {"Timeouts": {…}}, …}, "at": 7.25, "did": [{"SendText":
    {"text": …}}]} {"note": "receive", "with": {"message": {"bytes": B64}}, "at": 7.5, "did": [{"Load": {…}}]}
    …
    {"end": HEX}

Each note is a call of the state machine (`meta.recording`): its method, its arguments, the machine's clock in seconds (null where
the method takes no time), and the actions that it returned. The first is how the machine was made. Values are JSON's own; bytes
are {"bytes": padded base64}, mappings {"map": {…}}, errors {"error": {"family", "code", "message", "fix"}}, and other objects
one name, their class, with their fields. A tuple is a list. `end` is the SHA-256 of all lines before it; {"cut": true} stands
right before it where a session was longer than a transcript may be. Every line is compact JSON with sorted names, so there is
one spelling.

The machine reads no clock and draws nothing, so a replay must return the same actions, to the byte. A transcript holds all that
was said, business data included: keep it as you keep those.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from treaty_consensus import errors
from treaty_consensus.canonical import b64decode, b64encode, hex_digest
from treaty_consensus.errors import Malformed, TooLarge, TreatyError, Untrusted
from treaty_handler import decode_json

from . import messages
from .actions import Action, Running
from .hello import Hello
from .limits import Limits, Timeouts
from .machine import Machine, Provided

MAX_TRANSCRIPT = 16 * 1024 * 1024
MAX_IN_MEMORY = 64 * 1024
_END_SIZE = 1024
_HEAD = b'{"transcript":1}\n'
_CUT = b'{"cut":true}\n'
_MAKERS = ("source", "destination")

_MESSAGES = (
    messages.CodeGeneration,
    messages.ProtocolNegotiation,
    messages.TestCasesNegotiation,
    messages.FixErrorNegotiation,
    messages.NaturalLanguageNegotiation,
    messages.ReportProposed,
    messages.ReportSigned,
    messages.ReportRefused,
)
_ARGUMENTS: dict[str, type] = {kind.__name__: kind for kind in (Hello, Limits, Timeouts, *_MESSAGES)}
_FAMILIES = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, TreatyError)}


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    note: str
    with_: dict[str, Any] = msgspec.field(name="with")
    at: float | None
    did: list[dict[str, Any]]


@dataclass(frozen=True)
class Note:
    """One call. `arguments` as they are written down, `actions` as well."""

    name: str
    arguments: Mapping[str, Any]
    at: float | None
    actions: Sequence[Mapping[str, Any]]
    line: bytes


class TranscriptRecorder:
    """A `recording.Recorder` that keeps a transcript, in memory and beyond 64 KiB in a temporary file. It stops where the
    transcript would become too long."""

    def __init__(self, *, limit: int = MAX_TRANSCRIPT, only_talks: bool = False) -> None:
        """`limit`: bytes. `only_talks`: forget everything as soon as the session runs."""
        self._file = tempfile.SpooledTemporaryFile(max_size=MAX_IN_MEMORY)  # noqa: SIM115  # closed with the recorder
        self._digest = hashlib.sha256()
        self._limit, self._only_talks = limit - _END_SIZE, only_talks
        self._size = 0
        self._over = False
        self._write(_HEAD)

    def note(self, name: str, arguments: Mapping[str, Any], now: float | None, actions: Sequence[Action]) -> None:
        """Write down a call."""
        if self._over:
            return
        at = None if now is None else float(now)
        line = _line(name, {key: _encode(value) for key, value in arguments.items()}, at, actions)
        if self._only_talks and any(isinstance(action, Running) for action in actions):
            self.close()
        elif self._size + len(line) > self._limit:
            self._write(_CUT)
            self._over = True
        else:
            self._write(line)

    def transcript(self) -> bytes:
        """The transcript so far; b"" of a session that runs where only talks are kept, and after `close`."""
        if self._file.closed:
            return b""
        self._file.seek(0)
        return self._file.read() + _dump({"end": self._digest.hexdigest()})

    def close(self) -> None:
        """Forget everything."""
        self._over = True
        self._file.close()

    def _write(self, line: bytes) -> None:
        self._file.seek(0, os.SEEK_END)
        self._file.write(line)
        self._digest.update(line)
        self._size += len(line)


def parse_transcript(data: bytes) -> list[Note]:
    """The calls of a transcript. Raises `TooLarge` or `Malformed` (`transcript.form`), `Untrusted` (`transcript.changed`) when
    it is not what was written."""
    if len(data) > MAX_TRANSCRIPT:
        raise TooLarge("transcript.too-large", f"A transcript has at most {MAX_TRANSCRIPT} bytes.")
    head, _, _ = data.rstrip(b"\n").rpartition(b"\n")
    written = head + b"\n"
    if not written.startswith(_HEAD):
        raise Malformed("transcript.form", "This is no transcript of this version.")
    if data != written + _dump({"end": hex_digest(written)}):
        raise Untrusted("transcript.changed", "The transcript was changed, or is not whole: it has another digest than it says.")
    lines = written.removeprefix(_HEAD).removesuffix(_CUT).splitlines(keepends=True)
    notes = [_parse(line, number) for number, line in enumerate(lines, 2)]
    if not notes or notes[0].name not in _MAKERS:
        raise Malformed("transcript.form", "A transcript begins with how its session was made.")
    return notes


def replay(data: bytes) -> int:
    """Repeat a session, and compare everything that it does; the number of calls.

    Raises as `parse_transcript` does, `Malformed` (`transcript.form`) for a call that the machine does not have, and `Untrusted`
    (`transcript.differs`) where the machine does something else: another version of it wrote the transcript, or nobody did.
    """
    first, *rest = parse_transcript(data)
    machine, actions = _make(first)
    _compare(first, actions, 1)
    for number, note in enumerate(rest, 2):
        method = inspect.getattr_static(Machine, note.name, None)
        if note.name.startswith("_") or note.name in _MAKERS or not hasattr(method, "__wrapped__"):
            raise Malformed("transcript.form", f"Note {number} is of {note.name[:40]!r}, which no session does.")
        _compare(note, _call(getattr(machine, note.name), note), number)
    return 1 + len(rest)


def _make(note: Note) -> tuple[Machine, list[Action]]:
    made = _call(getattr(Machine, note.name), note)
    return (made, []) if isinstance(made, Machine) else made


def _call(function: Any, note: Note) -> Any:
    arguments = {name: _decode(value) for name, value in note.arguments.items()}
    if note.at is not None:
        arguments["now"] = note.at
    try:
        return function(**arguments)
    except (TypeError, AttributeError, ValueError) as error:
        raise Malformed("transcript.form", f"{note.name} was never called so: {error}.") from error


def _compare(note: Note, actions: Sequence[Action], number: int) -> None:
    if _line(note.name, note.arguments, note.at, actions) != note.line:
        raise Untrusted(
            "transcript.differs",
            f"Note {number} ({note.name}) does not come out as it was written down.",
            fix="Replay it with the version of Treaty that recorded it.",
        )


def _parse(line: bytes, number: int) -> Note:
    try:
        note = msgspec.convert(decode_json(line), _Note)
    except (ValueError, msgspec.ValidationError) as error:
        raise Malformed("transcript.form", f"Line {number} of the transcript is no note: {error}.") from error
    return Note(note.note, note.with_, note.at, note.did, line)


def _line(name: str, arguments: Mapping[str, Any], at: float | None, actions: Sequence[Action]) -> bytes:
    return _dump({"note": name, "with": dict(arguments), "at": at, "did": [_encode(action) for action in actions]})


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"


def _encode(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": b64encode(value)}
    if isinstance(value, TreatyError):
        family = next(kind.__name__ for kind in type(value).__mro__ if kind.__name__ in _FAMILIES)
        return {"error": {"family": family, "code": value.code, "message": value.message, "fix": value.fix}}
    if isinstance(value, Provided):
        return {"Provided": {"protocol_hash": value.protocol_hash, "confirmable": value.confirmable}}
    if isinstance(value, Timeouts):  # whoever drives the machine may have more of them
        return {"Timeouts": {field.name: float(getattr(value, field.name)) for field in dataclasses.fields(Timeouts)}}
    if dataclasses.is_dataclass(value):
        named = {field.name: _encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {type(value).__name__: named}
    if isinstance(value, Mapping):
        return {"map": {name: _encode(item) for name, item in value.items()}}
    return [_encode(item) for item in value] if isinstance(value, list | tuple) else value


def _decode(value: Any) -> Any:
    """An argument. Raises `Malformed`."""
    if isinstance(value, list):
        return tuple(map(_decode, value))
    if not isinstance(value, dict):
        return value
    try:
        [(kind, content)] = value.items()
        if kind == "bytes":
            return b64decode(content, limit=MAX_TRANSCRIPT)
        named = {name: _decode(item) for name, item in content.items()}
        if kind == "map":
            return named
        if kind == "error":
            return _FAMILIES[named.pop("family")](named["code"], named["message"], fix=named["fix"])
        return Provided(**named) if kind == "Provided" else _ARGUMENTS[kind](**named)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise Malformed("transcript.form", f"{str(value)[:80]!r} is no argument.") from error
