"""`treaty yank`, `deprecate`, `revoke`, `activate`, `grant`, `ungrant`, `withdraw`, against a registry on a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from http_api import serving
from ports import free_port
from registries import TOPIC, Web, contents, log, publication, publish
from signers import Signer, domain_signer, key_signer
from witness_process import witness_process

from treaty_command.main import main
from treaty_consensus import kinds
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Unavailable
from treaty_consensus.stamped import Stamped
from treaty_io.identity import Identity
from treaty_registry.registry import Registry


class Treaty:
    """The command, with a home of its own for each agent."""

    def __init__(self, homes: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._homes, self._capsys = homes, capsys

    async def says(self, who: str, *arguments: str) -> str:
        self._capsys.readouterr()
        await asyncio.to_thread(main, [*arguments, "--home", str(self._homes / who)])
        return " ".join(self._capsys.readouterr().out.split())

    async def told(self, who: str, *arguments: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(await self.says(who, *arguments, "--json"))
        return value

    async def refused(self, who: str, *arguments: str) -> str:
        with pytest.raises(SystemExit):
            await self.told(who, *arguments)
        return str(json.loads(self._capsys.readouterr().out)["error"]["code"])


@pytest.fixture
async def treaty(
    registry: Registry, web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str], alice: Signer, bob: Signer
) -> AsyncIterator[Treaty]:
    """Two agents that trust the registry: `alice`, and `bob`, a stranger to her namespace."""
    treaty = Treaty(tmp_path, capsys)
    async with serving(registry, free_port()) as url:
        for name in ("alice", "bob"):
            answer = await treaty.told(name, "identity", "new", f"{name}.example", "--document", str(tmp_path / f"{name}.json"))
            web.documents[answer["did"]] = (tmp_path / f"{name}.json").read_bytes()
            await treaty.says(name, "trust", "add", f"{url}#{registry.log_key}")
            (tmp_path / name / "policy.toml").write_text("max_age = 1_000_000_000\n")  # the registry's clock stands still
        yield treaty


def signer(homes: Path, name: str) -> Signer:
    """The agent of a home, to sign what no command signs."""
    identity = Identity.load(homes / name / "identity.json")
    return Signer(identity.did, identity.key_id, identity.private_key)


@pytest.mark.deep
async def test_a_protocol_is_deprecated_yanked_and_active_again(treaty: Treaty, registry: Registry, tmp_path: Path) -> None:
    own = signer(tmp_path, "alice")
    old, new = publication(own), publication(own, version="2.0")
    for statement in (old, new):
        await publish(registry, own, statement)
    uri, successor = old.body.uri, new.body.uri
    done = await treaty.told("alice", "deprecate", uri, "--successor", successor)
    assert (done["state"], done["successor"], done["index"]) == ("deprecated", successor, registry.head.size - 1)
    assert "deprecated" in await treaty.says("bob", "search", "--topic", TOPIC)
    assert f"deprecated, successor {successor}" in await treaty.says("bob", "topic", TOPIC)
    await treaty.says("alice", "yank", uri)
    answer = await treaty.told("bob", "search", "--topic", TOPIC)
    assert [each["uri"] for each in answer["protocols"]] == [successor]
    output = await treaty.told("bob", "topic", TOPIC)
    assert [(p["uri"], p["status"]) for p in output["protocols"]] == [(successor, "active")]
    assert [(p["uri"], p["status"]) for p in output["taken_back"]] == [(uri, "yanked")]
    assert f"{uri} yanked" in await treaty.says("bob", "topic", TOPIC)
    await treaty.says("alice", "revoke", uri)
    assert await treaty.refused("bob", "fetch", uri) in ("status.revoked", "policy.refused", "bundle.no-handler")
    await treaty.says("alice", "activate", uri)
    assert [p["status"] for p in (await treaty.told("bob", "topic", TOPIC))["protocols"]] == ["active", "active"]


async def test_nobody_elses_protocol_is_yanked(treaty: Treaty, registry: Registry, tmp_path: Path) -> None:
    own, stranger = signer(tmp_path, "alice"), signer(tmp_path, "bob")
    statement = publication(own)
    await publish(registry, own, statement)
    await publish(registry, stranger, publication(stranger))
    before = await contents(registry)
    for command in ("yank", "deprecate", "revoke", "activate"):
        assert await treaty.refused("bob", command, statement.body.uri) == "publish.not-entitled"
    assert await treaty.refused("bob", "yank", statement.body.uri, "--wheel", "00" * 32) == "statement.no-target"
    assert await treaty.refused("alice", "yank", statement.body.uri.replace("1.0", "9.9")) == "protocol.unknown"
    assert await treaty.refused("alice", "yank", "greeting") == "protocol.name"
    assert await treaty.refused("alice", "deprecate", statement.body.uri, "--successor", statement.body.uri) == "statement.form"
    missing = statement.body.uri.replace("1.0", "9.9")
    assert await treaty.refused("alice", "deprecate", statement.body.uri, "--successor", missing) == "protocol.unknown"
    assert await contents(registry) == before


async def test_a_grant_is_made_listed_and_taken_back(treaty: Treaty, registry: Registry, tmp_path: Path) -> None:
    own, guest = signer(tmp_path, "alice"), signer(tmp_path, "bob")
    assert "No grant" in await treaty.says("alice", "grants")
    assert await treaty.refused("alice", "ungrant", guest.did) == "statement.no-target"
    answer = await treaty.told("alice", "grant", guest.did)
    assert (answer["namespace"], answer["to"], answer["withdrawn"]) == ("alice.example", guest.did, False)
    for who in ("alice", "bob"):
        (listed,) = (await treaty.told(who, "grants"))["grants"]
        assert (listed["namespace"], listed["to"], listed["by"]) == ("alice.example", guest.did, own.did)
        assert (listed["statement"], listed["index"]) == (answer["statement"], answer["index"])
    await publish(registry, guest, publication(own))
    assert "may no longer publish in alice.example" in await treaty.says("alice", "ungrant", guest.did)
    assert (await treaty.told("bob", "grants"))["grants"] == []
    size = registry.head.size
    assert await treaty.refused("alice", "ungrant", guest.did) == "statement.no-target"
    assert registry.head.size == size


@pytest.mark.threat(27)
async def test_the_order_in_the_log_decides_about_a_publish_in_flight(treaty: Treaty, registry: Registry, tmp_path: Path) -> None:
    """The owner takes the grant back while the guest publishes: the one before it is in, the one after it is not."""
    own, guest = signer(tmp_path, "alice"), signer(tmp_path, "bob")
    await treaty.told("alice", "grant", guest.did)
    first, second = publication(own), publication(own, version="2.0")
    taken_back = own.statement(kinds.Grant("alice.example", guest.did, withdrawn=True))
    for statement in (first, second):
        for digest, data in statement.blobs.items():
            await registry.put_blob(digest, guest.statement(statement.body).leaf, data)
    leaves = [guest.statement(first.body).leaf, taken_back.leaf, guest.statement(second.body).leaf]
    size = registry.head.size
    one, two, three = await registry.submit(leaves)
    assert (getattr(one, "index", None), getattr(two, "index", None)) == (size, size + 1)
    assert getattr(three, "code", None) == "publish.not-entitled"
    assert registry.head.size == size + 2


async def test_a_vote_is_withdrawn(treaty: Treaty, registry: Registry, tmp_path: Path) -> None:
    own = signer(tmp_path, "alice")
    await publish(registry, own, publication(own))
    assert (await treaty.told("alice", "vote", TOPIC, "none"))["tiers"] == [["none"]]
    done = await treaty.told("alice", "withdraw", "vote", TOPIC)
    assert (done["tiers"], done["seq"]) == ([], 1)


@pytest.mark.deep
@pytest.mark.threat(361)
async def test_a_voter_who_is_not_heard_votes_by_a_witness(treaty: Treaty, registry: Registry, tmp_path: Path) -> None:
    own, voter = signer(tmp_path, "alice"), signer(tmp_path, "bob")
    await publish(registry, own, publication(own))
    async with witness_process(tmp_path / "w", registry.log_key) as witness:
        by = f"{witness.about['url']}#{witness.about['key']}"
        done = await treaty.told("alice", "vote", TOPIC, "none", "--via", by)
        assert done["stamps"].keys() == {witness.key.name} and "failure" not in done
        # The registry has no ear for this one; its policy names the witness.
        origin = registry.log_key.name
        with (tmp_path / "bob" / "policy.toml").open("a") as policy:
            policy.write(f'[via]\n"{origin}" = ["{by}"]\n')
        full = registry.intake.quota.take_from

        def deaf(source: str | None, count: int = 1) -> bool:
            raise Unavailable("quota.sender", "Your network sends too many statements.")

        registry.intake.quota.take_from = deaf  # type: ignore[method-assign]
        lost = await treaty.told("bob", "vote", TOPIC, "none")
        assert (lost["index"], lost["failure"]["code"]) == (None, "quota.sender") and lost["stamps"]
        assert "Not logged yet" in await treaty.says("bob", "vouch", own.did)
        registry.intake.quota.take_from = full  # type: ignore[method-assign]
        files = sorted((tmp_path / "bob" / "stamped").iterdir())
        assert {Stamped.parse(path.read_bytes()).statement.author.text for path in files} == {voter.did} and len(files) == 2
        box = tmp_path / "box.json"
        box.write_bytes((await witness.ask(b"", "GET", f"/{hex_digest(origin.encode())}/statements")).content)
    # What a witness shows, and what is kept, can be looked for in the log.
    answer = await treaty.told("alice", "audit", "--stamped", str(box))
    assert answer["stamped"] == {"sought": 3, "logged": 1}
    await registry.submit([Stamped.parse(path.read_bytes()).leaf for path in files])
    assert "2 of 2 are in the log" in await treaty.says("bob", "audit")
    assert not list((tmp_path / "bob" / "stamped").iterdir())
    assert await treaty.refused("bob", "audit", "--stamped", str(tmp_path / "nothing")) == "stamp.form"


@pytest.mark.threat(130)
async def test_a_transferred_domain_shows_no_former_grants(treaty: Treaty, registry: Registry, web: Web, tmp_path: Path) -> None:
    own, guest = signer(tmp_path, "alice"), signer(tmp_path, "bob")
    await treaty.told("alice", "grant", guest.did)
    # Its first statement makes the guest known. Before that no owner of its domain is the former one.
    await publish(registry, guest, publication(guest))
    heir = Signer(own.did, f"{own.did}#heir", key_signer("heir").private_key)
    web.serve(heir)
    carol = domain_signer("carol.example")
    await log(registry, kinds.Grant("alice.example", carol.did), heir)
    (listed,) = (await treaty.told("alice", "grants", own.did))["grants"]
    assert listed["to"] == carol.did, "only what the new owner granted"
    assert (await treaty.told("bob", "grants"))["grants"] == []
    await log(registry, kinds.Grant("alice.example", guest.did), heir)
    assert [row["to"] for row in (await treaty.told("bob", "grants"))["grants"]] == [guest.did]
    heir_of_guest = Signer(guest.did, f"{guest.did}#heir", key_signer("another heir").private_key)
    web.serve(heir_of_guest)
    await log(registry, kinds.Grant("bob.example", carol.did), heir_of_guest)
    assert [row["to"] for row in (await treaty.told("bob", "grants"))["grants"]] == [carol.did]
