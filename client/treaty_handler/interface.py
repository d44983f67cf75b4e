"""What a handler package provides: its entry point names one `Handler`, which opens sessions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from .effects import Effect
from .events import Event
from .values import Value


class Session(Protocol):
    """One conversation in one role.

    Called by one caller at a time. Whatever `handle` does depends on the parameters, the snapshot and the events so far, and
    on nothing else. An exception ends the session (and the worker it runs in); what the peer may send must never raise.
    """

    def handle(self, event: Event) -> Sequence[Effect]:
        """Take one event, return what should happen because of it, in that order."""

    def snapshot(self) -> bytes:
        """All state, such that `Handler.open` with it goes on exactly where this session stands. At most 64 KiB. Changes
        nothing; may be asked for between any two events."""


class Handler(Protocol):
    """The protocol itself, without state. Messages are JSON values here, so that any host can show, log and test them."""

    def open(self, role: str, parameters: Mapping[str, Value], snapshot: bytes = b"") -> Session:
        """A session in one of the manifest's roles; with a `snapshot`, one that continues.

        `parameters` always hold `local` and `peer` (DIDs; `peer` is the first where a role speaks with several) and `seed`
        (32 hex digits, drawn afresh for each session: see `derive_id`), beside what the two sides agreed on.
        """

    def encode(self, message: Value) -> bytes:
        """The wire form of a message. Raises `ValueError` where the protocol has none for it."""

    def decode(self, data: bytes) -> Value:
        """The message in these bytes. Raises `ValueError` when they are none."""

    def validate(self, message: Value, sender: str) -> Sequence[str]:
        """What is wrong with a decoded message that the role `sender` sent, a sentence each; empty when it conforms."""


def derive_id(seed: str, number: int) -> str:
    """A 16-digit id that nobody without the seed foresees, and that a second run of the same session computes again.

    It is the start of SHA-256 over `seed/number`; `number` counts what the session named so far.
    """
    return hashlib.sha256(f"{seed}/{number}".encode()).hexdigest()[:16]
