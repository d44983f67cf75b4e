"""Bytes of a bundle under the digests that its statements name: a detail of steps 5, 7 and 8."""

from __future__ import annotations

from treaty_consensus.canonical import hex_digest
from treaty_consensus.codes import BlobCode, TrustedRootCode
from treaty_consensus.errors import Gone, Untrusted
from treaty_consensus.kinds import Blob
from treaty_consensus.trusted_root import with_rotations
from treaty_io.codes import ClientDocumentCode, SigstoreBundleCode, WheelCode

from ...registries.bundle import Bundle
from .records import Evidence

_OTHER_BYTES = {
    "card": ClientDocumentCode.DIGEST,
    "document": ClientDocumentCode.DIGEST,
    "wheel": WheelCode.DIGEST,
    "Sigstore bundle": SigstoreBundleCode.DIGEST,
}


def blob_of(bundle: Bundle, blob: Blob, what: str) -> bytes:
    """Return the bytes of a blob. `what`: its kind, for the error. Raises `Gone`, and as `check_bytes`."""
    data = bundle.blobs.get(blob.sha256)
    if data is None:
        raise Gone(BlobCode.WITHDRAWN, f"The bundle does not hold the {what} {blob.sha256}; it may have been withdrawn.")
    check_bytes(data, blob, what)
    return data


def check_bytes(data: bytes, blob: Blob, what: str) -> None:
    """Check that bytes have the size and the digest of a blob. Raises `Untrusted` with the code of that kind of blob."""
    # The size first: it is cheap, and both were signed.
    if len(data) != blob.size or hex_digest(data) != blob.sha256:
        raise Untrusted(
            _OTHER_BYTES[what],
            f"These are not the bytes of the {what} that was published: {len(data)} bytes, SHA-256 {hex_digest(data)}, "
            f"instead of {blob.size} bytes, SHA-256 {blob.sha256}.",
            fix="They were changed on the path from the publisher, or damaged. Fetch them again, or from another place.",
        )


def trusted_root_of(bundle: Bundle, evidence: Evidence) -> bytes:
    """Return the Sigstore trusted root that the log's genesis pins, with the log keys and authorities of its rotations.

    Raises `Untrusted` or `Malformed` (`trusted-root.digest`).
    """
    digest = evidence.genesis.trusted_root
    root = bundle.blobs.get(digest)
    # A registry with another root could certify attestations by itself.
    if root is None or hex_digest(root) != digest:
        raise Untrusted(TrustedRootCode.DIGEST, "The bundle does not hold the Sigstore trusted root that the log's genesis pins.")
    return with_rotations(root, evidence.keys)
