"""Define the classes that a handler package provides: its entry point names one `Handler`, which opens sessions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from .effects import Effect
from .events import Event
from .values import Value


class Session(Protocol):
    """Run one session in one role. The host never calls it concurrently.

    The result of `handle` depends only on the parameters, the snapshot and the events so far. An exception ends the session
    and its worker, so no message of a peer may cause one.
    """

    def handle(self, event: Event) -> Sequence[Effect]:
        """Process one event; return the effects to perform, in order."""

    def snapshot(self) -> bytes:
        """Return the whole state, at most 64 KiB. `Handler.open` with it continues exactly here.

        Changes no state. The host may call it between any two events.
        """


class Handler(Protocol):
    """Implement the protocol itself, without state. Messages are JSON values, so that any host can show, log and test them."""

    def open(self, role: str, parameters: Mapping[str, Value], snapshot: bytes = b"") -> Session:
        """Open a session in one of the manifest's roles.

        `parameters`: `local` and `peer` (DIDs; in a shared role `peer` is "", and `PeerJoined` tells the peers), `seed` (32 hex
        digits, new for each session: see `derive_id`), and the parameters that the two sides agreed on.
        `snapshot`: the state to continue from; b"" for a new session.
        """

    def encode(self, message: Value) -> bytes:
        """Return the wire form of a message. Raises `ValueError` where the protocol has none for it."""

    def decode(self, data: bytes) -> Value:
        """Return the message in these bytes. Raises `ValueError` when they are not a message."""

    def validate(self, message: Value, sender: str) -> Sequence[str]:
        """Return the faults of a decoded message, a sentence each; empty when it conforms.

        `sender`: the role that sent it.
        """


def derive_id(seed: str, number: int) -> str:
    """Return a 16-digit id that needs the seed to predict, and that a second run of the same session computes again.

    It is the start of SHA-256 over `seed/number`.

    `number`: the number of ids that the session has derived so far.
    """
    # 64 bits: enough against collisions within a session, and short on the wire.
    return hashlib.sha256(f"{seed}/{number}".encode()).hexdigest()[:16]
