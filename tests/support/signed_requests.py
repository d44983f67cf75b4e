"""A listener that knows the documents of some senders, at a time that the test sets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from treaty_agent.authentication.nonces import NonceMemory
from treaty_agent.authentication.request_signing import RequestVerifier
from treaty_consensus.did import Did
from treaty_consensus.errors import NotFound, Unavailable
from treaty_io.identity import Identity
from treaty_io.network.did_documents import DidDocument, DidResolver, read_did_document

NOW = 1_790_000_000
AUDIENCE = "https://shop.example"
URL = f"{AUDIENCE}/anp/v1/sessions?topic=a%20b"


@dataclass
class Listener:
    """Verifies for `AUDIENCE`. `documents`: what the senders' hosts serve, by DID; `now`: Unix seconds; `fetched`: which DIDs
    were asked for; `unreachable`: whether all hosts are; `legacy`: whether it accepts the older form; `secp256k1`: whether it
    accepts keys of this curve; `required`: whether it refuses requests that prove nothing."""

    folder: Path
    documents: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    now: float = NOW
    fetched: list[str] = field(default_factory=list)
    unreachable: bool = False
    legacy: bool = False
    secp256k1: bool = False
    required: bool = True
    boot: str = "11111111-2222-3333-4444-555555555555"

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new process: nothing is remembered but what is on disk. It was up for a while before the first request."""
        self.nonces = NonceMemory(self.folder / "nonces", clock=lambda: self.now, boot=self.boot)
        resolver = DidResolver(self._fetch, clock=lambda: self.now)
        self.verifier = RequestVerifier(
            resolver,
            self.nonces,
            audiences=(AUDIENCE,),
            legacy=self.legacy,
            required=self.required,
            clock=lambda: self.now,
        )

    def restart(self) -> None:
        """The process ends, and another one starts."""
        self.nonces.close()
        self.start()

    def knows(self, identity: Identity) -> Identity:
        """Serve the document of an identity."""
        self.documents[identity.did] = identity.did_document()
        return identity

    async def verify(self, headers: Mapping[str, str], *, method: str = "POST", url: str = URL, body: bytes = b"{}") -> str:
        """The DID of a request that arrives at this listener."""
        return await self.verifier.verify(method, url, {name.lower(): value for name, value in headers.items()}, body)

    async def _fetch(self, did: Did) -> DidDocument:
        if self.unreachable:
            raise Unavailable("egress.unreachable", "It could not be reached.")
        self.fetched.append(did.text)
        if did.text not in self.documents:
            raise NotFound("egress.not-found", f"{did.document_url} is not there.")
        return read_did_document(did, json.dumps(self.documents[did.text]).encode(), secp256k1=self.secp256k1)
