"""Whatever comes in, the Sigstore parsers answer with a value or a refusal, and a value has one spelling."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from asn1crypto import core, tsp
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from hypothesis import example, given, settings
from hypothesis import strategies as st
from signers import NOW
from simulated_sigstore import ALICE, Authority, csr_request, make_authority

from treaty_client.protocols.attestation import Binding, Trust, verify_attestation
from treaty_consensus import canonical, sigstore_token
from treaty_consensus.errors import TreatyError, Untrusted
from treaty_consensus.sigstore_leaf import MAX_CERTIFICATE, MAX_SIGNATURE, CertificateLeaf, RekordLeaf, parse_sigstore_leaf

KEY = ec.generate_private_key(ec.SECP256R1())
some = st.binary(min_size=1, max_size=200)
certificate_leaves = st.builds(CertificateLeaf, st.binary(min_size=1, max_size=MAX_CERTIFICATE))
rekord_leaves = st.builds(RekordLeaf, st.binary(min_size=32, max_size=32), st.binary(min_size=1, max_size=MAX_SIGNATURE), some)
QUERY = tsp.TimeStampReq(
    {
        "version": "v1",
        "message_imprint": {"hash_algorithm": {"algorithm": "sha256"}, "hashed_message": bytes(32)},
        "nonce": 2**64 - 1,
        "cert_req": True,
    }
).dump()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"), now=datetime.fromtimestamp(NOW, UTC))


Damage = Callable[[bytes], bytes]


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    """Replaces a few bytes somewhere by others; what is drawn does not depend on what is damaged."""
    place, length, other = draw(st.integers(0, 2**16)), draw(st.integers(0, 8)), draw(st.binary(max_size=8))

    def damage(data: bytes) -> bytes:
        begin = place % (len(data) + 1)
        return data[:begin] + other + data[begin + length :]

    return damage


def spoilt(data: bytes) -> st.SearchStrategy[bytes]:
    return damages().map(lambda damage: damage(data))


@given(certificate_leaves | rekord_leaves)
def test_leaves_round_trip(leaf: CertificateLeaf | RekordLeaf) -> None:
    assert parse_sigstore_leaf(leaf.encode()) == leaf


@given(
    st.binary() | spoilt(CertificateLeaf(b"\x30" * 50).encode()) | spoilt(RekordLeaf(bytes(32), b"s" * 70, b"\x30" * 50).encode())
)
def test_a_leaf_has_one_spelling(data: bytes) -> None:
    try:
        leaf = parse_sigstore_leaf(data)
    except TreatyError:
        return
    assert leaf.encode() == data


GOOD_INPUT = sigstore_token.signing_input(ALICE.key_id, origin="registry.example", issued=NOW, jti="0" * 16, bound_key="ab" * 32)
GOOD_TOKEN = sigstore_token.seal(GOOD_INPUT, ALICE.sign(GOOD_INPUT))


@given(st.text() | spoilt(GOOD_TOKEN.encode()).map(lambda data: data.decode("latin-1")))
@example(GOOD_TOKEN)
def test_a_token_verifies_as_it_was_signed_or_not_at_all(text: str) -> None:
    try:
        token = sigstore_token.parse(text)
        sigstore_token.verify(token, {ALICE.key_id: ALICE.public_key})
    except TreatyError:
        return
    assert text == GOOD_TOKEN


@settings(deadline=None)
@given(st.binary(max_size=1100) | st.builds(lambda first, second: second(first(QUERY)), damages(), damages()))
@example(QUERY)
@example(b"0\x80" * 512)
def test_every_query_is_answered(authority: Authority, query: bytes) -> None:
    reply = authority.tsa.respond(query)
    status = tsp.PKIStatusInfo.load(core.Sequence.load(reply.der)[0].dump())["status"].native
    assert status == ("granted" if reply.granted else "rejection")


@settings(deadline=None)
@given(st.binary() | damages(), st.sampled_from(["body", "csr"]))
def test_certificate_requests_are_answered_or_refused(authority: Authority, damage: bytes | Damage, place: str) -> None:
    good = csr_request(KEY)
    if isinstance(damage, bytes):
        body = damage
    elif place == "body":
        body = damage(good)
    else:
        pem = canonical.b64decode(json.loads(good)["certificateSigningRequest"], limit=8192)
        body = csr_request(KEY, pem=damage(pem))
    before = len(authority.log.leaves)
    try:
        asyncio.run(authority.ca.issue(body, f"Bearer {authority.token()}"))
    except TreatyError:
        assert len(authority.log.leaves) == before
        return
    leaf = parse_sigstore_leaf(authority.log.leaves[-1])
    assert isinstance(leaf, CertificateLeaf)
    assert x509.load_der_x509_certificate(leaf.der).public_key() == KEY.public_key()


@settings(deadline=None)
@given(st.binary() | damages(), st.sampled_from(["body", "certificate", "signature"]))
def test_entries_are_logged_or_refused(authority: Authority, damage: bytes | Damage, place: str) -> None:
    certificate = asyncio.run(authority.certify(KEY))
    parts = {"certificate": certificate, "signature": KEY.sign(bytes(32), ec.ECDSA(utils.Prehashed(hashes.SHA256())))}
    if not isinstance(damage, bytes) and place in parts:
        parts[place] = damage(parts[place])
    verifier = {
        "keyDetails": "PKIX_ECDSA_P256_SHA_256",
        "x509Certificate": {"rawBytes": canonical.b64encode(parts["certificate"])},
    }
    signed = {"content": canonical.b64encode(parts["signature"]), "verifier": verifier}
    body = canonical.dumps({"hashedRekordRequestV002": {"digest": canonical.b64encode(bytes(32)), "signature": signed}})
    if isinstance(damage, bytes):
        body = damage
    elif place == "body":
        body = damage(body)
    before = len(authority.log.leaves)
    try:
        asyncio.run(authority.rekor.add(body))
    except TreatyError:
        assert len(authority.log.leaves) == before
        return
    leaf = parse_sigstore_leaf(authority.log.leaves[-1])
    assert isinstance(leaf, RekordLeaf) and leaf.certificate == certificate
    KEY.public_key().verify(leaf.signature, leaf.digest, ec.ECDSA(utils.Prehashed(hashes.SHA256())))


@settings(deadline=None)
@given(st.binary() | spoilt((Path(__file__).parent.parent / "vectors" / "sigstore" / "attestation.json").read_bytes()))
def test_a_bundle_is_untrusted_or_verifies(bundle: bytes) -> None:
    vectors = Path(__file__).parent.parent / "vectors" / "sigstore"
    trust = [Trust.registry((vectors / "trusted_root.json").read_bytes(), origin="registry.example", publisher=ALICE.did)]
    binding = Binding(**json.loads((vectors / "binding.json").read_bytes()))
    try:
        verified = verify_attestation(bundle, binding, publisher=ALICE.did, trust=trust)
    except Untrusted:
        return
    assert verified.signer.identity == ALICE.did
