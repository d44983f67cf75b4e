"""The messages of agents and tools, with the source's names, and how contents and arguments are written into them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from treaty_agent import OperationError

from .data import AipData, ContentItem, Mode, SessionStatus, TaskStatus

Part = str | bytes | Mapping[str, Any]
Content = Part | Sequence[Part]


@dataclass
class TaskInfo(AipData):
    """A task. `parent_task_ids`: the tasks that it depends on."""

    task_id: str = ""
    parent_task_ids: list[str] = field(default_factory=list)
    task_status: TaskStatus = TaskStatus.CREATE


@dataclass
class AgentMessage(AipData):
    """A message of one agent to another."""

    sender_id: str = ""
    receiver_id: str = ""
    session_id: str = ""
    session_status: SessionStatus = SessionStatus.START_QUEST
    task_info: TaskInfo | None = None
    message_id: str = ""
    reply_to_message_id: str = ""
    content: list[ContentItem] = field(default_factory=list)

    def add_content(self, item: ContentItem) -> None:
        """Append an item."""
        self.content.append(item)


@dataclass
class ToolRequest(AipData):
    """A request to a tool."""

    sender_id: str = ""
    receiver_id: str = ""
    session_id: str = ""
    tool_name: str = ""
    arguments: dict[str, str] = field(default_factory=dict)


@dataclass
class ToolResponse(AipData):
    """The answer of a tool."""

    sender_id: str = ""
    receiver_id: str = ""
    session_id: str = ""
    is_error: bool = False
    error_message: str = ""
    content: list[ContentItem] = field(default_factory=list)

    def add_content(self, item: ContentItem) -> None:
        """Append an item."""
        self.content.append(item)


_WRITERS = {
    Mode.TEXT: ContentItem.write_text,
    Mode.IMAGE: ContentItem.write_image,
    Mode.AUDIO: ContentItem.write_audio,
    Mode.EMBEDDED: ContentItem.write_embedded,
}


def content_items(content: Content, content_mode: Mode | Sequence[Mode] | None = None) -> list[ContentItem]:
    """Return an item for each content. A dict is a text of JSON.

    `content_mode`: one mode for all contents, or one for each. Without it a text is TEXT, and bytes are EMBEDDED.
    Raises `OperationError` (400) where modes and contents do not fit.
    """
    parts = [content] if isinstance(content, str | bytes | Mapping) else list(content)
    contents = [written_text(each) if isinstance(each, Mapping) else each for each in parts]
    default = [Mode.TEXT if isinstance(each, str) else Mode.EMBEDDED for each in contents]
    modes = default if content_mode is None else content_mode
    if isinstance(modes, Mode):
        modes = [modes] * len(contents)
    if len(modes) != len(contents):
        raise OperationError(400, f"There are {len(contents)} contents and {len(modes)} modes.")
    if any((mode is Mode.TEXT) != isinstance(each, str) for each, mode in zip(contents, modes, strict=True)):
        raise OperationError(400, "A TEXT is a str; an IMAGE, an AUDIO and an EMBEDDED are bytes.")
    return [_WRITERS[Mode(mode)](each) for each, mode in zip(contents, modes, strict=True)]  # type: ignore[operator]


def written_text(value: Any) -> str:
    """Return a value as text: a text as it is, anything else as JSON. Raises `OperationError` (400)."""
    try:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise OperationError(400, f"A value is neither a text nor JSON: {error}") from error


def written_arguments(arguments: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the arguments of a tool as texts: a text as it is, anything else as JSON. Raises `OperationError` (400)."""
    return {name: written_text(value) for name, value in (arguments or {}).items()}
