"""Admission: everything a statement must pass before it queues for the log, the cheap checks first.

1. Quota of the sender's network, and everybody's.
2. Size, canonical form, this log; while the registry is busy, the standing of whom it says it is by.
3. The signature under the author's logged identity, if that identity and its keys are known; then the author's quota.
4. The checkpoint it has seen; the blobs it names: uploaded, of the digest and size it says, and what its type asks of
   their content.
5. Otherwise, last, because it makes us ask a host that a stranger names: the author's DID document, then 3.

What remains are the rules about the state of the log (`treaty_consensus.admit`), which the sequencer applies. A rejection changes
nothing, except that step 5 may have logged the author's identity.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treaty_client.network.turns import asking_for
from treaty_consensus import canonical, statement
from treaty_consensus.did import Did
from treaty_consensus.election.principals import SuffixList
from treaty_consensus.errors import Malformed, Refused, TreatyError, Unauthorized
from treaty_consensus.handler import read_wheel
from treaty_consensus.kinds import MAX_BUNDLE, Body, Handler, Parameters, Publish, Reputation, blobs_of
from treaty_consensus.protocol import check_document, parse_card
from treaty_consensus.statement import Statement, Verified

from ..keys import Testimony
from ..log.gossip import Gossip
from .identities import Identities
from .quota import Quota
from .uploads import Uploads
from .verifier import Verifier

_PARSED_AT_ONCE = 16 * 1024
"""Bytes of leaves that are parsed on the event loop; more go to a thread, so that nobody waits for one large batch."""


@dataclass(frozen=True)
class Examined:
    """What came of a leaf: `statement` if it parsed, and either the verified statement or the reason why not."""

    statement: Statement | None
    verdict: Verified | TreatyError


class Admission:
    """Safe for concurrent use on one event loop."""

    def __init__(
        self, *, origin: str, quota: Quota, identities: Identities, gossip: Gossip, uploads: Uploads, verifier: Verifier
    ) -> None:
        self._origin = origin
        self._quota = quota
        self._identities = identities
        self._gossip = gossip
        self._uploads = uploads
        self._verifier = verifier

    async def examine(self, leaves: Sequence[bytes], source: str | None) -> list[Examined]:
        """Examine leaves from the IP address `source`, in order. Raises `Unavailable` (`quota.*`) for all of them together."""
        reserved = not self._quota.take_from(source, len(leaves))
        if sum(map(len, leaves)) > _PARSED_AT_ONCE:
            parsed = await asyncio.to_thread(_parse_all, leaves)
        else:
            parsed = _parse_all(leaves)
        with asking_for(source):
            if len(parsed) == 1:  # the common case needs no further task
                return [await self._examine(parsed[0], reserved)]
            return await asyncio.gather(*(self._examine(item, reserved) for item in parsed))

    async def take_upload(self, sha256: str, leaf: bytes, data: bytes, source: str | None) -> bool:
        """Hold an upload that the signed statement `leaf` names. False when it was held already.
        Raises what `examine` may report, and `Refused` when statement and bytes do not fit."""
        reserved = not self._quota.take_from(source)
        canonical.parse_digest(sha256)
        signed = statement.parse(leaf)
        if reserved:
            self._quota.take_reserved(*(did.text for did in signed.authors))
        blob = next((blob for blob in blobs_of(signed.body) if blob.sha256 == sha256), None)
        if blob is None or not isinstance(signed.body, Publish | Handler):
            raise Refused("blob.not-named", f"The statement does not name the blob {sha256}.")
        if blob.size != len(data):
            raise Refused("blob.size", f"The statement says {blob.size} bytes, {len(data)} came.")
        with asking_for(source):
            await self._authenticate(signed)
        if await asyncio.to_thread(canonical.hex_digest, data) != sha256:
            raise Malformed("blob.digest", f"The SHA-256 of these bytes is not {sha256}.")
        return await self._uploads.hold(sha256, data)

    async def testimony(self, did: Did, key_id: str, source: str | None) -> Testimony:
        """See `Identities.testimony`; it counts as a statement of the IP address `source`."""
        if not self._quota.take_from(source):
            self._quota.take_reserved(did.text)
        with asking_for(source):
            return await self._identities.testimony(did, key_id)

    async def _examine(self, parsed: Statement | TreatyError, reserved: bool) -> Examined:
        if isinstance(parsed, TreatyError):
            return Examined(None, parsed)
        try:
            if reserved:
                self._quota.take_reserved(*(did.text for did in parsed.authors))
            return Examined(parsed, await self._admit(parsed))
        except TreatyError as error:
            return Examined(parsed, error)

    async def _admit(self, signed: Statement) -> Verified:
        verified = await self._verify_as_known(signed)
        await self._gossip.check(signed.body)
        await self._check_contents(signed.body)
        return verified or await self._verify_after_learning(signed)

    async def _authenticate(self, signed: Statement) -> Verified:
        return await self._verify_as_known(signed) or await self._verify_after_learning(signed)

    async def _verify_as_known(self, signed: Statement) -> Verified | None:
        """Verify under the keys that the log knows; None when it does not know them all. Raises `Unauthorized`, `Refused`."""
        if signed.log != self._origin:
            raise Refused("statement.other-log", f"This statement is for the log {signed.log}, not for {self._origin}.")
        keys: dict[str, bytes] = {}
        for did in signed.authors:
            keys |= await self._identities.keys(did)
        return await self._verify(signed, keys) if keys.keys() >= set(signed.by) else None

    async def _verify_after_learning(self, signed: Statement) -> Verified:
        keys: dict[str, bytes] = {}
        for did, key_id in zip(signed.authors, signed.by, strict=True):
            known = await self._identities.keys(did)
            if key_id not in known and did.method != "key":
                known = await self._identities.learn(did)
            if key_id not in known:
                raise Unauthorized("statement.unknown-key", f"{key_id} is not a key of its DID as this log knows it.")
            keys |= known
        return await self._verify(signed, keys)

    async def _verify(self, signed: Statement, keys: Mapping[str, bytes]) -> Verified:
        verified = await self._verifier.verify(signed, keys)
        for did in signed.authors:
            self._quota.take_of(did)
        return verified

    async def _check_contents(self, body: Body) -> None:
        named = blobs_of(body)
        if named:
            contents = await self._uploads.present(named)
            await asyncio.to_thread(check_contents, body, contents)


def check_contents(body: Body, contents: Mapping[str, bytes]) -> None:
    """Check the blobs that a statement names, by digest, against what its type asks of them. CPU-bound.

    Raises `Malformed`, `TooLarge` or `Refused`; `Malformed("blob.digest")` when bytes are not those of their digest.
    """
    for digest, data in contents.items():
        if canonical.hex_digest(data) != digest:
            raise Malformed("blob.digest", f"The stored bytes of {digest} are damaged.", fix="Upload the blob again.")
    match body:
        case Publish():
            check_document(contents[body.document.sha256])
            parse_card(contents[body.card.sha256])
        case Handler():
            package = read_wheel(body.filename, contents[body.wheel.sha256])
            said = package.manifest.protocol_uri, package.manifest.protocol_hash, str(package.entry_point)
            if said != (body.uri, body.document, body.entry_point):
                raise Refused("handler.mismatch", "The wheel is for another protocol, or has another entry point.")
            canonical.parse_json(contents[body.bundle.sha256], limit=MAX_BUNDLE, what="Sigstore bundle")
        case Parameters(reputation=Reputation() as terms):
            suffixes = SuffixList(contents[terms.suffix_list.sha256])
            for anchor in terms.anchors:
                if not suffixes.is_registrable(anchor):
                    raise Refused("parameters.anchors", f"The anchor {anchor} is not a registrable domain by its suffix list.")


def _parse_all(leaves: Sequence[bytes]) -> list[Statement | TreatyError]:
    return [_parse(leaf) for leaf in leaves]


def _parse(leaf: bytes) -> Statement | TreatyError:
    try:
        return statement.parse(leaf)
    except TreatyError as error:
        return error
