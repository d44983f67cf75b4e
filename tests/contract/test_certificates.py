"""Every certificate that Treaty makes passes the strict rules of RFC 5280, which Python 3.13 applies by default."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from authority import DemoAuthority
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from loopback import Loopback
from made_authority import authority_keys
from signers import NOW
from simulated_sigstore import make_authority
from tls_servers import TestAuthority

from treaty_io.network.hosts import Network

STEPS = 10
"""More than the messages of a handshake."""


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """Raises SSLCertVerificationError if the client refuses the server's certificate."""
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(inward, outward, server_hostname=host), server.wrap_bio(outward, inward, server_side=True)]
    for _ in range(STEPS):
        for end in tuple(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not ends


def serving(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def strict(authority: Path) -> ssl.SSLContext:
    """Of this Python alone, so that a context of ours which is not strict hides nothing."""
    context = ssl.create_default_context(cafile=str(authority))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def test_agents_verify_strictly_on_every_python() -> None:
    assert Network().tls.verify_flags & ssl.VERIFY_X509_STRICT


def test_the_authority_of_the_demo_and_of_make_run(tmp_path: Path) -> None:
    authority = DemoAuthority(tmp_path)
    server = serving(*authority.issue("domains", ["alice.example", "bob.example"]))
    for client in (strict(authority.certificate), Network(ca=authority.certificate).tls):
        shake_hands(server, client, "bob.example")
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            shake_hands(server, client, "carol.example")


def test_the_authorities_of_tests(tmp_path: Path) -> None:
    authority, loopback = TestAuthority(tmp_path), Loopback(tmp_path)
    shake_hands(serving(authority.certificate, authority.key), strict(authority.ca), "localhost")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    loopback.authority.issue_cert("shop.example").configure_cert(server)
    shake_hands(server, loopback.network().tls, "shop.example")


def openssl_verify(folder: Path, root: x509.Certificate, leaf: x509.Certificate, *options: str) -> None:
    for name, certificate in (("root.pem", root), ("leaf.pem", leaf)):
        (folder / name).write_bytes(certificate.public_bytes(Encoding.PEM))
    # -check_ss_sig and -x509_strict together examine the root too.
    command = ["openssl", "verify", "-x509_strict", "-check_ss_sig", *options, "-CAfile", "root.pem", "leaf.pem"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command")


@needs_openssl
async def test_the_sigstore_authority(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, now=datetime.now(UTC))
    leaf = x509.load_der_x509_certificate(await authority.certify(ec.generate_private_key(ec.SECP256R1())))
    # OpenSSL 3.0 has no purpose for the signing of code.
    openssl_verify(tmp_path, authority.keys.ca_certificate, leaf)


@needs_openssl
def test_the_timestamp_authority(tmp_path: Path) -> None:
    leaf, root = make_authority(tmp_path, now=datetime.now(UTC)).keys.tsa_chain
    openssl_verify(tmp_path, root, leaf, "-purpose", "timestampsign")


@needs_openssl
def test_the_authority_of_the_vectors(tmp_path: Path) -> None:
    keys, then = authority_keys("first"), ("-attime", str(NOW))
    openssl_verify(tmp_path, keys.ca_certificate, keys.ca_certificate, *then)
    openssl_verify(tmp_path, keys.tsa_chain[1], keys.tsa_chain[0], "-purpose", "timestampsign", *then)
