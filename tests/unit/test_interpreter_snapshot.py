"""The snapshot of the interpreter that a sandbox shows: made once, made anew when it is not what it was."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from treaty_sandbox import interpreter

CODE = """
import asyncio, shutil, sys
from treaty_sandbox import SandboxLimits, interpreter
from treaty_sandbox.levels import level_of
from treaty_sandbox.process import WorkerProcess
from treaty_sandbox.template import starter

async def main():
    workers = starter(level_of(sys.argv[1]), SandboxLimits())
    for _ in range(2):
        root = interpreter.snapshot()
        worker = await WorkerProcess.start(workers, SandboxLimits())
        await worker.close()
        print(root)
        shutil.rmtree(root.parent)  # the next one is made anew
    await workers.close()

asyncio.run(main())
"""


def roots_of_a_process(cache: Path, python: str = sys.executable, level: str = "bubblewrap") -> list[Path]:
    """The snapshots by which a new process has started workers."""
    environment = {**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path), "XDG_CACHE_HOME": str(cache)}
    process = subprocess.run(
        [python, "-c", CODE, level], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert process.returncode == 0, process.stderr
    return [Path(line) for line in process.stdout.splitlines()]


def made(folder: Path) -> Path:
    """The snapshot in a folder."""
    root = interpreter.snapshot_in(folder)
    assert root is not None
    return root


def state(root: Path) -> tuple[int, int]:
    """What tells this snapshot from one made anew."""
    status = root.stat()
    return status.st_ino, status.st_ctime_ns


def test_it_is_made_once_and_used_again(tmp_path: Path) -> None:
    root = made(tmp_path / "cache")
    assert root.is_relative_to(tmp_path / "cache")
    before = state(root)
    assert made(tmp_path / "cache") == root
    assert state(root) == before
    assert list((tmp_path / "cache").iterdir()) == [root.parent]


@pytest.mark.deep
def test_what_was_changed_is_made_anew(tmp_path: Path) -> None:
    root = made(tmp_path)
    module = next(root.glob("python/*/python3*/base64.pyc"))
    good, more = module.read_bytes(), module.parent / "usercustomize.pyc"

    def flip(back: bool) -> None:
        times = module.stat()
        module.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
        if back:
            os.utime(module, ns=(times.st_atime_ns, times.st_mtime_ns))

    changes: list[Callable[[], object]] = [
        lambda: flip(back=False),
        lambda: flip(back=True),
        module.unlink,
        lambda: more.write_bytes(good),
        (root.parent / "contents.json").unlink,
        lambda: module.chmod(0o666),
        (root.parent / "library").unlink,
        lambda: (root.parent / "library").write_bytes(b""),
    ]
    for number, change in enumerate(changes):
        before = state(root)
        change()
        assert made(tmp_path) == root
        assert state(root) != before, number
        assert module.read_bytes() == good, number
        assert not more.exists(), number
        assert list(tmp_path.iterdir()) == [root.parent], number  # and nothing is left of the changed one


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert interpreter.snapshot_in(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deep
def test_the_oldest_are_removed(tmp_path: Path) -> None:
    others = [tmp_path / f"{number:064}" for number in range(12)]
    for number, folder in enumerate(others):
        folder.mkdir()
        os.utime(folder, (number, number))
    root = made(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([root.parent, *others[-interpreter.MAX_SNAPSHOTS + 1 :]])


@pytest.mark.deep
def test_a_process_whose_snapshot_goes_away_makes_another(tmp_path: Path) -> None:
    for level in ("bubblewrap", "process"):
        first, second = roots_of_a_process(tmp_path, level=level)
        assert first == second
    assert first.is_relative_to(tmp_path / "treaty" / "interpreters")


@pytest.mark.deep
def test_without_a_folder_to_write_a_process_has_its_own(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    first, second = roots_of_a_process(tmp_path / "cache")
    assert first != second
    assert not second.parent.parent.exists()


@pytest.mark.deep
def test_an_interpreter_of_the_system(tmp_path: Path) -> None:
    """Its standard library lies among other things, such as those of /usr/lib."""
    system = Path("/usr/bin/python3")
    if not system.exists() or not system.resolve().name.endswith(f"{sys.version_info.major}.{sys.version_info.minor}"):
        pytest.skip(f"{system} is not of this version")
    for level in ("bubblewrap", "process"):
        assert roots_of_a_process(tmp_path, str(system), level)
