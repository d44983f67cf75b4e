"""The tables of ordinary events: networks that move, votes that lapse, thin topics, releases, and what an operator can do."""

from __future__ import annotations

from collections.abc import Iterator

from . import censorship, deprecation, flipflop, lapsing, moved, thin, versions
from .campaigns import HORIZON, LONG
from .laboratory import GATED
from .lines import NOTICE, Shown, table_of


def sections(shown: Shown) -> Iterator[str]:
    """Yield all tables that `shown` has figures for."""
    for maker in (_moved, _lapsing, _thin, _deprecation, _versions, _flipflop, _operator):
        yield from maker(shown)


def _moved(shown: Shown) -> Iterator[str]:
    names = {f"{rate:g}": f"{100 * rate:g} % of the pairs report in an epoch" for rate in moved.RATES}
    names |= {f"voters {share:g}": f"{100 * share:g} % had voted just before; all pairs report" for share in moved.VOTERS}
    rows = [
        [
            f"n = {size:,}, {name}",
            _epochs(shown, "moved", size, "epochs", detail),
            shown.share("moved", size, "stay", 1.0, detail),
        ]
        for size in shown.sizes
        for detail, name in names.items()
        if shown.find("moved", size, "epochs", 1.0, detail)
    ]
    if rows:
        yield "## A network that moved"
        yield "All use another document than before, and nobody votes again. The gate is 3 epochs where half of the pairs report."
        yield table_of(["", "epochs until it is the consensus", "corrupted to keep the former one for a horizon"], rows)


def _lapsing(shown: Shown) -> Iterator[str]:
    names = {
        "never" if age is None else str(age): "nobody ever voted" if age is None else f"{age} epochs" for age in lapsing.AGES
    }
    rows = [
        [f"{goal}, n = {size:,}", *(shown.share("lapsing", size, goal, 1.0, detail) for detail in names)]
        for size in shown.sizes
        for goal in ("promote", "unseat")
        if shown.find("lapsing", size, goal, 1.0, "never")
    ]
    if rows:
        yield "## Votes that lapse"
        yield "All honest members voted once for the consensus, so long ago, and have used it ever since."
        yield table_of(["", *names.values()], rows)


def _thin(shown: Shown) -> Iterator[str]:
    new = [f"{share:g} new" for share in thin.NEW]
    heads = [f"{100 * share:g} %" for share in thin.SHARES] + [f"{100 * share:g} %, new" for share in thin.NEW]
    rows = [
        [f"{goal}, n = {size:,}", *(shown.share("thin", size, goal, 1.0, detail) for detail in (*_each(thin.SHARES), *new))]
        for size in shown.sizes
        for goal in ("promote", "unopposed", "block")
        if shown.find("thin", size, goal, 1.0, "1")
    ]
    if rows:
        yield "## Thin topics"
        yield (
            "Each honest pair meets in the topic only with some probability within a horizon; the adversary meets everyone, in "
            f"every epoch, and nobody honest votes. *New*: the honest document comes then, and has {LONG} epochs; *unopposed*: "
            "the other one, too, and the election is over before most of the honest have met. That has no gate: what is not in "
            "the log yet, no rule can count."
        )
        yield table_of(["share of pairs that meet", *heads], rows)
        size = next(size for size in shown.sizes if shown.find("thin", size, "promote", 1.0, "1"))
        epochs = [f"{_epochs(shown, 'thin', size, 'moved', f'{share:g}')} ({100 * share:g} %)" for share in thin.SHARES]
        yield (
            f"If all go over to another document, that is the consensus after as many epochs: {', '.join(epochs)}. A rule "
            "that moved sooner would move for as many corrupted as have met by then."
        )


