"""A handler that asks for what its role may not have: nothing of that event happens, and the worker is ended."""

from __future__ import annotations

from typing import Any

import pytest
from handler_packages import LOCAL, MANIFEST, PEER, PROBE, package
from rejections import rejection
from sandboxes import LEVELS, Probe, probe

from treaty_consensus.errors import Malformed, Refused, TreatyError
from treaty_handler import (
    Audit,
    Call,
    Close,
    End,
    Event,
    Failure,
    Invoke,
    Opened,
    PeerLost,
    Persist,
    Received,
    Result,
    Return,
    Send,
    SetTimer,
)
from treaty_sandbox import SandboxPool

pytestmark = [pytest.mark.usefixtures("level"), pytest.mark.parametrize("level", LEVELS, indirect=True)]


async def refused(inside: Probe, code: str, expected: str) -> None:
    with pytest.raises(Refused) as caught:
        await inside.effects(code)
    assert rejection(caught.value, expected) == expected
    assert caught.value.message.isprintable()
    assert not inside.worker.alive


@pytest.mark.sample(10)
@pytest.mark.threat(55)
@pytest.mark.parametrize(
    ("effect", "words"),
    [
        ("Send(peer='did:wba:victim.example', data=b'')", "in this session"),
        ("Send(peer=session.parameters['local'], data=b'')", "in this session"),
        ("Send(peer='', data=b'')", "in this session"),
        ("Send(peer='did:wba:victim.example\\x1b[2J', data=b'')", "in this session"),
        ("Send(peer=session.parameters['peer'], data=bytes((1 << 20) + 1))", "bytes, or on a stream"),
        ("Send(peer=session.parameters['peer'], data=b'', stream='a b')", "bytes, or on a stream"),
        ("Send(peer=session.parameters['peer'], data=b'', stream='x' * 65)", "bytes, or on a stream"),
        ("Invoke(call='1', operation='serve', arguments={})", "may not invoke"),
        ("Invoke(call='1', operation='ask', arguments={})", "may not invoke"),
        ("Invoke(call='1', operation='__class__', arguments={})", "may not invoke"),
        ("Return(call='never', value=1)", "not pending"),
        ("Return(call=event.call, value=1), Return(call=event.call, value=1)", "not pending"),
        ("Return(call=event.call, value=b'bytes')", "returned a result"),
        ("Return(call=event.call, value=float('nan'))", "returned a result"),
        ("Return(call=event.call, value=2 ** 53)", "returned a result"),
        ("Return(call=event.call, value={1: 2})", "returned a result"),
        ("Return(call=event.call, value=1, error=Failure(code=404))", "returned a result"),
        ("Return(call=event.call, error=Failure(code=418))", "returned a result"),
        ("Return(call=event.call, error=Failure(code=404, message='x' * 501))", "returned a result"),
        ("SetTimer(name='t', seconds=0)", "timer"),
        ("SetTimer(name='t', seconds=-1)", "timer"),
        ("SetTimer(name='t', seconds=float('nan'))", "timer"),
        ("SetTimer(name='t', seconds=float('inf'))", "timer"),
        ("SetTimer(name='t', seconds=10 ** 9)", "timer"),
        ("SetTimer(name='', seconds=1)", "timer"),
        ("SetTimer(name='a/b', seconds=1)", "timer"),
        ("*(SetTimer(name=str(n), seconds=1) for n in range(1025))", "timer"),
        ("Persist(key='../../etc', value=b'')", "kept"),
        ("Persist(key='k', value=bytes((1 << 20) + 1))", "kept"),
        ("*(Persist(key=str(n), value=bytes(2000)) for n in range(600))", "kept"),
        ("*(Persist(key=str(n), value=b'') for n in range(1025))", "kept"),
        ("Audit(text='x' * 1001)", "a note"),
        ("End(), Audit(text='more')", "after End"),
        ("End(), End()", "after End"),
        ("*(SetTimer(name='t', seconds=None) for n in range(4097))", "at once"),
    ],
)
async def test_an_effect_that_breaks_a_rule(effect: str, words: str) -> None:
    async with probe() as inside:
        await refused(inside, f"effects = [{effect}]", f"handler.failed: {words}")


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "effect",
    [
        "Send(peer=1, data=b'')",
        "Send(peer='x', data='text')",
        "SetTimer(name='t', seconds='1')",
        "SetTimer(name='t', seconds=True)",
        "End(status='great')",
        "Return(call=7)",
        "Return(call=event.call, error='no')",
        "Return(call=event.call, error=Failure(code='404'))",
        "Return(call=event.call, error=Failure(code=10 ** 18, message=1))",
        "Invoke(call='1', operation='serve', arguments=[])",
        "Audit(text=None)",
    ],
)
async def test_an_effect_with_a_field_of_another_type(effect: str) -> None:
    async with probe() as inside:
        await refused(inside, f"effects = [{effect}]", "handler.failed")


@pytest.mark.sample(4)
@pytest.mark.parametrize("effects", ["[1]", "[None]", "['send']", "[Opened()]", "[{'send': {}}]", "[object()]"])
async def test_what_is_no_effect(effects: str) -> None:
    async with probe() as inside:
        await refused(inside, f"effects = {effects}", "handler.failed")


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "reply", [b"", b"\x90", b"\xc0", b"\x91\x01", b"\x92\xa7effects\xc0", b"\x91\xa7effects", b"\x92\xa4done\x90"]
)
async def test_a_forged_reply_of_another_form(reply: bytes) -> None:
    forged = f"import os\nreply = {reply!r}\nos.write(0, len(reply).to_bytes(4, 'big') + reply)\nwhile True: pass"
    async with probe() as inside:
        await refused(inside, forged, "handler.failed")


