"""Write, read and replay transcripts: the recorded calls of one side of a session.

docs/specification/home.md, section "Transcripts", has the format for both profiles: UTF-8, one JSON object on each line.

    {"profile":"hello","transcript":2}
    {"at":7.25,"did":[{"SendText":{"text":"…"}}],"note":"initiator","with":{"own":{"Hello":{…}},"timeouts":{"Timeouts":{…}}}}
    {"at":7.5,"did":[{"Load":{…}}],"note":"receive","with":{"message":{"bytes":"…"}}}
    {"end":"9c1e…"}

A transcript contains all messages, business data included, so store it as carefully as that data.

`shown` gives a value in one line. A transcript may come from a stranger and contain anything.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from treaty_consensus import errors
from treaty_consensus.canonical import b64decode, b64encode, hex_digest
from treaty_consensus.errors import Malformed, TooLarge, TreatyError, Untrusted
from treaty_consensus.printable import printable
from treaty_handler import decode_json
from treaty_io.codes import TranscriptCode

from . import frame
from .call_metadata import CallMetadata
from .flow_profile import actions as flow_actions
from .flow_profile import commands as flow_commands
from .flow_profile import payloads as flow_payloads
from .flow_profile.capabilities import CapabilityManager, FlowRequest, ProtocolOffer, ProtocolRegistry
from .flow_profile.initiator import Initiator
from .flow_profile.messages import FlowMessage, Foreign
from .flow_profile.parameters import Choice, Range
from .flow_profile.processor import Now
from .flow_profile.responder import Responder
from .flow_profile.states import FlowLimits, FlowTimeouts
from .flow_profile.strategy import Evaluation
from .frame import ProtocolType
from .hello_profile import commands, messages
from .hello_profile.actions import Running, SendText
from .hello_profile.hello import Hello
from .hello_profile.machine import Limits, Machine, Provided, Timeouts
from .hello_profile.messages import CARRIES
from .trace_context import TraceContext

MAX_TRANSCRIPT = 16 * 1024 * 1024
MAX_IN_MEMORY = 64 * 1024
_END_SIZE = 1024
_CUT = b'{"cut":true}\n'
_VERBS = frozenset({"receive", "apply", "tick", "close", "fail", "lost"})
_MAKERS = ("initiator", "responder")

Profile: TypeAlias = Literal["hello", "flow"]
_HEADS: dict[Profile, bytes] = {
    "hello": b'{"profile":"hello","transcript":2}\n',
    "flow": b'{"profile":"flow","transcript":2}\n',
}

_REPORTS = get_args(messages.ReportCosignature)
_HELLO = (Hello, Limits, Timeouts, Provided, CallMetadata, TraceContext)
_FLOW = (
    *(FlowMessage, Foreign, ProtocolOffer, Choice, Range, FlowRequest, Evaluation, FlowLimits, FlowTimeouts),
    *(flow_actions.Agreed, flow_actions.Shortcut),
    *(flow_payloads.Metrics, flow_payloads.Supported, flow_payloads.ContextInfo, flow_payloads.Matched),
    *(flow_payloads.EvaluationMetrics, flow_payloads.Proposed, flow_payloads.Accepted),
    *flow_payloads.PAYLOADS.values(),
    *(CallMetadata, TraceContext),
)
_ARGUMENTS: dict[Profile, dict[str, type]] = {
    "hello": {kind.__name__: kind for kind in (*_HELLO, *_REPORTS, *get_args(commands.Command))},
    "flow": {kind.__name__: kind for kind in (*_FLOW, *_REPORTS, *get_args(flow_commands.Command))},
}
_FAMILIES = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, TreatyError)}


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    note: str
    with_: dict[str, Any] = msgspec.field(name="with")
    at: float | tuple[float, int] | None
    did: list[dict[str, Any]]
    drew: tuple[str, ...] = ()


@dataclass(frozen=True)
class Note:
    """One recorded call. `at`: seconds; in the flow profile also milliseconds since 1970. `drawn`: the random ids of the call."""

    name: str
    arguments: Mapping[str, Any]
    at: float | tuple[float, int] | None
    actions: Sequence[Mapping[str, Any]]
    drawn: Sequence[str]
    line: bytes

    @property
    def seconds(self) -> float | None:
        """Return the time by the machine's clock."""
        return self.at[0] if isinstance(self.at, tuple) else self.at


