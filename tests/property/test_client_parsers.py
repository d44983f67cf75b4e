"""Whatever a user, a file or a registry says: a value, or a `TreatyError`, and never anything else."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_registry import NAME, uri_of, with_echo

from treaty_client.policy import load_policy
from treaty_client.protocols.store import Lockfile
from treaty_client.registries import api
from treaty_client.registries.bundle import parse_bundle
from treaty_client.registries.replies import Page
from treaty_client.registries.trust import TrustedRegistries, parse_registry_name
from treaty_consensus.did import parse_did
from treaty_consensus.errors import TreatyError
from treaty_io.base_url import parse_base_url
from treaty_io.identity import Identity
from treaty_io.network import egress
from treaty_io.network.did_documents import read_did_document
from treaty_io.network.hosts import Network

ALICE = parse_did("did:wba:alice.example")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode())
URLS = st.text(max_size=60) | st.tuples(
    st.sampled_from(["http://", "https://", "wss://", "//", "https:", "https://[", "https://u@"]), st.text(max_size=40)
).map("".join)


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def parse(data: bytes) -> object:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.touch(mode=0o600)
            path.write_bytes(data)
            return read(path)

    return parse


@pytest.mark.parametrize(
    "parse",
    [
        parse_base_url,
        parse_registry_name,
        lambda text: parse_registry_name(f"{NAME.base_url}#{text}"),
        lambda text: Network.parse([text]),
        lambda text: Network.parse([f"host={text}"]),
        Network().endpoint,
        egress.EgressGuard(Network()).check_url,
        Identity.create,
    ],
)
@settings(max_examples=examples(100), deadline=None)
@given(text=URLS)
def test_any_text(parse: Callable[[str], object], text: str) -> None:
    try:
        assert parse(text) is not None
    except TreatyError as error:
        assert error.code and error.message


@pytest.mark.parametrize(
    "parse",
    [
        parse_bundle,
        lambda data: read_did_document(ALICE, data),
        in_file("identity.json", Identity.load),
        in_file("registries.json", lambda path: TrustedRegistries(path.parent).all()),
        in_file("treaty.lock", lambda path: Lockfile(path.parent).read()),
        in_file("policy.toml", load_policy),
        lambda data: api.parse_reply(data, Page),
        lambda data: api.refusal_of(422, api.parse_problem(data)),
    ],
)
@settings(max_examples=examples(60), deadline=None)
@given(data=DOCUMENTS)
def test_any_document(parse: Callable[[bytes], object], data: bytes) -> None:
    try:
        assert parse(data) is not None
    except TreatyError as error:
        assert error.code and error.message


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_any_value_in_the_place_of_another(data: st.DataObject) -> None:
    """A bundle in which one member, anywhere, is another JSON value."""
    value = json.loads(with_echo().bundle(uri_of(), since=3))
    place = value
    while isinstance(place, dict | list) and place:
        name = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else list(range(len(place)))))
        if data.draw(st.booleans()) or not isinstance(place[name], dict | list) or not place[name]:
            place[name] = data.draw(JSON)
            break
        place = place[name]
    try:
        parse_bundle(json.dumps(value).encode())
    except TreatyError as error:
        assert error.code and error.message
