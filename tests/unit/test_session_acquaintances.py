"""Whose DID documents are fetched how often: strangers wait for each other, and no partner for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from loopback import Loopback, response
from meetings import identity

from treaty_agent.sessions.agreements import AgreementCache, AgreementRecord
from treaty_agent.sessions.endpoint import PeerDocuments
from treaty_consensus import canonical
from treaty_consensus.did import parse_did
from treaty_io.network.egress import HOST_BURST

HOST = "partner.example"
PARTNER = f"did:wba:{HOST}"


async def test_a_partner_does_not_wait_for_strangers_of_its_host(tmp_path: Path) -> None:
    answered = asyncio.Semaphore(0)

    async def documents(head: str) -> bytes:
        answered.release()
        return response(canonical.dumps(identity(HOST).did_document()))

    agreements = AgreementCache(tmp_path)
    claimed = "did:wba:claimed.example"
    agreements.remember(AgreementRecord(claimed, "", claimed, "00" * 32, "https://r.example/protocols/a.example/p/1.0", ()))
    assert not agreements.knows(claimed)
    agreements.remember(AgreementRecord("ws://x", "", PARTNER, "00" * 32, "https://r.example/protocols/a.example/p/1.0", ()))
    async with Loopback(tmp_path).serving(documents, HOST) as loopback:
        peer_documents = PeerDocuments(loopback.network(), agreements)
        names = [parse_did(f"{PARTNER}:mallory{number}") for number in range(HOST_BURST + 4)]
        strangers = [asyncio.create_task(peer_documents.fetch(name)) for name in names]
        for _ in range(HOST_BURST):
            await answered.acquire()
        assert (await peer_documents.fetch(parse_did(PARTNER))).did.text == PARTNER
        assert not all(task.done() for task in strangers), "some wait yet"
        for task in strangers:
            task.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)
