"""`treaty trust explain` and `forget`: what registries proved, and where they contradict themselves, for people and machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fetching import fetcher, known_in, refused_at
from simulated_registry import ALICE, NAME, TOPIC, uri_of, with_echo

from treaty_command.main import main
from treaty_consensus import kinds


@pytest.fixture
async def home(tmp_path: Path) -> Path:
    """A home that a registry has told two documents for one version, and then left a handler out."""
    registry = with_echo()
    registry.attach(release="2")
    async with fetcher(registry, tmp_path) as agent:
        await agent.fetch(uri_of())
        await agent.topic(TOPIC)
    publishes, handlers = (
        [index for index, statement in registry.statements() if isinstance(statement.body, kind)]
        for kind in (kinds.Publish, kinds.Handler)
    )
    registry.left_out = {handlers[-1]}
    registry.now += 7200
    await refused_at(10, registry, tmp_path)
    registry.left_out = {*publishes, *handlers}
    del registry.facts[f"protocol/{uri_of()}"]
    registry.publish(document=b"# Another\n")
    await refused_at(10, registry, tmp_path)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], home: Path, *arguments: str) -> dict[str, Any]:
    main(["trust", *arguments, "--home", str(home), "--json"])
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def refused(capsys: pytest.CaptureFixture[str], home: Path, *arguments: str, status: int = 1) -> str:
    with pytest.raises(SystemExit) as end:
        said(capsys, home, *arguments)
    assert end.value.code == status
    return str(json.loads(capsys.readouterr().out)["error"]["code"])


def test_what_was_proved_of_a_protocol_and_what_contradicts_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (record,) = said(capsys, home, "explain", uri_of())["registries"]
    assert record["origin"] == NAME.origin
    assert [leaf["type"] for leaf in record["leaves"]] == ["publish", "handler", "handler"]
    assert all(leaf["proof"] and leaf["checkpoint"].startswith(NAME.origin) for leaf in record["leaves"])
    assert [each["code"] for each in record["contradictions"]] == 2 * ["memory.contradicted"]
    excludes = {each["excludes"]: each for each in record["contradictions"]}
    assert set(excludes) == {False, True}, "of the handler and of the publication"
    (theirs,) = [leaf for leaf in excludes[True]["shown"] if leaf["type"] == "publish"]
    assert theirs["index"] not in [leaf["index"] for leaf in record["leaves"]]
    assert all(Path(each["file"]).is_file() for each in excludes.values())
    main(["trust", "explain", uri_of(), "--home", str(home)])
    printed = capsys.readouterr().out
    assert "proved two facts that exclude each other" in printed and "left out a fact that it had proved" in printed
    assert f"{ALICE.did} publishes {uri_of()}" in printed


def test_a_topic_and_a_did_are_explained_too(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (topic,) = said(capsys, home, "explain", TOPIC)["registries"]
    assert [leaf["type"] for leaf in topic["leaves"]] == ["publish"]
    (did,) = said(capsys, home, "explain", ALICE.did, "--registry", NAME.origin)["registries"]
    assert [leaf["type"] for leaf in did["leaves"]] == ["identity"] and ALICE.did in did["leaves"][0]["said"]


def test_a_file_that_proves_nothing_is_not_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (home / "evidence").iterdir():
        path.write_bytes(path.read_bytes().replace(b'"index":', b'"index":1'))
    (record,) = said(capsys, home, "explain", uri_of())["registries"]
    assert record["contradictions"] == []


def test_only_who_says_so_twice_forgets(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = known_in(home)
    assert refused(capsys, home, "forget", uri_of()) == "system.unconfirmed"
    assert refused(capsys, home, "forget", "No Subject", "--yes") == "memory.nothing"
    assert refused(capsys, home, "explain", "did:wba:nobody.example", status=5) == "memory.nothing"
    assert known_in(home) == before
    assert said(capsys, home, "forget", uri_of(), "--yes")["forgotten"] == 2, "its publication belongs to the topic, too"
    (record,) = said(capsys, home, "explain", uri_of())["registries"]
    assert record["leaves"] == [] and len(record["contradictions"]) == 2
