"""Group principals into clusters by the anchor through which most of their trust arrived.

Layer 0 consists of the anchors. Layer n + 1 consists of the other principals to which a principal in layer n passes on any
trust. The cluster of an anchor is its own name. Any other principal takes the cluster of the principal in the previous layer
that passes on the most trust to it; ties go to the name that sorts first. A principal that no trust reaches has no cluster.

Only flows from the previous layer count. Flows within a layer or back to an earlier one change no cluster. So a group whose
trust all came through one vouch is one cluster, whichever vouches its members exchange, and it counts as one where an
election requires several.

Specification: `docs/specification/election.md`, section 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .arithmetic import Amounts
from .trust import Graph


def clusters(graph: Graph, flows: Amounts, anchors: Sequence[str]) -> dict[str, str]:
    """Return principal → its cluster, the name of an anchor, sorted by principal.

    `flows`: the trust that each edge passes on.
    """
    anchor_names = set(anchors)
    label = np.array([index if name in anchor_names else -1 for index, name in enumerate(graph.principals)], dtype=np.int64)
    carrying = np.flatnonzero(flows)
    # For each target the largest flow comes first. `lexsort` is stable and edges are sorted by source, so the first name wins
    # a tie. `~` reverses the order of unsigned integers.
    carrying = carrying[np.lexsort((~flows[carrying], graph.target[carrying]))]
    source, target = graph.source[carrying], graph.target[carrying]
    layer = label >= 0
    # Breadth first: a label, once set, is never changed by a longer way.
    while layer.any():
        onward = layer[source] & (label[target] < 0)
        reached, first = _firsts(target[onward])
        label[reached] = label[source[onward][first]]
        layer = np.zeros_like(layer)
        layer[reached] = True
    labels = label.tolist()
    return {name: graph.principals[of] for name, of in zip(graph.principals, labels, strict=True) if of >= 0}


def _firsts(ordered: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct values of a sorted array, and the position of the first of each."""
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    return ordered[first], first
