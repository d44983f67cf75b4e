"""A machine on which an operator's commands are run as root, with the paths, users and ports that the guides name."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import systemctl
from ports import free_port
from registry_process import PROGRAM
from units import PROGRAMS, ROOT

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CLONE = "/srv/treaty"
"""The clone of the release in a machine."""
_NEEDED = ("unshare", "nsenter", "setpriv", "ip", "runuser", "systemd-sysusers", "systemd-tmpfiles", "systemd-socket-activate")
_PROXY = "/lib/systemd/systemd-socket-proxyd"
_OWN = ("/etc", "/opt", "/srv", "/usr", "/var")
"""The folders of a machine of namespaces that are its own: what is written there stays in it."""


class Machine:
    """`leader`: the first of its processes; its namespaces are the machine. `process`: one of this host with which it ends.

    `folder`: a folder of this host for its scripts.
    """

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], leader: int) -> None:
        self.folder = folder
        self.process = process
        self._proxies: list[subprocess.Popen[bytes]] = []
        self.enter(leader)

    def enter(self, leader: int) -> None:
        """Run commands in the namespaces of this process from now on."""
        self.leader = leader
        namespaces = ["nsenter", f"--target={leader}", "--mount", "--net", "--pid", "--ipc", "--uts"]
        self._entered = [*namespaces, "env", "--ignore-environment", f"PATH={PATH}", "HOME=/root", "LANG=C.UTF-8"]

    def path(self, path: str) -> Path:
        """Return a file of the machine, as this process can read it."""
        return Path(f"/proc/{self.leader}/root{path}")

    def run(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run commands in the clone as root, to the first that fails."""
        named = [f"{name}={value}" for name, value in variables.items()]
        command = [*self._entered, *named, "bash", "-euo", "pipefail", "-c", f"cd {CLONE}\n{script}"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def sh(self, script: str, **variables: str) -> str:
        """Run commands that succeed, and return their output."""
        done = self.run(script, **variables)
        services = "".join(self.journal(f"treaty-{name}")[-2000:] for name in ("registry", "witness", "backup"))
        assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}{done.stderr[-2000:]}{services}"
        return done.stdout

    def journal(self, unit: str) -> str:
        """Return what a service has printed."""
        return self.run(f"journalctl --output cat --unit {unit}").stdout

    def said(self, unit: str, pattern: str) -> str:
        """Wait until a service has printed something."""
        end = time.monotonic() + 120
        while not (results := re.search(pattern, self.journal(unit))):
            assert time.monotonic() < end, self.journal(unit)
            time.sleep(0.1)
        return results[1]

    def program(self, name: str) -> Path:
        """Return a script of this host that runs a program of the machine as root."""
        script = self.folder / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join(self._entered)} {name} "$@"\n')
        script.chmod(0o755)
        return script

    def reach(self, port: int) -> int:
        """Return a port of this host that leads to one of the machine's loopback interface."""
        here = free_port()
        # The socket is of this host, and systemd's proxy, which gets it, connects in the network of the machine.
        command = ["systemd-socket-activate", f"--listen=127.0.0.1:{here}", "nsenter", f"--target={self.leader}", "--net"]
        self._proxies.append(subprocess.Popen([*command, _PROXY, f"127.0.0.1:{port}"], stderr=subprocess.DEVNULL))
        return here

    def end(self) -> None:
        """End every process of it."""
        # The kernel ends all others with the first one, which outlives the process that has started it.
        with suppress(ProcessLookupError):
            os.kill(self.leader, signal.SIGKILL)
        for process in (*self._proxies, self.process):
            process.kill()
            process.wait()
        while Path(f"/proc/{self.leader}").exists():
            time.sleep(0.05)


@cache
def missing() -> str | None:
    """Return the reason why this host can have no machine of namespaces; None if it can."""
    if os.geteuid() != 0:
        return "Only root can make the namespaces of a machine."
    lacking = [name for name in _NEEDED if shutil.which(name) is None]
    if lacking:
        return f"The system lacks {', '.join(lacking)}."
    command = ["unshare", "--mount", "--net", "--pid", "--fork", "sh", "-ec", _own_folders(Path("/mnt"))]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"This system makes no machine of namespaces: {tried.stderr.strip()[-200:]}"


@contextmanager
def machine_of_namespaces(folder: Path) -> Iterator[Machine]:
    """A machine that shares the programs of this host, and has files, users, network and processes of its own.

    Its files are in memory. It ends with this process.
    """
    script = "\n".join(
        [
            _own_folders(folder),
            "mount -t tmpfs -o mode=755 tmpfs /run && mkdir /run/units /run/lock",
            "ip link set lo up",
            "echo",
            # The first process of a namespace takes the ended children of others.
            "while :; do sleep 3600 & wait $!; done",
        ]
    )
    unshared = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc", "sh", "-ec"]
    process = subprocess.Popen([*unshared, script], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == b"\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    machine = Machine(folder, process, int(children))
    try:
        copy_release(machine.path(CLONE))
        # The release is this clone, installed already, and of the folders that systemd-tmpfiles keeps only its own are made.
        _program(machine, "/opt/treaty/bin/pip", "exit 0")
        _program(machine, "/usr/local/bin/python3", f'[ "$2" = venv ] || exec "{sys.executable}" "$@"')
        _program(machine, "/usr/local/bin/systemd-tmpfiles", 'exec /usr/bin/systemd-tmpfiles "$@" treaty.conf')
        _program(machine, "/opt/treaty/bin/treaty-registry", f'exec "{sys.executable}" "{PROGRAM}" "$@"')
        _program(machine, "/usr/local/bin/systemctl", f'exec "{sys.executable}" "{systemctl.__file__}" "$@"')
        _program(
            machine,
            "/usr/local/bin/journalctl",
            'while [ "$1" != --unit ]; do shift; done\ncat "/run/units/$2.service.log" 2>/dev/null || :',
        )
        yield machine
    finally:
        machine.end()


def copy_release(clone: Path) -> None:
    """Make a clone of the release, as a folder that git does not know."""
    clone.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in ("consensus", "client", "registry", "protocols", "deploy"):
        shutil.copytree(ROOT / name, clone / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "requirements.lock"):
        shutil.copy(ROOT / name, clone)


def _own_folders(folder: Path) -> str:
    """Return the commands that make the machine's folders its own, and let all users reach this Python."""
    closed = {parent for program in PROGRAMS for parent in program.parents if not parent.stat().st_mode & 0o001}
    tops = [*_OWN, *(str(top) for top in sorted(closed) if not any(parent in closed for parent in top.parents))]
    steps = [f"mount -t tmpfs -o mode=755 tmpfs {folder}"]
    for number, top in enumerate(tops):
        upper, work = f"{folder}/{number}/upper", f"{folder}/{number}/work"
        steps.append(f"mkdir -p {upper} {work}")
        steps.append(f"mount -t overlay -o lowerdir={top},upperdir={upper},workdir={work} overlay {top}")
    return "\n".join([*steps, *(f"chmod o+x '{parent}'" for parent in sorted(closed))])


def _program(machine: Machine, name: str, script: str) -> None:
    path = machine.path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
