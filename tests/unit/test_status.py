"""`treaty-registry doctor`: each problem of a registry's state is named with a fix, and a healthy one has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from treaty_registry.status import DiskStatus, HeadStatus, RegistryStatus, WitnessStatus, failing, problems_of

NOW, DAY = 1_800_000_000, 86_400
HEAD = HeadStatus(10, NOW - 5)
HEALTHY = RegistryStatus(
    version="1",
    origin="registry.example",
    base_url="https://registry.example",
    now=NOW,
    ready="",
    reason="",
    fix="",
    leads=True,
    leader=None,
    signed=HEAD,
    published=HEAD,
    witnessed=HEAD,
    witnesses=[WitnessStatus("w.example", 10, NOW, "")],
    backup=NOW - 3600,
    certificates={"https": NOW + 60 * DAY},
    disks=[DiskStatus("database", "/data", 100 * 1024**3, 17 * 1024**2)],
    clock="",
    database_clock=0.1,
    queues={"admission": 0},
    epoch_lag=0,
    contact="abuse@registry.example",
    blocked=0,
    quotas=0,
)


def test_a_healthy_registry_has_no_problem() -> None:
    assert problems_of(HEALTHY) == []
    assert problems_of(replace(HEALTHY, leads=False, leader="http://10.0.0.2:8080")) == []


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"ready": "disk.full", "reason": "The disk is full."}, "disk.full"),
        ({"clock": "log.clock"}, "clock"),
        ({"leads": False, "leader": ""}, "leads"),
        ({"database_clock": None}, "PostgreSQL"),
        ({"database_clock": -60.0}, "60 seconds"),
        ({"queues": {"admission": 5000}}, "5000 statements"),
        ({"published": HeadStatus(9, NOW - 1000)}, "published head"),
        ({"witnesses": [WitnessStatus("w.example", 3, NOW, "witness.unreachable")]}, "w.example"),
        ({"witnesses": [WitnessStatus("w.example", 3, NOW, "witness.history")]}, "w.example"),
        ({"epoch_lag": 7300.0}, "2.0 hours late"),
        ({"disks": [DiskStatus("blobs", "/data/blobs", 1024**3, 1024**2)]}, "/data/blobs"),
        ({"certificates": {"https": NOW + DAY}}, "1 days"),
        ({"certificates": {"https": 0}}, "0 days"),
        ({"backup": None}, "No backup"),
        ({"backup": NOW - 3 * DAY}, "72 hours"),
    ],
)
def test_a_problem_is_named_with_its_fix(changed: dict[str, Any], word: str) -> None:
    (problem,) = problems_of(replace(HEALTHY, **changed))
    assert word in problem.what and problem.fix
    assert failing([problem])


@pytest.mark.parametrize("changed", [{"witnesses": []}, {"contact": None}])
def test_what_is_missing_is_an_advice(changed: dict[str, Any]) -> None:
    (problem,) = problems_of(replace(HEALTHY, **changed))
    assert (problem.kind, failing([problem])) == ("advice", False)
