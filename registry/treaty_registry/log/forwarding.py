"""Send admitted proposals to the node that leads the log, and take those of other nodes.

A node examines what it receives itself, and so spends the time that admission takes. Only the place in the log is the leader's
to give. One request carries all proposals that wait, as the sequencer's batches do.

    POST URL/nodes/proposals        MessagePack of `Request`
    Treaty-Node: HEX                HMAC-SHA-256 of the body, by a key derived from the log's key

The answer is MessagePack of `Answer`, with an HMAC of its own over that of the request. Every node holds the log's key, with
which it could lead. So a message of a node is as good as the leader's own work, and no signature is verified twice. Nothing in
the messages is secret. A request names the term of the leader and a number that grows, so a repeated one is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import httpx
import msgspec
from msgspec.structs import replace

from treaty_consensus import errors, statement
from treaty_consensus.errors import Conflict, Malformed, TreatyError, Unauthorized, Unavailable
from treaty_consensus.log.checkpoint import LogKeys, SignedCheckpoint
from treaty_consensus.statement import Verified
from treaty_io import tracing
from treaty_io.network.exchange import BoundedClient, HttpReply

from ..catalogue.handler_facts import HandlerFacts, PackageFacts
from ..codes import NodeCode, RegistryLogCode
from .leader import Leader
from .leadership import Leadership
from .proposals import LogPosition, Proposal
from .sequencer import Uncertain, unavailable

PATH = "/nodes/proposals"
HEADER = "Treaty-Node"
MAX_REQUEST = 4 * 1024 * 1024
"""Bytes of a request: of its leaves, and of their keys and facts."""
_MAX_ANSWER = 16 * 1024 * 1024  # 256 proofs and their notes take less
_LOOK = 0.2  # seconds between two looks whether the leader that is asked still leads
PATIENCE = 10.0
"""Seconds for an answer: longer than the leader needs to give a commit up."""


class ForwardedProposal(msgspec.Struct, array_like=True, frozen=True):
    """A proposal. `keys`: those that its signatures were verified with; None for a Sigstore leaf. `package`: the member of
    `handler` of this name, which 0.1.0 passes over here and refuses there."""

    leaf: bytes
    keys: tuple[bytes, ...] | None
    handler: HandlerFacts | None
    package: PackageFacts | None = None


class ForwardedRequest(msgspec.Struct, array_like=True, frozen=True):
    """`node`: the sender, a random name. `number`: greater than in its request before."""

    term: int
    node: bytes
    number: int
    proposals: list[ForwardedProposal]


class Placed(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A position. `note`: which of the answer's notes it is proved at. `proof`: None when the leaf was logged before."""

    index: int
    note: int
    proof: list[bytes] | None


