"""The pages of the log: its head, its tree, its entries, and one entry.

A leaf is decoded for people: its kind, its author, and every member with its meaning. The pictures of the tree have one size: its
perfect subtrees, and its tiles with the partial right edge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
from cryptography import x509

from treaty_consensus import canonical, statement
from treaty_consensus.amendment import changes_between
from treaty_consensus.canonical import b64decode, b64encode
from treaty_consensus.errors import Malformed, NotFound, TooLarge
from treaty_consensus.kinds import Blob, Parameters
from treaty_consensus.log.checkpoint import LogKeys
from treaty_consensus.log.merkle import leaf_hash, root_nodes
from treaty_consensus.log.note import MAX_NOTE_BYTES
from treaty_consensus.log.tiles import TILE_HEIGHT, TILE_WIDTH, Tile
from treaty_consensus.printable import printable
from treaty_consensus.sigstore_leaf import CertificateLeaf, parse_sigstore_leaf
from treaty_consensus.statement import Statement

from ..codes import RegistryStatementCode
from ..log.tables import read_range
from ..storage.stored_leaf import restored
from . import meanings
from .meanings import LinkedText

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
        "tree": layout(published.size),
        "entries_of_page": [row(begin + place, leaf) for place, leaf in enumerate(leaves)][::-1],
        "begin": begin,
        "end": end,
        "newer": min(end + MAX_ENTRIES, head.size) if end < head.size else None,
    }


def amendments(rows: Sequence[Row], log: LogView) -> list[AmendmentRow]:
    """Return the amendments in rows of `_AMENDMENTS`, the oldest first."""
    rows_shown: list[AmendmentRow] = []
    in_force: Parameters | None = None
    for row in reversed(rows):
        parameters_statement = statement.understand(restored(row["leaf"]))
        assert isinstance(parameters_statement.body, Parameters), "a row of parameters"
        epoch, state = row["epoch"], "dropped" if row["epoch"] is None else "ended"
        if parameters_statement.id == log.parameters:
            epoch, state = log.epoch if epoch is None else epoch, "in force"
        elif parameters_statement.id == log.announced:
            state = "announced"
        changes = (
            [printable(str(change), _MAX_CHANGE) for change in changes_between(in_force, parameters_statement.body)]
            if in_force
            else []
        )
        rows_shown.append(AmendmentRow(parameters_statement.id, row["index"], parameters_statement.issued, state, epoch, changes))
        # Only these were ever in force, so the next announcement was made under them.
        if epoch is not None:
            in_force = parameters_statement.body
    return rows_shown


async def entry_context(views: Views, id_: str) -> Mapping[str, object]:
    """Return what the page of a statement shows. Raises `Malformed`, `NotFound`."""
    registry = views.registry
    digest = bytes.fromhex(canonical.parse_digest(id_))
    row = await registry.pool.fetchrow(_ENTRY, digest, registry.head.size)
    if row is None:
        raise NotFound(RegistryStatementCode.UNKNOWN, f"This log has no statement {id_}.")
    return {
        "entry": decode(row["index"], restored(row["leaf"]), registry.origin),
        "key": str(registry.log_key),
        "clock_key": str(registry.clock_key),
        "base_url": registry.base_url,
    }


def signature_lines(note: bytes, keys: LogKeys) -> list[SignatureLine]:
    """Return the signature lines of the log's own note, in their order. Their signatures are not checked again."""
    lines = []
    roles = {
        (key.name, key.id.hex()): role for term in keys.terms for key, role in ((term.log, "log"), (term.clock, "clock")) if key
    }
    for line in note.decode().rpartition("\n\n")[2].splitlines():
        _, name, encoded = line.split(" ", 2)
        data = b64decode(encoded, limit=MAX_NOTE_BYTES)
        key_id, is_cosignature = data[:_KEY_ID].hex(), len(data) == _KEY_ID + _TIME + _ED25519
        role = roles.get((name, key_id), "witness" if is_cosignature else "other")
        time = int.from_bytes(data[_KEY_ID : _KEY_ID + _TIME], "big") if is_cosignature else None
        lines.append(SignatureLine(name, key_id, role, time))
    return lines


MAX_VALUES = 24
"""The values of one member that are shown. The JSON below them has all."""
MAX_JSON = 24 * 1024
"""The characters of a statement's JSON that are shown."""


