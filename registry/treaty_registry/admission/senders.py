"""Keep what the operator decided about senders: who is blocked, and whose quota is another one.

A sender is one of

    did:web:example.com:alice      a DID
    example.com                    a domain: every DID of it, and of the domains below it
    192.0.2.0/24, 2001:db8::/32    a network

A block refuses every write of it, with a stable code. It is no leaf: it binds this registry alone, and leaves nothing about a
person when it is taken back. All nodes share the table; each reads it again every `PERIOD` seconds.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import structlog

from treaty_consensus.did import Did, is_host, parse_did
from treaty_consensus.errors import Malformed, NotFound, Refused, TooLarge, TreatyError

from ..codes import SenderCode
from ..storage.postgres import DATABASE_ERRORS, Connection, Pool

PERIOD = 10.0
"""Seconds after which a node knows what another one was told."""
MAX_SENDERS = 10_000
"""Blocks and quotas together. Each process has them all in memory."""
MAX_REASON = 200
LEAST_FACTOR, MOST_FACTOR = 0.01, 1000.0
_WIDEST = {4: 8, 6: 16}
"""The shortest prefix that may be blocked. A shorter one is a slip that locks out a part of the world."""

_READ = "select sender, blocked, factor, extract(epoch from since)::bigint as since, caller as user from senders order by sender"
# The number of rows is the condition: two calls at once exceed it by one row at most.
_BLOCK = """
insert into senders (sender, blocked, caller) select $1, $2, $3
where (select count(*) from senders) < $4 or exists (select from senders where sender = $1)
on conflict (sender) do update set blocked = excluded.blocked, caller = excluded.caller, since = now() returning true
"""
_FACTOR = """
insert into senders (sender, factor, caller) select $1, $2, $3
where (select count(*) from senders) < $4 or exists (select from senders where sender = $1)
on conflict (sender) do update set factor = excluded.factor, caller = excluded.caller, since = now() returning true
"""
_EXPORT = """
select coalesce(json_agg(row order by row.sender), '[]')::text from (select sender, blocked, factor, caller from senders) as row
"""
_IMPORT = """
insert into senders (sender, blocked, factor, caller)
select row.* from json_to_recordset($1::json) as row (sender text, blocked text, factor float8, caller text) limit $2
on conflict do nothing
"""
_UNBLOCK = "update senders set blocked = null, since = now() where sender = $1 and blocked is not null returning true"
_FORGET = "delete from senders where blocked is null and factor is null"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Sender:
    """What was decided about a sender. `blocked`: the reason, or None. `factor`: of its quota, or None. `since`: Unix seconds."""

    sender: str
    blocked: str | None
    factor: float | None
    since: int
    user: str


class Senders:
    """The decisions about senders. For one event loop; call `refresh` before use."""

    def __init__(self, pool: Pool, operator: str, contact: str | None = None) -> None:
        """`operator`: its DID, which is never blocked. `contact`: whom a refusal names."""
        self._pool = pool
        self._operator = operator
        self._contact = contact
        self._names: frozenset[str] = frozenset()  # blocked DIDs and domains
        self._networks: dict[tuple[int, int], frozenset[int]] = {}  # (version, bits of the host) → prefixes
        self._factors: dict[str, float] = {}

    async def refresh(self) -> None:
        """Read the table. Raises `Unavailable` when PostgreSQL is down; the old decisions are then kept."""
        senders = await self.listed()
        blocked = [sender.sender for sender in senders if sender.blocked is not None]
        networks: dict[tuple[int, int], set[int]] = {}
        for text in blocked:
            if "/" in text:
                network = ipaddress.ip_network(text)
                host = network.max_prefixlen - network.prefixlen
                networks.setdefault((network.version, host), set()).add(int(network.network_address) >> host)
        self._names = frozenset(text for text in blocked if "/" not in text)
        self._networks = {key: frozenset(prefixes) for key, prefixes in networks.items()}
        self._factors = {sender.sender: sender.factor for sender in senders if sender.factor is not None}

    async def run(self) -> None:
        """Refresh until cancelled, where other nodes may decide too."""
        while True:
            await asyncio.sleep(PERIOD)
            try:
                await self.refresh()
            except (TreatyError, *DATABASE_ERRORS) as error:
                _log.warning("the blocked senders were not read again", error=repr(error))

    async def listed(self) -> list[Sender]:
        """Return every decision, in the order of their names."""
        return [Sender(**row) for row in await self._pool.fetch(_READ)]

    async def block(self, text: str, reason: str, user: str) -> Sender:
        """Refuse every write of a sender. Durable on return. Raises `Malformed`, `Refused` or `TooLarge` (`sender.*`)."""
        sender = parse_sender(text)
        if _covers(sender, parse_did(self._operator)):
            raise Refused(SenderCode.FORM, f"{sender} is the operator of this registry.")
        if not reason or len(reason) > MAX_REASON:
            raise Malformed(SenderCode.FORM, f"A block has a reason of 1 to {MAX_REASON} characters.")
        return await self._write(_BLOCK, sender, reason, user)

    async def unblock(self, text: str) -> None:
        """Take writes of a sender again. Raises `Malformed`, or `NotFound` (`sender.form`)."""
        sender = parse_sender(text)
        if not await self._pool.fetchval(_UNBLOCK, sender):
            raise NotFound(SenderCode.FORM, f"{sender} is not blocked.", fix="List the blocks: treaty-registry block")
        await self._pool.execute(_FORGET)
        await self.refresh()

    async def set_factor(self, text: str, factor: float, user: str) -> Sender:
        """Multiply the quota of a DID, or of each DID of a domain. 1 is the usual quota. Raises `Malformed` or `TooLarge`."""
        sender = parse_sender(text)
        if "/" in sender or not LEAST_FACTOR <= factor <= MOST_FACTOR:
            raise Malformed(
                SenderCode.FORM,
                f"A DID or a domain has a factor from {LEAST_FACTOR} to {MOST_FACTOR:.0f} for its quota.",
                fix="To refuse all of it, block it. A network has the quota that serve --quota sets for all.",
            )
        return await self._write(_FACTOR, sender, None if factor == 1 else factor, user)

    def factor(self, author: Did) -> float | None:
        """Return the factor of an author's quota: its own, or that of the nearest domain; None for the usual quota."""
        if not self._factors:
            return None
        return next((self._factors[name] for name in _names(author) if name in self._factors), None)

    def check_source(self, source: str | None) -> None:
        """Raise `Refused` (`sender.blocked`) when the IP address `source` is in a blocked network."""
        # None is this process itself.
        if source is None or not self._networks:
            return
        address = ipaddress.ip_address(source.partition("%")[0])
        # A dual-stack socket shows an IPv4 peer as ::ffff:a.b.c.d.
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or address
        number = int(address)
        for (version, host), prefixes in self._networks.items():
            if version == address.version and number >> host in prefixes:
                raise self._blocked("your network")

    def check_authors(self, authors: Iterable[Did]) -> None:
        """Raise `Refused` (`sender.blocked`) when one of the DIDs, or a domain of it, is blocked."""
        if not self._names:
            return
        for author in authors:
            if not self._names.isdisjoint(_names(author)):
                raise self._blocked(author.text)

    async def _write(self, query: str, sender: str, value: object, user: str) -> Sender:
        if not await self._pool.fetchval(query, sender, value, user[:64], MAX_SENDERS):
            raise TooLarge(
                SenderCode.FORM,
                f"There are {MAX_SENDERS} blocks and quotas already.",
                fix="Block a domain or a network in place of single DIDs.",
            )
        await self._pool.execute(_FORGET)
        await self.refresh()
        return next((each for each in await self.listed() if each.sender == sender), Sender(sender, None, None, 0, user))

    def _blocked(self, who: str) -> Refused:
        # Without the reason: it is the operator's note, and the sender may be anybody.
        return Refused(
            SenderCode.BLOCKED,
            f"The operator of this registry takes nothing from {who}.",
            fix=f"Write to the operator: {self._contact}" if self._contact else "",
        )


