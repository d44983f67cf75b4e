"""Serve `/identities`: the logged identity of a DID, and the operator's half of its next identity."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.openapi.spec import Schema
from litestar.openapi.spec.enums import OpenAPIType
from litestar.params import FromPath, QueryParameter

from treaty_client.registries.replies import Testimony, ValidatedKey
from treaty_consensus import canonical
from treaty_consensus.codes import TokenCode
from treaty_consensus.errors import Malformed, Unauthorized

from ..cache_control import NO_STORE
from ..catalogue.resources import IdentityView
from ..codes import HttpCode
from ..pages.pages import Pages
from ..problems import http_problem
from ..registry import Registry
from ..serving.representation import JSON, Representation
from ..serving.views import MAX_SIZE, Views
from .documentation import READ, TEXT_BODY, WRITE, answers, operation
from .requests import HttpRequest, is_for_people, media_type, read_body, source, target
from .responses import problem_response

_MAX_ASKED = 1024  # bytes; a request is one key id
_ASKED = Schema(type=OpenAPIType.OBJECT, required=["keyid"], properties={"keyid": TEXT_BODY}, additional_properties=False)

OfKind = Annotated[
    Literal["identity", "publish", "handler", "status", "report", "ballot", "vouch", "grant"] | None,
    QueryParameter(name="kind", description="Of a page: only the statements of this kind."),
]
Before = Annotated[
    str | None, QueryParameter(name="before", pattern="^[0-9]{1,19}$", description="Of a page: only statements below this leaf.")
]


_KEY = Schema(type=OpenAPIType.OBJECT, required=["key"], properties={"key": TEXT_BODY}, additional_properties=False)


class _Proved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key that a token names."""

    key: str


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key that will co-sign."""

    keyid: str


@get(
    "/identities/{did:str}",
    summary="A DID's newest identity",
    responses=answers(IdentityView, "Its keys and tenure.", 404, *READ),
)
async def identity(
    did: FromPath[str],
    request: HttpRequest,
    views: NamedDependency[Views],
    pages: NamedDependency[Pages],
    kind: OfKind = None,
    before: Before = None,
) -> Representation:
    """Return the keys that judge a new statement of this DID. `kind` and `before` say which statements its page lists."""
    if is_for_people(request):
        index = None if before is None else canonical.parse_decimal(before, limit=MAX_SIZE)
        return await pages.agent(target(f"/identities/{did}", kind=kind, before=index), did, kind, index)
    return await views.json(target(f"/identities/{did}"), lambda: views.catalogue.identity(did), did)


@post(
    "/identities/{did:str}",
    summary="The operator's half of a DID's next identity",
    description="The document is fetched. Co-signed by a logged key and sent to /statements, it opens no new tenure.",
    operation_class=operation(reads={JSON: _ASKED}, about='Which logged key is to co-sign: `{"keyid": DID-URL}`.'),
    responses=answers(Testimony, "What to co-sign; nothing is logged.", *WRITE),
    status_code=200,
)
async def testimony(did: FromPath[str], request: HttpRequest, registry: NamedDependency[Registry]) -> Response[bytes]:
    """Return the operator's half of a DID's next identity. It is worthless without the second signature."""
    if media_type(request) != JSON:
        return problem_response(http_problem(415, f"This route reads {JSON}."))
    value = canonical.parse_json(await read_body(request, _MAX_ASKED), limit=_MAX_ASKED, name="request")
    try:
        question = msgspec.convert(value, Asked)
    except msgspec.ValidationError as error:
        raise Malformed(HttpCode.REQUEST, f"The body is not a request for an identity: {error}.") from error
    answer = await registry.testimony(did, question.keyid, source=source(request, registry.proxies))
    return Response(msgspec.json.encode(answer), status_code=200, media_type=JSON, headers={"Cache-Control": NO_STORE})


@post(
    "/validations",
    summary="A key of an account, by a token of its workflow",
    description="The token, of the audience `treaty:ORIGIN:MULTIKEY`, works once and is not logged; its claims are.",
    operation_class=operation(reads={JSON: _KEY}, about="The key as a Multikey; the token is in `Authorization: Bearer`."),
    responses=answers(ValidatedKey, "The account's DID and the name of its key.", *WRITE, status=201),
)
async def validation(request: HttpRequest, registry: NamedDependency[Registry]) -> Response[bytes]:
    """Log a key of the account for which a workflow runs. It signs for an hour."""
    if media_type(request) != JSON:
        return problem_response(http_problem(415, f"This route reads {JSON}."))
    value = canonical.parse_json(await read_body(request, _MAX_ASKED), limit=_MAX_ASKED, name="request")
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    try:
        proved = msgspec.convert(value, _Proved)
    except msgspec.ValidationError as error:
        raise Malformed(HttpCode.REQUEST, f"The body names no key: {error}.") from error
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized(TokenCode.INVALID, "The Authorization header is not `Bearer TOKEN`.")
    answer = await registry.validate(token, proved.key, source=source(request, registry.proxies))
    return Response(msgspec.json.encode(answer), status_code=201, media_type=JSON, headers={"Cache-Control": NO_STORE})
