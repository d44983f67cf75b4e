"""A handler of a shared role that asks for what it must not: nothing reaches an agent outside of the session."""

from __future__ import annotations

from typing import Any

import pytest
from handler_packages import LOCAL, MANIFEST, package

from treaty_client.sandbox import HandlerSession, SandboxPool
from treaty_consensus.errors import TreatyError
from treaty_handler import Audit, Call, Effect, Opened, PeerJoined, PeerLost, Received, Return

ADA, BOB = "did:wba:ada.example", "did:wba:bob.example"
SHARED = {**MANIFEST, "roles": {**MANIFEST["roles"], "client": {**MANIFEST["roles"]["client"], "peers": "many"}}}


async def asked(session: HandlerSession, code: str, number: int = 0) -> list[Effect]:
    return await session.handle(Call(call=f"c{number}", operation="ask", arguments={"code": code}))


def told(effects: list[Effect]) -> list[str]:
    """The texts of its notes; nothing else but the answer happened."""
    assert [type(effect) for effect in effects if not isinstance(effect, Audit)] == [Return]
    return [effect.text for effect in effects if isinstance(effect, Audit)]


@pytest.mark.threat(210)
async def test_messages_to_others_than_the_members_are_dropped_and_noted_once() -> None:
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


async def test_the_host_gives_no_message_of_an_agent_that_has_not_joined() -> None:
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
        assert caught.value.code == "handler.effect-peer"
        await worker.close()
