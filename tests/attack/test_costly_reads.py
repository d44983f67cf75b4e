"""Reads that anybody may ask for cost little, however large the log is, however it grows, and however they are spelt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
import httpx
import pytest
from http_api import attach, path_of, problem
from registries import TOPIC, Publication, Web, ballot, grant, log, publication, publish
from signers import ORIGIN, domain_signer, key_signer

from treaty_client.registries.bundle import parse_bundle
from treaty_consensus import kinds
from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_registry.app import create_app
from treaty_registry.catalogue.ranking import MAX_WALK
from treaty_registry.catalogue.retrieval import MAX_COMPLETIONS, Query, Retrieval
from treaty_registry.registry import Registry
from treaty_registry.serving.cache import ResponseCache

WRITER = key_signer("writer")
FEW, MANY = 600, 12_000

_PROTOCOLS = """
insert into protocols (uri, namespace, name, version, topic, origin, document, size, card, aliases, publisher, statement, index,
                       title, summary, tags, licence, terms, state, facets)
select format('https://registry.example/protocols/p%s.example/chat/1.0', i), 'p' || i || '.example', 'chat', '1.0',
       case when i % 300 = 0 then 'rare/topic' else 'common/topic' end, 'negotiated', sha256(i::text::bytea), 1, '', '{}', 'p',
       sha256(i::text::bytea), i, '', '', '{}', '',
       (case when i % 3 = 0 then '''small'':1A' else '''small'':9C' end || ' ''协商'':2A ''protocol'':3A ''word' || i || ''':4B'
        || case when i % 4 = 0 then ' ''smaller'':4B' else '' end
        || case when i % 2 = 0 then ' ''even'':5C' else ' ''odd'':5C' end || ' ''series' || i % 200 || ''':6C')::tsvector,
       case when i % 50 = 0 then 'revoked' else 'active' end,
       array['=state/' || case when i % 50 = 0 then 'revoked' else 'active' end, '=origin/negotiated',
             '=handler/' || case when i % 250 = 0 then 'code-free' else 'none' end, '=namespace/p' || i || '.example']
from generate_series($1::bigint, $2::bigint) as i
"""
_POSTINGS = """
insert into postings
select term.lexeme, ascii('D') - ascii(term.weights[1]), index from protocols cross join lateral unnest(terms) as term
where index >= $1
union all select unnest(facets), 0, index from protocols where index >= $1
union all select '/', 0, index from protocols where index >= $1
union all select '/' || topic, 0, index from protocols where index >= $1
"""
_READ = """
select (select sum(seq_tup_read) from pg_stat_user_tables)::bigint + (select sum(idx_tup_read) from pg_stat_user_indexes)::bigint
"""

QUERIES = (
    *(Query(), Query("small"), Query("small protocol"), Query("协商"), Query("word17"), Query("even odd"), Query("series7")),
    *(Query("s"), Query("w"), Query("series"), Query("series small even"), Query("nothing of the kind"), Query("sm od", "rare")),
    *(Query("small", "common/topic"), Query("", "rare/topic"), Query("odd", "rare/topic"), Query("small", limit=100)),
    *(
        Query(" ".join(f"w{number}" for number in range(1, 17))),
        Query(" ".join("abcdefghijklmnop")),
        Query("small", cursor="0-1-99"),
        Query("", None, filters=(("handler", "code-free"),)),
        Query("small", filters=(("state", "deprecated"), ("origin", "standard"))),
        Query("odd", "common/topic", filters=(("state", "revoked"), ("origin", "negotiated"), ("handler", "code-free"))),
        Query("", "rare/topic", filters=(("origin", "negotiated"), ("namespace", "p300.example"))),
    ),
)


async def fill(connection: asyncpg.Connection[asyncpg.Record], first: int, last: int) -> None:
    """Protocols right in the tables of search, as so many publishes would leave them."""
    await connection.execute(_PROTOCOLS, first, last)
    await connection.execute(_POSTINGS, first)
    await connection.execute("truncate words")
    await connection.execute("insert into words select word, count(*) from postings group by word")
    await connection.execute("vacuum analyze")


@asynccontextmanager
async def searching(database: str) -> AsyncIterator[tuple[Retrieval, Callable[[], Awaitable[int]]]]:
    """A retrieval with one connection, and how many rows and index entries have been read on that so far."""
    async with asyncpg.create_pool(database, min_size=1, max_size=1) as pool:

        async def read() -> int:
            await pool.fetchval("select pg_stat_force_next_flush()")
            count: int = await pool.fetchval(_READ)
            return count

        yield Retrieval(pool), read


@pytest.mark.deep
@pytest.mark.threat(85)
async def test_a_search_costs_the_same_in_a_large_catalogue(database: str) -> None:
    bound = 16 * (MAX_WALK + MAX_COMPLETIONS)
    connection = await asyncpg.connect(database)
    await fill(connection, 1, FEW)
    for larger in (True, False):
        async with searching(database) as (retrieval, read):
            for query in QUERIES:
                idle = await read()
                idle = await read() - idle  # what reading the counters costs
                before = await read()
                await retrieval.page(query)
                cost = await read() - before - idle
                assert cost <= bound, (query, cost)
        if larger:
            await fill(connection, FEW + 1, MANY)
    await connection.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize("text", ["small", "word12", "smaller", ""])
async def test_pages_show_everything_once_and_best_first(database: str, text: str) -> None:
    connection = await asyncpg.connect(database)
    await fill(connection, 1, 2_000)
    words = text.split()
    expected = {
        row["uri"]
        for row in await connection.fetch(
            "select uri from protocols where state = 'active' and ($1 = '' or terms @@ $1::tsquery)",
            " & ".join(f"'{word}':*" for word in words),
        )
    }
    async with searching(database) as (retrieval, _):
        uris: list[str] = []
        cursor: str | None = None
        for _ in range(2_000):
            page = await retrieval.page(Query(text, limit=100, cursor=cursor))
            uris += [protocol.uri for protocol in page.protocols]
            cursor = page.next
            if cursor is None:
                break
            if len(uris) == 100:  # what comes meanwhile is newer, and disturbs nobody
                await fill(connection, 2_001, 2_010)
        assert cursor is None and len(uris) == len(set(uris)) and expected <= set(uris)
        assert all(uri.split("/p")[2].split(".")[0] > "2000" for uri in set(uris) - expected)
    if text == "small":
        indexes = [int(uri.split("/p")[2].split(".")[0]) for uri in uris]
        assert indexes == sorted(indexes, key=lambda index: (index % 3 != 0, index % 3 != 0 and index % 4 != 0, -index))
    await connection.close()


@pytest.mark.deep
@pytest.mark.parametrize("text", ["odd series7", "even odd", "od sm wo", "word12 word13 small even", "series", "series1"])
async def test_several_words_rank_a_bounded_number_best_first(database: str, text: str) -> None:
    connection = await asyncpg.connect(database)
    await fill(connection, 1, 2_000)
    all_words = " & ".join(f"'{word}'" + ":*" * (len(word) > 2) for word in text.split())
    rows = await connection.fetch("select uri from protocols where state = 'active' and terms @@ $1::tsquery", all_words)
    async with searching(database) as (retrieval, _):
        found: list[tuple[str, int | None]] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await retrieval.page(Query(text, limit=100, cursor=cursor or None))
            found += [(result.uri, result.score) for result in page.protocols]
            cursor = page.next
        assert len({uri for uri, _ in found}) == len(found) <= MAX_WALK
        scores = [score or 0 for _, score in found]
        assert scores == sorted(scores, reverse=True) and all(0 < score <= 100 for score in scores)
        # Those that have all words are among the best, however many have one of them.
        best = {uri for uri, score in found if score == scores[0]} if found else set()
        assert not rows or best & {row["uri"] for row in rows}
    await connection.close()


@asynccontextmanager
async def reading(registry: Registry, **options: object) -> AsyncIterator[httpx.AsyncClient]:
    """The registry's application, without a socket."""
    transport = httpx.ASGITransport(create_app(registry, **options))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url=f"https://{ORIGIN}", timeout=30) as api:
        yield api


@pytest.fixture
async def api(registry: Registry) -> AsyncIterator[httpx.AsyncClient]:
    """With a memory of the usual size."""
    async with reading(registry) as client:
        yield client


@pytest.fixture
async def offer(registry: Registry, web: Web) -> Publication:
    """A published protocol."""
    agent = domain_signer("alice.example")
    web.serve(agent)
    statement = publication(agent)
    await publish(registry, agent, statement)
    return statement


def targets(offer: Publication) -> list[str]:
    """Whatever a vote does not change."""
    path = path_of(offer.body.uri)
    return [
        *(path, f"{path}.json", f"{path}.md", f"{path}.bundle", f"{path}.bundle?since=1", path.rpartition("/")[0]),
        *(f"/topics/{TOPIC}", f"/topics/{TOPIC}.bundle", f"/topics/{TOPIC}.bundle?since=2", "/topics"),
        *("/protocols", "/protocols?q=product", f"/protocols?q=product&topic={TOPIC}", f"/hashes/{offer.body.document.sha256}"),
        *(f"/resolve?uri={offer.body.uri}", f"/blobs/sha256/{offer.body.card.sha256}", "/identities/did:wba:alice.example"),
        *("/standing/did:wba:alice.example", f"/speakers?topic={TOPIC}", "/schema", "/trust-config.json"),
        *("/sigstore/trusted-root.json", "/checkpoint"),
    ]


async def grow(registry: Registry, number: int) -> None:
    """Add a leaf about nothing that is read here."""
    await log(registry, grant(WRITER, number), WRITER)


@pytest.mark.threat(86)
async def test_what_a_leaf_does_not_change_is_served_from_memory(
    api: httpx.AsyncClient, registry: Registry, offer: Publication
) -> None:
    await grow(registry, 0)
    before = {target: await api.get(target) for target in targets(offer)}
    assert {response.status_code for response in before.values()} == {200}
    for seq in range(1, 4):
        await grow(registry, seq)
        await api.get("/health/live")  # memory sees each of these heads
    await registry.pool.close()  # who asks PostgreSQL from now on gets a 503
    for target, response in before.items():
        again = await api.get(target)
        assert again.status_code == 200, target
        assert target == "/checkpoint" or again.content == response.content, target


@pytest.mark.threat(86)
async def test_no_spelling_of_a_request_makes_anything_anew(
    api: httpx.AsyncClient, registry: Registry, offer: Publication
) -> None:
    path = path_of(offer.body.uri)
    for target in (f"{path}.bundle", path, "/protocols?q=product%20info", f"/topics/{TOPIC}"):
        assert (await api.get(target)).status_code == 200
    assert (await api.get(f"/topics/{TOPIC}", headers={"Accept": "text/html"})).status_code == 200
    await grow(registry, 0)
    await registry.pool.close()
    bundle = "application/vnd.treaty.bundle.v1+json"
    for target, accept in (
        *((f"{path}.bundle?since={size}", "*/*") for size in range(registry.head.size + 3)),
        *((f"{path}.bundle?{junk}", "*/*") for junk in ("x", "x=1&y=2", "since=1&x=2")),
        *((path, f"{bundle}, text/plain;q=0.{number}") for number in range(1, 9)),
        *((f"{path}?{junk}", "application/json") for junk in ("x", "_=1")),
        *(
            (f"/protocols?{spelt}", "*/*")
            for spelt in ("q=product+info", "x=1&q=product%20info", "q=p%72oduct%20info&q2=", "%71=product+info")
        ),
        (f"/topics/{TOPIC}?x=y", "text/html"),
    ):
        assert (await api.get(target, headers={"Accept": accept})).status_code == 200, (target, accept)


@pytest.mark.deep
@pytest.mark.threat(87)
async def test_strangers_push_nothing_out_that_is_used(registry: Registry, offer: Publication) -> None:
    path = path_of(offer.body.uri)
    async with reading(registry, memory=ResponseCache(small=400_000, large=400_000)) as api:
        for _ in range(2):
            assert (await api.get(f"{path}.bundle")).status_code == (await api.get(path)).status_code == 200
        for number in range(500):
            junk = (f"/protocols?q=junk{number}", f"{path}.bundle?since={number % 3}&x={number}", f"/resolve?uri=junk:{number}")
            await asyncio.gather(*map(api.get, (*junk, f"/protocols/alice.example/junk/{number}.0", f"/junk/{number}")))
        await registry.pool.close()
        assert (await api.get(f"{path}.bundle")).status_code == (await api.get(path)).status_code == 200


@pytest.mark.threat(86)
async def test_a_writer_reads_what_it_wrote(api: httpx.AsyncClient, registry: Registry, offer: Publication, web: Web) -> None:
    alice, path, uri = domain_signer("alice.example"), path_of(offer.body.uri), offer.body.uri

    async def leaves(target: str) -> set[int]:
        return {leaf.index for leaf in parse_bundle((await api.get(target)).content).leaves}

    for target in targets(offer):
        await api.get(target)
    await grow(registry, 0)

    second = publication(alice, version="2.0")
    publish_index = registry.head.size
    await publish(registry, alice, second)
    assert (await api.get(path_of(second.body.uri))).json()["version"] == "2.0"
    assert publish_index in await leaves(f"{path_of(second.body.uri)}.bundle")
    assert publish_index in await leaves(f"/topics/{TOPIC}.bundle")
    assert len((await api.get(path.rpartition("/")[0])).json()["versions"]) == 2
    assert len((await api.get("/protocols?q=product")).json()["protocols"]) == 2
    assert {entry["uris"][0] for entry in (await api.get(f"/topics/{TOPIC}")).json()["candidates"]} == {uri, second.body.uri}

    attached = await attach(api, alice, offer)
    assert [handler["statement"] for handler in (await api.get(path)).json()["handlers"]] == [attached.id]
    assert registry.head.size - 1 in await leaves(f"{path}.bundle")

    for state in ("deprecated", "revoked"):
        revoked = await log(registry, kinds.Status(uri, state), alice)
        assert (await api.get(path)).json()["status"] == state
        assert revoked.index in await leaves(f"{path}.bundle")
        assert revoked.index in await leaves(f"{path}.bundle?since=1")
        assert revoked.index in await leaves(f"/topics/{TOPIC}.bundle")
    assert [protocol["uri"] for protocol in (await api.get("/protocols?q=product")).json()["protocols"]] == [second.body.uri]
    assert {version["status"] for version in (await api.get(path.rpartition("/")[0])).json()["versions"]} == {"active", "revoked"}


async def test_a_bundle_is_of_a_head_of_the_last_seconds(registry: Registry, offer: Publication) -> None:
    target = f"{path_of(offer.body.uri)}.bundle"

    async def size(api: httpx.AsyncClient) -> int:
        bundle = parse_bundle((await api.get(target)).content)
        return open_checkpoint(bundle.checkpoint, registry.log_key).checkpoint.size

    async with reading(registry) as usual, reading(registry, period=0) as impatient:
        first = await size(usual)
        for seq in range(5):
            await grow(registry, seq)
            assert await size(usual) == first and await size(impatient) == registry.head.size
            checkpoint = open_checkpoint((await usual.get("/checkpoint")).content, registry.log_key)
            assert checkpoint.checkpoint.size == registry.head.size, "the log's own head is never held back"
        elsewhere = kinds.Ballot("other/topic", 0, ((kinds.NONE,),), registry.head.note.decode())
        await log(registry, elsewhere, domain_signer("alice.example"))
        await registry.decide()
        assert await size(usual) == registry.head.size, "the end of an epoch is the end of a period"


async def test_a_decision_is_seen_at_once(api: httpx.AsyncClient, registry: Registry, offer: Publication) -> None:
    await log(registry, ballot(registry, 0, offer.body.document.sha256), domain_signer("alice.example"))
    for target in targets(offer):
        await api.get(target)
    await registry.decide()
    assert (await api.get(f"/topics/{TOPIC}")).json()["decision"]["epoch"] == 0
    assert (await api.get("/topics")).json()["topics"][0]["epoch"] == 0
    assert (await api.get("/log")).json()["epoch"] == 1


async def waiting(database: asyncpg.Connection[asyncpg.Record]) -> int:
    """How many queries wait for a lock."""
    count: int = await database.fetchval(
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    )
    return count


@pytest.mark.sample(1)
@pytest.mark.threat(85)
@pytest.mark.parametrize(("table", "most"), [("words", 2), ("handlers", 4)])
async def test_costly_answers_leave_room_for_others(
    api: httpx.AsyncClient, registry: Registry, offer: Publication, database: str, table: str, most: int
) -> None:
    connection = await asyncpg.connect(database)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(f"lock table {table} in access exclusive mode")  # who reads it takes for ever
    path = path_of(offer.body.uri)
    costly = (
        [f"/protocols?q=product%20w{n}" for n in range(400)]
        if table == "words"
        else [f"{path}.bundle?since={n}" for n in range(200)]
    )
    tasks = [asyncio.create_task(api.get(target)) for target in costly]
    while await waiting(connection) == 0:  # noqa: ASYNC110 (PostgreSQL sets no event)
        await asyncio.sleep(0.01)
    for _ in range(20):
        await asyncio.sleep(0.01)
        assert await waiting(connection) <= most
    assert (await api.get(path)).status_code == 200
    assert (await api.get(f"/statements/{'0' * 64}")).status_code == 404
    await grow(registry, 0)
    await transaction.rollback()
    answers = await asyncio.gather(*tasks)
    assert {answer.status_code for answer in answers} <= {200, 503} and answers[0].status_code == 200
    if table == "words":
        refused = [answer for answer in answers if answer.status_code == 503]
        assert len(refused) > 300
        problem(refused[0], 503, "registry.busy")
        assert refused[0].headers["retry-after"]
    await connection.close()


async def test_the_beginning_of_a_tile_is_no_tile_of_its_own(api: httpx.AsyncClient, registry: Registry) -> None:
    for seq in range(8):
        await grow(registry, seq)
    size = registry.head.size
    whole = {kind: await api.get(f"/tile/{kind}/000.p/{size}") for kind in ("0", "entries")}
    await registry.pool.close()
    for kind, widest in whole.items():
        for width in range(1, size + 1):
            narrow = await api.get(f"/tile/{kind}/000.p/{width}")
            assert narrow.status_code == 200 and widest.content.startswith(narrow.content)
            assert (len(narrow.content) == 32 * width) or kind == "entries"
        problem(await api.get(f"/tile/{kind}/000.p/{size + 1}"), 404, "log.missing")
