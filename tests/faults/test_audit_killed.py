"""Fault: an audit is killed while it mirrors, and while it replays. The next one goes on from there and finds the same; nothing
of the killed one lives on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from served_log import Wire, served
from simulated_registry import SimulatedRegistry, with_echo

from treaty_client.audit.replay import WORTH_PROCESSES
from treaty_consensus.log.tiles import TILE_WIDTH
from treaty_consensus.sigstore_leaf import CertificateLeaf

PROGRAM = Path(sys.executable).with_name("treaty")
LEAVES = 40 * TILE_WIDTH + 17
KILLS = (1, 2, 9, 17, 30, 41)
"""Before the answer to which of its requests for a bundle each audit is killed."""
AT_ONCE = 8
PATIENCE = 120


def started(name: str, home: Path) -> subprocess.Popen[bytes]:
    command = [str(PROGRAM), "audit", name, "--home", str(home), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def finished(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=PATIENCE)
    value: dict[str, Any] = json.loads(output)
    return value


@pytest.fixture(scope="module")
def registry() -> SimulatedRegistry:
    """A log that is long enough to be checked by processes."""
    assert LEAVES > WORTH_PROCESSES
    registry = with_echo()
    while registry.size < LEAVES:
        registry.force(CertificateLeaf(b"certificate %d" % registry.size).encode())
    return registry


@pytest.mark.deep
def test_a_mirror_that_is_killed_again_and_again_is_continued(registry: SimulatedRegistry, tmp_path: Path) -> None:
    wire = Wire(registry)
    with served(wire) as name:
        for number in KILLS:
            process, total = started(name, tmp_path), wire.bundles.total()

            def kill(bundles: int, process: subprocess.Popen[bytes] = process, last: int = total + number) -> None:
                if bundles == last:
                    process.kill()

            wire.before = kill
            process.communicate(timeout=PATIENCE)
            if process.returncode >= 0:  # it had so few left to ask for
                break
            assert not (tmp_path / "audit" / registry.checkpoint().decode().split("\n")[0] / "checkpoint").exists()
        wire.before = lambda bundles: None
        value = finished(started(name, tmp_path))
    assert (value["size"], value["root"]) == (LEAVES, registry.root().hex())
    assert value["leaves"]["sigstore"] == LEAVES - 6
    assert len(wire.bundles) == 41
    assert wire.bundles.total() <= 41 + len(KILLS) * AT_ONCE, "what was there was not asked for again"


@pytest.mark.deep
def test_a_replay_that_is_killed_leaves_nothing_behind(registry: SimulatedRegistry, tmp_path: Path) -> None:
    with served(Wire(registry)) as name:
        process = started(name, tmp_path)
        workers = until(lambda: children(process.pid), lambda processes: len(processes) >= 2)
        process.kill()
        process.communicate(timeout=PATIENCE)
        until(lambda: [pid for pid in workers if Path(f"/proc/{pid}").exists()], lambda alive: not alive)
        folder = tmp_path / "audit" / name.partition("#")[2].partition("+")[0]
        assert {entry.name for entry in folder.iterdir()} == {"checkpoint", "tile"}
        value = finished(started(name, tmp_path))
    assert (value["size"], value["root"]) == (LEAVES, registry.root().hex())


def children(parent: int) -> list[int]:
    """The processes that a process has started, but for its resource tracker."""
    try:
        pids = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [int(pid) for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    except FileNotFoundError:
        return []


def until(look: Callable[[], list[int]], right: Callable[[list[int]], bool]) -> list[int]:
    deadline = time.monotonic() + PATIENCE
    while not right(seen := look()):
        assert time.monotonic() < deadline, seen
        time.sleep(0.01)
    return seen
