"""Decide who may send which kinds of messages to this agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from treaty_consensus.errors import Refused, Unauthorized

from .codes import HandoffCode
from .messages import Kind, Message, kind_of


@dataclass(frozen=True)
class SenderGrant:
    """The permission of one sender. `did`: the identity that proves it; None if the transport does. `kinds`: all unless given."""

    did: str | None
    kinds: frozenset[Kind] = frozenset(Kind)


@dataclass(frozen=True)
class Permissions:
    """The senders that are known, by `sender_id`. A sender whose id is a DID may also be left out, if `strangers` has kinds.

    `strangers`: the kinds that any agent may send whose `sender_id` is the DID that signed.
    """

    senders: Mapping[str, SenderGrant] = field(default_factory=dict)
    strangers: frozenset[Kind] = frozenset()

    @classmethod
    def of(cls, senders: Mapping[str, str | None], *, kinds: Iterable[Kind] = Kind) -> Permissions:
        """Give each sender, with its DID, the same kinds."""
        return cls({name: SenderGrant(did, frozenset(kinds)) for name, did in senders.items()})

    def check(self, message: Message, signer: str | None) -> None:
        """Check a message. `signer`: the DID that signed it. Raises `Unauthorized` if the sender is not proved, and `Refused` if
        it may not send this kind."""
        name = message["metadata"]["sender_id"]
        grant = self.senders.get(name)
        if grant is None:
            grant = SenderGrant(name, self.strangers) if name == signer else None
        if grant is None or (grant.did is not None and grant.did != signer):
            raise Unauthorized(
                HandoffCode.PROOF, f"The message is not signed by its sender, {name}.", fix="Sign it with the sender's identity."
            )
        if kind_of(message) not in grant.kinds:
            raise Refused(HandoffCode.PERMISSION, f"{name} may not send {kind_of(message)} here.")
