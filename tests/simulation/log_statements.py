"""The meaning of the statements for the log itself, identities, grants, ballots and vouches. See `meanings`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .meanings import insert_all, means, one, zipped
from .tables import Row, View

# The log's own tables.


@means("select size, root from head")
def read_head(view: View) -> list[Row]:
    head = view.get("head", True)
    assert head is not None
    return [{"size": head["size"], "root": head["root"]}]


@means("select key, fact, null::bytea as statement, null::bigint as index from facts where key = any($1::text[]) union all "
       "select null, null, statement, index from leaves where statement = any($2::bytea[])")  # fmt: skip
def look_up(view: View, keys: list[str], statements: list[bytes]) -> list[Row]:
    facts = [row for key in dict.fromkeys(keys) if (row := view.get("facts", key))]
    ids = set(statements)
    leaves = [row for row in view.all("leaves") if row["statement"] in ids]
    rows = [{"key": row["key"], "fact": row["fact"], "statement": None, "index": None} for row in facts]
    return rows + [{"key": None, "fact": None, "statement": row["statement"], "index": row["index"]} for row in leaves]


_APPEND = """
with moved as (
  update head set size = $3, root = $4 where {condition} returning true
), new_leaves as (
  insert into leaves (index, leaf, statement)
  select row.* from moved, unnest($5::bigint[], $6::bytea[], $7::bytea[]) as row
), new_tiles as (
  insert into tiles (level, index, hashes)
  select row.* from moved, unnest($8::smallint[], $9::bigint[], $10::bytea[]) as row
), new_facts as (
  insert into facts (key, fact)
  select row.* from moved, unnest($11::text[], $12::bytea[]) as row
  on conflict (key) do update set fact = excluded.fact
){also}
select exists (select from moved)
"""
_BALLOTS = """,
ended_ballots as (
  update ballots b set ended = newer.index
  from moved, unnest($13::text[], $14::text[], $15::bigint[]) as newer (topic, did, index)
  where (b.topic, b.did) = (newer.topic, newer.did) and b.ended is null
  and b.index = (select max(o.index) from ballots o where (o.topic, o.did) = (newer.topic, newer.did))
), new_ballots as (
  insert into ballots (topic, did, index, tiers, ended)
  select row.* from moved, unnest($16::text[], $17::text[], $18::bigint[], $19::text[], $20::bigint[]) as row
), new_authors as (
  insert into authors
  select row.* from moved, unnest($21::text[], $22::bigint[], $23::text[]) as row
)"""
_IF_HEAD, _IN_ANY_CASE = "size = $1 and root = $2", "$1::bigint is not null and $2::bytea is not null"


@means(*(_APPEND.format(condition=_IF_HEAD, also=also) for also in ("", _BALLOTS)))
def append(view: View, size: int, root: bytes, *values: Any) -> list[Row]:
    head = view.get("head", True)
    if (head["size"], head["root"]) != (size, root):  # type: ignore[index]
        return one(False)
    # Locked, and then compared again with the newest commit, as PostgreSQL does. The caller repeats a statement that waits.
    view.lock("head")
    return append_anyway(view, size, root, *values)


@means(*(_APPEND.format(condition=_IN_ANY_CASE, also=also) for also in ("", _BALLOTS)))  # a planted bug
def append_anyway(view: View, _size: int, _root: bytes, new_size: int, new_root: bytes, *columns: list[Any]) -> list[Row]:
    view.lock("head")
    view.put("head", {"single": True, "size": new_size, "root": new_root})
    for row in zipped(*columns[0:3]):
        view.insert("leaves", *row)
    for row in zipped(*columns[3:6]):
        view.insert("tiles", *row)
    for key, fact in zipped(*columns[6:8]):
        view.put("facts", {"key": key, "fact": fact})
    if len(columns) > 8:
        end_ballots(view, *columns[8:11])
        ballots(view, *columns[11:16])
        authors(view, *columns[16:19])
    return one(True)


@means("with named as ( insert into blobs (sha256, size, index) select row.* from unnest($1::bytea[], $2::bigint[], "
       "$3::bigint[]) "
       "as row on conflict (sha256) do nothing ) delete from pending_blobs where sha256 = any($1::bytea[]) and sha256 not in "
       "(select sha256 from blobs where sha256 = any($1::bytea[]) and withdrawn is not null)")  # fmt: skip
def name_blobs(view: View, *columns: list[Any]) -> list[Row]:
    for row in zipped(*columns):
        view.insert("blobs", *row, on_conflict=lambda _: None)
    for digest in columns[0]:
        logged = view.get("blobs", digest)
        if (pending := view.get("pending_blobs", digest)) and logged and logged["withdrawn"] is None:
            view.delete("pending_blobs", pending)
    return []


@means("update leadership set term = term + 1, url = '', backend = pg_backend_pid(), beat = clock_timestamp() returning term")
def take(view: View) -> list[Row]:
    return one(_led(view, {"term": _leadership(view)["term"] + 1, "url": "", "backend": view.backend})["term"])


@means("with published as ( update leadership set url = $2, note = $3, witnessed = $4, beat = clock_timestamp() where term = $1 "
       "returning true ) select pg_notify('treaty_head', '') from published")  # fmt: skip
def publish(view: View, term: int, url: str, note: bytes, witnessed: bytes) -> list[Row]:
    if _leadership(view)["term"] != term:
        return []
    _led(view, {"url": url, "note": note, "witnessed": witnessed})
    view.notifies = True
    return one(None)


@means("update leadership set beat = clock_timestamp() where term = $1 returning true")
def beat(view: View, term: int) -> list[Row]:
    if _leadership(view)["term"] != term:
        return []
    _led(view, {})
    return one(True)


@means("select term, url, backend, note, witnessed, extract(epoch from clock_timestamp() - beat)::float8 as silent "
       "from leadership")  # fmt: skip
def read_leadership(view: View) -> list[Row]:
    row = _leadership(view)
    members = {name: row[name] for name in ("term", "url", "backend", "note", "witnessed")}
    return [{**members, "silent": view.now - row["beat"]}]


@means("select pg_terminate_backend(backend) from leadership where term = $1 and backend = $2")
def end_leader(view: View, term: int, backend: int) -> list[Row]:
    row = _leadership(view)
    return one(view.end_session(backend)) if (row["term"], row["backend"]) == (term, backend) else []


def _leadership(view: View) -> Row:
    row = view.get("leadership", True)
    assert row is not None
    return row


def _led(view: View, changed: Row) -> Row:
    view.lock("leadership")
    row = {**_leadership(view), "beat": view.now, **changed}
    view.put("leadership", row)
    return row


@means("select index, leaf from leaves where index = any($1::bigint[])")
def read_leaves(view: View, indexes: list[int]) -> list[Row]:
    rows = [view.get("leaves", index) for index in dict.fromkeys(indexes)]
    return [{"index": row["index"], "leaf": row["leaf"]} for row in rows if row]


@means("select leaf from leaves where index >= $1 and index < $2 order by index")
def read_range(view: View, begin: int, end: int) -> list[Row]:
    return [{"leaf": row["leaf"]} for index in range(begin, end) if (row := view.get("leaves", index))]


@means("select level, index, hashes from tiles join unnest($1::smallint[], $2::bigint[]) as wanted (level, index) "
       "using (level, index)")  # fmt: skip
def read_tiles(view: View, levels: list[int], indexes: list[int]) -> list[Row]:
    return [dict(row) for place in zipped(levels, indexes) if (row := view.get("tiles", *place))]


@means("select statement, index from leaves where statement = any($1::bytea[]) and index < $2")
def index_of(view: View, statements: list[bytes], size: int) -> list[Row]:
    rows = [row for row in view.all("leaves") if row["statement"] in statements and row["index"] < size]
    return [{"statement": row["statement"], "index": row["index"]} for row in rows]


@means("select index from leaves where statement = $1")
def index_of_one(view: View, statement: bytes) -> list[Row]:
    return [{"index": row["index"]} for row in view.all("leaves") if row["statement"] == statement]


@means("select fact from facts where key = $1")
def read_fact(view: View, key: str) -> list[Row]:
    row = view.get("facts", key)
    return [{"fact": row["fact"]}] if row else []


# Uploads: the documents of identities.


@means("select withdrawn from blobs where sha256 = $1")
def is_logged(view: View, digest: bytes) -> list[Row]:
    row = view.get("blobs", digest)
    return [{"withdrawn": row["withdrawn"]}] if row else []


@means("insert into pending_blobs (sha256, size, expires) values ($1, $2, now() + make_interval(secs => $3)) "
       "on conflict (sha256) do update set expires = excluded.expires returning xmax = 0")  # fmt: skip
def wait(view: View, digest: bytes, size: int, seconds: float) -> list[Row]:
    new = view.get("pending_blobs", digest) is None
    view.insert("pending_blobs", digest, size, view.now + seconds, on_conflict=lambda row: {**row, "expires": view.now + seconds})
    return one(new)


# The projections.


@means("insert into genesis select * from unnest($1::text[], $2::bytea[])")
def genesis(view: View, *columns: list[Any]) -> list[Row]:
    return insert_all(view, "genesis", columns)


@means("insert into parameters select * from unnest($1::bigint[], $2::bytea[], $3::text[], $4::text[])")
def parameters(view: View, *columns: list[Any]) -> list[Row]:
    return insert_all(view, "parameters", columns)


@means("insert into identities select * from unnest($1::text[], $2::bigint[], $3::bytea[], $4::bytea[], $5::bigint[], "
       "$6::jsonb[])")  # fmt: skip
def identities(view: View, *columns: list[Any]) -> list[Row]:
    return insert_all(view, "identities", columns)


@means("insert into grants select * from unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])")
def grants(view: View, *columns: list[Any]) -> list[Row]:
    return insert_all(view, "grants", columns)


@means("insert into authors select * from unnest($1::text[], $2::bigint[], $3::text[])")
def authors(view: View, *columns: list[Any]) -> list[Row]:
    return insert_all(view, "authors", columns)


@means("insert into vouches (author, subject, seq, index) "
       "select * from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])")  # fmt: skip
def vouches(view: View, *columns: list[Any]) -> list[Row]:
    return insert_all(view, "vouches", columns)


@means("insert into ballots (topic, did, index, tiers, ended) "
       "select * from unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::bigint[])")  # fmt: skip
def ballots(view: View, *columns: list[Any]) -> list[Row]:
    return insert_all(view, "ballots", columns)


@means("delete from vouches v using unnest($1::text[], $2::text[]) as named (author, subject) "
       "where (v.author, v.subject) = (named.author, named.subject)")  # fmt: skip
def end_vouches(view: View, *columns: list[Any]) -> list[Row]:
    for pair in set(zipped(*columns)):
        if row := view.get("vouches", *pair):
            view.delete("vouches", row)
    return []


@means("update ballots b set ended = newer.index from unnest($1::text[], $2::text[], $3::bigint[]) as newer (topic, did, index) "
       "where (b.topic, b.did) = (newer.topic, newer.did) and b.ended is null "
       "and b.index = (select max(o.index) from ballots o where (o.topic, o.did) = (newer.topic, newer.did))")  # fmt: skip
def end_ballots(view: View, *columns: list[Any]) -> list[Row]:
    newer = {(topic, did): index for topic, did, index in zipped(*columns)}
    for row in view.all("ballots"):
        if row["ended"] is None and (row["topic"], row["did"]) in newer:
            view.put("ballots", {**row, "ended": newer[row["topic"], row["did"]]})
    return []


@means(
    "insert into clock select index, issued from ( select index, issued, max(issued) over (order by index rows between unbounded "
    "preceding and 1 preceding) as before from unnest($1::bigint[], $2::bigint[], $3::text[]) as signed (index, issued, did) "
    "join genesis on operator = did ) own where issued > coalesce(greatest(before, (select issued from clock order by index desc "
    "limit 1)), -1)"
)
def clock(view: View, *columns: list[Any]) -> list[Row]:
    newest = max(view.all("clock"), key=lambda row: row["index"], default={"issued": None})["issued"]
    before = None
    for index, issued, _ in sorted(row for row in zipped(*columns) if view.get("genesis", row[2])):
        times = [value for value in (before, newest) if value is not None]
        if issued > max(times, default=-1):
            view.insert("clock", index, issued)
        before = issued if before is None else max(before, issued)
    return []


_END = """
update grants g set ended = ends.index from (
  select g.namespace, g.grantee, g.index as begun, min(ends.index) as index from grants g cross join lateral (
    select newer.index from grants newer
    where (newer.namespace, newer.grantee) = (g.namespace, g.grantee) and newer.index > g.index
    union all
    select i.index from identities i
    where i.did in (g.owner, g.grantee) and i.index > g.index and i.tenure > coalesce(
      (select max(tenure) from identities before where before.did = i.did and before.index < g.index), 1)
  ) ends where g.ended is null and ({some}) group by 1, 2, 3
) ends where (g.namespace, g.grantee, g.index) = (ends.namespace, ends.grantee, ends.begun)
"""


@means(_END.format(some="(g.namespace, g.grantee) in (select * from unnest($1::text[], $2::text[]))"))
def end_grants(view: View, namespaces: list[str], grantees: list[str]) -> list[Row]:
    return _end(view, lambda row: (row["namespace"], row["grantee"]) in zipped(namespaces, grantees))


@means(_END.format(some="g.owner = any($1) or g.grantee = any($1)"))
def end_grants_of(view: View, dids: list[str]) -> list[Row]:
    return _end(view, lambda row: row["owner"] in dids or row["grantee"] in dids)


def _end(view: View, matches: Callable[[Row], bool]) -> list[Row]:
    identities = list(view.all("identities"))
    every = list(view.all("grants"))
    for row in every:
        if row["ended"] is not None or not matches(row):
            continue
        pair, begun = (row["namespace"], row["grantee"]), row["index"]
        ends = [newer["index"] for newer in every if (newer["namespace"], newer["grantee"]) == pair and newer["index"] > begun]
        for identity_row in identities:
            if identity_row["did"] in (row["owner"], row["grantee"]) and identity_row["index"] > begun:
                tenures = [
                    before["tenure"] for before in identities if before["did"] == identity_row["did"] and before["index"] < begun
                ]
                if identity_row["tenure"] > max(tenures, default=1):
                    ends.append(identity_row["index"])
        if ends:
            view.put("grants", {**row, "ended": min(ends)})
    return []


# What a start and the health check ask. In no history a migration is missing.


@means("select true")
def alive(view: View) -> list[Row]:
    return one(True)


@means("create temporary table trial (data bytea) on commit drop", "insert into trial (data) values ($1)",
       "create table if not exists migrations (name text primary key, sha256 text not null)")  # fmt: skip
def nothing(view: View, *_: Any) -> list[Row]:
    return []
