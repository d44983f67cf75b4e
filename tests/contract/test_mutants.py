"""The list of mutants is complete and applies to the present code. `make mutants` runs it."""

from __future__ import annotations

from collections import Counter

import pytest
from mutants import CONFORM, PACKAGES, ROOT, THREAT, Mutant, all_mutants, all_rules, numbered_tests


def test_every_rule_has_a_mutant_and_tests_to_kill_it() -> None:
    assert {mutant.rule for mutant in all_mutants() if not mutant.rule.startswith((THREAT, CONFORM))} == set(all_rules())
    assert [rule for rule, tests in numbered_tests().items() if not tests] == []


@pytest.mark.parametrize("mutant", all_mutants(), ids=lambda mutant: mutant.rule)
def test_a_mutant_applies(mutant: Mutant) -> None:
    assert mutant.file.partition("/")[0] in PACKAGES
    assert mutant.breaks.endswith(".")
    assert mutant.applied_to((ROOT / mutant.file).read_text(encoding="utf-8"))


def test_no_mutant_is_listed_twice_or_changes_nothing() -> None:
    assert max(Counter((mutant.file, mutant.was, mutant.broken) for mutant in all_mutants()).values()) == 1
    assert [mutant for mutant in all_mutants() if mutant.was == mutant.broken] == []


def test_a_line_that_is_gone_or_not_unique_is_an_error() -> None:
    mutant = Mutant("000-1", "x.py", "one", "two", "One is two.")
    assert mutant.applied_to("# one\n") == "# two\n"
    for text in ("", "one, one"):
        with pytest.raises(ValueError, match=r"x\.py"):
            mutant.applied_to(text)
