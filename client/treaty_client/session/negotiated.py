"""What was negotiated here: documents that two agents agreed on, and the code that this side has for them.

    HOME/negotiated/HASH/
      record.json     {"peer": DID, "published": URI or "", "topic": TOPIC or "", "uri": URI, "wheel": HEX}
      project/…       the folder of `treaty_client.project`: the agreed text is its document.md, whose SHA-256 is HASH

HASH is 64 hexadecimal digits. `uri` is the placeholder in the wheel's manifest, `wheel` the digest of the wheel, which the
project builds to on every machine: it is built anew when a process reads it first, and what does not come out as it was counts
as absent and costs a negotiation. record.json is canonical JSON and a folder appears whole, by a rename. At most 256 are kept,
the one that was written longest ago makes room. Of two processes that share a home, each sees what the other negotiated when it
starts anew.

To a session such a protocol is `urn:treaty:negotiated:HASH`: no registry has it, and nobody else can look it up.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, Refused, TreatyError
from treaty_consensus.handler import HandlerPackage, read_wheel
from treaty_consensus.kinds import Digest

from .. import durable
from ..negotiation.negotiator import Implementation
from ..project import Project, load_project
from .ports import SpokenProtocol

MAX_NEGOTIATED = 256
URN = "urn:treaty:negotiated:"
_MAX_RECORD = 4096
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NegotiatedProtocol:
    """A `SpokenProtocol` that rests on nobody's word but the two sides' own. `peer`: with whom; `published`: its URI since it has
    one, or "". `topic`: where it may be published, or ""."""

    hash: str
    topic: str
    package: HandlerPackage
    peer: str
    published: str = ""

    @property
    def uri(self) -> str:
        """A name for this side's own use."""
        return URN + self.hash

    def age(self, now: int) -> int:
        """It does not age: what it rests on can be neither yanked nor revoked."""
        return 0


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    peer: str
    published: str
    topic: str
    uri: str
    wheel: Digest


def accept_implementation(implementation: Implementation, document: str, peer: str) -> NegotiatedProtocol:
    """The protocol that a negotiator wrote code for. Raises `Refused` (`negotiation.code`) when the code is for another
    document."""
    manifest, digest = implementation.package.manifest, canonical.hex_digest(document.encode())
    if (manifest.protocol_hash, manifest.protocol_uri) != (digest, implementation.uri):
        raise Refused("negotiation.code", "The code that was written is not for the document that was agreed on.")
    return NegotiatedProtocol(digest, implementation.topic, implementation.package, peer)


class NegotiatedProtocols:
    """HOME/negotiated. Its methods block on the disk; what they raise is OSError or as they say. `changes`: how often what `all`
    returns has changed."""

    def __init__(self, home: Path) -> None:
        """Reads at the first use."""
        self.changes = 0
        self._folder = home / "negotiated"
        self._known: dict[str, NegotiatedProtocol] = {}

    def load(self) -> None:
        """Read all that is kept and undamaged, so that `all` knows it."""
        for folder in sorted(self._folder.glob("?" * 64)):
            self.get(folder.name)

    def all(self) -> list[NegotiatedProtocol]:
        """What this process has read or kept."""
        return list(self._known.values())

    def get(self, document_hash: str) -> NegotiatedProtocol | None:
        """The protocol of that hash, None when it is not here undamaged."""
        if document_hash not in self._known:
            try:
                self._know(self._read(document_hash))
            except FileNotFoundError:
                return None
            except (OSError, TreatyError, msgspec.ValidationError) as error:
                _log.warning("What was negotiated as %s cannot be used: %s", document_hash[:80], error)
                return None
        return self._known[document_hash]

    def document(self, document_hash: str) -> str:
        """The agreed text. Raises what reading the project does."""
        return self.project(document_hash).document.decode()

    def project(self, document_hash: str) -> Project:
        """What would be published. Raises `TreatyError`, and `Malformed` (`negotiated.document`) when it was tampered with."""
        project = load_project(self._place(document_hash) / "project")
        if project.protocol_hash != document_hash:
            raise Malformed("negotiated.document", f"The document kept as {document_hash} is another one.")
        return project

    def keep(self, protocol: NegotiatedProtocol, implementation: Implementation) -> None:
        """Keep a protocol with its code, in the place of older code for it; one that was published stays so. Raises `Malformed`
        (`negotiated.path`)."""
        manifest, known = implementation.package.manifest, self.get(protocol.hash)
        protocol = replace(protocol, published=known.published) if known else protocol
        record = _Record(protocol.peer, protocol.published, protocol.topic, manifest.protocol_uri, protocol.package.digest)
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=self._folder) as temporary:
            folder = Path(temporary, "new")
            for name, content in implementation.files.items():
                durable.write(folder / "project" / _inside(name), content, mode=0o600)
            durable.write(folder / "record.json", canonical.dumps(msgspec.to_builtins(record)), mode=0o600)
            place = self._place(protocol.hash)
            if place.exists():
                place.rename(Path(temporary, "old"))
            folder.rename(place)
        self._know(protocol)
        self._make_room()

    def published(self, protocol: NegotiatedProtocol, uri: str) -> NegotiatedProtocol:
        """Note that it has a URI now."""
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
        if package.digest != record.wheel:
            raise Malformed("negotiated.wheel", "It does not build to the wheel that was tried.")
        return NegotiatedProtocol(document_hash, record.topic, package, record.peer, record.published)

    def _make_room(self) -> None:
        folders = sorted(self._folder.glob("?" * 64), key=lambda folder: folder.stat().st_mtime_ns)
        for folder in folders[:-MAX_NEGOTIATED]:
            self._known.pop(folder.name, None)
            self.changes += 1
            shutil.rmtree(folder, ignore_errors=True)

    def _place(self, document_hash: str) -> Path:
        return self._folder / canonical.parse_digest(document_hash)


def is_negotiated(protocol: SpokenProtocol) -> bool:
    """Whether it was negotiated by the two sides themselves, rather than verified."""
    return isinstance(protocol, NegotiatedProtocol)


def _parse_record(data: bytes) -> _Record:
    return msgspec.convert(canonical.loads(data, limit=_MAX_RECORD, what="record.json"), _Record)


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise Malformed("negotiated.path", f"A project has no file {name[:80]!r}.")
    return path
