"""The timestamp authority: what it grants verifies elsewhere, what it refuses it refuses as RFC 3161 says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256, sha384, sha512
from pathlib import Path
from typing import Any

import pytest
from asn1crypto import cms, core, tsp
from rfc3161_client import PKIStatus, VerificationError, VerifierBuilder, decode_timestamp_response
from rfc3161_client.tsp import TimeStampResponse
from signers import NOW
from simulated_sigstore import Authority, make_authority

from treaty_registry.sigstore_authority.timestamps import MAX_QUERY, POLICY

TIME = datetime.fromtimestamp(NOW, UTC)
MESSAGE = b"a signature"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return make_authority(tmp_path, now=TIME + timedelta(microseconds=999_999))


def query(algorithm: str = "sha256", imprint: bytes = sha256(MESSAGE).digest(), **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "version": "v1",
        "message_imprint": {"hash_algorithm": {"algorithm": algorithm}, "hashed_message": imprint},
        "nonce": 12345,
        "cert_req": True,
    }
    der: bytes = tsp.TimeStampReq({name: value for name, value in (fields | changes).items() if value is not None}).dump()
    return der


def granted(authority: Authority, request: bytes) -> TimeStampResponse:
    reply = authority.tsa.respond(request)
    assert reply.granted
    response = decode_timestamp_response(reply.der)
    assert PKIStatus(response.status) == PKIStatus.GRANTED
    return response


def verify(authority: Authority, response: TimeStampResponse, message: bytes, *, nonce: int | None = 12345) -> None:
    leaf, root = authority.keys.tsa_chain
    builder = VerifierBuilder().tsa_certificate(leaf).add_root_certificate(root)
    (builder if nonce is None else builder.nonce(nonce)).build().verify_message(response, message)


@pytest.mark.parametrize(("algorithm", "digest"), [("sha256", sha256), ("sha384", sha384), ("sha512", sha512)])
def test_a_timestamp_verifies(authority: Authority, algorithm: str, digest: Any) -> None:
    response = granted(authority, query(algorithm, digest(MESSAGE).digest()))
    verify(authority, response, MESSAGE)
    assert response.tst_info.gen_time == TIME
    assert response.tst_info.policy.dotted_string == POLICY
    with pytest.raises(VerificationError):
        verify(authority, response, b"another signature")
    with pytest.raises(VerificationError):
        verify(authority, response, MESSAGE, nonce=12346)


def test_another_authoritys_timestamp_does_not_verify(authority: Authority, tmp_path: Path) -> None:
    other = make_authority(tmp_path / "other", now=TIME)
    with pytest.raises(VerificationError):
        verify(authority, granted(other, query()), MESSAGE)


def test_no_flipped_byte_makes_it_say_something_else(authority: Authority) -> None:
    """CMS signs neither its version numbers nor the name of the signature's algorithm; all else is noticed."""
    der = authority.tsa.respond(query(cert_req=None)).der
    token = tsp.TimeStampResp.load(der)["time_stamp_token"]["content"]["encap_content_info"]["content"].native
    tolerated = 0
    for position in range(len(der)):
        flipped = der[:position] + bytes([der[position] ^ 1]) + der[position + 1 :]
        try:
            verify(authority, decode_timestamp_response(flipped), MESSAGE)
        except (ValueError, VerificationError):
            continue
        tolerated += 1
        assert tsp.TimeStampResp.load(flipped)["time_stamp_token"]["content"]["encap_content_info"]["content"].native == token
    assert tolerated <= 10  # two versions of a byte, and an object identifier of eight


def test_the_certificate_comes_when_it_is_asked_for(authority: Authority) -> None:
    def certificates(request: bytes) -> int:
        reply = tsp.TimeStampResp.load(authority.tsa.respond(request).der)
        content: cms.SignedData = reply["time_stamp_token"]["content"]
        return len(content["certificates"])

    assert certificates(query()) == 1
    assert certificates(query(cert_req=None)) == 0


def test_a_nonce_is_optional_and_returned(authority: Authority) -> None:
    assert granted(authority, query(nonce=None)).tst_info.nonce is None
    assert granted(authority, query(nonce=2**128 - 1)).tst_info.nonce == 2**128 - 1
    verify(authority, granted(authority, query(nonce=None)), MESSAGE, nonce=None)


def test_our_own_policy_may_be_asked_for(authority: Authority) -> None:
    verify(authority, granted(authority, query(req_policy=POLICY)), MESSAGE)


def test_serial_numbers_differ(authority: Authority) -> None:
    assert len({granted(authority, query()).tst_info.serial_number for _ in range(20)}) == 20


EXTENSION = {"extn_id": "1.2.3.4", "critical": False, "extn_value": core.OctetString(b"\x05\x00")}


@pytest.mark.parametrize(
    ("request_der", "failure"),
    [
        (b"", "bad_data_format"),
        (b"junk", "bad_data_format"),
        (query() + b"\0", "bad_data_format"),
        (query()[:-1], "bad_data_format"),
        (query() + b"\0" * MAX_QUERY, "bad_data_format"),
        (b"\x30\x80" + query()[2:] + b"\0\0", "bad_data_format"),  # BER
        (b"0\x80" * 500, "bad_data_format"),
        (b"0\x82\x03\xf8" * 250, "bad_data_format"),
        (query().replace(b"\x05\x00\x04\x20", b"\x07\x00\x04\x20"), "bad_data_format"),  # a type asn1crypto cannot read
        (query("sha1", bytes(20)), "bad_alg"),
        (query("md5", bytes(16)), "bad_alg"),
        (query("1.2.3.4", bytes(32)), "bad_alg"),
        (query("sha512", bytes(32)), "bad_data_format"),
        (query("sha256", b""), "bad_data_format"),
        (query(req_policy="1.2.3.4"), "unaccepted_policy"),
        (query(extensions=[EXTENSION]), "unaccepted_extensions"),
        (query(extensions=[EXTENSION | {"extn_value": core.OctetString(bytes(MAX_QUERY))}]), "bad_data_format"),
        (query(nonce=-1), "bad_data_format"),
        (query(nonce=2**128), "bad_data_format"),
    ],
)
def test_what_is_refused_is_refused_as_the_rfc_says(authority: Authority, request_der: bytes, failure: str) -> None:
    reply = authority.tsa.respond(request_der)
    assert not reply.granted
    assert PKIStatus(decode_timestamp_response(reply.der).status) == PKIStatus.REJECTION
    status = core.Sequence.load(reply.der)[0]
    info = tsp.PKIStatusInfo.load(status.dump())
    assert info["status"].native == "rejection"
    assert info["fail_info"].native == {failure}


def test_another_version_is_refused(authority: Authority) -> None:
    request = query().replace(b"\x02\x01\x01", b"\x02\x01\x02", 1)
    assert not authority.tsa.respond(request).granted
