"""`treaty evidence` and `treaty verify FILE`: who agreed on a protocol, against a registry on a socket, and offline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from http_api import serving
from ports import free_port
from registries import TOPIC, Publication, Web, log, publication, publish
from signers import Signer, domain_signer

from treaty_client.audit.dossier import verify_dossier
from treaty_client.policy import Policy
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_client.registries.trust import TrustedRegistries
from treaty_command.main import main
from treaty_consensus import kinds
from treaty_consensus.canonical import hex_digest
from treaty_registry.registry import Registry

NAMES = ("alpha", "bravo", "charlie", "delta")


class Scene:
    """A protocol on which four agents agreed in a ring, of which one rotated its key since."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self.agents = home, tuple(domain_signer(f"{name}.example") for name in NAMES)
        self.protocol: Publication = publication(self.agents[0])
        self._capsys = capsys

    async def run(self, *arguments: str) -> str:
        await asyncio.to_thread(main, [*arguments, "--home", str(self.home)])
        return self._capsys.readouterr().out

    def read(self, file: Path) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(file.read_bytes())
        return value

    def refused(self, value: dict[str, Any]) -> tuple[int, str]:
        """The step and the code with which a changed file is refused."""
        with pytest.raises(VerificationFailed) as failure:
            verify_dossier(json.dumps(value).encode(), TrustedRegistries(self.home), Policy())
        return failure.value.step.value, failure.value.code


@pytest.fixture
async def scene(
    registry: Registry, web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    monkeypatch.setenv("COLUMNS", "240")
    made = Scene(tmp_path / "home", capsys)
    web.serve(*made.agents)
    await publish(registry, made.agents[0], made.protocol)
    for epoch in range(2):
        for number, one in enumerate(made.agents):
            pair, nid = (one, made.agents[(number + 1) % 4]), hex_digest(b"%d %d" % (epoch, number))
            await log(registry, report(registry, made, nid, epoch), *pair)
        await registry.decide()
    async with serving(registry, free_port()) as url:
        await made.run("trust", "add", f"{url}#{registry.log_key}")
        yield made


def report(registry: Registry, scene: Scene, nid: str, epoch: int, outcome: Any = "agreed") -> kinds.Report:
    document = scene.protocol.body.document.sha256
    return kinds.Report(TOPIC, nid, document, outcome, epoch, registry.head.note.decode())


async def test_one_file_shows_who_agreed(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "evidence.json"
    written = json.loads(await scene.run("evidence", scene.protocol.body.uri, "--output", str(file), "--json"))
    assert written["pairs"] == 3 and {did for each in written["reports"] for did in each["parties"]} == {
        agent.did for agent in scene.agents
    }
    assert (written["decision"]["epoch"], written["decision"]["pairs"]) == (1, 4)
    assert "consistency" not in scene.read(file)
    checked = json.loads(await scene.run("verify", str(file), "--json"))
    assert {**checked, "file": str(file)} == written
    text = await scene.run("verify", str(file))
    assert "3 signed reports, the newest of each agent, show that 4 agents agreed on it" in text and "4 pairs of" in text
    before = file.read_bytes()
    with pytest.raises(SystemExit):
        await scene.run("evidence", scene.protocol.body.uri, "--output", str(file))
    assert file.read_bytes() == before


async def test_a_rotated_key_and_a_failed_negotiation(scene: Scene, registry: Registry, web: Web, tmp_path: Path) -> None:
    alpha, bravo, *_ = scene.agents
    renamed = Signer(alpha.did, f"{alpha.did}#key-2", alpha.private_key)
    web.serve(renamed)
    await log(registry, report(registry, scene, hex_digest(b"after"), 2), renamed, bravo)
    await log(registry, report(registry, scene, hex_digest(b"failed"), 2, "failed"), renamed, bravo)
    file = tmp_path / "evidence.json"
    written = json.loads(await scene.run("evidence", scene.protocol.body.uri, "--output", str(file), "--json"))
    assert max(each["epoch"] for each in written["reports"]) == 2 and written["pairs"] == 3


@pytest.mark.threat(30)
async def test_a_changed_file_is_refused(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "evidence.json"
    await scene.run("evidence", scene.protocol.body.uri, "--output", str(file))
    original = scene.read(file)
    reports, leaves = original["reports"], original["leaves"]
    changes = {
        "another leaf": [{**reports[0], "leaf": reports[1]["leaf"]}],
        "another index": [{**reports[0], "index": reports[0]["index"] + 1}],
        "a statement that is no report": [leaves[-1]],
        "twice": [reports[0], reports[0]],
    }
    assert scene.refused({**original, "reports": changes["another leaf"]})[0] == 3
    assert scene.refused({**original, "reports": changes["another index"]})[0] == 3
    assert scene.refused({**original, "reports": changes["a statement that is no report"]}) == (4, "bundle.form")
    assert scene.refused({**original, "reports": changes["twice"]}) == (1, "bundle.form")
    # Without the identities of a reporter its signature proves nothing.
    own = [leaf for leaf in leaves if leaf["index"] != leaves[-1]["index"]]
    assert scene.refused({**original, "leaves": [leaf for leaf in own if leaf["index"] in (0, 1)]})[0] in (4, 5, 10)
    assert verify_dossier(file.read_bytes(), TrustedRegistries(scene.home), Policy()).agreements


async def test_a_protocol_without_reports_has_none(scene: Scene, registry: Registry, tmp_path: Path) -> None:
    other = publication(scene.agents[1], "other")
    await publish(registry, scene.agents[1], other)
    file = tmp_path / "evidence.json"
    written = json.loads(await scene.run("evidence", other.body.uri, "--output", str(file), "--json"))
    assert (written["pairs"], written["reports"], written["hash"]) == (0, [], other.body.document.sha256)
