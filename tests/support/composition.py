"""The services of `deploy/compose/compose.yaml` as processes of this machine.

A service keeps its command, its variables and its files. Only places differ: a volume is a folder, a service's host and port
are a free port of the loopback interface, and the program of an image is one that this machine has.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from ports import free_port
from registry_process import PROGRAM

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "compose" / "compose.yaml"
PROXY = "172.30.83.2"
_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?P<rule>:[-?])?(?P<text>[^}]*)\}")
_ADDRESS = re.compile(r"\b(?:[a-z]+(?:-\d)?|127\.0\.0\.1):(\d+)\b")
_IMAGE_VARIABLE = re.compile(r"\b(TREATY_\w+_DATA)=(\S+)")


def interpolated(text: str, values: Mapping[str, str]) -> str:
    """Put values in the place of `${NAME}`, `${NAME:-DEFAULT}` and `${NAME:?MESSAGE}`, as the specification of compose says."""

    def value(match: re.Match[str]) -> str:
        value_of = values.get(match["name"], "")
        assert value_of or match["rule"] != ":?", match["text"]
        return value_of or (match["text"] if match["rule"] == ":-" else "")

    return _VARIABLE.sub(value, text)


@dataclass
class Composition:
    """All services below one folder. `values`: those of `.env`. `extra`: variables of the registry that only a test has."""

    folder: Path
    values: dict[str, str]
    database: str
    caddy: Path
    store: Path
    extra: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for port in ("80", "443", "2020", "7070", "8080", "8081", "8082", "9464"):
            self.ports[port] = free_port()

    def services(self) -> dict[str, Any]:
        """Read the file anew, with the present values."""
        services: dict[str, Any] = yaml.safe_load(interpolated(FILE.read_text(), self.values))["services"]
        return services

    async def start(self, name: str) -> None:
        """Start a service in the background; its output is in a file of the folder."""
        program, arguments, environment = self._command(name, None)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = await asyncio.create_subprocess_exec(
                program, *arguments, env=environment, cwd=self.folder, stdout=log, stderr=log
            )

    async def run(self, name: str, *command: str) -> str:
        """Run a command in place of that of a service, as `compose run --rm` does. Returns its output."""
        program, arguments, environment = self._command(name, command)
        process = await asyncio.create_subprocess_exec(program, *arguments, env=environment, cwd=self.folder, stdout=-1)
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        return output.decode()

    async def stop(self, name: str) -> int:
        """Stop a service, and return its exit status."""
        process = self.processes.pop(name)
        process.terminate()
        return await process.wait()

    async def health(self, name: str) -> int:
        """Run the health check of a service beside it, and return its exit status."""
        program, *arguments = (self._here(name, part) for part in self.services()[name]["healthcheck"]["test"][1:])
        arguments = [part.replace("'/backup", f"'{self.folder}/volumes/backup") for part in arguments]
        process = await asyncio.create_subprocess_exec(program, *arguments, stdout=-3, stderr=-3)
        return await process.wait()

    def log(self, name: str) -> str:
        """Return all that a service printed."""
        return (self.folder / f"{name}.log").read_text()

    def place(self, name: str, inside: str) -> Path:
        """Return where a path of a service's container is here."""
        for volume in self.services()[name].get("volumes", ()):
            source, target = str(volume).split(":")[:2]
            if inside == target or inside.startswith(f"{target}/"):
                if source.startswith("."):
                    return self._copied(FILE.parent / source)
                folder = self.folder / "volumes" / source
                folder.mkdir(parents=True, exist_ok=True)
                return folder / inside.removeprefix(target).lstrip("/")
        raise AssertionError(f"{name} has no volume at {inside}")

    def _copied(self, source: Path) -> Path:
        """Copy a mounted file into the folder, in which files refer to each other. A folder is the test's own."""
        copy = self.folder / source.name
        if source.is_file():
            shutil.copyfile(source, copy)
        return copy

    def _command(self, name: str, arguments: tuple[str, ...] | None) -> tuple[str, list[str], dict[str, str]]:
        service = self.services()[name]
        command = [
            *service.get("entrypoint", ()),
            *(service["command"] if arguments is None and "command" in service else arguments or ()),
        ]
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("TREATY_", "AWS_"))}
        own = dict(service.get("environment", {}))
        if "build" in service:
            image = (ROOT / "deploy" / "container" / "Containerfile").read_text()
            own = {**dict(_IMAGE_VARIABLE.findall(image)), **own}
            program, command = str(PROGRAM), command or ["serve"]
        elif name == "proxy":
            self.place(name, "/etc/caddy/Caddyfile")  # the other file imports it
            program, command = str(self.caddy), command[1:]
            environment["HOME"] = str(self.folder)
        elif name == "store":
            program = str(self.store)
        else:
            program, command = shutil.which(command[0]) or command[0], command[1:]
        environment |= {key: self._here(name, str(value)) for key, value in own.items()}
        if name == "registry":
            environment |= self.extra
        return program, [self._here(name, part) for part in command], environment

    def _here(self, name: str, text: str) -> str:
        """Return a value of a service as it is on this machine."""
        if text.startswith("postgresql://"):
            return self.database
        if text.startswith("/"):
            return str(self.place(name, text))
        text = text.replace(PROXY, "127.0.0.1").replace("0.0.0.0", "127.0.0.1")
        if text.lstrip(":") in self.ports:
            return text.replace(text.lstrip(":"), str(self.ports[text.lstrip(":")]))
        return re.sub(_ADDRESS, lambda match: f"127.0.0.1:{self.ports.get(match[1], match[1])}", text)
