"""The pages of the log: its head, its tree, its entries, and one entry."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treaty_consensus import canonical, statement
from treaty_consensus.amendment import changes_between
from treaty_consensus.canonical import b64decode
from treaty_consensus.errors import NotFound
from treaty_consensus.kinds import Parameters
from treaty_consensus.log.checkpoint import LogKeys
from treaty_consensus.log.note import MAX_NOTE_BYTES
from treaty_consensus.printable import printable

from ..codes import RegistryStatementCode
from ..log.tables import read_range
from . import tree
from .entries import decode, outline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from asyncpg import Record as Row
    from markupsafe import Markup

    from ..catalogue.resources import LogView
    from ..serving.views import Views
    from .renderer import Renderer

MAX_ENTRIES = 20
"""Entries of one page."""
_KEY_ID, _ED25519, _TIME = 4, 64, 8
MAX_AMENDMENTS = 16
"""Amendments on the page of the log, the newest ones."""
_AMENDMENTS = """
select p.index, l.leaf, (select min(r.epoch) from rolls r where r.parameters = p.statement) as epoch
from parameters p join leaves l on l.index = p.index where p.index < $1 order by p.index desc limit $2
"""
_MAX_CHANGE = 400  # characters: a list of anchors may have 512 domains
_ENTRY = "select index, leaf from leaves where statement = $1 and index < $2"


@dataclass(frozen=True)
class AmendmentRow:
    """Logged parameters: their statement, its leaf and time, and `changes` in words from those in force then.

    `epoch`: the first epoch under them; None while there is none. `state`: "in force", "announced", "ended" or "dropped".
    """

    statement: str
    index: int
    issued: int
    state: str
    epoch: int | None
    changes: list[str]


@dataclass(frozen=True)
class SignatureLine:
    """A line below a checkpoint: the name and id of a key, its role, and the time of a cosignature in Unix seconds."""

    name: str
    key_id: str
    role: str
    time: int | None


async def log_context(views: Views, renderer: Renderer, before: int | None) -> Mapping[str, object]:
    """Return what the page of the log shows. `before`: the entries end below this index."""
    registry, head = views.registry, views.registry.head
    published = head.published
    end = head.size if before is None else min(before, head.size)
    begin = max(0, end - MAX_ENTRIES)
    log, leaves, stated = await asyncio.gather(
        views.elections.log(head),
        read_range(registry.pool, begin, end),
        # One more than is shown: changes are told from the one before.
        registry.pool.fetch(_AMENDMENTS, head.size, MAX_AMENDMENTS + 1),
    )

    def row(index: int, leaf: bytes) -> Markup:
        # A leaf never changes, and the newest ones are shown again with each new head.
        return renderer.part("entry_row.html", str(index), lambda: {"entry": outline(index, leaf, registry.origin)})

    origin, size, root, *_ = published.note.decode().split("\n")
    return {
        "log": log,
        "before": before,
        "amendments": amendments(stated, log)[-MAX_AMENDMENTS:][::-1],
        "checkpoint": {"origin": origin, "size": int(size), "root": root, "text": published.note.decode()},
        "signatures": signature_lines(published.note, registry.keys),
        "tree": tree.layout(published.size),
        "entries_of_page": [row(begin + place, leaf) for place, leaf in enumerate(leaves)][::-1],
        "begin": begin,
        "end": end,
        "newer": min(end + MAX_ENTRIES, head.size) if end < head.size else None,
    }


def amendments(rows: Sequence[Row], log: LogView) -> list[AmendmentRow]:
    """Return the amendments in rows of `_AMENDMENTS`, the oldest first."""
    shown: list[AmendmentRow] = []
    in_force: Parameters | None = None
    for row in reversed(rows):
        made = statement.parse(row["leaf"])
        assert isinstance(made.body, Parameters), "a row of parameters"
        epoch, state = row["epoch"], "dropped" if row["epoch"] is None else "ended"
        if made.id == log.parameters:
            epoch, state = log.epoch if epoch is None else epoch, "in force"
        elif made.id == log.announced:
            state = "announced"
        changes = [printable(str(change), _MAX_CHANGE) for change in changes_between(in_force, made.body)] if in_force else []
        shown.append(AmendmentRow(made.id, row["index"], made.issued, state, epoch, changes))
        # Only these were ever in force, so the next announcement was made under them.
        if epoch is not None:
            in_force = made.body
    return shown


async def entry_context(views: Views, id_: str) -> Mapping[str, object]:
    """Return what the page of a statement shows. Raises `Malformed`, `NotFound`."""
    registry = views.registry
    digest = bytes.fromhex(canonical.parse_digest(id_))
    row = await registry.pool.fetchrow(_ENTRY, digest, registry.head.size)
    if row is None:
        raise NotFound(RegistryStatementCode.UNKNOWN, f"This log has no statement {id_}.")
    return {
        "entry": decode(row["index"], row["leaf"], registry.origin),
        "key": str(registry.log_key),
        "clock_key": str(registry.clock_key),
        "base_url": registry.base_url,
    }


def signature_lines(note: bytes, keys: LogKeys) -> list[SignatureLine]:
    """Return the signature lines of the log's own note, in their order. Their signatures are not checked again."""
    found = []
    roles = {
        (key.name, key.id.hex()): role for term in keys.terms for key, role in ((term.log, "log"), (term.clock, "clock")) if key
    }
    for line in note.decode().rpartition("\n\n")[2].splitlines():
        _, name, encoded = line.split(" ", 2)
        data = b64decode(encoded, limit=MAX_NOTE_BYTES)
        key_id, is_cosignature = data[:_KEY_ID].hex(), len(data) == _KEY_ID + _TIME + _ED25519
        role = roles.get((name, key_id), "witness" if is_cosignature else "other")
        time = int.from_bytes(data[_KEY_ID : _KEY_ID + _TIME], "big") if is_cosignature else None
        found.append(SignatureLine(name, key_id, role, time))
    return found
