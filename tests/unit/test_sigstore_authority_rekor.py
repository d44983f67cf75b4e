"""Rekor v2 entries: only signatures by certificates of this authority, and a refusal logs nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from signers import NOW, ORIGIN
from sigstore._internal.merkle import verify_merkle_inclusion
from sigstore._internal.rekor.checkpoint import verify_checkpoint
from sigstore._internal.trust import KeyringPurpose
from sigstore.models import ClientTrustConfig, TransparencyLogEntry
from sigstore_models.rekor.v1 import TransparencyLogEntry as EntryMessage
from simulated_sigstore import Authority, make_authority

from treaty_consensus import canonical
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_consensus.sigstore_leaf import RekordLeaf, parse_sigstore_leaf
from treaty_registry.sigstore_authority import trust
from treaty_registry.sigstore_authority.ports import LoggedLeaf

TIME = datetime.fromtimestamp(NOW, UTC)
KEY = ec.generate_private_key(ec.SECP256R1())
DIGEST = sha256(b"a handler").digest()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return make_authority(tmp_path, now=TIME)


def signature(key: ec.EllipticCurvePrivateKey = KEY, digest: bytes = DIGEST) -> bytes:
    return key.sign(digest, ec.ECDSA(utils.Prehashed(hashes.SHA256())))


def request(certificate: bytes, *, content: bytes | None = None, digest: bytes = DIGEST) -> dict[str, Any]:
    verifier = {"keyDetails": "PKIX_ECDSA_P256_SHA_256", "x509Certificate": {"rawBytes": canonical.b64encode(certificate)}}
    signed = {"content": canonical.b64encode(signature() if content is None else content), "verifier": verifier}
    return {"hashedRekordRequestV002": {"digest": canonical.b64encode(digest), "signature": signed}}


async def refused(authority: Authority, body: bytes) -> str:
    """The code with which an entry is refused; nothing may have been logged."""
    before = authority.state
    with pytest.raises(TreatyError) as error:
        await authority.rekor.add(body)
    assert authority.state == before
    return error.value.code


async def test_the_entry_proves_itself_to_the_stock_client(authority: Authority) -> None:
    certificate = await authority.certify(KEY)
    for _ in range(5):  # trees of several shapes
        reply = await authority.rekor.add(canonical.dumps(request(certificate)))
        entry = TransparencyLogEntry(EntryMessage.from_json(reply))
        verify_merkle_inclusion(entry)
        config = trust.trust_config(authority.trusted_root, origin=ORIGIN, base_url="http://localhost")
        keyring = ClientTrustConfig.from_json(config.decode()).trusted_root.rekor_keyring(KeyringPurpose.VERIFY)
        verify_checkpoint(keyring, entry)
        logged = json.loads(reply)
        assert base64.b64decode(logged["canonicalizedBody"]) == authority.log.leaves[-1]
        assert int(logged["logIndex"]) == len(authority.log.leaves) - 1


async def test_the_checkpoint_may_carry_more_signatures(authority: Authority) -> None:
    reply = json.loads(await authority.rekor.add(canonical.dumps(request(await authority.certify(KEY)))))
    lines = reply["inclusionProof"]["checkpoint"]["envelope"].partition("\n\n")[2].splitlines()
    assert [line.split()[1] for line in lines] == [ORIGIN, ORIGIN]  # the log's, and its clock's cosignature


async def test_the_leaf_is_what_was_signed(authority: Authority) -> None:
    certificate = await authority.certify(KEY)
    content = signature()
    reply = json.loads(await authority.rekor.add(canonical.dumps(request(certificate, content=content))))
    assert parse_sigstore_leaf(authority.log.leaves[2]) == RekordLeaf(DIGEST, content, certificate)
    assert reply["logIndex"] == reply["inclusionProof"]["logIndex"] == "2"
    assert reply["kindVersion"] == {"kind": "hashedrekord", "version": "0.0.2"}
    assert canonical.b64decode(reply["canonicalizedBody"], limit=8192) == authority.log.leaves[2]


async def test_a_foreign_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    foreign = make_authority(tmp_path / "foreign", now=TIME)
    certificate = await foreign.certify(KEY)
    assert await refused(authority, canonical.dumps(request(certificate))) == "sigstore.proof"


async def test_a_certificate_that_says_it_is_ours_is_refused(authority: Authority) -> None:
    """Everything copied from a good certificate, signed by a key of the attacker's."""
    good = x509.load_der_x509_certificate(await authority.certify(KEY))
    builder = (
        x509.CertificateBuilder()
        .subject_name(good.subject)
        .issuer_name(good.issuer)
        .public_key(KEY.public_key())
        .serial_number(good.serial_number)
        .not_valid_before(good.not_valid_before_utc)
        .not_valid_after(good.not_valid_after_utc)
    )
    for extension in good.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    forged = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    body = canonical.dumps(request(forged.public_bytes(Encoding.DER)))
    assert await refused(authority, body) == "sigstore.proof"


