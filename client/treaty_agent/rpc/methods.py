"""Hold a method of another agent, and check arguments and results against its schemas.

The schemas are foreign. They follow the rules for schemas of handlers (docs/specification/handler-packages.md, section "Cost of a
schema"), which bound the time of every check. A method with another schema can be listed and not called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.handler.schema import check_schema
from treaty_consensus.printable import printable
from treaty_handler import Value
from treaty_io.codes import RpcCode
from treaty_sandbox.schemas import CompiledSchema, Schemas, measure

# As many as protocols in a description; a model or a person chooses among them.
MAX_METHODS = 64
MAX_DESCRIPTION = 400
_REFERENCES = ("#/components/schemas/", "#/definitions/")


@dataclass(frozen=True)
class RemoteMethod:
    """A method at `url`. `parameters`: the schema of an object with all arguments. `result`: None without a schema.

    `order`: the names of the parameters, if they are sent by position; otherwise None.
    """

    name: str
    url: str
    parameters: Mapping[str, Any]
    result: Mapping[str, Any] | None = None
    description: str = ""
    order: tuple[str, ...] | None = None

    def check_arguments(self, arguments: Mapping[str, Value]) -> None:
        """Check arguments before they are sent. Raises `Malformed` (`rpc.arguments`) and `Refused` (`rpc.answer`)."""
        self._check(self.parameters, dict(arguments), RpcCode.ARGUMENTS, f"The arguments of {printable(self.name, 80)}")

    def check_result(self, value: Value) -> None:
        """Check a result. Raises `Malformed` (`rpc.answer`) and `Refused` (`rpc.answer`)."""
        self._check(
            {} if self.result is None else self.result, value, RpcCode.ANSWER, f"The results of {printable(self.name, 80)}"
        )

    def check_schemas(self) -> None:
        """Check that both schemas are valid and follow the rules. Raises `Refused` (`rpc.answer`)."""
        for schema in (self.parameters, self.result or {}):
            self._compiled(schema)

    def _check(self, schema: Mapping[str, Any], value: Value, code: RpcCode, what: str) -> None:
        measure(value, code, what)  # without a schema, the size is still bounded
        self._compiled(schema).check(value, code, what)

    def _compiled(self, schema: Mapping[str, Any]) -> CompiledSchema:
        try:
            return Schemas().compile(check_schema(dict(schema), "The schema"), self.name)
        except TreatyError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: TreatyError) -> Refused:
        message = f"{printable(self.name, 80)} cannot be called, because its schema cannot be checked: {error.message}"
        return Refused(RpcCode.ANSWER, message, fix="Ask the agent's operator for a simpler schema.")


def local_schema(schema: Any, definitions: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a schema whose references are to its own `$defs`. `definitions`: more schemas that it refers to.

    The name of a dialect is left out: all schemas are read as those of 2020-12. The caller bounds the depth of `schema`.
    """
    rewritten = _rewritten(schema) if isinstance(schema, dict) else {}
    # A part of another form stays where it is: the check of the schema refuses it.
    if not all(isinstance(rewritten.get(name, {}), dict) for name in ("definitions", "$defs")):
        return rewritten
    more = {**(definitions or {}), **rewritten.pop("definitions", {}), **rewritten.get("$defs", {})}
    rewritten.pop("$schema", None)
    return {**rewritten, "$defs": {name: _rewritten(item) for name, item in more.items()}} if more else rewritten


def _rewritten(node: Any) -> Any:
    if isinstance(node, list):
        return [_rewritten(item) for item in node]
    if not isinstance(node, dict):
        return node
    rewritten = {name: _rewritten(item) for name, item in node.items()}
    reference = rewritten.get("$ref")
    for prefix in _REFERENCES:
        if isinstance(reference, str) and reference.startswith(prefix):
            rewritten["$ref"] = f"#/$defs/{reference.removeprefix(prefix)}"
    return rewritten
