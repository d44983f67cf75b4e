"""Compute which earlier proven leaves an answer must hold but does not: `left_out`.

The log only grows, and a bundle holds every leaf of certain kinds about its subject. So a leaf that was seen once is in each
later bundle about the same subject, unless a newer leaf replaces it or a full list has no room for it. The rule for each kind of
leaf is in docs/specification/bundles.md, "Leaves that every later bundle must hold". For example, a publish statement is in every
bundle with its URI for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from treaty_consensus.kinds import Body, Decision, Handler, Identity, Newer, Publish, Status
from treaty_consensus.protocol import parse_protocol_uri
from treaty_consensus.statement import Statement

from ...registries.bundle import MAX_HANDLERS, MAX_TOPIC_PROTOCOLS
from ...registries.leaves import PARAMETERS, SeenLeaf, place_of
from .records import Evidence, Logged, decides

_B = TypeVar("_B", bound=Body)


@dataclass(frozen=True)
class Gap:
    """Epochs that were missed between two decisions of a topic. `seen_id`: the id of the statement of `seen`."""

    newest: Decision
    seen: Decision
    seen_id: str


class MissedEpochs(Exception):
    """An answer cannot be compared before its newest decision is followed back over `gap`. It is no failure of the answer."""

    def __init__(self, gap: Gap) -> None:
        super().__init__(gap)
        self.gap = gap


@dataclass(frozen=True)
class RegistryAnswer:
    """The leaves that a registry proved about `uri` or `topic`, by steps 1 to 4.

    `uri`, `topic`: the name that was asked for; the other one is "". `earlier`: decisions before the newest one of `elects`, by
    id, as far as they were followed back (`earlier_decisions`). None: they must be, before the answer is compared.
    """

    evidence: Evidence
    uri: str = ""
    topic: str = ""
    earlier: Mapping[str, Statement] | None = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The URI or the topic."""
        return self.uri or self.topic

    @property
    def size(self) -> int:
        """The size of the log at the answer's checkpoint."""
        return self.evidence.checkpoint.checkpoint.size

    @cached_property
    def by_index(self) -> dict[int, Statement]:
        """The statements by leaf index."""
        return {logged.index: logged.statement for logged in self.evidence.statements}

    @cached_property
    def publishes(self) -> dict[str, Logged]:
        """The publish statements by URI: the protocol's, or those of the topic, and those of the documents they are based on."""
        return {body.uri: logged for logged, body in self._of(Publish)}

    @cached_property
    def handlers(self) -> list[tuple[Logged, Handler]]:
        """The handlers of the protocol; empty for a topic."""
        return [(logged, body) for logged, body in self._of(Handler) if body.uri == self.uri]

    @cached_property
    def elects(self) -> str:
        """The topic whose newest decision must be in the answer: the topic itself, or that of the protocol."""
        published = self.publishes.get(self.uri)
        return published.statement.body.topic if published and isinstance(published.statement.body, Publish) else self.topic

    @cached_property
    def decisions(self) -> dict[str, tuple[int, Decision]]:
        """The newest decision of each topic, with its leaf.

        Only the decision of `elects` is the newest in the log. Others are in the bundle because they once set the log's clock.
        """
        return {body.topic: (logged.index, body) for logged, body in self._of(Decision)}

    @cached_property
    def newer(self) -> dict[str, int]:
        """The leaf of the newest decision of each topic that only a newer release understands."""
        return {body.topic: logged.index for logged, body in self._of(Newer) if decides(body)}

    @cached_property
    def listed(self) -> dict[str, tuple[int, Publish]]:
        """The protocols of the topic's list, by URI, in the order of the list.

        A full list may come with further protocols of the topic, on which others are based. In the order they come after the
        whole list; otherwise they would be in it.
        """
        of_topic = [(logged.index, body) for logged, body in self._of(Publish) if body.topic == self.topic]
        of_topic.sort(key=lambda entry: self.rank(*entry))
        return {body.uri: (index, body) for index, body in of_topic[:MAX_TOPIC_PROTOCOLS]}

    @cached_property
    def named(self) -> frozenset[str]:
        """The documents to which the topic's newest decision gives another state than `published`."""
        _, decision = self.decisions.get(self.topic, (-1, None))
        states = decision.states if decision is not None else ()
        return frozenset(document for document, state in states if state != "published")

    def rank(self, index: int, body: Publish) -> tuple[int, int]:
        """Return the sort key of a protocol in the topic's list. Compare it only with keys of the same answer."""
        return (0, index) if body.document.sha256 in self.named else (1, -index)

    @cached_property
    def subjects(self) -> frozenset[str]:
        """The names under which earlier leaves must be compared with this answer."""
        subjects = {PARAMETERS, *(f"topic/{topic}" for topic in (self.elects, *self.decisions))}
        if self.uri:
            subjects.add(f"protocol/{self.uri}")
        for logged in self.evidence.statements:
            body = logged.statement.body
            dids = {did.text for did in logged.statement.authors} | ({body.did} if isinstance(body, Identity) else set())
            # A did:key is its own key and has no identity in the log.
            subjects |= {f"identity/{did}" for did in dids if not did.startswith("did:key:")}
            if isinstance(body, Publish):
                subjects |= {f"protocol/{body.uri}", *_grant_of(body, logged.statement)}
        return frozenset(subjects)

    def gap(self, seen: Iterable[SeenLeaf]) -> Gap | None:
        """Return the epochs of `elects` between the newest of `seen` and the newest decision, if other decisions are between."""
        index, newest = self.decisions.get(self.elects, (-1, None))
        if newest is None or self.newer.get(self.elects, -1) > index:
            return None
        epochs = [
            Gap(newest, body, leaf.statement.id)
            for leaf in seen
            if leaf.index < index and isinstance(body := leaf.statement.body, Decision) and body.topic == self.elects
        ]
        last = max(epochs, key=lambda gap: gap.seen.epoch, default=None)
        is_gap = last and newest.epoch > last.seen.epoch + 1 and newest.previous not in (None, last.seen_id)
        return last if is_gap else None

    def replaces(self, seen: SeenLeaf) -> bool:
        """Return whether the answer has a newer statement in the place of this leaf."""
        place = place_of(seen.statement)
        statements = self.evidence.statements
        # A smaller index is no replacement: the registry would show an older status again.
        return place is not None and any(new.index > seen.index and place_of(new.statement) == place for new in statements)

    def _of(self, kind: type[_B]) -> list[tuple[Logged, _B]]:
        statements = [(logged, logged.statement.body) for logged in self.evidence.statements]
        return [(logged, body) for logged, body in statements if isinstance(body, kind)]


