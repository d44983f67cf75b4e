"""Bring the tools of an MCP server into one form, and say how two lists differ.

Two lists are equal if they differ in nothing but orders that mean nothing: of tools, of members, and of the lists of JSON Schema
that are sets (`required`, `enum`, `type`, `anyOf`, `oneOf`, `allOf`, `dependentRequired`). Every member of a tool counts, also
its description, its annotations and members that this release does not know: each may reach the model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from treaty_consensus.errors import Malformed, TooLarge
from treaty_consensus.printable import escaped, printable
from treaty_io.codes import RpcCode

MAX_TOOLS = 512
MAX_INSTRUCTIONS = 64 * 1024
INSTRUCTIONS = "the text of instructions"
"""In the place of a tool's name."""
MAX_TOOL = 128 * 1024
"""Characters of a tool as JSON."""
MAX_DEPTH = 64
MAX_FACTS = 24
MAX_SHOWN = 160
_SETS = frozenset(("required", "enum", "type", "anyOf", "oneOf", "allOf"))
_DATA = frozenset(("const", "default", "examples"))
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_SCHEMAS = ("inputSchema", "outputSchema")
_LEAST = frozenset(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"))
_MOST = frozenset(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"))

Effect = Literal["", "wider", "narrower"]


@dataclass(frozen=True)
class ToolChange:
    """A tool of either list. `former`: the name of a renamed one. `facts`: the differences, each a phrase."""

    name: str
    change: Literal["new", "removed", "renamed", "changed"]
    former: str = ""
    facts: tuple[str, ...] = ()

    def __str__(self) -> str:
        name = printable(self.name, MAX_SHOWN)
        head = f"{printable(self.former, MAX_SHOWN)} is renamed to {name}" if self.former else f"{name} is {self.change}"
        return "\n".join((head, *(f"  {fact}" for fact in self.facts)))


class ToolList:
    """Tools by their names, each as JSON in one form, and the instructions of the server, which reach a model too. Immutable."""

    def __init__(self, texts: Mapping[str, str], instructions: str = "") -> None:
        """`texts`: as `texts` of another list."""
        self.texts, self.instructions = dict(sorted(texts.items())), instructions

    @classmethod
    def of(cls, tools: Sequence[Any], instructions: str = "") -> ToolList:
        """Read the tools of answers to `tools/list`. Raises `Malformed` and `TooLarge` (`rpc.answer`), also for two tools of one
        name: a host could use the other one."""
        if len(tools) > MAX_TOOLS:
            raise TooLarge(RpcCode.ANSWER, f"The server lists more than {MAX_TOOLS} tools.")
        texts: dict[str, str] = {}
        for tool in tools:
            if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
                raise Malformed(RpcCode.ANSWER, "A tool of the server has no name.")
            if tool["name"] in texts:
                raise Malformed(RpcCode.ANSWER, f"The server has two tools named {printable(tool['name'], 80)}.")
            _check_depth(tool, MAX_DEPTH)
            text = _text({name: _schema(value) if name in _SCHEMAS else _plain(value) for name, value in tool.items()})
            if len(text) > MAX_TOOL:
                raise TooLarge(RpcCode.ANSWER, f"A tool of the server has more than {MAX_TOOL} characters.")
            texts[tool["name"]] = text
        return cls(texts, instructions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolList) and (self.texts, self.instructions) == (other.texts, other.instructions)

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def digest(self) -> str:
        """SHA-256 of the whole list."""
        return hashlib.sha256(json.dumps([self.texts, self.instructions]).encode()).hexdigest()

    def changes(self, newer: ToolList) -> list[ToolChange]:
        """Return the tools that differ, in the order of their names."""
        added = [name for name in newer.texts if name not in self.texts]
        removed = [name for name in self.texts if name not in newer.texts]
        changes = []
        for name in added:
            twins = (old for old in removed if _unnamed(self.texts[old]) == _unnamed(newer.texts[name]))
            former = next(twins, "")
            if former:
                removed.remove(former)
            changes.append(ToolChange(name, "renamed" if former else "new", former))
        changes += [ToolChange(name, "removed") for name in removed]
        for name, text in newer.texts.items():
            if self.texts.get(name, text) != text:
                changes.append(ToolChange(name, "changed", facts=_facts(self.texts[name], text)))
        if self.instructions != newer.instructions:
            changes.append(ToolChange(INSTRUCTIONS, "changed", facts=(_both(self.instructions, newer.instructions),)))
        return sorted(changes, key=lambda change: change.name)


def _check_depth(value: Any, left: int) -> None:
    """Check a depth before the code below recurses as deep. Raises `TooLarge` (`rpc.answer`)."""
    if left == 0:
        raise TooLarge(RpcCode.ANSWER, f"A tool of the server is nested deeper than {MAX_DEPTH} levels.")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(item, left - 1)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _unnamed(text: str) -> Any:
    return {name: value for name, value in json.loads(text).items() if name != "name"}


def _plain(value: Any) -> Any:
    """Return a value that is no schema. 1 and 1.0 are one number."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _schema(node: Any) -> Any:
    if not isinstance(node, dict):
        return _plain(node)
    form = {}
    for name, value in node.items():
        if name in _DATA:
            form[name] = _plain(value)
        elif name in _NAMED and isinstance(value, dict):  # its members are names, and none of them is a keyword
            form[name] = {one: _schema(item) for one, item in value.items()}
        elif name == "dependentRequired" and isinstance(value, dict):
            form[name] = {one: _set(item) for one, item in value.items()}
        elif name in _SETS:
            form[name] = _set(value, is_schemas=name.endswith("Of"))
        elif isinstance(value, list):
            form[name] = [_schema(item) for item in value]
        else:
            form[name] = _schema(value)
    return form


def _set(value: Any, *, is_schemas: bool = False) -> Any:
    if not isinstance(value, list):
        return _plain(value)
    return sorted((_schema(item) if is_schemas else _plain(item) for item in value), key=_text)


def _facts(old: str, new: str) -> tuple[str, ...]:
    facts = list(_differences("", json.loads(old), json.loads(new)))
    rest = [f"and {len(facts) - MAX_FACTS} more"] if len(facts) > MAX_FACTS else []
    return (*facts[:MAX_FACTS], *rest)


_ABSENT = object()


def _differences(path: str, old: Any, new: Any) -> Iterator[str]:
    if _is_same(old, new):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            yield from _differences(f"{path}.{name}" if path else name, old.get(name, _ABSENT), new.get(name, _ABSENT))
        return
    keyword = path.rpartition(".")[2]
    if isinstance(old, list) and isinstance(new, list) and keyword in _SETS:
        gone, more = [one for one in old if one not in new], [one for one in new if one not in old]
        parts = [*(f"without {_shown(one)}" for one in gone), *(f"with {_shown(one)}" for one in more)]
        parts = parts or ["with another number of equal members"]
        yield _fact(path, ", ".join(parts), _effect(keyword, old, new))
    else:
        yield _fact(path, _both(old, new), _effect(keyword, old, new))


def _is_same(old: Any, new: Any) -> bool:
    return old is new or (old is not _ABSENT and new is not _ABSENT and _text(old) == _text(new))


def _fact(path: str, text: str, effect: Effect) -> str:
    return f"{printable(path, MAX_SHOWN)}: {text}{f' ({effect})' if effect else ''}"


def _shown(value: Any) -> str:
    return _cut("absent" if value is _ABSENT else _text(value), 0)


def _both(old: Any, new: Any) -> str:
    """Return two values from shortly before the place where they begin to differ."""
    texts = ["absent" if value is _ABSENT else _text(value) for value in (old, new)]
    # A letter of another alphabet can look like a Latin one.
    if texts[0].isascii() != texts[1].isascii():
        texts = [text.encode("ascii", "backslashreplace").decode() for text in texts]
    equal = next((place for place, letters in enumerate(zip(*texts, strict=False)) if letters[0] != letters[1]), len(texts[0]))
    return " → ".join(_cut(text, max(0, equal - MAX_SHOWN // 2)) for text in texts)


def _cut(text: str, begin: int) -> str:
    part = escaped(text[begin : begin + MAX_SHOWN])
    return f"{'…' if begin else ''}{part}{'…' if len(text) > begin + MAX_SHOWN else ''}"


def _effect(keyword: str, old: Any, new: Any) -> Effect:
    """Return whether a schema takes more values than before, or fewer, where a keyword alone says so."""
    if isinstance(old, list) and isinstance(new, list):
        is_more, is_fewer = all(one in new for one in old), all(one in old for one in new)
        if is_more == is_fewer:
            return ""
        # A longer `required` asks for more, a longer `enum` takes more.
        return "narrower" if is_more == (keyword in ("required", "allOf")) else "wider"
    if keyword == "additionalProperties":
        return "wider" if old is False else "narrower" if new is False else ""
    if keyword in _LEAST | _MOST:
        if new is _ABSENT or old is _ABSENT:
            return "wider" if new is _ABSENT else "narrower"
        if isinstance(old, int | float) and isinstance(new, int | float):
            return "wider" if (new > old) == (keyword in _MOST) else "narrower"
    if keyword in ("enum", "const", "pattern", "format", "required") and (old is _ABSENT or new is _ABSENT):
        return "wider" if new is _ABSENT else "narrower"
    return ""