async def export_senders(connection: Connection) -> bytes:
    """Return all decisions, for a backup."""
    # A registry of an earlier release may have made the database.
    if await connection.fetchval("select to_regclass('senders') is null"):
        return b"[]"
    text: str = await connection.fetchval(_EXPORT)
    return text.encode()


async def import_senders(connection: Connection, data: bytes) -> None:
    """Bring decisions back from a backup."""
    await connection.execute(_IMPORT, data.decode(), MAX_SENDERS)


def parse_sender(text: str) -> str:
    """Return a sender in its one spelling. Raises `Malformed` (`sender.form`, `did.*`)."""
    if text.startswith("did:"):
        return parse_did(text).text
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        # One label would be a whole top-level domain.
        if is_host(text) and ("." in text or text == "localhost"):
            return text
        raise Malformed(
            SenderCode.FORM,
            f"{text[:80]!r} is no DID, no domain and no network.",
            fix="Name it as did:web:example.com, example.com, 192.0.2.0/24 or 2001:db8::/32. A domain is in lower case.",
        ) from None
    if network.prefixlen < _WIDEST[network.version]:
        raise Malformed(
            SenderCode.FORM,
            f"{network} is too wide: a prefix has at least {_WIDEST[network.version]} bits.",
            fix="Block the networks that do harm.",
        )
    return str(network)


def _names(did: Did) -> Iterator[str]:
    """Yield a DID, its host and every domain above it: the nearest first."""
    yield did.text
    host = did.host or ""
    while host:
        yield host
        host = host.partition(".")[2]


def _covers(sender: str, did: Did) -> bool:
    return sender in _names(did)
