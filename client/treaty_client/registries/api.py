"""The registry over HTTP: one method a route, bytes and structs out, `TreatyError`s raised.

Nothing that comes back is to be believed for coming from here: what matters is proved by `verification`, the rest is for display.
Answers are capped while they arrive, unencoded, and redirects are not followed. A refusal is RFC 9457 `application/problem+json`;
its status says the family (`_FAMILIES`), its code, sentence and fix are the registry's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TypeVar
from urllib.parse import quote

import httpx
import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import Conflict, Gone, Malformed, NotFound, Refused, TooLarge, TreatyError, Unauthorized, Unavailable
from treaty_consensus.kinds import Blob
from treaty_consensus.log.note import MAX_NOTE_BYTES
from treaty_consensus.log.proof import MAX_RECEIPT_BYTES
from treaty_consensus.log.tiles import MAX_ENTRY_BYTES, TILE_WIDTH, Bundle, Tile
from treaty_consensus.protocol import ProtocolUri
from treaty_consensus.statement import MAX_LEAF, Statement

from ..network.exchange import BoundedClient
from ..network.hosts import Network
from ..verification.bundle import MAX_BUNDLE
from .replies import LogInfo, Match, NextBallot, Page, Reply, Speakers, Standing, Testimony, Vouches
from .trust import parse_base_url

MAX_JSON = 4 * 1024 * 1024
MAX_BATCH = 256
MAX_BATCH_BYTES = 2 * 1024 * 1024
_MAX_PROBLEM = 64 * 1024
_MAX_TILE = TILE_WIDTH * (MAX_ENTRY_BYTES + 2)
_MAX_TRUST_CONFIG = 256 * 1024

_FAMILIES: Mapping[int, type[TreatyError]] = {
    400: Malformed,
    401: Unauthorized,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: TooLarge,
    422: Refused,
    429: Unavailable,
}


class _Matches(Reply, frozen=True):
    matches: tuple[Match, ...]


class _Problem(Reply, frozen=True):
    code: str = ""
    detail: str = ""
    fix: str = ""


class _Outcome(Reply, frozen=True):
    status: int
    receipt: str = ""
    problem: _Problem | None = None


_R = TypeVar("_R", bound=Reply)


class RegistryClient:
    """One long-lived HTTP client for one registry; safe for concurrent use on one event loop. Close it, or use `async with`.

    Every method raises `Unavailable` when the registry cannot be reached or fails (`registry.*`) or has not answered in full at
    the deadline of the exchange (`network.deadline`), `Malformed` or `TooLarge` when its answer is not one, and otherwise what
    its problem says.
    """

    def __init__(self, base_url: str, network: Network, *, client: BoundedClient | None = None) -> None:
        """`client`: one to share, which stays its owner's to close. Raises `Malformed` on a URL that is no registry's."""
        self.base_url = parse_base_url(base_url)
        self._lent = client is not None
        self._client = client or network.client()

    async def __aenter__(self) -> RegistryClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections, unless the client was lent."""
        if not self._lent:
            await self._client.aclose()

    # The log

    async def log(self) -> LogInfo:
        """What the registry says of its log: for display, and to show a key before it is trusted."""
        return await self._json("/log", LogInfo)

    async def checkpoint(self) -> bytes:
        """The newest checkpoint, a signed note."""
        return await self._send("GET", "/checkpoint", limit=MAX_NOTE_BYTES)

    async def tile(self, tile: Tile | Bundle) -> bytes:
        """A hash tile or an entry bundle."""
        return await self._send("GET", tile.path, limit=_MAX_TILE)

    async def statement(self, statement_id: str) -> bytes:
        """The leaf of a logged statement."""
        return await self._send("GET", f"/statements/{statement_id}", limit=MAX_LEAF)

    async def receipt(self, statement_id: str) -> bytes:
        """A logged statement's receipt against the newest checkpoint."""
        return await self._send("GET", f"/proofs/{statement_id}", limit=MAX_RECEIPT_BYTES)

    async def submit(self, statement: Statement) -> bytes:
        """Log a statement and return its receipt; the one it got when it was logged before. Safe to repeat."""
        headers = {"Content-Type": "application/json"}
        return await self._send("POST", "/statements", limit=MAX_RECEIPT_BYTES, content=statement.leaf, headers=headers)

    async def submit_batch(self, statements: Sequence[Statement]) -> list[bytes | TreatyError]:
        """Log up to 256 statements in one request: for each its receipt, or why it was refused."""
        content = b"".join(statement.leaf + b"\n" for statement in statements)
        if len(statements) > MAX_BATCH or len(content) > MAX_BATCH_BYTES:
            raise TooLarge("registry.batch", f"A batch has at most {MAX_BATCH} statements and {MAX_BATCH_BYTES} bytes.")
        headers = {"Content-Type": "application/x-ndjson"}
        limit = MAX_BATCH * 4096 + MAX_BATCH_BYTES
        reply = await self._send("POST", "/statements", limit=limit, content=content, headers=headers)
        outcomes = [_convert(line, _Outcome) for line in reply.splitlines()]
        if len(outcomes) != len(statements):
            raise _bad_answer("it does not say what became of each statement")
        return [_refusal(o.status, o.problem) if o.problem else o.receipt.encode() for o in outcomes]

    # Blobs

    async def blob(self, blob: Blob) -> bytes:
        """The bytes of a blob, of at most the size it should have; whether they are the right ones is the caller's to check."""
        return await self._send("GET", f"/blobs/sha256/{blob.sha256}", limit=blob.size)

    async def put_blob(self, data: bytes, statement: Statement) -> None:
        """Upload bytes that a statement names which is to be logged next."""
        headers = {"Content-Type": "application/octet-stream", "Treaty-Statement": canonical.b64encode(statement.leaf)}
        path = f"/blobs/sha256/{canonical.hex_digest(data)}"
        await self._send("PUT", path, limit=_MAX_PROBLEM, content=data, headers=headers)

    # The catalogue

    async def search(self, q: str = "", *, topic: str = "", limit: int = 20, cursor: str = "") -> Page:
        """A page of the protocols that match words and topic; all of them when both are empty."""
        params = {"q": q, "topic": topic, "limit": str(limit), "cursor": cursor}
        return await self._json("/protocols", Page, {name: value for name, value in params.items() if value})

    async def record(self, uri: ProtocolUri) -> dict[str, object]:
        """A protocol's record as JSON, for display."""
        return await self._object(uri.path + ".json")

    async def bundle(self, uri: ProtocolUri, *, since: int | None = None) -> bytes:
        """A protocol with all its proofs; `since`: the size of the checkpoint to prove consistency with."""
        return await self._send("GET", uri.path + ".bundle", limit=MAX_BUNDLE, params=_since(since))

    async def resolve(self, name: str) -> tuple[Match, ...]:
        """What a hash, a foreign URI or another ecosystem's name may mean here."""
        return (await self._json("/resolve", _Matches, {"uri": name})).matches

    # Topics

    async def topics(self) -> dict[str, object]:
        """All topics, for display."""
        return await self._object("/topics")

    async def topic(self, topic: str) -> dict[str, object]:
        """A topic's candidates, matrix and newest decision, for display."""
        return await self._object(f"/topics/{topic}")

    async def topic_bundle(self, topic: str, *, since: int | None = None) -> bytes:
        """A topic's protocols and newest decision with all proofs; `since` as in `bundle`."""
        return await self._send("GET", f"/topics/{topic}.bundle", limit=MAX_BUNDLE, params=_since(since))

    async def next_ballot(self, topic: str, did: str) -> NextBallot:
        """What the next ballot of a DID in a topic must carry."""
        return await self._json("/ballots", NextBallot, {"topic": topic, "did": did})

    async def vouches(self, did: str) -> Vouches:
        """What the next vouch of a DID must carry, and whom it vouches for, for display."""
        return await self._json("/vouches", Vouches, {"did": did})

    # Who speaks, and what that has earned

    async def speakers(self, *, document: str = "", topic: str = "", cursor: str = "") -> Speakers:
        """Who reported a document, or anything in a topic: one of the two. Co-signed reports, for display."""
        params = {"hash": document, "topic": topic, "cursor": cursor}
        return await self._json("/speakers", Speakers, {name: value for name, value in params.items() if value})

    async def standing(self, did: str, *, cursor: str = "") -> Standing:
        """The standing of whom a DID speaks for, and the newest of its credits, for display."""
        return await self._json(f"/standing/{quote(did, safe=':')}", Standing, {"cursor": cursor} if cursor else None)

    # Identities and the signing authority

    async def identity(self, did: str) -> dict[str, object]:
        """The newest identity the log has of a DID, for display."""
        return await self._object(f"/identities/{quote(did, safe=':')}")

    async def testimony(self, did: str, key_id: str) -> Testimony:
        """The operator's half of an identity of `did` with its document as it is now, for the logged key `key_id` to co-sign."""
        headers, content = {"Content-Type": "application/json"}, canonical.dumps({"keyid": key_id})
        path = f"/identities/{quote(did, safe=':')}"
        return _convert(await self._send("POST", path, limit=2 * MAX_LEAF, content=content, headers=headers), Testimony)

    async def trust_config(self) -> bytes:
        """The Sigstore ClientTrustConfig of the registry's own authority."""
        return await self._send("GET", "/trust-config.json", limit=_MAX_TRUST_CONFIG)

    async def _object(self, path: str) -> dict[str, object]:
        data = await self._send("GET", path, limit=MAX_JSON)
        value = canonical.parse_json(data, limit=MAX_JSON, what="registry's answer")
        if not isinstance(value, dict):
            raise _bad_answer("it is not a JSON object")
        return value

    async def _json(self, path: str, kind: type[_R], params: Mapping[str, str] | None = None) -> _R:
        return _convert(await self._send("GET", path, limit=MAX_JSON, params=params), kind)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        limit: int,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """The body of a successful answer, at most `limit` bytes of it."""
        try:
            request = self._client.build_request(method, self.base_url + path, params=params, content=content, headers=headers)
            reply = await self._client.exchange(request, limit=max(limit, _MAX_PROBLEM))
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise Unavailable(
                "registry.unreachable",
                f"The registry at {self.base_url} could not be reached: {type(error).__name__}.",
                fix="Check its URL and your connection, then try again.",
            ) from error
        if reply.headers.get("content-encoding", "identity") != "identity":
            raise _bad_answer("it is encoded, which was not asked for")
        if not 200 <= reply.status <= 299:
            raise _refusal(reply.status, _parse_problem(reply.body))
        if len(reply.body) > limit or not reply.whole:
            raise TooLarge("registry.answer", f"The registry's answer has more than the {limit} bytes it may have.")
        return reply.body


