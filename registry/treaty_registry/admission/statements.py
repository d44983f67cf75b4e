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

The number of documents that a document is based on, directly and indirectly, is limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec

from treaty_client.registries.replies import Testimony
from treaty_consensus import canonical, statement
from treaty_consensus.admit import check_operator
from treaty_consensus.codes import ParametersCode, ProtocolCode, PublishCode, StatementCode
from treaty_consensus.did import Did
from treaty_consensus.election.principals import SuffixList
from treaty_consensus.errors import Gone, Malformed, NotFound, Refused, TooLarge, TreatyError, Unauthorized
from treaty_consensus.handler.compatibility import Compatibility, check_continues
from treaty_consensus.kinds import Ballot, Base, Body, Handler, Parameters, Publish, Reputation, blobs_of
from treaty_consensus.protocol import parse_protocol_uri
from treaty_consensus.statement import Statement, Verified
from treaty_io.network.addresses import site_network
from treaty_io.network.turns import asking_for

from ..catalogue.handler_facts import HandlerFacts
from ..catalogue.predecessors import Attached, neighbours
from ..catalogue.statuses import check_choices
from ..codes import RegistryBlobCode
from ..log.seen_checkpoints import SeenCheckpoints
from ..storage.postgres import Pool
from .content_checker import ContentChecker
from .contents import check_digests
from .electors import Electors
from .fair_queue import FairQueue
from .identities import Identities
from .quota import Quota
from .senders import Senders
from .uploads import Uploads
from .verifier import Verifier

