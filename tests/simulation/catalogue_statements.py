"""The meaning of the statements for uploads, protocols, handlers, reports and decisions. See `meanings`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from .meanings import insert_all, means, one, zipped
from .tables import Row, View

# Uploads.


@means("select coalesce(sum(size), 0) from pending_blobs where expires > now()")
def pending(view: View) -> list[Row]:
    return one(sum(row["size"] for row in view.all("pending_blobs") if row["expires"] > view.now))


@means("select sha256, false as withdrawn from pending_blobs where sha256 = any($1::bytea[]) and expires > now() + "
       "make_interval(secs => $2) union all select sha256, withdrawn is not null from blobs "
       "where sha256 = any($1::bytea[])")  # fmt: skip
def present(view: View, digests: list[bytes], seconds: float) -> list[Row]:
    pending = [view.get("pending_blobs", digest) for digest in dict.fromkeys(digests)]
    waiting = [{"sha256": row["sha256"], "withdrawn": False} for row in pending if row and row["expires"] > view.now + seconds]
    logged = [view.get("blobs", digest) for digest in dict.fromkeys(digests)]
    return waiting + [{"sha256": row["sha256"], "withdrawn": row["withdrawn"] is not None} for row in logged if row]


@means("with withdrawn as (update blobs set withdrawn = $2 where sha256 = $1 and withdrawn is null returning sha256, size) "
       "insert into pending_blobs (sha256, size, expires) select sha256, size, now() from withdrawn "
       "on conflict (sha256) do update set expires = excluded.expires")  # fmt: skip
def withdraw(view: View, digest: bytes, index: int) -> list[Row]:
    row = view.get("blobs", digest)
    if row and row["withdrawn"] is None:
        view.put("blobs", {**row, "withdrawn": index})
        view.insert("pending_blobs", digest, row["size"], view.now, on_conflict=lambda before: {**before, "expires": view.now})
    return []


@means("select sender, blocked, factor, extract(epoch from since)::bigint as since, caller as user from senders order by sender")
def senders(_: View) -> list[Row]:
    return []


@means("select extract(epoch from max(at))::bigint from operator_acts where command = $1")
def last_act(_: View, command: str) -> list[Row]:
    return one(None)


# Protocols and handlers.


@means("""
insert into protocols
  (uri, namespace, name, version, topic, origin, document, size, card, base, aliases, publisher, statement, index,
   title, summary, tags, licence, agora, terms)
select uri, namespace, name, version, topic, origin, document, size, card, base, string_to_array(aliases, ' '), publisher,
       statement, index, title, summary, string_to_array(tags, ' '), licence, agora, terms::tsvector
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::bigint[],
            $9::bytea[], $10::text[], $11::text[], $12::text[], $13::bytea[], $14::bigint[], $15::text[], $16::text[],
            $17::text[], $18::text[], $19::bytea[], $20::text[])
  as entry (uri, namespace, name, version, topic, origin, document, size, card, base, aliases, publisher, statement,
            index, title, summary, tags, licence, agora, terms)
""")
def protocols(view: View, *columns: list[Any]) -> list[Row]:
    for row in zipped(*columns):
        view.insert("protocols", *row[:10], *row[11:16], *row[17:19], "active")
    return []


@means("insert into topics select topic, count(*) from unnest($1::text[]) as published (topic) group by topic "
       "on conflict (topic) do update set protocols = topics.protocols + excluded.protocols")  # fmt: skip
def topics(view: View, published: list[str]) -> list[Row]:
    for topic, number in Counter(published).items():
        row = view.get("topics", topic)
        view.put("topics", {"topic": topic, "protocols": number + (row["protocols"] if row else 0)})
    return []


@means("""
with gone as (select sha256 from blobs where sha256 = any($3::bytea[] || $7::bytea[]) and withdrawn is not null)
insert into handlers
  (uri, publisher, wheel, filename, size, entry_point, bundle, statement, index, signer, coverage, metadata,
   requires_python)
select uri, publisher, wheel, filename, size, entry_point, bundle, statement, index,
  case when bundle in (select sha256 from gone) then null else signer end,
  case when wheel in (select sha256 from gone) then null else coverage end,
  case when wheel in (select sha256 from gone) then null else metadata end,
  case when wheel in (select sha256 from gone) then null else requires_python end
from unnest($1::text[], $2::text[], $3::bytea[], $4::text[], $5::bigint[], $6::text[], $7::bytea[], $8::bytea[],
            $9::bigint[], $10::text[], $11::text[], $12::bytea[], $13::text[])
  as entry (uri, publisher, wheel, filename, size, entry_point, bundle, statement, index, signer, coverage, metadata,
            requires_python)
