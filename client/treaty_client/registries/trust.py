"""Store the trusted registries with their keys, and the newest checkpoint seen of each: HOME/registries.json.

A registry is named `BASE_URL#VKEY`: its URL, and the verifier key of its log (C2SP signed-note), whose name is the log's origin.
The URL is https, or http on this machine. It need not be the origin. docs/specification/home.md specifies the file:

    {"registries": {ORIGIN: {"base_url": URL, "checkpoint"?: B64(note), "key": VKEY, "learned"?: N, "terms"?: [TERM, …],
                             "time"?: SECONDS}, …}}

A TERM is {"clock_key": VKEY, "log_key": VKEY, "since": SIZE, "until": SECONDS}: keys that a log with rotations has proved. `key`
is the newest one. `learned`: how many leaves seen.db had learned, so that its loss is noticed. `time`: the latest one of a
checkpoint.

`checkpoint` only moves forward. `advance` replaces exactly the note with which the new one was proved consistent, so two
processes cannot accept two sides of a fork. Writers take HOME/registries.lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from treaty_consensus import canonical
from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Conflict, Malformed, NotFound, Refused, Untrusted
from treaty_consensus.log.note import MAX_NOTE_BYTES, KeyType, VerifierKey
from treaty_consensus.protocol import is_origin
from treaty_io import durable
from treaty_io.base_url import parse_base_url
from treaty_io.codes import ClientRegistryCode, MemoryCode
from treaty_io.state_file import StateFile

from .signed import SIGNED, SignedIds

if TYPE_CHECKING:
    from treaty_consensus.log.checkpoint import LogKeys, SignedCheckpoint

    from .memory import SeenLeaves

MAX_FILE = 16 * 1024 * 1024
_FIX = "Put back a copy of it and of seen.db of the same moment. If there is none, move it away: treaty trust add URL#KEY"
TIME_STEP = 300
"""Seconds after which a later time alone is written: a log signs one each minute, and each write is one to the disk."""


class _Term(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    log_key: str
    clock_key: str
    since: int
    until: int


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    base_url: str
    key: str
    checkpoint: str | None = None
    terms: tuple[_Term, ...] = ()
    learned: int = 0
    time: int = 0


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    registries: dict[str, _Entry]


@dataclass(frozen=True)
class RegistryName:
    """A registry: its URL, and the key of its log. `str()` gives its full name."""

    base_url: str
    key: VerifierKey

    @property
    def origin(self) -> str:
        """The log's origin: the host of its protocols' URIs."""
        return self.key.name

    def __str__(self) -> str:
        return f"{self.base_url}#{self.key}"


@dataclass(frozen=True)
class TrustedRegistry:
    """A registry of registries.json. `seen`: the signed note of the newest checkpoint, or None. `terms`: the keys of its log, if
    it has rotated them. `learned`: how many leaves the memory had learned of it when this was written.
    `time`: the latest one that its clock signed, in Unix seconds, up to `TIME_STEP` seconds ago."""

    name: RegistryName
    seen: bytes | None
    terms: tuple[_Term, ...] = ()
    learned: int = 0
    time: int = 0

    @cached_property
    def keys(self) -> LogKeys:
        """The keys by which its checkpoints are verified. Raises `Malformed` if the file was damaged."""
        from treaty_consensus.log.checkpoint import KeyTerm, LogKeys  # the names of registries are read without checkpoints

        if not self.terms:
            return LogKeys.pinned(self.name.key)
        pairs = [(VerifierKey.parse(term.log_key), VerifierKey.parse(term.clock_key)) for term in self.terms]
        return LogKeys(tuple(KeyTerm(*pair, term.since, term.until) for pair, term in zip(pairs, self.terms, strict=True)))

    @cached_property
    def newest(self) -> SignedCheckpoint | None:
        """The checkpoint of `seen`, opened. Raises `Malformed` or `Untrusted` if the file was damaged."""
        return None if self.seen is None else self.keys.open(self.seen)


def parse_registry_name(text: str) -> RegistryName:
    """Parse `BASE_URL#VKEY`. Raises `Malformed` (`registry.url`, `note.form`)."""
    url, separator, vkey = text.partition("#")
    base_url = parse_base_url(url)
    # A key from the server itself would prove nothing about the server.
    if not separator:
        raise Malformed(
            ClientRegistryCode.URL,
            f"{base_url} names no key. Without a key no answer can be checked.",
            fix=f"Ask its operator for URL#KEY, or show the key that it presents: treaty trust add {base_url}",
        )
    key = VerifierKey.parse(vkey)
    # A cosignature key signs another form of text (C2SP tlog-cosignature), so it is no key of a log.
    if key.type != KeyType.ED25519 or not is_origin(key.name):
        raise Malformed(ClientRegistryCode.URL, "The key of a registry must be an Ed25519 key whose name is the log's origin.")
    return RegistryName(base_url, key)


class _Reading(NamedTuple):
    """The content of registries.json. `trusted`: the entries that were needed so far."""

    entries: dict[str, _Entry]
    trusted: dict[str, TrustedRegistry]


class TrustedRegistries:
    """HOME/registries.json. Safe among threads and processes; readers never wait."""

    def __init__(self, home: Path) -> None:
        # Every session asks, so that only a changed file is parsed.
        self._file = StateFile(home / "registries.json", _File, limit=MAX_FILE, code=SystemCode.STATE, fix=_FIX)
        self._lock = home / "registries.lock"
        self.evidence = home / "evidence"
        """The folder for proofs against them."""
        self.home = home
        """The folder of registries.json, and of treaty.lock."""
        self._last = _Reading({}, {})

    @cached_property
    def memory(self) -> SeenLeaves:
        """The leaves that they have proved."""
        from .memory import SeenLeaves  # here, because most commands do not need SQLite, whose import takes milliseconds

        return SeenLeaves(self.home)

    @cached_property
    def signed(self) -> SignedIds:
        """The ids of the statements that this home has signed for them."""
        return SignedIds(self.home / SIGNED)

    def all(self) -> Mapping[str, TrustedRegistry]:
        """Return all trusted registries, by origin. Raises `Malformed` if the file is invalid."""
        reading = self._reading()
        for origin, entry in reading.entries.items():
            if origin not in reading.trusted:
                reading.trusted[origin] = _trusted(origin, entry)
        return dict(reading.trusted)

    def get(self, origin: str) -> TrustedRegistry:
        """Return the registry of that origin. Raises `Untrusted` (`registry.not-trusted`)."""
        reading = self._reading()
        entry = reading.entries.get(origin)
        if entry is None:
            raise Untrusted(
                ClientRegistryCode.NOT_TRUSTED,
                f"The registry {origin} is not among those you trust.",
                fix="Add it with its key: treaty trust add URL#KEY",
            )
        if origin not in reading.trusted:
            reading.trusted[origin] = _trusted(origin, entry)
        return reading.trusted[origin]

    def choose(self, origin: str = "") -> TrustedRegistry:
        """Return the registry of that origin; without one, the only registry. `registry.not-trusted`: raises `NotFound` if none
        is trusted, `Refused` if several are, and `Untrusted` if not that one."""
        if origin:
            return self.get(origin)
        registries = list(self.all().values())
        if not registries:
            raise NotFound(
                ClientRegistryCode.NOT_TRUSTED,
                "You trust no registry yet.",
                fix="Add one: treaty trust add URL#KEY. Or name the home that has one: --home",
            )
        if len(registries) > 1:
            origins = ", ".join(sorted(registry.name.origin for registry in registries))
            raise Refused(
                ClientRegistryCode.NOT_TRUSTED,
                f"You trust several registries: {origins}.",
                fix="Choose one: --registry ORIGIN, or registry=ORIGIN in Python.",
            )
        return registries[0]

    def add(self, name: RegistryName) -> None:
        """Trust a registry, or change the URL of a known one. Raises `Conflict` if its origin is known by another key."""
        durable.make_folder(self.home, private=True)  # before the lock, which would make it for all
        with durable.exclusive(self._lock):
            # Read under the lock, so that no change by another process is lost.
            entries = self._read()
            earlier = entries.get(name.origin)
            # Another key is another log. Accepted silently, it would replace all that was proved before.
            # A key that the log had before a rotation names the same log.
            if earlier is not None and str(name.key) not in (earlier.key, *(term.log_key for term in earlier.terms)):
                raise Conflict(
                    ClientRegistryCode.OTHER_KEY,
                    f"{name.origin} is trusted by another key: {earlier.key}.",
                    fix="If its operator rotated the key while you were away, or started a new log, and gave you the new key: "
                    f"treaty trust remove {name.origin}; treaty trust add {name}",
                )
            # A changed URL is another way to the same log, so its newest checkpoint stays.
            entry = msgspec.structs.replace(earlier, base_url=name.base_url) if earlier else _Entry(name.base_url, str(name.key))
            self._write({**entries, name.origin: entry})

    def remove(self, origin: str) -> None:
        """Stop trusting a registry, and forget the leaves seen of its log. Raises `Untrusted` if it is not trusted."""
        with durable.exclusive(self._lock):
            self.get(origin)
            # The memory first: after a crash in between, the registry is still trusted, as at a first contact.
            self.memory.forget(origin)
            self._write({other: entry for other, entry in self._read().items() if other != origin})

    def check_memory(self, origin: str) -> None:
        """Raise `Untrusted` (`memory.lost`) if the memory has learned fewer leaves of a log than are counted here: it was
        deleted, replaced by an older copy, or copied without seen.db-wal."""
        expected = self.get(origin).learned
        # Second: another process counts in the memory first, and here afterwards.
        learned = self.memory.learned(origin)
        if learned < expected:
            raise Untrusted(
                MemoryCode.LOST,
                f"The memory of {origin} lost {expected - learned} of {expected} proved facts, perhaps revocations among them.",
                fix=f"Put back seen.db and seen.db-wal of the same moment as registries.json. If they are gone: "
                f"treaty trust accept-loss {origin}",
            )

    def accept_loss(self, origin: str) -> None:
        """Count anew from the memory that is there. Raises `Untrusted` (`registry.not-trusted`)."""
        with durable.exclusive(self._lock):
            entries, _ = self._read(), self.get(origin)
            entry = msgspec.structs.replace(entries[origin], learned=self.memory.learned(origin))
            self._write({**entries, origin: entry})

    def advance(
        self, origin: str, expected: bytes | None, note: bytes, keys: LogKeys | None = None, *, learned: int = 0, time: int = 0
    ) -> bool:
        """Replace `expected` by `note`; return False and change nothing if another note was remembered in the meantime.

        `keys`: the keys of the log, if it has proved them; they are pinned if they follow the known ones. The caller has verified
        `note` by these keys, and that it extends `expected`. `learned`: how many leaves the memory has learned; the largest
        number stays, so that a loss is noticed until it is accepted. `time`: of the checkpoint that was verified now. Raises
        `Untrusted` if the registry is not trusted.
        """
        with durable.exclusive(self._lock):
            # Compare and swap: the caller proved consistency with `expected`, not with a note that came in between.
            entries, registry = self._read(), self.get(origin)
            if registry.seen != expected:
                return False
            entry = entries[origin]
            # A log without a rotation is known by its key alone.
            if keys is not None and len(keys.terms) > max(1, len(entry.terms)):
                terms = tuple(_Term(str(term.log), str(term.clock), term.since, term.until) for term in keys.terms)
                entry = msgspec.structs.replace(entry, key=str(keys.newest.log), terms=terms)
            if note != expected:
                entry = msgspec.structs.replace(entry, checkpoint=canonical.b64encode(note))
            if learned > entry.learned:
                entry = msgspec.structs.replace(entry, learned=learned)
            if time - entry.time >= TIME_STEP or (time > entry.time and entry != entries[origin]):
                entry = msgspec.structs.replace(entry, time=time)
            if entry != entries[origin]:
                self._write({**entries, origin: entry})
            return True

    def _read(self) -> dict[str, _Entry]:
        """Read the file, for a change of it. The caller holds the lock."""
        content = self._file.read()
        return content.registries if content else {}

    def _reading(self) -> _Reading:
        """Return the present content of the file."""
        content, last = self._file.latest(), self._last
        entries = content.registries if content else {}
        if last.entries is not entries:
            last = self._last = _Reading(entries, {})
        return last

    def _write(self, entries: dict[str, _Entry]) -> None:
        self._file.write(_File(entries))


def _trusted(origin: str, entry: _Entry) -> TrustedRegistry:
    name = parse_registry_name(f"{entry.base_url}#{entry.key}")
    # A line that was moved by hand would give one registry the key of another.
    if name.origin != origin:
        raise Malformed(SystemCode.STATE, f"registries.json lists the key of {name.origin} under {origin}.")
    seen = None if entry.checkpoint is None else canonical.b64decode(entry.checkpoint, limit=MAX_NOTE_BYTES)
    if entry.terms and entry.terms[-1].log_key != entry.key:
        raise Malformed(SystemCode.STATE, f"registries.json lists another key of {origin} than its newest one.")
    return TrustedRegistry(name, seen, entry.terms, entry.learned, entry.time)
