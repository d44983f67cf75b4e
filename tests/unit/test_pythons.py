"""`make test-pythons`: which Pythons are found, and which files of tests a sample has."""

from __future__ import annotations

import re
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import pythons
from shards import TESTS, shards


def program(path: Path, version: str, status: int = 0) -> Path:
    """A Python that says a version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version.rpartition('.')[0]} {version}\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_the_newest_release_of_pyenv_is_found_if_path_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert pythons.find("3.13") is None
    for release in ("3.13.9", "3.13.10", "3.13-dev", "3.1.3"):
        program(tmp_path / "versions" / release / "bin" / "python", release)
    newest = tmp_path / "versions" / "3.13.10" / "bin" / "python"
    assert pythons.find("3.13") == (newest, "3.13.10")
    program(tmp_path / "bin" / "python3.13", "3.13.2", status=127)
    assert pythons.find("3.13") == (newest, "3.13.10"), "a program of pyenv's that is not switched on"
    own = program(tmp_path / "bin" / "python3.13", "3.13.2")
    assert pythons.find("3.13") == (own, "3.13.2")


def test_a_version_that_fails_or_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pythons, "find", lambda version: None if version == "3.14" else (Path("python"), f"{version}.1"))
    failed = {"3.11": [], "3.12": ["environment"], "3.13": ["demo", "sample"]}
    monkeypatch.setattr(pythons, "failures", lambda version, python, parts: failed[version])
    monkeypatch.setattr(sys, "argv", ["pythons.py"])
    assert pythons.main() == 1
    *_, first, second, third, fourth = capsys.readouterr().out.splitlines()
    assert first.split(None, 1)[1] == "3.11.1 passed: demo, package, sample"
    assert second.split(None, 1)[1] == "3.12.1 failed: environment"
    assert third.split(None, 1)[1] == "3.13.1 failed: demo, sample"
    assert fourth.split(None, 1)[1] == "not found"
    monkeypatch.setattr(sys, "argv", ["pythons.py", "--only", "3.14"])
    assert pythons.main() == 1
    monkeypatch.setattr(sys, "argv", ["pythons.py", "--only", "3.11"])
    assert pythons.main() == 0


def test_the_package_promises_the_versions_that_are_looked_for() -> None:
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = [name.rpartition(" ")[2] for name in project["classifiers"] if re.search(r"Python :: 3\.\d+$", name)]
    assert promised == list(pythons.VERSIONS[: len(promised)])
    assert project["requires-python"] == f">={pythons.VERSIONS[0]}"


def test_each_file_is_in_one_of_equal_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [file for _, files in shards([TESTS]) for file in files]
    samples = []
    for part in range(5):
        monkeypatch.setenv("TREATY_SAMPLE", f"{part}/5")
        samples.append([file for _, files in shards([TESTS]) for file in files])
    assert sorted(chain(*samples)) == sorted(whole)
    assert all(len(whole) / 8 < len(sample) < len(whole) / 3 for sample in samples)
    monkeypatch.setenv("TREATY_SAMPLE", "5/5")
    with pytest.raises(SystemExit, match="from 0 to N - 1"):
        shards([TESTS])
