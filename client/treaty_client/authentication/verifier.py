"""Judging requests: which DID sent this one.

A request in a form that is read here is accepted when, in this order: its sender's DID has a document that counts now, which
lists the key for authentication; the signature verifies for this listener's own URL, whatever the Host header says; it covers
the request (`message_signature`); it was created at most `LIFETIME` seconds ago and at most `FUTURE` seconds ahead, and has
not expired; and it was not accepted before (`nonces`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import httpx

from treaty_consensus.did import parse_key_id
from treaty_consensus.errors import Malformed, TreatyError, Unauthorized, Unavailable

from ..network.resolver import DidResolver
from . import didwba, message_signature
from .message_signature import Parameters, Request
from .nonces import FUTURE, LIFETIME, NonceMemory


class RequestVerifier:
    """For one event loop.

    `audiences`: the base URLs, http or https, under which this listener's root is reached from outside, such as
    `https://shop.example/agents/a` behind a proxy that strips that path. They may be set later; without any, nothing is accepted.
    """

    def __init__(
        self,
        resolver: DidResolver,
        nonces: NonceMemory,
        *,
        audiences: tuple[str, ...] = (),
        legacy: bool = False,
        required: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`legacy`: whether the older `DIDWba` header is accepted, which covers nothing of the request. `required`: whether a
        request that proves nothing is refused. `clock`: Unix seconds."""
        self.audiences = audiences
        self._resolver = resolver
        self._nonces = nonces
        self._legacy = legacy
        self._required = required
        self._clock = clock

    async def verify(self, method: str, target_uri: str, headers: Mapping[str, str], body: bytes) -> str:
        """The DID that sent this request, proved; "" for one that proves nothing, unless that is refused.

        `target_uri`: as received, absolute or path and query alone, still percent-encoded; what stands before the path is not
        looked at. `headers`: names in lower case, lines of one name joined by ", ". A request is accepted once.

        Raises `Unauthorized` (`authentication.*`), or `Unavailable` when the sender may try again with a new signature: its
        document's host does not answer (`egress.*`), or the disk fails (`authentication.memory`).
        """
        authorization = headers.get("authorization", "")
        if "signature" in headers or "signature-input" in headers:
            parameters = await self._message_signature(method, target_uri, headers, body)
        elif didwba.is_used(authorization):
            if not self._legacy:
                raise Unauthorized(
                    "authentication.legacy",
                    "This listener does not accept the DIDWba header: it says nothing of the request that it comes with.",
                    fix="Sign the request by RFC 9421, or have the listener's owner set accept_didwba in its policy.",
                )
            parameters = await self._didwba(authorization)
        elif not self._required:
            return ""
        else:
            raise Unauthorized("authentication.missing", "This request is not signed.", fix="Sign it, by RFC 9421, as a DID.")
        self._check_times(parameters)
        did = parse_key_id(parameters.key_id)[0].text
        self._nonces.accept(did, parameters.nonce, parameters.created)
        return did

    def challenge(self) -> dict[str, str]:
        """The header fields of a 401 answer: what a signature has to cover."""
        realm = next((httpx.URL(audience).host for audience in self.audiences), "")
        covered = " ".join(f'"{name}"' for name in (*message_signature.COVERED, "content-digest"))
        return {
            "WWW-Authenticate": f'DIDWba realm="{realm}"',
            "Accept-Signature": f"sig1=({covered});created;expires;nonce;keyid",
        }

    async def _message_signature(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Parameters:
        key_id = message_signature.claimed_key(headers)
        keys = {key_id: await self._key(key_id)}
        refusal = Unauthorized("authentication.audience", "This listener does not know its own URL.")
        for audience in self.audiences:
            try:
                return message_signature.verify(Request(method.upper(), _joined(audience, target), headers, body), keys)
            except Unauthorized as error:
                refusal = error
        raise refusal

    async def _didwba(self, authorization: str) -> Parameters:
        credential, signature = didwba.parse(authorization)
        key = await self._key(credential.key_id)
        hosts = tuple(dict.fromkeys(httpx.URL(audience).host for audience in self.audiences))
        didwba.verify(credential, signature, key, hosts)
        return Parameters(credential.key_id, credential.nonce, credential.created, None)

    async def _key(self, key_id: str) -> bytes:
        """The key of that name, if its DID's document lists it for authentication now."""
        try:
            did, _ = parse_key_id(key_id)
            document = await self._resolver.resolve(did, listing=key_id)
        except Unavailable:
            raise
        except Malformed as error:
            raise Unauthorized("authentication.identity", f"No key can be had for {key_id[:120]}: {error.message}") from error
        except TreatyError as error:
            raise Unauthorized("authentication.identity", error.message, fix=error.fix) from error
        if key_id not in document.keys:
            raise Unauthorized("authentication.key", f"The document of {did.text} does not list {key_id} for authentication.")
        return document.keys[key_id]

    def _check_times(self, parameters: Parameters) -> None:
        now = self._clock()
        if parameters.created > now + FUTURE:
            raise Unauthorized("authentication.future", "This signature was made in the future.", fix="Set the sender's clock.")
        expires = parameters.created + LIFETIME if parameters.expires is None else parameters.expires
        if now > min(expires, parameters.created + LIFETIME):
            raise Unauthorized("authentication.expired", "This signature has expired.", fix="Sign the request anew.")


def _joined(audience: str, target: str) -> str:
    """The URL as the sender knows it: below the audience, with the target's own path and query."""
    if not target.startswith("/"):
        _, _, rest = target.partition("://")
        target = "/" + rest.partition("/")[2]
    return audience.rstrip("/") + target
