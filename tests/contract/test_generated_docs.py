"""The generated parts of the documentation are as the code says, and each rule and threat has a test."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from cyclopts import App
from docs.generate import LISTS, ROOT, SITE, DriftError, __main__, rules, threats
from docs.generate.parts import completed, drifted, renewed
from docs.generate.suite import all_tests

import treaty_agent
import treaty_client
import treaty_handler
from treaty_command.commands import app as treaty
from treaty_command.commands import common_options
from treaty_registry.cli.commands import app as treaty_registry

SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([a-z_]+/test_\w+\.py)::(test_\w+)`")


def test_nothing_drifted() -> None:
    assert drifted() == [], "run `make docs`"


def test_a_page_that_drifted_is_found_and_written_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("Before.\n<!-- generated: numbers -->\n1\n<!-- end -->\nAfter.\n")
    monkeypatch.setattr("docs.generate.ROOT", tmp_path)
    monkeypatch.setattr("docs.generate.parts.GENERATORS", {"numbers": lambda: "1\n2\n"})
    monkeypatch.setattr("docs.generate.parts.SITE", {})
    assert drifted() == [page]
    assert renewed() == {page: "Before.\n<!-- generated: numbers -->\n1\n2\n<!-- end -->\nAfter.\n"}
    monkeypatch.setattr(__main__, "ROOT", tmp_path)
    assert __main__.main(["--check"]) == 1
    assert __main__.main([]) == 0
    assert (drifted(), __main__.main(["--check"])) == ([], 0)


@pytest.mark.parametrize(
    "text",
    [
        "<!-- generated: unknown -->\n<!-- end -->\n",
        "<!-- generated: numbers -->\nno end\n",
        "<!-- site: numbers -->\n<!-- end -->\n",
        "<!-- generated: numbers -->\n<!-- end -->\n" * 2,
        "no part\n",
    ],
)
def test_parts_and_generators_that_do_not_match_are_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_text(text)
    monkeypatch.setattr("docs.generate.ROOT", tmp_path)
    monkeypatch.setattr("docs.generate.parts.GENERATORS", {"numbers": lambda: "1"})
    monkeypatch.setattr("docs.generate.parts.SITE", {})
    with pytest.raises(DriftError):
        renewed()


def test_the_site_has_the_generated_part_in_place_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("docs.generate.parts.SITE", {"numbers": lambda: "1\n2\n"})
    text = "Before.\n<!-- site: numbers -->\nShort.\n<!-- end -->\n<!-- generated: other -->\nKept.\n<!-- end -->\n"
    assert completed(text) == text.replace("Short.", "1\n2")


@pytest.mark.parametrize("package", [treaty_agent, treaty_client, treaty_handler], ids=lambda package: package.__name__)
def test_every_public_name_is_in_the_reference(package: ModuleType) -> None:
    page = completed((ROOT / f"docs/reference/{package.__name__.replace('_', '-')}.md").read_text(encoding="utf-8"))
    names = sorted(name for name in package.__all__ if not name.startswith("_"))
    lines = re.findall(r"^- `(?:async )?(\w+)[^`]*`: ?(.*)$", page, re.MULTILINE)
    also = re.findall(r"`(\w+)`", page.partition("\nAlso, ")[2])
    assert sorted([*(name for name, _ in lines), *also]) == names
    assert [name for name, meaning in lines if not meaning] == []


def test_a_class_has_its_methods_with_those_of_its_parts() -> None:
    text = SITE["python-agent"]()
    for call in ("connect(address, topic, ", "async serve(host, port, ", "async aclose()"):
        assert re.search(rf"^- `Agent\(.*\n(?:  - .*\n)*  - `{re.escape(call)}", text, re.MULTILINE)
    assert SITE["python-client"]().count("`async fetch(name") == 1


@pytest.mark.parametrize(("program", "page_part"), [(treaty, "commands-treaty"), (treaty_registry, "commands-registry")])
def test_every_command_is_in_the_reference(program: App, page_part: str) -> None:
    text = SITE[page_part]()
    commands = [name for name in program if not name.startswith("-")]
    assert len(commands) > 5
    assert [name for name in commands if f"\n### {program.name[0]} {name}\n" not in text] == []


def test_each_command_has_its_options_once_and_an_example() -> None:
    text = SITE["commands-treaty"]()
    assert [option for option in common_options() if len(re.findall(rf"^\* `--{option}\b", text, re.MULTILINE)) != 1] == []
    assert len(re.findall(r"^\* `--database", SITE["commands-registry"](), re.MULTILINE)) == 1
    assert "*[env: TREATY_HOME]*" in text
    sections = re.split(r"^#{3,4} (?=treaty )", text, flags=re.MULTILINE)[1:]
    assert len(sections) > 40
    lacking = {section.partition("\n")[0] for section in sections if "\nExample: `treaty " not in section}
    assert lacking == {
        f"treaty {name}" for name in ("conform", "identity", "oci", "policy", "transcript", "trust", "ucp", "withdraw")
    }


@pytest.mark.parametrize("source", rules.SOURCES)
def test_every_rule_has_a_row_and_a_test(source: str) -> None:
    table = rules.rows(source)
    assert [row.number for row in table] == list(range(1, rules.SOURCES[source] + 1))
    assert [row.number for row in table if not row.tests] == []
    assert {row.keyword for row in table} <= {"M", "S", "O", "–"}


def test_every_numbered_test_has_a_rule() -> None:
    numbered = [rule for test in all_tests() for rule in rules.rules_of(test.name)]
    assert numbered
    assert [(source, number) for source, number in numbered if not 1 <= number <= rules.SOURCES[source]] == []


def test_numbers_in_names_are_read() -> None:
    assert rules.rules_of("test_000_33_and_34_without_code") == [("000", 33), ("000", 34)]
    assert rules.rules_of("test_000_45_46_a_question") == [("000", 45), ("000", 46)]
    assert rules.rules_of("test_001_01_and_09_to_11_all") == [("001", number) for number in (1, 9, 10, 11)]
    assert rules.rules_of("test_the_table") == []


@pytest.mark.parametrize("row", ["2. a rule without a keyword", "2. **M** a rule `unit/test_x.py::test_y`"])
def test_a_row_of_another_form_is_not_lost(monkeypatch: pytest.MonkeyPatch, row: str) -> None:
    monkeypatch.setattr(rules, "present", lambda name: f"1. **M** a rule\n{row}\n")
    with pytest.raises(DriftError):
        rules.rows("000")


def test_every_threat_has_a_number_an_answer_and_a_test() -> None:
    rows = threats.rows()
    numbers = [row.number for row in rows]
    assert len(numbers) == len(set(numbers)) > 100
    assert [row.number for row in rows if not row.tests] == []
    assert {number for test in all_tests() for number in test.threats} <= set(numbers)


def test_every_attack_that_is_tested_has_a_row() -> None:
    attacks = {test.path for test in all_tests() if test.path.startswith("attack/")}
    covered = {test.path for test in all_tests() if test.threats}
    assert attacks
    assert attacks <= covered


def test_every_test_that_a_page_names_exists() -> None:
    existing = {(test.path, test.name) for test in all_tests()}
    references = NAMED.findall(SECURITY)
    assert len(references) == SECURITY.count("::"), "a reference is written in another way"
    assert set(references) <= existing


def test_the_lists_of_the_site_have_the_tests_of_each_threat_and_rule() -> None:
    assert "attack/test_tampered_wheel.py::test_a_changed_wheel_is_refused" in str(LISTS["threats"]()[0]["tests"])
    assert "unit/test_meta_frame.py::test_000_01_" in str(LISTS["rules-000"]()[0]["tests"])
    assert 'data-list="lists/threats.json"' in completed(SECURITY)


def test_the_attacks_of_the_demo_are_marked() -> None:
    assert SECURITY.count("(*demo*)") == 3


def test_security_invents_no_address() -> None:
    assert not re.search(r"[\w.]+@[\w-]+\.[\w.]+|https?://", SECURITY)
    assert "private security advisory" in SECURITY