@pytest.mark.threat(54)
async def test_a_forged_reply_is_judged_like_any_other() -> None:
    forged = (
        "import os, sys\nframing = sys.modules['worker.framing']\n"
        "reply = framing.encode_frame('effects', framing.effect_parts([Send(peer='did:wba:victim.example', data=b'')]))\n"
        "os.write(0, reply)\nwhile True: pass"
    )
    async with probe() as inside:
        await refused(inside, forged, "handler.failed")


async def test_what_it_may_have_it_gets_with_texts_made_printable() -> None:
    async with probe() as inside:
        effects = await inside.effects(
            "effects = [Send(peer=session.parameters['peer'], data=b'\\x00', stream='s-1'), SetTimer(name='t', seconds=1),"
            "Persist(key='k', value=b'v'), Audit(text='a\\x1b[31m\\n\\u202eb\\\\ \\u5546\\u54c1')]"
        )
        assert effects == [
            Send(peer=PEER, data=b"\0", stream="s-1"),
            SetTimer(name="t", seconds=1.0),
            Persist(key="k", value=b"v"),
            Audit(text="a\\x1b[31m\\n\\u202eb\\\\ 商品"),
            Return(call="1", value=None),
        ]
        failed = await inside.effects("error = Failure(code=404, message='\\x07')")
        assert failed == [Return(call="2", error=Failure(code=404, message="\\x07"))]


async def test_a_bad_event_of_the_host_reaches_nobody() -> None:
    source = PROBE.replace(
        "def handle(self, event):", "def handle(self, event):\n        self.seen = getattr(self, 'seen', 0) + 1"
    )
    async with probe(source=source) as inside:
        session, seen = inside.session, await inside.run("value = session.seen")
        events: list[tuple[Event, str]] = [
            (Call(call="x", operation="serve", arguments={}), "session.operation"),
            (Call(call="x", operation="ask", arguments={"a": b"bytes"}), "operation.arguments"),
            (Call(call="x", operation="ask", arguments=[]), "operation.arguments"),  # type: ignore[arg-type]
        ]
        for event, code in events:
            with pytest.raises(TreatyError) as caught:
                await session.handle(event)
            assert caught.value.code == code
        impossible: list[Event] = [
            Opened(),
            Call(call="no name", operation="ask", arguments={}),
            Result(call="9"),
        ]
        for event in impossible:
            with pytest.raises(ValueError):
                await session.handle(event)
        assert await inside.run("value = session.seen") == seen + 1
        assert session.pending_calls == ()


SERVER = """
from treaty_handler import *
class Session:
    def __init__(self, peer): self.peer, self.open = peer, 0
    def handle(self, event):
        match event:
            case Received(data=data):
                self.open += 1
                return [Invoke(call=str(self.open), operation="serve", arguments=decode_json(data))]
            case Result(value=value, error=None): return [Send(peer=self.peer, data=value.encode())]
            case Result(error=error): return [Send(peer=self.peer, data=str(error.code).encode())]
            case Close(): return [Audit(text="bye"), End()]
        return []
    def snapshot(self): return b""
class Handler:
    def open(self, role, parameters, snapshot=b""): return Session(parameters["peer"])
handler = Handler()
"""


async def test_a_result_that_breaks_the_schema_can_be_mended() -> None:
    strict: dict[str, Any] = {**MANIFEST["operations"]["serve"], "arguments": {"type": "object", "required": ["q"]}}
    manifest = {**MANIFEST, "operations": {**MANIFEST["operations"], "serve": strict}}
    async with SandboxPool(size=0) as pool:
        worker = await pool.load(package(SERVER, manifest), local=LOCAL, peers=[PEER])
        session = await worker.open("server")
        await session.handle(Opened())
        assert await session.handle(Received(peer=PEER, data=b'{"q":1}')) == [
            Invoke(call="1", operation="serve", arguments={"q": 1})
        ]
        for result in (Result(call="1", value=7), Result(call="1", error=Failure(code=418)), Result(call="1", value=object())):
            with pytest.raises(Malformed) as caught:
                await session.handle(result)
            assert caught.value.code == "operation.result"
        answer = await session.handle(Result(call="1", error=Failure(code=500)))
        assert answer == [Send(peer=PEER, data=b"500")]
        with pytest.raises(Refused) as refusal:
            await session.handle(Received(peer="did:wba:victim.example", data=b""))
        assert refusal.value.code == "session.peer"
        # The handler passes on what it received; the manifest's schema stands between a peer and business logic.
        with pytest.raises(Refused) as refusal:
            await session.handle(Received(peer=PEER, data=b"{}"))
        assert refusal.value.code == "handler.failed"
        assert not worker.alive


async def test_after_the_end_there_is_no_event() -> None:
    async with SandboxPool(size=0) as pool:
        worker = await pool.load(package(SERVER), local=LOCAL, peers=[PEER])
        session = await worker.open("server")
        with pytest.raises(ValueError):
            await session.handle(Close())
        await session.handle(Opened())
        assert await session.handle(Close()) == [Audit(text="bye"), End(status="completed")]
        assert session.ended
        with pytest.raises(Refused) as caught:
            await session.handle(PeerLost(peer=PEER))
        assert caught.value.code == "session.ended"
        assert worker.alive
