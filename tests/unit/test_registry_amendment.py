"""Amendments in a registry: their notice survives restarts, and the operator and readers see them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as changed
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace
from open_electorates import anchor, draft, write
from registries import Web, ballot, contents, log, settings_for
from shown_entries import page
from signers import NOW

from treaty_consensus.amendment import constitution_of
from treaty_consensus.errors import Refused
from treaty_registry.app import create_app
from treaty_registry.operator.parameters import ParametersDraft
from treaty_registry.registry import Registry

PERIOD = 100
HORIZON = 13 * PERIOD


@dataclass
class Clock:
    """`seconds` since the test began."""

    seconds: int = 0

    def __call__(self) -> datetime:
        return datetime.fromtimestamp(NOW + self.seconds, UTC)


def reader(registry: Registry) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(registry, period=0))  # type: ignore[arg-type]  # the two spell ASGI's types differently
    return httpx.AsyncClient(transport=transport, base_url="http://registry.example")


async def closed(registry: Registry) -> int:
    """Let the schedule look at the clock; returns the open epoch."""
    with suppress(Refused):  # the registry's own task may have looked at the same moment
        await registry.schedule.close_if_due()
    return (await registry.parameters_status()).epoch


def amended(**changes: object) -> ParametersDraft:
    base = draft(PERIOD)
    return replace(base, parameters=replace(base.parameters, **{"rule": "schulze-margins-v3", **changes}))


async def test_an_amendment_is_shown_and_holds_after_its_notice(tmp_path: Path, database: str, web: Web) -> None:
    file, clock, voter = write(tmp_path, PERIOD), Clock(), anchor(0)
    file.write_text('rule = "schulze-margins-v3"\n' + file.read_text())
    settings = changed(settings_for(tmp_path / "registry", database), parameters=file)
    web.serve(voter)
    async with Registry.open(settings, clock=clock, resolve=web.resolve) as registry:
        before, status = await contents(registry), await registry.parameters_status()
        assert status.constitution == constitution_of(amended().parameters)
        for bent in (amended(epoch_seconds=1), amended(quorum_share=2), amended(rule="schulze-margins-v2", memory_horizons=None)):
            with pytest.raises(Refused) as refusal:
                await registry.announce(bent)
            assert refusal.value.code == "parameters.amendment"
        # The suffix list was uploaded before, so nothing at all is new.
        assert (await contents(registry), await registry.parameters_status()) == (before, status)
        dropped = await registry.announce(amended(cluster_share=4))
        clock.seconds = 1
        announced = await registry.announce(amended(quorum_share=5))
        assert (announced.epoch, announced.holds) == (None, NOW + 1 + HORIZON)
        async with reader(registry) as api:
            answer = (await api.get("/log")).json()
            assert (answer["announced"], answer["holds"]) == (announced.statement, announced.holds)
            assert answer["constitution"] == status.constitution
            view = await page(api, "/log")
            assert all(text in view.text for text in (status.constitution, "quorum_share: 4 → 5", "taken back or replaced"))
            assert all(f"/statements/{one.statement}" in view.links for one in (announced, dropped))
        await log(registry, ballot(registry), voter)
        clock.seconds = HORIZON
        assert await closed(registry) == 1
        assert (await registry.parameters_status()).in_force == status.in_force
    settings = changed(settings_for(tmp_path / "registry", database), parameters=file)
    # A process that ends during the notice leaves it as it is: all of it is in the log.
    async with Registry.open(settings, clock=clock, resolve=web.resolve) as registry:
        parameters_view = await registry.parameters_status()
        assert parameters_view.announced is not None
        assert (parameters_view.announced.statement, parameters_view.holds) == (announced.statement, announced.holds)
        await log(registry, ballot(registry, 1), voter)
        clock.seconds = HORIZON + PERIOD
        assert await closed(registry) == 2
        parameters_view = await registry.parameters_status()
        assert (parameters_view.in_force.statement, parameters_view.announced, parameters_view.holds) == (
            announced.statement,
            None,
            None,
        )
        assert not (await registry.rebuild()).differed
        async with reader(registry) as api:
            assert "from epoch 2" in (await page(api, "/log")).text
        # The parameters in force take the next announcement back.
        await registry.announce(amended(quorum_share=6))
        taken_back = await registry.announce(amended(quorum_share=5))
        assert (taken_back.epoch, taken_back.holds, (await registry.parameters_status()).announced) == (None, None, None)
