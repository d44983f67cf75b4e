"""A handler that uses up time, memory, or the host's patience: it is ended, and everything else goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from handler_packages import LOCAL, PEER, PROBE, package
from pauses import pause
from rejections import rejection
from sandboxes import LEVELS, Probe, descendants, gone, left, open_descriptors, probe, sandboxed

from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_handler import Call, Opened
from treaty_sandbox import Isolation, SandboxLimits, SandboxPool

pytestmark = [pytest.mark.usefixtures("level"), pytest.mark.parametrize("level", LEVELS, indirect=True)]
HELPERS = str(Path(__file__).resolve().parents[1] / "support")
SHORT = SandboxLimits(event=0.5, load=5.0, wall=1.0)


async def ends_with(inside: Probe, code: str, expected: str) -> None:
    """The code ends the worker with this error; later calls fail too, and its process is gone."""
    before = sandboxed()
    assert before
    with pytest.raises(TreatyError) as caught:
        await inside.run(code)
    assert caught.value.code == expected, caught.value
    with pytest.raises(TreatyError):
        await inside.run("value = 1")
    assert not inside.worker.alive
    await inside.worker.close()
    assert gone(before)


@pytest.mark.sample(2)
@pytest.mark.threat(52)
@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "sum(range(10 ** 12))",
        "'a' * 30_000_000 in 'a' * 20_000_000 + 'b'\nimport re; re.match('(a+)+$', 'a' * 40 + 'b')",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import os; os.read(0, 1)",
    ],
    ids=["loop", "long C call", "regular expression", "catches everything", "steals the host's next request"],
)
async def test_an_endless_event(code: str) -> None:
    async with probe(limits=SHORT) as inside:
        await ends_with(inside, code, "sandbox.limit")


@pytest.mark.threat(52)
async def test_memory() -> None:
    async with probe() as inside:
        await ends_with(inside, "value = len(bytearray(1 << 30))", "sandbox.limit")
    async with probe() as inside:
        await ends_with(inside, "x = []\nwhile True: x.append(bytes(1 << 20))", "sandbox.limit")
    async with probe() as inside:
        # Whoever catches the error keeps living, within the same limit.
        assert await inside.run("try:\n    bytearray(1 << 30)\nexcept MemoryError:\n    value = 'caught'") == "caught"
        assert await inside.run("value = 1") == 1


async def test_a_pause_of_the_host_or_of_the_worker_ends_no_worker() -> None:
    busy = "value = sum(range(1_000_000))"
    async with probe(limits=SandboxLimits(event=0.3)) as inside:
        asking = asyncio.create_task(inside.run(busy))
        await asyncio.sleep(0.01)  # the worker has the request
        pause(1)  # the event loop of a process that is stopped: the reply comes meanwhile, and the time passes
        assert await asking == sum(range(1_000_000))
        [worker] = sandboxed()
        os.kill(worker, signal.SIGSTOP)
        asking = asyncio.create_task(inside.run(busy))
        await asyncio.sleep(1)
        os.kill(worker, signal.SIGCONT)
        assert await asking == sum(range(1_000_000))


@pytest.mark.threat(52)
async def test_a_pause_of_the_host_is_no_time_for_a_loop() -> None:
    async with probe(limits=SandboxLimits(event=0.3)) as inside:
        asking = asyncio.create_task(ends_with(inside, "while True: pass", "sandbox.limit"))
        await asyncio.sleep(0.01)
        pause(0.6)
        await asking


async def test_a_crash() -> None:
    async with probe() as inside:
        await ends_with(inside, "import sys; sys.modules['ctypes'].string_at(0)", "sandbox.died")
    async with probe() as inside:
        await ends_with(inside, "import os; os._exit(3)", "sandbox.died")


@pytest.mark.deep
async def test_exceptions_of_every_kind_are_told_escaped() -> None:
    for code, phrase in (
        ("raise ValueError('a\\x1b[31m\\nb')", "ValueError: a\\x1b[31m b"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def f(): f()\nf()", "RecursionError"),
        ("class E(BaseException):\n    def __str__(self): raise self\nraise E", "E: <exception str() failed>"),
    ):
        async with probe() as inside:
            before = sandboxed()
            with pytest.raises(Refused) as caught:
                await inside.run(code)
            assert caught.value.code == "handler.failed"
            assert phrase in caught.value.message
            assert caught.value.message.isprintable()
            await inside.worker.close()
            assert gone(before)


@pytest.mark.sample(3)
@pytest.mark.threat(54)
@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.write(0, b'\\0\\0\\0\\1x')",
        "import os\nos.write(0, b'\\xff\\xff\\xff\\xff')",
        "import os\nos.write(0, b'\\0\\0\\0\\x0a\\x91\\xa5ready\\0\\0\\0' + b'more')",
        "import os\nwhile True: os.write(0, b'x' * 65536)",
        "value = 'x' * 5_000_000",
        "effects = [Audit(text='x' * 1000) for _ in range(5000)]",
    ],
    ids=["no frame", "4 GiB announced", "another reply", "flood", "a large value", "5 MB of notes"],
)
async def test_what_floods_or_forges_the_pipe(code: str) -> None:
    async with probe() as inside:
        await ends_with(inside, code, "handler.failed")


async def test_a_reply_that_was_not_asked_for() -> None:
    # Two frames at once, the second being the answer to a question the host has not asked yet.
    forged = "import os\nframe = b'\\x92\\xa7effects\\x90'\nos.write(0, (len(frame).to_bytes(4, 'big') + frame) * 2)"
    async with probe() as inside:
        await ends_with(inside, forged, "handler.failed")


async def test_a_second_reply_after_the_first_was_taken() -> None:
    forged = (
        "import os, time\nframe = b'\\x92\\xa7effects\\x90'\nframe = len(frame).to_bytes(4, 'big') + frame\n"
        "os.write(0, frame)\nuntil = time.monotonic() + 0.3\nwhile time.monotonic() < until: pass\nos.write(0, frame)"
    )
    async with probe() as inside:
        running = sandboxed()
        assert await inside.effects(f"{forged}\nwhile True: pass") == []
        assert running
        assert await asyncio.to_thread(gone, running)  # at once, although nobody asks for anything
        assert not inside.worker.alive
        with pytest.raises(Refused) as caught:
            await inside.run("value = 1")
        assert caught.value.code == "handler.failed"


@pytest.mark.threat(52)
async def test_one_worker_dies_and_the_others_go_on() -> None:
    async with SandboxPool(size=0, limits=SHORT) as pool:
        workers = [await pool.load_code(package(), local=LOCAL, peers=[peer]) for peer in (PEER, "did:wba:other.example")]
        sessions = [await worker.open("client") for worker in workers]
        for session in sessions:
            await session.handle(Opened())
        bad, good = (
            session.handle(Call(call="1", operation="ask", arguments={"code": code}))
            for session, code in zip(sessions, ("while True: pass", "value = 'fine'"), strict=True)
        )
        ended, answered = await asyncio.gather(bad, good, return_exceptions=True)
        assert isinstance(ended, Unavailable)
        assert not isinstance(answered, BaseException)
        assert answered[0].value == "fine"  # type: ignore[union-attr]
        assert [worker.alive for worker in workers] == [False, True]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("while True: pass", "sandbox.limit: .*longer"),
        ("x = bytearray(1 << 30)", "sandbox.limit: .*memory"),
        ("raise ValueError('no')", "handler.failed: raised"),
        ("def (:", "handler.failed: does not compile"),
        ("(" * 500, "handler.failed: does not compile"),
        ("x = 1", "handler.failed: raised"),
        ("import os; os._exit(0)", "sandbox.died"),
        ("import requests", "handler.failed: raised"),
        ("import os; os.fork()", "handler.failed: raised"),
    ],
)
async def test_a_package_that_is_bad_already_when_it_is_loaded(source: str, code: str) -> None:
    async with SandboxPool(size=0, limits=SandboxLimits(load=1.0)) as pool:
        await (await pool.load_code(package(), local=LOCAL, peers=[PEER])).close()  # the template stays
        before = descendants()
        with pytest.raises(TreatyError) as caught:
            await pool.load_code(package(source), local=LOCAL, peers=[PEER])
        assert rejection(caught.value, code) == code, caught.value
        assert descendants() == before
        good = await pool.load_code(package(), local=LOCAL, peers=[PEER])
        assert good.alive


async def test_a_cancelled_caller_leaves_no_worker_in_between() -> None:
    async with probe() as inside:
        before = sandboxed()
        task = asyncio.create_task(inside.run("while True: pass"))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not inside.worker.alive
        await inside.worker.close()
        assert gone(before)


async def test_everything_ends_with_the_pool_ready_or_not() -> None:
    before = descendants()
    pool = SandboxPool(size=2)
    await pool.warm()
    worker = await pool.load_code(package(), local=LOCAL, peers=[PEER])
    running = descendants() - before
    assert len(running) >= 2
    await pool.close()
    assert gone(running)
    assert not worker.alive
    with pytest.raises(Unavailable):
        await pool.load_code(package(), local=LOCAL, peers=[PEER])


@pytest.mark.deep
async def test_closing_while_starting_leaves_nothing() -> None:
    """Whatever moment of a start it hits: also the one in which bubblewrap's child waits for its parent."""
    before = descendants()
    for step in range(25):
        pool = SandboxPool(size=2)
        starting = asyncio.create_task(pool.warm())
        await asyncio.sleep(step * 0.002)
        running = descendants()
        await pool.close()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        # Not even an orphan's zombie: close() returns when all of them have been collected.
        assert left((running | descendants()) - before) == set()


