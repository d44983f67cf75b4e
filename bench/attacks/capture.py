"""Capture of an anchor's cluster, in the worlds of the other tables and in sparse ones.

A principal belongs to the cluster of the anchor that its trust came from, and no cluster counts for more than a twelfth of the
weight. Two attacks. A corrupted anchor withdraws its vouches and spends them on principals that are no neighbours of an anchor,
to draw them and all behind them into its cluster; the best of several choices and of all anchors is shown. Or the anchor is
honest, and the principals of its cluster are corrupted, the heaviest first.

    weight/WORLD anchor   the share of all weight in the cluster of the corrupted anchor
    quorum/WORLD anchor   the support of a document that everyone approves, in quorums; below 1 nothing can be elected
    weight/WORLD nobody   the largest cluster while nobody is corrupted
    cluster/WORLD         the share of the honest that must be corrupted to hold half of the weight of the heaviest cluster
    promote/WORLD, block/WORLD   the share of the honest that must be corrupted to flip a decision, with 200 domains

WORLD: `dense` or `sparse`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.trust import Graph

from .adversaries import Attacked, Coalition, attacked
from .campaigns import Attack
from .graphs import MAX_VOUCHES, World, world
from .laboratory import GATED, SPENDINGS, Laboratory, Row
from .ours import PARAMETERS, Electors, electors

CLUSTERS = PARAMETERS.quorum_share * PARAMETERS.cluster_share


def figures(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """What a captured cluster is worth, and what it costs."""
    size, seed = lab.world.size, lab.world.seed
    for name, made in {"dense": lab.world, "sparse": world(size, seed, sparse=True)}.items():
        peaceful = electors(attacked(made, Coalition()))
        yield Row("capture", size, "weight", detail=f"{name} nobody"), max(_shares(peaceful).values())
        captured = [_captured(made, peaceful, anchor) for anchor in made.anchors.tolist()]
        yield Row("capture", size, "weight", detail=f"{name} anchor"), max(share for share, _ in captured)
        yield Row("capture", size, "quorum", detail=f"{name} anchor"), min(quorums for _, quorums in captured)
        yield Row("capture", size, "cluster", detail=name), _half_of_heaviest(peaceful)
        drawn = lab if made is lab.world else Laboratory(made)
        for goal in GATED:
            yield Row("capture", size, goal, detail=name), drawn.fraction(Attack(goal), SPENDINGS[200])


def _captured(made: World, peaceful: Electors, anchor: int) -> tuple[float, float]:
    """Return the largest share of weight that an anchor can draw into its cluster, and the fewest quorums that are left."""
    found = []
    label = peaceful.attacked.graph.principals[anchor]
    for targets in _choices(made, peaceful, anchor):
        weighed = electors(_spent(attacked(made, Coalition()), anchor, targets))
        shares = _shares(weighed)
        found.append((shares.get(label, 0.0), _quorums(shares)))
    return max(share for share, _ in found), min(quorums for _, quorums in found)


def _choices(made: World, peaceful: Electors, anchor: int) -> Iterator[NDArray[np.int64]]:
    """Yield on whom an anchor may spend: the far principals with most weight, with most vouches, or its own choice of before."""
    anchors = np.isin(np.arange(made.size), made.anchors)
    near = np.zeros(made.size, dtype=np.bool_)
    near[made.target[anchors[made.source]]] = True
    far = np.flatnonzero(~near & ~anchors)
    vouches = np.bincount(made.source, minlength=made.size)
    for worth in (peaceful.weights, vouches):
        yield far[np.argsort(worth[far].astype(np.float64))[::-1][:MAX_VOUCHES]]
    yield made.target[made.source == anchor]


def _spent(scene: Attacked, anchor: int, targets: NDArray[np.int64]) -> Attacked:
    graph = scene.graph
    others = graph.source != anchor
    source = np.concatenate([graph.source[others], np.full(len(targets), anchor)])
    target = np.concatenate([graph.target[others], targets])
    strength = np.concatenate([graph.strength[others], np.full(len(targets), ONE, dtype=np.uint64)])
    order = np.lexsort((target, source))
    return replace(scene, graph=Graph(graph.principals, source[order], target[order], strength[order]))


def _shares(weighed: Electors) -> dict[str, float]:
    """Return cluster → its share of all weight."""
    sums: defaultdict[str, int] = defaultdict(int)
    for place, weight in zip(weighed.clusters.tolist(), weighed.weights.tolist(), strict=True):
        if weight:
            sums[weighed.labels[place]] += weight
    return {label: weight / sum(sums.values()) for label, weight in sums.items()}


def _quorums(shares: dict[str, float]) -> float:
    return sum(min(share, 1 / CLUSTERS) for share in shares.values()) * PARAMETERS.quorum_share


def _half_of_heaviest(weighed: Electors) -> float | None:
    """Return the share of the honest that holds half of the weight of the heaviest cluster, without its anchor."""
    shares = _shares(weighed)
    label = weighed.labels.index(max(shares, key=lambda name: (shares[name], name)))
    weights = weighed.weights.astype(np.float64)
    weights[weighed.attacked.world.anchors] = 0
    members = weighed.clusters == label
    held = np.cumsum(np.sort(weights[members])[::-1])
    enough = np.flatnonzero(2 * held >= float(weighed.weights[members].sum()))
    return (int(enough[0]) + 1) / weighed.attacked.world.size if len(enough) else None
