"""A measured figure in the docs comes from bench/: its paragraph, or the one before its table, links the page of figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs.generate import ROOT

PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "protocols").glob("*/README.md")]
    + [path for name in ("decisions", "guides", "quickstarts", "specification") for path in (ROOT / "docs" / name).glob("*.md")]
)
MEASURED = (
    r"\d[\d.,]* ?(?:µs|ns|MB|GB)\b",
    r"\d[\d.,]* ?(?:s|ms|seconds?|minutes?) of (?:a )?processor\b",
    r"\b(?:took|takes?|costs?) (?:about |some |only )?\d[\d.,]* ?(?:s|ms|seconds?|minutes?|MiB)\b",
    r"\b(?:\d[\d.,]*|two|three|four|five|ten) times (?:as (?:fast|large|slow|many)|faster|slower|less|smaller)\b",
    r"\d[\d.,]* (?:messages|calls|requests|statements|sessions) (?:a|per) second\b",
)
"""Forms of a measured figure. A limit has other forms (`within`, `at most`); `tests/contract/test_specification.py` has those."""
LIMITS = {
    "docs/specification/handler-packages.md": ("30 ms of processor", "take 30 seconds"),
    "docs/specification/http.md": ("2 s of processor", "times as large"),
    "docs/decisions/capacity-and-uploads.md": ("4 MB",),
    "docs/decisions/shards.md": ("691 GB", "32 GB", "350 GB", "21 GB", "5.8 MB"),
}
"""Such forms that are no measurement: bounds that the code has, a default of Linux, and sizes that follow from formats."""


def figures(text: str) -> list[str]:
    """The measured figures of a page, outside of generated parts, code, paragraphs that link the bench, and their tables."""
    text = re.sub(r"<!-- generated: .*?<!-- end -->|^```.*?^```|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    parts = ["", *text.split("\n\n")]
    linking = [re.search(r"\]\([^)]*bench/README\.md", part) is not None for part in parts]
    paragraphs = [
        " ".join(part.split())
        for number, part in enumerate(parts)
        if not linking[number] and not (part.startswith("|") and linking[number - 1])
    ]
    return [figure for part in paragraphs for form in MEASURED for figure in re.findall(form, part)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_measured_figure_comes_from_the_bench(page: Path) -> None:
    allowed = LIMITS.get(page.relative_to(ROOT).as_posix(), ())
    assert [figure for figure in figures(page.read_text(encoding="utf-8")) if not any(part in figure for part in allowed)] == []


def test_figures_are_found() -> None:
    assert figures("It takes 20 seconds, of 4 MB, and is four times as fast.") == [
        "4 MB",
        "takes 20 seconds",
        "four times as fast",
    ]
    assert figures("It takes 20 seconds ([measured](../../bench/README.md#growth)).") == []
    assert figures("[Measured](bench/README.md):\n\n| takes 4 MB |\n\nIt takes 20 seconds.") == ["takes 20 seconds"]
    assert figures("<!-- generated: x -->\n4 MB\n<!-- end -->") == []
    assert figures("It ends within 20 seconds, with at most 4 MiB.") == []
