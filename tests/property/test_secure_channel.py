"""Nothing that somebody in between does to a session of the E2EE profile gets through, and nothing that is said crashes an
end."""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from secure_peers import BUYER, NOW, SHOP, Peer, destination, draws, opened, plain_hello, shake_hands, source

from treaty_anp.e2ee import is_secure_hello
from treaty_anp.e2ee.channel import LIFETIME, ChannelState
from treaty_anp.e2ee.records import MAX_PART
from treaty_consensus.errors import TreatyError

ASKED = plain_hello("sourceHello", BUYER, SHOP.did)
ANSWERED = plain_hello("destinationHello", SHOP, BUYER.did)
FRAME = b"\x40a frame"


def before_source_hello() -> tuple[Peer, str]:
    return destination(), source().say(ASKED)[0]


def before_destination_hello() -> tuple[Peer, str]:
    near, far = source(), destination()
    far.take(*near.say(ASKED))
    return near, far.say(ANSWERED)[0]


def before_destinations_finished() -> tuple[Peer, str]:
    near, far = source(), destination()
    far.take(*near.say(ASKED))
    answered, finished = far.say(ANSWERED)
    near.take(answered)
    return near, finished


def before_sources_finished() -> tuple[Peer, str]:
    near, far = source(), destination()
    far.take(*near.say(ASKED))
    replies = near.take(*far.say(ANSWERED))
    return far, replies[0]


def before_a_record() -> tuple[Peer, str]:
    near, far = opened()
    return far, near.say(FRAME)[0]


def before_a_close() -> tuple[Peer, str]:
    near, far = opened()
    return far, near.channel.close("session.idle", NOW)[0]


MOMENTS = [
    *(before_source_hello, before_destination_hello, before_destinations_finished, before_sources_finished),
    *(before_a_record, before_a_close),
]


def again(peer: Peer) -> Peer:
    """A copy that knows nothing of what happens to the original from now on."""
    channel = copy.copy(peer.channel)
    channel._opener = copy.deepcopy(channel._opener)
    return Peer(channel, peer.signer, got=list(peer.got))


@pytest.mark.threat(105)
@pytest.mark.parametrize("moment", MOMENTS)
def test_no_byte_of_any_message_can_be_changed(moment: Any) -> None:
    original, text = moment()
    data = text.encode()
    for position in range(len(data)):
        reader = again(original)
        flipped = data[:position] + bytes([data[position] ^ (1 << position % 8)]) + data[position + 1 :]
        with pytest.raises(TreatyError):
            reader.take(flipped.decode("utf-8", "surrogateescape"))
        assert reader.got == original.got, position
        assert reader.ends == []
        assert reader.channel.state is ChannelState.BROKEN
        with pytest.raises(TreatyError):
            reader.take(text)
    original.take(text)


@pytest.mark.parametrize("moment", MOMENTS)
@given(data=st.data())
def test_nor_can_it_be_cut_or_spliced(moment: Any, data: st.DataObject) -> None:
    original, text = made(moment)
    reader = again(original)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    spliced = text[:start] + data.draw(st.text(max_size=4)) + text[end:]
    if spliced == text:
        return
    try:
        reader.take(spliced)
    except TreatyError:
        assert reader.got == original.got
    else:
        assert json.loads(spliced) == json.loads(text), "whitespace between the members is all that may differ"


@cache
def made(moment: Any) -> tuple[Peer, str]:
    reader, text = moment()
    return reader, text


@cache
def pool() -> tuple[str | bytes, ...]:
    """What an attacker has seen or can make: genuine messages of another session, and rubbish."""
    near, far = source(draw=draws("seen source")), destination(draw=draws("seen destination"))
    seen: list[str | bytes] = list(shake_hands(near, far))
    seen += near.say(FRAME) + far.say(FRAME) + near.say(b"x" * (MAX_PART + 1)) + near.channel.close("", NOW)
    return (*seen, ASKED, ANSWERED, "", "{}", '{"type": "finished"}', FRAME, b"")


class Session:
    """A session whose every message goes through an attacker's hands."""

    def __init__(self) -> None:
        self.ends = {"near": source(), "far": destination()}
        self.said: dict[str, list[str | bytes]] = {"near": [], "far": []}
        self.wire: dict[str, list[str]] = {"near": [], "far": []}

    def say(self, end: str, message: str | bytes, now: float) -> None:
        peer = self.ends[end]
        hello = peer.channel.may_say_hello
        self.wire[end] += peer.say(message, now)
        if not hello:
            self.said[end].append(message)

    def take(self, end: str, message: str | bytes, now: float) -> None:
        self.wire[end] += self.ends[end].take(message, now=now)

    def check(self) -> None:
        for end, other in (("near", "far"), ("far", "near")):
            got = self.ends[end].got
            assert all(is_secure_hello(str(hello)) for hello in got[:1])
            assert got[1:] == self.said[other][: len(got[1:])], (
                "nothing arrives but what was said, in that order, from the beginning"
            )


STEPS = st.one_of(
    st.tuples(
        st.just("say"), st.sampled_from(["near", "far"]), st.sampled_from([ASKED, ANSWERED, FRAME, b"", b"x" * (MAX_PART + 1)])
    ),
    st.tuples(st.just("forward"), st.sampled_from(["near", "far"]), st.integers(0, 3)),
    st.tuples(st.just("inject"), st.sampled_from(["near", "far"]), st.integers(0, 20)),
    st.tuples(st.just("close"), st.sampled_from(["near", "far"]), st.just(0)),
    st.tuples(st.just("wait"), st.just("near"), st.sampled_from([1, 40, LIFETIME])),
)


@given(st.booleans(), st.lists(STEPS, max_size=24))
def test_whatever_is_said_and_delivered_every_end_stays_sane(shaken: bool, steps: list[tuple[str, str, Any]]) -> None:
    session, now = Session(), NOW
    if shaken:
        shake_hands(session.ends["near"], session.ends["far"])
    for kind, end, what in steps:
        peer = session.ends[end]
        broken = peer.channel.state is ChannelState.BROKEN
        other = "far" if end == "near" else "near"
        try:
            match kind:
                case "say":
                    session.say(end, what, now)
                case "forward" if session.wire[other]:
                    session.take(end, session.wire[other][min(what, len(session.wire[other]) - 1)], now)
                case "inject":
                    session.take(end, pool()[what % len(pool())], now)
                case "close":
                    session.wire[end] += peer.channel.close("session.idle", now)
                case "wait":
                    now += what
                case _:
                    continue
        except TreatyError as error:
            assert error.code
        else:
            assert not broken or kind in ("close", "wait")
        session.check()
