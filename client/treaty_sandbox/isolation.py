"""The names of the levels of isolation, and their order."""

from __future__ import annotations

from typing import Final, Literal, get_args

Isolation = Literal["bubblewrap", "process", "none"]
"""The strongest first."""
DEFAULT_ISOLATION: Final = "process"
"""The weakest level that is accepted where nothing else is said."""


def at_least(weakest: Isolation) -> tuple[Isolation, ...]:
    """Return this level and the stronger ones, the strongest first."""
    levels: tuple[Isolation, ...] = get_args(Isolation)
    return levels[: levels.index(weakest) + 1]
