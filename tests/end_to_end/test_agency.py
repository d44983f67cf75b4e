"""A travel agency of eight processes while they are killed, moved and hung: no trip fails that a person would not call lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agency.ledger import Ledger
from agency.payments import Bank
from agency.rides import Rides
from agency.vendor import Vendor
from depth import FULL

from treaty_agent import CallContext, OperationError
from treaty_io.identity import ClaimedPeer, ProvedPeer

ROOT = Path(__file__).parents[2]
AGENCY = ROOT / "examples" / "agency"
AGENTS = ("traveller", "planner", "vendor", "flights", "hotels", "payments", "rides", "drivers", "auditor", "ledger", "settings")
RETRYING = re.compile(r"retry|again|attempt|backoff|reconnect|sleep\(", re.IGNORECASE)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of a run: of 60 trips amid 5 faults, and with all examples of 1,000 trips amid 52."""
    short, full = (
        ["--trips", "60", "--every", "0.3", "--down", "2"],
        ["--trips", "1000", "--every", "0.35", "--rounds", "2", "--down", "8"],
    )
    size = [*full, "--faults", "all"] if FULL else [*short, "--faults", "short"]
    folder = tmp_path_factory.mktemp("agency")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'examples'}:{ROOT / 'demo'}"}
    command = [sys.executable, "-m", "agency", "--json", "--at-once", "8", *size, "--keep", str(folder / "world")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=3600)
    assert done.stdout, done.stderr[-4000:]
    data: dict[str, Any] = json.loads(done.stdout)
    return data


@pytest.mark.deep
def test_no_trip_fails_that_a_person_would_not_call_lost(report: dict[str, Any]) -> None:
    assert report["trips"] >= (1000 if FULL else 60)
    assert report["failed"] == {}
    assert report["arranged"] >= report["trips"] // 2


@pytest.mark.deep
def test_each_trip_is_booked_and_paid_once_and_all_ledgers_agree(report: dict[str, Any]) -> None:
    assert report["mistakes"] == []


async def test_a_booking_belongs_to_its_agent(tmp_path: Path) -> None:
    for name in ("vendor", "bank", "rides"):
        (tmp_path / name).mkdir()
    vendor, bank = Vendor(Ledger(tmp_path / "vendor"), price=100, seats=1), Bank(Ledger(tmp_path / "bank"))
    names = ("planner", "other", "auditor")
    owner, stranger, auditor = (CallContext(peer=ProvedPeer(f"did:wba:{name}.example")) for name in names)
    assert await vendor.book("B1", "LIS-2030-05-02-1", "Ada", owner) == await vendor.book("B1", "another", "Ada", owner)
    await bank.reserve("P1", 100, owner)
    rides = Rides(Ledger(tmp_path / "rides"))
    assert await rides.order("R1", "LIS", owner) == 0
    await rides.sell("R1", "did:wba:driver.example", 2_000, 1)
    await rides.sell("R1", "did:wba:other.example", 3_000, 2)
    assert await rides.order("R1", "LIS", owner) == 2_000
    journals = await vendor.journal(0, auditor), await bank.journal(0, auditor)
    claimed = CallContext(peer=ClaimedPeer("did:wba:planner.example"))
    for refused in (
        vendor.cancel("B1", claimed),
        bank.capture("P1", claimed),
        bank.journal(0, CallContext(peer=ClaimedPeer("did:wba:auditor.example"))),
        vendor.book("B1", "LIS-2030-05-02-1", "Eve", stranger),
        vendor.cancel("B1", stranger),
        vendor.journal(0, stranger),
        bank.reserve("P1", 100, stranger),
        bank.capture("P1", stranger),
        bank.journal(0, owner),
        rides.order("R1", "LIS", stranger),
        rides.order("R1", "LIS", claimed),
    ):
        with pytest.raises(OperationError) as failure:
            await refused
        assert failure.value.status == 403
    assert (await vendor.journal(0, auditor), await bank.journal(0, auditor)) == journals


def test_no_agent_has_a_line_of_retry() -> None:
    code = {name: (AGENCY / f"{name}.py").read_text() for name in AGENTS}
    hits = {name: RETRYING.findall(re.sub(r'"""(?s:.*?)"""', "", text)) for name, text in code.items()}
    assert {name: words for name, words in hits.items() if words} == {"auditor": ["sleep("], "traveller": ["sleep("]}
