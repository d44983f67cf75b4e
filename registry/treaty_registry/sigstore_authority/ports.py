"""What the Sigstore services need from the registry around them. Every port may be called concurrently from one event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True)
class LoggedLeaf:
    """Where a leaf stands, and the proof of it.

    `index` of the leaf in a tree of `size` leaves with root hash `root`; `hashes`: the inclusion proof from leaf to root
    (RFC 6962 §2.1.1); `checkpoint`: the signed note of exactly that tree, signed by the log key, other signature lines allowed.
    """

    index: int
    size: int
    hashes: Sequence[bytes]
    root: bytes
    checkpoint: str


class Append(Protocol):
    """Puts a leaf into the registry's log."""

    async def __call__(self, leaf: bytes) -> LoggedLeaf:
        """Returns once the leaf is durable and in a signed checkpoint, and not before: what the services hand out rests on it.

        A leaf that the log already holds may be answered with its first place. Raises `Unavailable` when the log takes no
        writes; then the leaf may or may not be logged later, and the caller hands nothing out.
        """


class AuthenticationKeys(Protocol):
    """Knows which keys speak for a DID."""

    async def __call__(self, did: str) -> Mapping[str, bytes]:
        """The DID's current authentication keys: DID URL → raw Ed25519 public key, 32 bytes.

        Current means as the registry would judge a statement that arrived now. Raises `Unauthorized` or `NotFound` for a DID it
        does not know, `Unavailable` when it cannot find out.
        """


class Spend(Protocol):
    """Remembers which tokens were used."""

    async def __call__(self, token: str, until: datetime) -> bool:
        """True for the first caller with this `token` (64 hexadecimal digits), False for any later one.

        Atomic between concurrent callers and between processes; durable, so that a restart does not make a token fresh again.
        May be forgotten after `until`: the token has expired then.
        """


class Clock(Protocol):
    """Tells the time."""

    def __call__(self) -> datetime:
        """Now, aware, in UTC. The same clock for all services: a signature's timestamp must fall into its certificate's life."""
