"""Refuse ballots, reports and vouches that can never count.

A ballot, a report or a vouch counts for the principal of its author (`treaty_consensus.election.principals`). DIDs without a
principal cost nothing, so strangers could otherwise fill the log with statements that no election reads. In an open electorate a
grant by a domain gives a DID a principal, so the logged grants are looked up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from treaty_consensus.codes import ElectorateCode
from treaty_consensus.did import Did, parse_did
from treaty_consensus.election.principals import SuffixList
from treaty_consensus.errors import Refused
from treaty_consensus.kinds import Ballot, Report, Vouch
from treaty_consensus.statement import Statement

from ..storage.postgres import Pool

# Any agent can grant to any DID, so the grants of one DID are not bounded.
_MOST_GRANTS = 256
_GRANTS = """
select namespace from grants where grantee = $1 and ended is null and namespace not like '%:%' order by index limit $2
"""
"""Anybody can grant to anybody: a did:key its own namespace, for nothing, and a DID with a path that path. Neither is a domain,
and they must not crowd out the grant of one. The limit bounds the work for one statement."""
_FIX = "Sign with the DID of a domain of your own (did:wba:DOMAIN), or with one that its owner has granted the domain to."


class Electors:
    """The principals of DIDs under the electorate of the last `refresh`. For one event loop."""

    def __init__(self, pool: Pool, suffixes: Callable[[], Awaitable[SuffixList | None]]) -> None:
        """`suffixes` returns the suffix list of the parameters in force, or None in a development electorate."""
        self._pool = pool
        self._read = suffixes
        self._suffixes: SuffixList | None = None

    async def refresh(self) -> None:
        """Read the electorate in force. Call it when the parameters in force may have changed."""
        self._suffixes = await self._read()

    async def check(self, signed: Statement) -> None:
        """Raise `Refused` (`electorate.*`) for a ballot, a report or a vouch that can never count."""
        parties = _parties(signed)
        if not parties:
            return
        principals = [await self._principal(did) for did in parties]
        present = [principal for principal in principals if principal is not None]
        kind = type(signed.body).__name__.lower()
        # One principal in a report is enough: the list of speakers shows it, although no election counts the pair.
        if not present or (len(present) < len(parties) and not isinstance(signed.body, Report)):
            did = parties[principals.index(None)]
            raise Refused(
                ElectorateCode.NO_PRINCIPAL,
                f"{did.text} speaks for no principal of this electorate, so this {kind} could never count.",
                fix=_FIX,
            )
        if len(set(present)) < len(present):
            raise Refused(
                ElectorateCode.ONE_PRINCIPAL,
                f"Both sides of this {kind} are the principal {present[0]}, so it could never count.",
            )

    def has_at_hand(self, signed: Statement) -> bool:
        """Whether `check` needs no query for this statement."""
        return self._suffixes is None or all(_root(did, self._suffixes) for did in _parties(signed))

    async def _principal(self, did: Did) -> str | None:
        suffixes = self._suffixes
        if suffixes is None:
            return did.principal(lambda _host: did.text)
        if root := _root(did, suffixes):
            return root
        namespaces = [row["namespace"] for row in await self._pool.fetch(_GRANTS, did.text, _MOST_GRANTS)]
        # The first grant in force of a registrable domain counts, as in the election, so a later grant moves no vote.
        domain = next((namespace for namespace in namespaces if suffixes.is_registrable(namespace)), None)
        if domain is None and len(namespaces) == _MOST_GRANTS:
            return did.text  # at the limit a grant may be missing: accept, or many grants could block a DID
        return domain


def _parties(signed: Statement) -> tuple[Did, ...]:
    """Return the DIDs whose principals a statement counts for; none for a type that counts for no principal."""
    match signed.body:
        case Ballot() | Report():
            return signed.authors
        case Vouch(to=to):
            return (*signed.authors, parse_did(to))
    return ()


def _root(did: Did, suffixes: SuffixList) -> str | None:
    """Return the registrable domain of a root DID, which is its principal without a grant; None for another DID."""
    host = did.host
    return host if host and did.port is None and not did.path and did.principal(suffixes.registrable) == host else None
