"""Protocol ids of this profile: `anp:protocol:NAME:VERSION`.

NAME is lower-case words joined by `-`, at most 64 characters, VERSION a PEP 440 version in its normal form. An id names no
bytes and belongs to nobody: what it means is for `names` to say.
"""

from __future__ import annotations

from typing import NamedTuple

from treaty_consensus.errors import Malformed
from treaty_consensus.protocol import is_name, parse_version

PREFIX = "anp:protocol:"
MAX_ID = len(PREFIX) + 64 + 1 + 64


class ProtocolId(NamedTuple):
    """The parts of an id. `str()` is the id."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{PREFIX}{self.name}:{self.version}"


def parse_protocol_id(text: str) -> ProtocolId:
    """Parse an id in its one spelling. Raises `Malformed` (`flow.id`, `protocol.version`)."""
    name, separator, version = text.removeprefix(PREFIX).partition(":")
    if not text.startswith(PREFIX) or not separator or not is_name(name) or len(text) > MAX_ID:
        raise Malformed("flow.id", f"Not a protocol id ({PREFIX}NAME:VERSION): {text[:80]!r}.")
    return ProtocolId(name, parse_version(version))
