"""Search for the vouches that give an adversary most for an attack edge, by hill climbing.

An adversary owns five domains that vouch for each other; honest principals that are no anchors vouch for them. A figure is the
voices that the domains hold for each of these vouches, all at full age. A step changes some vouches at random, among anchors and
honest principals or for the domains, and is kept where the figure does not fall. There are 16 anchors and the default constants.

The rule `schulze-margins-v3` bounds the figure by 1/16 (`docs/specification/election-bound.md`). The former rule does not:
`falling_caps` makes networks in which an edge is worth more.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import permutations

import numpy as np
from rich.console import Console

from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.reputation import bounded_trust
from treaty_consensus.election.trust import graph, seed
from treaty_consensus.kinds import RULES, Rule

from .attacks.graphs import MAX_VOUCHES
from .attacks.ours import terms

ANCHORS = tuple(f"anchor{number:02}" for number in range(16))
DOMAINS = tuple(f"domain{number}" for number in range(5))
BOUND = Fraction(1, terms().least_vouches * terms().loan_share)
"""Voices for an attack edge."""
FALLING_CAPS = ((6, 4), (4, 32))
"""Of these networks the first has the largest ratio of the first cap to the second; the third cap of the second falls again."""


@dataclass(frozen=True)
class Network:
    """`vouches`: (voucher, vouched) of the anchors and the honest; those of the domains for each other are added."""

    honest: tuple[str, ...]
    vouches: frozenset[tuple[str, str]]

    @property
    def attack_edges(self) -> int:
        """Return the number of vouches for the domains; of one principal at most `least_vouches` count."""
        given = Counter(voucher for voucher, vouched in self.vouches if vouched in DOMAINS)
        return sum(min(number, terms().least_vouches) for number in given.values())

    def worth(self, rule: Rule) -> Fraction:
        """Return the voices of the domains for each attack edge; 0 where there is none."""
        made = graph((*ANCHORS, *self.honest, *DOMAINS), dict.fromkeys((*self.vouches, *permutations(DOMAINS, 2)), ONE))
        shares = {"cap_share": terms().cap_share, "loan_share": terms().loan_share}
        bounded = bounded_trust(
            made, seed(made, ANCHORS), rounds=terms().rounds, least=terms().least_vouches, **shares, rule=rule
        )
        places = made.places(DOMAINS)
        if not (self.attack_edges and bounded.cap):
            return Fraction(0)
        voices = int(np.minimum(bounded.trust[places], np.uint64(bounded.cap)).sum())
        return Fraction(voices, bounded.cap * self.attack_edges)

    def changed(self, draw: random.Random) -> Network:
        """Return this network with one to four vouches more or less, none of an anchor for a domain."""
        vouches = set(self.vouches)
        for _ in range(draw.randint(1, 4)):
            voucher = draw.choice((*ANCHORS, *self.honest))
            others = (*ANCHORS, *self.honest) if voucher in ANCHORS else (*ANCHORS, *self.honest, draw.choice(DOMAINS))
            pair = voucher, draw.choice(others)
            if pair[0] != pair[1]:
                vouches ^= {pair}
        given = Counter(voucher for voucher, _ in vouches)
        return self if max(given.values(), default=0) > MAX_VOUCHES else replace(self, vouches=frozenset(vouches))


def drawn(people: int, draw: random.Random) -> Network:
    """Return a network in which everybody vouches for four others, and one honest principal for a domain."""
    honest = tuple(f"honest{number:02}" for number in range(people))
    everybody = (*ANCHORS, *honest)
    vouches = {(voucher, vouched) for voucher in everybody for vouched in draw.sample(everybody, 4) if voucher != vouched}
    return Network(honest, frozenset(vouches | {(honest[0], DOMAINS[0])}))


def climbed(network: Network, rule: Rule, steps: int, draw: random.Random) -> Network:
    """Return the network after so many steps."""
    worth = network.worth(rule)
    for _ in range(steps):
        other = network.changed(draw)
        if (found := other.worth(rule)) >= worth:
            network, worth = other, found
    return network


def falling_caps(spread: int, rich: int) -> Network:
    """Return a network whose second cap is less than its first.

    The first `spread` anchors vouch for `MAX_VOUCHES` principals each, the others for the same `rich` ones. The first cap counts
    what the rich lend. They may lend less of it in the second pass, and the cap falls to what the many hold.
    """
    friends = tuple(f"friend{number}" for number in range(4))
    some = tuple(f"rich{number:02}" for number in range(rich))
    poor = tuple(f"poor{number:03}" for number in range(spread * MAX_VOUCHES))
    vouches = {(ANCHORS[number // MAX_VOUCHES], name) for number, name in enumerate(poor)}
    vouches |= {(anchor, name) for anchor in ANCHORS[spread:] for name in some}
    vouches |= {(name, friend) for name in some for friend in friends}
    vouches = vouches - {(some[0], friends[0])} | {(some[0], DOMAINS[0])}
    return Network((*some, *poor, *friends), frozenset(vouches))


def main(arguments: Sequence[str]) -> int:
    """Climb; the status is 1 where the rule in force passes its bound."""
    parser = argparse.ArgumentParser(prog="python -m bench edges", description=__doc__)
    parser.add_argument("--people", type=int, default=30, help="honest principals that are no anchors (default: 30)")
    parser.add_argument("--steps", type=int, default=5000, help="of each climb (default: 5000)")
    parser.add_argument("--seeds", type=int, default=3, help="climbs for each rule (default: 3)")
    chosen = parser.parse_args(arguments)
    console = Console(highlight=False, emoji=False)
    passed = False
    for rule in RULES:
        found = {f"falling caps {case}": falling_caps(*case) for case in FALLING_CAPS}
        for number in range(chosen.seeds):
            draw = random.Random(number)
            found[f"climb {number}"] = climbed(drawn(chosen.people, draw), rule, chosen.steps, draw)
        for name, network in found.items():
            worth = network.worth(rule)
            console.print(
                f"{rule}, {name}: {float(worth):.4f} voices an edge, {float(worth / BOUND):.3f} of the bound", soft_wrap=True
            )
            passed |= worth > BOUND and rule == RULES[-1]
    return int(passed)
