"""The rotation of the Sigstore authority: its rule, the trusted root with it, and certificates of a retired authority."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from admission_log import OPERATOR, Log
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from signers import NOW, ORIGIN, signed
from simulated_sigstore import ALICE, serving
from simulated_sigstore import Authority as Services

from treaty_client.protocols.attestation import Binding, Trust, attest, verify_attestation
from treaty_consensus import canonical, facts, kinds, statement
from treaty_consensus.authority import CA, Authority, extensions_of, name_of
from treaty_consensus.errors import TreatyError, Untrusted
from treaty_consensus.log.checkpoint import KeyTerm, LogKeys
from treaty_consensus.log.note import KeyType, SignerKey, sign
from treaty_consensus.log_keys import MAX_AUTHORITIES, keys_in
from treaty_consensus.rotation import Rotation, rotation_text, signers_of_rotation
from treaty_consensus.trusted_root import MAX_TRUSTED_ROOT, with_rotations, without_rotations
from treaty_registry.sigstore_authority.certificates import issue
from treaty_registry.sigstore_authority.keys import AuthorityKeys, create_keys
from treaty_registry.sigstore_authority.trust import trust_config, trusted_root

UNTIL = NOW + 3600
BINDING = Binding("1" * 64, f"https://{ORIGIN}/protocols/alice.example/echo/1.0", "2" * 64, "treaty_handler_echo:handler")
FILENAME = "treaty_handler_echo-1.0-py3-none-any.whl"
KEYS = (SignerKey(ORIGIN, KeyType.ED25519, bytes([1]) * 32), SignerKey(f"{ORIGIN}/clock", KeyType.COSIGNATURE, bytes([2]) * 32))
FIRST = KeyTerm(KEYS[0].verifier, KEYS[1].verifier)


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def made(folder: Path, name: str, origin: str = ORIGIN, now: int = NOW) -> AuthorityKeys:
    return create_keys(folder / name, origin=origin, now=at(now))


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> AuthorityKeys:
    return made(tmp_path_factory.mktemp("next"), "authority")


@pytest.fixture
def log() -> Log:
    log = Log()
    log.add(kinds.Genesis(ORIGIN, str(FIRST.log), str(FIRST.clock), OPERATOR.did, "ab" * 32), OPERATOR)
    return log


def rotation(keys: AuthorityKeys, *, until: int = UNTIL, signers: tuple[SignerKey, ...] = KEYS[:1]) -> Rotation:
    assert FIRST.clock
    text = rotation_text(FIRST, FIRST.log, FIRST.clock, until, keys.named())
    return Rotation(str(FIRST.log), str(FIRST.clock), until, sign(text, signers, time=NOW).decode(), keys.named(text))


def changed(body: Rotation, **parts: object) -> Rotation:
    """With another authority, for which the log's key has signed too."""
    assert body.authority and FIRST.clock
    authority = msgspec.structs.replace(body.authority, **parts)
    text = rotation_text(FIRST, FIRST.log, FIRST.clock, body.until, authority)
    return msgspec.structs.replace(body, authority=authority, proof=sign(text, KEYS[:1], time=NOW).decode())


@pytest.mark.threat(319)
def test_the_log_names_the_next_authority(log: Log, following: AuthorityKeys) -> None:
    body = rotation(following)
    record = log.add(body, OPERATOR)
    assert statement.parse(record.leaf).body == body and len(record.leaf) < 6_000
    newest = keys_in(log.facts).newest
    assert (newest.log, newest.clock, newest.since, newest.until) == (FIRST.log, FIRST.clock, 2, UNTIL)
    assert newest.authority == body.authority
    assert facts.decode(facts.encode(log.facts[facts.KEYS])) == log.facts[facts.KEYS]
    assert log.refuses(rotation(following, until=UNTIL + 1), OPERATOR, issued=UNTIL) == "rotation.keys", "no second time"
    assert signers_of_rotation(FIRST, FIRST.log, KEYS[1].verifier, body.authority) == [FIRST.log]


