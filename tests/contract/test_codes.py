"""Error codes: each is one member of an enum, has a meaning and its kinds of error, and stands in one table."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from docs.generate.syntax import tree_of

from treaty_consensus import codes as consensus
from treaty_consensus import errors
from treaty_consensus.codes import Code
from treaty_consensus.errors import TreatyError
from treaty_handoff import codes as handoff
from treaty_io import codes as client
from treaty_io import errors as client_errors
from treaty_io.codes.lookup import find_code
from treaty_registry import codes as registry

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"[a-z][a-z0-9-]*\.[a-z][a-z0-9-]*")
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
CLASSES = {
    name: found
    for module in (consensus, client, handoff, registry)
    for name, found in inspect.getmembers(module, inspect.isclass)
    if issubclass(found, Code) and found is not Code
}
CODES = [code for found in CLASSES.values() for code in found]
KINDS = {
    name: kind
    for module in (errors, client_errors)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, TreatyError)
}

MOST = 350
"""How many codes there are at most. A code names an action of its reader, and the message says the detail: a new fault with a
known advice takes a code that exists. The bound only falls."""

NO_CODES = {"http.request", "protocol.name"}
"""Codes that are also an event of ASGI and a field of the manifest."""
FILE = re.compile(r".*\.(db|example|json|key|lock|md|pem|pid|py|start|toml)")
"""Names of files and hosts, some of which have the form of a code."""


@cache
def sources() -> dict[Path, ast.Module]:
    """The modules of the product without the codes themselves."""
    folders = ("consensus", "client", "registry", "protocols")
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    paths = [path for path in paths if path.stem != "codes" and path.parent.name != "codes"]
    return {path: tree_of(path) for path in paths}


def raised() -> list[tuple[str, str, ast.expr]]:
    """Where an error of one of the kinds is made: the place, the kind, and the expression of its code."""
    raises = []
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS and node.args:
                raises.append((f"{path.relative_to(ROOT)}:{node.lineno}", node.func.id, node.args[0]))
    return raises


def member_of(node: ast.expr) -> Code | None:
    match node:
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in CLASSES:
            return CLASSES[name][attribute]
    return None


def test_each_code_is_one_member() -> None:
    assert [code for code, count in Counter(map(str, CODES)).items() if count > 1] == []
    assert [code for code in CODES if not CODE.fullmatch(code)] == []


def test_there_are_no_more_codes_than_before() -> None:
    assert len(CODES) <= MOST


def test_a_class_has_the_codes_of_one_prefix() -> None:
    for name, codes in CLASSES.items():
        assert len({code.partition(".")[0] for code in codes}) == 1, name
        assert [code.name for code in codes] == [code.partition(".")[2].replace("-", "_").upper() for code in codes]


def test_each_code_has_a_meaning() -> None:
    assert [code for code in CODES if not re.fullmatch(r"[A-Z0-9].*[.)]", code.meaning)] == []


def test_each_code_is_used() -> None:
    used = {member_of(node) for tree in sources().values() for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert [code for code in CODES if code not in used] == []


def test_no_code_is_spelt_where_an_error_is_raised() -> None:
    spelt = [place for place, _, code in raised() if isinstance(code, ast.Constant | ast.JoinedStr)]
    assert spelt == []


def test_no_module_spells_a_code() -> None:
    spelt = []
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value in CODES and node.value not in NO_CODES:
                spelt.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}")
    assert spelt == []


def test_a_code_is_raised_with_a_kind_that_it_names() -> None:
    wrong = []
    for place, kind, node in raised():
        code = member_of(node)
        if code is not None and not issubclass(KINDS[kind], code.kinds):
            wrong.append(f"{place}: {kind} {code}")
    assert wrong == []


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs" / "specification").glob("*.md")))
def test_a_page_names_no_code_that_does_not_exist(page: str) -> None:
    prefixes = {code.partition(".")[0] for code in CODES}
    modules = {f"{path.parent.name}.{path.stem}" for path in sources()}
    spans = SPAN.findall((ROOT / "docs" / "specification" / page).read_text())
    named = {span for span in spans if CODE.fullmatch(span) and span.partition(".")[0] in prefixes}
    assert {span for span in named - set(map(str, CODES)) - modules if not FILE.fullmatch(span)} == set()


def test_the_page_of_codes_has_each_once() -> None:
    page = (ROOT / "docs" / "reference" / "codes.md").read_text()
    assert Counter(re.findall(r"^- `([^`]+)`", page, re.MULTILINE)) == Counter(map(str, CODES))


def test_each_code_of_the_client_says_whose_fault_it_is() -> None:
    codes = [code for name, found in CLASSES.items() if found.__module__.startswith("treaty_io.") for code in found]
    assert len(codes) > 150
    assert [code for code in codes if not isinstance(code.origin, errors.Origin)] == []


def test_a_code_that_names_a_retry_differs_from_its_kinds() -> None:
    assert [code for code in CODES if code.retryable == (errors.Unavailable in code.kinds)] == []


def test_a_code_of_a_peer_is_found_by_its_text() -> None:
    codes = [code for code in CODES if not type(code).__module__.startswith(("treaty_registry", "treaty_handoff"))]
    assert [code for code in codes if find_code(str(code)) is not code] == []
    assert find_code("no.such-code") is None
