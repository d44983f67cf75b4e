"""A long log that nobody had to live through: an open electorate that reports, vouches and votes for some epochs, every statement
signed, every rule kept, every decision made, written as a registry would serve it.

    FOLDER/checkpoint, tile/entries/…     the log, as static files
    FOLDER/blobs/sha256/HEX               the suffix list, and the transcripts and rolls of the decisions

Who reports with whom is a random graph in which everybody has about four acquaintances; who vouches does it for those. A ballot
is by anybody, in any topic, for a few of its protocols. Every report and ballot carries one of the newest checkpoints, of which
there is one every `CHECKPOINT_EVERY` leaves. The seed is fixed, so that two builds are the same log.

Two processes sign; this one takes the statements in, in order, and decides.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count, islice
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from treaty_client.audit.replay_store import ReplayStore
from treaty_consensus import canonical, did, kinds, statement
from treaty_consensus.audit import Replay
from treaty_consensus.election.defaults import WEEK, open_parameters
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.note import KeyType, SignerKey, sign
from treaty_consensus.log.tiles import TILE_WIDTH, Bundle, encode_bundle
from treaty_consensus.statement import Statement, Verified

ORIGIN = "bench.example"
BEGIN = 1_790_000_000
LOG_KEY = SignerKey(ORIGIN, KeyType.ED25519, hashlib.sha256(b"log key").digest())
CLOCK_KEY = SignerKey(f"{ORIGIN}/clock", KeyType.COSIGNATURE, hashlib.sha256(b"clock key").digest())
SUFFIXES = b"// ===BEGIN ICANN DOMAINS===\nexample\n// ===END ICANN DOMAINS===\n"

EPOCHS = 8
TOPICS = 20
PROTOCOLS = 10
"""In each topic."""
ANCHORS = 16
LEAVES_EACH = 50
"""Leaves for each principal there is."""
CHECKPOINT_EVERY = 16
VOUCHES, REPORTS = 8, 20
"""Of a hundred statements; the others are ballots."""

_AT_ONCE = 256
_AHEAD = 8
_SIGNERS = 2

Made = tuple[Statement, tuple[bytes, ...]]


@dataclass(frozen=True)
class Errand:
    """A statement to be signed: `by` are the seeds' names, see `seed_of`."""

    body: kinds.Body
    by: tuple[str, ...]
    issued: int


def operator_id() -> str:
    """The DID URL of the operator's key."""
    return did.did_key_id(_key("operator").public_key().public_bytes_raw())


def sign_all(errands: list[Errand]) -> list[Made]:
    """Sign statements; what a process of the pool does. Each comes with the keys that signed it."""
    made = []
    for errand in errands:
        keys = {_key_id(name): _key(name) for name in errand.by}
        draft = statement.draft(errand.body, log=ORIGIN, by=tuple(keys), issued=errand.issued)
        sealed = draft.seal({key_id: key.sign(draft.signing_input) for key_id, key in keys.items()})
        assert sealed.leaf and sealed.id  # made here, where there is time
        made.append((sealed, tuple(keys[key_id].public_key().public_bytes_raw() for key_id in sealed.by)))
    return made


def _key_id(name: str) -> str:
    return operator_id() if name == "operator" else f"did:wba:{name}#key-1"


@lru_cache(maxsize=100_000)
def _key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


@dataclass
class _Writer:
    """The log as it grows: what is replayed, what is written, and the checkpoints that others have seen."""

    folder: Path
    replay: Replay
    tell: Callable[[int], None]
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=64))
    _waiting: list[bytes] = field(default_factory=list)

    def take(self, made: list[Made]) -> None:
        """Log statements."""
        for sealed, keys in made:
            self.replay.apply(Verified(sealed, keys))
            self._waiting.append(sealed.leaf)
            if len(self._waiting) == TILE_WIDTH:
                self._write()
            if self.replay.size % CHECKPOINT_EVERY == 0:
                self.notes.append(self.checkpoint().decode())
        self.tell(self.replay.size)

    def finish(self) -> None:
        """Write what is left, and the checkpoint."""
        if self._waiting:
            self._write()
        (self.folder / "checkpoint").write_bytes(self.checkpoint())

    def keep(self, data: bytes) -> kinds.Blob:
        """Have a blob served."""
        named = kinds.Blob(canonical.hex_digest(data), len(data))
        self._put(f"/blobs/sha256/{named.sha256}", data)
        return named

    def checkpoint(self) -> bytes:
        """Of the log as it stands."""
        text = Checkpoint(ORIGIN, self.replay.size, self.replay.root()).format()
        return sign(text, [LOG_KEY, CLOCK_KEY], time=BEGIN + EPOCHS * WEEK)

    def _write(self) -> None:
        index = (self.replay.size - 1) // TILE_WIDTH
        width = len(self._waiting)
        self._put(Bundle(index, width).path, encode_bundle(self._waiting))
        self._waiting.clear()

    def _put(self, path: str, data: bytes) -> None:
        file = self.folder / path.removeprefix("/")
        try:
            file.write_bytes(data)
        except FileNotFoundError:
            file.parent.mkdir(parents=True)
            file.write_bytes(data)


