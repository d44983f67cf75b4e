"""Rekor v2 entries in the registry's own log.

`POST /api/v2/log/entries` with JSON of at most 16 KiB, what sigstore-python sends for a file and for a DSSE envelope alike:

    {"hashedRekordRequestV002": {"digest": B64(32 bytes), "signature": {"content": B64(DER), "verifier": {
        "keyDetails": "PKIX_ECDSA_P256_SHA_256", "x509Certificate": {"rawBytes": B64(DER)}}}}}

`digest` is the file's SHA-256, or that of the envelope's pre-authentication encoding. The certificate must be one of this
authority's and valid now, and the signature must be its key's; so the log holds no signature that a DID did not make. The leaf
(`sigstore_leaf`) is the canonical body, and the reply a TransparencyLogEntry (protobuf-specs `sigstore_rekor.proto`, as JSON):

    {"canonicalizedBody": B64, "inclusionProof": {"checkpoint": {"envelope": NOTE}, "hashes": [B64, …], "logIndex": DECIMAL,
     "rootHash": B64, "treeSize": DECIMAL}, "integratedTime": "0", "kindVersion": {"kind": "hashedrekord", "version": "0.0.2"},
     "logId": {"keyId": B64}, "logIndex": DECIMAL}

Other entry kinds and bare public keys are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, Unauthorized
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.sigstore_leaf import MAX_CERTIFICATE, MAX_SIGNATURE, RekordLeaf
from treaty_consensus.trusted_root import log_id

from ..codes import HttpCode, SigstoreCode
from .certificates import check_issued
from .keys import AuthorityKeys
from .ports import Append, Clock, LoggedLeaf

MAX_REQUEST = 16_384


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A JSON object with exactly the fields of the struct."""


class _RawBytes(_Record, frozen=True):
    raw_bytes: str


class _Verifier(_Record, frozen=True):
    key_details: Literal["PKIX_ECDSA_P256_SHA_256"]
    x509_certificate: _RawBytes = msgspec.field(name="x509Certificate")


class _Signature(_Record, frozen=True):
    content: str
    verifier: _Verifier


class _HashedRekord(_Record, frozen=True):
    digest: str
    signature: _Signature


class _Request(_Record, frozen=True):
    hashed_rekord: _HashedRekord = msgspec.field(name="hashedRekordRequestV002")


class EntryLog:
    """Logs signatures made with this authority's certificates. It has no state of its own; safe for concurrent use."""

    def __init__(self, keys: AuthorityKeys, *, log_key: Callable[[], VerifierKey], append: Append, clock: Clock) -> None:
        """`log_key`: return the key that signs the checkpoints of `append` now."""
        self._keys = keys
        self._log_key = log_key
        self.append = append
        self._clock = clock

    async def add(self, body: bytes) -> bytes:
        """Verify and log one signature. Returns the JSON of the entry once it is durable and in a checkpoint.

        Raises `Malformed`, `TooLarge` or `Unauthorized` (`sigstore.*`, `canonical.*`), and what `append` raises; nothing is
        logged then.
        """
        rekord = _parse(body)
        try:
            certificate = x509.load_der_x509_certificate(rekord.certificate)
        except ValueError as error:
            raise Malformed(HttpCode.REQUEST, "The entry's certificate cannot be read.") from error
        # Foreign certificates and bare keys are refused, so the log holds no signature that a DID did not make.
        key = check_issued(certificate, self._keys, now=self._clock())
        try:
            # Prehashed: the client sends the digest and never the file.
            key.verify(rekord.signature, rekord.digest, ec.ECDSA(utils.Prehashed(hashes.SHA256())))
        except InvalidSignature as error:
            raise Unauthorized(SigstoreCode.PROOF, "The entry's signature does not verify.") from error
        leaf = rekord.encode()
        return self._reply(leaf, await self.append(leaf))

    def _reply(self, leaf: bytes, logged: LoggedLeaf) -> bytes:
        proof = {
            "checkpoint": {"envelope": logged.checkpoint},
            "hashes": [canonical.b64encode(node) for node in logged.hashes],
            "logIndex": str(logged.index),
            "rootHash": canonical.b64encode(logged.root),
            "treeSize": str(logged.size),
        }
        return canonical.dumps(
            {
                "canonicalizedBody": canonical.b64encode(leaf),
                "inclusionProof": proof,
                # Rekor v2 has no integrated time: the timestamp beside the entry proves the time.
                "integratedTime": "0",
                "kindVersion": {"kind": "hashedrekord", "version": "0.0.2"},
                "logId": {"keyId": canonical.b64encode(log_id(self._log_key()))},
                "logIndex": str(logged.index),
            }
        )


def _parse(body: bytes) -> RekordLeaf:
    value = canonical.parse_json(body, limit=MAX_REQUEST, name="log entry")
    try:
        request = msgspec.convert(value, _Request).hashed_rekord
    except msgspec.ValidationError as error:
        raise Malformed(
            HttpCode.REQUEST,
            f"Not a log entry request: {error}.",
            fix="Only hashedRekordRequestV002 with an ECDSA P-256 certificate is logged, for DSSE envelopes too.",
        ) from error
    digest = canonical.b64decode(request.digest, limit=32)
    signature = canonical.b64decode(request.signature.content, limit=MAX_SIGNATURE)
    certificate = canonical.b64decode(request.signature.verifier.x509_certificate.raw_bytes, limit=MAX_CERTIFICATE)
    if len(digest) != 32 or not signature:
        raise Malformed(HttpCode.REQUEST, "A log entry has a SHA-256 digest and a signature.")
    return RekordLeaf(digest, signature, certificate)
