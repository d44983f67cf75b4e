"""Keep the facets of protocols, and their postings for search, as the other tables say."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ..catalogue.facets import WORDS_OF

if TYPE_CHECKING:
    from ..storage.postgres import AnyConnection

# One statement for all protocols of a batch: it writes only the postings that change.
_RENEW = f"""
with wanted as ({WORDS_OF}),
removed as (
  delete from postings p using (select index, unnest(old) as word, new from wanted) former
  where p.word = former.word and p.place = 0 and p.index = former.index and former.word <> all(former.new) returning p.word
),
added as (
  insert into postings select word, 0, index from (select index, unnest(new) as word, old from wanted) present
  where word <> all(old) returning word
),
counted as (
  insert into words
  select word, sum(uses)::bigint from (select word, 1 as uses from added union all select word, -1 from removed) changes
  group by word
  on conflict (word) do update set uses = words.uses + excluded.uses
),
updated as (update protocols set facets = new from wanted where protocols.index = wanted.index and facets <> new)
select distinct word from removed
"""  # noqa: S608 (constants)


async def write(connection: AnyConnection, uris: Collection[str]) -> None:
    """Write the facets of `uris`. Call it after the tables that they are derived from are written."""
    removed = [row["word"] for row in await connection.fetch(_RENEW, list(uris))]
    if removed:
        # A word without uses would depend on how the leaves were batched.
        await connection.execute("delete from words where word = any($1) and uses = 0", removed)
