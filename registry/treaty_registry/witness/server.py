"""Serve a witness: `POST /add-checkpoint` and `GET /HASH/checkpoint`, as in C2SP tlog-witness (`treaty_consensus.log.witness`),
and the box of statements: `POST /add-statement` and `GET /HASH/statements` (`treaty_consensus.stamped`).

Refusals are RFC 9457 `application/problem+json`, as of a registry, except for the 409, whose form is that of C2SP. An unsigned
checkpoint is 403 here, because no credential would help.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path

from litestar import Litestar, Response, get, post
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath

from treaty_consensus.errors import Unauthorized
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.upload import INFO_TYPE, encode_info
from treaty_consensus.log.witness import MAX_REQUEST, SIZE_TYPE, AddCheckpoint, SizeConflict
from treaty_consensus.stamped import MAX_ENVELOPE
from treaty_io.admission.in_turns import InTurns

from ..cache_control import IMMUTABLE, NO_STORE, REVALIDATE
from ..listening import Listening
from ..observation import metrics_served
from ..problems import problem_of
from ..routes.requests import HttpRequest, number, read_body
from ..routes.responses import problem_response
from ..serving.representation import JSON, OCTETS, TEXT
from ..settings import MetricsAddress
from ..telemetry.middleware import Observed
from .box import Boxes
from .copies import Copies, UploadConflict
from .cosigner import Cosigner
from .records import WitnessStore
from .uploads import UploadBody, take

_THREADS = 64
"""Requests at a time. Each waits for the disk, and a file system syncs those together that wait at the same moment: with the six
threads that asyncio starts on two processors, a slow disk would take six for each of its delays."""


@post("/add-checkpoint", status_code=HTTPStatus.OK, media_type=TEXT)
async def add_checkpoint(
    request: HttpRequest, cosigner: NamedDependency[Cosigner], copies: NamedDependency[Copies | None]
) -> Response[bytes]:
    """Record a checkpoint that extends the one before, and cosign it. A mirror takes it as the pending one."""
    body = await read_body(request, MAX_REQUEST)
    # In a thread, which cannot be cancelled: a started request updates both the record and the memory, or neither.
    lines = await asyncio.to_thread(cosigner.add_checkpoint, body)
    if copies is not None:
        await asyncio.to_thread(copies.expect, AddCheckpoint.parse(body).claimed.origin)
    return _text(lines, NO_STORE)


@get("/{origin_hash:str}/checkpoint")
async def checkpoint(origin_hash: FromPath[str], cosigner: NamedDependency[Cosigner]) -> Response[bytes]:
    """Return the newest checkpoint that was cosigned of a log, for monitors."""
    note = await asyncio.to_thread(cosigner.checkpoint, origin_hash)
    return _text(note, REVALIDATE)


@post("/add-statement", status_code=HTTPStatus.OK, media_type=TEXT)
async def add_statement(request: HttpRequest, boxes: NamedDependency[Boxes]) -> Response[bytes]:
    """Store a signed ballot, report or vouch for a log, and return its stamp."""
    body = await read_body(request, MAX_ENVELOPE)
    # In a thread, which cannot be cancelled: what is stored has its stamp.
    return _text(await asyncio.to_thread(boxes.take, body, request.client.host if request.client else None), NO_STORE)


@get("/{origin_hash:str}/statements")
async def statements(origin_hash: FromPath[str], request: HttpRequest, boxes: NamedDependency[Boxes]) -> Response[bytes]:
    """Return stamped statements for a log, from the number `from` on."""
    start = number(request.query_params.get("from"), default=0, least=0, most=10**12, name="from")
    page = await asyncio.to_thread(boxes.page, origin_hash, start)
    return Response(page, headers={"Cache-Control": NO_STORE, "Content-Type": JSON})


@post("/add-entries", status_code=HTTPStatus.OK, request_max_body_size=None)
async def add_entries(request: HttpRequest, copies: NamedDependency[Copies]) -> Response[bytes]:
    """Store entries of a log that the client uploads, and cosign its checkpoint once all are here."""
    gzipped = request.headers.get("content-encoding", "").lower() == "gzip"
    lines, copy, whole = await take(UploadBody(request.stream(), gzipped=gzipped), copies)
    if whole:
        return _text(lines, NO_STORE)
    conflict = copy.conflict
    return _info(conflict.pending, conflict.next_entry, HTTPStatus.ACCEPTED)


@get("/mirror/{origin_hash:str}/checkpoint")
async def mirrored_checkpoint(origin_hash: FromPath[str], copies: NamedDependency[Copies]) -> Response[bytes]:
    """Return the checkpoint of a copy, cosigned by the mirror."""
    return _text(await asyncio.to_thread(copies.read, origin_hash, "/checkpoint"), REVALIDATE)


@get("/mirror/{origin_hash:str}/tile/{path:path}")
async def mirrored_tile(origin_hash: FromPath[str], path: FromPath[str], copies: NamedDependency[Copies]) -> Response[bytes]:
    """Return a tile or an entry bundle of a copy, as in C2SP tlog-tiles."""
    data = await asyncio.to_thread(copies.read, origin_hash, f"/tile{path}")
    return Response(data, headers={"Cache-Control": IMMUTABLE, "Content-Type": OCTETS})


def create_app(cosigner: Cosigner, boxes: Boxes, copies: Copies | None = None) -> Litestar:
    """Return the application of a witness, which is also a mirror if it keeps copies."""
    mirror = [add_entries, mirrored_checkpoint, mirrored_tile] if copies is not None else []
    return Litestar(
        route_handlers=[add_checkpoint, checkpoint, add_statement, statements, *mirror],
        dependencies={
            "boxes": Provide(lambda: boxes, sync_to_thread=False),
            "cosigner": Provide(lambda: cosigner, sync_to_thread=False),
            "copies": Provide(lambda: copies, sync_to_thread=False),
        },
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
    ready: Callable[[Cosigner, Copies | None], None],
    *,
    mirror: bool = False,
    metrics: MetricsAddress | None = None,
) -> None:
    """Run the witness of a data directory until SIGTERM or SIGINT. `name`: of its key, when it has none yet. `mirror`: keep
    copies of the logs too.

    Raises as `Listening.bound`, `metrics_served`, `Store.held`, `Store.key` and `Cosigner`.
    """
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "witness"))
    store = WitnessStore(data)
    # Before the records are read: another process could still write them.
    with listening.bound() as listener, store.held():
        key = store.key(name)
        cosigner = Cosigner(store, key, logs, time.time, [store.ml_dsa_key(key.name)])
        boxes = Boxes(data, cosigner, key, time.time)
        copies = Copies(data, cosigner, store.mirror_keys(f"{key.name}/mirror"), time.time) if mirror else None
        async with metrics_served(metrics):
            # Each request takes a thread and a signature, and one network must not take them all.
            app = InTurns(create_app(cosigner, boxes, copies))  # type: ignore[arg-type]  # the two spell ASGI's types differently
            await listener.serve(Observed(app), partial(ready, cosigner, copies))  # type: ignore[arg-type]


def _text(body: bytes, cache_control: str) -> Response[bytes]:
    # Set as a header, because a second charset would be added to a media type.
    return Response(body, headers={"Cache-Control": cache_control, "Content-Type": TEXT})


def _info(pending: int, next_entry: int, status: HTTPStatus) -> Response[bytes]:
    # Set as a header, because a charset would be added to a media type.
    headers = {"Cache-Control": NO_STORE, "Content-Type": INFO_TYPE, "Accept-Encoding": "gzip"}
    return Response(encode_info(pending, next_entry), status_code=status, headers=headers)


def _on_exception(_request: HttpRequest, error: Exception) -> Response[bytes]:
    if isinstance(error, SizeConflict):
        # Set as a header, because a charset would be added to a media type.
        headers = {"Cache-Control": NO_STORE, "Content-Type": SIZE_TYPE}
        return Response(b"%d\n" % error.size, status_code=HTTPStatus.CONFLICT, headers=headers)
    if isinstance(error, UploadConflict):
        return _info(error.pending, error.next_entry, HTTPStatus.CONFLICT)
    problem = problem_of(error)
    if isinstance(error, Unauthorized):
        # C2SP tlog-witness asks for a 403. A 401 would need a challenge, and no credential would help.
        problem = replace(problem, status=HTTPStatus.FORBIDDEN, headers=())
    return problem_response(problem)
