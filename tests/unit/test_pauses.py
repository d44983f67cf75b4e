"""The pauses of a process that serves, tried in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from treaty_io import pauses

_PROGRAM = f"""
import gc, sys
from {pauses.__name__} import shorten_pauses

full = []
gc.callbacks.append(lambda phase, info: full.append(phase) if info["generation"] == 2 else None)
if "shorten" in sys.argv:
    shorten_pauses()
full.clear()
kept = [[] for _ in range(300_000)]  # as many as seven thousand connections make
print(len(full))
"""


@pytest.mark.threat(340)
@pytest.mark.parametrize("arguments", [["shorten"], []], ids=["shortened", "as Python is"])
def test_thousands_of_connections_begin_no_full_collection(arguments: list[str]) -> None:
    ran = subprocess.run([sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, check=True)
    assert (int(ran.stdout) == 0) is bool(arguments)
