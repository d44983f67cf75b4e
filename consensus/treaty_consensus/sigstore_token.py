"""The self-issued identity token with which a DID asks the registry's certificate authority for a signing certificate.

A JWT in compact serialization (RFC 7515 §7.1, RFC 7519), at most 4,096 characters, that the DID signs itself:

    BASE64URL(header) "." BASE64URL(claims) "." BASE64URL(Ed25519 signature over the two segments and the dot before it)

    header  {"alg": "EdDSA", "kid": KEY-ID, "typ": "JWT"}         `typ` may be absent
    claims  {"aud": ["sigstore", ORIGIN], "cnf": {"spki-sha256": HEX}, "exp": SECONDS, "iat": SECONDS, "iss": DID, "jti": TEXT,
             "sub": DID}                                           `cnf` may be absent

`KEY-ID` is the DID URL of a key in the DID's `authentication`; `sub` is its DID, and so is `iss`: nobody else vouches here. The
certificate names as its issuer who checked, `https://ORIGIN/sigstore`. `aud` is what the stock Sigstore clients look for, and
the log's origin, so that no other registry can use the token. `jti` is 16 to 64 characters of `A-Za-z0-9_-` and works once. A
token lives for at most 300 seconds. `cnf` (RFC 7800) binds it to one key: the SHA-256 of the SubjectPublicKeyInfo that may be
certified.

The key comes from the DID alone: any other header parameter (`jwk`, `jku`, `x5u`, `x5c`, `crit`, …) and any other claim is
refused. Base64url is unpadded and in its one spelling (RFC 7515 §2).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from . import canonical
from .did import Did, parse_key_id
from .errors import Malformed, TooLarge, Unauthorized

MAX_TOKEN = 4_096
MAX_LIFETIME = 300
CLIENT_ID = "sigstore"

_JTI = re.compile(r"[A-Za-z0-9_-]{16,64}")
_Seconds = Annotated[int, msgspec.Meta(ge=0)]


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    """A parsed token. Its form is right; `verify` checks the signature, and the authority the rest.

    `issued`, `expires`: Unix seconds. `bound_key`: hexadecimal SHA-256 of the one SubjectPublicKeyInfo it may certify, or None.
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
    """What certificates of the authority of `origin` name as their OIDC issuer (`--cert-oidc-issuer`)."""
    return f"https://{origin}/sigstore"


def signing_input(key_id: str, *, origin: str, issued: int, jti: str, bound_key: str | None) -> bytes:
    """The bytes that the key `key_id` signs: header and claims of a token that lives for `MAX_LIFETIME` from `issued`.

    Raises `Malformed` on what `parse` would refuse.
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
    parse(f"{text}.{_encode(bytes(64))}")
    return text.encode("ascii")


def seal(signing_input: bytes, signature: bytes) -> str:
    """The token, from what was signed and the 64-byte signature."""
    return f"{signing_input.decode('ascii')}.{_encode(signature)}"


def parse(text: str) -> IdentityToken:
    """Parse a token strictly. Raises `Malformed` or `TooLarge` (`token.*`); verifies nothing."""
    if len(text) > MAX_TOKEN:
        raise TooLarge("token.too-large", f"An identity token has at most {MAX_TOKEN} characters.")
    segments = text.split(".")
    if len(segments) != 3:
        raise Malformed("token.form", "An identity token is a JWT of three segments.")
    header_json, claims_json, signature = (_decode(segment) for segment in segments)
    try:
        header = msgspec.convert(canonical.parse_json(header_json, limit=MAX_TOKEN, what="token header"), _Header)
    except msgspec.ValidationError as error:
        raise Malformed(
            "token.header",
            f"The header of an identity token does not fit: {error}.",
            fix='It is {"alg": "EdDSA", "kid": DID-URL, "typ": "JWT"}; the key comes from the DID, never from the token.',
        ) from error
    try:
        claims = msgspec.convert(canonical.parse_json(claims_json, limit=MAX_TOKEN, what="token claims"), _Claims)
    except msgspec.ValidationError as error:
        raise Malformed("token.claims", f"The claims of an identity token do not fit: {error}.") from error
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
    """Check the signature under `keys`, the DID's current authentication keys (DID URL → raw Ed25519). Raises `Unauthorized`."""
    key = keys.get(token.key_id)
    if key is None:
        raise Unauthorized(
            "token.unknown-key",
            f"{token.key_id[:120]} is not a key that its DID lists for authentication.",
            fix="Sign with a current key of the DID, or publish the key in its DID document first.",
        )
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(token.signature, token.signing_input)
    except InvalidSignature as error:
        raise Unauthorized("token.signature-invalid", "The identity token's signature does not verify.") from error


def _check(claims: _Claims, did: Did) -> None:
    if claims.sub != did.text or claims.iss != did.text:
        raise Malformed("token.subject", "`sub` and `iss` of an identity token are the DID of its `kid`.")
    if claims.aud[0] != CLIENT_ID:
        raise Malformed("token.audience", f'`aud` of an identity token is ["{CLIENT_ID}", ORIGIN].')
    if not _JTI.fullmatch(claims.jti):
        raise Malformed("token.jti", "`jti` is 16 to 64 characters of A-Z, a-z, 0-9, '_' and '-'.")
    if not 0 < claims.exp - claims.iat <= MAX_LIFETIME:
        raise Malformed("token.lifetime", f"An identity token lives for 1 to {MAX_LIFETIME} seconds (`exp` - `iat`).")


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(segment: str) -> bytes:
    try:
        data = base64.b64decode(segment + "=" * (-len(segment) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise Malformed("token.form", "A segment of the identity token is not base64url.") from error
    if _encode(data) != segment:
        raise Malformed("token.form", "A segment of the identity token is not in the one spelling of its bytes.")
    return data
