"""The file that proves that a later answer of a registry contradicts its earlier answers.

Specification: docs/specification/bundles.md, "Contradictions". Canonical JSON (JCS) of at most 4 MiB, with the file name
extension `.contradiction.json`:

    {"contradiction": 1, "code": CODE, "key": VKEY, "subject": NAME,
     "seen": [LEAF, …],       leaves that earlier answers proved, and that this one must hold
     "shown": [LEAF, …],      leaves of this answer about the same subjects
     "answer": NOTE,          the signed checkpoint of this answer
     "earlier"?: [VKEY, …]}   the log's keys before `key`, if it rotated them

LEAF is `{"checkpoint": NOTE, "index": N, "leaf": B64, "proof": [B64(hash), …]}`, a statement with its inclusion proof.

Every leaf is signed for by the log's key. If two leaves exclude each other (`completeness.excludes`), or differ at one index,
or a decision passes over another one (`completeness.passes_over`), the file convinces a third party. If a leaf is only missing,
the file informs its owner alone: a bundle is not signed as a whole, so anyone on the path between agent and registry could have
shortened it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Annotated, Literal

import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, TreatyError
from treaty_consensus.kinds import Count, Decision, Grant, Handler, Identity, Publish, Status
from treaty_consensus.log.checkpoint import LogKeys, SignedCheckpoint, open_checkpoint
from treaty_consensus.log.merkle import HASH_SIZE, leaf_hash, verify_inclusion
from treaty_consensus.log.note import MAX_NOTE_BYTES, VerifierKey, signers_of
from treaty_consensus.log.proof import MAX_PROOF_HASHES
from treaty_consensus.log_keys import MAX_ROTATIONS
from treaty_consensus.statement import MAX_LEAF, Statement
from treaty_io.codes import ContradictionCode, MemoryCode

from ...registries.leaves import SeenLeaf, subjects_of
from .completeness import RegistryAnswer, excludes, passes_over
from .steps import Step, VerificationFailed

MAX_CONTRADICTION = 4 * 1024 * 1024
SUFFIX = ".contradiction.json"
_MAX_SIDE = MAX_CONTRADICTION // 4
"""Bytes of leaves and proofs on each side. Base64 makes them a third larger."""

_MAX_DECISIONS = 40
"""Decisions that are compared by threes: all that an agent follows back, and some that it has seen."""

_Note = Annotated[str, msgspec.Meta(max_length=MAX_NOTE_BYTES)]


class _Leaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    checkpoint: _Note
    index: Count
    leaf: str
    proof: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_PROOF_HASHES)]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    contradiction: Literal[1]
    code: str
    key: str
    subject: str
    seen: Annotated[tuple[_Leaf, ...], msgspec.Meta(min_length=1)]
    shown: tuple[_Leaf, ...]
    answer: _Note
    earlier: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_ROTATIONS)] = ()


@dataclass(frozen=True)
class Contradiction:
    """A claim that a log signed contradicting leaves. It is unverified until `verify` returns."""

    code: str
    key: VerifierKey
    subject: str
    seen: tuple[SeenLeaf, ...]
    shown: tuple[SeenLeaf, ...]
    answer: bytes
    earlier: tuple[VerifierKey, ...] = ()

    @classmethod
    def parse(cls, data: bytes) -> Contradiction:
        """Parse a file, without verifying it. Raises `TooLarge` or `Malformed` (`contradiction.form`)."""
        # Canonical bytes only, so that no two readers see different leaves in one file.
        value = canonical.loads(data, limit=MAX_CONTRADICTION, name="contradiction")
        try:
            file = msgspec.convert(value, _File)
            key = VerifierKey.parse(file.key)
            seen, shown_leaves = (tuple(map(_read_leaf, leaves)) for leaves in (file.seen, file.shown))
            earlier = tuple(map(VerifierKey.parse, file.earlier))
            return cls(file.code, key, file.subject, seen, shown_leaves, file.answer.encode(), earlier)
        except (msgspec.ValidationError, TreatyError, UnicodeEncodeError) as error:
            raise Malformed(ContradictionCode.FORM, f"This is not the proof of a contradiction: {error}.") from error

    def format(self) -> bytes:
        """Return the file's bytes; the inverse of `parse`."""
        return canonical.dumps(
            {
                "contradiction": 1,
                "code": self.code,
                "key": str(self.key),
                "subject": self.subject,
                "seen": [_leaf_value(leaf) for leaf in self.seen],
                "shown": [_leaf_value(leaf) for leaf in self.shown],
                "answer": self.answer.decode(),
                **({"earlier": [*map(str, self.earlier)]} if self.earlier else {}),
            }
        )

    def verify(self) -> bool:
        """Check that the key signed for every leaf; return whether two of them exclude each other.

        Raises `Malformed` or `Untrusted` if a leaf is not in the log of its checkpoint, or is not a statement.
        """
        # The key must have signed the answer too, or a forged file could accuse an honest log.
        self._open(self.answer)
        for leaf in (*self.seen, *self.shown):
            head = self._open(leaf.checkpoint).checkpoint
            verify_inclusion(leaf.index, head.size, leaf_hash(leaf.leaf), leaf.proof, head.root)
        leaves = (*self.seen, *self.shown)
        if any(
            one.leaf != other.leaf and (one.index == other.index or excludes(one.statement, other.statement))
            for one, other in combinations(leaves, 2)
        ):
            return True
        decisions = [leaf.statement for leaf in leaves if isinstance(leaf.statement.body, Decision)][:_MAX_DECISIONS]
        return any(passes_over(*three) for three in permutations(decisions, 3))

    def _open(self, note: bytes) -> SignedCheckpoint:
        # By any of them: who signs two histories is refuted, whichever key it was.
        signers = signers_of(note)
        signing_keys = (key for key in (self.key, *self.earlier) if (key.name, key.id) in signers)
        return open_checkpoint(note, next(signing_keys, self.key))


