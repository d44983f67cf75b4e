"""WebAssembly modules that use up time, memory or a compiler, or lie about replies: the worker ends, and the host goes on."""

from __future__ import annotations

import struct
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import pytest
from handler_packages import LOCAL, MANIFEST, PEER, metadata
from rejections import rejection
from sandboxes import gone, sandboxed
from wasm_modules import (
    END,
    I32,
    I64,
    TYPES,
    body,
    handler,
    leb,
    number,
    place,
    replying,
    section,
    signature,
    sized,
    vector,
)

from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import MODULE_NAME, WASM, HandlerPackage, build_wheel, read_wheel
from treaty_handler import Audit, Effect, Event, Opened, PeerLost
from treaty_sandbox import CodeCache, SandboxLimits, SandboxPool
from treaty_sandbox.worker.wasm import MAX_MEMORY, Engine, Instance

encode = msgspec.msgpack.encode
NOTHING = encode(["effects", []])
F64 = b"\x7c"


def cached(folder: Path) -> list[Path]:
    """The files of a cache of code."""
    return list(folder.iterdir())


@cache
def package(module: bytes) -> HandlerPackage:
    """The package of a module."""
    about = replace(metadata({**MANIFEST, "runtime": "wasm"}), entry_point=WASM)
    return read_wheel(*build_wheel({MODULE_NAME: module}, about))


async def effects_of(module: bytes, *events: Event, limits: SandboxLimits | None = None) -> list[Effect]:
    """The effects of all events of a session. Its worker is gone afterwards."""
    async with SandboxPool(size=0, limits=limits) as pool:
        worker = await pool.load(package(module), local=LOCAL, peers=[PEER])
        session = await worker.open("client")
        effects = [effect for event in events for effect in await session.handle(event)]
        before = sandboxed()
        await worker.close()
    assert gone(before)
    return effects


async def refused(module: bytes, *events: Event, limits: SandboxLimits | None = None) -> TreatyError:
    """The error of a module. Its worker is gone afterwards."""
    with pytest.raises(TreatyError) as caught:
        await effects_of(module, *events, limits=limits)
    assert not sandboxed()
    return caught.value


