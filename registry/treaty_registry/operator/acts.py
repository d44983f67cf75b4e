"""Record each act of the operator: as a line of the log of the process, and in the database for `treaty-registry status`.

An act that binds others is a leaf of the transparency log too: parameters, decisions, withdrawals, rotations. Blocks and quotas
bind this registry alone, and may name people, so they are in no leaf. The line has no arguments, because a DID or an address is
personal data there; the row has their first characters. The newest `MAX_ROWS` of each command are kept, so the table has a bound.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from treaty_consensus.errors import TreatyError

from ..storage.cluster import named_user
from ..storage.postgres import DATABASE_ERRORS, Connection, Pool

MAX_ROWS = 100
"""Acts of one command that are kept."""
READS = frozenset(("parameters", "senders", "status", "withdrawable"))
"""Commands that change nothing, so they are no acts."""

_MAX_DETAIL, _MAX_USER = 200, 64  # characters
_NO_LOGIN = 2**32 - 1  # /proc/PID/loginuid of a process that no login started

_RECORD = "insert into operator_acts (command, detail, caller, uid) values ($1, $2, $3, $4)"
_FORGET = """
delete from operator_acts where command = $1 and number <=
  (select number from operator_acts where command = $1 order by number desc offset $2 limit 1)
"""
_NEWEST = """
select extract(epoch from at)::bigint as at, command, detail, caller as user, uid from operator_acts order by number desc limit $1
"""
_LAST = "select extract(epoch from max(at))::bigint from operator_acts where command = $1"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class CommandCaller:
    """The process that gave a command. `user`: as it says. `uid`, `pid`: as the kernel says (SO_PEERCRED)."""

    user: str
    uid: int
    pid: int

    @classmethod
    def of_this_process(cls) -> CommandCaller:
        """Return the caller of a command that runs without a server."""
        return cls(calling_user(), os.getuid(), os.getpid())


@dataclass(frozen=True)
class Act:
    """An act. `at`: Unix seconds. `detail`: the first characters of its arguments."""

    at: int
    command: str
    detail: str
    user: str
    uid: int


class Acts:
    """The acts of all nodes. Safe for concurrent use."""

    def __init__(self, pool: Pool | Connection) -> None:
        self._pool = pool

    async def record(
        self, command: str, arguments: Sequence[object], caller: CommandCaller, refusal: TreatyError | None = None
    ) -> None:
        """Record a command that has ended. Never raises: the command is done."""
        if command in READS:
            return
        outcome = refusal.code if refusal else "done"
        _log.info("act of the operator", command=command, outcome=outcome, user=caller.user, uid=caller.uid, pid=caller.pid)
        if refusal is not None:
            return
        detail = " ".join(argument if isinstance(argument, str) else repr(argument) for argument in arguments)
        try:
            # The command is cut too: it comes from the caller.
            await self._pool.execute(_RECORD, command, detail[:_MAX_DETAIL], caller.user[:_MAX_USER], caller.uid)
            await self._pool.execute(_FORGET, command, MAX_ROWS)
        except (TreatyError, *DATABASE_ERRORS) as error:
            _log.error("an act of the operator is not in the database", command=command, error=repr(error))

    async def newest(self, count: int) -> list[Act]:
        """Return the newest acts, the newest first."""
        return [Act(**row) for row in await self._pool.fetch(_NEWEST, count)]

    async def last(self, command: str) -> int | None:
        """Return when a command was done last, in Unix seconds; None for never, as far as the table goes back."""
        time: int | None = await self._pool.fetchval(_LAST, command)
        return time


def calling_user() -> str:
    """Return who called this process: the user of the login, who stays the same through sudo and a change of the user."""
    try:
        login = int(Path("/proc/self/loginuid").read_text())
    except (OSError, ValueError):
        login = _NO_LOGIN
    if login != _NO_LOGIN:
        return named_user(login)
    return os.environ.get("SUDO_USER") or getpass.getuser()
