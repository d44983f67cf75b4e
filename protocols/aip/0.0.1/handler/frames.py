"""The calls of a session: requests, responses and the status of a call, one frame each.

A transport of gRPC turns frames into calls and back; every other transport of messages carries them as they are.
"""

from __future__ import annotations

from typing import NamedTuple

from treaty_handler import Effect, Send, Value

from .codec import Count, decode, encode, lengthy, read_fields, varint_field
from .fields import METHODS

MAX_NAME = 256
"""Characters of an id, an address or a name."""
_MESSAGE, _LENGTH = 4, 2
_FILLED = ("REQUEST", "RESPONSE")
REQUESTS = frozenset(("REQUEST", "END", "CANCEL", "BROKEN"))


class Place(NamedTuple):
    """A call at one end: the peer, and the id that the side chose that began it."""

    peer: str
    call: str


class Frame(NamedTuple):
    """A frame. `message`: decoded, None where the kind has none. `code`, `text`: of a STATUS. `address`: where a call goes.

    A request whose message cannot be read has the kind BROKEN, and such a response is the STATUS that it causes.
    """

    kind: str
    method: str
    call: str
    message: Value = None
    code: str = "OK"
    text: str = ""
    address: str = ""


def pack(frame: Frame) -> bytes:
    """Return the bytes of a frame whose message is bytes. Raises `ValueError`."""
    value = {"kind": frame.kind, "method": frame.method, "call": frame.call, "code": frame.code, "text": frame.text}
    head = encode("Frame", value | {"address": frame.address})
    # Field 4 stands at the end, so that the message needs no turn through base64.
    return head if frame.message is None else head + lengthy(_MESSAGE, frame.message)


def unpack(data: bytes) -> Frame:
    """Return the frame in these bytes, with its message as bytes. Raises `ValueError`."""
    message, head = b"", bytearray()
    for number, wire, content in read_fields(data, Count()):
        if number == _MESSAGE and isinstance(content, bytes):
            message = content
        elif isinstance(content, bytes) and wire == _LENGTH:
            head += lengthy(number, content)
        elif isinstance(content, int):
            head += varint_field(number, content)
    value = decode("Frame", bytes(head))
    kind, method, call, code = value["kind"], value["method"], value["call"], value["code"]
    if method not in METHODS or not 1 <= len(call) <= 64 or not isinstance(kind, str) or not isinstance(code, str):
        raise ValueError("a frame has a kind, a method of the protocol, and a call")
    return Frame(kind, method, call, message if kind in _FILLED else None, code, value["text"], value["address"])


def write(frame: Frame) -> bytes:
    """Return the bytes of a frame. Raises `ValueError`."""
    if frame.message is None:
        return pack(frame)
    return pack(frame._replace(message=encode(_type(frame.kind, frame.method), frame.message)))


def read(data: bytes) -> Frame:
    """Return the frame in these bytes. Raises `ValueError`."""
    frame = unpack(data)
    if frame.message is None:
        return frame
    try:
        return frame._replace(message=decode(_type(frame.kind, frame.method), frame.message))
    except ValueError as error:
        kind = "BROKEN" if frame.kind == "REQUEST" else "STATUS"
        return Frame(kind, frame.method, frame.call, None, "INTERNAL", f"The message cannot be read: {error}.")


def _type(kind: str, method: str) -> str:
    if method not in METHODS:
        raise ValueError("the protocol has no such method")
    return METHODS[method][1 if kind == "REQUEST" else 2]


def send(peer: str, frame: Frame) -> Send:
    """Return the effect that sends a frame."""
    return Send(peer=peer, data=write(frame))


def respond(place: Place, method: str, message: Value) -> Send:
    """Return one response of a call."""
    return send(place.peer, Frame("RESPONSE", method, place.call, message))


def finish(place: Place, method: str, code: str = "OK", text: str = "") -> Send:
    """Return the end of a call."""
    return send(place.peer, Frame("STATUS", method, place.call, code=code, text=text))


def answer(place: Place, method: str, message: Value) -> list[Effect]:
    """Return the response of a call that has one."""
    return [respond(place, method, message), finish(place, method)]
