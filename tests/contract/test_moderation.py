"""What an operator does about content and senders, by the commands of a running registry; and what is seen of it from outside."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from http_api import attach, path_of, post, problem, publish, put, unchanged
from registries import Web, grant, publication, settings_for
from signers import NOW, Signer, domain_signer, key_signer

from treaty_consensus import kinds, statement
from treaty_consensus.errors import Malformed, Refused, Unavailable
from treaty_consensus.sigstore_leaf import RekordLeaf
from treaty_registry.admission.senders import import_senders
from treaty_registry.app import create_app
from treaty_registry.cli import main
from treaty_registry.keys import Operator
from treaty_registry.operator.acts import Acts
from treaty_registry.registry import Registry
from treaty_registry.server import controlled
from treaty_registry.settings import Settings
from treaty_registry.sigstore_authority.certificates import issue
from treaty_registry.storage.postgres import connect


@dataclass
class Console:
    """The operator's terminal, beside the running registry."""

    data: Path
    capsys: pytest.CaptureFixture[str]

    async def __call__(self, *arguments: str, status: int = 0, text: bool = False) -> Any:
        """Run a command; return what it printed as JSON, or as text."""
        tokens = [*arguments, "--data", str(self.data), *([] if text else ["--json"])]
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            await asyncio.to_thread(main, tokens)
        out, err = self.capsys.readouterr()
        assert (end.value.code or 0) == status, out + err
        return out + err if text else json.loads(out)


@pytest.fixture
async def console(registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Console]:
    data = tmp_path / "registry"
    async with controlled(registry, settings_for(data, registry.database)):
        yield Console(data, capsys)


async def search(api: httpx.AsyncClient, words: str) -> list[dict[str, Any]]:
    items_in_answer: list[dict[str, Any]] = (await api.get("/protocols", params={"q": words})).json()["protocols"]
    return items_in_answer


async def withdrawn(registry: Registry) -> list[str]:
    """The reasons of the withdrawals in the log, from the leaves."""
    bodies = [statement.parse(leaf).body for leaf in (await registry.leaves(range(registry.head.size))).values()]
    return [body.reason for body in bodies if isinstance(body, kinds.Withdrawal)]


async def test_a_withdrawn_protocol_leaves_its_names_alone(
    api: httpx.AsyncClient, registry: Registry, console: Console, alice: Signer, bob: Signer, tmp_path: Path
) -> None:
    statement, other, protocol = publication(alice), publication(alice, version="2.0"), publication(bob, "payment")
    for agent, each in ((alice, statement), (alice, other), (bob, protocol)):
        await publish(api, agent, each)
    await attach(api, alice, statement)
    path = path_of(statement.body.uri)
    before = [await api.get(path, headers={"Accept": accept}) for accept in ("application/json", "text/html")]
    assert all("Ask for a product" in each.text for each in before)

    async with unchanged(registry):  # without --yes it only shows
        output = await console("withdraw", statement.body.uri, "--reason", "personal", status=1)
        assert "Add --yes" in await console("withdraw", statement.body.uri, "--reason", "personal", status=1, text=True)
    parts = [(blob["part"], blob["others"]) for blob in output["plan"]["blobs"]]
    assert sorted(parts) == [("bundle", 0), ("card", 0), ("document", 0), ("wheel", 0)]
    assert [(card["uri"], card["title"]) for card in output["plan"]["versions"]] == [(statement.body.uri, "product-info 1.0")]

    purged = tmp_path / "purged"
    done = await console("withdraw", statement.body.uri, "--reason", "personal", "--yes", "--purge", f"tee {purged}")
    assert done["withdrawn"]["left"] == []
    digests = [blob["sha256"] for blob in done["plan"]["blobs"]]
    assert [await registry.blobs.size(digest) for digest in digests] == [None] * 4, "no store has the bytes"
    assert f"{registry.base_url}/blobs/sha256/{statement.body.document.sha256}" in purged.read_text().split("\n")
    assert await withdrawn(registry) == ["personal"] * 4
    for place in (f"/blobs/sha256/{digests[0]}", f"{path}.md"):
        problem(await api.get(place), 410, "blob.withdrawn")
    after = [await api.get(path, headers={"Accept": accept}) for accept in ("application/json", "text/html")]
    assert not any("Ask for a product" in each.text or "shop" in each.json()["card"].values() for each in after[:1])
    assert "Ask for a product" not in after[1].text
    assert {each["uri"] for each in await search(api, "shop")} == {other.body.uri, protocol.body.uri}
    assert (await api.get(f"{path_of(other.body.uri)}.md")).content == other.document, "another version stays"
    # The rest of this agent, and nothing of the other one.
    await console("withdraw", alice.did, "--reason", "illegal", "--yes")
    assert [each["uri"] for each in await search(api, "shop")] == [protocol.body.uri]
    refused = await console("withdraw", alice.did, "--reason", "illegal", "--yes", status=1)
    assert refused["error"]["code"] == "blob.unknown"
    assert (await api.get(f"{path_of(protocol.body.uri)}.md")).content == protocol.document


