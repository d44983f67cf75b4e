"""The pairs of agents that reported the protocols of a topic, for `treaty topic --explain`.

By the registry's account, for display only: a decision counts reports from proven leaves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from treaty_client.audit.reasons import ReportedPairs
from treaty_client.registries.api import RegistryClient
from treaty_consensus import statement
from treaty_consensus.errors import TreatyError
from treaty_consensus.kinds import Parameters, Report
from treaty_consensus.log.tiles import TILE_WIDTH, Bundle, decode_bundle
from treaty_consensus.statement import Statement

# Of the newest reports. They show that a topic starves, and each bundle costs a request and 256 parsed leaves.
_MAX_BUNDLES = 8


async def read_pairs(client: RegistryClient, topic: str) -> ReportedPairs | None:
    """Return the pairs of a topic, or None if the registry does not tell them. Never raises `TreatyError`."""
    try:
        log = await client.log()
        if log.parameters is None:
            return None
        parameters = statement.parse(await client.statement(log.parameters)).body
        assert isinstance(parameters, Parameters)
        newest = [speaker.index for speaker in (await client.speakers(topic=topic)).speakers]
        bundles = sorted({index // TILE_WIDTH for index in newest if index < log.size}, reverse=True)[:_MAX_BUNDLES]
        leaves: list[bytes] = []
        for number in bundles:
            width = min(TILE_WIDTH, log.size - number * TILE_WIDTH)
            leaves += decode_bundle(await client.tile(Bundle(number, width)), width)
        reports = list(_agreed(leaves, topic, since=log.epoch - parameters.horizon_epochs))
    except (TreatyError, AssertionError):
        return None  # advice only
    pairs, idle = defaultdict[str, set[tuple[str, ...]]](set), defaultdict[str, set[tuple[str, ...]]](set)
    for made, body in reports:
        pair = tuple(sorted(did.text for did in made.authors))
        (idle if any(did.method == "key" for did in made.authors) else pairs)[body.document].add(pair)
    return ReportedPairs(
        {document: frozenset(found) for document, found in pairs.items()},
        {document: len(found) for document, found in idle.items()},
        parameters.candidate_pairs,
        # A pair may have reported in an older bundle that holds no agent's newest report.
        not newest or log.size <= TILE_WIDTH * len(bundles),
    )


def _agreed(leaves: list[bytes], topic: str, *, since: int) -> Iterator[tuple[Statement, Report]]:
    for leaf in leaves:
        try:
            made = statement.parse(leaf)
        except TreatyError:
            continue  # a leaf of Sigstore
        body = made.body
        if isinstance(body, Report) and (body.topic, body.outcome) == (topic, "agreed") and body.epoch > since:
            yield made, body