class _Life:
    """What the agents do, by a fixed seed."""

    def __init__(self, principals: int) -> None:
        self._random = random.Random(0)
        self.domains = [f"agent-{number:06d}.example" for number in range(principals)]
        self._friends = self._acquaintances()
        self._protocols: dict[str, list[str]] = {f"bench/topic-{number:02d}": [] for number in range(TOPICS)}
        self._topics = list(self._protocols)
        self._ballots: dict[tuple[str, str], int] = {}
        self._vouches: dict[str, Iterator[int]] = {}
        self._numbers = count()

    def parameters(self, suffixes: kinds.Blob) -> kinds.Parameters:
        """An open electorate's."""
        return open_parameters(self.domains[:ANCHORS], suffixes)

    def identities(self) -> Iterator[Errand]:
        """Everybody, once."""
        for domain in self.domains:
            public = _key(domain).public_key().public_bytes_raw()
            key = kinds.Key(_key_id(domain), did.encode_multikey(public))
            document = kinds.Blob(_digest(domain), 500)
            yield Errand(kinds.Identity(f"did:wba:{domain}", document, (key,), 1), ("operator",), BEGIN)

    def publications(self) -> Iterator[Errand]:
        """The protocols of all topics."""
        for topic, documents in self._protocols.items():
            for number in range(PROTOCOLS):
                owner = self._random.choice(self.domains)
                uri = f"https://{ORIGIN}/protocols/{owner}/{topic.replace('/', '-')}-{number}/1.0"
                documents.append(_digest(uri))
                blobs = kinds.Blob(documents[-1], 1000), kinds.Blob(_digest(f"card of {uri}"), 200)
                yield Errand(kinds.Publish(uri, topic, *blobs, "negotiated"), (owner,), BEGIN)

    def deed(self, epoch: int, notes: Sequence[str]) -> Errand:
        """Whatever somebody does next, who has seen one of these checkpoints."""
        drawn = self._random.randrange(100)
        issued = BEGIN + epoch * WEEK
        if drawn < VOUCHES:
            author, other = self._random.choice(self._friends)
            seq = next(self._vouches.setdefault(author, count()))
            return Errand(kinds.Vouch(f"did:wba:{other}", seq), (author,), issued)
        topic, note = self._random.choice(self._topics), self._random.choice(notes)
        if drawn < VOUCHES + REPORTS:
            pair, document = self._random.choice(self._friends), self._choices(topic)[0]
            report = kinds.Report(topic, _digest(f"negotiation {next(self._numbers)}"), document, "agreed", epoch, note)
            return Errand(report, pair, issued)
        author = self._random.choice(self.domains)
        seq = self._ballots.get((author, topic), -1) + 1
        self._ballots[author, topic] = seq
        tiers = tuple((document,) for document in self._choices(topic)[: self._random.randint(1, 4)])
        return Errand(kinds.Ballot(topic, seq, tiers, note), (author,), issued)

    def _choices(self, topic: str) -> list[str]:
        """The protocols of a topic, the ones that are liked more mostly first."""
        return sorted(self._protocols[topic], key=lambda document: self._random.random() * (1 + int(document[0], 16)))

    def _acquaintances(self) -> list[tuple[str, str]]:
        pairs = []
        for _ in range(2):
            others = self.domains.copy()
            self._random.shuffle(others)
            pairs += [pair for pair in zip(self.domains, others, strict=True) if pair[0] != pair[1]]
        return pairs + [(other, one) for one, other in pairs]


def build(folder: Path, size: int, tell: Callable[[int], None]) -> None:
    """Build a log of about `size` leaves in `folder`; `tell` gets how many there are."""
    life = _Life(max(ANCHORS, size // LEAVES_EACH))
    with ReplayStore(folder) as scratch, ProcessPoolExecutor(_SIGNERS) as pool:
        writer = _Writer(folder, Replay(lambda _: SUFFIXES, facts=scratch.facts, digests=scratch.digests), tell)
        keys = str(LOG_KEY.verifier), str(CLOCK_KEY.verifier)
        genesis = kinds.Genesis(ORIGIN, *keys, operator_id().partition("#")[0], "0" * 64)
        parameters = life.parameters(writer.keep(SUFFIXES))
        writer.take(sign_all([Errand(body, ("operator",), BEGIN) for body in (genesis, parameters)]))
        _log(writer, pool, life.identities())
        _log(writer, pool, life.publications())
        rest = size - writer.replay.size
        for epoch in range(EPOCHS):
            number = max(0, (rest - EPOCHS * TOPICS) // EPOCHS)
            _log(writer, pool, (life.deed(epoch, writer.notes) for _ in range(number)))
            _close(writer, BEGIN + (epoch + 1) * WEEK)
        writer.finish()


def _log(writer: _Writer, pool: ProcessPoolExecutor, errands: Iterator[Errand]) -> None:
    """Have errands signed, some chunks ahead of what is logged."""
    ahead: deque[Future[list[Made]]] = deque()
    while chunk := list(islice(errands, _AT_ONCE)):
        ahead.append(pool.submit(sign_all, chunk))
        if len(ahead) > _AHEAD:
            writer.take(ahead.popleft().result())
    while ahead:
        writer.take(ahead.popleft().result())


def _close(writer: _Writer, now: int) -> None:
    for due in writer.replay.decide():
        writer.keep(due.transcript)
        writer.keep(due.roll)
        writer.take(sign_all([Errand(due.decision, ("operator",), now)]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
