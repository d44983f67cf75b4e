"""A client of the simulated registry, and the assertion that every attack ends with: refused at its step, and nothing kept."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import pytest
from signers import Signer
from simulated_registry import ALICE, SimulatedNetwork, SimulatedRegistry, uri_of

from treaty_client.policy import Policy
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.verification.pins import Change
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_io.afterwards import Afterwards

ANY_CHANGE: tuple[Change, ...] = get_args(Change)


def fetcher(
    registry: SimulatedRegistry,
    home: Path,
    *,
    publishers: tuple[Signer, ...] = (ALICE,),
    down: bool = False,
    afterwards: Afterwards | None = None,
    **policy: Any,
) -> Fetcher:
    """An agent's fetcher: it trusts the registry, names ALICE, and shares the registry's clock."""
    registry.trusted_in(home)
    rules = Policy([publisher.did for publisher in publishers], **policy)
    network = SimulatedNetwork(registry, down=down)
    return Fetcher(home, rules, network, clock=lambda: registry.now, afterwards=afterwards)


def kept_in(home: Path) -> dict[str, bytes]:
    """Every file of a home but the locks, which are empty, the proofs against a registry, and what is known of its log."""
    memory_files = {
        str(path.relative_to(home)): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file()
        and not path.name.endswith((".lock.lock", "registries.lock", ".equivocation.json", ".contradiction.json"))
        and not path.name.startswith("seen.db")
    }
    if "registries.json" in memory_files:
        trusted = json.loads(memory_files["registries.json"])["registries"]
        names_of_memory = ("checkpoint", "learned", "time")
        names = {origin: {**entry, **dict.fromkeys(names_of_memory)} for origin, entry in trusted.items()}
        memory_files["registries.json"] = json.dumps(names, sort_keys=True).encode()
    if "treaty.lock" in memory_files:
        memory_files["treaty.lock"] = json.dumps(
            _without_statuses(json.loads(memory_files["treaty.lock"])), sort_keys=True
        ).encode()
    return memory_files


def _without_statuses(value: Any) -> Any:
    """A lock without what it notes of a refusal: that a version or its handler was taken back."""
    if isinstance(value, dict):
        return {name: _without_statuses(inner) for name, inner in value.items() if name not in ("status", "handler_status")}
    return value


def known_in(home: Path) -> tuple[dict[str, str], list[tuple[str, int, bytes]]]:
    """What a home knows of logs: the newest checkpoints, and the leaves that were proved (origin, index, leaf)."""
    trusted = json.loads((home / "registries.json").read_text())["registries"]
    checkpoints = {origin: entry.get("checkpoint", "") for origin, entry in trusted.items()}
    if not (home / "seen.db").exists():
        return checkpoints, []
    with closing(sqlite3.connect(home / "seen.db")) as database:
        return checkpoints, database.execute("select origin, idx, leaf from leaves order by origin, idx").fetchall()


async def refused_at(
    step: int, registry: SimulatedRegistry, home: Path, name: str = uri_of(), **options: Any
) -> VerificationFailed:
    """Fetch from a lying registry. It must be refused at `step`, and leave the home as it was. From step 5 on, what the first
    four proved is known, unless it contradicts what was known before. A fetcher that stores afterwards refuses it too."""
    requests = list(registry.requests)
    failure = await _refused_at(step, registry, home, name, **options)
    later = await _refused_at(step, registry, home, name, afterwards=Afterwards(), **options)
    assert later.code == failure.code
    registry.requests[len(requests) :] = registry.requests[len(requests) :][: (len(registry.requests) - len(requests)) // 2]
    return failure


async def _refused_at(step: int, registry: SimulatedRegistry, home: Path, name: str, **options: Any) -> VerificationFailed:
    registry.trusted_in(home)
    before, names = kept_in(home), known_in(home)
    async with fetcher(registry, home, **options) as agent:
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(name)
        assert failure.value.step == step, failure.value
        assert str(failure.value).startswith(f"Step {step} (")
        assert kept_in(home) == before
        if (step <= 4 and failure.value.code != "resolve.ambiguous") or failure.value.code.startswith("memory."):
            assert known_in(home) == names
        assert not agent.holds(name) and not agent.holds(uri_of())
    return failure.value
