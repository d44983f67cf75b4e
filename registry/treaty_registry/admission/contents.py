"""Check the blobs of `publish` and `handler` statements before the registry serves them."""

from __future__ import annotations

from collections.abc import Mapping

from treaty_consensus import canonical
from treaty_consensus.codes import HandlerCode
from treaty_consensus.errors import Malformed, Refused
from treaty_consensus.handler import read_wheel
from treaty_consensus.kinds import MAX_BUNDLE, Handler, Publish
from treaty_consensus.protocol import check_document, parse_card

from ..catalogue.handler_facts import HandlerFacts, facts_of
from ..codes import RegistryBlobCode


def check_contents(body: Publish | Handler, contents: Mapping[str, bytes]) -> HandlerFacts | None:
    """Check the blobs that a statement names, given by digest, against the rules of its type. CPU-bound.

    Returns what the catalogue shows of a handler; None for a publish.
    Raises `Malformed`, `TooLarge` or `Refused`. Raises `Malformed` (`blob.digest`) when bytes do not have the named digest.
    """
    # First: if the store damaged the bytes, the author must not be told that its document breaks a rule.
    check_digests(contents)
    match body:
        case Publish():
            check_document(contents[body.document.sha256])
            parse_card(contents[body.card.sha256])
        case Handler():
            package = read_wheel(body.filename, contents[body.wheel.sha256])
            # A statement must not attach a wheel to a protocol that the wheel itself does not name.
            stated = package.manifest.protocol_uri, package.manifest.protocol_hash, str(package.entry_point)
            if stated != (body.uri, body.document, body.entry_point):
                raise Refused(HandlerCode.MISMATCH, "The wheel is for another protocol, or has another entry point.")
            # Only size and form. Readers verify the bundle's signature, in step 8.
            canonical.parse_json(contents[body.bundle.sha256], limit=MAX_BUNDLE, name="Sigstore bundle")
            return facts_of(body, package, contents[body.bundle.sha256])
    return None


def check_digests(contents: Mapping[str, bytes]) -> None:
    """Check that all bytes have the digests they are stored under. Raises `Malformed` (`blob.digest`)."""
    for digest, data in contents.items():
        if canonical.hex_digest(data) != digest:
            raise Malformed(RegistryBlobCode.DIGEST, f"The stored bytes of {digest} are damaged.", fix="Upload the blob again.")