# Each of many loops may change each of many variables: as much of both as the static check lets through.
CHANGES = b"".join(b"\x20" + leb(index) + number(1) + b"\x6a\x21" + leb(index) for index in range(64))
COSTLY = handler([body(b"\x03\x40" * 440 + CHANGES + b"\x20\x00\x0d\x00\x0b" * 440, locals=[(64, I32)])])
FOREVER = b"\x03\x40\x0c\x00\x0b"
CALLS_ITSELF = [body(b"\x10\x02")]
BEYOND = (MAX_MEMORY - 8, 16)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "an endless loop": (replying(NOTHING, before=FOREVER), "sandbox.limit: instructions"),
    "an endless loop at its opening": (replying(NOTHING, opened=FOREVER + place(0, 0)), "sandbox.limit: instructions"),
    "an endless loop in allocate": (handler(allocate=body(FOREVER + number(0))), "sandbox.limit: instructions"),
    "endless recursion": (replying(NOTHING, before=b"\x10\x02", more=CALLS_ITSELF), "handler.failed: stack"),
    "a fill of all memory, again and again": (
        replying(
            NOTHING,
            before=number(255)
            + b"\x40\x00\x1a\x03\x40"
            + number(0)
            + number(1)
            + number(MAX_MEMORY)
            + b"\xfc\x0b\x00\x0c\x00\x0b",
        ),
        "sandbox.limit: instructions",
    ),
    "unreachable": (replying(NOTHING, before=b"\x00"), "handler.failed: unreachable"),
    "a write beyond the memory": (
        replying(NOTHING, before=number(-8) + number(7) + b"\x36\x02\x00"),
        "handler.failed: out of bounds",
    ),
    "a division by zero": (replying(NOTHING, before=number(1) + number(0) + b"\x6d\x1a"), "handler.failed: divi"),
    "a call of no function": (
        replying(NOTHING, before=number(9) + b"\x11\x02\x00", table=section(4, vector([b"\x70\x00\x0a"]))),
        "handler.failed: uninitialized|null",
    ),
    "allocate beyond the memory": (handler(allocate=body(number(-64))), "handler.failed: allocate"),
    "a reply beyond the memory": (handler(handle=body(place(*BEYOND))), "handler.failed: handle"),
    "a reply of 4 GiB": (handler(handle=body(place(8, 2**32 - 1))), "handler.failed: handle"),
    "an empty reply": (handler(), "handler.failed: reply"),
    "no MessagePack": (replying(b"\xc1" * 8), "handler.failed: reply"),
    "a text of 2 GiB in a few bytes": (replying(b"\x92\xa7effects\xdb\x7f\xff\xff\xff"), "handler.failed: reply"),
    "a list of 2^32 in a few bytes": (replying(b"\xdd\xff\xff\xff\xff\xa7effects"), "handler.failed: reply"),
    "levels without end": (replying(b"\x92\xa7effects" + b"\x91" * 50_000, pages=b"\0\4"), "handler.failed"),
    "another kind": (replying(encode(["done"])), "handler.failed: effects"),
    "two lists": (replying(encode(["effects", [], []])), "handler.failed: effects"),
    "a failure without a text": (replying(encode(["failed", "raised"])), "handler.failed: reply"),
    "a failure of its own": (replying(encode(["failed", "memory", "I am fine"])), "handler.failed: raised I am fine"),
    "a million effects": (
        replying(b"\x92\xa7effects\xdd" + struct.pack(">I", 10**6) + b"\x90" * 10**5, pages=b"\0\4"),
        "handler.failed",
    ),
    "60,000 effects": (
        replying(encode(["effects", [["end", {}]] * 60_000]), pages=b"\0\x20"),
        "handler.failed",
    ),
    "no effect": (replying(encode(["effects", [["erase", {}]]])), "handler.failed: kind"),
    "an effect for another peer": (
        replying(encode(["effects", [["send", {"peer": "did:example:other", "data": b""}]]])),
        "handler.failed: sent to",
    ),
    "data of 4 GiB on": (
        handler(after=section(11, vector([b"\x00" + number(-16) + END + sized(bytes(32))]))),
        "handler.failed: out of bounds",
    ),
    "a table that does not fit": (
        handler(
            table=section(4, vector([b"\x70\x00\x01"])),
            before_code=section(9, vector([b"\x00" + number(9) + END + vector([leb(0)])])),
        ),
        "handler.failed: out of bounds",
    ),
    "types that differ": (handler(handle=body(number(1))), "handler.failed: compile"),
    "an effect's names as many as fit": (
        replying(b"\x92\xa7effects\x91\x92\xa5audit\xdf" + struct.pack(">I", 60_000) + b"\xa1x\xc0" * 60_000, pages=b"\0\x08"),
        "handler.failed",
    ),
}


@pytest.mark.sample(6)
@pytest.mark.threat(461)
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_module(name: str) -> None:
    module, expected = HOSTILE[name]
    started = time.process_time()
    error = await refused(module, Opened())
    assert rejection(error, expected) == expected
    # Of this process: nothing that it does with a reply is longer than reading one.
    assert time.process_time() - started < 5


@pytest.mark.threat(461)
async def test_memory_grows_to_its_limit_and_no_further() -> None:
    # It asks for a page until it gets none, then notes how many it has as a letter.
    grow = b"\x03\x40" + number(1) + b"\x40\x00" + number(-1) + b"\x47\x0d\x00\x0b"
    reply = encode(["effects", [["audit", {"text": "?"}]]])
    note = number(64 + reply.index(b"?")) + number(ord("a")) + b"\x3f\x00" + number(256) + b"\x46\x6a\x3a\x00\x00"
    assert await effects_of(replying(reply, before=grow + note), Opened()) == [Audit(text="b")]


@pytest.mark.threat(461)
async def test_nothing_follows_a_trap_and_a_new_worker_is_whole() -> None:
    # Traps at a lost peer alone: the tag begins with the ninth byte of the request.
    traps = b"\x20\x00\x2d\x00\x08" + number(ord("p")) + b"\x46\x04\x40\x00\x0b"
    module = replying(NOTHING, before=traps)
    async with SandboxPool(size=0) as pool:
        worker = await pool.load(package(module), local=LOCAL, peers=[PEER])
        session = await worker.open("client")
        assert await session.handle(Opened()) == []
        with pytest.raises(TreatyError, match="unreachable"):
            await session.handle(PeerLost(peer=PEER))
        with pytest.raises(TreatyError):
            await session.handle(PeerLost(peer=PEER))
        assert not worker.alive
    assert await effects_of(module, Opened()) == []


