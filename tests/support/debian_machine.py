"""A Debian of packages, booted with systemd in a container: the units run as systemd itself confines them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from build_cache import kept
from machine import CLONE, Machine, copy_release
from units import ROOT

_RELEASE = "bookworm"
_PACKAGES = "systemd-sysv,python3-venv,ca-certificates,curl"
_NEEDED = ("mmdebstrap", "systemd-nspawn", "systemd-socket-activate", "nsenter")
_CACHE = ROOT / ".pytest_cache" / "d" / "debian"
_WHEELS = "/srv/wheels"
_NAME = f"treaty-{os.getpid()}"
"""Of the container. A process has one at a time."""
_BOOT = 120
"""Seconds to boot, on a busy host."""


@cache
def lacking() -> str | None:
    """Return the reason why this host boots no Debian; None if it can."""
    if os.geteuid() != 0:
        return "Only root can boot a container."
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    return f"The system lacks {', '.join(missing)} (Debian: mmdebstrap, systemd-container)." if missing else None


class DebianMachine(Machine):
    """A container of systemd-nspawn. Its root is a folder of this host, so it stays through a reboot."""

    def __init__(self, folder: Path) -> None:
        """Boot the root in `folder`."""
        process, leader = _boot(folder)
        super().__init__(folder, process, leader)

    def reboot(self) -> None:
        """Have systemd stop all services, and start them again. What `reach` and `program` have returned ends with it."""
        self.run("systemctl reboot")  # the command may end with the machine
        # nspawn leaves a reboot to its caller: it ends with this status.
        assert self.process.wait(_BOOT) == 133
        self.process, leader = _boot(self.folder)
        self.enter(leader)


@contextmanager
def debian_machine(folder: Path) -> Iterator[DebianMachine]:
    """A machine with nothing but Debian, a clone of the release, and the files of its libraries, in place of a package index."""
    root = folder / "root"
    subprocess.run(["cp", "--archive", "--reflink=auto", _debian() / "root", root], check=True)
    copy_release(Path(f"{root}{CLONE}"))
    (root / "etc/pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {_WHEELS}\n")
    machine = DebianMachine(folder)
    try:
        yield machine
    finally:
        machine.end()
        shutil.rmtree(root)
        # nspawn leaves this empty folder behind where /run is on a disk.
        shutil.rmtree(f"/run/systemd/nspawn/propagate/{_NAME}", ignore_errors=True)


def _boot(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start a container and wait until systemd has started all services. Returns it, and the process of its systemd."""
    options = ["--private-network", "--register=no", "--keep-unit", "--link-journal=no", f"--machine={_NAME}"]
    command = ["systemd-nspawn", "--quiet", "--boot", f"--directory={folder / 'root'}", f"--bind-ro={_wheels()}:{_WHEELS}"]
    with (folder / "console").open("ab") as console:
        container = subprocess.Popen([*command, *options], stdin=subprocess.DEVNULL, stdout=console, stderr=console)
    end = time.monotonic() + _BOOT
    while time.monotonic() < end:
        assert container.poll() is None, (folder / "console").read_text()[-2000:]
        for leader in Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split():
            state = ["nsenter", f"--target={leader}", "--mount", "--pid", "systemctl", "is-system-running"]
            if subprocess.run(state, capture_output=True, text=True, check=False).stdout.strip() in ("running", "degraded"):
                return container, int(leader)
        time.sleep(0.2)
    container.kill()
    raise AssertionError("systemd has not started all services")


def _debian() -> Path:
    """Return a folder with the root of a Debian, made once of its packages."""

    def make(folder: Path) -> None:
        command = ["mmdebstrap", "--variant=minbase", f"--include={_PACKAGES}", _RELEASE, str(folder / "root")]
        subprocess.run(command, check=True)
        shutil.rmtree(folder / "root/var/cache/apt")

    return kept(_CACHE / _RELEASE, make)


def _wheels() -> Path:
    """Return a folder with each library of the lock, fetched once."""
    lock = ROOT / "requirements.lock"

    def fetch(folder: Path) -> None:
        target = ["--only-binary=:all:", "--python-version=3.11", "--no-deps", "--require-hashes"]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *target, f"--requirement={lock}", f"--dest={folder}"], check=True)

    return kept(_CACHE / "wheels" / hashlib.sha256(lock.read_bytes()).hexdigest()[:16], fetch)
