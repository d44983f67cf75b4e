"""Start workers at the strongest level of isolation that this machine has, among those that are accepted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Unavailable
from treaty_io.codes import SandboxCode

from .isolation import Isolation
from .launch import Starter
from .levels import level_of
from .limits import SandboxLimits
from .process import WorkerProcess
from .template import starter

# The second: another system than Linux has no sandbox.
_LACKS = (SandboxCode.UNAVAILABLE, SystemCode.MISSING)
_log = logging.getLogger(__name__)


class StrongestLevel:
    """Start workers at one level: the first of a list at which one started. For one event loop."""

    def __init__(self, levels: Sequence[Isolation], limits: SandboxLimits) -> None:
        """Start nothing. `levels`: those that are accepted, in the order in which they are tried."""
        self.lacks: dict[Isolation, Unavailable] = {}
        """Why the levels before the chosen one do not start here."""
        self._levels, self._limits = levels, limits
        self._starters = [starter(level_of(isolation), limits) for isolation in levels]
        self._chosen: Starter | None = None
        self._is_closed = False
        # The first start decides. Others that begin meanwhile wait for it, or each would fail at the same levels.
        self._turn = asyncio.Lock()

    @property
    def isolation(self) -> Isolation | None:
        """The level in use. It stays: a worker that does not start later is an error, and no reason for a weaker level."""
        return self._chosen.level.name if self._chosen is not None else None

    async def start(self) -> WorkerProcess:
        """Return a new worker. Raises `Unavailable` (`sandbox.unavailable` with what each level lacks, `sandbox.closed`)."""
        if self._chosen is None:
            async with self._turn:
                if self._chosen is None:
                    return await self._choose()
        return await WorkerProcess.start(self._chosen, self._limits)

    async def close(self) -> None:
        """End what belongs to no worker, a start that is under way too."""
        self._is_closed = True
        for each in self._starters:
            await each.close()

    async def _choose(self) -> WorkerProcess:
        self.lacks.clear()
        for tried in self._starters:
            try:
                worker = await WorkerProcess.start(tried, self._limits)
            except Unavailable as error:
                # Not after `close`, which ends a start at any level.
                if error.code not in _LACKS or self._is_closed:
                    raise
                self.lacks[tried.level.name] = error
            else:
                self._chosen = tried
                for stronger, lack in self.lacks.items():
                    _log.info("Workers run at the level %s, because %s is not to be had: %s", tried.level.name, stronger, lack)
                return worker
        raise self._unavailable()

    def _unavailable(self) -> Unavailable:
        """Return the error for a machine that has none of the levels. It never advises a level that is no sandbox."""
        *_, last = self.lacks.values()
        if last.code == SystemCode.MISSING:
            return last
        reasons = " ".join(f"{isolation}: {error.message}" for isolation, error in self.lacks.items())
        fixes = [error.fix for error in self.lacks.values()]
        if "process" not in self._levels:
            fixes.append('Or accept the level that needs no namespaces: isolation = "process" in the policy.')
        error = Unavailable(
            SandboxCode.UNAVAILABLE, f"This machine has no sandbox that is accepted. {reasons}", fix=" ".join(fixes)
        )
        error.__cause__ = last
        return error
