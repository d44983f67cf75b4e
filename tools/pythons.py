"""`make test-pythons`: run Treaty on each Python that README promises and that this machine has.

    python tools/pythons.py [--only 3.13] [--parts demo,package,sample]

A Python is looked for in PATH and in pyenv's folder ($PYENV_ROOT, or ~/.pyenv). For each, `make` installs the locks into an
environment of its own, .venv-3.X. Then the demo is run, the tests of the package, and a fifth of all test files: another fifth
for each version. The last lines say for each version whether all passed, or that it was not found. The exit status is 1 if a part
failed or no Python was found.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PARTS = ("demo", "package", "sample")
SAMPLES = 5
"""A file of tests is run by one version of five that follow each other."""
_OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONDONTWRITEBYTECODE", "TREATY_DEPTH")
"""Variables of the `make` that runs this: its options are not for another environment, and the sample is a quick one."""
PROBE = 'import sys; print("%d.%d" % sys.version_info[:2], sys.version.split()[0])'


def main() -> int:
    """Run all parts on all versions that are found; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=VERSIONS, action="append", help="these versions, instead of all")
    parser.add_argument("--parts", default=",".join(PARTS), help="these parts, with commas between")
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"the parts are {', '.join(PARTS)}")
    results = {version: _result(version, parts) for version in arguments.only or VERSIONS}
    print()
    for version, result in results.items():
        print(f"  {version:<6} {result}")
    return 0 if any("passed" in result for result in results.values()) and "failed" not in str(results) else 1


def _result(version: str, parts: list[str]) -> str:
    found = find(version)
    if found is None:
        return "not found"
    python, release = found
    failed = failures(version, python, parts)
    return f"{release} {'failed: ' + ', '.join(failed) if failed else 'passed: ' + ', '.join(parts)}"


def find(version: str) -> tuple[Path, str] | None:
    """Return the first Python of a version, and its whole version; None if there is none."""
    for candidate in _candidates(version):
        # A program of pyenv's in PATH exists for each version, and fails for those that are not switched on.
        said = subprocess.run([candidate, "-c", PROBE], capture_output=True, text=True, check=False, timeout=60)
        if said.returncode == 0 and (words := said.stdout.split())[0] == version:
            return candidate, words[1]
    return None


def _candidates(version: str) -> Iterator[Path]:
    if program := shutil.which(f"python{version}"):
        yield Path(program)
    folder = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    # The newest first. A name with more than numbers is that of a development version or an environment.
    releases = [path for path in folder.glob(f"{version}.*") if path.name.replace(".", "").isdecimal()]
    for release in sorted(releases, key=lambda path: int(path.name.rpartition(".")[2]), reverse=True):
        if (release / "bin" / "python").exists():
            yield release / "bin" / "python"


def failures(version: str, python: Path, parts: list[str]) -> list[str]:
    """Run the parts with a Python; those that failed. Without an environment no part is run."""
    place = f".venv-{version}"
    make = ("make", "--no-print-directory", f"VENV={place}", f"PYTHON={python}")
    if not _succeeds(version, "environment", [*make, f"{place}/development"]):
        return ["environment"]
    program = f"{place}/bin/python"
    commands = {
        "demo": [program, "demo"],
        "package": [program, "-m", "pytest", "--quiet", "tests/end_to_end/test_package.py"],
        "sample": [*make, "test"],
    }
    return [part for part in parts if not _succeeds(version, part, commands[part])]


def _succeeds(version: str, part: str, command: list[str]) -> bool:
    print(f"\n{version} {part}: {' '.join(command)}", flush=True)
    environment = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
    if part == "sample":
        environment["TREATY_SAMPLE"] = f"{int(version.rpartition('.')[2]) % SAMPLES}/{SAMPLES}"
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
