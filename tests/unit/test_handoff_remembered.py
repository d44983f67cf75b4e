"""The ids that a session of handoff remembers: a repetition has no second effect, however many messages come in between."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from handoffs import DATA

from treaty_handler import Effect, Invoke, Opened, PeerJoined, PeerLost, Persist, Received, Result, Send
from treaty_handoff import Kind, Message, Priority, build
from treaty_handoff.handler import handler
from treaty_sandbox.validation import MAX_SNAPSHOT

NOW = datetime(2023, 10, 27, 10, 30, tzinfo=UTC)
PEER = "did:example:peer"
SEED = "0" * 32


class Side:
    """A session with its storage and its clock."""

    def __init__(self, role: str, stored: dict[str, bytes] | None = None) -> None:
        self.stored = {} if stored is None else stored
        self.now = NOW
        self.session = handler.open(role, {"peer": PEER, "seed": SEED})
        self.handle(Opened(stored=dict(self.stored), at=self.at))

    @property
    def at(self) -> int:
        return round(self.now.timestamp() * 1000)

    def handle(self, event: Any) -> list[Effect]:
        effects = list(self.session.handle(event))
        for effect in effects:
            if isinstance(effect, Persist) and effect.value is None:
                self.stored.pop(effect.key, None)
            elif isinstance(effect, Persist):
                self.stored[effect.key] = effect.value  # type: ignore[assignment]
        return effects

    def receive(self, message: Message, peer: str = PEER) -> list[Effect]:
        """Receive a message, and let the application do its work at once. Return the effects of the receipt."""
        effects = self.handle(Received(peer=peer, stream="", data=json.dumps(message).encode(), at=self.at))
        for effect in effects:
            if isinstance(effect, Invoke):
                self.handle(Result(call=effect.call, value={"status": "COMPLETED"}, error=None, at=self.at))
        return effects


def reports(effects: Sequence[Effect]) -> list[str]:
    """The statuses of the reports that were sent."""
    payloads = [json.loads(effect.data)["payload"] for effect in effects if isinstance(effect, Send)]
    return [payload["data"]["status"] for payload in payloads if payload["handoff_type"] == "STATUS_UPDATE"]


def is_worked_on(effects: Sequence[Effect]) -> bool:
    return any(isinstance(effect, Invoke) for effect in effects)


def message(kind: Kind = Kind.TASK_TRANSFER, **parts: Any) -> Message:
    parts = {"sender": "anna", "recipient": "ben", "task": "t", "state": "OPEN", "now": NOW, **parts}
    return build(kind, parts.pop("data", DATA[kind]), **parts)


def later(count: int, **parts: Any) -> Iterator[Message]:
    """Messages, each a second after the one before."""
    return (message(now=NOW + timedelta(seconds=number + 1), **parts) for number in range(count))


@pytest.mark.threat(241)
@pytest.mark.parametrize("lifetime", [None, timedelta(days=3650)])
def test_004_08_a_repetition_after_many_messages_has_no_effect(lifetime: timedelta | None) -> None:
    side, first = Side("receiver"), message(lifetime=lifetime)
    assert is_worked_on(side.receive(first))
    for other in later(450, lifetime=lifetime):
        assert is_worked_on(side.receive(other))
    # A session that begins with what is stored knows it, too.
    for again in (side, Side("receiver", side.stored)):
        effects = again.receive(first)
        assert not is_worked_on(effects) and reports(effects) == ["EXPIRED"]
    assert len(side.stored) <= 201
    assert is_worked_on(side.receive(message(now=NOW + timedelta(seconds=451))))


def test_004_08_an_id_whose_message_has_expired_gives_way_first() -> None:
    side, first = Side("receiver"), message()
    side.receive(first)
    for other in later(100, lifetime=timedelta(seconds=1)):
        side.receive(other)
    side.now = NOW + timedelta(hours=1)
    for other in later(199):
        side.receive(other)
    # Room came from the expired ones: the first one is still known.
    assert reports(side.receive(first)) == ["DUPLICATE"]


@pytest.mark.threat(242)
@pytest.mark.parametrize("role", ["receiver", "member", "sender"])
def test_004_08_another_message_of_a_known_id_is_rejected(role: str) -> None:
    side, first = Side(role), message()
    assert is_worked_on(side.receive(first))
    other = json.loads(json.dumps(first))
    other["payload"]["data"]["objective"] = "Something else."
    before = dict(side.stored)
    for again in (side, Side(role, dict(side.stored))):
        effects = again.receive(other)
        assert not is_worked_on(effects) and reports(effects) == ["REJECTED"]
        assert reports(again.receive(first)) == ["DUPLICATE"]
        assert reports(again.receive(dict(reversed(first.items())))) == ["DUPLICATE"]
        assert again.stored == before


def test_the_ids_leave_room_in_the_snapshot() -> None:
    side = Side("receiver")
    for other in later(300, lifetime=timedelta(days=300)):
        side.receive(other)
    # No work ends any more: messages wait until there is no room.
    for other in later(200, kind=Kind.NOTIFICATION, data={"event": "E"}, lifetime=timedelta(days=300)):
        other["metadata"]["timestamp"] = "2023-10-27T11:30:00.000Z"
        side.handle(Received(peer=PEER, stream="", data=json.dumps(other).encode(), at=side.at))
    assert 48 * 1024 < len(side.session.snapshot()) <= MAX_SNAPSHOT


def test_004_13_and_22_what_a_lost_member_did_not_confirm_comes_again_the_most_urgent_first() -> None:
    side = Side("broker")

    def join(name: str) -> list[str]:
        """Join, and return the ids of the messages that the broker sends the member then."""
        side.handle(PeerJoined(peer=f"did:example:{name}", role="member", is_proved=True, at=side.at))
        joining = message(Kind.NOTIFICATION, sender=name, recipient="broker", data={"event": "JOIN"})
        sent = [json.loads(effect.data) for effect in side.receive(joining, f"did:example:{name}") if isinstance(effect, Send)]
        return [one["metadata"]["message_id"] for one in sent if one["payload"]["handoff_type"] != "STATUS_UPDATE"]

    for name in ("anna", "ben"):
        assert join(name) == []
    sent = [message(priority=priority) for priority in (Priority.LOW, Priority.CRITICAL)]
    for given in sent:
        assert reports(side.receive(given, "did:example:anna"))[-1] == "ACCEPTED"
    side.handle(PeerLost(peer="did:example:ben", at=side.at))
    assert join("ben") == [sent[1]["metadata"]["message_id"]]


def test_004_35_a_broker_that_begins_anew_knows_what_it_took() -> None:
    side, sent = Side("broker"), message()
    for statuses in (["ACCEPTED"], ["DUPLICATE"]):
        for name in ("anna", "ben"):
            side.handle(PeerJoined(peer=f"did:example:{name}", role="member", is_proved=True, at=side.at))
            joining = message(Kind.NOTIFICATION, sender=name, recipient="broker", data={"event": "JOIN"})
            side.receive(joining, f"did:example:{name}")
        assert reports(side.receive(sent, "did:example:anna")) == statuses
        side = Side("broker", side.stored)


@pytest.mark.threat(374)
def test_004_22_agents_that_fill_a_broker_leave_room_for_others() -> None:
    """One agent has a half of the room, the next one a quarter. All that claim their DIDs are one agent."""
    side, names = Side("broker"), ("ben", "anna", "cleo", "dora", "claim1", "claim2")
    peers = {name: f"did:example:{name}" for name in names}
    for name, peer in peers.items():
        side.handle(PeerJoined(peer=peer, role="member", is_proved=not name.startswith("claim"), at=side.at))
        side.receive(message(Kind.NOTIFICATION, sender=name, recipient="broker", data={"event": "JOIN"}), peer)
    side.handle(PeerLost(peer=peers["ben"], at=side.at))

    def fill(name: str) -> int:
        """Send messages to the absent member until one has no room. Return how many were accepted."""
        for number, given in enumerate(later(100, sender=name, summary="x" * 400)):
            before = side.session.snapshot()
            if reports(side.receive(given, peers[name])) != ["ACCEPTED"]:
                assert json.loads(side.session.snapshot())["waiting"] == json.loads(before)["waiting"]
                return number
        raise AssertionError

    accepted = [fill(name) for name in names[1:]]
    assert accepted[0] >= 2 * accepted[1] - 1 >= 4 * accepted[2] - 3 > 0 and accepted[3] > 0 == accepted[4]


@pytest.mark.threat(241)
def test_004_08_a_member_erases_no_others_ids() -> None:
    side, peers = Side("broker"), {name: f"did:example:{name}" for name in ("anna", "ben", "mallory")}
    for name, peer in peers.items():
        side.handle(PeerJoined(peer=peer, role="member", at=side.at))
        side.receive(message(Kind.NOTIFICATION, sender=name, recipient="broker", data={"event": "JOIN"}), peer)

    def confirm(given: Message, peer: str) -> None:
        parts = {"sender": "ben", "recipient": given["metadata"]["sender_id"], "now": side.now}
        receipt = {"status": "ACCEPTED", "in_reply_to": given["metadata"]["message_id"]}
        side.receive(message(Kind.STATUS_UPDATE, data=receipt, message_id=str(uuid.uuid4()), **parts), peer)

    first, mallorys = message(), list(later(300, sender="mallory"))
    for given, name in ((first, "anna"), *((entry, "mallory") for entry in mallorys)):
        assert reports(side.receive(given, peers[name])) == ["ACCEPTED"]
        confirm(given, peers["ben"])
    other = {**first, "instructions": {"next_steps_suggestion": "Something else."}}
    assert reports(side.receive(first, peers["anna"])) == ["DUPLICATE"]
    assert reports(side.receive(other, peers["anna"])) == ["REJECTED"]
    assert reports(side.receive(mallorys[0], peers["mallory"])) == ["EXPIRED"]
    # An id belongs to its sender: another member's message may have it.
    text = message(sender="mallory", message_id=first["metadata"]["message_id"], now=NOW + timedelta(days=1))
    assert reports(side.receive(text, peers["mallory"])) == ["ACCEPTED"]
    assert reports(side.receive(first, peers["anna"])) == ["DUPLICATE"]
