"""The fence: the record outside PostgreSQL that a head behind it is never signed."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from treaty_consensus.errors import Conflict, NotFound, TreatyError, Unavailable, Untrusted
from treaty_registry.log.fence import Fence, create_fence, read_fence

ORIGIN = "registry.example"


def root(number: int) -> bytes:
    return hashlib.sha256(bytes([number])).digest()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_fence(tmp_path / "head", ORIGIN)
    return tmp_path / "head"


@pytest.fixture
def fence(path: Path) -> Iterator[Fence]:
    fence = Fence(path, ORIGIN)
    yield fence
    fence.close()


def refusal(fence: Fence, path: Path, size: int, of: bytes) -> str:
    before = path.read_bytes()
    with pytest.raises(Untrusted) as refused:
        fence.advance(size, of)
    assert path.read_bytes() == before
    return refused.value.code


def test_a_new_log_is_recorded_as_the_empty_tree(path: Path) -> None:
    assert read_fence(path, ORIGIN).size == 0
    assert read_fence(path, ORIGIN).root == hashlib.sha256().digest()


def test_it_advances_and_never_goes_back(fence: Fence, path: Path) -> None:
    for size in (3, 7, 8, 100):
        fence.advance(size, root(size))
        assert read_fence(path, ORIGIN) == fence.record
        assert (fence.record.size, fence.record.root) == (size, root(size))
    for size in (0, 8, 99):
        assert refusal(fence, path, size, root(size)) == "log.damaged"


def test_the_same_head_is_no_news_and_another_root_a_fork(fence: Fence, path: Path) -> None:
    fence.advance(3, root(3))
    before = path.read_bytes()
    fence.advance(3, root(3))
    assert path.read_bytes() == before
    assert refusal(fence, path, 3, root(4)) == "log.damaged"


def test_it_survives_a_restart_and_only_its_owner_reads_it(path: Path) -> None:
    fence = Fence(path, ORIGIN)
    fence.advance(5, root(5))
    fence.advance(6, root(6))
    fence.close()
    again = Fence(path, ORIGIN)
    assert (again.record.size, again.record.root) == (6, root(6))
    again.advance(7, root(7))
    again.close()
    assert read_fence(path, ORIGIN).size == 7
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [item.name for item in path.parent.iterdir()] == ["head"]


def test_a_crash_before_the_keys_were_made_is_no_obstacle(path: Path) -> None:
    create_fence(path, "another.example")
    assert read_fence(path, "another.example").size == 0


def test_a_log_is_made_once(fence: Fence, path: Path) -> None:
    fence.advance(1, root(1))
    with pytest.raises(Conflict) as refused:
        create_fence(path, ORIGIN)
    assert refused.value.code == "keys.missing"
    assert read_fence(path, ORIGIN).size == 1


def test_one_process_at_a_time(fence: Fence, path: Path) -> None:
    with pytest.raises(Unavailable) as refused:
        Fence(path, ORIGIN)
    assert refused.value.code == "system.held"
    fence.advance(1, root(1))
    assert read_fence(path, ORIGIN).size == 1, "looking at it is everybody's"


def test_without_the_record_nothing_goes_on(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as refused:
        Fence(tmp_path / "head", ORIGIN)
    assert refused.value.code == "fence.damaged"
    assert not (tmp_path / "head").exists()


def test_the_record_of_another_log_is_not_ours(path: Path) -> None:
    with pytest.raises(Untrusted) as refused:
        Fence(path, "other.example")
    assert refused.value.code == "fence.damaged"
    with pytest.raises(Untrusted):
        read_fence(path, "other.example")


def test_a_torn_write_leaves_the_record_before_it(fence: Fence, path: Path) -> None:
    fence.advance(11, root(11))
    before = path.read_bytes()
    fence.advance(12, root(12))
    after = path.read_bytes()
    changed = [at for at in range(len(after)) if after[at] != before[at]]
    assert changed[-1] - changed[0] < 512, "one slot is written, not the one that counts"
    for torn in range(changed[0], changed[-1] + 1):
        path.write_bytes(after[:torn] + before[torn:])
        assert read_fence(path, ORIGIN).size in (11, 12)
    path.write_bytes(after)


def test_every_flipped_bit_is_noticed(fence: Fence, path: Path) -> None:
    for size in (11, 12):
        fence.advance(size, root(size))
    whole = path.read_bytes()
    for position in range(len(whole)):
        flipped = whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]
        path.write_bytes(flipped)
        record = read_fence(path, ORIGIN)
        assert (record.size, record.root) in ((11, root(11)), (12, root(12)))
        path.write_bytes(flipped[:512] + bytes(512))
        assert noticed(path) == (position < 512)
    path.write_bytes(whole)


def noticed(path: Path) -> bool:
    """Whether the file is refused."""
    try:
        read_fence(path, ORIGIN)
    except TreatyError as error:
        assert error.code == "fence.damaged"
        return True
    return False


@pytest.mark.parametrize("data", [b"", b"\0" * 1024, b"x" * 1024, b"registry.example\n0\nAAAA\n"])
def test_what_is_no_record(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert noticed(path)


def test_a_file_that_was_cut_or_has_grown(fence: Fence, path: Path) -> None:
    fence.advance(1, root(1))
    whole = path.read_bytes()
    for data in (whole[:-1], whole + b"\0", whole[:512], whole * 2):
        path.write_bytes(data)
        assert noticed(path)
    path.write_bytes(whole)


def test_two_slots_of_one_size_that_differ_are_damage(path: Path, tmp_path: Path) -> None:
    create_fence(tmp_path / "other", ORIGIN)
    one, other = Fence(path, ORIGIN), Fence(tmp_path / "other", ORIGIN)
    one.advance(1, root(1))
    other.advance(1, root(2))
    mixed = path.read_bytes()[512:] + (tmp_path / "other").read_bytes()[512:]
    one.close()
    other.close()
    path.write_bytes(mixed)
    assert noticed(path)
