"""The detail of step 2: the keys of a log, from its genesis and its rotations (docs/specification/log.md, "Rotation of keys")."""

from __future__ import annotations

from collections.abc import Iterable

from treaty_consensus import statement
from treaty_consensus.admit import admit
from treaty_consensus.codes import LogCode
from treaty_consensus.errors import Untrusted
from treaty_consensus.facts import Fact, keys_of
from treaty_consensus.kinds import Genesis
from treaty_consensus.log.checkpoint import LogKeys
from treaty_consensus.log_keys import keys_in
from treaty_consensus.rotation import Rotation


def proven_keys(leaves: Iterable[tuple[int, bytes]]) -> LogKeys:
    """Return the keys that leaf 0 and the rotations among these leaves name. Other leaves are skipped.

    The caller has verified that the leaves are in the log, in their order. Raises the error of the rule that one breaks.
    """
    facts: dict[str, Fact] = {}
    for index, leaf in leaves:
        parsed = statement.read(leaf)
        if isinstance(parsed.body, Genesis | Rotation):
            facts |= admit(facts, statement.verify(parsed, keys_of({}, parsed.author)), index)
    return keys_in(facts)


def follow(keys: LogKeys, proven: LogKeys, size: int) -> LogKeys:
    """Return the keys that a reader knows from now on. `proven`: those that a tree of `size` leaves shows.

    The reader has verified the tree by a key that it knows. Raises `Untrusted` (`log.other`) when `proven` lacks this key, or a
    rotation that the reader knows.
    """
    pinned = keys.at(size)
    # A reader that got one key from people does not know which rotations were before it.
    has_all = all(term in proven.terms for term in keys.below(size).terms)
    if not (has_all if pinned.clock else any(term.log == pinned.log for term in proven.terms)):
        raise no_genesis(keys)
    # An older tree shows fewer rotations than the reader knows.
    return keys if keys.newest.clock and len(keys.terms) > len(proven.terms) else proven


def no_genesis(keys: LogKeys) -> Untrusted:
    """Return the error for a log whose leaf 0 and rotations do not lead to the trusted key."""
    return Untrusted(
        LogCode.OTHER, f"Leaf 0 of this log is not the genesis of {keys.name} with the key you trust, or an earlier one."
    )
