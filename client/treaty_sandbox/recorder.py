"""Record the sessions of handlers as vectors, a file for each.

    runtime = RecordingRuntime(SandboxRuntime(home), folder)

A file has the format of `vectors`: its replay gives the same effects. The DIDs of the session are replaced by those of a replay,
wherever they stand as text. A file contains the business data of its session, so only its owner can read it. It is written when
the session ends; a crash loses it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from treaty_consensus.handler import HandlerPackage
from treaty_consensus.protocol import ProtocolUri, parse_protocol_uri
from treaty_handler import Effect, Event, PeerJoined
from treaty_io import durable

from .interface import RunningHandler, Runtime, WorkerMetrics
from .kept_session import KeptSession
from .vectors import LOCAL, MAX_VECTOR, PEER, format_step, join_vector

MAX_RECORDINGS = 256
"""Files of a protocol and a role. Strangers may open any number of sessions; beyond the cap none is recorded."""

_log = logging.getLogger(__name__)


def recorded(runtime: Runtime, folder: Path | None) -> Runtime:
    """Return a runtime that records its sessions into a folder, or the same runtime if there is none."""
    return RecordingRuntime(runtime, folder) if folder is not None else runtime


class RecordingRuntime:
    """A `Runtime` that records the sessions of another one. `folder`: of the files."""

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        """Write nothing yet."""
        self._runtime, self._folder = runtime, folder

    async def warm(self) -> None:
        await self._runtime.warm()

    async def preload(self, package: HandlerPackage, *, local: str) -> None:
        await self._runtime.preload(package, local=local)

    async def open(
        self,
        package: HandlerPackage,
        role: str,
        *,
        local: str,
        peer: str,
        seed: str | None = None,
        kept: KeptSession | None = None,
    ) -> RunningHandler:
        if kept is not None:
            # A vector begins with its session, and the former process had that.
            return await self._runtime.open(package, role, local=local, peer=peer, kept=kept)
        seed = seed or secrets.token_hex(16)
        handler = await self._runtime.open(package, role, local=local, peer=peer, seed=seed)
        recording = _Recording(self._folder, parse_protocol_uri(package.manifest.protocol_uri), role, seed)
        return _Recorded(handler, recording, {local: LOCAL, peer: PEER})

    def metrics(self) -> WorkerMetrics:
        return self._runtime.metrics()

    async def close(self) -> None:
        await self._runtime.close()


@dataclass(frozen=True)
class _Recording:
    """The place of a recording, and the parts of its vector beside the steps."""

    folder: Path
    uri: ProtocolUri
    role: str
    seed: str

    def write(self, steps: Sequence[str]) -> None:
        """Write the file under the next free name."""
        title = f"A recorded session of {self.uri.name} {self.uri.version} as {self.role}"
        data = join_vector(title, self.role, [json.loads(step) for step in steps], seed=self.seed)
        for number in range(1, MAX_RECORDINGS + 1):
            path = self.folder / f"{self.uri.name}-{self.uri.version}-{self.role}-{number}.json"
            # Asked first, because `create` writes and syncs the data before it finds a name taken. Another session may take the
            # name in between.
            if not path.exists():
                with suppress(FileExistsError):
                    durable.create(path, data, mode=0o600)
                    return
        _log.warning("%s has %s recordings of a role; this session is not recorded.", self.folder, MAX_RECORDINGS)


class _Recorded:
    """A session that is recorded until it ends or is too large. The steps so far are a vector in any case."""

    def __init__(self, handler: RunningHandler, recording: _Recording, names: Mapping[str, str]) -> None:
        """`names`: the text that replaces each DID."""
        self._handler, self._recording = handler, recording
        # A peer without a name is no text to replace.
        self._names = {own: other for own, other in names.items() if own}
        self._steps: list[str] = []
        self._size = 0
        self._open = True

    async def handle(self, event: Event) -> Sequence[Effect]:
        # A refused event changed nothing or ended the session, so it is no step.
        effects = await self._handler.handle(event)
        if self._open:
            self._note(event, effects)
        return effects

    @property
    def kept(self) -> KeptSession | None:
        return self._handler.kept

    async def close(self) -> None:
        await self._handler.close()
        steps, self._steps, self._open = self._steps, [], False
        if steps:
            try:
                await asyncio.to_thread(self._recording.write, steps)
            # A full disk must not end the agent.
            except OSError as error:
                _log.warning("A recording cannot be written: %s", error)

    def _note(self, event: Event, effects: Sequence[Effect]) -> None:
        if isinstance(event, PeerJoined) and event.peer not in self._names:
            count = len(self._names)  # this side, and the peers that joined before
            self._names[event.peer] = PEER if count == 1 else f"{PEER}{count}"
        text = json.dumps(format_step(event, effects), ensure_ascii=False)
        # The longest first: a DID with a path begins with the DID of its host.
        for own in sorted(self._names, key=len, reverse=True):
            text = text.replace(own, self._names[own])
        self._size += len(text.encode("utf-8", "surrogatepass"))
        # Twice, because the file is indented.
        self._open = 2 * self._size < MAX_VECTOR
        if self._open:
            self._steps.append(text)
