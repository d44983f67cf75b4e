"""Processes of tests that run at the same time have different ports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ports import free_port

PROGRAM = "from ports import free_port; print(*(free_port() for _ in range(300)), flush=True); input()"


def test_processes_that_run_together_have_different_ports() -> None:
    folder = Path(__file__).parents[1] / "support"
    started = [
        subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    port_sets = [{free_port() for _ in range(300)}]
    for process in started:
        assert process.stdout is not None
        port_sets.append({int(port) for port in process.stdout.readline().split()})
    for process in started:
        process.communicate("\n")
    assert all(port_sets) and len(set.union(*port_sets)) == sum(len(ports) for ports in port_sets)
