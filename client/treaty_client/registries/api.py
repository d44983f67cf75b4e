"""Call a registry's HTTP API: one method a route, which returns bytes or structs and raises `TreatyError`.

A form is asked for by the suffix of its path, so that a static copy (`treaty_registry.static_site`) answers as a registry does.
No answer is trusted. Answers that matter are proved by `protocols.verification`; the others are for display. Answers are capped
while they arrive, must be unencoded, and redirects are not followed. A refusal is RFC 9457 `application/problem+json`. Its status
gives the family of the error (`_FAMILIES`); code, message and fix come from the registry.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import TypeVar
from urllib.parse import quote

import httpx
import msgspec
from packaging.version import InvalidVersion, Version

from treaty_consensus import __version__, canonical
from treaty_consensus.codes import RegistryCode, StatementCode
from treaty_consensus.errors import Conflict, Gone, Malformed, NotFound, Refused, TooLarge, TreatyError, Unauthorized, Unavailable
from treaty_consensus.kinds import Blob
from treaty_consensus.log.note import MAX_NOTE_BYTES
from treaty_consensus.log.proof import MAX_RECEIPT_BYTES
from treaty_consensus.log.tiles import MAX_ENTRY_BYTES, TILE_WIDTH, Bundle, Tile, truncated
from treaty_consensus.protocol import ProtocolUri
from treaty_consensus.statement import MAX_LEAF, Statement
from treaty_io import tracing
from treaty_io.codes import ClientRegistryCode, NetworkCode
from treaty_io.errors import RegistryUnavailable, clock_difference, with_clock
from treaty_io.network.exchange import BoundedClient
from treaty_io.network.hosts import Network

from .bundle import MAX_BUNDLE
from .replies import (
    Grants,
    LogInfo,
    Match,
    NextBallot,
    Page,
    Reply,
    Speakers,
    Standing,
    Summary,
    Testimony,
    TopicPage,
    Versions,
    VotingInfo,
    Vouches,
)
from .sources import PATIENCE, Sources
from .unreachable import unanswered, uncertain, unreachable

# Each route has its own cap: an answer is held in memory as a whole, and a registry may lie about its size.
MAX_JSON = 4 * 1024 * 1024
_PER_STATEMENT = 0.5
"""Seconds in which a slow registry, with many other senders, examines and logs one statement of a batch."""
# The registry's own bounds of a batch (http.md).
MAX_BATCH = 256
MAX_BATCH_BYTES = 2 * 1024 * 1024
_MAX_PROBLEM = 64 * 1024
"""Bytes of a refusal; it is kept even if the answer of the route is smaller."""
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
    429: RegistryUnavailable,
}


_ABOUT_AUTHORSHIP = (400, 401, 422)
"""The statuses of refusals that a wrong clock of this machine may cause: of a time in a token or a statement."""


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
    """A long-lived HTTP client for one registry. Safe for concurrent use on one event loop. Close it, or use `async with`.

    Every method raises `RegistryUnavailable` if the registry cannot be reached or fails (`registry.*`), or if its answer is
    incomplete at the deadline of the exchange (`network.deadline`); `Malformed` or `TooLarge` if its answer is invalid; and
    otherwise the error that its problem describes.
    """

    def __init__(self, base_url: str | Sources, network: Network, *, client: BoundedClient | None = None) -> None:
        """Create the client. `base_url`: of the registry, or its address with those of its mirrors, which answer reads when the
        registry does not. `client`: a shared client, which its owner closes. Raises `Malformed` if the URL is not one of a
        registry.
        """
        self._sources = base_url if isinstance(base_url, Sources) else Sources(base_url)
        self.base_url = self._sources.registry
        self._answered = self.base_url
        self._lent = client is not None
        self._client = client or network.client()

    async def __aenter__(self) -> RegistryClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    def pass_over(self) -> bool:
        """Ask the mirror that answered last after all others, because its answer was too old or unproved; return whether this
        changes anything. The registry itself is never passed over."""
        return self._answered != self.base_url and self._sources.rest(self._answered)

    async def aclose(self) -> None:
        """Close the connections, unless the client is shared."""
        if not self._lent:
            await self._client.aclose()

    # The log

    async def log(self) -> LogInfo:
        """Return the registry's description of its log: for display, and to show a key before it is trusted."""
        return await self._json("/log", LogInfo)

    @asynccontextmanager
    async def advising(self) -> AsyncIterator[None]:
        """Let a `registry.newer` of the block name the release that this registry recommends, if it does."""
        try:
            yield
        except TreatyError as error:
            if error.code == RegistryCode.NEWER:
                # A sentence for a person: without an answer, or with one that is no version, the error says enough.
                with suppress(TreatyError, InvalidVersion):
                    clients = (await self.log()).clients
                    if clients is not None and (recommended := Version(clients.recommended[:40])) > Version(__version__):
                        error.fix = f"Upgrade to {recommended}, as this registry recommends: pip install --upgrade treaty-agents"
            raise

    async def checkpoint(self) -> bytes:
        """Return the newest checkpoint, a signed note."""
        return await self._send("GET", "/checkpoint", limit=MAX_NOTE_BYTES)

    async def tile(self, tile: Tile | Bundle) -> bytes:
        """Return a hash tile or an entry bundle. A static copy drops a partial tile once the full one is there, which begins with
        it (C2SP tlog-tiles)."""
        try:
            return await self._send("GET", tile.path, limit=_MAX_TILE)
        except NotFound:
            if tile.width == TILE_WIDTH:
                raise
            try:
                whole = await self._send("GET", tile._replace(width=TILE_WIDTH).path, limit=_MAX_TILE)
            except NotFound:
                whole = None
            if whole is None:
                raise
        return truncated(tile, whole)

    async def statement(self, statement_id: str) -> bytes:
        """Return the leaf of a logged statement."""
        return await self._send("GET", f"/statements/{statement_id}", limit=MAX_LEAF)

    async def receipt(self, statement_id: str) -> bytes:
        """Return a logged statement's receipt against the newest checkpoint."""
        return await self._send("GET", f"/proofs/{statement_id}", limit=MAX_RECEIPT_BYTES)

    async def submit(self, statement: Statement) -> bytes:
        """Log a statement and return its receipt. Safe to repeat: a statement that is logged already gets its first receipt.
        Raises `RegistryUnavailable` (`registry.uncertain`) when no answer came: it may be logged."""
        return await self._log([statement], "application/json", statement.leaf, MAX_RECEIPT_BYTES)

    async def submit_batch(self, statements: Sequence[Statement]) -> list[bytes | TreatyError]:
        """Log up to 256 statements in one request; return for each its receipt or the error that refused it. The time to answer
        grows with their number. Safe to repeat, and raises, as `submit`."""
        content = b"".join(statement.leaf + b"\n" for statement in statements)
        # Refused here, because the registry would refuse it after the upload.
        if len(statements) > MAX_BATCH or len(content) > MAX_BATCH_BYTES:
            raise TooLarge(StatementCode.BATCH, f"A batch has at most {MAX_BATCH} statements and {MAX_BATCH_BYTES} bytes.")
        reply = await self._log(statements, "application/x-ndjson", content, MAX_BATCH * 4096 + MAX_BATCH_BYTES)
        outcomes = [parse_reply(line, _Outcome) for line in reply.splitlines()]
        # Outcomes are matched by position, so a missing one would give another statement's receipt.
        if len(outcomes) != len(statements):
            raise _bad_answer("it lacks the outcome of a statement")
        return [refusal_of(o.status, o.problem) if o.problem else o.receipt.encode() for o in outcomes]

    async def _log(self, statements: Sequence[Statement], kind: str, content: bytes, limit: int) -> bytes:
        try:
            work, headers = _PER_STATEMENT * len(statements), {"Content-Type": kind}
            return await self._send("POST", "/statements", limit=limit, content=content, headers=headers, work=work)
        except RegistryUnavailable as error:
            raise uncertain(error, [statement.id for statement in statements]) from error

    # Blobs

    async def blob(self, blob: Blob) -> bytes:
        """Return the bytes of a blob, at most `blob.digest` of them. A mirror that sends others is passed over; the caller checks
        those of the registry."""
        return await self._send("GET", f"/blobs/sha256/{blob.sha256}", limit=blob.size, digest=blob.sha256)

    async def put_blob(self, data: bytes, statement: Statement) -> None:
        """Upload bytes that `statement` names. The caller logs the statement next."""
        # The statement comes with the bytes, so the registry stores bytes of a signed statement only.
        headers = {"Content-Type": "application/octet-stream", "Treaty-Statement": canonical.b64encode(statement.leaf)}
        path = f"/blobs/sha256/{canonical.hex_digest(data)}"
        await self._send("PUT", path, limit=_MAX_PROBLEM, content=data, headers=headers)

    # The catalogue

    async def search(
        self,
        q: str = "",
        *,
        topic: str = "",
        state: str = "",
        origin: str = "",
        namespace: str = "",
        signed: str = "",
        coverage: str = "",
        handler: str = "",
        sort: str = "",
        limit: int = 20,
        cursor: str = "",
    ) -> Page:
        """Return a page of the protocols that have any word of `q`, best first, and match all else; all if everything is empty.

        It is for display: nothing of it is proved.

        docs/specification/http.md, "Search", has the values of the facets from `state` to `handler`, and those of `sort`.
        """
        facets = {
            "state": state,
            "origin": origin,
            "namespace": namespace,
            "signed": signed,
            "coverage": coverage,
            "handler": handler,
        }
        params = {"q": q, "topic": topic, **facets, "sort": sort, "limit": str(limit), "cursor": cursor}
        return await self._json("/protocols", Page, {name: value for name, value in params.items() if value})

    async def record(self, uri: ProtocolUri) -> dict[str, object]:
        """Return a protocol's record as JSON, for display."""
        return await self._object(uri.path + ".json")

    async def versions(self, uri: ProtocolUri) -> tuple[Summary, ...]:
        """Return the versions of a protocol, for display. Raises `NotFound` if there is none."""
        return (await self._json(f"/protocols/{uri.namespace}/{uri.name}.json", Versions)).versions

    async def bundle(self, uri: ProtocolUri, *, since: int | None = None) -> bytes:
        """Return a protocol's bundle. `since`: the size of the checkpoint with which to prove consistency."""
        return await self._send("GET", uri.path + ".bundle", limit=MAX_BUNDLE, params=_since(since))

    async def evidence(self, uri: ProtocolUri) -> bytes:
        """Return a protocol's bundle with the reports of agents that agreed on it."""
        return await self._send("GET", f"{uri.path}/evidence.bundle", limit=MAX_BUNDLE)

    async def resolve(self, name: str) -> tuple[Match, ...]:
        """Return the protocols that a hash, a foreign URI or another ecosystem's name may mean here."""
        return (await self._json("/resolve", _Matches, {"uri": name})).matches

    # Topics

    async def topics(self, after: str = "") -> TopicPage:
        """Return a page of the topics, for display. `after`: the `next` of the page before."""
        return await self._json("/topics.json", TopicPage, {"after": after} if after else None)

    async def topic(self, topic: str) -> dict[str, object]:
        """Return a topic's candidates, matrix and newest decision, for display."""
        return await self._object(f"/topics/{topic}.json")

    async def topic_bundle(self, topic: str, *, since: int | None = None) -> bytes:
        """Return a topic's bundle: its protocols and newest decision, with all proofs. `since`: as in `bundle`."""
        return await self._send("GET", f"/topics/{topic}.bundle", limit=MAX_BUNDLE, params=_since(since))

    async def next_ballot(self, topic: str, did: str) -> NextBallot:
        """Return the sequence number and epoch for the next ballot of a DID in a topic."""
        return await self._json("/ballots", NextBallot, {"topic": topic, "did": did})

    async def voting(self, did: str, topic: str = "") -> VotingInfo:
        """Return the standing ballots of a DID with its use, or those of one topic, for display."""
        return await self._json("/votes", VotingInfo, {"did": did, "topic": topic} if topic else {"did": did})

    async def vouches(self, did: str) -> Vouches:
        """Return the sequence number and epoch for the next vouch of a DID, and its present vouches, for display."""
        return await self._json("/vouches", Vouches, {"did": did})

    async def grants(self, did: str) -> Grants:
        """Return the grants in force of a DID's namespace and to the DID, for display."""
        return await self._json("/grants", Grants, {"did": did})

    # Speakers and their standing

    async def speakers(self, *, document: str = "", topic: str = "", cursor: str = "") -> Speakers:
        """Return the DIDs that reported a document, or any document in a topic. Give one of the two. Co-signed reports, for
        display.
        """
        params = {"hash": document, "topic": topic, "cursor": cursor}
        return await self._json("/speakers", Speakers, {name: value for name, value in params.items() if value})

    async def standing(self, did: str, *, cursor: str = "") -> Standing:
        """Return the standing of the principal for which a DID speaks, and the newest credits, for display."""
        return await self._json(f"/standing/{quote(did, safe=':')}", Standing, {"cursor": cursor} if cursor else None)

    # Identities and the signing authority

    async def identity(self, did: str) -> dict[str, object]:
        """Return the newest identity that the log has of a DID, for display."""
        return await self._object(f"/identities/{quote(did, safe=':')}")

    async def testimony(self, did: str, key_id: str) -> Testimony:
        """Return the operator's half of an identity of `did` with its present document; the logged key `key_id` co-signs it."""
        headers, content = {"Content-Type": "application/json"}, canonical.dumps({"keyid": key_id})
        path = f"/identities/{quote(did, safe=':')}"
        return parse_reply(await self._send("POST", path, limit=2 * MAX_LEAF, content=content, headers=headers), Testimony)

    async def trust_config(self) -> bytes:
        """Return the Sigstore ClientTrustConfig of the registry's own authority."""
        return await self._send("GET", "/trust-config.json", limit=_MAX_TRUST_CONFIG)

    async def _object(self, path: str) -> dict[str, object]:
        data = await self._send("GET", path, limit=MAX_JSON)
        value = canonical.parse_json(data, limit=MAX_JSON, name="registry's answer")
        if not isinstance(value, dict):
            raise _bad_answer("it is not a JSON object")
        return value

    async def _json(self, path: str, kind: type[_R], params: Mapping[str, str] | None = None) -> _R:
        return parse_reply(await self._send("GET", path, limit=MAX_JSON, params=params), kind)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        limit: int,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        work: float = 0.0,
        digest: str = "",
    ) -> bytes:
        """Return the body of a successful answer, at most `limit` bytes. Reads fall back to the mirrors.

        A mirror proves nothing by a refusal, so the next one is asked after any. `digest`: of the body, if it is known.
        """
        if method != "GET" or not self._sources.has_mirrors:
            return await self._exchange(self.base_url, method, path, limit, params, content, headers, work)
        failed: list[tuple[str, TreatyError]] = []
        order = self._sources.order()
        for url in order:
            try:
                # A silent address must not use up the time of a read that another one can answer.
                async with asyncio.timeout(PATIENCE if url != order[-1] else None):
                    data = await self._exchange(url, method, path, limit, params, content, headers)
                if digest and url != self.base_url and canonical.hex_digest(data) != digest:
                    raise _bad_answer("its bytes are not those that were asked for")
            except TimeoutError:
                failed.append((url, RegistryUnavailable(NetworkCode.DEADLINE, f"It did not answer in {PATIENCE:g} seconds.")))
            except TreatyError as error:
                # Only the registry can refuse: a mirror may lack what is new, or lie.
                if url == self.base_url and not isinstance(error, RegistryUnavailable):
                    raise
                failed.append((url, error))
                if isinstance(error, NotFound):
                    continue  # it answers, and may have the next thing
            else:
                self._sources.answered(url)
                self._answered = url
                return data
            self._sources.rest(url)
        raise unanswered(failed)

    async def _exchange(
        self,
        base_url: str,
        method: str,
        path: str,
        limit: int,
        params: Mapping[str, str] | None,
        content: bytes | None,
        headers: Mapping[str, str] | None,
        work: float = 0.0,
    ) -> bytes:
        # Named by its kind alone: a path may hold a DID.
        with tracing.span(f"{method} registry", "client", http_request_method=method):
            try:
                all_headers = {**(headers or {}), **tracing.headers()}
                request = self._client.build_request(method, base_url + path, params=params, content=content, headers=all_headers)
                # A refusal may be larger than the answer of the route, so read up to the larger limit.
                reply = await self._client.exchange(request, limit=max(limit, _MAX_PROBLEM), work=work)
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                raise unreachable(base_url, error) from error
            except Unavailable as error:  # the deadline of the exchange
                raise RegistryUnavailable(error.code, error.message, fix=error.fix) from error
            # A compressed answer could expand beyond its limit.
            if reply.headers.get("content-encoding", "identity") != "identity":
                raise _bad_answer("it is encoded, which was not asked for")
            if not 200 <= reply.status <= 299:
                # Code and text are the registry's. They are shown, and never decide whether an answer is trusted.
                refusal = refusal_of(reply.status, parse_problem(reply.body))
                may_be_late = reply.status in _ABOUT_AUTHORSHIP
                raise with_clock(refusal, clock_difference(reply.headers, time.time())) if may_be_late else refusal
            if len(reply.body) > limit or not reply.whole:
                raise TooLarge(ClientRegistryCode.ANSWER, f"The registry's answer has more than the {limit} bytes it may have.")
            return reply.body


