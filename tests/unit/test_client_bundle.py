"""Bundles: one form, strictly read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from simulated_registry import TOPIC, uri_of, with_echo

from treaty_client.registries import bundle as bundles
from treaty_client.registries.bundle import MAX_LEAVES, parse_bundle
from treaty_consensus.errors import Malformed, TooLarge, TreatyError


def test_parsing_is_the_inverse_of_encoding() -> None:
    registry = with_echo()
    for data in (registry.bundle(uri_of()), registry.bundle(uri_of(), 3), registry.topic_bundle(TOPIC)):
        assert parse_bundle(data).encode() == data
    assert parse_bundle(registry.bundle(uri_of())).consistency is None
    assert parse_bundle(registry.bundle(uri_of(), registry.size)).consistency == ()


def test_a_form_that_is_not_canonical_is_read_too() -> None:
    data = with_echo().bundle(uri_of())
    assert parse_bundle(json.dumps(json.loads(data), indent=1).encode()) == parse_bundle(data)


def test_members_of_a_newer_registry_are_passed_over() -> None:
    data = with_echo().bundle(uri_of())
    value = json.loads(data)
    value["more"] = value["leaves"][0]["more"] = 1
    assert parse_bundle(json.dumps(value).encode()) == parse_bundle(data)


@pytest.mark.parametrize(
    "edit",
    [
        lambda value: value.pop("uri"),
        lambda value: value.pop("checkpoint"),
        lambda value: value.pop("leaves"),
        lambda value: value.pop("blobs"),
        lambda value: value.update(topic=TOPIC),
        lambda value: value.update(uri=1),
        lambda value: value.update(uri=None),
        lambda value: value.update(consistency=None),
        lambda value: value.update(consistency=["AAA="] * 500),
        lambda value: value.update(leaves=[]),
        lambda value: value["leaves"].pop(0),
        lambda value: value["leaves"].reverse(),
        lambda value: value["leaves"].insert(0, value["leaves"][0]),
        lambda value: value["leaves"][0].update(index=-1),
        lambda value: value["leaves"][0].update(index="0"),
        lambda value: value["leaves"][0].update(index=0.0),
        lambda value: value["leaves"][0].update(leaf="!"),
        lambda value: value["leaves"][0].update(leaf="AA"),
        lambda value: value["leaves"][0].update(proof=["A" * 100]),
        lambda value: value["leaves"][0].update(proof=[""] * 64),
        lambda value: value["blobs"].update({"x": ""}),
        lambda value: value["blobs"].update({"A" * 64: ""}),
        lambda value: value["blobs"].update({"0" * 64: "A"}),
        lambda value: value["blobs"].update({"0" * 64: 1}),
    ],
)
def test_any_other_form_is_refused(edit: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(with_echo().bundle(uri_of()))
    edit(value)
    with pytest.raises(TreatyError) as error:
        parse_bundle(json.dumps(value).encode())
    assert type(error.value) in (Malformed, TooLarge)


def test_caps_come_before_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_BUNDLE", 100)
    with pytest.raises(TooLarge):
        parse_bundle(b"[" * 101)
    with pytest.raises(Malformed):
        parse_bundle(b"[" * 100)


def test_the_number_of_leaves_is_capped() -> None:
    value = json.loads(with_echo().bundle(uri_of()))
    value["leaves"] = [{"index": index, "leaf": "", "proof": []} for index in range(MAX_LEAVES + 1)]
    with pytest.raises(Malformed):
        parse_bundle(json.dumps(value).encode())
