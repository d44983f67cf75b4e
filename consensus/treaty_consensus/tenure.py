"""Decide the tenure of an identity, and when a new tenure may publish and vote.

Specification: `docs/specification/statements.md`, "Admission".
"""

from __future__ import annotations

from .codes import IdentityCode
from .errors import Refused
from .facts import IdentityFact, LogFact

# Seconds of the log's clock: the time in which the owner of a domain can notice that others took it, before they publish.
TENURE_WAIT = 30 * 24 * 3600


def tenure_after(before: IdentityFact | None, multikeys: set[str], *, cosigned: bool) -> int:
    """Return the tenure of an identity with these keys that follows `before`.

    The tenure stays the same if an old key co-signs, or if the document lists no new key. Keys are public, so the new owner
    of a domain may list old keys, but gains nothing by it. A new key without a co-signature starts a new tenure.
    """
    if before is None:
        return 1
    return before.tenure if cosigned or multikeys <= set(before.keys.values()) else before.tenure + 1


def check_tenure(log: LogFact, author: str, identity: IdentityFact | None) -> None:
    """Check that the DID's tenure did not change in the last thirty days."""
    if identity and identity.tenure > 1 and log.time < identity.since + TENURE_WAIT:
        raise Refused(
            IdentityCode.NEW_TENURE,
            f"{author} lists new keys that no old key co-signed, so the domain may have changed hands.",
            fix="Wait until 30 days have passed since then.",
        )
