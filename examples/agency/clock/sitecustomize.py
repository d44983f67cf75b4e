"""Shift the clock of a Python process: CLOCK_OFFSET=-300 PYTHONPATH=examples/agency/clock python …"""

import os
import time

_offset = float(os.environ.get("CLOCK_OFFSET", "0"))
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _offset
time.time_ns = lambda: _time_ns() + int(_offset * 1e9)
