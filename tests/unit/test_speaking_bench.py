"""The bench of spoken protocols: every way of every dialogue talks, and the page says where the time goes."""

from __future__ import annotations

import pytest
from bench import report, speaking
from bench.contest import Result, Sample
from bench.dialogues import SIZES, WAYS, dialogue


@pytest.mark.deep
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", speaking.TITLES)
@pytest.mark.parametrize("size", SIZES)
async def test_a_turn_has_the_same_messages_in_every_way(name: str, size: str) -> None:
    counts = set()
    for way in WAYS:
        async with dialogue(name, size, way) as (wiring, turn):
            before = wiring.messages
            for _ in range(3):
                await turn()
            counts.add(wiring.messages - before)
    assert counts in ({6}, {9}, {24})


def test_the_page_has_every_row_and_a_profile() -> None:
    spending: speaking.Spending = {
        f"{name} {size} {way}": [speaking.Spent(clock, here, 100)]
        for name in speaking.TITLES
        for size in SIZES
        for way, clock, here in (("bare", 50, 50), ("in process", 80, 80), ("sandbox", 500, 200))
    }
    parts = speaking.parts(spending)
    expected = {"handler": 50, "checks": 30, "this end": 170, "worker's end": 50, "waiting": 200, "all": 500}
    assert parts["aip text"] == expected
    rows = [row for group in speaking.groups({}) for row in group.rows]
    lines = [report.line_of(Result(row, (Sample(1, cpu=2),), (Sample(4, cpu=1),)), "a machine") for row in rows]
    page = speaking.markdown(speaking.Figures(lines, parts))
    assert all(f"| `{row.name}` | {row.what} | {row.against} | 1/s | 4/s | 0.25 | 2.000 | 1.000 |" in page for row in rows)
    assert "takes 500 µs through the sandbox" in page
    assert "2.00 times the processor time" in page
    assert "missed" not in page
