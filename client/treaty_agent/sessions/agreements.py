"""Remember agreements: the peer, the protocol, and the code of negotiated protocols.

docs/specification/home-caches.md has the formats of agreements.json, flow-history.json and negotiated/HASH/. An agreement:

    {"peer": "wss://shop.example/", "topic": "commerce/product-info", "did": "did:wba:shop.example", "hash": "5f2b…", …}

All of it is a cache. A lost cache only makes the next handshake longer. Entries are not trusted: the peer must confirm the hash,
and this agent must have the verified code. A file that does not parse is replaced. When two processes write one file, the later
write wins. Each file holds at most 256 entries, the newest first.

The flow history offers two shortcuts. `recall` finds the agreement with the same peer and purpose; it is proposed and confirmed
in one flight. `predict` finds the protocol that succeeded most often, at least twice, for this purpose or with this peer. A
shortcut that fails costs one round trip and is forgotten.

The code of a negotiated protocol is kept as a project, which builds to the same wheel on every machine. A process builds it at
the first read. If the digest of the wheel differs from record.json, the protocol is ignored and must be negotiated again. A
folder appears by a rename, so a crash leaves the old folder, the new one, or none. A process reads the protocols of other
processes when it starts.

A session names such a protocol `urn:treaty:negotiated:HASH`. No registry has it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec
import rfc8785

from treaty_anp.flow_profile.actions import Agreed, Shortcut
from treaty_client.protocols.project import Project, load_project
from treaty_consensus import canonical
from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Malformed, Refused, TreatyError
from treaty_consensus.handler import HandlerPackage, read_wheel
from treaty_consensus.kinds import Digest
from treaty_handler.values import decode_json
from treaty_io import durable
from treaty_io.afterwards import Afterwards
from treaty_io.codes import NegotiationCode
from treaty_io.line_limit import limited_logger

from ..negotiators.negotiator import Implementation
from .interfaces import SpokenProtocol

MAX_AGREEMENTS = 256
MAX_FILE = 4 * 1024 * 1024
MIN_SUCCESSES = 2
MAX_NEGOTIATED = 256
URN = "urn:treaty:negotiated:"
_MAX_RECORD = 4096
_log = limited_logger(__name__)

Profile = Literal["hello", "flow"]


class AgreementRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Describe one agreement.

    `peer`: the address that the initiator connected to, or the DID of the initiator.
    `candidates`: the former offer, for a peer that no longer speaks `hash`.
    `profile`: the profile that the address spoke. In the flow profile `uri` is the protocol's URI.
    `is_reader`: whether the peer reads the metadata of calls, so that early data may have them.
    `role`: this side's role in the protocol.
    """

    peer: str
    topic: str
    did: str
    hash: Digest
    uri: str
    candidates: tuple[str, ...]
    profile: Profile = "hello"
    is_reader: bool = False
    role: str = ""


class _Agreements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    agreements: tuple[AgreementRecord, ...]


