"""Audit: replay a log from its leaves alone, hold every rule against it, and recompute every decision to the same bytes.

`Replay` takes the leaves in order. For each it checks, in this order:

1. the form: a statement or one of the two Sigstore leaves, canonical to the byte;
2. a statement stands in the log once;
3. its signatures, under the keys that the log knew at that leaf (`admit.keys_of`);
4. all rules of admission (`admit`);
5. a decision is the very next one due, and recomputed from the leaves below its input gives the same body and so, by its digest,
   the same transcript; until all decisions of an epoch are there, no other statement comes between;
6. the certificate of a hashedrekord leaf is itself a leaf at a lower index.

The state of an election is carried from epoch to epoch by this replay and never taken from outside; of the blobs only the suffix
lists that parameters name are needed. A registry decides with the very same code: what `decide` gives is what its operator signs.

What grows with every leaf, facts and digests, may be kept elsewhere; what stays in memory is what an election counts
(`election.evidence`): a few numbers for each voter in a topic, every different ranking, every report, the vouches.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import NoReturn, Protocol, TypeVar

import msgspec

from . import canonical, statement
from .admit import admit, keys_of, topic_key
from .election.closing import Closing, Due, Elections
from .errors import NotFound, TreatyError, Untrusted
from .facts import Fact, Facts, LogFact, TopicFact, find, log_of
from .kinds import MAX_ROLL, MAX_TRANSCRIPT, Blob, Decision, Input
from .log.checkpoint import Checkpoint
from .log.merkle import Frontier, leaf_hash
from .sigstore_leaf import CertificateLeaf, RekordLeaf, parse_sigstore_leaf
from .statement import Statement, Verified

_STATEMENT_START = b'{"payload":'
_FOLLOWS_FROM_TRUST = ("states", "consensus", "transcript", "roll")

_T = TypeVar("_T")


class Digests(Protocol):
    """A set of SHA-256 digests in hexadecimal."""

    def __contains__(self, digest: str, /) -> bool:
        """Whether it was added."""
        ...

    def add(self, digest: str, /) -> None:
        """Add it."""
        ...


def no_blob(sha256: str) -> bytes:
    """The blobs of whoever has none."""
    raise NotFound("blob.missing", f"The blob {sha256} is needed to replay this log.")


class Replay:
    """A log as its leaves make it. Mutable, not safe for concurrent use; whatever raises has changed nothing."""

    def __init__(
        self,
        blob: Callable[[str], bytes] = no_blob,
        *,
        facts: MutableMapping[str, Fact] | None = None,
        digests: Digests | None = None,
        anchors: Sequence[str] | None = None,
    ) -> None:
        """`blob`: the bytes of a blob by their SHA-256, which they are checked to have; raises `TreatyError` for one that is not
        to be had. Asked for suffix lists and, when a decision is wrong, for its roll and transcript.

        `facts`, `digests`: empty stores for what grows with every leaf, in memory unless they are given. `anchors`: what if trust
        had started from these principals, in every open electorate? A decision is then not compared in what follows from trust;
        `recomputed` is what it would have been.
        """
        self._blob = blob
        self._frontier = Frontier()
        self._facts: MutableMapping[str, Fact] = {} if facts is None else facts
        self._elections = Elections(self._checked_blob, anchors)
        self._what_if = anchors is not None
        self._digests: Digests = set() if digests is None else digests  # ids of statements, digests of certificates
        self._closing: Closing | None = None
        self._recomputed: Due | None = None
        self._closing_at: int | None = None
        self._logged = 0

    @property
    def size(self) -> int:
        """How many leaves there are: the index of the next one."""
        return self._frontier.size

    @property
    def facts(self) -> Facts:
        """The facts after the last leaf, a live view."""
        return self._facts

    @property
    def recomputed(self) -> Due | None:
        """What the newest decision in the log was compared with."""
        return self._recomputed

    def root(self) -> bytes:
        """The Merkle root over the leaves so far."""
        return self._frontier.root()

    def append(self, leaf: bytes) -> Statement | CertificateLeaf | RekordLeaf:
        """Check the next leaf, take it in, and return it parsed. Raises `Untrusted` (`audit.*`) naming the leaf, chained to what
        was wrong with it, and what `blob` raises for a suffix list."""
        if leaf.startswith(_STATEMENT_START):
            parsed = self._checked("audit.leaf", lambda: statement.parse(leaf))
            keys = {k: v for did in parsed.authors for k, v in keys_of(self._facts, did).items()}
            verified = self._checked("audit.signature", lambda: statement.verify(parsed, keys))
            self.apply(verified)
            return parsed
        entry = self._checked("audit.leaf", lambda: parse_sigstore_leaf(leaf))
        if isinstance(entry, CertificateLeaf):
            self._digests.add(canonical.hex_digest(entry.der))
        elif canonical.hex_digest(entry.certificate) not in self._digests:
            self._fail("audit.certificate", "is signed under a certificate that this log has not issued before")
        self._frontier.append(leaf_hash(leaf))
        return entry

    def apply(self, verified: Verified) -> None:
        """`append` for whoever has parsed and verified the statement already."""
        made, index = verified.statement, self.size
        if made.id in self._digests:
            self._fail("audit.duplicate", "repeats a statement that stands in the log already")
        changes = self._checked("audit.refused", lambda: admit(self._facts, verified, index))
        recomputed = self._check_decision(made.body) if isinstance(made.body, Decision) else None
        self._facts.update(changes)
        if isinstance(made.body, Decision):
            self._take_decision(made.body)
            self._recomputed = recomputed
        else:
            self._elections.observe(made, index, self._log.epoch)
        self._digests.add(made.id)
        self._frontier.append(leaf_hash(made.leaf))

    def decide(self) -> list[Due]:
        """What closes the open epoch, in the order of the topics; nothing when no topic is on its agenda. While an epoch is being
        closed: what is still missing. The operator signs and logs the decisions before any other statement.

        Raises `Refused` when the log has no genesis or no parameters yet, and what `blob` raises.
        """
        closing = self._close()
        return list(closing.due[self._logged :])

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

    def _close(self) -> Closing:
        """How the epoch closes that is being closed, or else the open one if it were closed now."""
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
            raise Untrusted("audit.blob", f"These bytes are not the blob {sha256}.")
        return data

    def _check_decision(self, body: Decision) -> Due:
        """Compare a decision with the one that is due, and return that."""
        expected = self._expected(body)
        said, right = msgspec.to_builtins(body), msgspec.to_builtins(expected.decision)
        said["input"].pop("witnessed", None)  # checked by admission: nobody can recompute a cosignature
        if self._what_if:
            for name in _FOLLOWS_FROM_TRUST:
                said.pop(name, None)
                right.pop(name, None)
        if canonical.dumps(said) != canonical.dumps(right):
            self._explain(body.roll, expected.roll, MAX_ROLL, "roll")
            self._explain(body.transcript, expected.transcript, MAX_TRANSCRIPT, "transcript")
            self._diverged("body", right, said)
        return expected

    def _expected(self, body: Decision) -> Due:
        """The decision that is due in place of this one; with other anchors, the one in its topic."""
        closing = self._close()
        if self._what_if and body.topic in closing.outcomes:
            return closing.due_in(body.topic, remaining=body.remaining)
        if self._what_if or not closing.due:
            self._fail("audit.unexpected-decision", f"decides {body.topic}, where there was nothing to decide")
        return closing.due[self._logged]

    def _explain(self, logged: Blob, recomputed: bytes, limit: int, part: str) -> None:
        """Name the first difference between a blob that a wrong decision names and the recomputed one, if there is one and the
        logged blob is to be had."""
        if logged.sha256 == canonical.hex_digest(recomputed):
            return
        try:
            data = self._checked_blob(logged.sha256)
        except TreatyError:
            return  # then the statement itself has to do
        said = self._checked("audit.decision", lambda: canonical.loads(data, limit=limit, what=f"decision's {part}"))
        self._diverged(part, canonical.loads(recomputed, limit=limit), said)

    def _take_decision(self, body: Decision) -> None:
        closing = self._closing
        assert closing is not None, "the decision was compared with it"
        self._logged += 1
        if not body.remaining:
            self._elections.finish(closing)
            self._closing = None

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
