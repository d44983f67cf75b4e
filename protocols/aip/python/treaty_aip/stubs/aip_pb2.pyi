from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TEXT: _ClassVar[Mode]
    IMAGE: _ClassVar[Mode]
    AUDIO: _ClassVar[Mode]
    EMBEDDED: _ClassVar[Mode]
TEXT: Mode
IMAGE: Mode
AUDIO: Mode
EMBEDDED: Mode

class ContentItem(_message.Message):
    __slots__ = ("text", "image", "audio", "embedded")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    EMBEDDED_FIELD_NUMBER: _ClassVar[int]
    text: str
    image: bytes
    audio: bytes
    embedded: bytes
    def __init__(self, text: _Optional[str] = ..., image: _Optional[bytes] = ..., audio: _Optional[bytes] = ..., embedded: _Optional[bytes] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("agent_info", "tool_info")
    AGENT_INFO_FIELD_NUMBER: _ClassVar[int]
    TOOL_INFO_FIELD_NUMBER: _ClassVar[int]
    agent_info: AgentInfo
    tool_info: ToolInfo
    def __init__(self, agent_info: _Optional[_Union[AgentInfo, _Mapping]] = ..., tool_info: _Optional[_Union[ToolInfo, _Mapping]] = ...) -> None: ...

class AgentInfo(_message.Message):
    __slots__ = ("agent_id", "address", "name", "domain", "input_mode", "output_mode", "description", "skills", "version")
    class AgentSkill(_message.Message):
        __slots__ = ("skill_id", "capability")
        SKILL_ID_FIELD_NUMBER: _ClassVar[int]
        CAPABILITY_FIELD_NUMBER: _ClassVar[int]
        skill_id: str
        capability: str
        def __init__(self, skill_id: _Optional[str] = ..., capability: _Optional[str] = ...) -> None: ...
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    INPUT_MODE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_MODE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SKILLS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    address: str
    name: str
    domain: str
    input_mode: _containers.RepeatedScalarFieldContainer[Mode]
    output_mode: _containers.RepeatedScalarFieldContainer[Mode]
    description: str
    skills: _containers.RepeatedCompositeFieldContainer[AgentInfo.AgentSkill]
    version: str
    def __init__(self, agent_id: _Optional[str] = ..., address: _Optional[str] = ..., name: _Optional[str] = ..., domain: _Optional[str] = ..., input_mode: _Optional[_Iterable[_Union[Mode, str]]] = ..., output_mode: _Optional[_Iterable[_Union[Mode, str]]] = ..., description: _Optional[str] = ..., skills: _Optional[_Iterable[_Union[AgentInfo.AgentSkill, _Mapping]]] = ..., version: _Optional[str] = ...) -> None: ...

class RegisterAgentResponse(_message.Message):
    __slots__ = ("success", "peers")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    success: bool
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    def __init__(self, success: _Optional[bool] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ...) -> None: ...

class ToolInfo(_message.Message):
    __slots__ = ("tool_id", "address", "name", "domain", "input_mode", "output_mode", "description", "arguments", "version")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOOL_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    INPUT_MODE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_MODE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    tool_id: str
    address: str
    name: str
    domain: str
    input_mode: _containers.RepeatedScalarFieldContainer[Mode]
    output_mode: _containers.RepeatedScalarFieldContainer[Mode]
    description: str
    arguments: _containers.ScalarMap[str, str]
    version: str
    def __init__(self, tool_id: _Optional[str] = ..., address: _Optional[str] = ..., name: _Optional[str] = ..., domain: _Optional[str] = ..., input_mode: _Optional[_Iterable[_Union[Mode, str]]] = ..., output_mode: _Optional[_Iterable[_Union[Mode, str]]] = ..., description: _Optional[str] = ..., arguments: _Optional[_Mapping[str, str]] = ..., version: _Optional[str] = ...) -> None: ...

class RegisterToolResponse(_message.Message):
    __slots__ = ("success",)
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    success: bool
    def __init__(self, success: _Optional[bool] = ...) -> None: ...

class DeregisterNodeRequest(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class DeregisterNodeResponse(_message.Message):
    __slots__ = ("success",)
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    success: bool
    def __init__(self, success: _Optional[bool] = ...) -> None: ...

class GetNodesRequest(_message.Message):
    __slots__ = ("agent_id", "domain")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    domain: str
    def __init__(self, agent_id: _Optional[str] = ..., domain: _Optional[str] = ...) -> None: ...

class GetNodesResponse(_message.Message):
    __slots__ = ("peers",)
    PEERS_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    def __init__(self, peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ...) -> None: ...

class TaskInfo(_message.Message):
    __slots__ = ("task_id", "parent_task_ids", "task_status")
    class TaskStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CREATE: _ClassVar[TaskInfo.TaskStatus]
        EXECUTING: _ClassVar[TaskInfo.TaskStatus]
        WAITING: _ClassVar[TaskInfo.TaskStatus]
        BREAK: _ClassVar[TaskInfo.TaskStatus]
        FINISH: _ClassVar[TaskInfo.TaskStatus]
    CREATE: TaskInfo.TaskStatus
    EXECUTING: TaskInfo.TaskStatus
    WAITING: TaskInfo.TaskStatus
    BREAK: TaskInfo.TaskStatus
    FINISH: TaskInfo.TaskStatus
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    TASK_STATUS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    parent_task_ids: _containers.RepeatedScalarFieldContainer[str]
    task_status: TaskInfo.TaskStatus
    def __init__(self, task_id: _Optional[str] = ..., parent_task_ids: _Optional[_Iterable[str]] = ..., task_status: _Optional[_Union[TaskInfo.TaskStatus, str]] = ...) -> None: ...

class AgentMessage(_message.Message):
    __slots__ = ("sender_id", "receiver_id", "session_id", "session_status", "task_info", "message_id", "reply_to_message_id", "content")
    class SessionStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        START_QUEST: _ClassVar[AgentMessage.SessionStatus]
        HOLD_QUEST: _ClassVar[AgentMessage.SessionStatus]
        HOLD_RESPONSE: _ClassVar[AgentMessage.SessionStatus]
        STOP_QUEST: _ClassVar[AgentMessage.SessionStatus]
        STOP_RESPONSE: _ClassVar[AgentMessage.SessionStatus]
    START_QUEST: AgentMessage.SessionStatus
    HOLD_QUEST: AgentMessage.SessionStatus
    HOLD_RESPONSE: AgentMessage.SessionStatus
    STOP_QUEST: AgentMessage.SessionStatus
    STOP_RESPONSE: AgentMessage.SessionStatus
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_STATUS_FIELD_NUMBER: _ClassVar[int]
    TASK_INFO_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    REPLY_TO_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    sender_id: str
    receiver_id: str
    session_id: str
    session_status: AgentMessage.SessionStatus
    task_info: TaskInfo
    message_id: str
    reply_to_message_id: str
    content: _containers.RepeatedCompositeFieldContainer[ContentItem]
    def __init__(self, sender_id: _Optional[str] = ..., receiver_id: _Optional[str] = ..., session_id: _Optional[str] = ..., session_status: _Optional[_Union[AgentMessage.SessionStatus, str]] = ..., task_info: _Optional[_Union[TaskInfo, _Mapping]] = ..., message_id: _Optional[str] = ..., reply_to_message_id: _Optional[str] = ..., content: _Optional[_Iterable[_Union[ContentItem, _Mapping]]] = ...) -> None: ...

class ToolRequest(_message.Message):
    __slots__ = ("sender_id", "receiver_id", "session_id", "tool_name", "arguments")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOOL_NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    sender_id: str
    receiver_id: str
    session_id: str
    tool_name: str
    arguments: _containers.ScalarMap[str, str]
    def __init__(self, sender_id: _Optional[str] = ..., receiver_id: _Optional[str] = ..., session_id: _Optional[str] = ..., tool_name: _Optional[str] = ..., arguments: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ToolResponse(_message.Message):
    __slots__ = ("sender_id", "receiver_id", "session_id", "is_error", "error_message", "content")
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    sender_id: str
    receiver_id: str
    session_id: str
    is_error: bool
    error_message: str
    content: _containers.RepeatedCompositeFieldContainer[ContentItem]
    def __init__(self, sender_id: _Optional[str] = ..., receiver_id: _Optional[str] = ..., session_id: _Optional[str] = ..., is_error: _Optional[bool] = ..., error_message: _Optional[str] = ..., content: _Optional[_Iterable[_Union[ContentItem, _Mapping]]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("sender_id",)
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    sender_id: str
    def __init__(self, sender_id: _Optional[str] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("success", "message")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    success: bool
    message: str
    def __init__(self, success: _Optional[bool] = ..., message: _Optional[str] = ...) -> None: ...

class UpdateNodeInfoRequest(_message.Message):
    __slots__ = ("sender_id", "peer")
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    sender_id: str
    peer: Peer
    def __init__(self, sender_id: _Optional[str] = ..., peer: _Optional[_Union[Peer, _Mapping]] = ...) -> None: ...

class UpdateNodeInfoResponse(_message.Message):
    __slots__ = ("success", "message")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    success: bool
    message: str
    def __init__(self, success: _Optional[bool] = ..., message: _Optional[str] = ...) -> None: ...

class UpdateSubscriptionRequest(_message.Message):
    __slots__ = ("subscriber_id", "node_ids")
    SUBSCRIBER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    subscriber_id: str
    node_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, subscriber_id: _Optional[str] = ..., node_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class UnsubscribeRequest(_message.Message):
    __slots__ = ("subscriber_id", "node_ids")
    SUBSCRIBER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    subscriber_id: str
    node_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, subscriber_id: _Optional[str] = ..., node_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class UnsubscribeResponse(_message.Message):
    __slots__ = ("success", "message")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    success: bool
    message: str
    def __init__(self, success: _Optional[bool] = ..., message: _Optional[str] = ...) -> None: ...

class NodeUpdate(_message.Message):
    __slots__ = ("update_type", "node_id", "peer")
    class UpdateType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ADDED: _ClassVar[NodeUpdate.UpdateType]
        UPDATED: _ClassVar[NodeUpdate.UpdateType]
        REMOVED: _ClassVar[NodeUpdate.UpdateType]
    ADDED: NodeUpdate.UpdateType
    UPDATED: NodeUpdate.UpdateType
    REMOVED: NodeUpdate.UpdateType
    UPDATE_TYPE_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    update_type: NodeUpdate.UpdateType
    node_id: str
    peer: Peer
    def __init__(self, update_type: _Optional[_Union[NodeUpdate.UpdateType, str]] = ..., node_id: _Optional[str] = ..., peer: _Optional[_Union[Peer, _Mapping]] = ...) -> None: ...