""")
def handlers(view: View, *columns: list[Any]) -> list[Row]:
    for row in zipped(*columns):
        wheel, bundle, signer, package = row[2], row[6], row[9], row[10:13]
        facts = None if _withdrawn(view, bundle) else signer, *((None,) * 3 if _withdrawn(view, wheel) else package)
        view.insert("handlers", *row[:9], "active", *facts)
    return []


@means("""
select wanted.place, h.wheel, h.index from unnest($1::text[], $2::text[], $3::bigint[]) as wanted (publisher, filename, place)
cross join lateral (
  select wheel, index from handlers where publisher = wanted.publisher and filename collate "C" = wanted.filename
  order by index limit 1
) h
""")
def first_wheels(view: View, publishers: list[str], filenames: list[str], places: list[int]) -> list[Row]:
    found = []
    for publisher, filename, place in zip(publishers, filenames, places, strict=True):
        named = [r for r in view.all("handlers") if (r["publisher"], r["filename"]) == (publisher, filename)]
        first = min(named, key=lambda row: row["index"], default=None)
        if first is not None:
            found.append({"place": place, "wheel": first["wheel"], "index": first["index"]})
    return found


@means("""
select p.uri, h.filename, encode(h.wheel, 'hex') as wheel
from protocols p cross join lateral (
  select filename, wheel from handlers
  where uri = p.uri and publisher = p.publisher and state in ('active', 'deprecated') order by index desc limit 1
) h
where p.namespace = $1 and p.name = $2 and p.uri <> $3 and p.state in ('active', 'deprecated')
  and not exists (select from protocols own where own.uri = $3 and own.publisher <> $4)
order by p.index desc limit $5
""")
def versions_with_handlers(view: View, namespace: str, name: str, uri: str, publisher: str, limit: int) -> list[Row]:
    own = view.get("protocols", uri)
    if own is not None and own["publisher"] != publisher:
        return []
    usable = ("active", "deprecated")
    rows: list[Row] = []
    for row in sorted(view.all("protocols"), key=lambda row: -row["index"]):
        if (row["namespace"], row["name"]) != (namespace, name) or row["uri"] == uri or row["state"] not in usable:
            continue
        owned = (each for each in view.all("handlers") if (each["uri"], each["publisher"]) == (row["uri"], row["publisher"]))
        newest = max((each for each in owned if each["state"] in usable), key=lambda each: each["index"], default=None)
        if newest is not None:
            rows.append({"uri": row["uri"], "filename": newest["filename"], "wheel": newest["wheel"].hex()})
    return rows[:limit]


def _withdrawn(view: View, digest: bytes) -> bool:
    row = view.get("blobs", digest)
    return row is not None and row["withdrawn"] is not None


@means("insert into statuses select * from unnest($1::bigint[], $2::text[], $3::text[], $4::bytea[], $5::text[], $6::text[])")
def statuses(view: View, *columns: list[Any]) -> list[Row]:
    return insert_all(view, "statuses", columns)


@means("""
update protocols set state = newest.state, successor = newest.successor
from (select distinct on (uri) uri, state, successor from statuses where index >= $1 and wheel is null
      order by uri, index desc) newest
where protocols.uri = newest.uri
""")
def protocol_states(view: View, first: int) -> list[Row]:
    for status in sorted(view.all("statuses"), key=lambda row: row["index"]):
        row = view.get("protocols", status["uri"])
        if row and status["index"] >= first and status["wheel"] is None:
            view.put("protocols", {**row, "state": status["state"], "successor": status["successor"]})
    return []


@means("""
update handlers set state = newest.state
from (select distinct on (uri, publisher, wheel) uri, publisher, wheel, state from statuses
      where index >= $1 and wheel is not null order by uri, publisher, wheel, index desc) newest
