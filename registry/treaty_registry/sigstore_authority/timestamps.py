"""The timestamp authority: RFC 3161 over HTTP (§3.4).

A query is a DER TimeStampReq of at most 1,024 bytes: version 1, a SHA-256, -384 or -512 imprint of the right length, no
extensions, and either no policy or ours; a nonce has at most 128 bits and is not negative. Anything else gets a TimeStampResp
with status `rejection` and the failure that RFC 3161 §2.4.2 has for it. A granted one holds a CMS SignedData by the authority's
P-256 key:

    TSTInfo          policy, the imprint, a random serial number of 127 bits, genTime in whole seconds (UTC), accuracy 1 s, and
                     the query's nonce
    signed           content-type, message-digest, signing-certificate-v2 (RFC 5816: which certificate signs)
    certificates     the authority's own, when the query asks for it

The policy is the OID of Sigstore's timestamp authority, which every installation of that software issues. Here it means: one
operator's clock, read when the query is answered, for signatures that the same operator logs.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import ClassVar

from asn1crypto import algos, cms, core, tsp
from asn1crypto import x509 as asn1_x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from treaty_consensus.canonical import sha256

from .keys import AuthorityKeys
from .ports import Clock

POLICY = "1.3.6.1.4.1.57264.2"
"""Go's encoding/asn1 refuses an arc of 2³¹ and more, and with it the whole timestamp. So this is no UUID under 2.25 (X.667)."""
MAX_QUERY = 1_024
# Without SHA-1, whose collisions would give two files one timestamp.
_DIGEST_SIZES = {"sha256": 32, "sha384": 48, "sha512": 64}
_MAX_NONCE = 2**128 - 1


@dataclass(frozen=True)
class TimestampReply:
    """`der`: a DER TimeStampResp, to be sent as `application/timestamp-reply`. `granted`: whether it contains a timestamp."""

    granted: bool
    der: bytes


class _Rejected(Exception):
    """The refusal of a query, with its PKIFailureInfo."""

    def __init__(self, failure: str, reason: str) -> None:
        super().__init__(reason)
        self.failure = failure
        self.reason = reason


class _Rejection(core.Sequence):  # type: ignore[misc]  # asn1crypto has no types
    """A TimeStampResp without a token, which asn1crypto's own class requires."""

    _fields: ClassVar = [("status", tsp.PKIStatusInfo)]


def _parsed(value: core.Asn1Value) -> core.Asn1Value:
    """Return the same value in encoded form, because asn1crypto would encode a built value again at every level."""
    return type(value).load(value.dump())


_SHA256 = _parsed(algos.DigestAlgorithm({"algorithm": "sha256"}))
_ECDSA = _parsed(algos.SignedDigestAlgorithm({"algorithm": "sha256_ecdsa"}))


