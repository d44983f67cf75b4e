"""The results of a list of items, by name."""

from __future__ import annotations

from treaty_io.conformance import ItemResult, Items, PeerUnderTest


async def outcomes(items: Items, peer: PeerUnderTest, *, seconds: float = 30) -> dict[str, ItemResult]:
    """Try the items at a peer."""
    return {result.id: result async for result in items.check(peer, seconds=seconds)}


def others(results: dict[str, ItemResult], outcome: str = "holds") -> dict[str, str]:
    """Return the items that have another outcome, and why."""
    return {
        name: f"{one.outcome}: {one.why} {one.sent[:400]} -> {one.came[:400]}"
        for name, one in results.items()
        if one.outcome != outcome
    }


def failures(results: dict[str, ItemResult]) -> set[str]:
    """Return the items that fail because of what the peer did; silence in a busy moment is none. Each names its fix."""
    failed = [one for one in results.values() if one.outcome == "fails" and not one.why.startswith("No answer came")]
    assert all(one.why and one.fix and one.section for one in failed)
    return {one.id for one in failed}
