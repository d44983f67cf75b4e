"""Which peers are more than strangers to a language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from meetings import party

from treaty_agent.reports.report import ReportLedger, SignedReport
from treaty_agent.sessions.deposits import LIFETIME, Deposits
from treaty_consensus.errors import Unavailable
from treaty_io.identity import ProvedPeer

PARTNER, VOUCHED, STRANGER = (ProvedPeer(f"did:wba:{name}.example") for name in ("partner", "vouched", "stranger"))
KEY = ProvedPeer("did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK")


@pytest.mark.threat(371)
async def test_a_signed_report_is_a_deposit_and_a_key_is_none(tmp_path: Path) -> None:
    dids, now = list[str](), [0.0]

    async def has_weight(did: str) -> bool:
        dids.append(did)
        if did == STRANGER.did and now[0] > LIFETIME:
            raise Unavailable("registry.unreachable", "It is away.")
        return did in (VOUCHED.did, KEY.did)

    side: Any = party("shop", tmp_path)
    ledger = ReportLedger(side.home)
    for number, (peer, settled) in enumerate([(PARTNER, True), (KEY, True), (STRANGER, False)]):
        ledger.claim(f"{number}" * 64, SignedReport(peer.did, "a/b", "0" * 64, 1, settled))
    deposits = Deposits(side.agent.context.reports.reporter, has_weight, clock=lambda: now[0])
    for _ in range(2):
        assert [await deposits.has(peer) for peer in (PARTNER, VOUCHED, STRANGER, KEY)] == [True, True, False, False]
    assert dids == [VOUCHED.did, STRANGER.did]
    now[0] = LIFETIME + 1
    assert not await deposits.has(STRANGER)
