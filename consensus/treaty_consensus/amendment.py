"""Say when announced parameters hold, and how far they may differ from those in force: the constitution of an election.

Under the first rule, `schulze-margins-v2`, new parameters hold from the next epoch and may say anything. Under every later rule

- they hold from the epoch that opens first after their *notice*: as long as a report is recent by the parameters in force;
- in an open electorate each constant changes within its bound (`BOUNDS`, and `check_amendment` for anchors and witnesses);
- one announcement is pending at a time, and the one before is dropped. Announcing the parameters in force withdraws it.
  With nothing pending they are announced like others, to name anchors anew.

Bounds refer to the parameters in force, not to those announced. So many small amendments take one notice each.

Specification: `docs/specification/statements.md`, "Amendments".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, TypeGuard

import msgspec

from .canonical import dumps, hex_digest
from .codes import ParametersCode
from .errors import Refused
from .facts import ConstitutionFact
from .kinds import RULES, Parameters

_DAY: Final = 24 * 3600
ANCHOR_SHARE: Final = 10
"""One of so many anchors may be added, and one removed; of fewer anchors, one."""
HORIZON: Final = "horizon_epochs · epoch_seconds"


@dataclass(frozen=True)
class Bound:
    """Say how far one amendment may move a constant: by `step` or by `factor`, whichever is more.

    `constant`: its name in `Parameters`, with a dot in nested ones. `floor`: it does not fall below, unless it was below before.
    The value of a ratio `[x, y]` is x / y.
    """

    constant: str
    step: int = 0
    factor: Fraction = Fraction(1)
    floor: Fraction = Fraction(0)

    def allows(self, before: Fraction, after: Fraction) -> bool:
        """Return whether the constant may change from `before` to `after`."""
        lowest = min(before / self.factor, before - self.step)
        highest = max(before * self.factor, before + self.step)
        return min(max(lowest, self.floor), before) <= after <= highest

    @property
    def text(self) -> str:
        """Return the bound in words."""
        moved = f"by at most {self.step}" if self.step else f"by at most a factor of {_ratio(self.factor)}"
        return f"{moved}, and not to less than {_ratio(self.floor)}" if self.floor else moved


_TWICE, _THIRD = Fraction(2), Fraction(4, 3)

# What decides an election moves by one step; what only has to be large enough, such as the size of a list, by a factor of two.
BOUNDS: Final[tuple[Bound, ...]] = (
    # A day, so that people see an epoch. Four weeks, so that they see an announcement.
    Bound("epoch_seconds", factor=_TWICE, floor=Fraction(_DAY)),
    Bound(HORIZON, factor=_TWICE, floor=Fraction(28 * _DAY)),
    Bound("horizon_epochs", factor=_TWICE),
    Bound("candidate_pairs", step=1),
    Bound("candidate_clusters", step=1),
    Bound("candidate_share", factor=_TWICE),
    Bound("max_candidates", factor=_TWICE),
    Bound("quorum_share", step=1),
    Bound("cluster_share", step=1),
    Bound("provisional_share", step=1),
    # Below 1 a minority would win.
    Bound("over_none", factor=_THIRD, floor=Fraction(1)),
    Bound("over_incumbent", factor=_THIRD, floor=Fraction(1)),
    Bound("sustain_epochs", step=1),
    Bound("dormant_epochs", step=1),
    Bound("suspect_epochs", step=1),
    Bound("memory_horizons", step=1),
    Bound("credit.report_share", factor=_TWICE),
    Bound("credit.epochs", factor=_TWICE),
    Bound("credit.pairs", factor=_TWICE),
    Bound("reputation.rounds", factor=_TWICE),
    Bound("reputation.max_vouches", factor=_TWICE),
    Bound("reputation.least_vouches", step=1),
    Bound("reputation.cap_share", step=1),
    Bound("reputation.loan_share", step=1),
    Bound("reputation.acquainted_epochs", step=1),
    Bound("reputation.mature_epochs", factor=_TWICE),
    Bound("reputation.counterparties", step=1),
    Bound("reputation.counterparty_share", factor=_TWICE),
)


class Change(msgspec.Struct, frozen=True):
    """A constant that differs between two parameters. `before`, `after`: its values as JSON; None where it is absent."""

    constant: str
    before: Any
    after: Any

    def __str__(self) -> str:
        """Return it in words. Of anchors and witnesses: those that go and those that come."""
        if _is_texts(self.before) and _is_texts(self.after):
            gone, come = (", ".join(texts) for texts in (self.before, self.after))
            return f"{self.constant}: " + "; ".join(filter(None, [gone and f"without {gone}", come and f"with {come}"]))
        return f"{self.constant}: {_shown(self.before)} → {_shown(self.after)}"


def constitution_of(parameters: Parameters) -> str:
    """Return the digest of parameters: SHA-256 of the JCS of their body, hexadecimal.

    Not the statement's id, which a repeated announcement of the same parameters changes.
    """
    return hex_digest(dumps(msgspec.to_builtins(parameters)))


def changes_between(before: Parameters, after: Parameters) -> tuple[Change, ...]:
    """Return the constants that differ, sorted by name. Of lists the whole of both; of anchors those removed and added."""
    one, other = _flat(before), _flat(after)
    changed = (name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name))
    return tuple(Change(name, *_without_common(one.get(name), other.get(name))) for name in changed)


def announce(before: ConstitutionFact, body: Parameters, now: int) -> ConstitutionFact:
    """Return the constitution after an announcement. `now`: the log's clock with it.

    Raises the errors of `check_amendment`. The result has no `announced` when the announcement withdraws the one before, or
    when no rule with a notice is part of it.
    """
    if before.in_force is None:
        return ConstitutionFact(None, body if has_notice(body) else None)
    check_amendment(before.in_force, body)
    if withdraws(before, body):
        return ConstitutionFact(before.in_force)
    return ConstitutionFact(before.in_force, body, holds_from(before.in_force, now))


def withdraws(before: ConstitutionFact, body: Parameters) -> bool:
    """Return whether an announcement takes the pending one back: it is equal to the parameters in force."""
    return before.announced is not None and body == before.in_force


def has_notice(parameters: Parameters) -> bool:
    """Return whether the rule of these parameters bounds its amendments."""
    return not parameters.is_v2


def holds_from(in_force: Parameters, now: int) -> int | None:
    """Return the time from which parameters announced at `now` hold; None where the next epoch already starts with them."""
    # Without a schedule the log has no epochs of a known length: the operator closes them by hand.
    return None if in_force.epoch_seconds is None else now + in_force.horizon_epochs * in_force.epoch_seconds


def holds_at(constitution: ConstitutionFact, opened: int) -> bool:
    """Return whether an epoch that opens at `opened` starts with the announced parameters."""
    return constitution.holds is None or opened >= constitution.holds


def enacted(parameters: Parameters | None) -> ConstitutionFact:
    """Return the constitution in which these parameters are in force and nothing is announced."""
    return ConstitutionFact(parameters if parameters is not None and has_notice(parameters) else None)


def check_amendment(in_force: Parameters, announced: Parameters) -> None:
    """Check that parameters may follow those in force, of a rule with notice.

    Raises `Refused`: `parameters.amendment` for an earlier rule, or a development electorate after an open one;
    `parameters.amendment` for a constant that changes too far.
    """
    earlier = RULES.index(announced.rule) < RULES.index(in_force.rule)
    if earlier or (in_force.electorate == "open" and announced.electorate != "open"):
        left = f"the rule {in_force.rule}" if earlier else "an open electorate"
        raise Refused(
            ParametersCode.AMENDMENT,
            f"A log does not leave {left}.",
            fix="Announce parameters of the same kind, or begin a new log.",
        )
    if in_force.electorate != "open":
        return
    for bound in BOUNDS:
        before, after = _value(in_force, bound.constant), _value(announced, bound.constant)
        if not bound.allows(before, after):
            raise _beyond(f"`{bound.constant}` changes {bound.text}, so not from {_ratio(before)} to {_ratio(after)}")
    _check_anchors(in_force, announced)
    _check_witnesses(in_force, announced)


def _check_anchors(in_force: Parameters, announced: Parameters) -> None:
    assert in_force.reputation is not None and announced.reputation is not None, "both are open"
    old, new = set(in_force.reputation.anchors), set(announced.reputation.anchors)
    most = max(1, len(old) // ANCHOR_SHARE)
    if len(new - old) > most or len(old - new) > most:
        raise _beyond(
            f"at most {most} of {len(old)} anchors are added and {most} removed, not {len(new - old)} and {len(old - new)}"
        )
    # A list can make suffixes of domains, which are then no anchors, so it must not come with new ones that it spares.
    if old != new and in_force.reputation.suffix_list != announced.reputation.suffix_list:
        raise _beyond("the anchors and the suffix list do not change together")


def _check_witnesses(in_force: Parameters, announced: Parameters) -> None:
    if in_force.witnesses is None:
        return
    if announced.witnesses is None:
        raise _beyond("witnesses are never dropped as a whole")
    old, new = set(in_force.witnesses.keys), set(announced.witnesses.keys)
    if len(old - new) > 1:
        raise _beyond(f"at most one witness is removed, not {len(old - new)}")
    # New witnesses may be the operator's own. So many cosignatures of the present ones are needed at least, whoever else signs.
    common = announced.witnesses.quorum - len(new - old)
    least = max(1, in_force.witnesses.quorum - 1)
    if common < least:
        raise _beyond(f"the quorum less the number of new witnesses is at least {least}, not {common}")


def _beyond(fault: str) -> Refused:
    return Refused(
        ParametersCode.AMENDMENT,
        f"An amendment has bounds: {fault}.",
        fix="Announce a smaller change, and a further one when it holds.",
    )


def _value(parameters: Parameters, constant: str) -> Fraction:
    if constant == HORIZON:
        assert parameters.epoch_seconds is not None, "it is open"
        return Fraction(parameters.horizon_epochs * parameters.epoch_seconds)
    member: object = parameters
    for name in constant.split("."):
        member = getattr(member, name)
    if isinstance(member, tuple):
        return Fraction(*member)
    assert isinstance(member, int), constant
    return Fraction(member)


def _flat(parameters: Parameters) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in msgspec.to_builtins(parameters).items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": item for inner, item in value.items()}
        else:
            flat[name] = value
    return flat


def _without_common(before: object, after: object) -> tuple[object, object]:
    """Leave out the texts that two lists share: there may be 512 anchors, of which one changed."""
    if not (_is_texts(before) and _is_texts(after)):
        return before, after
    old, new = set(before), set(after)
    return [text for text in before if text not in new], [text for text in after if text not in old]


def _is_texts(value: object) -> TypeGuard[Sequence[str]]:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


def _shown(value: object) -> str:
    # The one list without texts is a ratio.
    if isinstance(value, list | tuple) and not _is_texts(value):
        return " : ".join(map(str, value))
    if isinstance(value, dict):
        return str(value.get("sha256", value))
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "none" if value is None else str(value)


def _ratio(value: Fraction) -> str:
    return f"{value.numerator:,}" if value.denominator == 1 else f"{value.numerator} : {value.denominator}"
