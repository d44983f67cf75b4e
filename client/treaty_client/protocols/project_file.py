"""Read protocol.toml: its fields, their legal values, and all that is wrong with a file.

docs/specification/handler-packages.md, "The project folder", has the table of the fields, generated from `FIELDS`. An example:

    name = "product-info"
    version = "1.0"
    topic = "commerce/product-info"
    origin = "negotiated"
    title = "Product information"
    summary = "Ask a shop for a product."
    licence = "Apache-2.0"

    [handler]
    entry-point = "treaty_handler_product_info:handler"
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from treaty_consensus.errors import Malformed, TreatyError
from treaty_consensus.kinds import MAX_ALIASES
from treaty_consensus.protocol import Card, check_aliases, is_name, is_topic, parse_version
from treaty_io.codes import ProjectCode

TOML = "protocol.toml"
MAX_TOML = 64 * 1024
MAX_LICENCE = 64
_TABLE = "[handler] "
SOURCE = "handler"
"""The usual folder of a handler's sources."""

_ENTRY_POINT = re.compile(r"(treaty_handler_[a-z0-9_]+(?:\.[A-Za-z_][A-Za-z0-9_]*)*):([A-Za-z_][A-Za-z0-9_]*)")
_MAX_SHOWN = 80


class HandlerTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The table [handler]."""

    entry_point: str | None = None
    source: str | None = None
    version: str | None = None


class ProtocolFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A valid protocol.toml."""

    name: str
    version: str
    topic: str
    origin: Literal["negotiated", "standard"]
    title: str
    summary: str
    tags: tuple[str, ...] = ()
    licence: str = ""
    aliases: tuple[str, ...] = ()
    handler: HandlerTable | None = None


@dataclass(frozen=True, slots=True)
class ProjectProblem:
    """One fault of a project. `file`: its path in the project. `field`: the place in the file, or ""."""

    file: str
    field: str
    error: TreatyError


@dataclass(frozen=True, slots=True)
class FileField:
    """A field of protocol.toml. `allowed`: its legal values, for people. `example`: a legal value. `check`: raises `TreatyError`
    or `ValueError` for an illegal value."""

    name: str
    required: bool
    allowed: str
    example: str | list[str]
    check: Callable[[Any], object]

    @property
    def line(self) -> str:
        """The field with its example, as in the file."""
        # The JSON of printable texts and lists is TOML too.
        return f"{self.name.removeprefix(_TABLE)} = {json.dumps(self.example, ensure_ascii=False)}"


def package_of(name: str) -> str:
    """Return the name of the handler package of a protocol."""
    return f"treaty_handler_{name.replace('-', '_')}"


def _is(check: Callable[[str], bool]) -> Callable[[Any], None]:
    def checked(value: Any) -> None:
        if not isinstance(value, str) or not check(value):
            raise ValueError

    return checked


def _text(check: Callable[[str], object]) -> Callable[[Any], None]:
    def checked(value: Any) -> None:
        if not isinstance(value, str):
            raise ValueError
        check(value)

    return checked


def _texts(check: Callable[[tuple[str, ...]], object]) -> Callable[[Any], None]:
    def checked(value: Any) -> None:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError
        check(tuple(value))

    return checked


def _aliases(aliases: tuple[str, ...]) -> None:
    if len(aliases) > MAX_ALIASES:
        raise ValueError
    try:
        check_aliases(aliases)
    except TreatyError as error:
        raise ValueError from error


def _card(**fields: Any) -> bytes:
    return Card(**{"title": "-", "summary": "", **fields}).encode()


FIELDS = (
    FileField("name", True, "lower-case letters and digits, joined by `-`; at most 64", "product-info", _is(is_name)),
    FileField("version", True, "a version of PEP 440 in normal form", "1.0", _text(parse_version)),
    FileField(
        "topic", True, "one to four such names, joined by `/`; at most 160 characters", "commerce/product-info", _is(is_topic)
    ),
    FileField(
        "origin", True, '`"negotiated"`: agreed by agents; `"standard"`: made by people', "negotiated",
        _is(lambda text: text in ("negotiated", "standard")),
    ),
    FileField("title", True, "1 to 120 characters", "Product information", _text(lambda text: _card(title=text))),
    FileField("summary", True, "at most 500 characters", "Ask a shop for a product.", _text(lambda text: _card(summary=text))),
    FileField("tags", False, "at most 16 names", ["commerce"], _texts(lambda tags: _card(tags=tags))),
    FileField(
        "licence", False, f"an SPDX expression of at most {MAX_LICENCE} characters; required with a handler", "Apache-2.0",
        _text(lambda text: _card(licence=text)),
    ),
    FileField(
        "aliases", False, f"at most {MAX_ALIASES} different URIs without spaces, which the publisher claims",
        ["anp:protocol:product-info:1.0"], _texts(_aliases),
    ),
    FileField(
        "[handler] entry-point", False, "`treaty_handler_NAME:ATTRIBUTE`, NAME with the dashes as underscores; required for code",
        "treaty_handler_product_info:handler", _is(lambda text: _ENTRY_POINT.fullmatch(text) is not None),
    ),
    FileField("[handler] source", False, "a folder in the project or beside it; default `handler`", "handler", _is(bool)),
    FileField("[handler] version", False, "a version of PEP 440; default the protocol's", "1.0.post1", _text(parse_version)),
)  # fmt: skip
"""Every field of protocol.toml, in the order of the specification."""