@pytest.mark.threat(319)
def test_the_operator_and_every_new_key_agree(log: Log, following: AuthorityKeys, tmp_path: Path) -> None:
    body, other = rotation(following), made(tmp_path, "other")
    assert body.authority
    stranger = SignerKey(ORIGIN, KeyType.ED25519, bytes([9]) * 32)
    assert log.refuses(rotation(following, signers=(stranger,)), OPERATOR) == "rotation.proof"
    assert log.refuses(msgspec.structs.replace(body, until=UNTIL + 1), OPERATOR) == "rotation.proof"
    assert log.refuses(msgspec.structs.replace(body, authority=None), OPERATOR) == "rotation.keys"
    ca, ct, tsa = body.authority.proofs
    for proofs in ((ct, ct, tsa), (ca, ca, tsa), (ca, ct, ca)):
        assert log.refuses(changed(body, proofs=proofs), OPERATOR) == "rotation.proof"
    # A part of another authority, whose key did not sign.
    theirs = other.named()
    for parts in ({"ca": theirs.ca}, {"ct_key": theirs.ct_key}, {"tsa": theirs.tsa}):
        assert log.refuses(changed(body, **parts), OPERATOR) == "rotation.proof"


def _public_good() -> str:
    root = json.loads(Trust.public_good([]).root)
    return str(root["certificateAuthorities"][-1]["certChain"]["certificates"][-1]["rawBytes"])


@pytest.mark.threat(322)
def test_no_other_authority_is_let_in(log: Log, following: AuthorityKeys, tmp_path: Path) -> None:
    body = rotation(following)
    assert body.authority
    assert log.refuses(changed(body, ca=_public_good()), OPERATOR) == "rotation.keys"
    assert log.refuses(rotation(made(tmp_path, "elsewhere", "other.example")), OPERATOR) == "rotation.keys"
    leaf, root = body.authority.tsa
    for parts in (
        {"ca": leaf},  # a certificate of the timestamp authority signs nothing
        {"ca": root},
        {"tsa": (leaf, leaf)},
        {"tsa": (root, root)},
        {"tsa": (body.authority.ca, root)},
        {"ca": "AAAA"},
    ):
        assert log.refuses(changed(body, **parts), OPERATOR) == "rotation.keys", parts
    one_key = replace(following, ct_key=following.ca_key)
    assert log.refuses(rotation(one_key), OPERATOR) == "rotation.keys"
    p384 = replace(following, ct_key=ec.generate_private_key(ec.SECP384R1()))
    assert log.refuses(rotation(p384), OPERATOR) in ("rotation.keys", "canonical.too-large")
    # The right names and keys, and other rights: one that certifies nothing, and one that makes further authorities.
    for extensions in (
        extensions_of(following.ca_key.public_key(), following.ca_key.public_key(), is_ca=False),
        [(x509.BasicConstraints(ca=True, path_length=None), True)],
    ):
        builder = x509.CertificateBuilder().subject_name(name_of(ORIGIN, CA)).issuer_name(name_of(ORIGIN, CA))
        builder = builder.public_key(following.ca_key.public_key()).serial_number(1)
        builder = builder.not_valid_before(at(NOW)).not_valid_after(at(NOW + 90_000))
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        changed_ca = replace(following, ca_certificate=builder.sign(following.ca_key, hashes.SHA256()))
        assert log.refuses(rotation(changed_ca), OPERATOR) == "rotation.keys"
    # Its certificates begin after the rotation, or end before the overlap does.
    assert log.refuses(rotation(made(tmp_path, "later", now=NOW + 7200)), OPERATOR) == "rotation.keys"
    ten_years = int(timedelta(days=3650).total_seconds())
    assert log.refuses(rotation(made(tmp_path, "old", now=NOW - ten_years + 4000)), OPERATOR) == "rotation.keys"


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"ca": "A" * 1369}, "canonical.too-large"),
        ({"ct_key": "A" * 173}, "canonical.too-large"),
        ({"ca": "AAB="}, "canonical.text"),
        ({"ca": "AA AA"}, "canonical.text"),
        ({"proofs": ("A" * 100,) * 3}, "canonical.too-large"),
        ({"proofs": ("AAAA",) * 2}, "statement.form"),
    ],
)
def test_parts_are_bounded_and_have_one_spelling(following: AuthorityKeys, parts: dict[str, object], code: str) -> None:
    with pytest.raises(TreatyError) as refused:
        statement.parse(signed(changed(rotation(following), **parts), OPERATOR).leaf)
    assert refused.value.code == code


def test_authorities_are_bounded(log: Log, following: AuthorityKeys) -> None:
    body = rotation(following)
    other = Authority("AAAA", "BBBB", ("CCCC", "DDDD"), ("A", "A", "A"))
    terms = [
        facts.Keys(str(FIRST.log), str(FIRST.clock), index, 0, other if index else None) for index in range(MAX_AUTHORITIES + 1)
    ]
    log.facts[facts.KEYS] = facts.KeysFact(tuple(terms))
    assert log.refuses(body, OPERATOR) == "rotation.keys"


