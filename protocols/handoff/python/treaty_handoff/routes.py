"""Decide which queues a message goes to: by recipient, kind, priority and data.

    >>> Routes([Rule(queues=("network-experts",), kinds={Kind.ESCALATION}, where={"issue_category": "NETWORK_CONNECTIVITY"})])

Without a rule, a message goes to the queue of each recipient. A queue belongs to an agent or to a group; each message in it goes
to one member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from .handler.routing import holds
from .messages import Kind, Message, Priority, kind_of, recipients_of


@dataclass(frozen=True)
class Rule:
    """A rule holds for messages that have all that it names.

    `queues`: where they go. `recipients`, `kinds`: one of them; any where empty. `priority`: at least this one.
    `where`: members of `payload.data` with their values; a dotted name reaches into objects.
    `copy`: the queues receive a copy, and the message also goes its own way (publish and subscribe).
    """

    queues: tuple[str, ...]
    recipients: AbstractSet[str] = frozenset()
    kinds: AbstractSet[Kind] = frozenset()
    priority: Priority = Priority.LOW
    where: Mapping[str, object] = field(default_factory=dict)
    copy: bool = False

    def holds(self, message: Message, recipient: str) -> bool:
        """Whether the rule is for this message to this recipient."""
        return (
            (not self.recipients or recipient in self.recipients)
            and (not self.kinds or kind_of(message) in self.kinds)
            and holds({"priority": self.priority, "where": self.where}, message)
        )


class Routes:
    """The rules in order: the first that holds and is no copy decides, and every copy adds."""

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self.rules = tuple(rules)

    def queues(self, message: Message) -> tuple[str, ...]:
        """Return the queues of a message, each once."""
        names: dict[str, None] = {}
        for recipient in recipients_of(message):
            holding = [rule for rule in self.rules if rule.holds(message, recipient)]
            targets = next((rule.queues for rule in holding if not rule.copy), (recipient,))
            names |= dict.fromkeys(targets)
            for rule in holding:
                if rule.copy:
                    names |= dict.fromkeys(rule.queues)
        return tuple(names)


def subscription(queue: str, *kinds: Kind, **where: object) -> Rule:
    """Return the rule that copies messages of these kinds to a queue: agents that react to events need no coordinator."""
    return Rule((queue,), kinds=frozenset(kinds), where=where, copy=True)