@pytest.mark.threat(461)
def test_an_instance_answers_nothing_after_a_trap() -> None:
    engine = Engine.prepare()
    assert engine is not None
    instance = Instance(engine, engine.load(engine.compile(replying(NOTHING, before=b"\x00"))))
    assert instance.ask("done", "open") == ("done",)
    for request in ("event", "open"):
        with pytest.raises(ValueError, match="unreachable" if request == "event" else "ended by a trap"):
            instance.ask("done", request)


@pytest.mark.threat(462)
async def test_each_session_has_a_memory_of_its_own_and_every_nan_one_form() -> None:
    # The mark of an earlier session, as a letter, and the bits of 0/0 that were negated and copied.
    reply = encode(["effects", [["audit", {"text": "??"}]]])
    at = 64 + reply.index(b"??")
    nan = number(at + 1) + b"\x44" + bytes(8) + b"\x44" + bytes(8) + b"\xa3\xbd\x42\x38\x88\xa7\x3a\x00\x00"
    mark = number(at) + number(512) + b"\x2d\x00\x00" + number(ord("a")) + b"\x6a\x3a\x00\x00"
    module = replying(reply, before=mark + nan + number(512) + number(1) + b"\x3a\x00\x00")
    async with SandboxPool(size=0) as pool:
        worker = await pool.load(package(module), local=LOCAL, peers=[PEER])
        sessions = [await worker.open("client") for _ in range(2)]
        assert [await session.handle(Opened()) for session in sessions] == [[Audit(text="a\\x7f")]] * 2


@pytest.mark.deep
@pytest.mark.threat(463)
@pytest.mark.parametrize(
    "module",
    [
        COSTLY,
        handler([body(b"\x10\x02" * 4_000)] * 8),
        handler([body(b"")] * 4_000),
        handler([body(b"\x20\x00\x1a" * 20_000, locals=[(1, I32)])] * 8),
        handler(types=[*TYPES, *[signature(I32 * 32, I64 * 32)] * 1_000]),
    ],
    ids=["loops", "calls", "functions", "a long function", "types"],
)
async def test_the_costliest_modules_compile_within_their_limits_once(module: bytes, tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    async with SandboxPool(size=0) as pool:
        for _ in range(2):
            worker = await pool.load(package(module), local=LOCAL, peers=[PEER], code_cache=cache)
            await worker.close()
    [file] = cached(tmp_path)
    assert file.name.startswith(f"{package(module).digest}.wasmtime-")


@pytest.mark.threat(463)
async def test_a_compilation_ends_with_its_time() -> None:
    module = COSTLY
    error = await refused(module, limits=SandboxLimits(load=0.2))
    assert error.code == "sandbox.limit"


@pytest.mark.threat(464)
async def test_damaged_or_foreign_code_in_the_cache_is_compiled_again(tmp_path: Path) -> None:
    cache, module = CodeCache(tmp_path), replying(NOTHING)
    async with SandboxPool(size=0) as pool:
        await (await pool.load(package(module), local=LOCAL, peers=[PEER], code_cache=cache)).close()
        [file] = cached(tmp_path)
        good, compiler = file.read_bytes(), file.name.removeprefix(f"{package(module).digest}.").removesuffix(".code")
        for content in (b"", good[:-1], b"x" * 100):
            file.write_bytes(content)
            await (await pool.load(package(module), local=LOCAL, peers=[PEER], code_cache=cache)).close()
            assert file.read_bytes() == good
        for code in (b"", b"\x7fELF" + bytes(100), good[32:].replace(b"50.", b"49.", 1)):
            cache.put(package(module).digest, code, compiler)
            await (await pool.load(package(module), local=LOCAL, peers=[PEER], code_cache=cache)).close()
            assert file.read_bytes() == good
