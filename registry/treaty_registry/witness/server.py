"""Serve a witness: `POST /add-checkpoint`, as in C2SP tlog-witness (`treaty_consensus.log.witness`).

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

from litestar import Litestar, Response, post
from litestar.di import NamedDependency, Provide

from treaty_consensus.errors import Unauthorized
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.witness import MAX_REQUEST, SIZE_TYPE, SizeConflict

from ..listening import Listening
from ..observation import metrics_served
from ..problems import problem_of
from ..routes.requests import HttpRequest, read_body
from ..routes.responses import problem_response
from ..serving.representation import NO_STORE, TEXT
from ..settings import MetricsAddress
from ..telemetry.middleware import Observed
from .cosigner import Cosigner
from .records import Store


@post("/add-checkpoint", status_code=HTTPStatus.OK, media_type=TEXT)
async def add_checkpoint(request: HttpRequest, cosigner: NamedDependency[Cosigner]) -> Response[bytes]:
    """Record a checkpoint that extends the one before, and cosign it."""
    body = await read_body(request, MAX_REQUEST)
    # In a thread, which cannot be cancelled: a started request updates both the record and the memory, or neither.
    lines = await asyncio.to_thread(cosigner.add_checkpoint, body)
    return Response(lines, media_type=TEXT, headers={"Cache-Control": NO_STORE})


def create_app(cosigner: Cosigner) -> Litestar:
    """Return the application of a witness."""
    return Litestar(
        route_handlers=[add_checkpoint],
        dependencies={"cosigner": Provide(lambda: cosigner, sync_to_thread=False)},
        exception_handlers={Exception: _on_exception},
        openapi_config=None,
        request_max_body_size=MAX_REQUEST + 1,
        logging_config=None,
    )


async def serve(
    data: Path,
    logs: Sequence[VerifierKey],
    name: str | None,
    listening: Listening,
    ready: Callable[[Cosigner], None],
    metrics: MetricsAddress | None = None,
) -> None:
    """Run the witness of a data directory until SIGTERM or SIGINT. `name`: of its key, when it has none yet.

    Raises as `Listening.check`, `metrics_served`, `Store.held`, `Store.key` and `Cosigner`.
    """
    listening.check()
    store = Store(data)
    # Before the records are read: another process could still write them.
    with store.held():
        cosigner = Cosigner(store, store.key(name), logs, time.time)
        async with metrics_served(metrics):
            await listening.serve(Observed(create_app(cosigner)), partial(ready, cosigner))


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
