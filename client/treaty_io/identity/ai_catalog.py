"""Write AI Catalogs (AI Catalog 1.0, ARD 0.9): the entries by which crawlers and registries of others find an agent.

    {"specVersion": "1.0", "host": {"displayName": NAME, "identifier": DID}, "entries": [
      {"identifier": "urn:air:shop.example:agent", "displayName": NAME, "type": MEDIA-TYPE, "url": URL, …,
       "trustManifest": {"identity": DID, "identityType": "did", "provenance": […], "attestations": […],
                         "signature": "PROTECTED..SIGNATURE"}}]}

The signature is a detached JWS over the JCS of the trust manifest without `signature`. Its `kid` is a key of `identity`. The
manifest's addresses and digests bind an entry: its other members are unsigned, and for people.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from treaty_consensus import canonical

from .identity import Identity

CATALOG_PATH = "/.well-known/ai-catalog.json"
CATALOG_TYPE = "application/ai-catalog+json"
_NOT_IN_HOSTS = re.compile(r"[^A-Za-z0-9.-]")


def catalog(name: str, did: str, entries: Sequence[object]) -> dict[str, object]:
    """Return a catalog. `name`, `did`: of its host."""
    return {"specVersion": "1.0", "host": {"displayName": name, "identifier": did}, "entries": list(entries)}


def air_name(host: str, *parts: str) -> str:
    """Return the URN of an entry below a host. `parts`: names or namespaces. In an IP address, ':' becomes '-'."""
    return ":".join(("urn:air", _NOT_IN_HOSTS.sub("-", host), *parts))


def attestation(kind: str, uri: str, media_type: str, digest: str = "") -> dict[str, str]:
    """Return the attestation of a document. `digest`: the SHA-256 of a document that does not change."""
    return {"type": kind, "uri": uri, "mediaType": media_type, **({"digest": f"sha256:{digest}"} if digest else {})}


def trust_manifest(
    did: str, signer: Identity | None, attestations: Sequence[object], *, source: str = "", digest: str = ""
) -> dict[str, object]:
    """Return a trust manifest of `did`, signed by `signer` if given. `source`, `digest`: the artifact's URI and its SHA-256."""
    manifest: dict[str, object] = {"identity": did, "identityType": "did", "attestations": list(attestations)}
    if source:
        manifest["provenance"] = [{"relation": "publishedFrom", "sourceId": source, "sourceDigest": f"sha256:{digest}"}]
    if signer is not None:
        manifest["signature"] = "..".join(signer.sign_detached(canonical.dumps(manifest)))
    return manifest
