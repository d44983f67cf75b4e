"""Debian's spin: the system's, or Debian's package, unpacked without root into a folder that is kept."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from debian_programs import debian_program

_PACKAGE = "spin"


@dataclass(frozen=True)
class Checked:
    """The result of a check. `error`: the first violation, or an empty text."""

    error: str
    states: int


def spin() -> str:
    """Return the program. Raises `CalledProcessError` where apt has no such package."""
    return debian_program(_PACKAGE, _PACKAGE)


def check(model: Path, *defined: str, folder: Path, large: bool = False) -> Checked:
    """Check a model over all interleavings. With `PROGRESS` among `defined`, its property under weak fairness, else its
    assertions. `large`: for more than a million states."""
    definitions = [f"-D{name}" for name in defined]
    subprocess.run([spin(), *definitions, "-a", model], cwd=folder, check=True, capture_output=True)
    progress = "PROGRESS" in defined
    # One bit more than the default for the fairness of five processes.
    kind = "-DNFAIR=3" if progress else "-DSAFETY"
    # Of a small instance the compiler's work is the most.
    subprocess.run(["cc", "-O2" if large else "-O0", "-w", kind, "-DVECTORSZ=1024", "-o", "pan", "pan.c"], cwd=folder, check=True)
    options = ["-a", "-f"] if progress else []
    ran = subprocess.run(
        ["./pan", "-m1000000", "-w24" if large else "-w20", *options], cwd=folder, check=True, capture_output=True, text=True
    )
    error = re.search(r"^pan:1: (.*?)(?: \(at depth \d+\))?$", ran.stdout, re.M)
    states = re.search(r"(\d+) states, stored", ran.stdout)
    assert states is not None and "search depth too small" not in ran.stdout, ran.stdout
    assert ("errors: 0" in ran.stdout) == (error is None), ran.stdout
    return Checked(error[1] if error else "", int(states[1]))
