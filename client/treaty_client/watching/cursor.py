"""Store how far each watch of a home was told: HOME/watch/ORIGIN/NAME.json.

    {"key": VKEY, "read": SECONDS, "watches": {"did did:wba:example.com": INDEX, …}, "parameters": ID}

All leaves below INDEX that concern the watch were told. `read` is the signed time of the newest head up to which all leaves were
read. `parameters`, if the constitution is watched: those of the newest decision that was read.

A cursor is kept when its watch is left out, so a watch that comes back continues there. One process at a time holds the
file, by a lock that the system releases when the process dies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from treaty_consensus.codes import LogCode, SystemCode
from treaty_consensus.errors import Conflict, Untrusted
from treaty_consensus.kinds import Count
from treaty_consensus.log.checkpoint import LogKeys
from treaty_io import durable
from treaty_io.state_file import StateFile

from .watches import Watch

_MAX_FILE = 4 * 1024 * 1024
_FIX = "Move it away, and begin with --from at the last finding."


class _File(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    key: str
    read: Count
    watches: dict[str, Count]
    parameters: str = ""


class Cursors:
    """The cursors of one state file. Every write is durable on return. Raises OSError when the disk fails."""

    def __init__(self, file: StateFile[_File], state: _File) -> None:
        """Use `open`."""
        self._file, self._state = file, state

    @classmethod
    @contextmanager
    def open(cls, path: Path, keys: LogKeys) -> Iterator[Cursors]:
        """Hold the state file of a log during the block.

        Raises `Conflict` (`system.held`) if another process holds it, `Malformed` (`system.state`) if it is damaged, `Untrusted`
        (`log.other`) if it is of a log with another key.
        """
        try:
            with durable.exclusive(path.with_suffix(".lock"), wait=False):
                file = StateFile(path, _File, limit=_MAX_FILE, code=SystemCode.STATE, fix=_FIX)
                yield cls(file, _read(file, keys))
        except BlockingIOError as error:
            raise Conflict(
                SystemCode.HELD, f"Another process watches with {path}.", fix="Stop it, or give this watch another --name."
            ) from error

    @property
    def read(self) -> int:
        """The signed time of the newest head up to which all leaves were read; 0 before the first."""
        return self._state.read

    @property
    def parameters(self) -> str:
        """The parameters of the newest decision that a watch of the constitution has read; empty before the first."""
        return self._state.parameters

    @parameters.setter
    def parameters(self, statement: str) -> None:
        # Written by the `advance` that follows, so that cursor and parameters move together.
        self._state.parameters = statement

    def has(self, watch: Watch) -> bool:
        """Return whether a watch has a cursor."""
        return str(watch) in self._state.watches

    def of(self, watch: Watch) -> int:
        """Return the index below which a watch was told."""
        return self._state.watches[str(watch)]

    def place(self, watches: Iterable[Watch], index: int) -> None:
        """Set the cursors of watches, also backwards."""
        self._state.watches.update((str(watch), index) for watch in watches)
        self._file.write(self._state)

    def advance(self, watches: Iterable[Watch], index: int, *, read: int | None = None) -> None:
        """Move the cursors of watches forward. `read`: set too, if all leaves of a head were read."""
        for watch in watches:
            self._state.watches[str(watch)] = max(index, self.of(watch))
        if read is not None:
            self._state.read = max(read, self._state.read)
        self._file.write(self._state)


def _read(file: StateFile[_File], keys: LogKeys) -> _File:
    state = file.read()
    if state is None:
        return _File(str(keys.newest.log), 0, {})
    # Indexes of another log would skip leaves of this one.
    if state.key not in {str(term.log) for term in keys.terms}:
        raise Untrusted(
            LogCode.OTHER,
            f"{file.path} is of a log with another key.",
            fix="Move it away, or give this watch another --name.",
        )
    return state
