"""Lines that repeat are bounded, lines of the journal have their priority, and own nodes keep their addresses."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

from treaty_io.line_limit import LineLimit
from treaty_io.repeats import Repeats
from treaty_registry.telemetry import redaction

_LINES = """
import structlog
from treaty_registry.telemetry.logs import configure_logs
configure_logs({form!r})
log = structlog.get_logger()
log.info("one"); log.warning("two"); log.error("three"); log.critical("four")
try:
    raise ValueError("text")
except ValueError:
    log.exception("five")
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_repeated_line_is_counted_once_a_minute() -> None:
    clock = Clock()
    repeats = Repeats(clock=clock)
    assert repeats.end() is None
    assert repeats.admit("disk") == {}
    for _ in range(1000):
        clock.now += 0.05
        assert repeats.admit("disk") is None
    assert repeats.admit("database") == {}, "another kind has its own line"
    clock.now = 61.0
    assert repeats.admit("disk") == {"repeated": 1000}
    assert repeats.admit("disk") is None
    assert repeats.end() == 1
    assert repeats.end() is None
    assert repeats.admit("disk") == {}, "the next fault has its line at once"


def test_library_lines_differ_by_first_line_and_exception(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("a.library")
    logger.addFilter(LineLimit())
    for number in range(100):
        logger.error(f"accept failed\nsocket {number}")
        logger.error("accept failed", exc_info=OSError(number))
        logger.warning("another %d", number)
    assert [record.getMessage() for record in caplog.records] == ["accept failed\nsocket 0", "accept failed", "another 0"]


def test_any_number_of_kinds_shares_a_bounded_number_of_lines() -> None:
    clock = Clock()
    repeats = Repeats(2, clock)
    written = sum(repeats.admit(f"kind {number}") is not None for number in range(1000))
    assert written == 66
    clock.now = 61.0
    assert repeats.admit("kind 999") == {}, "kinds of the minute before are forgotten"


def lines(form: str, stderr: int, **environment: str) -> None:
    code = _LINES.format(form=form)
    subprocess.run([sys.executable, "-c", code], stderr=stderr, env={**os.environ, **environment}, check=True)


@pytest.mark.parametrize("form", ["json", "text"])
def test_lines_of_the_journal_begin_with_their_priority(form: str) -> None:
    read, write = os.pipe()
    stream = os.fstat(write)
    lines(form, write, JOURNAL_STREAM=f"{stream.st_dev}:{stream.st_ino}")
    os.close(write)
    with os.fdopen(read) as file:
        written = file.read().splitlines()
    assert [line[:3] for line in written[:5]] == ["<6>", "<4>", "<3>", "<2>", "<3>"]
    assert {line[:3] for line in written[5:]} <= {"<3>"}, "each line of a traceback is an entry"
    if form == "json":
        assert json.loads(written[2][3:])["level"] == "error"


@pytest.mark.parametrize("stream", ["", "1:1"])
def test_lines_for_another_reader_have_no_priority(stream: str) -> None:
    read, write = os.pipe()
    lines("json", write, JOURNAL_STREAM=stream)
    os.close(write)
    with os.fdopen(read) as file:
        assert all(json.loads(line) for line in file)


def test_addresses_of_own_nodes_are_shown_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_addresses", set())
    text = "http://192.0.2.7:8080 [2001:db8::7]:443 192.0.2.8"
    assert redaction.redacted(text) == "http://[address]:8080 [[address]]:443 [address]"
    for url in ("http://192.0.2.7:8080", "https://[2001:db8:0::7]", "https://node.example", "", "http://["):
        redaction.show_address(url)
    assert redaction.redacted(text) == "http://192.0.2.7:8080 [2001:db8::7]:443 [address]"
    for number in range(1000):
        redaction.show_address(f"http://10.0.{number // 256}.{number % 256}")
    assert redaction.redacted("10.0.3.200") == "[address]", "the list has a bound"
