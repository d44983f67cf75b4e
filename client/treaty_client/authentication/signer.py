"""Signing requests as a DID."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import httpx

from ..identity import Identity
from . import didwba, message_signature
from .message_signature import Parameters, Request
from .nonces import LIFETIME


class RequestSigner:
    """Signs each request anew, for one use within five minutes. Safe for concurrent use."""

    def __init__(self, identity: Identity, *, legacy: bool = False, clock: Callable[[], float] = time.time) -> None:
        """`legacy`: by the older `DIDWba` header, for peers that know no other; it says nothing of the request. `clock`: Unix
        seconds."""
        self._identity = identity
        self._legacy = legacy
        self._clock = clock

    def headers(self, method: str, url: str, body: bytes = b"") -> dict[str, str]:
        """The header fields that prove who sends this request, and that it is this one.

        `url`: absolute, and exactly as it is sent; `body`: the whole body. Raises `Malformed` (`authentication.url`).
        """
        nonce, created = secrets.token_hex(16), int(self._clock())
        if self._legacy:
            message_signature.target_uri(url)
            host, key_id = httpx.URL(url).host, self._identity.key_id
            return {"Authorization": didwba.sign(key_id, nonce, created, host, self._identity.sign)}
        parameters = Parameters(self._identity.key_id, nonce, created, created + LIFETIME)
        return message_signature.sign(Request(method.upper(), url, {}, body), parameters, self._identity.sign)
