"""Encode and decode the frames between host and worker: length-prefixed MessagePack, one request and then its reply.

    frame   = length payload            length: 4 bytes, big-endian, of the payload; at most 16 MiB
    payload = MessagePack array: kind, then the fields listed below

    request                                          reply
    (the worker starts)                              ["ready"]
    ["compile", {path: source}]                      ["code", bytes]
    ["compile-wasm", module]                         ["code", bytes]
    ["load", bytes, {path: data}, module, attribute] ["done"]
    ["load-wasm", bytes]                             ["done"]
    ["open", session, role, parameters, snapshot]    ["done"]
    ["event", session, tag, fields]                  ["effects", [[tag, fields], …]]
    ["snapshot", session, limit]                     ["bytes", bytes], and the session is closed
    ["copy", session, limit]                         ["bytes", bytes], a snapshot; the session goes on
    ["batch", request, …]                            ["batch", reply, …], up to the first that failed
    ["close", session]                               ["done"]
    ["encode", message]                              ["bytes", bytes]
    ["decode", bytes]                                ["value", message]
    ["validate", message, sender]                    ["issues", [text, …]]
    (any of them)                                    ["failed", reason, text]

`session` is an integer that the host chooses. Tags are the class names of `treaty_handler.events` and `.effects` in lower case.
Fields are a map by field name; bytes are MessagePack bin, `error` is a map or nil. For example, the reply with the single effect
`End()` is the frame

    00 00 00 21 92 a7 65 66 66 65 63 74 73 91 92 a3 65 6e 64 81 a6 73 74 61 74 75 73 a9 63 6f 6d 70 6c 65 74 65 64

Reasons of a failure: `raised` (the handler raised; `text` is the exception), `memory`, `fuel` (of a WebAssembly module),
`syntax`, `code` (unreadable code bytes), `rejected` (the handler raised `ValueError` for a message that it cannot encode or
decode), `type` (it returned a value of a wrong type), `unmovable` (its snapshot raised, or is longer than `limit`; the session
is unchanged).

The worker trusts the host. The host does not trust the worker, because a handler can write to the socket itself. So a reply is
decoded under a cap of bytes and a cap of values (65,536, names of maps included) and strictly by type. A frame without a request
ends the worker. Both ends decode the fields of an event or effect by its dataclass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from treaty_handler import (
    Audit,
    Call,
    Cancel,
    Cancelled,
    Close,
    Effect,
    Emit,
    End,
    Event,
    Invoke,
    Item,
    Multicast,
    Opened,
    PeerJoined,
    PeerLost,
    Persist,
    Received,
    Renegotiated,
    Request,
    Requested,
    Result,
    Return,
    Send,
    SetTimer,
    Timer,
)

# Twice the largest content of a package. Bounded, because both ends hold a whole frame in memory.
MAX_FRAME = 16 * 1024 * 1024
MAX_REPLY_VALUES = 65_536
"""The cap of values in one reply. It is more than the largest JSON value and the largest number of effects need."""
HEADER = 4

EVENTS: dict[str, type[Event]] = {
    kind.__name__.lower(): kind
    for kind in (*(Opened, Renegotiated, Received, Call, Requested, Cancelled, Result, Item, Timer, PeerJoined, PeerLost, Close),)
}
EFFECTS: dict[str, type[Effect]] = {
    kind.__name__.lower(): kind
    for kind in (Send, Multicast, Invoke, Request, Cancel, Return, Emit, SetTimer, Persist, End, Audit)
}

_EVENT_DECODERS: dict[str, msgspec.msgpack.Decoder[Event]] = {tag: msgspec.msgpack.Decoder(kind) for tag, kind in EVENTS.items()}
_EFFECT_DECODERS: dict[str, msgspec.msgpack.Decoder[Effect]] = {
    tag: msgspec.msgpack.Decoder(kind) for tag, kind in EFFECTS.items()
}
_EVENT_TAGS = {kind: tag for tag, kind in EVENTS.items()}
_EFFECT_TAGS = {kind: tag for tag, kind in EFFECTS.items()}

_frame = msgspec.msgpack.Decoder(list[msgspec.Raw])
_kind = msgspec.msgpack.Decoder(str)
_pairs = msgspec.msgpack.Decoder(list[tuple[str, msgspec.Raw]])
_any = msgspec.msgpack.Decoder(Any)
_encoder = msgspec.msgpack.Encoder()


class WorkerMessage(NamedTuple):
    """A split payload: its kind, and its fields, which are still encoded."""

    kind: str
    fields: list[msgspec.Raw]


def encode_frame(*parts: object) -> bytes:
    """Encode one frame with these parts.

    Raises `ValueError` beyond `MAX_FRAME`, and `TypeError` or `OverflowError` for a value that MessagePack cannot carry.
    """
    payload = encode_payload(*parts)
    if len(payload) > MAX_FRAME:
        raise ValueError(f"a frame has at most {MAX_FRAME} bytes")
    return len(payload).to_bytes(HEADER, "big") + payload


def encode_payload(*parts: object) -> bytes:
    """Encode a frame without its length. Raises `TypeError` or `OverflowError` as `encode_frame`."""
    return _encoder.encode(parts)


def decode_payload(payload: bytes | msgspec.Raw) -> WorkerMessage:
    """Split a payload. Raises `ValueError` if it is not an array that begins with a text, or is nested too deeply."""
    try:
        first, *fields = _frame.decode(payload)
        return WorkerMessage(_kind.decode(first), fields)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError("not a frame") from error


def decode_reply(payload: bytes) -> WorkerMessage:
    """Split an untrusted payload. Raises `ValueError` as `decode_payload`, and beyond `MAX_REPLY_VALUES`."""
    # Millions of small values in few bytes would become as many objects before any later check could refuse them.
    _check_count(payload)
    return decode_payload(payload)


def decode_any(field: msgspec.Raw) -> Any:
    """Decode a field by its own types. Raises `ValueError`."""
    try:
        return _any.decode(field)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError("not a value") from error


def event_parts(event: Event) -> tuple[str, Event]:
    """Return tag and fields of an event, for `encode_frame`."""
    return _EVENT_TAGS[type(event)], event


def effect_parts(effects: Sequence[Effect]) -> list[tuple[str, Effect]]:
    """Return tags and fields of effects, for `encode_frame`. Raises `KeyError` for an item that is not an effect."""
    return [(_EFFECT_TAGS[type(effect)], effect) for effect in effects]


def decode_event(tag: msgspec.Raw, fields: msgspec.Raw) -> Event:
    """Decode the event of a request."""
    return _EVENT_DECODERS[_kind.decode(tag)].decode(fields)


def decode_effects(fields: Sequence[msgspec.Raw]) -> list[Effect]:
    """Decode the effects of a reply; each field has its declared type. Raises `ValueError`."""
    try:
        return [_EFFECT_DECODERS[tag].decode(item) for tag, item in _pairs.decode(fields[0])]
    except (msgspec.DecodeError, RecursionError, LookupError) as error:
        raise ValueError("not a list of effects") from error


# The number of bytes after a value's first byte that are not values themselves. `_FIXED`: by the first byte. `_SIZED`: for texts,
# bytes and extensions, the width of the length field, and the further bytes beside the content (the extension's type).
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_FIXED |= {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_SIZED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_SIZED |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}


def _check_count(payload: bytes) -> None:
    """Count the values of a payload by their first bytes, before decoding makes objects of them. Raises `ValueError`."""
    end = len(payload)
    if end <= MAX_REPLY_VALUES:  # each value takes at least one byte
        return
    position = count = 0
    while position < end:
        count += 1
        if count > MAX_REPLY_VALUES:
            raise ValueError(f"a reply has at most {MAX_REPLY_VALUES} values")
        first = payload[position]
        position += 1
        if 0xA0 <= first <= 0xBF:
            position += first & 0x1F
        elif first in _FIXED:
            position += _FIXED[first]
        elif first in _SIZED:
            width, more = _SIZED[first]
            position += width + more + int.from_bytes(payload[position : position + width], "big")
