"""The stock `sigstore` command signs and verifies with a DID against the registry's own Sigstore services."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from signers import ORIGIN
from simulated_sigstore import ALICE, make_authority, serving

from treaty_registry.sigstore_authority import trust


@dataclass(frozen=True)
class Registry:
    """What the command needs of a registry: where it is, its trust configuration, and a fresh token of `ALICE` at each call."""

    base_url: str
    trust_config: bytes
    token: Callable[[], str]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    authority = make_authority(tmp_path_factory.mktemp("authority"))
    with serving(authority) as base_url:
        config = trust.trust_config(authority.trusted_root, origin=ORIGIN, base_url=base_url)
        yield Registry(base_url, config, authority.token)


@pytest.fixture
def sigstore(registry: Registry, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command in an empty home, so that it knows the registry's trust configuration and nothing else."""
    config = tmp_path / "trust-config.json"
    config.write_bytes(registry.trust_config)

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("sigstore")), "--trust-config", str(config), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env={"HOME": str(tmp_path)}, check=False)

    return run


def test_signs_a_file_and_verifies_it(
    registry: Registry, sigstore: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    file = tmp_path / "handler.whl"
    file.write_bytes(b"a handler")
    signed = sigstore("sign", "--identity-token", registry.token(), file)
    assert signed.returncode == 0, signed.stderr

    issuer = f"https://{ORIGIN}/sigstore"
    good = ("verify", "identity", "--cert-identity", ALICE.did, "--cert-oidc-issuer", issuer, file)
    verified = sigstore(*good)
    assert verified.returncode == 0, verified.stderr
    assert "OK" in verified.stderr

    other_did = sigstore("verify", "identity", "--cert-identity", "did:wba:bob.example", "--cert-oidc-issuer", issuer, file)
    assert other_did.returncode != 0
    other_issuer = sigstore(
        "verify", "identity", "--cert-identity", ALICE.did, "--cert-oidc-issuer", "https://other.example", file
    )
    assert other_issuer.returncode != 0

    file.write_bytes(b"a handler, tampered with")
    assert sigstore(*good).returncode != 0


@pytest.mark.deep
def test_signs_several_files_with_one_certificate(
    registry: Registry, sigstore: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    files = [tmp_path / name for name in ("a.txt", "b.txt", "c.txt")]
    for file in files:
        file.write_text(file.name)
    signed = sigstore("sign", "--identity-token", registry.token(), *files)
    assert signed.returncode == 0, signed.stderr
    verified = sigstore(
        "verify", "identity", "--cert-identity", ALICE.did, "--cert-oidc-issuer", f"https://{ORIGIN}/sigstore", *files
    )
    assert verified.returncode == 0, verified.stderr


@pytest.mark.deep
def test_attests_and_verifies_an_envelope(
    registry: Registry, sigstore: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    file, predicate = tmp_path / "handler.whl", tmp_path / "predicate.json"
    file.write_bytes(b"a handler")
    predicate.write_text(
        json.dumps(
            {
                "buildDefinition": {"buildType": "https://example.com/build", "externalParameters": {}},
                "runDetails": {"builder": {"id": "https://example.com/builder"}},
            }
        )
    )
    attested = sigstore(
        "attest",
        "--identity-token",
        registry.token(),
        "--predicate",
        predicate,
        "--predicate-type",
        "https://slsa.dev/provenance/v1",
        file,
    )
    assert attested.returncode == 0, attested.stderr
    good = ("verify", "identity", "--cert-identity", ALICE.did, "--cert-oidc-issuer", f"https://{ORIGIN}/sigstore", file)
    verified = sigstore(*good)
    assert verified.returncode == 0, verified.stderr
    file.write_bytes(b"another handler")
    assert sigstore(*good).returncode != 0


@pytest.mark.deep
def test_a_token_signs_once(
    registry: Registry, sigstore: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    file, token = tmp_path / "handler.whl", registry.token()
    file.write_bytes(b"a handler")
    assert sigstore("sign", "--identity-token", token, file).returncode == 0
    assert sigstore("sign", "--overwrite", "--identity-token", token, file).returncode != 0
