"""The authority's long-lived keys and certificates, as a directory of PEM files.

    ca.key.pem      PKCS #8, ECDSA P-256: signs signing certificates
    ca.cert.pem     its self-signed certificate
    ct.key.pem      PKCS #8, ECDSA P-256: signs the timestamps (SCTs) embedded in signing certificates
    tsa.key.pem     PKCS #8, ECDSA P-256: signs RFC 3161 timestamps
    tsa.chain.pem   its certificate, then the self-signed root above it

The root above the timestamp authority signs that one certificate; its key is never written anywhere. All files are 0600 in a
directory that is 0700. The first ones are made when the registry is: the trusted root that contains the certificates is pinned by
the log's genesis statement. Later ones are named by a rotation (`operator.rotations`), and no file is ever replaced.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from treaty_consensus.authority import CA, TSA, TSA_ROOT, Authority, extensions_of, name_of
from treaty_consensus.canonical import b64encode
from treaty_consensus.errors import Conflict, NotFound, Untrusted

from ..codes import KeysCode

# A certificate is not renewed: a rotation names another authority before it ends.
LIFETIME = timedelta(days=3650)
BACKDATED = timedelta(hours=1)
"""Certificates are valid from an earlier time on, so that a client whose clock is slow accepts a new registry."""


@dataclass(frozen=True)
class AuthorityKeys:
    """The keys and certificates of one authority. `tsa_chain`: the timestamp authority's certificate, then its root."""

    ca_key: ec.EllipticCurvePrivateKey
    ca_certificate: x509.Certificate
    ct_key: ec.EllipticCurvePrivateKey
    tsa_key: ec.EllipticCurvePrivateKey
    tsa_chain: tuple[x509.Certificate, x509.Certificate]

    def named(self, text: str = "") -> Authority:
        """Return the public parts, as a rotation names them, with proofs of its `text`."""
        keys = (self.ca_key, self.ct_key, self.tsa_key)
        first, second, third = (b64encode(key.sign(text.encode(), ec.ECDSA(hashes.SHA256()))) for key in keys)
        ca, tsa, root = (b64encode(each.public_bytes(Encoding.DER)) for each in (self.ca_certificate, *self.tsa_chain))
        return Authority(ca, b64encode(public_der(self.ct_key)), (tsa, root), (first, second, third))

    @cached_property
    def public(self) -> tuple[str, str, str, str]:
        """The values of `Authority.public`."""
        return self.named().public


def create_keys(directory: Path, *, origin: str, now: datetime) -> AuthorityKeys:
    """Make the keys of the authority at `origin` (named in the certificates) and store them as `directory`.

    The complete directory appears in one step, after its files are on disk. A crash leaves nothing, or a sibling directory whose
    name starts with a dot and which is never read. Raises `Conflict` when `directory` exists already, unless it is empty.
    """
    ca_key, ct_key, tsa_key, root_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(4))
    ca_name, tsa_name, root_name = (name_of(origin, role) for role in (CA, TSA, TSA_ROOT))
    root = _certificate(root_name, root_key, issuer=root_name, issuer_key=root_key, now=now, is_ca=True)
    keys = AuthorityKeys(
        ca_key=ca_key,
        ca_certificate=_certificate(ca_name, ca_key, issuer=ca_name, issuer_key=ca_key, now=now, is_ca=True),
        ct_key=ct_key,
        tsa_key=tsa_key,
        tsa_chain=(_certificate(tsa_name, tsa_key, issuer=root_name, issuer_key=root_key, now=now, is_ca=False), root),
    )
    _store(keys, directory)
    return keys


def load_keys(directory: Path) -> AuthorityKeys:
    """Read the files of `create_keys`. Raises `NotFound`, or `Untrusted` when others can read a file or the parts do not fit."""
    try:
        ca_certificate = x509.load_pem_x509_certificate(_read(directory / "ca.cert.pem"))
        tsa_certificate, tsa_root = x509.load_pem_x509_certificates(_read(directory / "tsa.chain.pem"))
        keys = AuthorityKeys(
            ca_key=_load_key(directory / "ca.key.pem"),
            ca_certificate=ca_certificate,
            ct_key=_load_key(directory / "ct.key.pem"),
            tsa_key=_load_key(directory / "tsa.key.pem"),
            tsa_chain=(tsa_certificate, tsa_root),
        )
    except ValueError as error:
        raise Untrusted(KeysCode.DAMAGED, f"The files in {directory} are not the PEM files of an authority.") from error
    if (
        keys.ca_key.public_key() != ca_certificate.public_key()
        or keys.tsa_key.public_key() != tsa_certificate.public_key()
        or tsa_certificate.issuer != tsa_root.subject
    ):
        raise Untrusted(
            KeysCode.DAMAGED,
            f"The keys and certificates in {directory} do not belong together.",
            fix="Restore the directory as a whole from one backup.",
        )
    return keys


def public_der(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the public half as DER SubjectPublicKeyInfo."""
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    *,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    now: datetime,
    is_ca: bool,
) -> x509.Certificate:
    """Make the certificate of a certificate authority (`is_ca`) or a timestamp authority, as RFC 5280 and RFC 3161
    §2.3 require."""
    start = now.replace(microsecond=0) - BACKDATED
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + LIFETIME)
    )
    for extension, critical in extensions_of(key.public_key(), issuer_key.public_key(), is_ca=is_ca):
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(issuer_key, hashes.SHA256())


def _store(keys: AuthorityKeys, directory: Path) -> None:
    leaf, root = keys.tsa_chain
    files = {
        "ca.key.pem": _key_pem(keys.ca_key),
        "ca.cert.pem": keys.ca_certificate.public_bytes(Encoding.PEM),
        "ct.key.pem": _key_pem(keys.ct_key),
        "tsa.key.pem": _key_pem(keys.tsa_key),
        "tsa.chain.pem": leaf.public_bytes(Encoding.PEM) + root.public_bytes(Encoding.PEM),
    }
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))  # mkdtemp makes it 0700
    try:
        for name, data in files.items():
            # Files and their directory are synced before the rename: a visible directory is complete also after a
            # power failure.
            _write_synced(staging / name, data)
        _sync_directory(staging)
        staging.rename(directory)  # atomic; fails on a directory that is not empty
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        if directory.exists():
            raise Conflict(KeysCode.EXISTS, f"{directory} exists; the keys of an authority are made once.") from error
        raise
    # The rename itself is durable only after this.
    _sync_directory(directory.parent)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_synced(path: Path, data: bytes) -> None:
    # O_EXCL and the mode at creation: at no moment can others read a key.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            # The mode of the opened file, because the path could be replaced in between.
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise Untrusted(KeysCode.DAMAGED, f"Others can read {path}.", fix=f"Run: chmod 600 {path}")
            return file.read()
    except FileNotFoundError as error:
        raise NotFound(
            KeysCode.MISSING, f"There is no {path}.", fix="Restore it from a backup; it is made when a registry is."
        ) from error


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(_read(path), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Untrusted(KeysCode.DAMAGED, f"{path} is not an ECDSA P-256 key.")
    return key
