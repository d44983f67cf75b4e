"""The score of a protocol by hand, what parameters are agreed to, and when a session is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from flow_peers import DELEGATION, SHARING, delegation, keeper, registry, sharing

from treaty_agent.sessions import agreements
from treaty_agent.sessions.agreements import FlowHistory
from treaty_anp.flow_profile.actions import Agreed
from treaty_anp.flow_profile.adaptation import Adaptation, Change, Thresholds, adjust
from treaty_anp.flow_profile.capabilities import FlowRequest, PeerCapabilities, ProtocolOffer, check_common
from treaty_anp.flow_profile.parameters import (
    Choice,
    Fixed,
    Range,
    Rules,
    Unsupported,
    counter,
    json_equal,
    next_offer,
    preferred,
    respond,
)
from treaty_anp.flow_profile.payloads import CapabilitiesExchange, ContextInfo, Metrics, Supported, parse_payload
from treaty_anp.flow_profile.strategy import WEIGHTS, Evaluation, StrategyEngine, announce
from treaty_consensus.errors import Conflict, Malformed, Refused, TooLarge, TreatyError

VECTORS = Path(__file__).parents[1] / "vectors" / "flow"


def example(number: str) -> CapabilitiesExchange:
    value = json.loads((VECTORS / f"{number}-capabilities-exchange.json").read_text())
    exchange = parse_payload("capabilities-exchange", value["payload"])
    assert isinstance(exchange, CapabilitiesExchange)
    return exchange


def judged(own: Supported, theirs: Supported, goal: FlowRequest | None = None, here: ContextInfo | None = None) -> Evaluation:
    evaluation = StrategyEngine().evaluate(own, theirs, goal or FlowRequest("x"), here or ContextInfo(), PeerCapabilities())
    assert evaluation is not None
    return evaluation


def supported(capabilities: tuple[str, ...] = (), preference: float = 0.5, metrics: Metrics | None = None) -> Supported:
    return Supported(SHARING, "1.0", capabilities, preference, metrics)


# The score


def test_001_08_the_weights_are_the_sources() -> None:
    assert WEIGHTS == {"capability": 30, "task": 30, "performance": 20, "preference": 15, "context": 5}


def test_001_08_the_sources_example_by_hand() -> None:
    """CapabilityMatch 2/4; TaskAlignment 1; PerformanceMatch (1/2 + 1 + 1/2)/3 = 2/3; PreferenceScore (0.9 + 0.8)/2 = 0.85;
    ContextualFit (1/2 + 1/2 + (1 + 1/2 + 1/2 + 1/2)/4)/3 = 13/24. 0.15 + 0.3 + 0.13333 + 0.1275 + 0.02708 = 0.73792."""
    theirs, mine = example("02"), example("03")
    peer = PeerCapabilities()
    peer.learn(theirs)
    assert mine.context_info is not None
    goal = FlowRequest("data-exchange", requirements=mine.task_requirements or {})
    evaluation = StrategyEngine().evaluate(mine.supported_protocols[0], peer.protocols[SHARING], goal, mine.context_info, peer)
    assert evaluation == Evaluation(
        SHARING,
        7379,
        ("query", "stream"),
        10_000,
        6667,
        5417,
        "capability 0.5, task 1, performance 0.6667, preference 0.85, context 0.5417",
    )
    required = FlowRequest("data-exchange", required=("query", "stream"), requirements=goal.requirements)
    with_required = StrategyEngine().evaluate(
        mine.supported_protocols[0], peer.protocols[SHARING], required, mine.context_info, peer
    )
    assert with_required is not None
    assert with_required.score == 8879


def test_001_08_each_sub_score_has_its_weight() -> None:
    best = Metrics("low", "high", "high", "high")
    worst = Metrics("high", "low", "low", "low")
    here = ContextInfo("high", "stable", ("efficiency",))
    there = PeerCapabilities(context=ContextInfo("high", "stable"))
    full = StrategyEngine().evaluate(supported(("a",), 1, best), supported(("a",), 1, best), FlowRequest("x"), here, there)
    assert full is not None
    assert (full.score, full.task, full.performance, full.context) == (10_000,) * 4
    assert judged(supported(("a", "b")), supported(("b", "c"))).score - judged(supported(("a",)), supported(("b",))).score == 1000
    assert judged(supported(preference=1), supported()).score - judged(supported(preference=0), supported()).score == 750
    needs = {"dataVolume": "large", "timeConstraint": "strict", "securityLevel": "high"}
    assert judged(supported(metrics=worst), supported(metrics=best), FlowRequest("x", requirements=needs)).task == 0
    assert judged(supported(metrics=best), supported(metrics=best), FlowRequest("x", requirements=needs)).task == 10_000
    assert judged(supported(), supported(), FlowRequest("x", requirements=needs)).task == 5000
    assert judged(supported(metrics=worst), supported(metrics=best)).performance == 0


@pytest.mark.parametrize(
    ("requirements", "task"),
    [
        ({}, 10_000),
        ({"dataVolume": "huge", "mood": "good"}, 10_000),
        ({"dataVolume": "small"}, 10_000),
        ({"dataVolume": "medium"}, 10_000),
        ({"dataVolume": "large"}, 5000),
        ({"dataVolume": "large", "timeConstraint": "relaxed"}, 7500),
        ({"dataVolume": "large", "timeConstraint": "relaxed", "securityLevel": "standard"}, 8333),
    ],
)
def test_001_08_what_a_task_needs_against_what_there_is(requirements: dict[str, str], task: int) -> None:
    assert judged(supported(), supported(), FlowRequest("x", requirements=requirements)).task == task


def test_001_08_a_match_covers_the_required_capabilities() -> None:
    goal = FlowRequest("x", required=("query",))
    assert (
        StrategyEngine().evaluate(supported(("query",)), supported(("stream",)), goal, ContextInfo(), PeerCapabilities()) is None
    )
    evaluation = judged(supported(("query", "a")), supported(("query", "b")), goal)
    assert evaluation.score == judged(supported(("query",)), supported(("query",))).score
    assert evaluation.capabilities == ("query",)


def test_001_08_both_sides_count_alike() -> None:
    one, other = supported(("a", "b"), 0.3, Metrics("low", "low")), supported(("b",), 0.95, Metrics("high", "high", "low"))
    assert judged(one, other) == judged(other, one)


def test_001_08_and_32_a_tie_goes_to_the_id_that_sorts_first() -> None:
    tied = [Evaluation(f"anp:protocol:{name}:1.0", 5000, (), 0, 0, 0) for name in "bca"]
    better = Evaluation("anp:protocol:z:1.0", 5001, (), 0, 0, 0)
    assert [evaluation.id[-5] for evaluation in StrategyEngine().rank([*tied, better])] == ["z", "a", "b", "c"]


def test_001_03_an_evaluation_without_matches_has_no_metrics() -> None:
    assert announce([]).evaluation_metrics is None
    message = announce([Evaluation(SHARING, 8500, ("query",), 8800, 8200, 7500)])
    assert message.matched_protocols[0].compatibility_score == 0.85
    assert message.evaluation_metrics is not None
    metrics = message.evaluation_metrics
    assert (metrics.task_alignment, metrics.performance_estimate, metrics.resource_efficiency) == (0.88, 0.82, 0.75)


# Parameters


def test_001_05_rules_move_numbers_and_keep_choices() -> None:
    rules: Rules = {"size": Range(10, 20), "format": Choice(("gzip", "none"))}
    assert preferred(rules) == {"size": 20, "format": "gzip"}
    assert respond(rules, {"size": 99, "format": "none", "other": 1}) == {"size": 20, "format": "none"}
    assert counter(rules, {"size": 20}, {"size": 5, "unasked": 1}) == {"size": 10}
    for bad in ({"size": "20"}, {"size": True}, {"size": None}, {"format": "zip"}, {"format": ["gzip"]}):
        with pytest.raises(Unsupported) as failure:
            respond(rules, bad)
        assert failure.value.details["parameter"] in bad


def test_001_05_an_unnamed_choice_becomes_the_nearest_beyond() -> None:
    sizes: Rules = {"size": Choice((16, 1, 8, 4))}
    assert counter(sizes, {"size": 16}, {"size": 8}) == {"size": 8}
    assert counter(sizes, {"size": 16}, {"size": 7}) == {"size": 4}
    assert counter(sizes, {"size": 1}, {"size": 5}) == {"size": 8}
    for answered in (0, 17, "7", True):  # beyond all of them, or no number
        with pytest.raises(Unsupported):
            counter(sizes, {"size": 1 if answered == 17 else 16}, {"size": answered})


def test_001_16_a_refused_parameter_gets_a_common_value() -> None:
    rules: Rules = {"level": Choice(("a", "b", "c")), "size": Range(10, 20)}
    request = {"level": "a", "size": 20}
    assert next_offer(rules, request, {"parameter": "level", "supported": ["x", "c"]}) == {"level": "c", "size": 20}
    assert next_offer(rules, request, {"parameter": "level", "supported": ["x"]}) == {"size": 20}
    assert next_offer(rules, request, {"parameter": "size", "supported": {"minimum": 1, "maximum": 15}}) == {
        "level": "a",
        "size": 15,
    }
    for details in ({}, {"parameter": 1}, {"parameter": "other", "supported": []}):
        assert next_offer(rules, request, details) is None
    assert next_offer({"level": Fixed("a", required=True)}, {"level": "a"}, {"parameter": "level", "supported": ["b"]}) is None


def test_one_json_value_is_another_only_of_the_same_kind() -> None:
    assert json_equal({"a": [1, 2.0]}, {"a": [1.0, 2]})
    for one, other in (({"a": 1}, {"a": True}), ([0], [False]), ([1], [1, 1]), ({"a": 1}, {"b": 1}), ("1", 1), (None, False)):
        assert not json_equal(one, other)


# Registry and capabilities


def test_001_27_the_registry_is_bounded_and_has_each_id_once() -> None:
    offers = registry(sharing())
    with pytest.raises(Conflict):
        offers.add(sharing())
    offers.remove(SHARING)
    offers.remove(SHARING)
    assert (len(offers), offers.get(SHARING)) == (0, None)
    for n in range(64):
        offers.add(ProtocolOffer(f"anp:protocol:p{n}:1.0"))
    with pytest.raises(TooLarge):
        offers.add(sharing())
    assert [offer.id for offer in offers][:2] == ["anp:protocol:p0:1.0", "anp:protocol:p1:1.0"]
    for bad in ({"id": "x"}, {"id": SHARING, "preference": 1.5}, {"id": SHARING, "uri": "https://x"}):
        with pytest.raises(Malformed):
            ProtocolOffer(**bad)


def test_001_30_the_capability_manager_tells_what_is_asked_for() -> None:
    manager = keeper(registry(sharing(), delegation()), ContextInfo("low"))
    assert [entry.id for entry in manager.exchange().supported_protocols] == [SHARING, DELEGATION]
    assert manager.exchange().context_info == ContextInfo("low")
    assert [entry.id for entry in manager.exchange([SHARING]).supported_protocols] == [SHARING]
    assert manager.details(["anp:protocol:none:1.0"]).supported_protocols == ()
    assert manager.details([DELEGATION]).supported_protocols[0].capabilities == ("assign",)


def test_001_26_a_summary_withdraws_no_details() -> None:
    peer = PeerCapabilities()
    peer.learn(CapabilitiesExchange(supported_protocols=(Supported(SHARING, "1.0"),)))
    assert peer.lacking([SHARING]) == (SHARING,)
    peer.learn(CapabilitiesExchange(supported_protocols=(supported(("query",)),)))
    peer.learn(CapabilitiesExchange(supported_protocols=(Supported(SHARING, "1.0"),)))
    assert peer.lacking([SHARING]) == ()
    assert peer.protocols[SHARING].capabilities == ("query",)


def test_001_15_a_name_in_common_makes_a_conflict_of_versions() -> None:
    cases = (
        ([SHARING.replace("1.0", "1.1")], "flow.version-conflict"),
        ([DELEGATION], "session.no-common-protocol"),
        (["x"], "session.no-common-protocol"),
    )
    for theirs, code in cases:
        with pytest.raises(Refused) as failure:
            check_common([SHARING], theirs)
        assert failure.value.code == code
    check_common([SHARING], [DELEGATION, SHARING])


# Experience


def test_001_19_success_with_a_peer_outlives_the_process(tmp_path: Path) -> None:
    agreed = Agreed(SHARING, {"ratio": 0.5, "size": 1}, {"x": True}, "https://r.example", "ab")
    FlowHistory(tmp_path).remember("did:x:1", "buy", agreed)
    history = FlowHistory(tmp_path)
    memory = history.recall("did:x:1", "buy", [SHARING])
    assert memory is not None
    assert (memory.agreed, memory.confirmed) == (agreed, True)
    assert history.recall("did:x:1", "sell", [SHARING]) is None
    assert history.recall("did:x:1", "buy", [DELEGATION]) is None
    history.forget("did:x:1", "buy")
    assert FlowHistory(tmp_path).recall("did:x:1", "buy", [SHARING]) is None


def test_001_20_the_most_successful_protocol_is_predicted(tmp_path: Path) -> None:
    history = FlowHistory(tmp_path)
    history.remember("did:x:1", "buy", Agreed(SHARING))
    assert history.predict("did:x:9", "buy", [SHARING, DELEGATION]) is None
    history.remember("did:x:2", "buy", Agreed(SHARING))
    for _ in range(3):
        history.remember("did:x:3", "buy", Agreed(DELEGATION))
    assert history.predict("did:x:9", "buy", [SHARING, DELEGATION]) == DELEGATION
    assert history.predict("did:x:9", "buy", [SHARING]) == SHARING
    assert history.predict("did:x:3", "sell", [DELEGATION]) == DELEGATION
    assert history.predict("did:x:9", "sell", [SHARING, DELEGATION]) is None


def test_an_unreadable_history_starts_anew_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreements, "MAX_AGREEMENTS", 3)
    (tmp_path / "flow-history.json").write_text("{")
    history = FlowHistory(tmp_path)
    for n in range(4):
        history.remember(f"did:x:{n}", "buy", Agreed(SHARING))
    again = FlowHistory(tmp_path)
    assert again.recall("did:x:0", "buy", [SHARING]) is None
    assert again.recall("did:x:1", "buy", [SHARING]) is not None


# Adaptation


def watched() -> Adaptation:
    return Adaptation(Thresholds(latency=1.0, failures=0.25, samples=4, window=8, patience=1, pause=10.0))


def test_001_09_the_monitor_judges_by_the_last_calls() -> None:
    watcher = watched()
    for _ in range(3):
        watcher.record(9.0, True)
    assert watcher.finding() is None
    watcher.record(9.0, True)
    assert watcher.finding() == "slow"
    for _ in range(8):
        watcher.record(0.1, True)
    assert watcher.finding() is None
    for _ in range(3):
        watcher.record(0.1, False)
    assert watcher.finding() == "failing"


def slow(watcher: Adaptation) -> None:
    for _ in range(4):
        watcher.record(5.0, True)


def test_001_10_and_11_a_threshold_changes_parameters_first() -> None:
    watcher, offer = watched(), sharing(parameters={"chunkSize": Range(1000, 64_000), "responseTimeout": Range(1000, 60_000)})
    agreed, ranking = {"chunkSize": 64_000, "responseTimeout": 50_000}, [SHARING, DELEGATION]
    assert watcher.next_change(0, offer, agreed, ranking) is None
    slow(watcher)
    first = watcher.next_change(0, offer, agreed, ranking)
    assert first == Change("slow", parameters={"chunkSize": 32_000, "responseTimeout": 60_000})
    slow(watcher)
    assert watcher.next_change(9, offer, agreed, ranking) is None  # the change has to show first
    assert watcher.next_change(10, offer, agreed, ranking) == Change("slow", protocol=DELEGATION)
    slow(watcher)
    assert watcher.next_change(30, delegation(), {}, ranking) is None


def test_001_11_without_parameters_the_protocol_changes() -> None:
    watcher = watched()
    slow(watcher)
    assert watcher.next_change(0, sharing(), {}, [SHARING, DELEGATION]) == Change("slow", protocol=DELEGATION)


def test_001_11_whole_numbers_stay_whole_and_others_as_they_are() -> None:
    assert adjust("failing", {"chunkSize": 1, "maxMessageSize": 5, "mode": "x", "responseTimeout": True}) == {
        "chunkSize": 1,
        "maxMessageSize": 2,
        "mode": "x",
        "responseTimeout": True,
    }


def test_rules_that_cannot_hold_are_refused() -> None:
    for make in (lambda: Range(2, 1), lambda: Range(1, 2, 3), lambda: Choice(())):
        with pytest.raises(TreatyError) as failure:
            make()
        assert failure.value.code == "flow.offer"
