"""The certificate authority: what it certifies, and that a refusal changes nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier
from rejections import rejection
from signers import NOW, ORIGIN, Signer, domain_signer, key_signer
from sigstore._internal.sct import verify_sct
from sigstore._internal.trust import KeyringPurpose
from sigstore.models import ClientTrustConfig
from simulated_sigstore import ALICE, Authority, csr_request, key_digest, make_authority

from treaty_consensus import canonical
from treaty_consensus.errors import NotFound, TreatyError, Unavailable
from treaty_consensus.sigstore_leaf import CertificateLeaf, parse_sigstore_leaf
from treaty_registry.sigstore_authority import trust
from treaty_registry.sigstore_authority.ports import LoggedLeaf

TIME = datetime.fromtimestamp(NOW, UTC) + timedelta(microseconds=765_432)
KEY = ec.generate_private_key(ec.SECP256R1())
PUBLIC_PEM = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
BOB = domain_signer("bob.example")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return make_authority(tmp_path, now=TIME)


def leaf_certificate(reply: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(json.loads(reply)["signedCertificateEmbeddedSct"]["chain"]["certificates"][0].encode())


def challenge(key: ec.EllipticCurvePrivateKey, subject: str = ALICE.did, **changes: Any) -> dict[str, Any]:
    """What sigstore-go and sigstore-js send instead of a CSR."""
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    proof = key.sign(subject.encode(), ec.ECDSA(hashes.SHA256()))
    request = {
        "publicKey": {"algorithm": "ECDSA", "content": pem.decode()},
        "proofOfPossession": canonical.b64encode(proof),
    }
    return {"publicKeyRequest": request | changes}


async def refusal(authority: Authority, body: bytes, authorization: str | None) -> TreatyError:
    """The error with which a request is refused; nothing may have changed."""
    before = authority.state
    with pytest.raises(TreatyError) as error:
        await authority.ca.issue(body, authorization)
    assert authority.state == before
    return error.value


async def refused(authority: Authority, body: bytes, authorization: str | None) -> str:
    """The code with which a request is refused."""
    return (await refusal(authority, body, authorization)).code


async def test_the_certificate_is_fulcios_profile_for_a_did(authority: Authority) -> None:
    reply = await authority.ca.issue(csr_request(KEY), f"Bearer {authority.token()}")
    certificate = leaf_certificate(reply)
    extensions = certificate.extensions
    assert certificate.public_key() == KEY.public_key()
    assert certificate.subject == x509.Name([])
    san = extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert san.critical and list(san.value) == [x509.UniformResourceIdentifier(ALICE.did)]
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.CODE_SIGNING]
    issuer = f"https://{ORIGIN}/sigstore".encode()
    bare = extensions.get_extension_for_oid(ObjectIdentifier("1.3.6.1.4.1.57264.1.1")).value
    der = extensions.get_extension_for_oid(ObjectIdentifier("1.3.6.1.4.1.57264.1.8")).value
    assert isinstance(bare, x509.UnrecognizedExtension) and bare.value == issuer
    assert isinstance(der, x509.UnrecognizedExtension) and der.value == bytes([0x0C, len(issuer)]) + issuer
    assert certificate.not_valid_before_utc <= TIME <= certificate.not_valid_after_utc
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc <= timedelta(minutes=10)
    certificate.verify_directly_issued_by(authority.keys.ca_certificate)


async def test_the_certificate_is_a_leaf_before_it_is_returned(authority: Authority) -> None:
    certificate = leaf_certificate(await authority.ca.issue(csr_request(KEY), f"Bearer {authority.token()}"))
    assert authority.state == (2, 1)
    assert parse_sigstore_leaf(authority.log.leaves[1]) == CertificateLeaf(certificate.public_bytes(Encoding.DER))


async def test_the_timestamp_in_it_verifies(authority: Authority) -> None:
    certificate = leaf_certificate(await authority.ca.issue(csr_request(KEY), f"Bearer {authority.token()}"))
    config = trust.trust_config(authority.trusted_root, origin=ORIGIN, base_url="http://localhost")
    root = ClientTrustConfig.from_json(config.decode()).trusted_root
    verify_sct(certificate, [authority.keys.ca_certificate], root.ct_keyring(KeyringPurpose.VERIFY))
    (sct,) = certificate.extensions.get_extension_for_class(x509.PrecertificateSignedCertificateTimestamps).value
    assert sct.timestamp.replace(tzinfo=UTC) == TIME.replace(microsecond=765_000)


async def test_other_clients_prove_possession_by_a_challenge(authority: Authority) -> None:
    body = challenge(KEY)
    in_header = await authority.ca.issue(canonical.dumps(body), f"Bearer {authority.token()}")
    in_body = body | {"credentials": {"oidcIdentityToken": authority.token()}}
    for reply in (in_header, await authority.ca.issue(canonical.dumps(in_body), None)):
        assert leaf_certificate(reply).public_key() == KEY.public_key()


@pytest.mark.parametrize("signer", [key_signer("carol"), domain_signer("did.example", method="web")])
async def test_dids_of_other_methods_are_certified(authority: Authority, signer: Signer) -> None:
    authority.know(signer)
    certificate = leaf_certificate(await authority.ca.issue(csr_request(KEY), f"bearer {authority.token(signer)}"))
    san = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert san.get_values_for_type(x509.UniformResourceIdentifier) == [signer.did]


@pytest.mark.threat(90)
async def test_a_token_bound_to_the_key_is_good_for_that_key_alone(authority: Authority) -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    token = authority.token(bound_key=key_digest(KEY))
    assert await refused(authority, csr_request(other), f"Bearer {token}") == "token.invalid"
    assert await authority.ca.issue(csr_request(KEY), f"Bearer {token}")


@pytest.mark.threat(90)
async def test_a_token_is_good_once(authority: Authority) -> None:
    token = authority.token()
    await authority.ca.issue(csr_request(KEY), f"Bearer {token}")
    assert await refused(authority, csr_request(KEY), f"Bearer {token}") == "token.invalid"
    (until,) = authority.spent.values()
    assert until >= TIME + timedelta(seconds=300)  # remembered for as long as the token could be used again


async def test_nobody_uses_up_anothers_token(authority: Authority) -> None:
    authority.know(BOB)
    jti = "the-same-jti-for-both"
    await authority.ca.issue(csr_request(KEY), f"Bearer {authority.token(BOB, jti=jti)}")
    assert await authority.ca.issue(csr_request(KEY), f"Bearer {authority.token(jti=jti)}")


@pytest.mark.parametrize("seconds", [-330, 30])
async def test_a_little_clock_skew_is_borne(authority: Authority, seconds: int) -> None:
    assert await authority.ca.issue(csr_request(KEY), f"Bearer {authority.token(now=NOW + seconds + (seconds < 0))}")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"origin": "other.example"}, "token.invalid: another registry"),
        ({"now": NOW - 331}, "token.invalid: not valid now"),
        ({"now": NOW + 31}, "token.invalid: not valid now"),
        ({"now": 2**53 - 1_000}, "token.invalid: not valid now"),
        ({"bound_key": "ab" * 32}, "token.invalid: bound to"),
    ],
)
async def test_tokens_that_are_refused(authority: Authority, changes: dict[str, Any], code: str) -> None:
    assert rejection(await refusal(authority, csr_request(KEY), f"Bearer {authority.token(**changes)}"), code) == code


async def test_the_token_is_its_authors(authority: Authority) -> None:
    imposter = Signer(ALICE.did, ALICE.key_id, BOB.private_key)
    signer = Signer(ALICE.did, f"{ALICE.did}#key-0", ALICE.private_key)
    body = csr_request(KEY)
    forged, foreign = "token.invalid: signature", "token.invalid: not a key"
    assert rejection(await refusal(authority, body, f"Bearer {authority.token(imposter)}"), forged) == forged
    assert rejection(await refusal(authority, body, f"Bearer {authority.token(signer)}"), foreign) == foreign
    assert await refused(authority, body, f"Bearer {authority.token(BOB)}") == "identity.unknown"
    authority.identities[ALICE.did] = {f"{ALICE.did}#key-2": BOB.public_key}
    assert rejection(await refusal(authority, body, f"Bearer {authority.token()}"), foreign) == foreign


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer ", "Basic YTpi", "Bearer a.b", "Bearer é.é.é"])
async def test_there_must_be_a_token(authority: Authority, authorization: str | None) -> None:
    assert await refused(authority, csr_request(KEY), authorization) == "token.invalid"


async def test_there_must_be_one_token(authority: Authority) -> None:
    body = canonical.dumps(challenge(KEY) | {"credentials": {"oidcIdentityToken": authority.token()}})
    assert await refused(authority, body, f"Bearer {authority.token()}") == "token.invalid"


def csr_of_another_key() -> bytes:
    """KEY's own CSR with another key's public half in place of its own: its signature no longer proves anything."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    der = builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.DER)
    other = ec.generate_private_key(ec.SECP256R1()).public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    mine = KEY.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    assert mine in der
    return x509.load_der_x509_csr(der.replace(mine, other)).public_bytes(Encoding.PEM)


