"""Texts that go to the log have no secrets and no personal data."""

from __future__ import annotations

import ipaddress
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treaty_registry.telemetry.redaction import MAX_TEXT, redact, redacted


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("connect to postgresql://treaty:pa55word@db.example:5432/treaty failed", "pa55word"),
        ("connect to postgresql://treaty:pa55/wo@rd@db.example/treaty failed", "wo"),
        ("PGPASSWORD=pa55word", "pa55word"),
        ("AWS_SECRET_ACCESS_KEY='pa55 word'", "word"),
        ("https://bucket.example/head?X-Amz-Signature=deadbeef", "deadbeef"),
        ("Cookie: one=pa55; two=word", "word"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "MfKQ"),
        ("GET /feeds/did?name=did%3Awba%3Aalice.example", "alice"),
        ("-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----", "MHcCAQEE"),
        ("-----BEGIN PRIVATE KEY-----\nMHcCAQEE (cut off)", "MHcCAQEE"),
        ("PRIVATE+KEY+log.example+1234abcd+AbCdEf", "AbCdEf"),
        ("Authorization: Bearer abcdefgh12345678", "abcdefgh12345678"),
        ("{'token': 'abcdefgh'}", "abcdefgh"),
        ("got eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl", "c2lnbmF0dXJl"),
        ("This log knows no key of did:wba:alice.example:agents:bob.", "alice"),
        ("did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK refused", "z6Mkha"),
        ("peer 192.0.2.7:443 left", "192.0.2.7"),
        ("from [2001:db8::7]:443", "2001:db8"),
        ("from ::1, closed", "::1"),
    ],
)
def test_a_secret_in_a_text_is_removed(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "the epoch 3 closed at 13:45:00",
        "2026-11-23T13:45:00+00:00",
        "version 1.2.3",
        'File "/a/b.py", line 7, in serve',
        "quota.sender",
        "Traceback (most recent call last):\n  at line 7\nValueError",
    ],
)
def test_an_ordinary_text_stays(text: str) -> None:
    assert redacted(text) == text


@given(st.ip_addresses(), st.sampled_from(["{}", "to {}.", "({}, 443)", "[{}]:80", "a={} b"]))
def test_no_address_stays(address: ipaddress.IPv4Address | ipaddress.IPv6Address, form: str) -> None:
    assert str(address) not in redacted(form.format(address))


_PARTS = [
    "whsec",
    "eyJhbGciOi",
    "bearer",
    "password",
    "PRIVATE",
    "KEY",
    "-----BEGIN",
    "did",
    "wba",
    "2001",
    "db8",
    "127",
    "token",
    "-",
    "a",
    "0",
]


@given(st.lists(st.sampled_from(_PARTS), min_size=1, max_size=12), st.sampled_from(["", "-", "_", ".", ":", "=", "+", " ", "\n"]))
def test_a_word_is_redacted_as_it_is_within_a_text(parts: list[str], between: str) -> None:
    word = between.join(parts)
    assert redacted(word) == redacted(f"({word}\t)")[1:-3]


def test_values_of_all_shapes_are_redacted_and_bounded() -> None:
    value = {
        "did:wba:a.example": ["192.0.2.7", {"deep": ("did:wba:a.example",)}],
        "n": 7,
        "none": None,
        "error": ValueError("192.0.2.7"),
    }
    text = str(redact(value))
    assert "a.example" not in text
    assert "192.0.2.7" not in text
    assert redact(7) == 7
    assert len(redacted("x" * (2 * MAX_TEXT))) == MAX_TEXT


@pytest.mark.threat(321)
def test_a_strangers_text_moves_no_cursor_and_begins_no_line() -> None:
    assert redacted("\x1b[2J\u202eevil\r") == "\\x1b[2J\\u202eevil\\r"


_LINES = """
import logging, structlog
from treaty_registry.telemetry.logs import configure_logs
configure_logs("text")
logging.getLogger("library").warning("refused a\\n2026-01-01T00:00:00Z [critical ] forged\x1b[2J")
structlog.get_logger().error("refused", error="a\\n2026-01-01T00:00:00Z [critical ] forged\x1b[2J")
"""


@pytest.mark.threat(321)
def test_each_line_for_people_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", _LINES], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and all("refused" in line and "\x1b" not in line for line in lines), done.stderr
