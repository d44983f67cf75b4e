#!/usr/bin/env python3
"""Check every election of a Treaty log without any code of Treaty. Needs Python 3.11 and the package `cryptography`.

    verify_election.py BASE_URL VKEY [--json]

Fetch the log, verify its checkpoint, root and signatures, recompute every decision, roll and transcript, and compare them to the
byte with the logged ones. Written from docs/specification alone; "§" names a section of election.md there.

Exit status: 0 all equal, 1 a difference or a leaf that breaks a rule, 2 a part could not be read and the rest is equal.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import http.client
import json
import re
import struct
import sys
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ONE = 2**32
NONE = "none"
PAYLOAD_TYPE = "application/vnd.treaty.statement.v1+json"
ROLL_PRINCIPALS, ROLL_CREDITS, COUNTED_TOPICS, VOICES, VERSIONS = 96 * 2**20, 31 * 2**20, 4096, 256, 16
RULES = ("schulze-margins-v2", "schulze-margins-v3")
"""The rule before, and the present one."""
CAPS = {"checkpoint": 2**18, "entries": 256 * (2**16 + 1), "suffixes": 2**20, "transcript": 2**22, "roll": 2**27}
TENURE_WAIT = 30 * 24 * 3600
TIMEOUT, DEADLINE = 30, 600
"""Seconds without a byte, and for a whole answer, before a request is given up."""
AHEAD = 300
"""Seconds that the log's clock may be ahead of a witness."""
KINDS = {"genesis", "identity", "grant", "publish", "handler", "status", "report", "ballot", "vouch", "parameters", "decision"}
KINDS |= {"withdrawal"}
MALFORMED = (KeyError, TypeError, ValueError, AttributeError)
"""Errors that a body of another form causes where it is read."""


class Unreadable(Exception):
    """The log or a part of it cannot be read or is not authentic."""


class Missing(Exception):
    """A blob is not served."""


class BrokenRule(Exception):
    """A leaf breaks a rule of the log. It is reported, and counts for nothing."""


def need(condition: object, message: str) -> None:
    """Raise BrokenRule unless the condition holds."""
    if not condition:
        raise BrokenRule(message)


# ---------------------------------------------------------------------------------------------------------------- encodings


def jcs(value: Any) -> bytes:
    """Return the canonical JSON (RFC 8785). All names here are ASCII and all numbers integers, so sorted names are enough."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def parse(data: bytes) -> Any:
    """Return the value of canonical JSON. Raises BrokenRule for any other bytes."""

    def refuse(text: str) -> None:
        raise ValueError(f"{text} is not allowed")

    try:
        value = json.loads(data.decode(), parse_float=refuse, parse_constant=refuse)
        need(jcs(value) == data, "the JSON is not canonical")  # also finds a name that occurs twice
    except (ValueError, RecursionError) as error:
        raise BrokenRule(f"no JSON: {error}") from error
    return value


def digest(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def unbase64(text: str) -> bytes:
    """Return the bytes of standard base64 in its one spelling. Raises BrokenRule for any other text."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise BrokenRule("no base64") from error
    need(base64.b64encode(data).decode() == text, "base64 in another spelling")
    return data


def did_key_bytes(multikey: str) -> bytes:
    """Return the Ed25519 key of a multikey: z, then base58btc of 0xed 0x01 and the key."""
    alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    number = 0
    need(multikey.startswith("z") and len(multikey) < 64 and set(multikey[1:]) <= set(alphabet), "no multikey")
    for character in multikey[1:]:
        number = number * 58 + alphabet.index(character)
    data = number.to_bytes(48, "big").lstrip(b"\0")
    need(len(data) == 34 and data[:2] == b"\xed\x01", "no Ed25519 multikey")
    return data[2:]


def verifies(key: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether an Ed25519 signature holds."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


# ------------------------------------------------------------------------------------------- the log: notes, tree and leaves


@dataclass(frozen=True)
class Verifier:
    """A key of a signed note: name, key id, type and public key (log.md, "Name and keys")."""

    name: str
    key_id: bytes
    kind: int
    key: bytes

    @classmethod
    def read(cls, text: str) -> Verifier:
        """Return the key of a vkey. Raises Unreadable for any other text."""
        try:
            name, key_id, encoded = text.split("+", 2)
            data = unbase64(encoded)
            expected = hashlib.sha256(name.encode() + b"\n" + data).digest()[:4]
            need(len(data) == 33 and bytes.fromhex(key_id) == expected, "the key id is another")
        except (ValueError, BrokenRule) as error:
            raise Unreadable(f"{text!r} is no verifier key: {error}") from error
        return cls(name, expected, data[0], data[1:])

    def signed(self, note: bytes) -> bool:
        """Return whether this key signed the note (type 1), or cosigned it (type 4)."""
        return self.time(note) is not None

    def time(self, note: bytes) -> int | None:
        """Return the time at which this key cosigned the note (type 4), 0 if it signed it (type 1), and None for neither."""
        text, _, lines = note.partition(b"\n\n")
        text += b"\n"
        for line in lines.decode(errors="replace").split("\n"):
            dash, _, rest = line.partition(" ")
            name, _, encoded = rest.rpartition(" ")
            if dash != "—" or name != self.name:
                continue
            data = unbase64(encoded)
            if data[:4] != self.key_id:
                continue
            if self.kind == 1:
                return 0 if verifies(self.key, data[4:], text) else None
            at = int.from_bytes(data[4:12], "big")
            return at if verifies(self.key, data[12:], b"cosignature/v1\ntime %d\n" % at + text) else None
        return None


def checkpoint(note: bytes, key: Verifier) -> tuple[int, bytes]:
    """Return size and root of a checkpoint that the log's key signed. Raises Unreadable for any other note."""
    try:
        origin, size, root, *_ = note.decode().split("\n")
        if origin != key.name or str(int(size)) != size or not key.signed(note):
            raise Unreadable("the checkpoint is of another log, or its signature does not verify")
        return int(size), unbase64(root)
    except (ValueError, BrokenRule) as error:
        raise Unreadable(f"no checkpoint: {error}") from error


class Tree:
    """The Merkle tree of RFC 6962 as the roots of its full subtrees, so that the root of every prefix is cheap."""

    def __init__(self) -> None:
        self.size = 0
        self._subtrees: list[bytes] = []

    def append(self, leaf: bytes) -> None:
        """Add a leaf, and merge the subtrees that it completes: one for each trailing one bit of the size."""
        node = hashlib.sha256(b"\0" + leaf).digest()
        size = self.size
        while size & 1:
            node = hashlib.sha256(b"\1" + self._subtrees.pop() + node).digest()
            size >>= 1
        self._subtrees.append(node)
        self.size += 1

    def root(self) -> bytes:
        """Return the root of all leaves so far."""
        if not self._subtrees:
            return hashlib.sha256(b"").digest()
        *rest, node = self._subtrees
        for left in reversed(rest):
            node = hashlib.sha256(b"\1" + left + node).digest()
        return node


@dataclass(frozen=True)
class Statement:
    """A statement of the log: its id, its place and its payload (statements.md)."""

    id: str
    index: int
    kind: str
    body: dict[str, Any]
    by: list[str]
    issued: int
    log: str
    pae: bytes
    signatures: list[bytes]

    @property
    def dids(self) -> list[str]:
        """The DIDs of the authors."""
        return [key.partition("#")[0] for key in self.by]


def read_leaf(leaf: bytes, index: int) -> Statement | None:
    """Return the statement in a leaf, or None for a Sigstore leaf. Raises BrokenRule for any other bytes, and Unreadable for
    a statement of a newer release."""
    need(len(leaf) <= 65_535, "the leaf is too large")
    envelope = parse(leaf)
    need(isinstance(envelope, dict), "the leaf is no object")
    if envelope.keys() in ({"certificate"}, {"apiVersion", "kind", "spec"}):
        return None  # signatures of other tools: no part of an election
    try:
        need(envelope.keys() == {"payload", "payloadType", "signatures"}, "no envelope")
        need(envelope["payloadType"] == PAYLOAD_TYPE, "another payload type")
        payload = unbase64(envelope["payload"])
        need(len(payload) <= 48_000, "the payload is too large")
        value = parse(payload)
        # Unknown members that are not critical change no result. Critical ones may: this program declares none.
        if "critical" in value or value["type"] not in KINDS | {"rotation"}:
            raise Unreadable(f"leaf {index} is of a newer release than this program: get a newer one")
        need(value.keys() == {"body", "by", "issued", "log", "type"}, "the payload has other members")
        by = value["by"]
        need(by == sorted(set(by)) and 1 <= len(by) <= 2, "the authors are not one or two, sorted")
        need([one["keyid"] for one in envelope["signatures"]] == by, "the signatures are not those of the authors")
        signatures = [unbase64(one["sig"]) for one in envelope["signatures"]]
        pae = b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)
        need(value["type"] in KINDS and type(value["issued"]) is int, "an unknown kind, or no time")
        return Statement(digest(pae), index, value["type"], value["body"], by, value["issued"], value["log"], pae, signatures)
    except MALFORMED as error:
        raise BrokenRule(f"no statement: {error!r}") from error


# -------------------------------------------------------------------------------------- facts: what the leaves say, in order


@dataclass(frozen=True)
class Report:
    """A report of two DIDs."""

    index: int
    epoch: int
    topic: str
    document: str
    agreed: bool
    dids: tuple[str, ...]


@dataclass(frozen=True)
class Ballot:
    """The newest ballot of a DID in a topic; without tiers it is withdrawn."""

    seq: int
    tiers: list[frozenset[str]]
    cast: int
    changed: int
    first: int


