"""What handlers keep between sessions: whose it is, that it is whole, and that nobody fills the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from treaty_agent.sessions import handler_state
from treaty_agent.sessions.handler_state import SessionStore
from treaty_consensus.errors import Refused, Unavailable
from treaty_io.identity import ClaimedPeer, ProvedPeer
from treaty_sandbox.validation import MAX_STORED, MAX_STORED_KEYS

WHO = {"wheel": "ab" * 32, "role": "provider", "local": "did:wba:shop.example"}
BUYER = "did:wba:buyer.example"


def store(home: Path, peer: str = BUYER, **changes: str) -> SessionStore:
    return SessionStore.of_proved(home, **(WHO | changes), peer=ProvedPeer(peer))


def claimed(home: Path, peer: str = BUYER) -> SessionStore:
    return SessionStore.of_claimed(home, **WHO, peer=ClaimedPeer(peer))


@pytest.mark.threat(57)
async def test_state_is_loaded_by_its_handler_role_and_pair_alone(tmp_path: Path) -> None:
    await store(tmp_path).put("a:b.c-1", b"\x00value")
    assert await store(tmp_path).load() == {"a:b.c-1": b"\x00value"}
    for changes in ({"wheel": "cd" * 32}, {"role": "requester"}, {"local": "did:wba:x.example"}, {"peer": "did:wba:y.example"}):
        assert await store(tmp_path, **changes).load() == {}


@pytest.mark.threat(57)
async def test_a_claimed_did_reaches_no_state_of_the_proved_one(tmp_path: Path) -> None:
    await store(tmp_path).put("card", b"4711")
    assert await claimed(tmp_path).load() == {}
    await claimed(tmp_path).put("card", b"evil")
    await claimed(tmp_path).put("card", None)
    assert await store(tmp_path).load() == {"card": b"4711"}
    assert await SessionStore.of_all(tmp_path, **WHO).load() == {}


async def test_a_key_is_replaced_and_forgotten(tmp_path: Path) -> None:
    state = store(tmp_path)
    await state.put("key", b"1")
    await state.put("key", b"2")
    assert await state.load() == {"key": b"2"}
    await state.put("key", None)
    await state.put("key", None)
    assert await state.load() == {}


async def test_sessions_at_once_share_one_allowance(tmp_path: Path) -> None:
    first, second = store(tmp_path), store(tmp_path)
    await first.put("half", bytes(MAX_STORED // 2))
    await second.put("half again", bytes(MAX_STORED // 2))
    with pytest.raises(Refused) as refusal:
        await first.put("one more", b"x")
    assert refusal.value.code == "session.storage-full"
    await first.put("half", bytes(MAX_STORED // 2))  # replacing is not adding
    await first.put("half", b"")
    await second.put("one more", b"x")
    assert set(await first.load()) == {"half", "half again", "one more"}


async def test_sessions_that_write_in_turn_see_each_other_at_once(tmp_path: Path) -> None:
    first, second = store(tmp_path), store(tmp_path)
    for number in range(1, 30):
        await first.put("a", bytes(MAX_STORED - number))
        with pytest.raises(Refused):
            await second.put("b", bytes(number + 1))
        await second.put("b", bytes(number))
        with pytest.raises(Refused):
            await first.put("c", b"x")
        await second.put("b", None)
    assert await first.load() == {"a": bytes(MAX_STORED - 29)}


async def test_what_a_crash_left_is_no_value(tmp_path: Path) -> None:
    await store(tmp_path).put("key", b"1")
    [folder] = (tmp_path / "sessions" / "proved").iterdir()
    (folder / ".6b6579-crashed").write_bytes(bytes(MAX_STORED))
    await store(tmp_path).put("key", b"2")
    assert await store(tmp_path).load() == {"key": b"2"}


async def test_keys_are_counted(tmp_path: Path) -> None:
    state = store(tmp_path)
    await state.put("0", b"")
    folder = next((tmp_path / "sessions" / "proved").iterdir())
    for number in range(1, MAX_STORED_KEYS):
        (folder / str(number).encode().hex()).write_bytes(b"")
    with pytest.raises(Refused):
        await state.put("one more", b"")
    assert len(await state.load()) == MAX_STORED_KEYS


@pytest.mark.threat(97)
async def test_strangers_under_many_names_cannot_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler_state, "MAX_FOLDERS", 3)
    for number in range(3):
        await claimed(tmp_path, f"did:wba:stranger{number}.example").put("key", b"")
    with pytest.raises(Refused) as refusal:
        await claimed(tmp_path, "did:wba:stranger3.example").put("key", b"")
    assert refusal.value.code == "session.storage-full"
    await claimed(tmp_path, "did:wba:stranger0.example").put("another", b"")
    assert len(list((tmp_path / "sessions" / "claimed").iterdir())) == 3
    await store(tmp_path).put("key", b"")  # claims take no room of proved peers


async def test_a_disk_that_fails_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("no folder")
    with pytest.raises(Unavailable) as failure:
        await store(tmp_path).put("key", b"")
    assert failure.value.code == "system.file"
