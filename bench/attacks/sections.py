"""The tables of the families that have a module of their own."""

from __future__ import annotations

from collections.abc import Iterator

from . import events, farming, flooding, litter, timing, truncation
from .lines import LITTER, Shown, table_of
from .ours import terms


def sections(shown: Shown) -> list[str]:
    """All tables that `shown` has figures for."""
    makers = (_litter, events.sections, _flooding, _timing, _truncation, _capture, _bribery, _farming)
    return [section for maker in makers for section in maker(shown)]


def _litter(shown: Shown) -> Iterator[str]:
    best = _times(shown, "litter", 0, "cost", 1.0, "best")
    if best:
        heads = ["members", "ballots alone", *_ways(), "in use"]
        rows = [
            [str(members), *(_times(shown, "litter", members, "cost", 1.0, way) for way in ("ballots", *_ways(), "in use"))]
            for members in litter.MEMBERS
        ]
        yield "## Litter"
        yield (
            f"Bytes of decisions and transcripts for each byte posted in invented topics, over two horizons. The most: {best}; "
            f"the gate is {LITTER:g}. `documents/news`: so many candidates in a topic, and one such statement in every epoch. "
            "*In use*: no invented topic, but one that all have used for long, where one member votes in each epoch."
        )
        yield table_of(heads, rows)


def _ways() -> list[str]:
    return [f"{documents}/{news}" for documents in litter.DOCUMENTS for news in ("quiet", "ballot", "failure")]


def _flooding(shown: Shown) -> Iterator[str]:
    rows = []
    for size in shown.sizes:
        for spoken in flooding.SPOKEN:
            cells = [
                shown.cell(lambda figure: f"{100 * figure:.1f} %", "not with 60 %", ("flooding", size, "keep out", 1.0, detail))
                for detail in (f"{spoken:g}", f"{spoken:g}, places")
            ]
            if cells[0]:
                rows.append([f"n = {size:,}, spoken by {100 * spoken:g} %", *cells])
    if rows:
        yield "## A newcomer kept out"
        yield (
            "The share of the honest that has to be corrupted to keep a newcomer out of the field, with a clone for each place. "
            "The gate is 20 % for a newcomer that a tenth of the honest speak. Near the twentieth of the weight that its "
            "reporters need, the weight of the adversary's ballots keeps it out, and not the clones."
        )
        yield table_of(["", "least", "by places alone"], rows)


def _timing(shown: Shown) -> Iterator[str]:
    deadlines = [
        [f"promote, n = {size:,}, within {epochs} epochs", *_timed(shown, size, 1.0, [f"awake {epochs}", f"sleeper {epochs}"])]
        for size in shown.sizes
        for epochs in timing.DEADLINES
    ]
    answers = [
        [f"promote, n = {size:,}", *_timed(shown, size, timing.TURNOUT, [f"answer {name}" for name in timing.ANSWERS])]
        for size in shown.sizes
    ]
    held = [[f"block, n = {size:,}", *_timed(shown, size, 1.0, ["present", "withheld"], goal="block")] for size in shown.sizes]
    if any(row[1] for row in deadlines):
        yield "## Attacks by time"
        heads = ["sleeper ballots", "cast when the attack begins", "ripe when it begins"]
        yield table_of(heads, [row for row in deadlines if row[1]])
        yield (
            f"A turnout of {100 * timing.TURNOUT:g} %; the others do not report, and answer with a ballot once they see the "
            "attack: in the same epoch, or, as the ballots came at its very end, later."
        )
        heads = ["late ballots", "in the same epoch", "one later", "two later", "never"]
        yield table_of(heads, [row for row in answers if row[1]])
        heads = ["withheld ballots", "there from the beginning", "withheld until the document is provisional"]
        yield table_of(heads, [row for row in held if row[1]])


def _timed(shown: Shown, size: int, turnout: float, details: list[str], goal: str = "promote") -> list[str]:
    return [shown.share("timing", size, goal, turnout, detail) for detail in details]


