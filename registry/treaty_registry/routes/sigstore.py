"""Serve `/sigstore` and `/trust-config.json`: the Sigstore services of this registry, for standard clients.

The formats and rules are in `sigstore_authority`, whose package docstring lists the statuses.
"""

from __future__ import annotations

from dataclasses import dataclass

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from treaty_io.network.turns import asking_for

from ..cache_control import NO_STORE
from ..problems import http_problem
from ..registry import Registry
from ..serving.representation import JSON, OCTETS, TEXT, Representation
from ..serving.views import Views
from ..sigstore_authority import ca, rekor, timestamps, trust
from ..sigstore_authority.keys import AuthorityKeys
from .documentation import BINARY_BODY, OBJECT_BODY, READ, WRITE, answers, operation
from .requests import HttpRequest, media_type, read_body, source
from .responses import problem_response

TIMESTAMP_QUERY = "application/timestamp-query"
TIMESTAMP_REPLY = "application/timestamp-reply"
PEM_CHAIN = "application/pem-certificate-chain"
# The issuers are DIDs, each of its own tokens. Fulcio's patterns have no wildcard that matches them.
NO_ISSUERS = b'{"issuers":[]}'


@dataclass(frozen=True)
class Services:
    """The three services of one authority."""

    certificates: ca.CertificateAuthority
    timestamps: timestamps.TimestampAuthority
    entries: rekor.EntryLog

    @classmethod
    def of(cls, registry: Registry, keys: AuthorityKeys) -> Services:
        """Return the services of a registry with the keys of its authority."""
        origin, append = registry.origin, registry.append
        return cls(
            ca.CertificateAuthority(
                keys,
                origin=origin,
                append=append,
                authentication_keys=registry.authentication_keys,
                spend=registry.spend,
                clock=registry.clock,
            ),
            timestamps.TimestampAuthority(keys, clock=registry.clock),
            rekor.EntryLog(keys, log_key=lambda: registry.log_key, append=append, clock=registry.clock),
        )


class Authorities:
    """The services of a registry's authority, which a rotation of its keys replaces."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._made: tuple[AuthorityKeys, Services] | None = None

    @property
    def services(self) -> Services:
        """Return the services of the authority in force. Raises as `Registry.authority`."""
        keys = self._registry.authority
        if self._made is None or self._made[0] is not keys:
            self._made = keys, Services.of(self._registry, keys)
        return self._made[1]


@post(
    # sigstore-python drops the path of the authority's URL, hence the second path.
    ["/sigstore/api/v2/signingCert", "/api/v2/signingCert"],
    status_code=200,
    summary="A signing certificate for a DID (Fulcio)",
    operation_class=operation(reads={JSON: OBJECT_BODY}, about="A CSR or a public key, with a token that the DID signed itself."),
    responses=answers(dict[str, object], "The certificate chain, with an embedded SCT.", *WRITE),
)
async def signing_certificate(
    request: HttpRequest, registry: NamedDependency[Registry], authorities: NamedDependency[Authorities]
) -> Response[bytes]:
    """Issue a signing certificate. It is in the log before it is returned."""
    if media_type(request) != JSON:
        return problem_response(http_problem(415))
    body = await read_body(request, ca.MAX_REQUEST)
    sender = source(request, registry.proxies)
    # Before parsing: each certificate becomes a permanent leaf, so requests are limited by network.
    registry.charge_service(sender)
    with asking_for(sender):
        return _reply(await authorities.services.certificates.issue(body, request.headers.get("authorization")), 200, JSON)


@post(
    "/sigstore/api/v1/timestamp",
    summary="A timestamp (RFC 3161)",
    operation_class=operation(
        reads={TIMESTAMP_QUERY: BINARY_BODY}, sends={400: {TIMESTAMP_REPLY: BINARY_BODY}}, about="A DER TimeStampReq."
    ),
    responses=answers(bytes, "A granted TimeStampResp; a 400 holds a rejection.", *WRITE, status=201, media_type=TIMESTAMP_REPLY),
)
async def timestamp(
    request: HttpRequest, registry: NamedDependency[Registry], authorities: NamedDependency[Authorities]
) -> Response[bytes]:
    """Return a timestamp of any imprint."""
    if media_type(request) != TIMESTAMP_QUERY:
        return problem_response(http_problem(415))
    body = await read_body(request, timestamps.MAX_QUERY)
    registry.charge_service(source(request, registry.proxies))
    reply = authorities.services.timestamps.respond(body)
    return _reply(reply.der, 201 if reply.granted else 400, TIMESTAMP_REPLY)


@post(
    "/sigstore/api/v2/log/entries",
    summary="Log a signature (Rekor v2)",
    operation_class=operation(reads={JSON: OBJECT_BODY}, about="A hashedRekordRequestV002."),
    responses=answers(dict[str, object], "A TransparencyLogEntry.", *WRITE, status=201),
)
async def log_entry(
    request: HttpRequest, registry: NamedDependency[Registry], authorities: NamedDependency[Authorities]
) -> Response[bytes]:
    """Log a signature. Only signatures with certificates of this registry are logged."""
    if media_type(request) != JSON:
        return problem_response(http_problem(415))
    body = await read_body(request, rekor.MAX_REQUEST)
    registry.charge_service(source(request, registry.proxies))
    return _reply(await authorities.services.entries.add(body), 201, JSON)


@get("/trust-config.json", summary="ClientTrustConfig for Sigstore clients", responses=answers(dict[str, object], "It.", *READ))
async def client_trust_config(views: NamedDependency[Views]) -> Representation:
    """Return the input of `sigstore --trust-config`: the trusted root, and the URLs of the services.

    Compare the root's digest with the genesis.
    """
    registry = views.registry
    # Not kept: a rotation changes what follows from the trusted root.
    config = trust.trust_config(registry.current_trusted_root, origin=registry.origin, base_url=registry.base_url)
    return Representation(config, JSON)


@get("/sigstore/trusted-root.json", summary="The trusted root", responses=answers(dict[str, object], "It.", *READ))
async def trusted_root(views: NamedDependency[Views]) -> Representation:
    """Return the exact bytes whose SHA-256 the genesis pins, with the log's later keys and authorities added after a rotation."""
    return Representation(views.registry.current_trusted_root, JSON)