@dataclass(frozen=True)
class Member:
    """A member of an entry: its name, its meaning in a sentence, its first values, and the number of the others."""

    name: str
    meaning: str
    values: tuple[LinkedText, ...]
    more: int = 0


@dataclass(frozen=True)
class EntrySignature:
    """A signature of an entry: the id of the key, and the signature in base64."""

    keyid: str
    sig: str


@dataclass(frozen=True)
class EntryView:
    """One leaf for people.

    `id`: of the statement; None for a leaf of the Sigstore services, which has none. `about`: the subject, with a link to it.
    """

    index: int
    hash: str
    size: int
    kind: str
    says: str
    id: str | None = None
    about: LinkedText | None = None
    authors: tuple[str, ...] = ()
    issued: int | None = None
    members: tuple[Member, ...] = ()
    signatures: tuple[EntrySignature, ...] = ()
    json: str = ""
    is_cut: bool = False
    checks: tuple[str, ...] = ("treaty audit",)


def decode(index: int, leaf: bytes, origin: str) -> EntryView:
    """Return a leaf of the log `origin` for people. A leaf of an unknown form is shown as such. Never raises."""
    view = outline(index, leaf, origin)
    if view.id is None:
        return view
    parsed = statement.understand(leaf)
    text = _indented(parsed.payload)
    return replace(
        view,
        members=tuple(_members(parsed, origin)),
        signatures=tuple(EntrySignature(one["keyid"], one["sig"]) for one in msgspec.json.decode(leaf)["signatures"]),
        json=text[:MAX_JSON],
        is_cut=len(text) > MAX_JSON,
        checks=meanings.checks(parsed.body),
    )


def outline(index: int, leaf: bytes, origin: str) -> EntryView:
    """Return a leaf as lists show it: as `decode`, but a statement without its members, signatures and JSON."""
    try:
        parsed = statement.understand(leaf)
    except (Malformed, TooLarge):
        return _other(index, leaf)
    return EntryView(
        index=index,
        hash=leaf_hash(leaf).hex(),
        size=len(leaf),
        kind=parsed.type,
        says=meanings.SAYS[parsed.type],
        id=parsed.id,
        about=meanings.about(parsed.body, origin),
        authors=tuple(dict.fromkeys(did.text for did in parsed.authors)),
        issued=parsed.issued,
    )


def _members(statement: Statement, origin: str) -> Iterator[Member]:
    for name, value in msgspec.to_builtins(statement.body).items():
        typed = getattr(statement.body, name)
        # Structs within a body are shown member by member.
        nested = value.items() if isinstance(value, dict) and not isinstance(typed, Blob) else ((None, value),)
        for part, one in nested:
            label = name if part is None else f"{name}.{part}"
            links = list(meanings.links(statement.type, label, one, origin))
            yield Member(
                label, meanings.meaning(statement.type, label), tuple(links[:MAX_VALUES]), max(0, len(links) - MAX_VALUES)
            )


def _other(index: int, leaf: bytes) -> EntryView:
    """Return a leaf that is no statement."""
    view = EntryView(index, leaf_hash(leaf).hex(), len(leaf), "unknown", meanings.SAYS["unknown"])
    try:
        sigstore_leaf = parse_sigstore_leaf(leaf)
    except (Malformed, TooLarge):
        return view
    text = _indented(leaf)
    view = replace(view, json=text[:MAX_JSON], is_cut=len(text) > MAX_JSON)
    if isinstance(sigstore_leaf, CertificateLeaf):
        return replace(
            view, kind="certificate", says=meanings.SAYS["certificate"], members=tuple(_certificate(sigstore_leaf.der))
        )
    record = (
        Member("digest", meanings.SIGSTORE["digest"], (LinkedText(sigstore_leaf.digest.hex()),)),
        Member("signature", meanings.SIGSTORE["signature"], (LinkedText(b64encode(sigstore_leaf.signature)),)),
    )
    members = (*record, *_certificate(sigstore_leaf.certificate))
    return replace(view, kind="hashedrekord", says=meanings.SAYS["hashedrekord"], members=members)


