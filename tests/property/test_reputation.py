"""From trust to weight and clusters: the laws of the arithmetic, of the cap, and of provenance against its plain definition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from treaty_consensus.election.arithmetic import HALVINGS, ONE, Amounts, conviction, decay, part, parts, table
from treaty_consensus.election.provenance import clusters
from treaty_consensus.election.reputation import base_weight, cap, eligible_counterparties, in_topic
from treaty_consensus.election.trust import graph

FRACTIONS = st.one_of(st.integers(0, ONE), st.sampled_from([0, 1, ONE - 1, ONE]))
HORIZONS = st.integers(1, 60)
AMOUNTS = st.lists(st.one_of(st.integers(0, 9), st.integers(0, ONE)), min_size=1, max_size=12)
SHARES = st.integers(2, 6)
MATURE = 52


def array(amounts: Sequence[int]) -> Amounts:
    return np.array(amounts, np.uint64)


def weights(amounts: Sequence[int], cap: int, age: int = MATURE) -> list[int]:
    result = base_weight(array(amounts), cap, np.full(len(amounts), age), MATURE)
    assert result.dtype == np.uint64
    return [int(weight) for weight in result]


def capped(amounts: Sequence[int], most: int) -> int:
    return sum(min(amount, most) for amount in amounts)


# Arithmetic


@given(HORIZONS, st.integers(0, 600))
def test_decay_never_grows_halves_each_horizon_and_ends(horizon: int, age: int) -> None:
    assert ONE >= decay(age, horizon) >= decay(age + 1, horizon) >= 0
    assert decay(0, horizon) == ONE
    halvings = age // horizon
    assert (decay(age, horizon) == 0) == (halvings >= HALVINGS)
    if halvings + 1 < HALVINGS:
        assert abs(2 * decay(age + horizon, horizon) - decay(age, horizon)) <= 1


@given(HORIZONS, st.integers(0, 599))
def test_decay_is_a_straight_line_between_halvings(horizon: int, age: int) -> None:
    assume(age < HALVINGS * horizon)
    halvings, rest = divmod(age, horizon)
    start, end = ONE >> halvings, ONE >> halvings + 1
    line = start * (horizon - rest) + end * rest  # of what decay is a horizon's part, the rounding upwards
    assert 0 <= decay(age, horizon) * horizon - line < horizon


@given(st.integers(0, 80))
def test_conviction_makes_up_half_of_what_lacks(unchanged: int) -> None:
    assert conviction(0) == ONE // 2
    assert ONE // 2 <= conviction(unchanged) <= conviction(unchanged + 1) <= ONE
    assert ONE - conviction(unchanged + 1) == (ONE - conviction(unchanged)) // 2


@given(st.lists(st.tuples(FRACTIONS, FRACTIONS)), HORIZONS)
def test_arrays_compute_what_integers_do(pairs: list[tuple[int, int]], horizon: int) -> None:
    products = parts(array([value for value, _ in pairs]), array([factor for _, factor in pairs]))
    assert products.dtype == np.uint64
    assert products.tolist() == [part(value, factor) for value, factor in pairs]
    decays = table(lambda age: decay(age, horizon), 9 * horizon)
    assert decays.dtype == np.uint64
    assert decays.tolist() == [decay(age, horizon) for age in range(9 * horizon)]


# The cap


@given(AMOUNTS, SHARES)
def test_the_cap_is_the_largest_that_leaves_no_more_than_a_share(amounts: list[int], share: int) -> None:
    most = cap(array(amounts), share)
    if not any(amounts):
        assert most == 0
        return
    assert share * capped(amounts, most) <= sum(amounts) < share * capped(amounts, most + 1)
    assert share * most <= max(amounts)


@given(AMOUNTS.flatmap(lambda amounts: st.tuples(st.just(amounts), st.permutations(amounts))), SHARES)
def test_the_cap_is_anonymous_and_scales(orders: tuple[list[int], list[int]], share: int) -> None:
    amounts, shuffled = orders
    assert cap(array(shuffled), share) == cap(array(amounts), share)
    assert 0 <= cap(array([3 * amount for amount in amounts]), share) - 3 * cap(array(amounts), share) < 3


@given(AMOUNTS, SHARES, st.data())
def test_splitting_a_principal_never_raises_the_cap(amounts: list[int], share: int, data: st.DataObject) -> None:
    which = data.draw(st.integers(0, len(amounts) - 1))
    piece = data.draw(st.integers(0, amounts[which]))
    divided = [*amounts, piece]
    divided[which] -= piece
    assert cap(array(divided), share) <= cap(array(amounts), share)


# Weight


@given(AMOUNTS, st.integers(0, 2 * MATURE))
def test_weight_grows_with_trust_and_age_up_to_one_full_voice(amounts: list[int], age: int) -> None:
    most = cap(array(amounts), 3)
    assume(most)
    ordered = sorted(amounts)
    young, older = weights(ordered, most, age), weights(ordered, most, age + 1)
    assert young == sorted(young)
    assert all(0 <= less <= more <= ONE for less, more in zip(young, older, strict=True))
    full = [weight == ONE for weight in young]
    assert full == [amount >= most and age >= MATURE for amount in ordered]


@given(AMOUNTS, st.integers(1, ONE))
def test_split_trust_weighs_at_most_its_proportion(pieces: list[int], most: int) -> None:
    """And one principal whose trust does not pass the cap weighs just that: it gains nothing by splitting."""
    together = sum(pieces)
    assume(most <= ONE // 2)
    assert sum(weights(pieces, most)) <= ONE * together // most
    if together <= most:
        assert weights([together], most) == [ONE * together // most]


@given(AMOUNTS, SHARES, st.data())
def test_a_part_of_trust_is_bounded_by_that_of_capped_trust(amounts: list[int], share: int, data: st.DataObject) -> None:
    """Whoever has trust X of a total T, in whatever pieces, has at most X of more than T / share - n of capped trust."""
    most = cap(array(amounts), share)
    assume(any(amounts))
    some = data.draw(st.lists(st.sampled_from(range(len(amounts))), unique=True))
    assert capped([amounts[i] for i in some], most) <= sum(amounts[i] for i in some)
    assert share * (capped(amounts, most) + len(amounts)) > sum(amounts)


@given(st.integers(0, ONE), st.integers(0, 9), st.integers(1, 9))
def test_in_a_topic_weight_grows_with_counterparties(weight: int, met: int, counterparties: int) -> None:
    assert in_topic(weight, 0, counterparties) == 0
    assert in_topic(weight, met, counterparties) <= in_topic(weight, met + 1, counterparties) <= weight
    assert (in_topic(weight, met, counterparties) == weight) or met < counterparties


@given(AMOUNTS, st.integers(0, ONE), st.integers(1, 2**16))
def test_audible_is_a_share_of_the_cap_and_never_nothing(amounts: list[int], most: int, share: int) -> None:
    assert eligible_counterparties(array(amounts), most, share).tolist() == [
        bool(amount) and share * amount >= most for amount in amounts
    ]


# Provenance


def provenance(names: str, flows: dict[tuple[str, str], int], anchors: list[str]) -> dict[str, str]:
    """The definition: layer by layer, each by its largest flow from the layer before."""
    labels = {name: name for name in names if name in anchors}
    layer = dict(labels)
    while layer:
        provenances = {}
        for name in names:
            sources = [(-flow, source) for (source, to), flow in flows.items() if flow and to == name and source in layer]
            if sources and name not in labels:
                provenances[name] = layer[min(sources)[1]]
        layer = provenances
        labels |= provenances
    return labels


@st.composite
def flowing(draw: st.DrawFn) -> tuple[str, dict[tuple[str, str], int], list[str]]:
    names = draw(st.permutations("abcdef"[: draw(st.integers(1, 6))]))
    split = draw(st.integers(0, len(names)))
    pairs = [(p, q) for p in names for q in names if p != q]
    amounts = draw(st.lists(st.sampled_from([0, 0, 1, 2, ONE]), min_size=len(pairs), max_size=len(pairs)))
    return "".join(sorted(names)), dict(zip(pairs, amounts, strict=True)), [*names[:split], "x"]


def clusters_of(names: str, flows: dict[tuple[str, str], int], anchors: list[str]) -> dict[str, str]:
    graph_of_flows = graph(names, dict.fromkeys(flows, ONE))
    ends = zip(graph_of_flows.source.tolist(), graph_of_flows.target.tolist(), strict=True)
    amounts = array([flows[graph_of_flows.principals[source], graph_of_flows.principals[target]] for source, target in ends])
    return clusters(graph_of_flows, amounts, anchors)


@given(flowing())
def test_clusters_are_what_their_definition_says(case: tuple[str, dict[tuple[str, str], int], list[str]]) -> None:
    clusters = clusters_of(*case)
    assert clusters == provenance(*case)
    assert list(clusters) == sorted(clusters)
    assert set(clusters.values()) == {name for name in case[2] if name in case[0]}


@given(flowing(), st.data())
def test_what_is_passed_back_moves_nobody_to_another_cluster(
    case: tuple[str, dict[tuple[str, str], int], list[str]], data: st.DataObject
) -> None:
    names, flows, anchors = case
    layers = {name: 0 for name in names if name in anchors}
    while further := {q for (p, q), flow in flows.items() if flow and p in layers and q not in layers}:
        layers |= dict.fromkeys(further, max(layers.values()) + 1)
    back = [(p, q) for p in layers for q in layers if p != q and layers[p] >= layers[q]]
    added = data.draw(st.dictionaries(st.sampled_from(back), st.integers(1, ONE))) if back else {}
    assert clusters_of(names, {**flows, **added}, anchors) == clusters_of(names, flows, anchors)
