"""Keep the tool lists that an owner accepted: a file for each server, below `mcp` of the home.

    {"server": "python server.py", "tools": {NAME: JSON}, "instructions": "", "seen": {"tools": {NAME: JSON}, "instructions": ""}}

`seen` is the newest list that differs from the accepted one. It waits for the owner.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import NotFound, Refused
from treaty_io import durable
from treaty_io.codes import RpcCode
from treaty_io.state_file import StateFile

from .tool_list import ToolList

MAX_FILE = 8 * 1024 * 1024
LEAST_DIGEST = 8
"""Characters of a digest by which an owner accepts a list. It was read on the same screen."""
_FIX = "Remove it. The tools are then pinned anew at their next sight."


class _List(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tools: dict[str, str]
    instructions: str


class _Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    server: str
    tools: dict[str, str]
    instructions: str
    seen: _List | None = None

    @property
    def accepted(self) -> ToolList:
        return ToolList(self.tools, self.instructions)


class Pin:
    """The accepted tools of one server. Safe among processes: each change holds a lock.

    All methods and properties raise `Malformed` (`system.state`) if the file is damaged.
    """

    def __init__(self, home: Path, server: str) -> None:
        """Read nothing yet. `server`: its command or URL."""
        self.server = server
        # A command may have secrets and any length, so its digest is the name.
        path = home / "mcp" / f"{hashlib.sha256(server.encode()).hexdigest()[:32]}.json"
        self._file = StateFile(path, _Pin, limit=MAX_FILE, code=SystemCode.STATE, fix=_FIX)
        self._lock = path.with_suffix(".lock")

    @property
    def accepted(self) -> ToolList | None:
        """The accepted tools; None if nothing is pinned."""
        pin = self._file.latest()
        return None if pin is None else pin.accepted

    @property
    def waiting(self) -> ToolList | None:
        """The newest list that differs from the accepted one."""
        pin = self._file.latest()
        return None if pin is None or pin.seen is None else ToolList(pin.seen.tools, pin.seen.instructions)

    def compare(self, tools: ToolList) -> ToolList:
        """Return the accepted list. At first sight it is this one; later a list that differs is kept for `accept`."""
        durable.make_folder(self._file.path.parent, private=True)
        with durable.exclusive(self._lock):
            pin = self._file.read()
            if pin is None:
                pin = _Pin(self.server, tools.texts, tools.instructions)
                self._file.write(pin)
            seen = None if tools == pin.accepted else _List(tools.texts, tools.instructions)
            # A server that takes a change back takes it from the owner's desk too.
            if pin.seen != seen:
                self._file.write(msgspec.structs.replace(pin, seen=seen))
            return pin.accepted

    def accept(self, digest: str) -> None:
        """Accept the list that waits, by the beginning of its digest.

        Raises `NotFound` (`rpc.nothing`) if none waits, and `Refused` (`system.unconfirmed`) if another one does. Then nothing
        changed.
        """
        durable.make_folder(self._file.path.parent, private=True)
        with durable.exclusive(self._lock):
            pin = self._file.read()
            if pin is None or pin.seen is None:
                raise NotFound(RpcCode.NOTHING, "No other list of tools of this server waits.")
            found = ToolList(pin.seen.tools, pin.seen.instructions).digest
            if len(digest) < LEAST_DIGEST or not found.startswith(digest):
                fix = "Read its differences: treaty mcp accept, without --digest."
                raise Refused(SystemCode.UNCONFIRMED, "The list of tools that waits is another one.", fix=fix)
            self._file.write(_Pin(pin.server, pin.seen.tools, pin.seen.instructions))
