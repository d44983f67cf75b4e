"""Compare two documents line by line, and the words of a changed line.

`difflib` takes quadratic time for hostile texts. So the number of lines and words is bounded here, and the processor time by the
process that this runs in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Literal

import msgspec

MAX_LINES = 1_500
"""Lines of each document that are compared."""
MAX_ROWS = 500
"""Rows of a result."""
CONTEXT = 3
MAX_LINE = 800
MAX_WORDS = 160
"""Words of a line that are compared one by one; a longer line is marked as a whole."""
MAX_WORD_ROWS = 200
_WORD = re.compile(r"\w+|\s+|[^\w\s]")


class Piece(msgspec.Struct, frozen=True):
    """A part of a line. `is_changed`: the other document does not have it there."""

    text: str
    is_changed: bool


class DiffRow(msgspec.Struct, frozen=True):
    """A line of either document, or of both. `old`, `new`: its numbers, or 0. `skipped`: equal lines that are left out here."""

    kind: Literal["same", "removed", "added", "changed", "skipped"]
    old: int
    new: int
    before: list[Piece]
    after: list[Piece]
    skipped: int = 0


class Comparison(msgspec.Struct, frozen=True):
    """The rows that differ, each with some equal lines around. `is_cut`: the documents differ beyond these rows, or may."""

    rows: list[DiffRow]
    added: int
    removed: int
    is_cut: bool


def compare(old: bytes, new: bytes) -> Comparison:
    """Return the difference of two documents. Bytes that are no UTF-8 are replaced. Never raises."""
    before, after = _lines(old), _lines(new)
    is_cut = max(len(before), len(after)) > MAX_LINES
    before, after = before[:MAX_LINES], after[:MAX_LINES]
    groups = SequenceMatcher(None, before, after).get_grouped_opcodes(CONTEXT)
    rows: list[DiffRow] = []
    added = removed = end = words = 0
    for group in groups:
        start = group[0][1]
        if start > end:
            rows.append(DiffRow("skipped", 0, 0, [], [], start - end))
        end = group[-1][2]
        for tag, i1, i2, j1, j2 in group:
            if tag != "equal":
                removed, added = removed + i2 - i1, added + j2 - j1
            for row in _rows(tag, before, after, (i1, i2, j1, j2), MAX_WORD_ROWS - words):
                words += row.kind == "changed"
                rows.append(row)
    if rows and end < len(before):
        rows.append(DiffRow("skipped", 0, 0, [], [], len(before) - end))
    return Comparison(rows[:MAX_ROWS], added, removed, is_cut or len(rows) > MAX_ROWS)


def _lines(document: bytes) -> list[str]:
    # Not `splitlines`, which also splits at characters that no editor takes for the end of a line.
    text = document.decode("utf-8", errors="replace").replace("\r\n", "\n")
    return text.removesuffix("\n").split("\n")


def _rows(
    tag: str, before: Sequence[str], after: Sequence[str], at: tuple[int, int, int, int], word_rows: int
) -> Iterator[DiffRow]:
    """Yield the rows of one difference. `word_rows`: changed lines whose words may be compared."""
    i1, i2, j1, j2 = at
    if tag == "equal":
        for i, j in zip(range(i1, i2), range(j1, j2), strict=True):
            line = [Piece(before[i][:MAX_LINE], is_changed=False)]
            yield DiffRow("same", i + 1, j + 1, line, line)
        return
    paired = min(i2 - i1, j2 - j1)
    for offset in range(paired):
        i, j = i1 + offset, j1 + offset
        left, right = _words(before[i], after[j]) if offset < word_rows else (_whole(before[i]), _whole(after[j]))
        yield DiffRow("changed", i + 1, j + 1, left, right)
    for i in range(i1 + paired, i2):
        yield DiffRow("removed", i + 1, 0, _whole(before[i]), [])
    for j in range(j1 + paired, j2):
        yield DiffRow("added", 0, j + 1, [], _whole(after[j]))


def _whole(line: str) -> list[Piece]:
    return [Piece(line[:MAX_LINE], is_changed=True)]


def _words(old: str, new: str) -> tuple[list[Piece], list[Piece]]:
    """Return both lines in parts. Lines with few common words are marked as a whole: their common words mean nothing."""
    if len(old) > MAX_LINE or len(new) > MAX_LINE:
        return _whole(old), _whole(new)
    before, after = _WORD.findall(old), _WORD.findall(new)
    if max(len(before), len(after)) > MAX_WORDS:
        return _whole(old), _whole(new)
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    if matcher.ratio() < 0.4:
        return _whole(old), _whole(new)
    left: list[Piece] = []
    right: list[Piece] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        for pieces, words in ((left, before[i1:i2]), (right, after[j1:j2])):
            if words:
                pieces.append(Piece("".join(words), tag != "equal"))
    return left, right
