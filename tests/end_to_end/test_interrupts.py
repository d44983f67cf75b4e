"""Ctrl-C ends each command of the Makefile with all of its processes, and leaves no temporary file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from interrupted_make import Make, make
from ports import free_port


@pytest.mark.deep
def test_an_interrupted_demo_leaves_nothing() -> None:
    with make("demo") as demo:
        demo.wait_until(lambda: "1  Publish, once" in demo.printed)
        assert postgres_of(demo.temporary)
        demo.interrupt()
        assert demo.left() == ([], []), demo.printed


@pytest.mark.sample(1)
@pytest.mark.parametrize("ending", [Make.close_window, Make.interrupt])
def test_an_ended_registry_leaves_only_its_data(ending: Callable[[Make], None], data: Path) -> None:
    with make("run", f"OPTIONS=--port {free_port()} --web-port {free_port()} --data {data}") as run:
        run.wait_until(lambda: "The catalogue" in run.printed)
        assert postgres_of(data)
        ending(run)
        assert run.left() == ([], []), run.printed
    assert not postgres_of(data)


@pytest.mark.deep
def test_an_interrupted_test_leaves_nothing(tmp_path: Path) -> None:
    """A shard of the tests may end without the fixtures that would end its servers and remove its files."""
    started = tmp_path / "started"
    # The cache is that of the run which this test is in.
    options = {"PYTEST_ADDOPTS": "-p no:cacheprovider", "ENDLESS_STARTED": str(started)}
    with make("test", "ROOM=tests/support/endless.py", environment=options) as test:
        test.wait_until(started.exists)
        assert postgres_of(test.temporary)
        test.interrupt()
        assert test.left() == ([], []), test.printed


@pytest.mark.deep
def test_an_interrupted_agency_leaves_nothing() -> None:
    with make("agency", "FAULTS=short") as agency:
        agency.wait_until(lambda: "vendor_killed" in agency.printed)
        assert postgres_of(agency.temporary)
        agency.interrupt()
        assert agency.left() == ([], []), agency.printed


def postgres_of(folder: Path) -> list[Path]:
    """The running servers below a folder."""
    return [*folder.rglob("postmaster.pid")]
