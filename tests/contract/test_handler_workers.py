"""What a worker does for its host, the same with and without bubblewrap around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from handler_packages import LOCAL, PEER, package
from sandboxes import descendants

from treaty_consensus.errors import Malformed, Refused, TreatyError, Unavailable
from treaty_handler import Call, Close, End, Opened, PeerLost, Persist, Received, Return, Send, SetTimer, Timer, derive_id
from treaty_sandbox import Isolation, SandboxLimits, SandboxPool, Worker

SOURCE = """
import pkgutil
from treaty_handler import *
from . import wire
from .deeper.names import NAME

class Session:
    def __init__(self, role, parameters, snapshot):
        self.role, self.parameters = role, parameters
        self.count = int(snapshot or b"0")

    def handle(self, event):
        self.count += 1
        match event:
            case Opened(stored=stored, at=at):
                return [Persist(key=key, value=None) for key in stored] + [Audit(text=str(at))] * bool(at)
            case Call(call=call, operation="ask", arguments={"what": "parameters"}):
                return [Return(call=call, value=dict(self.parameters))]
            case Call(call=call, operation="ask", arguments={"what": "count"}):
                return [Return(call=call, value=self.count)]
            case Call(call=call, operation="ask", arguments={"what": "package"}):
                data = pkgutil.get_data(__name__, "data/hello.txt").decode()
                return [Return(call=call, value=[NAME, data, __file__, wire.__name__])]
            case Call(call=call, operation="ask", arguments=arguments):
                return [Return(call=call, value=arguments)]
            case Received(peer=peer, data=data, stream=stream, at=at):
                return [Send(peer=peer, data=data[::-1], stream=stream)]
            case Timer(name=name):
                return [SetTimer(name=name, seconds=2.5)]
            case PeerLost():
                return [SetTimer(name="again", seconds=1), SetTimer(name="never", seconds=None)]
            case Close():
                return [End(status="failed")]

    def snapshot(self):
        return str(self.count).encode()

class Handler:
    def open(self, role, parameters, snapshot=b""):
        return Session(role, parameters, snapshot)
    encode = staticmethod(wire.encode)
    decode = staticmethod(decode_json)
    def validate(self, message, sender):
        return [] if message == sender else [f"{message!r} is not \\x1b[1m{sender}"]

handler = Handler()
"""
WIRE = """
from treaty_handler import encode_json
def encode(message):
    if message is None: raise ValueError("nothing to say")
    return encode_json(message)
