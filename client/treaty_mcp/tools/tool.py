"""A tool: its name, its schemas, and the work that it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Malformed

_A = TypeVar("_A", bound=msgspec.Struct)


@dataclass(frozen=True)
class ToolResult:
    """The result of a tool. `value`: by the schema of the results. `text`: for a model, "" for the value as JSON. `proof`: where
    the value stands in a log, or whose answer it is."""

    value: Any
    text: str = ""
    proof: Mapping[str, Any] = field(default_factory=dict)


class Tool:
    """A tool of a server. Its description and schemas are the server's own or a manifest's, and never those of a peer."""

    name: str
    description: str
    arguments: Mapping[str, Any]
    """The JSON Schema of an object with all arguments."""
    result: Mapping[str, Any]
    """The JSON Schema of the results, an object."""
    is_read_only: bool = True
    is_idempotent: bool = True

    def question(self, arguments: Mapping[str, Any]) -> str:
        """Return the question to the user of the host before `run`; "" for none. Raises as `run`."""
        return ""

    async def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Do the work. Raises `TreatyError`."""
        raise NotImplementedError


class OwnTool(Tool, Generic[_A]):
    """A tool whose arguments and results are structs. Both schemas are made from them."""

    arguments_form: ClassVar[type[msgspec.Struct]]
    result_form: ClassVar[type[msgspec.Struct]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "arguments_form" in vars(cls):
            cls.arguments, cls.result = schema_of(cls.arguments_form), schema_of(cls.result_form)
            cls.description = " ".join((cls.__doc__ or "").split())

    async def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Check the arguments and do the work. Raises `Malformed` (`system.usage`) and the errors of `work`."""
        return await self.work(self.parsed(arguments))

    def parsed(self, arguments: Mapping[str, Any]) -> _A:
        """Return the arguments as a struct. Raises `Malformed` (`system.usage`)."""
        try:
            parsed: Any = msgspec.convert(dict(arguments), self.arguments_form)
        except msgspec.ValidationError as error:
            raise Malformed(SystemCode.USAGE, f"The arguments of {self.name} are wrong: {error}.") from error
        found: _A = parsed
        return found

    async def work(self, arguments: _A) -> ToolResult:
        """Do the work. Raises `TreatyError`."""
        raise NotImplementedError


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of all arguments."""


def schema_of(form: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of a struct, as an object with its `$defs`."""
    (_,), definitions = msgspec.json.schema_components([form], ref_template="#/$defs/{name}")
    schema = definitions.pop(form.__name__)
    schema = {name: value for name, value in schema.items() if name not in ("title", "description")}
    return {**schema, "$defs": definitions} if definitions else schema
