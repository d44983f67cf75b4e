"""The page that replays a negotiation: a recorded transcript, or the descriptions of two agents.

It is pure: it reads the pasted text, fetches nothing, and keeps nothing. The choice is made by the code with which agents
themselves answer a Hello (`hello.choose`), once with all candidates, and once with each candidate alone.

Each message and each decision is one line. The examples are recorded by the code of agents itself, so that they are never out of
date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Literal
from urllib.parse import parse_qsl

from msgspec import structs

from treaty_anp import frame, transcript
from treaty_anp.discovery.parsing import AgentDescription, SupportedProtocol
from treaty_anp.discovery.parsing import parse as parse_description
from treaty_anp.frame import ProtocolType
from treaty_anp.hello_profile import hello as hellos
from treaty_anp.hello_profile.hello import MAX_HELLO, Hello, Provided, choose
from treaty_anp.hello_profile.machine import Machine
from treaty_anp.hello_profile.messages import CARRIES
from treaty_anp.hello_profile.states import Timeouts
from treaty_anp.transcript import Note, TranscriptRecorder, parse_transcript, shown
from treaty_consensus.canonical import b64decode, parse_json
from treaty_consensus.errors import Malformed, TooLarge, TreatyError
from treaty_consensus.printable import printable

from ..codes import HttpCode

MAX_REPLAYED = 256 * 1024
"""Bytes that one request may replay."""
MAX_STEPS = 100
MAX_ARROWS = 24
MAX_VERDICTS = 64
"""Candidates that are shown. A Hello that agents send has fewer; a transcript may invent any number."""
FIELDS = ("transcript", "first", "second")
_UNKNOWN = "unknown"  # a hash that a description does not say; "" would mean that the protocol cannot be verified

Fate = Literal["chosen", "kept", "dropped", "unknown"]


@dataclass(frozen=True)
class Judgement:
    """A candidate, in the initiator's order, and why it was kept or dropped."""

    uri: str
    fate: Fate
    reason: str


@dataclass(frozen=True)
class ReplayView:
    """What the page shows.

    `sides`: names of the agent that connects, and of the one that answers. `sender`: the number of the side whose messages are
    "sent". `hidden`: steps left out.
    """

    sides: tuple[str, str]
    verdicts: Sequence[Judgement]
    steps: Sequence[ReplayStep]
    hidden: int = 0
    outcome: str = ""
    sender: int = 0

    @property
    def candidates(self) -> Sequence[Judgement]:
        """The verdicts that are shown."""
        return self.verdicts[:MAX_VERDICTS]

    @property
    def arrows(self) -> Sequence[ReplayStep]:
        """The messages of the picture."""
        return [step for step in self.steps if step.direction][:MAX_ARROWS]


def read_form(body: bytes) -> dict[str, str]:
    """Return the fields of the page's form. Raises `Malformed`."""
    try:
        sent = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=len(FIELDS))
    except ValueError as error:
        raise Malformed(HttpCode.REQUEST, "This is not the form of this page.") from error
    return {name: value for name, value in sent if name in FIELDS}


def replay(inputs: Mapping[str, str]) -> ReplayView:
    """Return the replay of a transcript, or else of two descriptions. Raises `TreatyError` for anything else."""
    if sum(len(text.encode("utf-8", "replace")) for text in inputs.values()) > MAX_REPLAYED:
        raise TooLarge(HttpCode.TOO_LARGE, f"What is replayed here has at most {MAX_REPLAYED // 1024} KiB.")
    if text := inputs.get("transcript", "").strip():
        # A form sends lines that end in CR LF, and the digest is of lines that end in LF.
        return _of_transcript(text.replace("\r\n", "\n").encode("utf-8", "replace") + b"\n")
    first, second = inputs.get("first", "").strip(), inputs.get("second", "").strip()
    if not first or not second:
        raise Malformed(
            HttpCode.REQUEST, "Paste a transcript, or the descriptions of two agents.", fix="Try one of the examples."
        )
    return _of_descriptions(_described(first, "first"), _described(second, "second"))


def _of_transcript(data: bytes) -> ReplayView:
    profile, notes = parse_transcript(data)
    # The rest is counted and not made: a step parses its message.
    steps = list(islice(steps_of(notes), MAX_STEPS))
    verdicts: Sequence[Judgement] = ()
    if profile == "hello":
        try:
            verdicts = _judged_in(notes)
        # The arguments of a transcript are checked for their form, and not for their types.
        except (TypeError, AttributeError, ValueError, KeyError) as error:
            raise Malformed(HttpCode.REQUEST, f"The first calls of this transcript have other arguments: {error}.") from error
    uri = next((verdict.uri for verdict in verdicts if verdict.fate == "chosen"), None)
    return ReplayView(
        ("the agent that connects", "the agent that answers"),
        verdicts,
        steps,
        count_steps(notes) - len(steps),
        outcome_of(notes) or (f"They chose {uri}." if uri else ""),
        0 if notes[0].name == "initiator" else 1,
    )


