"""Write and read the payloads of an agreed protocol: their form, compression and chunks (docs/specification/flow-profile.md, §1).

    {"query": "SELECT …", "format": "json"}                      the JSON form: any other object, with an action of its own
    {"data": B64}                                                the byte form: the bytes of a handler's message
    {"data": B64, "encoding": "gzip"}                            compressed, if `compressionFormat` is agreed
    {"data": B64, "encoding": "gzip", "part": 1, "parts": 3}     one chunk, if `chunkSize` is agreed

A handler gets a payload of the JSON form as canonical bytes (RFC 8785), and the action as the `stream` of `Received`. Its answers
go out in the form in which the peer spoke last. Before the peer has spoken, the byte form is used if both sides agreed on the
extension `byteForm`; else the JSON form, for a handler's message that is a JSON object.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import rfc8785

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, TooLarge
from treaty_handler.values import decode_json
from treaty_io.codes import FlowCode

from .messages import check_numbers
from .parameters import CHUNK_SIZE, COMPRESSION, MIN_CHUNK

BYTE_FORM = "byteForm"
"""The extension by which two sides agree on the byte form."""
ACTION = "message"
"""The action of a message in the byte form, and of one in the JSON form without an own action."""
MAX_DATA = 720 * 1024
"""Bytes of one handler's message: in base64, a message of 1 MiB."""
MAX_PARTS = MAX_DATA // MIN_CHUNK

_BYTE_MEMBERS = frozenset(("data", "encoding", "part", "parts"))
_PLAIN = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


@dataclass
class PayloadCodec:
    """The payloads of one session. `parameters`: the agreed ones. `json_form`: whether the next message goes out in the JSON
    form. `action`: of the last message that the peer sent in that form. For one event loop."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    json_form: bool = False
    action: str = ""
    _parts: list[bytes] = field(default_factory=list)
    _expected: tuple[int, str] = (0, "")

    @property
    def limit(self) -> int:
        """Return the cap of bytes of one handler's message."""
        agreed = self.parameters.get("maxMessageSize")
        return min(int(agreed), MAX_DATA) if isinstance(agreed, int | float) and not isinstance(agreed, bool) else MAX_DATA

    def speak_like(self, other: PayloadCodec) -> None:
        """Continue in the form, and with the action, of a former codec."""
        self.json_form, self.action = other.json_form, other.action

    def encode(self, data: bytes, action: str = "") -> list[tuple[str, dict[str, Any]]]:
        """Return the actions and payloads of the messages that carry a handler's bytes. `action`: of the JSON form; by default
        the one that the peer used. Raises `TooLarge` (`flow.too-large`)."""
        if len(data) > self.limit:
            raise TooLarge(FlowCode.TOO_LARGE, f"A message of this session has at most {self.limit} bytes, not {len(data)}.")
        value = _object(data) if self.json_form else None
        if value is not None:
            named = action if _PLAIN.fullmatch(action) else self.action
            return [(named or ACTION, value)]
        return [(ACTION, payload) for payload in self._byte_payloads(data)]

    def decode(self, value: Mapping[str, Any], action: str) -> tuple[bytes, str] | None:
        """Return a handler's bytes with their action, or None while chunks are missing. The action is "" in the byte form.

        Raises `Malformed` (`flow.message`, `canonical.text`) or `TooLarge` (`flow.too-large`); then the connection must end.
        """
        self.json_form = not (isinstance(value.get("data"), str) and value.keys() <= _BYTE_MEMBERS)
        if not self.json_form:
            data = self._collect(value)
            return None if data is None else (data, "")
        if self._parts:
            raise _wrong("Another message came between the parts of one.")
        # The session hands the action over as a stream, whose names are plainer than the actions of the wire.
        self.action = action if _PLAIN.fullmatch(action) else ""
        data = rfc8785.dumps(dict(value))
        if len(data) > self.limit:
            raise TooLarge(FlowCode.TOO_LARGE, f"A message of this session has at most {self.limit} bytes.")
        return data, self.action

    def _byte_payloads(self, data: bytes) -> Iterator[dict[str, Any]]:
        encoding, body = self._compressed(data)
        marked = {"encoding": encoding} if encoding else {}
        size = self.parameters.get(CHUNK_SIZE)
        step = int(size) if isinstance(size, int | float) else len(body)
        pieces = [body[start : start + step] for start in range(0, len(body), step)] if len(body) > step else [body]
        for number, piece in enumerate(pieces, 1):
            place = {"part": number, "parts": len(pieces)} if len(pieces) > 1 else {}
            yield {"data": canonical.b64encode(piece), **marked, **place}

    def _compressed(self, data: bytes) -> tuple[str, bytes]:
        """Return the encoding and the bytes; no encoding for bytes that do not become fewer."""
        encoding = self.parameters.get(COMPRESSION)
        if encoding not in _WINDOWS:
            return "", data
        packer = zlib.compressobj(wbits=_WINDOWS[encoding])
        body = packer.compress(data) + packer.flush()
        return (encoding, body) if len(body) < len(data) else ("", data)

    def _collect(self, value: Mapping[str, Any]) -> bytes | None:
        part, parts, encoding = value.get("part", 1), value.get("parts", 1), value.get("encoding", "")
        if not (_is_count(part) and _is_count(parts) and part <= parts):
            raise _wrong("The parts of a message are counted from 1.")
        if parts > 1 and CHUNK_SIZE not in self.parameters:
            raise _wrong("A message came in parts, and no chunkSize is agreed.")
        if encoding != "" and not (encoding in tuple(_WINDOWS) and encoding == self.parameters.get(COMPRESSION)):
            raise _wrong("A message is compressed in a format that is not agreed.")
        if part != len(self._parts) + 1 or (part > 1 and (parts, encoding) != self._expected):
            raise _wrong("The parts of a message do not come in their order.")
        self._expected = parts, encoding
        self._parts.append(canonical.b64decode(value["data"], limit=MAX_DATA))
        # Compressed bytes are fewer than the message, so the same cap holds for all parts together.
        if sum(map(len, self._parts)) > self.limit:
            raise TooLarge(FlowCode.TOO_LARGE, f"A message of this session has at most {self.limit} bytes.")
        if part < parts:
            return None
        body, self._parts = b"".join(self._parts), []
        return self._inflated(body, encoding) if encoding else body

    def _inflated(self, body: bytes, encoding: str) -> bytes:
        unpacker = zlib.decompressobj(wbits=_WINDOWS[encoding])
        try:
            # A few bytes may inflate to gigabytes, so the output is capped while it is made.
            data = unpacker.decompress(body, self.limit + 1)
        except zlib.error as error:
            raise _wrong(f"A message is not {encoding}: {error}.") from error
        if len(data) > self.limit:
            raise TooLarge(FlowCode.TOO_LARGE, f"A message of this session has at most {self.limit} bytes when it is inflated.")
        if not unpacker.eof or unpacker.unused_data:
            raise _wrong(f"A message is not one whole {encoding} stream.")
        return data


def _object(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object that these bytes are, if it can be sent in the JSON form; else None."""
    try:
        # In a list, because the payload stands one level deeper in its message.
        (value,) = decode_json(b"[" + data + b"]")
        check_numbers(value)
    except ValueError:
        return None
    # An object that looks like the byte form would be read as such.
    return (
        value if isinstance(value, dict) and not (isinstance(value.get("data"), str) and value.keys() <= _BYTE_MEMBERS) else None
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_PARTS


def _wrong(why: str) -> Malformed:
    return Malformed(FlowCode.MESSAGE, why)
