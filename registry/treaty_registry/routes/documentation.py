"""Describe the parts of routes that the framework cannot read from their signatures, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Operation, RequestBody, Schema
from litestar.openapi.spec.enums import OpenAPIFormat, OpenAPIType

from treaty_consensus.statement import PAYLOAD_TYPE

from ..problems import MEDIA_TYPE, ProblemDetails
from ..serving.representation import JSON

_EVERYWHERE = {
    400: "The request is malformed.",
    405: "This path does not answer that method; `Allow` says which it does.",
    414: "The path or the query is too long.",
    431: "The headers are too large.",
    500: "A fault of the registry.",
    503: "A part of the registry does not answer now.",
}
_SOMETIMES = {
    304: "The representation has not changed.",
    401: "A signature does not verify, or its key is not the author's.",
    404: "There is no such thing.",
    408: "The body took too long to arrive.",
    406: "None of its media types is acceptable.",
    409: "Something else stands in this place.",
    410: "Its bytes were withdrawn.",
    413: "The body is too large.",
    415: "The body's media type is not read here.",
    422: "A rule says no.",
    429: "The quota is used up for now.",
}
TEXT_BODY = Schema(type=OpenAPIType.STRING)
BINARY_BODY = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)
LINES_BODY = Schema(description="One JSON value a line.")  # the whole is not JSON, so a JSON schema does not apply
OBJECT_BODY = Schema(type=OpenAPIType.OBJECT)
ENVELOPE = Schema(
    type=OpenAPIType.OBJECT,
    description="A DSSE envelope in canonical form (RFC 8785).",
    required=["payload", "payloadType", "signatures"],
    properties={
        "payload": TEXT_BODY,
        "payloadType": Schema(type=OpenAPIType.STRING, const=PAYLOAD_TYPE),
        "signatures": Schema(
            type=OpenAPIType.ARRAY,
            items=Schema(
                type=OpenAPIType.OBJECT,
                required=["keyid", "sig"],
                properties={"keyid": TEXT_BODY, "sig": TEXT_BODY},
                additional_properties=False,
            ),
            min_items=1,
            max_items=2,
        ),
    },
    additional_properties=False,
)
BUNDLE_BODY = Schema(
    type=OpenAPIType.OBJECT,
    description="Leaves with their inclusion proofs, and the blobs they name.",
    required=["checkpoint", "leaves", "blobs"],
)
READ = (304,)
WRITE = (401, 404, 408, 409, 413, 415, 422, 429)


def answers(
    container: type | None,
    description: str,
    *refusals: int,
    status: int = 200,
    media_type: str = JSON,
    also: Mapping[int, str] | None = None,
) -> dict[int, ResponseSpec]:
    """Return the responses of a route: its success, and the refusals it may give. `also`: successes without a body."""
    specs = {status: ResponseSpec(container, description=description, media_type=media_type, generate_examples=False)}
    for code, text in (also or {}).items():
        specs[code] = ResponseSpec(container, description=text, media_type=media_type, generate_examples=False)
    for code in refusals:
        if code == 304:
            specs[code] = ResponseSpec(None, description=_SOMETIMES[code])
        else:
            specs[code] = _problem(_SOMETIMES[code])
    specs.update({code: _problem(text) for code, text in _EVERYWHERE.items()})
    return specs


def operation(
    *,
    reads: Mapping[str, Schema] | None = None,
    sends: Mapping[int, Mapping[str, Schema]] | None = None,
    about: str = "",
) -> type[Operation]:
    """Return the operation of a route that reads a body of these media types. `about`: the description of the body.

    The responses by status may have these additional media types.
    """

    @dataclass
    class Described(Operation):
        def __post_init__(self) -> None:
            if reads is not None:
                self.request_body = RequestBody(content=_content(reads), description=about, required=True)
            for status, schemas in (sends or {}).items():
                response = (self.responses or {})[str(status)]
                assert isinstance(response, OpenAPIResponse)
                response.content = {**(response.content or {}), **_content(schemas)}

    return Described


def _content(schemas: Mapping[str, Schema]) -> dict[str, OpenAPIMediaType]:
    return {media_type: OpenAPIMediaType(schema=schema) for media_type, schema in schemas.items()}


def _problem(description: str) -> ResponseSpec:
    return ResponseSpec(ProblemDetails, description=description, media_type=MEDIA_TYPE, generate_examples=False)
