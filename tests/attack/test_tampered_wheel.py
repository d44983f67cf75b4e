"""Somebody between registry and agent changes the handler's code: step 7."""

from __future__ import annotations

from pathlib import Path

import pytest
from fetching import fetcher, refused_at
from simulated_registry import ALICE, echo_wheel, flipped, uri_of, with_echo

from treaty_consensus import kinds


@pytest.mark.threat(1)
async def test_a_changed_wheel_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    registry.tamper = lambda path, body: flipped(body, len(body) // 2) if path.startswith("/blobs/") else body
    failure = await refused_at(7, registry, tmp_path)
    assert failure.code == "wheel.digest"


async def test_a_wheel_of_another_release_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    _, other = echo_wheel(uri_of(), registry.document_of(uri_of()).sha256, release="2")
    registry.tamper = lambda path, body: other if path.startswith("/blobs/") else body
    assert (await refused_at(7, registry, tmp_path)).code == "wheel.digest"


@pytest.mark.threat(9)
async def test_an_endless_wheel_is_cut_off(tmp_path: Path) -> None:
    registry = with_echo()
    registry.tamper = lambda path, body: body * 100 if path.startswith("/blobs/") else body
    failure = await refused_at(7, registry, tmp_path)
    assert failure.code == "registry.answer"


async def test_a_signed_wheel_that_breaks_the_rules_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    registry.publish("2.0")
    filename, _ = echo_wheel(uri_of("2.0"), registry.document_of(uri_of("2.0")).sha256)
    broken = registry.put(b"PK, but no wheel")
    document = registry.document_of(uri_of("2.0")).sha256
    registry.add(kinds.Handler(uri_of("2.0"), document, filename, broken, "x:handler", registry.put(b"{}")), ALICE)
    assert (await refused_at(7, registry, tmp_path, uri_of("2.0"))).code == "handler.package"


async def test_a_signed_wheel_of_another_protocol_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    registry.publish("2.0")
    genuine = next(statement.body for _, statement in registry.statements() if isinstance(statement.body, kinds.Handler))
    document = registry.document_of(uri_of("2.0")).sha256
    body = kinds.Handler(uri_of("2.0"), document, genuine.filename, genuine.wheel, genuine.entry_point, genuine.bundle)
    registry.add(body, ALICE)
    assert (await refused_at(7, registry, tmp_path, uri_of("2.0"))).code == "handler.manifest"


@pytest.mark.threat(5)
async def test_a_damaged_store_is_fetched_again_and_never_run(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path) as agent:
        good = await agent.fetch(uri_of())
    stored = tmp_path / "store" / "sha256" / good.package.digest[:2] / good.package.digest
    assert stored.read_bytes() == good.wheel
    stored.write_bytes(flipped(good.wheel, 100))
    async with fetcher(registry, tmp_path) as agent:
        assert agent.cached(good.hash) is None
        again = await agent.fetch(uri_of())
    assert again.wheel == good.wheel
    assert stored.read_bytes() == good.wheel