def _certificate(der: bytes) -> Iterator[Member]:
    """Yield what an X.509 certificate says. Bytes that are none yield nothing: a leaf does not prove that they are one."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        from_, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        serial = certificate.serial_number
    except (ValueError, x509.ExtensionNotFound):
        return
    yield Member("subject", meanings.SIGSTORE["subject"], tuple(meanings.agent(uri) for uri in uris[:MAX_VALUES]))
    span = f"{from_:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC"
    yield Member("valid", meanings.SIGSTORE["valid"], (LinkedText(span),))
    yield Member("serial", meanings.SIGSTORE["serial"], (LinkedText(f"{serial:x}"),))


def _indented(data: bytes) -> str:
    return msgspec.json.format(data, indent=2).decode("utf-8")


WIDTH = 720
_TOP, _FOOT = 24, 34
_ROW, _BOX, _LABEL = 56, 40, 96
MAX_BOXES = 11
"""The tiles of one level that are drawn. The table has the numbers of all."""


@dataclass(frozen=True)
class Subtree:
    """A perfect subtree: a triangle with its top at (`x`, `y`), and the point above it where it joins the right edge."""

    leaves: int
    x: int
    y: int
    left: int
    right: int
    join_x: int
    join_y: int

    @property
    def has_label(self) -> bool:
        """Whether its number of leaves fits below it. The table has all numbers."""
        return self.right - self.left >= 8 * len(f"{self.leaves:,}")


@dataclass(frozen=True)
class Box:
    """A tile at `x`. `filled`: the width of the filled part. `path` is None for the gap that stands for undrawn tiles."""

    x: int
    filled: int
    path: str | None
    count: int


@dataclass(frozen=True)
class Level:
    """The tiles of one level: full ones, and the hashes in the partial one."""

    number: int
    full: int
    partial: int
    y: int
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Tree:
    """Both pictures. `height`, `tiles_height`: of each, in units of the picture. `base`: the line of the leaves."""

    size: int
    height: int
    base: int
    subtrees: tuple[Subtree, ...]
    tiles_height: int
    levels: tuple[Level, ...]


def layout(size: int) -> Tree:
    """Return the pictures of the tree of `size` leaves."""
    levels = tuple(_levels(size))
    subtrees, height = _subtrees(size)
    return Tree(size, height, height - _FOOT, subtrees, len(levels) * _ROW, levels)


def _subtrees(size: int) -> tuple[tuple[Subtree, ...], int]:
    nodes = root_nodes(size)
    if not nodes:
        return (), _TOP + _FOOT
    tallest, count = nodes[0].level, len(nodes)
    # The widths follow the levels and not the leaves: otherwise the small ones at the right edge could not be seen.
    # A tree of few leaves is not stretched over the whole width.
    total = max(sum(node.level + 2 for node in nodes), 12)
    step = 14
    base = _TOP + step * (tallest + 1 + count)
    subtrees, left = [], 12
    for place, node in enumerate(nodes):
        right = left + (WIDTH - 24) * (node.level + 2) // total
        x, y = (left + right) // 2, base - step * (node.level + 1)
        # The root joins the first subtree with all that is right of it, so the joints go down to the right.
        gap = min(3, (right - left) // 4)
        subtrees.append(Subtree(1 << node.level, x, y, left + gap, right - gap, x, _TOP + step * min(place, max(count - 2, 0))))
        left = right
    return tuple(subtrees), base + _FOOT


def _levels(size: int) -> Iterator[Level]:
    number, hashes = 0, size
    counts = []
    while hashes:
        counts.append((number, hashes))
        number, hashes = number + 1, hashes >> TILE_HEIGHT
    for row, (level, count) in enumerate(reversed(counts)):
        full, partial = divmod(count, TILE_WIDTH)
        yield Level(level, full, partial, row * _ROW, tuple(_boxes(level, full, partial)))


def _boxes(level: int, full: int, partial: int) -> Iterator[Box]:
    is_cut = full + bool(partial) > MAX_BOXES
    places = [0, 1, -1, *range(full - MAX_BOXES + 4, full)] if is_cut else list(range(full))
    for place, index in enumerate(places):
        x = _LABEL + place * (_BOX + 12)
        yield Box(x, _BOX, Tile(level, index).path if index >= 0 else None, TILE_WIDTH)
    if partial:
        x = _LABEL + len(places) * (_BOX + 12)
        yield Box(x, max(2, _BOX * partial // TILE_WIDTH), Tile(level, full, partial).path, partial)
