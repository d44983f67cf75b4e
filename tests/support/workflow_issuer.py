"""An issuer of tokens for workflows that really signs: its key set over TLS, and tokens over HTTP as a runner asks for them."""

from __future__ import annotations

import json
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import trustme
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from jwt.algorithms import RSAAlgorithm

HOST = "token.actions.githubusercontent.com"
RUNNER_SECRET = "the runner's own"


@lru_cache
def rsa_key(name: str) -> RSAPrivateKey:
    """A key of the issuer, made once for all tests of a process."""
    return generate_private_key(65537, 2048)


@dataclass
class WorkflowIssuer:
    """The claims of its workflow, and the names of its keys: the first signs. `asked` counts the fetches of its key set."""

    now: Callable[[], float] = time.time
    keys: list[str] = field(default_factory=lambda: ["first"])
    claims: dict[str, object] = field(default_factory=dict)
    asked: int = 0
    port: int = 0
    runner_port: int = 0
    authority: Path = Path()

    @property
    def key_set(self) -> bytes:
        """Return the JWK set."""
        return json.dumps({"keys": [jwk(name) for name in self.keys]}).encode()

    def token(self, audience: str, *, key: str = "", kid: str = "", **claims: object) -> str:
        """Return a token; `claims` replace those of a push of a tag to octo-org/protocols, and None leaves one out."""
        now, repository = int(self.now()), "Octo-Org/protocols"
        workflow = f"{repository}/.github/workflows/publish.yml@refs/tags/v1.0"
        merged = {
            "iss": f"https://{HOST}",
            "aud": audience,
            "sub": f"repo:{repository}:ref:refs/tags/v1.0",
            "jti": str(uuid.uuid4()),
            "iat": now,
            "nbf": now - 5,
            "exp": now + 300,
            "event_name": "push",
            "ref": "refs/tags/v1.0",
            "ref_type": "tag",
            "sha": "ab" * 20,
            "repository": repository,
            "repository_id": "74",
            "repository_owner": "Octo-Org",
            "repository_owner_id": "65",
            "workflow_ref": workflow,
            "job_workflow_ref": workflow,
            "run_id": "1234",
            "run_attempt": "1",
            "runner_environment": "github-hosted",
            "actor": "a person",
            **self.claims,
            **claims,
        }
        name = key or self.keys[0]
        present = {claim: value for claim, value in merged.items() if value is not None}
        return jwt.encode(present, rsa_key(name), "RS256", headers={"kid": kid or name, "x5t": name})

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that a job with `permissions: id-token: write` has."""
        return {
            "GITHUB_ACTIONS": "true",
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"http://127.0.0.1:{self.runner_port}/token?api-version=2.0",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": RUNNER_SECRET,
        }

    def answer(self, path: str, headers: Mapping[str, str]) -> dict[str, Any] | None:
        """Return the runner's answer to a request for a token."""
        audience = parse_qs(urlsplit(path).query).get("audience", [""])[0]
        return {"value": self.token(audience)} if headers.get("Authorization", "").endswith(f" {RUNNER_SECRET}") else None

    @contextmanager
    def serving(self, folder: Path) -> Iterator[WorkflowIssuer]:
        """Serve the key set over TLS under the issuer's own name, and tokens to a runner."""
        issuer = self

        class Keys(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                _send(self, issuer.key_set if self.path == "/.well-known/jwks" else None)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        class Runner(Keys):
            def do_GET(self) -> None:
                answer = issuer.answer(self.path, dict(self.headers))
                _send(self, None if answer is None else json.dumps(answer).encode())

        root, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        root.issue_cert(HOST).configure_cert(tls)
        self.authority = folder / "issuer-ca.pem"
        root.cert_pem.write_to_path(str(self.authority))
        servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for handler in (Keys, Runner)]
        servers[0].socket = tls.wrap_socket(servers[0].socket, server_side=True)
        self.port, self.runner_port = (server.server_address[1] for server in servers)
        threads = [threading.Thread(target=server.serve_forever, args=(0.05,)) for server in servers]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            for server, thread in zip(servers, threads, strict=True):
                server.shutdown()
                thread.join()
                server.server_close()


def jwk(name: str, kid: str = "") -> dict[str, object]:
    """Return a key as a set has it."""
    public = json.loads(RSAAlgorithm.to_jwk(rsa_key(name).public_key()))
    return {**public, "kid": kid or name, "use": "sig", "alg": "RS256", "x5c": ["not read"]}


def _send(handler: BaseHTTPRequestHandler, body: bytes | None) -> None:
    handler.send_response(404 if body is None else 200)
    handler.send_header("Content-Length", str(len(body or b"")))
    handler.end_headers()
    handler.wfile.write(body or b"")