class LeftOut(VerificationFailed):
    """An answer contradicts or lacks leaves that were proved earlier.

    `contradiction`: both sides; None if the answer is only of an older log.
    """

    def __init__(self, code: str, message: str, fix: str, contradiction: Contradiction | None = None) -> None:
        super().__init__(Step.LOCK, code, message, fix)
        self.contradiction = contradiction


def contradiction_error(answer: RegistryAnswer, missing: Sequence[SeenLeaf], own: Iterable[SeenLeaf], key: LogKeys) -> LeftOut:
    """Return the error for an answer that lacks leaves that were proved before.

    `missing`: the leaves, at least one. `own`: the leaves of the answer. `key`: of the log. The code is `memory.behind`, without
    a contradiction, if all the leaves are of a newer log than the answer.
    """
    # A leaf beyond the answer's size contradicts nothing: the server may only lag behind.
    provable = [leaf for leaf in missing if leaf.index < answer.size]
    if not provable:
        return LeftOut(
            MemoryCode.BEHIND,
            f"The answer about {answer.name} is of a log of {answer.size} leaves; {said(missing[-1].statement)} at leaf "
            f"{missing[-1].index}, as was seen before.",
            "Try again. If it stays so, this server of the registry lags behind, or a party on the path hides news from you.",
        )
    first, subjects = provable[0], {subject for leaf in provable for subject in subjects_of(leaf.statement)}
    related = [leaf for leaf in own if not subjects.isdisjoint(subjects_of(leaf.statement))]
    # Excluding leaves first, because `_some` keeps only the first ones.
    related.sort(key=lambda leaf: not any(excludes(leaf.statement, other.statement) for other in provable))
    code = MemoryCode.CONTRADICTED
    return LeftOut(
        code,
        f"At leaf {first.index} of this log {said(first.statement)}, as was proved before. The answer about {answer.name}, of "
        f"{answer.size} leaves, says otherwise or leaves it out.",
        "Do not use it. The registry, or a party on the path to it, hides leaves of the log from you.",
        Contradiction(
            code,
            key.newest.log,
            answer.name,
            _some(provable),
            _some(related),
            answer.evidence.checkpoint.note,
            tuple({term.log: None for term in key.terms if term.log != key.newest.log}),
        ),
    )


def said(statement: Statement) -> str:
    """Describe a statement as a clause of a sentence."""
    body, author = statement.body, statement.author.text
    match body:
        case Identity():
            return f"{body.did} has the keys {', '.join(key.multikey for key in body.keys)}, in tenure {body.tenure}"
        case Grant():
            return f"{author} {'no longer ' if body.withdrawn else ''}lets {body.to} publish in {body.namespace}"
        case Publish():
            return f"{author} publishes {body.uri} in {body.topic} with the document {body.document.sha256}"
        case Handler():
            return f"{author} attaches the wheel {body.wheel.sha256} to {body.uri}"
        case Status():
            return f"{author} says that {f'the wheel {body.wheel} of ' if body.wheel else ''}{body.uri} is {body.state}"
        case Decision():
            elected = f"the document {body.consensus}" if body.consensus else "no document"
            return f"the epoch {body.epoch} of {body.topic} ends with {elected} as the consensus"
    return f"there is a {statement.type} statement by {author}"


def _some(leaves: Iterable[SeenLeaf]) -> tuple[SeenLeaf, ...]:
    """Return the first leaves, as many as fit into a file."""
    selected: list[SeenLeaf] = []
    size = 0
    for leaf in leaves:
        size += len(leaf.leaf) + len(leaf.checkpoint) + HASH_SIZE * len(leaf.proof)
        # At least one leaf is kept, because a file needs one on the side `seen`.
        if selected and size > _MAX_SIDE:
            break
        selected.append(leaf)
    return tuple(selected)


def _read_leaf(leaf: _Leaf) -> SeenLeaf:
    proof = tuple(canonical.b64decode(text, limit=HASH_SIZE) for text in leaf.proof)
    return SeenLeaf(leaf.index, canonical.b64decode(leaf.leaf, limit=MAX_LEAF), proof, leaf.checkpoint.encode())


def _leaf_value(leaf: SeenLeaf) -> dict[str, object]:
    return {
        "checkpoint": leaf.checkpoint.decode(),
        "index": leaf.index,
        "leaf": canonical.b64encode(leaf.leaf),
        "proof": [*map(canonical.b64encode, leaf.proof)],
    }
