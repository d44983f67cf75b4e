"""Read an OpenRPC 1.x description: each method is an operation. `treaty_agent.rpc.openrpc` reads it to call the methods.

{"openrpc": "1.2.1", "info": {"title": TEXT}, "methods": [{"name": "addition", "params": […], "result": …, "errors": […],
 "examples": [{"params": [{"value": 2}], "result": {"value": 4}}]}]}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from treaty_consensus.errors import Malformed
from treaty_consensus.handler.manifest import MAX_ERROR_CODE
from treaty_io.codes import RpcCode

from ..rpc.openrpc import parameters_schema
from .decoding import decode_description
from .description import ImportedDescription, ImportedOperation, Inexpressible
from .found_operations import FoundOperations
from .schema_import import SchemaImport, one_line

MAX_MEANING = 200


class OpenRpcReader:
    """Reads bytes. Does no input or output."""

    def read(self, data: bytes, name: str, only: Collection[str] = ()) -> ImportedDescription:
        """Return the operations. `name`: of the source. `only`: the names or places of those to take; all if it is empty.

        Raises `Malformed` (`rpc.answer`, `system.usage`) and `TooLarge` (`rpc.answer`).
        """
        root = decode_description(data, name)
        version, methods = root.get("openrpc"), root.get("methods")
        if not isinstance(version, str) or not isinstance(methods, list):
            raise Malformed(RpcCode.ANSWER, f"{name} is no OpenRPC description with methods.", fix="Name another file.")
        operations = FoundOperations(only)
        for place, item in operations.named("method", methods):
            reading = _MethodReading(SchemaImport(root, operations.budget), place)
            with operations.reading(place):
                operations.add(reading.operation(item), [*reading.left_out, *reading.schemas.left_out])
        operations.check_wishes()
        info = root["info"] if isinstance(root.get("info"), dict) else {}
        licence = info["license"] if isinstance(info.get("license"), dict) else {}
        return ImportedDescription(
            kind=f"OpenRPC {one_line(version, 20)}",
            title=str(info.get("title", "")),
            version=str(info.get("version", "")),
            about=str(info.get("description") or ""),
            licence=str(licence.get("name") or ""),
            operations=tuple(operations.operations),
            omissions=tuple(operations.omissions),
        )


class _MethodReading:
    """Reads one method. `left_out`: parts that have no place in a protocol, each in a phrase."""

    def __init__(self, schemas: SchemaImport, place: str) -> None:
        self.schemas, self.left_out = schemas, list[str]()
        self._place = place

    def operation(self, item: Any) -> ImportedOperation:
        """Return the operation. Raises `Inexpressible`."""
        method = self.schemas.resolved(item)
        listed = method.get("params", [])
        params = [self.schemas.resolved(param) for param in listed] if isinstance(listed, list) else []
        if not isinstance(method.get("name"), str) or not all(isinstance(param.get("name"), str) for param in params):
            raise Inexpressible("it or a parameter of it has no name")
        if len({param["name"] for param in params}) != len(params):
            raise Inexpressible("two parameters of it have one name")
        if method.get("result") is None:
            raise Inexpressible("it has no result, so its caller gets no answer")
        arguments, answer = self._example(method, [param["name"] for param in params])
        return ImportedOperation(
            place=self._place,
            wish=method["name"],
            text=str(method.get("description") or method.get("summary") or ""),
            parameters=self.schemas.schema(parameters_schema(params)),
            result=self.schemas.schema(self.schemas.resolved(method["result"]).get("schema", {})),
            errors=self._errors(method),
            arguments=arguments,
            answer=answer,
        )

    def _example(self, method: Mapping[str, Any], names: list[str]) -> tuple[dict[str, Any], tuple[Any, ...]]:
        """Return the arguments and the answer of the first example. Its parameters may be in order and without names."""
        examples = method.get("examples")
        if not isinstance(examples, list) or not examples:
            return {}, ()
        example = self.schemas.resolved(examples[0])
        params = example.get("params")
        values = [self.schemas.resolved(value).get("value") for value in params] if isinstance(params, list) else []
        answer = example.get("result")
        return (
            dict(zip(names, values, strict=False)),
            (self.schemas.resolved(answer).get("value"),) if isinstance(answer, dict) else (),
        )

    def _errors(self, method: Mapping[str, Any]) -> dict[int, str]:
        listed, errors = method.get("errors"), dict[int, str]()
        for item in listed if isinstance(listed, list) else ():
            error = self.schemas.resolved(item)
            code, meaning = error.get("code"), one_line(str(error.get("message") or ""), MAX_MEANING)
            if type(code) is int and abs(code) <= MAX_ERROR_CODE:
                errors[code] = meaning or f"Error {code}."
            else:
                self.left_out.append(f"its error {str(code)[:20]}: a code has at most nine digits")
        return errors
