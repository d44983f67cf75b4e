"""Agents whose protocols need no code: they need no sandbox."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from meetings import LAPTOP, URI_2, buyer, meeting, product_info, shop
from sandboxed import sandboxed_package

from treaty_consensus.errors import Unavailable
from treaty_handler import Opened
from treaty_sandbox.levels import level_of
from treaty_sandbox.runtime import SandboxRuntime


async def no_sandbox() -> None:
    raise level_of("bubblewrap").unavailable("There is none on this machine.")


async def test_protocols_without_code_need_no_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seller, customer = shop(tmp_path, URI_2), buyer(tmp_path)
    for someone in (seller, customer):
        monkeypatch.setattr(someone.runtime, "warm", no_sandbox)
    async with meeting(seller) as tap, customer.agent.connect_over(tap, protocols=[URI_2]) as session:
        assert await session.call("getProductInfo", productId="P12345") == LAPTOP


async def test_protocols_with_code_report_a_missing_sandbox_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seller = shop(tmp_path, URI_2)
    seller.protocols.published = {URI_2: dataclasses.replace(product_info(URI_2), package=sandboxed_package("1.1", URI_2))}
    monkeypatch.setattr(seller.runtime, "warm", no_sandbox)
    with pytest.raises(Unavailable) as caught:
        await seller.agent.prepare()
    assert caught.value.code == "sandbox.unavailable"


async def test_a_remembered_protocol_without_code_starts_no_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[str]()

    def warming(name: str) -> Callable[[], Awaitable[None]]:
        async def warm() -> None:
            started.append(name)

        return warm

    seller = shop(tmp_path, URI_2)
    for name in ("first", "again"):
        customer = buyer(tmp_path)
        monkeypatch.setattr(customer.runtime, "warm", warming(name))
        async with meeting(seller) as tap:
            if name == "again":
                await customer.protocols.fetch(URI_2)  # as a home has it
            async with customer.agent.connect_over(tap, protocols=[URI_2]) as session:
                assert await session.call("getProductInfo", productId="P12345") == LAPTOP
                assert session.resumed == (name == "again")
        await customer.agent.aclose()
    assert started == ["first"]


async def test_the_runtime_starts_no_process_for_it(tmp_path: Path) -> None:
    runtime = SandboxRuntime(tmp_path)
    package = product_info(URI_2).package
    try:
        await runtime.preload(package, local="did:wba:shop.example")
        sessions = [
            await runtime.open(package, "provider", local="did:wba:shop.example", peer="did:wba:buyer.example") for _ in range(3)
        ]
        for session in sessions:
            assert await session.handle(Opened()) == []
        assert (runtime.workers, runtime.waiting_for) == (0, [])
        for session in sessions:
            await session.close()
        assert runtime.waiting_for == []
    finally:
        await runtime.close()
    assert not (tmp_path / "code").exists()
