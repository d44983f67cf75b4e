"""Admission: everything a statement must pass before it queues for the log, the cheap checks first.

1. Quota of the sender's network, and everybody's.
2. Size, canonical form, this log; while the registry is busy, the standing of whom it says it is by; whether it can count at all.
3. The signature under the author's logged identity, if that identity and its keys are known; then the author's quota.
4. Whether only the operator may say this; the checkpoint it has seen; the blobs it names: uploaded, of the digest and size it
   says, and what its type asks of their content (`content_checker`).
5. Otherwise, last, because it makes us ask a host that a stranger names: the author's DID document, then 3.

What remains are the rules about the state of the log (`treaty_consensus.admit`), which the sequencer applies. A rejection changes
nothing, except that step 5 may have logged the author's identity.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from treaty_client.network.turns import asking_for
from treaty_consensus import canonical, statement
from treaty_consensus.admit import check_operator
from treaty_consensus.did import Did
from treaty_consensus.election.principals import SuffixList
from treaty_consensus.errors import Malformed, Refused, TreatyError, Unauthorized
from treaty_consensus.kinds import Body, Handler, Parameters, Publish, Reputation, blobs_of
from treaty_consensus.statement import Statement, Verified

from ..keys import Testimony
from ..log.gossip import Gossip
from ..storage.postgres import Pool
from .bases import check_base
from .content_checker import ContentChecker
from .contents import check_digests
from .electors import Electors
from .fair_queue import FairQueue
from .identities import Identities
from .quota import Quota
from .uploads import Uploads
from .verifier import Verifier

_OWN = "::"
"""Stands for this process where an IP address is asked for: the unspecified one, which no sender has."""
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
        self,
        *,
        pool: Pool,
        origin: str,
        operator: str,
        queue: FairQueue,
        quota: Quota,
        electors: Electors,
        identities: Identities,
        gossip: Gossip,
        uploads: Uploads,
        checker: ContentChecker,
        verifier: Verifier,
    ) -> None:
        """`origin`: the log's. `operator`: its DID. `queue`: where the leaves that are examined have their turns."""
        self._pool = pool
        self._origin = origin
        self._operator = operator
        self._queue = queue
        self._quota = quota
        self._electors = electors
        self._identities = identities
        self._gossip = gossip
        self._uploads = uploads
        self._checker = checker
        self._verifier = verifier

    def charge(self, source: str | None, count: int) -> bool:
        """Take the quotas of `count` leaves from the IP address `source`. True when the registry is so busy that it takes only
        leaves of agents with standing. Raises `Unavailable` (`quota.*`)."""
        return not self._quota.take_from(source, count)

    def charge_service(self, source: str) -> None:
        """Take the quotas of one request to the Sigstore services. Raises `Unavailable` (`quota.*`)."""
        self._quota.take_service(source)

    async def examine(self, leaves: Sequence[bytes], source: str | None, *, reserved: bool) -> list[Examined]:
        """Examine leaves from the IP address `source`, in order. `reserved`: what `charge` returned for them."""
        if sum(map(len, leaves)) > _PARSED_AT_ONCE:
            parsed = await asyncio.to_thread(_parse_all, leaves)
        else:
            parsed = _parse_all(leaves)
        with asking_for(source):
            if len(parsed) == 1:  # the common case needs no further task
                return [await self._examine(parsed[0], source, reserved)]
            done = await asyncio.gather(*(self._examine(item, source, reserved) for item in parsed), return_exceptions=True)
        for outcome in done:  # only now, when none of them works any more: their turn ends with this call
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in done if isinstance(outcome, Examined)]

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
        self._quota.take_upload(source, len(data))
        with asking_for(source):
            await self._authenticate(signed, source)
        self._checker.prepare()  # it starts while the rest of the blobs arrive
        if await asyncio.to_thread(canonical.hex_digest, data) != sha256:
            raise Malformed("blob.digest", f"The SHA-256 of these bytes is not {sha256}.")
        return await self._uploads.hold(sha256, data)

    async def testimony(self, did: Did, key_id: str, source: str | None) -> Testimony:
        """See `Identities.testimony`; it counts as a statement of the IP address `source`."""
        if not self._quota.take_from(source):
            self._quota.take_reserved(did.text)
        with asking_for(source):
            return await self._identities.testimony(did, key_id)

    async def _examine(self, parsed: Statement | TreatyError, source: str | None, reserved: bool) -> Examined:
        if isinstance(parsed, TreatyError):
            return Examined(None, parsed)
        try:
            if reserved:
                self._quota.take_reserved(*(did.text for did in parsed.authors))
            await self._electors.check(parsed)
            return Examined(parsed, await self._admit(parsed, source))
        except TreatyError as error:
            return Examined(parsed, error)

    async def _admit(self, signed: Statement, source: str | None) -> Verified:
        verified = await self._verify_as_known(signed, source)
        check_operator(signed, self._operator)
        await self._gossip.check(signed.body)
        match signed.body:
            case Publish() | Handler() as body:
                if isinstance(body, Publish) and body.base is not None:
                    await check_base(self._pool, body.base)
                with self._queue.aside(source):  # the checker has a queue of its own
                    await self._checker.check(body, partial(self._uploads.present, blobs_of(body)), source or _OWN)
                return verified or await self._verify_after_learning(signed, source)
            case body:
                # What only the operator says may name 128 MiB. None of it is read before the operator's signature has verified.
                verified = verified or await self._verify_after_learning(signed, source)
                await self._check_own(body)
                return verified

    async def _authenticate(self, signed: Statement, source: str | None) -> Verified:
        return await self._verify_as_known(signed, source) or await self._verify_after_learning(signed, source)

    async def _verify_as_known(self, signed: Statement, source: str | None) -> Verified | None:
        """Verify under the keys that the log knows; None when it does not know them all. Raises `Unauthorized`, `Refused`."""
        if signed.log != self._origin:
            raise Refused("statement.other-log", f"This statement is for the log {signed.log}, not for {self._origin}.")
        keys: dict[str, bytes] = {}
        for did in signed.authors:
            keys |= await self._identities.keys(did)
        return await self._verify(signed, keys, source) if keys.keys() >= set(signed.by) else None

    async def _verify_after_learning(self, signed: Statement, source: str | None) -> Verified:
        keys: dict[str, bytes] = {}
        for did, key_id in zip(signed.authors, signed.by, strict=True):
            known = await self._identities.keys(did)
            if key_id not in known and did.method != "key":
                with self._queue.aside(source):  # a host may take seconds to answer
                    known = await self._identities.learn(did)
            if key_id not in known:
                raise Unauthorized("statement.unknown-key", f"{key_id} is not a key of its DID as this log knows it.")
            keys |= known
        return await self._verify(signed, keys, source)

    async def _verify(self, signed: Statement, keys: Mapping[str, bytes], source: str | None) -> Verified:
        verified = await self._verifier.verify(signed, keys)
        for did in signed.authors:
            self._quota.take_of(did, source)
        return verified

    async def _check_own(self, body: Body) -> None:
        """Check what a statement names that the operator signed."""
        named = blobs_of(body)
        if named:
            contents = await self._uploads.present(named)
            await asyncio.to_thread(check_digests, contents)
            if isinstance(body, Parameters):
                await asyncio.to_thread(check_anchors, body, contents)


def check_anchors(parameters: Parameters, contents: Mapping[str, bytes]) -> None:
    """Check the anchors of an open electorate by the suffix list that its parameters name, which is in `contents`. CPU-bound.

    Raises `Malformed` (`parameters.suffix-list`) or `Refused` (`parameters.anchors`).
    """
    if not isinstance(parameters.reputation, Reputation):
        return
    suffixes = SuffixList(contents[parameters.reputation.suffix_list.sha256])
    for anchor in parameters.reputation.anchors:
        if not suffixes.is_registrable(anchor):
            raise Refused("parameters.anchors", f"The anchor {anchor} is not a registrable domain by its suffix list.")


def _parse_all(leaves: Sequence[bytes]) -> list[Statement | TreatyError]:
    return [_parse(leaf) for leaf in leaves]


def _parse(leaf: bytes) -> Statement | TreatyError:
    try:
        return statement.parse(leaf)
    except TreatyError as error:
        return error
