"""Serve `/blobs`: upload the blobs of a statement before it is logged, and read them afterwards."""

from __future__ import annotations

from typing import Annotated

from litestar import Response, get, put
from litestar.di import NamedDependency
from litestar.params import FromPath, HeaderParameter

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed
from treaty_consensus.kinds import MAX_WHEEL, blobs_of
from treaty_consensus.statement import parse

from ..cache_control import NO_STORE
from ..codes import RegistryBlobCode
from ..registry import Registry
from ..serving.representation import OCTETS, Representation
from ..serving.views import Views
from .documentation import BINARY_BODY, READ, WRITE, answers, operation
from .requests import HttpRequest, read_body, source

# Half of the bytes that the headers of a request may have.
MAX_STATEMENT_HEADER = 16 * 1024


@put(
    "/blobs/sha256/{digest:str}",
    status_code=201,
    summary="Upload a blob",
    operation_class=operation(reads={OCTETS: BINARY_BODY}, about="The blob's bytes."),
    responses=answers(
        None, "Stored until the statement is logged, or the upload expires.", *WRITE, status=201, also={204: "Held already."}
    ),
)
async def upload(
    digest: FromPath[str],
    request: HttpRequest,
    registry: NamedDependency[Registry],
    statement: Annotated[
        str,
        HeaderParameter(
            name="Treaty-Statement",
            description="Base64 of the signed statement that names this blob.",
            max_length=MAX_STATEMENT_HEADER,
        ),
    ],
) -> Response[bytes]:
    """Upload bytes that a signed statement, not yet logged, names by digest and size. They are served once it is logged."""
    leaf = canonical.b64decode(statement, limit=MAX_STATEMENT_HEADER)
    sizes = {blob.sha256: blob.size for blob in blobs_of(parse(leaf).body)}
    size = sizes.get(canonical.parse_digest(digest))
    if size is None:
        raise Malformed(
            RegistryBlobCode.DIGEST,
            f"The statement in Treaty-Statement does not name the blob {digest}.",
            fix="Send the statement that names this blob.",
        )
    # No more than the statement names, so a wrong body ends early. The statement itself may name any size, hence the
    # cap.
    data = await read_body(request, min(size, MAX_WHEEL))
    new = await registry.put_blob(digest, leaf, data, source=source(request, registry.proxies))
    return Response(b"", status_code=201 if new else 204, headers={"Cache-Control": NO_STORE})


@get(
    "/blobs/sha256/{digest:str}",
    summary="A blob",
    responses=answers(bytes, "The bytes, as an attachment.", 404, 410, *READ, media_type=OCTETS),
)
async def blob(digest: FromPath[str], views: NamedDependency[Views]) -> Representation:
    """Return the bytes that a logged statement names, by their SHA-256."""
    return await views.blob(digest)
