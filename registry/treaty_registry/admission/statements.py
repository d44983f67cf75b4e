"""Check everything that a statement must pass before it queues for the log, the cheap checks first.

1. The quotas of the sender's network and of all senders.
2. Size, canonical form, and the log it is for. While the registry is busy, the standing of its named author. Whether it can
   count.
3. The signature, if the author's identity and keys are logged; then the quota of the author.
4. Whether the author may make this statement; the checkpoint that it carries; its blobs: uploaded, with the digest and size that
   it names, and with the contents that its type requires (`content_checker`).
5. If the identity or a key is unknown: fetch the author's DID document, then do step 3.

The rules about the state of the log remain (`treaty_consensus.admit`); the sequencer applies them. A rejected statement changes
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
from treaty_consensus.codes import ParametersCode, StatementCode
from treaty_consensus.did import Did
from treaty_consensus.election.principals import SuffixList
from treaty_consensus.errors import Malformed, Refused, TreatyError, Unauthorized
from treaty_consensus.kinds import Body, Handler, Parameters, Publish, Reputation, blobs_of
from treaty_consensus.statement import Statement, Verified

from ..catalogue.handler_facts import HandlerFacts
from ..codes import RegistryBlobCode
from ..keys import Testimony
from ..log.seen_checkpoints import SeenCheckpoints
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
"""The IP address that stands for this process: the unspecified address, which no sender has."""
_PARSED_AT_ONCE = 16 * 1024
"""Bytes of leaves that are parsed on the event loop. Larger batches go to a thread, so that they do not delay other requests."""


@dataclass(frozen=True)
class Examined:
    """The result of examining a leaf: the parsed statement, if it parsed, and the verified statement or the reason for refusal.
    `handler`: the facts of a handler."""

    statement: Statement | None
    verdict: Verified | TreatyError
    handler: HandlerFacts | None = None


class Admission:
    """The checks of statements and uploads. Safe for concurrent use on one event loop."""

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
        seen_checkpoints: SeenCheckpoints,
        uploads: Uploads,
        checker: ContentChecker,
        verifier: Verifier,
    ) -> None:
        """`origin`: of the log. `operator`: its DID. `queue`: the queue in which examined leaves have their turns."""
        self._pool = pool
        self._origin = origin
        self._operator = operator
        self._queue = queue
        self._quota = quota
        self._electors = electors
        self._identities = identities
        self._seen_checkpoints = seen_checkpoints
        self._uploads = uploads
        self._checker = checker
        self._verifier = verifier

    def charge(self, source: str | None, count: int) -> bool:
        """Charge `count` leaves to the IP address `source`.

        Returns True when the registry is so busy that it takes only leaves of agents with standing. Raises `Unavailable`
        (`quota.*`).
        """
        return not self._quota.take_from(source, count)

    def charge_service(self, source: str) -> None:
        """Charge one request to the Sigstore services to an IP address. Raises `Unavailable` (`quota.*`)."""
        self._quota.take_service(source)

    async def examine(self, leaves: Sequence[bytes], source: str | None, *, reserved: bool) -> list[Examined]:
        """Examine leaves from the IP address `source`; one result per leaf, in order. `reserved`: the result of `charge` for
        them."""
        if sum(map(len, leaves)) > _PARSED_AT_ONCE:
            parsed = await asyncio.to_thread(_parse_all, leaves)
        else:
            parsed = _parse_all(leaves)
        with asking_for(source):
            if len(parsed) == 1:  # the common case needs no further task
                return [await self._examine(parsed[0], source, reserved)]
            done = await asyncio.gather(*(self._examine(item, source, reserved) for item in parsed), return_exceptions=True)
        for outcome in done:  # raise after all have ended, because their turn ends with this call
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in done if isinstance(outcome, Examined)]

    async def take_upload(self, sha256: str, leaf: bytes, data: bytes, source: str | None) -> bool:
        """Store an upload that the signed statement `leaf` names. Returns False when it was stored already.

        Raises what `examine` reports for the statement, and `Refused` when statement and bytes do not fit.
        """
        # Before parsing, because it is the cheapest check.
        reserved = not self._quota.take_from(source)
        canonical.parse_digest(sha256)
        signed = statement.parse(leaf)
        if reserved:
            self._quota.take_reserved(*(did.text for did in signed.authors))
        # Only bytes that a signed statement names are stored, so the registry is no free storage.
        blob = next((blob for blob in blobs_of(signed.body) if blob.sha256 == sha256), None)
        if blob is None or not isinstance(signed.body, Publish | Handler):
            raise Refused(RegistryBlobCode.NOT_NAMED, f"The statement does not name the blob {sha256}.")
        if blob.size != len(data):
            raise Refused(RegistryBlobCode.SIZE, f"The statement says {blob.size} bytes, {len(data)} came.")
        # Before the signature, because verifying may have to fetch a DID document.
        self._quota.take_upload(source, len(data))
        with asking_for(source):
            await self._authenticate(signed, source)
        self._checker.prepare()  # it starts while the rest of the blobs arrive
        # In a thread, because a wheel has megabytes.
        if await asyncio.to_thread(canonical.hex_digest, data) != sha256:
            raise Malformed(RegistryBlobCode.DIGEST, f"The SHA-256 of these bytes is not {sha256}.")
        return await self._uploads.hold(sha256, data)

    async def testimony(self, did: Did, key_id: str, source: str | None) -> Testimony:
        """See `Identities.testimony`. The request is charged as a statement from the IP address `source`."""
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
            # A statement that can never count is refused before its signature is verified, and before its author's
            # host is asked.
            await self._electors.check(parsed)
            verified, handler = await self._admit(parsed, source)
            return Examined(parsed, verified, handler)
        except TreatyError as error:
            return Examined(parsed, error)

    async def _admit(self, signed: Statement, source: str | None) -> tuple[Verified, HandlerFacts | None]:
        # Known authors are verified first: a forgery must not cause any of the work below.
        verified = await self._verify_as_known(signed, source)
        check_operator(signed, self._operator)
        await self._seen_checkpoints.check(signed.body)
        match signed.body:
            case Publish() | Handler() as body:
                # Before the contents: one query against a parse of megabytes.
                if isinstance(body, Publish) and body.base is not None:
                    await check_base(self._pool, body.base)
                named = blobs_of(body)
                # Before the checker's queue, where few statements are at a time: a whole batch shares one query here.
                await self._uploads.check(named)
                with self._queue.aside(source):  # do not hold a place here while waiting in the checker's queue
                    handler = await self._checker.check(body, partial(self._uploads.contents, named), source or _OWN)
                # An unknown author comes last. Learning it makes the registry contact a host that a stranger names.
                return verified or await self._verify_after_learning(signed, source), handler
            case body:
                # Blobs of the operator's statements may have 128 MiB. They are read only after the operator's signature has
                # verified.
                verified = verified or await self._verify_after_learning(signed, source)
                await self._check_own(body)
                return verified, None

    async def _authenticate(self, signed: Statement, source: str | None) -> Verified:
        return await self._verify_as_known(signed, source) or await self._verify_after_learning(signed, source)

    async def _verify_as_known(self, signed: Statement, source: str | None) -> Verified | None:
        """Verify a statement under the logged keys; None when a key is not logged. Raises `Unauthorized`, `Refused`."""
        # Otherwise a statement of another log could be replayed here.
        if signed.log != self._origin:
            raise Refused(StatementCode.OTHER_LOG, f"This statement is for the log {signed.log}, not for {self._origin}.")
        keys: dict[str, bytes] = {}
        for did in signed.authors:
            keys |= await self._identities.keys(did)
        # If any key is unknown, verify once after learning. So each author is charged once for a statement.
        return await self._verify(signed, keys, source) if keys.keys() >= set(signed.by) else None

    async def _verify_after_learning(self, signed: Statement, source: str | None) -> Verified:
        keys: dict[str, bytes] = {}
        for did, key_id in zip(signed.authors, signed.by, strict=True):
            known = await self._identities.keys(did)
            if key_id not in known and did.method != "key":
                with self._queue.aside(source):  # a host may take seconds to answer
                    known = await self._identities.learn(did)
            if key_id not in known:
                raise Unauthorized(StatementCode.UNKNOWN_KEY, f"{key_id} is not a key of its DID as this log knows it.")
            keys |= known
        return await self._verify(signed, keys, source)

    async def _verify(self, signed: Statement, keys: Mapping[str, bytes], source: str | None) -> Verified:
        verified = await self._verifier.verify(signed, keys)
        # After the verification, so that a forger cannot use up the quota of the authors that it names.
        for did in signed.authors:
            self._quota.take_of(did, source)
        return verified

    async def _check_own(self, body: Body) -> None:
        """Check the blobs of a statement that the operator signed."""
        named = blobs_of(body)
        if named:
            contents = await self._uploads.present(named)
            # In a thread: these blobs may have 128 MiB.
            await asyncio.to_thread(check_digests, contents)
            if isinstance(body, Parameters):
                await asyncio.to_thread(check_anchors, body, contents)


def check_anchors(parameters: Parameters, contents: Mapping[str, bytes]) -> None:
    """Check the anchors of an open electorate against the suffix list that its parameters name. CPU-bound.

    `contents` holds the suffix list. Raises `Malformed` (`parameters.suffix-list`) or `Refused` (`parameters.anchors`).
    """
    if not isinstance(parameters.reputation, Reputation):
        return
    suffixes = SuffixList(contents[parameters.reputation.suffix_list.sha256])
    for anchor in parameters.reputation.anchors:
        if not suffixes.is_registrable(anchor):
            raise Refused(ParametersCode.ANCHORS, f"The anchor {anchor} is not a registrable domain by its suffix list.")


def _parse_all(leaves: Sequence[bytes]) -> list[Statement | TreatyError]:
    return [_parse(leaf) for leaf in leaves]


def _parse(leaf: bytes) -> Statement | TreatyError:
    try:
        return statement.parse(leaf)
    except TreatyError as error:
        return error
