"""Audit: replay a log from its leaves alone, hold every rule against it, and recompute every decision to the same bytes.

`Replay` takes the leaves in order. For each it checks, in this order:

1. the form: a statement or one of the two Sigstore leaves, canonical to the byte;
2. a statement stands in the log once;
3. its signatures, under the keys that the log knew at that leaf (`admit.keys_of`);
4. all rules of admission (`admit`);
5. a decision is the very next one due, and recomputed from the leaves below its input gives the same body and so, by its digest,
   the same transcript; until all decisions of an epoch are there, no other statement comes between;
6. the certificate of a hashedrekord leaf is itself a leaf at a lower index.

The state of an election is carried from epoch to epoch by this replay and never taken from outside. A registry decides with the
very same code: what `decide` gives is what its operator signs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

import msgspec

from . import canonical, statement
from .admit import admit, keys_of, topic_key
from .election.decision import Outcome, Question, decide, electorate_of
from .election.evidence import Evidence
from .election.rule import Standing
from .errors import Refused, TreatyError, Untrusted
from .facts import Fact, Facts, LogFact, TopicFact, find, log_of
from .kinds import MAX_TRANSCRIPT, Decision, Input, Parameters
from .log.checkpoint import Checkpoint
from .log.merkle import Frontier, leaf_hash
from .sigstore_leaf import CertificateLeaf, RekordLeaf, parse_sigstore_leaf
from .statement import Statement, Verified

_STATEMENT_START = b'{"payload":'

_T = TypeVar("_T")


class Replay:
    """A log as its leaves make it. Mutable, not safe for concurrent use; whatever raises has changed nothing."""

    def __init__(self) -> None:
        self._frontier = Frontier()
        self._facts: dict[str, Fact] = {}
        self._evidence = Evidence()
        self._parameters: dict[str, Parameters] = {}
        self._standings: dict[str, Mapping[str, Standing]] = {}
        self._statements: set[str] = set()
        self._certificates: set[bytes] = set()
        self._due: list[Outcome] = []
        self._due_at: int | None = None

    @property
    def size(self) -> int:
        """How many leaves there are: the index of the next one."""
        return self._frontier.size

    @property
    def facts(self) -> Facts:
        """The facts after the last leaf, a live view."""
        return self._facts

    def root(self) -> bytes:
        """The Merkle root over the leaves so far."""
        return self._frontier.root()

    def append(self, leaf: bytes, transcript: bytes | None = None) -> Statement | CertificateLeaf | RekordLeaf:
        """Check the next leaf, take it in, and return it parsed.

        `transcript`: for a decision, the blob that it names, if the auditor has it; not needed, but a wrong decision is then
        explained in more detail. Raises `Untrusted` (`audit.*`) naming the leaf, chained to what was wrong with it.
        """
        if leaf.startswith(_STATEMENT_START):
            parsed = self._checked("audit.leaf", lambda: statement.parse(leaf))
            keys = {k: v for did in parsed.authors for k, v in keys_of(self._facts, did).items()}
            verified = self._checked("audit.signature", lambda: statement.verify(parsed, keys))
            self.apply(verified, transcript)
            return parsed
        entry = self._checked("audit.leaf", lambda: parse_sigstore_leaf(leaf))
        if isinstance(entry, CertificateLeaf):
            self._certificates.add(canonical.sha256(entry.der))
        elif canonical.sha256(entry.certificate) not in self._certificates:
            self._fail("audit.certificate", "is signed under a certificate that this log has not issued before")
        self._frontier.append(leaf_hash(leaf))
        return entry

    def apply(self, verified: Verified, transcript: bytes | None = None) -> None:
        """`append` for whoever has parsed and verified the statement already."""
        made, index = verified.statement, self.size
        if made.id in self._statements:
            self._fail("audit.duplicate", "repeats a statement that stands in the log already")
        changes = self._checked("audit.refused", lambda: admit(self._facts, verified, index))
        outcome = self._recomputed(made.body, transcript) if isinstance(made.body, Decision) else None
        self._facts.update(changes)
        if outcome:
            self._standings[outcome.decision.topic] = outcome.standings
            self._due = self._due[1:]
        elif isinstance(made.body, Parameters):
            self._parameters[made.id] = made.body
        else:
            self._evidence.observe(made, index, self._log.epoch)
        self._statements.add(made.id)
        self._frontier.append(leaf_hash(made.leaf))

    def decide(self) -> list[tuple[Decision, bytes]]:
        """The bodies and transcripts that close the open epoch, in the order of their topics; none when no topic has a report or
        a ballot. While an epoch is being closed: what is still missing. The operator signs and logs them before any other
        statement.

        Raises `Refused` when the log has no genesis or no parameters yet.
        """
        return [(outcome.decision, outcome.transcript) for outcome in self._outcomes_due()]

    def check_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Check that a checkpoint (already verified as the log's) is of exactly these leaves. Raises
        `Untrusted("audit.checkpoint")`."""
        if checkpoint.origin != self._log.origin:
            what = f"is of {checkpoint.origin}, these leaves are of {self._log.origin}"
        elif checkpoint.size != self.size:
            what = f"has {checkpoint.size} leaves, {self.size} were replayed"
        elif checkpoint.root != self.root():
            what = f"has the root {checkpoint.root.hex()}, the {self.size} leaves that were replayed have {self.root().hex()}"
        else:
            return
        raise Untrusted(
            "audit.checkpoint",
            f"The checkpoint {what}.",
            fix="Keep the checkpoint and the leaves: together they show what the log signed and what it served.",
        )

    @property
    def _log(self) -> LogFact:
        return log_of(self._facts)

    def _outcomes_due(self) -> list[Outcome]:
        """What is still to be logged of the epoch that is being closed, or else what closes the open one."""
        if not self._log.remaining and self._due_at != self.size:
            self._due = self._outcomes()
            self._due_at = self.size
        return self._due

    def _outcomes(self) -> list[Outcome]:
        log = self._log
        if log.parameters is None:
            raise Refused("decision.parameters", "This log has no parameters yet: there is no rule to decide by.")
        parameters = self._parameters[log.parameters]
        until = Input(self.size, self.root().hex())
        electorate = electorate_of(self._evidence, log.epoch, parameters)
        topics = self._evidence.topics()
        outcomes = []
        for remaining, topic in zip(reversed(range(len(topics))), topics, strict=True):
            last = find(self._facts, topic_key(topic), TopicFact)
            question = Question(
                topic,
                log.epoch,
                log.parameters,
                parameters,
                until,
                last.decision if last else None,
                self._standings.get(topic, {}),
            )
            outcomes.append(decide(question, self._evidence, electorate, remaining=remaining))
        return outcomes

    def _recomputed(self, body: Decision, transcript: bytes | None) -> Outcome:
        due = self._outcomes_due()
        if not due:
            self._fail("audit.unexpected-decision", f"decides {body.topic}, where nobody reported or voted")
        expected = due[0]
        if transcript is not None and transcript != expected.transcript:
            logged = self._checked(
                "audit.decision", lambda: canonical.loads(transcript, limit=MAX_TRANSCRIPT, what="decision transcript")
            )
            self._diverged("transcript", canonical.loads(expected.transcript, limit=MAX_TRANSCRIPT), logged)
        if canonical.dumps(msgspec.to_builtins(body)) != canonical.dumps(msgspec.to_builtins(expected.decision)):
            self._diverged("body", msgspec.to_builtins(expected.decision), msgspec.to_builtins(body))
        return expected

    def _diverged(self, part: str, expected: object, logged: object) -> NoReturn:
        path, right, wrong = _first_difference(expected, logged, part)
        self._fail("audit.decision", f"is a decision with {path} = {wrong}; recomputed from the log it is {right}")

    def _checked(self, code: str, check: Callable[[], _T]) -> _T:
        try:
            return check()
        except TreatyError as error:
            raise self._untrusted(code, f"does not stand: {error.message.rstrip('.')}") from error

    def _fail(self, code: str, what: str) -> NoReturn:
        raise self._untrusted(code, what)

    def _untrusted(self, code: str, what: str) -> Untrusted:
        return Untrusted(
            code,
            f"Leaf {self.size} {what}.",
            fix="Keep the leaves and a checkpoint over them: together they prove what the log did.",
        )


def _first_difference(expected: object, logged: object, path: str) -> tuple[str, str, str]:
    """Where two different JSON values differ first, in canonical order: the path, and the value on each side."""
    if isinstance(expected, dict) and isinstance(logged, dict):
        for name in sorted(expected.keys() | logged.keys()):
            if name not in expected or name not in logged or expected[name] != logged[name]:
                return _first_difference(expected.get(name, "absent"), logged.get(name, "absent"), f"{path}.{name}")
    if isinstance(expected, list | tuple) and isinstance(logged, list | tuple):
        for place, (right, wrong) in enumerate(zip(expected, logged, strict=False)):
            if right != wrong:
                return _first_difference(right, wrong, f"{path}[{place}]")
        return f"{path}.length", str(len(expected)), str(len(logged))
    return path, _shown(expected), _shown(logged)


def _shown(value: object) -> str:
    text = canonical.dumps(value).decode()
    return text if len(text) <= 120 else f"{text[:120]}…"
