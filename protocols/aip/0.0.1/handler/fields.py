"""The field table of AIP 0.0.1: each message's fields with their numbers, and the values of each enumeration.

A field is written `NAME=NUMBER`, or `NAME:TYPE=NUMBER` where the type is not string. `*` marks a repeated one, and
`ONEOF/` before it a member of a oneof. `map` is map<string, string>.
"""

from __future__ import annotations

from typing import NamedTuple

ENUMS: dict[str, tuple[str, ...]] = {
    "Mode": ("TEXT", "IMAGE", "AUDIO", "EMBEDDED"),
    "TaskStatus": ("CREATE", "EXECUTING", "WAITING", "BREAK", "FINISH"),
    "SessionStatus": ("START_QUEST", "HOLD_QUEST", "HOLD_RESPONSE", "STOP_QUEST", "STOP_RESPONSE"),
    "UpdateType": ("ADDED", "UPDATED", "REMOVED"),
    # The two of the frame, which carries a call where the transport is not gRPC. The second has gRPC's status codes.
    "FrameKind": ("REQUEST", "END", "CANCEL", "RESPONSE", "STATUS"),
    "Code": (
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ),
}

_TABLE = """
ContentItem data/text=1 data/image:bytes=2 data/audio:bytes=3 data/embedded:bytes=4
Peer info_type/agent_info:AgentInfo=1 info_type/tool_info:ToolInfo=2
AgentInfo agent_id=1 address=2 name=3 domain=4 input_mode:Mode*=5 output_mode:Mode*=6 description=7 skills:AgentSkill*=8 version=9
AgentSkill skill_id=1 capability=2
ToolInfo tool_id=1 address=2 name=3 domain=4 input_mode:Mode*=5 output_mode:Mode*=6 description=7 arguments:map=8 version=9
RegisterAgentResponse success:bool=1 peers:Peer*=2
RegisterToolResponse success:bool=1
DeregisterNodeRequest node_id=1
DeregisterNodeResponse success:bool=1
GetNodesRequest agent_id=1 domain=2
GetNodesResponse peers:Peer*=1
TaskInfo task_id=1 parent_task_ids:string*=2 task_status:TaskStatus=4
AgentMessage sender_id=1 receiver_id=2 session_id=3 session_status:SessionStatus=4 task_info:TaskInfo=5 message_id=6 \
reply_to_message_id=7 content:ContentItem*=8
ToolRequest sender_id=1 receiver_id=2 session_id=3 tool_name=4 arguments:map=5
ToolResponse sender_id=1 receiver_id=2 session_id=3 is_error:bool=4 error_message=5 content:ContentItem*=6
HeartbeatRequest sender_id=1
HeartbeatResponse success:bool=1 message=2
UpdateNodeInfoRequest sender_id=1 peer:Peer=2
UpdateNodeInfoResponse success:bool=1 message=2
UpdateSubscriptionRequest subscriber_id=1 node_ids:string*=2
UnsubscribeRequest subscriber_id=1 node_ids:string*=2
UnsubscribeResponse success:bool=1 message=2
NodeUpdate update_type:UpdateType=1 node_id=2 peer:Peer=3
MapEntry key=1 value=2
Frame kind:FrameKind=1 method=2 call=3 message:bytes=4 code:Code=5 text=6 address=7
"""

METHODS: dict[str, tuple[str, str, str]] = {
    "CallAgent": ("AgentService", "AgentMessage", "AgentMessage"),
    "CallTool": ("ToolService", "ToolRequest", "ToolResponse"),
    "RouteAgentCalling": ("GatewayService", "AgentMessage", "AgentMessage"),
    "RouteToolCalling": ("GatewayService", "ToolRequest", "ToolResponse"),
    "RegisterAgent": ("GatewayService", "AgentInfo", "RegisterAgentResponse"),
    "RegisterTool": ("GatewayService", "ToolInfo", "RegisterToolResponse"),
    "DeregisterNode": ("GatewayService", "DeregisterNodeRequest", "DeregisterNodeResponse"),
    "GetNodes": ("GatewayService", "GetNodesRequest", "GetNodesResponse"),
    "Heartbeat": ("GatewayService", "HeartbeatRequest", "HeartbeatResponse"),
    "UpdateNodeInfo": ("GatewayService", "UpdateNodeInfoRequest", "UpdateNodeInfoResponse"),
    "SubscribeToUpdates": ("GatewayService", "UpdateSubscriptionRequest", "NodeUpdate"),
    "Unsubscribe": ("GatewayService", "UnsubscribeRequest", "UnsubscribeResponse"),
}
"""Each method with its service, its request and its response. Those of `STREAMS` have a stream of responses."""

CONVERSATIONS = frozenset(("CallAgent", "RouteAgentCalling"))
"""The methods with a stream in both directions."""
STREAMS = CONVERSATIONS | {"SubscribeToUpdates"}


class Field(NamedTuple):
    """A field of a message. `kind`: string, bytes, bool, map, or the name of an enumeration or message. `oneof`: "" for none."""

    name: str
    number: int
    kind: str
    repeated: bool
    oneof: str


def _fields(words: list[str]) -> dict[int, Field]:
    by_number = {}
    for word in words:
        written, _, number = word.partition("=")
        written, repeated = written.removesuffix("*"), written.endswith("*")
        oneof, _, written = written.rpartition("/")
        name, _, kind = written.partition(":")
        by_number[int(number)] = Field(name, int(number), kind or "string", repeated, oneof)
    return by_number


MESSAGES = {line.split()[0]: _fields(line.split()[1:]) for line in _TABLE.strip().splitlines()}
"""The fields of each message, by number."""
