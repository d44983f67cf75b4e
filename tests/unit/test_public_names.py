"""The names that an application imports from `treaty_agent` itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

import treaty_agent
from treaty_agent import Agent, AgentConfig, Identity, OperationError, Policy, TreatyError, agent, config
from treaty_agent.sessions import operation_errors
from treaty_client import policy
from treaty_consensus import errors
from treaty_io.identity import identity


def test_the_public_names_are_those_of_their_modules() -> None:
    assert (Agent, AgentConfig, Policy) == (agent.Agent, config.AgentConfig, policy.Policy)
    assert (Identity, OperationError, TreatyError) == (identity.Identity, operation_errors.OperationError, errors.TreatyError)


def test_each_public_name_can_be_imported_and_is_listed() -> None:
    names: list[str] = vars(treaty_agent)["__all__"]
    assert [name for name in names if getattr(treaty_agent, name).__name__ != name] == []
    assert sorted(names) == names
    assert set(names) <= set(dir(treaty_agent))


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="treaty_agent"):
        _ = treaty_agent.Nothing  # type: ignore[attr-defined]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("names", "absent"),
    [
        ("", ("treaty_agent.agent", "treaty_agent.config", "treaty_consensus", "msgspec", "asyncio")),
        ("TreatyError", ("treaty_agent.agent", "treaty_agent.config", "msgspec", "asyncio")),
        ("Identity, Policy", ("treaty_agent.agent", "treaty_agent.config", "treaty_agent.sessions", "sigstore")),
        ("AgentConfig", ("treaty_agent.agent", "sigstore")),
    ],
)
def test_a_name_imports_no_more_than_it_needs(names: str, absent: tuple[str, ...]) -> None:
    imported = f"from treaty_agent import {names}" if names else "import treaty_agent"
    code = f"import sys; {imported}; print(*[name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
