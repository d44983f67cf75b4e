"""Whatever arrives as a signature, or as the file of the accepted ones, is accepted or refused, and nothing else happens."""

from __future__ import annotations

import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from treaty_agent.authentication import didwba, message_signature
from treaty_agent.authentication.message_signature import Parameters, Request
from treaty_agent.authentication.nonces import NonceMemory
from treaty_consensus.errors import TreatyError, Unauthorized
from treaty_io.identity import Identity
from treaty_io.identity.key_binding import check_binding

ALICE = Identity.create("alice.example", bind=True)
KEYS = {ALICE.key_id: ALICE.public_key}
URL = "https://shop.example/a?b"
HONEST = message_signature.sign(Request("POST", URL, {}, b"{}"), Parameters(ALICE.key_id, "n", 1, 2), ALICE.sign)
OLDER = didwba.sign(ALICE.key_id, "n", 1, "shop.example", ALICE.sign)
FIELDS = st.text(st.characters(max_codepoint=0x17F), max_size=200)


def mutated(text: str) -> st.SearchStrategy[str]:
    """The text with a stretch of it replaced."""
    places = st.integers(0, len(text))
    return st.tuples(places, places, FIELDS).map(lambda cut: text[: min(cut[:2])] + cut[2] + text[max(cut[:2]) :])


@settings(max_examples=examples(300), deadline=None)
@given(
    inputs=FIELDS | mutated(HONEST["Signature-Input"]),
    signature=FIELDS | mutated(HONEST["Signature"]) | st.just(HONEST["Signature"]),
    digest=FIELDS | mutated(HONEST["Content-Digest"]) | st.just(HONEST["Content-Digest"]),
    url=st.just(URL) | FIELDS.map("https://shop.example/".__add__),
)
def test_only_the_honest_signature_verifies(inputs: str, signature: str, digest: str, url: str) -> None:
    headers = {"signature-input": inputs, "signature": signature, "content-digest": digest}
    try:
        message_signature.claimed_key(headers)
        parameters = message_signature.verify(Request("POST", url, headers, b"{}"), KEYS)
    except Unauthorized as error:
        assert error.code.startswith("authentication.")
    else:
        assert (parameters, url) == (Parameters(ALICE.key_id, "n", 1, 2), URL)


@settings(max_examples=examples(300), deadline=None)
@given(header=FIELDS.map("DIDWba ".__add__) | mutated(OLDER))
def test_only_the_honest_header_verifies(header: str) -> None:
    try:
        credential, signature = didwba.parse(header)
        didwba.verify(credential, signature, ALICE.public_key, ("shop.example",))
    except Unauthorized as error:
        assert error.code.startswith("authentication.")
    else:
        # the name of the key is not signed: so signatures are remembered by DID and nonce
        assert (credential.did, credential.nonce, credential.created) == (ALICE.did, "n", 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | FIELDS,
    lambda inner: st.lists(inner) | st.dictionaries(FIELDS, inner),
    max_leaves=8,
)


@settings(max_examples=examples(200), deadline=None)
@given(name=st.sampled_from(["proof", "assertionMethod", "verificationMethod", "more"]), value=JSON)
def test_a_changed_document_of_a_bound_did_is_refused(name: str, value: object) -> None:
    document = ALICE.did_document(created=1)
    with pytest.raises(TreatyError):
        check_binding({**document, name: value}, ALICE.parsed)


@settings(max_examples=examples(100), deadline=None)
@given(data=st.binary(max_size=300) | FIELDS.map(lambda text: f"treaty-nonces 1 - 0\n{text}\n".encode()))
def test_any_file_opens_and_refuses_the_past(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("nonces") / "nonces"
    path.write_bytes(data)
    memory = NonceMemory(path, clock=lambda: 1_790_000_000)
    with pytest.raises(Unauthorized):
        memory.accept(ALICE.key_id, "n", 1_790_000_000)
    memory.close()
