"""A bundle: one protocol, or one topic, with all its proofs.

`application/vnd.treaty.bundle.v1+json`, at most 16 MiB. docs/specification/bundles.md specifies it and its leaves:

    {"uri": PROTOCOL-URI,                                           or "topic": TOPIC
     "checkpoint": NOTE,                                            a signed checkpoint of the log
     "consistency": [B64(hash), …],                                 from the size that was asked for; absent if none was
     "leaves": [{"index": N, "leaf": B64, "proof": [B64(hash), …]}, …],      ascending from leaf 0; inclusion proofs
     "blobs": {HEX: B64, …},                                        bytes that the leaves name, never wheels
     "reports": [{"index": N, "leaf": B64, "proof": [B64(hash), …]}, …]}     of agents that agreed on it; absent if not asked for

A blob that was withdrawn is absent. Parsing verifies nothing, not even that a blob has the hash of its name: numbered steps of
the verification do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from treaty_consensus import canonical
from treaty_consensus.codes import NoteCode
from treaty_consensus.errors import Malformed, TooLarge
from treaty_consensus.kinds import MAX_TRANSCRIPT, Count
from treaty_consensus.log.merkle import HASH_SIZE
from treaty_consensus.log.note import MAX_NOTE_BYTES
from treaty_consensus.log.proof import MAX_PROOF_HASHES
from treaty_consensus.statement import MAX_LEAF
from treaty_io.codes import BundleCode

MEDIA_TYPE = "application/vnd.treaty.bundle.v1+json"
# The caps bound the memory and the time of a reader before a signature is checked. A registry keeps below them by its full lists.
MAX_BUNDLE = 16 * 1024 * 1024
MAX_LEAVES = 1024
MAX_BLOBS = 256
MAX_REPORTS = 256
MAX_HANDLERS = 64
"""Handlers of a protocol in its bundle."""
MAX_TOPIC_PROTOCOLS = 64
"""Protocols of a topic in its bundle, without those that others are based on."""
MAX_CONSISTENCY = 2 * MAX_PROOF_HASHES

_Hashes = Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_CONSISTENCY)]


@dataclass(frozen=True)
class BundledLeaf:
    """A leaf of the log, and its proof of inclusion in the bundle's checkpoint."""

    index: int
    leaf: bytes
    proof: tuple[bytes, ...]


@dataclass(frozen=True)
class Bundle:
    """A parsed bundle. One of `uri` and `topic` is "". `consistency` is None if it was not asked for. `reports`: leaves beside
    those that prove the protocol."""

    checkpoint: bytes
    leaves: tuple[BundledLeaf, ...]
    blobs: Mapping[str, bytes]
    uri: str = ""
    topic: str = ""
    consistency: tuple[bytes, ...] | None = None
    reports: tuple[BundledLeaf, ...] = ()

    def encode(self) -> bytes:
        """Return the bundle as canonical JSON; the inverse of `parse_bundle`."""
        value: dict[str, object] = {
            "checkpoint": self.checkpoint.decode("utf-8"),
            "leaves": [*map(_encode_leaf, self.leaves)],
            "blobs": {digest: canonical.b64encode(data) for digest, data in self.blobs.items()},
        }
        value |= {"uri": self.uri} if self.uri else {"topic": self.topic}
        if self.consistency is not None:
            value["consistency"] = _encode_hashes(self.consistency)
        if self.reports:
            value["reports"] = [*map(_encode_leaf, self.reports)]
        return canonical.dumps(value)


class _Leaf(msgspec.Struct, frozen=True):
    index: Count
    leaf: str
    proof: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_PROOF_HASHES)]


# Unknown members are passed over: a newer registry may send some (docs/specification/compatibility.md).
class _File(msgspec.Struct, frozen=True):
    checkpoint: str
    leaves: Annotated[tuple[_Leaf, ...], msgspec.Meta(min_length=1, max_length=MAX_LEAVES)]
    blobs: Annotated[dict[str, str], msgspec.Meta(max_length=MAX_BLOBS)]
    uri: str | msgspec.UnsetType = msgspec.UNSET
    topic: str | msgspec.UnsetType = msgspec.UNSET
    consistency: _Hashes | msgspec.UnsetType = msgspec.UNSET
    reports: Annotated[tuple[_Leaf, ...], msgspec.Meta(max_length=MAX_REPORTS)] = ()


def parse_bundle(data: bytes) -> Bundle:
    """Parse a bundle without verifying it. Raises `TooLarge` or `Malformed` (`bundle.form`, `canonical.*`)."""
    # Strict JSON: with duplicate members two readers could see two bundles in the same bytes.
    value = canonical.parse_json(data, limit=MAX_BUNDLE, name="bundle")
    try:
        file = msgspec.convert(value, _File)
    except msgspec.ValidationError as error:
        raise Malformed(BundleCode.FORM, f"Not a bundle: {error}.") from error
    # The subject decides which leaves must be there, so a bundle has exactly one.
    if (file.uri is msgspec.UNSET) == (file.topic is msgspec.UNSET):
        raise Malformed(BundleCode.FORM, "A bundle is of one protocol or of one topic.")
    if len(file.checkpoint) > MAX_NOTE_BYTES:
        raise TooLarge(NoteCode.FORM, f"A note has at most {MAX_NOTE_BYTES} bytes.")
    leaves = tuple(map(_decode_leaf, file.leaves))
    indexes = [leaf.index for leaf in leaves]
    # The replay needs the order of the log, and leaf 0 for the clock's key.
    if indexes != sorted(set(indexes)) or indexes[0] != 0:
        raise Malformed(BundleCode.FORM, "The leaves of a bundle begin with leaf 0, ascend, and occur once.")
    reports = tuple(map(_decode_leaf, file.reports))
    if [report.index for report in reports] != sorted({report.index for report in reports}):
        raise Malformed(BundleCode.FORM, "The reports of a bundle ascend, and occur once.")
    return Bundle(
        file.checkpoint.encode("utf-8"),
        leaves,
        {canonical.parse_digest(digest): canonical.b64decode(text, limit=MAX_TRANSCRIPT) for digest, text in file.blobs.items()},
        "" if file.uri is msgspec.UNSET else file.uri,
        "" if file.topic is msgspec.UNSET else file.topic,
        None if file.consistency is msgspec.UNSET else _decode_hashes(file.consistency),
        reports,
    )


def _encode_leaf(leaf: BundledLeaf) -> dict[str, object]:
    return {"index": leaf.index, "leaf": canonical.b64encode(leaf.leaf), "proof": _encode_hashes(leaf.proof)}


def _decode_leaf(leaf: _Leaf) -> BundledLeaf:
    return BundledLeaf(leaf.index, canonical.b64decode(leaf.leaf, limit=MAX_LEAF), _decode_hashes(leaf.proof))


def _encode_hashes(hashes: tuple[bytes, ...]) -> list[str]:
    return [canonical.b64encode(value) for value in hashes]


def _decode_hashes(texts: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(canonical.b64decode(text, limit=HASH_SIZE) for text in texts)
