"""Verify the tokens by which a workflow proves for which account it runs (`treaty_consensus.workflow_evidence`).

PyJWT checks the signature, under a key of the pinned issuer and with RS256 alone. The key set is fetched through the egress
guard, which PyJWT's own client does not have. The rules about the claims are those of `check_claims`, which auditors run too.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Literal

import jwt
import msgspec

from treaty_consensus import canonical
from treaty_consensus.codes import TokenCode
from treaty_consensus.errors import Malformed, TooLarge, TreatyError, Unauthorized
from treaty_consensus.workflow_evidence import ISSUERS, SKEW, Claims, IssuerKey, WorkflowEvidence, check_claims, convert

from ..log.clock import Clock
from .spent_tokens import SpentTokens

MAX_TOKEN = 8_192
"""Characters. A token of GitHub has some 2,000."""
MAX_AGE = 600.0
"""Seconds for which a fetched key set is used. A key that the issuer withdrew is accepted for that long at most."""
REFETCH_AGE = 30.0
"""Seconds before a set that lacks a key is fetched again. Strangers may name any key, and must not make us ask for each."""
_MAX_KEYS = 32
_JWKS = "/.well-known/jwks"
"""Below the issuer's URL. Pinned as the issuer is: its discovery document could only name another place of the same host."""


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    # RFC 8725 §3.1: `none` and HS256 with the public key as its secret get no further. A key in the header is refused as unknown.
    alg: Literal["RS256"]
    kid: str
    typ: Literal["JWT"] = "JWT"
    x5t: str = ""


class IssuerKeys:
    """The keys of an issuer, as its key set had them at most `MAX_AGE` seconds ago. For one event loop."""

    def __init__(
        self, issuer: str, fetch: Callable[[str], Awaitable[bytes]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`fetch`: through the egress guard. `clock`: monotonic seconds."""
        self._url, self._fetch, self._clock = f"{issuer}{_JWKS}", fetch, clock
        self._keys: dict[str, IssuerKey] = {}
        self._fetched = -math.inf
        # One fetch for many tokens, and the second caller finds its result.
        self._lock = asyncio.Lock()

    async def find(self, kid: str) -> IssuerKey:
        """Return the key of this name. Raises `Unauthorized` (`token.invalid`) when the issuer has none, and as `fetch`."""
        async with self._lock:
            age = self._clock() - self._fetched
            # While the issuer rotates, its set has both keys; a token under the new one makes us look again.
            if age > MAX_AGE or (kid not in self._keys and age > REFETCH_AGE):
                begun = self._clock()  # before the fetch: the set may change while it travels
                self._keys = _read_keys(await self._fetch(self._url))
                self._fetched = begun
        if kid not in self._keys:
            raise Unauthorized(TokenCode.INVALID, f"The issuer of the token has no key {kid[:80]!r} now.")
        return self._keys[kid]


class WorkflowTokens:
    """Verifies tokens for one log, each once. For one event loop."""

    def __init__(self, origin: str, fetch: Callable[[str], Awaitable[bytes]], spent: SpentTokens, clock: Clock) -> None:
        """`fetch`: the egress guard's."""
        self._origin, self._spent, self._clock = origin, spent, clock
        self._issuer = IssuerKeys(ISSUERS["github.com"], fetch)

    async def verify(self, token: str, multikey: str) -> WorkflowEvidence:
        """Return what a token says that proves this key. It is not spent yet.

        Raises `Malformed`, `TooLarge` or `Unauthorized` (`token.invalid`), and `Unavailable` when the issuer does not answer.
        """
        key = await self._issuer.find(_header(token).kid)
        claims = convert(_payload(token, key), Claims)
        check_claims(claims, origin=self._origin, multikey=multikey, now=int(self._clock().timestamp()))
        return WorkflowEvidence(claims, key, canonical.hex_digest(token.encode("ascii")))

    async def spend(self, evidence: WorkflowEvidence) -> None:
        """Mark the token as used, in every process and after any restart. Raises `Unauthorized` for a used one."""
        claims = evidence.claims
        # By issuer and `jti`, which are signed: the text of a token has other spellings. Until no clock accepts it any more.
        name = canonical.hex_digest(canonical.dumps([claims.iss, claims.jti]))
        until = datetime.fromtimestamp(claims.exp, UTC) + timedelta(seconds=2 * SKEW)
        if not await self._spent.spend(name, until):
            raise Unauthorized(TokenCode.INVALID, "This token of a workflow was used before.", fix="Ask for a new one.")


def _header(token: str) -> _Header:
    if len(token) > MAX_TOKEN or not token.isascii():
        raise TooLarge(TokenCode.INVALID, f"A token of a workflow has at most {MAX_TOKEN} characters.")
    segment = token.partition(".")[0]
    try:
        data = jwt.utils.base64url_decode(segment)
        return msgspec.convert(canonical.parse_json(data, limit=MAX_TOKEN, name="token header"), _Header)
    except TreatyError:
        raise
    except ValueError as error:  # no base64, or another header
        raise Malformed(
            TokenCode.INVALID,
            f"The header of the token is not valid: {error}.",
            fix="It names RS256 and a key of the issuer, and brings no key of its own.",
        ) from error


def _payload(token: str, key: IssuerKey) -> object:
    """Return the claims of a token that this key signed."""
    try:
        public = jwt.PyJWK(msgspec.to_builtins(key), algorithm="RS256")
        # Without PyJWT's checks of claims, which read the machine's clock: `check_claims` reads the registry's.
        payload: bytes = jwt.PyJWS().decode(token, public, algorithms=["RS256"])
    except (jwt.PyJWTError, ValueError) as error:
        raise Unauthorized(TokenCode.INVALID, "The issuer's key did not sign this token.") from error
    # Strict: with a member twice, two readers could see two owners.
    return canonical.parse_json(payload, limit=MAX_TOKEN, name="token claims")


class _KeySet(msgspec.Struct, frozen=True):
    keys: tuple[dict[str, object], ...]


def _read_keys(data: bytes) -> dict[str, IssuerKey]:
    value = convert(canonical.parse_json(data, limit=len(data), name="key set of the issuer"), _KeySet)
    keys: dict[str, IssuerKey] = {}
    confused: set[str] = set()
    for each in value.keys[:_MAX_KEYS]:
        if each.get("kty") != "RSA" or each.get("use", "sig") != "sig" or each.get("alg", "RS256") != "RS256":
            continue
        key = convert({name: each.get(name) for name in IssuerKey.__struct_fields__}, IssuerKey)
        # Two keys of one name: neither is the one that the issuer means.
        if keys.setdefault(key.kid, key) != key:
            confused.add(key.kid)
    return {kid: key for kid, key in keys.items() if kid not in confused}
