"""Room for request bodies: bounded in all and for one network, and given back."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from treaty_consensus.errors import Unavailable
from treaty_registry.serving.bodies import MAX_BODY, MAX_HELD, BodyRoom


def test_one_network_holds_a_quarter() -> None:
    room = BodyRoom(1_000)
    with ExitStack() as stack:
        for number in range(5):
            stack.enter_context(room.take(f"192.0.2.{number}", 50))
        with pytest.raises(Unavailable) as error, room.take("192.0.2.77", 1):
            pytest.fail("it was taken")
        assert error.value.code == "registry.busy" and error.value.fix
        with room.take("198.51.100.1", 250):
            pass
    with room.take("192.0.2.77", 250):
        pass


def test_all_together_hold_so_much() -> None:
    room = BodyRoom(1_000)
    with ExitStack() as stack:
        for number in range(4):
            stack.enter_context(room.take(f"192.0.{number}.1", 250))
        with pytest.raises(Unavailable), room.take("198.51.100.1", 1):
            pytest.fail("it was taken")
        with pytest.raises(Unavailable), room.take(None, 1):
            pytest.fail("it was taken")
    with room.take(None, 250):
        pass


def test_room_is_given_back_when_a_request_fails() -> None:
    room = BodyRoom(100)
    for _ in range(10):
        with pytest.raises(ValueError, match="broken"), room.take("192.0.2.1", 25):
            raise ValueError("broken")


def test_many_bodies_of_the_largest_size_have_room() -> None:
    room, number = BodyRoom(), MAX_HELD // 4 // MAX_BODY
    assert number >= 2, "one body must not take the room of a whole network"
    with ExitStack() as stack:
        for _ in range(number):
            stack.enter_context(room.take("192.0.2.1", MAX_BODY))
        with pytest.raises(Unavailable), room.take("192.0.2.1", MAX_BODY):
            pytest.fail("it was taken")
