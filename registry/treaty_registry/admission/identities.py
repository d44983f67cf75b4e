"""Know the keys of each DID, and log new identities.

A did:key contains its key. For every other DID the log holds `identity` statements, in which the operator states the DID
document that it fetched. The document is fetched when an unknown DID sends a statement, or a known DID signs with an unknown
key. If it is new, it is logged before the statement is judged. An identity that no old key co-signs starts a new tenure if it
has a new key. An agent that still has an old key can avoid this: it requests the operator's statement first (`testimony`),
co-signs and sends it.

A did:treaty has no document. Its keys are logged after its holder has proved them in another way (`validate`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime

from treaty_client.registries.replies import Testimony
from treaty_consensus.admit import next_tenure, tenure_after
from treaty_consensus.canonical import hex_digest
from treaty_consensus.codes import StatementCode
from treaty_consensus.did import Did, Validated, decode_multikey, encode_multikey, parse_did
from treaty_consensus.errors import Conflict, NotFound, TreatyError, Unauthorized, Unavailable
from treaty_consensus.facts import Fact, IdentityFact, identity_key, keys_of
from treaty_consensus.kinds import Blob, Identity, Key, Validation
from treaty_consensus.statement import Verified
from treaty_consensus.workflow_evidence import WorkflowEvidence
from treaty_io.network.did_documents import DidDocument

from ..codes import RegistryIdentityCode
from ..keys import Operator
from ..log import tables as log_tables
from ..storage.postgres import Pool
from .uploads import Uploads

_MOST_KEYS = 16
"""Keys of an account that sign at the same time: workflows of its repositories that publish within the same hour."""
_ATTEMPTS = 4
"""Of a validation, when another one of the account was logged meanwhile."""
_REMEMBERED = 20_000  # identities in memory; others are read from the database


class Identities:
    """The keys of DIDs as the log has them. Used from one event loop. The cache may be slightly outdated; `admit`
    checks again."""

    def __init__(
        self,
        *,
        pool: Pool,
        uploads: Uploads,
        operator: Operator,
        resolve: Callable[[Did], Awaitable[DidDocument]],
        submit: Callable[[Verified], Awaitable[None]],
        clock: Callable[[], datetime],
        validates: frozenset[Validated] = frozenset(),
    ) -> None:
        """`resolve`: fetch the document of a DID through the egress guard, or the records of a domain. `validates`: the ways in
        which this registry validates names. `submit`: log a statement of the operator,
        or raise."""
        self._pool = pool
        self._uploads = uploads
        self._operator = operator
        self._resolve = resolve
        self._submit = submit
        self._clock = clock
        self._validates = validates
        self._known: OrderedDict[str, IdentityFact | None] = OrderedDict()
        # One task for each DID: of two statements about the same document the second would be refused.
        self._learning: dict[str, asyncio.Task[dict[str, bytes]]] = {}

    def forget(self) -> None:
        """Clear the cache, because another process may have written to the log."""
        self._known.clear()

    def committed(self, facts: Mapping[str, Fact]) -> None:
        """Update the cache with the facts that a commit changed."""
        for key, fact in facts.items():
            if isinstance(fact, IdentityFact):
                self._remember(key, fact)

    async def keys(self, did: Did) -> dict[str, bytes]:
        """Return the keys of `did` (DID URL → raw Ed25519), or an empty mapping when the log does not know it."""
        if did.method == "key":
            return keys_of({}, did)
        key = identity_key(did.text)
        if key not in self._known:
            loaded = await self._load(key)
            if key not in self._known:  # a commit may have stored a newer one meanwhile
                self._remember(key, loaded)
        return self._keys(did, self._known.get(key))

    def has_at_hand(self, did: Did) -> bool:
        """Whether `keys` needs no query for this DID."""
        return did.method == "key" or identity_key(did.text) in self._known

    async def learn(self, did: Did) -> dict[str, bytes]:
        """Fetch the document of `did`, log it if it is new, and return the keys of `did` now.

        Concurrent callers log it once. Each of them calls `resolve`, so that the fetch uses the earliest turn of any of them
        (`treaty_io.network.turns`); `resolve` makes one request of it. Raises `Unauthorized` when there is no usable document,
        and `Unavailable` when its host or this log does not answer.
        """
        document = await self._fetch(did)
        task = self._learning.get(did.text)
        if task is None:
            task = self._learning[did.text] = asyncio.create_task(self._learn(did, document))
            task.add_done_callback(lambda done: self._learned(did, done))
        return await asyncio.shield(task)  # cancelling one caller must not cancel it for the others

    async def testimony(self, did: Did, key_id: str) -> Testimony:
        """Return an identity of `did` with its current document, signed by the operator, for the logged key `key_id` to co-sign.

        With that second signature it starts no new tenure; without it, it is worthless. Nothing is logged. The document is
        stored like an upload. Raises `NotFound` when the log does not know the DID, `Conflict` when its document has not
        changed, `Unauthorized` when the key is not a logged key of the DID or there is no usable document, and `Unavailable` as
        `learn` does.
        """
        # From the database, because the signed statement names the previous identity, and an outdated one would be
        # refused.
        before = await self._load(identity_key(did.text))
        if before is None:
            raise NotFound(
                RegistryIdentityCode.UNKNOWN,
                f"This log has no identity of {did.text}.",
                fix="The first identity needs no co-signature.",
            )
        # Only a logged key can keep the tenure by its co-signature. For another key the operator signs nothing.
        if key_id not in before.keys:
            raise Unauthorized(StatementCode.UNKNOWN_KEY, f"{key_id} is not a key of its DID as this log knows it.")
        document = await self._fetch(did)
        if before.document == hex_digest(document.data):
            raise Conflict(StatementCode.EXISTS, f"The document of {did.text} has not changed.", fix="Serve the new one first.")
        body = await self._body(document, before, cosigned=True)
        return self._operator.testify(body, key_id, issued=self._clock())

    def _learned(self, did: Did, task: asyncio.Task[dict[str, bytes]]) -> None:
        del self._learning[did.text]
        if not task.cancelled():
            task.exception()  # mark the error as retrieved, because all callers may have been cancelled

    async def _fetch(self, did: Did) -> DidDocument:
        # A token proves the key of an account: nothing can be fetched. Of a domain the records are looked up.
        if did.validated_by is not None and (did.validated_by == "oidc" or "dns" not in self._validates):
            raise Unauthorized(
                StatementCode.UNKNOWN_KEY,
                f"The key is none of {did.text} in this log, or it signs no longer.",
                fix="Have a key validated: treaty publish --oidc"
                if did.path
                else "Its operator decides whether records are read: treaty-registry serve --validate dns",
            )
        try:
            return await self._resolve(did)
        # The host may answer later. All other errors are about the document itself, so trying again does not help.
        except Unavailable:
            raise
        except TreatyError as error:
            message = f"{did.text} has no usable document: {error.message}"
            raise Unauthorized(RegistryIdentityCode.UNRESOLVED, message, fix=error.fix) from error

    async def _learn(self, did: Did, document: DidDocument) -> dict[str, bytes]:
        key = identity_key(did.text)
        # Not from the cache: it may lack an identity that another process logged, and the statement must name the
        # newest.
        before = await self._load(key)
        if before is None or before.document != hex_digest(document.data):
            with suppress(Conflict):  # another process logged the same document first
                await self._testify(document, before)
            before = await self._load(key)
        self._remember(key, before)
        return self._keys(did, before)

    async def validate(self, evidence: WorkflowEvidence, multikey: str) -> IdentityFact:
        """Log that an account proved this key, and return its identity. Keys that it proved before sign on until they end.

        Raises `Conflict` (`statement.previous`) when others of the account are always faster, and `Unavailable`.
        """
        did, data = parse_did(evidence.claims.did), evidence.encode()
        await self._uploads.hold_own(hex_digest(data), data)
        for attempt in range(_ATTEMPTS):
            before = await self._load(identity_key(did.text))
            body = self._validation(evidence, multikey, before)
            try:
                await self._submit(self._operator.state(body, issued=self._clock()))
                break
            # Workflows of one account run side by side, and each statement names the one before it.
            except Conflict:
                if attempt == _ATTEMPTS - 1:
                    raise
        logged = await self._load(identity_key(did.text))
        assert logged is not None
        self._remember(identity_key(did.text), logged)
        return logged

    def _validation(self, evidence: WorkflowEvidence, multikey: str, before: IdentityFact | None) -> Validation:
        public_key = decode_multikey(multikey)
        bare = evidence.validation(public_key, earlier=(), tenure=1, previous=None)
        tenure = next_tenure(before, bare, cosigned=False)
        earlier: list[Key] = []
        if before is not None and before.tenure == tenure:
            # A minute is spared, because the log's clock may move before this statement is sequenced.
            now = int(self._clock().timestamp()) + 60
            ends = sorted(before.ends.items(), key=lambda item: -item[1])
            earlier = [Key(key_id, before.keys[key_id]) for key_id, end in ends if end >= now and before.keys[key_id] != multikey]
        previous = before.statement if before else None
        return evidence.validation(public_key, earlier=tuple(earlier[: _MOST_KEYS - 1]), tenure=tenure, previous=previous)

    async def _testify(self, document: DidDocument, before: IdentityFact | None) -> None:
        body = await self._body(document, before, cosigned=False)
        await self._submit(self._operator.state(body, issued=self._clock()))

    async def _body(self, document: DidDocument, before: IdentityFact | None, *, cosigned: bool) -> Identity:
        digest = hex_digest(document.data)
        # Without the limit on uploads, which strangers could use up to block a DID.
        await self._uploads.hold_own(digest, document.data)
        keys = tuple(Key(key_id, encode_multikey(key)) for key_id, key in document.keys.items())
        tenure = tenure_after(before, {key.multikey for key in keys}, cosigned=cosigned)
        did, named, previous = document.did, Blob(digest, len(document.data)), before.statement if before else None
        if did.validated_by == "dns":
            return Validation(did=did.text, document=named, keys=keys, tenure=tenure, previous=previous, method="dns")
        return Identity(did.text, named, keys, tenure, previous)

    async def _load(self, key: str) -> IdentityFact | None:
        fact = await log_tables.read_fact(self._pool, key)
        assert fact is None or isinstance(fact, IdentityFact)
        return fact

    def _keys(self, did: Did, fact: IdentityFact | None) -> dict[str, bytes]:
        if fact is None:
            return {}
        # By this clock too: that of the log stands still while the operator states nothing.
        now = int(self._clock().timestamp())
        return {
            key_id: key for key_id, key in keys_of({identity_key(did.text): fact}, did).items() if not fact.has_ended(key_id, now)
        }

    def _remember(self, key: str, fact: IdentityFact | None) -> None:
        self._known[key] = fact
        self._known.move_to_end(key)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
