"""Decide which decision is due, when an epoch closes and opens, and check that witnesses saw the input of its decisions.

Specification: `docs/specification/statements.md`, "Admission".
"""

from __future__ import annotations

from .codes import DecisionCode
from .errors import Refused, TreatyError
from .facts import LogFact, ParametersFact
from .kinds import RULES, Decision
from .log.checkpoint import Checkpoint

MAX_AHEAD = 300
"""Seconds that the log's clock may be ahead of a cosignature, because clocks differ; as much as readers allow a witness."""


def check_place(log: LogFact, body: Decision, index: int) -> None:
    """Check that a decision is the next one due, and follows its input. Raises `Refused` (`decision.epoch`)."""
    if log.remaining:
        next_up = body.remaining == log.remaining - 1 and body.topic > log.closed_topic
        follows = next_up and body.epoch == log.epoch - 1 and body.input.size == log.closed_at
    else:
        follows = body.epoch == log.epoch and body.input.size == index
    if not follows:
        raise Refused(
            DecisionCode.EPOCH,
            "The decisions of an epoch must directly follow their input, in the order of their topics.",
        )


def check_witnessed(log: LogFact, body: Decision, parameters: ParametersFact, issued: int) -> None:
    """Check that the parameters' witnesses cosigned the decision's input.

    A reader who trusts one of them then knows that the decision rests on the history that the witness saw. Under a rule with
    notice the log's clock, set by `issued`, is also at most `MAX_AHEAD` seconds ahead of the time that the quorum states: an
    operator cannot close epochs that have not ended.
    """
    if parameters.witnesses is None:
        if body.input.witnessed is not None:
            raise Refused(DecisionCode.NOT_WITNESSED, "The parameters in force name no witnesses. Leave `witnessed` out.")
        return
    head = Checkpoint(log.origin, body.input.size, bytes.fromhex(body.input.root))
    try:
        parameters.witnesses.parsed.check((body.input.witnessed or "").encode(), head)
    except TreatyError as error:
        raise Refused(DecisionCode.NOT_WITNESSED, error.message, fix=error.fix) from error
    seen = parameters.witnesses.parsed.time_of((body.input.witnessed or "").encode())
    ahead = max(log.time, issued) - (seen or 0)
    if body.rule != RULES[0] and ahead > MAX_AHEAD:
        raise Refused(
            DecisionCode.AHEAD,
            f"The log's clock is {ahead} seconds ahead of the witnesses of this decision's input.",
            fix="Correct the clock of the registry, or those of the witnesses.",
        )


def next_opening(log: LogFact, issued: int, parameters: ParametersFact) -> int:
    """Return the time at which the next epoch opens. Refuses a decision before the end of its epoch.

    The schedule does not drift. A registry that was down for some epochs continues with the current one.
    """
    # Later decisions of the same epoch keep the opening time that the first one set.
    if log.remaining:
        return log.opened
    # The decision itself advances the clock: it may be the operator's first statement after the due time.
    now = max(log.time, issued)
    if parameters.epoch_seconds is None:
        return now
    due = log.opened + parameters.epoch_seconds
    if now < due:
        raise Refused(DecisionCode.EARLY, f"Epoch {log.epoch} is open for another {due - now} seconds.")
    # Rounded down to the schedule, so a late decision does not shift later epochs.
    return now - (now - due) % parameters.epoch_seconds
