"""A `systemctl` for a machine of namespaces: it starts the services of units, confined (`units`), and stops them.

    systemctl [enable --now | start | stop | restart] UNIT
    systemctl daemon-reload

What a service prints is in `/run/units/UNIT.log`. A oneshot service is waited for; a timer is only looked for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from units import Unit

UNITS = Path("/etc/systemd/system")
RUN = Path("/run/units")


def start(name: str, unit: Unit) -> int:
    """Start a service; return the exit status of a oneshot service, and else 0."""
    command = unit.confined(unit.command())
    with (RUN / f"{name}.log").open("ab") as log:
        if unit.is_oneshot:
            return subprocess.run(command, env=unit.environment(), cwd="/", stdout=log, stderr=log, check=False).returncode
        process = subprocess.Popen(command, env=unit.environment(), cwd="/", stdout=log, stderr=log, start_new_session=True)
    (RUN / f"{name}.pid").write_text(str(process.pid))
    return 0


def stop(name: str) -> None:
    """Stop a service, and wait for its end."""
    file = RUN / f"{name}.pid"
    if not file.exists():
        return
    pid = int(file.read_text())
    file.unlink()
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, signal.SIGTERM)
        while ") Z " not in Path(f"/proc/{pid}/stat").read_text():
            time.sleep(0.05)


def main(arguments: list[str]) -> int:
    """Carry out one command."""
    action, name = arguments[0], arguments[-1]
    if action == "daemon-reload":
        return 0  # it reads each unit when it starts it
    name = name if "." in name else f"{name}.service"
    text = (UNITS / name).read_text()
    if action in ("stop", "restart"):
        stop(name)
    if action in ("start", "restart", "enable") and name.endswith(".service"):
        return start(name, Unit(text))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
