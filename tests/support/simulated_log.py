"""Build a whole log in memory: an operator and agents of five domains sign their statements, and every rule is enforced."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec
from signers import NOW, ORIGIN, Signer, domain_signer, identity_body, key_signer, signed

from treaty_consensus import kinds
from treaty_consensus.audit import Replay, no_blob
from treaty_consensus.canonical import parse_json
from treaty_consensus.did import parse_did
from treaty_consensus.election.defaults import development_parameters, open_parameters
from treaty_consensus.facts import IdentityFact, LogFact
from treaty_consensus.kinds import RULE, RULES, Blob, Decision, Parameters, Rule
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.note import KeyType, SignerKey, sign
from treaty_consensus.statement import Statement

TOPIC = "commerce/product-info"
ANCHORS = tuple(f"anchor-{number:02}.example" for number in range(16))
SUFFIXES = (
    b"// ===BEGIN ICANN DOMAINS===\nexample\nco.example\n// ===END ICANN DOMAINS===\n"
    b"// ===BEGIN PRIVATE DOMAINS===\nhosting.example\n// ===END PRIVATE DOMAINS===\n"
)
"""A Public Suffix List; only its first section counts."""
SUFFIX_LIST = Blob(hashlib.sha256(SUFFIXES).hexdigest(), len(SUFFIXES))
DOMAINS = tuple(f"{name}.example" for name in ("alpha", "bravo", "charlie", "delta", "echo"))


def document_hash(text: str) -> str:
    """Return the hash of a document whose text does not matter."""
    return hashlib.sha256(text.encode()).hexdigest()


def protocol_uri(agent: Signer, name: str, version: str = "1.0") -> str:
    """Return the URI of a protocol in the agent's own namespace."""
    return f"https://{ORIGIN}/protocols/{parse_did(agent.did).namespace}/{name}/{version}"


def suffix_blob(sha256: str) -> bytes:
    """Return the only blob that a replay of an open electorate needs here. Raises `NotFound` for any other."""
    return SUFFIXES if sha256 == SUFFIX_LIST.sha256 else no_blob(sha256)


def open_log(rule: Rule = RULE, **changes: int) -> LogBuilder:
    """Return a log with an open electorate whose epochs can be closed at any time; the agents are the anchors.

    `changes`: constants of the parameters, and of their reputation.
    """
    parameters = open_parameters(ANCHORS, SUFFIX_LIST, epoch_seconds=1)
    own = {name: changes.pop(name) for name in [*changes] if name in parameters.__struct_fields__}
    parameters = msgspec.structs.replace(parameters, **own)
    assert parameters.reputation is not None
    reputation = msgspec.structs.replace(parameters.reputation, **changes)
    log = LogBuilder(under(rule, msgspec.structs.replace(parameters, reputation=reputation)), replay=Replay(suffix_blob))
    log.agents = tuple(map(domain_signer, ANCHORS))
    return log


def under(rule: Rule, parameters: Parameters) -> Parameters:
    """Return parameters of a rule."""
    memory = None if rule == RULES[0] else parameters.memory_horizons
    return msgspec.structs.replace(parameters, rule=rule, memory_horizons=memory)


