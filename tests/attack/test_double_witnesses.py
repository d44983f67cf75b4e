"""A witness counts once, with all its keys, and a policy that names logs takes no checkpoint of another one."""

from __future__ import annotations

import hashlib

import pytest
from witnesses import LOG, NOW, OTHER_LOG, WITNESSES, History, cosigned, leaves

from treaty_consensus.errors import Malformed, Untrusted
from treaty_consensus.log.note import KeyType, SignerKey
from treaty_consensus.log.policy import WitnessPolicy

HISTORY = History.of(leaves(20))
FIRST, SECOND = WITNESSES[:2]
TWIN = SignerKey(FIRST.name, KeyType.ML_DSA_44, hashlib.sha256(b"its other key").digest())
LINES = (
    f"witness a {FIRST.verifier}",
    f"witness twin {TWIN.verifier}",
    f"witness b {SECOND.verifier}",
)


def policy(*lines: str) -> WitnessPolicy:
    return WitnessPolicy.parse("".join(f"{line}\n" for line in (*LINES, *lines)).encode("latin-1"))


@pytest.mark.threat(346)
@pytest.mark.parametrize(
    "groups",
    [
        ("group two all a twin", "quorum two"),
        ("group two 2 a twin b", "quorum two"),
        ("group x any a", "group y any twin b", "group two all x y", "quorum two"),
    ],
)
def test_two_keys_of_one_witness_are_not_two_witnesses(groups: tuple[str, ...]) -> None:
    with pytest.raises(Malformed, match="two keys of one witness"):
        policy(*groups)


@pytest.mark.threat(346)
def test_either_key_of_a_witness_counts_and_both_count_once() -> None:
    both = policy("group first any a twin", "group two all first b", "quorum two")
    for keys, holds in (((FIRST,), False), ((FIRST, TWIN), False), ((TWIN, SECOND), True), ((FIRST, SECOND), True)):
        note = cosigned(HISTORY.note(20), *keys)
        if holds:
            both.check(note, HISTORY.checkpoint(20), since=NOW)
        else:
            with pytest.raises(Untrusted):
                both.check(note, HISTORY.checkpoint(20), since=NOW)


@pytest.mark.threat(347)
@pytest.mark.parametrize("quorum", ["none", "b"])
def test_a_log_that_the_policy_does_not_name_is_refused(quorum: str) -> None:
    note = cosigned(HISTORY.note(20), SECOND)
    for logs in ((), (LOG,), (LOG, OTHER_LOG)):
        policy(*(f"log {log.verifier}" for log in logs), f"quorum {quorum}").check(note, HISTORY.checkpoint(20))
    with pytest.raises(Untrusted) as refused:
        policy(f"log {OTHER_LOG.verifier}", f"quorum {quorum}").check(note, HISTORY.checkpoint(20))
    assert refused.value.code == "checkpoint.not-witnessed"
