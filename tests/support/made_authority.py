"""Vectors of a rotation of the Sigstore authority: leaves, the trusted root that follows, and rotations that are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from made_records import CLOCK_KEY, LOG_KEY, OPERATOR, refusal
from signers import NOW, ORIGIN, signed

from treaty_client.protocols.verification.log_keys import proven_keys
from treaty_consensus import canonical, kinds
from treaty_consensus.authority import CA, TSA, TSA_ROOT, Authority, extensions_of, name_of
from treaty_consensus.log.checkpoint import KeyTerm
from treaty_consensus.log.note import sign
from treaty_consensus.rotation import Rotation, rotation_text
from treaty_consensus.trusted_root import with_rotations
from treaty_registry.sigstore_authority.keys import AuthorityKeys
from treaty_registry.sigstore_authority.trust import trusted_root

UNTIL = NOW + 90 * 24 * 3600


def authority_keys(name: str, origin: str = ORIGIN) -> AuthorityKeys:
    """The same keys and certificates each time."""
    ca_key, ct_key, tsa_key, root_key = (_key(f"{name} {part}") for part in ("ca", "ct", "tsa", "root"))
    root = _certificate(origin, TSA_ROOT, root_key, root_key)
    tsa = _certificate(origin, TSA, tsa_key, root_key), root
    return AuthorityKeys(ca_key, _certificate(origin, CA, ca_key, ca_key), ct_key, tsa_key, tsa)


def rotations() -> dict[str, Any]:
    """A log that rotates its authority at leaf 1."""
    first, following = authority_keys("first"), authority_keys("second")
    root = trusted_root(first, origin=ORIGIN, log_key=LOG_KEY.verifier.public)
    keys = str(LOG_KEY.verifier), str(CLOCK_KEY.verifier)
    genesis = signed(kinds.Genesis(ORIGIN, *keys, OPERATOR.did, canonical.hex_digest(root)), OPERATOR).leaf

    def leaf(body: Rotation) -> bytes:
        return signed(body, OPERATOR).leaf

    accepted = rotation(following)
    assert accepted.authority
    others = {
        "an authority of another log": rotation(authority_keys("second", "other.example")),
        "proofs of another text": msgspec.structs.replace(
            accepted, authority=msgspec.structs.replace(accepted.authority, proofs=named(following, "another\n").proofs)
        ),
        "a certificate of the timestamp authority above certificates": rotation(following, ca=named(following).tsa[0]),
        "not signed by the log's key": msgspec.structs.replace(accepted, proof=rotation(authority_keys("third")).proof),
    }
    return {
        "leaves": [genesis.decode(), leaf(accepted).decode()],
        "text": rotation_text(*_before(), UNTIL, accepted.authority),
        "pinned_root": root.decode(),
        "trusted_root": with_rotations(root, proven_keys([(0, genesis), (1, leaf(accepted))])).decode(),
        "refused": [
            {
                "title": title,
                "leaf": leaf(body).decode(),
                "code": refusal(lambda body=body: proven_keys([(0, genesis), (1, leaf(body))])),  # type: ignore[misc]
            }
            for title, body in others.items()
        ],
    }


def rotation(keys: AuthorityKeys, **parts: object) -> Rotation:
    """To an authority, of which some parts are others."""
    before, log, clock = _before()
    text = rotation_text(before, log, clock, UNTIL, msgspec.structs.replace(named(keys), **parts))
    authority = msgspec.structs.replace(named(keys, text), **parts)
    return Rotation(str(log), str(clock), UNTIL, sign(text, [LOG_KEY], time=NOW).decode(), authority)


def named(keys: AuthorityKeys, text: str = "") -> Authority:
    """The public parts, with the same proofs of a text each time."""
    algorithm = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
    first, second, third = (
        canonical.b64encode(key.sign(text.encode(), algorithm)) for key in (keys.ca_key, keys.ct_key, keys.tsa_key)
    )
    return msgspec.structs.replace(keys.named(), proofs=(first, second, third))


def _before() -> tuple[KeyTerm, Any, Any]:
    return KeyTerm(LOG_KEY.verifier, CLOCK_KEY.verifier), LOG_KEY.verifier, CLOCK_KEY.verifier


def _key(name: str) -> ec.EllipticCurvePrivateKey:
    # The order of the group is below 2^256, so the first bits are left out.
    return ec.derive_private_key(int.from_bytes(canonical.sha256(name.encode())[1:]), ec.SECP256R1())


def _certificate(origin: str, role: str, key: ec.EllipticCurvePrivateKey, issuer: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    start = datetime.fromtimestamp(NOW, UTC) - timedelta(hours=1)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name_of(origin, role))
        .issuer_name(name_of(origin, TSA_ROOT if role == TSA else role))
        .public_key(key.public_key())
        .serial_number(int.from_bytes(canonical.sha256(role.encode())[:16]) >> 1)
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=3650))
    )
    for extension, critical in extensions_of(key.public_key(), issuer.public_key(), is_ca=role != TSA):
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(issuer, hashes.SHA256(), ecdsa_deterministic=True)
