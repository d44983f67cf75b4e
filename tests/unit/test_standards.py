"""The standards of others that stand in protocols/ without code: their vectors hold, and they need interface 5."""

from __future__ import annotations

from pathlib import Path

import pytest

from treaty_client.authoring.check import check_project
from treaty_client.protocols.project import load_project
from treaty_consensus.handler import read_wheel

PROTOCOLS = Path(__file__).parents[2] / "protocols"


@pytest.mark.parametrize(("folder", "name"), [("mcp-tools-call/2026.7.28", "mcp-tools-call"), ("a2a/1.0", "a2a")])
async def test_a_standard_is_data(folder: str, name: str) -> None:
    project = load_project(PROTOCOLS / folder)
    uri = f"https://registry.example/protocols/example.com/{name}/{project.version}"
    package = read_wheel(*project.build_wheel(uri))
    assert (project.origin, package.is_declarative, package.manifest.interface) == ("standard", True, 5)
    # Every outcome that the standard lists is reached in both roles, and the document is as `treaty document` writes it.
    check = await check_project(PROTOCOLS / folder)
    assert check.passed, check.problems
    assert check.coverage is not None
    assert check.coverage.missed == ()