"""


def resident() -> int:
    """Bytes of memory of the largest process below this one: the worker with a handler, the others being idle or bubblewrap."""
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in descendants()]
    return max(pages) * 4096


PACKAGE = package(
    SOURCE,
    more={
        "wire.py": WIRE.encode(),
        "deeper/__init__.py": b"",
        "deeper/names.py": b"NAME = 'deep'\n",
        "data/hello.txt": "grüß".encode(),
    },
)


@pytest.fixture(params=["bubblewrap", pytest.param("process", marks=pytest.mark.deep), "none"])
def isolation(request: pytest.FixtureRequest) -> Isolation:
    kind: Isolation = request.param
    return kind


@pytest.fixture
async def pool(isolation: Isolation) -> AsyncIterator[SandboxPool]:
    async with SandboxPool(size=1, levels=(isolation,)) as pool:
        yield pool


@pytest.fixture
async def worker(pool: SandboxPool) -> Worker:
    return await pool.load_code(PACKAGE, local=LOCAL, peers=[PEER])


async def test_the_package_is_whole_and_its_own(worker: Worker) -> None:
    session = await worker.open("client")
    await session.handle(Opened())
    [effect] = await session.handle(Call(call="1", operation="ask", arguments={"what": "package"}))
    name = PACKAGE.package
    assert effect == Return(call="1", value=["deep", "grüß", f"/handler/{name}/__init__.py", f"{name}.wire"])


async def test_events_go_in_and_effects_come_out(worker: Worker) -> None:
    session = await worker.open("server")
    assert await session.handle(Opened(stored={"a": b"1", "b": b"2"})) == [
        Persist(key="a", value=None),
        Persist(key="b", value=None),
    ]
    assert await session.handle(Received(peer=PEER, data=b"\x00\xffab", stream="s", at=1)) == [
        Send(peer=PEER, data=b"ba\xff\x00", stream="s")
    ]
    assert await session.handle(PeerLost(peer=PEER)) == [
        SetTimer(name="again", seconds=1.0),
        SetTimer(name="never", seconds=None),
    ]
    assert await session.handle(Timer(name="again")) == [SetTimer(name="again", seconds=2.5)]
    assert await session.handle(Timer(name="never")) == []
    assert await session.handle(Close()) == [End(status="failed")]
    assert session.ended


async def test_values_pass_unchanged(worker: Worker) -> None:
    session = await worker.open("client")
    await session.handle(Opened(at=5))
    value: dict[str, Any] = {"n": None, "t": True, "i": -(2**53) + 1, "f": 0.1, "s": "商品\n", "l": [[], {}], "o": {"": 1.0}}
    [effect] = await session.handle(Call(call="1", operation="ask", arguments=value))
    assert effect == Return(call="1", value=value)
    assert isinstance(effect, Return)
    assert type(effect.value["o"][""]) is float


async def test_parameters_are_the_hosts_and_the_agreed_ones(worker: Worker) -> None:
    seeds = set()
    for _ in range(3):
        session = await worker.open("client", {"currency": "EUR", "peer": "did:wba:forged.example"})
        await session.handle(Opened())
        [effect] = await session.handle(Call(call="1", operation="ask", arguments={"what": "parameters"}))
        assert isinstance(effect, Return)
        assert {**effect.value, "seed": 0} == {"currency": "EUR", "local": LOCAL, "peer": PEER, "seed": 0}
        seeds.add(effect.value["seed"])
    assert len(seeds) == 3
    assert all(len(bytes.fromhex(seed)) == 16 for seed in seeds)
    assert derive_id("0" * 32, 1) == "ce4b620fa96723c3"


async def test_sessions_of_a_worker_are_apart_and_take_turns(worker: Worker) -> None:
    sessions = [await worker.open("client") for _ in range(5)]
    for session in sessions:
        await session.handle(Opened())
    ask = [Call(call=str(n), operation="ask", arguments={"what": "count"}) for n in range(20)]
    answers = await asyncio.gather(*(session.handle(call) for call in ask for session in sessions))
    counts = [effect.value for effects in answers for effect in effects if isinstance(effect, Return)]
    assert counts == [2 + n for n in range(20) for _ in sessions]
    await sessions[0].close()
    with pytest.raises(Refused, match="over"):
        await sessions[0].handle(ask[0])
    assert await sessions[1].handle(ask[0]) == [Return(call="0", value=22)]


async def test_a_session_moves_by_its_snapshot(pool: SandboxPool, worker: Worker) -> None:
    session = await worker.open("client")
    await session.handle(Opened())
    ask = Call(call="1", operation="ask", arguments={"what": "count"})
    assert await session.handle(ask) == [Return(call="1", value=2)]
    other = await pool.load_code(PACKAGE, local=LOCAL, peers=[PEER])
    await session.move(other)
    await worker.close()
    assert await session.handle(ask) == [Return(call="1", value=3)]
    stranger = await pool.load_code(PACKAGE, local=LOCAL, peers=["did:wba:other.example"])
    with pytest.raises(ValueError, match="moves among"):
        await session.move(stranger)
    assert await session.handle(ask) == [Return(call="1", value=4)]


async def test_a_session_at_rest_is_in_no_worker(pool: SandboxPool, worker: Worker) -> None:
    session = await worker.open("client")
    await session.handle(Opened())
    snapshot = await session.rest()
    assert snapshot == b"1"
    for attempt in (session.handle(PeerLost(peer=PEER)), session.rest(), session.move(worker)):
        with pytest.raises(ValueError, match="at rest"):
            await attempt
    stranger = await pool.load_code(PACKAGE, local=LOCAL, peers=["did:wba:other.example"])
    with pytest.raises(ValueError, match="moves among"):
        await session.resume(stranger, snapshot)
    await session.resume(worker, snapshot)
    with pytest.raises(ValueError, match="has a worker"):
        await session.resume(worker, snapshot)
    ask = Call(call="1", operation="ask", arguments={"what": "count"})
    assert await session.handle(ask) == [Return(call="1", value=2)]
    await session.rest()
    await session.close()
    assert session.ended
    assert worker.alive


async def test_messages_can_be_encoded_decoded_and_validated(worker: Worker) -> None:
    assert await worker.encode({"a": 1}) == b'{"a":1}'
    assert await worker.decode(b'{"a":1}') == {"a": 1}
    assert await worker.validate("server", "server") == []
    assert await worker.validate(1, "server") == ["1 is not \\x1b[1mserver"]
    for attempt in (worker.encode(None), worker.decode(b"{"), worker.encode({"a": b"bytes"})):
        with pytest.raises(Malformed) as caught:
            await attempt
        assert caught.value.code == "handler.rejected"
    assert worker.alive  # a message that a handler refuses is no offence
    assert await worker.encode(1) == b"1"


async def test_roles_are_the_manifests(worker: Worker) -> None:
    with pytest.raises(Refused) as caught:
        await worker.open("admin")
    assert caught.value.code == "session.role"
    assert "client, server" in caught.value.fix
    with pytest.raises(Malformed):
        await worker.open("client", {"x": object()})
    assert worker.alive


async def test_a_closed_worker_says_so(worker: Worker) -> None:
    session = await worker.open("client")
    await worker.close()
    await worker.close()
    assert not worker.alive
    with pytest.raises(Unavailable) as caught:
        await session.handle(Opened())
    assert caught.value.code == "sandbox.died"
    await session.close()


async def test_a_handler_that_misses_its_interface(pool: SandboxPool) -> None:
    bad = package("class H:\n    def open(self, *a, **k): return self\n    def handle(self, e): return None\nhandler = H()")
    worker = await pool.load_code(bad, local=LOCAL, peers=[PEER])
    session = await worker.open("client")
    with pytest.raises(TreatyError) as caught:
        await session.handle(Opened())
    assert caught.value.code == "handler.failed"
    again = await pool.load_code(bad, local=LOCAL, peers=[PEER])
    session = await again.open("client")
    with pytest.raises(TreatyError) as caught:
        await session.move(again)
    assert caught.value.code == "session.snapshot"  # it has no such method
    assert again.alive


async def test_a_thousand_round_trips(worker: Worker) -> None:
    session = await worker.open("server")
    await session.handle(Opened())
    for number in range(1_000):
        data = number.to_bytes(2, "big") * (number % 7 * 100)
        assert await session.handle(Received(peer=PEER, data=data)) == [Send(peer=PEER, data=data[::-1])]


async def test_sessions_leave_nothing_behind_in_the_worker(worker: Worker) -> None:
    async def some(count: int) -> None:
        for _ in range(count):
            session = await worker.open("server", {"bulk": "x" * 20_000})
            await session.handle(Opened())
            await session.handle(Received(peer=PEER, data=b"y" * 20_000))
            await session.close()

    await some(50)
    before = resident()
    await some(500)
    assert resident() - before < 4 * 1024 * 1024  # 500 sessions that stayed would be 10 MB of parameters alone


async def test_large_messages(worker: Worker) -> None:
    session = await worker.open("server")
    await session.handle(Opened())
    data = bytes(range(256)) * 4096
    assert await session.handle(Received(peer=PEER, data=data)) == [Send(peer=PEER, data=data[::-1])]
    with pytest.raises(TreatyError) as caught:
        await session.handle(Received(peer=PEER, data=data + b"x"))
    assert caught.value.code == "session.message"
    assert worker.alive


async def test_a_sandbox_that_cannot_be_had_is_told_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    from treaty_sandbox.levels import bubblewrap

    bubblewrap.find_bubblewrap.cache_clear()
    monkeypatch.setattr(bubblewrap, "_version", lambda _: (0, 6))
    try:
        async with SandboxPool(size=1, levels=("bubblewrap",)) as pool:
            for attempt in (pool.warm(), pool.load_code(PACKAGE, local=LOCAL, peers=[PEER])):
                with pytest.raises(Unavailable) as caught:
                    await attempt
                assert caught.value.code == "sandbox.unavailable"
                assert "Install bubblewrap" in caught.value.fix and "none" not in caught.value.fix
    finally:
        monkeypatch.undo()
        bubblewrap.find_bubblewrap.cache_clear()


async def test_what_bubblewrap_says_is_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from treaty_sandbox.levels.bubblewrap import Bubblewrap

    real = Bubblewrap().command("worker", SandboxLimits())
    wrong = replace(real, line=(real.line[0], "--no-such-option"))
    monkeypatch.setattr(Bubblewrap, "command", lambda *_: wrong)
    async with SandboxPool(size=0, levels=("bubblewrap",)) as pool:
        with pytest.raises(Unavailable, match="no-such-option") as caught:
            await pool.load_code(PACKAGE, local=LOCAL, peers=[PEER])
        assert caught.value.code == "sandbox.unavailable"
        monkeypatch.setattr(Bubblewrap, "command", lambda *_: replace(real, line=("/no/such/program",)))
        with pytest.raises(Unavailable, match="No such file"):
            await pool.load_code(PACKAGE, local=LOCAL, peers=[PEER])
