"""Step 1 for a name: find the URI of the protocol that it means.

A name is a protocol URI, or a name that the policy's registries resolve to exactly one verified protocol: `sha256:HEX`, or the
canonical URI of a standard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from treaty_consensus.canonical import parse_digest
from treaty_consensus.did import parse_did
from treaty_consensus.errors import Malformed, TreatyError
from treaty_consensus.protocol import ProtocolUri, is_verified_alias, parse_protocol_uri
from treaty_io.codes import ResolveCode

from ..policy import Policy
from ..registries.api import RegistryClient
from ..registries.trust import TrustedRegistries
from .answers import answering
from .verification.records import ProvenProtocol
from .verification.steps import Step, VerificationFailed, taking


async def resolve(
    name: str, registries: TrustedRegistries, policy: Policy, client: Callable[[str], RegistryClient]
) -> tuple[ProtocolUri, str | None]:
    """Return the URI that a name means, and the document's hash if the name is a hash.

    `client`: returns the API of a registry, by origin. Raises `VerificationFailed` (`resolve.unknown`, `resolve.ambiguous`,
    `registry.not-trusted`) and `Unavailable`.
    """
    try:
        uri = parse_protocol_uri(name)
    except TreatyError:
        uri = None
    # A URI of a trusted registry needs no question: its own log answers for it.
    if uri is not None and uri.origin in registries.all():
        return uri, None
    expected = _hash_in(name)
    found: dict[str, ProtocolUri] = {}
    asked = [origin for origin in registries.all() if policy.admits_registry(origin)]
    # All of them, also after a first match: a second one makes the name ambiguous, and none of the registries may decide that.
    for matches in await asyncio.gather(*(_matches(client(origin), origin, name) for origin in asked)):
        found |= matches
    if len(found) == 1:
        return next(iter(found.values())), expected
    if uri is not None:
        with taking(Step.RESOLVE):
            registries.get(uri.origin)  # raises the error whose fix says how to trust it
    if found:
        raise VerificationFailed(
            Step.RESOLVE, ResolveCode.AMBIGUOUS, f"{name} may be {', '.join(found)}.", "Name the one you mean by its URI."
        )
    raise VerificationFailed(
        Step.RESOLVE, ResolveCode.UNKNOWN, f"No registry of the policy has a protocol that is known to be {name[:200]}.",
        "Search for it: treaty search WORDS",
    )  # fmt: skip


def check_claim(name: str, proven: ProvenProtocol) -> None:
    """Check that a foreign URI may name this protocol. Raises `VerificationFailed` (`resolve.claim`).

    Its publisher must claim it, and the URI's host must be the publisher's domain.
    """
    # Checked on the proven statement: the registry's own `verified` is only its word.
    if name not in proven.publish.aliases or not is_verified_alias(name, parse_did(proven.author)):
        raise VerificationFailed(
            Step.RESOLVE,
            ResolveCode.CLAIM,
            f"{proven.author}, who publishes {proven.uri}, cannot say that it is {name[:200]}.",
            "Use the protocol's own URI if you trust its publisher.",
        )


async def _matches(client: RegistryClient, origin: str, name: str) -> dict[str, ProtocolUri]:
    """Return the registry's own protocols that it resolves `name` to as verified."""
    with answering(Step.RESOLVE):
        matches = await client.resolve(name)
    with taking(Step.RESOLVE):
        found = {match.uri: parse_protocol_uri(match.uri) for match in matches if match.verified}
    # A registry resolves names to its own protocols only; it cannot answer for another origin.
    return {text: uri for text, uri in found.items() if uri.origin == origin}


def _hash_in(name: str) -> str | None:
    try:
        return parse_digest(name.removeprefix("sha256:"))
    except Malformed:
        return None
