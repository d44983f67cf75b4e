"""The fence: the record outside PostgreSQL that a head behind it is never signed."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest

from treaty_consensus.errors import Conflict, NotFound, TreatyError, Untrusted
from treaty_registry.fence import Fence

ORIGIN = "registry.example"


def root(number: int) -> bytes:
    return hashlib.sha256(bytes([number])).digest()


@pytest.fixture
def fence(tmp_path: Path) -> Fence:
    fence = Fence(tmp_path / "head", ORIGIN)
    fence.create()
    return fence


def refusal(fence: Fence, size: int, of: bytes) -> TreatyError:
    before = fence.read()
    with pytest.raises(Untrusted) as refused:
        fence.advance(size, of)
    assert fence.read() == before
    return refused.value


def test_a_new_log_is_recorded_as_the_empty_tree(fence: Fence) -> None:
    assert fence.read().size == 0
    assert fence.read().root == hashlib.sha256().digest()


def test_it_advances_and_never_goes_back(fence: Fence) -> None:
    fence.advance(3, root(3))
    fence.advance(7, root(7))
    assert (fence.read().size, fence.read().root) == (7, root(7))
    assert refusal(fence, 3, root(3)).code == "fence.behind"


def test_the_same_head_again_is_no_news_but_another_root_is_a_fork(fence: Fence) -> None:
    fence.advance(3, root(3))
    fence.advance(3, root(3))
    assert refusal(fence, 3, root(4)).code == "fence.behind"


def test_it_survives_a_restart_and_only_its_owner_reads_it(fence: Fence, tmp_path: Path) -> None:
    fence.advance(5, root(5))
    assert Fence(tmp_path / "head", ORIGIN).read() == fence.read()
    assert stat.S_IMODE((tmp_path / "head").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


def test_a_log_is_made_once(fence: Fence) -> None:
    fence.advance(1, root(1))
    with pytest.raises(Conflict) as refused:
        fence.create()
    assert refused.value.code == "fence.exists"
    assert fence.read().size == 1


def test_without_the_record_nothing_goes_on(tmp_path: Path) -> None:
    missing = Fence(tmp_path / "head", ORIGIN)
    with pytest.raises(NotFound) as refused:
        missing.advance(1, root(1))
    assert refused.value.code == "fence.missing"
    assert not (tmp_path / "head").exists()


def test_the_record_of_another_log_is_not_ours(fence: Fence, tmp_path: Path) -> None:
    with pytest.raises(Untrusted) as refused:
        Fence(tmp_path / "head", "other.example").advance(1, root(1))
    assert refused.value.code == "fence.other-log"
    assert fence.read().size == 0


def test_every_damaged_record_is_noticed_or_names_another_head(fence: Fence, tmp_path: Path) -> None:
    fence.advance(12, root(12))
    record, whole = (tmp_path / "head").read_bytes(), fence.read()
    for position in range(len(record)):
        flips = (record[:position] + bytes([record[position] ^ bit]) + record[position + 1 :] for bit in (0x01, 0x10, 0x80))
        for damaged in (record[:position], *flips):
            (tmp_path / "head").write_bytes(damaged)
            try:
                assert fence.read() != whole
            except Untrusted as refused:
                assert refused.code in ("fence.unreadable", "fence.other-log")
    (tmp_path / "head").write_bytes(record)
    assert fence.read() == whole
