"""A Sigstore authority for tests: the real services over a log, identities and spent tokens in memory, which really sign."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from signers import ORIGIN, Signer, domain_signer

from treaty_client.protocols.attestation import identity_token
from treaty_consensus import canonical
from treaty_consensus.errors import NotFound, TreatyError
from treaty_consensus.log import merkle, note
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_registry.sigstore_authority import trust
from treaty_registry.sigstore_authority.ca import CertificateAuthority
from treaty_registry.sigstore_authority.keys import AuthorityKeys, create_keys
from treaty_registry.sigstore_authority.ports import LoggedLeaf
from treaty_registry.sigstore_authority.rekor import EntryLog
from treaty_registry.sigstore_authority.timestamps import TimestampAuthority

ALICE = domain_signer("alice.example")


class Log:
    """Leaves and every node over them. Checkpoints carry the log's line and, as the real ones do, the clock's cosignature."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.key = note.SignerKey(ORIGIN, note.KeyType.ED25519, b"\x01" * 32)
        self.clock_key = note.SignerKey(ORIGIN, note.KeyType.COSIGNATURE, b"\x02" * 32)
        self.leaves: list[bytes] = [b"genesis"]
        self._clock = clock
        self._nodes: dict[merkle.Node, bytes] = {}
        self._frontier = merkle.Frontier()
        self._grow(b"genesis")

    async def append(self, leaf: bytes) -> LoggedLeaf:
        index = len(self.leaves)
        self.leaves.append(leaf)
        self._grow(leaf)
        size, root = self._frontier.size, self._frontier.root()
        text = Checkpoint(ORIGIN, size, root).format()
        checkpoint = note.sign(text, [self.key, self.clock_key], time=int(self._clock().timestamp())).decode()
        return LoggedLeaf(index, size, merkle.inclusion_proof(index, size, self._nodes), root, checkpoint)

    def _grow(self, leaf: bytes) -> None:
        index = self._frontier.size
        for level, completed in enumerate(self._frontier.append(merkle.leaf_hash(leaf))):
            self._nodes[merkle.Node(level, index >> level)] = completed


@dataclass
class Authority:
    """All services over one set of keys. `now` stands still unless a test moves it; None is the real clock."""

    keys: AuthorityKeys
    now: datetime | None = None
    identities: dict[str, dict[str, bytes]] = field(default_factory=dict)
    spent: dict[str, datetime] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log = Log(self.clock)
        self.know(ALICE)
        log_key = self.log.key.verifier.public
        self.ca = CertificateAuthority(
            self.keys,
            origin=ORIGIN,
            append=self.log.append,
            authentication_keys=self.authentication_keys,
            spend=self.spend,
            clock=self.clock,
        )
        self.tsa = TimestampAuthority(self.keys, clock=self.clock)
        self.rekor = EntryLog(self.keys, log_key=lambda: self.log.key.verifier, append=self.log.append, clock=self.clock)
        self.trusted_root = trust.trusted_root(self.keys, origin=ORIGIN, log_key=log_key)

    @property
    def state(self) -> tuple[int, int]:
        """What a refusal must leave as it was: how many leaves there are, and how many spent tokens."""
        return len(self.log.leaves), len(self.spent)

    def know(self, signer: Signer) -> None:
        self.identities[signer.did] = {signer.key_id: signer.public_key}

    def clock(self) -> datetime:
        return self.now or datetime.now(UTC)

    async def authentication_keys(self, did: str) -> Mapping[str, bytes]:
        if did not in self.identities:
            raise NotFound("identity.unknown", f"{did} is not known.")
        return self.identities[did]

    async def spend(self, token: str, until: datetime) -> bool:
        return self.spent.setdefault(token, until) is until

    def token(self, signer: Signer = ALICE, *, bound_key: str | None = None, **changes: Any) -> str:
        """A good token of `signer`, made now."""
        arguments: dict[str, Any] = {"origin": ORIGIN, "now": int(self.clock().timestamp()), "jti": secrets.token_urlsafe(16)}
        return identity_token(signer.key_id, signer.sign, **(arguments | changes), csr_key_digest=bound_key)

    async def certify(self, key: ec.EllipticCurvePrivateKey, signer: Signer = ALICE) -> bytes:
        """A signing certificate for `key`, as DER."""
        reply = json.loads(await self.ca.issue(csr_request(key), f"Bearer {self.token(signer)}"))
        pem = reply["signedCertificateEmbeddedSct"]["chain"]["certificates"][0]
        return x509.load_pem_x509_certificate(pem.encode()).public_bytes(Encoding.DER)


def make_authority(directory: Path, *, now: datetime | None = None) -> Authority:
    """An authority with keys of its own; an hour older than `now` or, without it, than today."""
    created = (now or datetime.now(UTC)) - timedelta(hours=1)
    return Authority(create_keys(directory / "sigstore", origin=ORIGIN, now=created), now)


def csr_request(key: ec.EllipticCurvePrivateKey, *, pem: bytes | None = None) -> bytes:
    """The body that sigstore-python sends to the certificate authority."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    pem = pem or builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    return canonical.dumps({"certificateSigningRequest": canonical.b64encode(pem)})


def key_digest(key: ec.EllipticCurvePrivateKey) -> str:
    """What a token is bound to: the hexadecimal SHA-256 of the SubjectPublicKeyInfo."""
    return canonical.hex_digest(key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


@contextmanager
def serving(authority: Authority) -> Iterator[str]:
    """Serve the authority over plain HTTP on the loopback interface, as the registry's routes do. Gives the base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            try:
                status, content_type, reply = _route(authority, self.path, body, self.headers["authorization"])
            except TreatyError as error:
                problem = {"code": error.code, "detail": str(error)}
                status, content_type, reply = 400, "application/problem+json", json.dumps(problem).encode()
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _route(authority: Authority, path: str, body: bytes, authorization: str | None) -> tuple[int, str, bytes]:
    match path:
        case "/api/v2/signingCert" | "/sigstore/api/v2/signingCert":
            return 200, "application/json", asyncio.run(authority.ca.issue(body, authorization))
        case "/sigstore/api/v1/timestamp":
            reply = authority.tsa.respond(body)
            return 201 if reply.granted else 400, "application/timestamp-reply", reply.der
        case "/sigstore/api/v2/log/entries":
            return 201, "application/json", asyncio.run(authority.rekor.add(body))
        case _:
            raise NotFound("route.unknown", f"There is no {path}.")