def test_the_trusted_root_has_every_authority(tmp_path: Path) -> None:
    root = trusted_root(made(tmp_path, "first"), origin=ORIGIN, log_key=FIRST.log.public)
    largest = made(tmp_path, "largest", "registry.example" * 16).named()
    terms = [replace(FIRST, since=index, until=NOW + index, authority=largest if index else None) for index in range(17)]
    log_keys = [SignerKey(ORIGIN, KeyType.ED25519, bytes([index]) * 32).verifier for index in range(100, 164)]
    terms += [replace(FIRST, since=100 + index, log=key) for index, key in enumerate(log_keys)]
    derived = with_rotations(root, LogKeys(tuple(terms)))
    assert without_rotations(derived) == root and len(derived) < MAX_TRUSTED_ROOT
    value = json.loads(derived)
    ends = [each["validFor"].get("end") for each in value["certificateAuthorities"]]
    assert ends == [each["validFor"].get("end") for each in value["timestampAuthorities"]]
    assert ends == [each["publicKey"]["validFor"].get("end") for each in value["ctlogs"]]
    assert len(ends) == 17 and ends[-1] is None and ends[0] == f"{at(NOW + 2):%Y-%m-%dT%H:%M:%SZ}"
    for pinned in (b"{}", b"[]", b'{"tlogs":[{}]}', b'{"tlogs":3}'):
        with pytest.raises(TreatyError):
            with_rotations(pinned, LogKeys((FIRST, terms[1])))


@dataclass
class Backdating:
    """A thief's certificate authority: it certifies as of `at`, whatever the time is and whoever asks."""

    keys: AuthorityKeys
    at: datetime

    async def issue(self, body: bytes, _: str | None) -> bytes:
        csr = x509.load_pem_x509_csr(base64.b64decode(json.loads(body)["certificateSigningRequest"]))
        key = csr.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        certificate = issue(self.keys, key, did=ALICE.did, issuer=f"https://{ORIGIN}/sigstore", now=self.at)
        chain = [each.public_bytes(Encoding.PEM).decode() for each in (certificate, self.keys.ca_certificate)]
        return canonical.dumps({"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}})


@pytest.mark.threat(323)
def test_what_a_retired_authority_certifies_is_worth_nothing(tmp_path: Path) -> None:
    """A thief has the keys of the first certificate authority. Timestamps come from the authority in force."""
    now = datetime.now(UTC).replace(microsecond=0)
    old, new = (made(tmp_path, name, now=int(now.timestamp()) - 86_400) for name in ("old", "new"))
    first = Services(old)
    log = KeyTerm(first.log.key.verifier)

    def attested(by: Services) -> bytes:
        with serving(by) as url:
            config = trust_config(by.trusted_root, origin=ORIGIN, base_url=url)
            return attest(BINDING, FILENAME, trust_config=config, token=lambda digest: by.token(bound_key=digest))

    def verified(bundle: bytes, ended: timedelta) -> str:
        """The file name, or why it is refused when the first authority ended this long ago."""
        term = replace(log, since=1, until=int((now - ended).timestamp()), authority=new.named())
        root = with_rotations(first.trusted_root, LogKeys((log, term)))
        trust = [Trust.registry(root, origin=ORIGIN, publisher=ALICE.did)]
        try:
            return verify_attestation(bundle, BINDING, publisher=ALICE.did, trust=trust).filename
        except Untrusted as error:
            assert error.code == "attestation.signature"
            return error.message

    own, following = attested(first), attested(Services(new))
    before, after = timedelta(minutes=-3), timedelta(minutes=3)
    # During the overlap and after it: signatures of the old authority from before its end, and those of the new one.
    assert [verified(own, before), verified(following, before), verified(following, after)] == [FILENAME] * 3
    assert "does not verify" in verified(own, after), "with timestamps of the old authority too"
    thief = Services(replace(old, tsa_key=new.tsa_key, tsa_chain=new.tsa_chain))
    forged = attested(thief)
    assert verified(forged, before) == FILENAME
    assert "ended at" in verified(forged, after)
    thief.ca = Backdating(old, now - timedelta(minutes=6))  # type: ignore[assignment]
    backdated = attested(thief)
    assert verified(backdated, before) == FILENAME
    assert "ended at" in verified(backdated, after)