def _deprecation(shown: Shown) -> Iterator[str]:
    rows = [
        [
            f"promote, n = {size:,}",
            *(shown.share("deprecation", size, "promote", 1.0, detail) for detail in _each(deprecation.SHARES)),
        ]
        for size in shown.sizes
        if shown.find("deprecation", size, "promote", 1.0, "0")
    ]
    if rows:
        yield "## A consensus that is deprecated"
        yield (
            "Its publisher deprecates it, and names a successor that a share of the honest pairs goes over to at once; the "
            "adversary would inherit."
        )
        yield table_of(["", *(f"{100 * share:g} % go over" for share in deprecation.SHARES)], rows)
        size = next(size for size in shown.sizes if shown.find("deprecation", size, "promote", 1.0, "0"))
        epochs = [_epochs(shown, "deprecation", size, "successor", how) for how in deprecation.HOW]
        yield (
            f"Spoken by {100 * deprecation.SPOKEN:g} % of the pairs, the successor is the consensus after {epochs[0]} epochs, "
            f"and after {epochs[1]} if a domain that nobody vouches for publishes the deprecated bytes again."
        )


def _versions(shown: Shown) -> Iterator[str]:
    rows = [
        [f"n = {size:,}, {parts}", *(_epochs(shown, "versions", size, goal, str(parts)) for goal in ("elect", "lose"))]
        for size in shown.sizes
        for parts in versions.PARTS
        if shown.find("versions", size, "elect", 1.0, str(parts))
    ]
    if rows:
        yield "## Versions of one line"
        yield "As many versions are spoken by as many users each. A gate: they never lose their consensus to each other."
        yield table_of(["versions", "epochs until one of a new line is the consensus", "epoch in which none is any more"], rows)


def _flipflop(shown: Shown) -> Iterator[str]:
    rows = [
        [f"block, n = {size:,}", *(_block(shown, size, detail) for detail in _each(flipflop.SHARES))]
        for size in shown.sizes
        if shown.find("flipflop", size, "block", 1.0, "0.5")
    ]
    if rows:
        yield "## An adversary that changes sides"
        yield "All accept both documents, and so divide on which one comes first."
        yield table_of(["", *(f"{100 * share:g} : {100 - 100 * share:g}" for share in flipflop.SHARES)], rows)


def _operator(shown: Shown) -> Iterator[str]:
    censored = [
        f"n = {size:,}: {shown.share('censorship', size, goal, 1.0)} to {goal}"
        for size in shown.sizes
        for goal in GATED
        if shown.find("censorship", size, goal)
    ]
    names = {"nothing": "nothing", "accelerate": "epochs of a second", "swap": "anchors of its own"}
    days = {how: shown.cell(lambda figure: f"{figure:.0f}", "never", ("parameters", 0, "overturn", 1.0, how)) for how in names}
    voices = [
        shown.cell(lambda figure: f"{figure:.2f}", "–", ("tenure", 0, "weight", 1.0, detail))
        for detail in ("before", "taken over", "renewed vouch")
    ]
    if censored or all(voices) or all(days.values()):
        yield "## What an operator can do, and the buyer of a domain"
    if all(days.values()):
        yield (
            "Days after which an operator with a quarter of the members overturns a unanimous consensus by new parameters; the "
            f"gate is {NOTICE:g}."
        )
        yield table_of([*names.values()], [[*days.values()]])
    if censored:
        yield f"An operator with {100 * censorship.HELD:g} % of the members must drop those of so many: {'; '.join(censored)}."
    if all(voices):
        yield (
            f"A domain with {voices[0]} voices has {voices[1]} in the epoch in which it changes hands, and {voices[2]} a horizon "
            f"of {HORIZON} epochs later if its new owner finds the same vouches again."
        )


def _block(shown: Shown, size: int, detail: str) -> str:
    return shown.cell(lambda figure: f"{100 * figure:.1f} %", "not with 60 %", ("flipflop", size, "block", 1.0, detail))


def _epochs(shown: Shown, table: str, size: int, goal: str, detail: str) -> str:
    return shown.cell(lambda figure: f"{figure:.0f}", "never", (table, size, goal, 1.0, detail))


def _each(shares: tuple[float, ...]) -> list[str]:
    return [f"{share:g}" for share in shares]
