"""Serve a witness: `POST /add-checkpoint` and `GET /HASH/checkpoint`, as in C2SP tlog-witness (`treaty_consensus.log.witness`).

Refusals are RFC 9457 `application/problem+json`, as of a registry, except for the 409, whose form is that of C2SP. An unsigned
checkpoint is 403 here, because no credential would help.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path

from litestar import Litestar, Response, get, post
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath

from treaty_consensus.errors import Unauthorized
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.witness import MAX_REQUEST, SIZE_TYPE, SizeConflict

from ..listening import Listening
from ..problems import problem_of
from ..routes.requests import HttpRequest, read_body
from ..routes.responses import problem_response
from ..serving.representation import NO_STORE, REVALIDATE, TEXT
from .cosigner import Cosigner
from .records import Store


@post("/add-checkpoint", status_code=HTTPStatus.OK)
async def add_checkpoint(request: HttpRequest, cosigner: NamedDependency[Cosigner]) -> Response[bytes]:
    """Record a checkpoint that extends the one before, and cosign it."""
    body = await read_body(request, MAX_REQUEST)
    # In a thread, which cannot be cancelled: a started request updates both the record and the memory, or neither.
    lines = await asyncio.to_thread(cosigner.add_checkpoint, body)
    return _text(lines, NO_STORE)


@get("/{origin_hash:str}/checkpoint")
async def checkpoint(origin_hash: FromPath[str], cosigner: NamedDependency[Cosigner]) -> Response[bytes]:
    """Return the newest checkpoint that was cosigned of a log, for monitors."""
    note = await asyncio.to_thread(cosigner.checkpoint, origin_hash)
    return _text(note, REVALIDATE)


def create_app(cosigner: Cosigner) -> Litestar:
    """Return the application of a witness."""
    return Litestar(
        route_handlers=[add_checkpoint, checkpoint],
        dependencies={"cosigner": Provide(lambda: cosigner, sync_to_thread=False)},
        exception_handlers={Exception: _on_exception},
        openapi_config=None,
        request_max_body_size=MAX_REQUEST + 1,
        logging_config=None,
    )


async def serve(
    data: Path, logs: Sequence[VerifierKey], name: str | None, listening: Listening, ready: Callable[[Cosigner], None]
) -> None:
    """Run the witness of a data directory until SIGTERM or SIGINT. `name`: of its key, when it has none yet.

    Raises as `Listening.check`, `Store.held`, `Store.key` and `Cosigner`.
    """
    listening.check()
    store = Store(data)
    # Before the records are read: another process could still write them.
    with store.held():
        key = store.key(name)
        cosigner = Cosigner(store, key, logs, time.time, [store.ml_dsa_key(key.name)])
        await listening.serve(create_app(cosigner), partial(ready, cosigner))


def _text(body: bytes, cache_control: str) -> Response[bytes]:
    # Set as a header, because a second charset would be added to a media type.
    return Response(body, headers={"Cache-Control": cache_control, "Content-Type": TEXT})


def _on_exception(_request: HttpRequest, error: Exception) -> Response[bytes]:
    if isinstance(error, SizeConflict):
        # Set as a header, because a charset would be added to a media type.
        headers = {"Cache-Control": NO_STORE, "Content-Type": SIZE_TYPE}
        return Response(b"%d\n" % error.size, status_code=HTTPStatus.CONFLICT, headers=headers)
    problem = problem_of(error)
    if isinstance(error, Unauthorized):
        # C2SP tlog-witness asks for a 403. A 401 would need a challenge, and no credential would help.
        problem = replace(problem, status=HTTPStatus.FORBIDDEN, headers=())
    return problem_response(problem)
