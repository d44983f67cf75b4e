"""Run the tests in shards: `python tools/shards.py [ROOM or PATH ...]`, all of `tests/` by default.

With TREATY_SAMPLE=I/N only the files of the sample I of N, from 0, are run: always the same ones.

A shard is a pytest process with some files of one folder. It collects only these, and starts one PostgreSQL, one RabbitMQ and one
browser for all of them. Each worker of pytest-xdist would collect all tests, and hold in its memory all that they import.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from zlib import crc32

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
FILES = 90
"""Files of a shard: more would let one shard run alone at the end, and fewer would start pytest more often."""
LONGEST_FIRST = ("faults", "contract", "unit", "attack", "deploy", "interop", "pages", "property", "end_to_end")
"""The folders whose shards begin first, so that a short one is the last."""
LANES = 2
"""Shards at a time for each processor. A shard alone uses half of one: its tests wait for processes that they started."""
NO_TESTS = 5
"""pytest's status when all tests of its files are deselected."""
GRACE = 60
"""Seconds that an interrupted shard has to end its servers."""

Shard = tuple[str, list[Path]]


def selected(argument: str) -> list[Path]:
    """Return the file or folder of that name, or the tests of that room in `tests/rooms.toml`."""
    if (path := Path(argument).resolve()).exists():
        return [path]
    rooms = tomllib.loads((TESTS / "rooms.toml").read_text(encoding="utf-8"))
    if argument not in rooms:
        raise SystemExit(f"✗ {argument} is neither a path nor a room. The rooms: {', '.join(rooms)}")
    return [TESTS / name for name in rooms[argument]]


def is_sampled(path: str) -> bool:
    """Return whether a file of tests belongs to the sample of this run. `path`: below the root of the repository."""
    part, _, parts = os.environ.get("TREATY_SAMPLE", "0/1").partition("/")
    if not 0 <= int(part) < int(parts):
        raise SystemExit("✗ TREATY_SAMPLE=I/N has an I from 0 to N - 1")
    # Not `hash`, which is another one in each process.
    return crc32(path.encode()) % int(parts) == int(part)


def shards(paths: list[Path]) -> list[Shard]:
    """Return the names and the files of the shards for these files and folders."""
    files = {file for path in paths for file in ([path] if path.is_file() else path.rglob("test_*.py"))}
    folders: dict[str, list[Path]] = {}
    for file in sorted(file for file in files if is_sampled(file.relative_to(ROOT).as_posix())):
        folders.setdefault(file.relative_to(TESTS).parts[0], []).append(file)
    made: list[Shard] = []
    for folder in sorted(folders, key=lambda name: (LONGEST_FIRST.index(name) if name in LONGEST_FIRST else 99, name)):
        count = -(-len(folders[folder]) // FILES)
        # Every n-th file: neighbours are of one subject, and cost alike.
        made += [(f"{folder} {part + 1}/{count}" if count > 1 else folder, folders[folder][part::count]) for part in range(count)]
    return made


class Run:
    """A shard under way. Its temporary files and its output are below `folder`."""

    def __init__(self, shard: Shard, folder: Path) -> None:
        self.name, files = shard
        self._output = folder.with_suffix(".log")
        command = [sys.executable, "-m", "pytest", "--quiet", f"--basetemp={folder}", *map(str, files)]
        with self._output.open("wb") as output:
            # A process group of its own: it gets the signal of Ctrl-C from here, once, and not from the terminal too.
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, process_group=0)

    def tell(self) -> str:
        """Print what pytest said: all of it after a failure, otherwise its last line. Return that line."""
        output = self._output.read_text(errors="replace").rstrip()
        last = output.rpartition("\n")[2].strip("= ")
        print(f"✓ {self.name}: {last}" if self.passed else f"{output}\n✗ {self.name}: {last}", flush=True)
        return last

    @property
    def passed(self) -> bool:
        """No test failed."""
        return self.process.returncode in (0, NO_TESTS)


def main() -> int:
    """Run all shards, `LANES` a processor at a time.

    Return 0 if all tests passed, 1 if some failed, 130 after an interrupt.
    """
    waiting = shards([path for argument in sys.argv[1:] for path in selected(argument)] or [TESTS])
    lanes = LANES * (os.cpu_count() or 1)
    running: dict[int, Run] = {}
    ended: list[Run] = []
    counts: Counter[str] = Counter()
    # The name is short: PostgreSQL's socket is below it, and the path of a socket has 107 bytes.
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL is another user when root runs the tests
        try:
            while waiting or running:
                while waiting and len(running) < lanes:
                    run = Run(waiting.pop(0), Path(folder) / str(len(waiting)))
                    running[run.process.pid] = run
                pid, status = os.wait()
                run = running.pop(pid)
                run.process.returncode = os.waitstatus_to_exitcode(status)
                ended.append(run)
                for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", run.tell()):
                    counts[word] += int(count)
        except KeyboardInterrupt:
            interrupt(list(running.values()))
            return 130
    print(f"{counts['passed']} passed, {counts['failed'] + counts['error']} failed, {counts['skipped']} skipped")
    return 0 if all(run.passed for run in ended) else 1


def interrupt(runs: list[Run]) -> None:
    """End shards as Ctrl-C ends pytest: their fixtures end the servers."""
    for run in runs:
        run.process.send_signal(signal.SIGINT)
    for run in runs:
        try:
            run.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            run.process.kill()
            run.process.wait()


if __name__ == "__main__":
    sys.exit(main())