def _truncation(shown: Shown) -> Iterator[str]:
    rows = []
    for size in shown.sizes:
        for share in truncation.SHARES:
            named = (("gains", "truncated"), ("gains", "any"), ("blocks", "truncated"))
            cells = [shown.share("truncation", size, goal, 1.0, f"{share:g} {name}") for goal, name in named]
            if cells[0]:
                rows.append([f"n = {size:,}, {100 * share:g} % of the weight", *cells])
    if rows:
        yield "## Insincere ballots"
        yield (
            "The share of drawn elections of three documents in which a bloc gains, against its honest ballot, and in which it "
            "leaves no consensus."
        )
        yield table_of(["bloc", "gains by truncating", "gains by any ballot", "blocks by truncating"], rows)


def _capture(shown: Shown) -> Iterator[str]:
    rows = []
    for size in shown.sizes:
        for name in ("dense", "sparse"):
            weights = [shown.share("capture", size, "weight", 1.0, f"{name} {who}") for who in ("nobody", "anchor")]
            if weights[0]:
                quorums = _times(shown, "capture", size, "quorum", 1.0, f"{name} anchor")
                others = [shown.share("capture", size, goal, 1.0, name) for goal in ("cluster", "promote", "block")]
                rows.append([f"n = {size:,}, {name}", *weights, quorums, *others])
    if rows:
        heads = ["world", "largest cluster", "with a corrupted anchor", "quorums left", "half of the largest", "promote", "block"]
        yield "## Capture of a cluster"
        yield (
            "Shares of the weight in a cluster, before and after its anchor is corrupted; the quorums that a unanimous document "
            "still has; the share of the honest that holds half of the largest cluster; and that flips a decision, with 200 "
            "domains. A sparse world has a quarter of the friendships; it has no gate, and shows what missing vouches cost."
        )
        yield table_of(heads, rows)


def _bribery(shown: Shown) -> Iterator[str]:
    rows = []
    for size in shown.sizes:
        for name in ("best", "random"):
            cells = [shown.number("bribery", size, "vouches", 1.0, f"{voice} {name}") for voice in ("0.0625", "0.5", "1")]
            if cells[0]:
                rows.append([f"n = {size:,}, bought {'where they carry most' if name == 'best' else 'at random'}", *cells])
    if rows:
        yield "## Bribery"
        yield "Vouches of honest principals that one domain must buy for so much of a full voice. Standing is multiplied by it."
        yield table_of(["", "1/16", "1/2", "1"], rows)


def _farming(shown: Shown) -> Iterator[str]:
    rows = []
    for size in shown.sizes:
        for domains in farming.DOMAINS:
            details = [f"{domains} domains, {invented} documents" for invented in farming.INVENTED]
            cells = [_credits(shown, "farming", size, "standing", 1.0, detail) for detail in details]
            if cells[0]:
                rows.append([f"n = {size:,}, {domains} {'domain' if domains == 1 else 'domains'}", *cells])
    eligible = [
        f"{shown.number('farming', size, 'endpoints', 1.0, 'eligible')} of {size:,}"
        for size in shown.sizes
        if shown.find("farming", size, "endpoints", 1.0, "eligible")
    ]
    if rows:
        yield "## Report farming"
        yield (
            "The standing of each domain after a year, in full credits, if each has the trust of a full voice and a cluster of "
            "its own. It adds no weight to any vote, and quotas stop at three."
        )
        yield table_of(["", *(f"documents invented in an epoch: {invented}" for invented in farming.INVENTED)], rows)
        yield (
            f"Reports give a domain all the weight it can have in a topic from {terms().counterparties} counterparties "
            f"on, and its document a place among the eligible once it met {' or '.join(eligible)} endpoints, the heaviest first. "
            "A place in the field elects nothing: reports with strangers imply no ballot."
        )


def _times(shown: Shown, *row: object) -> str:
    return shown.cell(lambda figure: f"{figure:.1f}", "–", row)


def _credits(shown: Shown, *row: object) -> str:
    return shown.cell(lambda figure: f"{figure:.2f}", "–", row)
