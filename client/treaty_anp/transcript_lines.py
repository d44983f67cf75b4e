"""Show values of a transcript in one line each. The transcript may come from a stranger and contain anything."""

from __future__ import annotations

from typing import Any

from treaty_consensus.canonical import b64decode
from treaty_consensus.errors import TreatyError
from treaty_consensus.printable import printable

from . import frame
from .frame import ProtocolType
from .hello_profile.messages import CARRIES

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
