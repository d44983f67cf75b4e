"""Tell an agent that proved its DID from one that only claims it.

    ProvedPeer     made where a proof was checked: the E2EE handshake, a signed request, a signature in each message
    ClaimedPeer    made from a message that anybody can write, such as the plain Hello

They are two types and not a text with a flag, so that a claim cannot be passed where a proof is meant: mypy refuses it. They are
never equal either, so a claim is not in a set of proved agents. A DID is a text only on the wire, on the disk and in messages for
people; `str(peer)` is that text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ProvedPeer:
    """The agent that holds a key of this DID."""

    did: str

    def __str__(self) -> str:
        return self.did


@dataclass(frozen=True, slots=True)
class ClaimedPeer:
    """An agent that says that this is its DID; "" if it says none."""

    did: str

    def __str__(self) -> str:
        return self.did


PeerIdentity: TypeAlias = ProvedPeer | ClaimedPeer
"""An agent, proved or not."""

UNNAMED = ClaimedPeer("")
"""An agent that did not say who it is, or not yet."""
