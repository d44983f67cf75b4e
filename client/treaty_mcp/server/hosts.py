"""Write the configuration of a host of MCP: the server of this home, or a guard before a server that the host has."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treaty_consensus import __version__
from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Conflict, Malformed, NotFound
from treaty_io import durable
from treaty_io.codes import ConfigCode

MAX_FILE = 1024 * 1024
DISTRIBUTION = "treaty-agents"
"""The name of Treaty in every index."""


@dataclass(frozen=True)
class Host:
    """A host. `file`: its configuration, below the home of the user or the folder of a project. `member`: with its servers."""

    file: str
    member: str = "mcpServers"
    is_of_project: bool = False


HOSTS: Mapping[str, Host] = {
    "claude-code": Host(".mcp.json", is_of_project=True),
    "claude-desktop": Host(".config/Claude/claude_desktop_config.json"),
    "cursor": Host(".cursor/mcp.json"),
    "gemini": Host(".gemini/settings.json"),
    "vscode": Host(".vscode/mcp.json", "servers", is_of_project=True),
}


@dataclass(frozen=True)
class Launcher:
    """The command with which a host starts Treaty. `arguments`: those before the words of Treaty's own command."""

    command: str
    arguments: tuple[str, ...] = ()

    @classmethod
    def uvx(cls, registry: str) -> Launcher:
        """Return the launcher that needs no installation: this very release, from the index of the registry at this base URL.

        Not by the name `treaty`, which is another project's where uv looks next.
        """
        index = f"{registry}/index/treaty/simple/"
        return cls("uvx", ("--index", index, "--from", f"{DISTRIBUTION}[mcp]=={__version__}", "treaty"))


def is_ephemeral() -> bool:
    """Tell whether uvx runs this process: its environment is a part of uv's cache, which may be emptied."""
    return "UV" in os.environ and "archive-v0" in Path(sys.prefix).parts


class HostFile:
    """The configuration of one host."""

    def __init__(self, host: Host, folder: Path) -> None:
        """`folder`: of the user or of the project."""
        self.path, self._member = folder / host.file, host.member

    def add(self, name: str, launcher: Launcher, arguments: Sequence[str]) -> None:
        """Add a server. Raises `Conflict` (`system.exists`) if another one has the name, and as `_read`. Then nothing changed."""
        content, servers = self._read()
        entry = {"command": launcher.command, "args": [*launcher.arguments, *arguments]}
        if servers.get(name, entry) != entry:
            fix = f"Remove {name} from {self.path}, or give this one another name: --name NAME"
            raise Conflict(SystemCode.EXISTS, f"{self.path} has another server named {name}.", fix=fix)
        self._write(content, {**servers, name: entry})

    def guard(self, name: str, launcher: Launcher, home: Path) -> None:
        """Put a guard before a server that the host has. Safe to repeat. Raises `NotFound` (`config.file`) and as `_read`."""
        content, servers = self._read()
        entry = servers.get(name)
        entry = entry if isinstance(entry, dict) else {}
        match entry:
            case {"args": ["mcp", "guard", *_] | ["--index", _, "--from", _, "treaty", "mcp", "guard", *_]}:
                return
            case {"command": str(word)}:
                guarded = [word, *entry.get("args", [])]
            case {"url": str(url)}:
                guarded = [url]
            case _:
                raise NotFound(ConfigCode.FILE, f"{self.path} has no server named {name} with a command or a URL.")
        # Its environment and other members stay, because the guard hands its environment on.
        kept = {member: value for member, value in entry.items() if member not in ("url", "type")}
        arguments = [*launcher.arguments, "mcp", "guard", "--home", str(home), "--", *map(str, guarded)]
        self._write(content, {**servers, name: {**kept, "command": launcher.command, "args": arguments}})

    def _read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the content and its servers. Raises `Malformed` (`config.file`) if the file has another form."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return {}, {}
        try:
            content = json.loads(data) if len(data) <= MAX_FILE else None
        except (ValueError, RecursionError):
            content = None
        servers = content.get(self._member, {}) if isinstance(content, dict) else None
        if not isinstance(content, dict) or not isinstance(servers, dict):
            raise Malformed(
                ConfigCode.FILE, f"{self.path} has another form than a host writes.", fix="Correct it, or add the server by hand."
            )
        return content, servers

    def _write(self, content: dict[str, Any], servers: dict[str, Any]) -> None:
        durable.make_folder(self.path.parent, private=False)
        text = json.dumps({**content, self._member: servers}, indent=2, ensure_ascii=False)
        durable.write(self.path, text.encode() + b"\n", mode=0o600)
