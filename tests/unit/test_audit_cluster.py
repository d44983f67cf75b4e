"""An audit, and the closing of an epoch, whose signatures and counts are made on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster
from registries import Web, ballot, open_registry, publication, publish, settings_for
from signers import NOW, domain_signer
from simulated_registry import NAME, SimulatedRegistry, elected
from varied_logs import VariedLog, blobs

from treaty_client.audit.auditor import AuditOptions, AuditReport, audit
from treaty_client.audit.cluster import WorkerCluster
from treaty_consensus.audit import Replay
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_registry.log.entry import Logged
from treaty_registry.registry import Registry

NOWHERE = "tcp://127.0.0.1:1"


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a scheduler with two workers, which are processes of their own."""
    make: Any = LocalCluster  # it has no types
    with make(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster:
        yield cluster.scheduler_address


async def audited(registry: SimulatedRegistry, folder: Path, dask: str | None) -> AuditReport:
    options = AuditOptions(dask=dask)
    return await audit(NAME, folder, folder.parent / "evidence", registry.network(), progress=lambda *_: None, options=options)


@pytest.mark.deep
async def test_a_cluster_finds_what_one_process_finds(tmp_path: Path, scheduler: str) -> None:
    registry = elected()
    alone, spread = [await audited(registry, tmp_path / name, dask) for name, dask in (("a", None), ("b", scheduler))]
    assert alone == spread
    # What does not verify is found in the same place, with the same words.
    registry.leaves[-3] = registry.leaves[-3].replace(b'"sig":"', b'"sig":"AAAA', 1)
    refused = []
    for name, dask in (("c", None), ("d", scheduler)):
        with pytest.raises(TreatyError) as error:
            await audited(registry, tmp_path / name, dask)
        refused.append((error.value.code, error.value.message))
    assert refused[0] == refused[1]


@pytest.mark.deep
async def test_a_cluster_that_cannot_be_reached_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as refused:
        await audited(elected(), tmp_path / "mirror", NOWHERE)
    assert refused.value.code == "audit.failed"


def test_what_a_worker_raises_is_told_of(scheduler: str) -> None:
    with WorkerCluster(scheduler) as cluster:
        assert cluster.each(abs, [-1, 2, -3]) == [1, 2, 3]
        with pytest.raises(Unavailable) as refused:
            cluster.each(int, ["x", "y"])
    assert refused.value.code == "audit.failed"


@pytest.mark.deep
def test_the_topics_of_an_epoch_are_counted_by_the_workers(scheduler: str) -> None:
    log = VariedLog(1)
    log.fill(5, actions=34)
    counts: list[int] = []
    with WorkerCluster(scheduler) as cluster:

        def each(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
            counts.append(len(items))
            return cluster.each(function, items)

        replay = Replay(lambda digest: blobs()[digest], each=each)
        for leaf in log.leaves:
            replay.append(leaf)  # raises when a decision differs by a byte
    assert max(counts) > 1


@pytest.mark.deep
@pytest.mark.sample(1)
@pytest.mark.parametrize("reached", [True, False])
async def test_an_epoch_is_closed_with_the_cluster_and_without_it(
    tmp_path: Path, database: str, web: Web, scheduler: str, reached: bool
) -> None:
    settings = replace(settings_for(tmp_path / "registry", database), dask=scheduler if reached else NOWHERE)
    voters = [domain_signer(f"voter-{number}.example") for number in range(3)]
    web.serve(*voters)
    async with Registry.open(settings, clock=lambda: datetime.fromtimestamp(NOW, UTC), resolve=web.resolve) as registry:
        for number in range(3):
            statement = publication(voters[0], name=f"protocol-{number}", topic=f"shop/topic-{number}")
            await publish(registry, voters[0], statement)
            for voter in voters:
                body = ballot(registry, 0, statement.body.document.sha256, topic=statement.body.topic)
                (outcome,) = await registry.submit([voter.statement(body).leaf])
                assert isinstance(outcome, Logged), outcome
        decided = await registry.decide()
        assert [item.decision.topic for item in decided] == ["shop/topic-0"]
        size = registry.head.size
    # The auditor of the registry recomputes the same bytes by itself.
    async with open_registry(tmp_path / "registry", database, web) as again:
        assert again.head.size == size
