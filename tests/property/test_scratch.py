"""The disk-backed stores of a replay are the dictionary and the set that they stand for, however little of them is in memory."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import pytest
from depth import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from signers import domain_signer, key_signer
from simulated_log import LogBuilder

from treaty_client.audit.replay_store import ReplayStore
from treaty_consensus import facts
from treaty_consensus.audit import Replay
from treaty_consensus.errors import Untrusted
from treaty_consensus.facts import Fact
from treaty_consensus.kinds import NONE
from treaty_consensus.sigstore_leaf import CertificateLeaf

KEYS = ("log", "é", "", *(f"ballot/topic/did:wba:{name}.example" for name in "abcdefghijkl"))
FACTS: tuple[Callable[[int], Fact], ...] = (
    lambda n: facts.BallotFact(n, n),
    lambda n: facts.IdentityFact("s", n, "d", {"did:wba:é.example#key": "z6Mk"}, 1, n),
    lambda n: facts.LogFact("o", "did", n, n, announced="ß"),
    lambda n: facts.ReportFact("d", n, equivocated=True),
)

operations = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from(KEYS), st.sampled_from(range(len(FACTS))), st.integers(0, 2**53 - 1)),
        st.tuples(st.just("get"), st.sampled_from(KEYS)),
        st.tuples(st.just("delete"), st.sampled_from(KEYS)),
        st.tuples(st.just("all")),
    ),
    max_size=60,
)


@contextmanager
def scratch(recent: int) -> Iterator[ReplayStore]:
    with tempfile.TemporaryDirectory() as folder, ReplayStore(Path(folder), recent=recent) as opened:
        assert not list(Path(folder).iterdir()), "it has no name"
        yield opened


@settings(deadline=None)
@given(operations, st.integers(1, 5))
def test_facts_on_disk_are_a_dictionary(script: list[tuple[object, ...]], recent: int) -> None:
    model: dict[str, Fact] = {}
    with scratch(recent) as opened:
        for operation in script:
            match operation:
                case ("set", str(key), int(kind), int(number)):
                    model[key] = opened.facts[key] = FACTS[kind](number)
                case ("get", str(key)):
                    assert opened.facts.get(key) == model.get(key)
                    assert (key in opened.facts) == (key in model)
                case ("delete", str(key)):
                    assert opened.facts.pop(key, None) == model.pop(key, None)
                case _:
                    assert dict(opened.facts) == model
                    assert len(opened.facts) == len(model)
        assert dict(opened.facts) == model


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=80), st.integers(1, 5))
def test_digests_on_disk_are_a_set(script: list[tuple[bool, int]], recent: int) -> None:
    model: set[str] = set()
    with scratch(recent) as opened:
        for adds, number in script:
            digest = hashlib.sha256(b"%d" % number).hexdigest()
            assert (digest in opened.digests) == (digest in model)
            if adds:
                model.add(digest)
                opened.digests.add(digest)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("report"), st.sampled_from(list(combinations(range(5), 2))), st.integers(0, 2)),
        st.tuples(st.just("vote"), st.integers(0, 4), st.permutations([0, 1, 2, 3])),
        st.tuples(st.just("vouch"), st.sampled_from(list(combinations(range(5), 2)))),
        st.tuples(st.just("newcomer"), st.integers(0, 9)),
        st.tuples(st.just("certificate"), st.integers(0, 9)),
        st.tuples(st.just("close")),
    ),
    max_size=25,
)


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions, st.integers(1, 8))
def test_a_replay_on_disk_is_a_replay_in_memory(script: list[tuple[object, ...]], recent: int) -> None:
    log = LogBuilder()
    published = [log.publish(log.agents[n], f"protocol-{n}") for n in range(3)]
    log.everybody_reports(published[0])
    choices = [*published, NONE]
    for action in script:
        match action:
            case ("report", (int(a), int(b)), int(which)):
                log.report(log.agents[a], log.agents[b], published[which])
            case ("vote", int(agent), list(order)):
                log.vote(log.agents[agent], *(choices[c] for c in order[:2]))
            case ("vouch", (int(a), int(b))):
                log.vouch(log.agents[a], log.agents[b])
            case ("newcomer", int(number)):
                log.vote(domain_signer(f"newcomer-{number}.example"), published[0])
            case ("certificate", int(number)):
                log.append(CertificateLeaf(b"certificate %d" % number).encode())
            case ("close",):
                log.close()
    with scratch(recent) as opened:
        memory, disk = Replay(), Replay(facts=opened.facts, digests=opened.digests)
        stranger = key_signer("stranger").statement(log.parameters).leaf
        for leaf in log.leaves:
            memory.append(leaf)
            disk.append(leaf)
            for wrong in (log.leaves[0], stranger):
                assert _refusal(disk, wrong) == _refusal(memory, wrong)
        assert dict(disk.facts) == dict(memory.facts)
        assert disk.root() == memory.root() == log.replay.root()
        assert disk.decide() == memory.decide()


def _refusal(replay: Replay, leaf: bytes) -> tuple[str, str]:
    """How a replay refuses a leaf that stands in it already, or by somebody whom it does not know."""
    with pytest.raises(Untrusted) as refusal:
        replay.append(leaf)
    return refusal.value.code, refusal.value.message
