"""Make HTTP exchanges with other hosts, each with a bounded time and size.

An exchange begins when the request is passed to `send` and ends with the last byte of the answer. All steps count: waiting for a
connection, the look-up of the name, TLS, sending, interim (1xx) answers, the head, the body and its trailers. It is ended when

    seconds since its beginning  >  timeout + (bytes of the request's body + bytes of the answer's body so far) / least_rate

So a large answer over a slow line gets more time, and a host that sends single bytes gets `timeout` only. For example, with 30 s
and 64 KiB/s a body of 640 KiB may take 40 s. Further bounds:

- The head of an answer has at most 100 KiB, and so have interim answers and trailers (h11's bound, set by httpcore).
- `exchange` reads at most `limit` bytes of a body as sent; it decompresses nothing.
- A body has at most 4096 pieces and one more for each 64 bytes, because a chunk of one byte costs as much work as a large one.
- At most 32 exchanges with one host run at the same time. Others wait, within their own deadline. So a host that does not answer
  cannot use up all connections of a client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple, cast
from weakref import WeakValueDictionary

import httpx

from treaty_consensus.errors import Malformed, TreatyError, Unavailable

from ..codes import EgressCode, NetworkCode

_log = logging.getLogger(__name__)

TIMEOUT = 30.0
"""Seconds for an exchange without a body."""
LEAST_RATE = 64 * 1024
"""The least average rate of a body in bytes per second, half a megabit."""
# Browsers use 6 for each host, HTTP servers expect some dozens; the whole client has 100.
MAX_AT_ONCE = 32
# Chunks of honest servers have at least a few hundred bytes; the first 4096 allow for slow generators.
_PIECES, _PIECE = 4096, 64

_WORK = "treaty_work"  # the extension of a request that has its `work`


class HttpReply(NamedTuple):
    """An answer. `whole`: whether `body` is complete; a body over the limit is cut."""

    status: int
    headers: httpx.Headers
    body: bytes
    whole: bool


class BoundedClient(httpx.AsyncClient):
    """An HTTP client whose exchanges always end. For one event loop. The caller closes it.

    Every method that sends has the deadline and raises `Unavailable` (`network.deadline`) at it. Then the connection is closed
    and the answer is dropped. httpx's own timeouts are off unless a request sets them, because they restart with every read.
    """

    def __init__(self, *, timeout: float = TIMEOUT, least_rate: float = LEAST_RATE, **options: Any) -> None:
        """Set the bounds. `timeout`: seconds. `least_rate`: bytes per second. `options`: those of `httpx.AsyncClient`."""
        # `identity`: a compressed body could be a thousand times larger than its limit.
        super().__init__(timeout=None, headers={"Accept-Encoding": "identity"}, **options)
        self._seconds, self._least_rate = timeout, least_rate
        self._lanes: WeakValueDictionary[bytes, asyncio.Semaphore] = WeakValueDictionary()  # one lives while it is used

    async def exchange(self, request: httpx.Request, *, limit: int, work: float = 0.0) -> HttpReply:
        """Send a request and read the answer, at most `limit` bytes of its body. `work`: more seconds, for a request that
        the host needs long to fulfil.

        Raises `Unavailable` (`network.deadline`), `Malformed` (`egress.answer`) and `httpx.HTTPError`.
        """
        body, pieces, begun = bytearray(), 0, asyncio.get_running_loop().time()
        # Without query and user name: both may hold secrets.
        url = request.url.copy_with(query=None, fragment=None, userinfo=b"")
        request.extensions = {**request.extensions, _WORK: work}
        try:
            response = await self.send(request, stream=True)
        except (httpx.HTTPError, OSError, TreatyError) as error:
            _log.debug("not answered", extra={"method": request.method, "url": url, "error": type(error).__name__})
            raise
        try:
            async with aclosing(cast(AsyncGenerator[bytes, None], response.aiter_raw())) as arriving:
                async for piece in arriving:
                    body += piece
                    pieces += 1
                    if len(body) > limit:
                        break
                    if pieces > _PIECES + len(body) // _PIECE:
                        raise Malformed(EgressCode.ANSWER, f"{request.url.host} sends its answer in too many small pieces.")
        finally:
            await response.aclose()
        milliseconds = round((asyncio.get_running_loop().time() - begun) * 1000)
        answer = {"status": response.status_code, "bytes": len(body), "ms": milliseconds}
        _log.debug("answered", extra={"method": request.method, "url": url, **answer})
        return HttpReply(response.status_code, response.headers, bytes(body[:limit]), len(body) <= limit)

    async def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        """Send as httpx does, within the deadline. Later reads of a streamed answer have the same deadline."""
        seconds = self._seconds + request.extensions.get(_WORK, 0.0)
        deadline, half_open = _Deadline(request, seconds, self._least_rate), _HalfOpen()
        request.extensions = {**request.extensions, "trace": half_open.trace}
        lane = self._lanes.setdefault(request.url.netloc, asyncio.Semaphore(MAX_AT_ONCE))
        # The wait for a lane counts, so that a host that never answers cannot hold its callers for ever.
        async with deadline.held():
            await lane.acquire()
            try:
                response = await super().send(request, stream=True, **options)
            except BaseException:
                # Also when cancelled: a lane that is not released is lost until the client ends.
                lane.release()
                await half_open.close()
                raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _BoundedStream(response.stream, deadline, lane)
        if not stream:
            try:
                await response.aread()
            except BaseException:  # httpx does not close a stream of ours that failed; closing frees the lane and the connection
                await response.aclose()
                raise
        return response


class _Deadline:
    """A deadline that moves with the bytes of a body."""

    def __init__(self, request: httpx.Request, timeout: float, least_rate: float) -> None:
        self._host, self._timeout, self._least_rate = request.url.host, timeout, least_rate
        self._begun = asyncio.get_running_loop().time()
        self._bytes = int(request.headers.get("Content-Length", "0"))

    def count(self, size: int) -> None:
        """Add received bytes of the answer's body."""
        self._bytes += size

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """End the block at the deadline. Raises `Unavailable` (`network.deadline`)."""
        seconds = self._timeout + self._bytes / self._least_rate
        try:
            async with asyncio.timeout_at(self._begun + seconds) as bound:
                yield
        except TimeoutError as error:
            if not bound.expired():
                raise
            raise Unavailable(
                NetworkCode.DEADLINE,
                f"{self._host} did not answer in full within {seconds:.3g} seconds: {self._timeout:g} seconds, and one more for "
                f"each {self._least_rate:g} bytes of a body.",
                fix="Check that host, and try again later.",
            ) from error


class _HalfOpen:
    """Close a connection whose TLS handshake was cancelled by a deadline.

    httpcore does not close it, and the event loop would keep it open for ever.
    """

    def __init__(self) -> None:
        self._stream: Any = None

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Implement httpcore's extension "trace"."""
        if event == "connection.connect_tcp.complete":
            self._stream = info["return_value"]
        elif event == "connection.start_tls.complete":
            self._stream = None

    async def close(self) -> None:
        """Close the connection, if there is one. It may be closed already."""
        if self._stream is not None:
            await self._stream.aclose()


class _BoundedStream(httpx.AsyncByteStream):
    def __init__(self, inner: httpx.AsyncByteStream, deadline: _Deadline, lane: asyncio.Semaphore) -> None:
        self._inner, self._deadline = inner, deadline
        self._lane: asyncio.Semaphore | None = lane

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = aiter(self._inner)
        while True:
            async with self._deadline.held():
                piece = await anext(pieces, None)
            if piece is None:
                return
            self._deadline.count(len(piece))
            yield piece

    async def aclose(self) -> None:
        lane, self._lane = self._lane, None  # httpx may close a stream twice; release the lane once
        if lane is not None:
            lane.release()
        await self._inner.aclose()
