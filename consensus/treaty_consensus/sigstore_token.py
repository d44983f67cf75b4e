"""Build, parse and verify the self-issued identity token of a DID, which requests a certificate from the registry's authority.

The token is a JWT in compact serialization (RFC 7515 §7.1, RFC 7519) that the DID signs itself with Ed25519:

    header  {"alg": "EdDSA", "kid": "did:wba:example.com#key-1", "typ": "JWT"}
    claims  {"aud": ["sigstore", "registry.example"], "exp": 1790000300, "iat": 1790000000, "iss": "did:wba:example.com",
             "jti": "zq3ySdQ1uVnQk0aB", "sub": "did:wba:example.com"}

`aud` holds the value that the stock Sigstore clients expect, and the log's origin, so that no other registry can use the
token. The claim `cnf` (RFC 7800) binds the token to one key. The key comes from the DID alone: any other header parameter
(`jwk`, `jku`, `x5u`, `x5c`, `crit`, …) and any other claim is refused.

Specification: `docs/specification/http.md`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from . import canonical, ed25519
from .codes import TokenCode
from .did import Did, parse_key_id
from .errors import Malformed, TooLarge, Unauthorized

# Two DID URLs and short claims need less than 2 KiB.
MAX_TOKEN = 4_096
# A token needs to live for one request only; five minutes allow for clock differences.
MAX_LIFETIME = 300
# The audience that the stock Sigstore clients require.
CLIENT_ID = "sigstore"

# A `jti` is stored until the token expires, so that a token works once.
_JTI = re.compile(r"[A-Za-z0-9_-]{16,64}")
_Seconds = Annotated[int, msgspec.Meta(ge=0)]


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    # RFC 8725 §3.1: the verifier fixes the algorithm. `none` and keyed hashes never get further.
    alg: Literal["EdDSA"]
    kid: str
    typ: Literal["JWT"] = "JWT"


class _Confirmation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str = msgspec.field(name="spki-sha256")


class _Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    aud: tuple[str, str]
    exp: _Seconds
    iat: _Seconds
    iss: str
    jti: str
    sub: str
    cnf: _Confirmation | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True)
class IdentityToken:
    """Hold a parsed token. Its form is valid; `verify` checks the signature, and the authority checks the rest.

    `issued`, `expires`: Unix seconds.
    `bound_key`: hexadecimal SHA-256 of the one SubjectPublicKeyInfo that it may certify, or None.
    """

    key_id: str
    did: Did
    origin: str
    issued: int
    expires: int
    jti: str
    bound_key: str | None
    signing_input: bytes
    signature: bytes


def issuer_url(origin: str) -> str:
    """Return the OIDC issuer that certificates of this authority name (`--cert-oidc-issuer`)."""
    return f"https://{origin}/sigstore"


def signing_input(key_id: str, *, origin: str, issued: int, jti: str, bound_key: str | None) -> bytes:
    """Return the bytes that the key `key_id` signs: header and claims of a token that is valid for `MAX_LIFETIME` from `issued`.

    Raises `Malformed` where `parse` would.
    """
    did = parse_key_id(key_id)[0].text
    claims: dict[str, object] = {
        "aud": [CLIENT_ID, origin],
        "exp": issued + MAX_LIFETIME,
        "iat": issued,
        "iss": did,
        "jti": jti,
        "sub": did,
    }
    if bound_key is not None:
        claims["cnf"] = {"spki-sha256": bound_key}
    header = canonical.dumps({"alg": "EdDSA", "kid": key_id, "typ": "JWT"})
    text = f"{_encode(header)}.{_encode(canonical.dumps(claims))}"
    # Parse the result with an empty signature, so that one place holds the rules.
    parse(f"{text}.{_encode(bytes(64))}")
    return text.encode("ascii")


def seal(signing_input: bytes, signature: bytes) -> str:
    """Return the token for a signing input and its 64-byte signature."""
    return f"{signing_input.decode('ascii')}.{_encode(signature)}"


def parse(text: str) -> IdentityToken:
    """Parse a token strictly, without verifying it. Raises `Malformed` or `TooLarge` (`token.*`)."""
    if len(text) > MAX_TOKEN:
        raise TooLarge(TokenCode.INVALID, f"An identity token has at most {MAX_TOKEN} characters.")
    segments = text.split(".")
    if len(segments) != 3:
        raise Malformed(TokenCode.INVALID, "An identity token is a JWT of three segments.")
    header_json, claims_json, signature = (_decode(segment) for segment in segments)
    try:
        header = msgspec.convert(canonical.parse_json(header_json, limit=MAX_TOKEN, name="token header"), _Header)
    except msgspec.ValidationError as error:
        raise Malformed(
            TokenCode.INVALID,
            f"The header of an identity token is not valid: {error}.",
            fix='It is {"alg": "EdDSA", "kid": DID-URL, "typ": "JWT"}; the key comes from the DID, never from the token.',
        ) from error
    try:
        claims = msgspec.convert(canonical.parse_json(claims_json, limit=MAX_TOKEN, name="token claims"), _Claims)
    except msgspec.ValidationError as error:
        raise Malformed(TokenCode.INVALID, f"The claims of an identity token are not valid: {error}.") from error
    did = parse_key_id(header.kid)[0]
    _check(claims, did)
    return IdentityToken(
        key_id=header.kid,
        did=did,
        origin=claims.aud[1],
        issued=claims.iat,
        expires=claims.exp,
        jti=claims.jti,
        bound_key=None if claims.cnf is msgspec.UNSET else canonical.parse_digest(claims.cnf.key),
        signing_input=f"{segments[0]}.{segments[1]}".encode("ascii"),
        signature=signature,
    )


def verify(token: IdentityToken, keys: Mapping[str, bytes]) -> None:
    """Check the signature.

    `keys`: the DID's current authentication keys, DID URL → raw Ed25519.

    Raises `Unauthorized` (`token.*`).
    """
    key = keys.get(token.key_id)
    if key is None:
        raise Unauthorized(
            TokenCode.INVALID,
            f"{token.key_id[:120]} is not a key that its DID lists for authentication.",
            fix="Sign with a current key of the DID, or publish the key in its DID document first.",
        )
    if not ed25519.verify(key, token.signature, token.signing_input):
        raise Unauthorized(TokenCode.INVALID, "The identity token's signature does not verify.")


def _check(claims: _Claims, did: Did) -> None:
    # The token is self-issued: subject and issuer are the DID of the key that signs it.
    if claims.sub != did.text or claims.iss != did.text:
        raise Malformed(TokenCode.INVALID, "`sub` and `iss` of an identity token are the DID of its `kid`.")
    if claims.aud[0] != CLIENT_ID:
        raise Malformed(TokenCode.INVALID, f'`aud` of an identity token is ["{CLIENT_ID}", ORIGIN].')
    if not _JTI.fullmatch(claims.jti):
        raise Malformed(TokenCode.INVALID, "`jti` is 16 to 64 characters of A-Z, a-z, 0-9, '_' and '-'.")
    # Each used `jti` is stored until the token expires, so a long life would fill the store.
    if not 0 < claims.exp - claims.iat <= MAX_LIFETIME:
        raise Malformed(TokenCode.INVALID, f"An identity token lives for 1 to {MAX_LIFETIME} seconds (`exp` - `iat`).")


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(segment: str) -> bytes:
    try:
        data = base64.b64decode(segment + "=" * (-len(segment) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise Malformed(TokenCode.INVALID, "A segment of the identity token is not base64url.") from error
    # One token, one text: otherwise a used token could be written differently and pass as new.
    if _encode(data) != segment:
        raise Malformed(TokenCode.INVALID, "A segment of the identity token is not in the one spelling of its bytes.")
    return data
