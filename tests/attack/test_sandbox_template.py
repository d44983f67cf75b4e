"""Workers that one template forked: as apart from each other, from the template and from the host as if each had a bubblewrap."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from handler_packages import LOCAL, PEER, package
from sandboxes import LEVELS, Probe, descendants, gone, probe, sandboxed, status_of, template

import treaty_sandbox
from treaty_consensus.errors import TreatyError
from treaty_handler import Opened
from treaty_sandbox import SandboxPool
from treaty_sandbox.levels import bubblewrap

pytestmark = pytest.mark.usefixtures("level")
each_level = pytest.mark.parametrize("level", LEVELS, indirect=True)
in_bubblewrap = pytest.mark.parametrize("level", ["bubblewrap"], indirect=True)
OWN = ("pid", "net", "ipc", "uts", "mnt", "cgroup")


# A template outside of a sandbox. At its first fork the kernel has no room for a process.
FULL = """
import errno, os, sys
sys.path.insert(0, sys.argv[1])
from worker import namespaces, template

fork = os.fork

def full():
    os.fork = fork
    raise OSError(errno.EAGAIN, "fork")

os.fork = full
template.run(namespaces.Namespaced("x86_64"), lambda: None)
"""


async def hire(pool: SandboxPool) -> Probe:
    """A further worker of a pool."""
    worker = await pool.load_code(package(), local=LOCAL, peers=[PEER])
    session = await worker.open("client")
    await session.handle(Opened())
    return Probe(worker, session)


def namespaces(pid: int) -> dict[str, str]:
    return {kind: str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in OWN}


@in_bubblewrap
@pytest.mark.threat(57)
async def test_workers_have_their_own_namespaces_and_no_capability() -> None:
    async with SandboxPool(size=0) as pool:
        for _ in range(3):
            await hire(pool)
        places = [namespaces(pid) for pid in (os.getpid(), template(), *sandboxed())]
        assert len(places) == 5
        for kind in OWN:
            assert len({place[kind] for place in places}) == 5, kind
        for pid in sandboxed():
            status = status_of(pid)
            assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
            # Process 1 in its own namespace: the kernel ends with it what it might start.
            assert status["NSpid"].split()[-1] == "1"


@pytest.mark.threat(57)
@each_level
async def test_a_worker_knows_nothing_of_the_one_before() -> None:
    async with SandboxPool(size=0) as pool:
        first = await hire(pool)
        await first.run("import json, sys, treaty_handler; json.x = treaty_handler.x = sys.x = 'swordfish'; value = 1")
        second = await hire(pool)
        left = "import json, sys, treaty_handler; value = [hasattr(m, 'x') for m in (json, sys, treaty_handler)]"
        assert await second.run(left) == [False] * 3


@pytest.mark.threat(50)
@each_level
async def test_a_worker_cannot_reach_the_template() -> None:
    async with probe() as inside:
        forking = template()
        # The template's number means nothing in the worker's namespace, and no signal leaves it.
        for number in (1, 2, forking):
            assert await inside.attempt(f"import os; os.kill({number}, 9)") == "PermissionError"
        # The template's socket is closed: of the descriptors that a worker may have, only its pipe is open.
        opened = "import os\nvalue = []\nfor n in range(64):\n try: os.read(n, 0); value.append(n)\n except OSError: pass"
        assert await inside.run(opened) == [0]
        assert template() == forking


@each_level
async def test_workers_end_with_their_template() -> None:
    async with SandboxPool(size=0) as pool:
        workers = [await hire(pool) for _ in range(2)]
        before, forking = sandboxed(), template()
        os.kill(forking, signal.SIGKILL)
        assert await asyncio.to_thread(gone, before)
        for inside in workers:
            with pytest.raises(TreatyError) as caught:
                await inside.run("value = 1")
            assert caught.value.code == "sandbox.died"
        assert await (await hire(pool)).run("value = 1") == 1
        assert template() != forking


@in_bubblewrap
@pytest.mark.parametrize(
    "options", [(), ("--no-such-option",)], ids=["capabilities are denied, as by AppArmor", "bubblewrap does not start"]
)
async def test_without_a_template_each_worker_has_its_own_bubblewrap(
    options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descendants()
    monkeypatch.setattr(bubblewrap, "_OF_A_TEMPLATE", options)
    async with SandboxPool(size=0) as pool:
        for _ in range(2):
            assert await (await hire(pool)).run("value = 1") == 1
        places = [namespaces(pid) for pid in (os.getpid(), *sandboxed())]
        for kind in OWN:
            assert len({place[kind] for place in places}) == 3, kind
    assert gone(descendants() - before)


@each_level
async def test_a_start_that_is_given_up_leaves_no_worker() -> None:
    async with SandboxPool(size=0) as pool:
        await hire(pool)
        before = sandboxed()
        for step in range(12):
            starting = asyncio.create_task(pool.load_code(package(), local=LOCAL, peers=[PEER]))
            await asyncio.sleep(step * 0.0005)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            for worker in [starting.result()] if not starting.cancelled() else []:
                await worker.close()
        assert await asyncio.to_thread(gone, sandboxed() - before)
        # The template's answers are still in step with the requests.
        assert await (await hire(pool)).run("value = 1") == 1


@each_level
async def test_thirty_workers_start_at_once() -> None:
    before = descendants()
    async with SandboxPool(size=0) as pool:
        hired = await asyncio.gather(*(hire(pool) for _ in range(30)))
        effects = await asyncio.gather(*(inside.run(f"value = {number}") for number, inside in enumerate(hired)))
        assert effects == list(range(30))
    assert gone(descendants() - before)


@in_bubblewrap
@pytest.mark.threat(215)
def test_a_template_without_room_for_a_process_goes_on() -> None:
    ours, theirs = socket.socketpair()
    line = (sys.executable, "-c", FULL, str(Path(treaty_sandbox.__file__).parent))
    with ours, theirs, subprocess.Popen(line, stdin=theirs.fileno()) as forking:
        theirs.close()
        ours.settimeout(30)
        answers = [ours.recv(16)]
        for _ in range(2):
            pipe, other = socket.socketpair()
            with pipe, other:
                socket.send_fds(ours, [b"w"], [pipe.fileno()])
                answers.append(ours.recv(16))
        assert answers[:2] == [b"+", b"-%d" % errno.EAGAIN]
        # With the rights to make namespaces it forked, without them it says that. In both cases it answered.
        assert answers[2][:1] in (b"+", b"-")
        assert forking.poll() is None
        ours.close()
        assert forking.wait(30) == 0


@pytest.mark.threat(57)
@each_level
async def test_workers_share_no_state_of_a_module_that_has_one() -> None:
    async with SandboxPool(size=0) as pool:
        for _ in range(2):
            presence = await (await hire(pool)).run("import sys; value = [name in sys.modules for name in ('pkgutil', 'random')]")
            assert presence == [True, False]
