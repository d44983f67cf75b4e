"""What an agent serves changes while it runs: protocols come and go, one is revoked, its key is rotated."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from meetings import LAPTOP, TOPIC, URI_1, URI_2, Party, Published, SimulatedProtocols, buyer, meeting, party, product_info, shop
from ports import free_port

from treaty_agent import Agent, Identity, LocalProtocols
from treaty_agent.sessions import provision
from treaty_agent.sessions.interfaces import AgentEvent
from treaty_agent.testing.virtual_time import run
from treaty_agent.transport.http import MEDIA_TYPE, SESSIONS
from treaty_consensus.errors import Conflict, NotFound, Refused, TreatyError, Unavailable

EXAMPLES = Path(__file__).parents[2] / "examples"
PUBLIC = ["wss://host.example"]
REVOKED = Refused("status.revoked", "Its publisher revoked it.")
AWAY = Unavailable("registry.unreachable", "The registry is away.")


class Host:
    """An agent without a registry that greets, and may book appointments later."""

    def __init__(self, home: Path, own: Identity | None = None) -> None:
        self.protocols = LocalProtocols([EXAMPLES / "greeting", EXAMPLES / "appointment"])
        self.events: list[AgentEvent] = []
        self.changed = asyncio.Event()
        self.agent = Agent(own or Identity.create("host.example"), self.protocols, home=home, on_event=self.note)

    def note(self, event: AgentEvent) -> None:
        self.events.append(event)
        self.changed.set()

    def uri(self, name: str) -> str:
        return self.protocols.uri(name)

    def greets(self) -> None:
        @self.agent.provides(self.uri("greeting"))
        async def greet(name: str) -> str:
            return f"Hello, {name}!"

    def books(self) -> None:
        @self.agent.provides(self.uri("appointment"))
        async def find(day: str) -> AsyncIterator[Any]:
            yield {"start": f"{day}T09:00", "minutes": 30}

        @self.agent.provides(self.uri("appointment"))
        async def book(start: str, name: str) -> str:
            return name

        @self.agent.provides(self.uri("appointment"))
        async def cancel(booking: str) -> None: ...

    async def until(self, name: str) -> AgentEvent:
        """The first event of that name outside of sessions."""
        while True:
            for event in self.events:
                if event.name == name:
                    return event
            self.changed.clear()
            await self.changed.wait()


@asynccontextmanager
async def open_host(tmp_path: Path) -> AsyncIterator[tuple[Host, Agent, int]]:
    """A host that greets, a guest, and the host's port."""
    host = Host(tmp_path / "host")
    host.greets()
    async with (
        host.agent,
        Agent(Identity.create(), host.protocols, home=tmp_path / "guest") as guest,
        host.agent.listen("127.0.0.1", 0, public=PUBLIC) as port,
    ):
        yield host, guest, port


async def described(port: int) -> list[str]:
    """The protocols of an agent's description."""
    async with httpx.AsyncClient() as client:
        description = (await client.get(f"http://127.0.0.1:{port}/ad.json")).json()
    return [uri for interface in description["interfaces"] if (uri := interface.get("protocol", "")).startswith("https:")]


async def test_a_protocol_is_provided_while_the_agent_serves(tmp_path: Path) -> None:
    async with open_host(tmp_path) as (host, guest, port):
        url = f"ws://127.0.0.1:{port}"
        with pytest.raises(TreatyError) as failure:
            async with guest.connect(url, topic="scheduling/appointment"):
                pass
        assert failure.value.code == "session.no-common-protocol"
        async with guest.connect(url, topic="social/greeting") as greeting:
            host.books()
            assert (await host.until("served")).protocol == host.uri("appointment")
            assert not host.agent.unserved
            async with guest.connect(url, topic="scheduling/appointment") as session:
                assert await session.call("book", start="2030-05-02T12:00", name="Ada") == "Ada"
                assert host.agent.served == {host.uri("greeting"): 1, host.uri("appointment"): 1}
            assert set(await described(port)) == {host.uri("greeting"), host.uri("appointment")}
            assert await greeting.call("greet", name="Ada") == "Hello, Ada!"


async def test_unfitting_functions_are_reported_until_complete(tmp_path: Path) -> None:
    async with open_host(tmp_path) as (host, _, port):

        @host.agent.provides(host.uri("appointment"))
        async def cancel(booking: str) -> None: ...

        assert (await host.until("unserved")).protocol == host.uri("appointment")
        assert host.agent.unserved[host.uri("appointment")].code == "agent.function"
        assert await described(port) == [host.uri("greeting")]

        @host.agent.provides(host.uri("appointment"))
        async def find(day: str) -> AsyncIterator[Any]:
            yield {}

        @host.agent.provides(host.uri("appointment"))
        async def book(start: str, name: str) -> str:
            return name

        # Before the minute of the first retry.
        await asyncio.wait_for(host.until("served"), 30)
        assert not host.agent.unserved


