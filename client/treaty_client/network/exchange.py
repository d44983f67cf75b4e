"""HTTP exchanges with other hosts, each bounded as a whole.

An exchange begins when a request is handed over and ends with the last byte of the answer. Waiting for a free connection, the
look-up of the name, TLS, the sending, interim (1xx) answers, the head, the body and its trailers all count. It is ended when

    seconds since its beginning  >  timeout + (bytes of the request's body + bytes of the answer's body so far) / least_rate

so a large answer over a slow line has time, and a host that sends a byte now and then has `timeout` and no more. Besides:

- An answer's head has at most 100 KiB, interim answers and trailers likewise (h11's own bound, which httpcore sets).
- `exchange` reads at most `limit` bytes of a body, as they come over the wire: nothing is decompressed here.
- A body comes in at most 4096 pieces and one more for each 64 bytes: a chunk of one byte costs as much work as a large one.
- At most 32 exchanges with one host run at the same time. The others wait, within their own deadline, so a host that does not
  answer cannot take all connections of a client that speaks to several hosts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple, cast
from weakref import WeakValueDictionary

import httpx

from treaty_consensus.errors import Malformed, Unavailable

TIMEOUT = 30.0
"""Seconds for an exchange without a body."""
LEAST_RATE = 64 * 1024
"""Bytes a second of a body, on average since the beginning: half a megabit."""
MAX_AT_ONCE = 32
_PIECES, _PIECE = 4096, 64


class Reply(NamedTuple):
    """An answer. `whole`: whether `body` is all of its body; it is cut where that has more bytes than were to be read."""

    status: int
    headers: httpx.Headers
    body: bytes
    whole: bool


class BoundedClient(httpx.AsyncClient):
    """An HTTP client whose exchanges end, whatever the other host does. For one event loop; close it.

    Every way to send a request has the deadline, and raises `Unavailable` (`network.deadline`) at it; the connection is closed
    then, and nothing of the answer is kept. httpx's own timeouts, each of which begins anew with every read, are off unless a
    request sets them.
    """

    def __init__(self, *, timeout: float = TIMEOUT, least_rate: float = LEAST_RATE, **options: Any) -> None:
        """`timeout`: seconds. `least_rate`: bytes a second. `options`: of `httpx.AsyncClient`."""
        super().__init__(timeout=None, headers={"Accept-Encoding": "identity"}, **options)
        self._seconds, self._least_rate = timeout, least_rate
        self._lanes: WeakValueDictionary[bytes, asyncio.Semaphore] = WeakValueDictionary()  # kept while somebody holds one

    async def exchange(self, request: httpx.Request, *, limit: int) -> Reply:
        """Send a request and read the answer, at most `limit` bytes of its body.

        Raises `Unavailable` (`network.deadline`), `Malformed` (`network.pieces`) and `httpx.HTTPError`.
        """
        body, pieces = bytearray(), 0
        response = await self.send(request, stream=True)
        try:
            async with aclosing(cast(AsyncGenerator[bytes, None], response.aiter_raw())) as arriving:
                async for piece in arriving:
                    body += piece
                    pieces += 1
                    if len(body) > limit:
                        break
                    if pieces > _PIECES + len(body) // _PIECE:
                        raise Malformed("network.pieces", f"{request.url.host} sends its answer in pieces of a few bytes.")
        finally:
            await response.aclose()
        return Reply(response.status_code, response.headers, bytes(body[:limit]), len(body) <= limit)

    async def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        """As httpx does, within the deadline. What is read of a streamed answer later has the same deadline."""
        deadline, half_open = _Deadline(request, self._seconds, self._least_rate), _HalfOpen()
        request.extensions = {**request.extensions, "trace": half_open.trace}
        lane = self._lanes.setdefault(request.url.netloc, asyncio.Semaphore(MAX_AT_ONCE))
        async with deadline.held():
            await lane.acquire()
            try:
                response = await super().send(request, stream=True, **options)
            except BaseException:
                lane.release()
                await half_open.close()
                raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _BoundedStream(response.stream, deadline, lane)
        if not stream:
            try:
                await response.aread()
            except BaseException:  # httpx closes only what it read itself; the lane and the connection go with the answer
                await response.aclose()
                raise
        return response


class _Deadline:
    """Moves on with the bytes of a body."""

    def __init__(self, request: httpx.Request, timeout: float, least_rate: float) -> None:
        self._host, self._timeout, self._least_rate = request.url.host, timeout, least_rate
        self._begun = asyncio.get_running_loop().time()
        self._bytes = int(request.headers.get("Content-Length", "0"))

    def count(self, size: int) -> None:
        """So many bytes of the answer's body came."""
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
                "network.deadline",
                f"{self._host} did not answer in full within {seconds:.3g} seconds: {self._timeout:g} seconds, and one more for "
                f"each {self._least_rate:g} bytes of a body.",
                fix="See whether that host is well, and try again later.",
            ) from error


class _HalfOpen:
    """The connection of an exchange between TCP and TLS. httpcore does not close it when a handshake is cancelled, which is how a
    deadline ends it, and the event loop would keep it open for good."""

    def __init__(self) -> None:
        self._stream: Any = None

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """httpcore's extension "trace"."""
        if event == "connection.connect_tcp.complete":
            self._stream = info["return_value"]
        elif event == "connection.start_tls.complete":
            self._stream = None

    async def close(self) -> None:
        """May be called for a connection that is closed already."""
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
        lane, self._lane = self._lane, None  # httpx closes a stream once or twice
        if lane is not None:
            lane.release()
        await self._inner.aclose()
