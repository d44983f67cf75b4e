"""The messages and decisions of a recorded negotiation, each in one line. The transcript may come from a stranger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treaty_anp import frame
from treaty_anp.frame import ProtocolType
from treaty_anp.hello_profile import hello as hellos
from treaty_anp.hello_profile.hello import MAX_HELLO
from treaty_anp.hello_profile.messages import CARRIES
from treaty_anp.transcript import Note
from treaty_anp.transcript_lines import shown
from treaty_consensus.canonical import b64decode, parse_json
from treaty_consensus.errors import TreatyError
from treaty_consensus.printable import printable

_ENDS = ("Ended", "SessionEnded", "NegotiationEnded")
_BEGINS = ("initiator", "responder")
_CONTENT = ("text", "data", "message")
"""The member of a sending action that has the message."""
_MAX_LABEL = 52
_MAX_NAME = 40


@dataclass(frozen=True)
class Step:
    """A message or a decision of the recorded side.

    `direction`: "sent", "received" or "" for a decision. `label`: the message in a few words, for the picture.
    """

    at: str
    direction: str
    name: str
    text: str
    label: str = ""


def steps_of(notes: Sequence[Note]) -> Iterator[Step]:
    """Yield the steps of a transcript in order."""
    began = notes[0].seconds or 0.0
    for note in notes:
        at = "" if note.seconds is None else f"{note.seconds - began:.3f}"
        if note.name == "receive":
            yield _message(at, "received", note.arguments.get("message"), "message")
        elif note.name not in _BEGINS:
            yield Step(at, "", note.name[:_MAX_NAME], ", ".join(shown(value) for value in note.arguments.values())[:160])
        for action in note.actions:
            name = str(next(iter(action), ""))[:_MAX_NAME]
            content = next(iter(action.values()), None)
            fields = content if isinstance(content, dict) else {}
            if name.startswith("Send"):
                yield _message(at, "sent", next((fields[key] for key in _CONTENT if key in fields), action), name)
            else:
                yield Step(at, "", name, _ending(fields) or "in order" if name in _ENDS else shown(action))


def count_steps(notes: Sequence[Note]) -> int:
    """Return the number of steps of a transcript."""
    return sum((note.name not in _BEGINS) + len(note.actions) for note in notes)


def brief(uri: str) -> str:
    """Return the name and version of a protocol's URI, or the end of another URI."""
    return "/".join(uri.split("/")[-2:])


def outcome_of(notes: Sequence[Note]) -> str:
    """Return the end of a transcript in a sentence, or "" if the session went on."""
    actions = [action for note in notes for action in note.actions]
    for action in reversed(actions):
        name = next(iter(action), "")
        if name in _ENDS:
            content = action[name]
            error = _ending(content) if isinstance(content, dict) else ""
            return f"It failed. {error}" if error else "It ended in order."
    return ""


def _ending(fields: Mapping[str, Any]) -> str:
    """Return the error of an action that ends a session, or ""."""
    error = fields.get("error")
    error = error.get("error") if isinstance(error, dict) else None
    if not isinstance(error, dict):
        return ""
    return f"{printable(str(error.get('message', '')), 400)} ({printable(str(error.get('code', '')), 80)})"


def _message(at: str, direction: str, message: Any, otherwise: str) -> Step:
    name, gist = _read(message)
    name = name or otherwise
    return Step(at, direction, name, shown(message), printable(f"{name}: {gist}" if gist else name, _MAX_LABEL))


def _read(message: Any) -> tuple[str, str]:
    """Return the type of a message and its content in a few words, both "" for a message that is not understood."""
    try:
        if isinstance(message, str):
            return _hello(message)
        match message:
            case {"bytes": str(text)}:
                return _framed(text)
            case {"FlowMessage": {"action": str(action)}}:
                return printable(action, 40), ""
        return "", ""
    except TreatyError:
        return "", ""


def _hello(text: str) -> tuple[str, str]:
    if '"type":"sourceHello"' in text:
        count = len(hellos.parse(text, "sourceHello").candidate_protocols)
        return "sourceHello", f"{count} {'candidate' if count == 1 else 'candidates'}"
    if '"type":"destinationHello"' in text:
        answer = hellos.parse(text, "destinationHello")
        if answer.selected_protocol:
            return "destinationHello", f"selects {brief(answer.selected_protocol)}"
        return "destinationHello", "confirms the hash" if answer.used_protocol_hash else "selects nothing"
    return "", ""


def _framed(text: str) -> tuple[str, str]:
    kind, payload = frame.decode(b64decode(text, limit=frame.MAX_FRAME * 2))
    if kind is not ProtocolType.META:
        return kind.name.lower().replace("_", " "), ""
    said = parse_json(payload.partition(CARRIES)[0], limit=MAX_HELLO, name="message", floats=True)
    if not isinstance(said, dict):
        return "", ""
    return printable(str(said.get("action", "")), 40), str(said.get("status", ""))
