"""Every object identifier that the authority issues can be read by Go's encoding/asn1, whose arcs are below 2³¹."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from asn1crypto import core, parser, tsp
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from signers import NOW
from simulated_sigstore import make_authority

_LARGEST = 2**31 - 1
_UNIVERSAL, _OCTETS, _IDENTIFIER = 0, 4, 6


def identifiers(der: bytes) -> Iterator[str]:
    """Yield the object identifiers in DER, those inside of octet strings too."""
    while der:
        kind, method, tag, head, content, trailer = parser.parse(der)
        if (kind, tag) == (_UNIVERSAL, _IDENTIFIER):
            yield core.ObjectIdentifier.load(head + content).dotted
        elif method == 1:
            yield from identifiers(content)
        elif (kind, tag) == (_UNIVERSAL, _OCTETS):
            with suppress(ValueError):  # not DER: a hash or a signature
                yield from list(identifiers(content))
        der = der[len(head) + len(content) + len(trailer) :]


def issued(directory: Path) -> Iterator[bytes]:
    """Yield one of each kind of DER that an authority issues."""
    authority = make_authority(directory, now=datetime.fromtimestamp(NOW, UTC))
    yield asyncio.run(authority.certify(ec.generate_private_key(ec.SECP256R1())))
    for certificate in (authority.keys.ca_certificate, *authority.keys.tsa_chain):
        yield certificate.public_bytes(Encoding.DER)
    imprint = {"hash_algorithm": {"algorithm": "sha256"}, "hashed_message": sha256(b"a signature").digest()}
    reply = authority.tsa.respond(tsp.TimeStampReq({"version": "v1", "message_imprint": imprint, "cert_req": True}).dump())
    assert reply.granted
    yield reply.der


def test_every_arc_is_below_two_to_the_31st(tmp_path: Path) -> None:
    oids = {oid for der in issued(tmp_path) for oid in identifiers(der)}
    assert {"1.3.6.1.4.1.57264.2", "1.3.6.1.4.1.57264.1.8", "1.3.6.1.5.5.7.3.3", "1.3.6.1.5.5.7.3.8"} <= oids
    assert [oid for oid in oids if max(map(int, oid.split("."))) > _LARGEST] == []


@pytest.mark.parametrize("oid", ["2.25.22442492814302061127732997953213974706", "1.2.2147483648"])
def test_a_larger_arc_is_found(oid: str) -> None:
    der = core.SequenceOf([core.OctetString(core.ObjectIdentifier(oid).dump())], spec=core.OctetString).dump()
    assert [max(map(int, found.split("."))) > _LARGEST for found in identifiers(der)] == [True]
