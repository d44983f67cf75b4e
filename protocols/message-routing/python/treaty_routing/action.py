"""The actions of a role."""

from __future__ import annotations

from typing import Any


class Action:
    """Something that a role does. As a cause and a state it has the name of its class. Keyword arguments become attributes."""

    name: str = ""

    def __init__(self, **kwargs: Any) -> None:
        vars(self).update({"name": type(self).__name__, **kwargs})

    async def run(self, *args: Any, **kwargs: Any) -> Any:
        """Do it with a role's history: return a `Message`, or a text."""
        raise NotImplementedError(f"{type(self).__name__} has no run.")


class UserRequirement(Action):
    """The cause of messages that name none: the user's."""
