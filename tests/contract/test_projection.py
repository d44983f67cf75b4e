"""The views follow from the leaves alone: applied anew, in batches of any size, they come out the same to the last row."""

from __future__ import annotations

import re
from dataclasses import replace

import httpx
import msgspec
from http_api import attach, post, publish, say
from registries import Web, ballot, log, publication
from signers import NOW, Signer, domain_signer

from treaty_consensus import canonical, kinds
from treaty_consensus.sigstore_leaf import parse_sigstore_leaf
from treaty_consensus.statement import Statement, parse
from treaty_registry import projection
from treaty_registry.keys import Operator
from treaty_registry.log.entry import Entry, Logged
from treaty_registry.registry import Registry
from treaty_registry.storage.postgres import migrations

VIEWS = [sql for name, sql in migrations() if name not in ("0001_log.sql", "0009_leadership.sql", "0012_operator.sql")]
TABLES = re.findall(r"^create table (\w+)", "".join(VIEWS), re.M)


async def test_the_views_do_not_depend_on_how_leaves_were_batched(
    api: httpx.AsyncClient, registry: Registry, operator: Operator, web: Web, alice: Signer, bob: Signer
) -> None:
    await _live(api, registry, operator, web, alice, bob)
    before = await _rows(registry)
    assert {table for table, rows in before.items() if not rows} == set(), "every table has something to get wrong"
    leaves = await registry.leaves(range(registry.head.size))
    entries = [Entry(index, leaf, _statement(leaf), registry.blobs) for index, leaf in sorted(leaves.items())]
    for size in (1, 3, 7, len(entries)):
        async with registry.pool.acquire() as connection:
            for table in TABLES:
                await connection.execute(f"delete from {table}")
            for begin in range(0, len(entries), size):
                async with connection.transaction():
                    await projection.apply(connection, entries[begin : begin + size])
        assert await _rows(registry) == before, f"in batches of {size}"


async def test_a_migration_names_the_derived_protocols_as_the_projection_does(
    api: httpx.AsyncClient, registry: Registry, operator: Operator, web: Web, alice: Signer, bob: Signer
) -> None:
    await _live(api, registry, operator, web, alice, bob)
    before = await _rows(registry)
    async with registry.pool.acquire() as connection:
        await connection.execute("drop index protocols_base")
        shorter = "regexp_replace(convert_from(record, 'UTF8'), ',\"derived\":.*]}$', '}')"
        await connection.execute(f"update records set record = convert_to({shorter}, 'UTF8')")
        assert await _rows(registry) != before
        await connection.execute(next(sql for name, sql in migrations() if name == "0015_derived.sql"))
    assert await _rows(registry) == before


async def _live(api: httpx.AsyncClient, registry: Registry, operator: Operator, web: Web, alice: Signer, bob: Signer) -> None:
    """A log with every kind of statement, some of which undo others."""
    carol, dave, erin = (domain_signer(f"{name}.example") for name in ("carol", "dave", "erin"))
    web.serve(carol, dave, erin)
    first, second = publication(alice), publication(alice, version="2.0")
    for statement in (first, second):
        await publish(api, alice, statement)
    handler = await attach(api, bob, first)
    assert isinstance(handler.body, kinds.Handler)
    await say(api, alice, kinds.Grant("alice.example", bob.did))
    for seq, (to, withdrawn) in enumerate(((bob, False), (carol, False), (bob, True), (carol, False))):
        await say(api, alice, kinds.Vouch(to.did, seq, withdrawn))
    await publish(api, bob, publication(alice, "guest"))
    for number in range(2):
        derived = publication(bob, f"derived-{number}")
        base = kinds.Base(second.body.uri, second.body.document.sha256)
        await publish(api, bob, replace(derived, body=msgspec.structs.replace(derived.body, base=base)))
    await say(api, alice, kinds.Grant("alice.example", carol.did))
    await say(api, alice, kinds.Grant("alice.example", bob.did, withdrawn=True))
    for number, state in enumerate(("yanked", "active", "deprecated")):
        await say(api, alice, kinds.Status(first.body.uri, state, successor=second.body.uri), issued=NOW + number)  # type: ignore[arg-type]
    await say(api, bob, kinds.Status(first.body.uri, "revoked", wheel=handler.body.wheel.sha256))
    document = first.body.document.sha256
    for epoch in range(2):
        for number, pair in enumerate(((alice, bob), (bob, carol), (alice, carol), (alice, dave), (bob, erin))):
            nid = canonical.hex_digest(b"%d %d" % (epoch, number))
            spoken = document if number < 3 else canonical.hex_digest(b"%d" % epoch)  # of the others everybody earns something
            report = kinds.Report(first.body.topic, nid, spoken, "agreed", epoch, registry.head.note.decode())
            await log(registry, report, *pair)
        for agent in (alice, bob, carol):
            await say(api, agent, ballot(registry, epoch, document))
        assert await registry.decide()
    # Several ballots of one voter in one commit, which is one statement.
    twice = [alice.statement(ballot(registry, seq, document)).leaf for seq in (2, 3)]
    logged = await registry.submit([*twice, bob.statement(ballot(registry, 2, document)).leaf])
    assert all(isinstance(outcome, Logged) for outcome in logged)
    rolls = await registry.pool.fetch("select roll from rolls order by epoch")
    assert len(rolls) == 2
    for digest in (second.body.card.sha256, rolls[0]["roll"].hex()):
        withdrawal = operator.state(kinds.Withdrawal(digest, "personal"), issued=registry.clock())
        assert (await post(api, withdrawal.statement)).status_code == 201
    used = await registry.pool.fetch("select uri, pairs from protocols where pairs > 0")
    assert [row["uri"] for row in used] == [first.body.uri], "the elections proved the use of one document"
    reach = await registry.pool.fetch("select epoch from rolls where pairs is not null")
    assert [row["epoch"] for row in reach] == [1], "a withdrawn roll says nothing"
    credits = await registry.pool.fetch("select epoch, reason from credits")
    assert {tuple(row) for row in credits} == {(1, "reported")}
    assert len(credits) == 4


async def _rows(registry: Registry) -> dict[str, list[str]]:
    return {table: [row[0] for row in await registry.pool.fetch(f"select t::text from {table} t order by 1")] for table in TABLES}


def _statement(leaf: bytes) -> Statement | None:
    if b'"certificate"' in leaf or b'"hashedrekord"' in leaf:
        parse_sigstore_leaf(leaf)
        return None
    return parse(leaf)
