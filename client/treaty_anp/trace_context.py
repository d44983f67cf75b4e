"""Trace contexts of W3C Trace Context: the id of a trace, and the span that a call belongs to.

    00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01        version, trace id, span id, flags

Only version 00 is read. A value that breaks the rules is no trace, and never an error (section 3.2.2.3 of the recommendation). A
trace of a peer is a claim: it orders logs, and decides nothing.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

# The recommendation asks for at least 512 characters to be passed on; more would let a peer fill the messages of others.
MAX_STATE = 512
"""Characters of a `tracestate`. A longer one is dropped."""
_MAX_MEMBERS = 32
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_MEMBER = re.compile(
    r"([a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One span of a trace.

    `trace_id`: 32 lower-case hexadecimal digits, the same in all agents that take part. `span_id`: 16, of this call. `parent_id`:
    the span that caused it, "" for none. `flags`: one byte; bit 0 says that the caller may have recorded its span. `state`: the
    `tracestate`, "" for none.
    """

    trace_id: str
    span_id: str
    parent_id: str = ""
    flags: int = 0
    state: str = ""

    @classmethod
    def new(cls) -> TraceContext:
        """Return the first span of a new trace, with random ids. It is not recorded."""
        return cls(_random(16), _random(8))

    @classmethod
    def parse(cls, traceparent: str, tracestate: str = "") -> TraceContext | None:
        """Return the span of a `traceparent`; None for a text that breaks the rules. A wrong `tracestate` is dropped."""
        match = _TRACEPARENT.fullmatch(traceparent)
        if match is None or match[1] == _NO_TRACE or match[2] == _NO_SPAN:
            return None
        return cls(match[1], match[2], flags=int(match[3], 16), state=_state(tracestate))

    @property
    def traceparent(self) -> str:
        """The span as a `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    def child(self) -> TraceContext:
        """Return a new span of the same trace, which this one caused."""
        return TraceContext(self.trace_id, _random(8), self.span_id, self.flags, self.state)


def _random(size: int) -> str:
    # An id of zeros means none. The generator of the system makes one in 2^64 times.
    while not any(drawn := secrets.token_bytes(size)):
        pass
    return drawn.hex()


def _state(text: str) -> str:
    """Return a `tracestate`, or "" for one that breaks the rules."""
    if not text or len(text) > MAX_STATE:
        return ""
    members = [member.strip(" \t") for member in text.split(",")]
    named = [member for member in members if member]
    keys = {member.partition("=")[0] for member in named}
    is_valid = all(map(_MEMBER.fullmatch, named)) and len(keys) == len(named) <= _MAX_MEMBERS
    return ",".join(named) if is_valid else ""