async def test_a_withdrawn_protocol_ends_alone_and_after_its_calls(tmp_path: Path) -> None:
    async with open_host(tmp_path) as (host, guest, port):
        url, begun, go = f"ws://127.0.0.1:{port}", asyncio.Event(), asyncio.Event()

        @host.agent.provides(host.uri("appointment"))
        async def find(day: str) -> AsyncIterator[Any]:
            yield {}

        @host.agent.provides(host.uri("appointment"))
        async def book(start: str, name: str) -> str:
            begun.set()
            await go.wait()
            return name

        @host.agent.provides(host.uri("appointment"))
        async def cancel(booking: str) -> None: ...

        await host.until("served")
        async with (
            guest.connect(url, topic="social/greeting") as greeting,
            guest.connect(url, topic="scheduling/appointment") as session,
        ):
            call = asyncio.create_task(session.call("book", start="2030-05-02T12:00", name="Ada"))
            await begun.wait()
            withdrawing = asyncio.create_task(host.agent.withdraw(host.uri("appointment")))
            await asyncio.sleep(0)
            assert await described(port) == [host.uri("greeting")]
            with pytest.raises(TreatyError) as failure:
                async with guest.connect(url, protocols=[host.uri("appointment")], did=host.agent.did):
                    pass
            assert failure.value.code in ("session.no-common-protocol", "hello.refused")
            assert not call.done()
            go.set()
            assert await call == "Ada"
            await withdrawing
            with pytest.raises(Unavailable) as over:
                await session.call("book", start="2030-05-02T12:00", name="Ada")
            assert over.value.code == "session.withdrawn"
            assert await greeting.call("greet", name="Ada") == "Hello, Ada!"
        with pytest.raises(NotFound) as unknown:
            await host.agent.withdraw(host.uri("appointment"))
        assert unknown.value.code == "agent.not-provided"
        host.books()
        async with guest.connect(url, topic="social/greeting") as greeting:
            assert await greeting.call("greet", name="Ada") == "Hello, Ada!"


# Revocation


class Registry(SimulatedProtocols):
    """A registry whose proofs are old, and that refuses some protocols, by URI."""

    def __init__(self, seconds_old: int = 3000) -> None:
        super().__init__()
        self.refused: dict[str, TreatyError] = {}
        self.published = {uri: dataclasses.replace(product_info(uri), seconds_old=seconds_old) for uri in (URI_2, URI_1)}

    async def fetch(self, uri: str) -> Published:
        if uri in self.refused:
            self.fetched.append(uri)
            raise self.refused[uri]
        return await super().fetch(uri)


async def until_event(party: Party, name: str) -> None:
    for _ in range(3600):
        if name in party.names():
            return
        await asyncio.sleep(1)
    raise AssertionError(f"there is no event {name}")


def test_a_revocation_ends_sessions_after_their_calls(tmp_path: Path) -> None:
    async def main() -> None:
        go, registry = asyncio.Event(), Registry()
        seller, old, new = party("shop", tmp_path, protocols=registry), buyer(tmp_path / "old"), buyer(tmp_path / "new")

        async def getProductInfo(productId: str = "", productName: str = "") -> Any:  # noqa: N802, N803
            if productId == "SLOW":
                await go.wait()
            return LAPTOP

        for uri in (URI_2, URI_1):
            seller.agent.provides(uri)(getProductInfo)
        async with meeting(seller) as first, meeting(seller) as second:
            async with (
                old.agent.connect_over(first, protocols=[URI_2]) as revoked,
                new.agent.connect_over(second, protocols=[URI_1]) as other,
            ):
                call = asyncio.create_task(revoked.call("getProductInfo", productId="SLOW"))
                await asyncio.sleep(1)
                registry.refused[URI_2] = REVOKED
                await provision.renew(seller.agent.context)
                assert list(seller.agent.unserved) == [URI_2]
                await asyncio.sleep(1)
                assert not call.done()
                go.set()
                assert await call == LAPTOP
                with pytest.raises(Unavailable) as over:
                    await revoked.call("getProductInfo", productId="P12345")
                assert over.value.code == "session.revoked"
                assert await other.call("getProductInfo", productId="P12345") == LAPTOP
            async with meeting(seller) as wire, buyer(tmp_path).agent.connect_over(wire, protocols=[URI_2, URI_1]) as session:
                assert session.protocol == URI_1
        assert [event.protocol for event in seller.events if event.name == "revoked"] == [URI_2]
        await seller.agent.aclose()

    run(main())


