"""A name server on loopback, over UDP, with the records that a test gives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


@dataclass
class NameServer:
    """`records`: name → TXT strings; `aliases`: name → name. `asked` are the names in the order of the questions."""

    records: dict[str, list[str]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    authenticated: bool = False
    is_silent: bool = False
    asked: list[str] = field(default_factory=list)
    port: int = 0

    def answer(self, data: bytes) -> bytes | None:
        """Return the answer to a question."""
        question = dns.message.from_wire(data)
        name = question.question[0].name.to_text().removesuffix(".")
        self.asked.append(name)
        if self.is_silent:
            return None
        reply = dns.message.make_response(question)
        if self.authenticated:
            reply.flags |= dns.flags.AD
        if name in self.aliases:
            reply.answer.append(dns.rrset.from_text(f"{name}.", 60, "IN", "CNAME", f"{self.aliases[name]}."))
            name = self.aliases[name]
        texts = [f'"{text}"' for text in self.records.get(name, [])]
        if texts:
            reply.answer.append(dns.rrset.from_text(f"{name}.", 60, "IN", "TXT", *texts))
        else:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        return reply.to_wire()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[NameServer]:
        """Answer over UDP."""
        server = self

        class Datagrams(asyncio.DatagramProtocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self.transport = cast(asyncio.DatagramTransport, transport)

            def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
                if (reply := server.answer(data)) is not None:
                    self.transport.sendto(reply, addr)

        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Datagrams, local_addr=("127.0.0.1", 0))
        self.port = transport.get_extra_info("sockname")[1]
        try:
            yield self
        finally:
            transport.close()
