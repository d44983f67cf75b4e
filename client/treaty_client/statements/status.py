"""Set the status of a protocol or of a handler: yank, revoke or deprecate it, or take that back.

    deprecated   a warning, perhaps with a successor
    yanked       not to be used from now on
    revoked      harmful: not to be used, and not to be kept in use
    active       none of these

The newest status counts. Only the publisher of the protocol, or of the handler, sets it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from treaty_consensus.canonical import parse_digest
from treaty_consensus.codes import StatementCode
from treaty_consensus.errors import Refused
from treaty_consensus.kinds import Status
from treaty_consensus.log.proof import Receipt
from treaty_consensus.protocol import parse_protocol_uri
from treaty_consensus.statement import Statement
from treaty_io.identity import Identity

from ..protocols.log_head import LogHead
from ..registries.api import RegistryClient

ProtocolStatus: TypeAlias = Literal["active", "deprecated", "yanked", "revoked"]


@dataclass(frozen=True)
class LoggedStatus:
    """A logged status. `receipt` was checked."""

    statement: Statement
    status: Status
    receipt: Receipt


async def set_status(
    client: RegistryClient,
    head: LogHead,
    identity: Identity,
    uri: str,
    state: ProtocolStatus,
    *,
    origin: str,
    now: int,
    wheel: str | None = None,
    successor: str | None = None,
) -> LoggedStatus:
    """Log the status of the protocol `uri`, or of the handler with the digest `wheel` that this identity attached to it.

    `successor`: the protocol to use instead; it must be published if it is of this registry. `now`: Unix seconds. The same status
    twice in one second is one statement, and keeps its first place in the log.

    Raises `Malformed` for a name that is none, `Refused` (`statement.form`) for a protocol that succeeds itself, `NotFound` for
    an unknown successor, the errors of the registry (`status.*`), and those of `LogHead.accept_receipt`.
    """
    parse_protocol_uri(uri)
    if successor is not None:
        named = parse_protocol_uri(successor)
        if successor == uri:
            raise Refused(StatementCode.FORM, f"{uri} cannot be its own successor.")
        # The log does not check it, because a successor may be of another registry. A mistyped one would stay for ever.
        if named.origin == origin:
            await client.record(named)
    body = Status(uri, state, parse_digest(wheel) if wheel is not None else None, successor)
    statement = identity.statement(body, log=origin, issued=now)
    receipt = await head.submit(statement)
    return LoggedStatus(statement, body, receipt)