async def test_the_authoritys_own_certificates_sign_nothing(authority: Authority) -> None:
    for certificate, key in (
        (authority.keys.ca_certificate, authority.keys.ca_key),
        (authority.keys.tsa_chain[0], authority.keys.tsa_key),
    ):
        body = canonical.dumps(request(certificate.public_bytes(Encoding.DER), content=signature(key)))
        assert await refused(authority, body) == "sigstore.proof"


async def test_a_certificate_for_another_purpose_signs_nothing(authority: Authority) -> None:
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(authority.keys.ca_certificate.subject)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(TIME)
        .not_valid_after(TIME + timedelta(minutes=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority.keys.ca_key, hashes.SHA256())
    )
    body = canonical.dumps(request(certificate.public_bytes(Encoding.DER)))
    assert await refused(authority, body) == "sigstore.proof"


@pytest.mark.parametrize("later", [timedelta(seconds=-31), timedelta(minutes=10)])
async def test_a_certificate_out_of_its_time_is_refused(authority: Authority, later: timedelta) -> None:
    certificate = await authority.certify(KEY)
    authority.now = TIME + later
    assert await refused(authority, canonical.dumps(request(certificate))) == "sigstore.proof"


async def test_a_signature_of_another_key_or_content_is_refused(authority: Authority) -> None:
    certificate = await authority.certify(KEY)
    other = ec.generate_private_key(ec.SECP256R1())
    for body in (
        request(certificate, content=signature(other)),
        request(certificate, digest=bytes(32)),
        request(certificate, content=b"\x30\x00"),
    ):
        assert await refused(authority, canonical.dumps(body)) == "sigstore.proof"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda body: body.update(dsseRequestV002={}), "http.request"),
        (lambda body: body["hashedRekordRequestV002"].update(extra=1), "http.request"),
        (lambda body: body["hashedRekordRequestV002"].update(digest="AAAA"), "http.request"),
        (lambda body: body["hashedRekordRequestV002"].update(digest=canonical.b64encode(bytes(64))), "canonical.too-large"),
        (lambda body: body["hashedRekordRequestV002"]["signature"].update(content=""), "http.request"),
        (lambda body: body["hashedRekordRequestV002"]["signature"].update(content="A"), "canonical.text"),
        (
            lambda body: body["hashedRekordRequestV002"]["signature"]["verifier"].update(keyDetails="PKIX_ED25519"),
            "http.request",
        ),
        (
            lambda body: body["hashedRekordRequestV002"]["signature"]["verifier"].update(publicKey={"rawBytes": ""}),
            "http.request",
        ),
        (
            lambda body: body["hashedRekordRequestV002"]["signature"]["verifier"].update(x509Certificate={"rawBytes": "AAAA"}),
            "http.request",
        ),
        (lambda body: body.pop("hashedRekordRequestV002"), "http.request"),
    ],
)
async def test_requests_that_are_refused(authority: Authority, change: Callable[[dict[str, Any]], object], code: str) -> None:
    body = request(await authority.certify(KEY))
    change(body)
    assert await refused(authority, canonical.dumps(body)) == code


async def test_an_oversized_request_is_refused(authority: Authority) -> None:
    body = json.dumps(request(await authority.certify(KEY))).encode()
    assert await refused(authority, body + b" " * 16_384) == "canonical.too-large"


async def test_nothing_is_returned_that_was_not_logged(authority: Authority) -> None:
    async def unwell(leaf: bytes) -> LoggedLeaf:
        raise Unavailable("log.unavailable", "The log takes no writes.")

    body = canonical.dumps(request(await authority.certify(KEY)))
    authority.rekor.append = unwell
    assert await refused(authority, body) == "log.unavailable"
