"""`/identities`: a rotated key that the one before it vouches for goes on in the same tenure; all else is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_api import post, problem, publish, say, serving
from ports import free_port
from registries import Web, ballot, publication
from signers import NOW, ORIGIN, Signer

from treaty_client.protocols.log_head import LogHead
from treaty_client.registries import replies
from treaty_client.registries.api import RegistryClient
from treaty_client.registries.trust import RegistryName, TrustedRegistries
from treaty_client.statements.key_rotation import confirm
from treaty_command.main import main
from treaty_consensus import canonical, kinds, statement
from treaty_consensus.errors import Conflict, Malformed, NotFound, Refused, TreatyError, Unauthorized
from treaty_consensus.statement import Statement
from treaty_io.identity import Identity
from treaty_io.network.exchange import BoundedClient
from treaty_io.network.hosts import Network
from treaty_registry.log.entry import Logged
from treaty_registry.registry import Registry

JSON = {"Content-Type": "application/json"}


@dataclass
class Agent:
    """Somebody whose key was rotated: what they had, what they have, and how they reach the registry."""

    former: Identity
    rotated: Identity
    client: RegistryClient
    head: LogHead

    def signer(self) -> Signer:
        return Signer(self.rotated.did, self.rotated.key_id, self.rotated.private_key)


@pytest.fixture
def agent(api: BoundedClient, registry: Registry, alice: Signer, tmp_path: Path) -> Agent:
    trusted = TrustedRegistries(tmp_path / "home")
    trusted.add(RegistryName(f"https://{ORIGIN}", registry.log_key))
    client = RegistryClient(f"https://{ORIGIN}", Network(), client=api)
    identity = Identity(alice.did, alice.key_id, alice.private_key)
    return Agent(identity, identity.rotated(), client, LogHead(client, trusted, ORIGIN))


def serve(web: Web, identity: Identity) -> None:
    web.documents[identity.did] = json.dumps(identity.did_document()).encode()


@contextmanager
def nothing_logged(registry: Registry) -> Iterator[None]:
    """The log is as it was. (A document that was fetched waits as an upload does.)"""
    before = registry.head.size
    yield
    assert registry.head.size == before


async def refused(agent: Agent, kind: type[TreatyError], registry: Registry, identity: Identity | None = None) -> str:
    with nothing_logged(registry), pytest.raises(kind) as refusal:
        await confirm(agent.client, agent.head, identity or agent.rotated, origin=ORIGIN)
    return refusal.value.code


async def test_a_confirmed_key_goes_on_in_the_same_tenure(
    api: httpx.AsyncClient, registry: Registry, web: Web, alice: Signer, agent: Agent
) -> None:
    await publish(api, alice, publication(alice))
    serve(web, agent.rotated)
    receipt = await confirm(agent.client, agent.head, agent.rotated, origin=ORIGIN)
    answer = (await api.get(f"/identities/{alice.did}")).json()
    assert (answer["index"], answer["tenure"], list(answer["keys"])) == (receipt.index, 1, [agent.rotated.key_id])
    logged = statement.parse((await registry.leaves([receipt.index]))[receipt.index])
    assert set(logged.by) == {agent.former.key_id, f"{registry.operator}#{registry.operator.removeprefix('did:key:')}"}
    await publish(api, agent.signer(), publication(agent.signer(), version="1.1"))  # at once: nobody took the domain over
    old = await api.post("/statements", content=alice.statement(ballot(registry, 0)).leaf, headers=JSON)
    problem(old, 401, "statement.unknown-key")
    assert await refused(agent, Conflict, registry) == "statement.exists"


async def test_two_rotations_one_after_the_other(
    api: httpx.AsyncClient, registry: Registry, web: Web, alice: Signer, agent: Agent
) -> None:
    await say(api, alice, ballot(registry, 0))
    for identity in (agent.rotated, agent.rotated.rotated()):
        serve(web, identity)
        await confirm(agent.client, agent.head, identity, origin=ORIGIN)
    assert (await api.get(f"/identities/{alice.did}")).json()["tenure"] == 1


async def test_a_key_that_signed_first_was_taken_for_a_new_owners(
    api: httpx.AsyncClient, registry: Registry, web: Web, alice: Signer, agent: Agent
) -> None:
    await say(api, alice, ballot(registry, 0))
    serve(web, agent.rotated)
    assert (await post(api, agent.signer().statement(ballot(registry, 1)))).json()["code"] == "identity.new-tenure"
    assert (await api.get(f"/identities/{alice.did}")).json()["tenure"] == 2
    assert await refused(agent, Conflict, registry) == "statement.exists"


async def test_the_document_must_be_served_first(
    api: httpx.AsyncClient, registry: Registry, web: Web, alice: Signer, agent: Agent
) -> None:
    await say(api, alice, ballot(registry, 0))
    assert await refused(agent, Conflict, registry) == "statement.exists"
    del web.documents[alice.did]
    assert await refused(agent, Unauthorized, registry) == "identity.unresolved"
    serve(web, agent.rotated.rotated())  # another one than this agent has
    assert await refused(agent, Malformed, registry) == "registry.answer"


async def test_whoever_the_log_does_not_know_needs_no_confirmation(
    api: httpx.AsyncClient, registry: Registry, web: Web, alice: Signer, agent: Agent
) -> None:
    serve(web, agent.rotated)
    assert await refused(agent, NotFound, registry) == "identity.unknown"
    await say(api, agent.signer(), ballot(registry, 0))
    assert (await api.get(f"/identities/{alice.did}")).json()["tenure"] == 1


@pytest.mark.threat(29)
async def test_a_key_that_the_log_does_not_know_vouches_for_nothing(
    api: httpx.AsyncClient, registry: Registry, web: Web, alice: Signer, agent: Agent
) -> None:
    await say(api, alice, ballot(registry, 0))
    serve(web, agent.rotated)
    stranger = Identity(alice.did, agent.former.key_id, agent.rotated.private_key).rotated()
    assert await refused(agent, Refused, registry, stranger) == "identity.rotate"
    with nothing_logged(registry):
        answer = await api.post(f"/identities/{alice.did}", json={"keyid": agent.rotated.key_id})
    problem(answer, 401, "statement.unknown-key")


async def test_the_testimony_alone_is_worth_nothing(
    api: httpx.AsyncClient, registry: Registry, web: Web, alice: Signer, agent: Agent
) -> None:
    await say(api, alice, ballot(registry, 0))
    serve(web, agent.rotated)
    with nothing_logged(registry):
        testimony = (await api.post(f"/identities/{alice.did}", json={"keyid": alice.key_id})).json()
        payload = canonical.b64decode(testimony["payload"], limit=10_000)
        drafted = statement.parse_draft(payload)
        operator = canonical.b64decode(testimony["sig"], limit=64)
        forged = agent.rotated.sign(statement.pre_authentication_encoding(payload))
        for signature in (operator, forged, bytes(64)):
            signatures = tuple(operator if key_id == testimony["keyid"] else signature for key_id in drafted.by)
            leaf = replace(drafted, signatures=signatures).leaf
            problem(await api.post("/statements", content=leaf, headers=JSON), 401, "statement.signature-invalid")


@pytest.mark.threat(29)
async def test_a_registry_gets_no_signature_over_foreign_bytes(
    api: httpx.AsyncClient, registry: Registry, web: Web, alice: Signer, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    await say(api, alice, ballot(registry, 0))
    serve(web, agent.rotated)
    honest = await agent.client.testimony(alice.did, alice.key_id)
    drafted = statement.parse_draft(canonical.b64decode(honest.payload, limit=10_000))
    assert isinstance(drafted.body, kinds.Identity)
    thief = Identity.create("alice.example").rotated()
    body = drafted.body
    lies: list[tuple[kinds.Body, str, tuple[str, ...]]] = [
        (replace_keys(body, thief), ORIGIN, drafted.by),
        (kinds.Grant("alice.example", "did:wba:mallory.example"), ORIGIN, drafted.by),
        (body, "other.example", drafted.by),
        (body, ORIGIN, (alice.key_id,)),
    ]
    for lie, log, by in lies:
        payload = statement.draft(lie, log=log, by=by, issued=0).payload
        testimony = replies.Testimony(canonical.b64encode(payload), honest.keyid, honest.sig)

        async def lying(did: str, key_id: str, testimony: replies.Testimony = testimony) -> replies.Testimony:
            return testimony

        async def nothing(statement: Statement) -> bytes:
            raise AssertionError("it was signed and sent")

        monkeypatch.setattr(agent.client, "testimony", lying)
        monkeypatch.setattr(agent.client, "submit", nothing)
        assert await refused(agent, Malformed, registry) == "registry.answer"


def replace_keys(body: kinds.Identity, thief: Identity) -> kinds.Identity:
    """The same testimony about somebody else's key."""
    key = kinds.Key(thief.key_id, str(thief.did_document()["verificationMethod"][0]["publicKeyMultibase"]))  # type: ignore[index]
    return kinds.Identity(body.did, body.document, (key,), body.tenure, body.previous)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"keyid":5}', b'{"keyid":"x","more":1}', b"x" * 2000])
