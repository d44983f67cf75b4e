"""How long a session may take, and when what happened in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..meta.machine import Timeouts


@dataclass(frozen=True)
class SessionTimeouts(Timeouts):
    """All waits of a session, in seconds. `send`: for a peer to read one message; `flush`: for it to read the last ones;
    `handler`: for a handler to take one event; `answer`: beyond an operation's own timeout, for the handler to say that it is
    over; `report`: for a co-signature."""

    send: float = 30.0
    flush: float = 3.0
    handler: float = 10.0
    answer: float = 5.0
    report: float = 10.0


PATIENT = SessionTimeouts(code=120.0, reply=120.0)
"""For an agent that negotiates: no model writes a handler, or considers a document, in the time that a download takes."""


class SessionEvent(NamedTuple):
    """Something worth telling, and when, in seconds since the session began: `hello` (the peer's), `negotiating`, `verified` (all
    steps) or `written` (the code), `sandbox`, `testing`, `running`, `first reply`, `repaired`, `published`, `reported`, `end`."""

    name: str
    seconds: float
