"""Send the requests of a `requests` session through a `Network`, for a library that uses `requests` (sigstore).

Each request is sent by a `BoundedClient`, with its addresses, authorities and deadline, no redirects, and at most `MAX_ANSWER`
bytes of an answer.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import Callable
from typing import Any

import httpx
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectionError, SSLError
from urllib3 import HTTPHeaderDict, HTTPResponse

from treaty_consensus.errors import TooLarge

from ..codes import EgressCode
from .exchange import HttpReply
from .hosts import Network

MAX_ANSWER = 1024 * 1024
"""Bytes. The largest expected answer is a log entry with its proof, a few KiB."""


def session_setup(network: Network) -> Callable[[Session], None]:
    """Return a function that makes a session send through a network. Sending blocks; use it in threads without an event loop."""

    def setup(session: Session) -> None:
        session.mount("https://", _NetworkAdapter(network))
        session.mount("http://", _NetworkAdapter(network))

    return setup


class _NetworkAdapter(HTTPAdapter):
    def __init__(self, network: Network) -> None:
        self._network = network
        super().__init__()

    def send(self, request: PreparedRequest, *arguments: Any, **options: Any) -> Response:
        """Send a request. The options of `requests` are ignored, also its timeout.

        Raises `Unavailable`, `Malformed` (`network.*`), `TooLarge` (`egress.answer`), and the errors of `requests` for a host
        that cannot be reached.
        """
        try:
            reply = asyncio.run(self._exchange(request))
        except httpx.HTTPError as error:
            kind = SSLError if _is_of_tls(error) else ConnectionError
            raise kind(f"{type(error).__name__}: {error}", request=request) from error
        if not reply.whole:
            raise TooLarge(EgressCode.ANSWER, f"{request.url} answered with more than {MAX_ANSWER} bytes.")
        headers = HTTPHeaderDict(reply.headers.multi_items())
        raw = HTTPResponse(io.BytesIO(reply.body), headers, reply.status, preload_content=False, decode_content=False)
        return self.build_response(request, raw)

    async def _exchange(self, request: PreparedRequest) -> HttpReply:
        if not isinstance(request.body, bytes | str | type(None)):
            raise TypeError("The body of a request must be bytes or text.")
        headers = httpx.Headers([(name, _text(value)) for name, value in request.headers.items()])
        headers["Accept-Encoding"] = "identity"  # `requests` asks for compression by default, which the size limit does not allow
        async with self._network.client() as client:
            httpx_request = client.build_request(str(request.method), str(request.url), content=request.body, headers=headers)
            return await client.exchange(httpx_request, limit=MAX_ANSWER)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def _is_of_tls(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error is not None
