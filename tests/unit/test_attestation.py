"""Attestations: made through the registry's services, verified under the roots and identities that a policy names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from depth import FULL
from signers import ORIGIN, Signer, domain_signer
from sigstore.dsse import Statement
from sigstore.errors import VerificationError
from sigstore.models import Bundle, ClientTrustConfig
from sigstore.oidc import IdentityToken
from sigstore.sign import SigningContext
from simulated_sigstore import ALICE, Authority, make_authority, serving

from treaty_client.policy import load_policy
from treaty_client.protocols import attestation
from treaty_client.protocols.attestation import Binding, SigningIdentity, Trust, attest, verify_attestation
from treaty_consensus import canonical
from treaty_consensus.errors import Unavailable, Untrusted
from treaty_consensus.kinds import MAX_BUNDLE
from treaty_consensus.sigstore_leaf import CertificateLeaf, RekordLeaf, parse_sigstore_leaf
from treaty_registry.sigstore_authority import trust as trust_documents

ISSUER = f"https://{ORIGIN}/sigstore"
BOB = domain_signer("bob.example")
FILENAME = "treaty_handler_product_info-1.0-py3-none-any.whl"
BINDING = Binding(
    wheel=sha256(b"a wheel").hexdigest(),
    uri=f"https://{ORIGIN}/protocols/alice.example/product-info/1.0",
    protocol_hash=sha256(b"a document").hexdigest(),
    entry_point="treaty_handler_product_info:handler",
)
VECTORS = Path(__file__).parents[1] / "vectors" / "sigstore-public-good"


@dataclass(frozen=True)
class Service:
    """A running authority, where it is reached, and an attestation of `BINDING` by `ALICE` that it helped to make."""

    authority: Authority
    config: bytes
    bundle: bytes

    @property
    def trust(self) -> list[Trust]:
        return [Trust.registry(self.authority.trusted_root, origin=ORIGIN, publisher=ALICE.did)]

    def attest(self, signer: Signer = ALICE, binding: Binding = BINDING) -> bytes:
        return attest(binding, FILENAME, trust_config=self.config, token=bound_token(self.authority, signer))

    def sign(self, payload: bytes) -> bytes:
        """A bundle around any payload that sigstore will sign."""
        with SigningContext.from_trust_config(ClientTrustConfig.from_json(self.config.decode())).signer(
            IdentityToken(self.authority.token())
        ) as signer:
            return signer.sign_dsse(Statement(payload)).to_json().encode()


def bound_token(authority: Authority, signer: Signer) -> Callable[[str], str]:
    return lambda digest: authority.token(signer, bound_key=digest)


def config_of(authority: Authority, base_url: str) -> bytes:
    return trust_documents.trust_config(authority.trusted_root, origin=ORIGIN, base_url=base_url)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    authority = make_authority(tmp_path_factory.mktemp("authority"))
    authority.know(BOB)
    with serving(authority) as base_url:
        config = config_of(authority, base_url)
        bundle = attest(BINDING, FILENAME, trust_config=config, token=bound_token(authority, ALICE))
        yield Service(authority, config, bundle)


def refused(bundle: bytes, service: Service, **changes: Any) -> str:
    arguments: dict[str, Any] = {"publisher": ALICE.did, "trust": service.trust}
    with pytest.raises(Untrusted) as error:
        verify_attestation(bundle, BINDING, **(arguments | changes))
    return error.value.code


def statement(**changes: Any) -> bytes:
    return canonical.dumps(json.loads(attestation.encode_statement(BINDING, FILENAME)) | changes)


def test_what_is_attested_verifies(service: Service) -> None:
    verified = verify_attestation(service.bundle, BINDING, publisher=ALICE.did, trust=service.trust)
    assert verified == attestation.Attestation(SigningIdentity(ALICE.did, ISSUER), FILENAME)
    assert len(service.bundle) < MAX_BUNDLE // 4


def test_the_token_was_bound_and_both_leaves_are_logged(service: Service) -> None:
    seen = []

    def token(digest: str) -> str:
        seen.append(digest)
        return service.authority.token(bound_key=digest)

    before = len(service.authority.log.leaves)
    bundle = Bundle.from_json(attest(BINDING, FILENAME, trust_config=service.config, token=token))
    certificate, rekord = map(parse_sigstore_leaf, service.authority.log.leaves[before:])
    assert isinstance(certificate, CertificateLeaf) and isinstance(rekord, RekordLeaf)
    assert rekord.certificate == certificate.der
    assert x509.load_der_x509_certificate(certificate.der) == bundle.signing_certificate
    spki = bundle.signing_certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert seen == [canonical.hex_digest(spki)]


def test_a_refused_token_is_told(service: Service) -> None:
    before = service.authority.state
    with pytest.raises(Unavailable) as error:
        attest(BINDING, FILENAME, trust_config=service.config, token=lambda _: service.authority.token(bound_key="ab" * 32))
    assert error.value.code == "attestation.not-signed"
    assert "token.invalid" in str(error.value)
    assert service.authority.state == before


def test_a_service_that_is_away_is_told(service: Service) -> None:
    with pytest.raises(Unavailable):
        attest(
            BINDING,
            FILENAME,
            trust_config=config_of(service.authority, "http://127.0.0.1:9"),
            token=bound_token(service.authority, ALICE),
        )


def test_an_attestation_outlives_its_keys() -> None:
    """The vector's certificate lived for ten minutes of 2026-01-01, and nobody has the authority's keys any more."""
    vectors = Path(__file__).parent.parent / "vectors" / "sigstore"
    binding = Binding(**json.loads((vectors / "binding.json").read_bytes()))
    root = (vectors / "trusted_root.json").read_bytes()
    trust = [Trust.registry(root, origin=ORIGIN, publisher=ALICE.did)]
    bundle = (vectors / "attestation.json").read_bytes()
    assert verify_attestation(bundle, binding, publisher=ALICE.did, trust=trust).filename == FILENAME
    assert canonical.dumps(json.loads(root)) == root


@pytest.mark.parametrize("field", ["wheel", "uri", "protocol_hash", "entry_point"])
def test_it_binds_each_part(service: Service, field: str) -> None:
    other = replace(BINDING, **{field: "x"})
    with pytest.raises(Untrusted) as error:
        verify_attestation(service.bundle, other, publisher=ALICE.did, trust=service.trust)
    assert error.value.code == "attestation.signature"
    assert field.replace("_", " ") in str(error.value)


def test_a_did_is_the_publishers_whatever_the_policy_accepts(service: Service) -> None:
    bundle = service.attest(BOB)
    bob = SigningIdentity(BOB.did, ISSUER)
    trust = [Trust(service.authority.trusted_root, (bob,))]
    assert verify_attestation(bundle, BINDING, publisher=BOB.did, trust=trust).signer == bob
    assert refused(bundle, service) == "attestation.identity"
    assert refused(bundle, service, trust=trust) == "attestation.identity"


def test_an_identity_counts_with_its_issuer(service: Service) -> None:
    elsewhere = Trust(service.authority.trusted_root, (SigningIdentity(ALICE.did, "https://other.example"),))
    assert refused(service.bundle, service, trust=[elsewhere]) == "attestation.identity"
    assert refused(service.bundle, service, trust=[Trust(service.authority.trusted_root, ())]) == "attestation.identity"


def test_an_identity_counts_under_its_own_root_alone(service: Service, tmp_path: Path) -> None:
    """Another registry can certify any name, this one's DIDs and issuer included; so names are accepted per root."""
    other = make_authority(tmp_path)
    with serving(other) as base_url:
        forged = attest(BINDING, FILENAME, trust_config=config_of(other, base_url), token=bound_token(other, ALICE))
    assert refused(forged, service) == "attestation.signature"
    nobody = Trust(other.trusted_root, ())
    assert refused(forged, service, trust=[*service.trust, nobody]) == "attestation.identity"
    assert refused(forged, service, trust=[nobody, *service.trust]) == "attestation.identity"


