"""Payloads of an agreed protocol: their two forms, compression, chunks, and what a hostile peer makes of them."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from typing import Any

import pytest

from treaty_anp.flow_profile.capabilities import ProtocolOffer
from treaty_anp.flow_profile.parameters import Choice, Range, Rule, Unsupported, kept, preferred, respond
from treaty_anp.flow_profile.transfer import MAX_DATA, PayloadCodec
from treaty_consensus.canonical import b64encode
from treaty_consensus.errors import Malformed, TooLarge, TreatyError

TEXT = json.dumps(
    [{"number": number, "name": "笔记本电脑", "id": f"{number * 7919 % 99991:x}"} for number in range(2000)]
).encode()
QUERY = {"query": "SELECT * FROM dataset", "format": "json", "priority": "normal"}


def sent(codec: PayloadCodec, data: bytes, action: str = "") -> list[dict[str, Any]]:
    """The payloads of the messages, as they are on the wire."""
    return [value for _, value in codec.encode(data, action)]


def read(codec: PayloadCodec, values: list[dict[str, Any]]) -> list[Any]:
    return [codec.decode(value, "message") for value in values]


@pytest.mark.parametrize("format", ["gzip", "deflate", "none", None])
@pytest.mark.parametrize("chunk", [512, 3000, 100_000, None])
def test_001_05_agreed_compression_and_chunks_round_trip(format: str | None, chunk: int | None) -> None:
    terms = {name: value for name, value in (("compressionFormat", format), ("chunkSize", chunk)) if value is not None}
    values = sent(PayloadCodec(terms), TEXT)
    packed = {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(format or "")
    assert [value.get("encoding") for value in values] == [format if packed else None] * len(values)
    sizes = [len(value["data"]) * 3 // 4 for value in values]
    assert max(sizes) <= (chunk or MAX_DATA) + 2
    assert (len(values) > 1) == (sum(sizes) > (chunk or MAX_DATA))
    *rest, last = read(PayloadCodec(terms), values)
    assert (rest, last) == ([None] * (len(values) - 1), (TEXT, ""))
    if packed:
        assert sum(sizes) < len(TEXT) / 4


def test_001_05_incompressible_bytes_stay_uncompressed() -> None:
    (value,) = sent(PayloadCodec({"compressionFormat": "gzip"}), b"{}")
    assert value == {"data": b64encode(b"{}")}


def test_001_07_a_payload_arrives_as_canonical_bytes() -> None:
    codec = PayloadCodec()
    assert codec.decode(QUERY, "query") == (
        b'{"format":"json","priority":"normal","query":"SELECT * FROM dataset"}',
        "query",
    )
    assert codec.encode(b'{"rows": [1, 2]}') == [("query", {"rows": [1, 2]})]
    assert codec.encode(b'{"rows": []}', "result") == [("result", {"rows": []})]
    assert codec.encode(b"no JSON") == [("message", {"data": b64encode(b"no JSON")})]
    assert codec.encode(b"[1]") == [("message", {"data": b64encode(b"[1]")})]
    lookalike = json.dumps({"data": "AAAA"}).encode()
    assert codec.encode(lookalike) == [("message", {"data": b64encode(lookalike)})]


def test_001_07_answers_take_the_peers_latest_form() -> None:
    codec = PayloadCodec(json_form=False)
    assert codec.encode(b"{}") == [("message", {"data": b64encode(b"{}")})]
    codec.decode({"data": {"rows": []}, "format": "json"}, "result")
    assert codec.json_form
    assert codec.encode(b"{}") == [("result", {})]
    codec.decode({"data": ""}, "message")
    assert codec.encode(b"{}") == [("message", {"data": b64encode(b"{}")})]


def test_001_07_an_action_needs_a_plain_name() -> None:
    codec = PayloadCodec()
    assert codec.decode({}, "a/b") == (b"{}", "")
    assert codec.encode(b"{}") == [("message", {})]


def test_001_07_json_outside_a_payload_goes_as_bytes() -> None:
    codec = PayloadCodec(json_form=True)
    for text in (b'{"a":' * 31 + b"{}" + b"}" * 31, b'{"n":1e300}', b'{"a":1,"a":2}', b"{},{}"):
        assert "data" in sent(codec, text)[0]


BOMB = gzip.compress(bytes(5_000_000))


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ([{"data": "AA==AA=="}], Malformed),
        ([{"data": "AB=="}], Malformed),
        ([{"data": b64encode(BOMB), "encoding": "gzip"}], TooLarge),
        ([{"data": b64encode(bytes(10_001))}], TooLarge),
        ([{"data": b64encode(bytes(6000)), "part": n, "parts": 3} for n in (1, 2)], TooLarge),
        ([{"data": "", "encoding": "gzip"}], Malformed),
        ([{"data": b64encode(gzip.compress(b"x")[:-1]), "encoding": "gzip"}], Malformed),
        ([{"data": b64encode(gzip.compress(b"x") + b"y"), "encoding": "gzip"}], Malformed),
        ([{"data": b64encode(zlib.compress(b"x")), "encoding": "gzip"}], Malformed),
        ([{"data": b64encode(zlib.compress(b"x")), "encoding": "deflate"}], Malformed),
        ([{"data": "", "encoding": "br"}], Malformed),
        ([{"data": "", "encoding": ["gzip"]}], Malformed),
        ([{"data": "", "part": 2, "parts": 2}], Malformed),
        ([{"data": "", "part": 1, "parts": 2}, {"data": "", "part": 1, "parts": 2}], Malformed),
        ([{"data": "", "part": 1, "parts": 2}, {"data": "", "part": 2, "parts": 3}], Malformed),
        ([{"data": "", "part": 1, "parts": 2}, {"data": ""}], Malformed),
        ([{"data": "", "part": 1, "parts": 2}, QUERY], Malformed),
        ([{"data": "", "part": 0, "parts": 1}], Malformed),
        ([{"data": "", "part": True, "parts": 1}], Malformed),
        ([{"data": "", "part": 1, "parts": 10**6}], Malformed),
        ([{"text": "x" * 10_000}], TooLarge),
    ],
    ids=range(21),
)
def test_a_payload_that_breaks_the_agreement_is_refused(values: list[dict[str, Any]], error: type[TreatyError]) -> None:
    codec = PayloadCodec({"compressionFormat": "gzip", "chunkSize": 6000, "maxMessageSize": 10_000})
    *before, last = values
    assert all(codec.decode(value, "x") is None for value in before)
    with pytest.raises(error):
        codec.decode(last, "x")


def test_a_compressed_bomb_is_not_inflated() -> None:
    codec = PayloadCodec({"compressionFormat": "gzip", "maxMessageSize": 10_000})
    value = {"data": b64encode(gzip.compress(bytes(9_000_000), 9)), "encoding": "gzip"}
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            codec.decode(value, "x")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "value", [{"data": "", "part": 1, "parts": 2}, {"data": b64encode(gzip.compress(b"")), "encoding": "gzip"}]
)
def test_nothing_that_was_not_agreed_on_is_read(value: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        PayloadCodec().decode(value, "x")


# The parameters that the session keeps


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("chunkSize", Range(1, 5000)),
        ("chunkSize", Choice((1024, "large"))),
        ("compressionFormat", Choice(("gzip", "br"))),
        ("compressionFormat", Range(1, 2)),
        ("encryptionLevel", Choice(("AES-256-GCM",))),
    ],
)
def test_001_05_a_value_that_no_session_keeps_is_not_offered(name: str, rule: Rule) -> None:
    with pytest.raises(Malformed) as failure:
        ProtocolOffer("anp:protocol:data-sharing:1.0", parameters={name: rule})
    assert failure.value.code == "flow.offer"


def test_001_05_encryption_needs_an_encrypted_connection() -> None:
    parameters = {"encryptionLevel": Choice(("AES-128-GCM", "none"))}
    assert preferred(kept(parameters, encrypted=True)) == {"encryptionLevel": "AES-128-GCM"}
    assert preferred(kept(parameters, encrypted=False)) == {"encryptionLevel": "none"}
    with pytest.raises(Unsupported) as failure:
        respond(kept(parameters, encrypted=False), {"encryptionLevel": "AES-128-GCM"})
    assert failure.value.details["supported"] == ["none"]
    needed = kept({"encryptionLevel": Choice(("AES-128-GCM",))}, encrypted=False)
    for request in ({}, {"encryptionLevel": "AES-128-GCM"}, {"encryptionLevel": "none"}):
        with pytest.raises(Unsupported):
            respond(needed, request)
    with pytest.raises(Unsupported):
        preferred(needed)
