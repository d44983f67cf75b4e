"""`treaty_agent.testing`: agents, a registry in memory, and faults that behave as the real ones do."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from treaty_agent import Agent, Conflict, Identity, LocalProtocols, NotFound, OperationError, Policy, Refused, Unavailable
from treaty_agent.testing import PeerDouble, Simulation, run
from treaty_client.protocols.project import load_project

ROOT = Path(__file__).parents[2]
GREETING = ROOT / "examples" / "greeting"
APPOINTMENT = ROOT / "examples" / "appointment"
ANSWERS = {"book": "B1", "cancel": None}
TOPIC = "social/greeting"
OPEN = Policy(report=True, report_delay=0)


def host_of(simulation: Simulation, policy: Policy | None = None) -> PeerDouble:
    return PeerDouble(simulation.agent("host.example", policy), simulation.uri("greeting"), {"greet": "Hello!"})


def test_a_session_is_reported_with_both_signatures() -> None:
    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            host, guest = host_of(simulation, OPEN), simulation.agent("guest.example", OPEN)
            async with simulation.serving(host.agent), guest.connect("wss://host.example", topic=TOPIC) as session:
                await session.call("greet", name="Ada")
            (report,) = simulation.registry.reports
            assert [author.text for author in report.authors] == ["did:wba:guest.example", "did:wba:host.example"]

    run(main())


def test_a_policy_that_does_not_report_reports_nothing() -> None:
    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            host, guest = host_of(simulation), simulation.agent("guest.example")
            async with simulation.serving(host.agent), guest.connect("wss://host.example", topic=TOPIC) as session:
                await session.call("greet", name="Ada")
            assert simulation.registry.reports == []
            assert "epoch" not in simulation.registry.requests

    run(main())


def test_a_cut_link_ends_the_session_and_a_new_one_opens() -> None:
    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            host, guest = host_of(simulation), simulation.agent("guest.example")
            async with simulation.serving(host.agent):
                async with guest.connect("wss://host.example", topic=TOPIC) as session:
                    await session.call("greet", name="Ada")
                    await simulation.links["host.example"].cut()
                    with pytest.raises((Unavailable, OperationError)):
                        await session.call("greet", name="Ada")
                async with guest.connect("wss://host.example", topic=TOPIC) as session:
                    assert await session.call("greet", name="Ada") == "Hello!"

    run(main())


def test_a_host_that_refuses_is_tried_again_and_given_up() -> None:
    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            host, guest = host_of(simulation), simulation.agent("guest.example")
            async with simulation.serving(host.agent):
                simulation.links["host.example"].refuses = True
                with pytest.raises(Unavailable) as failed:
                    async with guest.connect("wss://host.example", topic=TOPIC):
                        pass
                assert failed.value.code == "connection.failed"

    run(main())


def test_a_double_ends_a_stream_with_an_error() -> None:
    async def main() -> None:
        async with Simulation([APPOINTMENT]) as simulation:
            slot, day = {"start": "2030-05-02T09:00", "minutes": 30}, "2030-05-02"
            office = PeerDouble(
                simulation.agent("office.example"), simulation.uri("appointment"), {**ANSWERS, "find": (slot, slot)}
            )
            customer = simulation.agent("customer.example")
            async with (
                simulation.serving(office.agent),
                customer.connect("wss://office.example", topic="scheduling/appointment") as session,
            ):
                assert [item async for item in session.stream("find", day=day)] == [slot, slot]
                office.answers["find"] = OperationError(404, "Closed.")
                with pytest.raises(OperationError) as failure:
                    await anext(session.stream("find", day=day))
                assert failure.value.status == 404
                assert await session.call("book", start=slot["start"], name="Ada") == "B1"
            assert [call.operation for call in office.calls] == ["find", "find", "book"]

    run(main())


def test_hours_pass_in_milliseconds() -> None:
    async def main() -> None:
        now = asyncio.get_running_loop().time
        begun = now()
        await asyncio.sleep(36_000)
        assert now() - begun == pytest.approx(36_000)

    begun = time.monotonic()
    run(main())
    assert time.monotonic() - begun < 3_600


def test_a_slow_machine_meets_no_additional_timeout() -> None:
    async def main() -> None:
        async with asyncio.timeout(0.1):
            time.sleep(0.2)  # noqa: ASYNC251  # computing
            await asyncio.sleep(0)
            await asyncio.sleep(0.05)

    run(main())


def test_a_timer_ends_what_a_thread_waits_for() -> None:
    async def main() -> bool:
        over = threading.Event()
        asyncio.get_running_loop().call_later(0.1, over.set)
        return await asyncio.to_thread(over.wait, 10)

    assert run(main())


@pytest.mark.parametrize("state", ["down", "silent"])
def test_an_agent_that_fetched_before_needs_no_registry(state: str) -> None:
    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            host, guest = host_of(simulation), simulation.agent("guest.example")
            async with simulation.serving(host.agent):
                async with guest.connect("wss://host.example", topic=TOPIC) as session:
                    await session.call("greet", name="Ada")
                simulation.registry.state = state  # type: ignore[assignment]
                async with guest.connect("wss://host.example", topic=TOPIC) as session:
                    assert await session.call("greet", name="Bob") == "Hello!"

    run(main())


def test_a_registry_that_is_down_fails_a_first_meeting() -> None:
    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            host, guest = host_of(simulation), simulation.agent("guest.example")
            async with simulation.serving(host.agent):
                simulation.registry.state = "down"
                with pytest.raises(Unavailable) as failed:
                    async with guest.connect("wss://host.example", topic=TOPIC):
                        pass
                assert failed.value.code == "registry.unreachable"

    run(main())


def test_a_restarted_agent_has_the_same_identity_and_home() -> None:
    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            first, second = simulation.agent("host.example"), simulation.agent("host.example")
            assert (first.did, first.context.home) == (second.did, second.context.home)

    run(main())


def test_a_second_version_is_the_one_that_a_name_means(tmp_path: Path) -> None:
    product = ROOT / "protocols" / "product-info"
    protocols = LocalProtocols([product / "1.0", product / "1.1"])
    assert protocols.uri("product-info").endswith("/product-info/1.1")
    with pytest.raises(NotFound) as unknown:
        protocols.uri("booking")
    assert unknown.value.code == "protocol.unknown"


def test_folders_under_their_published_uris() -> None:
    uri = "https://registry.example/protocols/publisher.example/greeting/1.0"
    protocols = LocalProtocols({uri: GREETING})
    assert protocols.uris == (uri,)
    assert protocols.uri("greeting") == uri


def test_one_protocol_twice_is_refused() -> None:
    with pytest.raises(Exception) as twice:  # the code says which
        LocalProtocols([GREETING, GREETING])
    assert getattr(twice.value, "code", "") == "project.file"


def test_an_agent_of_files_neither_publishes_nor_reports(tmp_path: Path) -> None:
    async def main() -> None:
        protocols = LocalProtocols([GREETING])
        async with Agent(Identity.create(), protocols, Policy(report=True, publish=True), home=tmp_path) as agent:
            assert not agent.context.policy.report
            assert not agent.context.policy.publish
            with pytest.raises(Refused) as refused:
                await agent.context.ports.publisher.publish(load_project(GREETING))
            assert refused.value.code == "agent.settings"
        assert not (tmp_path / "registries.json").exists()

    asyncio.run(main())


def test_a_registry_in_memory_keeps_its_versions() -> None:
    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            publisher = simulation.agent("author.example").context.ports.publisher
            project = load_project(GREETING)
            uri = await publisher.publish(project)
            assert simulation.registry.protocols.holds(uri)
            before = simulation.registry.protocols.uris
            with pytest.raises(Conflict):
                await publisher.publish(project)
            assert simulation.registry.protocols.uris == before

    run(main())


def test_a_handler_with_code_runs_in_the_test() -> None:
    folder = ROOT / "examples" / "haggling"

    async def main() -> None:
        async with Simulation([folder]) as simulation:
            seller = simulation.agent("seller.example")
            uri = simulation.uri("haggling")
            protocol = await simulation.registry.protocols.fetch(uri)
            role = next(role for role in protocol.package.manifest.roles.values() if role.invokes)
            double = PeerDouble(seller, uri, dict.fromkeys(role.invokes, None), role=role.name)
            async with simulation.serving(double.agent):
                assert uri not in seller.unserved

    run(main())