class NotPlaced(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A refusal, as `TreatyError` has it."""

    family: str
    code: str
    message: str
    fix: str


class ForwardedAnswer(msgspec.Struct, array_like=True, frozen=True):
    """One outcome for each proposal, in their order."""

    notes: list[bytes]
    outcomes: list[Placed | NotPlaced]


class Forwarding:
    """Both ends of the messages between nodes. For one event loop."""

    def __init__(
        self,
        *,
        keys: Callable[[], LogKeys],
        secret: Callable[[], bytes],
        http: BoundedClient,
        leader: Leader,
        found: Callable[[], Leadership | None],
        adopt: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """`keys`: those of the log, as this node knows them. `secret`: the seed of the newest one. `found`: who leads, as far as
        this node knows. `adopt`: serve the head of a note, if it is newer."""
        self._secret = secret
        self._keys = keys
        self._http = http
        self._leader = leader
        self._found = found
        self._adopt = adopt
        self._name = secrets.token_bytes(16)
        self._number = 0
        self._seen: dict[bytes, int] = {}  # node → its last number, in the term of this leader
        self._term = 0

    async def send(self, proposals: Sequence[Proposal]) -> list[LogPosition | TreatyError]:
        """Have the leader place proposals.

        Raises `Unavailable` (`log.not-leading`) when no leader took them, and `Uncertain` when it is unknown whether one did.
        """
        leader = self._found()
        if leader is None or not leader.led or not leader.url:
            raise _no_leader()
        self._number += 1
        body = msgspec.msgpack.encode(
            ForwardedRequest(leader.term, self._name, self._number, [_proposed(item) for item in proposals])
        )
        code = self._code(b"request", body)
        try:
            headers = {HEADER: code.hex(), **tracing.headers()}
            request = self._http.build_request("POST", leader.url + PATH, content=body, headers=headers)
            reply = await self._during(leader.term, self._http.exchange(request, limit=_MAX_ANSWER))
        except httpx.ConnectError as error:
            raise _no_leader() from error
        # `TreatyError`: the answer took too long.
        except (httpx.HTTPError, TreatyError) as error:
            raise Uncertain() from error
        if reply.status != httpx.codes.OK:
            raise _no_leader()
        content = reply.body
        if not _equal(reply.headers.get(HEADER, ""), self._code(b"answer", code + content)):
            raise Uncertain()
        try:
            answer = msgspec.msgpack.decode(content, type=ForwardedAnswer)
            notes = [self._keys().open(note) for note in answer.notes]
            if notes:
                # Before the answers: a writer that reads here next finds what it wrote.
                await self._adopt(max(notes, key=lambda signed: signed.checkpoint.size).note)
            return [_outcome(item, notes) for item in answer.outcomes]
        # The leader has placed them, but this node cannot show it: it does not reach PostgreSQL, for example.
        except Exception as error:
            raise Uncertain() from error

    async def _during(self, term: int, asking: Coroutine[Any, Any, HttpReply]) -> HttpReply:
        """Wait for the leader's answer, but not longer than it leads: one that stands still never answers. Raises `Uncertain`."""
        task = asyncio.create_task(asking)
        try:
            while not (await asyncio.wait([task], timeout=_LOOK))[0]:
                leader = self._found()
                if self._leader.leads or (leader is not None and leader.term != term):
                    raise Uncertain
            return task.result()
        finally:
            task.cancel()

    def read(self, body: bytes, code: str) -> list[Proposal]:
        """Return the proposals of another node's request.

        Raises `Unauthorized` (`node.request`) when it comes from no node of this log, `Conflict` when it came before,
        `Malformed`, or `Unavailable` (`log.not-leading`).
        """
        if not _equal(code, self._code(b"request", body)):
            raise Unauthorized(NodeCode.REQUEST, "Only the nodes of this registry may send proposals here.")
        try:
            request = msgspec.msgpack.decode(body, type=ForwardedRequest)
        except msgspec.DecodeError as error:
            raise Malformed(NodeCode.REQUEST, "This is not a request of a node.", fix="Run one release on all nodes.") from error
        if not self._leader.leads or request.term != self._leader.term:
            raise _no_leader()
        if self._term != request.term:
            self._term, self._seen = request.term, {}
        if request.number <= self._seen.get(request.node, 0):
            raise Conflict(NodeCode.REQUEST, "This request was taken before.")
        self._seen[request.node] = request.number
        return [_proposal(item) for item in request.proposals]

    def answer(self, outcomes: Sequence[LogPosition | TreatyError], code: str) -> tuple[bytes, str]:
        """Return the answer to the request with that `code`, and the answer's own code."""
        notes: dict[bytes, int] = {}
        answers: list[Placed | NotPlaced] = []
        for outcome in outcomes:
            if isinstance(outcome, TreatyError):
                answers.append(NotPlaced(outcome.family, outcome.code, outcome.message, outcome.fix))
            else:
                note = notes.setdefault(outcome.signed.note, len(notes))
                answers.append(Placed(outcome.index, note, outcome.proof))
        body = msgspec.msgpack.encode(ForwardedAnswer([*notes], answers))
        return body, self._code(b"answer", bytes.fromhex(code) + body).hex()

    def _code(self, kind: bytes, body: bytes) -> bytes:
        # Derived each time: for some milliseconds around a rotation two nodes may differ, and the sender tries again.
        key = hmac.digest(self._secret(), b"treaty node", hashlib.sha256)
        return hmac.digest(key, kind + b"\n" + body, hashlib.sha256)


def _equal(text: str, code: bytes) -> bool:
    # As bytes: a header may have any characters, and text is compared only when it is ASCII.
    return hmac.compare_digest(text.encode(), code.hex().encode())


def _proposed(proposal: Proposal) -> ForwardedProposal:
    keys, handler = proposal.verified.keys if proposal.verified else None, proposal.handler
    package = handler.package if handler else None
    return ForwardedProposal(proposal.leaf, keys, replace(handler, package=None) if handler else None, package)


def _proposal(item: ForwardedProposal) -> Proposal:
    # Not verified again: the sender holds the log's key, and its own admission has verified the signatures.
    verified = None if item.keys is None else Verified(statement.parse(item.leaf), item.keys)
    return Proposal(item.leaf, verified, replace(item.handler, package=item.package) if item.handler else None)


def _outcome(item: Placed | NotPlaced, notes: Sequence[SignedCheckpoint]) -> LogPosition | TreatyError:
    if isinstance(item, Placed):
        return LogPosition(item.index, notes[item.note], item.proof)
    family: type[TreatyError] = getattr(errors, item.family)
    # An answer that says that the log failed is this node's answer too.
    return unavailable() if item.code == RegistryLogCode.UNAVAILABLE else family(item.code, item.message, fix=item.fix)


def _no_leader() -> Unavailable:
    return Unavailable(RegistryLogCode.NOT_LEADING, "No node leads this log now.", fix="Send again in a while.")
