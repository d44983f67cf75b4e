"""A `systemctl` for tests: it starts the programs of units as processes, with their variables, and stops them.

    systemctl [enable --now | start | stop | restart] UNIT

`$UNITS` is the folder of the units, `$UNITS_RUN` that of their process ids and output. A oneshot service is waited for; a timer
is only looked for.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path


def values(unit: Path) -> dict[str, list[str]]:
    """Return the lines NAME=VALUE of a unit."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def variables(unit: dict[str, list[str]]) -> dict[str, str]:
    """Return the variables of a service: its own, then those of its files."""
    found = dict(item.split("=", 1) for line in unit.get("Environment", ()) for item in shlex.split(line))
    for file in unit.get("EnvironmentFile", ()):
        for line in Path(file).read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                name, _, value = line.partition("=")
                found[name] = value
    return found


def start(name: str, unit: dict[str, list[str]], run: Path) -> int:
    """Start a service as systemd would: words of the command that are a variable are split."""
    environment = variables(unit)
    command: list[str] = []
    for word in shlex.split(unit["ExecStart"][0]):
        command += environment[word[1:]].split() if word.startswith("$") else [word]
    with (run / f"{name}.log").open("ab") as log:
        if unit.get("Type") == ["oneshot"]:
            return subprocess.run(command, env={**base(), **environment}, stdout=log, stderr=log, check=False).returncode
        process = subprocess.Popen(command, env={**base(), **environment}, stdout=log, stderr=log, start_new_session=True)
    (run / f"{name}.pid").write_text(str(process.pid))
    return 0


def base() -> dict[str, str]:
    """Return what a service gets of the environment: systemd passes nothing else on."""
    return {"PATH": os.environ["PATH"]}


def stop(name: str, run: Path) -> None:
    """Stop a service, and wait for its end."""
    file = run / f"{name}.pid"
    if not file.exists():
        return
    pid = int(file.read_text())
    file.unlink()
    try:
        os.kill(pid, signal.SIGTERM)
        while Path(f"/proc/{pid}").exists() and ") Z " not in Path(f"/proc/{pid}/stat").read_text():
            time.sleep(0.05)
    except (ProcessLookupError, FileNotFoundError):
        return


def main(arguments: list[str]) -> int:
    """Carry out one command."""
    action, name = arguments[0], arguments[-1]
    run, folder = Path(os.environ["UNITS_RUN"]), Path(os.environ["UNITS"])
    name = name if "." in name else f"{name}.service"
    unit = values(folder / name)
    if action in ("stop", "restart"):
        stop(name, run)
    if action in ("start", "restart", "enable") and "ExecStart" in unit:
        return start(name, unit, run)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
