"""Journals and queues over TLS, with real servers whose certificates are of an authority made in the test."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from handoffs import DATA, Inbox
from rabbitmq_server import rabbitmq
from tls_servers import TestAuthority, tls_postgres

from treaty_consensus.errors import Unavailable
from treaty_handoff import HandoffAgent, Journal, Kind, PostgresBroker, RabbitBroker, build


async def hand_off(url: str, broker: PostgresBroker | RabbitBroker) -> None:
    """One agent sends itself a notification."""
    async with Journal.open(url, "desk") as journal:
        agent = HandoffAgent("desk", journal, broker)
        inbox = Inbox(agent)
        message = build(
            Kind.NOTIFICATION,
            DATA[Kind.NOTIFICATION],
            sender="desk",
            recipient="desk",
            task="t",
            state="OPEN",
            now=datetime.now(UTC),
        )
        async with agent.running():
            await agent.send(message)
            assert await inbox.wait() == [message]


@pytest.mark.deep
@pytest.mark.threat(247)
async def test_004_28_postgresql_over_tls() -> None:
    with tls_postgres() as (url, authority):
        trusted = f"{url}?sslmode=verify-full&sslrootcert={authority.ca}"
        async with PostgresBroker.open(trusted) as broker:
            await hand_off(trusted, broker)
            async with Journal.open(trusted, "desk") as journal, journal.transaction() as transaction:
                query = "select ssl from pg_stat_ssl where pid = pg_backend_pid()"
                assert await transaction.connection.fetchval(query) is True
        # Neither a server of another authority nor a connection without TLS is used.
        stranger = authority.ca.with_name("stranger.pem")
        stranger.write_bytes(TestAuthority(authority.ca.parent).ca.read_bytes())
        for other in (f"{url}?sslmode=verify-full&sslrootcert={stranger}", f"{url}?sslmode=disable"):
            with pytest.raises(Unavailable):
                async with Journal.open(other, "desk"):
                    pass
            with pytest.raises(Unavailable):
                async with PostgresBroker.open(other):
                    pass


@pytest.mark.deep
@pytest.mark.threat(247)
async def test_004_28_rabbitmq_over_tls(database: str, tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    with rabbitmq(tls=(authority.ca, authority.certificate, authority.key)) as server:
        async with RabbitBroker.open(server.tls_url, tls=authority.trusting()) as broker:
            await hand_off(database, broker)
        (tmp_path / "other").mkdir()
        stranger = TestAuthority(tmp_path / "other")
        for trusting in (stranger.trusting(), None):
            async with RabbitBroker.open(server.tls_url, tls=trusting) as broker:
                with pytest.raises(Unavailable):
                    await broker.publish("desk", b"x", 0)
