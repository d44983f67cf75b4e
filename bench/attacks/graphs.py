"""The world that is attacked: honest principals, who of them vouches for whom, and who of them meets whom.

Communities of uneven size, each of them scale-free and clustered (Holme and Kim, Physical Review E 65, 2002), joined by
friendships that prefer the well-connected. A friendship is a vouch in both directions, of which nobody keeps more than
`MAX_VOUCHES`. Friends report to each other, and so do some that are no friends. The anchors are the best connected of their
communities, taken in turn.

Everything follows from (principals, seed).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from treaty_consensus.kinds import MIN_ANCHORS

Numbers: TypeAlias = NDArray[np.int64]

MAX_VOUCHES = 32
LINKS, SPARSE_LINKS = 4, 1  # that a newcomer makes in its community
TRIANGLES = 0.6  # how often a link closes a triangle
BRIDGES, SPARSE_BRIDGES = 1.0, 0.25  # friendships across communities, per principal
ENCOUNTERS = 2.0  # meetings of strangers, per principal


@dataclass(frozen=True)
class World:
    """Principals are numbered from 0. `source` → `target`: vouches. `met`: pairs that report to each other, each once."""

    size: int
    seed: int
    anchors: Numbers
    source: Numbers
    target: Numbers
    met: Numbers


@lru_cache(maxsize=2)
def world(size: int, seed: int, anchors: int | None = None, *, sparse: bool = False) -> World:
    """The world of `size` honest principals drawn with `seed`, with `anchors_of(size)` anchors or as many as are asked for.

    `sparse`: with about a quarter of the friendships, so that most principals are far from all anchors.
    """
    links, bridges = (SPARSE_LINKS, SPARSE_BRIDGES) if sparse else (LINKS, BRIDGES)
    draw = random.Random(f"{size}/{seed}")
    communities = _communities(size, draw)
    friends = nx.Graph()
    friends.add_nodes_from(range(size))
    for members in communities:
        community = nx.powerlaw_cluster_graph(len(members), links, TRIANGLES, seed=draw.randrange(2**32))
        friends.add_edges_from((members[a], members[b]) for a, b in community.edges)
    ends = [node for edge in friends.edges for node in edge]  # a node as often as it has friends
    _join(friends, int(bridges * size), lambda: (draw.choice(ends), draw.choice(ends)))
    vouches = []
    for node in range(size):
        others = sorted(friends[node])
        vouches += [(node, other) for other in sorted(draw.sample(others, min(MAX_VOUCHES, len(others))))]
    meetings = friends.copy()
    _join(meetings, int(ENCOUNTERS * size), lambda: (draw.randrange(size), draw.randrange(size)))
    source, target = np.array(vouches, dtype=np.int64).T
    met = np.array(sorted(tuple(sorted(edge)) for edge in meetings.edges), dtype=np.int64)
    return World(size, seed, _anchors(friends, communities, anchors or anchors_of(size)), source, target, met)


def anchors_of(size: int) -> int:
    """How many anchors a world has: one for twenty principals, and never fewer than parameters must name."""
    return max(MIN_ANCHORS, size // 20)


def _communities(size: int, draw: random.Random) -> list[list[int]]:
    """Members of each community; the sizes follow a power law between 20 and a fifth of all."""
    nodes = list(range(size))
    draw.shuffle(nodes)
    communities = []
    while nodes:
        wanted = min(int(20 * draw.paretovariate(1.0)), size // 5)
        if len(nodes) - wanted < 20:
            wanted = len(nodes)
        communities.append(nodes[:wanted])
        nodes = nodes[wanted:]
    return communities


def _join(graph: nx.Graph, number: int, pick: Callable[[], tuple[int, int]]) -> None:
    """Add `number` edges."""
    while number:
        one, other = pick()
        if one != other and not graph.has_edge(one, other):
            graph.add_edge(one, other)
            number -= 1


def _anchors(friends: nx.Graph, communities: list[list[int]], number: int) -> Numbers:
    ranked = [sorted(members, key=lambda node: (-friends.degree(node), node)) for members in sorted(communities, key=len)[::-1]]
    chosen: list[int] = []
    turn = 0
    while len(chosen) < number:
        chosen += [members[turn] for members in ranked if turn < len(members)]
        turn += 1
    return np.array(sorted(chosen[:number]), dtype=np.int64)