class TimestampAuthority:
    """Issues a timestamp for any imprint. It has no state of its own; safe for concurrent use."""

    def __init__(self, keys: AuthorityKeys, *, clock: Clock) -> None:
        self._key = keys.tsa_key
        self._chain = keys.tsa_chain
        self._clock = clock
        der = keys.tsa_chain[0].public_bytes(Encoding.DER)
        self._certificate = asn1_x509.Certificate.load(der)
        signer = {"issuer": self._certificate.issuer, "serial_number": self._certificate.serial_number}
        self._signer = _parsed(cms.SignerIdentifier({"issuer_and_serial_number": cms.IssuerAndSerialNumber(signer)}))
        signed_by = tsp.SigningCertificateV2({"certs": [tsp.ESSCertIDv2({"cert_hash": sha256(der)})]})  # SHA-256 by default
        self._attributes = [
            _parsed(cms.CMSAttribute({"type": "content_type", "values": ["tst_info"]})),
            _parsed(cms.CMSAttribute({"type": "signing_certificate_v2", "values": [signed_by]})),
        ]

    def respond(self, query: bytes) -> TimestampReply:
        """Answer one query. Never raises on foreign input; about a millisecond of CPU."""
        try:
            request = _parse(query)
        except _Rejected as rejected:
            status = {"status": "rejection", "status_string": [rejected.reason], "fail_info": {rejected.failure}}
            return TimestampReply(False, _Rejection({"status": status}).dump())
        token = self._token(request)
        return TimestampReply(True, tsp.TimeStampResp({"status": {"status": "granted"}, "time_stamp_token": token}).dump())

    def _token(self, request: tsp.TimeStampReq) -> cms.ContentInfo:
        info: dict[str, object] = {
            "version": "v1",
            "policy": POLICY,
            "message_imprint": request["message_imprint"],
            # RFC 3161 §2.4.2 asks for a different number for each token. A random one needs no counter that a restart
            # could lose.
            "serial_number": secrets.randbits(127),
            "gen_time": self._clock().replace(microsecond=0),
            "accuracy": {"seconds": 1},
        }
        # RFC 3161 §2.4.2: a token repeats the nonce, so that a client recognises an old answer.
        if request["nonce"].native is not None:
            info["nonce"] = request["nonce"].native
        content = tsp.TSTInfo(info).dump()
        signed = {
            "version": "v3",
            "digest_algorithms": [_SHA256],
            "encap_content_info": {"content_type": "tst_info", "content": core.ParsableOctetString(content)},
            "signer_infos": [self._signer_info(content)],
        }
        # RFC 3161 §2.4.1: only when the query asks for it.
        if request["cert_req"].native:
            signed["certificates"] = [self._certificate]
        return cms.ContentInfo({"content_type": "signed_data", "content": cms.SignedData(signed)})

    def _signer_info(self, content: bytes) -> cms.SignerInfo:
        digest = cms.CMSAttribute({"type": "message_digest", "values": [sha256(content)]})
        attributes = cms.CMSAttributes([*self._attributes, digest]).dump()
        return cms.SignerInfo(
            {
                "version": "v1",
                "sid": self._signer,
                "digest_algorithm": _SHA256,
                "signed_attrs": cms.CMSAttributes.load(attributes),
                "signature_algorithm": _ECDSA,
                # RFC 5652 §5.4: over the attributes as a plain SET OF, not with the tag they have in the SignerInfo.
                "signature": self._key.sign(attributes, ec.ECDSA(hashes.SHA256())),
            }
        )


def _parse(query: bytes) -> tsp.TimeStampReq:
    # Before parsing, which is slow for large ASN.1.
    if len(query) > MAX_QUERY:
        raise _Rejected("bad_data_format", f"A query has at most {MAX_QUERY} bytes.")
    try:
        request = tsp.TimeStampReq.load(query, strict=True)
        values = request.native  # parses all of it; before, asn1crypto has read only the outermost tag
        canonical = request.copy().dump(force=True) == query
    except Exception as error:  # on foreign bytes asn1crypto raises any exception, including AttributeError
        raise _Rejected("bad_data_format", "Not a TimeStampReq.") from error
    # BER has several encodings of one query, and readers differ about some of them.
    if not canonical:
        raise _Rejected("bad_data_format", "Not in DER.")
    if values["version"] != "v1":
        raise _Rejected("bad_request", "The version of a TimeStampReq is 1.")
    imprint = values["message_imprint"]
    size = _DIGEST_SIZES.get(imprint["hash_algorithm"]["algorithm"])
    if size is None or imprint["hash_algorithm"]["parameters"] is not None:
        raise _Rejected("bad_alg", "Imprints are SHA-256, SHA-384 or SHA-512.")
    if len(imprint["hashed_message"]) != size:
        raise _Rejected("bad_data_format", "The imprint does not have its algorithm's length.")
    if values["req_policy"] not in (None, POLICY):
        raise _Rejected("unaccepted_policy", f"The one policy here is {POLICY}.")
    if values["extensions"] is not None:
        raise _Rejected("unaccepted_extensions", "No extension is known here.")
    if values["nonce"] is not None and not 0 <= values["nonce"] <= _MAX_NONCE:
        raise _Rejected("bad_data_format", "A nonce is a non-negative number of at most 128 bits.")
    return request
