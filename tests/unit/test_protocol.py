"""Protocol URIs, versions, topics, documents, cards."""

from __future__ import annotations

import pytest
from signers import key_signer

from treaty_consensus import protocol
from treaty_consensus.errors import Malformed, TooLarge

KEY = key_signer("alice").did


@pytest.mark.parametrize(
    "text",
    [
        "https://registry.example/protocols/example.com/product-info/1.0",
        "https://localhost:8080/protocols/example.com:users:alice/x/2.1rc1",
        f"https://registry.example/protocols/{KEY}/x/1!2.0.post1.dev3",
    ],
)
def test_uris_round_trip(text: str) -> None:
    assert str(protocol.parse_protocol_uri(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "http://registry.example/protocols/example.com/x/1.0",
        "https://registry.example/protocols/example.com/x",
        "https://registry.example/protocols/example.com/x/1.0/",
        "https://registry.example/protocols/example.com/x/1.0?a",
        "https://registry.example/protocols/example.com/x/v1.0",
        "https://registry.example/protocols/example.com/x/1.0.0-1",
        "https://registry.example/protocols/example.com/x/1.0+local",
        "https://registry.example/protocols/example.com/X/1.0",
        "https://registry.example/protocols/Example.com/x/1.0",
        "https://registry.example/protocols/did:wba:example.com/x/1.0",
        "https://registry.example/protocols/example.com%3A80/x/1.0",
        "https://registry.example:0/protocols/example.com/x/1.0",
        "https://registry.example:65536/protocols/example.com/x/1.0",
        "https://user@registry.example/protocols/example.com/x/1.0",
        "https://registry.example/other/example.com/x/1.0",
        "https://registry.example/protocols/example.com/x/" + "1" * 600,
        "HTTPS://registry.example/protocols/example.com/x/1.0",
        " https://registry.example/protocols/example.com/x/1.0",
        "https://registry.example/protocols/example.com/x/1.0\n",
        "https://registry.example/protocols/example.com/x/\u0661.0",
    ],
)
def test_other_spellings_of_uris_are_refused(text: str) -> None:
    with pytest.raises(Malformed):
        protocol.parse_protocol_uri(text)


def test_a_version_that_is_not_normal_is_told_how_to_be() -> None:
    with pytest.raises(Malformed, match=r"write '1\.0rc1'"):
        protocol.parse_version("1.0-RC1")


def test_the_hash_of_a_document_is_sha256_of_its_bytes() -> None:
    document = "# 需求\n获取商品信息\n".encode()
    assert protocol.check_document(document) == "c0b599a4053cea0bef1245d900f7c5cdc792c6a456b8454ce41a77d4e8697b3b"


@pytest.mark.parametrize("data", [b"", b" \n", b"\xff\xfe", b"\xef\xbb\xbf# x", b"a\0b"])
def test_documents_are_text(data: bytes) -> None:
    with pytest.raises(Malformed):
        protocol.check_document(data)


def test_documents_are_capped() -> None:
    assert protocol.check_document(b"x" * protocol.MAX_DOCUMENT)
    with pytest.raises(TooLarge):
        protocol.check_document(b"x" * (protocol.MAX_DOCUMENT + 1))


def test_cards_round_trip() -> None:
    card = protocol.Card("Product information", "What a shop says of a product", ("commerce",), "Apache-2.0")
    assert protocol.parse_card(card.encode()) == card
    assert protocol.Card("T", "").encode() == b'{"summary":"","title":"T"}'


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"{}",
        b'{"summary":"","title":""}',
        b'{"summary":"s","tags":["Not A Tag"],"title":"T"}',
        b'{"summary":"s","tags":[],"title":"T"}',
        b'{"extra":1,"summary":"s","title":"T"}',
        b'{"summary": "s","title":"T"}',
        b'{"summary":"' + b"s" * 501 + b'","title":"T"}',
    ],
)
def test_cards_of_another_shape_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        protocol.parse_card(data)


@pytest.mark.parametrize(
    ("text", "good"), [("commerce/product-info", True), ("a", True), ("a/b/c/d", True), ("a/b/c/d/e", False)]
)
def test_topics(text: str, good: bool) -> None:
    assert protocol.is_topic(text) is good
    assert not any(map(protocol.is_topic, (text + "/", "/" + text, text.upper(), text + "\n", "")))
