"""`python -m bench election`: what an election of a whole network takes: trust, Schulze's method, an epoch.

Every figure is made in a process of its own, one after the other, and is processor time: all of them are computations in one
thread, and whatever else the machine does does not count. Memory is the largest resident set of that process, its input and
Python included.

    trust      33 rounds over a random graph of vouches, against PageRank of the same graph, damping 1/2: NetworkX's (the graph is
               there already, its tolerance is that of the 33 rounds), and 33 products with a SciPy matrix of floats
    schulze    from a million ballots over ten candidates, one to five of them ranked, to the winner: ours from the columns that
               ballots are taken into as they come, by a million DIDs of a hundred thousand principals (whose they are and what
               they weigh counts), against pref_voting's `beat_path` over the same lists, all of one weight (they are truncated,
               so they make a ProfileWithTies)
    epoch      `large_epoch`
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.ballot import Ballots, votes
from treaty_consensus.election.ballot import count as count_votes
from treaty_consensus.election.principals import PrincipalDirectory, SuffixList
from treaty_consensus.election.schulze import margins, path_strengths, undefeated
from treaty_consensus.election.trust import Graph, seed, trust

from . import RESULTS, large_epoch, report

ROUNDS = 33
LEAST = 4
RUNS = 3
"""Of what takes seconds; the median counts."""
SMALL, LARGE = (100_000, 800_000), (1_000_000, 8_000_000)
"""Principals and vouches."""
BALLOTS, CANDIDATES, RANKED = 1_000_000, 10, 5
WINNERS = (0,)
"""Of this election, as everybody finds."""
BAR = 30
"""How many times as fast as pref_voting the count should be."""
CLOSING_SECONDS, CLOSING_MEGABYTES = 8, 2_147
"""What a closing of that epoch may take; 2 GiB."""
RESULT, TABLE = RESULTS / "election.json", RESULTS / "election.md"


class Figure(msgspec.Struct, frozen=True):
    """Seconds of a processor, and the largest resident set in MB (10^6 bytes)."""

    seconds: float
    megabytes: int


class Ratio(msgspec.Struct, frozen=True):
    """A figure against a baseline: `ratio` is how many times as fast it is. `bar`: what that should be at least, if anything."""

    what: str
    against: str
    figure: Figure
    baseline: Figure
    ratio: float
    bar: int | None


class Results(msgspec.Struct):
    """What is kept. `epoch`: seconds of a processor for each thing that is done in it; `epoch_megabytes`: the largest resident
    set then."""

    ratios: dict[str, list[Ratio]] = {}
    epoch: dict[str, float] = {}
    epoch_megabytes: int = 0
    machine: str = ""
    measured: str = ""


def web(principals: int, vouches: int) -> tuple[Graph, NDArray[np.uint64]]:
    """About so many vouches, a few principals getting many, and the seed of as many anchors as there may be."""
    random = np.random.default_rng(0)
    source = random.integers(0, principals, vouches)
    target = (principals * random.random(vouches) ** 2).astype(np.int64)
    edges = np.unique(source[source != target] * principals + target[source != target])
    strength = random.integers(1, ONE, len(edges), dtype=np.uint64, endpoint=True)
    names = tuple(f"{number:07}" for number in range(principals))
    made = Graph(names, edges // principals, edges % principals, strength)
    return made, seed(made, names[:: principals // 512][:512])


def time_trust(size: tuple[int, int]) -> float:
    """Ours."""
    made, seeds = web(*size)
    return _timed(lambda: trust(made, seeds, rounds=ROUNDS, least=LEAST))


def time_networkx(size: tuple[int, int]) -> float:
    """PageRank as NetworkX has it. What is not handed on goes back to the seed: another number, the same work."""
    import networkx

    made, seeds = web(*size)
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(size[0]))
    graph.add_weighted_edges_from(zip(made.source.tolist(), made.target.tolist(), made.strength.tolist(), strict=True))
    personal = dict.fromkeys(np.flatnonzero(seeds).tolist(), 1)
    tolerance = 2.0**-ROUNDS / size[0]
    return _timed(lambda: networkx.pagerank(graph, alpha=0.5, personalization=personal, tol=tolerance))


def time_scipy(size: tuple[int, int]) -> float:
    """The same formula in floats, nothing rounded down."""
    from scipy.sparse import csr_array

    made, seeds = web(*size)
    own = seeds / 2

    def run() -> None:
        sums = np.maximum(np.bincount(made.source, made.strength, size[0]), LEAST * ONE)
        shares = csr_array((made.strength / (2 * sums[made.source]), (made.target, made.source)), (size[0], size[0]))
        amounts = own
        for _ in range(ROUNDS):
            amounts = own + shares @ amounts

    return _timed(run)


def lists(number: int) -> list[tuple[int, ...]]:
    """Ballots: the candidates that each ranks, best first."""
    drawn = random.Random(0)
    return [
        tuple(sorted(range(CANDIDATES), key=lambda candidate: candidate + 6 * drawn.random())[: drawn.randint(1, RANKED)])
        for _ in range(number)
    ]


def time_schulze(number: int) -> float:
    """Ours, from the columns that ballots are taken into one by one; ten are by DIDs of one principal."""
    names = [f"{candidate:064x}" for candidate in range(CANDIDATES)]
    principals = [f"agent-{place:06}.example" for place in range(number // large_epoch.DIDS)]
    directory = PrincipalDirectory()
    ballots = Ballots(directory)
    directory.read_domains_by("0" * 64, SuffixList(large_epoch.SUFFIXES))
    ranked = iter(lists(number))
    for principal in principals:
        for voter in large_epoch.speakers(principal):
            directory.grant(principal, voter, f"did:wba:{principal}")
            ballots.cast(voter, tuple((names[candidate],) for candidate in next(ranked)), 0)
            directory.principal_of(voter)
    weights = dict.fromkeys(principals, ONE)
    clusters = {principal: principals[place % 64] for place, principal in enumerate(principals)}
    found: list[tuple[int, ...]] = []

    def run() -> None:
        counted = count_votes(votes(ballots, {}, weights, 0, None), names, clusters)
        found.append(undefeated(path_strengths(margins(counted.pairwise)), range(CANDIDATES + 1)))

    seconds = _timed(run)
    assert found[0] == WINNERS
    return seconds


def time_beat_path(number: int) -> float:
    """pref_voting's, from lists to winners. NONE is one candidate more, just below those that are ranked."""
    from pref_voting.margin_based_methods import beat_path
    from pref_voting.profiles_with_ties import ProfileWithTies

    rankings = [{choice: place for place, choice in enumerate((*ranked, CANDIDATES))} for ranked in lists(number)]
    found: list[tuple[int, ...]] = []

    def run(rankings: list[dict[int, int]]) -> None:
        profile = ProfileWithTies(rankings, candidates=list(range(CANDIDATES + 1)))
        profile.use_extended_strict_preference()
        found.append(tuple(beat_path(profile)))

    run(rankings[:100])  # what is compiled, is
    seconds = _timed(lambda: run(rankings), runs=1)
    assert found[-1] == WINNERS
    return seconds