def test_the_root_that_knows_it_is_found_among_several(service: Service) -> None:
    github = SigningIdentity(
        "https://github.com/example/handler/.github/workflows/release.yml@refs/tags/v1", "https://token.example"
    )
    trust = [Trust.public_good([github]), *service.trust]
    assert verify_attestation(service.bundle, BINDING, publisher=ALICE.did, trust=trust).signer.identity == ALICE.did
    assert refused(service.bundle, service, trust=[Trust.public_good([github])]) == "attestation.signature"


def test_a_policy_names_the_root_of_another_instance(service: Service, tmp_path: Path) -> None:
    """The identities of each root count under that root alone."""
    (tmp_path / "own.json").write_bytes(service.config)
    signer = f"[[signers]]\nidentity = {ALICE.did!r}\nissuer = {ISSUER!r}\n"
    roots = {}
    for name, line in (("own", "trust_config = 'own.json'\n"), ("public", "")):
        (tmp_path / f"{name}.toml").write_text(signer + line)
        ((root, signers),) = load_policy(tmp_path / f"{name}.toml").signers_by_root.items()
        accepted = tuple(SigningIdentity(*signer) for signer in signers)
        roots[name] = Trust(root, accepted) if root else Trust.public_good(accepted)
    signed = verify_attestation(service.bundle, BINDING, publisher=ALICE.did, trust=[roots["own"]])
    assert signed.signer == SigningIdentity(ALICE.did, ISSUER)
    assert refused(service.bundle, service, trust=[roots["public"]]) == "attestation.signature"


