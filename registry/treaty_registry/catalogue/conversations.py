"""Read vectors as conversations: who sends which message to whom, in the order of the vector.

A vector is a session in the view of one role. A conversation has the same messages in the view of both, so that a reader follows
it, and a page plays either role with it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from treaty_consensus.handler import Manifest
from treaty_handler import Close, PeerLost, Received, Timer
from treaty_sandbox.vectors import Vector, VectorStep

MAX_TALKS = 32
MAX_LINES = 40
MAX_TEXT = 1_200
MAX_ALL_TEXT = 24_000
"""Characters of all lines of a package: a page has to stay small."""
MAX_TITLE = 200

LineKind: TypeAlias = Literal["sent", "received", "note"]


class ConversationLine(msgspec.Struct, frozen=True):
    """A message that the role `by` sends, or a note about something that happens to it.

    `kind`: of a message, in the view of the vector's role. `is_cut`: the text goes on.
    """

    kind: LineKind
    by: str
    text: str
    is_cut: bool = False


class Conversation(msgspec.Struct, frozen=True):
    """A vector of a role as a conversation. `is_cut`: it has more lines."""

    vector: str
    title: str
    role: str
    lines: list[ConversationLine]
    is_cut: bool


def conversations(manifest: Manifest, vectors: Iterable[Vector]) -> list[Conversation]:
    """Return the conversations of the vectors of a protocol for two, as many as the bounds allow."""
    talks: list[Conversation] = []
    left = MAX_ALL_TEXT
    for vector in vectors:
        role = vector.roles[0]
        if role not in manifest.roles or len(talks) == MAX_TALKS:
            continue
        lines: list[ConversationLine] = []
        is_cut = False
        for line in _lines(vector.steps, role, manifest.roles[role].peer):
            left -= len(line.text)
            is_cut = left < 0 or len(lines) == MAX_LINES
            if is_cut:
                break
            lines.append(line)
        if lines:
            talks.append(Conversation(vector.name[:MAX_TITLE], vector.title[:MAX_TITLE], role, lines, is_cut))
    return talks


def message_text(notation: Mapping[str, Any]) -> str:
    """Return the text of a message of a vector. Bytes that are no text become a sentence about them."""
    [(style, value)] = notation.items()
    if style == "json":
        return msgspec.json.encode(value).decode()
    data = value.encode() if style == "text" else base64.b64decode(value)
    return _decoded(data)


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"({len(data)} bytes that are no text)"


def _lines(steps: Iterable[VectorStep], role: str, peer: str) -> Iterator[ConversationLine]:
    for step in steps:
        match step.event:
            case Received(data=data):
                yield _line("received", peer, _decoded(data))
            case Timer():
                yield _line("note", role, "Its timer ends.")
            case PeerLost():
                yield _line("note", role, "It loses the connection.")
            case Close():
                yield _line("note", role, "It ends the session.")
        for tag, effect in step.effects:
            match tag:
                case "send":
                    yield _line("sent", role, message_text(effect["data"]))
                case "audit":
                    yield _line("note", role, str(effect["text"]))
                case "return" if effect["error"]:
                    error = effect["error"]
                    yield _line("note", role, f"Its call fails with {error['code']}: {error['message']}")


def _line(kind: LineKind, by: str, text: str) -> ConversationLine:
    return ConversationLine(kind, by, text[:MAX_TEXT], len(text) > MAX_TEXT)
