"""Synchronous delivery over HTTP, for agents that cannot wait for a queue.

    POST /handoffs          an envelope; the answer is {"status": STATUS, "handoffs": [ENVELOPE, …]}

The status codes: 200 worked on, or a repetition; 202 work goes on; 400 invalid, 401 not signed, 403 not permitted, 409 another
message has the id, 410 expired, 413 too large, 422 failed, 503 try again. The same record as for queues removes repetitions.
`listen` serves it with the bounds of an agent's own port. `create_app` is the ASGI application alone, for another server.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import rfc8785

from treaty_agent import Identity
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError, Unauthorized, Unavailable
from treaty_handler import decode_json
from treaty_io.admission.in_turns import InTurns
from treaty_io.asgi import ASGI, Receive, Scope, Send
from treaty_io.line_limit import limited_logger
from treaty_io.network.turns import asking_for
from treaty_io.places import Places

from .agent import HandoffAgent
from .codes import HandoffCode
from .envelopes import envelope
from .messages import MAX_MESSAGE, Message, accept, check
from .processing import Processed
from .work import Status

_log = limited_logger(__name__)
_CODES = {Status.EXPIRED: 410, Status.FAILED: 422, Status.REJECTED: 400, Status.IN_PROGRESS: 202}
_ERRORS = {
    HandoffCode.PROOF: 401,
    HandoffCode.PERMISSION: 403,
    HandoffCode.CHANGED: 409,
    HandoffCode.TOO_LARGE: 413,
}
_PATIENCE = 60.0
"""Seconds that a caller waits for the work."""
BODY_SECONDS, WORK_SECONDS = 10.0, 50.0
"""Time for a body to arrive, and for the work: the answer leaves before the caller gives up."""
MAX_OPEN = 64
"""Requests at a time, so that slow ones do not fill the memory. One network has at most as many as are free. A further one is
asked to come again."""
MAX_SOCKETS = 1_024
"""Sockets of `listen`. One address has at most half."""


@asynccontextmanager
async def listen(
    agent: HandoffAgent,
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    identity: Identity | None = None,
    body_seconds: float = BODY_SECONDS,
    work_seconds: float = WORK_SECONDS,
) -> AsyncIterator[int]:
    """Serve an agent at a port during the block, and yield the port. `port` 0 chooses a free one. Needs the extra `agent`.

    `tls`: the certificate and key; without them a proxy must protect the messages. The others: as for `create_app`. Raises
    `Unavailable` (`connection.listen`).
    """
    from treaty_agent.transport.listener import serving  # a web server, which an agent with queues alone does not need

    app = create_app(agent, identity, body_seconds=body_seconds, work_seconds=work_seconds)
    async with serving(app, host, port, tls=tls, sockets=MAX_SOCKETS) as server:
        yield server.port


def create_app(
    agent: HandoffAgent,
    identity: Identity | None = None,
    *,
    body_seconds: float = BODY_SECONDS,
    work_seconds: float = WORK_SECONDS,
) -> ASGI:
    """Return the ASGI application of an agent.

    `identity`: signs the answers; without it TLS proves the server. `body_seconds`, `work_seconds`: time for a body and for work.
    """

    places = Places(MAX_OPEN, keeps_some=True)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})
        if scope["type"] != "http":
            return
        if (scope["method"], scope["path"]) != ("POST", "/handoffs"):
            await _answer(send, 404, {"status": "REJECTED", "handoffs": []})
            return
        # Also the documents of DIDs are fetched at the expense of this network.
        with asking_for((scope.get("client") or (None, 0))[0]):
            try:
                who = await places.take(0)
            except TimeoutError:
                await _answer(send, 503, {"status": "FAILED", "handoffs": []})
                return
            try:
                await _answer(send, *await received(receive))
            finally:
                places.give_back(who)

    async def received(receive: Receive) -> tuple[int, dict[str, Any]]:
        """Take one request. Return the status code and the answer."""
        try:
            async with asyncio.timeout(body_seconds):
                body = await _body(receive)
            async with asyncio.timeout(work_seconds):
                processed = await agent.receive(body)
            answers: list[object] = [decode_json(envelope(answer, identity)) for answer in processed.answers]
            return _code_of(processed), {"status": str(processed.status), "handoffs": answers}
        except TooLarge:
            return 413, {"status": "REJECTED", "handoffs": []}
        except (TreatyError, TimeoutError):
            # Work that is too slow for an answer has no effect, as if the process had ended.
            return 503, {"status": "FAILED", "handoffs": []}
        except Exception:
            _log.exception("a handoff over HTTP failed")
            return 503, {"status": "FAILED", "handoffs": []}

    # Before signatures are verified, which costs more than a message costs its sender.
    return InTurns(app)


def _code_of(processed: Processed) -> int:
    if processed.again is not None:
        return 503
    if processed.error is not None:
        return next((code for error_code, code in _ERRORS.items() if error_code == processed.error.code), 400)
    return _CODES.get(processed.status, 200)


async def post(client: httpx.AsyncClient, url: str, message: Message, identity: Identity | None = None) -> list[Message]:
    """Hand a message to the agent at `url`, and return its answers when the work has ended.

    `client`: verifies the server's certificate. Raises `Malformed`, `Refused`, `Unauthorized`, `TooLarge`, or `Unavailable`: then
    the same message may be sent again.
    """
    check(message)
    try:
        response = await client.post(f"{url}/handoffs", content=envelope(message, identity), timeout=_PATIENCE)
    except httpx.HTTPError as error:
        raise Unavailable(HandoffCode.BROKER, f"The agent does not answer: {error or type(error).__name__}.") from error
    if response.status_code not in (200, 202, 422):
        raise _error(response.status_code)
    if len(response.content) > MAX_MESSAGE:
        raise TooLarge(HandoffCode.TOO_LARGE, f"An answer has at most {MAX_MESSAGE} bytes.")
    try:
        return [accept(entry["handoff"]) for entry in decode_json(response.content)["handoffs"]]
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed(HandoffCode.FORM, "The answer is not of the protocol's form.") from error


def _error(code: int) -> TreatyError:
    match code:
        case 401:
            return Unauthorized(HandoffCode.PROOF, "The agent does not accept the proof of the sender.")
        case 403:
            return Refused(HandoffCode.PERMISSION, "The agent does not take messages of this kind from this sender.")
        case 410:
            return Refused(HandoffCode.EXPIRED, "The message has expired.")
        case 413:
            return TooLarge(HandoffCode.TOO_LARGE, "The message is too large for the agent.")
        case 400 | 409:
            return Malformed(HandoffCode.FORM, f"The agent refused the message with status {code}.")
    return Unavailable(HandoffCode.BROKER, f"The agent answered with status {code}.")


async def _body(receive: Receive) -> bytes:
    """Read the body. Raises `TooLarge` as soon as it is over the cap."""
    parts, size = [], 0
    while True:
        event = await receive()
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > MAX_MESSAGE:
            raise TooLarge(HandoffCode.TOO_LARGE, f"A message has at most {MAX_MESSAGE} bytes.")
        if not event.get("more_body"):
            return b"".join(parts)


async def _answer(send: Send, code: int, value: dict[str, Any]) -> None:
    body = rfc8785.dumps(value)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
