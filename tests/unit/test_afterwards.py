"""Writes that no session waits for: when they are made, and what a crash or another process in between leaves."""

from __future__ import annotations

import asyncio
import json
import threading
from functools import partial
from pathlib import Path

import pytest
from fetching import fetcher
from simulated_registry import ALICE, BOB, uri_of, with_echo

from treaty_agent.sessions.opening import PeerPins
from treaty_client.protocols.store import Lockfile
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_consensus import kinds
from treaty_io.afterwards import Afterwards
from treaty_io.identity import UNNAMED, ClaimedPeer, ProvedPeer
from treaty_sandbox import CodeCache

LINE = uri_of().rpartition("/")[0]
DIGEST = "ab" * 32
SHOP, OTHER = ClaimedPeer("did:wba:shop.example"), ProvedPeer("did:wba:other.example")


async def test_writes_keep_their_order_and_survive_errors() -> None:
    afterwards, writes = Afterwards(), list[tuple[int, bool]]()

    def note(number: int) -> None:
        writes.append((number, threading.current_thread() is threading.main_thread()))

    def fail() -> None:
        raise OSError("the disk is full")

    for number in range(3):
        afterwards.add(partial(note, number))
        afterwards.add(fail)
    assert writes == []
    await afterwards.aclose()
    assert writes == [(0, False), (1, False), (2, False)]


async def test_a_write_may_settle_and_add_without_waiting_for_itself() -> None:
    afterwards, writes, done = Afterwards(), list[str](), asyncio.Event()
    loop = asyncio.get_running_loop()

    def second() -> None:
        writes.append("second")
        loop.call_soon_threadsafe(done.set)

    def first() -> None:
        loop.call_soon_threadsafe(afterwards.add, second)
        afterwards.settle()
        writes.append("first")

    afterwards.add(first)
    async with asyncio.timeout(10):
        await done.wait()
    assert writes == ["first", "second"]


async def test_a_fetch_returns_before_its_lock_is_written(tmp_path: Path) -> None:
    afterwards = Afterwards()
    async with fetcher(with_echo(), tmp_path, afterwards=afterwards) as agent:
        verified = await agent.fetch(uri_of())
        assert not (tmp_path / "treaty.lock").exists()  # a crash here leaves the lock of before
        assert agent.cached(verified.hash) is verified
        assert Lockfile(tmp_path, afterwards.settle).read()[LINE].publisher == ALICE.did
    assert Lockfile(tmp_path).read()[LINE].publisher == ALICE.did


@pytest.mark.threat(30)
async def test_a_second_fetch_is_compared_with_the_lock_that_is_owed(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path, publishers=(ALICE, BOB), afterwards=Afterwards()) as agent:
        await agent.fetch(uri_of())
        registry.publish("2.0")
        registry.attach("2.0", signer=BOB)
        with pytest.raises(VerificationFailed) as refusal:
            await agent.fetch(uri_of("2.0"))
        assert (refusal.value.step, refusal.value.code) == (10, "lock.publisher")
    assert list(Lockfile(tmp_path).read()[LINE].versions) == ["1.0"]


@pytest.mark.threat(30)
async def test_another_processs_pin_ends_the_use_of_the_handler(tmp_path: Path) -> None:
    registry, afterwards = with_echo(), Afterwards()
    async with fetcher(registry, tmp_path, afterwards=afterwards) as agent:
        await agent.fetch(uri_of())
        assert agent.holds(uri_of())
        afterwards.settle()
        lock = json.loads((tmp_path / "treaty.lock").read_text())
        lock["protocols"][LINE]["tenure"] = 2
        await agent.fetch(uri_of(), fresh=True)
        (tmp_path / "treaty.lock").write_text(json.dumps(lock))
        afterwards.settle()
        assert not agent.holds(uri_of())
        assert json.loads((tmp_path / "treaty.lock").read_text()) == lock


async def test_a_handler_that_was_taken_back_in_between_is_not_locked(tmp_path: Path) -> None:
    registry, afterwards = with_echo(), Afterwards()
    async with fetcher(registry, tmp_path, afterwards=afterwards) as agent:
        await agent.fetch(uri_of())
        registry.add(kinds.Status(uri_of(), "revoked"), ALICE)
        with pytest.raises(VerificationFailed) as refusal:
            await agent.fetch(uri_of(), fresh=True)
        assert refusal.value.step == 9
        assert not agent.holds(uri_of())


async def test_a_pin_counts_before_it_is_written(tmp_path: Path) -> None:
    afterwards, pins = Afterwards(), PeerPins(tmp_path)
    assert pins.get_known("wss://shop.example") == pins.get("wss://shop.example") == UNNAMED
    pins.pin_later("wss://shop.example", SHOP, afterwards)
    assert not (tmp_path / "peers.json").exists()
    assert pins.get_known("wss://shop.example") == pins.get("wss://shop.example") == SHOP
    pins.pin_later("wss://shop.example", OTHER, afterwards)
    await afterwards.aclose()
    assert pins.get("wss://shop.example") == PeerPins(tmp_path).get("wss://shop.example") == OTHER


async def test_another_processs_pin_is_read_from_a_changed_file(tmp_path: Path) -> None:
    pins = PeerPins(tmp_path)
    PeerPins(tmp_path).pin("wss://shop.example", SHOP)
    assert pins.get_known("wss://shop.example") is None  # the file has to be read
    assert pins.get("wss://shop.example") == pins.get_known("wss://shop.example") == SHOP
    PeerPins(tmp_path).pin("wss://shop.example", OTHER)
    assert pins.get_known("wss://shop.example") is None


async def test_code_is_used_before_it_is_written(tmp_path: Path) -> None:
    afterwards = Afterwards()
    cache = CodeCache(tmp_path / "code", afterwards)
    cache.put(DIGEST, b"code")
    assert cache.get(DIGEST) == b"code"
    assert CodeCache(tmp_path / "code").get(DIGEST) is None
    cache.discard(DIGEST)
    await afterwards.aclose()
    assert cache.get(DIGEST) is None
    cache.put(DIGEST, b"other")
    await afterwards.aclose()
    assert CodeCache(tmp_path / "code").get(DIGEST) == b"other"
