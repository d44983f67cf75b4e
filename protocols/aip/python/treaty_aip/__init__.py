"""AIP 0.0.1 over gRPC, for peers of other makes. `pip install '.[aip]'`.

    from treaty_aip import Agent, Gateway, Tool

    gateway = await Gateway("localhost:50051").start()
    agent = await Agent("localhost:50052", "asker").start()
    await agent.register_to_gateway(gateway.address)

The rules of the sessions and the codec are the handler of protocols/aip/0.0.1, the same code that runs in the sandbox. This
package adds clock, sockets and the names of the source.

    handler              the handler (a link to protocols/aip/0.0.1/handler)
    host                 runs a session of the handler; calls, channels, flow and security are its gRPC side
    addresses            the addresses that a gateway connects to
    gateway, agent, tool, node    the source's classes
    handlers             the functions of an application
    data, messages       the source's data
    memory               the history of an agent
    stubs                aip.proto and the modules that are generated from it
"""

from __future__ import annotations

import os

from treaty_io.extras import naming_extras

# gRPC's core, which reads this when it is imported, writes a line for each TLS handshake that fails: strangers would fill a disk.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

with naming_extras("aip"):
    import grpc  # noqa: F401  # first: a library of [agent], which [aip] includes, would name that extra alone

    from .agent import Agent
    from .calls import Bounds
    from .data import (
        AgentInfo,
        AgentSkill,
        ContentItem,
        DeregisterNodeRequest,
        DeregisterNodeResponse,
        GetNodesRequest,
        GetNodesResponse,
        HeartbeatRequest,
        HeartbeatResponse,
        Mode,
        Peer,
        RegisterAgentResponse,
        RegisterToolResponse,
        SessionStatus,
        TaskStatus,
        ToolInfo,
    )
    from .gateway import Gateway
    from .memory import ContextMemory
    from .messages import AgentMessage, TaskInfo, ToolRequest, ToolResponse
    from .security import Security
    from .stubs.aip_pb2_grpc import AgentServiceStub, GatewayServiceStub, ToolServiceStub
    from .tool import Tool

__all__ = [
    "Agent",
    "AgentInfo",
    "AgentMessage",
    "AgentServiceStub",
    "AgentSkill",
    "Bounds",
    "ContentItem",
    "ContextMemory",
    "DeregisterNodeRequest",
    "DeregisterNodeResponse",
    "Gateway",
    "GatewayServiceStub",
    "GetNodesRequest",
    "GetNodesResponse",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "Mode",
    "Peer",
    "RegisterAgentResponse",
    "RegisterToolResponse",
    "Security",
    "SessionStatus",
    "TaskInfo",
    "TaskStatus",
    "Tool",
    "ToolInfo",
    "ToolRequest",
    "ToolResponse",
    "ToolServiceStub",
]