def read_protocol_file(data: bytes) -> tuple[ProtocolFile | None, list[ProjectProblem]]:
    """Return the parsed file, or None and all of its faults (`project.file`, `protocol.name`, `card.…`)."""
    try:
        values = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return None, [_problem("", f"{TOML} is not TOML: {error}", "Correct the line that is named.")]
    table = values.get("handler")
    flat = {name: value for name, value in values.items() if name != "handler"}
    if isinstance(table, dict):
        flat |= {f"{_TABLE}{name}": value for name, value in table.items()}
    elif table is not None:
        return None, [_problem("handler", f"{TOML}: handler is not a table", "Write its fields below a line [handler].")]
    problems = [*_unknown(flat), *_field_problems(flat, has_handler=table is not None), *_together(flat)]
    return (None, problems) if problems else (msgspec.convert(values, ProtocolFile), [])


def _field_problems(values: Mapping[str, Any], *, has_handler: bool) -> Iterator[ProjectProblem]:
    for field in FIELDS:
        if field.name not in values:
            if field.required and (has_handler or not field.name.startswith(_TABLE)):
                yield _problem(field.name, f"{TOML} has no {field.name}; it is {field.allowed}", _write(field, values))
            continue
        try:
            field.check(values[field.name])
        except TreatyError as error:
            problem = type(error)(error.code, f"{TOML}: {field.name}: {error.message}", fix=error.fix or _write(field, values))
            yield ProjectProblem(TOML, field.name, problem)
        except ValueError:
            value_text = json.dumps(values[field.name], ensure_ascii=False, default=str)[:_MAX_SHOWN]
            yield _problem(field.name, f"{TOML}: {field.name} = {value_text} is not {field.allowed}", _write(field, values))


def _unknown(values: Mapping[str, Any]) -> Iterator[ProjectProblem]:
    names = [field.name for field in FIELDS]
    for name in values:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            fix = f"Write {near[0].removeprefix(_TABLE)}." if near else f"Remove it. The fields are {', '.join(names)}."
            yield _problem(name, f"{TOML} has the unknown field {name[:_MAX_SHOWN]}", fix)


def _together(values: Mapping[str, Any]) -> Iterator[ProjectProblem]:
    """The rules on several fields."""
    name, point = values.get("name"), values.get("[handler] entry-point")
    match = _ENTRY_POINT.fullmatch(point) if isinstance(point, str) else None
    if match and isinstance(name, str) and is_name(name) and match[1].split(".")[0] != package_of(name):
        fault = f"{TOML}: [handler] entry-point names the package {match[1].split('.')[0]}; that of {name} is {package_of(name)}"
        yield _problem("[handler] entry-point", fault, f'Write entry-point = "{package_of(name)}:{match[2]}".')


def handler_problems(toml: ProtocolFile, *, declarative: bool, wasm: bool, has_folder: bool) -> Iterator[ProjectProblem]:
    """The rules for a protocol with a handler. `declarative`: its manifest has `messages`. `wasm`: it has that `runtime`.
    `has_folder`: there is a handler/."""
    table = toml.handler or HandlerTable()
    if not toml.licence:
        fix = 'Write, for example: licence = "Apache-2.0"'
        yield _problem("licence", f"{TOML}: a handler needs a licence, an SPDX expression", fix)
    if wasm and table.entry_point is not None:
        fault = f"{TOML}: the runtime of manifest.json is wasm, so the handler has no entry point"
        yield _problem("[handler] entry-point", fault, "Remove it, or remove `runtime`.")
    if not declarative and not wasm and table.entry_point is None:
        fault = (
            f"{TOML} has no entry-point below [handler], and manifest.json no `messages`: the handler has neither code nor forms"
        )
        yield _problem("[handler] entry-point", fault, f'Below [handler], write: entry-point = "{package_of(toml.name)}:handler"')
    if declarative and (table.entry_point is not None or table.source is not None or has_folder):
        fault = f"{TOML}: manifest.json has `messages`, so the handler has no code: no entry-point, source or {SOURCE}/"
        yield _problem("handler", fault, "Remove them, or remove `messages`.")


def _write(field: FileField, values: Mapping[str, Any]) -> str:
    table, line = "Below [handler], write" if field.name.startswith(_TABLE) else "Write", field.line
    name = values.get("name")
    if field.name == "[handler] entry-point" and isinstance(name, str) and is_name(name):
        line = f'entry-point = "{package_of(name)}:handler"'
    return f"{table}, for example: {line}"


def _problem(field: str, fault: str, fix: str) -> ProjectProblem:
    return ProjectProblem(TOML, field, Malformed(ProjectCode.FILE, f"{fault}.", fix=fix))
