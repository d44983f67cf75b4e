"""Break each rule of the conformance page on purpose, and see a test that carries its number fail (`make mutants`).

pytest collects this module only by its name, as it takes some minutes. A mutant is applied to a copy of the packages, which comes
first on the path of a process of its own. That process runs the tests of the mutant's rule and stops at the first that fails. A
mutant is killed by an assertion or an error in the body of a test; an error of the collection or of a fixture does not count.
"""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from compileall import compile_dir
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from mutants import IMPORTED, PACKAGES, ROOT, Mutant, all_mutants, numbered_tests

SECONDS = 600
"""The limit of one process. The tests of a file take up to two minutes on a busy machine. A mutant by which a test hangs is not
killed: it must be written so that the test fails."""

FILES = sorted({name.partition("::")[0] for names in numbered_tests().values() for name in names})


class Outcome(NamedTuple):
    """The result of a run: how many tests passed, failed in their bodies and could not begin, and the output."""

    passed: int
    failed: int
    errors: int
    output: str


def named(mutant: Mutant) -> str:
    """Return the mutant's name in a report: its rule, with a number where the rule has several."""
    of_rule = [other for other in all_mutants() if other.rule == mutant.rule]
    return mutant.rule if len(of_rule) == 1 else f"{mutant.rule}.{of_rule.index(mutant) + 1}"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages with their bytecode. The processes then compile one file each, not all of them."""
    folder = tmp_path_factory.mktemp("compiled")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, symlinks=True)
        compile_dir(folder / package, quiet=1)
    return folder


@pytest.fixture
def copy(compiled: Path) -> Iterator[Path]:
    """A copy of the packages for one process. Its path is short, as the tests open sockets below it."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        shutil.copytree(compiled, name, symlinks=True, dirs_exist_ok=True)
        yield Path(name)


def run(copy: Path, tests: list[str]) -> Outcome:
    """Run tests with a copy of the packages. Raises TimeoutError."""
    report = copy / "report.xml"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--basetemp={copy / 'run'}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TREATY_"))}
    environment["PYTHONPATH"] = os.pathsep.join(str(copy / folder) for folder in IMPORTED)
    environment["HYPOTHESIS_STORAGE_DIRECTORY"] = str(copy / "hypothesis")
    process = subprocess.Popen(
        [*command, f"--junitxml={report}", *tests],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"The tests did not end within {SECONDS} seconds.") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that the tests started
            process.wait()
    cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
    counter = Counter(
        next((part.tag for part in case if part.tag in ("failure", "error", "skipped")), "passed") for case in cases
    )
    return Outcome(counter["passed"], counter["failure"], counter["error"], output)


@pytest.mark.parametrize("path", FILES)
def test_without_a_mutant_the_numbered_tests_pass(path: str, copy: Path) -> None:
    tests = {name for names in numbered_tests().values() for name in names if name.startswith(f"{path}::")}
    outcome = run(copy, sorted(tests))
    assert outcome.passed, outcome.output
    assert (outcome.failed, outcome.errors) == (0, 0), outcome.output


@pytest.mark.parametrize("mutant", all_mutants(), ids=named)
def test_a_mutant_is_killed(mutant: Mutant, copy: Path) -> None:
    path = copy / mutant.file
    broken = mutant.applied_to(path.read_text(encoding="utf-8"))
    if path.suffix == ".py":
        ast.parse(broken)  # what is no Python any more breaks more than the rule
    path.write_text(broken, encoding="utf-8")
    outcome = run(copy, numbered_tests()[mutant.rule])
    survived = f"It survived {outcome.passed} tests" if not outcome.errors else f"A test could not begin:\n{outcome.output}"
    assert outcome.failed, f"{mutant.breaks} {survived}"
