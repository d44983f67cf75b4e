"""What a page costs has bounds that no legal input passes: tables of schemas, changes of operations, diffs, replays."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Malformed
from treaty_consensus.handler import comparison
from treaty_consensus.handler.comparison import operation_changes
from treaty_consensus.handler.manifest import MAX_MANIFEST
from treaty_consensus.handler.schema import check_schema, check_together
from treaty_consensus.handler.schema_table import schema_table
from treaty_registry.catalogue.comparison import MAX_WORD_ROWS, compare
from treaty_registry.catalogue.packages import PackageOperation, PackageRole, PackageView
from treaty_registry.pages import protocol, replay
from treaty_registry.pages.assets import Assets
from treaty_registry.pages.renderer import Renderer
from treaty_registry.pages.replay import TITLES, examples
from treaty_registry.serving.cache import ResponseCache

MAX_PART = 1_500_000
"""Bytes of the operations of a package as HTML, in which a character may take five."""
NAMES = [f"operation{number}" for number in range(64)]
_T = TypeVar("_T")


@pytest.fixture
def renderer() -> Renderer:
    """The templates."""
    return Renderer("registry.example", Assets(), ResponseCache())


def repeating(name: str) -> dict[str, Any]:
    """A small schema whose table repeats a long definition in every row."""
    definition = {"description": f"{name}{'<' * 380}", "const": "&" * 400, "default": '"' * 400}
    return {
        "type": "object",
        "properties": {f"p{number}": {"$ref": "#/$defs/d"} for number in range(60)},
        "$defs": {"d": definition},
    }


def package(*operations: PackageOperation) -> PackageView:
    role = PackageRole("client", "client", [], [], is_shared=False)
    return PackageView("", "", 1, False, [*operations], [role], [], 0, [], 0, 0, [], 0, "")


def operation(
    name: str, schema: dict[str, Any] | None = None, errors: list[tuple[int, str]] | None = None, timeout: int = 1
) -> PackageOperation:
    schema = schema or {"type": "object"}
    return PackageOperation(name, "request", schema, schema, errors or [], False, timeout, 0, [], [], "", None)


def calls(work: Callable[[], _T]) -> tuple[int, _T]:
    """The number of calls that some work makes, and its result: a measure that does not depend on the machine."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        result = work()
    finally:
        sys.setprofile(None)
    return count, result


@pytest.mark.threat(279)
def test_repeated_definitions_make_no_large_page(renderer: Renderer) -> None:
    size = len(json.dumps(repeating(NAMES[0])))
    names = NAMES[: MAX_MANIFEST // (2 * size)]
    every = [check_schema(repeating(name), name) for name in names]
    check_together([*every, *every])
    operations = protocol.shown_operations(
        package(*(operation(name, dict(schema)) for name, schema in zip(names, every, strict=True)))
    )
    html = renderer.text("operations.html", {"package": package(), "operations": operations})
    assert len(names) > 12 and len(html) < MAX_PART
    assert b"Only the first" in html and b"too long to be shown here" in html
    assert all(f"operation-{name}".encode() in html for name in names)


@pytest.mark.threat(279)
def test_many_long_errors_are_cut(renderer: Renderer) -> None:
    errors = [(number, "<" * 2_000) for number in range(2_000)]
    operations = protocol.shown_operations(package(operation("ask", errors=errors)))
    html = renderer.text("operations.html", {"package": package(), "operations": operations})
    assert len(html) < 100_000 and f"Only the first {protocol.MAX_ERRORS} errors".encode() in html


def test_usual_tables_are_whole() -> None:
    members = {f"member{number}": {"type": "string", "description": "A sentence that explains it."} for number in range(40)}
    table = schema_table({"type": "object", "properties": members})
    assert len(table.rows) == 40 and not table.is_cut


@pytest.mark.threat(279)
def test_the_facts_about_changed_operations_are_bounded() -> None:
    old = package(*(operation(name, repeating("a")) for name in NAMES))
    new = package(*(operation(name, repeating("b"), timeout=2) for name in NAMES))
    changes = operation_changes(old.operations, new.operations)
    facts = [fact for change in changes for fact in change.facts]
    assert len(changes) == len(NAMES) and comparison.MAX_CHANGED <= len(facts) <= comparison.MAX_CHANGED + len(NAMES)
    assert max(map(len, facts)) <= comparison.MAX_FACT + 1
    longer = [(number, f"{number} {'x' * 2_000}") for number in range(100)]
    (change,) = operation_changes([operation("ask")], [operation("ask", errors=longer)])
    assert len(change.facts) == comparison.MAX_FACTS + 1 and change.facts[-1] == f"and {100 - comparison.MAX_FACTS} more"


@pytest.mark.threat(279)
def test_words_of_few_lines_are_compared_within_a_difference() -> None:
    old = "\n".join(f"line {number} of the old text" for number in range(1_400)).encode()
    count, comparison = calls(lambda: compare(old, old.replace(b"old", b"new")))
    marked = [row for row in comparison.rows if row.kind == "changed" and len(row.before) > 1]
    assert len(marked) == MAX_WORD_ROWS
    few, _ = calls(lambda: compare(old[: len(old) // 7], old[: len(old) // 7].replace(b"old", b"new")))
    assert count < 2 * few, "lines beyond the bound are compared as a whole"


def sealed(*lines: object) -> str:
    text = "".join(json.dumps(line, ensure_ascii=False, sort_keys=True, separators=(",", ":")) + "\n" for line in lines)
    return text + json.dumps({"end": hex_digest(text.encode())}, separators=(",", ":")) + "\n"


def initiator(candidates: object) -> str:
    """The transcript of an agent that offered these candidates."""
    head, first, *_ = map(json.loads, examples()["agreed"]["transcript"].splitlines())
    first["note"] = "initiator"
    del first["with"]["provides"]
    first["with"]["own"]["Hello"]["candidate_protocols"] = candidates
    return sealed(head, first)


@pytest.mark.threat(279)
def test_many_candidates_or_steps_make_no_large_page(renderer: Renderer) -> None:
    head, first, *_ = map(json.loads, examples()["agreed"]["transcript"].splitlines())
    tick = {"note": "tick" * 10_000, "with": {}, "at": 1.0, "did": []}
    steps = [{**tick, "note": f"t{number}"} for number in range(3_000)]
    for transcript, text in (
        (initiator([f"u{number}" for number in range(15_000)]), "14,936 more candidates are not shown."),
        (initiator(["<" * 200_000]), "&lt;...</code>"),
        (initiator([1, None, {"map": {}}]), "None"),
        (sealed(head, first, *steps), "2,900 more steps are not shown."),
        (sealed(head, first, tick), "tick"),
    ):
        inputs = {"transcript": "", "first": "", "second": ""}
        context = {"titles": TITLES, "given": inputs, "problem": None, "shown": replay.replay({"transcript": transcript})}
        html = renderer.text("replay.html", context)
        assert len(html) < 60_000 and text.encode() in html
    with pytest.raises(Malformed):
        replay.replay({"transcript": initiator("u" * 200_000)})
