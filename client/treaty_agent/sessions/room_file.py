"""Keep the session of a shared role on disk, so that it survives a restart of its agent.

The file is below HOME (docs/specification/home-caches.md):

    HOME/rooms/HEX(SHA-256(JCS([protocol URI, role, local DID])))/WHEEL.room      WHEEL: the digest of the handler's wheel

It is written after each event that changed the session, before the effects that others see. So a crash leaves the session before
an event of which others know nothing, or after it; then a message or an answer may be lost, as with a lost connection.

Each event costs a synced write in a thread. Events that changed nothing cost none, so a member cannot wear a disk out by junk.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from pathlib import Path

import msgspec

from treaty_consensus import canonical
from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Malformed, TreatyError, Unavailable
from treaty_io import durable
from treaty_sandbox.kept_session import KeptSession

MAX_ROOM = 4 * 1024 * 1024
"""Bytes of a file that is read. 512 members with the longest DIDs, all calls and timers, and the snapshot need less."""
_log = logging.getLogger(__name__)


class KeptRoom(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file, after its SHA-256 and a line feed. `room`: the version of this form. `wheel`: of the handler."""

    protocol: str
    role: str
    local: str
    wheel: str
    session: KeptSession
    room: int = 1


class RoomFile:
    """The file of one shared session, which this process alone has from `take_up` to `release`.

    `kept`: the session of a former process, after `take_up`; None if there is none.
    """

    kept: KeptSession | None = None

    def __init__(self, home: Path, protocol: str, role: str, local: str, wheel: str) -> None:
        """Access no disk yet."""
        self._names = protocol, role, local, wheel
        name = canonical.hex_digest(canonical.dumps([protocol, role, local]))
        self.path = home / "rooms" / name / f"{wheel}.room"
        self._lock: int | None = None
        self._last = b""

    @property
    def exists(self) -> bool:
        """Return whether a session is kept."""
        return self.path.exists()

    def take_up(self) -> None:
        """Lock the file and read it. Raises `Unavailable` (`system.held`, `system.file`) and `Malformed` (`system.state`); then
        nothing is locked or changed."""
        try:
            durable.make_folder(self.path.parent, private=True)
            # Two processes of one home would each tell their members of another room.
            self._lock = durable.open_locked(self.path.with_suffix(".lock"), wait=False)
        except BlockingIOError as error:
            fix = "It is taken up when that process ends. Give each agent a home of its own."
            raise Unavailable(SystemCode.HELD, f"Another process has the room {self.path}.", fix=fix) from error
        except OSError as error:
            raise Unavailable(SystemCode.FILE, f"The room {self.path} cannot be locked: {error}.") from error
        try:
            self.kept = self._read()
        except TreatyError:
            self.release()
            raise
        others = [path for path in self.path.parent.glob("*.room") if path != self.path]
        if others and self.kept is None:
            why = "Another handler kept this room, so a new one begins. Serve that handler to go on with it, or remove %s"
            _log.warning(why, others[0])

    async def write(self, kept: KeptSession) -> None:
        """Replace the file, unless it has this content. Durable on return. Raises `Unavailable` (`system.file`)."""
        room = msgspec.json.encode(KeptRoom(*self._names, kept))
        if room == self._last:
            return
        data = hashlib.sha256(room).hexdigest().encode() + b"\n" + room
        try:
            await asyncio.to_thread(durable.write, self.path, data, mode=0o600)
        except OSError as error:
            raise Unavailable(SystemCode.FILE, f"The room {self.path} cannot be written: {error}.") from error
        self._last = room

    def remove(self) -> None:
        """Delete the file, durably: the session has ended, or its handler has no snapshot any more."""
        self._last = b""
        try:
            if self._lock is not None and self.path.exists():
                self.path.unlink()
                durable.sync_directory(self.path.parent)
        except OSError as error:
            _log.warning("The room %s has ended and cannot be removed: %s. Remove it, or it begins again", self.path, error)

    def release(self) -> None:
        """Let another process have the file. Safe to repeat."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _read(self) -> KeptSession | None:
        try:
            with self.path.open("rb") as file:
                data = file.read(MAX_ROOM)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(SystemCode.FILE, f"The room {self.path} cannot be read: {error}.") from error
        digest, _, text = data.partition(b"\n")
        try:
            # A longer file was cut off, so its digest differs.
            if hashlib.sha256(text).hexdigest().encode() != digest:
                raise ValueError("it is too long, or its digest is not that of its content")
            room = msgspec.json.decode(text, type=KeptRoom)
            if room.room != 1 or (room.protocol, room.role, room.local, room.wheel) != self._names:
                raise ValueError("it is of another version, role, agent or handler")
        except ValueError as error:  # msgspec's errors are such
            fix = "Restore it, or remove it: then a new room begins."
            raise Malformed(SystemCode.STATE, f"The room {self.path} is damaged: {error}.", fix=fix) from error
        return room.session
