"""The model of sequencer, leader and fence, over all interleavings of a small instance, by spin; and its planted bugs, which
spin finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from depth import FULL
from spin_checker import check

MODEL = Path(__file__).parent / "write_path.pml"


@pytest.mark.parametrize(
    ("defined", "at_least"),
    [
        ((f"FAULTS={2 if FULL else 1}", "SHARED"), 10_000),
        ((f"FAULTS={3 if FULL else 1}", "REPLICA"), 10_000),
        ((f"FAULTS={4 if FULL else 2}", "RESTORE"), 10_000),
        (("FAULTS=2", "PROGRESS") if FULL else ("FAULTS=1", "PROGRESS", "SMALL"), 10_000),
        *([(("FAULTS=3",), 10_000), (("FAULTS=1", "PROGRESS", "SHARED", "REPLICA", "SMALL"), 10_000)] if FULL else []),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_no_interleaving_breaks_the_model(defined: tuple[str, ...], at_least: int, tmp_path: Path) -> None:
    checked = check(MODEL, *defined, folder=tmp_path, large=FULL)
    assert checked.error == ""
    assert checked.states > at_least


PLANTED = [
    (("FAULTS=2", "RESTORE", "SKIP_FENCE"), "assertion violated ((shown[size]"),
    (("FAULTS=2", "SIGN_FIRST"), "assertion violated (((size+1)<=db_size)"),
    (("FAULTS=2", "SHARED", "NO_COMPARE"), "assertion violated (size>=fence_size[0])"),
    (("FAULTS=2", "REPLICA", "TAKE_FIRST"), "assertion violated (size<=rep_size)"),
    (("FAULTS=2", "REPLICA", "NO_TAKE"), "assertion violated (size<=rep_size)"),
    (("FAULTS=2", "ACK_FIRST"), "assertion violated ((at<db_size)"),
    (("FAULTS=2", "NO_CONDITION"), "assertion violated (db_at[db_size]==0)"),
    (("FAULTS=1", "PROGRESS", "STALE_HEAD"), "acceptance cycle"),
]


@pytest.mark.parametrize(
    ("defined", "error"), PLANTED if FULL else PLANTED[:4], ids=lambda value: value[-1] if isinstance(value, tuple) else ""
)
def test_a_planted_bug_is_found(defined: tuple[str, ...], error: str, tmp_path: Path) -> None:
    assert check(MODEL, *defined, folder=tmp_path).error.startswith(error)
