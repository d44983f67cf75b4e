"""The Sigstore services over HTTP: the stock client's own code signs with a DID, and everything ends up in the log."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from http_api import problem, serving, unchanged
from ports import free_port
from registries import Web, publication, publish, settings_for
from signers import ORIGIN, Signer

from treaty_client.protocols.attestation import Binding, Trust, attest, identity_token, verify_attestation
from treaty_client.protocols.verification.blobs import trusted_root_of
from treaty_client.protocols.verification.ten_steps import examine, read_bundle
from treaty_client.registries.trust import RegistryName, TrustedRegistry
from treaty_consensus import statement
from treaty_consensus.errors import Untrusted
from treaty_consensus.kinds import Genesis
from treaty_consensus.sigstore_leaf import CertificateLeaf, RekordLeaf, parse_sigstore_leaf
from treaty_registry.operator.rotations import AUTHORITY, ROLES, prepare
from treaty_registry.registry import Registry
from treaty_registry.sigstore_authority.certificates import issue

JSON = {"Content-Type": "application/json"}
BINDING = Binding("1" * 64, f"https://{ORIGIN}/protocols/alice.example/echo/1.0", "2" * 64, "treaty_handler_echo:handler")


@asynccontextmanager
async def _served(tmp_path: Path, database: str, web: Web) -> AsyncIterator[tuple[httpx.AsyncClient, Registry]]:
    """A registry on a socket with the real clock, since the client's own code looks at the real time."""
    port = free_port()
    settings = replace(settings_for(tmp_path / "registry", database), base_url=f"http://127.0.0.1:{port}")
    async with (
        Registry.open(settings, resolve=web.resolve) as registry,
        serving(registry, port) as base_url,
        httpx.AsyncClient(base_url=base_url) as api,
    ):
        yield api, registry


async def test_a_did_signs_through_the_registry(tmp_path: Path, database: str, web: Web, alice: Signer) -> None:
    async with _served(tmp_path, database, web) as (api, registry):
        config = (await api.get("/trust-config.json")).content
        root = (await api.get("/sigstore/trusted-root.json")).content
        genesis = statement.parse((await registry.leaves([0]))[0]).body
        assert isinstance(genesis, Genesis) and hashlib.sha256(root).hexdigest() == genesis.trusted_root
        assert json.loads(config)["trustedRoot"] == json.loads(root)
        size = registry.head.size
        bundle = await asyncio.to_thread(
            attest, BINDING, "echo.whl", trust_config=config, token=lambda digest: _token(alice, digest)
        )
        trust = [Trust.registry(root, origin=ORIGIN, publisher=alice.did)]
        verify_attestation(bundle, BINDING, publisher=alice.did, trust=trust)
        with pytest.raises(Untrusted):
            verify_attestation(bundle, replace(BINDING, wheel="3" * 64), publisher=alice.did, trust=trust)
        leaves = await registry.leaves(range(size, registry.head.size))
        logged = [parse_sigstore_leaf(leaf) for _, leaf in sorted(leaves.items()) if b'"payload"' not in leaf]
        assert [type(leaf) for leaf in logged] == [CertificateLeaf, RekordLeaf]


@pytest.mark.parametrize("overlap", [3600, 0], ids=["during the overlap", "after it"])
async def test_a_did_signs_after_both_rotations(tmp_path: Path, database: str, web: Web, alice: Signer, overlap: int) -> None:
    async with _served(tmp_path, database, web) as (api, registry):

        async def attested() -> bytes:
            config = (await api.get("/trust-config.json")).content
            return await asyncio.to_thread(
                attest, BINDING, "echo.whl", trust_config=config, token=lambda digest: _token(alice, digest)
            )

        statement = publication(alice)
        await publish(registry, alice, statement)
        content = (await api.get("/sigstore/trusted-root.json")).content
        name, before = RegistryName(str(api.base_url), registry.log_key), await attested()
        prepare(tmp_path / "registry" / "keys", [*ROLES, AUTHORITY])
        await registry.rotate(overlap)
        # An agent offline, from a bundle of the registry; during the overlap by the key of the log that it pinned before.
        pinned = name if overlap else replace(name, key=registry.log_key)
        answer = (await api.get(f"{statement.body.uri.removeprefix(f'https://{ORIGIN}')}.bundle")).content
        bundle = read_bundle(answer, uri=statement.body.uri)
        evidence = examine(bundle, TrustedRegistry(pinned, None), now=None, max_age=0)
        root = trusted_root_of(bundle, evidence)
        assert root == (await api.get("/sigstore/trusted-root.json")).content != content
        after = await attested()
        trust = [Trust.registry(root, origin=ORIGIN, publisher=alice.did)]
        for each in (before, after):
            verify_attestation(each, BINDING, publisher=alice.did, trust=trust)
        issuers = [_issuer(root, each) for each in (before, after)]
        assert issuers == ([0, 0] if overlap else [0, 1]), "until the end of the overlap the first authority signs"


def _issuer(root: bytes, bundle: bytes) -> int:
    """Which authority of a trusted root issued the certificate of a bundle."""
    raw = json.loads(bundle)["verificationMaterial"]["certificate"]["rawBytes"]
    certificate = x509.load_der_x509_certificate(base64.b64decode(raw))
    identifier = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    for number, authority in enumerate(json.loads(root)["certificateAuthorities"]):
        ca = x509.load_der_x509_certificate(base64.b64decode(authority["certChain"]["certificates"][0]["rawBytes"]))
        if ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest == identifier:
            return number
    raise AssertionError("another authority")


