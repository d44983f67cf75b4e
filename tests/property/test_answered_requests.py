"""Requests counted in plain numbers are the same metrics as those of prometheus_client's own counter and histogram."""

from __future__ import annotations

from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from treaty_registry.telemetry.measures import AnsweredRequests

# Powers of two, whose sums are the same in every order.
BOUNDS = (2**-11, 0.25, 1, 10)
ANSWERS = st.tuples(
    st.sampled_from(["log", "topics"]),
    st.sampled_from(["GET", "POST"]),
    st.sampled_from([200, 429]),
    st.sampled_from([0.0, 2**-11, 2**-10, 0.25, 1.0, 9.5, 10.0, 10.5, 1000.0]),
)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(ANSWERS, max_size=30), st.integers(0, 3))
def test_they_are_those_of_prometheus_client(answers: list[tuple[str, str, int, float]], under_way: int) -> None:
    plain, reference = CollectorRegistry(), CollectorRegistry()
    answered_requests = AnsweredRequests(BOUNDS)
    plain.register(answered_requests)
    requests = Counter("treaty_http_requests", "Answered requests.", ["group", "method", "status"], registry=reference)
    text = "Seconds from the head of a request to the last byte of its answer."
    seconds = Histogram("treaty_http_request_seconds", text, ["group"], buckets=BOUNDS, registry=reference)
    for group, method, status, took in answers:
        answered_requests.count(group, method, status, took)
        requests.labels(group, method, str(status)).inc()
        seconds.labels(group).observe(took)
    answered_requests.under_way = under_way
    ours = _lines(plain)
    gauge = "treaty_http_requests_in_flight"
    assert ours - _lines(reference) == {
        f"# HELP {gauge} Requests that are being answered.",
        f"# TYPE {gauge} gauge",
        f"{gauge} {float(under_way)}",
    }
    assert {line for line in _lines(reference) - ours if "_created" not in line} == set()


def _lines(registry: CollectorRegistry) -> set[str]:
    return set(generate_latest(registry).decode().splitlines())
