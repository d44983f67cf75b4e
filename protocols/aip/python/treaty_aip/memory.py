"""The history of an agent's messages, one file of JSON for each task."""

from __future__ import annotations

import hashlib
import os
import re
from datetime import UTC, datetime
from pathlib import Path

from tinydb import TinyDB

from treaty_io import durable

from .messages import AgentMessage, ToolRequest, ToolResponse

_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
MAX_MESSAGES = 10_000
"""Messages of one task: TinyDB writes the whole file for each."""


MAX_OPEN = 64
"""Databases that are kept open: each costs a file descriptor, and a peer may choose the ids of ever new tasks."""


class ContextMemory:
    """The messages of one agent in `save_root`/`agent_id`, for its user alone. One process at a time uses a folder.

    A crash while a message is written may leave a file that cannot be read; then `write` and `clear` return False.
    """

    def __init__(self, agent_id: str, save_root: str = "./.cache") -> None:
        """Make the folder. Tasks that it has already are opened when they are used."""
        self.agent_id = agent_id
        self.save_dir = str(Path(save_root) / _file_name(agent_id))
        self.dbs: dict[str, TinyDB] = {}
        durable.make_folder(Path(self.save_dir), private=True)

    def create(self, task_id: str) -> bool:
        """Make the database of a task. Return False if it exists, or cannot be made."""
        path = self._path(task_id)
        try:
            # Exclusive: of two calls for one task, one returns True.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            self._keep_open(task_id)
        except (OSError, ValueError):
            return False
        return True

    def write(self, task_id: str, message: AgentMessage | ToolRequest | ToolResponse) -> bool:
        """Append a message. Return False if the task has no database, is full, or the message cannot be written."""
        database = self._open(task_id)
        if database is None:
            return False
        kind = type(message).__name__
        entry = {"kind": kind, "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "message": message.to_value()}
        try:
            if len(database) >= MAX_MESSAGES:
                return False
            database.insert(entry)
        except (OSError, ValueError):
            return False
        return True

    def read(self, task_id: str) -> list[AgentMessage | ToolRequest | ToolResponse]:
        """Return the messages of a task in their order; none if it has no database. Raises ValueError for a damaged file."""
        database = self._open(task_id)
        kinds = {each.__name__: each for each in (AgentMessage, ToolRequest, ToolResponse)}
        return [kinds[entry["kind"]].from_value(entry["message"]) for entry in (database.all() if database else [])]

    def clear(self, task_id: str) -> bool:
        """Remove the messages of a task. Return False if it has no database, or cannot be written."""
        database = self._open(task_id)
        if database is None:
            return False
        try:
            database.truncate()
        except (OSError, ValueError):
            return False
        return True

    def _open(self, task_id: str) -> TinyDB | None:
        if task_id not in self.dbs:
            if not self._path(task_id).exists():
                return None
            self._keep_open(task_id)
        return self.dbs[task_id]

    def _keep_open(self, task_id: str) -> None:
        while len(self.dbs) >= MAX_OPEN:
            self.dbs.pop(next(iter(self.dbs))).close()
        self.dbs[task_id] = TinyDB(self._path(task_id))

    def _path(self, task_id: str) -> Path:
        return Path(self.save_dir) / f"{_file_name(task_id)}.json"


def _file_name(name: str) -> str:
    """Return a file's name for an id, which a peer may have chosen. One that is no plain name is replaced by its digest."""
    return name if _PLAIN.fullmatch(name) else f"_{hashlib.sha256(name.encode()).hexdigest()}"
