"""An agent: `from treaty_agent import Agent, AgentConfig, Identity, Policy`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treaty_io.extras import lazy_names

if TYPE_CHECKING:
    from treaty_anp.flow_profile.capabilities import FlowRequest as FlowRequest
    from treaty_anp.flow_profile.capabilities import ProtocolOffer as ProtocolOffer
    from treaty_anp.flow_profile.states import FlowLimits as FlowLimits
    from treaty_anp.flow_profile.states import FlowTimeouts as FlowTimeouts
    from treaty_anp.hello_profile.core import Limits as Limits
    from treaty_anp.trace_context import TraceContext as TraceContext
    from treaty_client.policy import Policy as Policy
    from treaty_client.protocols.local import LocalProtocols as LocalProtocols
    from treaty_consensus.errors import Conflict as Conflict
    from treaty_consensus.errors import Gone as Gone
    from treaty_consensus.errors import Malformed as Malformed
    from treaty_consensus.errors import NotFound as NotFound
    from treaty_consensus.errors import Origin as Origin
    from treaty_consensus.errors import Refused as Refused
    from treaty_consensus.errors import TooLarge as TooLarge
    from treaty_consensus.errors import TreatyError as TreatyError
    from treaty_consensus.errors import Unauthorized as Unauthorized
    from treaty_consensus.errors import Unavailable as Unavailable
    from treaty_consensus.errors import Untrusted as Untrusted
    from treaty_io.errors import PeerUnavailable as PeerUnavailable
    from treaty_io.errors import RegistryUnavailable as RegistryUnavailable
    from treaty_io.identity import ClaimedPeer as ClaimedPeer
    from treaty_io.identity import Identity as Identity
    from treaty_io.identity import ProvedPeer as ProvedPeer
    from treaty_io.network.hosts import Network as Network
    from treaty_sandbox.limits import SandboxLimits as SandboxLimits
    from treaty_sandbox.passivation import Passivation as Passivation

    from .agent import Agent as Agent
    from .config import AgentConfig as AgentConfig
    from .negotiators.language_model import Allowance as Allowance
    from .negotiators.language_model import Budget as Budget
    from .negotiators.model_negotiator import ModelNegotiators as ModelNegotiators
    from .negotiators.negotiator import ModelSpend as ModelSpend
    from .negotiators.negotiator import Negotiator as Negotiator
    from .negotiators.negotiator import Negotiators as Negotiators
    from .negotiators.negotiator import Requirement as Requirement
    from .negotiators.openai import OpenAIModel as OpenAIModel
    from .sessions.activity import AgentMetrics as AgentMetrics
    from .sessions.arrivals import BroadcastOutcome as BroadcastOutcome
    from .sessions.call_context import CallContext as CallContext
    from .sessions.call_context import current_call as current_call
    from .sessions.escalation import Escalation as Escalation
    from .sessions.flow_context import FlowSettings as FlowSettings
    from .sessions.interfaces import AgentEvent as AgentEvent
    from .sessions.interfaces import Capacity as Capacity
    from .sessions.interfaces import PeerSettings as PeerSettings
    from .sessions.interfaces import SessionTimeouts as SessionTimeouts
    from .sessions.middleware import Call as Call
    from .sessions.middleware import Middleware as Middleware
    from .sessions.middleware import Proceed as Proceed
    from .sessions.opening import ChangedPeer as ChangedPeer
    from .sessions.operation_errors import OperationError as OperationError
    from .sessions.operation_errors import OutcomeUnknown as OutcomeUnknown
    from .sessions.operation_errors import PeerOperationError as PeerOperationError
    from .sessions.peer import Peer as Peer
    from .sessions.session import ItemStream as ItemStream
    from .sessions.session import Session as Session
    from .sessions.shared_handler import SharedMember as SharedMember
    from .sessions.shared_session import SharedSession as SharedSession
    from .sessions.stay import Stay as Stay
    from .transport.application import StaticDocument as StaticDocument
else:
    # At their first use, so that the command line reads an agent's settings without all that an agent imports.
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".agent": "Agent",
            ".config": "AgentConfig",
            ".negotiators.language_model": "Allowance Budget",
            ".negotiators.model_negotiator": "ModelNegotiators",
            ".negotiators.negotiator": "ModelSpend Negotiator Negotiators Requirement",
            ".negotiators.openai": "OpenAIModel",
            ".sessions.activity": "AgentMetrics",
            ".sessions.arrivals": "BroadcastOutcome",
            ".sessions.call_context": "CallContext current_call",
            ".sessions.escalation": "Escalation",
            ".sessions.flow_context": "FlowSettings",
            ".sessions.interfaces": "AgentEvent Capacity PeerSettings SessionTimeouts",
            ".sessions.middleware": "Call Middleware Proceed",
            ".sessions.opening": "ChangedPeer",
            ".sessions.operation_errors": "OperationError OutcomeUnknown PeerOperationError",
            ".sessions.peer": "Peer",
            ".sessions.session": "ItemStream Session",
            ".sessions.shared_handler": "SharedMember",
            ".sessions.shared_session": "SharedSession",
            ".sessions.stay": "Stay",
            ".transport.application": "StaticDocument",
            "treaty_anp.flow_profile.capabilities": "FlowRequest ProtocolOffer",
            "treaty_anp.flow_profile.states": "FlowLimits FlowTimeouts",
            "treaty_anp.hello_profile.core": "Limits",
            "treaty_anp.trace_context": "TraceContext",
            "treaty_client.policy": "Policy",
            "treaty_client.protocols.local": "LocalProtocols",
            "treaty_consensus.errors": (
                "Conflict Gone Malformed NotFound Origin Refused TooLarge TreatyError Unauthorized Unavailable Untrusted"
            ),
            "treaty_io.errors": "PeerUnavailable RegistryUnavailable",
            "treaty_io.identity": "ClaimedPeer Identity ProvedPeer",
            "treaty_io.network.hosts": "Network",
            "treaty_sandbox.limits": "SandboxLimits",
            "treaty_sandbox.passivation": "Passivation",
        },
    )
