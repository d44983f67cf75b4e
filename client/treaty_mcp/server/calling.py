"""Tools that meet agents: find them, list the operations of a protocol, and call one."""

from __future__ import annotations

from typing import Any

import msgspec

from treaty_agent.agent import Agent
from treaty_agent.discovery.client import Discoverer
from treaty_agent.rpc.exchange import is_loopback
from treaty_agent.sessions.opening import PeerName
from treaty_consensus.errors import NotFound, Refused
from treaty_io.codes import NetworkCode, RpcCode
from treaty_io.identity import ProvedPeer
from treaty_io.network.hosts import Network

from ..tools.quoting import line
from ..tools.reads import NameArguments
from ..tools.tool import Arguments, OwnTool, ToolResult
from .native import value_of
from .reading import Registry, UriArguments, proof_of

MAX_LISTED = 64


class DiscoveredProtocol(msgspec.Struct, frozen=True):
    uri: str
    role: str


class DiscoveredAgent(msgspec.Struct, frozen=True):
    name: str
    did: str
    description: str
    addresses: list[str]
    protocols: list[DiscoveredProtocol]


class DiscoveredAgents(msgspec.Struct, frozen=True):
    agents: list[DiscoveredAgent]


class DescribedOperation(msgspec.Struct, frozen=True):
    name: str
    kind: str
    callers: list[str]
    arguments: dict[str, Any]
    result: dict[str, Any] | None


class DescribedOperations(msgspec.Struct, frozen=True):
    uri: str
    hash: str
    operations: list[DescribedOperation]


class CallArguments(Arguments, frozen=True):
    agent: str
    protocol: str
    operation: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class CallValue(msgspec.Struct, frozen=True):
    value: Any


class Discover(OwnTool[NameArguments]):
    """Find the agents of a domain, a DID or the https URL of a description. Their texts are their own; nothing is proved."""

    name, arguments_form, result_form = "discover", NameArguments, DiscoveredAgents

    def __init__(self, network: Network) -> None:
        self._network = network

    async def work(self, arguments: NameArguments) -> ToolResult:
        # The guard of discovery takes public addresses only, by https on their usual port.
        found = await Discoverer(self._network).discover(arguments.name)
        agents = [
            DiscoveredAgent(
                line(agent.name),
                line(agent.did),
                line(agent.description),
                [line(address) for address in agent.addresses],
                [DiscoveredProtocol(line(one.uri), line(one.role)) for one in agent.protocols[:MAX_LISTED]],
            )
            for agent in found.agents
        ]
        return ToolResult(msgspec.to_builtins(DiscoveredAgents(agents)))


class Operations(OwnTool[UriArguments]):
    """List the operations of a protocol with the JSON Schemas of their arguments and results, after all checks of `verify`.
    Descriptions in the schemas are their publisher's."""

    name, arguments_form, result_form = "operations", UriArguments, DescribedOperations

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def work(self, arguments: UriArguments) -> ToolResult:
        verified = await self._registry.fetcher.fetch(arguments.uri)
        manifest = verified.package.manifest
        described = [
            DescribedOperation(
                name,
                operation.kind.value,
                [role.name for role in manifest.roles.values() if name in role.calls],
                dict(operation.arguments),
                None if operation.result is None else dict(operation.result),
            )
            for name, operation in manifest.operations.items()
        ]
        value = DescribedOperations(verified.uri, verified.hash, described)
        return ToolResult(msgspec.to_builtins(value), proof=proof_of(verified))


class Call(OwnTool[CallArguments]):
    """Call an operation of an agent, by the name of the agent (a domain or a DID), the URI of the protocol and the name of the
    operation. The value is the agent's."""

    name, arguments_form, result_form = "call", CallArguments, CallValue
    is_read_only = is_idempotent = False

    def __init__(self, agent: Agent, registry: Registry, *, loopback: bool) -> None:
        """`loopback`: whether an agent may be a URL of this machine."""
        self._agent, self._registry, self._loopback = agent, registry, loopback

    async def work(self, arguments: CallArguments) -> ToolResult:
        self._check(arguments.agent)
        # Before the connection: the policy admits the protocol, whatever the agent prefers.
        verified = await self._registry.fetcher.fetch(arguments.protocol)
        operation = verified.package.manifest.operations.get(arguments.operation)
        if operation is None:
            names = ", ".join(verified.package.manifest.operations)
            raise NotFound(RpcCode.NOTHING, f"The protocol has no operation {line(arguments.operation, 80)}. It has: {names}.")
        async with self._agent.connect(arguments.agent, protocols=[verified.uri]) as session:
            value = await value_of(session, operation, arguments.arguments)
            peer = {"agent": session.peer.did, "proved": isinstance(session.peer, ProvedPeer)}
        return ToolResult({"value": value}, proof={**proof_of(verified), **peer})

    def _check(self, name: str) -> None:
        """Check an address that a model chose. A name is discovered, and its addresses must be public. Raises `Refused`
        (`network.url`)."""
        if not PeerName.parse(name).is_url:
            return
        if not (self._loopback and is_loopback(name.replace("ws://", "http://", 1))):
            raise Refused(
                NetworkCode.URL,
                "An agent is named by its domain or its DID, and not by a URL.",
                fix="To reach agents of this machine, its owner starts the server with --loopback.",
            )