def left_out(answer: RegistryAnswer, seen: Iterable[SeenLeaf]) -> list[SeenLeaf]:
    """Return the leaves of `seen` that the answer must hold and does not, in their order.

    `seen`: the leaves that were proved earlier under the answer's `subjects`.
    """
    return [leaf for leaf in seen if not _holds(answer, leaf)]


def excludes(one: Statement, other: Statement) -> bool:
    """Return whether no log of Treaty can hold both statements.

    These pairs exclude each other: two first or two second identities of a DID, two publications of one version, two decisions
    of one topic in one epoch or after the same decision, and a decision of the next epoch that follows another one.
    """
    a, b = one.body, other.body
    if one.id == other.id:
        return False
    match a, b:
        case Identity(), Identity():
            return a.did == b.did and a.previous == b.previous
        case Publish(), Publish():
            return a.uri == b.uri
        case Decision(), Decision():
            return a.topic == b.topic and (
                a.epoch == b.epoch
                or a.previous == b.previous
                or (b.epoch == a.epoch + 1 and b.previous != one.id)
                or (a.epoch == b.epoch + 1 and a.previous != other.id)
            )
    return False


def passes_over(later: Statement, earlier: Statement, other: Statement) -> bool:
    """Return whether the decision `later` follows `earlier`, and so passes over `other`, a decision of the topic between them."""
    a, b, c = later.body, earlier.body, other.body
    if not (isinstance(a, Decision) and isinstance(b, Decision) and isinstance(c, Decision)):
        return False
    return a.previous == earlier.id and a.topic == c.topic and b.epoch < c.epoch < a.epoch


