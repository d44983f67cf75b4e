"""OpenSSL asks the timestamp authority for a timestamp and verifies it."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from simulated_sigstore import make_authority

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command")


def openssl(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["openssl", "ts", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
def test_openssl_verifies_what_it_asked_for(tmp_path: Path, algorithm: str) -> None:
    authority = make_authority(tmp_path, now=datetime.now(UTC))
    leaf, root = (certificate.public_bytes(Encoding.PEM) for certificate in authority.keys.tsa_chain)
    (tmp_path / "leaf.pem").write_bytes(leaf)
    (tmp_path / "root.pem").write_bytes(root)
    data, query, reply = tmp_path / "data", tmp_path / "data.tsq", tmp_path / "data.tsr"
    data.write_bytes(b"a signature")
    assert openssl("-query", "-data", data, f"-{algorithm}", "-cert", "-out", query).returncode == 0
    reply.write_bytes(authority.tsa.respond(query.read_bytes()).der)

    trust = ("-CAfile", tmp_path / "root.pem", "-untrusted", tmp_path / "leaf.pem")
    assert openssl("-verify", "-in", reply, "-queryfile", query, *trust).returncode == 0
    assert openssl("-verify", "-in", reply, "-data", data, *trust).returncode == 0
    data.write_bytes(b"another signature")
    assert openssl("-verify", "-in", reply, "-data", data, *trust).returncode != 0


def test_openssl_reads_a_refusal(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    data, query, reply = tmp_path / "data", tmp_path / "data.tsq", tmp_path / "data.tsr"
    data.write_bytes(b"a signature")
    assert openssl("-query", "-data", data, "-sha1", "-out", query).returncode == 0
    reply.write_bytes(authority.tsa.respond(query.read_bytes()).der)
    assert "unrecognized or unsupported algorithm" in openssl("-reply", "-in", reply, "-text").stdout.lower()
