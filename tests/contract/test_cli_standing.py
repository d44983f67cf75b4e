"""`treaty standing` and `treaty speakers`, against a registry on a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from http_api import serving
from ports import free_port
from registries import TOPIC, Web, log, publication, publish
from signers import Signer, domain_signer, key_signer

from treaty_command.main import main
from treaty_consensus import kinds
from treaty_consensus.canonical import hex_digest
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.sigstore_leaf import CertificateLeaf
from treaty_registry.catalogue import standing
from treaty_registry.registry import Registry

Treaty = Callable[..., Any]


@pytest.fixture
async def treaty(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Treaty]:
    """Runs a command in a home that trusts the registry, on a wide terminal; gives what it printed."""
    monkeypatch.setenv("COLUMNS", "240")
    home = ["--home", str(tmp_path / "home")]
    async with serving(registry, free_port()) as url:

        async def run(*arguments: str) -> str:
            await asyncio.to_thread(main, [*arguments, *home])
            return capsys.readouterr().out

        await run("trust", "add", f"{url}#{registry.log_key}")
        yield run


@pytest.fixture
async def agents(registry: Registry, web: Web) -> tuple[Signer, ...]:
    """Four agents who confirm one another: each has earned an eighth. What they speak is published by the first of them."""
    signers = tuple(domain_signer(f"{name}.example") for name in ("alpha", "bravo", "charlie", "delta"))
    web.serve(*signers)
    publication_ = publication(signers[0])
    await publish(registry, signers[0], publication_)
    for number, pair in enumerate((signers[:2], signers[2:])):
        nid, document = hex_digest(b"%d" % number), publication_.body.document.sha256
        await log(registry, kinds.Report(TOPIC, nid, document, "agreed", 0, registry.head.note.decode()), *pair)
    await registry.decide()
    return signers


async def test_every_credit_is_explained(treaty: Treaty, agents: tuple[Signer, ...]) -> None:
    alpha, bravo, charlie, _ = agents
    output = await treaty("standing", alpha.did)
    assert f"0.125 full credits  {alpha.did}" in output
    assert f"an independent pair with {charlie.did} reported it too" in output
    assert TOPIC in output
    value = json.loads(await treaty("standing", bravo.did, "--json"))
    assert (value["principal"], value["epoch"], value["standing"]) == (bravo.did, 0, str(ONE // 8))
    assert [(credit["with"], credit["now"]) for credit in value["credits"]] == [(charlie.did, str(ONE // 8))]
    nobody = await treaty("standing", "did:wba:nobody.example")
    assert "No credits." in nobody
    assert "did:wba:nobody.example weighs nothing at the end of epoch 0: it had no logged identity then" in " ".join(
        nobody.split()
    )
    assert int(value["weight"]) == ONE and "weighs nothing" not in output


async def test_a_did_key_has_no_vote_and_learns_how_to_get_one(
    treaty: Treaty, agents: tuple[Signer, ...], tmp_path: Path
) -> None:
    (tmp_path / "home" / "policy.toml").write_text("max_age = 1_000_000_000\n")  # the registry's clock stands still
    data = json.loads(await treaty("identity", "new", "--json"))
    for command in (("standing",), ("topic", TOPIC, "--explain")):
        text = " ".join((await treaty(*command)).split())
        assert f"{data['did']} weighs nothing: a did:key costs nothing, so it has no vote" in text
        assert "treaty identity new DOMAIN" in text
    assert "weighs nothing" not in await treaty("topic", TOPIC)


async def test_nothing_is_said_of_a_domain_before_the_first_decision(treaty: Treaty) -> None:
    output = await treaty("standing", "did:wba:alpha.example")
    assert "no epoch is decided yet" in output and "weighs nothing" not in output
    assert "weighs nothing" in await treaty("standing", "did:key:z6MkjyTpHx6BmHdLnnD7G9qotifQ5vGQMM5YpQxoauiQAjc4")


async def test_all_pages_of_credits_are_shown(
    treaty: Treaty, registry: Registry, agents: tuple[Signer, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "MAX_CREDITS", 1)
    for number, pair in enumerate((agents[:2], agents[2:])):
        body = kinds.Report("other", hex_digest(b"other %d" % number), "ab" * 32, "agreed", 1, registry.head.note.decode())
        await log(registry, body, *pair)
    await registry.decide()
    value = json.loads(await treaty("standing", agents[0].did, "--json"))
    assert [credit["topic"] for credit in value["credits"]] == ["other", TOPIC]
    assert value["next"] is None
    assert value["standing"] == str(sum(int(credit["now"]) for credit in value["credits"]))


async def test_speakers_are_found_by_hash_by_uri_and_by_topic(treaty: Treaty, agents: tuple[Signer, ...]) -> None:
    body = publication(agents[0]).body
    answers = [json.loads(await treaty("speakers", name, "--json")) for name in (body.document.sha256, body.uri, TOPIC)]
    assert answers[0] == answers[1] == answers[2]
    assert {speaker["did"] for speaker in answers[0]["speakers"]} == {agent.did for agent in agents}
    output = await treaty("speakers", TOPIC)
    assert all(agent.did in output for agent in agents)
    assert output.count("0.125") == 4
    assert "No agent has reported another/topic here." in await treaty("speakers", "another/topic")


async def test_a_name_that_means_nothing_is_refused(treaty: Treaty, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        await treaty("speakers", "https://registry.example/protocols/nobody.example/x/1.0", "--json")
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "protocol.unknown"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("reports", "sentence"),
    [
        (
            (),
            "was reported by no pair of agents. A candidate needs 3 pairs: 3 more pairs must report it before the epoch closes.",
        ),
        (
            ("alpha bravo", "alpha bravo", "bravo charlie", "alpha key"),
            "was reported by 2 pairs: did:wba:alpha.example with did:wba:bravo.example; did:wba:bravo.example with "
            "did:wba:charlie.example. A candidate needs 3 pairs: 1 more pair must report it before the epoch closes. "
            "(Not counted: 1 pair with a did:key.)",
        ),
        (
            ("alpha bravo", "bravo charlie", "alpha charlie"),
            "A candidate needs 3 pairs: that is enough, if these agents have weight when the epoch closes.",
        ),
    ],
)
async def test_a_starving_topic_names_its_missing_pairs(
    treaty: Treaty, registry: Registry, web: Web, tmp_path: Path, reports: tuple[str, ...], sentence: str
) -> None:
    (tmp_path / "home" / "policy.toml").write_text("max_age = 1_000_000_000\n")  # the registry's clock stands still
    known = {name: domain_signer(f"{name}.example") for name in ("alpha", "bravo", "charlie")}
    web.serve(*known.values())
    statement = publication(known["alpha"])
    await publish(registry, known["alpha"], statement)
    await registry.append(CertificateLeaf(bytes(600)).encode())  # no statement
    for number, pair in enumerate(reports):
        nid, document = hex_digest(b"%d" % number), statement.body.document.sha256
        signers = [known.get(name) or key_signer(name) for name in pair.split()]
        await log(registry, kinds.Report(TOPIC, nid, document, "agreed", 0, registry.head.note.decode()), *signers)
    assert sentence in " ".join((await treaty("topic", TOPIC, "--explain")).split())
    value = json.loads(await treaty("topic", TOPIC, "--explain", "--json"))
    assert value["needed_pairs"] == 3
    domains = {tuple(sorted(known[name].did for name in pair.split())) for pair in reports if "key" not in pair}
    assert {tuple(pair) for pairs in value["pairs"].values() for pair in pairs} == domains
    assert "A candidate needs" not in await treaty("topic", TOPIC)
