"""Send JSON-RPC 2.0 requests over HTTP to the hosts of strangers, with bounds and signatures.

- `https` only, to a named host with a public address, which is the one used; no redirects. `loopback` allows this machine too.
- An answer has at most 1 MiB and arrives within the time of `treaty_io.network.exchange`. It is JSON, or a stream of events that
  ends.
- Each request is signed as the caller's DID, if a signer is given. Nothing is repeated: a method may have effects.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec

from treaty_consensus.errors import Malformed, Refused, TooLarge, Unauthorized, Unavailable
from treaty_consensus.printable import printable
from treaty_io.codes import RpcCode
from treaty_io.network.egress import MAX_BODY, EgressGuard, Lookup, strangers_network
from treaty_io.network.exchange import HttpReply
from treaty_io.network.hosts import Network

from ..transport.http import Sign

# As one message of a session.
MAX_ANSWER = 1024 * 1024
_ACCEPT = "application/json, text/event-stream"
_LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))
# An error of JSON-RPC may come with them (MCP 2026-07-28, "Transports").
_EXPLAINED = frozenset((400, 404, 405, 406, 409, 422))


class RpcAnswer(NamedTuple):
    """An answer: `result`, or the `error` object. `headers`: of the HTTP answer; empty on a pipe."""

    result: Any
    error: dict[str, Any] | None = None
    headers: Mapping[str, str] = {}

    def value(self, method: str) -> Any:
        """Return the result. Raises `Refused` (`rpc.error`) for an error."""
        if self.error is None:
            return self.result
        code, message = printable(str(self.error.get("code", "?")), 20), printable(str(self.error.get("message", "")), 300)
        raise Refused(RpcCode.ERROR, f"{printable(method, 80)} failed at the agent, with code {code}: {message or 'no message'}")


class RpcExchange:
    """Requests to any host. For one event loop. It keeps no connection open."""

    def __init__(
        self, network: Network, *, sign: Sign | None = None, lookup: Lookup | None = None, loopback: bool = False
    ) -> None:
        """Send nothing yet. `sign`: returns the headers that prove the caller; None for anonymous requests. `loopback`: whether a
        URL may name this machine, by http too."""
        self._network, self._sign, self._lookup, self._loopback = network, sign, lookup, loopback
        self._guard = EgressGuard(network, other_ports=True)
        self._ids = itertools.count(1)

    async def document(self, url: str) -> object:
        """Return the JSON document at a URL. Unlike other documents it may need a signature: servers of the ANP SDK ask for one.

        Raises the errors of `send`, and `Malformed` (`rpc.answer`).
        """
        reply = await self.send("GET", url, b"", {"Accept": "application/json"}, limit=MAX_BODY)
        return decoded(reply.body, url)

    async def call(self, url: str, method: str, params: object, headers: Mapping[str, str]) -> Any:
        """Call a method and return its result. Raises `Refused` (`rpc.error`) for an error that the agent answered, and the
        errors of `ask`."""
        return (await self.ask(url, method, params, headers)).value(method)

    async def ask(self, url: str, method: str, params: object, headers: Mapping[str, str]) -> RpcAnswer:
        """Call a method and return the answer. Raises `Malformed` (`rpc.answer`), and the errors of `send`."""
        number = next(self._ids)
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        reply = await self._reply(url, body, {"Content-Type": "application/json", "Accept": _ACCEPT, **headers})
        is_refusal = reply.status in _EXPLAINED
        try:
            answers = _answers(reply, url)
        except Malformed as error:
            raise _refusal(url, reply.status) if is_refusal else error from error
        for answer in answers:
            # A server that could not read the request cannot repeat its id.
            if isinstance(answer, dict) and (answer.get("id") == number or (is_refusal and answer.get("id") is None)):
                if "error" in answer and "result" not in answer:
                    fault = answer["error"]
                    return RpcAnswer(None, fault if isinstance(fault, dict) else {}, reply.headers)
                if "result" in answer and "error" not in answer and not is_refusal:
                    return RpcAnswer(answer["result"], None, reply.headers)
        if is_refusal:
            raise _refusal(url, reply.status)
        raise Malformed(RpcCode.ANSWER, f"{url} did not answer the request for {printable(method, 80)}.")

    async def post(self, url: str, message: bytes, headers: Mapping[str, str]) -> tuple[list[Any], Mapping[str, str]]:
        """Post a message as it is; return all messages of the answer, and its headers. Raises as `ask`."""
        reply = await self._reply(url, message, {"Content-Type": "application/json", "Accept": _ACCEPT, **headers})
        return (_answers(reply, url) if reply.body else []), reply.headers

    async def notify(self, url: str, method: str, headers: Mapping[str, str]) -> None:
        """Send a notification. Raises the errors of `send`."""
        body = msgspec.json.encode({"jsonrpc": "2.0", "method": method})
        await self.send("POST", url, body, {"Content-Type": "application/json", "Accept": _ACCEPT, **headers})

    async def send(self, method: str, url: str, body: bytes, headers: Mapping[str, str], *, limit: int = MAX_ANSWER) -> HttpReply:
        """Send one request, and return an answer with a status of success.

        Raises `Unauthorized` (`rpc.unauthorized`), `TooLarge` (`rpc.answer`), `Unavailable` (`rpc.unreachable`,
        `network.deadline`), `Malformed` (`egress.answer`), and the errors of `EgressGuard.check_url` and `strangers_network`.
        """
        reply = await self._exchange(method, url, body, headers, limit)
        if not 200 <= reply.status <= 299:
            raise _refusal(url, reply.status)
        return reply

    async def _reply(self, url: str, body: bytes, headers: Mapping[str, str]) -> HttpReply:
        """Post a request, and return an answer with a status of success or one that an error of JSON-RPC may have."""
        reply = await self._exchange("POST", url, body, headers, MAX_ANSWER)
        if not 200 <= reply.status <= 299 and reply.status not in _EXPLAINED:
            raise _refusal(url, reply.status)
        return reply

    async def _exchange(self, method: str, url: str, body: bytes, headers: Mapping[str, str], limit: int) -> HttpReply:
        url, network = await self._checked(url)
        proof = self._sign(method, url, body) if self._sign else {}
        try:
            # A client for each request: its pool must not outlive the check of the address.
            async with network.client() as client:
                request = client.build_request(method, url, content=body, headers={**headers, **proof})
                reply = await client.exchange(request, limit=limit)
        except (httpx.HTTPError, OSError) as error:
            raise Unavailable(RpcCode.UNREACHABLE, f"{url} does not answer: {type(error).__name__}.") from error
        if reply.status in (401, 403):
            raise Unauthorized(
                RpcCode.UNAUTHORIZED,
                f"{url} refuses the caller with status {reply.status}.",
                fix="Use an identity whose DID has a document (did:wba); a did:key cannot be resolved by every server.",
            )
        if not reply.whole:
            raise TooLarge(RpcCode.ANSWER, f"{url} answered with more than {limit} bytes.")
        return reply

    async def _checked(self, url: str) -> tuple[str, Network]:
        """Return the URL in one spelling, and the network that reaches its checked address."""
        if self._loopback and is_loopback(url):
            return url, self._network
        url = str(self._guard.check_url(url))
        # A description may name any host, so its address is looked up once, must be public, and is the one that is used.
        return url, await strangers_network(self._network, url, lookup=self._lookup)


def is_loopback(url: str) -> bool:
    """Return whether a URL of http or https names this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.hostname in _LOOPBACK and parts.username is None


def decoded(body: bytes, url: str) -> Any:
    """Return the value of JSON bytes. Raises `Malformed` (`rpc.answer`)."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(RpcCode.ANSWER, f"The answer of {url} is not JSON.") from error


def _answers(reply: HttpReply, url: str) -> list[Any]:
    """Return the messages of an answer: one JSON value, or the data of the events of a stream."""
    if reply.headers.get("content-type", "").partition(";")[0].strip().lower() != "text/event-stream":
        return [decoded(reply.body, url)]
    answers, lines = [], list[bytes]()
    for line in (*reply.body.splitlines(), b""):
        if line.startswith(b"data:"):
            lines.append(line.removeprefix(b"data:").removeprefix(b" "))
        elif not line and lines:  # an empty line ends an event
            answers.append(decoded(b"\n".join(lines), url))
            lines = []
    return answers


def _refusal(url: str, status: int) -> Unavailable:
    return Unavailable(RpcCode.UNREACHABLE, f"{url} answered with status {status}.")
