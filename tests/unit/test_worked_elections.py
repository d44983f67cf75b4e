"""Elections worked by hand beyond the order: weights, clusters and the quorum, NONE, a succession. The tables, as they stand in
tests/vectors/election/worked.md, are what the product computes."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
from elections import count_of
from simulated_log import SUFFIXES

from treaty_consensus.election import trust as lending
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.ballot import Ballots, Implied, count, votes
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.election.line import Tiers
from treaty_consensus.election.principals import PrincipalDirectory, SuffixList
from treaty_consensus.election.provenance import clusters as clusters_of
from treaty_consensus.election.reputation import base_weight, bounded_trust, cap
from treaty_consensus.election.rule import DocumentState, Poll, Shortfall, advance
from treaty_consensus.kinds import NONE, RULE

SPECIFICATION = (Path(__file__).parents[2] / "tests" / "vectors" / "election" / "worked.md").read_text(encoding="utf-8")
PAGE = (Path(__file__).parents[2] / "docs" / "specification" / "election.md").read_text(encoding="utf-8")
PARAMETERS = development_parameters()
READY = DocumentState("provisional", provisional=2)


def tiers(order: str) -> Tiers:
    """`A>BC` ranks A over B and C, which are tied; N is NONE."""
    return tuple(tuple(NONE if choice == "N" else choice for choice in tier) for tier in order.split(">"))


def shown(text: str) -> None:
    assert text in SPECIFICATION, text


def number(value: int, unit: int = 1) -> str:
    """A weight in units, with a decimal point where it needs one."""
    exact = Fraction(value, unit)
    return str(exact.numerator) if exact.denominator == 1 else f"{float(exact):.2f}"


def matrix(poll: Poll, unit: int = 1) -> str:
    names = [*poll.candidates, "N"]
    rows = [["", *names], *([a, *(number(v, unit) for v in row)] for a, row in zip(names, poll.count.pairwise, strict=True))]
    return "\n".join("  ".join(f"{cell:>2}" if place else f"{cell:1}" for place, cell in enumerate(row)) for row in rows)


def test_fading_ripening_and_shares() -> None:
    epoch, unit = 10, ONE // 32
    directory = PrincipalDirectory()
    ballots = Ballots(directory)
    directory.read_domains_by("suffixes", SuffixList(SUFFIXES))
    directory.grant("s.example", "did:wba:s.example:agent", "did:wba:s.example")
    lines = ["principal  cluster  w  ballot  a  b  counts"]
    ballots_of_all = [
        ("p", "X", "A>B", 0, 2),
        ("q", "X", "A", 1, 1),
        ("r", "X", "A", 0, 0),
        ("s", "Y", "B>A", 0, 1),
        ("s", "Y", "N", 0, 1),
        ("t", "Y", "B", 1, 2),
        ("u", "Z", "AB", 2, 2),
    ]
    for place, (principal, _, order, age, epochs_held) in enumerate(ballots_of_all):
        did = f"did:wba:{principal}.example" + (":agent" if place and principal == ballots_of_all[place - 1][0] else "")
        ballots.cast(did, tiers(order), epoch - epochs_held)
        ballots.cast(did, tiers(order), epoch - age)
    ballots_of_all.append(("v", "Z", "(B)", 0, 0))
    weights = {f"{principal}.example": ONE // 2 if principal == "r" else ONE for principal, *_ in ballots_of_all}
    clusters = {f"{principal}.example": cluster for principal, cluster, *_ in ballots_of_all}
    cast = votes(ballots, {"v.example": Implied(("B",), epoch, epoch)}, weights, epoch, horizon=2)
    for row, (principal, cluster, order, age, epochs_held) in enumerate(ballots_of_all):
        assert (cast.age[row], cast.held[row]) == (age, epochs_held)
        weight = "½" if principal == "r" else "1"
        counts = number(int(cast.weight[row]), unit)
        lines.append(f"{principal}          {cluster}        {weight}  {order:6}  {age}  {epochs_held}  {counts:>6}")
    shown("\n".join(lines))

    poll = Poll(PARAMETERS, count(cast, ("A", "B"), clusters))
    shown(f"W {number(cast.total, unit)}\n\nV\n{matrix(poll, unit)}")
    for document in "AB":
        support, opposition = poll.support(document), poll.opposition(document)
        text = f"S({document}) {number(support, unit)}, q({document}) {number(poll.quorum(document), unit)}"
        opposing = number(poll.opposing_quorum(document), unit)
        shown(f"{text}, S'({document}) {number(opposition, unit)}, q'({document}) {opposing}")
    shown("order A B N")
    assert [poll.count.choices[n] for n in poll.ranking.order] == ["A", "B", NONE]
    assert poll.provisional_shortfalls("A") == [Shortfall("ratio-over-none", 80 * unit, 98 * unit, NONE)]
    shown("`ratio-over-none` 80 of 98")
    assert poll.consensus_shortfalls("A", READY) == poll.provisional_shortfalls("B") == []


def test_none_and_the_quorum() -> None:
    for text, missing in [
        ("7 A (X), 1 A (Y), 2 N>A (Y), 2 N (Z)", [Shortfall("quorum", 0, 2)]),
        ("7 A (X), 1 A (Y), 2 N>A (Y), 1 A (Z), 1 N (Z)", []),
        ("7 A (X), 1 A (Y), 2 N>A (Y), 1 AN (Z), 1 N (Z)", [Shortfall("quorum", 0, 2)]),
    ]:
        cast: list[tuple[Tiers, int]] = []
        clusters: dict[int, str] = {}
        for part in text.split(", "):
            voters, order, cluster = part.split(" ")
            for _ in range(int(voters)):
                clusters[len(cast)] = cluster.strip("()")
                cast.append((tiers(order), 1))
        poll = Poll(PARAMETERS, count_of(cast, ("A",), clusters))
        assert poll.count.total == 12
        over, under = poll.preferring("A")
        shown(f"{text:50}  {over} : {under}     {poll.support('A')}     {poll.quorum('A')}")
        assert poll.provisional_shortfalls("A") == missing
        assert poll.consensus_shortfalls("A", READY) == []


def test_a_succession() -> None:
    states = {"A": DocumentState("consensus")}
    lines = ["epoch  ballots          A             B"]
    for epoch, text in enumerate(
        [
            "7 B>A, 5 A>B",
            "8 B>A, 4 A>B",
            "7 B>A, 5 A>B",
            "8 B>A, 4 A>B",
            "4 B>A, 8 A>B",
            "8 B>A, 4 A>B",
            "8 B>A, 4 A>B",
            "4 B, 8 N",
            "8 B>A, 4 A>B",
            "5 B, 7 N",
            "5 B, 7 N",
            "5 B, 7 N",
            "6 B, 6 N",
            "5 B, 7 N",
            "5 B, 7 N",
            "5 B, 7 N",
            "5 B, 7 N",
        ],
        start=1,
    ):
        cast = []
        for part in text.split(", "):
            voters, order = part.split(" ")
            cast += [(tiers(order), 1)] * int(voters)
        states = advance(Poll(PARAMETERS, count_of(cast, ("A", "B")), states))
        lines.append(f"{epoch:>5}  {text:15}  {described(states['A']):12}  {described(states['B'])}")
    shown("\n".join(lines))


def described(current: DocumentState) -> str:
    """The state, then the counters that are not 0."""
    counters = {"provisional": "", "ahead": "ahead ", "failing": "failing ", "repealing": "repealing ", "suspect": "suspect "}
    parts = [f"{word}{getattr(current, name)}" for name, word in counters.items() if getattr(current, name)]
    return " ".join([current.state, *([", ".join(parts)] if parts else [])])


def test_the_example_of_the_specification() -> None:
    """From its vouches and ballots, every other number of the example."""
    section = PAGE.partition("## 2. Weight")[2].partition("## 3. Ballots")[0]
    (example,) = re.findall(r"^```\n(anchors .*?)^```$", section, re.MULTILINE | re.DOTALL)
    head, _, rest = example.partition(";")
    anchors = tuple(head.removeprefix("anchors ").split(", "))
    vouches = {(pair[0], pair[1]): ONE for pair in re.findall(r"(\w)→(\w)", rest)}
    orders = dict(re.findall(r"^(\w)  (?:\d+ +){4}\w +(\S+)", example, re.MULTILINE))
    web = lending.graph(orders, vouches)
    seeds = lending.seed(web, anchors)

    first = lending.trust(web, seeds, rounds=33, least=4)
    own = lending.held(web, first, seeds, lending.flows(web, first, seeds, least=4))
    second = lending.trust(web, seeds, rounds=33, least=4, most=cap(own, 3) // 4)
    caps = (
        cap(own, 3),
        cap(lending.held(web, second, seeds, lending.flows(web, second, seeds, least=4, most=cap(own, 3) // 4)), 3),
    )
    bounded = bounded_trust(web, seeds, rounds=33, least=4, cap_share=3, loan_share=4, rule=RULE)
    weights = base_weight(bounded.trust, bounded.cap, np.full(len(orders), 52), 52)
    clusters = clusters_of(web, bounded.flows, anchors)
    cast = [(tiers(order), int(weights[place]) * (ONE - ONE // 8) // ONE) for place, order in enumerate(orders.values())]

    lines = [
        f"anchors {', '.join(anchors)}; vouches {', '.join(f'{a}→{b}' for a, b in vouches)}; "
        f"m₁ {caps[0]}, m₂ {caps[1]}, m* {bounded.cap}",
        "",
        "   x          u          trust      w           cluster  ballot  counts",
    ]
    for place, (name, order) in enumerate(orders.items()):
        amounts = f"{first[place]:<9}  {own[place]:<9}  {bounded.trust[place]:<9}  {weights[place]:<10}"
        lines.append(f"{name}  {amounts}  {clusters[name]:<7}  {order:<6}  {cast[place][1]}")
    poll = Poll(PARAMETERS, count_of(cast, ("A", "B"), dict(enumerate(clusters[name] for name in orders))))
    pairwise = poll.count.pairwise
    lines += ["", f"W {poll.count.total}; V[A][B] {pairwise[0][1]}, V[B][A] {pairwise[1][0]}"]
    for document in "AB":
        over, under = poll.preferring(document)
        lines.append(f"{document}  over NONE {over} : {under}, S {poll.support(document)}, q {poll.quorum(document)}")
    lacking = [", ".join(shortfall.condition for shortfall in poll.provisional_shortfalls(x)) or "nothing" for x in "AB"]
    order = " ".join("NONE" if poll.count.choices[n] == NONE else poll.count.choices[n] for n in poll.ranking.order)
    lines.append(f"order {order}; lacks to be provisional: A {lacking[0]}, B {lacking[1]}")
    assert example.rstrip().splitlines() == lines
