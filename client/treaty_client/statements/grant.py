"""Let another DID publish in this identity's namespace and vote for it, or take that back."""

from __future__ import annotations

from dataclasses import dataclass

from treaty_consensus.codes import StatementCode
from treaty_consensus.did import parse_did
from treaty_consensus.errors import NotFound
from treaty_consensus.kinds import Grant
from treaty_consensus.log.proof import Receipt
from treaty_consensus.statement import Statement
from treaty_io.identity import Identity

from ..protocols.log_head import LogHead
from ..registries.api import RegistryClient


@dataclass(frozen=True)
class LoggedGrant:
    """A logged grant. `receipt` was checked."""

    statement: Statement
    grant: Grant
    receipt: Receipt


async def grant(
    client: RegistryClient, head: LogHead, identity: Identity, to: str, *, withdrawn: bool, origin: str, now: int
) -> LoggedGrant:
    """Grant the namespace of `identity` to the DID `to`, or take the grant back. `now`: Unix seconds.

    The same grant twice in one second is one statement, and keeps its first place in the log.

    Raises `Refused` (`did.method`) for a DID with a port, `NotFound` (`statement.no-target`) when there is no grant to take back,
    the errors of the registry, and those of `LogHead.accept_receipt`.
    """
    parse_did(to)
    namespace = identity.parsed.namespace
    if withdrawn:
        # By the registry's word: a second withdrawal would do no harm, but the user shall see a mistyped DID.
        grants = await client.grants(identity.did)
        if (namespace, to) not in {(entry.namespace, entry.to) for entry in grants.grants}:
            raise NotFound(
                StatementCode.NO_TARGET, f"No grant of {namespace} to {to} is in force.", fix="List the grants: treaty grants"
            )
    body = Grant(namespace, to, withdrawn)
    statement = identity.statement(body, log=origin, issued=now)
    receipt = await head.submit(statement)
    return LoggedGrant(statement, body, receipt)
