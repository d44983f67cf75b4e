"""Run the tests in shards: `python tools/shards.py [PATH ...]`, all of `tests/` by default.

A shard is a pytest process with some files of one folder. It collects only these, and starts one PostgreSQL, one RabbitMQ and one
browser for all of them. Workers of pytest-xdist would each collect all tests, which is a fifth of the processor time of a run.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
FILES = 90
"""Files of a shard: more would let one shard run alone at the end, and fewer would start pytest more often."""
LONGEST_FIRST = ("faults", "end_to_end", "pages", "interop", "contract", "unit", "attack")
"""The folders whose shards begin first, so that a short one is the last."""
NO_TESTS = 5
"""pytest's status when all tests of its files are deselected."""
GRACE = 60
"""Seconds that an interrupted shard has to end its servers."""

Shard = tuple[str, list[Path]]


def shards(paths: list[Path]) -> list[Shard]:
    """Return the names and the files of the shards for these files and folders."""
    files = {file for path in paths for file in ([path] if path.is_file() else path.rglob("test_*.py"))}
    folders: dict[str, list[Path]] = {}
    for file in sorted(files):
        folders.setdefault(file.relative_to(TESTS).parts[0], []).append(file)
    made: list[Shard] = []
    for folder in sorted(folders, key=lambda name: (LONGEST_FIRST.index(name) if name in LONGEST_FIRST else 99, name)):
        count = -(-len(folders[folder]) // FILES)
        # Every n-th file: neighbours are of one subject, and cost alike.
        made += [(f"{folder} {part + 1}/{count}" if count > 1 else folder, folders[folder][part::count]) for part in range(count)]
    return made


class Run:
    """A shard under way, and its output."""

    def __init__(self, shard: Shard, basetemp: Path) -> None:
        self.name, files = shard
        self._began = time.monotonic()
        self._output: IO[bytes] = tempfile.TemporaryFile()
        command = [sys.executable, "-m", "pytest", "--quiet", f"--basetemp={basetemp}", *map(str, files)]
        # A process group of its own: one signal, from here, and not a second one from the terminal.
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=self._output, stderr=self._output, process_group=0)

    def tell(self, status: int) -> str:
        """Print what pytest said: all of it after a failure. Return its last line."""
        self._output.seek(0)
        output = self._output.read().decode(errors="replace")
        self._output.close()
        lines = output.rstrip().splitlines() or ["no output"]
        if status not in (0, NO_TESTS):
            print(output, flush=True)
        print(f"{'✓' if status in (0, NO_TESTS) else '✗'} {self.name}: {lines[-1].strip('= ')}", flush=True)
        return lines[-1]

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.monotonic() - self._began


def main() -> int:
    """Run all shards, one more at a time than there are processors: tests wait for processes that they started.

    Return 0 if all tests passed, 1 if some failed, 130 after an interrupt.
    """
    waiting = shards([Path(argument).resolve() for argument in sys.argv[1:]] or [TESTS])
    total, lanes, failed, counts = (
        len(waiting),
        (os.cpu_count() or 1) + 1,
        0,
        {"passed": 0, "failed": 0, "skipped": 0, "error": 0},
    )
    running: dict[int, Run] = {}
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < lanes:
                    run = Run(waiting.pop(0), Path(folder) / str(total - len(waiting)))
                    running[run.process.pid] = run
                pid, status = os.wait()
                if pid not in running:
                    continue
                run = running.pop(pid)
                run.process.returncode = os.waitstatus_to_exitcode(status)
                last = run.tell(run.process.returncode)
                failed += run.process.returncode not in (0, NO_TESTS)
                for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last):
                    counts[word] += int(count)
        except KeyboardInterrupt:
            interrupt(running)
            return 130
    print(f"{counts['passed']} passed, {counts['failed'] + counts['error']} failed, {counts['skipped']} skipped")
    return 1 if failed else 0


def interrupt(running: dict[int, Run]) -> None:
    """End all shards as Ctrl-C ends pytest: their fixtures end the servers."""
    for run in running.values():
        run.process.send_signal(signal.SIGINT)
    for run in running.values():
        try:
            run.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            run.process.kill()
            run.process.wait()


if __name__ == "__main__":
    sys.exit(main())
