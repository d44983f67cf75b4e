"""Look up the TXT records in which a domain without a web server names its keys (`treaty_consensus.domain_evidence`).

The resolver is the operator's. It alone is asked, whatever the records say, so a record leads nowhere. dnspython reads the
answer, and follows an alias (CNAME), as for other records of this kind.
"""

from __future__ import annotations

import asyncio

import dns.asyncresolver
import dns.exception
import dns.flags
import dns.name
import dns.resolver
from dns.rdtypes.ANY.TXT import TXT

from treaty_consensus.codes import DidCode
from treaty_consensus.did import Did
from treaty_consensus.domain_evidence import DomainEvidence, record_name
from treaty_consensus.errors import Malformed, Unavailable
from treaty_io.codes import EgressCode
from treaty_io.network.did_documents import DidDocument
from treaty_io.network.turns import Turns

DEADLINE = 3.0
"""Seconds for a look-up, with all its retries. A sender waits for it."""
_MAX_RECORDS = 64
"""Records at the name, of any kind of text."""
_BUFFER = 1232
"""Bytes of an answer over UDP (DNS flag day 2020); a larger one comes over TCP."""


class DomainRecords:
    """Looks up the records of domains. For one event loop."""

    def __init__(self, nameserver: tuple[str, int] | None) -> None:
        """`nameserver`: address and port; None for those of the system."""
        self._nameserver = nameserver
        # Strangers choose the names, and all of them cost this one resolver.
        self._turns = Turns(interval=0.1, burst=32)
        self._flights: dict[str, asyncio.Task[DidDocument]] = {}

    async def resolve(self, did: Did) -> DidDocument:
        """Return the evidence about a domain as its document, with its keys.

        Raises `Malformed` (`did.*`) without a usable record, and `Unavailable` (`egress.unreachable`) without an answer.
        """
        flight = self._flights.get(did.text)
        if flight is None:
            flight = self._flights[did.text] = asyncio.create_task(self._look_up(did))
            flight.add_done_callback(lambda done: self._landed(did.text, done))
        return await asyncio.shield(flight)  # a cancelled caller must not end it for the others

    def _landed(self, name: str, flight: asyncio.Task[DidDocument]) -> None:
        del self._flights[name]
        if not flight.cancelled():
            flight.exception()  # marks it as retrieved: all callers may be gone

    async def _look_up(self, did: Did) -> DidDocument:
        name = record_name(did)
        await self._turns.take("resolver", name)
        try:
            answer = await self._resolver().resolve(dns.name.from_text(f"{name}."), "TXT", search=False, lifetime=DEADLINE)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer) as error:
            raise Malformed(
                DidCode.DOCUMENT,
                f"{name} has no TXT record.",
                fix='Add one for each key, and send again: TXT "did:key:z6Mk…"',
            ) from error
        except (dns.exception.DNSException, OSError) as error:
            raise Unavailable(
                EgressCode.UNREACHABLE, f"The records of {name} could not be had: {type(error).__name__}."
            ) from error
        records = [record for record in answer if isinstance(record, TXT)]
        if len(records) > _MAX_RECORDS:
            raise Malformed(DidCode.DOCUMENT, f"{name} has more than {_MAX_RECORDS} TXT records.")
        texts = {b"".join(record.strings).decode("ascii", "replace") for record in records}
        # As the resolver says it. Whether it looked, and whether the way to it is safe, the operator knows.
        authenticated = bool(answer.response.flags & dns.flags.AD)
        evidence = DomainEvidence.of(did, texts, authenticated=authenticated)
        return DidDocument(did, evidence.encode(), evidence.named_keys(did))

    def _resolver(self) -> dns.asyncresolver.Resolver:
        # Made anew: the file of the system's name servers may have changed. It has no cache: the resolver's own is enough.
        resolver = dns.asyncresolver.Resolver(configure=self._nameserver is None)
        if self._nameserver is not None:
            resolver.nameservers, resolver.port = [self._nameserver[0]], self._nameserver[1]
        resolver.use_edns(0, dns.flags.DO, _BUFFER)
        resolver.flags = dns.flags.RD | dns.flags.AD
        return resolver