def _holds(answer: RegistryAnswer, seen: SeenLeaf) -> bool:
    there = answer.by_index.get(seen.index)
    # The same index with other bytes is a fork, even if the statement is equivalent.
    if there is not None and there.leaf != seen.leaf:
        return False  # a different leaf at the same index: another log
    statement = there or seen.statement  # the answer's copy first, because it is parsed already
    body = statement.body
    # Decisions replace each other by epoch, so presence alone does not decide.
    if isinstance(body, Decision):
        return _is_decided(answer, seen.index, statement.id, body)
    if there is not None or answer.replaces(seen):
        return True
    match body:
        case Publish():
            # A version is published once, so no other leaf can stand in for this one.
            if body.uri == answer.uri or body.uri in answer.publishes:
                return False
            return body.topic != answer.topic or _is_topic_full(answer, seen.index, body)
        case Handler():
            return body.uri != answer.uri or _are_handlers_full(answer, seen.index, statement)
        case Status() | Newer(kind="status") if body.wheel is not None:
            attached = [(logged.statement.author, handler.wheel.sha256) for logged, handler in answer.handlers]
            # A full list may lack the handler. Then the answer need not hold its status either.
            return body.uri != answer.uri or (statement.author, body.wheel) not in attached
        case Status() | Newer(kind="status"):
            return body.uri != answer.uri and body.uri not in answer.listed
    return False


def _is_decided(answer: RegistryAnswer, index: int, seen_id: str, seen: Decision) -> bool:
    """Return whether the answer's decision in that topic is the one that was seen, or may follow it.

    For a topic other than that of the answer, an older decision or none is allowed.
    """
    newest, decision = answer.decisions.get(seen.topic, (-1, None))
    # Whether it follows the seen one is for releases that know its rule.
    if answer.newer.get(seen.topic, -1) > max(index, newest):
        return True
    if decision is None or newest <= index:
        return newest == index or seen.topic != answer.elects
    # A decision after the same predecessor, or of an input before the seen leaf, belongs to another history.
    follows = decision.previous is not None and decision.previous != seen.previous and decision.input.size > index
    return follows and decision.epoch > seen.epoch and _leads_to(answer, decision, seen_id, seen)


def _leads_to(answer: RegistryAnswer, decision: Decision, seen_id: str, seen: Decision) -> bool:
    """Return whether the predecessors of a decision lead to the one that was seen, as far as they are known."""
    while decision.previous != seen_id:
        # No other decision of the topic stands between two epochs that follow each other.
        if decision.previous is None or decision.epoch == seen.epoch + 1:
            return False
        before = (answer.earlier or {}).get(decision.previous)
        if before is None:
            return True
        assert isinstance(before.body, Decision)
        if not seen.epoch < before.body.epoch < decision.epoch:
            return False
        decision = before.body
    return True


def _is_topic_full(answer: RegistryAnswer, index: int, seen: Publish) -> bool:
    """Return whether the answer's list is full with protocols that come before the one that was seen."""
    before = [entry for entry in answer.listed.values() if answer.rank(*entry) < answer.rank(index, seen)]
    return len(before) >= MAX_TOPIC_PROTOCOLS


def _are_handlers_full(answer: RegistryAnswer, index: int, seen: Statement) -> bool:
    if len(answer.handlers) < MAX_HANDLERS:
        return False
    author = answer.publishes[answer.uri].statement.author
    if seen.author == author:
        return all(logged.statement.author == author and logged.index > index for logged, _ in answer.handlers)
    return all(logged.statement.author == author or logged.index < index for logged, _ in answer.handlers)


def _grant_of(body: Publish, statement: Statement) -> tuple[str, ...]:
    """Return the grant on which a publish statement rests; the owner of a namespace needs none."""
    namespace, author = parse_protocol_uri(body.uri).namespace, statement.author
    # A DID with a port owns no namespace, so it needs a grant.
    is_owner = author.port is None and author.namespace == namespace
    return () if is_owner else (f"grant/{namespace}/{author.text}",)