where (handlers.uri, handlers.publisher, handlers.wheel) = (newest.uri, newest.publisher, newest.wheel)
""")
def handler_states(view: View, first: int) -> list[Row]:
    for status in sorted(view.all("statuses"), key=lambda row: row["index"]):
        row = view.get("handlers", status["uri"], status["publisher"], status["wheel"])
        if row and status["index"] >= first:
            view.put("handlers", {**row, "state": status["state"]})
    return []


@means("insert into withdrawals select * from unnest($1::bigint[], $2::bytea[], $3::text[])")
def withdrawals(view: View, *columns: list[Any]) -> list[Row]:
    return insert_all(view, "withdrawals", columns)


@means("update protocols set agora = null where document = any($1)")
def clear_agora(view: View, digests: list[bytes]) -> list[Row]:
    return _clear(view, "protocols", {"agora": None}, lambda row: row["document"] in digests)


@means("update handlers set coverage = null, metadata = null, requires_python = null where wheel = any($1)")
def clear_coverage(view: View, digests: list[bytes]) -> list[Row]:
    return _clear(
        view, "handlers", {"coverage": None, "metadata": None, "requires_python": None}, lambda row: row["wheel"] in digests
    )


@means("update handlers set signer = null where bundle = any($1)")
def clear_signer(view: View, digests: list[bytes]) -> list[Row]:
    return _clear(view, "handlers", {"signer": None}, lambda row: row["bundle"] in digests)


@means("select uri, topic, index from protocols where card = any($1)")
def of_card(view: View, digests: list[bytes]) -> list[Row]:
    return [_part(row, "uri", "topic", "index") for row in view.all("protocols") if row["card"] in digests]


@means("update protocols set title = '', summary = '', tags = '{}', licence = '', terms = cleared.terms::tsvector "
       "from unnest($1::text[], $2::text[]) as cleared (uri, terms) where protocols.uri = cleared.uri")  # fmt: skip
def clear_card(view: View, uris: list[str], _terms: list[str]) -> list[Row]:
    return _clear(view, "protocols", {"title": "", "summary": "", "licence": ""}, lambda row: row["uri"] in uris)


def _clear(view: View, table: str, changed: Row, is_due: Callable[[Row], bool]) -> list[Row]:
    for row in view.all(table):
        if is_due(row):
            view.put(table, {**row, **changed})
    return []


def _part(row: Row, *names: str) -> Row:
    return {name: row[name] for name in names}


# Reports and decisions.


@means("insert into tallies select * from unnest($1::text[], $2::bytea[], $3::bigint[]) "
       "on conflict (topic, document) do update set agreed = tallies.agreed + excluded.agreed")  # fmt: skip
def tallies(view: View, *columns: list[Any]) -> list[Row]:
    for topic, document, agreed in zipped(*columns):
        view.insert("tallies", topic, document, agreed, on_conflict=lambda row, n=agreed: {**row, "agreed": row["agreed"] + n})  # type: ignore[misc]
    return []


@means("insert into pairs select * from unnest($1::text[], $2::bytea[], $3::text[], $4::text[], $5::bigint[], $6::bigint[]) "
       "on conflict (topic, document, first, second) do update set epoch = excluded.epoch, index = excluded.index")  # fmt: skip
def pairs(view: View, *columns: list[Any]) -> list[Row]:
    return _replace_all(view, "pairs", columns)


@means("insert into spoken select * from unnest($1::text[], $2::text[], $3::bytea[], $4::bigint[]) "
       "on conflict (topic, did) do update set document = excluded.document, index = excluded.index")  # fmt: skip
def spoken(view: View, *columns: list[Any]) -> list[Row]:
    return _replace_all(view, "spoken", columns)


@means("insert into speakers select * from unnest($1::text[], $2::bytea[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[]) "
       "on conflict (topic, document, did) do update set "
       "reports = speakers.reports + excluded.reports, epoch = excluded.epoch, index = excluded.index")  # fmt: skip
def speakers(view: View, *columns: list[Any]) -> list[Row]:
    for row in zipped(*columns):
        before = view.get("speakers", *row[:3])
        view.insert("speakers", *row, on_conflict=lambda known: known)
        if before is not None:
            new = {"reports": before["reports"] + row[3], "epoch": row[4], "index": row[5]}
            view.put("speakers", {**before, **new})
    return []


def _replace_all(view: View, table: str, columns: Any) -> list[Row]:
    for row in zipped(*columns):
        view.write(table, *row)
    return []


@means("insert into decisions select * from unnest"
       "($1::text[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bytea[], $6::bytea[], $7::bytea[])")  # fmt: skip
def decisions(view: View, *columns: list[Any]) -> list[Row]:
    return insert_all(view, "decisions", columns)


@means("update protocols set pairs = 0 where topic = $1 and document in (select document from elections where topic = $1) "
       "and pairs > 0",
       "update protocols set pairs = used.pairs from unnest($3::bytea[], $4::bigint[]) as used (document, pairs) "
       "where protocols.topic = $1 and protocols.index < $2 and protocols.document = used.document",
       "update protocols set pairs = 0 where pairs > 0 and topic in ( select topic from decisions d where transcript = any($1) "
       "and not exists (select from decisions later where later.topic = d.topic and later.index > d.index) )")  # fmt: skip
def use(_: View, *_values: Any) -> list[Row]:
    """The order of searches, which no other statement reads."""
    return []


@means("delete from elections where topic = $1 and state <> all($2)")
def end_candidates(view: View, topic: str, names: list[str]) -> list[Row]:
    return _delete(view, "elections", lambda row: row["topic"] == topic and row["state"] not in names)


@means("delete from elections where topic = $1 and document = any($2)")
def end_elections(view: View, topic: str, documents: list[bytes]) -> list[Row]:
    return _delete(view, "elections", lambda row: row["topic"] == topic and row["document"] in documents)


@means("insert into elections select * from unnest($1::text[], $2::bytea[], $3::text[], $4::bigint[], $5::bytea[])")
def elections(view: View, *columns: list[Any]) -> list[Row]:
    return insert_all(view, "elections", columns)


@means("select uri from protocols where topic = $1 and document = any($2)")
def elected(view: View, topic: str, documents: list[bytes]) -> list[Row]:
    return [_part(row, "uri") for row in view.all("protocols") if row["topic"] == topic and row["document"] in documents]


@means("select document, uri from protocols where topic = $1 and document = any($2) order by index")
def named(view: View, topic: str, documents: list[bytes]) -> list[Row]:
    rows = [row for row in view.all("protocols") if row["topic"] == topic and row["document"] in documents]
    return [_part(row, "document", "uri") for row in sorted(rows, key=lambda row: row["index"])]


@means("select uri from protocols where card = any($1) "
       "union select uri from handlers where wheel = any($1) union select uri from handlers where bundle = any($1)")  # fmt: skip
def of_withdrawn(view: View, digests: list[bytes]) -> list[Row]:
    uris = {row["uri"] for row in view.all("protocols") if row["card"] in digests}
    uris |= {row["uri"] for row in view.all("handlers") if row["wheel"] in digests or row["bundle"] in digests}
    return [{"uri": uri} for uri in uris]


@means("select coalesce(max(epoch), -1) from rolls")
def newest_roll(view: View) -> list[Row]:
    return one(max((row["epoch"] for row in view.all("rolls")), default=-1))


@means("insert into rolls values ($1, $2, $3, $4, $5, $6)")
def rolls(view: View, *values: Any) -> list[Row]:
    view.insert("rolls", *values)
    return []


@means("delete from principals")
def no_principals(view: View) -> list[Row]:
    return _delete(view, "principals", lambda _: True)


@means(
    "insert into principals select * from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])"
)
def principals(view: View, *columns: list[Any]) -> list[Row]:
    return insert_all(view, "principals", columns)


@means("insert into credits select * from unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[], "
       "$7::bytea[], $8::text[], $9::bigint[], $10::bigint[], $11::bigint[])")  # fmt: skip
def credit(view: View, *columns: list[Any]) -> list[Row]:
    return insert_all(view, "credits", columns)


@means("delete from credits using rolls where credits.epoch = rolls.epoch and roll = any($1)")
def end_credits(view: View, digests: list[bytes]) -> list[Row]:
    epochs = {row["epoch"] for row in view.all("rolls") if row["roll"] in digests}
    return _delete(view, "credits", lambda row: row["epoch"] in epochs)


@means("update rolls set able = null, pairs = null where roll = any($1)")
def end_reach(view: View, digests: list[bytes]) -> list[Row]:
    for row in view.all("rolls"):
        if row["roll"] in digests:
            view.put("rolls", {**row, "able": None, "pairs": None})
    return []


@means("delete from principals where (select roll from rolls order by epoch desc limit 1) = any($1)")
def end_principals(view: View, digests: list[bytes]) -> list[Row]:
    newest = max(view.all("rolls"), key=lambda row: row["epoch"], default=None)
    return _delete(view, "principals", lambda _: newest is not None and newest["roll"] in digests)


def _delete(view: View, table: str, is_due: Callable[[Row], bool]) -> list[Row]:
    for row in view.all(table):
        if is_due(row):
            view.delete(table, row)
    return []


@means("select principal, standing from principals where standing > 0")
def standings(view: View) -> list[Row]:
    return [_part(row, "principal", "standing") for row in view.all("principals") if row["standing"] > 0]


@means("select distinct on (grantee) grantee, standing from grants join principals on principal = namespace "
       "where ended is null order by grantee, index")  # fmt: skip
def granted(view: View) -> list[Row]:
    first: dict[str, Row] = {}
    for row in sorted(view.all("grants"), key=lambda row: row["index"]):
        principal = view.get("principals", row["namespace"])
        if row["ended"] is None and principal is not None:
            first.setdefault(row["grantee"], {"grantee": row["grantee"], "standing": principal["standing"]})
    return [first[grantee] for grantee in sorted(first)]
