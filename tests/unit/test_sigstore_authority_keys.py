"""The authority's keys on disk, and the trust documents made from them."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from signers import NOW, ORIGIN
from sigstore.models import ClientTrustConfig

from treaty_consensus import canonical
from treaty_consensus.errors import Conflict, NotFound, Untrusted
from treaty_consensus.log.note import KeyType, SignerKey
from treaty_consensus.trusted_root import MAX_TRUSTED_ROOT, log_id
from treaty_registry.sigstore_authority import trust
from treaty_registry.sigstore_authority.keys import create_keys, load_keys

MADE = datetime.fromtimestamp(NOW, UTC)
LOG = SignerKey(ORIGIN, KeyType.ED25519, b"\x01" * 32).verifier


def test_what_is_stored_is_what_is_loaded(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "data" / "sigstore", origin=ORIGIN, now=MADE)
    loaded = load_keys(tmp_path / "data" / "sigstore")
    assert loaded.ca_certificate == keys.ca_certificate
    assert loaded.tsa_chain == keys.tsa_chain
    for name in ("ca_key", "ct_key", "tsa_key"):
        assert getattr(loaded, name).private_numbers() == getattr(keys, name).private_numbers()


def test_nobody_else_can_read_them(tmp_path: Path) -> None:
    directory = tmp_path / "sigstore"
    create_keys(directory, origin=ORIGIN, now=MADE)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    assert list(tmp_path.iterdir()) == [directory]
    (directory / "ca.key.pem").chmod(0o640)
    with pytest.raises(Untrusted) as refused:
        load_keys(directory)
    assert refused.value.code == "keys.damaged"


def test_keys_are_made_once(tmp_path: Path) -> None:
    directory = tmp_path / "sigstore"
    create_keys(directory, origin=ORIGIN, now=MADE)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(Conflict):
        create_keys(directory, origin=ORIGIN, now=MADE)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert list(tmp_path.iterdir()) == [directory]


def test_the_certificates_live_for_years(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "sigstore", origin=ORIGIN, now=MADE)
    for certificate in (keys.ca_certificate, *keys.tsa_chain):
        assert certificate.not_valid_before_utc < MADE
        assert certificate.not_valid_after_utc > MADE + timedelta(days=9 * 365)


@pytest.mark.parametrize(
    ("spoil", "error", "code"),
    [
        (lambda ours, _: (ours / "ct.key.pem").unlink(), NotFound, "keys.missing"),
        (lambda ours, _: (ours / "ca.key.pem").write_bytes(b"junk"), Untrusted, "keys.damaged"),
        (lambda ours, _: (ours / "tsa.chain.pem").write_bytes((ours / "ca.cert.pem").read_bytes()), Untrusted, "keys.damaged"),
        (lambda ours, theirs: shutil.copy(theirs / "ca.key.pem", ours), Untrusted, "keys.damaged"),
        (lambda ours, theirs: shutil.copy(theirs / "tsa.key.pem", ours), Untrusted, "keys.damaged"),
        (lambda ours, theirs: shutil.copy(theirs / "ca.cert.pem", ours), Untrusted, "keys.damaged"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    tmp_path: Path, spoil: Callable[[Path, Path], object], error: type[Exception], code: str
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    create_keys(ours, origin=ORIGIN, now=MADE)
    create_keys(theirs, origin=ORIGIN, now=MADE)
    spoil(ours, theirs)
    with pytest.raises(error) as refused:
        load_keys(ours)
    assert getattr(refused.value, "code", None) == code


def test_the_trusted_root_has_one_spelling(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "sigstore", origin=ORIGIN, now=MADE)
    root = trust.trusted_root(keys, origin=ORIGIN, log_key=LOG.public)
    assert root == trust.trusted_root(load_keys(tmp_path / "sigstore"), origin=ORIGIN, log_key=LOG.public)
    assert canonical.loads(root, limit=MAX_TRUSTED_ROOT)["tlogs"][0]["baseUrl"] == f"https://{ORIGIN}"
    assert root != trust.trusted_root(keys, origin="other.example", log_key=LOG.public)
    assert root != trust.trusted_root(keys, origin=ORIGIN, log_key=bytes(32))


def test_the_log_id_extends_the_note_key_id() -> None:
    assert log_id(LOG)[:4] == LOG.id
    assert len(log_id(LOG)) == 32


def test_the_trust_config_names_the_services_addresses(tmp_path: Path) -> None:
    root = trust.trusted_root(create_keys(tmp_path / "sigstore", origin=ORIGIN, now=MADE), origin=ORIGIN, log_key=LOG.public)
    config = trust.trust_config(root, origin=ORIGIN, base_url="http://127.0.0.1:8080/")
    value = json.loads(config)
    assert canonical.dumps(value["trustedRoot"]) == root
    urls = {name: [service["url"] for service in value["signingConfig"][name]] for name in ("caUrls", "tsaUrls", "rekorTlogUrls")}
    assert urls == {
        "caUrls": ["http://127.0.0.1:8080/sigstore"],
        "tsaUrls": ["http://127.0.0.1:8080/sigstore/api/v1/timestamp"],
        "rekorTlogUrls": ["http://127.0.0.1:8080/sigstore"],
    }
    assert ClientTrustConfig.from_json(config.decode()).trusted_root.get_fulcio_certs()