def _since(since: int | None) -> dict[str, str] | None:
    return None if since is None else {"since": str(since)}


def parse_reply(data: bytes, kind: type[_R]) -> _R:
    """Parse a registry's JSON answer. Raises `Malformed`."""
    try:
        return msgspec.convert(canonical.parse_json(data, limit=MAX_JSON, name="registry's answer"), kind)
    except msgspec.ValidationError as error:
        raise _bad_answer(str(error)) from error


def parse_problem(body: bytes) -> _Problem | None:
    """Parse a problem document (RFC 9457). Return None for any other body."""
    try:
        # A body that is no problem, such as a proxy's page, must not hide the status behind an error of form.
        return parse_reply(body[:_MAX_PROBLEM], _Problem)
    except TreatyError:
        return None


def refusal_of(status: int, problem: _Problem | None) -> TreatyError:
    """Return the error that a problem describes; a plain one if the answer is not a problem, such as a proxy's page."""
    # By status, not by code: callers try again after `Unavailable`, and a code that is new to them must not change it.
    family = _FAMILIES.get(status, RegistryUnavailable if status >= 500 else Refused)
    if problem is None or not problem.code:
        return family(ClientRegistryCode.BROKEN, f"The registry answered with status {status} and no reason.")
    return family(_line(problem.code, 80), _line(problem.detail, 500), fix=_line(problem.fix, 500))


def _line(text: str, limit: int) -> str:
    """Return foreign text as one printable line."""
    # Control characters of a foreign text could steer the terminal that shows it.
    return "".join(character if character.isprintable() else " " for character in text[:limit])


def _bad_answer(why: str) -> Malformed:
    return Malformed(ClientRegistryCode.ANSWER, f"The registry's answer is invalid: {why}.")