def test_the_calling_side_leaves_a_revoked_protocol_too(tmp_path: Path) -> None:
    async def main() -> None:
        registry = Registry()
        seller, customer = shop(tmp_path, URI_2), party("buyer", tmp_path, protocols=registry)
        async with meeting(seller) as wire, customer.agent.connect_over(wire, protocols=[URI_2]) as session:
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            registry.refused[URI_2] = REVOKED
            await until_event(customer, "revoked")
            await asyncio.sleep(1)
            with pytest.raises(Unavailable) as over:
                await session.call("getProductInfo", productId="P12345")
            assert over.value.code == "session.revoked"
        assert not seller.agent.unserved
        await seller.agent.aclose()

    run(main())


class SlowRegistry(Registry):
    """A registry that answers one request later: it has decided, and the answer is on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self.asked_slowly, self.go = asyncio.Event(), asyncio.Event()

    async def fetch(self, uri: str) -> Published:
        published = await super().fetch(uri)
        if self.is_slow:
            self.is_slow = False
            self.asked_slowly.set()
            await self.go.wait()
        return published


@pytest.mark.threat(217)
def test_an_answer_older_than_a_revocation_serves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        registry = SlowRegistry()
        seller = shop(tmp_path, URI_2, protocols=registry)
        await seller.agent.prepare()
        registry.is_slow = True

        async def connect() -> None:
            async with meeting(seller) as wire, buyer(tmp_path).agent.connect_over(wire, protocols=[URI_2]):
                pass

        connecting = asyncio.create_task(connect())
        await registry.asked_slowly.wait()
        registry.refused[URI_2] = REVOKED
        await provision.renew(seller.agent.context)
        assert not seller.agent.served
        registry.go.set()
        with pytest.raises(TreatyError) as error:
            await connecting
        assert error.value.code == "session.peer-code"
        assert not seller.agent.served
        assert list(seller.agent.unserved) == [URI_2]
        await seller.agent.aclose()

    run(main())


@pytest.mark.parametrize(("seconds_old", "is_served"), [(3000, True), (3700, False)])
def test_an_absent_registry_closes_a_protocol_of_old_proof(tmp_path: Path, seconds_old: int, is_served: bool) -> None:
    async def main() -> None:
        registry = Registry(seconds_old)
        seller = shop(tmp_path, URI_2, protocols=registry)
        await seller.agent.prepare()
        registry.refused[URI_2] = AWAY
        await provision.renew(seller.agent.context)
        assert (not seller.agent.unserved) is is_served
        if not is_served:
            assert isinstance(seller.agent.unserved[URI_2], Unavailable)
            async with meeting(seller) as wire:
                with pytest.raises(Unavailable) as error:
                    async with buyer(tmp_path).agent.connect_over(wire, topic=TOPIC):
                        pass
            assert error.value.code == "session.protocol-unavailable"
        registry.refused.clear()
        if not is_served:
            await until_event(seller, "served")
        async with meeting(seller) as wire, buyer(tmp_path / "later").agent.connect_over(wire, topic=TOPIC) as session:
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        await seller.agent.aclose()

    run(main())


def test_young_proofs_are_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        seller = shop(tmp_path, URI_2, protocols=Registry(seconds_old=1700))
        await seller.agent.prepare()
        await asyncio.sleep(3600)
        assert seller.protocols.fetched == [URI_2]
        await seller.agent.aclose()

    run(main())


# The key, and an agent that serves its documents alone


async def key_in_document(port: int) -> str:
    async with httpx.AsyncClient() as client:
        document = (await client.get(f"http://127.0.0.1:{port}/.well-known/did.json")).json()
    [key] = document["authentication"]
    return str(key)


async def test_a_rotated_key_is_taken_over_without_a_restart(tmp_path: Path) -> None:
    host = Host(tmp_path, first_identity := Identity.create("host.example"))
    host.greets()
    first_identity.save(tmp_path / "identity.json")
    async with (
        host.agent,
        Agent(Identity.create(), host.protocols, home=tmp_path / "guest") as guest,
        host.agent.listen("127.0.0.1", 0, public=PUBLIC) as port,
    ):
        url = f"ws://127.0.0.1:{port}"
        assert not host.agent.reload()
        async with guest.connect(url, topic="social/greeting") as open_session:
            first_identity.rotated().supersede(first_identity, tmp_path / "identity.json")
            assert await key_in_document(port) == first_identity.key_id
            assert host.agent.reload()
            assert await key_in_document(port) == f"{host.agent.did}#key-2"
            assert await open_session.call("greet", name="Ada") == "Hello, Ada!"
        async with guest.connect(url, topic="social/greeting") as session:
            assert await session.call("greet", name="Ada") == "Hello, Ada!"
        with pytest.raises(Conflict) as failure:
            host.agent.reload(Identity.create("other.example"))
        assert failure.value.code == "agent.settings"
        assert await key_in_document(port) == f"{host.agent.did}#key-2"


async def test_signals_reload_and_end_an_agent_that_serves(tmp_path: Path) -> None:
    """In this process: `serve` sets the handlers and restores them."""
    handled = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in handled]
    host, port = Host(tmp_path, first_identity := Identity.create("host.example")), free_port()
    host.greets()
    first_identity.save(tmp_path / "identity.json")
    async with host.agent:
        serving = asyncio.create_task(host.agent.serve("127.0.0.1", port, public=PUBLIC))
        while signal.getsignal(signal.SIGHUP) == before[2]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        first_identity.rotated().supersede(first_identity, tmp_path / "identity.json")
        os.kill(os.getpid(), signal.SIGHUP)
        while await key_in_document(port) == first_identity.key_id:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        (tmp_path / "identity.json").unlink()
        os.kill(os.getpid(), signal.SIGHUP)  # logged, and the agent goes on
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
        assert [signal.getsignal(number) for number in handled] == before
        assert not await asyncio.to_thread(accepts, port)


async def test_a_reload_while_the_agent_drains_does_not_end_it(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    host, port, begun, go = Host(tmp_path), free_port(), asyncio.Event(), asyncio.Event()

    @host.agent.provides(host.uri("greeting"))
    async def greet(name: str) -> str:
        begun.set()
        await go.wait()
        return name

    async with host.agent, Agent(Identity.create(), host.protocols, home=tmp_path / "guest") as guest:
        serving = asyncio.create_task(host.agent.serve("127.0.0.1", port))
        while signal.getsignal(signal.SIGHUP) == before[signal.SIGHUP]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with guest.connect(f"ws://127.0.0.1:{port}", topic="social/greeting") as session:
            call = asyncio.create_task(session.call("greet", name="Ada"))
            await begun.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            # The second one ends the process.
            while signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert signal.getsignal(signal.SIGHUP) != before[signal.SIGHUP]
            (tmp_path / "identity.json").mkdir()
            os.kill(os.getpid(), signal.SIGHUP)
            go.set()
            assert await call == "Ada"
        await serving
    assert signal.getsignal(signal.SIGHUP) == before[signal.SIGHUP]


def accepts(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}/ad.json")
    except httpx.ConnectError:
        return False
    return True


@pytest.mark.parametrize("in_main_thread", [True, False])
async def test_signals_are_left_alone_on_request_and_in_other_threads(tmp_path: Path, in_main_thread: bool) -> None:
    handled = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before, port = [signal.getsignal(number) for number in handled], free_port()

    async def serve() -> None:
        host = Host(tmp_path)
        host.greets()
        async with host.agent:
            serving = asyncio.create_task(host.agent.serve("127.0.0.1", port, signals=not in_main_thread))
            while not await asyncio.to_thread(accepts, port):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            assert [signal.getsignal(number) for number in handled] == before
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    if in_main_thread:
        await serve()
    else:
        await asyncio.to_thread(asyncio.run, serve())


async def test_an_agent_without_protocols_serves_its_documents(tmp_path: Path) -> None:
    host = Host(tmp_path)
    async with host.agent:
        with pytest.raises(Refused) as failure:
            async with host.agent.listen("127.0.0.1", 0):
                pass
        assert failure.value.code == "agent.settings"
        async with host.agent.listen("127.0.0.1", 0, public=PUBLIC) as port:
            assert await key_in_document(port) == f"{host.agent.did}#key-1"
            assert await described(port) == []
            host.greets()
            await host.until("served")
            assert await described(port) == [host.uri("greeting")]
    nobody = Host(tmp_path / "key", Identity.create())
    async with nobody.agent:
        with pytest.raises(Refused):
            async with nobody.agent.listen("127.0.0.1", 0, public=PUBLIC):
                pass


async def test_the_lifespan_of_a_web_server_drains(tmp_path: Path) -> None:
    host, event_types = Host(tmp_path), list[str]()
    host.greets()
    async with host.agent:
        await host.agent.prepare()
        application = host.agent.asgi(["https://host.example"])
        events = iter(["lifespan.startup", "lifespan.shutdown"])

        async def receive() -> dict[str, Any]:
            return {"type": next(events)}

        async def send(event: Any) -> None:
            event_types.append(event["type"])

        await application({"type": "lifespan"}, receive, send)
        assert event_types == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="https://host.example") as client:
            late = await client.post(f"{SESSIONS}?key={'k' * 43}", content=b"", headers={"Content-Type": MEDIA_TYPE})
        assert (late.status_code, late.json()["code"], late.headers["retry-after"]) == (503, "connection.busy", "1")
