"""The results of a list of items, by name."""

from __future__ import annotations

from treaty_io.conformance import Foreign, Items, Result


async def outcomes(items: Items, peer: Foreign, *, seconds: float = 30) -> dict[str, Result]:
    """Try the items at a peer."""
    return {result.id: result async for result in items.check(peer, seconds=seconds)}


def others(found: dict[str, Result], outcome: str = "holds") -> dict[str, str]:
    """Return the items that have another outcome, and why."""
    return {
        name: f"{one.outcome}: {one.why} {one.sent[:400]} -> {one.came[:400]}"
        for name, one in found.items()
        if one.outcome != outcome
    }
