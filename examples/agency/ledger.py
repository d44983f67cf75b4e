"""A journal on disk: an event happens once for each key, and is kept before it is answered."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NamedTuple

from treaty_agent import ProvedPeer

PAGE = 100


class Entry(NamedTuple):
    """An event. `detail`: the offer of a booking. `owner`: the DID of the agent that caused it."""

    number: int
    key: str
    event: str
    price: int
    detail: str
    owner: str


class Ledger:
    """The journal in a folder. A process that is killed loses no entry that was added."""

    def __init__(self, folder: Path) -> None:
        self._rows = sqlite3.connect(folder / "ledger.db", isolation_level=None)
        self._rows.execute("pragma journal_mode = wal")
        columns = "number integer primary key, key text, event text, price integer, detail text, owner text, unique (key, event)"
        self._rows.execute(f"create table if not exists journal ({columns})")

    def add(self, key: str, event: str, price: int = 0, detail: str = "", owner: ProvedPeer | None = None) -> None:
        """Add an event, unless the key has it."""
        values = (key, event, price, detail, owner.did if owner else "")
        self._rows.execute("insert or ignore into journal (key, event, price, detail, owner) values (?, ?, ?, ?, ?)", values)

    def find(self, key: str, event: str) -> Entry | None:
        """Return an event of a key, or None."""
        row = self._rows.execute("select * from journal where key = ? and event = ?", (key, event)).fetchone()
        return Entry(*row) if row else None

    def is_of(self, key: str, owner: ProvedPeer) -> bool:
        """Return whether a key is new, or was used by this agent alone."""
        query = "select 1 from journal where key = ? and owner not in (?, '')"
        return not self._rows.execute(query, (key, owner.did)).fetchone()

    def active(self, detail: str) -> int:
        """Return the number of bookings with a detail that were not cancelled."""
        cancelled = "select key from journal where event = 'cancelled'"
        query = f"select count(*) from journal where event = 'booked' and detail = ? and key not in ({cancelled})"  # noqa: S608
        found: int = self._rows.execute(query, (detail,)).fetchone()[0]
        return found

    def after(self, number: int) -> list[dict[str, object]]:
        """Return the entries after a number as the protocols write them, one page."""
        rows = self._rows.execute("select * from journal where number > ? order by number limit ?", (number, PAGE))
        entries = [Entry(*row) for row in rows]
        return [{"number": entry.number, "key": entry.key, "event": entry.event, "price": entry.price} for entry in entries]
