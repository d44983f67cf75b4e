"""Every byte of a bundle, a wheel or an attestation matters: change one, and the step that should notice
does, or nothing changed. What never happens is another exception, or a result that differs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_registry import ALICE, NAME, SimulatedRegistry, flipped, uri_of, with_echo

from treaty_client.policy import Policy
from treaty_client.protocols.verification.records import ProvenProtocol, VerifiedProtocol
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_client.protocols.verification.ten_steps import read_bundle, verify_bundle, verify_handler
from treaty_client.registries.trust import TrustedRegistry
from treaty_consensus import canonical
from treaty_consensus.protocol import parse_protocol_uri

POLICY = Policy([ALICE.did])
ECHO = parse_protocol_uri(uri_of())


@cache
def world() -> tuple[SimulatedRegistry, TrustedRegistry, bytes, bytes, VerifiedProtocol]:
    """A registry, what an agent has seen of it, a good bundle and wheel, and what they prove."""
    registry = with_echo()
    registry.served = 5
    trusted = TrustedRegistry(NAME, registry.checkpoint())
    registry.served = None
    data = registry.bundle(uri_of(), since=5)
    proven = prove(data, registry, trusted)
    wheel = registry.blobs[proven.handler.body.wheel.sha256]
    return registry, trusted, data, wheel, verify_handler(proven, wheel, POLICY, bundle=data)


def prove(data: bytes, registry: SimulatedRegistry, trusted: TrustedRegistry) -> ProvenProtocol:
    return verify_bundle(read_bundle(data, uri=uri_of()), ECHO, trusted, POLICY, now=registry.now)


def verified(data: bytes) -> VerifiedProtocol | int:
    """What a changed bundle proves, or the step that refuses it."""
    registry, trusted, good, wheel, _ = world()
    try:
        return verify_handler(prove(data, registry, trusted), wheel, POLICY, bundle=good)
    except VerificationFailed as failure:
        assert failure.code and failure.message
        return failure.step


@pytest.mark.threat(3)
@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_no_byte_of_a_bundle_can_be_changed_unnoticed(data: st.DataObject) -> None:
    _, _, good, _, expected = world()
    at = data.draw(st.integers(0, len(good) - 1))
    mask = data.draw(st.integers(1, 255))
    outcome = verified(flipped(good, at, mask))
    # The card is for display, and may be left out.
    assert isinstance(outcome, int) or outcome in (expected, replace(expected, card=None))


@settings(max_examples=examples(100), deadline=None)
@given(cut=st.integers(0, 10**6), more=st.binary(min_size=0, max_size=4))
def test_a_bundle_is_whole_or_refused(cut: int, more: bytes) -> None:
    _, _, good, _, expected = world()
    outcome = verified(good[: cut % len(good)] + more)
    assert outcome == 1
    assert verified(good + more) in (expected, 1)


def _places(value: dict[str, Any]) -> list[tuple[tuple[str | int, ...], int]]:
    """Where bytes are in a bundle, and the step that must notice when one of them changes."""
    _, _, _, _, good = world()
    attestation, root = canonical.hex_digest(good.attestation), canonical.hex_digest(good.trusted_root)
    places: list[tuple[tuple[str | int, ...], int]] = [(("consistency", i), 2) for i in range(len(value["consistency"]))]
    for number, leaf in enumerate(value["leaves"]):
        step = 2 if number == 0 else 3
        places.append((("leaves", number, "leaf"), step))
        places += [(("leaves", number, "proof", i), step) for i in range(len(leaf["proof"]))]
    places += [(("blobs", digest), 8 if digest in (attestation, root) else 5) for digest in value["blobs"]]
    return places


@pytest.mark.threat(2)
@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_the_step_that_should_notice_does(data: st.DataObject) -> None:
    _, _, good, _, _ = world()
    value = json.loads(good)
    path, step = data.draw(st.sampled_from(_places(value)))
    parent = value
    for name in path[:-1]:
        parent = parent[name]
    content = canonical.b64decode(parent[path[-1]], limit=2**20)
    at, mask = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(1, 255))
    parent[path[-1]] = canonical.b64encode(flipped(content, at, mask))
    assert verified(canonical.dumps(value)) == step


def test_no_byte_of_a_checkpoint_can_be_changed() -> None:
    _, _, good, _, _ = world()
    value = json.loads(good)
    note = value["checkpoint"]
    for at in range(len(note)):
        value["checkpoint"] = note[:at] + chr(ord(note[at]) ^ 1) + note[at + 1 :]
        assert verified(canonical.dumps(value)) == 2, at


@pytest.mark.parametrize("change", [-1, 1, 2, 100])
def test_no_leaf_can_be_said_to_stand_elsewhere(change: int) -> None:
    _, _, good, _, _ = world()
    for number in range(1, len(json.loads(good)["leaves"])):
        value = json.loads(good)
        value["leaves"][number]["index"] += change
        value["leaves"].sort(key=lambda leaf: leaf["index"])
        assert verified(canonical.dumps(value)) in (1, 3)


def test_nothing_can_be_left_out() -> None:
    _, _, good, _, expected = world()
    for number in range(1, len(json.loads(good)["leaves"])):
        value = json.loads(good)
        left_out = json.loads(canonical.b64decode(value["leaves"].pop(number)["leaf"], limit=2**16))
        kind = json.loads(canonical.b64decode(left_out["payload"], limit=2**16))["type"]
        outcome = verified(canonical.dumps(value))
        needed = {"identity": (4,), "publish": (4,), "handler": (6,), "parameters": (expected,)}
        assert outcome in needed[kind], kind


@pytest.mark.threat(1)
def test_no_byte_of_a_wheel_can_be_changed() -> None:
    registry, trusted, good, wheel, _ = world()
    proven = prove(good, registry, trusted)
    for at in range(len(wheel)):
        with pytest.raises(VerificationFailed) as failure:
            verify_handler(proven, flipped(wheel, at), POLICY, bundle=good)
        assert failure.value.step == 7
    for changed in (b"", wheel[:-1], wheel + b"\0"):
        with pytest.raises(VerificationFailed) as failure:
            verify_handler(proven, changed, POLICY, bundle=good)
        assert failure.value.step == 7
