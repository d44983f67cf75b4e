"""The error codes that only this package uses, a class for each prefix; see `treaty_consensus.codes`.

Each module is imported at the first use of one of its names: enumerations are slow to make, and a command raises few codes.
A class is called `Client…` where `treaty_consensus` has codes of the same prefix.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .network import (
        AuthenticationCode,
        ClientDidCode,
        ConnectionCode,
        DirectoryCode,
        DiscoveryCode,
        EgressCode,
        ModelCode,
        NetworkCode,
        RpcCode,
        SecureCode,
    )
    from .registries import (
        AnchorsCode,
        AttestationCode,
        BundleCode,
        ClientAuditCode,
        ClientCheckpointCode,
        ClientDecisionCode,
        ClientIdentityCode,
        ClientLogCode,
        ClientRegistryCode,
        ClientStatusCode,
        ClientTopicCode,
        ContradictionCode,
        LockCode,
        MemoryCode,
        MirrorCode,
        PolicyCode,
        ProjectCode,
        PublisherCode,
        ResolveCode,
        SigstoreBundleCode,
        VectorCode,
        WatchCode,
        WheelCode,
    )
    from .sessions import (
        AgentCode,
        ClientDocumentCode,
        ClientHandlerCode,
        ClientReportCode,
        ConfigCode,
        FlowCode,
        FrameCode,
        HelloCode,
        MetaCode,
        NegotiationCode,
        OperationCode,
        PeerCode,
        SandboxCode,
        SessionCode,
        TranscriptCode,
    )
else:
    _MODULES = {
        "network": (
            "AuthenticationCode",
            "ClientDidCode",
            "ConnectionCode",
            "DirectoryCode",
            "DiscoveryCode",
            "EgressCode",
            "ModelCode",
            "NetworkCode",
            "RpcCode",
            "SecureCode",
        ),
        "registries": (
            "AnchorsCode",
            "AttestationCode",
            "BundleCode",
            "ClientAuditCode",
            "ClientCheckpointCode",
            "ClientDecisionCode",
            "ClientIdentityCode",
            "ClientLogCode",
            "ClientRegistryCode",
            "ClientStatusCode",
            "ClientTopicCode",
            "ContradictionCode",
            "LockCode",
            "MemoryCode",
            "MirrorCode",
            "PolicyCode",
            "ProjectCode",
            "PublisherCode",
            "ResolveCode",
            "SigstoreBundleCode",
            "VectorCode",
            "WatchCode",
            "WheelCode",
        ),
        "sessions": (
            "AgentCode",
            "ClientDocumentCode",
            "ClientHandlerCode",
            "ClientReportCode",
            "ConfigCode",
            "FlowCode",
            "FrameCode",
            "HelloCode",
            "MetaCode",
            "NegotiationCode",
            "OperationCode",
            "PeerCode",
            "SandboxCode",
            "SessionCode",
            "TranscriptCode",
        ),
    }

    def __getattr__(name: str) -> object:
        """Import the module of a class at its first use."""
        for module, names in _MODULES.items():
            if name in names:
                value = globals()[name] = getattr(import_module(f".{module}", __name__), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """List all classes, those not yet imported too."""
        return sorted({*globals(), *__all__})


__all__ = [
    "AgentCode",
    "AnchorsCode",
    "AttestationCode",
    "AuthenticationCode",
    "BundleCode",
    "ClientAuditCode",
    "ClientCheckpointCode",
    "ClientDecisionCode",
    "ClientDidCode",
    "ClientDocumentCode",
    "ClientHandlerCode",
    "ClientIdentityCode",
    "ClientLogCode",
    "ClientRegistryCode",
    "ClientReportCode",
    "ClientStatusCode",
    "ClientTopicCode",
    "ConfigCode",
    "ConnectionCode",
    "ContradictionCode",
    "DirectoryCode",
    "DiscoveryCode",
    "EgressCode",
    "FlowCode",
    "FrameCode",
    "HelloCode",
    "LockCode",
    "MemoryCode",
    "MetaCode",
    "MirrorCode",
    "ModelCode",
    "NegotiationCode",
    "NetworkCode",
    "OperationCode",
    "PeerCode",
    "PolicyCode",
    "ProjectCode",
    "PublisherCode",
    "ResolveCode",
    "RpcCode",
    "SandboxCode",
    "SecureCode",
    "SessionCode",
    "SigstoreBundleCode",
    "TranscriptCode",
    "VectorCode",
    "WatchCode",
    "WheelCode",
]