class TranscriptRecorder:
    """A `recording.Recorder` that keeps a transcript in memory, and beyond 64 KiB in a temporary file.

    It stops recording before the transcript would exceed its limit.
    """

    def __init__(self, profile: Profile = "hello", *, limit: int = MAX_TRANSCRIPT, only_talks: bool = False) -> None:
        """Start a transcript. `limit`: bytes. `only_talks`: drop the transcript when a session runs."""
        self._file = tempfile.SpooledTemporaryFile(max_size=MAX_IN_MEMORY)  # noqa: SIM115  # closed with the recorder
        self._digest = hashlib.sha256()
        self._limit, self._only_talks = limit - _END_SIZE, only_talks
        self._size = 0
        self._over = False
        self._write(_HEADS[profile])

    def note(
        self, name: str, arguments: Mapping[str, Any], now: object, actions: Sequence[object], drawn: Sequence[str] = ()
    ) -> None:
        """Record a call."""
        if self._over:
            return
        at = (float(now.seconds), now.unix) if isinstance(now, Now) else float(now) if isinstance(now, int | float) else None
        line = _line(name, {key: _encode(value) for key, value in arguments.items()}, at, actions, drawn)
        if self._only_talks and any(isinstance(action, Running | flow_actions.Ready) for action in actions):
            self.close()
        elif self._size + len(line) > self._limit:
            self._write(_CUT)
            self._over = True
        else:
            self._write(line)

    def transcript(self) -> bytes:
        """Return the transcript so far; b"" after `close`, and after a session began to run with `only_talks`."""
        if self._file.closed:
            return b""
        self._file.seek(0)
        return self._file.read() + _dump({"end": self._digest.hexdigest()})

    def close(self) -> None:
        """Delete the transcript."""
        self._over = True
        self._file.close()

    def _write(self, line: bytes) -> None:
        self._file.seek(0, os.SEEK_END)
        self._file.write(line)
        self._digest.update(line)
        self._size += len(line)


def parse_transcript(data: bytes) -> tuple[Profile, list[Note]]:
    """Return the profile and the calls of a transcript.

    Raises `TooLarge` (`transcript.form`), `Malformed` (`transcript.form`), and `Untrusted` (`transcript.form`) if the
    text does not match its digest.
    """
    if len(data) > MAX_TRANSCRIPT:
        raise TooLarge(TranscriptCode.FORM, f"A transcript has at most {MAX_TRANSCRIPT} bytes.")
    head, _, _ = data.rstrip(b"\n").rpartition(b"\n")
    written = head + b"\n"
    profile = next((profile for profile, first in _HEADS.items() if written.startswith(first)), None)
    if profile is None:
        raise Malformed(TranscriptCode.FORM, "This is no transcript of this version.")
    if data != written + _dump({"end": hex_digest(written)}):
        raise Untrusted(TranscriptCode.FORM, "The transcript was changed or is incomplete: its digest does not match its text.")
    lines = written.removeprefix(_HEADS[profile]).removesuffix(_CUT).splitlines(keepends=True)
    notes = [_parse(line, number) for number, line in enumerate(lines, 2)]
    if not notes or notes[0].name not in _MAKERS:
        raise Malformed(TranscriptCode.FORM, "The first note of a transcript must be `initiator` or `responder`.")
    return profile, notes


def arguments_of(profile: Profile, note: Note) -> dict[str, Any]:
    """Return the arguments of a call, as the values of the machine. Their types are unchecked. Raises `Malformed`."""
    return {name: _decode(value, _ARGUMENTS[profile]) for name, value in note.arguments.items()}


