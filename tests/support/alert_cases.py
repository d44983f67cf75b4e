"""Samples of a registry of three processes with a mirror, in which one thing fails for a while; and the alerts that then fire.

The series of each case are those of processes that work, but for the ones that the fault changes. So a case also shows that the
processes that work do not hide the fault of another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STEP = 15
"""Seconds between two samples."""
BEGIN, END, LAST = 20, 120, 370
"""The samples at which a fault begins and ends, and the last one."""
_NODES = ("a", "b", "c")
_LEADER = "a"
_DAY = 86_400


def _series(name: str, instance: str, job: str = "treaty", **labels: str) -> str:
    pairs = ", ".join(f'{key}="{value}"' for key, value in {"job": job, "instance": instance, **labels}.items())
    return f"{name}{{{pairs}}}"


def _working() -> dict[str, list[float]]:
    """Return the samples of processes that work: `a` leads, `b` and `c` follow, `m` is a mirror."""
    series_of: dict[str, list[float]] = {}

    def steady(series: str, value: float) -> None:
        series_of[series] = [value] * (LAST + 1)

    def rising(series: str, step: float) -> None:
        series_of[series] = [step * number for number in range(LAST + 1)]

    for node in _NODES:
        steady(_series("up", node), 1)
        steady(_series("treaty_leader", node), node == _LEADER)
        for name, value in (("checkpoint_age_seconds", 30), ("clock_is_right", 1), ("signed_elsewhere", 0), ("write_fault", 0)):
            steady(_series(f"treaty_{name}", node), value)
        steady(_series("treaty_event_loop_answers", node), 1)
        rising(_series("treaty_http_requests_total", node, status="200"), 600)
        for status in ("429", "500", "503"):
            steady(_series("treaty_http_requests_total", node, status=status), 0)
        for name in ("database_outages", "forks"):
            steady(_series(f"treaty_{name}_total", node), 0)
        for code in ("disk.full", "log.unavailable"):
            steady(_series("treaty_refusals_total", node, code=code), 0)
        for store in ("blobs", "head"):
            steady(_series("treaty_store_outages_total", node, store=store), 0)
        for outcome in ("logged", "failed"):
            rising(_series("treaty_statements_total", node, outcome=outcome), 60 * (outcome == "logged"))
        steady(_series("treaty_leader_take_overs_total", node, outcome="led"), 1)
        steady(_series("treaty_content_checks_total", node, outcome="lost"), 0)
        for disk in ("blobs", "database"):
            series_of[_series("treaty_disk_free_bytes", node, disk=disk)] = [5e10 - 1e6 * number for number in range(LAST + 1)]
            steady(_series("treaty_disk_full", node, disk=disk), 0)
        for queue in ("admission", "sequencer"):
            steady(_series("treaty_queue_depth", node, queue=queue), 3)
        steady(_series("treaty_capacity_statements_per_second", node), 200)
        steady(_series("treaty_certificate_end_seconds", node, certificate="https"), 60 * _DAY)
        steady(_series("treaty_backup_time_seconds", node), 0)
        steady(_series("process_open_fds", node), 100)
        steady(_series("process_max_fds", node), 1000)
        for histogram, labels in _HISTOGRAMS.items():
            for bound in ("0.5", "1", "5", "+Inf"):
                rising(_series(f"treaty_{histogram}_bucket", node, **labels, le=bound), 60)
    for witness in ("v", "w"):
        steady(_series("treaty_witness_failing", _LEADER, witness=witness), 0)
        steady(_series("treaty_witness_alarms_total", _LEADER, witness=witness, code="witness.history"), 0)
    steady(_series("treaty_epoch_lag_seconds", _LEADER), 0)
    rising(_series("treaty_tiles_time_seconds", _LEADER), STEP)
    steady(_series("up", "m", "treaty-mirror"), 1)
    # One failed step of a mirror is no alert.
    series_of[_series("treaty_mirror_failing", "m", "treaty-mirror")] = [float(number == 3) for number in range(LAST + 1)]
    steady(_series("treaty_mirror_stopped", "m", "treaty-mirror"), 0)
    steady(_series("treaty_forks_total", "m", "treaty-mirror"), 0)
    return series_of


_HISTOGRAMS: Mapping[str, dict[str, str]] = {
    "commit_seconds": {},
    "http_request_seconds": {"group": "tiles"},
    "event_loop_delay_seconds": {},
    "database_wait_seconds": {},
}


@dataclass(frozen=True)
class Fault:
    """A series while the fault lasts: `value`, which grows by `step` with each sample. A counter keeps its value after it.
    `new`: the process started with the fault, so there are no samples before."""

    series: str
    value: float = 0
    step: float = 0
    new: bool = False

    def apply(self, samples: list[float]) -> list[float | None]:
        """Return the samples of the series with the fault in them."""
        fault: list[float | None] = [self.value + self.step * number for number in range(1, END - BEGIN + 1)]
        after: list[float | None] = [*samples[END:]]
        name = self.series.partition("{")[0]
        if name.endswith(("_total", "_bucket")):
            before, reached = samples[BEGIN - 1], fault[-1] or 0
            fault = [before + (each or 0) for each in fault]
            # As fast as before the fault.
            after = [before + reached + (each - samples[END - 1]) for each in samples[END:]]
        before_fault: list[float | None] = [None] * BEGIN if self.new else [*samples[:BEGIN]]
        return [*before_fault, *fault, *after]


@dataclass(frozen=True)
class Case:
    """`fires`: how many alerts of each name fire at the end of the fault, and no others. `ends`: minutes after the mend by which
    they have ended."""

    name: str
    faults: tuple[Fault, ...]
    fires: Mapping[str, int]
    ends: float = 2
    absent: tuple[str, ...] = field(default=())

    def test(self) -> dict[str, Any]:
        """Return the case as promtool has it."""
        samples: dict[str, list[float] | list[float | None]] = {**_working()}
        for each in self.faults:
            assert each.series in samples, each.series
            samples[each.series] = each.apply(_working()[each.series])
        expr = 'count by (alertname) (ALERTS{alertstate="firing", alertname!="TreatyWatchdog"})'
        firing = [{"labels": f'{{alertname="{name}"}}', "value": count} for name, count in self.fires.items()]
        mended = END * STEP + self.ends * 60
        return {
            "name": self.name,
            "interval": f"{STEP}s",
            "input_series": [
                {"series": series, "values": _written(values[: int(mended / STEP) + 2])}
                for series, values in samples.items()
                if not series.startswith(self.absent or "-")
            ],
            "promql_expr_test": [
                {"expr": expr, "eval_time": f"{BEGIN * STEP - STEP}s", "exp_samples": firing if self.absent else []},
                {"expr": expr, "eval_time": f"{END * STEP - STEP}s", "exp_samples": firing},
                *([] if self.absent else [{"expr": expr, "eval_time": f"{mended:.0f}s", "exp_samples": []}]),
            ],
        }


def _written(values: list[float] | list[float | None]) -> str:
    return " ".join("_" if value is None else f"{value:.10g}" for value in values)


def _each(name: str, value: float = 0, step: float = 0, nodes: tuple[str, ...] = _NODES, **labels: str) -> tuple[Fault, ...]:
    return tuple(Fault(_series(name, node, **labels), value, step) for node in nodes)


def _slow(histogram: str, nodes: tuple[str, ...] = ("a",)) -> tuple[Fault, ...]:
    labels = _HISTOGRAMS[histogram]
    return tuple(
        Fault(_series(f"treaty_{histogram}_bucket", node, **labels, le=bound), step=step)
        for node in nodes
        for bound, step in (("0.5", 5.0), ("1", 10.0), ("5", 60.0), ("+Inf", 60.0))
    )


_NO_LEADER = _each("treaty_leader", 0, nodes=("a",))
_OLD = _each("treaty_checkpoint_age_seconds", 30, STEP)
_MIRROR = {"instance": "m", "job": "treaty-mirror"}
_REFUSED = _each("treaty_http_requests_total", step=600, status="503")

CASES = (
    Case("a registry that works", (), {}),
    Case("nothing is scraped", (), {"TreatyAbsent": 1}, absent=("up", "treaty", "process")),
    Case("one process of three is down", (Fault(_series("up", "b")),), {"TreatyDown": 1}),
    Case("no process leads", (*_NO_LEADER, *_OLD), {"TreatyNoLeader": 1, "TreatyCheckpointStale": 1}),
    Case("two processes lead", _each("treaty_leader", 1, nodes=("b",)), {"TreatyTwoLeaders": 1}),
    Case(
        "the lead changes often",
        _each("treaty_leader_take_overs_total", step=0.2, nodes=("b", "c"), outcome="led"),
        {"TreatyLeadershipUnstable": 1},
        ends=15,
    ),
    Case("no process renews the head", _OLD, {"TreatyCheckpointStale": 1}),
    Case("a follower has an old head", _each("treaty_checkpoint_age_seconds", 30, STEP, ("c",)), {"TreatyNodeBehind": 1}),
    Case("the last write of the leader failed", _each("treaty_write_fault", 1, nodes=("a",)), {"TreatyWritesFail": 1}),
    Case(
        "statements fail at the leader",
        _each("treaty_statements_total", step=15, nodes=("a",), outcome="failed"),
        {"TreatyWritesFail": 1},
    ),
    Case(
        "a node cannot confirm statements",
        _each("treaty_refusals_total", step=15, nodes=("c",), code="log.unavailable"),
        {"TreatyWritesFail": 1},
    ),
    Case("the clock of one process is wrong", _each("treaty_clock_is_right", 0, nodes=("b",)), {"TreatyClockWrong": 1}),
    Case("another process signs", _each("treaty_signed_elsewhere", 1, nodes=("a",)), {"TreatySignedElsewhere": 1}),
    Case("commits are slow", _slow("commit_seconds"), {"TreatyCommitSlow": 1}, ends=5),
    Case("the epoch is late", _each("treaty_epoch_lag_seconds", 0, STEP, ("a",)), {"TreatyEpochLate": 1}),
    Case("a witness fails", _each("treaty_witness_failing", 1, nodes=("a",), witness="w"), {"TreatyWitnessFailing": 1}),
    Case(
        "all witnesses fail",
        (
            *_each("treaty_witness_failing", 1, nodes=("a",), witness="w"),
            *_each("treaty_witness_failing", 1, nodes=("a",), witness="v"),
        ),
        {"TreatyWitnessFailing": 2, "TreatyUnwitnessed": 1},
    ),
    Case(
        "a witness knows another history",
        _each("treaty_witness_alarms_total", step=1, nodes=("a",), witness="w", code="witness.history"),
        {"TreatyWitnessDisagrees": 1},
        ends=11,
    ),
    Case(
        "a process has a proof of a fork", _each("treaty_forks_total", step=0.01, nodes=("c",)), {"TreatyForkProved": 1}, ends=61
    ),
    Case(
        "a mirror writes a proof of a fork",
        (Fault(_series("treaty_forks_total", **_MIRROR), 1, new=True), Fault(_series("treaty_mirror_stopped", **_MIRROR), 1)),
        {"TreatyForkProved": 1, "TreatyMirrorStopped": 1},
        ends=61,
    ),
    Case(
        "one process answers with internal errors",
        _each("treaty_http_requests_total", step=60, nodes=("b",), status="500"),
        {"TreatyErrors": 1},
    ),
    Case("senders are refused", _each("treaty_http_requests_total", step=600, nodes=("b",), status="429"), {"TreatySheds": 1}),
    Case("reads are slow", _slow("http_request_seconds"), {"TreatyReadsSlow": 1}, ends=5),
    Case("a queue is long", _each("treaty_queue_depth", 600, nodes=("b",), queue="admission"), {"TreatyQueueLong": 1}),
    Case("a loop does not answer", _each("treaty_event_loop_answers", 0, nodes=("b",)), {"TreatyLoopBlocked": 1}),
    Case("a loop is late", _slow("event_loop_delay_seconds"), {"TreatyLoopBlocked": 1}),
    Case(
        "PostgreSQL hangs",
        (
            *_each("treaty_database_outages_total", step=3),
            *_NO_LEADER,
            *_OLD,
            *_each("treaty_write_fault", 1, nodes=("a",)),
            *_REFUSED,
        ),
        {
            "TreatyDatabaseSilent": 3,
            "TreatyNoLeader": 1,
            "TreatyCheckpointStale": 1,
            "TreatyWritesFail": 1,
            "TreatySheds": 1,
        },
    ),
    Case(
        "one process does not reach PostgreSQL",
        _each("treaty_database_outages_total", step=3, nodes=("c",)),
        {"TreatyDatabaseSilent": 1},
    ),
    Case(
        "the object store of the head is down",
        (*_each("treaty_store_outages_total", step=1.5, store="head"), *_NO_LEADER, *_OLD),
        {"TreatyStoreSilent": 1, "TreatyNoLeader": 1, "TreatyCheckpointStale": 1},
    ),
    Case(
        "the object store of the blobs is down",
        _each("treaty_store_outages_total", step=1.5, nodes=("b",), store="blobs"),
        {"TreatyStoreSilent": 1},
    ),
    Case("the pool has no connection", _slow("database_wait_seconds"), {"TreatyPoolExhausted": 1}, ends=3),
    Case(
        "workers are lost",
        _each("treaty_content_checks_total", step=2, nodes=("b",), outcome="lost"),
        {"TreatyWorkersLost": 1},
        ends=15,
    ),
    Case(
        "a disk is full",
        (
            *_each("treaty_disk_full", 1, nodes=("a",), disk="database"),
            *_each("treaty_disk_free_bytes", 1e7, nodes=("a",), disk="database"),
        ),
        {"TreatyDiskFull": 1, "TreatyDiskLow": 1},
    ),
    Case(
        "large writes are refused", _each("treaty_refusals_total", step=1, nodes=("b",), code="disk.full"), {"TreatyDiskFull": 1}
    ),
    Case("a disk is low", _each("treaty_disk_free_bytes", 9e8, nodes=("c",), disk="blobs"), {"TreatyDiskLow": 1}),
    Case("descriptors run out", _each("process_open_fds", 900, nodes=("c",)), {"TreatyDescriptorsLow": 1}),
    Case(
        "a certificate ends in a week",
        _each("treaty_certificate_end_seconds", 7 * _DAY, nodes=("b",), certificate="https"),
        {"TreatyCertificateOld": 1},
    ),
    Case(
        "a certificate ends tomorrow",
        _each("treaty_certificate_end_seconds", _DAY, nodes=("b",), certificate="https"),
        {"TreatyCertificateOld": 1, "TreatyCertificateEnds": 1},
    ),
    Case("no backup was made", _each("treaty_backup_time_seconds", -27 * 3600), {"TreatyBackupOld": 1}),
    Case("the copy of the tiles stays behind", (Fault(_series("treaty_tiles_time_seconds", "a")),), {"TreatyTilesOld": 1}),
    Case("a mirror does not follow", (Fault(_series("treaty_mirror_failing", **_MIRROR), 1),), {"TreatyMirrorFailing": 1}),
    Case("a mirror stops", (Fault(_series("treaty_mirror_stopped", **_MIRROR), 1),), {"TreatyMirrorStopped": 1}),
)

SLOWLY_FULL = {
    "name": "a disk is full within a day",
    "interval": "4m",
    "input_series": [{"series": _series("treaty_disk_free_bytes", "a", disk="database"), "values": "50000000000-200000000x130"}],
    "promql_expr_test": [
        {"expr": 'count(ALERTS{alertname="TreatyDiskLow", alertstate="firing"})', "eval_time": "5h", "exp_samples": []},
        {
            "expr": 'count(ALERTS{alertname="TreatyDiskLow", alertstate="firing"})',
            "eval_time": "8h",
            "exp_samples": [{"labels": "{}", "value": 1}],
        },
    ],
}
"""The trend is known after six hours alone."""
