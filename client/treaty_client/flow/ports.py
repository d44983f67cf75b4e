"""What a negotiation needs of its agent, as small interfaces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..session.hosting import Driver, HandlerHost
from ..session.ports import SpokenProtocol
from .adaptation import Thresholds
from .engine import FlowLimits, FlowTimeouts
from .payloads import ContextInfo
from .processor import Now

Lookup = Callable[[str], Awaitable[Mapping[str, bytes] | Sequence[bytes]]]
"""DID to the Ed25519 keys under `authentication`: 32 bytes each, by DID URL or bare. Raises `TreatyError`."""


@dataclass(frozen=True)
class Located:
    """What an id means here: the protocol's URI, and its document's SHA-256 as far as it is known before it is fetched, else
    ""."""

    uri: str
    digest: str = ""


class Names(Protocol):
    """Turns ids into verified protocols; `names.PolicyNames` is one. Safe for concurrent use on one event loop."""

    async def locate(self, id: str, digest: str = "") -> Located:
        """What the owner, or the policy, lets this id mean. `digest`: the document that the other side means, which it must be.
        Raises `TreatyError`."""

    async def fetch(self, id: str, located: Located) -> SpokenProtocol:
        """The protocol, verified by all steps, with the claim to the id. Raises `TreatyError`."""


@dataclass(frozen=True)
class HostRequest:
    """For whom a handler is. `calling`: whether this side begins, and so calls; `parameters`: what was agreed on."""

    peer: str
    calling: bool
    parameters: Mapping[str, Any] = field(default_factory=dict)


class Hosts(Protocol):
    """Has handlers run; `hosts.HandlerHosts` is one. For one event loop."""

    async def host(self, driver: Driver, protocol: SpokenProtocol, request: HostRequest) -> HandlerHost:
        """A handler for a session, not opened yet. Raises `TreatyError`."""

    async def carry(self, former: SpokenProtocol, protocol: SpokenProtocol, request: HostRequest) -> None:
        """A session's protocol changes, and its former handler is closed: let the new one find what that kept. Raises
        `TreatyError`."""


def system_clock() -> Now:
    """The time of this machine."""
    return Now(asyncio.get_running_loop().time(), time.time_ns() // 1_000_000)


@dataclass(frozen=True)
class FlowSettings:
    """What an agent's owner chooses of this profile. `thresholds`: when a session is changed, and how hard is tried; `context`:
    this side's situation, until `MetaProtocolManager.tell`; `shortcuts`: whether what succeeded before is proposed at once
    (cached and predictive negotiation); `resolvers`: of DID methods beside did:key, did:wba and did:web, by their names, such as
    `anp`."""

    timeouts: FlowTimeouts = field(default_factory=FlowTimeouts)
    limits: FlowLimits = field(default_factory=FlowLimits)
    thresholds: Thresholds = field(default_factory=Thresholds)
    context: ContextInfo | None = None
    shortcuts: bool = True
    resolvers: Mapping[str, Lookup] = field(default_factory=dict)


@dataclass(frozen=True)
class Surroundings:
    """What all connections of an agent share. `send`, `flush`: seconds for a peer to read a message, and the last ones;
    `observe`: told of each event's name as it happens."""

    names: Names
    hosts: Hosts
    settings: FlowSettings = field(default_factory=FlowSettings)
    clock: Callable[[], Now] = system_clock
    send: float = 30.0
    flush: float = 3.0
    observe: Callable[[str], None] = lambda name: None