@dataclass
class Facts:
    """The state of the log that elections read. `append` checks a leaf and adds what it says."""

    key: Verifier
    origin: str = ""
    operator: str = ""
    epoch: int = 0
    clock: int = 0
    opened: int = 0
    closed: int = 0
    closing: list[str] = field(default_factory=list)
    parameters: tuple[str, dict[str, Any]] | None = None
    announced: tuple[str, dict[str, Any]] | None = None
    notice_ends: int = 0
    ids: set[str] = field(default_factory=set)
    identities: dict[str, Statement] = field(default_factory=dict)
    born: dict[str, int] = field(default_factory=dict)
    grants: dict[tuple[str, str], tuple[str, int, int]] = field(default_factory=dict)
    publications: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    uris: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    status: dict[str, tuple[str, str | None, int]] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    negotiations: dict[tuple[tuple[str, ...], str], list[Report]] = field(default_factory=lambda: defaultdict(list))
    void: set[int] = field(default_factory=set)
    equivocations: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    ballots: dict[str, dict[str, Ballot]] = field(default_factory=lambda: defaultdict(dict))
    vouches: dict[tuple[str, str], Statement] = field(default_factory=dict)
    vouch_epochs: dict[int, int] = field(default_factory=dict)
    vouch_seq: Counter[str] = field(default_factory=Counter)
    restarted: dict[str, int] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)
    lines: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    named: dict[str, int] = field(default_factory=dict)
    newest_decision: dict[str, str] = field(default_factory=dict)

    def append(self, statement: Statement) -> None:
        """Check the rules on which elections depend, then add the statement. Raises BrokenRule and changes nothing."""
        rule = getattr(self, f"_{statement.kind}", None)
        try:
            self._authentic(statement)
            if rule:
                rule(statement, statement.body)
        except MALFORMED as error:
            raise BrokenRule(f"malformed {statement.kind}: {error!r}") from error
        self.ids.add(statement.id)
        if self.operator in statement.dids:
            self.clock = max(self.clock, statement.issued)

    def _authentic(self, statement: Statement) -> None:
        need(statement.id not in self.ids, "the statement is in the log already")
        need((statement.kind == "genesis") == (statement.index == 0), "leaf 0 and no other is the genesis")
        need(statement.kind == "genesis" or statement.log == self.origin, "the statement is for another log")
        need(len(statement.by) == 1 or statement.kind in ("report", "identity"), "two authors")
        operator_only = statement.kind in ("identity", "parameters", "decision", "withdrawal")
        need(not operator_only or self.operator in statement.dids, "the operator has not signed")
        need(not self.closing or statement.kind == "decision", "an epoch is being closed")
        for key_id, signature in zip(statement.by, statement.signatures, strict=True):
            need(verifies(self._key(key_id), signature, statement.pae), f"the signature of {key_id} does not verify")

    def _key(self, key_id: str) -> bytes:
        did, _, fragment = key_id.partition("#")
        if did.startswith("did:key:"):
            need(fragment == did[8:], "the key is not the DID's")
            return did_key_bytes(fragment)
        need(did in self.identities, f"{did} has no identity")
        keys = {key["id"]: key["multikey"] for key in self.identities[did].body["keys"]}
        need(key_id in keys, f"{key_id} is no key of the newest identity")
        return did_key_bytes(keys[key_id])

    def _genesis(self, statement: Statement, body: dict[str, Any]) -> None:
        need(statement.dids == [body["operator"]], "the genesis is not signed by its operator")
        need(body["operator"].startswith("did:key:"), "the operator is no did:key")
        need(statement.log == body["origin"] == self.key.name, "the genesis is of another log")
        need(Verifier.read(body["log_key"]) == self.key, "the genesis names another key")
        self.origin, self.operator, self.opened = body["origin"], body["operator"], statement.issued

    def _identity(self, statement: Statement, body: dict[str, Any]) -> None:
        did = body["did"]
        need(set(statement.dids) <= {self.operator, did}, "another DID has signed")
        before = self.identities.get(did)
        need(body.get("previous") == (before.id if before else None), "it does not follow the newest identity")
        tenure = 1
        if before:
            old, new = ({key["multikey"] for key in one["keys"]} for one in (before.body, body))
            # The domain keeps its tenure if an old key co-signs or no key is new.
            tenure = before.body["tenure"] + (did not in statement.dids and not new <= old)
        need(body["tenure"] == tenure, "it has another tenure than it must")
        if before and before.body["tenure"] != tenure:
            self.restarted[did] = self.epoch
            self.waits[did] = max(self.clock, statement.issued) + TENURE_WAIT
        self.identities[did] = statement
        self.born.setdefault(did, self.epoch)

    def _grant(self, statement: Statement, body: dict[str, Any]) -> None:
        owner, pair = statement.dids[0], (body["namespace"], body["to"])
        need(namespace(owner) == body["namespace"], "the namespace is not the author's")
        # The newest statement of a pair counts, in its own place of the order.
        self.grants.pop(pair, None)
        if not body.get("withdrawn"):
            self.grants[pair] = owner, self.tenure(owner), self.tenure(body["to"])

    def tenure(self, did: str) -> int:
        """Return the tenure of a DID: 1 for a did:key, and before the first identity."""
        return int(self.identities[did].body["tenure"]) if did in self.identities else 1

    def _publish(self, statement: Statement, body: dict[str, Any]) -> None:
        need(body["uri"] not in self.uris, "the version is published")
        topic, document, base = body["topic"], body["document"]["sha256"], body.get("base")
        published = self.publications[topic]
        if base and document not in published and major(base["uri"]) == major(body["uri"]):
            there, first, _ = self.uris.get(base["uri"], ("", "", ""))
            if (there, first) == (topic, base["document"]):
                self.lines[topic][document] = self.lines[topic].get(first, first)
        self.uris[body["uri"]] = (topic, document, statement.dids[0])
        published.setdefault(document, statement.index)

    def _status(self, statement: Statement, body: dict[str, Any]) -> None:
        if "wheel" not in body:  # with a wheel it is about a handler
            need(body["uri"] in self.uris, "the protocol is not published")
            need(self.uris[body["uri"]][2] == statement.dids[0], "the author is not the publisher")
            self.status[body["uri"]] = body["state"], body.get("successor"), self.epoch

    def _report(self, statement: Statement, body: dict[str, Any]) -> None:
        dids = tuple(sorted(set(statement.dids)))
        need(len(dids) == 2, "a report needs two DIDs")
        need(body["epoch"] == self.epoch, "another epoch is open")
        same = self.negotiations[dids, body["nid"]]
        need(len(same) < 2 and body["document"] not in [one.document for one in same], "reported already")
        agreed = {"agreed": True, "failed": False}[body["outcome"]]
        report = Report(statement.index, self.epoch, body["topic"], body["document"], agreed, dids)
        if same:
            self.void |= {same[0].index, report.index}
            self.equivocations.append((self.epoch, dids))
        same.append(report)
        self.reports.append(report)

    def _may_vote(self, did: str) -> None:
        is_first_rule = not self.parameters or self.parameters[1]["rule"] == RULES[0]
        need(is_first_rule or self.clock >= self.waits.get(did, 0), "its tenure is less than thirty days old")

    def _ballot(self, statement: Statement, body: dict[str, Any]) -> None:
        self._may_vote(statement.dids[0])
        tiers = [frozenset(tier) for tier in body["tiers"]]
        choices = [choice for tier in body["tiers"] for choice in tier]
        need(all(tiers) and len(choices) == len(set(choices)) <= 33, "a choice twice, too many, or an empty tier")
        before = self.ballots[body["topic"]].get(statement.dids[0])
        need(body["seq"] == (before.seq + 1 if before else 0), "it does not have the author's next number")
        changed = before.changed if before and before.tiers == tiers else self.epoch
        first = before.first if before else statement.index
        self.ballots[body["topic"]][statement.dids[0]] = Ballot(body["seq"], tiers, self.epoch, changed, first)

    def _vouch(self, statement: Statement, body: dict[str, Any]) -> None:
        author = statement.dids[0]
        self._may_vote(author)
        need(body["to"] != author, "it is for its author")
        need(body["seq"] == self.vouch_seq[author], "it does not have the author's next number")
        self.vouch_seq[author] += 1
        self.vouches[author, body["to"]] = statement
        self.vouch_epochs[statement.index] = self.epoch

    def _parameters(self, statement: Statement, body: dict[str, Any]) -> None:
        need(body["rule"] in RULES, "an unknown rule")
        self.named[statement.id] = self.epoch
        if self.parameters is None:
            self.parameters = statement.id, body
        elif self.parameters[1]["rule"] == RULES[0]:  # without notice and bounds
            self.announced, self.notice_ends = (statement.id, body), 0
        else:
            check_amendment(self.parameters[1], body)
            seconds = self.parameters[1].get("epoch_seconds")
            notice = max(self.clock, statement.issued) + self.parameters[1]["horizon_epochs"] * seconds if seconds else 0
            # Those in force, announced again, take the announced ones back.
            withdraws = self.announced is not None and body == self.parameters[1]
            self.announced, self.notice_ends = None if withdraws else (statement.id, body), notice

    def _decision(self, statement: Statement, body: dict[str, Any]) -> None:
        numbers = [
            body["epoch"],
            body["remaining"],
            body["input"]["size"],
            *(body[name]["size"] for name in ("transcript", "roll")),
        ]
        texts = [body["topic"], body["input"]["root"], *(body[name]["sha256"] for name in ("transcript", "roll"))]
        need(all(type(number) is int for number in numbers) and all(type(text) is str for text in texts), "malformed")
        need(type(body["input"].get("witnessed", "")) is str, "malformed")
        need(self.parameters, "no parameters are in force")
        if not self.closing:  # the first decision of an epoch: its own time is the newest of the log's clock
            assert self.parameters
            now, seconds = max(self.clock, statement.issued), self.parameters[1].get("epoch_seconds")
            need(not seconds or now >= self.opened + seconds, "the epoch is closed too early")
            self.closed = now

    def open_next_epoch(self) -> None:
        """Open the next epoch: announced parameters come into force, and the schedule goes on without drift."""
        assert self.parameters
        seconds = self.parameters[1].get("epoch_seconds")
        passed = max(1, (self.closed - self.opened) // seconds) * seconds if seconds else self.closed - self.opened
        self.opened += passed
        self.epoch += 1
        if self.announced and self.opened >= self.notice_ends:
            self.parameters, self.announced = self.announced, None


# statements.md, "Amendments": steps, and factors as (numerator, denominator).
STEP = [
    "candidate_pairs",
    "candidate_clusters",
    "quorum_share",
    "cluster_share",
    "provisional_share",
    "sustain_epochs",
    "dormant_epochs",
    "suspect_epochs",
    "memory_horizons",
    "reputation.least_vouches",
    "reputation.cap_share",
    "reputation.loan_share",
    "reputation.acquainted_epochs",
    "reputation.counterparties",
]
TWICE = [
    "epoch_seconds",
    "horizon",
    "horizon_epochs",
    "candidate_share",
    "max_candidates",
    "credit.report_share",
    "credit.epochs",
    "credit.pairs",
    "reputation.rounds",
    "reputation.max_vouches",
    "reputation.mature_epochs",
    "reputation.counterparty_share",
]
FACTOR = {**dict.fromkeys(TWICE, Fraction(2)), **dict.fromkeys(("over_none", "over_incumbent"), Fraction(4, 3))}
FLOOR = {"epoch_seconds": 86_400, "horizon": 28 * 86_400, "over_none": 1, "over_incumbent": 1}


def check_amendment(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Check that parameters may follow those in force, of a rule with notice. Raises BrokenRule."""
    need(RULES.index(new["rule"]) >= RULES.index(old["rule"]), "an earlier rule")
    if old["electorate"] != "open":
        return
    need(new["electorate"] == "open", "a development electorate after an open one")
    for name in (*STEP, *FACTOR):
        before, after = constant(old, name), constant(new, name)
        if name in FACTOR:
            lowest, highest = before / FACTOR[name], before * FACTOR[name]
        else:
            lowest, highest = before - 1, before + 1
        if name in FLOOR:  # below its floor a constant does not fall
            lowest = max(lowest, min(before, Fraction(FLOOR[name])))
        need(lowest <= after <= highest, f"{name} changes from {before} to {after}")
    anchors, others = (set(one["reputation"]["anchors"]) for one in (old, new))
    most = max(1, len(anchors) // 10)
    need(len(others - anchors) <= most and len(anchors - others) <= most, "too many anchors change")
    lists = [one["reputation"]["suffix_list"] for one in (old, new)]
    need(anchors == others or lists[0] == lists[1], "the anchors and the suffix list change together")
    if "witnesses" in old:
        need("witnesses" in new, "the witnesses are dropped")
        keys, later = (set(one["witnesses"]["keys"]) for one in (old, new))
        need(len(keys - later) <= 1, "more than one witness is removed")
        kept = new["witnesses"]["quorum"] - len(later - keys)
        need(kept >= max(1, old["witnesses"]["quorum"] - 1), "too few of the present witnesses are needed")


def constant(body: dict[str, Any], name: str) -> Fraction:
    """Return a constant of parameters as a number; of a ratio, the quotient."""
    if name == "horizon":
        return Fraction(body["horizon_epochs"] * body["epoch_seconds"])
    found: Any = body
    for part in name.split("."):
        found = found[part]
    return Fraction(*found) if isinstance(found, list) else Fraction(found)


def major(uri: str) -> tuple[str, str]:
    """Return the registry, namespace and name of a protocol URI, and the epoch and first number of its version (§3)."""
    protocol, _, version = uri.rpartition("/")
    found = re.match(r"(?:[0-9]+!)?[0-9]+", version)
    return protocol, found[0] if found else version


def namespace(did: str) -> str | None:
    """Return the namespace that a DID owns, or None (protocols.md, "DIDs")."""
    _, method, rest = did.split(":", 2)
    if method == "key":
        return did
    return None if "%3A" in rest.split(":")[0] else rest


# ------------------------------------------------------------------------------------------ the electorate of an epoch, §1, §2


class SuffixList:
    """The ICANN section of a Public Suffix List, its rules in A-labels."""

    def __init__(self, data: bytes) -> None:
        section = data.decode().partition("===BEGIN ICANN DOMAINS===")[2].partition("===END ICANN DOMAINS===")[0]
        lines = [line.split()[0] for line in section.splitlines()[1:] if line.strip() and not line.lstrip().startswith("//")]
        self.rules = {".".join(map(a_label, line.split("."))) for line in lines}

    def registrable(self, domain: str) -> str | None:
        """Return the registrable domain of a domain; None for a public suffix."""
        labels = domain.split(".")
        suffix = 1  # the default rule: *
        for start in range(len(labels)):
            name, wild = ".".join(labels[start:]), ".".join(["*", *labels[start + 1 :]])
            if f"!{name}" in self.rules:
                suffix = len(labels) - start - 1
                break
            if name in self.rules or wild in self.rules:
                suffix = max(suffix, len(labels) - start)
        return ".".join(labels[-suffix - 1 :]) if len(labels) > suffix else None


def a_label(label: str) -> str:
    """Return the A-label of a rule's label, without its exclamation mark changed."""
    mark, label = ("!", label[1:]) if label.startswith("!") else ("", label)
    return mark + (label.lower() if label.isascii() else "xn--" + label.lower().encode("punycode").decode())


def fading(epochs: int, horizon: int) -> int:
    """Return D: ONE, halved every `horizon` epochs, linearly in between, and 0 after eight halvings (§2)."""
    halvings, rest = divmod(epochs, horizon)
    return 0 if halvings >= 8 else (ONE >> halvings) - (ONE >> halvings + 1) * rest // horizon


class Electorate:
    """The principals of an epoch with trust, cluster and weight, and the reports that count."""

    def __init__(self, facts: Facts, suffixes: SuffixList | None) -> None:
        assert facts.parameters
        self.facts, self.rules, self.now = facts, facts.parameters[1], facts.epoch
        self.horizon: int = self.rules["horizon_epochs"]
        self.memory: int = self.horizon * self.rules.get("memory_horizons", 1)
        self.open = self.rules["electorate"] == "open"
        self.suffixes = suffixes
        self._names: dict[str, str | None] = {}
        self.granted: dict[str, str] = {}
        if suffixes:
            for (domain, to), (owner, *tenures) in facts.grants.items():
                lasts = tenures == [facts.tenure(owner), facts.tenure(to)]
                if lasts and suffixes.registrable(domain) == domain:
                    self.granted.setdefault(to, domain)
        self.v2 = self.rules["rule"] == RULES[0]
        self.begun: dict[str, int] = {}
        for did, epoch in facts.restarted.items():
            if (name := self.principal(did)) and not self.v2 and self._is_root(did, name):
                self.begun[name] = max(epoch, self.begun.get(name, epoch))
        self.born: dict[str, int] = {}
        for did, epoch in facts.born.items():
            if (name := self.principal(did)) and (self.v2 or self._is_root(did, name)):
                self.born[name] = min(epoch, self.born.get(name, epoch))
        self.born |= {name: epoch for name, epoch in self.begun.items() if name in self.born}
        self.barred = {
            self.principal(did) for epoch, dids in facts.equivocations if self.now - epoch < self.horizon for did in dids
        }
        self.trust: dict[str, int] = {}
        self.cap = 0
        self.vouched: dict[str, dict[str, int]] = defaultdict(dict)
        if self.open:
            self._spread_trust()
            self.weight = {name: weight for name in self.trust if (weight := self._weight(name))}
        else:
            self.weight = {name: ONE for name in self.born if name not in self.barred}
            self.cluster = {name: name for name in self.born}
        self._count_reports()

    def principal(self, did: str) -> str | None:
        """Return the principal for which a DID speaks, or None (§1)."""
        if did not in self._names:
            self._names[did] = self._principal(did)
        return self._names[did]

    def _principal(self, did: str) -> str | None:
        method, _, rest = did[4:].partition(":")
        if not self.open:
            return None if method == "key" or "." not in rest.partition(":")[0] else did
        assert self.suffixes
        if method != "key" and ":" not in rest and "%3A" not in rest and self.suffixes.registrable(rest) == rest:
            return rest
        return self.granted.get(did)

    def _is_root(self, did: str, name: str) -> bool:
        return did == name or did in (f"did:wba:{name}", f"did:web:{name}")

    def since(self, name: str | None) -> int:
        """Return the epoch in which the newest tenure of a principal began, or −1 (§1)."""
        return self.begun.get(name or "", -1)

    def age(self, name: str) -> int:
        """Return the epochs for which a principal exists, the present one included; 0 for one that does not exist."""
        return self.now - self.born[name] + 1 if name in self.born else 0

    def pair(self, report: Report) -> tuple[str, str] | None:
        """Return the two principals of a report, sorted, or None if they are not two."""
        one, other = (self.principal(did) for did in report.dids)
        return (min(one, other), max(one, other)) if one and other and one != other else None

    def is_counterparty(self, name: str) -> bool:
        """Return whether a principal has enough trust to count as a counterparty (§2)."""
        return not self.open or self.rules["reputation"]["counterparty_share"] * self.trust.get(name, 0) >= self.cap

    def _spread_trust(self) -> None:
        rules = self.rules["reputation"]
        self._accept_vouches(rules)
        assert self.facts.parameters
        named = self.facts.named[self.facts.parameters[0]]
        seed = {name: ONE // len(rules["anchors"]) for name in rules["anchors"] if self.since(name) <= named}
        caps: list[int] = []
        for _ in range(2 if self.v2 else 3):
            most = min(caps) // rules["loan_share"] if caps else ONE
            self.trust = {name: share // 2 for name, share in seed.items()}
            for _ in range(rules["rounds"]):
                flows = self._flows(seed, most)
                trust = {name: share // 2 for name, share in seed.items()}
                for lent in flows.values():
                    for other, amount in lent.items():
                        trust[other] = trust.get(other, 0) + amount
                self.trust = trust
            flows = self._flows(seed, most)
            lent_on = {name: sum(flows.get(name, {}).values()) for name in self.trust}
            held = [x - min(seed.get(name, 0) // 2, 2 * lent_on[name]) for name, x in self.trust.items() if name in self.born]
            caps.append(cap(held, rules["cap_share"]))
        self.cap = caps[1] if self.v2 else max(min(caps[:2]), caps[2])
        self._form_clusters([*seed], flows)

    def _accept_vouches(self, rules: dict[str, Any]) -> None:
        """Fill `vouched`: principal → principal → strength, of the vouches that count."""
        met: dict[tuple[str, str], set[int]] = defaultdict(set)
        for report in self.facts.reports:
            if report.agreed and report.index not in self.facts.void and (pair := self.pair(report)):
                met[pair].add(report.epoch)
        newest: dict[str, dict[str, Statement]] = defaultdict(dict)
        for vouch in sorted(self.facts.vouches.values(), key=lambda vouch: vouch.index):
            one, other = self.principal(vouch.dids[0]), self.principal(vouch.body["to"])
            if one and other and one != other:
                newest[one][other] = vouch
        for one, vouches in newest.items():
            kept = [
                (vouch.index, other)
                for other, vouch in vouches.items()
                if not vouch.body.get("withdrawn")
                and max(self.since(one), self.since(other)) < self.facts.vouch_epochs[vouch.index]
            ]
            for index, other in sorted(kept)[-rules["max_vouches"] :]:
                strength = fading(self.now - self.facts.vouch_epochs[index], self.horizon)
                if strength and len(met[min(one, other), max(one, other)]) >= rules["acquainted_epochs"]:
                    self.vouched[one][other] = strength

    def _flows(self, seed: dict[str, int], most: int) -> dict[str, dict[str, int]]:
        """Return F: for each principal the trust that it lends to each other one."""
        least = self.rules["reputation"]["least_vouches"] * ONE
        flows = {}
        for name, strengths in self.vouched.items():
            if name in self.trust:
                own = seed.get(name, 0) // 2
                lent = (own + min(self.trust[name] - own, most)) // 2
                whole = max(sum(strengths.values()), least)
                flows[name] = {other: lent * strength // whole for other, strength in strengths.items()}
        return flows

    def _form_clusters(self, anchors: list[str], flows: dict[str, dict[str, int]]) -> None:
        self.cluster = {name: name for name in anchors}
        layer = sorted(anchors)
        while layer:
            best: dict[str, tuple[int, str]] = {}
            for name in layer:  # in the order of names, so the first of equal ones stays
                for other, amount in flows.get(name, {}).items():
                    if other not in self.cluster and amount > best.get(other, (0, ""))[0]:
                        best[other] = amount, name
            for other, (_, name) in best.items():
                self.cluster[other] = self.cluster[name]
            layer = sorted(best)

    def _weight(self, name: str) -> int:
        if name in self.barred or name not in self.cluster or not self.cap:
            return 0
        mature: int = self.rules["reputation"]["mature_epochs"]
        return ONE * min(self.trust[name], self.cap) // self.cap * min(self.age(name), mature) // mature

    def _count_reports(self) -> None:
        """Fill `agreed` and `failed`, by topic: the reports that count, each with its two principals (§1)."""
        self.agreed: dict[str, list[tuple[Report, tuple[str, str]]]] = defaultdict(list)
        self.failed: dict[str, list[tuple[Report, tuple[str, str]]]] = defaultdict(list)
        taken: set[tuple[str, int, tuple[str, str], bool]] = set()
        for report in self.facts.reports:
            pair = self.pair(report)
            if report.index in self.facts.void or not pair or not all(name in self.weight for name in pair):
                continue
            if max(map(self.since, pair)) >= report.epoch:
                continue
            key = report.topic, report.epoch, pair, report.agreed
            if key in taken or self.now - report.epoch >= (self.memory if report.agreed else 1):
                continue
            taken.add(key)
            (self.agreed if report.agreed else self.failed)[report.topic].append((report, pair))

    def recent(self, topic: str) -> list[tuple[Report, tuple[str, str]]]:
        """Return the agreed reports of a topic in the last `horizon_epochs` epochs."""
        return [(report, pair) for report, pair in self.agreed[topic] if self.now - report.epoch < self.horizon]

    def topic_weights(self, topic: str) -> dict[str, int]:
        """Return the weight of each principal that has some in the topic (§2)."""
        if not self.open:
            return self.weight
        most: int = self.rules["reputation"]["counterparties"]
        met: dict[str, set[str]] = defaultdict(set)
        for _, (one, other) in self.agreed[topic]:
            for name, partner in ((one, other), (other, one)):
                if self.is_counterparty(partner):
                    met[name].add(partner)
        weights = {name: self.weight[name] * min(len(partners), most) // most for name, partners in met.items()}
        return {name: weight for name, weight in weights.items() if weight}

    def live_ballots(self, topic: str) -> dict[str, list[Ballot]]:
        """Return the live ballots of each principal, that of the eldest DID in the topic first (§3)."""
        ballots: dict[str, list[Ballot]] = defaultdict(list)
        for did, ballot in sorted(self.facts.ballots.get(topic, {}).items(), key=lambda item: item[1].first):
            name = self.principal(did)
            if name and ballot.tiers and ballot.cast > self.since(name):
                ballots[name].append(ballot)
        return ballots

    def faded(self, ballot: Ballot) -> bool:
        """Return whether a ballot counts as none by its own age."""
        return self.open and not fading(self.now - ballot.cast, self.horizon)

    def topic_weight(self, topic: str) -> int:
        """Return the weight of a topic on the agenda: that of the eligible principals that report or vote there."""
        there = {name for _, pair in self.recent(topic) for name in pair}
        there |= {name for name, ballots in self.live_ballots(topic).items() if not all(map(self.faded, ballots))}
        return sum(self.weight.get(name, 0) for name in there if self.is_counterparty(name))


def cap(held: Iterable[int], share: int) -> int:
    """Return the largest m for which share · Σ min(u, m) ≤ Σ u. The sum grows with m, so bisect."""
    amounts = list(held)
    low, high = 0, max(amounts, default=0)
    while low < high:
        middle = (low + high + 1) // 2
        if share * sum(min(amount, middle) for amount in amounts) <= sum(amounts):
            low = middle
        else:
            high = middle - 1
    return low


# ---------------------------------------------------------------------------------------------- the count of a topic, §3 to §7


@dataclass
class Record:
    """A document's state in a topic, and the counters that go with it."""

    state: str = "published"
    provisional: int = 0
    ahead: int = 0
    failing: int = 0
    repealing: int = 0
    suspect: int = 0


@dataclass
class Memory:
    """What a topic keeps from one epoch to the next."""

    records: dict[str, Record] = field(default_factory=dict)
    implied: dict[str, tuple[frozenset[str], int]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def by_line(self, line: dict[str, str]) -> Memory:
        """Return the memory with lines for documents, as the rule before leaves documents."""
        made = Memory({d: record for d, record in self.records.items() if d not in line}, versions=dict(self.versions))
        consensus = next((d for d, record in self.records.items() if record.state == "consensus"), "")
        if consensus in line:
            made.records[line[consensus]] = self.records[consensus]
            made.versions[line[consensus]] = consensus
        for name, (favourites, since) in self.implied.items():
            made.implied[name] = frozenset(line.get(document, document) for document in favourites), since
        return made

    def documents(self) -> dict[str, Record]:
        """Return the records by the document to speak."""
        return {self.versions.get(line, line): record for line, record in self.records.items()}


@dataclass
class Vote:
    """One weighted ballot of a principal."""

    principal: str
    tiers: Sequence[frozenset[str]]
    weight: int

    def over_none(self) -> Iterator[str]:
        """Yield the choices that the ballot ranks over NONE."""
        for tier in self.tiers:
            if NONE in tier:
                return
            yield from tier


Said: TypeAlias = tuple[Sequence[frozenset[str]], int, int]
"""A ranking, and its a and b."""


class Count:
    """The count of one topic at the end of an epoch. `record` has the new states; `memory` becomes the next epoch's."""

    def __init__(self, electorate: Electorate, topic: str, before: Memory) -> None:
        self.electorate, self.topic = electorate, topic
        self.old = before.documents()
        self.rules, self.now = electorate.rules, electorate.now
        self.v2 = electorate.v2
        publications = electorate.facts.publications.get(topic, {})
        self.weights = electorate.topic_weights(topic)
        self.line = {} if self.v2 else electorate.facts.lines.get(topic, {})
        self.before = before.by_line(self.line)
        before = self.before
        self._read_lines(publications)
        self.published = {d: n for d, n in publications.items() if d not in self.line and d not in self.gone}
        states = {line: record.state for line, record in before.records.items() if line not in self.gone}
        self.incumbent = next((line for line, state in states.items() if state == "consensus"), None)
        self.votes: list[Vote] = []
        self.voices: list[dict[str, Any]] = []
        self.explicit = self.implied = 0
        self.memory = Memory()
        self._cast()
        self.total = sum(vote.weight for vote in self.votes)
        self.approval: Counter[str] = Counter()
        for vote in self.votes:
            for document in vote.over_none():
                self.approval[document] += vote.weight
        self._read_reporters()
        self._choose_field()
        self._compare()
        self._order()
        self._advance()

    # -- §3, the ballots

    def _cast(self) -> None:
        electorate = self.electorate
        explicit = electorate.live_ballots(self.topic)
        implied = self._implied_ballots()
        for name, weight in sorted(self.weights.items()):
            said = implied.get(name)
            own = [self._after_use(ballot, said) for ballot in explicit.get(name, ())]
            cast = [ballot for ballot in own if ballot and self._fading(ballot[1])]
            self.explicit += len(cast)
            values, rest = [], weight
            for _, age, held in cast:
                values.append(weight * self._fading(age) // ONE * self._ripening(held) // ONE // len(cast))
                rest -= weight * self._fading(age) // ONE // len(cast)
            if said and (not cast if self.v2 else rest):
                self.implied += 1
                spoken = rest * self._fading(said[1]) // ONE if self.v2 else rest
                values.append(spoken * self._ripening(said[2]) // ONE)
                cast.append(said)
            for (tiers, _, _), value in zip(cast, values, strict=True):
                self.votes.append(Vote(name, self._read(tiers), value))
            if sum(values):
                ballot = min(cast, key=lambda ballot: ballot[1])  # the first of equally fresh ones
                voice = {"principal": name, "cluster": electorate.cluster[name], "weight": str(weight)}
                freshest = {"ballots": len(cast), "implied": ballot is said, "age": ballot[1], "held": ballot[2]}
                self.voices.append(voice | freshest | {"counts": str(sum(values))})

    def _fading(self, age: int) -> int:
        return fading(age, self.electorate.horizon) if self.electorate.open else ONE

    def _ripening(self, held: int) -> int:
        return ONE - (ONE >> held + 1) if self.electorate.open else ONE

    def _after_use(self, ballot: Ballot, said: Said | None) -> Said | None:
        """Return a ballot with its a and b as the use of its author leaves them, or None if that use has left it."""
        mine = ballot.tiers, self.now - ballot.cast, self.now - ballot.changed
        if self.v2 or not said:
            return mine
        favourites, _, held = said
        if favourites[0].isdisjoint(self._read(ballot.tiers)[0]):
            return mine if self.now - held <= ballot.cast else None
        by_use = ballot.tiers, 0, min(held, mine[2])
        return max(mine, by_use, key=lambda ballot: self._fading(ballot[1]) * self._ripening(ballot[2]) // ONE)

    def _read(self, tiers: Sequence[frozenset[str]]) -> list[frozenset[str]]:
        """Return a ballot over documents as one over lines, with the successors that inherit."""
        ranked: set[str] = set()
        lines = []
        for tier in tiers:
            kept = frozenset(self.line.get(choice, choice) for choice in tier) - ranked
            ranked |= kept
            lines += [kept] if kept else []
        read = []
        for tier in lines:
            heirs = {self.heirs[line] for line in tier if line in self.heirs} - ranked
            ranked |= heirs
            read.append(tier | heirs)
        return read

    # -- §3, the lines

    def _read_lines(self, publications: dict[str, int]) -> None:
        """Fill `versions`, `users`, `heirs` and `gone` of the topic's lines."""
        self.versions: dict[str, str] = {}
        self.users: dict[str, dict[str, int]] = {}
        self.heirs: dict[str, str] = {}
        self.gone: set[str] = set()
        if self.v2:
            return
        facts = self.electorate.facts
        uris: dict[str, list[str]] = defaultdict(list)
        for uri, (topic, document, _) in facts.uris.items():
            if topic == self.topic:
                uris[document].append(uri)
        status = {document: self._status(uris[document]) for document in publications}
        members: dict[str, list[str]] = defaultdict(list)
        for document in sorted(publications, key=lambda document: publications[document]):
            members[self.line.get(document, document)].append(document)
        for line, documents in members.items():
            kept = [document for document in documents if status[document][0] not in ("yanked", "revoked")]
            if not kept:
                self.gone.add(line)
                self.versions[line] = self.before.versions.get(line, line)
            if len(documents) > 1:
                self.users[line] = self._users(documents)
                if kept:
                    self.versions[line] = self._version(kept, status, self.users[line])
            if all(status[document][0] != "active" for document in documents):
                self._inherit(line, documents, status)

    def _status(self, uris: list[str]) -> tuple[str, str | None, int]:
        """Return the status of a document, the successor that is named, and the epoch of that statement."""
        facts, order = self.electorate.facts, ("active", "deprecated", "yanked", "revoked")
        own = uris[0].rsplit("/", 2)[0]  # up to the namespace
        counted = [
            facts.status.get(uri, ("active", None, 0))
            for uri in uris
            if uri.rsplit("/", 2)[0] == own or self.electorate.principal(facts.uris[uri][2]) in self.electorate.weight
        ]
        state = min((state for state, _, _ in counted), key=order.index)
        successor, epoch = next(((name, when) for other, name, when in counted if name and other != "active"), (None, 0))
        return state, successor, epoch

    def _inherit(self, line: str, documents: list[str], status: dict[str, tuple[str, str | None, int]]) -> None:
        for document in documents:
            _, successor, epoch = status[document]
            topic, heir, _ = self.electorate.facts.uris.get(successor or "", ("", "", ""))
            other = self.line.get(heir, heir)
            if topic == self.topic and other != line and self.now - epoch < self.electorate.horizon:
                self.heirs[line] = other
                return

    def _users(self, documents: list[str]) -> dict[str, int]:
        """Return the weight of the users whose version each document of a line is."""
        place = {document: number for number, document in enumerate(documents)}
        newest: dict[str, tuple[int, int]] = {}
        for report, pair in self.electorate.agreed[self.topic]:
            if report.document in place:
                for name in pair:
                    newest[name] = max(newest.get(name, (-1, -1)), (report.epoch, place[report.document]))
        users = dict.fromkeys(documents, 0)
        for name, (_, number) in newest.items():
            users[documents[number]] += self.weights.get(name, 0)
        return users

    def _version(self, kept: list[str], status: dict[str, tuple[str, str | None, int]], users: dict[str, int]) -> str:
        active = [document for document in kept if status[document][0] == "active"]
        total, actives = (sum(users[document] for document in some) for some in (kept, active))
        chosen = active if active and self.rules["quorum_share"] * actives >= total else kept
        for number in range(len(chosen))[::-1]:
            reached = sum(users[document] for document in chosen[number:])
            if reached and 2 * reached >= sum(users[document] for document in chosen):
                return chosen[number]
        return chosen[0]

    def speak(self, line: str) -> str:
        """Return the document of a line to speak."""
        return self.versions.get(line, line)

    def _implied_ballots(self) -> dict[str, tuple[list[frozenset[str]], int, int]]:
        """Return for each principal its implied ranking, its age and the epochs since it changed; keep them in `memory`."""
        read: dict[str, dict[str, Report]] = defaultdict(dict)
        for report, (one, other) in self._reports():  # in the order of the log, so the newest stays
            for name, partner in ((one, other), (other, one)):
                if not self.electorate.open or partner in self.electorate.vouched[name]:
                    read[name][partner] = report
        found = {}
        for name, reports in read.items():
            support = Counter(report.document for report in reports.values())
            if not all(map(self._withdrawn, support)):
                support = Counter({document: n for document, n in support.items() if not self._withdrawn(document)})
            named, since = self.before.implied.get(name, (frozenset(), self.now))
            chosen = self._named(support, named)
            since = since if chosen == named else self.now
            newest = max(report.epoch for report in reports.values() if report.document in chosen)
            self.memory.implied[name] = chosen, since
            found[name] = [chosen], self.now - newest, self.now - since
        return found

    def _named(self, support: Counter[str], before: frozenset[str]) -> frozenset[str]:
        """Return the lines that an implied ballot names. A line and its heir are counted together against others."""
        together: Counter[str] = Counter()
        for line, number in support.items():
            together[self.heirs.get(line, line)] += number
        best = {heir for heir, number in together.items() if number == max(together.values())}
        chosen: set[str] = set()
        for heir in best & {self.heirs.get(line, line) for line in before} or best:
            own = {line: number for line, number in support.items() if self.heirs.get(line, line) == heir}
            most = {line for line, number in own.items() if number == max(own.values())}
            chosen |= most & before or most
        return frozenset(chosen)

    def _reports(self, *, recent: bool = False) -> list[tuple[Report, tuple[str, str]]]:
        """Return the agreed reports that count in the topic, with lines for their documents."""
        agreed = self.electorate.recent(self.topic) if recent else self.electorate.agreed[self.topic]
        return [(replace(report, document=self.line.get(report.document, report.document)), pair) for report, pair in agreed]

    def _withdrawn(self, document: str) -> bool:
        if not self.v2:
            return False
        facts = self.electorate.facts
        states = [
            facts.status.get(uri, ("active", None, 0))[0]
            for uri, (topic, published, _) in facts.uris.items()
            if (topic, published) == (self.topic, document)
        ]
        return bool(states) and all(state in ("deprecated", "yanked", "revoked") for state in states)

    # -- §4, the field

    def _read_reporters(self) -> None:
        """Fill `pairs`, `clusters` and `reporters`: by document, from the reports that count."""
        pairs: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for report, pair in self._reports(recent=True):
            pairs[report.document].add(pair)
        self.pairs = {document: len(found) for document, found in pairs.items()}
        principals = {document: {name for pair in found for name in pair} for document, found in pairs.items()}
        self.clusters = {document: len({self.electorate.cluster[n] for n in names}) for document, names in principals.items()}
        self.reporters = {document: sum(self.weights.get(n, 0) for n in names) for document, names in principals.items()}

    def _rank(self, document: str) -> tuple[Any, ...]:
        """Return the sorting key of documents whose votes are equal."""
        published = self.published.get(document)
        numbers = self.approval[document], self.reporters.get(document, 0), self.pairs.get(document, 0)
        return (*(-number for number in numbers), published is None, published or 0, document)

    def _eligible(self, document: str) -> bool:
        return (
            document in self.published
            and self.pairs.get(document, 0) >= self.rules["candidate_pairs"]
            and self.clusters.get(document, 0) >= self.rules["candidate_clusters"]
            and self.rules["candidate_share"] * self.reporters.get(document, 0) >= self._against(document)
        )

    def _against(self, document: str) -> int:
        """Return the weight that the reporters of a document are compared with."""
        return self.total - (0 if self.v2 else self.approval[document])

    def _choose_field(self) -> None:
        eligible = [document for document in self.published if document != self.incumbent and self._eligible(document)]
        size: int = self.rules["max_candidates"]
        places = size - (self.incumbent is not None)
        self.queue = self._proportional(eligible, 2 * size) if len(eligible) > places else sorted(eligible, key=self._rank)
        chosen = {*self.queue[:places], *([self.incumbent] if self.incumbent else [])}
        self.candidates = sorted(chosen, key=lambda document: self.published[document])
        self.rejected = self.queue[places:]

    def _proportional(self, eligible: list[str], places: int) -> list[str]:
        """Return the order of the field: sequential proportional approval, at most `places` of it, then the rest."""
        summands: Counter[frozenset[str]] = Counter()
        for vote in self.votes:
            summands[frozenset(vote.over_none()).intersection(eligible)] += vote.weight
        seated: Counter[frozenset[str]] = Counter()
        rest, order = sorted(eligible, key=self._rank), list[str]()
        while rest and len(order) < places:
            scores = {d: sum(weight // (seated[s] + 1) for s, weight in summands.items() if d in s) for d in rest}
            best = max(rest, key=lambda document: scores[document])  # the first of equal ones
            rest.remove(best)
            order.append(best)
            for approved in summands:
                seated[approved] += best in approved
        return order + rest

    # -- §5, the count

    def _compare(self) -> None:
        """Fill V, the strongest paths and the support by cluster."""
        choices = self.choices = [*self.candidates, NONE]
        none = len(self.candidates)
        self.pairwise = [[0] * len(choices) for _ in choices]
        sides = {index: (Counter(), Counter()) for index in range(none)}  # type: dict[int, tuple[Counter[str], Counter[str]]]
        for vote in self.votes:
            rank = self._ranks(vote)
            cluster = self.electorate.cluster[vote.principal]
            for a in range(len(choices)):
                for b in range(len(choices)):
                    if rank[a] < rank[b]:
                        self.pairwise[a][b] += vote.weight
            for index in range(none):
                if rank[index] != rank[none]:
                    sides[index][rank[index] > rank[none]][cluster] += vote.weight
        share: int = self.rules["cluster_share"]
        made: dict[int, list[int]]
        asked: dict[int, list[int]]
        if self.v2:
            self.cap: int = -(-self.total // (self.rules["quorum_share"] * share))
            made = {i: [sum(min(w, self.cap) for w in side.values()) for side in both] for i, both in sides.items()}
            asked = {i: [share * self.cap] * 2 for i in sides}
        else:
            made = {i: [shared_support([*side.values()], share) for side in both] for i, both in sides.items()}
            most: int = self.rules["quorum_share"] - 1
            asked = {i: [-(-(self.total - sum(side.values())) // most) for side in both] for i, both in sides.items()}
        self.support, self.opposition = ({self.candidates[i]: both[n] for i, both in made.items()} for n in range(2))
        self.quorum, self.opposing = ({self.candidates[i]: both[n] for i, both in asked.items()} for n in range(2))

    def _ranks(self, vote: Vote) -> list[int]:
        """Return the rank of each choice: NONE, unless it is named, is between the named and the others."""
        place = {choice: number for number, tier in enumerate(vote.tiers) for choice in tier}
        last = len(vote.tiers)
        place.setdefault(NONE, last)
        return [place.get(choice, last + 1) for choice in self.choices]

    def _order(self) -> None:
        size = len(self.choices)
        votes = self.pairwise
        path = [[max(0, votes[a][b] - votes[b][a]) if a != b else 0 for b in range(size)] for a in range(size)]
        for middle in range(size):
            for a in range(size):
                for b in range(size):
                    if a != b:
                        path[a][b] = max(path[a][b], min(path[a][middle], path[middle][b]))
        remaining = list(range(size))
        self.order: list[str] = []
        self.ties: list[dict[str, Any]] = []
        while remaining:
            best = [a for a in remaining if not any(path[b][a] > path[a][b] for b in remaining)]
            chosen = next((a for a in best if self.choices[a] == self.incumbent), best[0])
            if len(best) > 1:
                tied = [self.choices[a] for a in best]
                self.ties.append({"rank": len(self.order), "tied": tied, "chosen": self.choices[chosen]})
            self.order.append(self.choices[chosen])
            remaining.remove(chosen)

    # -- §6, the states

    def votes_for(self, one: str, other: str) -> int:
        """Return V[one][other]."""
        return self.pairwise[self.choices.index(one)][self.choices.index(other)]

    def _beats(self, one: str, other: str, ratio: list[int]) -> bool:
        return self.votes_for(one, other) >= least_to_beat(self.votes_for(other, one), ratio)

    def _first(self, document: str) -> bool:
        """Return whether a document meets the conditions of *provisional*."""
        if not self.v2:
            return self._has_quorum(document) and self._beats(document, NONE, self.rules["over_none"])
        leads = self.order[0] == document and self.votes_for(document, NONE) > self.votes_for(NONE, document)
        return leads and bool(self.rules["provisional_share"] * self.support[document] >= self.quorum[document])

    def _has_quorum(self, document: str) -> bool:
        return self.support[document] >= self._needed(self.quorum[document])

    def _needed(self, quorum: int) -> int:
        return quorum if self.v2 else max(quorum, 1)

    def _unbeaten(self, document: str) -> bool:
        return all(self.votes_for(document, x) >= needed for x, needed in self._needed_against(document))

    def _needed_against(self, document: str) -> Iterator[tuple[str, int]]:
        number = self.choices.index(document)
        for index, other in enumerate(self.choices):
            if other != document:
                yield other, self.votes_for(other, document) + (index < number)

    def _repeal_due(self) -> bool:
        incumbent = self.incumbent
        if incumbent is None:
            return False
        enough = self.opposition[incumbent] >= self._needed(self.opposing[incumbent])
        return self._beats(NONE, incumbent, self.rules["over_none"]) and enough

    def _weak(self) -> bool:
        i = self.incumbent
        if i is None:
            return False
        outvoted = self.votes_for(i, NONE) < self.votes_for(NONE, i)
        return outvoted or self.rules["provisional_share"] * self.support[i] < self.quorum[i]

    def _advance(self) -> None:
        """Give each document its counters and its new state."""
        self.records = {document: Record(**vars(record)) for document, record in self.before.records.items()}
        for document in self.candidates:
            self._advance_counters(document, self.records.setdefault(document, Record()))
        for document, record in self.records.items():
            if document in self.candidates:
                record.state = self._next_state(document, record)
            elif document in self.gone and record.state == "consensus":
                record.state = "repealed"
            elif record.state in ("candidate", "provisional"):
                record.state = "published"
        elected = next((d for d in self.candidates if self.records[d].state == "consensus" and d != self.incumbent), None)
        if elected and self.incumbent:
            self.records[self.incumbent].state = "superseded"
        for document, record in self.records.items():
            if document not in self.candidates:
                record.provisional = record.ahead = record.failing = record.repealing = record.suspect = 0
            elif record.state != "provisional":
                record.provisional = 0
            if record.state != "consensus":
                record.failing = record.repealing = 0
        self.consensus = next((d for d, record in self.records.items() if record.state == "consensus"), None)
        if self.consensus != self.incumbent:
            for record in self.records.values():
                record.ahead = 0
        self.memory.records = {d: record for d, record in self.records.items() if record != Record()}
        self.memory.versions = {line: self.speak(line) for line in self.memory.records}
        former = next((line for line, record in self.before.records.items() if record.state == "consensus"), None)
        self.elected = self.speak(self.consensus) if self.consensus and self.consensus != former else None
        self.transitions = [*self._transitions(former)]

    def _transitions(self, former: str | None) -> Iterator[dict[str, str]]:
        old, new = self.old, self.memory.documents()
        for document in sorted({*old, *new}):
            states = [records[document].state if document in records else "published" for records in (old, new)]
            if former and former == self.consensus and document == self.before.versions.get(former, former) not in new:
                states[1] = "superseded"
            if states[0] != states[1]:
                yield {"hash": document, "from": states[0], "to": states[1]}

    def _advance_counters(self, document: str, record: Record) -> None:
        candidate = document != self.incumbent
        if candidate and self.incumbent:
            record.ahead = record.ahead + 1 if self._beats(document, self.incumbent, self.rules["over_incumbent"]) else 0
        else:
            record.ahead = 0
        waiting = record.state not in ("published", "consensus")
        record.provisional = record.provisional + 1 if waiting and self._first(document) else 0
        record.repealing = record.repealing + 1 if not candidate and self._repeal_due() else 0
        record.failing = record.failing + 1 if not candidate and self._weak() else 0
        failed = self.electorate.failed[self.topic]
        failures = [pair for report, pair in failed if self.line.get(report.document, report.document) == document]
        clusters = {self.electorate.cluster[name] for pair in failures for name in pair}
        enough = len(set(failures)) >= self.rules["candidate_pairs"] and len(clusters) >= self.rules["candidate_clusters"]
        if enough or (not candidate and self._repeal_due()):
            record.suspect = self.rules["suspect_epochs"]
        else:
            record.suspect = max(0, record.suspect - 1)

    def _next_state(self, document: str, record: Record) -> str:
        sustain = self.rules["sustain_epochs"]
        if record.state == "published":
            return "candidate"
        if record.state == "consensus":
            if record.repealing >= sustain:
                return "repealed"
            return "dormant" if record.failing >= self.rules["dormant_epochs"] else "consensus"
        if record.state != "provisional":
            returns = record.state == "candidate" or self.order[0] == document
            return "provisional" if self._first(document) and returns else record.state
        if not self._first(document):
            return "candidate"
        ready = (
            record.provisional >= sustain
            and self.order[0] == document
            and self._has_quorum(document)
            and self._beats(document, NONE, self.rules["over_none"])
            and self._unbeaten(document)
            and (self.incumbent is None or record.ahead >= sustain)
        )
        return "consensus" if ready else "provisional"

    # -- §7, the transcript

    def changed(self) -> bool:
        """Return whether the topic is decided: something changed in it since the epoch before."""
        before, after = self.old, self.memory.documents()
        if self.transitions or any(bool(r.suspect) != bool(before.get(d, Record()).suspect) for d, r in after.items()):
            return True
        if all(record.state == "published" for record in self.records.values()):
            return False
        reports = [*self.electorate.agreed[self.topic], *self.electorate.failed[self.topic]]
        active = {name for report, pair in reports if report.epoch == self.now for name in pair}
        ballots = self.electorate.facts.ballots.get(self.topic, {}).items()
        voters = {self.electorate.principal(did) for did, ballot in ballots if ballot.cast == self.now}
        active |= {name for name in self.weights if name in voters}
        weight = sum(self.weights.get(name, 0) for name in active)
        is_news: bool = weight > 0 and self.rules["candidate_share"] * weight >= sum(self.weights.values())
        return bool(active) if self.v2 else is_news

    def states(self) -> list[list[str]]:
        """Return the states that the decision lists."""
        spoken = [self.speak(document) for document in self.candidates]
        left = [[t["hash"], t["to"]] for t in self.transitions if t["hash"] not in spoken]
        return [[document, self.records[line].state] for line, document in zip(self.candidates, spoken, strict=True)] + left

    def _lacking(self, document: str) -> Iterator[tuple[str, int, int, str | None]]:
        """Yield the conditions that a candidate may lack: name, value, needed value, opponent."""
        rules, record = self.rules, self.records[document]
        half = -(-self.quorum[document] // rules["provisional_share"])
        against = self.votes_for(NONE, document)
        if record.state == "consensus":
            yield "provisional-quorum", self.support[document], half, None
            yield "majority-over-none", self.votes_for(document, NONE), against, NONE
            return
        first = "schulze-place", -1 - self.order.index(document), -1, self.order[0]
        held = "provisional-epochs", record.provisional, rules["sustain_epochs"], None
        quorum = "quorum", self.support[document], self._needed(self.quorum[document]), None
        lead = "ratio-over-none", self.votes_for(document, NONE), least_to_beat(against, rules["over_none"]), NONE
        if self.v2:
            yield first
            yield "provisional-quorum", self.support[document], half, None
            yield "majority-over-none", self.votes_for(document, NONE), against + 1, NONE
        yield from (held, quorum, lead) if self.v2 else (quorum, lead, held, first)
        lacks = [(needed - self.votes_for(document, other), needed, other) for other, needed in self._needed_against(document)]
        if lacks:  # the one that lacks most, of equal ones the first
            lack, needed, other = max(lacks, key=lambda entry: entry[0])
            yield "unbeaten", needed - lack, needed, other
        if self.consensus:
            needed = least_to_beat(self.votes_for(self.consensus, document), rules["over_incumbent"])
            yield "ratio-over-incumbent", self.votes_for(document, self.consensus), needed, self.consensus
            yield "ahead-epochs", record.ahead, rules["sustain_epochs"], self.consensus

    def _outside(self, document: str) -> Iterator[tuple[str, int, int, str | None]]:
        """Yield the conditions that a document outside the field may lack."""
        yield "published", int(document in self.published), 1, None
        yield "pairs", self.pairs.get(document, 0), self.rules["candidate_pairs"], None
        yield "clusters", self.clusters.get(document, 0), self.rules["candidate_clusters"], None
        needed = -(-self._against(document) // self.rules["candidate_share"])
        yield "reporter-weight", self.reporters.get(document, 0), needed, None
        if document in self.rejected:
            place = self.queue.index(document) + 1 + (self.incumbent is not None)
            yield "field", -place, -self.rules["max_candidates"], None

    def _numbers(self, document: str) -> dict[str, Any]:
        return {
            "hash": self.speak(document),
            "pairs": self.pairs.get(document, 0),
            "clusters": self.clusters.get(document, 0),
            "weight": str(self.reporters.get(document, 0)),
            "approval": str(self.approval[document]),
        }

    def _candidate(self, document: str) -> dict[str, Any]:
        if self.v2:
            return self._figures(document)
        voters = {vote.principal for vote in self.votes if vote.weight and document in vote.over_none()}
        quorums = [str(self._needed(both[document])) for both in (self.quorum, self.opposing)]
        more = {"voters": len(voters), "quorum": quorums[0], "opposing_quorum": quorums[1]}
        if self.speak(document) != document:
            more["line"] = document
        if document in self.users:
            more["versions"] = [[version, str(weight)] for version, weight in self.users[document].items()][-VERSIONS:]
        return {**self._figures(document), **more}

    def _figures(self, document: str) -> dict[str, Any]:
        return {
            **self._numbers(document),
            **vars(self.records[document]),
            "index": self.published[document],
            "support": str(self.support[document]),
            "opposition": str(self.opposition[document]),
            "missing": missing(self._lacking(document), self.speak),
        }

    def transcript(self, frame: dict[str, Any]) -> dict[str, Any]:
        """Return the transcript; `frame` has the members that do not follow from the count."""
        former = {d: r.state for d, r in self.records.items() if r.state in ("dormant", "superseded", "repealed")}
        others = {*self.published, *self.pairs} - {*self.candidates, *former, *self.rejected}
        nominees = [d for d in [*self.rejected, *sorted(others, key=self._rank)] if d not in former][
            : self.rules["max_candidates"]
        ]
        voices = sorted(self.voices, key=lambda voice: (-int(voice["counts"]), voice["principal"]))
        made = {
            **frame,
            "topic": self.topic,
            "weights": digest(jcs(sorted([name, str(weight)] for name, weight in self.weights.items()))),
            "ballots": {"explicit": self.explicit, "implied": self.implied},
            "total": str(self.total),
            **self._turnout(),
            "voices": voices[:VOICES],
            "candidates": [self._candidate(document) for document in self.candidates],
            "pairwise": [[str(votes) for votes in row] for row in self.pairwise],
            "order": [*map(self.speak, self.order)],
            "ties": [{**tie, "tied": [*map(self.speak, tie["tied"])], "chosen": self.speak(tie["chosen"])} for tie in self.ties],
            "nominees": [{**self._numbers(d), "missing": missing(self._outside(d), self.speak)} for d in nominees],
            "former": sorted([self.speak(d), state] for d, state in former.items() if d not in self.candidates),
            "transitions": self.transitions,
            "consensus": self.speak(self.consensus) if self.consensus else None,
            "previous": self.electorate.facts.newest_decision.get(self.topic),
        }
        return {name: value for name, value in made.items() if value is not None}

    def _turnout(self) -> dict[str, Any]:
        if self.v2:
            cap_ = -(-self.total // (self.rules["quorum_share"] * self.rules["cluster_share"]))
            return {"cap": str(cap_), "quorum": str(self.rules["cluster_share"] * cap_)}
        weighing = [self.electorate.weight, self.weights]
        roll, topic = ([len(weights), str(sum(weights.values()))] for weights in weighing)
        return {"turnout": {"roll": roll, "topic": topic, "votes": [len(self.voices), str(self.total)]}}

    def reach(self) -> tuple[int, int]:
        """Return the sums of w · w' over the pairs that both speak the consensus, and over all pairs in the topic (§7)."""
        everyone = {name for _, pair in self.electorate.recent(self.topic) for name in pair}
        able = {name for report, pair in self._reports(recent=True) if report.document == self.consensus for name in pair}
        both = ([self.weights.get(name, 0) for name in names] for names in (able, everyone))
        able_, pairs = ((sum(weights) ** 2 - sum(weight**2 for weight in weights)) // 2 for weights in both)
        return able_, pairs


def shared_support(weights: list[int], share: int) -> int:
    """Return share · κ for the largest κ with Σ min(w, κ) ≥ share · κ (§5)."""
    low, high = 0, sum(weights) // share
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(weight, middle) for weight in weights) >= share * middle:
            low = middle
        else:
            high = middle - 1
    return share * low


def least_to_beat(votes: int, ratio: list[int]) -> int:
    """Return the least x > 0 that beats `votes` by the ratio a : b, that is b · x ≥ a · votes (§5)."""
    return max(1, -(-ratio[0] * votes // ratio[1]))


def missing(conditions: Iterable[tuple[str, int, int, str | None]], speak: Callable[[str], str]) -> list[dict[str, str]]:
    """Return the conditions that do not hold. Places are given as negative numbers, as a smaller one is better."""
    return [
        {"condition": name, "has": str(abs(has)), "needs": str(abs(needs)), **({"against": speak(against)} if against else {})}
        for name, has, needs, against in conditions
        if has < needs
    ]


# ---------------------------------------------------------------------------------------------------------------- standing, §9


@dataclass(frozen=True)
class Claim:
    """A report that waits for an independent one. `about`: topic and document; `earlier`: k."""

    about: tuple[str, str]
    index: int
    epoch: int
    pair: tuple[str, str]
    earlier: int


@dataclass(frozen=True)
class Credit:
    """An earned credit. `shared`: j."""

    principal: str
    reason: str
    claim: Claim
    amount: int
    partner: str
    shared: int
    epoch: int

    def entry(self) -> dict[str, Any]:
        """Return the credit as the roll has it."""
        topic, document = self.claim.about
        who = {"principal": self.principal, "with": self.partner, "shared": self.shared, "earlier": self.claim.earlier}
        what = {"amount": str(self.amount), "reason": self.reason, "topic": topic, "document": document}
        return {**who, **what, "index": self.claim.index}


class Ledger:
    """The standing of all principals, from epoch to epoch."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self.credits: dict[tuple[str, tuple[str, str], str], Credit] = {}  # the live one by reason, about, principal
        self.shared: Counter[tuple[str, str]] = Counter()
        self.clusters: dict[tuple[str, str], set[str]] = {}

    def close(self, electorate: Electorate, elected: dict[str, str]) -> list[Credit]:
        """Close an epoch; return the credits that it adds, in their order. `elected`: topic → new consensus."""
        rules, now, weight = electorate.rules["credit"], electorate.now, electorate.weight
        since = electorate.since
        self.credits = {
            k: c for k, c in self.credits.items() if fading(now - c.epoch, electorate.horizon) and c.epoch > since(c.principal)
        }
        self.claims = [claim for claim in self.claims if claim.epoch > max(map(since, claim.pair))]
        fresh: dict[tuple[str, str], list[Claim]] = defaultdict(list)
        for topic, reports in electorate.agreed.items():
            for report, pair in reports:
                if report.epoch == now:
                    about = topic, report.document
                    fresh[about].append(Claim(about, report.index, now, pair, len(self.clusters.get(about, ()))))
        waiting = [c for c in self.claims if now - c.epoch < rules["epochs"] and all(name in weight for name in c.pair)]
        waiting = self._unpaid([*waiting, *(claim for claims in fresh.values() for claim in claims)])
        earned: list[Credit] = []
        self.claims = []
        for claim in sorted(waiting, key=lambda claim: (claim.about, claim.index)):
            sides = {electorate.cluster[name] for name in claim.pair}
            independent = (c.pair for c in fresh[claim.about] if not sides & {electorate.cluster[name] for name in c.pair})
            corroborators = next(independent, None)
            if corroborators is None:
                self.claims.append(claim)
                continue
            for name in claim.pair:
                if ("reported", claim.about, name) not in self.credits:
                    partner = min(corroborators, key=lambda other: (-self.shared[name, other], other))
                    earned.append(self._earn(electorate, name, "reported", claim, ONE // rules["report_share"], partner))
        self.claims = self._unpaid(self.claims)
        for about in sorted(elected.items()):
            for held in [credit for key, credit in sorted(self.credits.items()) if key[:2] == ("reported", about)]:
                name, amount = held.principal, ONE >> held.claim.earlier
                if ("elected", about, name) not in self.credits and name in weight:
                    earned.append(self._earn(electorate, name, "elected", held.claim, amount, held.partner))
        for about, claims in fresh.items():
            names = {electorate.cluster[name] for claim in claims for name in claim.pair}
            self.clusters.setdefault(about, set()).update(names)
        needed = {claim.about for claim in self.claims} | {about for reason, about, _ in self.credits if reason == "reported"}
        self.clusters = {about: names for about, names in self.clusters.items() if about in needed}
        return earned

    def _unpaid(self, claims: list[Claim]) -> list[Claim]:
        """Return the claims of which at least one principal does not hold the credit."""
        return [claim for claim in claims if any(("reported", claim.about, name) not in self.credits for name in claim.pair)]

    def _earn(self, electorate: Electorate, name: str, reason: str, claim: Claim, amount: int, partner: str) -> Credit:
        pairs, shared = electorate.rules["credit"]["pairs"], self.shared[name, partner]
        self.shared[name, partner] += 1
        credit = Credit(name, reason, claim, amount * pairs // (pairs + shared), partner, shared, electorate.now)
        self.credits[reason, claim.about, name] = credit
        return credit

    def standing(self, name: str, electorate: Electorate) -> int:
        """Return the standing of a principal."""
        total = sum(
            credit.amount * fading(electorate.now - credit.epoch, electorate.horizon) // ONE
            for credit in self.credits.values()
            if credit.principal == name
        )
        if not electorate.open:
            return total
        return min(electorate.trust[name], electorate.cap) * ONE // electorate.cap * total // ONE


# ------------------------------------------------------------------------------------------------------- epochs and decisions


@dataclass(frozen=True)
class Due:
    """A recomputed decision: the statement's body as far as it follows from the log, and the bytes of both blobs."""

    body: dict[str, Any]
    transcript: bytes
    roll: bytes


class Election:
    """The elections of a log: memories, counters and standing from epoch to epoch."""

    def __init__(self) -> None:
        self.topics: dict[str, Memory] = defaultdict(Memory)
        self.waiting: dict[str, int] = {}
        self.ledger = Ledger()

    def close(self, facts: Facts, size: int, root: bytes, suffixes: SuffixList | None) -> list[Due]:
        """Close the open epoch: return its decisions in their order and keep the new states."""
        assert facts.parameters
        electorate = Electorate(facts, suffixes)
        counted = self._counted(electorate)
        counts = {topic: Count(electorate, topic, self.topics[topic]) for topic in counted}
        decided = [topic for topic in sorted(counts) if counts[topic].changed()]
        shown = {topic: counts[topic] for topic in decided}
        if not decided:
            every = {*facts.publications, *facts.ballots, *electorate.agreed}
            weights = {topic: electorate.topic_weight(topic) for topic in sorted(every)}
            if counted or any(weights.values()):
                topic = max(sorted(counted or every), key=lambda topic: weights[topic])
                shown = {topic: counts.get(topic) or Count(electorate, topic, self.topics[topic])}
        for topic, count in counts.items():
            self.topics[topic] = count.memory
        elected = {topic: count.elected for topic, count in counts.items() if count.elected}
        reach = [sum(sums) for sums in zip((0, 0), *(count.reach() for count in counts.values()), strict=True)]
        roll = self._roll(electorate, self.ledger.close(electorate, elected), reach)
        where = {"size": size, "root": root.hex()}
        return [self._due(shown[topic], where, roll, left) for left, topic in zip(range(len(shown))[::-1], shown, strict=True)]

    def _counted(self, electorate: Electorate) -> list[str]:
        found = []
        for topic in {*electorate.facts.publications, *self.topics}:
            pairs: dict[str, set[tuple[str, str]]] = defaultdict(set)
            lines = {} if electorate.v2 else electorate.facts.lines.get(topic, {})
            for report, pair in electorate.recent(topic):
                pairs[lines.get(report.document, report.document)].add(pair)
            published = electorate.facts.publications.get(topic, {})
            enough = any(len(pairs[d]) >= electorate.rules["candidate_pairs"] for d in published)
            if enough or any(record.state != "published" for record in self.topics[topic].records.values()):
                found.append(topic)
        heaviest = sorted(found, key=lambda topic: (-electorate.topic_weight(topic), topic))
        half = COUNTED_TOPICS // (1 if electorate.v2 else 2)
        longest = sorted(heaviest[half:], key=lambda topic: self.waiting.get(topic, electorate.now))  # stable
        counted = heaviest[:half] + longest[: COUNTED_TOPICS - half]
        left = {topic: self.waiting.get(topic, electorate.now) for topic in {*found} - {*counted}}
        self.waiting = {} if electorate.v2 else left
        return counted

    def _roll(self, electorate: Electorate, earned: list[Credit], reach: list[int]) -> bytes:
        assert electorate.facts.parameters
        principals = []
        for name, weight in sorted(electorate.weight.items()):
            trust, age = (electorate.trust[name], electorate.age(name)) if electorate.open else (0, 0)
            standing = self.ledger.standing(name, electorate)
            principals.append([name, electorate.cluster[name], str(trust), str(weight), age, str(standing)])
        heaviest = within(sorted(principals, key=lambda row: (-int(row[3]), row[0])), ROLL_PRINCIPALS)
        credits_ = [credit.entry() for credit in earned]
        listed = within(credits_, ROLL_CREDITS)
        omitted = {"principals": len(principals) - len(heaviest), "credits": len(credits_) - len(listed)}
        roll = {
            "epoch": electorate.now,
            "electorate": electorate.rules["electorate"],
            "parameters": electorate.facts.parameters[0],
            "cap": str(electorate.cap),
            "principals": sorted(heaviest, key=lambda row: row[0]),
            "credits": listed,
        }
        if any(omitted.values()):
            roll["omitted"] = omitted
        if not electorate.v2:
            roll["reach"] = {"able": str(reach[0]), "pairs": str(reach[1])}
        return jcs(roll)

    def _due(self, count: Count, where: dict[str, Any], roll: bytes, remaining: int) -> Due:
        electorate = count.electorate
        facts, rules = electorate.facts, electorate.rules
        assert facts.parameters
        head = {
            "rule": rules["rule"],
            "electorate": rules["electorate"],
            "epoch": electorate.now,
            "parameters": facts.parameters[0],
            "input": where,
        }
        frame = {**head, "identities": digest(jcs(sorted([did, one.id] for did, one in facts.identities.items())))}
        if electorate.open:
            frame["anchors"] = digest(jcs(sorted(rules["reputation"]["anchors"])))
            frame["suffixes"] = rules["reputation"]["suffix_list"]["sha256"]
        transcript = jcs(count.transcript(frame))
        body = {
            **head,
            "topic": count.topic,
            "remaining": remaining,
            "transcript": {"sha256": digest(transcript), "size": len(transcript)},
            "roll": {"sha256": digest(roll), "size": len(roll)},
            "states": count.states(),
            "consensus": count.speak(count.consensus) if count.consensus else None,
            "previous": facts.newest_decision.get(count.topic),
        }
        return Due({name: value for name, value in body.items() if value is not None}, transcript, roll)


def within(entries: list[Any], room: int) -> list[Any]:
    """Return the first entries whose canonical JSON, each with a comma, fits into so many bytes."""
    for number, entry in enumerate(entries):
        room -= len(jcs(entry)) + 1
        if room < 0:
            return entries[:number]
    return entries


# -------------------------------------------------------------------------------------------------------------- the comparison


@dataclass
class Finding:
    """The outcome for one decision, or for a leaf that breaks a rule."""

    leaf: int
    outcome: str
    topic: str = ""
    epoch: int = 0
    consensus: str | None = None
    details: list[dict[str, Any]] = field(default_factory=list)

    def line(self) -> str:
        """Return the finding as lines of text."""
        if not self.topic:
            return f"leaf {self.leaf}: {self.outcome}: {self.details[0]['path']}"
        text = f"leaf {self.leaf}: {self.topic} epoch {self.epoch}: consensus {self.consensus or NONE}: {self.outcome}"
        for detail in self.details:
            values = f": logged {shown(detail.get('logged'))}, recomputed {shown(detail.get('recomputed'))}"
            text += f"\n  {detail['part']} {detail['path']}{values if 'logged' in detail else ''}"
        return text


def shown(value: Any) -> str:
    """Return a value in one short line."""
    text = "absent" if value is None else jcs(value).decode()
    return text if len(text) <= 200 else f"{text[:200]}…"


def differences(logged: Any, recomputed: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each place in which two values differ: its path and both values."""
    if isinstance(logged, dict) and isinstance(recomputed, dict):
        for name in sorted(logged.keys() | recomputed.keys()):
            yield from differences(logged.get(name), recomputed.get(name), f"{path}.{name}" if path else name)
    elif isinstance(logged, list) and isinstance(recomputed, list):
        for number in range(max(len(logged), len(recomputed))):
            one, other = ((side[number] if number < len(side) else None) for side in (logged, recomputed))
            yield from differences(one, other, f"{path}[{number}]")
    elif logged != recomputed or type(logged) is not type(recomputed):
        yield path, logged, recomputed


class Check:
    """Replay a log: `append` takes the leaves in order, `findings` has an entry for each decision and each broken rule."""

    def __init__(self, key: Verifier, blob: Callable[[str, int], bytes]) -> None:
        self.facts = Facts(key)
        self.tree = Tree()
        self.election = Election()
        self.findings: list[Finding] = []
        self.due: list[Due] = []
        self._blob = blob
        self._suffixes: dict[str, SuffixList] = {}
        self._rolls: dict[str, bytes] = {}

    def append(self, leaf: bytes) -> None:
        """Add a leaf. Raises Unreadable if the elections cannot go on: a suffix list is missing."""
        index = self.tree.size
        try:
            statement = read_leaf(leaf, index)
            if statement and statement.kind == "decision":
                self._decision(statement)
            elif statement:
                self.facts.append(statement)
        except BrokenRule as error:
            self.findings.append(Finding(index, "broken", details=[{"part": "leaf", "path": str(error)}]))
        self.tree.append(leaf)

    def open_epoch(self) -> list[Due]:
        """Return the decisions that would close the open epoch now. The check cannot be continued after it."""
        return self._close()

    def _close(self) -> list[Due]:
        need(self.facts.parameters, "no parameters are in force")
        try:
            return self.election.close(self.facts, self.tree.size, self.tree.root(), self._suffix_list())
        except (*MALFORMED, ZeroDivisionError) as error:
            raise Unreadable(f"the parameters or the suffix list are malformed: {error!r}") from error

    def _suffix_list(self) -> SuffixList | None:
        assert self.facts.parameters
        if self.facts.parameters[1]["electorate"] != "open":
            return None
        name = self.facts.parameters[1]["reputation"]["suffix_list"]["sha256"]
        if name not in self._suffixes:
            try:
                data = self._blob(name, CAPS["suffixes"])
            except Missing as error:
                raise Unreadable(f"the suffix list {name} is missing: {error}") from error
            if digest(data) != name:
                raise Unreadable(f"the bytes of the suffix list {name} are others")
            self._suffixes[name] = SuffixList(data)
        return self._suffixes[name]

    def _decision(self, statement: Statement) -> None:
        facts, body = self.facts, statement.body
        first = not facts.closing
        facts.append(statement)
        if first:
            self.due = self._close()
        finding = Finding(statement.index, "ok", body["topic"], body["epoch"], body.get("consensus"))
        self.findings.append(finding)
        if self.due:
            self._compare(body, self.due.pop(0), finding)
        else:
            finding.outcome = "different"
            finding.details.append({"part": "statement", "path": "no decision was due"})
        facts.newest_decision[body["topic"]] = statement.id
        facts.closing = ["open"] if body["remaining"] else []
        if not facts.closing:
            for due in self.due:
                finding.outcome = "different"
                path = f"the decision of {due.body['topic']} is not in the log"
                finding.details.append({"part": "statement", "path": path})
            facts.open_next_epoch()
            self._rolls.clear()

    def _compare(self, body: dict[str, Any], due: Due, finding: Finding) -> None:
        """Compare a logged decision with the recomputed one, part by part."""

        def note(part: str, path: str, **values: Any) -> None:
            finding.details.append({"part": part, "path": path, **values})
            finding.outcome = "different" if part != "missing" else finding.outcome if finding.details[1:] else "missing"

        logged = {**body, "input": {name: value for name, value in body["input"].items() if name != "witnessed"}}
        for path, one, other in differences(logged, due.body):
            note("statement", path, logged=one, recomputed=other)
        if fault := self._witnesses_fault(body["input"]):
            note("statement", f"input.witnessed: {fault}")
        for part, recomputed in (("roll", due.roll), ("transcript", due.transcript)):
            name = body[part]["sha256"]
            try:
                served = self._rolls.get(name) or self._blob(name, CAPS[part])
            except (Missing, Unreadable) as error:
                note("missing", f"{part} {name}: {error}")
                continue
            if part == "roll":
                self._rolls = {name: served}
            if digest(served) != name or len(served) != body[part]["size"]:
                note(part, "the served bytes are not those that the decision names")
            elif served != recomputed:
                try:
                    path, one, other = next(differences(parse(served), json.loads(recomputed)))
                    note(part, path, logged=one, recomputed=other)
                except BrokenRule as error:
                    note(part, str(error))

    def _witnesses_fault(self, where: dict[str, Any]) -> str | None:
        """Return why the cosignatures of a decision's input are not those that the parameters ask for, or None."""
        assert self.facts.parameters
        rule = self.facts.parameters[1].get("witnesses")
        if not rule or "witnessed" not in where:
            return None if not rule and "witnessed" not in where else "is there although not asked for, or the reverse"
        note = where["witnessed"].encode()
        text = f"{self.facts.origin}\n{where['size']}\n{base64.b64encode(bytes.fromhex(where['root'])).decode()}\n\n"
        keys = [Verifier.read(key) for key in rule["keys"]]
        if not note.startswith(text.encode()):
            return "is no checkpoint of the input"
        times = sorted((at for key in keys if (at := key.time(note)) is not None), reverse=True)
        if len(times) < rule["quorum"]:
            return "has too few cosignatures"
        ahead = self.facts.clock - times[rule["quorum"] - 1] > AHEAD and self.facts.parameters[1]["rule"] != RULES[0]
        return f"the log's clock is over {AHEAD} seconds ahead of it" if ahead else None


# ---------------------------------------------------------------------------------------------------------- HTTP and the command


class Client:
    """Read a log over HTTP. Every answer has a cap and every silence a timeout; redirects are not followed."""

    def __init__(self, base: str) -> None:
        if not base.startswith(("http://", "https://")):
            raise Unreadable(f"{base!r} is no URL of a log")
        self.base = base.rstrip("/")
        self._opener = urllib.request.build_opener(NoRedirects)

    def get(self, path: str, most: int) -> bytes:
        """Return the body at a path. Raises Missing with a 404 or 410, Unreadable for any other failure."""
        request = urllib.request.Request(f"{self.base}{path}", headers={"Accept-Encoding": "identity"})  # noqa: S310
        try:
            data, end = b"", time.monotonic() + DEADLINE
            with self._opener.open(request, timeout=TIMEOUT) as answer:
                while (part := answer.read1(2**20)) and len(data) <= most:
                    data += part
                    if time.monotonic() > end:
                        raise Unreadable(f"{path}: the answer takes too long")
        except urllib.error.HTTPError as error:
            if error.code in (404, 410):
                raise Missing(f"the registry answers {error.code}") from error
            raise Unreadable(f"{path}: {error}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreadable(f"{path}: {error}") from error
        if len(data) > most:
            raise Unreadable(f"{path}: the answer is larger than {most} bytes")
        return data

    def blob(self, name: str, most: int) -> bytes:
        """Return a blob's bytes, unchecked."""
        return self.get(f"/blobs/sha256/{name}", most)

    def leaves(self, size: int) -> Iterator[bytes]:
        """Yield all leaves below a size, from the entry bundles."""
        for number in range(-(-size // 256)):
            width = min(256, size - 256 * number)
            digits = f"{number:03}".rjust(-(-len(f"{number:03}") // 3) * 3, "0")
            groups = [digits[start : start + 3] for start in range(0, len(digits), 3)]
            path = "/tile/entries/" + "/".join([*(f"x{group}" for group in groups[:-1]), groups[-1]])
            try:
                data = self.get(path + (f".p/{width}" if width < 256 else ""), CAPS["entries"])
                for _ in range(width):
                    (length,) = struct.unpack_from(">H", data)
                    if len(data) < length + 2:
                        raise Unreadable(f"{path} breaks off")
                    yield data[2 : length + 2]
                    data = data[length + 2 :]
            except (Missing, struct.error) as error:
                raise Unreadable(f"{path}: {error}") from error


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: urllib then raises the answer as an error."""

    def redirect_request(self, *_: Any) -> None:
        """Make no second request."""


def verify(leaves: Iterable[bytes], blob: Callable[[str, int], bytes], key: str, root: bytes | None = None) -> list[Finding]:
    """Check leaves without HTTP.

    `blob` returns the bytes of a digest, at most so many, or raises Missing. `root` is that of a verified checkpoint.
    Raises Unreadable when the leaves do not have the root. Without a suffix list the findings end with an unreadable one.
    """
    check = Check(Verifier.read(key), blob)
    entries = list(leaves)
    if root is not None:
        tree = Tree()
        for leaf in entries:
            tree.append(leaf)
        if tree.root() != root:
            raise Unreadable("the leaves do not have the root of the checkpoint")
    try:
        for leaf in entries:
            check.append(leaf)
    except Unreadable as error:
        check.findings.append(Finding(check.tree.size, "unreadable", details=[{"part": "leaf", "path": str(error)}]))
    return check.findings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description="Check every election of a Treaty log without any code of Treaty.")
    parser.add_argument("url", help="the log's base URL")
    parser.add_argument("key", help="the log's verifier key; a registry's name is URL#KEY")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each decision")
    given = parser.parse_args(arguments)
    try:
        client = Client(given.url)
        size, root = checkpoint(client.get("/checkpoint", CAPS["checkpoint"]), Verifier.read(given.key))
        findings = verify(client.leaves(size), client.blob, given.key, root)
    except (Unreadable, Missing) as error:
        print(json.dumps({"unreadable": str(error)}) if given.json else f"unreadable: {error}", file=sys.stderr)
        return 2
    for finding in findings:
        print(json.dumps(vars(finding)) if given.json else finding.line())
    # On the error stream, so that the lines of the output are findings alone.
    print(f"{len(findings)} findings in {size} leaves", file=sys.stderr)
    outcomes = {finding.outcome for finding in findings}
    return 1 if outcomes & {"different", "broken"} else 2 if outcomes & {"missing", "unreadable"} else 0


if __name__ == "__main__":
    sys.exit(main())