def csr_by(key: Any, algorithm: Any) -> bytes:
    return x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, algorithm).public_bytes(Encoding.PEM)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (csr_request(KEY, pem=csr_of_another_key()), "sigstore.proof"),
        (csr_request(KEY, pem=csr_by(KEY, hashes.SHA384())), "sigstore.proof"),
        (csr_request(KEY, pem=csr_by(ec.generate_private_key(ec.SECP384R1()), hashes.SHA256())), "http.request: P-256"),
        (csr_request(KEY, pem=csr_by(rsa.generate_private_key(65537, 2048), hashes.SHA256())), "http.request: P-256"),
        (csr_request(KEY, pem=csr_by(ed25519.Ed25519PrivateKey.generate(), None)), "http.request: P-256"),
        (csr_request(KEY, pem=b"not a CSR"), "http.request: certificate request"),
        (
            csr_request(KEY, pem=b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"),
            "http.request: certificate request",
        ),
        (canonical.dumps(challenge(KEY, subject=BOB.did)), "sigstore.proof"),
        (canonical.dumps(challenge(KEY, proofOfPossession="")), "sigstore.proof"),
        (canonical.dumps(challenge(KEY, proofOfPossession="?")), "canonical.text"),
        (
            canonical.dumps(challenge(KEY, publicKey={"algorithm": "ECDSA", "content": "x"})),
            "http.request: certificate request",
        ),
        (
            canonical.dumps(challenge(KEY, publicKey={"algorithm": "RSA_PSS", "content": PUBLIC_PEM.decode()})),
            "http.request: certificate request",
        ),
        (canonical.dumps(challenge(KEY) | json.loads(csr_request(KEY))), "http.request: certificate request"),
        (canonical.dumps(json.loads(csr_request(KEY)) | {"extra": 1}), "http.request: certificate request"),
        (b"{}", "http.request: certificate request"),
        (b"[]", "http.request: certificate request"),
        (b"", "canonical.json"),
        (b'{"certificateSigningRequest":"' + b"A" * 16_384 + b'"}', "canonical.too-large"),
        (csr_request(KEY, pem=b"A" * 9_000), "canonical.too-large"),
    ],
)
async def test_requests_that_are_refused(authority: Authority, body: bytes, code: str) -> None:
    assert rejection(await refusal(authority, body, f"Bearer {authority.token()}"), code) == code


async def test_nothing_is_returned_that_was_not_logged(authority: Authority) -> None:
    async def unwell(leaf: bytes) -> LoggedLeaf:
        raise Unavailable("log.unavailable", "The log takes no writes.")

    authority.ca.append = unwell
    with pytest.raises(Unavailable):
        await authority.ca.issue(csr_request(KEY), f"Bearer {authority.token()}")
    assert len(authority.log.leaves) == 1


async def test_an_identity_that_cannot_be_found_spends_nothing(authority: Authority) -> None:
    authority.identities.clear()
    token = authority.token()
    with pytest.raises(NotFound):
        await authority.ca.issue(csr_request(KEY), f"Bearer {token}")
    authority.know(ALICE)
    assert await authority.ca.issue(csr_request(KEY), f"Bearer {token}")
