"""The records of the E2EE profile: any size, any kind, each in its place, and version 1.0."""

from __future__ import annotations

import json
from typing import Any

import pytest
from secure_peers import (
    BUYER,
    MALLORY,
    NOW,
    SHOP,
    Peer,
    destination,
    keys_of,
    opened,
    plain_hello,
    refused,
    shake_hands,
    source,
)

from treaty_anp.e2ee import records
from treaty_anp.e2ee.hello import BOUND, UNBOUND
from treaty_anp.e2ee.records import MAX_PART, MAX_RECORD, Direction, Sealer
from treaty_anp.frame import MAX_FRAME
from treaty_consensus.errors import TooLarge

BOTH = (BOUND, UNBOUND)
ASKED = plain_hello("sourceHello", BUYER, SHOP.did)


def rewritten(record: str, **changed: Any) -> str:
    return json.dumps({name: value for name, value in (json.loads(record) | changed).items() if value is not None})


@pytest.mark.parametrize(
    "content",
    [b"", b"\x40", b"\x00" * MAX_PART, b"\x01" * (MAX_PART + 1), bytes(MAX_FRAME), "", "你好", "x" * MAX_FRAME],
    ids=lambda content: f"{type(content).__name__} {len(content)}",
)
def test_messages_of_any_size_and_kind_arrive(content: str | bytes) -> None:
    for from_, to in (opened(), opened()[::-1]):
        to.got.clear()
        records = from_.say(content)
        assert all(len(record) <= MAX_RECORD for record in records)
        to.take(*records)
        assert to.got == [content]


def test_a_message_over_the_cap_is_not_sent_and_costs_nothing() -> None:
    near, far = opened()
    with pytest.raises(TooLarge):
        near.say(bytes(MAX_FRAME + 1))
    far.take(*near.say(b"next"))
    assert far.got[-1] == b"next"


def test_the_reason_of_a_close_is_encrypted_and_is_the_last_word() -> None:
    near, far = opened()
    (record,) = near.channel.close("session.idle", NOW)
    assert "session.idle" not in record
    far.take(record)
    assert far.ends == ["session.idle"]
    assert near.channel.close("again", NOW) == []
    assert far.channel.close("", NOW) == []
    refused("secure.key", near.say, b"late")
    refused("secure.key", far.say, b"late")


def test_keys_are_used_for_so_many_records_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = opened()
    monkeypatch.setattr(records, "MAX_RECORDS", 3)
    for _ in range(3):
        far.take(*near.say(b"message"))
    refused("session.closed", near.say, b"one more")
    near, far = opened()
    sent = [near.say(b"message")[0] for _ in range(3)]
    monkeypatch.setattr(records, "MAX_RECORDS", 2)
    far.take(*sent[:2])
    refused("session.closed", far.take, sent[2])


@pytest.mark.parametrize(
    "changed, code",
    [
        ({"version": "1.1"}, "secure.record"),
        ({"type": "close"}, "secure.record: changed|missing"),
        ({"type": "finished"}, "secure.record"),
        ({"sourceDid": MALLORY.did}, "secure.record"),
        ({"destinationDid": MALLORY.did}, "secure.record"),
        ({"secretKeyId": "0" * 16}, "secure.record"),
        ({"messageId": "0" * 16}, "secure.record: changed|missing"),
        ({"messageId": None}, "secure.record: changed|missing"),
        ({"timestamp": "2027-01-15T08:00:00.001Z"}, "secure.record: changed|missing"),
        ({"more": True}, "secure.record: changed|missing"),
        ({"text": True}, "secure.record: changed|missing"),
        ({"text": False}, "secure.record: changed|missing"),
        ({"unknown": 1}, "secure.record: changed|missing"),
        ({"encryptedData": {"iv": "", "tag": "", "ciphertext": ""}}, "secure.record: changed|missing"),
        ({"encryptedData": None}, "secure.record"),
    ],
)
def test_no_field_of_a_record_can_be_changed(changed: dict[str, Any], code: str) -> None:
    near, far = opened()
    (record,) = near.say(b"\x40frame")
    refused(code, far.take, rewritten(record, **changed))
    assert len(far.got) == 1


