"""Who speaks for a DID: what the log knows, and how it learns more.

A did:key needs nobody. Of any other DID the log holds the operator's testimony, an `identity` statement about the document it
fetched. When an unknown DID sends a statement, or a known one signs with an unknown key, the document is fetched and, if it is
news, logged before the statement is judged. An identity that no old key co-signs opens a new tenure, so one that is fetched
after the first always does, when it has a new key. Whoever has an old key asks for the testimony first, co-signs and sends it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime

from treaty_client.network.resolver import DidDocument
from treaty_consensus.admit import identity_key, keys_of, tenure_after
from treaty_consensus.canonical import hex_digest
from treaty_consensus.did import Did, encode_multikey
from treaty_consensus.errors import Conflict, NotFound, TreatyError, Unauthorized, Unavailable
from treaty_consensus.facts import Fact, IdentityFact
from treaty_consensus.kinds import Blob, Identity, Key
from treaty_consensus.statement import Verified

from ..keys import Operator, Testimony
from ..log import tables as log_tables
from ..storage.postgres import Pool
from .uploads import Uploads

_REMEMBERED = 20_000


class Identities:
    """Used from one event loop. What it remembers of the log may be outdated by a moment: `admit` has the last word."""

    def __init__(
        self,
        *,
        pool: Pool,
        uploads: Uploads,
        operator: Operator,
        resolve: Callable[[Did], Awaitable[DidDocument]],
        submit: Callable[[Verified], Awaitable[None]],
        clock: Callable[[], datetime],
    ) -> None:
        """`resolve`: fetch a DID's document through the egress guard. `submit`: log a statement of the operator's, or raise."""
        self._pool = pool
        self._uploads = uploads
        self._operator = operator
        self._resolve = resolve
        self._submit = submit
        self._clock = clock
        self._known: OrderedDict[str, IdentityFact | None] = OrderedDict()
        self._learning: dict[str, asyncio.Task[dict[str, bytes]]] = {}

    def forget(self) -> None:
        """Forget what is known of the log: another process may have written to it."""
        self._known.clear()

    def committed(self, facts: Mapping[str, Fact]) -> None:
        """Take note of facts that a commit changed."""
        for key, fact in facts.items():
            if isinstance(fact, IdentityFact):
                self._remember(key, fact)

    async def keys(self, did: Did) -> dict[str, bytes]:
        """The keys that speak for `did` (DID URL → raw Ed25519); empty when the log does not know it."""
        if did.method == "key":
            return keys_of({}, did)
        key = identity_key(did.text)
        if key not in self._known:
            loaded = await self._load(key)
            if key not in self._known:  # a commit meanwhile told a newer one
                self._remember(key, loaded)
        return _keys(did, self._known.get(key))

    async def learn(self, did: Did) -> dict[str, bytes]:
        """Fetch the document of `did`, log it if it is news, and return the keys that speak for it now.

        Callers at the same time log it once. Each of them asks for the document itself, so that it comes in the turn of any of
        them (`network.turns`); `resolve` makes one fetch of it. Raises `Unauthorized` when there is no usable document,
        `Unavailable` when its host or this log does not answer.
        """
        document = await self._fetch(did)
        task = self._learning.get(did.text)
        if task is None:
            task = self._learning[did.text] = asyncio.create_task(self._learn(did, document))
            task.add_done_callback(lambda done: self._learned(did, done))
        return await asyncio.shield(task)  # one impatient caller must not end it for the others

    async def testimony(self, did: Did, key_id: str) -> Testimony:
        """An identity of `did` as its document is now, signed by the operator, for the logged key `key_id` to co-sign: then it
        opens no new tenure. Nothing is logged, and it counts for nothing until the key has signed it too; the document is held
        as an upload is.

        Raises `NotFound` when the log does not know the DID, `Conflict` when its document is no news, `Unauthorized` when the key
        is not a logged one or there is no usable document, `Unavailable` as `learn` does.
        """
        before = await self._load(identity_key(did.text))
        if before is None:
            raise NotFound("identity.unknown", f"This log has no identity of {did.text}.", fix="It needs no co-signature yet.")
        if key_id not in before.keys:
            raise Unauthorized("statement.unknown-key", f"{key_id} is not a key of its DID as this log knows it.")
        document = await self._fetch(did)
        if before.document == hex_digest(document.data):
            raise Conflict("identity.unchanged", f"The document of {did.text} has not changed.", fix="Serve the new one first.")
        body = await self._body(document, before, cosigned=True)
        return self._operator.testify(body, key_id, issued=self._clock())

    def _learned(self, did: Did, task: asyncio.Task[dict[str, bytes]]) -> None:
        del self._learning[did.text]
        if not task.cancelled():
            task.exception()  # everyone who waited may be gone; then nobody else looks at it

    async def _fetch(self, did: Did) -> DidDocument:
        try:
            return await self._resolve(did)
        except Unavailable:
            raise
        except TreatyError as error:
            message = f"{did.text} has no usable document: {error.message}"
            raise Unauthorized("identity.unresolved", message, fix=error.fix) from error

    async def _learn(self, did: Did, document: DidDocument) -> dict[str, bytes]:
        key = identity_key(did.text)
        before = await self._load(key)
        if before is None or before.document != hex_digest(document.data):
            with suppress(Conflict):  # another process logged the same news first
                await self._testify(document, before)
            before = await self._load(key)
        self._remember(key, before)
        return _keys(did, before)

    async def _testify(self, document: DidDocument, before: IdentityFact | None) -> None:
        body = await self._body(document, before, cosigned=False)
        await self._submit(self._operator.state(body, issued=self._clock()))

    async def _body(self, document: DidDocument, before: IdentityFact | None, *, cosigned: bool) -> Identity:
        digest = hex_digest(document.data)
        await self._uploads.hold_own(digest, document.data)  # strangers' uploads must not keep a DID out
        keys = tuple(Key(key_id, encode_multikey(key)) for key_id, key in document.keys.items())
        return Identity(
            did=document.did.text,
            document=Blob(digest, len(document.data)),
            keys=keys,
            tenure=tenure_after(before, {key.multikey for key in keys}, cosigned=cosigned),
            previous=before.statement if before else None,
        )

    async def _load(self, key: str) -> IdentityFact | None:
        fact = await log_tables.read_fact(self._pool, key)
        assert fact is None or isinstance(fact, IdentityFact)
        return fact

    def _remember(self, key: str, fact: IdentityFact | None) -> None:
        self._known[key] = fact
        self._known.move_to_end(key)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)


def _keys(did: Did, fact: IdentityFact | None) -> dict[str, bytes]:
    return keys_of({identity_key(did.text): fact}, did) if fact else {}