def _judged_in(notes: Sequence[Note]) -> Sequence[Judgement]:
    """Return the verdicts of a recorded Hello. An initiator knows only the choice of the other side."""
    arguments = transcript.arguments_of("hello", notes[0])
    own = arguments["own"]
    # A text is a sequence too, of as many candidates as it has characters.
    if not isinstance(own.candidate_protocols, tuple):
        raise TypeError("the candidates are not a list")
    received = next((note for note in notes if note.name == "receive"), None)
    if received is None:
        return [Judgement(uri, "unknown", "No answer was received.") for uri in own.candidate_protocols]
    message = transcript.arguments_of("hello", received)["message"]
    if notes[0].name == "responder":
        return judged(own, hellos.parse(message, "sourceHello"), arguments.get("provides") or {})
    answer = hellos.parse(message, "destinationHello")
    selected = answer.selected_protocol or (arguments.get("known_uri") if answer.used_protocol_hash else None)
    return [
        Judgement(uri, "chosen", "The other side chose it.")
        if uri == selected
        else Judgement(uri, "dropped", "The other side did not choose it. Its own transcript has the reason.")
        for uri in own.candidate_protocols
    ]


def judged(own: Hello, source: Hello, provides: Mapping[str, Provided]) -> Sequence[Judgement]:
    """Return the verdict on each candidate of a sourceHello, as the responder `own` chooses."""
    try:
        agreement = choose(own, source, provides)[1]
    except TreatyError:
        agreement = None  # no candidate can be used, and each has its reason
    verdicts = []
    for uri in source.candidate_protocols:
        try:
            alone = choose(own, structs.replace(source, candidate_protocols=(uri,), used_protocol_hash=None), provides)[1]
        except TreatyError as error:
            verdicts.append(Judgement(uri, "dropped", error.message))
            continue
        if alone is None:
            verdicts.append(Judgement(uri, "dropped", "The agent that answers does not provide it."))
        elif agreement is not None and agreement.uri == uri:
            why = (
                "Both remember it from before." if agreement.confirmed else "It is the first candidate that both sides can speak."
            )
            verdicts.append(Judgement(uri, "chosen", why))
        else:
            winner = agreement.uri if agreement is not None else "another one"
            verdicts.append(Judgement(uri, "kept", f"Both sides can speak it, but {winner} comes before it."))
    return verdicts


def _described(text: str, which: str) -> AgentDescription:
    description = parse_description(text.encode("utf-8", "replace"), f"https://{which}.example/ad.json")
    if not isinstance(description, AgentDescription):
        raise Malformed(HttpCode.REQUEST, f"The {which} document is a list of agents.", fix="Paste the description of one agent.")
    if not description.protocols:
        raise Malformed(HttpCode.REQUEST, f"The {which} description names no protocol, so there is nothing to agree on by URI.")
    return description


def _of_descriptions(first: AgentDescription, second: AgentDescription) -> ReplayView:
    offered = {protocol.uri: protocol for protocol in first.protocols}
    other = {protocol.uri: protocol for protocol in second.protocols}
    unequal = {uri for uri, mine in offered.items() if uri in other and _differ(mine, other[uri])}
    source = Hello(
        type="sourceHello",
        message_id="1",
        session_id="1",
        source_did=first.did,
        destination_did="",
        candidate_protocols=tuple(uri for uri in offered if uri not in unequal),
        candidate_roles={uri: protocol.role for uri, protocol in offered.items() if protocol.role},
    )
    own = structs.replace(source, type="destinationHello", source_did=second.did, candidate_protocols=(), candidate_roles={})
    # A description does not say which roles fit. Two different roles are taken to fit.
    provides = {
        uri: Provided(theirs.digest or _UNKNOWN, False, theirs.role, _fitting(offered.get(uri), theirs))
        for uri, theirs in other.items()
        if uri not in unequal
    }
    by_uri = {verdict.uri: verdict for verdict in judged(own, source, provides)}
    for uri in unequal:
        by_uri[uri] = Judgement(uri, "dropped", "The two agents name different documents under this URI.")
    verdicts = [by_uri[uri] for uri in offered]
    selected = next((verdict.uri for verdict in verdicts if verdict.fate == "chosen"), None)
    steps = [
        _step("sent", "sourceHello", f"{len(source.candidate_protocols)} candidates, best first"),
        _step("received", "destinationHello", f"selects {brief(selected)}" if selected else "selects nothing"),
    ]
    outcome = (
        f"They would speak {selected}." if selected else "They have no protocol in common. They would have to negotiate one."
    )
    return ReplayView((first.name, second.name), verdicts, steps, 0, outcome)


def _step(direction: str, name: str, text: str) -> ReplayStep:
    return ReplayStep("", direction, name, text, f"{name}: {text}")


def _differ(mine: SupportedProtocol, theirs: SupportedProtocol) -> bool:
    return bool(mine.digest and theirs.digest and mine.digest != theirs.digest)


