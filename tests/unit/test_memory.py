"""What a process remembers, for how long, and how much of it."""

from __future__ import annotations

import hashlib
from typing import cast

from treaty_registry.registry import Head
from treaty_registry.serving.memory import Memory, Shelf
from treaty_registry.serving.representation import IMMUTABLE, OCTETS, Representation


def view(data: bytes, *, blob: bool = False) -> Representation:
    digest = hashlib.sha256(data).hexdigest() if blob else None
    return Representation(data, OCTETS, cache_control=IMMUTABLE, digest=digest)


def head() -> Head:
    """A head: memory only asks which one it is."""
    return cast(Head, object())


def test_a_shelf_keeps_what_is_used_within_its_capacity() -> None:
    shelf = Shelf(100_000)
    entries = {f"/{number}": view(bytes(4_000) + bytes([number])) for number in range(200)}
    for key, entry in entries.items():
        shelf.put(key, entry)
        assert shelf.get("/0") is entries["/0"], "asked for all the time, and so never forgotten"
    assert shelf.get("/1") is None and shelf.get("/199") is entries["/199"]
    kept = [key for key in entries if shelf.get(key)]
    assert len(kept) > 8 and len(kept) * 5_025 <= 100_000


def test_a_shelf_does_not_empty_itself_for_one_large_entry() -> None:
    shelf = Shelf(100_000)
    small, large = view(b"small"), view(bytes(20_000))
    shelf.put("/small", small)
    shelf.put("/large", large)
    assert shelf.get("/large") is None and shelf.get("/small") is small


def test_current_things_last_for_one_head_and_lasting_ones_longer() -> None:
    memory = Memory()
    first, second = head(), head()
    memory.renew(first, [])
    lasting, current = view(b"lasting"), view(b"current")
    memory.keep(first, "/lasting", lasting)
    memory.keep_for(first, "/current", current)
    assert memory.get("/lasting") is lasting and memory.get("/current") is current
    memory.renew(second, [])
    assert memory.head is second
    assert memory.get("/lasting") is lasting and memory.get("/current") is None


def test_what_was_made_for_an_older_head_is_not_kept() -> None:
    memory = Memory()
    first, second = head(), head()
    memory.renew(first, [])
    memory.renew(second, [])
    memory.keep(first, "/lasting", view(b"may be withdrawn since"))
    memory.keep_for(first, "/current", view(b"old"))
    assert memory.get("/lasting") is memory.get("/current") is None


def test_withdrawn_blobs_are_forgotten_under_every_name() -> None:
    memory = Memory()
    now = head()
    memory.renew(now, [])
    withdrawn, other = view(b"withdrawn", blob=True), view(b"other", blob=True)
    memory.keep(now, "/blobs/sha256/x", withdrawn)
    memory.keep(now, "/protocols/a.example/b/1.0.md", withdrawn)
    memory.keep(now, "/blobs/sha256/y", other)
    memory.renew(head(), [hashlib.sha256(b"withdrawn").hexdigest()])
    assert memory.get("/blobs/sha256/x") is memory.get("/protocols/a.example/b/1.0.md") is None
    assert memory.get("/blobs/sha256/y") is other
