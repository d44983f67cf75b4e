"""Protocols from folders of this machine, without a registry.

    protocols = LocalProtocols(["protocols/greeting"])
    agent = Agent(identity, protocols)
    agent.provides(protocols.uri("greeting"))

The owner vouches for the folders: there is no log, no signature and no election, so none of the ten steps applies. Code in a
folder still runs in the sandbox of the policy. Two agents agree when both have the same document under the same URI.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from treaty_consensus.codes import ProtocolCode
from treaty_consensus.errors import Malformed, NotFound, Refused
from treaty_consensus.handler import HandlerPackage, read_wheel
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io.codes import AgentCode, ProjectCode

from .project import Project, load_project
from .topics import Candidates

ORIGIN = "registry.invalid"
"""The origin in the URIs of folders that have no other URI. RFC 6761 §6.4 reserves the domain, so no registry has it."""
NAMESPACE = "local.invalid"


@dataclass(frozen=True)
class LocalProtocol:
    """A protocol that its owner has as files. `package`: its handler, built from them."""

    uri: str
    hash: str
    topic: str
    package: HandlerPackage
    document: bytes
    aliases: tuple[str, ...] = ()

    def age(self, now: int) -> int:
        """Return 0: files are as new as their owner wants them."""
        return 0


class LocalProtocols:
    """Offer the protocols of some folders. Immutable; implements `ProtocolSource`."""

    origin = ORIGIN

    def __init__(self, folders: Iterable[str | Path] | Mapping[str, str | Path]) -> None:
        """Read and build all folders.

        `folders`: projects, as `treaty publish` reads them. Or a map of URI to project, for peers that have the protocol from a
        registry.

        Raises `NotFound`, also for a protocol without a handler, `Malformed` and `TooLarge` (`project.…`, `handler.…`).
        """
        if isinstance(folders, Mapping):
            protocols = [build_protocol(load_project(Path(folder)), uri) for uri, folder in folders.items()]
        else:
            protocols = [build_protocol(load_project(Path(folder))) for folder in folders]
        self._protocols = {protocol.uri: protocol for protocol in protocols}
        if len(self._protocols) < len(protocols):
            raise Malformed(ProjectCode.FILE, "Two folders have the same protocol.", fix="Name each version of a protocol once.")

    @property
    def uris(self) -> tuple[str, ...]:
        """The URIs of all protocols, in the order of the folders."""
        return tuple(self._protocols)

    def uri(self, name: str) -> str:
        """Return the URI of the protocol with this name, the last of the folders if there are several versions. Raises
        `NotFound` (`protocol.unknown`)."""
        for uri in reversed(self.uris):
            if parse_protocol_uri(uri).name == name:
                return uri
        return self._unknown(name)

    async def fetch(self, uri: str) -> LocalProtocol:
        """Return the protocol of a URI. Raises `NotFound` (`protocol.unknown`)."""
        return self._protocols.get(uri) or self._unknown(uri)

    async def renew(self, uri: str) -> LocalProtocol:
        """Return the protocol of a URI. Raises as `fetch`."""
        return await self.fetch(uri)

    def cached(self, document_hash: str) -> LocalProtocol | None:
        """Return the protocol with this document, or None."""
        return next((protocol for protocol in self._protocols.values() if protocol.hash == document_hash), None)

    def holds(self, uri: str) -> bool:
        """Return whether a folder has this URI."""
        return uri in self._protocols

    async def document(self, uri: str) -> bytes:
        """Return the document of a URI. Raises `NotFound` (`protocol.unknown`)."""
        return (await self.fetch(uri)).document

    async def candidates(self, topic: str, *, fresh: bool = False) -> Candidates:
        """Return the protocols of a topic, in the order of the folders."""
        return Candidates(tuple(uri for uri, protocol in self._protocols.items() if protocol.topic == topic))

    def with_protocol(self, protocol: LocalProtocol) -> LocalProtocols:
        """Return these protocols and one more. Replaces a protocol of the same URI."""
        more = LocalProtocols(())
        more._protocols = {**self._protocols, protocol.uri: protocol}
        return more

    async def publish(self, project: Project) -> NoReturn:
        """Raise `Refused` (`agent.settings`)."""
        raise Refused(AgentCode.SETTINGS, f"{project.name} is not published: this agent has no registry.")

    async def aclose(self) -> None:
        """Do nothing: no file stays open."""

    def _unknown(self, name: str) -> NoReturn:
        raise NotFound(
            ProtocolCode.UNKNOWN,
            f"No folder has {name[:200]!r}.",
            fix=f"Known: {', '.join(self.uris) or 'none'}. Add its folder to LocalProtocols.",
        )


def build_protocol(project: Project, uri: str = "") -> LocalProtocol:
    """Build the handler of a project in memory. `uri`: its URI, or "" for one of `ORIGIN`. Raises the errors of
    `LocalProtocols`."""
    if project.handler is None:
        raise NotFound(
            ProjectCode.FILE,
            f"{project.folder} has no handler, so no agent can speak {project.name}.",
            fix="Add message forms to its manifest, or a handler: see docs/guides/handlers.md.",
        )
    uri = uri or f"https://{ORIGIN}/protocols/{NAMESPACE}/{project.name}/{project.version}"
    package = read_wheel(*project.build_wheel(uri))
    return LocalProtocol(uri, project.protocol_hash, project.topic, package, project.document, project.aliases)
