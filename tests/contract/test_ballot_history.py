"""What a ballot costs does not depend on how often its voter has voted in the topic before."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from registries import Web, ballot, log, settings_for
from signers import NOW, domain_signer

from treaty_registry.registry import Registry
from treaty_registry.storage.postgres import connect

VOTES = 120
_READ = "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'ballots_pkey'"


async def test_a_ballot_ends_the_one_before_and_reads_no_earlier_one(tmp_path: Path, database: str, web: Web) -> None:
    voter = domain_signer("voter.example")
    web.serve(voter)
    settings = settings_for(tmp_path / "registry", database)
    async with Registry.open(settings, clock=lambda: datetime.fromtimestamp(NOW, UTC), resolve=web.resolve) as registry:
        logged = [await log(registry, ballot(registry, number, "ab" * 32), voter) for number in range(VOTES)]
    # PostgreSQL has the counts of a connection when it is closed.
    async with connect(database) as connection:
        rows = await connection.fetch("select index, ended from ballots order by index")
        places = [each.index for each in logged]
        assert [tuple(row) for row in rows] == [*zip(places, [*places[1:], None], strict=True)]
        assert VOTES <= await connection.fetchval(_READ) < 5 * VOTES