def _timed(run: Callable[[], object], runs: int = RUNS) -> float:
    """The median of what a run takes of a processor."""
    taken = []
    for _ in range(runs):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return median(taken)


# Part, what, ours, against what, how that is measured, on how much, and the bar.
CONTESTS: tuple[tuple[str, str, Callable[..., float], str, Callable[..., float], object, int | None], ...] = (
    ("trust", "trust, 10^5 principals, 8·10^5 vouches", time_trust, "networkx.pagerank", time_networkx, SMALL, None),
    ("trust", "the same", time_trust, "SciPy, floats", time_scipy, SMALL, None),
    ("trust", "trust, 10^6 principals, 8·10^6 vouches", time_trust, "SciPy, floats", time_scipy, LARGE, None),
    (
        "schulze",
        "Schulze from 10^6 ballots of 10^5 principals",
        time_schulze,
        "pref_voting beat_path",
        time_beat_path,
        BALLOTS,
        BAR,
    ),
)
PARTS = ("trust", "schulze", "epoch")


def measure(parts: Sequence[str], results: Results, tell: Callable[[str], None]) -> None:
    """Measure some parts anew; `tell` hears what is measured next."""
    for part in parts:
        if part == "epoch":
            tell(part)
            seconds, results.epoch_megabytes = _alone(large_epoch.live)
            results.epoch = {what: round(taken, 2) for what, taken in seconds.items()}
            continue
        lines = []
        for _, what, ours, against, theirs, size, bar in [contest for contest in CONTESTS if contest[0] == part]:
            tell(what)
            figure = Figure(*_alone(ours, size))
            tell(against)
            baseline = Figure(*_alone(theirs, size))
            lines.append(Ratio(what, against, figure, baseline, round(baseline.seconds / figure.seconds, 2), bar))
        results.ratios[part] = lines
    results.machine, results.measured = report.machine(), time.strftime("%Y-%m-%d", time.gmtime())


