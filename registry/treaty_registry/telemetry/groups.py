"""The groups of routes that metrics, lines and spans name. Paths are not named: one may hold a DID, and they have no bound."""

from __future__ import annotations

from collections.abc import Mapping

OTHER = "other"
"""Paths that nothing serves, and routes without a group."""

_GROUPS: Mapping[str, str] = {
    "": "pages",
    "api": "sigstore",
    "ballots": "topics",
    "blobs": "blobs",
    "checkpoint": "log",
    "docs": "pages",
    "feeds": "feeds",
    "grants": "topics",
    "hashes": "names",
    "health": "health",
    "identities": "identities",
    "log": "log",
    "nodes": "nodes",
    "proofs": "proofs",
    "protocols": "protocols",
    "replay": "pages",
    "resolve": "names",
    "schema": "pages",
    "sigstore": "sigstore",
    "speakers": "standing",
    "standing": "standing",
    "statements": "statements",
    "static": "pages",
    "testimony": "identities",
    "tile": "tiles",
    "topics": "topics",
    "trust-config.json": "sigstore",
    "votes": "topics",
    "vouches": "topics",
    # Of a witness, which may keep copies of logs.
    "add-checkpoint": "witness",
    "add-entries": "witness",
    "add-statement": "witness",
    "mirror": "copies",
}
GROUPS = frozenset(_GROUPS.values()) | {OTHER}
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT"})


def route_group(path: str) -> str:
    """Return the group of a path. An answer's form, as in `/topics.json`, is not part of it."""
    end = path.find("/", 1)
    first = path[1:] if end < 0 else path[1:end]
    return _GROUPS.get(first) or _GROUPS.get(first.partition(".")[0], OTHER)


def method_label(method: str) -> str:
    """Return the method, or `other` for one that no route answers. A client may send any text."""
    return method if method in _METHODS else OTHER
