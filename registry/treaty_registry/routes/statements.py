"""Serve `/statements` and `/proofs`: log signed statements, one or many, and read them and their receipts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from treaty_consensus.canonical import parse_digest
from treaty_consensus.codes import StatementCode
from treaty_consensus.errors import Malformed, TooLarge, TreatyError
from treaty_consensus.statement import MAX_LEAF

from ..cache_control import NO_STORE
from ..catalogue.resources import Envelope
from ..log.entry import Logged
from ..pages.pages import Pages
from ..problems import Problem, ProblemDetails, http_problem, problem_of
from ..registry import Registry
from ..serving.fast_path import DirectAnswer, refused
from ..serving.representation import JSON, TEXT, Representation
from ..serving.views import Views
from .documentation import ENVELOPE, LINES_BODY, READ, WRITE, answers, operation
from .requests import HttpRequest, essence, is_for_people, receive_body, source

if TYPE_CHECKING:
    from litestar.types import Receive

NDJSON = "application/x-ndjson"
# As many as one commit takes (`sequencer.MAX_BATCH`).
MAX_BATCH = 256
MAX_BATCH_BYTES = 2 * 1024 * 1024


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result for one line of a batch: `id` and `receipt`, or a `problem`."""

    status: int
    id: str | None = None
    receipt: str | None = None
    problem: ProblemDetails | None = None


@post(
    "/statements",
    summary="Log signed statements",
    description=(
        "One statement as `application/json`: 201 with its receipt (C2SP tlog-proof), or 200 when it was logged before. "
        "Up to 256 as `application/x-ndjson`, one a line: 200 with one outcome a line, in that order; the refusal of one "
        "leaves the others be."
    ),
    operation_class=operation(
        reads={JSON: ENVELOPE, NDJSON: LINES_BODY},
        sends={200: {NDJSON: LINES_BODY}},
        about="A statement in its one spelling, or one a line.",
    ),
    responses=answers(
        str, "Logged; its receipt.", *WRITE, status=201, media_type=TEXT, also={200: "Logged before, or the outcomes of a batch."}
    ),
)
async def submit(request: HttpRequest, registry: NamedDependency[Registry]) -> Response[bytes]:
    sent = request.headers.get("content-type", ""), request.headers.get("content-length", "0")
    answer = await _submit(registry, *sent, request.receive, source(request, registry.proxies))
    return Response(answer.body, status_code=answer.status, headers=answer.headers)


class DirectSubmission:
    """Does the same as the route `submit`, without the framework, which would take a third of the time of a statement."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def __call__(self, headers: Iterable[tuple[bytes, bytes]], receive: Receive, source: str | None) -> DirectAnswer:
        """See `serving.fast_path.DirectRoute`."""
        content_type, length = b"", b"0"
        # From the end, so that the first of several values counts, as in the framework.
        for name, value in reversed([*headers]):
            if name == b"content-type":
                content_type = value
            elif name == b"content-length":
                length = value
        return await _submit(self._registry, content_type.decode("latin-1"), length.decode("latin-1"), receive, source)


@get("/statements/{statement:str}", summary="A statement as it was signed", responses=answers(Envelope, "The leaf.", 404, *READ))
async def statement(
    statement: FromPath[str], request: HttpRequest, views: NamedDependency[Views], pages: NamedDependency[Pages]
) -> Representation:
    """Return the canonical envelope of a logged statement: the exact bytes of its leaf."""
    return await (pages if is_for_people(request) else views).statement(statement)


@get(
    "/proofs/{statement:str}",
    summary="A statement's receipt",
    responses=answers(str, "A C2SP tlog-proof.", 404, *READ, media_type=TEXT),
)
async def proof(statement: FromPath[str], views: NamedDependency[Views]) -> Representation:
    """Return the proof that the log contains a statement, at a checkpoint of the last seconds."""
    return await views.receipt(parse_digest(statement))


async def _submit(registry: Registry, content_type: str, length: str, receive: Receive, source: str | None) -> DirectAnswer:
    match essence(content_type):
        case "application/json":
            return await _submit_one(registry, await receive_body(receive, length, MAX_LEAF), source)
        case "application/x-ndjson":
            return await _submit_batch(registry, await receive_body(receive, length, MAX_BATCH_BYTES), source)
    return refused(http_problem(415, f"Statements come as {JSON}, or as {NDJSON}, one a line."))


async def _submit_one(registry: Registry, leaf: bytes, source: str | None) -> DirectAnswer:
    (outcome,) = await registry.submit([leaf], source=source)
    if isinstance(outcome, TreatyError):
        return refused(problem_of(outcome))
    headers = {"Content-Type": TEXT, "Location": f"/proofs/{outcome.id}", "Cache-Control": NO_STORE}
    return DirectAnswer(201 if outcome.new else 200, headers, outcome.receipt)


async def _submit_batch(registry: Registry, body: bytes, source: str | None) -> DirectAnswer:
    lines = body.removesuffix(b"\n").split(b"\n")
    if len(lines) > MAX_BATCH:
        raise TooLarge(StatementCode.BATCH, f"A batch has at most {MAX_BATCH} statements.", fix="Send them in several batches.")
    # An empty line would shift the results against the lines of the client.
    if not all(lines):
        raise Malformed(StatementCode.BATCH, "Every line of a batch is a statement.")
    outcomes = await registry.submit(lines, source=source)
    encoded = b"".join(msgspec.json.encode(_line(outcome)) + b"\n" for outcome in outcomes)
    return DirectAnswer(200, {"Content-Type": NDJSON, "Cache-Control": NO_STORE}, encoded)


def _line(outcome: Logged | TreatyError) -> Line:
    if isinstance(outcome, TreatyError):
        problem: Problem = problem_of(outcome)
        return Line(problem.status, problem=problem.details)
    return Line(201 if outcome.new else 200, outcome.id, outcome.receipt.decode())
