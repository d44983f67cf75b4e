"""Check a foreign implementation of a protocol from outside, item by item.

An item is a function that speaks with the peer. Its docstring is the rule of the protocol's document:

    items = Items("document.md")

    @items.rule("version", "Rules, 10", "Compare the major version before the form.")
    async def another_major_version_is_rejected(peer: Receiver) -> None:
        \"\"\"A message of another major version is rejected.\"\"\"
        answer = await peer.post(changed(peer.message(), "metadata.protocol_version", "2.0.0"))
        peer.expect(answer.code == 400, "A message of version 2.0.0 is not answered with 400.")

The peer keeps the exchange that an item made: it is the evidence when the item fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from treaty_consensus.printable import printable

MAX_EVIDENCE = 2_000
"""Characters of each text of a peer in a result: a report can be read, whatever the peer sends."""
_SILENCES = 3
"""Items in a row without an answer after which the peer is not asked again, so that a dead peer ends a run."""


class Broken(Exception):
    """The rule does not hold; the text says why."""


class NotTried(Exception):
    """The rule cannot be seen at this peer; the text says why."""


@dataclass(frozen=True)
class ItemResult:
    """An item's outcome. `sent`, `came`: the evidence; `why`: the fault, or the reason for which it was not tried."""

    id: str
    rule: str
    section: str
    outcome: Literal["holds", "fails", "not tried"]
    why: str = ""
    sent: str = ""
    came: str = ""
    fix: str = ""


class PeerUnderTest:
    """A peer under test, with the last exchange with it."""

    def __init__(self) -> None:
        self.sent = self.came = ""

    def expect(self, condition: object, why: str) -> None:
        """Fail the item unless the condition holds."""
        if not condition:
            raise Broken(why)

    def need(self, condition: object, why: str) -> None:
        """Leave the item untried unless the condition holds."""
        if not condition:
            raise NotTried(why)


@dataclass(frozen=True)
class _Item:
    id: str
    section: str
    fix: str
    run: Callable[[Any], Awaitable[None]]

    def result(self, peer: PeerUnderTest, outcome: Literal["holds", "fails", "not tried"], why: object = "") -> ItemResult:
        rule = " ".join((self.run.__doc__ or "").split())
        why, sent, came = (printable(str(text), MAX_EVIDENCE) for text in (why, peer.sent, peer.came))
        return ItemResult(self.id, rule, self.section, outcome, why, sent, came, self.fix if outcome == "fails" else "")


class Items:
    """The items of one role of a protocol, in the order in which they are tried."""

    def __init__(self, document: str) -> None:
        """Begin a list. `document`: the document whose sections the items name."""
        self.document = document
        self._items: list[_Item] = []

    def rule(self, name: str, section: str, fix: str) -> Callable[[Callable[[Any], Awaitable[None]]], Any]:
        """Add the decorated function. `fix`: the advice to the peer's author when the item fails."""

        def add(run: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
            self._items.append(_Item(name, section, fix, run))
            return run

        return add

    @property
    def ids(self) -> list[str]:
        """Return the ids of the items."""
        return [item.id for item in self._items]

    async def check(self, peer: PeerUnderTest, *, seconds: float) -> AsyncIterator[ItemResult]:
        """Try each item and yield its result. `seconds`: the time of an item; an answer that comes later counts as none.

        A fault of the peer never ends the run: it is a result.
        """
        silences = 0
        for item in self._items:
            if silences == _SILENCES:
                yield item.result(peer, "not tried", "The peer does not answer.")
                continue
            peer.sent = peer.came = ""
            try:
                async with asyncio.timeout(seconds):
                    await item.run(peer)
                result = item.result(peer, "holds")
            except NotTried as reason:
                result = item.result(peer, "not tried", reason)
            except Broken as fault:
                result = item.result(peer, "fails", fault)
            except TimeoutError:
                result = item.result(peer, "fails", f"No answer came in {seconds:g} seconds.")
            except Exception as error:  # the peer's bytes reach each library that the items use
                reading = "The answer cannot be read" if peer.came else "The peer does not answer"
                result = item.result(peer, "fails", f"{reading}: {type(error).__name__}: {error}")
            silences = silences + 1 if result.outcome == "fails" and not peer.came else 0
            yield result
