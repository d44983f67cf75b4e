"""Provenance: the anchor through which most of a principal's trust reached it. Those with the same one are a cluster.

Layer 0 are the anchors; layer n + 1 is everybody else to whom somebody in layer n passes on any trust. An anchor is its own
label. Everybody else takes the label of the one in the layer before that passes the most on to it; of those that pass on as
much, the one whose name sorts first. Whom no trust reaches has no label.

Only what comes from nearer the anchors counts: what principals pass to others of their own layer or back changes no label. So a
ring whose trust all came through one vouch is one cluster, whatever its members vouch for among themselves, and counts as one
where an election asks for several.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .arithmetic import Amounts
from .trust import Graph


def clusters(graph: Graph, flows: Amounts, anchors: Sequence[str]) -> dict[str, str]:
    """Principal → its cluster, which is the name of an anchor; in the order of the names. `flows`: what each edge passes on."""
    wanted = set(anchors)
    label = np.array([index if name in wanted else -1 for index, name in enumerate(graph.principals)], dtype=np.int64)
    carrying = np.flatnonzero(flows)
    # To each principal the largest flow first, of equal ones the first source: the edges were in the order of their sources.
    carrying = carrying[np.lexsort((~flows[carrying], graph.target[carrying]))]
    source, target = graph.source[carrying], graph.target[carrying]
    layer = label >= 0
    while layer.any():
        onward = layer[source] & (label[target] < 0)
        reached, first = _firsts(target[onward])
        label[reached] = label[source[onward][first]]
        layer = np.zeros_like(layer)
        layer[reached] = True
    labels = label.tolist()
    return {name: graph.principals[of] for name, of in zip(graph.principals, labels, strict=True) if of >= 0}


def _firsts(ordered: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct values of a sorted array, and where each stands first."""
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    return ordered[first], first
