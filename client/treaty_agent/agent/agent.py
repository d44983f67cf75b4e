"""An agent: an application uses it to speak protocols with other agents.

The first `Agent` imports the sessions with all their libraries; importing its class does not, so that a program starts fast.

    agent = Agent(identity, "https://registry.example#<vkey>", Policy(publishers=["did:wba:example.com"]))

    @agent.provides("https://registry.example/protocols/example.com/product-info/1.0")        # the shop
    async def getProductInfo(productId: str = "", productName: str = "") -> dict: ...
    await agent.serve("0.0.0.0", 9000)

    async with agent.connect("ws://shop.example:9000", topic="commerce/product-info") as session:     # the buyer
        info = await session.call("getProductInfo", productId="P12345")

Where nothing is published yet, two agents with negotiators agree on a protocol themselves, the first time:

    @agent.offers                                                                              # the shop
    async def getProductInfo(productId: str) -> Product: ...

    wanted = Requirement("Get a product by its id.", topic="commerce/product-info")            # the buyer
    async with agent.connect("ws://shop.example:9000", requirement=wanted) as session: ...
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from treaty_consensus.errors import Conflict
from treaty_io import tracing
from treaty_io.codes import AgentCode
from treaty_io.extras import naming_extras
from treaty_io.home import default_home

from .connecting import ConnectingAgent
from .serving import ServingAgent

if TYPE_CHECKING:
    from treaty_client.policy import Policy
    from treaty_client.protocols.local import LocalProtocols
    from treaty_io.identity import Identity
    from treaty_io.network.hosts import Network

    from ..config import AgentConfig
    from ..negotiators.negotiator import Negotiators
    from ..sessions.activity import AgentMetrics
    from ..sessions.context import AgentContext
    from ..sessions.escalation import OnEscalation
    from ..sessions.flow_manager import MetaProtocolManager
    from ..sessions.interfaces import AgentEvent, Ports
    from ..sessions.opening import OnChangedPeer


class Agent(ServingAgent, ConnectingAgent):
    """One identity's sessions, in both directions. For one event loop; `aclose` it. `config`: the effective configuration."""

    def __init__(
        self,
        identity: Identity,
        registry: str | LocalProtocols,
        config: AgentConfig | Policy | None = None,
        *,
        home: Path | None = None,
        network: Network | None = None,
        negotiators: Negotiators | None = None,
        on_escalation: OnEscalation | None = None,
        on_event: Callable[[AgentEvent], None] | None = None,
        on_changed_peer: OnChangedPeer | None = None,
        ports: Ports | None = None,
    ) -> None:
        """Make an agent; nothing is sent or started.

        `registry`: BASE_URL#VKEY. The home trusts it from now on; negotiated protocols are published and reported there. Or
        protocols in folders, without any registry: then nothing is published or reported.
        `config`: the owner's choices. A policy, with the `home`, is short for AgentConfig(policy, home=home).
        `negotiators`: decide in negotiations and are closed with the agent; without them there are none. `on_escalation`: asked
        when they fail (`sessions.escalation`). `on_event`: called with each event as it happens; must not block.
        `on_changed_peer`: asked when another DID answers at a known address; without it that is refused (`sessions.opening`).
        `ports`: replace the network and the sandbox.

        Raises `Malformed` for a registry without its key, or with `config.file` for a `home` beside an `AgentConfig`; `Conflict`
        for a registry that is trusted by another key; `Refused` (`agent.settings`) for negotiators without a sandbox. Then
        nothing changed.
        """
        # Here, so that importing this class costs little.
        with naming_extras():
            from .assembly import assemble

        self.config, self._network, self._context, self._endpoint, self._opener = assemble(
            identity,
            registry,
            config,
            home=home,
            network=network,
            negotiators=negotiators,
            on_escalation=on_escalation,
            on_event=on_event,
            on_changed_peer=on_changed_peer,
            ports=ports,
        )
        self._pools = set()

    @classmethod
    def from_home(
        cls,
        home: Path | None = None,
        *,
        registry: str = "",
        network: Network | None = None,
        negotiators: Negotiators | None = None,
        on_escalation: OnEscalation | None = None,
        on_event: Callable[[AgentEvent], None] | None = None,
        on_changed_peer: OnChangedPeer | None = None,
        ports: Ports | None = None,
    ) -> Agent:
        """Make the agent of a home (default: $TREATY_HOME or ~/.treaty): its identity, policy.toml, agent.toml and the registry
        that it trusts.

        `registry`: the origin of a trusted registry where there are several, or BASE_URL#VKEY. `network`: default, the one of
        $TREATY_RESOLVE and $TREATY_CA. The others as in `Agent`.

        Raises the errors of `Identity.load`, `AgentConfig.load`, `TrustedRegistries.choose`, `Network.from_environment` and
        `Agent`. Then nothing changed.
        """
        from treaty_client.registries.trust import TrustedRegistries
        from treaty_io.identity import Identity
        from treaty_io.network.hosts import Network

        from ..config import AgentConfig

        home = home or default_home()
        return cls(
            Identity.load(home / "identity.json"),
            registry if "#" in registry else str(TrustedRegistries(home).choose(registry).name),
            AgentConfig.load(home, negotiates=negotiators is not None),
            network=network or Network.from_environment(),
            negotiators=negotiators,
            on_escalation=on_escalation,
            on_event=on_event,
            on_changed_peer=on_changed_peer,
            ports=ports,
        )

    @property
    def did(self) -> str:
        """The DID of this agent."""
        return self._context.identity.did

    @property
    def context(self) -> AgentContext:
        """The state that all sessions of this agent share. Read it only."""
        return self._context

    @property
    def flow(self) -> MetaProtocolManager:
        """This agent in the flow profile: register offers, or negotiate over a connection. `listen` and `accept` serve these
        offers beside the Hello profile."""
        return self._endpoint.flow

    def metrics(self) -> AgentMetrics:
        """Return the numbers of sessions, calls, functions, threads, workers and reports at this moment. Cheap: call it as often
        as you like."""
        return self._context.metrics(waiting=self._opener.waiting)

    def reload(self, identity: Identity | None = None) -> bool:
        """Go on with a rotated key, without a restart. New sessions, requests and statements are signed with it, and the served
        DID document has it. Return whether the key changed. Call it in the event loop.

        `identity`: by default that of HOME/identity.json. Raises the errors of `Identity.load`, and `Conflict` (`agent.settings`)
        for another DID. Then nothing changed.
        """
        from treaty_io.identity import Identity

        identity = identity or Identity.load(self._context.home / "identity.json")
        if identity.did != self.did:
            raise Conflict(
                AgentCode.SETTINGS,
                f"This agent is {self.did}, and the identity is of {identity.did}.",
                fix="Start another agent for another DID.",
            )
        if identity.key_id == self._context.identity.key_id and identity.public_key == self._context.identity.public_key:
            return False
        self._endpoint.go_on_as(identity)
        return True

    async def __aenter__(self) -> Agent:
        """Load the libraries that sessions need. Raises `Unavailable` (`system.missing`) if `.[agent]` is not installed."""
        from .assembly import import_libraries

        tracing.start("treaty-agent")
        # Before the first session, which would wait for it, and in a thread: Sigstore takes a third of a second to import.
        await asyncio.to_thread(import_libraries, self._context.ports.protocols)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the sessions, the workers, the negotiators and the connections to registries. Sessions that wait for their report
        have `timeouts.close` for it. Reports that are not due yet stay on disk for the next process."""
        await asyncio.gather(*(pool.aclose() for pool in self._pools))
        # Before the endpoint, which ends the connections of the flow profile.
        await self._context.finish()
        await self._endpoint.aclose()
        await self._context.close()
