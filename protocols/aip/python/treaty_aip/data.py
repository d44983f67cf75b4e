"""The data of AIP with the source's names: enumerations, content, nodes and answers. The other messages are in `messages`.

An object becomes a message by the field table of the handler, and back without a loss.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Self

from .handler.fields import MESSAGES, Field


class Mode(IntEnum):
    """The kind of a content."""

    TEXT = 0
    IMAGE = 1
    AUDIO = 2
    EMBEDDED = 3


class SessionStatus(IntEnum):
    """The place of a message in its session. QUEST: from the initiator, RESPONSE: from the receiver."""

    START_QUEST = 0
    HOLD_QUEST = 1
    HOLD_RESPONSE = 2
    STOP_QUEST = 3
    STOP_RESPONSE = 4


class TaskStatus(IntEnum):
    """The state of a task."""

    CREATE = 0
    EXECUTING = 1
    WAITING = 2
    BREAK = 3
    FINISH = 4


_ENUMS: Mapping[str, type[IntEnum]] = {"Mode": Mode, "SessionStatus": SessionStatus, "TaskStatus": TaskStatus}
_MESSAGE_CLASSES: dict[str, type[AipData]] = {}


class AipData:
    """A message of the field table. Its attributes are the fields."""

    def __init_subclass__(cls) -> None:
        """Make the class known for fields of its type."""
        super().__init_subclass__()
        _MESSAGE_CLASSES[cls.__name__] = cls

    def to_value(self) -> dict[str, Any]:
        """Return the message as the codec of the handler takes it; absent messages and contents are left out."""
        values = {each.name: getattr(self, each.name) for each in MESSAGES[type(self).__name__].values()}
        return {name: _written(value) for name, value in values.items() if value is not None}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Self:
        """Return the object for a message as the codec decodes it."""
        fields = {each.name: each for each in MESSAGES[cls.__name__].values()}
        return cls(**{name: _read(fields[name], content) for name, content in value.items()})


def _written(value: Any) -> Any:
    if isinstance(value, AipData):
        return value.to_value()
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, list | tuple):
        return [_written(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _read(described: Field, value: Any) -> Any:
    if isinstance(value, list):
        return [_read(described, item) for item in value]
    if described.kind in _MESSAGE_CLASSES:
        return _MESSAGE_CLASSES[described.kind].from_value(value)
    if described.kind in _ENUMS:
        # A number without a name is of a later version, and is kept.
        return _ENUMS[described.kind][value] if isinstance(value, str) else value
    return base64.b64decode(value) if described.kind == "bytes" else value


class ContentItem(AipData):
    """One content: a text, or the bytes of an image, a sound or anything else."""

    def __init__(
        self, text: str | None = None, image: bytes | None = None, audio: bytes | None = None, embedded: bytes | None = None
    ) -> None:
        """Hold one of the four. Raises ValueError for two."""
        self._text, self._image, self._audio, self._embedded = text, image, audio, embedded
        if sum(value is not None for value in (text, image, audio, embedded)) > 1:
            raise ValueError("a ContentItem has one content")

    @classmethod
    def write_text(cls, text: str) -> ContentItem:
        """Return an item with a text."""
        return cls(text=text)

    @classmethod
    def write_image(cls, image: bytes) -> ContentItem:
        """Return an item with an image."""
        return cls(image=image)

    @classmethod
    def write_audio(cls, audio: bytes) -> ContentItem:
        """Return an item with a sound."""
        return cls(audio=audio)

    @classmethod
    def write_embedded(cls, embedded: bytes) -> ContentItem:
        """Return an item with other bytes."""
        return cls(embedded=embedded)

    @property
    def text(self) -> str | None:
        """The text, or None."""
        return self._text

    @property
    def image(self) -> bytes | None:
        """The image, or None."""
        return self._image

    @property
    def audio(self) -> bytes | None:
        """The sound, or None."""
        return self._audio

    @property
    def embedded(self) -> bytes | None:
        """The other bytes, or None."""
        return self._embedded

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ContentItem) and self.to_value() == other.to_value()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ContentItem({', '.join(f'{name}={value!r:.60}' for name, value in self.to_value().items())})"


@dataclass
class AgentSkill(AipData):
    """A skill of an agent."""

    skill_id: str = ""
    capability: str = ""


@dataclass
class AgentInfo(AipData):
    """The description of an agent. `address`: host and port."""

    agent_id: str = ""
    address: str = ""
    name: str = ""
    domain: str = ""
    input_mode: list[Mode] = field(default_factory=list)
    output_mode: list[Mode] = field(default_factory=list)
    description: str = ""
    skills: list[AgentSkill] = field(default_factory=list)
    version: str = ""


@dataclass
class ToolInfo(AipData):
    """The description of a tool. `arguments`: name and type of each."""

    tool_id: str = ""
    address: str = ""
    name: str = ""
    domain: str = ""
    input_mode: list[Mode] = field(default_factory=list)
    output_mode: list[Mode] = field(default_factory=list)
    description: str = ""
    arguments: dict[str, str] = field(default_factory=dict)
    version: str = ""


class Peer(AipData):
    """A node: an agent or a tool. Setting one forgets the other."""

    def __init__(self, agent_info: AgentInfo | None = None, tool_info: ToolInfo | None = None) -> None:
        """Hold one of the two, or none. Raises ValueError for both."""
        if agent_info is not None and tool_info is not None:
            raise ValueError("a Peer is an agent or a tool")
        self._agent_info, self._tool_info = agent_info, tool_info

    @property
    def agent_info(self) -> AgentInfo | None:
        """The description of the agent, or None."""
        return self._agent_info

    @agent_info.setter
    def agent_info(self, info: AgentInfo) -> None:
        self._agent_info, self._tool_info = info, None

    @property
    def tool_info(self) -> ToolInfo | None:
        """The description of the tool, or None."""
        return self._tool_info

    @tool_info.setter
    def tool_info(self, info: ToolInfo) -> None:
        self._agent_info, self._tool_info = None, info

    @property
    def info(self) -> AgentInfo | ToolInfo | None:
        """The description."""
        return self._agent_info or self._tool_info

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Peer) and (self._agent_info, self._tool_info) == (other._agent_info, other._tool_info)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Peer({self.info!r})"


@dataclass
class RegisterAgentResponse(AipData):
    """The answer to an agent's registration. `peers`: the other nodes."""

    success: bool = False
    peers: list[Peer] = field(default_factory=list)


@dataclass
class RegisterToolResponse(AipData):
    """The answer to a tool's registration."""

    success: bool = False


@dataclass
class DeregisterNodeRequest(AipData):
    """The request to forget a node."""

    node_id: str = ""


@dataclass
class DeregisterNodeResponse(AipData):
    """Whether the node was registered."""

    success: bool = False


@dataclass
class GetNodesRequest(AipData):
    """The request for the nodes of a domain; "default" is all domains."""

    agent_id: str = ""
    domain: str = ""


@dataclass
class GetNodesResponse(AipData):
    """The nodes of a domain."""

    peers: list[Peer] = field(default_factory=list)


@dataclass
class HeartbeatRequest(AipData):
    """The sign that a node is alive."""

    sender_id: str = ""


@dataclass
class HeartbeatResponse(AipData):
    """Whether the node is registered."""

    success: bool = False
    message: str = ""


def copied(info: AgentInfo | ToolInfo, **changes: Any) -> Any:
    """Return a description with changes."""
    return dataclasses.replace(info, **changes)
