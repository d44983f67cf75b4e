"""Fault: a watch is killed at each step. Each finding is told at least once, and repetitions have the same id."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from served_log import Wire, served
from simulated_registry import ALICE, with_echo
from webhook_receiver import Receiver, receiving, secret_in

from treaty_client.registries.trust import TrustedRegistries, parse_registry_name
from treaty_consensus.log.tiles import TILE_WIDTH
from treaty_consensus.sigstore_leaf import CertificateLeaf

# Runs the command, and dies by SIGKILL at the n-th time that it writes its cursors: before or after the rename.
DYING = """
import os, signal, sys
from treaty_io import durable
calls, write = 0, durable.write
step, moment = int(sys.argv[1]), sys.argv[2]
def dying(path, data, **options):
    global calls
    calls += "watch" in path.parts
    is_last = "watch" in path.parts and calls == step
    if is_last and moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, data, **options)
    if is_last:
        os.kill(os.getpid(), signal.SIGKILL)
durable.write = dying
sys.argv = ["treaty", *sys.argv[3:]]
from treaty_command import main
main()
"""


@pytest.mark.deep
@pytest.mark.sample(1)
@pytest.mark.threat(270)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_watch_that_is_killed_at_any_write_loses_no_finding(tmp_path: Path, moment: str) -> None:
    registry, home = with_echo(), tmp_path / "home"
    with served(Wire(registry)) as name, receiving() as receiver:
        TrustedRegistries(home).add(parse_registry_name(name))
        command = ["watch", "--once", "--json", "--home", str(home), "--did", ALICE.did]
        command += ["--webhook", receiver.url, "--secret-file", str(secret_in(tmp_path))]
        assert _run(command, 99, moment).returncode == 0
        ids = [registry.publish(f"{number}.0").id for number in range(2, 6)]
        printed: list[str] = []
        for step in range(1, 20):
            run = _run(command, step, moment)
            printed += [json.loads(line)["statement"] for line in run.stdout.splitlines()]
            if run.returncode >= 0:
                break
            ids.append(registry.publish(f"{10 + step}.0").id)
        assert run.returncode in (0, 7), run.stderr
        assert step > 3, "it was killed a few times"
        for ids_told in (printed, [finding["statement"] for _, finding in receiver.taken]):
            assert list(dict.fromkeys(ids_told)) == ids
        assert _ids_are_one_each(receiver)


@pytest.mark.deep
def test_memory_is_flat_over_a_long_log(tmp_path: Path) -> None:
    registry, home = with_echo(), tmp_path / "home"
    while registry.size < 24 * TILE_WIDTH + 3:
        registry.force(CertificateLeaf(b"%d " % registry.size + b"x" * 6_000).encode())
    registry.publish("2.0")
    peaks = []
    with served(Wire(registry)) as name:
        TrustedRegistries(home).add(parse_registry_name(name))
        for begin in (registry.size - 10, 0):
            command = ["watch", "--once", "--json", "--home", str(home), "--did", ALICE.did, "--from", str(begin)]
            run = subprocess.run(
                [sys.executable, "-c", MEASURED, *command], capture_output=True, text=True, timeout=120, check=False
            )
            assert run.returncode == 7, run.stderr
            peaks.append(int(run.stderr.split()[-1]))
    # The log has 50 MiB; a round 8 MiB, and its parts are held a few times.
    assert peaks[1] - peaks[0] < 40 * 1024, peaks


MEASURED = """
import atexit, resource, sys
atexit.register(lambda: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr))
sys.argv = ["treaty", *sys.argv[1:]]
from treaty_command import main
main()
"""


def _run(command: list[str], step: int, moment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", DYING, str(step), moment, *command], capture_output=True, text=True, timeout=60, check=False
    )


def _ids_are_one_each(receiver: Receiver) -> bool:
    return len(set(receiver.tried)) == len({finding["statement"] for _, finding in receiver.taken})
