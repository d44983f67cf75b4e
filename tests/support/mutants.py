"""The mutants of `tests/mutants/*.toml`: each breaks one rule of the conformance page, the answer to one threat of SECURITY.md
(`threat-17`), or an item of `treaty conform` (`conform`), in one line of the code.

    [[mutant]]
    rule = "000-18"
    file = "client/treaty_anp/hello_profile/negotiation.py"
    was = "holds = number == due or counts_from_one if self._strict else number > self._seen"
    broken = "holds = True"
    breaks = "Any sequence number is accepted."

`was` occurs once in the file. `make mutants` applies each entry to a copy of the packages (`tests/mutants/run_mutants.py`).
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import msgspec
from docs.generate.rules import SOURCES, rules_of
from docs.generate.suite import all_tests

THREAT, CONFORM = "threat-", "conform"
ROOT = Path(__file__).parents[2]
LISTS = ROOT / "tests" / "mutants"
PACKAGES = ("consensus", "client", "registry", "protocols")
IMPORTED = (
    "consensus",
    "client",
    "registry",
    "protocols/aip/python",
    "protocols/handoff/python",
    "protocols/message-routing/python",
)
"""The folders of which Python imports packages."""


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the code, broken. `breaks`: the sentence that says how the rule is broken."""

    rule: str
    file: str
    was: str
    broken: str
    breaks: str

    def applied_to(self, text: str) -> str:
        """Return a file's text with the line broken. Raises ValueError where the line is not there exactly once."""
        if text.count(self.was) != 1:
            raise ValueError(f"{self.file} has {text.count(self.was)} times: {self.was}")
        return text.replace(self.was, self.broken)


class _List(msgspec.Struct, forbid_unknown_fields=True):
    mutant: tuple[Mutant, ...]


@cache
def all_mutants() -> tuple[Mutant, ...]:
    """Return the mutants of all lists, in their order."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(LISTS.glob("*.toml"))]
    return tuple(mutant for text in texts for mutant in msgspec.convert(tomllib.loads(text), _List).mutant)


def all_rules() -> list[str]:
    """Return the rules of the conformance page, such as `000-18`."""
    return [f"{source}-{number}" for source, count in SOURCES.items() for number in range(1, count + 1)]


@cache
def numbered_tests() -> dict[str, list[str]]:
    """Return the pytest names of the tests of each rule, of each threat that has a mutant, and of the kit. Without those of
    `interop`, which need foreign packages, and of `faults`, which take minutes."""
    found: dict[str, list[str]] = {rule: [] for rule in (*all_rules(), *(mutant.rule for mutant in all_mutants()))}
    for test in all_tests():
        if not test.path.startswith(("interop/", "faults/")):
            numbers = [f"{source}-{number}" for source, number in rules_of(test.name)]
            kit = [CONFORM] if test.path.endswith("_conform.py") else []
            for rule in (*numbers, *kit, *(f"{THREAT}{number}" for number in test.threats)):
                if rule in found:
                    found[rule].append(f"tests/{test.path}::{test.name}")
    return found
