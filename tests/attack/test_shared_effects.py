"""A handler of a shared role that asks for what it must not: nothing reaches an agent outside of the session."""

from __future__ import annotations

from typing import Any

import pytest
from handler_packages import LOCAL, MANIFEST, package

from treaty_consensus.errors import TreatyError
from treaty_handler import Audit, Call, Effect, Multicast, Opened, PeerJoined, PeerLost, Received, Return
from treaty_sandbox import HandlerSession, SandboxPool

ADA, BOB = "did:wba:ada.example", "did:wba:bob.example"
SHARED = {**MANIFEST, "roles": {**MANIFEST["roles"], "client": {**MANIFEST["roles"]["client"], "peers": "many"}}}


async def asked(session: HandlerSession, code: str, number: int = 0) -> list[Effect]:
    return await session.handle(Call(call=f"c{number}", operation="ask", arguments={"code": code}))


def told(effects: list[Effect]) -> list[str]:
    """The texts of its notes; nothing else but the answer happened."""
    assert [type(effect) for effect in effects if not isinstance(effect, Audit)] == [Return]
    return [effect.text for effect in effects if isinstance(effect, Audit)]


@pytest.mark.threat(210)
async def test_messages_to_strangers_are_dropped_and_noted_once() -> None:
    async with SandboxPool(size=0) as pool:
        worker = await pool.load_code(package(manifest=SHARED), local=LOCAL, peers=[""])
        session = await worker.open("client")
        await session.handle(Opened())
        to_ada = f"effects = [Send(peer={ADA!r}, data=b'1')]"
        assert told(await asked(session, to_ada, 1)) == ["Messages to agents that are not in the session were dropped: 1."]
        await session.handle(PeerJoined(peer=ADA, role="server", is_proved=True))
        sent = await asked(session, to_ada, 2)
        assert [type(effect).__name__ for effect in sent] == ["Send", "Return"]
        # Bob never joined. Many messages are one note, so the log of the operator stays short.
        many = f"effects = [Send(peer={BOB!r}, data=b'1')] * 4000"
        assert told(await asked(session, many, 3)) == ["Messages to agents that are not in the session were dropped: 4000."]
        await session.handle(PeerLost(peer=ADA))
        assert len(told(await asked(session, to_ada, 4))) == 1
        assert worker.alive
        await worker.close()


@pytest.mark.threat(222)
async def test_a_message_to_many_crosses_once() -> None:
    peers = [f"did:example:{number}" for number in range(500)]
    async with SandboxPool(size=0) as pool:
        worker = await pool.load_code(package(manifest=SHARED), local=LOCAL, peers=[""])
        session = await worker.open("client")
        await session.handle(Opened())
        to_all = "effects = [Multicast(peers=tuple(session.{0}), data=bytes({1}))]".format
        await asked(session, f"session.known = {peers!r}; session.more = ['did:wba:eve.example', *session.known]", 1)
        assert told(await asked(session, to_all("known", 1), 2)) == [
            "Messages to agents that are not in the session were dropped: 500."
        ]
        for peer in peers:
            await session.handle(PeerJoined(peer=peer, role="server", is_proved=False))
        # As single messages, 500 of these would be more than a worker's reply may have.
        note, sent, _ = await asked(session, to_all("more", 60_000), 3)
        assert note == Audit(text="Messages to agents that are not in the session were dropped: 1.")
        assert sent == Multicast(peers=tuple(peers), data=bytes(60_000))
        await worker.close()


@pytest.mark.threat(222)
@pytest.mark.parametrize(
    ("effects", "code"),
    [
        ("[Multicast(peers=(ada,) * 33, data=bytes(1024 * 1024))]", "handler.failed"),
        ("[Multicast(peers=(ada,) * 16, data=bytes(1024 * 1024))] * 3", "handler.failed"),
        ("[Multicast(peers=(ada,), data=bytes(1024 * 1024 + 1))]", "handler.failed"),
        ("[Multicast(peers=(ada,), data=b'', stream='a b')]", "handler.failed"),
        ("[Multicast(peers='x', data=b'')]", "handler.failed"),
    ],
)
async def test_the_copies_of_one_event_are_bounded(effects: str, code: str) -> None:
    async with SandboxPool(size=0) as pool:
        worker = await pool.load_code(package(manifest=SHARED), local=LOCAL, peers=[""])
        session = await worker.open("client")
        await session.handle(Opened())
        await session.handle(PeerJoined(peer=ADA, role="server", is_proved=True))
        fits = await asked(session, f"effects = [Multicast(peers=({ADA!r},) * 32, data=bytes(1024 * 1024))]")
        assert len(fits) == 2
        with pytest.raises(TreatyError) as caught:
            await asked(session, f"ada = {ADA!r}; effects = {effects}", 1)
        assert caught.value.code == code
        await worker.close()


async def test_an_agent_that_has_not_joined_sends_nothing() -> None:
    async with SandboxPool(size=0) as pool:
        worker = await pool.load_code(package(manifest=SHARED), local=LOCAL, peers=[ADA])
        session = await worker.open("client")
        await session.handle(Opened())
        for event in (Received(peer=ADA, data=b""), PeerLost(peer=ADA)):
            with pytest.raises(TreatyError) as caught:
                await session.handle(event)
            assert caught.value.code == "session.peer"
        await session.handle(PeerJoined(peer=ADA, role="server"))
        with pytest.raises(ValueError, match="already"):
            await session.handle(PeerJoined(peer=ADA, role="server"))
        assert await asked(session, "value = session.parameters['peer']") == [Return(call="c0", value="")]
        await worker.close()


@pytest.mark.parametrize("manifest", [MANIFEST, {**MANIFEST, "interface": 2}, {**MANIFEST, "interface": 3}])
async def test_a_handler_whose_role_is_not_shared_sees_no_member(manifest: dict[str, Any]) -> None:
    async with SandboxPool(size=0) as pool:
        worker = await pool.load_code(package(manifest=manifest), local=LOCAL, peers=[ADA])
        session = await worker.open("client")
        await session.handle(Opened())
        with pytest.raises(ValueError, match="not shared"):
            await session.handle(PeerJoined(peer=BOB, role="server"))
        assert await asked(session, "value = session.parameters['peer']") == [Return(call="c0", value=ADA)]
        with pytest.raises(TreatyError) as caught:
            await asked(session, f"effects = [Send(peer={BOB!r}, data=b'')]", 1)
        assert caught.value.code == "handler.failed"
        await worker.close()


async def test_a_role_that_is_not_shared_sends_to_its_peer_alone() -> None:
    async with SandboxPool(size=0) as pool:
        worker = await pool.load_code(package(), local=LOCAL, peers=[ADA])
        session = await worker.open("client")
        await session.handle(Opened())
        with pytest.raises(TreatyError) as caught:
            await asked(session, f"effects = [Multicast(peers=({ADA!r},), data=b'')]")
        assert caught.value.code == "handler.failed"
        await worker.close()