def _fitting(mine: SupportedProtocol | None, theirs: SupportedProtocol) -> tuple[str, ...]:
    return (mine.role,) if mine is not None and mine.role != theirs.role else ()


_BASE = "https://registry.example/protocols/example.com"
_ORDER, _INFO, _OLD = f"{_BASE}/orders/2.0", f"{_BASE}/product-info/1.1", f"{_BASE}/product-info/1.0"
TITLES: Mapping[str, str] = {
    "agreed": "A transcript: the second candidate is chosen",
    "nothing": "A transcript: no candidate is left",
    "descriptions": "Two agent descriptions",
}


@lru_cache(maxsize=1)
def examples() -> Mapping[str, Mapping[str, str]]:
    """Return the fields of the form for each of `TITLES`."""
    return {
        "agreed": {"transcript": _recorded((_ORDER, _INFO, _OLD), {_INFO: _provided("client"), _OLD: _provided("client")})},
        "nothing": {"transcript": _recorded((_ORDER, _OLD), {_OLD: _provided("server")})},
        "descriptions": {
            "first": _description("Buyer", "buyer.example", {_ORDER: "buyer", _INFO: "client", _OLD: "client"}),
            "second": _description("Shop", "shop.example", {_OLD: "server", _INFO: "server"}),
        },
    }


def _provided(peer: str) -> Provided:
    return Provided("ab" * 32, False, "server", (peer,))


def _recorded(candidates: tuple[str, ...], provides: Mapping[str, Provided]) -> str:
    """Return the transcript of an agent that answers a Hello with these candidates."""
    recorder = TranscriptRecorder()
    hello = Hello(
        type="sourceHello",
        message_id="0" * 32,
        session_id="1" * 32,
        source_did="did:wba:buyer.example",
        destination_did="did:wba:shop.example",
        random="2" * 64,
        candidate_protocols=candidates,
        candidate_roles=dict.fromkeys(candidates, "client"),
    )
    own = Hello(
        type="destinationHello",
        message_id="3" * 32,
        session_id="",
        source_did="did:wba:shop.example",
        destination_did="",
        random="4" * 64,
    )
    machine = Machine.responder(own, now=0.0, timeouts=Timeouts(), recorder=recorder, provides=dict(provides))
    machine.receive(hello.format(), 0.25)
    text = recorder.transcript().decode()
    recorder.close()
    return text


def _description(name: str, host: str, protocols: Mapping[str, str]) -> str:
    listed = [
        {"type": "StructuredInterface", "protocol": uri, "digest": "ab" * 32, "role": role, "url": f"wss://{host}/anp"}
        for uri, role in protocols.items()
    ]
    about = {"type": "AgentDescription", "name": name, "did": f"did:wba:{host}", "interfaces": listed}
    return json.dumps(about, indent=2, ensure_ascii=False)


_ENDS = ("Ended", "SessionEnded", "NegotiationEnded")
_BEGINS = ("initiator", "responder")
_CONTENT = ("text", "data", "message")
"""The member of a sending action that has the message."""
_MAX_LABEL = 52
_MAX_NAME = 40


@dataclass(frozen=True)
class ReplayStep:
    """A message or a decision of the recorded side.

    `direction`: "sent", "received" or "" for a decision. `label`: the message in a few words, for the picture.
    """

    at: str
    direction: str
    name: str
    text: str
    label: str = ""


def steps_of(notes: Sequence[Note]) -> Iterator[ReplayStep]:
    """Yield the steps of a transcript in order."""
    began = notes[0].seconds or 0.0
    for note in notes:
        at = "" if note.seconds is None else f"{note.seconds - began:.3f}"
        if note.name == "receive":
            yield _message(at, "received", note.arguments.get("message"), "message")
        elif note.name not in _BEGINS:
            yield ReplayStep(at, "", note.name[:_MAX_NAME], ", ".join(shown(value) for value in note.arguments.values())[:160])
        for action in note.actions:
            name = str(next(iter(action), ""))[:_MAX_NAME]
            content = next(iter(action.values()), None)
            fields = content if isinstance(content, dict) else {}
            if name.startswith("Send"):
                yield _message(at, "sent", next((fields[key] for key in _CONTENT if key in fields), action), name)
            else:
                yield ReplayStep(at, "", name, _ending(fields) or "in order" if name in _ENDS else shown(action))


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


def _message(at: str, direction: str, message: Any, otherwise: str) -> ReplayStep:
    name, gist = _read(message)
    name = name or otherwise
    return ReplayStep(at, direction, name, shown(message), printable(f"{name}: {gist}" if gist else name, _MAX_LABEL))


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
    message = parse_json(payload.partition(CARRIES)[0], limit=MAX_HELLO, name="message", floats=True)
    if not isinstance(message, dict):
        return "", ""
    return printable(str(message.get("action", "")), 40), str(message.get("status", ""))
