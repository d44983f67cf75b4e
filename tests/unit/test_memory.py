"""What a process remembers, for how long, and how much of it."""

from __future__ import annotations

from typing import cast

import pytest

from treaty_registry.registry import Head
from treaty_registry.serving.cache import LARGE, LruCache, ResponseCache
from treaty_registry.serving.representation import OCTETS, Representation

URI = "https://registry.example/protocols/a.example/chat/1.0"


def view(data: bytes) -> Representation:
    return Representation(data, OCTETS)


def head() -> Head:
    """A head: memory only keeps it."""
    return cast(Head, object())


def test_a_shelf_keeps_what_is_used_within_its_capacity() -> None:
    shelf = LruCache(100_000)
    entries = {f"/{number}": view(bytes(4_000) + bytes([number])) for number in range(200)}
    for key, entry in entries.items():
        shelf.put(key, entry)
        assert shelf.get("/0") is entries["/0"], "asked for all the time, and so never forgotten"
        shelf.get(key)
    assert shelf.get("/1") is None and shelf.get("/199") is entries["/199"]
    keys = [key for key in entries if shelf.get(key)]
    assert len(keys) > 8 and len(keys) * 5_024 <= 100_000


@pytest.mark.threat(87)
def test_a_value_used_once_evicts_none_used_twice() -> None:
    shelf = LruCache(100_000)
    hot = {f"/hot{number}": view(bytes(4_000)) for number in range(14)}
    for key, entry in hot.items():
        shelf.put(key, entry)
        shelf.get(key)
    for number in range(10_000):
        shelf.put(f"/junk{number}", view(bytes(4_000)))
    assert all(shelf.get(key) is entry for key, entry in hot.items())
    assert sum(shelf.get(f"/junk{number}") is not None for number in range(10_000)) <= 5


def test_a_shelf_does_not_empty_itself_for_one_large_entry() -> None:
    shelf = LruCache(100_000)
    small, large = view(b"small"), view(bytes(20_000))
    shelf.put("/small", small)
    shelf.put("/large", large)
    assert shelf.get("/large") is None and shelf.get("/small") is small


def test_the_same_key_put_twice_counts_once() -> None:
    shelf = LruCache(100_000)
    for number in range(100):
        last = view(bytes([number]) * 4_000)
        shelf.put("/same", last, ("subject",))
        shelf.put("/other", view(b"other"))
        assert shelf.get("/same") is last and shelf.get("/other") is not None


def test_only_what_follows_from_a_changed_subject_is_forgotten() -> None:
    memory = ResponseCache()
    memory.renew(head(), None)
    lasting, record, listed = view(b"lasting"), view(b"record"), view(b"list")
    memory.keep("/lasting", lasting)
    memory.keep("/record", record, (URI,))
    memory.keep("/list", listed, (URI, "catalogue"))
    second = head()
    memory.renew(second, ["catalogue", "unknown"])
    assert memory.head is second
    assert memory.get("/lasting") is lasting and memory.get("/record") is record and memory.get("/list") is None
    memory.renew(head(), [URI])
    assert memory.get("/lasting") is lasting and memory.get("/record") is None


def test_everything_is_forgotten_when_anything_may_have_changed() -> None:
    memory = ResponseCache()
    memory.keep("/lasting", view(b"may have been withdrawn"))
    memory.keep("/large", view(bytes(LARGE + 1)))
    memory.renew(head(), None)
    assert memory.get("/lasting") is memory.get("/large") is None


def test_large_bodies_push_out_no_small_ones() -> None:
    memory = ResponseCache(small=1_000_000, large=1_000_000)
    small = view(b"small")
    memory.keep("/small", small)
    for number in range(100):
        memory.keep(f"/large{number}", view(bytes(LARGE + 1)))
        memory.get(f"/large{number}")
    assert memory.get("/small") is small
