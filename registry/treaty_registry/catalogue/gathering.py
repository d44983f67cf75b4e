"""Read the rows of several queries in one round trip.

A page needs the rows of up to a dozen queries. Each statement costs this process as much as the rendering of a section, because
it waits for a connection and for two answers of PostgreSQL. So the queries become one statement, which returns their rows as one
JSON text. Equal texts mean equal rows, so the text also tells whether a page has changed (`pages.renderer`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncpg import Pool

_PARAMETER = re.compile(r"\$(\d+)")


class Gathering:
    """Several queries as one statement. Each has parameters of its own, from `$1` on."""

    def __init__(self, **queries: str) -> None:
        """The columns of a query have the names and the JSON of the struct that its rows become."""
        self._names = tuple(queries)
        parts, first = list[str](), 0
        for name, query in queries.items():
            parts.append(f"'{name}', (select coalesce(json_agg(r), '[]') from ({_shifted(query, first)}) r)")  # noqa: S608 (ours)
            first += max((int(number) for number in _PARAMETER.findall(query)), default=0)
        self._statement = f"select json_build_object({', '.join(parts)})::text"

    async def read(self, pool: Pool, **arguments: Sequence[object]) -> str:
        """Return a JSON object: the name of each query → its rows. `arguments`: those of each query by its name."""
        values = chain.from_iterable(arguments[name] for name in self._names)
        text: str = await pool.fetchval(self._statement, *values)
        return text


def _shifted(query: str, by: int) -> str:
    """Return a query with higher numbers of its parameters."""
    return _PARAMETER.sub(lambda match: f"${int(match[1]) + by}", query)
