"""A forked log cannot fill the disk of an agent with proofs against itself."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from witnesses import LOG, WITNESSES, History, cosigned, leaves

from treaty_client.protocols.equivocation import MAX_PROOFS, keep
from treaty_consensus.log.equivocation import Equivocation
from treaty_consensus.log.note import MAX_NOTE_BYTES

KEY = LOG.verifier
HISTORY, FORK = History.of(leaves(100)), History.of(leaves(100, fork_at=5))


def padded(note: bytes, number: int) -> bytes:
    """A note with as many lines of unknown keys as fit, others for each number."""
    line = f"— stranger{number}.example {'A' * 60}AAAA\n".encode()
    return note + line * min(90, (MAX_NOTE_BYTES - len(note)) // len(line))


@pytest.mark.threat(345)
def test_two_heads_have_one_proof_whatever_lines_the_log_adds(tmp_path: Path) -> None:
    paths = {
        keep(tmp_path, Equivocation.of(KEY, padded(HISTORY.note(20), number), cosigned(FORK.note(20), *WITNESSES, time=number)))
        for number in range(12)
    }
    (path,) = paths
    assert [*tmp_path.iterdir()] == [path]
    assert path.stat().st_size < 2048
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    Equivocation.parse(path.read_bytes()).verify()


@pytest.mark.threat(345)
def test_of_one_log_a_bounded_number_of_proofs_is_kept(tmp_path: Path) -> None:
    for size in range(6, 6 + MAX_PROOFS + 10):
        assert keep(tmp_path, Equivocation.of(KEY, HISTORY.note(size), FORK.note(size))).exists()
    kept = [*tmp_path.iterdir()]
    assert len(kept) == MAX_PROOFS
    assert sum(path.stat().st_size for path in kept) < MAX_PROOFS * 20 * 1024