def main(arguments: list[str]) -> int:
    """Measure, show, keep; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench election", description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; may be repeated")
    parts = parser.parse_args(arguments).only or PARTS
    results = msgspec.json.decode(RESULT.read_bytes(), type=Results) if RESULT.exists() else Results()
    console = Console(highlight=False, emoji=False)
    with console.status("election") as status:
        measure(parts, results, status.update)
    RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
    TABLE.write_text(_markdown(results), encoding="utf-8")
    for heads, rows in (_ratios(results), _epoch(results)):
        table = Table(*heads, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    return 0


def _ratios(results: Results) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    heads = ("", "seconds", "MB", "against", "seconds", "MB", "times as fast", "bar")
    rows: list[tuple[str, ...]] = []
    for line in [line for part in PARTS for line in results.ratios.get(part, [])]:
        ours, theirs = ((f"{side.seconds:.2f}", f"{side.megabytes:,}") for side in (line.figure, line.baseline))
        verdict = f"≥ {line.bar}: {'met' if line.ratio >= line.bar else '**missed**'}" if line.bar else ""
        rows.append((line.what, *ours, line.against, *theirs, f"{line.ratio:.2f}", verdict))
    return heads, rows


def _epoch(results: Results) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = [(what, f"{seconds:.2f}", "") for what, seconds in results.epoch.items()]
    closing = sum(seconds for what, seconds in results.epoch.items() if what.startswith(large_epoch.CLOSING))
    return ("an epoch, 10^6 ballots of 10^5 principals", "seconds", "bar"), [
        *rows,
        ("all of the closing", f"{closing:.2f}", _at_most(closing, CLOSING_SECONDS)),
        ("largest resident set, MB", f"{results.epoch_megabytes:,}", _at_most(results.epoch_megabytes, CLOSING_MEGABYTES)),
    ]


def _at_most(figure: float, bar: int) -> str:
    return f"≤ {bar:,}: {'met' if figure <= bar else '**missed**'}"


def _markdown(results: Results) -> str:
    parts = [f"Made by `python -m bench election`; seconds of one processor; {results.machine}, {results.measured}."]
    for heads, rows in (_ratios(results), _epoch(results)):
        lines = [heads, ("---", *("---:" for _ in heads[1:])), *rows]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts) + "\n"


def _alone(work: Callable[..., Any], *arguments: object) -> tuple[Any, int]:
    """What work gives in a process of its own, and the largest resident set of that."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measured, work, *arguments).result()


def _measured(work: Callable[..., Any], *arguments: object) -> tuple[Any, int]:
    result = work(*arguments)
    return result, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // 10**6