class AgreementCache:
    """Read and write HOME/agreements.json."""

    def __init__(self, home: Path, afterwards: Afterwards | None = None) -> None:
        """Read nothing yet; the first use reads the file. `afterwards`: makes the writes; without it each change is written at
        once."""
        self._path, self._afterwards, self._owes = home / "agreements.json", afterwards, False
        self._known: dict[tuple[str, str], AgreementRecord] | None = None

    def get(self, peer: str, topic: str) -> AgreementRecord | None:
        """Return the last agreement with this peer about this topic."""
        return self._read().get((peer, topic))

    def knows(self, did: str) -> bool:
        """Return whether this agent connected to a peer of this DID and agreed with it. Agreements with initiators do not count:
        they only claim their DID."""
        return any(entry.did == did != entry.peer for entry in self._read().values())

    def remember(self, agreement: AgreementRecord) -> None:
        """Put an agreement first, and drop the oldest beyond the cap. Write only a change. Raises OSError."""
        agreements = self._read()
        key = (agreement.peer, agreement.topic)
        if agreements.get(key) != agreement:
            rest = [other for place, other in agreements.items() if place != key]
            self._write([agreement, *rest][:MAX_AGREEMENTS])

    def forget(self, peer: str, topic: str) -> None:
        """Forget the agreement with this peer about this topic, so that no hash is offered. Raises OSError."""
        agreements = self._read()
        if (peer, topic) in agreements:
            self._write([other for place, other in agreements.items() if place != (peer, topic)])

    def _read(self) -> dict[tuple[str, str], AgreementRecord]:
        if self._known is None:
            try:
                value = canonical.parse_json(self._path.read_bytes(), limit=MAX_FILE, name="agreements.json")
                entries = msgspec.convert(value, _Agreements).agreements
            except (OSError, TreatyError, msgspec.ValidationError):
                entries = ()
            self._known = {(entry.peer, entry.topic): entry for entry in entries[:MAX_AGREEMENTS]}
        return self._known

    def _write(self, entries: list[AgreementRecord]) -> None:
        self._known = {(entry.peer, entry.topic): entry for entry in entries}
        if self._afterwards is None:
            self._save()
        elif not self._owes:  # one write has all changes until it begins
            self._owes = True
            self._afterwards.add(self._save)

    def _save(self) -> None:
        # First: a change during the write owes another one.
        self._owes = False
        entries = tuple((self._known or {}).values())
        try:
            # A session does not wait for the disk: after a crash or a power failure the next handshake is only longer.
            durable.write_unsynced(self._path, canonical.dumps(msgspec.to_builtins(_Agreements(entries))), mode=0o600)
        except OSError as error:
            if self._afterwards is None:
                raise
            _log.warning("An agreement cannot be written: %s", error)


class FlowRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Describe one success in the flow profile. `count`: the number of times that this peer and purpose led to this protocol."""

    peer: str
    purpose: str
    protocol: str
    uri: str
    digest: str
    parameters: dict[str, Any]
    extensions: dict[str, Any]
    count: int


class _FlowRecords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    negotiations: tuple[FlowRecord, ...]


class FlowHistory:
    """Read and write HOME/flow-history.json."""

    def __init__(self, home: Path) -> None:
        """Read nothing yet; the first use reads the file."""
        self._path = home / "flow-history.json"
        self._known: dict[tuple[str, str], FlowRecord] | None = None

    def recall(self, peer: str, purpose: str, ids: Collection[str]) -> Shortcut | None:
        """Return the agreement with this peer for this purpose, if it is among `ids`."""
        entry = self._read().get((peer, purpose))
        if entry is None or entry.protocol not in ids:
            return None
        return Shortcut(Agreed(entry.protocol, entry.parameters, entry.extensions, entry.uri, entry.digest), confirmed=True)

    def predict(self, peer: str, purpose: str, ids: Collection[str]) -> str | None:
        """Return the id among `ids` with the most successes, at least `MIN_SUCCESSES`; None if there is none."""
        successes = Counter[str]()
        for entry in self._read().values():
            if entry.protocol in ids and (entry.peer == peer or entry.purpose == purpose):
                successes[entry.protocol] += entry.count
        best = min(successes, key=lambda id: (-successes[id], id), default=None)
        return best if best is not None and successes[best] >= MIN_SUCCESSES else None

    def remember(self, peer: str, purpose: str, agreed: Agreed) -> None:
        """Add a successful negotiation. Raises OSError."""
        history = self._read()
        before = history.get((peer, purpose))
        count = before.count + 1 if before is not None and before.protocol == agreed.protocol else 1
        entry = FlowRecord(
            peer, purpose, agreed.protocol, agreed.uri, agreed.digest, agreed.parameters, agreed.extensions, min(count, 1_000_000)
        )
        rest = [other for key, other in history.items() if key != (peer, purpose)]
        self._write([entry, *rest][:MAX_AGREEMENTS])

    def forget(self, peer: str, purpose: str) -> None:
        """Remove an entry after its shortcut failed. Raises OSError."""
        history = self._read()
        if (peer, purpose) in history:
            self._write([other for key, other in history.items() if key != (peer, purpose)])

    def _read(self) -> dict[tuple[str, str], FlowRecord]:
        if self._known is None:
            try:
                data = self._path.read_bytes()
                entries = msgspec.convert(decode_json(data), _FlowRecords).negotiations if len(data) <= MAX_FILE else ()
            except (OSError, ValueError, TreatyError, msgspec.ValidationError):
                entries = ()
            self._known = {(entry.peer, entry.purpose): entry for entry in entries[:MAX_AGREEMENTS]}
        return self._known

    def _write(self, entries: list[FlowRecord]) -> None:
        self._known = {(entry.peer, entry.purpose): entry for entry in entries}
        # Not synced, for the reason that agreements are not.
        durable.write_unsynced(self._path, rfc8785.dumps(msgspec.to_builtins(_FlowRecords(tuple(entries)))), mode=0o600)


@dataclass(frozen=True)
class NegotiatedProtocol:
    """A `SpokenProtocol` whose code this agent wrote itself, for a document that it agreed on with a peer.

    `peer`: the DID of the other side.
    `published`: the URI at which a registry has the same document, or "". The agent serves it there with its own code.
    `topic`: the topic to publish it in, or "".
    """

    hash: str
    topic: str
    package: HandlerPackage
    peer: str
    published: str = ""

    @property
    def uri(self) -> str:
        """The URI at which it is published, else its local name: `urn:treaty:negotiated:HASH`."""
        return self.published or URN + self.hash

    @property
    def document(self) -> bytes:
        """Always b"": the agreement keeps its hash."""
        return b""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Always empty: no publish statement claims an alias for it."""
        return ()

    def age(self, now: int) -> int:
        """Return 0: it rests on no statement that could be yanked or revoked."""
        return 0


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    peer: str
    published: str
    topic: str
    uri: str
    wheel: Digest


