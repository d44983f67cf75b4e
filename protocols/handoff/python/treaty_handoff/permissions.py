"""Decide who may send which kinds of messages to this agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from treaty_agent import ProvedPeer
from treaty_consensus.errors import Refused, Unauthorized

from .codes import HandoffCode
from .handler.messages import is_unknown
from .messages import Kind, Message, kind_of, sender_of


@dataclass(frozen=True)
class SenderGrant:
    """The permission of one sender. `did`: the identity that proves it; None if the transport does. `kinds`: all unless given.

    `groups`: the groups for which it may answer, as their member.
    """

    did: str | None
    kinds: frozenset[Kind] = frozenset(Kind)
    groups: frozenset[str] = frozenset()


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

    def check(self, message: Message, signer: ProvedPeer | None) -> None:
        """Check a message. `signer`: the agent that signed it. Raises `Unauthorized` if the sender is not proved, and `Refused`
        if it may not send this kind."""
        name = sender_of(message)
        grant = self.grant(name, signer)
        if grant is None:
            raise Unauthorized(
                HandoffCode.PROOF, f"The message is not signed by its sender, {name}.", fix="Sign it with the sender's identity."
            )
        if kind_of(message) not in grant.kinds and not is_unknown(message):
            raise Refused(HandoffCode.PERMISSION, f"{name} may not send {kind_of(message)} here.")

    def grant(self, sender: object, signer: ProvedPeer | None) -> SenderGrant | None:
        """Return the permission of a sender; None if `signer`, the agent that signed, does not prove it."""
        grant = self.senders.get(sender) if isinstance(sender, str) else None
        if grant is None:
            return SenderGrant(signer.did, self.strangers) if signer is not None and sender == signer.did else None
        return grant if grant.did is None or (signer is not None and signer.did == grant.did) else None

    def may_answer(self, sender: str, recipients: AbstractSet[str]) -> bool:
        """Whether an answer of this proved sender counts for a request to these agents and groups."""
        grant = self.senders.get(sender)
        return sender in recipients or (grant is not None and not grant.groups.isdisjoint(recipients))