def replay(data: bytes) -> int:
    """Replay a session, compare all its actions, and return the number of calls.

    Raises the errors of `parse_transcript`, `Malformed` (`transcript.form`) for a call that the machine does not have, and
    `Untrusted` (`transcript.differs`) if an action differs. Then another version recorded the transcript, or it is invented.
    """
    profile, notes = parse_transcript(data)
    repeat = _Replay(profile, notes[0])
    for number, note in enumerate(notes, 1):
        actions, drawn = repeat.call(note, number)
        if _line(note.name, note.arguments, note.at, actions, drawn) != note.line:
            raise Untrusted(
                TranscriptCode.DIFFERS,
                f"Note {number} ({note.name}) differs from its replay.",
                fix="Replay it with the version of Treaty that recorded it.",
            )
    return len(notes)


class _Replay:
    """A new machine that draws the recorded ids."""

    def __init__(self, profile: Profile, first: Note) -> None:
        self._profile = profile
        self._ids: list[str] = []
        self._drawn: list[str] = []
        self._registry = ProtocolRegistry()
        self._machine: Any = None
        self._first = first

    def call(self, note: Note, number: int) -> tuple[Sequence[object], Sequence[str]]:
        """Repeat one call. Return its actions and the ids that it drew. Raises `Malformed`."""
        self._ids, self._drawn = list(note.drawn), []
        arguments = arguments_of(self._profile, note)
        try:
            return self._repeat(note, number, arguments), self._drawn
        except (TypeError, AttributeError, ValueError, KeyError) as error:
            raise Malformed(TranscriptCode.FORM, f"{note.name} cannot be called with these arguments: {error}.") from error

    def _repeat(self, note: Note, number: int, arguments: dict[str, Any]) -> Sequence[object]:
        now = Now(*note.at) if isinstance(note.at, tuple) else note.at
        if number == 1:
            return (
                self._make_flow(note.name, arguments, now) if self._profile == "flow" else self._make(note.name, arguments, now)
            )
        if note.name == "capabilities" and self._profile == "flow":
            self._set_capabilities(**arguments)
            return []
        if note.name not in _VERBS:
            raise Malformed(TranscriptCode.FORM, f"Note {number} is of {note.name[:40]!r}, which is not a call of a session.")
        timed = {} if now is None else {"now": now}
        actions: Sequence[object] = getattr(self._machine, note.name)(**arguments, **timed)
        return actions

    def _make(self, name: str, arguments: dict[str, Any], now: Any) -> Sequence[object]:
        self._machine = Machine(now=now, **arguments)
        if self._machine.is_initiator != (name == "initiator"):
            raise Malformed(TranscriptCode.FORM, f"This Hello is not an {name}'s.")
        return [SendText(self._machine.own.format())] if name == "initiator" else []

    def _make_flow(self, name: str, arguments: dict[str, Any], now: Any) -> Sequence[object]:
        offers, context = arguments.pop("offers"), arguments.pop("context")
        capabilities = CapabilityManager(self._registry)
        make: Callable[..., Any] = Initiator if name == "initiator" else Responder
        self._machine = make(capabilities=capabilities, new_id=self._draw, **arguments)
        self._set_capabilities(offers, context)
        actions: Sequence[object] = self._machine.start(now)
        return actions

    def _set_capabilities(self, offers: Sequence[ProtocolOffer], context: flow_payloads.ContextInfo) -> None:
        registry = self._machine.capabilities.registry = ProtocolRegistry()
        for offer in offers:
            registry.add(offer)
        self._machine.capabilities.context = context

    def _draw(self, kind: str) -> str:
        """Return the next recorded id. If the machine draws more ids than recorded, return another text, which then differs."""
        self._drawn.append(self._ids.pop(0) if self._ids else f"{kind}-not-written-down-{len(self._drawn)}")
        return self._drawn[-1]


