"""Read an OpenAPI 3.0 or 3.1 description: each method of a path is an operation.

    paths: {"/pets/{petId}": {"get": {"operationId": "getPet", "parameters": […], "requestBody": …, "responses": {…}}}}

The parameters are arguments under their names, and the JSON of the body is the argument `body`. The result is the JSON of the
first answer of 2xx. The answers of 4xx and 5xx are errors by code and description. GET, PUT and DELETE are idempotent (RFC 9110
§9.2.2).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any

from treaty_consensus.errors import Malformed
from treaty_consensus.printable import printable
from treaty_io.codes import RpcCode

from .decoding import decode_description
from .description import ImportedDescription, ImportedOperation, Inexpressible, Omission
from .found_operations import FoundOperations
from .schema_import import SchemaImport, one_line

BODY = "body"
MAX_MEANING = 200
_METHODS = frozenset({"get", "put", "post", "delete", "patch"})
_OTHERS = frozenset({"head", "options", "trace"})
_IDEMPOTENT = frozenset({"get", "put", "delete"})
_IGNORED_HEADERS = frozenset({"accept", "content-type", "authorization"})
_JSON = re.compile(r"(?:application/(?:[\w.+-]+\+)?json|\*/\*|application/\*)\Z", re.IGNORECASE)
_ERROR = re.compile(r"[45][0-9][0-9]")


class OpenApiReader:
    """Reads bytes. Does no input or output."""

    def read(self, data: bytes, name: str, only: Collection[str] = ()) -> ImportedDescription:
        """Return the operations. `name`: of the source. `only`: the names or places of those to take; all if it is empty.

        Raises `Malformed` (`rpc.answer`, `system.usage`) and `TooLarge` (`rpc.answer`).
        """
        root = decode_description(data, name)
        version, paths = root.get("openapi"), root.get("paths")
        if not isinstance(version, str) or not version.startswith("3.") or not isinstance(paths, dict):
            fix = "Convert it to OpenAPI 3." if "swagger" in root else "Name another file."
            raise Malformed(RpcCode.ANSWER, f"{name} is no OpenAPI 3 description with paths.", fix=fix)
        operations = FoundOperations(only)
        for path, item in paths.items():
            if isinstance(item, dict) and "$ref" in item:
                with operations.reading(one_line(path, 120)):
                    paths[path] = SchemaImport(root, operations.budget).resolved(item)
        for place, (path, method, item) in operations.wanted(_places(paths)):
            reading = _OperationReading(SchemaImport(root, operations.budget), place, path, method)
            with operations.reading(place):
                operations.add(reading.operation(item), [*reading.left_out, *reading.schemas.left_out])
        operations.check_wishes()
        if "securitySchemes" in (root["components"] if isinstance(root.get("components"), dict) else {}):
            operations.omissions.append(Omission("security", "a session knows its peer by the DID", is_whole=False))
        if root.get("webhooks"):
            operations.omissions.append(Omission("webhooks", "a provider calls nobody by itself"))
        info = root["info"] if isinstance(root.get("info"), dict) else {}
        return ImportedDescription(
            kind=f"OpenAPI {one_line(version, 20)}",
            title=str(info.get("title", "")),
            version=str(info.get("version", "")),
            about=str(info.get("description") or info.get("summary") or ""),
            licence=_licence(info.get("license")),
            operations=tuple(operations.operations),
            omissions=tuple(operations.omissions),
        )


class _OperationReading:
    """Reads one method of one path. `left_out`: parts that have no place in a protocol, each in a phrase."""

    def __init__(self, schemas: SchemaImport, place: str, path: str, method: str) -> None:
        self.schemas = schemas
        self.left_out: list[str] = []
        self._place, self._path, self._method = place, path, method
        self._arguments: dict[str, Any] = {}

    def operation(self, path_item: Any) -> ImportedOperation:
        """Return the operation. Raises `Inexpressible`."""
        if self._method in _OTHERS:
            raise Inexpressible(f"{self._method.upper()} tells of HTTP alone")
        path_item = self.schemas.resolved(path_item)
        source = self.schemas.resolved(path_item[self._method])
        parameters = self._parameters(path_item, source)
        result, answer = self._result(source)
        if source.get("callbacks"):
            self.left_out.append("its callbacks: a provider calls nobody by itself")
        wish = source.get("operationId")
        return ImportedOperation(
            place=self._place,
            wish=wish if isinstance(wish, str) and wish else f"{self._method} {self._path}",
            text=str(source.get("description") or source.get("summary") or ""),
            parameters=parameters,
            result=result,
            errors=self._errors(source),
            is_idempotent=self._method in _IDEMPOTENT,
            arguments=self._arguments,
            answer=answer,
        )

    def _parameters(self, path_item: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
        properties, required = dict[str, Any](), list[str]()
        by_place = {}
        for listed in (path_item.get("parameters", []), source.get("parameters", [])):
            for item in listed if isinstance(listed, list) else ():
                parameter = self.schemas.resolved(item)
                by_place[str(parameter.get("in")), str(parameter.get("name"))] = parameter
        for (where, name), parameter in by_place.items():
            if where == "header" and name.lower() in _IGNORED_HEADERS:
                continue
            if where == "cookie":
                self._without(f"the cookie {printable(name, 60)}", is_needed=parameter.get("required") is True)
                continue
            self._add(properties, name, self._schema_of(parameter))
            if parameter.get("required") is True or where == "path":
                required.append(name)
            if (example := _example(parameter)) is not None:
                self._arguments[name] = example[0]
        self._body(source, properties, required)
        schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        return self.schemas.schema(schema)

    def _without(self, part: str, *, is_needed: bool) -> None:
        if is_needed:
            raise Inexpressible(f"it needs {part}")
        self.left_out.append(part)

    def _add(self, properties: dict[str, Any], name: str, schema: Any) -> None:
        if name in properties:
            raise Inexpressible(f"two arguments of it are named {printable(name, 60)}")
        properties[name] = schema

    def _schema_of(self, parameter: Mapping[str, Any]) -> Any:
        content = parameter.get("content")
        schema = (self._media(content, "a parameter") if isinstance(content, dict) else parameter).get("schema", {})
        text = parameter.get("description")
        is_plain = isinstance(schema, dict) and "$ref" not in schema and "description" not in schema
        return {**schema, "description": text} if isinstance(text, str) and is_plain else schema

    def _body(self, source: Mapping[str, Any], properties: dict[str, Any], required: list[str]) -> None:
        if "requestBody" not in source:
            return
        body = self.schemas.resolved(source["requestBody"])
        media = self._media(body.get("content"), "a body")
        self._add(properties, BODY, media.get("schema", {}))
        if body.get("required") is True:
            required.append(BODY)
        if (example := _example(media)) is not None:
            self._arguments[BODY] = example[0]

    def _media(self, content: Any, part: str) -> dict[str, Any]:
        """Return the JSON among the media types. Raises `Inexpressible`."""
        if not isinstance(content, dict) or not content:
            raise Inexpressible(f"{part} without a content")
        for name, media in content.items():
            if _JSON.match(name.partition(";")[0].strip()):
                return self.schemas.resolved(media)
        raise Inexpressible(f"{part} of {', '.join(printable(name, 60) for name in islice(content, 3))}")

    def _result(self, source: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Any, ...]]:
        responses = source.get("responses")
        responses = responses if isinstance(responses, dict) else {}
        codes = sorted(code for code in responses if re.fullmatch(r"2(?:[0-9][0-9]|XX)", code))
        codes = codes or [code for code in responses if code == "default"]
        # An answer without a body, such as 204, says no more than its status.
        contents = [(code, content) for code in codes if (content := self.schemas.resolved(responses[code]).get("content"))]
        if not contents:
            self.left_out += [] if codes else ["its answer: none is described, so it is null"]
            return {"type": "null"}, (None,)
        self.left_out += [f"its answer {code}" for code, _ in contents[1:]]
        content = contents[0][1]
        if isinstance(content, dict) and all(name.lower().startswith("text/") for name in content):
            return {"type": "string"}, ()
        media = self._media(content, "an answer")
        return self.schemas.schema(media.get("schema", {})), _example(media) or ()

    def _errors(self, source: Mapping[str, Any]) -> dict[int, str]:
        errors = {}
        responses = source.get("responses")
        for code, item in responses.items() if isinstance(responses, dict) else ():
            if _ERROR.fullmatch(code):
                meaning = self.schemas.resolved(item).get("description")
                errors[int(code)] = one_line(str(meaning or ""), MAX_MEANING) or f"Status {code}."
            elif re.fullmatch(r"[45]XX", code):
                self.left_out.append(f"its errors {code}: an error has one code")
        return errors


def _places(paths: Mapping[str, Any]) -> Iterator[tuple[str, Any, tuple[str, str, Any]]]:
    for path, item in paths.items():
        if path.startswith("/") and isinstance(item, dict):
            for method in item:
                if method in _METHODS or method in _OTHERS:
                    name = item[method].get("operationId") if isinstance(item[method], dict) else None
                    yield f"{method.upper()} {one_line(path, 120)}", name, (path, method, item)


def _example(part: Mapping[str, Any]) -> tuple[Any] | None:
    """Return the first example of a parameter or a media type."""
    if "example" in part:
        return (part["example"],)
    examples = part.get("examples")
    for example in examples.values() if isinstance(examples, dict) else ():
        if isinstance(example, dict) and "value" in example:
            return (example["value"],)
    schema = part.get("schema")
    if isinstance(schema, dict) and isinstance(schema.get("example"), dict | list):
        return (schema["example"],)
    return None


def _licence(value: Any) -> str:
    return str(value.get("identifier") or value.get("name") or "") if isinstance(value, dict) else ""
