"""Audit a log: replay its leaves, enforce every rule, and recompute every decision to the same bytes.

`Replay` takes the leaves in order. For each leaf it checks, in this order:

1. the form: a statement or one of the two Sigstore leaves, in canonical bytes;
2. a statement occurs in the log only once;
3. its signatures, under the keys that the log knew at that leaf (`admit.keys_of`);
4. all admission rules (`admit`);
5. a decision is the next one due, and a recomputation from the leaves below its input gives the same body and so, by its
   digest, the same transcript; until all decisions of an epoch are logged, no other statement occurs;
6. the certificate of a hashedrekord leaf is itself a leaf at a lower index.

The replay carries the state of an election from epoch to epoch and never takes it from outside. Of the blobs it needs only
the suffix lists that parameters name. A registry decides by the same code: its operator signs the result of `decide`.

Data that grow with every leaf, facts and digests, may be stored elsewhere. In memory stays the evidence that an election
counts (`election.evidence`): a few numbers for each voter in a topic, every distinct ranking, every report, and the vouches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec

from . import canonical, statement
from .admit import MAX_AHEAD, admit
from .codes import AuditCode, BlobCode
from .election.closing import DueDecision, Each, Elections, EpochOutcome, SavedElections
from .errors import Malformed, NotFound, TreatyError, Untrusted
from .facts import Fact, Facts, LogFact, TopicFact, find, keys_of, log_of, topic_key
from .kinds import MAX_ROLL, MAX_TRANSCRIPT, NONE, Blob, Decision, Input, Newer
from .log.checkpoint import Checkpoint
from .log.merkle import Frontier, leaf_hash
from .sigstore_leaf import CertificateLeaf, RekordLeaf, parse_sigstore_leaf
from .statement import Statement, Verified

# The first member of a canonical envelope. It tells a statement from a Sigstore leaf before parsing.
_STATEMENT_START = b'{"payload":'
# Other anchors give other trust, so these fields differ from the logged ones.
_FOLLOWS_FROM_TRUST = ("states", "consensus", "transcript", "roll")

_T = TypeVar("_T")


class Digests(Protocol):
    """Store a set of SHA-256 digests in hexadecimal."""

    def __contains__(self, digest: str, /) -> bool:
        """Tell whether the digest was added."""
        ...

    def add(self, digest: str, /) -> None:
        """Add the digest."""
        ...


class SavedReplay(msgspec.Struct, frozen=True, array_like=True):
    """Hold the state of a replay between two epochs, but its facts and digests.

    `frontier`: the hashes of `Frontier.hashes`, which prove the root of all replayed leaves.
    """

    size: int
    frontier: list[bytes]
    elections: SavedElections

    def root(self) -> bytes:
        """Return the Merkle root over the replayed leaves. Raises `Malformed` (`log.form`)."""
        return Frontier(self.size, self.frontier).root()


def no_blob(sha256: str) -> bytes:
    """Raise `NotFound` (`blob.missing`): the default for a replay without blobs."""
    raise NotFound(BlobCode.MISSING, f"The blob {sha256} is needed to replay this log.")


class Replay:
    """Rebuild and check a log from its leaves. Mutable, not safe for concurrent use. A method that raises changes nothing."""

    def __init__(
        self,
        blob: Callable[[str], bytes] = no_blob,
        *,
        facts: MutableMapping[str, Fact] | None = None,
        digests: Digests | None = None,
        anchors: Sequence[str] | None = None,
        differing: Callable[[Untrusted], None] | None = None,
        each: Each = map,
        resumed: SavedReplay | None = None,
    ) -> None:
        """Start with an empty log, or where another replay was saved.

        `blob`: returns the bytes of a blob for its SHA-256, or raises `TreatyError`; the digest is checked. Called for suffix
        lists and, when a decision is wrong, for its roll and transcript.
        `facts`, `digests`: empty stores for the data that grow with every leaf; in memory by default.
        `anchors`: replace the anchors of every open electorate, to ask how decisions would change. A decision is then
        compared only in the fields that do not follow from trust, and `recomputed` is the decision under these anchors.
        `differing`: called with the error of a decision that differs from the recomputed one (`audit.decision`). The replay then
        goes on from its own result, to find further differences. By default such a decision is refused.
        `each`: applies a function to many items, in their order: the counts of the topics of an epoch.
        `resumed`: from `saved`. `facts` and `digests` then hold those of that replay. It is believed: nothing here can verify it
        but its Merkle root.
        """
        self._blob = blob
        self._frontier = Frontier()
        self._facts: MutableMapping[str, Fact] = {} if facts is None else facts
        self._elections = Elections(self._checked_blob, anchors, each)
        self._what_if = anchors is not None
        self._differing = differing
        # Ids of statements and digests of certificates share one store: both are SHA-256, so they cannot collide.
        self._digests: Digests = set() if digests is None else digests
        self._closing: EpochOutcome | None = None
        self._recomputed: DueDecision | None = None
        self._closing_at: int | None = None
        self._logged = 0
        if resumed is not None:
            self._frontier = Frontier(resumed.size, resumed.frontier)
            self._elections.restore(resumed.elections)

    def saved(self) -> SavedReplay | None:
        """Return the state after the last leaf, or None while an epoch is being closed. It must be used before the next leaf."""
        # The outcome of a half logged closing follows from the state before it, which a later replay does not have.
        if self.size and self._log.remaining:
            return None
        return SavedReplay(self.size, [*self._frontier.hashes], self._elections.saved())

    @property
    def size(self) -> int:
        """Return the number of leaves, which is the index of the next one."""
        return self._frontier.size

    @property
    def facts(self) -> Facts:
        """Return a live view of the facts after the last leaf."""
        return self._facts

    @property
    def recomputed(self) -> DueDecision | None:
        """Return the recomputed decision that the newest logged decision was compared with."""
        return self._recomputed

    def root(self) -> bytes:
        """Return the Merkle root over the leaves so far."""
        return self._frontier.root()

    def has_logged(self, statement_id: str) -> bool:
        """Tell whether a statement is among the leaves."""
        return statement_id in self._digests

    def append(self, leaf: bytes) -> Statement | CertificateLeaf | RekordLeaf:
        """Check the next leaf, add it, and return it parsed.

        Raises `Untrusted` (`audit.*`), which names the leaf and is chained to the cause; `Malformed` (`registry.newer`) for a
        leaf of a newer release; and the errors of `blob` for a suffix list.
        """
        if leaf.startswith(_STATEMENT_START):
            parsed = self._checked(AuditCode.LEAF, lambda: statement.read(leaf))
            # The keys at this leaf, not the newest ones: a later rotation must not invalidate earlier statements.
            keys = {k: v for did in parsed.authors for k, v in keys_of(self._facts, did).items()}
            verified = self._checked(AuditCode.LEAF, lambda: statement.verify(parsed, keys))
            # After its signature, so that only those who may write here make an auditor stop.
            if isinstance(parsed.body, Newer):
                self._stop(leaf)
            self.apply(verified)
            return parsed
        entry = self._checked(AuditCode.LEAF, lambda: parse_sigstore_leaf(leaf))
        if isinstance(entry, CertificateLeaf):
            self._digests.add(canonical.hex_digest(entry.der))
        # A certificate that the log did not issue could have been made at any time, for any key.
        elif canonical.hex_digest(entry.certificate) not in self._digests:
            self._fail(AuditCode.LEAF, "is signed under a certificate that this log has not issued before")
        self._frontier.append(leaf_hash(leaf))
        return entry

    def apply(self, verified: Verified) -> None:
        """Add a statement that the caller has parsed and verified. Raises the errors of `append`."""
        admitted_statement, index = verified.statement, self.size
        # `admit` alone would accept some statements twice, such as a status.
        if admitted_statement.id in self._digests:
            self._fail(AuditCode.LEAF, "repeats a statement that stands in the log already")
        changes = self._checked(AuditCode.LEAF, lambda: admit(self._facts, verified, index))
        recomputed = self._check_decision(admitted_statement.body) if isinstance(admitted_statement.body, Decision) else None
        # All checks are done: from here on nothing raises, so the state stays consistent.
        self._facts.update(changes)
        if isinstance(admitted_statement.body, Decision):
            self._take_decision(admitted_statement.body)
            self._recomputed = recomputed
        else:
            self._elections.observe(admitted_statement, index, self._log.epoch)
        self._digests.add(admitted_statement.id)
        self._frontier.append(leaf_hash(admitted_statement.leaf))

    def decide(self) -> list[DueDecision]:
        """Return the decisions that close the open epoch, sorted by topic; empty when no topic is on its agenda.

        While an epoch is being closed, these are the missing decisions. The operator signs and logs them before any other
        statement.

        Raises `Refused` when the log has no genesis or no parameters yet, and the errors of `blob`.
        """
        closing = self._close()
        return list(closing.due[self._logged :])

    def check_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Check that a checkpoint, already verified as the log's, covers exactly these leaves.

        Raises `Untrusted` (`audit.leaf`).
        """
        if checkpoint.origin != self._log.origin:
            difference = f"is of {checkpoint.origin}, these leaves are of {self._log.origin}"
        elif checkpoint.size != self.size:
            difference = f"has {checkpoint.size} leaves, {self.size} were replayed"
        elif checkpoint.root != self.root():
            difference = f"has the root {checkpoint.root.hex()}, the {self.size} replayed leaves have {self.root().hex()}"
        else:
            return
        raise Untrusted(
            AuditCode.LEAF,
            f"The checkpoint {difference}.",
            fix="Keep the checkpoint and the leaves: together they show what the log signed and what it served.",
        )

    def check_clock(self, cosigned: int, by: str) -> None:
        """Check that the log's clock is no more than `MAX_AHEAD` seconds ahead of a time at which a head of it was cosigned.

        A log that is ahead has closed epochs that have not ended yet. `by`: the cosigner, for the message.

        Raises `Untrusted` (`audit.leaf`).
        """
        ahead = self._log.time - cosigned
        if ahead > MAX_AHEAD:
            raise Untrusted(
                AuditCode.LEAF,
                f"The log's clock, set by leaf {self._log.time_index}, is {ahead} seconds ahead of the cosignature of {by}: the "
                "operator dates its statements ahead.",
                fix="Keep the leaves and the checkpoint: together they prove it.",
            )

    @property
    def _log(self) -> LogFact:
        return log_of(self._facts)

    def _close(self) -> EpochOutcome:
        """Return the outcome of the epoch that is being closed, or the outcome if the open epoch closed now."""
        # Deciding is expensive, so the result is kept until a leaf is added or the epoch is complete.
        if self._closing is None or not (self._log.remaining or self._closing_at == self.size):
            until = Input(self.size, self.root().hex())
            self._closing = self._elections.close(self._log, until, self._newest_decision)
            self._closing_at, self._logged = self.size, 0
        return self._closing

    def _newest_decision(self, topic: str) -> str | None:
        fact = find(self._facts, topic_key(topic), TopicFact)
        return fact.decision if fact else None

    def _checked_blob(self, sha256: str) -> bytes:
        data = self._blob(sha256)
        if canonical.hex_digest(data) != sha256:
            raise Untrusted(AuditCode.BLOB, f"These bytes are not the blob {sha256}.")
        return data

    def _check_decision(self, body: Decision) -> DueDecision:
        """Compare a decision with the one that is due, and return the latter."""
        expected = self._expected(body)
        stated, right = msgspec.to_builtins(body), msgspec.to_builtins(expected.decision)
        # A cosignature cannot be recomputed. Admission has checked it.
        stated["input"].pop("witnessed", None)
        if self._what_if:
            for name in _FOLLOWS_FROM_TRUST:
                stated.pop(name, None)
                right.pop(name, None)
        if canonical.dumps(stated) != canonical.dumps(right):
            try:
                # The blobs first: they show the cause, the body only shows a wrong digest.
                missing = self._explain(body, body.roll, expected.roll, MAX_ROLL, "roll")
                missing += self._explain(body, body.transcript, expected.transcript, MAX_TRANSCRIPT, "transcript")
                self._diverged(body, "body", right, stated, "".join(missing))
            except Untrusted as error:
                if self._differing is None or error.code != AuditCode.DECISION:
                    raise
                self._differing(error)
        return expected

    def _expected(self, body: Decision) -> DueDecision:
        """Return the decision that is due at this leaf. With replaced anchors: the decision in its topic."""
        closing = self._close()
        # Other anchors give another order of the agenda, so the decision is found by its topic.
        if self._what_if and body.topic in closing.outcomes:
            return closing.due_in(body.topic, remaining=body.remaining)
        if self._what_if or self._logged >= len(closing.due):
            self._fail(AuditCode.DECISION, f"decides {body.topic}, but that topic was not due")
        return closing.due[self._logged]

    def _explain(self, body: Decision, logged: Blob, recomputed: bytes, limit: int, part: str) -> list[str]:
        """Name the first difference between the logged blob of a wrong decision and the recomputed blob.

        Returns without an error when the blobs are equal, and with a sentence when the logged blob is not available.
        """
        if logged.sha256 == canonical.hex_digest(recomputed):
            return []
        try:
            data = self._checked_blob(logged.sha256)
        except TreatyError as error:
            # The caller then reports the difference of the statements.
            fault = "is not the one that the decision names" if error.code == AuditCode.BLOB else "is not served"
            return [f"; its {part} {fault}, so no place in it can be named"]
        part_value = self._checked(AuditCode.DECISION, lambda: canonical.loads(data, limit=limit, name=f"decision's {part}"))
        return self._diverged(body, part, canonical.loads(recomputed, limit=limit), part_value)

    def _take_decision(self, body: Decision) -> None:
        closing = self._closing
        assert closing is not None, "the decision was compared with it"
        self._logged += 1
        # Only with the last decision: until then the missing ones must follow from the same state.
        if not body.remaining:
            self._elections.finish(closing)
            self._closing = None

    def _diverged(self, body: Decision, part: str, expected: object, logged: object, note: str = "") -> NoReturn:
        path, right, wrong = _first_difference(expected, logged, part)
        decision = f"is a decision, of {body.topic} in epoch {body.epoch}, with {path}{_meaning(path, expected)} = {wrong}"
        self._fail(AuditCode.DECISION, f"{decision}; recomputed from the log it is {right}{note}")

    def _checked(self, code: str, check: Callable[[], _T]) -> _T:
        try:
            return check()
        except TreatyError as error:
            raise self._untrusted(code, f"is not valid: {error.message.rstrip('.')}") from error

    def _stop(self, leaf: bytes) -> None:
        """Raise `Malformed` (`registry.newer`). No accusation: a newer release keeps rules that this one does not know."""
        try:
            statement.understand(leaf)
        except Malformed as error:
            raise Malformed(error.code, f"Leaf {self.size}: {error.message}", fix=error.fix) from error

    def _fail(self, code: str, fault: str) -> NoReturn:
        raise self._untrusted(code, fault)

    def _untrusted(self, code: str, fault: str) -> Untrusted:
        return Untrusted(
            code,
            f"Leaf {self.size} {fault}.",
            fix="Keep the leaves and a checkpoint over them: together they prove what the log did.",
        )


