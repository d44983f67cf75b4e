"""Warn of a protocol whose publisher was a guest in the namespace, and is one no longer.

The protocol stays valid: the grant was in force when it was published. But the owner of the namespace stands for it no longer.
Specification: docs/specification/statements.md, "Kinds".
"""

from __future__ import annotations

from treaty_consensus.kinds import Grant, Identity
from treaty_consensus.protocol import parse_protocol_uri

from .records import Evidence, Logged


def grant_warnings(evidence: Evidence, uri: str) -> tuple[str, ...]:
    """Return a sentence if `uri` was published by a grant that ended since; nothing for the owner's own protocol.

    Raises `NotFound` (`bundle.no-publish`).
    """
    published = evidence.published(uri)
    namespace, guest = parse_protocol_uri(uri).namespace, published.statement.author
    grants: list[tuple[Logged, Grant]] = []
    for logged in evidence.statements:
        body = logged.statement.body
        if isinstance(body, Grant) and (body.namespace, body.to) == (namespace, guest.text):
            grants.append((logged, body))
    # Without a grant the replay admits the owner alone. A DID with a port owns nothing, and has a grant.
    if not grants or (guest.port is None and guest.namespace == namespace):
        return ()
    newest, body = grants[-1]
    if body.withdrawn:
        return (f"The owner of {namespace} no longer lets {guest.text} publish there.",)
    # The grant names no tenure of its guest. It began in that of the newest identity before it.
    owner, began = newest.statement.author.text, _tenure(evidence, guest.text, newest.index)
    if _tenure(evidence, owner) != newest.tenure or _tenure(evidence, guest.text) != began:
        return (f"The grant of {namespace} to {guest.text} ended: one of the two domains has another owner.",)
    return ()


def _tenure(evidence: Evidence, did: str, before: int | None = None) -> int:
    """Return the tenure of a DID at the end of the log, or before the leaf `before`."""
    known = [logged for logged in evidence.identities(did) if before is None or logged.index < before]
    body = known[-1].statement.body if known else None
    return body.tenure if isinstance(body, Identity) else 1
