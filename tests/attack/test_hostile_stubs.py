"""A foreign manifest cannot add code to the stubs that are written for it, whatever its names and descriptions are."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from type_checkers import mypy_faults, pyright_faults

from treaty_client.authoring.stubs import write_stubs
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import DECLARATIVE, HandlerMetadata, HandlerPackage, build_wheel, read_wheel

INJECTION = '"""\n\'\'\'\nimport os; os.system("touch /tmp/stolen")\n"""'
URI = "https://registry.example/protocols/example.com/hostile/1.0"
FORMS = {
    "request": {"id": "$id", "type": "request", "op": "$operation", "arguments": "$arguments"},
    "response": {"id": "$id", "type": "response", "result": "$result"},
    "error": {"id": "$id", "type": "error", "code": "$code"},
}
# Every node that the stubs of any manifest consist of. A call beside these would be foreign code.
CALLS = re.compile(
    r"TypedDict|self\._session\.(call|stream)|functions\.\w+|agent\.provides(\(URI, (operation='\w+', )?role='[a-z]+'\))?"
)


def package(operations: dict[str, Any]) -> HandlerPackage:
    """A package with these operations, called by `asker` and provided by `giver`."""
    names = list(operations)
    roles = {
        "asker": {"peer": "giver", "calls": names, "invokes": []},
        "giver": {"peer": "asker", "calls": [], "invokes": names},
    }
    manifest = {"operations": operations, "roles": roles, "messages": {"*": FORMS}}
    metadata = HandlerMetadata("hostile", "1.0", "x", "MIT", DECLARATIVE, URI, "0" * 64, manifest)
    return read_wheel(*build_wheel({}, metadata))


def operation(arguments: dict[str, Any], result: Any = None, errors: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "arguments": {"type": "object", **arguments},
        "result": result or {},
        "errors": errors or {},
        "idempotent": True,
        "timeout": 5,
    }


def check(module: str) -> ast.Module:
    """Parse the module, and check that it has only the statements and calls of stubs."""
    tree = ast.parse(module)
    allowed = (ast.Expr, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.ClassDef, ast.FunctionDef)
    for statement in tree.body:
        assert isinstance(statement, allowed), ast.unparse(statement)
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= {"__future__", "collections.abc", "typing", "treaty_agent"}
    assert not any(isinstance(node, ast.Import) for node in ast.walk(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            assert CALLS.fullmatch(ast.unparse(node.func)), ast.unparse(node)
    return tree


def typed(module: str, folder: Path, cache: Path) -> None:
    """Check the module with mypy and pyright, and run it: its definitions must exist when Python reads them."""
    path = folder / "stubs.py"
    path.write_text(module)
    assert mypy_faults(cache, path) == []
    assert pyright_faults(folder, path) == []
    subprocess.run([sys.executable, str(path)], check=True)


# Names of annotations, builtins, keywords, generated classes and arguments.
METHODS = (
    "str int list dict Any Unpack Session ItemStream Protocol TypedDict class None lambda self result arguments functions agent"
)
METHODS += " URI Asker GiverFunctions StrArguments True match print"
MEMBERS = ["self", "class", "a-b", "a b", INJECTION, "", "__init__", "ﬁ", "fi", "\u202e", "'", '"', "\\", "\n", "{x}", "#"]
NESTED = {"type": "object", "properties": {"nested": {"type": "object", "properties": {"x": {"type": "null"}}}}}
HOSTILE = {
    **{name: operation({"properties": {"a": {"type": "string"}}}, {"type": "string"}) for name in METHODS.split()},
    "members": operation(
        {
            "properties": {**{name: {"type": "integer"} for name in MEMBERS}, "nested": NESTED},
            "required": ["self", "nested"],
            "description": INJECTION,
            "title": INJECTION,
        },
        {
            "$defs": {"A.b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/c-d"}}}, "c-d": {"enum": [INJECTION, "x"]}},
            "anyOf": [{"$ref": "#/$defs/A.b"}, {"type": "array", "items": {"$ref": "#/$defs/c-d"}}, {"type": "null"}],
        },
        {"404": INJECTION},
    ),
    "kinds": operation(
        {"properties": {"x": {"type": ["string", "null"]}, "y": {"const": True}, "z": {"enum": [1, "a", None, 1.5]}}},
        {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
    ),
    "nothing": operation({"additionalProperties": False}),
    "open": operation({}, {"type": "object", "additionalProperties": {"type": "number"}}),
    "many": operation(
        {"properties": {"x": {"enum": list(range(65))}, "y": {"enum": ["a" * 101]}}}, {"enum": [True, 1, 0, False]}
    ),
    "logic": operation({"properties": {"x": {"not": {"type": "string"}}, "y": {"if": {}, "then": {"type": "string"}}}}),
}


@pytest.mark.deep
@pytest.mark.threat(170)
def test_hostile_names_stay_data_in_a_typed_module(tmp_path: Path, type_cache: Path) -> None:
    module = write_stubs(package(HOSTILE))
    tree = check(module)
    typed(module, tmp_path, type_cache)
    # The texts are there, as literals.
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert INJECTION in texts
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    assert len(names) == len(set(names))
    # No control or bidirectional character reaches an editor.
    assert all(character.isprintable() or character == "\n" for character in module)


TEXTS = st.one_of(
    st.text(max_size=30), st.sampled_from([INJECTION, "'", '"""', "\\", "\n", "self", "class", "a", "a-b", "A", "é"])
)
SCHEMAS = st.recursive(
    st.sampled_from([{"type": "string"}, {"type": "integer"}, {"type": "null"}, {}, {"type": ["string", "null"]}]),
    lambda inner: st.one_of(
        st.builds(lambda item: {"type": "array", "items": item}, inner),
        st.builds(lambda members: {"type": "object", "properties": members}, st.dictionaries(TEXTS, inner, max_size=4)),
        st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda values: {"enum": values}, st.lists(st.one_of(TEXTS, st.integers(-9, 9), st.booleans()), min_size=1)),
        st.builds(lambda value: {"const": value}, TEXTS),
    ),
    max_leaves=12,
)


@pytest.mark.threat(170)
@settings(max_examples=150, deadline=None)
@given(
    arguments=st.dictionaries(TEXTS, SCHEMAS, max_size=5),
    result=SCHEMAS,
    description=TEXTS,
    meaning=TEXTS,
    name=st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,20}", fullmatch=True),
)
def test_no_schema_adds_code(arguments: Any, result: Any, description: str, meaning: str, name: str) -> None:
    schema = {"properties": arguments, "description": description}
    try:
        made = package({name: operation(schema, result, {"404": meaning or "x"})})
    except (TreatyError, UnicodeEncodeError) as error:
        # The rules for manifests refuse it. The forms of its messages are never the reason.
        assert getattr(error, "code", "") != "handler.manifest"
        return
    module = write_stubs(made)
    check(module)
    compile(module, "stubs", "exec")


@pytest.mark.threat(170)
def test_no_operation_takes_the_method_of_another_one() -> None:
    """Else an application that serves `import` would serve `import_` by the same function."""
    module = write_stubs(package({name: operation({}) for name in ("import", "import_", "import__", "Any", "Any_")}))
    for node in ast.walk(check(module)):
        if isinstance(node, ast.ClassDef):
            methods = [item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
            assert len(methods) == len(set(methods)) >= 5
    assert "functions.import___)" in module
