"""A replay that was saved and resumed says what one from leaf 0 says, about any log and any later leaf."""

from __future__ import annotations

from functools import cache
from random import Random

import msgspec
import pytest
from depth import FULL
from signers import signed
from varied_logs import VariedLog, blobs

from treaty_consensus.audit import Replay, SavedReplay, no_blob
from treaty_consensus.errors import Untrusted
from treaty_consensus.facts import Fact
from treaty_consensus.kinds import Decision
from treaty_consensus.statement import parse

BYTES = msgspec.msgpack.Encoder(order="deterministic")
LOGS, CASES = (40, 400) if FULL else (2, 4)


def blob(sha256: str) -> bytes:
    return blobs()[sha256] if sha256 in blobs() else no_blob(sha256)


@cache
def varied(seed: int) -> VariedLog:
    """Return a log of three epochs."""
    log = VariedLog(seed, ("open", "development")[seed % 2])
    log.fill(3, 20)
    return log


def replayed(leaves: list[bytes]) -> tuple[Replay, dict[str, Fact], set[str]]:
    facts: dict[str, Fact] = {}
    digests: set[str] = set()
    replay = Replay(blob, facts=facts, digests=digests)
    for leaf in leaves:
        replay.append(leaf)
    return replay, facts, digests


def resumed(leaves: list[bytes]) -> Replay | None:
    """Return a replay that continues the one of these leaves, from bytes; None while an epoch is being closed."""
    replay, facts, digests = replayed(leaves)
    saved = replay.saved()
    if saved is None:
        return None
    data = BYTES.encode(saved)
    read = msgspec.msgpack.decode(data, type=SavedReplay)
    assert BYTES.encode(read) == data, "one state has one form"
    assert read.root() == replay.root()
    made = Replay(blob, facts=dict(facts), digests=set(digests), resumed=read)
    again = made.saved()
    assert again is not None and BYTES.encode(again) == data, "what was read is what was saved"
    return made


@pytest.mark.parametrize("seed", range(CASES))
def test_a_resumed_replay_says_what_one_from_the_start_says(seed: int) -> None:
    leaves = varied(seed % LOGS).leaves
    cut = Random(seed).randint(1, len(leaves))
    while (later := resumed(leaves[:cut])) is None:
        cut -= 1
    start, facts, _ = replayed(leaves[:cut])
    for leaf in leaves[cut:]:
        start.append(leaf)
        later.append(leaf)
        assert later.recomputed == start.recomputed or not isinstance(parse(leaf).body, Decision)
    assert (later.size, later.root(), dict(later.facts)) == (start.size, start.root(), facts)
    ends = start.saved(), later.saved()
    assert ends[0] is not None and BYTES.encode(ends[0]) == BYTES.encode(ends[1])
    assert later.decide() == start.decide(), "the next epoch too"


@pytest.mark.parametrize("seed", range(CASES))
def test_a_planted_leaf_is_found_as_from_the_start(seed: int) -> None:
    log, draw = varied(seed % LOGS), Random(seed)
    decisions = [index for index, leaf in enumerate(log.leaves) if isinstance(parse(leaf).body, Decision)]
    index = draw.choice(decisions)
    statement = parse(log.leaves[index])
    assert isinstance(statement.body, Decision)
    lie = msgspec.structs.replace(statement.body, transcript=msgspec.structs.replace(statement.body.transcript, sha256="0" * 64))
    planted = signed(lie, log.operator, issued=statement.issued).leaf, log.leaves[draw.randint(1, index - 1)]
    cut = index - draw.randint(0, 9)
    while (later := resumed(log.leaves[:cut])) is None:
        cut -= 1
    start, _, _ = replayed(log.leaves[:cut])
    for leaf in log.leaves[cut:index]:
        start.append(leaf)
        later.append(leaf)
    for leaf in planted:
        refusals = []
        for replay in (start, later):
            with pytest.raises(Untrusted) as refusal:
                replay.append(leaf)
            refusals.append((refusal.value.code, refusal.value.message))
        assert refusals[0] == refusals[1]