async def test_all_versions_of_a_name_and_one_digest(
    api: httpx.AsyncClient, registry: Registry, console: Console, alice: Signer, bob: Signer
) -> None:
    versions = [publication(alice, version=version) for version in ("1.0", "2.0")]
    for each in versions:
        await publish(api, alice, each)
    # The same bytes under another name: whoever withdraws them is shown it.
    twin = publication(bob)
    assert twin.body.document == versions[0].body.document
    await publish(api, bob, twin)
    name = versions[0].body.uri.rpartition("/")[0]
    output = (await console("withdraw", name, "--reason", "illegal", status=1))["plan"]
    assert {blob["of"] for blob in output["blobs"]} == {each.body.uri for each in versions}
    assert {blob["others"] for blob in output["blobs"]} == {0, 1}
    await console("withdraw", twin.body.card.sha256, "--reason", "malicious", "--yes")
    assert sorted(each["summary"] for each in await search(api, "product")) == ["", "", "Ask for a product."]
    for wrong in ("https://other.example/protocols/alice.example/product-info", "ab" * 32):
        error = (await console("withdraw", wrong, "--reason", "illegal", "--yes", status=1))["error"]
        assert error["code"] == "blob.unknown"
    assert (await console("withdraw", "https://x", "--reason", "illegal", "--yes", status=1))["error"]["code"] == "protocol.name"
    assert await withdrawn(registry) == ["malicious"]


