"""Decide whether a grant is in force: whether a DID may publish in the namespace of another one.

A grant ends when the namespace's owner takes it back, and when the owner or the DID that got it begins a new tenure: then another
person may hold the domain. Its order in the log decides. A protocol that was published before the end stays published.

Specification: `docs/specification/statements.md`, "Kinds".
"""

from __future__ import annotations

from .facts import Facts, GrantFact, IdentityFact, find, grant_key, identity_key


def grant_reads(namespace: str, did: str) -> set[str]:
    """Return the keys of the facts that `find_grant` and `new_grant` read."""
    return {grant_key(namespace, did), *map(identity_key, (*_owners(namespace), did))}


def find_grant(facts: Facts, namespace: str, did: str) -> GrantFact | None:
    """Return the grant of `namespace` to `did` that is in force, or None."""
    fact: GrantFact | None = find(facts, grant_key(namespace, did), GrantFact)
    if fact is None or fact.withdrawn:
        return None
    same = tenure_of(facts, fact.owner) == fact.owner_tenure and tenure_of(facts, did) == fact.tenure
    return fact if same else None


def new_grant(facts: Facts, owner: str, did: str, index: int, *, withdrawn: bool) -> GrantFact:
    """Return the fact of a grant that becomes leaf `index`, in the present tenures of both DIDs."""
    return GrantFact(index, owner, tenure_of(facts, owner), tenure_of(facts, did), withdrawn)


def tenure_of(facts: Facts, did: str) -> int:
    """Return the present tenure of a DID: 1 for a did:key, and before the first identity of a domain."""
    fact = find(facts, identity_key(did), IdentityFact)
    return fact.tenure if fact else 1


def _owners(namespace: str) -> tuple[str, ...]:
    """Return the DIDs whose namespace this is."""
    # Both methods of a domain have one namespace, so the identity of either may be the owner's.
    return (namespace,) if namespace.startswith("did:") else (f"did:wba:{namespace}", f"did:web:{namespace}")