def _since(since: int | None) -> dict[str, str] | None:
    return None if since is None else {"since": str(since)}


def _convert(data: bytes, kind: type[_R]) -> _R:
    try:
        return msgspec.convert(canonical.parse_json(data, limit=MAX_JSON, what="registry's answer"), kind)
    except msgspec.ValidationError as error:
        raise _bad_answer(str(error)) from error


def _parse_problem(body: bytes) -> _Problem | None:
    try:
        return _convert(body[:_MAX_PROBLEM], _Problem)
    except TreatyError:
        return None


def _refusal(status: int, problem: _Problem | None) -> TreatyError:
    """The error a problem stands for; a plain one when the answer is no problem, such as a proxy's page."""
    family = _FAMILIES.get(status, Unavailable if status >= 500 else Refused)
    if problem is None or not problem.code:
        return family("registry.status", f"The registry answered with status {status} and no reason.")
    return family(_line(problem.code, 80), _line(problem.detail, 500), fix=_line(problem.fix, 500))


def _line(text: str, limit: int) -> str:
    """Foreign text as one printable line."""
    return "".join(character if character.isprintable() else " " for character in text[:limit])


def _bad_answer(why: str) -> Malformed:
    return Malformed("registry.answer", f"The registry's answer is not what this route answers: {why}.")
