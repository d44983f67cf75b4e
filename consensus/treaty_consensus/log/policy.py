"""Read, write and apply C2SP tlog-policy files: logs, witnesses, and a quorum of nested groups of witnesses.

    log VKEY [URL]
    witness NAME VKEY [URL]
    group NAME all|any|K NAME…         a group has witnessed when K of its members have; any is 1, all is their number
    quorum NAME|none

Items are separated by spaces and tabs; `#` begins a comment line. Names are opaque octets, here as text of Latin-1, so that each
octet is one character. A group names only members defined above it, and every name is a member of one group at most.

A witness with keys of two types has two lines, whose keys have one name. It counts once: a group that needs several members has
such keys in one of them at most. Put them into a group of `any`. Where there are `log` lines, only checkpoints of these logs
hold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from ..canonical import parse_decimal
from ..codes import WitnessCode
from ..errors import Malformed, TooLarge, TreatyError
from .checkpoint import Checkpoint
from .note import KeyType, VerifierKey, open_note, text_of
from .witness import Quorum, not_witnessed

MAX_POLICY = 512 * 1024
"""Bytes of a policy file: 128 witnesses with keys of ML-DSA-44."""
MAX_LINES = 128
"""Logs, witnesses and groups, of each kind. C2SP recommends 32 at least."""
NONE = "none"

_ITEM = re.compile(r"[^ \t]+")
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class PolicyLog:
    """A log of a policy."""

    key: VerifierKey
    url: str | None = None


@dataclass(frozen=True)
class PolicyWitness:
    """A witness of a policy. `name`: its name in the file alone."""

    name: str
    key: VerifierKey
    url: str | None = None


@dataclass(frozen=True)
class Group:
    """A group of witnesses and groups, of which `needed` must have cosigned."""

    name: str
    needed: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class WitnessPolicy:
    """A policy: the checkpoints of any of `logs` hold that `quorum` has cosigned. `logs`: none for every log. `quorum`: a name,
    or None for no cosignature.

    Raises `Malformed` (`witness.policy`) for names that are not defined above, repeated or impossible, for repeated keys, and for
    a witness that would count twice.
    """

    logs: tuple[PolicyLog, ...] = ()
    witnesses: tuple[PolicyWitness, ...] = ()
    groups: tuple[Group, ...] = ()
    quorum: str | None = None

    def __post_init__(self) -> None:
        if max(len(self.logs), len(self.witnesses), len(self.groups)) > MAX_LINES:
            raise _bad(f"it has more than {MAX_LINES} logs, witnesses or groups")
        for kind, keys in ("log", [log.key for log in self.logs]), ("witness", self.keys):
            if len({key.public for key in keys}) != len(keys):
                raise _bad(f"two lines of a {kind} have the same public key")
        if any(log.key.type != KeyType.ED25519 for log in self.logs) or not all(key.type.has_time for key in self.keys):
            raise _bad("the key of a log has type 1, and the key of a witness type 4 or 6")
        names = [*(witness.name for witness in self.witnesses), *(group.name for group in self.groups)]
        if len(set(names)) != len(names) or NONE in names or not all(map(_is_name, names)):
            raise _bad("a name is defined twice, or cannot be one")
        defined, members = {witness.name for witness in self.witnesses}, set[str]()
        for group in self.groups:
            if not defined.issuperset(group.members) or len(set(group.members)) != len(group.members):
                raise _bad(f"the group {group.name} has a member twice, or one that is not defined above it")
            if not members.isdisjoint(group.members):
                raise _bad(f"a member of the group {group.name} is in another group already")
            if not 1 <= group.needed <= len(group.members):
                raise _bad(f"the group {group.name} needs another number of members than it has")
            members.update(group.members)
            defined.add(group.name)
        if self.quorum is not None and self.quorum not in defined:
            raise _bad("the quorum is not defined above it")
        self._check_counted_once()

    def _check_counted_once(self) -> None:
        # The witnesses below each name, by the names of their keys: one operator signs with all keys of a name.
        below = {witness.name: {witness.key.name} for witness in self.witnesses}
        for group in self.groups:
            parts = [below[member] for member in group.members]
            below[group.name] = set().union(*parts)
            if group.needed > 1 and sum(map(len, parts)) > len(below[group.name]):
                raise _bad(f"the group {group.name} would count two keys of one witness; put them into a group of any")

    @classmethod
    def of(cls, quorum: Quorum, logs: Sequence[PolicyLog] = ()) -> WitnessPolicy:
        """Return the policy that asks for a plain quorum."""
        witnesses = tuple(PolicyWitness(key.name.encode().decode("latin-1"), key) for key in quorum.keys)
        group = Group("witnesses", quorum.needed, tuple(witness.name for witness in witnesses))
        return cls(tuple(logs), witnesses, (group,), group.name)

    @classmethod
    def parse(cls, data: bytes) -> WitnessPolicy:
        """Read a policy file. Raises `TooLarge` or `Malformed` (`witness.policy`, `note.*`), which name the line."""
        if len(data) > MAX_POLICY:
            raise TooLarge(WitnessCode.POLICY, f"A policy has at most {MAX_POLICY} bytes.")
        text = data.decode("latin-1")
        if _FORBIDDEN.search(text) or not text.endswith("\n"):
            raise _bad("it has control characters, or does not end in a newline")
        draft = _Draft()
        for number, line in enumerate(text[:-1].split("\n"), 1):
            items = _ITEM.findall(line)
            if not items or items[0].startswith("#"):
                continue
            try:
                draft.add(*items)
            except (TreatyError, TypeError, ValueError, KeyError) as error:
                detail = f": {error.message.rstrip('.')}" if isinstance(error, TreatyError) else ""
                raise _bad(f"line {number} is not one of log, witness, group or quorum in its form{detail}") from error
        if draft.quorum is None:
            raise _bad("it has no quorum line")
        return cls(tuple(draft.logs), tuple(draft.witnesses), tuple(draft.groups), None if draft.quorum == NONE else draft.quorum)

    def format(self) -> bytes:
        """Return the policy file; the inverse of `parse`."""
        lines = [
            *(_line("log", _octets(str(log.key)), log.url) for log in self.logs),
            *(_line("witness", each.name, _octets(str(each.key)), each.url) for each in self.witnesses),
            *(_line("group", group.name, str(group.needed), *group.members) for group in self.groups),
            _line("quorum", self.quorum or NONE),
        ]
        return "".join(lines).encode("latin-1")

    @property
    def keys(self) -> tuple[VerifierKey, ...]:
        """Return the keys of all witnesses."""
        return tuple(witness.key for witness in self.witnesses)

    def holds(self, cosigned: Sequence[VerifierKey]) -> bool:
        """Tell whether cosignatures by these keys are enough."""
        have = {witness.name for witness in self.witnesses if witness.key in cosigned}
        # In their order: a group has only members above it.
        for group in self.groups:
            if sum(member in have for member in group.members) >= group.needed:
                have.add(group.name)
        return self.quorum is None or self.quorum in have

    def check(self, note: bytes, checkpoint: Checkpoint, *, since: int = 0, until: float = math.inf) -> None:
        """Check that enough witnesses cosigned exactly `checkpoint`, as `Quorum.check` does."""
        # A cosignature of another head proves nothing about this one.
        if text_of(note) != checkpoint.format():
            raise not_witnessed("it is the note of another checkpoint")
        if self.logs:
            try:
                open_note(note, [log.key for log in self.logs])
            except TreatyError as error:
                raise not_witnessed(f"{checkpoint.origin} is signed by none of the logs that the policy names") from error
        if self.quorum is None:
            return
        try:
            signatures = open_note(note, self.keys).signatures
        except TreatyError as error:
            raise not_witnessed("no witness cosigned it, or the signature of one does not verify") from error
        recent = [each.key for each in signatures if each.time is not None and since <= each.time <= until]
        if not self.holds(recent):
            old = " recently" if since else ""
            raise not_witnessed(f"{len(recent)} of {len(self.keys)} witnesses cosigned it{old}, which is not the quorum")

    @cached_property
    def by_name(self) -> Mapping[str, PolicyWitness]:
        """Return the witnesses by their names."""
        return {witness.name: witness for witness in self.witnesses}


WitnessRule: TypeAlias = Quorum | WitnessPolicy
"""The witnesses that must have cosigned a checkpoint."""


@dataclass
class _Draft:
    logs: list[PolicyLog] = field(default_factory=list)
    witnesses: list[PolicyWitness] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    quorum: str | None = None

    def add(self, keyword: str, *items: str) -> None:
        adders: dict[str, Callable[..., None]] = {
            "log": self._log,
            "witness": self._witness,
            "group": self._group,
            "quorum": self._quorum,
        }
        adders[keyword](*items)

    def _log(self, key: str, url: str | None = None) -> None:
        self.logs.append(PolicyLog(_key(key), url))

    def _witness(self, name: str, key: str, url: str | None = None) -> None:
        self._check_new(name)
        self.witnesses.append(PolicyWitness(name, _key(key), url))

    def _group(self, name: str, needed: str, *members: str) -> None:
        self._check_new(name)
        # Defined above: the order of witnesses and groups is lost later.
        if not members or not self._names.issuperset(members):
            raise ValueError("a member is not defined above")
        words = {"any": 1, "all": len(members)}
        self.groups.append(Group(name, words.get(needed) or parse_decimal(needed, limit=MAX_LINES), members))

    def _quorum(self, name: str) -> None:
        if self.quorum is not None or (name != NONE and name not in self._names):
            raise ValueError("there are two, or the name is not defined above")
        self.quorum = name

    def _check_new(self, name: str) -> None:
        if name == NONE or name in self._names:
            raise ValueError("the name is taken")

    @property
    def _names(self) -> set[str]:
        return {witness.name for witness in self.witnesses} | {group.name for group in self.groups}


def _key(octets: str) -> VerifierKey:
    return VerifierKey.parse(octets.encode("latin-1").decode("utf-8"))


def _octets(text: str) -> str:
    return text.encode().decode("latin-1")


def _line(*items: str | None) -> str:
    return " ".join(item for item in items if item is not None) + "\n"


def _is_name(name: str) -> bool:
    return _ITEM.fullmatch(name) is not None and _FORBIDDEN.search(name) is None and "\n" not in name


def _bad(why: str) -> Malformed:
    return Malformed(WitnessCode.POLICY, f"This is not a policy (C2SP tlog-policy): {why}.")
