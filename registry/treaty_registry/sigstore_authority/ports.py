"""Define the calls of the Sigstore services to the registry. Every port may be called concurrently from one event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True)
class LoggedLeaf:
    """The position of a leaf in the log, and its proof.

    `index` of the leaf in a tree of `size` leaves with root hash `root`. `hashes`: the inclusion proof from leaf to root (RFC
    6962 §2.1.1). `checkpoint`: the signed note of exactly that tree, signed by the log key; other signature lines are allowed.
    """

    index: int
    size: int
    hashes: Sequence[bytes]
    root: bytes
    checkpoint: str


class Append(Protocol):
    """Appends a leaf to the registry's log."""

    async def __call__(self, leaf: bytes) -> LoggedLeaf:
        """Append a leaf. Returns only when it is durable and in a signed checkpoint, because the services depend on that.

        If the log already has the leaf, its first position may be returned. Raises `Unavailable` when the log takes no writes;
        the leaf may or may not be logged later, and the caller must not return a result that depends on it.
        """


class AuthenticationKeys(Protocol):
    """Finds the keys of a DID."""

    async def __call__(self, did: str) -> Mapping[str, bytes]:
        """Return the DID's current authentication keys: DID URL → raw Ed25519 public key, 32 bytes.

        These are the keys that judge a new statement. Raises `Unauthorized` or `NotFound` for an unknown DID, `Unavailable` when
        the keys cannot be looked up.
        """


class Spend(Protocol):
    """Records used tokens."""

    async def __call__(self, token: str, until: datetime) -> bool:
        """Return True for the first caller with this `token` (64 hexadecimal digits), False for any later one.

        Atomic between concurrent callers and between processes; durable, so that a restart does not allow a second use. The
        token may be forgotten after `until`, when it has expired.
        """


class Clock(Protocol):
    """Returns the time."""

    def __call__(self) -> datetime:
        """Return the current time, aware, in UTC. All services use one clock, because a timestamp must be within its
        certificate's validity."""
