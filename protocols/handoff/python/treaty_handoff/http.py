"""Synchronous delivery over HTTP, for agents that cannot wait for a queue.

    POST /handoffs          a message or an envelope; the answer is {"status": STATUS, "handoffs": [ENVELOPE, …]}
    GET /handoffs/ID        the same answer, for the message with this id; `handoff-proof: KEY SIGNATURE` proves its sender

The status codes: 200 worked on; 202 work goes on; 400 invalid, 401 not signed, 403 not permitted, 409 another message has the id,
410 expired, 413 too large, 422 failed or not handled, 503 try again. An answer of 4xx says why in `issues`. The same record as
for queues removes repetitions: a repetition has the code and the answers of its first time, with the reports that came since.
`listen` serves it with the bounds of an agent's own port. `create_app` is the ASGI application alone, for another server.
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

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
from .envelopes import DID_KEYS, Resolver, asking_proof, envelope, open_envelope
from .messages import MAX_MESSAGE, Message, accept, check, id_of, in_reply_to, recipients_of, sender_of
from .permissions import Permissions
from .processing import Processed
from .work import Status

_log = limited_logger(__name__)
_CODES = {Status.EXPIRED: 410, Status.FAILED: 422, Status.REJECTED: 422, Status.IN_PROGRESS: 202}
_ERRORS = {
    HandoffCode.PROOF: 401,
    HandoffCode.PERMISSION: 403,
    HandoffCode.CHANGED: 409,
    HandoffCode.TOO_LARGE: 413,
    HandoffCode.UNHANDLED: 422,
}
_RAISED: dict[int, tuple[type[TreatyError], HandoffCode]] = {
    400: (Malformed, HandoffCode.FORM),
    401: (Unauthorized, HandoffCode.PROOF),
    403: (Refused, HandoffCode.PERMISSION),
    404: (Unavailable, HandoffCode.SILENCE),
    409: (Malformed, HandoffCode.FORM),
    410: (Refused, HandoffCode.EXPIRED),
    413: (TooLarge, HandoffCode.TOO_LARGE),
}
_AGAIN = 1
"""Seconds after which a request that found no place may come again."""
_LATER: dict[str, Any] = {"status": "FAILED", "handoffs": []}
_Answer: TypeAlias = tuple[int, dict[str, Any], float | None]
"""The status code, the answer, and the seconds after which the request may come again."""
_UUID = re.compile("[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
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
    # In turns before signatures are verified, which costs more than a message costs its sender.
    return InTurns(_Endpoint(agent, identity, body_seconds, work_seconds))


class _Endpoint:
    """The two routes of an agent."""

    def __init__(self, agent: HandoffAgent, identity: Identity | None, body_seconds: float, work_seconds: float) -> None:
        self._agent, self._identity = agent, identity
        self._body_seconds, self._work_seconds = body_seconds, work_seconds
        self._places = Places(MAX_OPEN, keeps_some=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})
        if scope["type"] != "http":
            return
        asked_id = scope["path"].removeprefix("/handoffs/") if scope["method"] == "GET" else ""
        if (scope["method"], scope["path"]) != ("POST", "/handoffs") and not _UUID.fullmatch(asked_id):
            await _answer(send, 404, _rejected("There are POST /handoffs, and GET /handoffs/ID with the UUID of a message."))
            return
        # Also the documents of DIDs are fetched at the expense of this network.
        with asking_for((scope.get("client") or (None, 0))[0]):
            try:
                who = await self._places.take(0)
            except TimeoutError:
                await _answer(send, 503, _LATER, again=_AGAIN)
                return
            try:
                await _answer(send, *await (self._asked(asked_id, scope) if asked_id else self._received(receive)))
            finally:
                self._places.give_back(who)

    async def _received(self, receive: Receive) -> _Answer:
        """Take a message."""
        try:
            async with asyncio.timeout(self._body_seconds):
                body = await _body(receive, self._agent.max_message)
        except TooLarge as error:
            return 413, _rejected(error.message), None
        except TimeoutError:
            return 503, _LATER, _AGAIN
        return await self._answered(self._agent.receive(body))

    async def _asked(self, message_id: str, scope: Scope) -> _Answer:
        """Return the answers to a message again."""
        proof = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"handoff-proof"), "")
        return await self._answered(self._agent.asked(message_id.lower(), proof))

    async def _answered(self, work: Awaitable[Processed | None]) -> _Answer:
        try:
            async with asyncio.timeout(self._work_seconds):
                processed = await work
            if processed is None:
                return 404, _rejected("There is no message of this agent with this id, or its work goes on."), None
            answers = [decode_json(envelope(answer, self._identity, self._agent.max_message)) for answer in processed.answers]
            answer = {"status": str(processed.first or processed.status), "handoffs": answers}
            code = _code_of(processed)
            if 400 <= code < 500:
                answer["issues"] = [processed.error.message if processed.error is not None else _reason(processed)]
            return code, answer, processed.again
        except Unauthorized as error:
            return 401, _rejected(error.message), None
        except (TreatyError, TimeoutError):
            # Work that is too slow for an answer has no effect, as if the process had ended.
            return 503, _LATER, _AGAIN
        except Exception:
            _log.exception("a handoff over HTTP failed")
            return 503, _LATER, _AGAIN


def _code_of(processed: Processed) -> int:
    if processed.again is not None:
        return 503
    if processed.error is not None:
        return next((code for error_code, code in _ERRORS.items() if error_code == processed.error.code), 400)
    return _CODES.get(processed.first or processed.status, 200)


def _reason(processed: Processed) -> str:
    """Return the newest sentence of the answers, or the status."""
    details = [answer["payload"]["data"].get("detail") for answer in processed.answers]
    return next((detail for detail in reversed(details) if detail), f"The message is {processed.first or processed.status}.")


def _rejected(why: str) -> dict[str, Any]:
    return {"status": "REJECTED", "handoffs": [], "issues": [why]}


async def post(
    client: httpx.AsyncClient,
    url: str,
    message: Message,
    identity: Identity | None = None,
    *,
    permissions: Permissions | None = None,
    resolver: Resolver | None = None,
    max_message: int = MAX_MESSAGE,
) -> list[Message]:
    """Hand a message to the agent at `url`, and return its answers when the work has ended. Send it again for the same answers.

    `client`: verifies the server's certificate. `permissions`: who may answer, by its proof, which `resolver` helps to verify;
    without them an answer is of a recipient of the message, and TLS proves it. Raises `Malformed`, `Refused`, `Unauthorized`,
    `TooLarge`, or `Unavailable`: then the same message may be sent again.
    """
    check(message)
    request = client.build_request("POST", f"{url}/handoffs", content=envelope(message, identity, max_message), timeout=_PATIENCE)
    return await _answers(client, request, message, permissions, resolver, max_message)


async def answers_to(
    client: httpx.AsyncClient,
    url: str,
    message: Message,
    identity: Identity | None = None,
    *,
    permissions: Permissions | None = None,
    resolver: Resolver | None = None,
    max_message: int = MAX_MESSAGE,
) -> list[Message]:
    """Return the answers to a message that `post` handed over, with those that came since. Parameters and errors: as `post`."""
    headers = {} if identity is None else {"handoff-proof": asking_proof(id_of(message), identity)}
    request = client.build_request("GET", f"{url}/handoffs/{id_of(message)}", headers=headers, timeout=_PATIENCE)
    return await _answers(client, request, message, permissions, resolver, max_message)


async def _answers(
    client: httpx.AsyncClient,
    request: httpx.Request,
    message: Message,
    permissions: Permissions | None,
    resolver: Resolver | None,
    limit: int,
) -> list[Message]:
    try:
        response = await client.send(request)
    except httpx.HTTPError as error:
        raise Unavailable(HandoffCode.BROKER, f"The agent does not answer: {error or type(error).__name__}.") from error
    if len(response.content) > 2 * limit:
        raise TooLarge(HandoffCode.TOO_LARGE, f"The answers have at most {2 * limit} bytes.")
    try:
        value = decode_json(response.content)
        entries, issues = list(value["handoffs"]), " ".join(map(str, value.get("issues", ())))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if response.status_code >= 500:
            raise _error(response.status_code, "") from error
        raise Malformed(HandoffCode.FORM, "The answer is not of the protocol's form.") from error
    if response.status_code not in (200, 202, 422):
        raise _error(response.status_code, issues)
    return [await _verified(entry, message, permissions, resolver, limit) for entry in entries]


async def _verified(
    entry: Any, message: Message, permissions: Permissions | None, resolver: Resolver | None, limit: int
) -> Message:
    """Return a message that answers another one. Raises `Unauthorized` if it is of an agent that may not answer, or on another
    message: a server that was given an answer of others must not pass it on as its own."""
    if permissions is None and resolver is None:
        entry = {"handoff": entry.get("handoff") if isinstance(entry, dict) else entry}  # TLS proves the agent
    opened = await open_envelope(rfc8785.dumps(entry), resolver or DID_KEYS, limit)
    answer = accept(opened.message)
    recipients, sender = frozenset(recipients_of(message)), sender_of(answer)
    if permissions is not None:
        permissions.check(answer, opened.signer)
    may_answer = sender in recipients if permissions is None else permissions.may_answer(sender, recipients)
    is_on_it = in_reply_to(answer) in ("", id_of(message)) and answer["metadata"]["task_id"] == message["metadata"]["task_id"]
    if not (may_answer and is_on_it and recipients_of(answer) == (sender_of(message),)):
        raise Unauthorized(HandoffCode.PROOF, "The answer is of another agent, or on another message.")
    return answer


def _error(status: int, issues: str) -> TreatyError:
    kind, code = _RAISED.get(status, (Unavailable, HandoffCode.BROKER))
    return kind(code, f"The agent answered with status {status}. {issues}".rstrip())


async def _body(receive: Receive, limit: int) -> bytes:
    """Read the body. Raises `TooLarge` as soon as it is over the cap."""
    parts, size = [], 0
    while True:
        event = await receive()
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise TooLarge(HandoffCode.TOO_LARGE, f"A message has at most {limit} bytes.")
        if not event.get("more_body"):
            return b"".join(parts)


async def _answer(send: Send, code: int, value: dict[str, Any], again: float | None = None) -> None:
    body = rfc8785.dumps(value)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if again is not None:
        headers.append((b"retry-after", str(math.ceil(again)).encode()))
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