@get(
    ["/sigstore/api/v2/checkpoint", "/api/v2/checkpoint"],
    summary="The newest checkpoint (Rekor v2)",
    responses=answers(str, "A signed note.", *READ, media_type=TEXT),
)
async def rekor_checkpoint(views: NamedDependency[Views]) -> Representation:
    """Return `/checkpoint`, for monitors of Rekor v2. They read it below the address of the log."""
    return await views.checkpoint()


@get(
    ["/sigstore/api/v2/tile/{path:path}", "/api/v2/tile/{path:path}"],
    summary="A tile (Rekor v2)",
    responses=answers(bytes, "Hashes, or entries.", 404, *READ, media_type=OCTETS),
)
async def rekor_tile(path: FromPath[str], views: NamedDependency[Views]) -> Representation:
    """Return the tile at `/tile/…`, for monitors of Rekor v2."""
    return await views.tile(f"/tile{path}")


@get(
    ["/sigstore/api/v2/trustBundle", "/api/v2/trustBundle"],
    summary="The root of the certificate authority (Fulcio)",
    responses=answers(dict[str, object], "A TrustBundle.", *READ),
)
async def trust_bundle(views: NamedDependency[Views]) -> Representation:
    """Return the certificate chains above signing certificates. It is part of the trusted root."""
    return Representation(trust.trust_bundle(views.registry.current_trusted_root), JSON)


@get(
    ["/sigstore/api/v2/configuration", "/api/v2/configuration"],
    summary="The OIDC issuers (Fulcio)",
    responses=answers(dict[str, object], "A Configuration without issuers.", *READ),
)
async def configuration(request: HttpRequest, views: NamedDependency[Views]) -> Representation:
    """Return that no OIDC issuer is known, because a DID issues its own tokens."""
    return views.constant(request.url.path, NO_ISSUERS)


@get(
    "/sigstore/api/v1/timestamp/certchain",
    summary="The chain of the timestamp authority",
    responses=answers(str, "PEM certificates.", *READ, media_type=PEM_CHAIN),
)
async def timestamp_chain(views: NamedDependency[Views]) -> Representation:
    """Return the certificate of each timestamp authority and the one above it, first to newest. The trusted root has them too."""
    return Representation(trust.timestamp_chain(views.registry.current_trusted_root), PEM_CHAIN)


def _reply(body: bytes, status: int, content_type: str) -> Response[bytes]:
    return Response(body, status_code=status, media_type=content_type, headers={"Cache-Control": NO_STORE})
