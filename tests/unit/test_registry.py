"""The registry as one object: opening, reopening, tokens, uploads that nobody names, and what it says of its state."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest
from registries import Web, ballot, contents, grant, log, open_registry, publication, publish, refuse, settings_for
from signers import NOW, ORIGIN, domain_signer, key_signer, signed

from treaty_consensus.errors import Conflict, NotFound, Refused, TreatyError, Unavailable, Untrusted
from treaty_registry.admission.uploads import Uploads
from treaty_registry.catalogue.lookup import Lookup
from treaty_registry.data_directory import create_log
from treaty_registry.log.entry import Logged
from treaty_registry.log.fence import create_fence
from treaty_registry.registry import Registry
from treaty_registry.settings import Settings
from treaty_registry.storage.postgres import AnyConnection, connect, migrate, migrations, open_pool

ALICE = domain_signer("alice.example")
KEY = key_signer("somebody")


async def test_it_opens_again_where_it_was(tmp_path: Path, database: str, web: Web) -> None:
    async with open_registry(tmp_path / "registry", database, web) as registry:
        logged = await log(registry, grant(KEY, 0), KEY)
        first, keys, root = registry.head, (registry.log_key, registry.clock_key), registry.trusted_root
    async with open_registry(tmp_path / "registry", database, web) as registry:
        assert (registry.head.size, registry.head.root) == (first.size, first.root)
        assert (registry.log_key, registry.clock_key) == keys
        assert registry.trusted_root == root
        assert await registry.receipt(logged.id) == logged.receipt
        await log(registry, grant(KEY, 1), KEY)


async def test_a_log_keeps_its_name(tmp_path: Path, database: str, web: Web) -> None:
    async with open_registry(tmp_path / "registry", database, web):
        pass
    with pytest.raises(Conflict) as refused:
        async with Registry.open(settings_for(tmp_path / "registry", database, "other.example")):
            pass
    assert refused.value.code == "settings.directory"
    async with Registry.open(settings_for(tmp_path / "registry", database, None)) as registry:
        assert registry.origin == ORIGIN


async def test_a_new_log_needs_a_name(tmp_path: Path, database: str) -> None:
    with pytest.raises(NotFound) as refused:
        async with Registry.open(settings_for(tmp_path / "registry", database, None)):
            pass
    assert refused.value.code == "keys.missing"
    assert "--origin" in refused.value.fix
    assert not (tmp_path / "registry" / "keys").exists()


async def test_a_crash_between_keys_and_genesis_is_made_good(tmp_path: Path, database: str, web: Web) -> None:
    operator = await create_log(settings_for(tmp_path / "registry", database), database)
    async with open_registry(tmp_path / "registry", database, web) as registry:
        assert (registry.operator, registry.head.size) == (operator.did, 2)


async def test_a_crash_before_the_keys_is_made_good(tmp_path: Path, database: str, web: Web) -> None:
    (tmp_path / "registry").mkdir()
    create_fence(tmp_path / "registry" / "head", ORIGIN)
    async with open_registry(tmp_path / "registry", database, web) as registry:
        assert registry.head.size == 2


async def test_a_token_is_spent_once_by_whoever_comes_first(registry: Registry) -> None:
    until = datetime.now(UTC) + timedelta(minutes=5)
    token = "ab" * 32
    assert sorted(await asyncio.gather(*(registry.spend(token, until) for _ in range(10)))) == [False] * 9 + [True]
    assert await registry.spend("cd" * 32, until)
    for bad in ("", "ab" * 31, "AB" * 32):
        with pytest.raises(TreatyError):
            await registry.spend(bad, until)


async def test_a_spent_token_stays_spent_after_a_restart(tmp_path: Path, database: str, web: Web) -> None:
    until = datetime.now(UTC) + timedelta(minutes=5)
    async with open_registry(tmp_path / "registry", database, web) as registry:
        assert await registry.spend("ab" * 32, until)
    async with open_registry(tmp_path / "registry", database, web) as registry:
        assert not await registry.spend("ab" * 32, until)


async def test_only_unnamed_old_uploads_are_deleted(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    published, waiting = publication(ALICE, version="1.0"), publication(ALICE, version="2.0")
    assert isinstance(await publish(registry, ALICE, published), Logged)
    soon = Uploads(registry.pool, registry.blobs, lifetime=-1)
    forgotten = b"nobody names this"
    digest = hashlib.sha256(forgotten).hexdigest()
    assert await soon.hold(digest, forgotten, None)
    leaf = ALICE.statement(waiting.body).leaf
    for sha256, data in waiting.blobs.items():
        await registry.put_blob(sha256, leaf, data)
    assert await soon.expire() == 1
    assert await registry.blobs.get(digest) is None
    assert await soon.expire() == 0
    for publication_ in (published, waiting):
        for sha256, data in publication_.blobs.items():
            assert await registry.blobs.get(sha256) == data
    assert await registry.pool.fetchval("select count(*) from pending_blobs") == 2


async def test_an_upload_that_is_logged_meanwhile_survives_its_expiry(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    statement = publication(ALICE)
    assert isinstance(await publish(registry, ALICE, statement), Logged)
    soon = Uploads(registry.pool, registry.blobs, lifetime=-1)
    rows = "insert into pending_blobs select sha256, size, now() - interval '1 hour' from blobs"
    await registry.pool.execute(rows)
    assert await soon.expire() == 0
    assert await registry.blob(statement.body.document.sha256) == statement.document


async def test_too_many_uploads_at_a_time(registry: Registry, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.serve(ALICE)
    await log(registry, ballot(registry), ALICE)
    statement = publication(ALICE)
    monkeypatch.setattr("treaty_registry.admission.upload_room.MAX_WAITING", len(statement.document) - 1)
    before = await contents(registry)
    with pytest.raises(TreatyError) as refused:
        await registry.put_blob(statement.body.document.sha256, ALICE.statement(statement.body).leaf, statement.document)
    assert refused.value.code == "quota.sender"
    assert await contents(registry) == before


async def test_readiness_follows_the_database_and_the_clock(tmp_path: Path, database: str, web: Web) -> None:
    now = NOW

    def clock() -> datetime:
        return datetime.fromtimestamp(now, UTC)

    settings = settings_for(tmp_path / "registry", database)
    async with Registry.open(settings, clock=clock, resolve=web.resolve) as registry:
        assert await registry.is_ready()
        now += 600
        assert not await registry.is_ready(), "nobody cosigned for ten minutes"
        await log(registry, grant(KEY), KEY)
        assert await registry.is_ready()
        registry.leader.resign()
        assert not await registry.is_ready()


async def test_where_a_registry_is_reached(tmp_path: Path) -> None:
    def reached(origin: str, **options: object) -> str:
        return Settings(data=tmp_path, **options).reached_at(origin)  # type: ignore[arg-type]

    certificate = tmp_path / "c.pem"
    assert reached("registry.example") == "https://registry.example"
    assert reached("registry.example:8443") == "https://registry.example:8443"
    assert reached("localhost:8080", port=9000) == "http://127.0.0.1:9000"
    assert reached("localhost:8080", host="::1", tls_cert=certificate, tls_key=certificate) == "https://[::1]:8080"
    assert reached("registry.example", base_url="http://127.0.0.1:1/") == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "origin", ["", "Registry.example", "https://registry.example", "registry.example/", "a b", "x:0", "x:99999"]
)
async def test_what_no_origin_can_be(tmp_path: Path, origin: str) -> None:
    with pytest.raises(TreatyError) as refused:
        Settings(data=tmp_path, origin=origin)
    assert refused.value.code == "settings.value"


async def test_tls_needs_both_files(tmp_path: Path) -> None:
    with pytest.raises(TreatyError) as refused:
        Settings(data=tmp_path, tls_cert=tmp_path / "c.pem")
    assert refused.value.code == "settings.value"


async def test_migrations_are_applied_once_and_never_change(database: str) -> None:
    async with connect(database) as first, connect(database) as second:
        assert list(await asyncio.gather(migrate(first), migrate(second))) == [[], []]
        names = [row["name"] for row in await first.fetch("select name from migrations order by name")]
        assert names == [name for name, _ in migrations()]
        await first.execute("update migrations set sha256 = repeat('0', 64) where name like '0001%'")
        with pytest.raises(Untrusted) as refused:
            await migrate(first)
        assert refused.value.code == "database.settings"


async def test_a_database_that_may_lose_commits_is_refused(tmp_path: Path, database: str, web: Web) -> None:
    async with connect(database) as connection:
        name = await connection.fetchval("select current_database()")
        await connection.execute(f"alter database {name} set synchronous_commit = off")
    with pytest.raises(Refused) as refused:
        async with open_registry(tmp_path / "registry", database, web):
            pass
    assert refused.value.code == "database.settings"
    assert "synchronous_commit" in str(refused.value)


async def test_a_database_out_of_reach(tmp_path: Path, web: Web) -> None:
    with pytest.raises(TreatyError) as refused:
        async with open_registry(tmp_path / "registry", f"postgresql://nobody@/none?host={tmp_path}", web):
            pass
    assert refused.value.code == "database.unreachable"


LONG = "select pg_sleep(60)"


async def sleep(connection: AnyConnection, keys: list[str]) -> dict[str, str]:
    return dict.fromkeys(keys, await connection.fetchval(LONG))


async def test_a_connection_that_is_lost_while_its_statement_runs(database: str) -> None:
    async with open_pool(database) as pool:
        lost = asyncio.create_task(pool.fetch(LONG))
        shared: Lookup[str] = Lookup(pool, sleep)
        looked_up = asyncio.create_task(shared.get("key"))
        async with connect(database) as connection:
            ended = 0
            while ended < 2:
                ended += await connection.fetchval(
                    "select count(pg_terminate_backend(pid)) from pg_stat_activity where query = $1 and state = 'active'", LONG
                )
        for task in (lost, looked_up):
            with pytest.raises(Unavailable) as refused:
                await task
            assert refused.value.code == "database.unreachable"
            # The second one when the connection ended between two messages of the statement.
            assert isinstance(refused.value.__cause__, asyncpg.PostgresError | asyncpg.InternalClientError)
        with pytest.raises(asyncpg.PostgresSyntaxError):  # our own mistakes stay what they are
            await pool.fetch("selec")
        assert await pool.fetchval("select 1") == 1


def end_backend(database: str, backend: int) -> None:
    """End a connection's process, in a loop of this thread."""

    async def end() -> None:
        async with connect(database) as connection:
            await connection.execute("select pg_terminate_backend($1, 5000)", backend)

    asyncio.run(end())


async def test_a_connection_lost_after_its_statement_fails_no_reader(database: str) -> None:
    async with open_pool(database) as pool:
        async with pool.acquire() as connection:
            backend = await connection.fetchval("select pg_backend_pid()")
            thread = threading.Thread(target=end_backend, args=(database, backend))
            thread.start()
            thread.join()  # blocks this loop, so that the loss is seen only when the connection is reset
        assert await pool.fetchval("select 1") == 1


async def test_a_statement_by_two_authors_is_refused(registry: Registry, web: Web) -> None:
    statement = signed(grant(KEY), KEY, key_signer("another"))
    assert (await refuse(registry, statement)).code == "statement.signatures"
