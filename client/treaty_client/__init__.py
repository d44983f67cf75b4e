"""An agent's side of Treaty: `from treaty_client import Agent, AgentConfig, Identity, Policy`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treaty_consensus.errors import (
        Conflict,
        Gone,
        Malformed,
        NotFound,
        Origin,
        Refused,
        TooLarge,
        TreatyError,
        Unauthorized,
        Unavailable,
        Untrusted,
    )

    from .agent import Agent
    from .anp.flow_profile.capabilities import FlowRequest
    from .anp.flow_profile.registry import ProtocolOffer
    from .anp.flow_profile.states import FlowLimits, FlowTimeouts
    from .anp.hello_profile.core import Limits
    from .anp.trace_context import TraceContext
    from .config import AgentConfig
    from .errors import PeerUnavailable, RegistryUnavailable
    from .identity import ClaimedPeer, Identity, ProvedPeer
    from .negotiators.model_negotiator import ModelNegotiators
    from .negotiators.negotiator import Negotiator, Negotiators, Requirement
    from .negotiators.openai import OpenAIModel
    from .network.hosts import Network
    from .policy import Policy
    from .protocols.local import LocalProtocols
    from .sandbox.bubblewrap import SandboxLimits
    from .sandbox.passivation import Passivation
    from .sessions.activity import AgentMetrics
    from .sessions.arrivals import BroadcastOutcome
    from .sessions.call_context import CallContext, current_call
    from .sessions.escalation import Escalation
    from .sessions.flow_context import FlowSettings
    from .sessions.interfaces import AgentEvent, Capacity, PeerSettings, SessionTimeouts
    from .sessions.middleware import Call, Middleware, Proceed
    from .sessions.opening import ChangedPeer
    from .sessions.operation_errors import OperationError, OutcomeUnknown, PeerOperationError
    from .sessions.peer import Peer
    from .sessions.session import ItemStream, Session
    from .sessions.shared_member import SharedMember
    from .sessions.shared_session import SharedSession
else:
    _ERRORS = ("Conflict", "Gone", "Malformed", "NotFound", "Refused", "TooLarge", "TreatyError")
    _MODULES = {
        "Agent": ".agent",
        "AgentConfig": ".config",
        "AgentEvent": ".sessions.interfaces",
        "AgentMetrics": ".sessions.activity",
        "BroadcastOutcome": ".sessions.arrivals",
        "Call": ".sessions.middleware",
        "CallContext": ".sessions.call_context",
        "Capacity": ".sessions.interfaces",
        "ChangedPeer": ".sessions.opening",
        "ClaimedPeer": ".identity",
        "Escalation": ".sessions.escalation",
        "FlowLimits": ".anp.flow_profile.states",
        "FlowRequest": ".anp.flow_profile.capabilities",
        "FlowSettings": ".sessions.flow_context",
        "FlowTimeouts": ".anp.flow_profile.states",
        "Identity": ".identity",
        "ItemStream": ".sessions.session",
        "Limits": ".anp.hello_profile.core",
        "LocalProtocols": ".protocols.local",
        "Middleware": ".sessions.middleware",
        "ModelNegotiators": ".negotiators.model_negotiator",
        "Negotiator": ".negotiators.negotiator",
        "Negotiators": ".negotiators.negotiator",
        "Network": ".network.hosts",
        "OpenAIModel": ".negotiators.openai",
        "OperationError": ".sessions.operation_errors",
        "OutcomeUnknown": ".sessions.operation_errors",
        "PeerOperationError": ".sessions.operation_errors",
        "PeerUnavailable": ".errors",
        "RegistryUnavailable": ".errors",
        "Passivation": ".sandbox.passivation",
        "Peer": ".sessions.peer",
        "PeerSettings": ".sessions.interfaces",
        "Policy": ".policy",
        "Proceed": ".sessions.middleware",
        "ProvedPeer": ".identity",
        "ProtocolOffer": ".anp.flow_profile.registry",
        "Requirement": ".negotiators.negotiator",
        "SandboxLimits": ".sandbox.bubblewrap",
        "Session": ".sessions.session",
        "SessionTimeouts": ".sessions.interfaces",
        "SharedMember": ".sessions.shared_member",
        "SharedSession": ".sessions.shared_session",
        "TraceContext": ".anp.trace_context",
        "current_call": ".sessions.call_context",
        **dict.fromkeys((*_ERRORS, "Unauthorized", "Unavailable", "Untrusted", "Origin"), "treaty_consensus.errors"),
    }

    def __getattr__(name: str) -> object:
        """Import a public name at its first use, so that the command line does not import a whole agent."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from treaty_consensus.extras import naming_extras

        with naming_extras():
            value = globals()[name] = getattr(import_module(_MODULES[name], __name__), name)
        return value

    def __dir__() -> list[str]:
        """List the public names, those not yet imported too."""
        return sorted({*globals(), *__all__})


__all__ = [
    "Agent",
    "AgentConfig",
    "AgentEvent",
    "AgentMetrics",
    "BroadcastOutcome",
    "Call",
    "CallContext",
    "Capacity",
    "ChangedPeer",
    "ClaimedPeer",
    "Conflict",
    "Escalation",
    "FlowLimits",
    "FlowRequest",
    "FlowSettings",
    "FlowTimeouts",
    "Gone",
    "Identity",
    "ItemStream",
    "Limits",
    "LocalProtocols",
    "Malformed",
    "Middleware",
    "ModelNegotiators",
    "Negotiator",
    "Negotiators",
    "Network",
    "NotFound",
    "OpenAIModel",
    "OperationError",
    "Origin",
    "OutcomeUnknown",
    "Passivation",
    "Peer",
    "PeerOperationError",
    "PeerSettings",
    "PeerUnavailable",
    "Policy",
    "Proceed",
    "ProtocolOffer",
    "ProvedPeer",
    "Refused",
    "RegistryUnavailable",
    "Requirement",
    "SandboxLimits",
    "Session",
    "SessionTimeouts",
    "SharedMember",
    "SharedSession",
    "TooLarge",
    "TraceContext",
    "TreatyError",
    "Unauthorized",
    "Unavailable",
    "Untrusted",
    "current_call",
]
