"""The host's end of a worker's pipe: any payload is of the declared form or a ValueError, and honest ones round-trip."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from treaty_handler import Audit, Cancel, Effect, Emit, End, Failure, Invoke, Multicast, Persist, Request, Return, Send, SetTimer
from treaty_sandbox.worker import framing

text = st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
failures = st.none() | st.builds(Failure, code=st.integers(-(2**63), 2**63 - 1), message=text)
effects: st.SearchStrategy[Effect] = st.one_of(
    st.builds(Send, peer=text, data=st.binary(max_size=50), stream=text),
    st.builds(Multicast, peers=st.lists(text, max_size=3).map(tuple), data=st.binary(max_size=50), stream=text),
    st.builds(Invoke, call=text, operation=text, arguments=st.dictionaries(text, values, max_size=3)),
    st.builds(Request, call=text, count=st.integers(-(2**63), 2**63 - 1)),
    st.builds(Cancel, call=text),
    st.builds(Emit, call=text, value=values),
    st.builds(Return, call=text, value=values, error=failures),
    st.builds(SetTimer, name=text, seconds=st.none() | st.floats(allow_nan=False)),
    st.builds(Persist, key=text, value=st.none() | st.binary(max_size=50)),
    st.builds(End, status=st.sampled_from(["completed", "failed"])),
    st.builds(Audit, text=text),
)


def payload(*parts: object) -> bytes:
    return framing.encode_frame(*parts)[framing.HEADER :]


def decode(data: bytes) -> list[Effect]:
    kind, fields = framing.decode_payload(data)
    assert kind
    return framing.decode_effects(fields)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(effects, max_size=6))
def test_effects_round_trip(wanted: list[Effect]) -> None:
    assert decode(payload("effects", framing.effect_parts(wanted))) == wanted


@settings(max_examples=examples(400), deadline=None)
@given(st.binary(max_size=200))
def test_any_payload(data: bytes) -> None:
    with suppress(ValueError):
        for effect in decode(data):
            assert type(effect) in framing.EFFECTS.values()


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(effects, min_size=1, max_size=4), st.data())
def test_damaged_payloads(wanted: list[Effect], data: st.DataObject) -> None:
    damaged = bytearray(payload("effects", framing.effect_parts(wanted)))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ValueError, AssertionError):
        for effect in decode(bytes(damaged)):
            for name in type(effect).__slots__:
                assert not isinstance(getattr(effect, name), msgspec.Raw)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 1_000_000,
        b"\x92\xa7effects" + b"\x91" * 1_000_000,
    ],
    ids=["nothing", "huge array", "huge map", "huge bytes", "deep", "deep inside"],
)
def test_what_costs_more_than_it_weighs(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


def test_the_example_of_the_specification() -> None:
    documented = next(line for line in (framing.__doc__ or "").splitlines() if line.strip().startswith("00 00 00"))
    frame = framing.encode_frame("effects", framing.effect_parts([End()]))
    assert frame == bytes.fromhex(documented)


def test_a_frame_has_a_cap() -> None:
    with pytest.raises(ValueError, match="at most"):
        framing.encode_frame("load", bytes(framing.MAX_FRAME))