async def test_bytes_that_a_store_keeps_are_deleted_by_the_next_sweep(
    api: httpx.AsyncClient, registry: Registry, console: Console, alice: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    statement = publication(alice)
    await publish(api, alice, statement)

    async def silent(sha256: str) -> None:
        raise Unavailable("blobs.unavailable", sha256)

    with monkeypatch.context() as fault:
        fault.setattr(registry.blobs, "delete", silent)
        done = await console("withdraw", statement.body.uri, "--reason", "illegal", "--yes", status=1)
    assert sorted(done["withdrawn"]["left"]) == sorted(statement.blobs)
    problem(await api.get(f"/blobs/sha256/{statement.body.document.sha256}"), 410, "blob.withdrawn")
    assert await registry.blobs.size(statement.body.document.sha256) is not None
    assert await registry.uploads.expire() == 2
    assert await registry.blobs.size(statement.body.document.sha256) is None


async def test_a_blocked_sender_is_refused_at_every_door(
    api: httpx.AsyncClient, registry: Registry, console: Console, operator: Operator, alice: Signer, bob: Signer
) -> None:
    statement = publication(alice)
    await publish(api, bob, publication(bob))
    await publish(api, alice, statement)
    again = publication(alice, version="2.0")

    async def refused_at_every_door() -> None:
        leaf = alice.statement(again.body)
        async with unchanged(registry):
            assert "never" not in problem(await post(api, leaf), 422, "sender.blocked")["detail"], "the reason is the operator's"
            problem(await put(api, again.document, leaf), 422, "sender.blocked")
            problem(await api.post(f"/identities/{alice.did}", json={"keyid": alice.key_id}), 422, "sender.blocked")
            with pytest.raises(Refused) as error:
                await registry.authentication_keys(alice.did)  # of a certificate
            assert error.value.code == "sender.blocked"
            batch = leaf.leaf + b"\n" + bob.statement(kinds.Grant("alice.example", bob.did)).leaf
            lines = await api.post("/statements", content=batch, headers={"Content-Type": "application/x-ndjson"})
            assert json.loads(lines.text.split("\n")[0])["problem"]["code"] == "sender.blocked"

    await console("block", alice.did, "--reason", "never again")
    await refused_at_every_door()
    await console("unblock", alice.did)
    await console("block", "example", "--reason", "x", status=1)  # a top-level domain
    assert (await console("block", registry.operator, "--reason", "x", status=1))["error"]["code"] == "sender.form"
    await console("block", "alice.example", "--reason", "never again")
    await refused_at_every_door()
    # What is logged stays, others go on, and a new process knows it.
    assert (await api.get(f"{path_of(statement.body.uri)}.md")).content == statement.document
    assert (await post(api, bob.statement(kinds.Status(publication(bob).body.uri, "deprecated")))).status_code == 201
    listed = (await console("block"))["senders"]
    assert [(each["sender"], each["blocked"]) for each in listed] == [("alice.example", "never again")]
    await registry.intake.refresh()
    await refused_at_every_door()
    await console("unblock", "alice.example")
    assert (await put(api, again.document, alice.statement(again.body))).status_code == 201
    assert (await console("unblock", "alice.example", status=1))["error"]["code"] == "sender.form"


@pytest.mark.parametrize("network", ["127.0.0.0/8", "127.0.0.1"])
async def test_a_blocked_network_may_read_and_not_write(
    api: httpx.AsyncClient, registry: Registry, console: Console, network: str
) -> None:
    stranger = key_signer("stranger")
    await console("block", network, "--reason", "flood")
    async with unchanged(registry):
        problem(await post(api, stranger.statement(grant(stranger))), 422, "sender.blocked")
        for path in ("/sigstore/api/v2/signingCert", "/sigstore/api/v2/log/entries"):
            problem(await api.post(path, json={}), 422, "sender.blocked")
        query = {"Content-Type": "application/timestamp-query"}
        problem(await api.post("/sigstore/api/v1/timestamp", content=b"", headers=query), 422, "sender.blocked")
    assert (await api.get("/log")).status_code == 200
    await console("unblock", network)
    assert (await post(api, stranger.statement(grant(stranger)))).status_code == 201


async def test_a_quota_is_raised_and_lowered(registry: Registry, console: Console) -> None:
    senders = registry.intake.senders
    author = domain_signer("a.shop.example")
    assert (await console("quota", "shop.example", "0.5"))["factor"] == 0.5
    assert (await console("quota", author.did, "4"))["factor"] == 4
    did = statement.parse(author.statement(grant(author)).leaf).author
    assert senders.factor(did) == 4, "the nearest one"
    await console("quota", author.did, "1")
    assert senders.factor(did) == 0.5
    for wrong in (("shop.example", "0"), ("192.0.2.0/24", "2"), ("shop.example", "1e9")):
        assert (await console("quota", *wrong, status=1))["error"]["code"] == "sender.form"
    assert [each["sender"] for each in (await console("quota"))["senders"]] == ["shop.example"]


async def test_the_largest_senders(api: httpx.AsyncClient, console: Console, alice: Signer, bob: Signer) -> None:
    await publish(api, alice, publication(alice))
    await publish(api, alice, publication(alice, version="2.0"))
    await publish(api, bob, publication(bob))
    output = await console("senders")
    assert [(each["did"], each["statements"]) for each in output["largest"]][-2:] == [(alice.did, 2), (bob.did, 1)]
    assert output["largest"][-1]["bytes"] == len(publication(bob).document)
    assert set(output["hosts"]) <= {"alice.example", "bob.example"}, "the quotas fill again within seconds"
    assert (await console("senders", "--newest", "1"))["largest"] == [output["largest"][-1]]


async def test_acts_are_recorded_with_the_user(registry: Registry, console: Console) -> None:
    await console("block", "192.0.2.0/24", "--reason", "flood")
    await console("block", "nonsense", "--reason", "x", status=1)
    await console("senders")
    (act,) = await Acts(registry.pool).newest(10)
    assert (act.command, act.detail.split(" ")[:2]) == ("block", ["192.0.2.0/24", "flood"])
    assert act.uid >= 0 and act.user


async def test_the_status_of_a_registry_and_its_problems(registry: Registry, console: Console, tmp_path: Path) -> None:
    await console("block", "192.0.2.0/24", "--reason", "flood")
    output = await console("status")
    assert (output["leads"], output["ready"], output["signed"]["size"], output["blocked"]) == (True, "", 2, 1)
    assert [act["command"] for act in output["acts"]] == ["block"]
    assert output["backup"] is None
    # The clock of this registry stands still, in the past.
    problems = [each["what"] for each in (await console("doctor", status=1))["problems"]]
    assert "No backup is known." in problems
    await console("backup", str(tmp_path / "backup"))
    output = await console("status")
    assert abs(output["now"] - output["backup"]) < 60
    assert "No backup is known." not in [each["what"] for each in (await console("doctor", status=1))["problems"]]
    text = await console("status", text=True)
    assert all(word in text for word in ("signed head", "1 blocked", "backup", registry.origin))
    await console("doctor", status=1, text=True)


async def test_a_registry_that_does_not_run_is_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    console = Console(tmp_path / "empty", capsys)
    (problem_found,) = (await console("doctor", status=1))["problems"]
    assert "systemctl start" in problem_found["fix"]
    assert (await console("status", status=1))["error"]["code"] == "control.not-running"


async def test_an_earlier_backup_loses_withdrawn_bytes(
    api: httpx.AsyncClient, console: Console, alice: Signer, tmp_path: Path
) -> None:
    statement, folder = publication(alice), tmp_path / "backup"
    await publish(api, alice, statement)
    await console("backup", str(folder))
    copies = [folder / "blobs" / "sha256" / digest[:2] / digest for digest in statement.blobs]
    assert all(copy.exists() for copy in copies)
    await console("withdraw", statement.body.uri, "--reason", "illegal", "--yes")
    await console("backup", str(folder))
    assert not any(copy.exists() for copy in copies)


async def test_blocks_and_quotas_are_in_the_backup(registry: Registry, console: Console, alice: Signer, tmp_path: Path) -> None:
    await console("block", alice.did, "--reason", "never again")
    await console("quota", "shop.example", "2")
    await console("backup", str(tmp_path / "backup"))
    saved = tmp_path / "backup" / "senders.json"
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    await console("unblock", alice.did)
    await console("quota", "shop.example", "1")
    async with connect(registry.database) as connection:
        await import_senders(connection, saved.read_bytes())
    await registry.intake.refresh()
    listed = {each.sender: (each.blocked, each.factor) for each in await registry.intake.senders.listed()}
    assert listed == {alice.did: ("never again", None), "shop.example": (None, 2.0)}


async def test_a_certificate_of_a_blocked_did_logs_nothing(registry: Registry, console: Console, alice: Signer) -> None:
    """It was issued before the block, and lives for ten minutes."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = issue(registry.authority, key.public_key(), did=alice.did, issuer="https://x", now=registry.clock())
    leaf = RekordLeaf(b"\0" * 32, b"signature", certificate.public_bytes(Encoding.DER)).encode()
    await console("block", alice.did, "--reason", "x")
    async with unchanged(registry):
        with pytest.raises(Refused) as error:
            await registry.append(leaf)
        assert error.value.code == "sender.blocked"
    await console("unblock", alice.did)
    assert (await registry.append(leaf)).index == registry.head.size - 1


@pytest.mark.parametrize("contact", ["abuse@registry.example", "https://registry.example/abuse"])
async def test_a_contact_is_shown_on_pages_in_the_log_and_in_refusals(
    tmp_path: Path, database: str, web: Web, alice: Signer, contact: str
) -> None:
    settings = replace(settings_for(tmp_path / "registry", database), contact=contact)
    async with Registry.open(settings, clock=lambda: datetime.fromtimestamp(NOW, UTC), resolve=web.resolve) as registry:
        transport = httpx.ASGITransport(create_app(registry))  # type: ignore[arg-type]  # the two spell ASGI's types differently
        async with httpx.AsyncClient(transport=transport, base_url=registry.base_url) as api:
            assert (await api.get("/log")).json()["contact"] == contact
            assert f"{contact}</a>" in (await api.get("/log", headers={"Accept": "text/html"})).text
            await registry.intake.senders.block(alice.did, "x", "me")
            refused = problem(await post(api, alice.statement(grant(alice))), 422, "sender.blocked")
            assert contact in refused["fix"]


@pytest.mark.parametrize(
    "contact", ["javascript:alert(1)", "http://registry.example", "a b@c.example", "<b>@c.example", "x" * 300]
)
def test_a_contact_is_an_address_or_a_page(tmp_path: Path, contact: str) -> None:
    with pytest.raises(Malformed) as error:
        Settings(data=tmp_path, contact=contact)
    assert error.value.code == "settings.value"