async def test_a_retired_authoritys_certificate_is_refused(tmp_path: Path, database: str, web: Web, alice: Signer) -> None:
    """A thief of the first authority, who asks the registry to log what was certified with it."""
    async with _served(tmp_path, database, web) as (api, registry):
        stolen = registry.authority
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = issue(stolen, key.public_key(), did=alice.did, issuer="https://x", now=datetime.now(UTC))
        raw = base64.b64encode(certificate.public_bytes(Encoding.DER)).decode()

        def entry(content: bytes) -> dict[str, object]:
            signature = base64.b64encode(key.sign(content, ec.ECDSA(hashes.SHA256()))).decode()
            verifier = {"keyDetails": "PKIX_ECDSA_P256_SHA_256", "x509Certificate": {"rawBytes": raw}}
            digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
            return {"hashedRekordRequestV002": {"digest": digest, "signature": {"content": signature, "verifier": verifier}}}

        path = "/sigstore/api/v2/log/entries"
        assert (await api.post(path, json=entry(b"before"))).status_code == 201
        prepare(tmp_path / "registry" / "keys", [AUTHORITY])
        await registry.rotate(0)
        async with unchanged(registry):
            problem(await api.post(path, json=entry(b"after")), 401, "sigstore.proof")


async def test_what_the_services_refuse_logs_nothing(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    authority = ("/sigstore/api/v2/signingCert", "/api/v2/signingCert")
    token = {"Authorization": "Bearer e30.e30.e30"}
    async with unchanged(registry):
        for path in authority:
            problem(await api.post(path, content=b"{", headers=JSON), 400, "canonical.json")
            problem(await api.post(path, content=b"{}", headers=JSON), 401, "token.invalid")
            problem(await api.post(path, content=b"{}", headers=JSON | token), 400, "token.invalid")
            problem(await api.post(path, content=b"{}", headers={"Content-Type": "text/plain"}), 415, "http.media-type")
            problem(await api.post(path, content=b" " * 20_000, headers=JSON), 413, "http.too-large")
        entries = "/sigstore/api/v2/log/entries"
        problem(await api.post(entries, content=b"{}", headers=JSON), 400, "http.request")
        problem(await api.post(entries, content=b"{}", headers={"Content-Type": "text/plain"}), 415, "http.media-type")
        problem(await api.post(entries, content=b" " * 20_000, headers=JSON), 413, "http.too-large")


async def test_timestamps_are_granted_or_rejected_in_their_own_form(api: httpx.AsyncClient) -> None:
    path, query = "/sigstore/api/v1/timestamp", {"Content-Type": "application/timestamp-query"}
    rejected = await api.post(path, content=b"nonsense", headers=query)
    assert (rejected.status_code, rejected.headers["content-type"]) == (400, "application/timestamp-reply")
    imprint = hashlib.sha256(b"what is stamped").digest()
    request = bytes.fromhex("30360201013031300d060960864801650304020105000420") + imprint
    granted = await api.post(path, content=request, headers=query)
    assert (granted.status_code, granted.headers["content-type"]) == (201, "application/timestamp-reply")
    assert imprint in granted.content and imprint not in rejected.content
    problem(await api.post(path, content=request, headers=JSON), 415, "http.media-type")
    problem(await api.post(path, content=request + bytes(1_024), headers=query), 413, "http.too-large")


async def test_what_other_clients_read_is_there_in_their_formats(api: httpx.AsyncClient, registry: Registry) -> None:
    root = json.loads((await api.get("/sigstore/trusted-root.json")).content)
    authority = root["certificateAuthorities"][0]["certChain"]["certificates"]
    for base in ("", "/sigstore"):
        bundle = await api.get(f"{base}/api/v2/trustBundle")
        assert [_der(pem) for chain in bundle.json()["chains"] for pem in chain["certificates"]] == authority
        assert (await api.get(f"{base}/api/v2/configuration")).json() == {"issuers": []}
    chain = await api.get("/sigstore/api/v1/timestamp/certchain")
    assert chain.headers["content-type"] == "application/pem-certificate-chain"
    parts = [f"{part}-----END CERTIFICATE-----" for part in chain.text.split("-----END CERTIFICATE-----")[:-1]]
    assert list(map(_der, parts)) == root["timestampAuthorities"][0]["certChain"]["certificates"]


@pytest.mark.parametrize("base", ["", "/sigstore"])
async def test_monitors_of_rekor_read_the_log(api: httpx.AsyncClient, registry: Registry, base: str) -> None:
    width = registry.head.size
    for path in ("/checkpoint", f"/tile/0/000.p/{width}", f"/tile/entries/000.p/{width}"):
        answer, own = await api.get(f"{base}/api/v2{path}"), await api.get(path)
        assert (answer.status_code, answer.content) == (200, own.content), path
        assert answer.headers["content-type"] == own.headers["content-type"]
    problem(await api.get(f"{base}/api/v2/tile/0/000.p/{width + 1}"), 404, "log.missing")
    problem(await api.get(f"{base}/api/v2/tile/0/00"), 400, "log.form")


def _der(pem: str) -> dict[str, str]:
    der = x509.load_pem_x509_certificate(pem.encode()).public_bytes(Encoding.DER)
    return {"rawBytes": base64.b64encode(der).decode()}


def _token(agent: Signer, digest: str) -> str:
    return identity_token(
        agent.key_id, agent.sign, origin=ORIGIN, now=int(time.time()), jti=secrets.token_hex(16), csr_key_digest=digest
    )
