"""Define the facets of search: the filters of protocols beside words and topic.

A protocol has a posting under one word for each of its facets, such as `=handler/code-free`. No word of a text begins with `=`.
So a facet costs as much as a word, and can lead a search (`retrieval`). The words of a protocol are derived from the tables by
`WORDS_OF`. A status, a handler or a decision changes them.

Everything about a handler is of the handler that an agent gets from the publisher: the newest one of the publisher's own that is
neither yanked nor revoked. A handler that a stranger attached changes no facet. Signer and coverage are what the blobs say; only
an agent verifies them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from treaty_consensus.election.states import FORMER
from treaty_consensus.errors import Malformed, TreatyError
from treaty_consensus.handler.wheel import DECLARATIVE
from treaty_consensus.protocol import parse_namespace

from ..codes import SearchCode
from .handler_facts import COVERAGE, DID, ISSUERS, OTHER, SIGSTORE

UNUSABLE = ("yanked", "revoked")
"""The states that a search finds only when it asks for them."""
USABLE = ("active", "deprecated")
NAMESPACE = "namespace"
VALUES: Mapping[str, tuple[str, ...]] = {
    "state": (*USABLE, *UNUSABLE, "consensus", "provisional", "candidate", "former"),
    "origin": ("negotiated", "standard"),
    "handler": ("code-free", "sandboxed", "none"),
    "signed": (DID, SIGSTORE, *ISSUERS, OTHER),
    "coverage": COVERAGE,
}
"""Facet → its values. The facet `namespace` has any namespace as its value."""
MAX_FACETS = len(VALUES) + 1

# The newest usable handler of the publisher is looked for among this many, so that the look-up is bounded.
_HANDLERS = 64
# The constants are this module's own. $1: the URIs.
WORDS_OF = f"""
select p.index, p.facets as old, array_remove(array[
  '=state/' || p.state,
  '=state/' || case when e.state in ({", ".join(f"'{state}'" for state in FORMER)}) then 'former' else e.state end,
  '=origin/' || p.origin,
  '=namespace/' || p.namespace,
  '=handler/' || case when h.uri is null then 'none' when h.entry_point = '{DECLARATIVE}' then 'code-free' else 'sandboxed' end,
  '=signed/' || h.signer,
  case when h.signer <> '{DID}' then '=signed/{SIGSTORE}' end,
  '=coverage/' || h.coverage
], null) as new
from protocols p
left join elections e on (e.topic, e.document) = (p.topic, p.document)
left join lateral (
  select * from (
    select * from handlers where uri = p.uri and publisher = p.publisher order by index desc limit {_HANDLERS}
  ) newest where newest.state in ({", ".join(f"'{state}'" for state in USABLE)}) order by newest.index desc limit 1
) h on true
where p.uri = any($1)
"""  # noqa: S608 (constants)


def words(filters: Iterable[tuple[str, str]]) -> list[str]:
    """Return the words of these facets and values. Raises `Malformed` (`search.query`) for others than those defined here."""
    return [_word(facet, value) for facet, value in filters]


def states(filters: Iterable[tuple[str, str]]) -> Sequence[str]:
    """Return the publisher's states that a search with these filters may find."""
    state = next((value for facet, value in filters if facet == "state" and value in UNUSABLE), None)
    return (state,) if state else USABLE


def _word(facet: str, value: str) -> str:
    if facet == NAMESPACE:
        try:
            return f"={NAMESPACE}/{parse_namespace(value)}"
        except TreatyError as error:
            raise Malformed(SearchCode.QUERY, f"`{NAMESPACE}`: {error.message}") from error
    values = VALUES.get(facet, ())
    if value not in values:
        raise Malformed(SearchCode.QUERY, f"`{facet}` is one of {', '.join(values)}.")
    return f"={facet}/{value}"
