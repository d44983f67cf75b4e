"""The bench of calls: the same agent, with the packages of the others as PyPI has them, answers in every form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench import calling


@pytest.mark.deep
async def test_every_form_answers_in_every_measure(rivals_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "REST", 0)
    measures = [replace(one, number=1, turns=1, at_once=min(one.at_once, 4)) for one in calling.MEASURES]
    samples = await calling.measure(calling.FORMS, measures, 1, rivals_python)
    lines = calling.judge(samples, measures)
    # `first` is measured with Treaty and its baseline only.
    assert {(line.measure, line.form) for line in lines} == {
        (one.title, form.title)
        for one in measures
        for form in calling.FORMS
        if one.name != "first" or form.kind or form.name == "mcp"
    }
    assert all(0 < line.p50 <= line.p99 for line in lines)
    assert {len(group) for rounds in samples.values() for groups in rounds for group in groups} == {1, 4}


def test_ratios_are_those_of_the_turns_and_bars_are_judged() -> None:
    (one,) = (measure for measure in calling.MEASURES if measure.title == "opening, one at a time")
    mcp, http, treaty = [[[10.0]], [[20.0]]], [[[5.0]], [[10.0]]], [[[30.0]], [[40.0]]]
    samples = {(one.title, form): rounds for form, rounds in (("MCP", mcp), ("plain HTTP", http), ("Treaty", treaty))}
    lines = {line.form: line for line in calling.judge(samples, [one])}
    assert (lines["Treaty"].ratio, lines["Treaty"].ratio99, lines["Treaty"].met) == (2.5, 2.0, False)
    assert (lines["plain HTTP"].ratio, lines["plain HTTP"].met) == (0.5, True)  # no bar of its own
    table = calling.markdown(calling.Figures(list(lines.values()), calling.sizes(calling.FORMS), 2, "a machine", "2026-01-01"))
    assert "**missed**" in table


def test_lines_are_counted_without_blank_ones_and_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_server.py", "http_caller.py"):
        (tmp_path / name).write_text("# a comment\n\nx = 1  # code\n    \n")
    monkeypatch.setattr(calling, "FOLDER", tmp_path)
    assert calling.sizes([calling.FORMS[0]]) == [calling.Size("plain HTTP", 1, 1, 0)]
