"""Whose DID documents are fetched how often: strangers wait for each other, and no partner for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from meetings import identity
from virtual_time import run

from treaty_client.network.egress import EgressGuard
from treaty_client.network.hosts import Network
from treaty_client.session.acquaintances import Acquaintances
from treaty_client.session.agreements import Agreements, Remembered
from treaty_consensus import canonical
from treaty_consensus.did import parse_did
from treaty_consensus.errors import TreatyError, Unavailable

PARTNER = "did:wba:partner.example"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every URL that is asked, of a network where each host has its own document and no other."""
    urls: list[str] = []

    async def get(guard: EgressGuard, url: str) -> bytes:
        now = asyncio.get_running_loop().time()
        last: dict[str, float] = guard.__dict__.setdefault("last", {})
        host = url.split("/")[2]
        if now - last.get(host, -1e9) < guard._interval:
            raise Unavailable("egress.host-interval", "It was asked a moment ago.")
        last[host] = now
        urls.append(url)
        return canonical.dumps(identity(host).did_document())

    monkeypatch.setattr(EgressGuard, "get", get)
    return urls


def test_strangers_of_one_host_wait_for_their_turn(tmp_path: Path, asked: list[str]) -> None:
    async def main() -> list[Any]:
        known = Acquaintances(Network(), Agreements(tmp_path))
        return await asyncio.gather(*(known.fetch(parse_did(PARTNER)) for _ in range(5)), return_exceptions=True)

    outcomes = run(main())
    late = [outcome for outcome in outcomes if isinstance(outcome, TreatyError)]
    assert len(asked) == 3
    assert [error.code for error in late] == ["egress.host-interval"] * 2


def test_a_partner_is_not_kept_out_by_strangers(tmp_path: Path, asked: list[str]) -> None:
    async def main() -> None:
        agreements = Agreements(tmp_path)
        claimed = "did:wba:claimed.example"
        agreements.remember(Remembered(claimed, "", claimed, "00" * 32, "https://r.example/protocols/a.example/p/1.0", ()))
        assert not agreements.knows(claimed)
        agreements.remember(Remembered("ws://x", "", PARTNER, "00" * 32, "https://r.example/protocols/a.example/p/1.0", ()))
        known = Acquaintances(Network(), agreements)
        with pytest.raises(TreatyError):
            await known.fetch(parse_did(f"{PARTNER}:mallory"))  # another one's document is there
        began = asyncio.get_running_loop().time()
        assert (await known.fetch(parse_did(PARTNER))).did.text == PARTNER
        assert asyncio.get_running_loop().time() - began < 0.5

    run(main())