@dataclass
class LogBuilder:
    """Build a log with its genesis and parameters. Agents get an identity when they first sign a statement."""

    parameters: Parameters = field(default_factory=development_parameters)
    operator: Signer = field(default_factory=lambda: key_signer("operator"))
    replay: Replay = field(default_factory=Replay)
    leaves: list[bytes] = field(default_factory=list)
    transcripts: dict[int, bytes] = field(default_factory=dict)
    rolls: dict[int, bytes] = field(default_factory=dict)
    start: int = NOW
    """The time of leaf 0. A test may move it on; each leaf is a second later than the one before."""

    def __post_init__(self) -> None:
        self._log_key = SignerKey(ORIGIN, KeyType.ED25519, hashlib.sha256(b"log key").digest())
        clock_key = SignerKey(f"{ORIGIN}/clock", KeyType.COSIGNATURE, hashlib.sha256(b"clock key").digest())
        self.agents = tuple(domain_signer(domain) for domain in DOMAINS)
        self._identified: set[str] = set()
        self._ballots: dict[tuple[str, str], int] = {}
        self._vouches: dict[str, int] = {}
        self._negotiations = 0
        keys = str(self._log_key.verifier), str(clock_key.verifier)
        self.add(kinds.Genesis(ORIGIN, *keys, self.operator.did, "0" * 64), self.operator)
        self.add(self.parameters, self.operator)

    def add(self, body: kinds.Body, *signers: Signer) -> Statement:
        """Sign, check and append a statement."""
        statement = signed(body, *signers, issued=self.start + len(self.leaves))
        self.append(statement.leaf)
        return statement

    def append(self, leaf: bytes) -> None:
        """Check and append a leaf."""
        self.replay.append(leaf)
        self.leaves.append(leaf)

    def identify(self, *agents: Signer) -> None:
        """Log an identity statement of the operator for each agent, once."""
        for agent in agents:
            if not agent.did.startswith("did:key:") and agent.did not in self._identified:
                self.add(identity_body(agent), self.operator)
                self._identified.add(agent.did)

    def publish(
        self,
        agent: Signer,
        name: str,
        version: str = "1.0",
        *,
        topic: str = TOPIC,
        text: str | None = None,
        base: kinds.Base | None = None,
    ) -> str:
        """Publish a protocol in the agent's own namespace; return its hash."""
        self.identify(agent)
        document = document_hash(text or (name if version == "1.0" else f"{name} {version}"))
        blobs = Blob(document, 100), Blob(document_hash(f"card of {name}"), 50)
        self.add(kinds.Publish(protocol_uri(agent, name, version), topic, *blobs, "negotiated", base=base), agent)
        return document

    def release(self, agent: Signer, name: str, version: str, *, topic: str = TOPIC) -> str:
        """Publish a version of a protocol that changes its version 1.0; return its hash."""
        base = kinds.Base(protocol_uri(agent, name), document_hash(name))
        return self.publish(agent, name, version, topic=topic, base=base)

    def renew(self, agent: Signer, key: str) -> Signer:
        """Give an agent's DID a new key that no old one co-signs, so a new tenure; return the new owner."""
        before = self.replay.facts[f"identity/{agent.did}"]
        assert isinstance(before, IdentityFact)
        owner = replace(agent, private_key=key_signer(key).private_key)
        body = identity_body(owner, tenure=before.tenure + 1, previous=before.statement, document=key)
        self.add(body, self.operator)
        return owner

    def report(
        self,
        first: Signer,
        second: Signer,
        document: str,
        *,
        topic: str = TOPIC,
        nid: str | None = None,
        outcome: Literal["agreed", "failed"] = "agreed",
    ) -> str:
        """Report a negotiation, a new one unless `nid` is given; return its id."""
        self.identify(first, second)
        self._negotiations += 1
        nid = nid or document_hash(f"negotiation {self._negotiations}")
        self.add(kinds.Report(topic, nid, document, outcome, self.epoch, self.checkpoint()), first, second)
        return nid

    def vote(self, agent: Signer, *tiers: str | tuple[str, ...], topic: str = TOPIC) -> Statement:
        """Cast a ballot: each argument one tier, a single choice or several tied ones."""
        self.identify(agent)
        seq = self._ballots.get((agent.did, topic), -1) + 1
        ranking = tuple((tier,) if isinstance(tier, str) else tier for tier in tiers)
        statement = self.add(kinds.Ballot(topic, seq, ranking, self.checkpoint()), agent)
        self._ballots[agent.did, topic] = seq
        return statement

    def vouch(self, agent: Signer, other: Signer, *, withdrawn: bool = False) -> Statement:
        """Let one agent vouch for another, or withdraw the vouch."""
        self.identify(agent, other)
        seq = self._vouches.get(agent.did, -1) + 1
        statement = self.add(kinds.Vouch(other.did, seq, withdrawn), agent)
        self._vouches[agent.did] = seq
        return statement

    def close(self) -> list[Decision]:
        """Close the open epoch: sign and append every decision that is due."""
        decisions = []
        for due in self.replay.decide():
            self.transcripts[len(self.leaves)], self.rolls[self.epoch] = due.transcript, due.roll
            self.add(due.decision, self.operator)
            decisions.append(due.decision)
        return decisions

    def states(self, *documents: str, topic: str = TOPIC) -> list[str]:
        """Close the open epoch and return the state of each document in the topic."""
        decision = next(decision for decision in self.close() if decision.topic == topic)
        states = dict(decision.states)
        return [states.get(document, "published") for document in documents]

    def newest_transcript(self) -> dict[str, object]:
        """Return the transcript of the newest logged decision."""
        value: dict[str, object] = parse_json(self.transcripts[max(self.transcripts)], limit=2**20)
        return value

    def newest_roll(self) -> dict[str, Any]:
        """Return the roll of the newest epoch that was closed."""
        value: dict[str, Any] = parse_json(self.rolls[max(self.rolls)], limit=2**20)
        return value

    def checkpoint(self) -> str:
        """Return a signed checkpoint of the log as it is now."""
        return sign(self.head().format(), [self._log_key]).decode()

    def head(self) -> Checkpoint:
        """Return the checkpoint, unsigned."""
        return Checkpoint(ORIGIN, self.replay.size, self.replay.root())

    @property
    def epoch(self) -> int:
        """Return the open epoch."""
        fact = self.replay.facts["log"]
        assert isinstance(fact, LogFact)
        return fact.epoch

    def everybody_reports(self, document: str, *, topic: str = TOPIC) -> None:
        """Let the five agents agree on a document in a ring: five distinct pairs."""
        for first, second in zip(self.agents, (*self.agents[1:], self.agents[0]), strict=True):
            self.report(first, second, document, topic=topic)

    def candidate(self, name: str, *, topic: str) -> str:
        """Publish a document and let the five agents agree on it, so that its topic is decided; return its hash."""
        document = self.publish(self.agents[0], name, topic=topic)
        self.everybody_reports(document, topic=topic)
        return document

    def everybody_votes(self, *tiers: str | tuple[str, ...], topic: str = TOPIC) -> None:
        """Let the five agents cast the same ballot."""
        for agent in self.agents:
            self.vote(agent, *tiers, topic=topic)
