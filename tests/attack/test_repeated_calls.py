"""A payment that was done is not repeated for an error that comes afterwards: of middleware, or of another agent that it asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from treaty_agent import Agent, Call, Identity, LocalProtocols, Proceed
from treaty_agent.sessions.operation_errors import OutcomeUnknown
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_consensus.handler import Operation
from treaty_io.codes import SessionCode
from treaty_io.errors import PeerUnavailable

PAYMENT = Path(__file__).parents[1] / "support" / "payment"
NAME = "https://registry.example/protocols/example.com/payment/1.0"
METER = Operation("meter", {}, {}, {}, idempotent=True, timeout=5)


@pytest.mark.threat(216)
@pytest.mark.parametrize(
    ("failure", "ends"),
    [
        (Unavailable(SessionCode.BUSY, "The meter is busy."), False),
        (OutcomeUnknown("meter", "The meter is gone.", METER), False),
        (Unavailable("meter.away", "The meter is away."), True),
    ],
    ids=["busy", "outcome unknown", "session is over"],
)
async def test_an_error_after_the_answer_does_not_repeat_a_payment(tmp_path: Path, failure: TreatyError, ends: bool) -> None:
    protocols, paid = LocalProtocols({NAME: PAYMENT}), list[int]()
    async with (
        Agent(Identity.create(), protocols, home=tmp_path / "payee") as payee,
        Agent(Identity.create(), protocols, home=tmp_path / "payer") as payer,
    ):

        @payee.provides(NAME, role="payee")
        async def pay(amount: int) -> str:
            paid.append(amount)
            return "paid"

        @payee.provides(NAME, role="payee")
        async def count() -> int:
            return len(paid)

        @payer.middleware
        async def meter(call: Call, proceed: Proceed) -> Any:
            value = await proceed()
            if ends:
                await payee.drain()
            if len(paid) < 3:
                raise failure
            return value

        async def approve(amount: int) -> bool:
            return True

        async def numbers() -> AsyncIterator[int]:
            yield 1

        async with (
            payee.listen("127.0.0.1", 0) as port,
            payer.peer(f"ws://127.0.0.1:{port}", protocols=[NAME], role="payer", serving=[approve, numbers]) as peer,
        ):
            with pytest.raises(TreatyError) as error:
                await peer.call("pay", amount=1, within=5)
    assert error.value is failure
    assert paid == [1]


@pytest.mark.parametrize("seconds", [0, -1, 1e-9])
async def test_a_call_without_time_is_not_sent(tmp_path: Path, seconds: float) -> None:
    protocols, operations, rung = LocalProtocols({NAME: PAYMENT}), list[str](), asyncio.Event()
    async with (
        Agent(Identity.create(), protocols, home=tmp_path / "payee") as payee,
        Agent(Identity.create(), protocols, home=tmp_path / "payer") as payer,
    ):

        @payee.middleware
        async def note(call: Call, proceed: Proceed) -> Any:
            operations.append(call.operation)
            return await proceed()

        @payee.provides(NAME, role="hearer")
        async def rang(bell: str) -> None:
            if bell == "last":
                rung.set()

        async with (
            payee.listen("127.0.0.1", 0) as port,
            payer.peer(f"ws://127.0.0.1:{port}", protocols=[NAME], role="bell") as peer,
        ):
            await peer.call("rang", bell="front")
            with pytest.raises(PeerUnavailable) as error:
                await peer.call("rang", bell="back", within=seconds)
            assert error.value.code == "session.late"
            await peer.call("rang", bell="last")
            await rung.wait()
        assert operations == ["rang", "rang"]
