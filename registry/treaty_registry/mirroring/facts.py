"""Record the facts that a replay changes, for the tables."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

from treaty_consensus.facts import Fact


class RecordedFacts(MutableMapping[str, Fact]):
    """Facts in another mapping, and the newest value of each fact that was set since the last `stored`."""

    def __init__(self, facts: MutableMapping[str, Fact]) -> None:
        self._facts = facts
        self.changed: dict[str, Fact] = {}
        """The newest values, by key."""

    def stored(self) -> None:
        """Forget the changes, which are stored."""
        self.changed = {}

    def __getitem__(self, key: str) -> Fact:
        return self._facts[key]

    def __contains__(self, key: object) -> bool:
        return key in self._facts

    def __setitem__(self, key: str, fact: Fact) -> None:
        self._facts[key] = fact
        self.changed[key] = fact

    def __delitem__(self, key: str) -> None:
        raise NotImplementedError("a replay deletes no fact")

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)
