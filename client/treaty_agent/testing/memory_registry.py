"""A registry in memory for tests of applications: protocols from folders, and the reports of sessions.

It has no log, no election and no proofs. A test of those runs a real registry (`make run`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from treaty_client.protocols.local import ORIGIN, LocalProtocol, LocalProtocols, build_protocol
from treaty_client.protocols.project import Project
from treaty_client.protocols.topics import Candidates
from treaty_consensus.codes import PublishCode, ReportCode
from treaty_consensus.did import Did
from treaty_consensus.errors import Conflict
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.merkle import EMPTY_ROOT
from treaty_consensus.log.note import KeyType, SignerKey
from treaty_consensus.log.note import sign as sign_note
from treaty_consensus.statement import Statement
from treaty_consensus.statement import verify as verify_statement
from treaty_io.codes import ClientRegistryCode
from treaty_io.errors import RegistryUnavailable
from treaty_io.identity import Identity
from treaty_io.network.did_documents import DidResolver

from ..reports.report_rules import OpenEpoch

State = Literal["up", "down", "silent"]
_OPENED = 1_790_000_000  # the time in all reports; a real time would make each run different
_KEY = SignerKey(ORIGIN, KeyType.ED25519, hashlib.sha256(b"memory registry").digest())


class MemoryRegistry:
    """A registry that many agents share.

    `state`: change it at any time. `down`: each request fails. `silent`: no request is answered until the state changes.
    `requests`: what agents asked for, in order. `reports`: the statements that both sides signed, in the order of submission.
    """

    name = f"https://{ORIGIN}#{_KEY.verifier}"
    """BASE_URL#VKEY, as an agent trusts it."""

    def __init__(self, folders: Iterable[str | Path]) -> None:
        """Read all folders. Raises the errors of `LocalProtocols`."""
        self.protocols = LocalProtocols(folders)
        self.requests: list[str] = []
        self.reports: list[Statement] = []
        self.epoch = 0
        self._state: State = "up"
        self._changed = asyncio.Event()

    @property
    def state(self) -> State:
        """Whether the registry answers."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def answer(self, request: str) -> None:
        """Wait as the state demands. Raises `RegistryUnavailable` (`registry.unreachable`)."""
        self.requests.append(request)
        while self._state == "silent":
            await self._changed.wait()
        if self._state == "down":
            raise RegistryUnavailable(
                ClientRegistryCode.UNREACHABLE, "The registry is down.", fix="The test has set its state to down; set it to up."
            )


@dataclass
class RegistryView:
    """One agent's use of the registry: implements `ProtocolSource`, `ProtocolPublisher` and `ReportLog`.

    What was fetched once stays known, as in the store of a home.
    """

    registry: MemoryRegistry
    identity: Identity
    resolver: DidResolver
    _known: dict[str, LocalProtocol] = field(default_factory=dict)

    async def fetch(self, uri: str) -> LocalProtocol:
        """Return the protocol of a URI. Raises `NotFound` (`protocol.unknown`) and `Unavailable`."""
        if uri not in self._known:
            await self.registry.answer(f"fetch {uri}")
            self._known[uri] = await self.registry.protocols.fetch(uri)
        return self._known[uri]

    async def renew(self, uri: str) -> LocalProtocol:
        return await self.fetch(uri)

    def cached(self, document_hash: str) -> LocalProtocol | None:
        """Return a protocol that was fetched, or None."""
        return next((protocol for protocol in self._known.values() if protocol.hash == document_hash), None)

    def holds(self, uri: str) -> bool:
        """Return whether a URI was fetched."""
        return uri in self._known

    async def document(self, uri: str) -> bytes:
        """Return the document of a URI. Raises the errors of `fetch`."""
        return (await self.fetch(uri)).document

    async def candidates(self, topic: str, *, fresh: bool = False) -> Candidates:
        """Return the protocols of a topic. Raises `Unavailable`."""
        await self.registry.answer(f"topic {topic}")
        return await self.registry.protocols.candidates(topic)

    async def publish(self, project: Project) -> str:
        """Publish in the namespace of this agent, and return the URI. Raises `Conflict` (`publish.version-exists`)."""
        uri = f"https://{ORIGIN}/protocols/{self.identity.parsed.namespace}/{project.name}/{project.version}"
        await self.registry.answer(f"publish {uri}")
        if self.registry.protocols.holds(uri):
            raise Conflict(PublishCode.VERSION_EXISTS, f"{uri} is published already.")
        self.registry.protocols = self.registry.protocols.with_protocol(build_protocol(project, uri))
        return uri

    async def aclose(self) -> None:
        """Do nothing."""

    # The log, for reports

    async def epoch(self) -> OpenEpoch:
        """Return the open epoch. Raises `Unavailable`."""
        await self.registry.answer("epoch")
        return OpenEpoch(self.registry.epoch, _OPENED)

    def newest_seen(self) -> bytes:
        """Return a signed checkpoint of an empty log."""
        return sign_note(Checkpoint(ORIGIN, 0, EMPTY_ROOT).format(), [_KEY])

    async def observe(self, note: bytes) -> None:
        """Accept any checkpoint: there is no log."""

    async def keys(self, did: Did) -> Mapping[str, bytes]:
        """Return the keys of an agent of the test. Raises the errors of the resolver."""
        return (await self.resolver.resolve(did)).keys

    async def submit(self, report: Statement) -> None:
        """Keep a report. Raises `Unauthorized` for a wrong signature, and `Unavailable`."""
        await self.registry.answer("report")
        keys: dict[str, bytes] = {}
        for did in report.authors:
            keys.update(await self.keys(did))
        verify_statement(report, keys)
        if any(report.id == other.id for other in self.registry.reports):
            raise Conflict(ReportCode.EXISTS, "The report is known already.")
        self.registry.reports.append(report)