async def test_a_request_that_does_not_read(api: httpx.AsyncClient, registry: Registry, alice: Signer, content: bytes) -> None:
    with nothing_logged(registry):
        answer = await api.post(f"/identities/{alice.did}", content=content, headers=JSON)
        assert answer.status_code in (400, 413)
        assert (await api.post(f"/identities/{alice.did}", content=b"{}")).status_code == 415


async def test_the_commands(registry: Registry, web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a person does it: make, use, rotate, serve, confirm."""

    async def run(*words: str) -> dict[str, Any]:
        await asyncio.to_thread(main, [*words, "--home", str(tmp_path / "home"), "--json"])
        value: dict[str, Any] = json.loads(capsys.readouterr().out)
        return value

    async with serving(registry, free_port()) as base_url:
        created = await run("identity", "new", "alice.example", "--bind")
        web.documents[created["did"]] = json.dumps(created["document"]).encode()
        await run("trust", "add", f"{base_url}#{registry.log_key}")
        first = Identity.load(tmp_path / "home" / "identity.json")
        (outcome,) = await registry.submit([first.statement(ballot(registry, 0), log=ORIGIN, issued=NOW).leaf])
        assert isinstance(outcome, Logged)
        rotated = await run("identity", "rotate")
        web.documents[created["did"]] = json.dumps(rotated["document"]).encode()
        confirmed = await run("identity", "confirm")
    assert confirmed == {"did": created["did"], "key": rotated["key"], "index": registry.head.size - 1}
    assert list(await registry.authentication_keys(created["did"])) == [f"{created['did']}#key-2"]