@pytest.mark.parametrize("order", [(0, 0), (1,), (0, 2), (0, 1, 0), (0, 1, 1)])
def test_records_repeated_left_out_or_moved_are_refused(order: tuple[int, ...]) -> None:
    near, far = opened()
    records = [near.say(bytes([number]))[0] for number in range(3)]
    *proper, wrong = order
    far.take(*(records[number] for number in proper))
    refused("secure.record", far.take, records[wrong])
    assert far.got[1:] == [bytes([number]) for number in proper]


def test_a_record_sent_back_to_its_sender_is_refused() -> None:
    near, _ = opened()
    refused("secure.record", near.take, near.say(b"mine")[0])
    assert len(near.got) == 1


def test_parts_of_a_message_are_neither_dropped_nor_rejoined() -> None:
    near, far = opened()
    first, second = near.say(b"x" * (MAX_PART + 1))
    far.take(first)
    assert len(far.got) == 1
    refused("secure.record", far.take, first)
    near, far = opened()
    first, second = near.say(b"x" * (MAX_PART + 1))
    refused("secure.record", far.take, second)
    assert len(far.got) == 1


class AnySealer(Sealer):
    """Splits messages as a test says."""

    def part(self, data: bytes, flags: dict[str, bool]) -> str:
        return self._record("message", data, flags, NOW)


@pytest.mark.parametrize(
    "parts, code",
    [
        ([(b"x", {"more": True})], "secure.record"),
        ([(b"x" * MAX_PART, {"more": True}), (b"x" * MAX_PART, {})], "frame.too-large"),
        ([(b"x" * MAX_PART, {"more": True}), (b"x", {"text": True})], "secure.record"),
        ([(b"\xff", {"text": True})], "secure.record"),
    ],
)
def test_a_peer_that_splits_its_messages_otherwise_is_refused(parts: list[tuple[bytes, dict[str, bool]]], code: str) -> None:
    near, far = opened()
    keys = keys_of(near)
    assert keys is not None
    sealer = AnySealer(Direction(keys.source, keys.key_id, BUYER.did, SHOP.did, True))
    *before, last = [sealer.part(data, flags) for data, flags in parts]
    far.take(*before)
    refused(code, far.take, last)
    assert len(far.got) == 1


def unbound() -> tuple[Peer, Peer]:
    near, far = source(versions=(UNBOUND,)), destination(versions=BOTH)
    shake_hands(near, far)
    return near, far


def test_version_1_0_is_spoken_where_both_sides_want_it() -> None:
    near, far = unbound()
    far.take(*near.say(b"\x40there"))
    near.take(*far.say(b"\x40back"))
    assert (far.got[1:], near.got[1:]) == ([b"\x40there"], [b"\x40back"])
    refused("secure.record", near.say, "text")
    refused("frame.too-large", near.say, bytes(MAX_PART + 1))
    assert near.channel.close("reason", NOW) == []
    assert not near.channel.expects_close
    refused("secure.no-common", lambda: destination().take(*source(versions=(UNBOUND,)).say(ASKED)))


def test_the_best_common_version_is_chosen() -> None:
    near, far = source(versions=BOTH), destination(versions=BOTH)
    answered = json.loads(shake_hands(near, far)[1])
    assert answered["selectedVersion"] == BOUND


def test_a_1_0_record_counts_once_and_unchanged() -> None:
    near, far = unbound()
    (record,) = near.say(b"\x40once")
    far.take(record)
    refused("secure.replayed", far.take, record)
    assert far.got[1:] == [b"\x40once"]
    for changed, code in (
        ({"more": True}, "secure.record"),
        ({"type": "close"}, "secure.record"),
        ({"text": True}, "secure.record"),
    ):
        near, far = unbound()
        refused(code, far.take, rewritten(near.say(b"x")[0], **changed))
        assert len(far.got) == 1


def test_a_1_0_finished_is_no_record() -> None:
    near, far = source(versions=(UNBOUND,)), destination(versions=(UNBOUND,))
    finished = json.loads(shake_hands(near, far)[3])
    record = json.loads(near.say(b"x")[0])
    refused("secure.replayed", far.take, json.dumps(record | {"encryptedData": finished["verifyData"]}))
    assert len(far.got) == 1
