"""A client of the simulated registry, and the assertion that every attack ends with: refused at its step, and nothing kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from signers import Signer
from simulated_registry import ALICE, SimulatedNetwork, SimulatedRegistry, uri_of

from treaty_client.fetch import Fetcher
from treaty_client.policy import Policy
from treaty_client.verification.steps import VerificationFailed


def fetcher(
    registry: SimulatedRegistry, home: Path, *, publishers: tuple[Signer, ...] = (ALICE,), down: bool = False, **policy: Any
) -> Fetcher:
    """An agent's fetcher: it trusts the registry, names ALICE, and shares the registry's clock."""
    registry.trusted_in(home)
    chosen = Policy([publisher.did for publisher in publishers], **policy)
    return Fetcher(home, chosen, SimulatedNetwork(registry, down=down), clock=lambda: registry.now)


def kept_in(home: Path) -> dict[str, bytes]:
    """Every file of a home but the locks, which are empty, and the proofs against a registry."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file() and not path.name.endswith((".lock.lock", "registries.lock", ".equivocation.json"))
    }


async def refused_at(
    step: int, registry: SimulatedRegistry, home: Path, name: str = uri_of(), **options: Any
) -> VerificationFailed:
    """Fetch from a lying registry. It must be refused at `step`, and leave the home as it was."""
    registry.trusted_in(home)
    before = kept_in(home)
    async with fetcher(registry, home, **options) as agent:
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(name)
        assert failure.value.step == step, failure.value
        assert str(failure.value).startswith(f"Step {step} (")
        assert kept_in(home) == before
        assert not agent._verified
    return failure.value