def _first_difference(expected: object, logged: object, path: str) -> tuple[str, str, str]:
    """Return the path of the first difference between two JSON values, in canonical order, and the value on each side."""
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


_ROW = ("principal", "cluster", "trust", "weight", "age", "standing")
_PLACE = re.compile(r"(?:roll|transcript)\.(principals|credits|voices|candidates|nominees|pairwise)\[(\d+)\](?:\[(\d+)\])?")


def _meaning(path: str, blob: Any) -> str:
    """Return in parentheses whom a place in a recomputed roll or transcript is about, and its column; empty where it is plain."""
    match = _PLACE.match(path)
    if match is None:
        return ""
    rows, place, column = blob[match[1]], int(match[2]), int(match[3]) if match[3] else None
    if place >= len(rows):
        return ""
    if match[1] == "pairwise":
        choices = [*(entry["hash"][:12] for entry in blob["candidates"]), NONE]
        return f" ({choices[place]} over {choices[column]})" if column is not None and column < len(choices) else ""
    row = rows[place]
    if match[1] == "principals":
        return f" ({_ROW[column]} of {row[0]})" if column is not None and column < len(_ROW) else f" ({row[0]})"
    return f" ({row.get('principal') or row.get('hash')})"


def _shown(value: object) -> str:
    text = canonical.dumps(value).decode()
    # An error message must stay readable, and a value may be a whole list of voters.
    return text if len(text) <= 120 else f"{text[:120]}…"