def _parse(line: bytes, number: int) -> Note:
    try:
        note = msgspec.convert(decode_json(line), _Note)
    except (ValueError, msgspec.ValidationError) as error:
        raise Malformed(TranscriptCode.FORM, f"Line {number} of the transcript is no note: {error}.") from error
    return Note(note.note, note.with_, note.at, note.did, note.drew, line)


def _line(name: str, arguments: Mapping[str, Any], at: Any, actions: Sequence[object], drawn: Sequence[str]) -> bytes:
    drew = {"drew": list(drawn)} if drawn else {}
    return _dump({"note": name, "with": dict(arguments), "at": at, "did": [_encode(action) for action in actions], **drew})


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"


def _encode(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": b64encode(value)}
    if isinstance(value, TreatyError):
        family = next(kind.__name__ for kind in type(value).__mro__ if kind.__name__ in _FAMILIES)
        return {"error": {"family": family, "code": value.code, "message": value.message, "fix": value.fix}}
    if isinstance(value, Provided):
        return {"Provided": {name: _encode(item) for name, item in value._asdict().items()}}
    if isinstance(value, Timeouts):  # the driver may pass a subclass with more fields
        return {"Timeouts": {field.name: float(getattr(value, field.name)) for field in dataclasses.fields(Timeouts)}}
    if isinstance(value, msgspec.Struct):
        return {type(value).__name__: {name: _encode(item) for name, item in msgspec.structs.asdict(value).items()}}
    if dataclasses.is_dataclass(value):
        named = {field.name: _encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {type(value).__name__: named}
    if isinstance(value, Mapping):
        return {"map": {name: _encode(item) for name, item in value.items()}}
    if isinstance(value, list):
        return {"list": [_encode(item) for item in value]}
    return [_encode(item) for item in value] if isinstance(value, tuple) else value


def _decode(value: Any, kinds: Mapping[str, type]) -> Any:
    """Decode an argument. Raises `Malformed`."""
    if isinstance(value, list):
        return tuple(_decode(item, kinds) for item in value)
    if not isinstance(value, dict):
        return value
    try:
        [(kind, content)] = value.items()
        if kind == "bytes":
            return b64decode(content, limit=MAX_TRANSCRIPT)
        if kind == "list":
            return [_decode(item, kinds) for item in content]
        named = {name: _decode(item, kinds) for name, item in content.items()}
        if kind == "map":
            return named
        if kind == "error":
            return _FAMILIES[named.pop("family")](named["code"], named["message"], fix=named["fix"])
        return kinds[kind](**named)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise Malformed(TranscriptCode.FORM, f"{str(value)[:80]!r} is no argument.") from error


_MAX_SHOWN = 160


def shown(value: Any) -> str:
    """Return a value in one line of at most 160 characters, frames by their type."""
    if isinstance(value, dict) and len(value) == 1:
        [(name, content)] = value.items()
        if name == "bytes" and isinstance(content, str):
            return _frame(content)
        value = content if name == "map" else f"{name} {_fields(content)}"
    return printable(str(value), _MAX_SHOWN)


def _fields(content: Any) -> str:
    if not isinstance(content, dict):
        return str(content)
    return ", ".join(f"{name}: {shown(value)}" for name, value in content.items())


def _frame(text: str) -> str:
    try:
        type, payload = frame.decode(b64decode(text, limit=frame.MAX_FRAME * 2))
    except TreatyError:
        return f"{len(text)} characters of base64 that are not a frame"
    first, carries, carried = payload.partition(CARRIES) if type is ProtocolType.META else (payload, b"", b"")
    return _payload(type, first) + (f", {_payload(ProtocolType.APPLICATION, carried)}" if carries else "")


def _payload(type: ProtocolType, payload: bytes) -> str:
    return f"PT={type:02b} {printable(payload.decode('utf-8', 'replace'), _MAX_SHOWN)}"
