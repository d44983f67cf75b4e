"""Sign HTTP requests as a DID, and verify the DID that signed a request.

docs/specification/identity-on-the-wire.md, section "Checks of a request", has the rules. For example, a signature that was
created more than `LIFETIME` seconds ago is refused with `authentication.time`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping

import httpx

from treaty_consensus.did import parse_key_id
from treaty_consensus.errors import Malformed, TreatyError, Unauthorized, Unavailable
from treaty_io.codes import AuthenticationCode
from treaty_io.identity import Identity
from treaty_io.network.did_documents import DidResolver

from . import didwba, message_signature
from .message_signature import Parameters, Request
from .nonces import FUTURE, LIFETIME, NonceMemory


class RequestVerifier:
    """Verify the requests of one listener. For one event loop.

    `audiences`: the http or https base URLs of this listener as seen from outside, for example `https://shop.example/agents/a`
    behind a proxy that strips that path. They may be set later. Without them, no request is accepted.
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
        """Set the rules.

        `legacy`: whether to accept the older `DIDWba` header, which covers nothing of the request. `required`: whether to refuse
        a request without a proof. `clock`: Unix seconds.
        """
        self.audiences = audiences
        self._resolver = resolver
        self._nonces = nonces
        self._legacy = legacy
        self._required = required
        self._clock = clock

    async def verify(self, method: str, target_uri: str, headers: Mapping[str, str], body: bytes) -> str:
        """Return the DID that is proved to have sent this request; "" without a proof, if none is required.

        `target_uri`: as received, absolute or path and query only, still percent-encoded; scheme and authority are ignored.
        `headers`: names in lower case, lines of one name joined by ", ". Each signature is accepted once.

        Raises `Unauthorized` (`authentication.*`). Raises `Unavailable` if the host of the DID document does not answer
        (`egress.*`) or the disk fails (`system.file`); the sender may then retry with a new signature.
        """
        authorization = headers.get("authorization", "")
        # A request with a signature is judged by it alone: a bad one must not fall back to the weaker header.
        if "signature" in headers or "signature-input" in headers:
            parameters = await self._message_signature(method, target_uri, headers, body)
        elif didwba.is_used(authorization):
            if not self._legacy:
                raise Unauthorized(
                    AuthenticationCode.MISSING,
                    "This listener does not accept the DIDWba header, which covers nothing of its request.",
                    fix="Sign the request by RFC 9421, or have the listener's owner set accept_didwba in its policy.",
                )
            parameters = await self._didwba(authorization)
        elif not self._required:
            return ""
        else:
            raise Unauthorized(
                AuthenticationCode.MISSING, "This request is not signed.", fix="Sign it by RFC 9421 with the key of a DID."
            )
        # Times before nonces: an expired signature must not enter the memory, which forgets by time.
        self._check_times(parameters)
        did = parse_key_id(parameters.key_id)[0].text
        # Last, because it cannot be undone: a request that is refused must not use its nonce up. A crash after
        # this line refuses the request's repetition; the sender signs anew.
        self._nonces.accept(did, parameters.nonce, parameters.created)
        return did

    def challenge(self) -> dict[str, str]:
        """Return the header fields of a 401 answer, with the components that a signature must cover."""
        realm = next((httpx.URL(audience).host for audience in self.audiences), "")
        covered = " ".join(f'"{name}"' for name in (*message_signature.COVERED, "content-digest"))
        return {
            "WWW-Authenticate": f'DIDWba realm="{realm}"',
            "Accept-Signature": f"sig1=({covered});created;expires;nonce;keyid",
        }

    async def _message_signature(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Parameters:
        key_id = message_signature.claimed_key(headers)
        keys = {key_id: await self._key(key_id)}
        refusal = Unauthorized(AuthenticationCode.URL, "This listener does not know its own URL.")
        # An agent may be reached under several URLs, and the sender signs the one that it used.
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
        """Return the public key of this id, if the document of its DID lists it for authentication now."""
        try:
            did, _ = parse_key_id(key_id)
            document = await self._resolver.resolve(did, listing=key_id)
        except Unavailable:
            raise
        except Malformed as error:
            raise Unauthorized(
                AuthenticationCode.IDENTITY, f"The key {key_id[:120]} cannot be resolved: {error.message}"
            ) from error
        except TreatyError as error:
            raise Unauthorized(AuthenticationCode.IDENTITY, error.message, fix=error.fix) from error
        keys = document.request_keys
        if key_id not in keys:
            raise Unauthorized(
                AuthenticationCode.IDENTITY, f"The document of {did.text} does not list {key_id} for authentication."
            )
        return keys[key_id]

    def _check_times(self, parameters: Parameters) -> None:
        now = self._clock()
        if parameters.created > now + FUTURE:
            raise Unauthorized(AuthenticationCode.TIME, "This signature was made in the future.", fix="Set the sender's clock.")
        expires = parameters.created + LIFETIME if parameters.expires is None else parameters.expires
        if now > min(expires, parameters.created + LIFETIME):
            raise Unauthorized(AuthenticationCode.TIME, "This signature has expired.", fix="Sign the request anew.")


def _joined(audience: str, target: str) -> str:
    """Return the URL that the sender used: the audience with the target's path and query."""
    if not target.startswith("/"):
        _, _, rest = target.partition("://")
        target = "/" + rest.partition("/")[2]
    return audience.rstrip("/") + target


class RequestSigner:
    """Sign requests, each for one use within five minutes. Safe for concurrent use."""

    def __init__(self, identity: Identity, *, legacy: bool = False, clock: Callable[[], float] = time.time) -> None:
        """Sign as `identity`.

        `legacy`: whether to use the older `DIDWba` header, for peers without another form; it covers nothing of the request.
        `clock`: Unix seconds.
        """
        self.identity = identity
        self._legacy = legacy
        self._clock = clock

    def headers(self, method: str, url: str, body: bytes = b"") -> dict[str, str]:
        """Return the header fields that prove the sender and, unless `legacy`, the content of this request.

        `url`: absolute, exactly as it is sent. `body`: the whole body. Raises `Malformed` (`authentication.url`).
        """
        # 128 bits: two signers of one DID draw independently, and a repeated nonce would be refused as a replay.
        nonce, created = secrets.token_hex(16), int(self._clock())
        if self._legacy:
            message_signature.target_uri(url)
            host, key_id = httpx.URL(url).host, self.identity.key_id
            return {"Authorization": didwba.sign(key_id, nonce, created, host, self.identity.sign)}
        parameters = Parameters(self.identity.key_id, nonce, created, created + LIFETIME)
        return message_signature.sign(Request(method.upper(), url, {}, body), parameters, self.identity.sign)