def accept_implementation(implementation: Implementation, document: str, peer: str) -> NegotiatedProtocol:
    """Return the protocol for which a negotiator wrote code. Raises `Refused` (`negotiation.code`) when the code is for another
    document."""
    manifest, digest = implementation.package.manifest, canonical.hex_digest(document.encode())
    if (manifest.protocol_hash, manifest.protocol_uri) != (digest, implementation.uri):
        raise Refused(NegotiationCode.CODE, "The negotiator wrote code for another document than the agreed one.")
    return NegotiatedProtocol(digest, implementation.topic, implementation.package, peer)


class NegotiatedProtocols:
    """Read and write HOME/negotiated. The methods block on the disk and raise OSError, beside the errors that they name.

    `changes`: the number of changes to the result of `all` so far.
    """

    def __init__(self, home: Path) -> None:
        """Read nothing yet."""
        self.changes = 0
        self._folder = home / "negotiated"
        self._known: dict[str, NegotiatedProtocol] = {}

    def load(self) -> None:
        """Read all undamaged protocols, so that `all` returns them."""
        for folder in sorted(self._folder.glob("?" * 64)):
            self.get(folder.name)

    def all(self) -> list[NegotiatedProtocol]:
        """Return the protocols that this process has read or kept."""
        return list(self._known.values())

    def get(self, document_hash: str) -> NegotiatedProtocol | None:
        """Return the protocol of that hash; None if it is missing or damaged."""
        if document_hash not in self._known:
            try:
                self._know(self._read(document_hash))
            except FileNotFoundError:
                return None
            except (OSError, TreatyError, msgspec.ValidationError) as error:
                _log.warning("The negotiated protocol %s cannot be used: %s", document_hash[:80], error)
                return None
        return self._known[document_hash]

    def document(self, document_hash: str) -> str:
        """Return the agreed text. Raises the errors of `project`."""
        return self.project(document_hash).document.decode()

    def project(self, document_hash: str) -> Project:
        """Return the project to publish. Raises `TreatyError`, and `Malformed` (`system.state`) when the document was
        changed on disk."""
        project = load_project(self._place(document_hash) / "project")
        if project.protocol_hash != document_hash:
            raise Malformed(SystemCode.STATE, f"The document stored as {document_hash} has another digest.")
        return project

    def written(self, document_hash: str) -> Implementation | None:
        """Return the tested code for a document with the files of its project; None if it is missing or damaged."""
        protocol = self.get(document_hash)
        if protocol is None:
            return None
        folder = self._place(document_hash) / "project"
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return Implementation(protocol.package.manifest.protocol_uri, protocol.topic, protocol.package, files)

    def keep(self, protocol: NegotiatedProtocol, implementation: Implementation) -> None:
        """Keep a protocol with its code, and replace older code for it. A published protocol stays marked as published. Raises
        `Malformed` (`system.state`)."""
        manifest, existing = implementation.package.manifest, self.get(protocol.hash)
        protocol = replace(protocol, published=existing.published) if existing else protocol
        # The same code, used again by its hash.
        if existing is not None and existing.package.digest == protocol.package.digest:
            os.utime(self._place(protocol.hash))
            return
        record = _Record(protocol.peer, protocol.published, protocol.topic, manifest.protocol_uri, protocol.package.digest)
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=self._folder) as temporary:
            folder = Path(temporary, "new")
            for name, content in implementation.files.items():
                durable.write(folder / "project" / _inside(name), content, mode=0o600)
            durable.write(folder / "record.json", canonical.dumps(msgspec.to_builtins(record)), mode=0o600)
            place = self._place(protocol.hash)
            # Two renames: a crash between them loses the protocol, and it is negotiated again.
            if place.exists():
                place.rename(Path(temporary, "old"))
            folder.rename(place)
        self._know(protocol)
        self._make_room()

    def published(self, protocol: NegotiatedProtocol, uri: str) -> NegotiatedProtocol:
        """Note the URI of a protocol that was published, and return it with the URI."""
        path = self._place(protocol.hash) / "record.json"
        record = msgspec.structs.replace(_parse_record(path.read_bytes()), published=uri)
        durable.write(path, canonical.dumps(msgspec.to_builtins(record)), mode=0o600)
        self._know(replace(protocol, published=uri))
        return self._known[protocol.hash]

    def _know(self, protocol: NegotiatedProtocol) -> None:
        self._known[protocol.hash] = protocol
        self.changes += 1

    def _read(self, document_hash: str) -> NegotiatedProtocol:
        record = _parse_record((self._place(document_hash) / "record.json").read_bytes())
        package = read_wheel(*self.project(document_hash).build_wheel(record.uri))
        # Another wheel was never tested, so it must not run.
        if package.digest != record.wheel:
            raise Malformed(SystemCode.STATE, "Its project builds to another wheel than the tested one.")
        return NegotiatedProtocol(document_hash, record.topic, package, record.peer, record.published)

    def _make_room(self) -> None:
        # The oldest folders go first; the newest are the likely next ones.
        folders = sorted(self._folder.glob("?" * 64), key=lambda folder: folder.stat().st_mtime_ns)
        for folder in folders[:-MAX_NEGOTIATED]:
            self._known.pop(folder.name, None)
            self.changes += 1
            shutil.rmtree(folder, ignore_errors=True)

    def _place(self, document_hash: str) -> Path:
        return self._folder / canonical.parse_digest(document_hash)


def is_negotiated(protocol: SpokenProtocol) -> bool:
    """Return whether the two sides negotiated this protocol; else it was published and verified."""
    return isinstance(protocol, NegotiatedProtocol)


def _parse_record(data: bytes) -> _Record:
    return msgspec.convert(canonical.loads(data, limit=_MAX_RECORD, name="record.json"), _Record)


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise Malformed(SystemCode.STATE, f"{name[:80]!r} is not a valid path in a project.")
    return path
