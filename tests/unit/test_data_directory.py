"""A new log: a name that some clients cannot use is warned of, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from treaty_registry.data_directory import open_operator
from treaty_registry.settings import Settings


@pytest.mark.parametrize("origin, warned", [("localhost:8080", True), ("8080.localhost", False), ("registry.example", False)])
def test_a_port_in_the_name_of_a_new_log_is_warned_of(tmp_path: Path, origin: str, warned: bool) -> None:
    with capture_logs() as first:
        assert open_operator(Settings(data=tmp_path, origin=origin)).origin == origin
    assert [(entry["log_level"], entry["origin"]) for entry in first] == ([("warning", origin)] if warned else [])
    with capture_logs() as later:
        assert open_operator(Settings(data=tmp_path)).origin == origin
    assert later == []
