"""Fault: a write that ends at each of its steps in turn. What is found on disk afterwards is what a crash at that moment
leaves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from registries import Web, grant, log, open_registry
from signers import ORIGIN, key_signer

from treaty_consensus.log.merkle import verify_consistency
from treaty_consensus.log.proof import Receipt
from treaty_registry import projection
from treaty_registry.log import tables as log_tables
from treaty_registry.log.checkpoints import CheckpointSigner
from treaty_registry.log.clock import SignedTime
from treaty_registry.log.entry import Logged
from treaty_registry.log.fence import Fence, read_fence
from treaty_registry.storage.postgres import connect

BEFORE, INTERRUPTED, AFTER = (key_signer(name) for name in ("before", "interrupted", "after"))


class Crash(BaseException):
    """Not an Exception: nothing that recovers from errors may take part."""


async def crash(*arguments: Any) -> Any:
    raise Crash


def crash_now(*arguments: Any) -> Any:
    raise Crash


_advance = Fence.advance


def crash_after_recording(fence: Fence, size: int, root: bytes, signed: SignedTime) -> None:
    _advance(fence, size, root, signed)
    raise Crash


@pytest.mark.parametrize(
    ("step", "committed", "recorded"),
    [
        ((log_tables, "look_up", crash), False, False),
        ((log_tables, "append", crash), False, False),
        ((log_tables, "_apply_blobs", crash), False, False),
        (("projection", "apply", crash), False, False),
        ((Fence, "advance", crash_now), True, False),
        ((Fence, "advance", crash_after_recording), True, True),
        ((CheckpointSigner, "sign", crash_now), True, True),
    ],
)
async def test_a_crash_at_each_step_of_a_write(
    tmp_path: Path,
    database: str,
    web: Web,
    monkeypatch: pytest.MonkeyPatch,
    step: tuple[Any, str, Any],
    committed: bool,
    recorded: bool,
) -> None:
    data = tmp_path / "registry"
    async with open_registry(data, database, web) as registry:
        acknowledged = await log(registry, grant(BEFORE), BEFORE)
        released = registry.head
        leaf = INTERRUPTED.statement(grant(INTERRUPTED)).leaf
        place, name, replacement = step
        if place == "projection":
            monkeypatch.setattr(projection, "apply", replacement)
        else:
            monkeypatch.setattr(place, name, replacement)
        writing = asyncio.create_task(registry.submit([leaf]))
        (worker,) = [task for task in asyncio.all_tasks() if task.get_name() == "sequencer"]
        await asyncio.wait([worker])
        assert isinstance(worker.exception(), Crash)
        writing.cancel()
        assert registry.head == released, "nobody was told"
    monkeypatch.undo()
    async with connect(database) as connection:
        size, root = await log_tables.read_head(connection)
    assert size == (4 if committed else 3)
    assert read_fence(data / "head", ORIGIN).size == (4 if recorded else 3)
    async with open_registry(data, database, web) as registry:
        assert (registry.head.size, registry.head.root) == (size, root)
        verify_consistency(released.size, size, released.root, root, await registry.consistency(released.size))
        assert await registry.receipt(acknowledged.id)
        (again,) = await registry.submit([leaf])
        assert isinstance(again, Logged)
        assert (again.index, again.new) == (3, not committed)
        Receipt.parse(again.receipt).verify(leaf, registry.log_key, registry.clock_key)
        assert (await log(registry, grant(AFTER), AFTER)).index == 4
        assert not (await registry.rebuild()).differed
