"""Tools that sign: vote and publish. They are absent unless the owner names them, and ask the user of the host each time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from treaty_client.protocols.project import load_project
from treaty_client.registries.api import RegistryClient
from treaty_client.statements.publish import Publisher
from treaty_client.statements.vote import parse_tiers
from treaty_client.statements.vote import vote as cast_vote
from treaty_consensus.errors import NotFound
from treaty_io.codes import RpcCode
from treaty_io.identity import Identity
from treaty_io.network.hosts import Network

from ..tools.quoting import line
from ..tools.tool import Arguments, OwnTool, ToolResult
from .reading import Registry


class VoteArguments(Arguments, frozen=True):
    topic: str
    tiers: list[str]


class Statement(msgspec.Struct, frozen=True):
    statement: str


class PublishArguments(Arguments, frozen=True):
    folder: str


class PublishedUri(msgspec.Struct, frozen=True):
    uri: str


class VoteTool(OwnTool[VoteArguments]):
    """Vote on the consensus protocol of a topic, best first, in the name of the owner. The user of the host is asked. The ballot
    is public for ever."""

    name, arguments_form, result_form = "vote", VoteArguments, Statement
    is_read_only = is_idempotent = False

    def __init__(self, registry: Registry, identity: Identity) -> None:
        self._registry, self._identity = registry, identity

    def question(self, arguments: Mapping[str, Any]) -> str:
        parsed = self.parsed(arguments)
        order = ", then ".join(line(tier, 200) for tier in parsed.tiers[:16])
        return f"Sign a public ballot of {self._identity.did} in the topic {line(parsed.topic, 200)}: {order or 'no choice'}?"

    async def work(self, arguments: VoteArguments) -> ToolResult:
        fetcher, origin = self._registry.fetcher, self._registry.origin
        views = [view for view in await fetcher.topic(arguments.topic) if view.evidence.genesis.origin == origin]
        if not views:
            raise NotFound(RpcCode.NOTHING, f"{origin} knows no protocol in {line(arguments.topic, 80)}.")
        ranked, now = parse_tiers(arguments.tiers, views[0]), int(time.time())
        cast = await cast_vote(
            fetcher.client(origin),
            fetcher.head(origin),
            self._identity,
            arguments.topic,
            ranked,
            origin=origin,
            now=now,
            stamping=fetcher.stamping(origin),
        )
        return ToolResult({"statement": cast.statement.id}, proof={"log": origin, "statement": cast.statement.id})


class PublishTool(OwnTool[PublishArguments]):
    """Publish one of the folders that the owner named: its document and its handler. The user of the host is asked. It is public
    for ever."""

    name, arguments_form, result_form = "publish", PublishArguments, PublishedUri
    is_read_only = False

    def __init__(self, registry: Registry, identity: Identity, network: Network, folders: Sequence[Path]) -> None:
        """`folders`: a model names one of them by its last part, and no other, so that no other file leaves by this way."""
        self._registry, self._identity, self._network = registry, identity, network
        self._folders = {folder.resolve().name: folder.resolve() for folder in folders}
        properties = {"folder": {"enum": sorted(self._folders)}}
        self.arguments = {"type": "object", "properties": properties, "required": ["folder"], "additionalProperties": False}

    def question(self, arguments: Mapping[str, Any]) -> str:
        folder = self._folder(self.parsed(arguments))
        project = load_project(folder)
        return f"Publish {project.name} {project.version} from {folder} as {self._identity.did}, for ever?"

    async def work(self, arguments: PublishArguments) -> ToolResult:
        project = load_project(self._folder(arguments))
        fetcher, origin = self._registry.fetcher, self._registry.origin
        async with RegistryClient(fetcher.registries.get(origin).name.base_url, self._network) as client:
            publisher = Publisher(self._identity, client, fetcher.registries, origin, self._network, copies=fetcher.policy.copies)
            steps = [step async for step in publisher.publish(project, namespace=None, allow_uncovered=False, dry_run=False)]
        return ToolResult({"uri": steps[-1].uri}, proof={"log": origin, "document": project.protocol_hash})

    def _folder(self, arguments: PublishArguments) -> Path:
        folder = self._folders.get(arguments.folder)
        if folder is None:
            raise NotFound(
                RpcCode.NOTHING, "The owner did not name this folder.", fix=f"Name one of: {', '.join(self._folders)}."
            )
        return folder