async def test_everything_ends_with_the_host(tmp_path: Path, level: Isolation) -> None:
    """kill -9 of the process that runs the pool: its workers, even one in an endless loop, end with it."""
    script = tmp_path / "host.py"
    script.write_text(
        "import asyncio, sys\n"
        f"sys.path.insert(0, {HELPERS!r})\n"
        "from sandboxes import descendants, probe\n"
        "from treaty_sandbox import SandboxPool\n"
        f"SandboxPool.__init__.__kwdefaults__['levels'] = ({level!r},)\n"
        "async def main():\n"
        "    async with probe() as inside:\n"
        "        task = asyncio.create_task(inside.run('while True: pass'))\n"
        "        await asyncio.sleep(0.3)\n"
        "        print(*descendants(), flush=True)\n"
        "        await task\n"
        "asyncio.run(main())\n"
    )
    host = await asyncio.create_subprocess_exec(sys.executable, str(script), stdout=asyncio.subprocess.PIPE)
    assert host.stdout is not None
    workers = {int(pid) for pid in (await host.stdout.readline()).split()}
    assert workers
    host.kill()
    await host.wait()
    assert gone(workers)


@pytest.mark.deep
async def test_many_workers_leave_no_descriptor_behind() -> None:
    source = package(PROBE)
    async with SandboxPool(size=0, levels=("none",)) as pool:
        (await pool.load_code(source, local=LOCAL, peers=[PEER])).kill()
        await asyncio.sleep(0)
        before = open_descriptors()
        for _ in range(5):
            workers = [await pool.load_code(source, local=LOCAL, peers=[PEER]) for _ in range(5)]
            await asyncio.gather(*(worker.close() for worker in workers))
        assert open_descriptors() <= before
