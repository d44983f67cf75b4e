"""Sign messages, and verify them.

An envelope is JSON: the message, and the proof of its sender where the transport does not prove it.

    {"handoff": MESSAGE, "proof": {"key": DID-URL, "signature": BASE64}}

The signature is Ed25519 over `treaty-handoff-v1` LF and the canonical JSON (RFC 8785) of the message as it was sent. A message
without an envelope is one without a proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec
import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from treaty_agent import Identity, ProvedPeer
from treaty_consensus import canonical
from treaty_consensus.did import Did, parse_key_id
from treaty_consensus.errors import Malformed, TooLarge, TreatyError, Unauthorized
from treaty_handler import decode_json
from treaty_io.network.did_documents import DidDocument, DidResolver

from .codes import HandoffCode
from .messages import MAX_MESSAGE, Message, encode

_CONTEXT, _ASKING = b"treaty-handoff-v1\n", b"treaty-handoff-answers-v1\n"
"""Keep a signature of one purpose from being one of another: of a message, and of the question for the answers to one."""


class _Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    signature: str


class _Parts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    handoff: dict[str, object]
    proof: _Proof | None = None


class Resolver(Protocol):
    """Finds the documents of DIDs, as `treaty_io`'s `DidResolver` does."""

    async def resolve(self, did: Did, *, listing: str = "") -> DidDocument:
        """Return the document of a DID."""


@dataclass(frozen=True)
class Opened:
    """A message as it was sent, its form not checked, and the agent that signed it; None if it has no proof."""

    message: dict[str, object]
    signer: ProvedPeer | None


def envelope(message: Message, identity: Identity | None, limit: int = MAX_MESSAGE) -> bytes:
    """Return the envelope of a message; signed unless the transport proves the sender. Raises `TooLarge`."""
    value: dict[str, object] = {"handoff": message}
    if identity is not None:
        signature = identity.sign(_CONTEXT + encode(message))
        value["proof"] = {"key": identity.key_id, "signature": canonical.b64encode(signature)}
    data = rfc8785.dumps(value)  # type: ignore[arg-type]
    if len(data) > limit:
        raise TooLarge(HandoffCode.TOO_LARGE, f"A message has at most {limit} bytes.")
    return data


async def open_envelope(data: bytes, resolver: Resolver, limit: int = MAX_MESSAGE) -> Opened:
    """Read an envelope and verify its proof; `accept` checks the message. Raises `TooLarge`, `Malformed`, `Unauthorized`, and the
    errors of the resolver: a DID whose document cannot be fetched now may be verified later."""
    if len(data) > limit:
        raise TooLarge(HandoffCode.TOO_LARGE, f"A message has at most {limit} bytes.")
    try:
        value = decode_json(data)
        if isinstance(value, dict) and "handoff" not in value:
            return Opened(value, None)
        parts = msgspec.convert(value, _Parts)
    except (ValueError, msgspec.ValidationError) as error:
        raise Malformed(HandoffCode.FORM, f"This is no message, and no envelope of one: {error}.") from error
    # The signature covers the message as it was sent, members of later versions included.
    signer = None if parts.proof is None else await _verified(_CONTEXT + encode(parts.handoff), parts.proof, resolver)
    return Opened(parts.handoff, signer)


def asking_proof(message_id: str, identity: Identity) -> str:
    """Return the proof of an agent that asks for the answers to its message: KEY and SIGNATURE, with a space between."""
    return f"{identity.key_id} {canonical.b64encode(identity.sign(_ASKING + message_id.lower().encode()))}"


async def asking_signer(message_id: str, proof: str, resolver: Resolver) -> ProvedPeer:
    """Verify the proof of an agent that asks. Raises as `open_envelope` does."""
    key, _, signature = proof.partition(" ")
    return await _verified(_ASKING + message_id.lower().encode(), _Proof(key, signature), resolver)


async def _verified(signed: bytes, proof: _Proof, resolver: Resolver) -> ProvedPeer:
    refused = Unauthorized(HandoffCode.PROOF, "The signature of the message does not verify.")
    try:
        did, _ = parse_key_id(proof.key)
        signature = canonical.b64decode(proof.signature, limit=64)
    except TreatyError as error:
        raise refused from error
    document = await resolver.resolve(did, listing=proof.key)
    key = document.keys.get(proof.key)
    if key is None:
        raise refused
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    except (InvalidSignature, ValueError) as error:
        raise refused from error
    return ProvedPeer(did.text)


async def _no_documents(did: Did) -> DidDocument:
    raise Unauthorized(
        HandoffCode.PROOF, f"This agent fetches no documents, so it cannot verify {did.text}.", fix="Give a resolver."
    )


DID_KEYS = DidResolver(_no_documents)
"""Finds the keys of did:key, which needs no document, and no others."""