def test_without_a_root_nothing_is_trusted(service: Service) -> None:
    assert refused(service.bundle, service, trust=[]) == "attestation.signature"
    assert refused(service.bundle, service, trust=[Trust(b"{}", ())]) == "trusted-root.digest"


def as_version_2(bundle: dict[str, Any]) -> None:
    """An older format that sigstore still reads: a certificate chain in place of the certificate."""
    material = bundle["verificationMaterial"]
    material["x509CertificateChain"] = {"certificates": [material.pop("certificate")]}
    bundle["mediaType"] = "application/vnd.dev.sigstore.bundle+json;version=0.2"


@pytest.mark.parametrize(
    "change",
    [
        as_version_2,
        lambda b: b.update(mediaType="application/vnd.dev.sigstore.bundle+json;version=0.2"),
        lambda b: b.update(mediaType=3),
        lambda b: b.pop("dsseEnvelope"),
        lambda b: b["dsseEnvelope"].update(payloadType="application/json"),
        lambda b: b["dsseEnvelope"].update(signatures=[]),
        lambda b: b["dsseEnvelope"].update(signatures=b["dsseEnvelope"]["signatures"] * 2),
        lambda b: b["dsseEnvelope"].update(payload=7),
        lambda b: b["verificationMaterial"].pop("certificate"),
        lambda b: b["verificationMaterial"].update(certificate={"rawBytes": "AAAA"}),
        lambda b: b["verificationMaterial"].update(tlogEntries=[]),
        lambda b: b["verificationMaterial"].update(tlogEntries=b["verificationMaterial"]["tlogEntries"] * 2),
        lambda b: b["verificationMaterial"].pop("timestampVerificationData"),
        lambda b: b["verificationMaterial"]["tlogEntries"][0]["inclusionProof"].pop("checkpoint"),
        lambda b: b.update(extra=1),
    ],
)
def test_what_is_not_such_a_bundle_is_refused(service: Service, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(service.bundle)
    change(value)
    assert refused(json.dumps(value).encode(), service) == "attestation.signature"


@pytest.mark.parametrize("bundle", [b"", b"null", b"[]", b"{}", b'{"a":1,"a":1}', b"[" * 10_000, b" " * (MAX_BUNDLE + 1)])
def test_junk_is_refused(service: Service, bundle: bytes) -> None:
    assert refused(bundle, service) == "attestation.signature"


def test_the_cap_comes_first(service: Service) -> None:
    assert refused(service.bundle + b" " * MAX_BUNDLE, service) == "attestation.signature"
    assert verify_attestation(service.bundle + b" " * 100, BINDING, publisher=ALICE.did, trust=service.trust)


def test_what_states_something_else_is_refused(service: Service) -> None:
    subject = json.loads(statement())["subject"]
    for payload in (
        statement(predicateType="https://slsa.dev/provenance/v1"),
        statement(subject=subject * 2),
        statement(subject=[subject[0] | {"digest": {"sha256": BINDING.wheel, "sha512": "00"}}]),
        statement(predicate={}),
        statement(extra=1),
        statement(subject=[subject[0] | {"name": "x" * 9_000}]),
        statement().replace(b'"predicate":', b'"predicate":{},"predicate":'),
    ):
        assert refused(service.sign(payload), service) == "attestation.signature"


def test_the_statement_need_not_be_canonical(service: Service) -> None:
    bundle = service.sign(json.dumps(json.loads(statement()), indent=2).encode())
    assert verify_attestation(bundle, BINDING, publisher=ALICE.did, trust=service.trust)


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore")  # of certificates with a flipped serial number or name
def test_every_flipped_character_is_noticed_or_says_the_same(service: Service) -> None:
    """Some characters say nothing: the loose bits of base64, fields that sigstore ignores. Nothing else may pass."""
    passed = 0
    # Seven and the four characters of base64 have no common divisor, so the sample has each place of a group.
    positions = range(0, len(service.bundle), 1 if FULL else 7)
    for position in positions:
        flipped = bytearray(service.bundle)
        flipped[position] ^= 1
        try:
            verified = verify_attestation(bytes(flipped), BINDING, publisher=ALICE.did, trust=service.trust)
        except Untrusted:
            continue
        passed += 1
        assert verified.signer == SigningIdentity(ALICE.did, ISSUER)
        original, changed = Bundle.from_json(service.bundle), Bundle.from_json(bytes(flipped))
        assert json.loads(changed.to_json())["dsseEnvelope"] == json.loads(original.to_json())["dsseEnvelope"]
        assert changed.signing_certificate == original.signing_certificate
    assert passed < len(positions) // 20


@pytest.mark.parametrize("part", ["certificate", "signature", "payload", "checkpoint", "body", "timestamp", "hash"])
def test_each_part_is_checked(service: Service, part: str) -> None:
    """A part of another good attestation by the same signer does not fit into this one."""
    ours, theirs = json.loads(service.bundle), json.loads(service.attest())
    material, other = ours["verificationMaterial"], theirs["verificationMaterial"]
    entry, other_entry = material["tlogEntries"][0], other["tlogEntries"][0]
    match part:
        case "certificate":
            material["certificate"] = other["certificate"]
        case "signature":
            ours["dsseEnvelope"]["signatures"] = theirs["dsseEnvelope"]["signatures"]
        case "payload":
            ours["dsseEnvelope"]["payload"] = canonical.b64encode(statement(subject=[]))
        case "checkpoint":
            entry["inclusionProof"]["checkpoint"] = other_entry["inclusionProof"]["checkpoint"]
        case "body":
            material["tlogEntries"] = other["tlogEntries"]
        case "timestamp":
            material["timestampVerificationData"] = other["timestampVerificationData"]
        case "hash":
            entry["inclusionProof"]["hashes"][0] = canonical.b64encode(bytes(32))
    assert refused(json.dumps(ours).encode(), service) == "attestation.signature"


GITHUB = SigningIdentity(
    "https://github.com/trailofbits/rfc8785.py/.github/workflows/release.yml@refs/tags/v0.1.2",
    "https://token.actions.githubusercontent.com",
)


def test_a_public_good_bundle_verifies_under_the_shipped_root() -> None:
    """It signs a file, not a statement of ours, so this enters below `verify_attestation`: the root and the identity policy."""
    artifact = (VECTORS / "bundle_v3_github.whl").read_bytes()
    bundle = Bundle.from_json((VECTORS / "bundle_v3_github.whl.sigstore").read_bytes())
    verifier = attestation.make_verifier(Trust.public_good([GITHUB]).root)
    accepted = attestation.AcceptedIdentity([SigningIdentity("nobody", GITHUB.issuer), GITHUB])
    verifier.verify_artifact(artifact, bundle, accepted)
    assert accepted.matched == GITHUB
    with pytest.raises(VerificationError):
        verifier.verify_artifact(artifact + b"!", bundle, accepted)
    for other in (
        SigningIdentity(GITHUB.identity, "https://other.example"),
        SigningIdentity("did:wba:alice.example", GITHUB.issuer),
    ):
        with pytest.raises(attestation.IdentityRefused):
            verifier.verify_artifact(artifact, bundle, attestation.AcceptedIdentity([other]))


def test_a_staging_bundle_is_no_public_good_one() -> None:
    artifact = (VECTORS / "bundle_v3.txt").read_bytes()
    bundle = Bundle.from_json((VECTORS / "bundle_v3.txt.sigstore").read_bytes())
    staging = resources.files("sigstore._store").joinpath("https%3A%2F%2Ftuf-repo-cdn.sigstage.dev", "trusted_root.json")
    signer = SigningIdentity("william@yossarian.net", "https://github.com/login/oauth")
    accepted = attestation.AcceptedIdentity([signer])
    attestation.make_verifier(staging.read_bytes()).verify_artifact(artifact, bundle, accepted)
    assert accepted.matched == signer
    with pytest.raises(VerificationError):
        attestation.make_verifier(Trust.public_good([signer]).root).verify_artifact(artifact, bundle, accepted)


def test_a_signature_over_a_file_is_no_attestation(service: Service) -> None:
    bundle = (VECTORS / "bundle_v3.txt.sigstore").read_bytes()
    assert refused(bundle, service, trust=[Trust.public_good([GITHUB])]) == "attestation.signature"
