"""Sigstore's other clients verify what a registry's identities signed: sigstore-go, cosign, which also sign, and sigstore-js.

sigstore-go is run by its own example programs. cosign is not built here, because that takes six minutes of a processor.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from go_programs import needs_go

from treaty_consensus import canonical
from treaty_consensus.authority import Authority
from treaty_consensus.log.checkpoint import KeyTerm, LogKeys
from treaty_consensus.log.note import KeyType, VerifierKey
from treaty_consensus.trusted_root import with_rotations
from treaty_registry.sigstore_authority.keys import create_keys
from treaty_registry.sigstore_authority.trust import trusted_root

_needs_sigstore_go = needs_go("sigstore-go against the trusted root, the bundles and the Sigstore services of a registry")

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
COSIGN = shutil.which("cosign")
PROTOCOL = ROOT / "protocols" / "product-info" / "1.0"


@dataclass(frozen=True)
class Publisher:
    """An agent of a running registry, in a folder with the registry's trusted root and signing configuration."""

    folder: Path
    did: str
    issuer: str

    def treaty(self, *arguments: object) -> Any:
        """The JSON value that a `treaty` command prints."""
        return json.loads(self.run(BIN / "treaty", *arguments, "--json").stdout)

    def token(self) -> str:
        """A fresh identity token."""
        return str(self.treaty("identity", "token")["token"])

    def run(self, program: Path, *arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program in the folder."""
        command = [str(program), *map(str, arguments)]
        environment = {**os.environ, "HOME": str(self.folder), "TREATY_HOME": str(self.folder / "home")}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done


@pytest.fixture(scope="module")
def publisher(real_registry: str, tmp_path_factory: pytest.TempPathFactory) -> Publisher:
    folder = tmp_path_factory.mktemp("publisher")
    origin = f"{real_registry.rpartition(':')[2]}.localhost"
    stranger = Publisher(folder, "", f"https://{origin}/sigstore")
    publisher = Publisher(folder, stranger.treaty("identity", "new")["did"], stranger.issuer)
    publisher.treaty("trust", "add", real_registry, "--yes")
    config = httpx.get(f"{real_registry}/trust-config.json").content
    (folder / "trust-config.json").write_bytes(config)
    for name, part in (("root.json", "trustedRoot"), ("signing.json", "signingConfig")):
        (folder / name).write_text(json.dumps(json.loads(config)[part]))
    return publisher


class Verification:
    """sigstore-go's verification of one artifact and bundle."""

    def __init__(self, sigstore_go: Path, publisher: Publisher, artifact: Path, bundle: Path) -> None:
        self._program, self._publisher = sigstore_go / "sigstore-go-verification", publisher
        self._good = {
            "trustedrootJSONpath": publisher.folder / "root.json",
            "artifact": artifact,
            "expectedSAN": publisher.did,
            "expectedIssuer": publisher.issuer,
        }
        self._bundle = bundle

    def passes(self, **changes: object) -> None:
        """By an SCT, a log entry and a timestamp, all of which the program asks for unless it is told not to."""
        done = self._run(**changes)
        assert done.returncode == 0, done.stderr
        (stamp,) = json.loads(done.stdout)["verifiedTimestamps"]
        assert stamp["type"] == "TimestampAuthority"

    def fails(self, words: str, **changes: object) -> None:
        done = self._run(**changes)
        assert done.returncode == 1 and words in done.stderr, done.stderr

    def _run(self, **changes: object) -> subprocess.CompletedProcess[str]:
        options = [f"-{name}={value}" for name, value in (self._good | changes).items()]
        return self._publisher.run(self._program, *options, self._bundle, check=False)


def refuses_another(verification: Verification, artifact: Path) -> None:
    """Another artifact, identity, issuer and trusted root are refused, for that reason."""
    with changed(artifact):
        verification.fails("failed to verify signature")
    verification.fails("no matching CertificateIdentity found", expectedSAN="did:wba:other.example")
    verification.fails("no matching CertificateIdentity found", expectedIssuer="https://other.example/sigstore")


@contextmanager
def changed(file: Path) -> Iterator[None]:
    content = file.read_bytes()
    file.write_bytes(content + b" ")
    try:
        yield
    finally:
        file.write_bytes(content)


@pytest.mark.deep
@_needs_sigstore_go
def test_a_published_handler_verifies(publisher: Publisher, sigstore_go: Path, tmp_path: Path) -> None:
    uri = publisher.treaty("publish", PROTOCOL)["uri"]
    publisher.treaty("fetch", uri, "--output", tmp_path, "--publisher", publisher.did)
    (wheel,) = tmp_path.glob("*.whl")
    assert json.loads((tmp_path / "trusted-root.json").read_text()) == json.loads((publisher.folder / "root.json").read_text())
    verification = Verification(sigstore_go, publisher, wheel, tmp_path / f"{wheel.name}.sigstore.json")
    verification.passes()
    refuses_another(verification, wheel)


@pytest.mark.deep
@_needs_sigstore_go
def test_a_signature_of_the_stock_command_verifies(publisher: Publisher, sigstore_go: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "FILE"
    artifact.write_bytes(b"a file")
    config = publisher.folder / "trust-config.json"
    publisher.run(BIN / "sigstore", "--trust-config", config, "sign", "--identity-token", publisher.token(), artifact)
    verification = Verification(sigstore_go, publisher, artifact, tmp_path / "FILE.sigstore.json")
    verification.passes()
    refuses_another(verification, artifact)


def around_a_rotation(publisher: Publisher, folder: Path, seconds: int, *, second: bool = False) -> Path:
    """The trusted root of the registry, had it rotated its authority to another one, `seconds` from now.

    `second`: had it rotated from another one to the authority that it has.
    """
    value = json.loads((publisher.folder / "root.json").read_bytes())
    pinned = canonical.dumps(value)
    log_key, origin = base64.b64decode(value["tlogs"][0]["publicKey"]["rawBytes"])[-32:], publisher.issuer.split("/")[2]
    other = create_keys(folder / f"other{seconds}{second}", origin=origin, now=datetime.now(UTC))
    following = other.named()
    if second:
        pinned = trusted_root(other, origin=origin, log_key=log_key)
        ca, tsa = (
            [each["rawBytes"] for each in value[name][0]["certChain"]["certificates"]]
            for name in ("certificateAuthorities", "timestampAuthorities")
        )
        following = Authority(ca[0], value["ctlogs"][0]["publicKey"]["rawBytes"], (tsa[0], tsa[1]), following.proofs)
    term = KeyTerm(VerifierKey(origin, KeyType.ED25519, log_key))
    until = int(time.time()) + seconds
    root = with_rotations(pinned, LogKeys((term, replace(term, since=1, until=until, authority=following))))
    path = folder / f"root{seconds}{second}.json"
    path.write_bytes(root)
    return path


@pytest.mark.deep
@_needs_sigstore_go
def test_sigstore_go_judges_authorities_by_their_rotation(publisher: Publisher, sigstore_go: Path, tmp_path: Path) -> None:
    artifact, config = tmp_path / "FILE", publisher.folder / "trust-config.json"
    artifact.write_bytes(b"a file")
    publisher.run(BIN / "sigstore", "--trust-config", config, "sign", "--identity-token", publisher.token(), artifact)
    verification = Verification(sigstore_go, publisher, artifact, tmp_path / "FILE.sigstore.json")
    verification.passes(trustedrootJSONpath=around_a_rotation(publisher, tmp_path, 3600))
    verification.passes(trustedrootJSONpath=around_a_rotation(publisher, tmp_path, -3600, second=True))
    verification.fails("", trustedrootJSONpath=around_a_rotation(publisher, tmp_path, -3600))


@pytest.mark.deep
@_needs_sigstore_go
def test_sigstore_go_signs_and_both_verify(publisher: Publisher, sigstore_go: Path, tmp_path: Path) -> None:
    artifact, bundle, folder = tmp_path / "FILE", tmp_path / "FILE.sigstore.json", publisher.folder
    artifact.write_bytes(b"a file")
    services = ("-id-token", publisher.token(), "-tsa", "-rekor", "-s", folder / "signing.json", "-t", folder / "root.json")
    signed = publisher.run(sigstore_go / "sigstore-go-signing", *services, artifact)
    bundle.write_text(signed.stdout.splitlines()[-1])  # after the public key, in words
    verification = Verification(sigstore_go, publisher, artifact, bundle)
    verification.passes()
    refuses_another(verification, artifact)
    identity = ("--cert-identity", publisher.did, "--cert-oidc-issuer", publisher.issuer)
    publisher.run(BIN / "sigstore", "--trust-config", folder / "trust-config.json", "verify", "identity", *identity, artifact)


@pytest.mark.skipif(
    COSIGN is None,
    reason="there is no cosign command, so it was not run against a registry's Sigstore services and bundles. "
    "To build it: go install github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3",
)
def test_cosign_signs_and_verifies(publisher: Publisher, tmp_path: Path) -> None:
    assert COSIGN is not None
    artifact, folder, cosign = tmp_path / "FILE", publisher.folder, Path(COSIGN)
    artifact.write_bytes(b"a file")
    # cosign recognizes tokens of RS256 alone in the argument, and takes any other for the name of a file with a token.
    (folder / "token").write_text(publisher.token())
    root, bundle = ("--trusted-root", folder / "root.json"), ("--bundle", tmp_path / "FILE.sigstore.json")
    signing = ("--signing-config", folder / "signing.json", "--identity-token", folder / "token")
    publisher.run(cosign, "sign-blob", "--yes", *root, *signing, *bundle, artifact)

    def verifies(command: str, *arguments: object, did: str = publisher.did, issuer: str = publisher.issuer) -> bool:
        identity = ("--certificate-identity", did, "--certificate-oidc-issuer", issuer, "--use-signed-timestamps")
        done = publisher.run(cosign, command, *root, *identity, *arguments, check=False)
        assert (done.returncode == 0) == ("Verified OK" in done.stderr), done.stderr
        return done.returncode == 0

    assert verifies("verify-blob", *bundle, artifact)
    assert not verifies("verify-blob", *bundle, artifact, did="did:wba:other.example")
    assert not verifies("verify-blob", *bundle, artifact, issuer="https://other.example")
    with changed(artifact):
        assert not verifies("verify-blob", *bundle, artifact)

    uri = publisher.treaty("publish", PROTOCOL)["uri"]
    publisher.treaty("fetch", uri, "--output", tmp_path / "out", "--publisher", publisher.did)
    (wheel,) = (tmp_path / "out").glob("*.whl")
    handler = ("--bundle", f"{wheel}.sigstore.json", "--type", "urn:treaty:attestation:handler:v1")
    assert verifies("verify-blob-attestation", *handler, wheel)
    with changed(wheel):
        assert not verifies("verify-blob-attestation", *handler, wheel)


@pytest.mark.deep
@pytest.mark.skipif(
    shutil.which("npm") is None, reason="there is no npm command, so this was not run: sigstore-js, which verifies"
)
def test_sigstore_js_verifies(publisher: Publisher, sigstore_js: Path, tmp_path: Path) -> None:
    artifact, config, root = tmp_path / "FILE", publisher.folder / "trust-config.json", publisher.folder / "root.json"
    artifact.write_bytes(b"a file")
    publisher.run(BIN / "sigstore", "--trust-config", config, "sign", "--identity-token", publisher.token(), artifact)
    uri = publisher.treaty("publish", PROTOCOL)["uri"]
    publisher.treaty("fetch", uri, "--output", tmp_path, "--publisher", publisher.did)
    (wheel,) = tmp_path.glob("*.whl")

    def words(signed: Path, did: str = publisher.did, issuer: str = publisher.issuer) -> str:
        arguments = (sigstore_js, root, f"{signed}.sigstore.json", signed, did, issuer)
        done = publisher.run(Path("node"), *arguments, check=False)
        assert (done.returncode == 0) == (done.stderr == ""), done.stderr
        return done.stderr.partition(":")[0]

    for signed in (artifact, wheel):
        assert words(signed) == ""
        assert words(signed, did="did:wba:other.example") == "UNTRUSTED_SIGNER_ERROR"
        assert words(signed, issuer="https://other.example") == "UNTRUSTED_SIGNER_ERROR"
    with changed(artifact):
        assert words(artifact) == "SIGNATURE_ERROR"
    root = around_a_rotation(publisher, tmp_path, 3600)
    assert words(artifact) == ""
    root = around_a_rotation(publisher, tmp_path, -3600, second=True)
    assert words(artifact) == ""
    root = around_a_rotation(publisher, tmp_path, -3600)
    assert words(artifact) != ""
