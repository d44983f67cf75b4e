"""The alerts, the dashboard, and the runbook fit the metrics that a registry serves."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import yaml
from alert_cases import CASES, SLOWLY_FULL
from debian_programs import debian_program
from http_api import serving
from mirrors import mirrored
from ports import free_port
from postgres_server import Postgres
from registries import grant
from signers import NOW, ORIGIN, key_signer

from treaty_consensus.errors import TreatyError, Unavailable
from treaty_registry.log.tile_copies import TileCopies
from treaty_registry.log.tile_copy import TileCopy
from treaty_registry.mirroring.server import MirrorState
from treaty_registry.observation import LogState, RegistryState, metrics_served
from treaty_registry.registry import Registry
from treaty_registry.serving.views import Views
from treaty_registry.settings import MetricsAddress
from treaty_registry.telemetry.measures import PROCESS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARD = DEPLOY / "grafana" / "treaty-registry.json"
_METRIC = re.compile(r"\b(?:treaty|process)_[a-z_]+\b")
_SUFFIX = re.compile(r"_(?:bucket|sum|count)$")
_OF_THE_LEADER = (
    "epoch",
    "epoch_lag_seconds",
    "tiles_time_seconds",
    "witness_failing",
    "witness_lag_leaves",
    "witness_lag_seconds",
)
_VARIABLES = {"$__rate_interval": "5m", "$job": "treaty", "$instance": ".*"}


def promtool(*arguments: object) -> None:
    done = subprocess.run(
        [debian_program("promtool", "prometheus"), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    boards: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in boards if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    for rule in rules():
        yield rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"]


@pytest.fixture
async def served(registry: Registry, postgres: Postgres, tmp_path: Path) -> dict[str, tuple[str, str]]:
    """The metrics that a registry and its mirror serve: name → kind and meaning."""
    loop = asyncio.get_running_loop()
    registry.tiles = TileCopies([TileCopy("memory:///tiles", lambda: registry.keys, registry.reader)], 0)
    async with (
        postgres.fresh() as database,
        serving(registry, free_port()) as url,
        mirrored(tmp_path / "mirror", database, registry, url) as mirror,
    ):
        of_mirror = await scraped(MirrorState(mirror, Views(mirror), loop))
        assert samples(of_mirror, "treaty_mirror_failing", "treaty_mirror_stopped") == {"0.0"}
        text = of_mirror + await scraped(RegistryState(registry, Views(registry), loop))
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M))
    return {name: (kinds[name], about) for name, about in re.findall(r"^# HELP (\S+) (.*)$", text, re.M)}


async def scraped(state: LogState) -> str:
    port = free_port()
    async with metrics_served(MetricsAddress("127.0.0.1", port), state), httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(f"http://127.0.0.1:{port}/metrics")).text


async def test_a_follower_hides_nothing_that_the_leader_knows(registry: Registry) -> None:
    registry.tiles = TileCopies([TileCopy("memory:///tiles", lambda: registry.keys, registry.reader)], 0)
    state = RegistryState(registry, Views(registry), asyncio.get_running_loop())
    leading = {metric.name for metric in state.gauges()}
    registry.leader.resign()
    following = {metric.name for metric in state.gauges()}
    assert leading - following == {f"treaty_{name}" for name in _OF_THE_LEADER}
    assert "treaty_leader" in following


async def test_a_fault_of_the_record_is_named_as_its_own(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no route to the store")

    before, size = outages("head"), registry.head.size
    with monkeypatch.context() as patch:
        patch.setattr(registry.leader.fence, "advance", fail)
        patch.setattr(registry.leader.fence, "reread", fail)
        (outcome,) = await registry.submit([leaf(1)])
        assert isinstance(outcome, TreatyError) and outcome.code == "log.unavailable"
        fault = registry.leader.fault
        assert isinstance(fault, TreatyError) and fault.code == "fence.failed"
        assert "no route to the store" in fault.message, "the log has the reason"
        with pytest.raises(Unavailable) as refused:
            await registry.check_ready()
        assert refused.value.code == "fence.failed"
        assert str(registry.leader.fence.place) not in refused.value.message, "strangers read it"
        assert outages("head") > before
        assert registry.head.size == size
    async with asyncio.timeout(30):
        while not await registry.is_ready():  # noqa: ASYNC110 (it tries again each second)
            await asyncio.sleep(0.1)


async def test_readiness_names_the_database_first(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise asyncpg.InterfaceError("hangs")

    monkeypatch.setattr(registry.pool, "fetchval", fail)
    registry.leader.resign()
    registry.leader.fault = TimeoutError()
    with pytest.raises(Unavailable) as refused:
        await registry.check_ready()
    assert refused.value.code == "database.unreachable"


def leaf(number: int) -> bytes:
    writer = key_signer("writer")
    return writer.statement(grant(writer, number), log=ORIGIN, issued=NOW).leaf


def outages(store: str) -> float:
    return PROCESS.get_sample_value("treaty_store_outages_total", {"store": store}) or 0.0


def samples(text: str, *names: str) -> set[str]:
    return {value for name in names for value in re.findall(rf"^{name} (\S+)$", text, re.M)}


async def test_alerts_and_dashboard_name_metrics_that_exist(served: dict[str, tuple[str, str]]) -> None:
    named = {name if name in served else _SUFFIX.sub("", name) for text in expressions() for name in _METRIC.findall(text)}
    assert len(named) > 30
    assert named - set(served) == set()


async def test_each_metric_says_its_meaning(served: dict[str, tuple[str, str]]) -> None:
    mine = {name: about for name, (_, about) in served.items() if name.startswith("treaty_") and not name.endswith("_created")}
    assert len(mine) > 40
    assert [name for name, about in mine.items() if not about.endswith(".")] == []


def test_each_alert_has_an_entry_in_the_runbook() -> None:
    runbook = (ROOT / "docs" / "guides" / "runbook.md").read_text()
    provocations = (ROOT / "tests" / "game_day" / "provocations.md").read_text()
    entries = re.findall(r"^## (Treaty\w+)$", runbook, re.M)
    assert entries == [rule["alert"] for rule in rules()]
    for rule in rules():
        name, severity = rule["alert"], rule["labels"]["severity"]
        assert rule["annotations"]["runbook"] == f"docs/guides/runbook.md#{name.lower()}"
        assert f"## {name}\n\n*{severity.capitalize()}.*" in runbook
        assert provocations.count(f"\n- **{name}**: ") == 1, name


@pytest.mark.deep
def test_each_alert_fires_on_its_fault_and_ends(tmp_path: Path) -> None:
    promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yml")
    cases = {
        "rule_files": [str(DEPLOY / "prometheus" / "alerts.yml")],
        "evaluation_interval": "30s",
        "tests": [*(case.test() for case in CASES), SLOWLY_FULL],
    }
    (tmp_path / "cases.yml").write_text(yaml.safe_dump(cases))
    promtool("test", "rules", tmp_path / "cases.yml")


@pytest.mark.deep
def test_alertmanager_takes_its_configuration() -> None:
    amtool = debian_program("amtool", "prometheus-alertmanager")
    done = subprocess.run([amtool, "check-config", DEPLOY / "prometheus" / "alertmanager.yml"], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case() -> None:
    fired = {name for case in CASES for name in case.fires}
    assert {rule["alert"] for rule in rules()} == fired | {"TreatyWatchdog"}


def test_a_cause_is_one_page() -> None:
    """Of the alerts of one fault, Alertmanager sends one page: the others are held back by the rules of inhibition."""
    severity = {rule["alert"]: rule["labels"]["severity"] for rule in rules()}
    config = yaml.safe_load((DEPLOY / "prometheus" / "alertmanager.yml").read_text())
    inhibitions = [(names(rule["source_matchers"]), names(rule["target_matchers"])) for rule in config["inhibit_rules"]]
    assert {name for sources, targets in inhibitions for name in sources | targets} <= set(severity)
    assert not any(sources & targets for sources, targets in inhibitions), "an alert must not hold itself back"
    for case in CASES:
        fires = set(case.fires)
        sent = {name for name in fires if not any(sources & fires and name in targets for sources, targets in inhibitions)}
        assert sum(severity[name] == "page" for name in sent) <= 1, case.name
        assert not sent or len(sent) == 1, case.name


def names(matchers: list[str]) -> set[str]:
    (matcher,) = matchers
    return set(re.findall(r"Treaty\w+", matcher))


@pytest.mark.deep
def test_prometheus_takes_each_query_of_the_dashboard(tmp_path: Path) -> None:
    found = list(expressions())
    for name, value in _VARIABLES.items():
        found = [text.replace(name, value) for text in found]
    queries = [{"record": f"query:{number}", "expr": text} for number, text in enumerate(found)]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": queries}]}))
    promtool("check", "rules", tmp_path / "queries.yml")


def test_the_panels_of_the_dashboard_are_whole() -> None:
    whole = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in whole["panels"]]
    assert len(set(ids)) == len(ids)
    places = [panel["gridPos"] for panel in whole["panels"]]
    cells = [(x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
    assert len(set(cells)) == len(cells), "two panels overlap"
    assert max(x for x, _ in cells) == 23
    assert all(panel["title"] and panel["targets"] for panel in panels())
    assert {variable["name"] for variable in whole["templating"]["list"]} == {"datasource", "job", "instance"}
