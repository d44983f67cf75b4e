"""A test that uses PostgreSQL and RabbitMQ and never ends, for a run of the tests that is interrupted."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event

from rabbitmq_server import RabbitServer


def test_it_never_ends(database: str, rabbit: RabbitServer, tmp_path: Path) -> None:
    Path(os.environ["ENDLESS_STARTED"]).write_text(f"{database} {rabbit.url} {tmp_path}")
    Event().wait()
