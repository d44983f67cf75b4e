"""Run mypy and pyright, as the authors of applications do: mypy --strict, and pyright as an editor runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

# pyright asks a registry for a newer version of itself unless it is told not to.
_OFFLINE = {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}


def mypy_faults(cache: Path, *paths: Path, imports: Iterable[Path] = ()) -> list[str]:
    """Return the errors of mypy, each beginning with the name of its file. `cache`: where it keeps types. Not the repository's
    own: its check may run meanwhile. `imports`: folders of other modules."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        "",
        "--explicit-package-bases",
        "--cache-dir",
        str(cache),
    ]
    environment = {**os.environ, "MYPYPATH": os.pathsep.join(map(str, imports))}
    done = subprocess.run([*command, *map(str, paths)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    faults = [line for line in done.stdout.splitlines() if re.search(r": error: ", line)]
    assert bool(faults) == bool(done.returncode), done.stdout
    return [f"{Path(line.partition(':')[0]).name}: {line}" for line in faults]


def pyright_faults(folder: Path, *paths: Path, imports: Iterable[Path] = ()) -> list[str]:
    """Return the errors of pyright as `mypy_faults` does. `folder`: for its settings."""
    # It ignores absolute paths in its settings.
    included, others = ([os.path.relpath(path, folder) for path in group] for group in (paths, imports))
    settings = {"include": included, "extraPaths": others, "exclude": []}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(folder)]
    done = subprocess.run(command, env={**os.environ, **_OFFLINE}, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] >= len(paths), done.stdout
    faults = [fault for fault in report["generalDiagnostics"] if fault["severity"] == "error"]
    return [f"{Path(fault['file']).name}: {fault['message']}" for fault in faults]
