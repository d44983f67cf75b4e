"""A message with the fields and defaults of the source. Classes, objects and module paths are names.

    Message(content="Done.", cause_by=Review, sent_from=self, send_to={Writer, "Eve"})

The name of a class is its last part: the path of a module is another one in another program.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from .handler.message import ROLES, TO_ALL, TO_NONE, TO_SELF, USER_REQUIREMENT

MESSAGE_ROUTE_TO_ALL, MESSAGE_ROUTE_TO_NONE, MESSAGE_ROUTE_TO_SELF = TO_ALL, TO_NONE, TO_SELF
FORGOTTEN = "Forgotten"
"""The cause of the message that stands for those that a history has given up."""
_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


def any_to_str(value: object) -> str:
    """Return the name of a class, of the class of an object, or of a text; of a module path the last part."""
    if isinstance(value, str):
        return value.rpartition(".")[2] if _PATH.fullmatch(value) else value
    return (value if isinstance(value, type) else type(value)).__name__


def any_to_str_set(value: object) -> set[str]:
    """Return the names of one or several values."""
    several = value if isinstance(value, set | frozenset | list | tuple) else (value,)
    return {any_to_str(one) for one in several if one}


@dataclass
class Message:
    """A message. An empty field has its default.

    `instruct_content`: a mapping or an object with `model_dump`, for programs. The receiver gets a mapping.
    `role`: of the sender; another word than `user`, `system` and `assistant` is sent as `assistant`.
    `cause_by`: the action that made it. `sent_from`: the sender. `send_to`: the recipients. Each is a class, an object or a name.
    """

    content: str
    _: KW_ONLY
    id: str = ""
    instruct_content: Any = None
    role: str = "user"
    cause_by: Any = ""
    sent_from: Any = ""
    send_to: Any = field(default_factory=set)

    def __post_init__(self) -> None:
        self.id = self.id or uuid.uuid4().hex

    def __setattr__(self, name: str, value: Any) -> None:
        match name:
            case "cause_by":
                value = any_to_str(value or USER_REQUIREMENT)
            case "sent_from":
                value = any_to_str(value or "")
            case "send_to":
                value = any_to_str_set(value or TO_ALL)
        super().__setattr__(name, value)

    def to_draft(self) -> dict[str, Any]:
        """Return the message for the rules."""
        about = self.instruct_content
        return {
            **vars(self),
            "instruct_content": about.model_dump() if hasattr(about, "model_dump") else about and dict(about),
            "role": self.role if self.role in ROLES else "assistant",
            "send_to": sorted(self.send_to),
        }


def received(values: Iterable[Mapping[str, Any]], forgotten: int = 0) -> list[Message]:
    """Return messages of the rules, oldest first. `forgotten`: the number of older ones that are gone; a message says so."""
    gone = Message(id=FORGOTTEN, content=f"[{forgotten} earlier messages are gone.]", role="system", cause_by=FORGOTTEN)
    return [*([gone] if forgotten else []), *(Message(**value) for value in values)]
