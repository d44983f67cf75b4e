"""TLS and proofs of DIDs for the calls of a gateway or a node.

A proof is a signature of HTTP messages (RFC 9421) in the metadata of a call. It covers the target's address, the method, the time
and a number that is used once. So it is of no use at another target, for another method, later, or twice.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from treaty_agent.authentication.nonces import NonceMemory
from treaty_agent.authentication.request_signing import RequestSigner, RequestVerifier
from treaty_consensus.did import Did
from treaty_consensus.errors import Unauthorized
from treaty_handler import Value
from treaty_io.codes import AuthenticationCode
from treaty_io.identity import Identity, ProvedPeer
from treaty_io.network.did_documents import DidDocument, DidResolver

from .addresses import plain_address

ANONYMOUS = "anonymous"
"""The peer of calls without a proof."""
_SIGNED = ("signature", "signature-input", "content-digest", "authorization")


async def _no_documents(did: Did) -> DidDocument:
    raise Unauthorized(AuthenticationCode.IDENTITY, f"There is no resolver for {did.text}.", fix="Give Security a resolver.")


@dataclass(frozen=True)
class Security:
    """How the calls of one gateway or node are protected. By default it speaks as the source does: to anyone, in the clear.

    `identity`: signs the own calls. `require_did`: refuse a call without a proof, and one that speaks as another agent. `names`:
    id → DID of the agents whose ids are not their DIDs. `gateway`: the DID of a node's gateway, which speaks for its nodes.
    `resolver`: of the callers' DIDs; a did:key needs none. `certificate`: chain and key in PEM, to serve TLS. `authority`: the
    root certificates in PEM for calls over TLS. `aliases`: further addresses under which others call. `home`: the folder that
    remembers used proofs; default a temporary one.
    """

    identity: Identity | None = None
    require_did: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    gateway: str = ""
    resolver: DidResolver | None = None
    certificate: tuple[bytes, bytes] | None = None
    authority: bytes | None = None
    aliases: Sequence[str] = ()
    home: Path | None = None

    def parameters(self) -> dict[str, Value]:
        """Return the parameters of a session that say who may speak as whom."""
        return {"speakers": {"names": dict(self.names), "gateway": self.gateway}} if self.require_did else {}

    def channel(self, address: str, target: str, options: Sequence[tuple[str, int]]) -> grpc.aio.Channel:
        """Return a channel to an address. `target`: dialled for it; TLS still asks for the certificate of the address.

        Raises `OperationError` (400) for an address of "https://" without an authority.
        """
        named = [*options, ("grpc.default_authority", plain_address(address, tls=self.authority is not None))]
        if self.authority is None:
            return grpc.aio.insecure_channel(target, options=named)
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(self.authority), options=named)

    def bind(self, server: grpc.aio.Server, address: str) -> int:
        """Have a server listen; the port. Raises RuntimeError where the address cannot be listened on.

        Raises `OperationError` (400) for an address of "https://" without a certificate.
        """
        address = plain_address(address, tls=self.certificate is not None)
        if self.certificate is None:
            return int(server.add_insecure_port(address))
        chain, key = self.certificate
        return int(server.add_secure_port(address, grpc.ssl_server_credentials([(key, chain)])))

    def proof(self, address: str, path: str) -> tuple[tuple[str, str], ...]:
        """Return the metadata that proves the own DID for one call."""
        if self.identity is None:
            return ()
        headers = RequestSigner(self.identity).headers("POST", f"{_scheme(self.authority)}://{plain_address(address)}{path}")
        return tuple((name.lower(), value) for name, value in headers.items())


class CallerProofs:
    """Verify the proofs of the calls at one address. For one event loop."""

    def __init__(self, security: Security, address: str) -> None:
        """Remember used proofs from now on. Raises `Unavailable` (`system.file`)."""
        self._folder = None if security.home else tempfile.TemporaryDirectory(prefix="treaty-aip-")
        home = security.home or Path(self._folder.name if self._folder else "")
        self._nonces = NonceMemory(home / "aip-proofs")
        own = (address, *security.aliases)
        audiences = tuple(f"{_scheme(security.certificate)}://{plain_address(each)}" for each in own)
        resolver = security.resolver or DidResolver(_no_documents)
        self._verifier = RequestVerifier(resolver, self._nonces, audiences=audiences, required=security.require_did)

    async def peer(self, path: str, metadata: Sequence[tuple[str, str | bytes]]) -> ProvedPeer | None:
        """Return the caller if it proved its DID, or None. Raises the errors of `RequestVerifier.verify`."""
        headers = {name: value for name, value in metadata if name in _SIGNED and isinstance(value, str)}
        did = await self._verifier.verify("POST", path, headers, b"")
        return ProvedPeer(did) if did else None

    def close(self) -> None:
        """Forget the proofs, where no home keeps them."""
        self._nonces.close()
        if self._folder is not None:
            self._folder.cleanup()


def _scheme(protected: object) -> str:
    return "http" if protected is None else "https"
