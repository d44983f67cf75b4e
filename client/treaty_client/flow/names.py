"""What an id means, and whose key is whose.

`anp:protocol:NAME:VERSION` belongs to nobody. A publisher may claim it as an alias of a protocol (`publish`), a registry lists
such claims (`/resolve`) and picks none. What is taken here, in this order:

1. the URI that the owner of this agent registered with the id,
2. a claim that is verified, as an alias is whose host is its publisher's domain (an `anp:` id has none),
3. the claim of the first publisher in the policy's order that has one,

and nothing else. Two claims of one publisher are ambiguous, unless the other side says which document it means. The protocol is
then fetched with all ten checks, and the claim has to stand in its proven `publish` statement, by the author that the registry
named.

Both sides may follow other publishers: so what they negotiate says the hash of the document (`engine.PROTOCOL_HASH`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from treaty_consensus import statement
from treaty_consensus.canonical import parse_digest
from treaty_consensus.did import parse_did, public_key_of
from treaty_consensus.errors import Malformed, NotFound, Refused, TreatyError, Unavailable
from treaty_consensus.kinds import Publish
from treaty_consensus.protocol import is_verified_alias, parse_protocol_uri

from ..fetch import Fetcher
from ..registries.replies import Match
from ..verification.bundle import parse_bundle
from ..verification.protocol import VerifiedProtocol
from .ports import Located, Lookup


class PolicyNames:
    """Implements `Names` with the registries and the policy of a fetcher."""

    def __init__(self, fetcher: Fetcher, pins: Callable[[str], str] = lambda id: "") -> None:
        """`pins`: the URI that the owner registered with an id, or ""."""
        self._fetcher, self._pins = fetcher, pins

    async def locate(self, id: str, digest: str = "") -> Located:
        """Raises `NotFound` (`flow.alias-unknown`), `Refused` (`flow.alias-unlisted`, `flow.alias-ambiguous`), `Malformed`,
        `Unavailable`."""
        if digest:
            parse_digest(digest)
        pinned = self._pins(id)
        if pinned:
            return Located(pinned, digest)
        claims = await self._claims(id)
        meant = [claim for claim in claims if digest in ("", claim.hash)]
        if not meant:
            raise NotFound(
                "flow.alias-unknown",
                f"No registry of the policy has a protocol that claims to be {id[:200]}"
                + (", and is the document that the other side means." if claims else "."),
                fix="Register the id with the URI of the protocol you mean.",
            )
        chosen = next(filter(None, (self._of(meant, publisher) for publisher in (None, *self._fetcher.policy.publishers))), None)
        if chosen is None:
            publishers = ", ".join(sorted({claim.publisher for claim in meant}))
            raise Refused(
                "flow.alias-unlisted",
                f"{id} is claimed by {publishers}, whom the policy does not name.",
                fix="Add a publisher you trust to `publishers` in the policy, or register the id with a URI.",
            )
        if len(chosen) > 1:
            raise Refused(
                "flow.alias-ambiguous",
                f"{id} may be {', '.join(sorted(chosen))}.",
                fix="Register the id with the URI of the protocol you mean.",
            )
        (claim,) = chosen.values()
        return Located(claim.uri, claim.hash)

    async def fetch(self, id: str, located: Located) -> VerifiedProtocol:
        """Raises what `Fetcher.fetch` raises, and `Refused` (`flow.alias-claim`, `flow.document`)."""
        verified = await self._fetcher.fetch(located.uri)
        if located.digest not in ("", verified.hash):
            raise Refused("flow.document", f"{located.uri} has another document than {id} was to be.")
        if self._pins(id) != located.uri and not self._holds(id, verified):
            raise Refused("flow.alias-claim", f"{verified.author}, who publishes {verified.uri}, does not say that it is {id}.")
        return verified

    async def _claims(self, id: str) -> list[Match]:
        """All claims to the id at the registries that the policy admits."""
        found: list[Match] = []
        failure: Unavailable | None = None
        for origin in self._fetcher.registries.all():
            if not self._fetcher.policy.admits_registry(origin):
                continue
            try:
                matches = await self._fetcher.client(origin).resolve(id)
            except NotFound:
                continue
            except Unavailable as error:
                failure = error
                continue
            found += [match for match in matches if match.by == "alias" and parse_protocol_uri(match.uri).origin == origin]
        if not found and failure is not None:
            raise failure
        return found

    def _of(self, claims: list[Match], publisher: str | None) -> dict[str, Match]:
        """The claims of one publisher, or the verified ones, by URI."""
        return {claim.uri: claim for claim in claims if (claim.verified if publisher is None else claim.publisher == publisher)}

    def _holds(self, id: str, verified: VerifiedProtocol) -> bool:
        """Whether the author, who is verified or named in the policy, claims the id in the statement that was proved."""
        if not is_verified_alias(id, parse_did(verified.author)) and verified.author not in self._fetcher.policy.publishers:
            return False
        for leaf in parse_bundle(verified.bundle).leaves:
            try:
                body = statement.parse(leaf.leaf).body
            except TreatyError:  # a leaf of another kind
                continue
            if isinstance(body, Publish) and body.uri == verified.uri:
                return id in body.aliases
        return False


class DidKeys:
    """Implements `processor.Keys`: did:key by itself, did:wba and did:web by a resolver, other methods by one each."""

    def __init__(self, resolve: Lookup | None = None, methods: Mapping[str, Lookup] | None = None) -> None:
        """`resolve`: for did:wba and did:web. `methods`: method name to resolver, such as `anp`."""
        self._resolve, self._methods = resolve, dict(methods or {})

    async def __call__(self, did: str) -> Sequence[bytes]:
        """Raises `Refused` (`flow.did-method`) for a method that nobody resolves, and what the resolvers raise."""
        method = did.split(":")[1] if did.startswith("did:") else ""
        if method in self._methods:
            return _listed(await self._methods[method](did))
        parsed = parse_did(did) if method in ("key", "wba", "web") else None
        if parsed is not None and method == "key":
            return [public_key_of(parsed)]
        if parsed is None or self._resolve is None:
            raise Refused(
                "flow.did-method",
                f"did:{method[:20]} cannot be resolved here.",
                fix="Give it a resolver: Agent(…, flow=FlowSettings(resolvers={…})).",
            )
        return _listed(await self._resolve(did))


def _listed(keys: Mapping[str, bytes] | Sequence[bytes]) -> list[bytes]:
    found = list(keys.values()) if isinstance(keys, Mapping) else list(keys)
    if not all(len(key) == 32 for key in found):
        raise Malformed("flow.keys", "An Ed25519 key has 32 bytes.")
    return found