_OWN = "::"
"""The IP address that stands for this process: the unspecified address, which no sender has."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


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
        senders: Senders,
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
        self._senders = senders
        self._electors = electors
        self._identities = identities
        self._seen_checkpoints = seen_checkpoints
        self._uploads = uploads
        self._checker = checker
        self._verifier = verifier

    def charge(self, source: str | None, count: int) -> bool:
        """Charge `count` leaves to the IP address `source`.

        Returns True when the registry is so busy that it takes only leaves of agents with standing. Raises `Unavailable`
        (`quota.*`), or `Refused` (`sender.blocked`).
        """
        self._senders.check_source(source)
        return not self._quota.take_from(source, count)

    def charge_service(self, source: str) -> None:
        """Charge one request to the Sigstore services to an IP address. Raises `Unavailable` (`quota.*`) or `Refused`
        (`sender.blocked`)."""
        self._senders.check_source(source)
        self._quota.take_service(source)

    async def examine(self, leaves: Sequence[bytes], source: str | None, *, reserved: bool) -> list[Examined]:
        """Examine leaves from the IP address `source`; one result per leaf, in order. `reserved`: the result of `charge` for
        them."""
        parsed = await self._verifier.parse(leaves)
        signed = [item for item in parsed if isinstance(item, Statement)]
        with asking_for(source):
            known_keys = await _each(partial(self._keys, reserved=reserved), signed, self._has_keys_at_hand)
            work = [(item, keys) for item, keys in zip(signed, known_keys, strict=True) if isinstance(keys, Mapping)]
            verified = iter(await self._verifier.verify(work))
            # A refusal, the result of the verification, or None: a key is not known yet.
            checked = [
                (item, next(verified) if isinstance(keys, Mapping) else keys)
                for item, keys in zip(signed, known_keys, strict=True)
            ]
            examined = iter(await _each(partial(self._conclude, source=source), checked, self._has_no_wait))
        return [Examined(None, item) if isinstance(item, TreatyError) else next(examined) for item in parsed]

    async def take_upload(self, sha256: str, leaf: bytes, data: bytes, source: str | None) -> bool:
        """Store an upload that the signed statement `leaf` names. Returns False when it was stored already.

        Raises what `examine` reports for the statement, and `Refused` when statement and bytes do not fit.
        """
        # Before parsing, because it is the cheapest check.
        reserved = self.charge(source, 1)
        canonical.parse_digest(sha256)
        signed = statement.parse(leaf)
        self._senders.check_authors(signed.authors)
        if reserved:
            self._quota.take_reserved(*(did.text for did in signed.authors))
        # Only bytes that a signed statement names are stored, so the registry is no free storage.
        blob = next((blob for blob in blobs_of(signed.body) if blob.sha256 == sha256), None)
        if blob is None or not isinstance(signed.body, Publish | Handler):
            raise Refused(RegistryBlobCode.DIGEST, f"The statement does not name the blob {sha256}.")
        if blob.size != len(data):
            raise Refused(RegistryBlobCode.DIGEST, f"The statement says {blob.size} bytes, {len(data)} came.")
        # Before the signature, because verifying may have to fetch a DID document.
        self._quota.take_upload(source, len(data))
        with asking_for(source):
            await self._authenticate(signed, source)
        self._checker.prepare()  # it starts while the rest of the blobs arrive
        # In a thread, because a wheel has megabytes.
        if await asyncio.to_thread(canonical.hex_digest, data) != sha256:
            raise Malformed(RegistryBlobCode.DIGEST, f"The SHA-256 of these bytes is not {sha256}.")
        # Their signatures are verified, so a standing is theirs. This process's own uploads have no source.
        has_room = source is None or self._quota.has_standing(signed.authors)
        return await self._uploads.hold(sha256, data, None if has_room else site_network(source))

    async def testimony(self, did: Did, key_id: str, source: str | None) -> Testimony:
        """See `Identities.testimony`. The request is charged as a statement from the IP address `source`."""
        self._senders.check_authors([did])
        if self.charge(source, 1):
            self._quota.take_reserved(did.text)
        with asking_for(source):
            return await self._identities.testimony(did, key_id)

    async def _keys(self, signed: Statement, reserved: bool) -> Mapping[str, bytes] | TreatyError | None:
        """Return the keys to verify a statement with; None when one of them is not known; or the reason to verify nothing."""
        try:
            self._senders.check_authors(signed.authors)
            if reserved:
                self._quota.take_reserved(*(did.text for did in signed.authors))
            # A statement that can never count is refused before its signature is verified, and before its author's
            # host is asked.
            await self._electors.check(signed)
            return await self._known_keys(signed)
        except TreatyError as error:
            return error

    def _has_keys_at_hand(self, signed: Statement) -> bool:
        return self._electors.has_at_hand(signed) and all(map(self._identities.has_at_hand, signed.authors))

    async def _conclude(self, checked: tuple[Statement, Verified | Exception | None], source: str | None) -> Examined:
        signed, outcome = checked
        try:
            if isinstance(outcome, Exception):
                raise outcome
            if outcome is not None:
                self._charge_authors(signed, source)
            verified, handler = await self._admit(signed, outcome, source)
            return Examined(signed, verified, handler)
        except TreatyError as error:
            return Examined(signed, error)

    def _has_no_wait(self, checked: tuple[Statement, Verified | Exception | None]) -> bool:
        signed, outcome = checked
        if isinstance(outcome, Verified):
            return not blobs_of(signed.body) and not isinstance(signed.body, Ballot) and self._seen_checkpoints.knows(signed.body)
        return outcome is not None

    async def _admit(
        self, signed: Statement, verified: Verified | None, source: str | None
    ) -> tuple[Verified, HandlerFacts | None]:
        # Known authors are verified first: a forgery must not cause any of the work below.
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
                    if isinstance(body, Handler):
                        await self._check_continues(body, signed.author.text, source)
                # An unknown author comes last. Learning it makes the registry contact a host that a stranger names.
                return verified or await self._verify_after_learning(signed, source), handler
            case Ballot() as ballot:
                verified = verified or await self._verify_after_learning(signed, source)
                await check_choices(self._pool, ballot)
                return verified, None
            case body:
                # Blobs of the operator's statements may have 128 MiB. They are read only after the operator's signature has
                # verified.
                verified = verified or await self._verify_after_learning(signed, source)
                await self._check_own(body)
                return verified, None

    async def _check_continues(self, body: Handler, author: str, source: str | None) -> None:
        """Check that the publisher's own handler does not break the version that its number continues, nor is broken by the one
        that continues it.

        So no version whose handler breaks another one's callers is in its line of an election. Raises `Refused`
        (`publish.breaking`), and `Unavailable`.
        """
        own = Attached(body.uri, body.filename, body.wheel.sha256)
        uri = parse_protocol_uri(body.uri)
        before, after = await neighbours(self._pool, uri, author)
        if before is not None and uri.continues(parse_protocol_uri(before.uri)):
            await self._check_pair(before, own, body, source)
        if after is not None:
            await self._check_pair(own, after, body, source)

    async def _check_pair(self, old: Attached, new: Attached, body: Handler, source: str | None) -> None:
        async def load() -> list[bytes]:
            sent = await self._uploads.contents([body.wheel])
            return [sent.get(each.wheel) or await self._uploads.served(each.wheel) for each in (old, new)]

        try:
            verdict = await self._checker.read("compatibility", f"{old.filename} {new.filename}", load, source or _OWN)
        # Withdrawn bytes, or a comparison that costs too much: nothing shows that it breaks.
        except (Gone, NotFound, Malformed, TooLarge, Refused):
            return
        check_continues(parse_protocol_uri(new.uri), msgspec.msgpack.decode(verdict, type=Compatibility))

    async def _authenticate(self, signed: Statement, source: str | None) -> Verified:
        keys = await self._known_keys(signed)
        return await (self._verify_after_learning(signed, source) if keys is None else self._verify(signed, keys, source))

    async def _known_keys(self, signed: Statement) -> Mapping[str, bytes] | None:
        """Return the logged keys of a statement's authors; None when one that signed is not logged. Raises `Refused`."""
        # Otherwise a statement of another log could be replayed here.
        if signed.log != self._origin:
            raise Refused(StatementCode.OTHER_LOG, f"This statement is for the log {signed.log}, not for {self._origin}.")
        keys: dict[str, bytes] = {}
        for did in signed.authors:
            keys |= await self._identities.keys(did)
        # If any key is unknown, verify once after learning. So each author is charged once for a statement.
        return keys if keys.keys() >= set(signed.by) else None

    async def _verify_after_learning(self, signed: Statement, source: str | None) -> Verified:
        keys: dict[str, bytes] = {}
        for did, key_id in zip(signed.authors, signed.by, strict=True):
            author_keys = await self._identities.keys(did)
            if key_id not in author_keys and did.method != "key":
                with self._queue.aside(source):  # a host may take seconds to answer
                    author_keys = await self._identities.learn(did)
            if key_id not in author_keys:
                raise Unauthorized(StatementCode.UNKNOWN_KEY, f"{key_id} is not a key of its DID as this log knows it.")
            keys |= author_keys
        return await self._verify(signed, keys, source)

    async def _verify(self, signed: Statement, keys: Mapping[str, bytes], source: str | None) -> Verified:
        (outcome,) = await self._verifier.verify([(signed, keys)])
        if isinstance(outcome, Exception):
            raise outcome
        self._charge_authors(signed, source)
        return outcome

    def _charge_authors(self, signed: Statement, source: str | None) -> None:
        # After the verification, so that a forger cannot use up the quota of the authors that it names.
        for did in signed.authors:
            self._quota.take_of(did, source)

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

    `contents` holds the suffix list. Raises `Malformed` (`parameters.value`) or `Refused` (`parameters.value`).
    """
    if not isinstance(parameters.reputation, Reputation):
        return
    suffixes = SuffixList(contents[parameters.reputation.suffix_list.sha256])
    for anchor in parameters.reputation.anchors:
        if not suffixes.is_registrable(anchor):
            raise Refused(ParametersCode.VALUE, f"The anchor {anchor} is not a registrable domain by its suffix list.")


async def _each(
    work: Callable[[_Item], Awaitable[_Result]], items: Sequence[_Item], needs_no_wait: Callable[[_Item], bool]
) -> list[_Result]:
    """Return the results of `work` for all items, in their order. Items that have to wait do so at the same time.

    A task costs more than all the work for an item that waits for nothing, so such items have none.
    """
    if len(items) == 1:
        return [await work(items[0])]
    waiting = [place for place, item in enumerate(items) if not needs_no_wait(item)]
    done = await asyncio.gather(*(work(items[place]) for place in waiting), return_exceptions=True)
    results: dict[int, _Result] = {}
    for place, outcome in zip(waiting, done, strict=True):  # raise after all have ended, because their turn ends with this call
        if isinstance(outcome, BaseException):
            raise outcome
        results[place] = outcome
    return [results[place] if place in results else await work(item) for place, item in enumerate(items)]


# A bundle contains the publish statement of every base, and a reader accepts at most 1,024 leaves. A topic's bundle
# has up to 64 protocols, and any agent can publish in a topic. Without this limit strangers could make that bundle
# too large to read.
MAX_BASES = 8
"""Base documents of one document. A topic's bundle then has at most 64 × 9 = 576 publishes."""

# The recursion stops one step beyond the limit, so the check of a long chain costs no more than that.
_DEPTH = """
with recursive chain (base, depth) as (
  select base, 1 from protocols where uri = $1
  union all
  select p.base, depth + 1 from chain join protocols p on p.uri = chain.base where depth <= $2
)
select max(depth) from chain
"""


async def check_base(pool: Pool, base: Base) -> None:
    """Check the chain of base documents that starts at `base`.

    The base must be logged already. A base in the same batch is refused because its chain is not known yet. Raises `NotFound`
    (`protocol.unknown`) when the base is not published here, and `Refused` (`publish.base`) when the chain is too long.
    """
    depth = await pool.fetchval(_DEPTH, base.uri, MAX_BASES)
    if depth is None:
        raise NotFound(ProtocolCode.UNKNOWN, f"{base.uri} is not published here.", fix="Publish the base first, then send this.")
    if depth > MAX_BASES:
        raise Refused(
            PublishCode.BASE,
            f"The document would be based on more than {MAX_BASES} others.",
            fix="Publish the document as a whole, without a base.",
        )
