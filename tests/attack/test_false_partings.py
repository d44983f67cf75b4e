"""A peer abuses the reason with which an agent ends a session in good order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve

from treaty_agent import Agent, Identity, LocalProtocols
from treaty_agent.transport.connection import Backoff
from treaty_agent.transport.parting import SessionParting, is_draining
from treaty_consensus.errors import Unavailable

GREETING = Path(__file__).parents[2] / "examples" / "greeting"


@pytest.mark.threat(200)
@pytest.mark.parametrize(
    "reason",
    [
        "session.draining",
        "session.draining ",
        "session.draining -1",
        "session.draining 1.0",
        "session.draining 1 ",
        "session.draining 1\n",
        "session.draining ١",
        f"session.draining {'9' * 16}",
        f"session.draining {'9' * 100_000}",
        "session.idle 3",
        "SESSION.DRAINING 3",
        "",
    ],
)
def test_a_reason_of_another_form_proves_nothing(reason: str) -> None:
    assert SessionParting.parse(reason) is None
    assert not is_draining(reason)


def test_only_an_agent_that_stops_may_have_a_successor() -> None:
    assert is_draining("session.draining 0")
    for code in ("withdrawn", "revoked"):
        parting = SessionParting.parse(f"session.{code} 17")
        assert parting is not None
        assert (parting.code, parting.received, parting.reason) == (f"session.{code}", 17, f"session.{code} 17")
        assert not is_draining(parting.reason)


@asynccontextmanager
async def always_draining(met: list[str]) -> AsyncIterator[int]:
    """A server that reads a Hello and says that it stops, and its port."""

    async def go_away(connection: ServerConnection) -> None:
        met.append(str(await connection.recv()))
        await connection.close(1001, "session.draining 1")

    async with serve(go_away, "127.0.0.1", 0) as server:
        yield next(iter(server.sockets)).getsockname()[1]


@pytest.mark.threat(200)
async def test_a_peer_always_about_to_stop_is_given_up(tmp_path: Path) -> None:
    met: list[str] = []
    async with (
        Agent(Identity.create(), LocalProtocols([GREETING]), home=tmp_path) as agent,
        always_draining(met) as port,
    ):
        with pytest.raises(Unavailable) as failure:
            async with agent.connect(f"ws://127.0.0.1:{port}", topic="social/greeting"):
                pass
    assert failure.value.code == "session.draining"
    assert 1 < len(met) <= Backoff().attempts + 1
