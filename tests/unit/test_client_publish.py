"""Publishing a project: the whole sequence against real rules and a real signing authority, and again after any interruption."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from fetching import fetcher
from signers import ORIGIN, Signer
from simulated_registry import ALICE, BOB, SimulatedRegistry, match_of, uri_of, with_echo
from simulated_sigstore import Authority, serving

from treaty_agent.sessions.flow_context import PolicyNames
from treaty_client.authoring.check import check_package
from treaty_client.authoring.document import write_document
from treaty_client.protocols.project import Project, load_project
from treaty_client.registries.api import RegistryClient
from treaty_client.registries.trust import TrustedRegistries
from treaty_client.statements.publish import Published, Publisher
from treaty_consensus import canonical, kinds
from treaty_consensus.errors import Conflict, Refused, TreatyError, Unavailable, Untrusted
from treaty_io.identity import Identity

GREETING = Path(__file__).parents[2] / "examples" / "greeting"
MANIFEST = {
    "operations": {"ping": {"arguments": {"type": "object"}, "result": {}, "errors": {}, "idempotent": True, "timeout": 5}},
    "roles": {
        "requester": {"peer": "provider", "calls": ["ping"], "invokes": []},
        "provider": {"peer": "requester", "calls": [], "invokes": ["ping"]},
    },
}


def project_in(folder: Path, *, document: str = "# Ping\n", handler: bool = True, aliases: Sequence[str] = ()) -> Project:
    folder.mkdir(parents=True, exist_ok=True)
    toml = 'name = "ping"\nversion = "1.0"\ntopic = "demo/ping"\norigin = "negotiated"\ntitle = "Ping"\nsummary = "Ping."\n'
    toml += 'licence = "Apache-2.0"\n'
    toml += f"aliases = {json.dumps(aliases)}\n" if aliases else ""
    if handler:
        toml += '[handler]\nentry-point = "treaty_handler_ping:handler"\n'
        (folder / "handler").mkdir(exist_ok=True)
        (folder / "handler" / "__init__.py").write_text("handler = None\n")
        (folder / "manifest.json").write_text(json.dumps(MANIFEST))
    (folder / "protocol.toml").write_text(toml)
    (folder / "document.md").write_text(document)
    return load_project(folder)


@pytest.fixture
def registry() -> Iterator[SimulatedRegistry]:
    registry = with_echo()
    registry.now = int(time.time())
    with serving(cast(Authority, registry)) as registry.services:
        yield registry


def publisher(registry: SimulatedRegistry, home: Path, signer: Signer = ALICE) -> Publisher:
    network, identity = registry.network(), Identity(signer.did, signer.key_id, signer.private_key)
    client = RegistryClient(f"https://{ORIGIN}", network)
    return Publisher(identity, client, registry.trusted_in(home), ORIGIN, network, clock=lambda: registry.now)


async def done(publisher: Publisher, project: Project, **options: Any) -> list[Published]:
    """The steps. The handlers of these tests have no vectors."""
    return [step async for step in publisher.publish(project, **{"allow_uncovered": True, **options})]


async def test_a_published_and_attested_project_can_be_fetched(registry: SimulatedRegistry, tmp_path: Path) -> None:
    project = project_in(tmp_path / "project")
    steps = await done(publisher(registry, tmp_path / "home"), project)
    uri = uri_of(name="ping")
    assert [step.what for step in steps] == ["built", "tried", "published", "attested", "attached"]
    assert {step.uri for step in steps} == {uri}
    async with fetcher(registry, tmp_path / "agent") as agent:
        verified = await agent.fetch(uri)
    assert verified.document == project.document
    assert verified.card == project.card
    assert verified.package.digest == steps[0].digest == steps[4].digest
    assert canonical.hex_digest(verified.attestation) == steps[3].digest
    assert verified.hash == steps[2].digest
    indexes = {
        type(statement.body): index for index, statement in registry.statements() if getattr(statement.body, "uri", "") == uri
    }
    assert (steps[2].index, steps[4].index) == (indexes[kinds.Publish], indexes[kinds.Handler])
    assert TrustedRegistries(tmp_path / "home").get(ORIGIN).seen == registry.checkpoint()


async def test_publishing_again_adds_nothing(registry: SimulatedRegistry, tmp_path: Path) -> None:
    project = project_in(tmp_path / "project")
    first = await done(publisher(registry, tmp_path / "home"), project)
    before = list(registry.leaves)
    again = await done(publisher(registry, tmp_path / "home"), project)
    assert [step.what for step in again] == ["built", "tried", "found-published", "found-attached"]
    assert [step.index for step in again[2:]] == [first[2].index, first[4].index]
    assert registry.leaves == before


async def test_a_changed_handler_needs_the_next_version(registry: SimulatedRegistry, tmp_path: Path) -> None:
    project = project_in(tmp_path / "project")
    await done(publisher(registry, tmp_path / "home"), project)
    assert project.handler is not None
    changed = dataclasses.replace(project.handler, sources={**project.handler.sources, "more.py": b"MORE = 1\n"})
    before = list(registry.leaves)
    with pytest.raises(Conflict, match="one content") as refused:
        await done(publisher(registry, tmp_path / "home"), dataclasses.replace(project, handler=changed))
    assert refused.value.code == "publish.version-exists" and 'version = "1.0.post1"' in refused.value.fix
    assert registry.leaves == before, "no leaf of an attestation either"
    await done(
        publisher(registry, tmp_path / "home"),
        dataclasses.replace(project, handler=dataclasses.replace(changed, version="1.0.post1")),
    )


async def test_claimed_aliases_resolve_to_the_id_with_a_proof(registry: SimulatedRegistry, tmp_path: Path) -> None:
    id = "anp:protocol:ping:1.0"
    project = project_in(tmp_path / "project", aliases=[id, "https://ping.example/spec"])
    await done(publisher(registry, tmp_path / "home"), project)
    (statement,) = [
        statement for _, statement in registry.statements() if getattr(statement.body, "uri", "") == uri_of(name="ping")
    ][:1]
    assert isinstance(statement.body, kinds.Publish)
    assert statement.body.aliases == project.aliases == (id, "https://ping.example/spec")
    registry.aliases[id] = [match_of(statement, verified=False)]
    async with fetcher(registry, tmp_path / "agent") as agent:
        names = PolicyNames(agent)
        located = await names.locate(id)
        assert (located.uri, (await names.fetch(id, located)).hash) == (uri_of(name="ping"), project.protocol_hash)


async def test_an_interrupted_run_is_taken_up(registry: SimulatedRegistry, tmp_path: Path) -> None:
    project = project_in(tmp_path / "project")
    services, registry.services = registry.services, "http://127.0.0.1:9"
    with pytest.raises(Unavailable):
        await done(publisher(registry, tmp_path / "home"), project)
    registry.services = services
    steps = await done(publisher(registry, tmp_path / "home"), project)
    assert [step.what for step in steps] == ["built", "tried", "found-published", "attested", "attached"]


async def test_a_foreign_statement_on_a_wheel_is_not_mine(registry: SimulatedRegistry, tmp_path: Path) -> None:
    project = project_in(tmp_path / "project")
    services, registry.services = registry.services, "http://127.0.0.1:9"
    with pytest.raises(Unavailable):
        await done(publisher(registry, tmp_path / "home"), project)
    registry.services = services
    uri = uri_of(name="ping")
    filename, wheel = project.build_wheel(uri)
    theirs = kinds.Handler(
        uri, project.protocol_hash, filename, registry.put(wheel), "treaty_handler_ping:handler", registry.put(b"{}")
    )
    registry.add(theirs, BOB)
    assert (await done(publisher(registry, tmp_path / "home"), project))[-1].what == "attached"


async def test_a_handler_that_contradicts_its_vectors_is_not_published(registry: SimulatedRegistry, tmp_path: Path) -> None:
    folder = tmp_path / "greeting"
    shutil.copytree(GREETING, folder)
    vector = folder / "vectors" / "host.json"
    vector.write_text(vector.read_text().replace('"greeting": "Hello, Ada!"', '"greeting": "Good day, Ada!"'))
    before = list(registry.leaves)
    with pytest.raises(Refused) as refusal:
        await done(publisher(registry, tmp_path / "home"), load_project(folder))
    assert refusal.value.code == "vector.differs"
    assert "Good day, Ada!" in refusal.value.message
    assert registry.leaves == before


async def test_a_protocol_without_a_handler_is_published_alone(registry: SimulatedRegistry, tmp_path: Path) -> None:
    project = project_in(tmp_path / "project", handler=False)
    steps = await done(publisher(registry, tmp_path / "home"), project)
    assert [step.what for step in steps] == ["published"]


async def test_a_version_is_not_published_twice_with_another_document(registry: SimulatedRegistry, tmp_path: Path) -> None:
    await done(publisher(registry, tmp_path / "home"), project_in(tmp_path / "a", handler=False))
    before = list(registry.leaves)
    with pytest.raises(Conflict, match="Raise `version`"):
        await done(publisher(registry, tmp_path / "home"), project_in(tmp_path / "b", document="# Pong\n", handler=False))
    assert registry.leaves == before


async def test_another_namespace_needs_a_grant(registry: SimulatedRegistry, tmp_path: Path) -> None:
    project = project_in(tmp_path / "project")
    before = list(registry.leaves)
    with pytest.raises(TreatyError) as error:
        await done(publisher(registry, tmp_path / "home", BOB), project, namespace="alice.example")
    assert error.value.code == "publish.not-entitled"
    assert registry.leaves == before
    registry.add(kinds.Grant("alice.example", BOB.did), ALICE)
    steps = await done(publisher(registry, tmp_path / "home", BOB), project, namespace="alice.example")
    assert steps[-1].what == "attached"
    async with fetcher(registry, tmp_path / "agent", publishers=(BOB,)) as agent:
        assert (await agent.fetch(uri_of(name="ping"))).author == BOB.did


async def test_a_handler_that_breaks_the_rules_publishes_nothing(registry: SimulatedRegistry, tmp_path: Path) -> None:
    project_in(tmp_path / "project")
    (tmp_path / "project" / "handler" / "x.pth").write_text("import os\n")
    before = list(registry.leaves)
    with pytest.raises(TreatyError) as error:
        await done(publisher(registry, tmp_path / "home"), load_project(tmp_path / "project"))
    assert error.value.code == "handler.package"
    assert registry.leaves == before and registry.requests == []


async def test_an_unpinned_authority_gets_nothing_to_sign(registry: SimulatedRegistry, tmp_path: Path) -> None:
    def tamper(path: str, body: bytes) -> bytes:
        if path != "/trust-config.json":
            return body
        config = json.loads(body)
        config["trustedRoot"]["tlogs"] = []
        return canonical.dumps(config)

    registry.tamper = tamper
    with pytest.raises(Untrusted) as error:
        await done(publisher(registry, tmp_path / "home"), project_in(tmp_path / "project"))
    assert error.value.code == "trusted-root.digest"
    assert not any(isinstance(m.body, kinds.Handler) and m.body.uri == uri_of(name="ping") for _, m in registry.statements())


async def test_a_false_claim_of_logging_is_noticed(registry: SimulatedRegistry, tmp_path: Path) -> None:
    registry.tamper = lambda path, body: registry.receipt(0) if path == "/statements" else body
    with pytest.raises(Untrusted) as error:
        await done(publisher(registry, tmp_path / "home"), project_in(tmp_path / "project", handler=False))
    assert error.value.code == "log.inclusion"


async def test_a_handler_without_vectors_needs_its_authors_consent(registry: SimulatedRegistry, tmp_path: Path) -> None:
    project, before = project_in(tmp_path / "project"), list(registry.leaves)
    with pytest.raises(Refused) as refusal:
        await done(publisher(registry, tmp_path / "home"), project, allow_uncovered=False)
    assert refusal.value.code == "vector.differs"
    assert "ping as provider, ping as requester" in refusal.value.message
    assert "--allow-uncovered" in refusal.value.fix
    assert registry.leaves == before
    assert [step.what for step in await done(publisher(registry, tmp_path / "home"), project)][-1] == "attached"


async def test_a_dry_run_does_all_but_the_submission(registry: SimulatedRegistry, tmp_path: Path) -> None:
    project, before = load_project(GREETING), list(registry.leaves)
    options = {"allow_uncovered": False, "dry_run": True}
    steps = await done(publisher(registry, tmp_path / "home"), project, **options)
    assert [step.what for step in steps] == ["built", "tried", "unpublished"]
    assert registry.leaves == before
    await done(publisher(registry, tmp_path / "home"), project, allow_uncovered=False)
    published = list(registry.leaves)
    steps = await done(publisher(registry, tmp_path / "home"), project, **options)
    assert [step.what for step in steps] == ["built", "tried", "found-published"]
    other = project_in(tmp_path / "other", handler=False)
    renamed = dataclasses.replace(other, name=project.name, version=project.version)
    with pytest.raises(Conflict):
        await done(publisher(registry, tmp_path / "home"), renamed, **options)
    assert registry.leaves == published


def version_of_greeting(folder: Path, version: str, *changes: tuple[str, str]) -> Project:
    """The greeting in another version, with these changes of its manifest."""
    shutil.copytree(GREETING, folder)
    toml, manifest = (folder / "protocol.toml").read_text(), (folder / "manifest.json").read_text()
    assert 'version = "1.0"' in toml
    (folder / "protocol.toml").write_text(toml.replace('version = "1.0"', f'version = "{version}"'))
    for old, new in changes:
        assert old in manifest
        manifest = manifest.replace(old, new)
    (folder / "manifest.json").write_text(manifest)
    write_document(folder)
    return load_project(folder)


async def test_a_breaking_change_needs_the_next_major_version(registry: SimulatedRegistry, tmp_path: Path) -> None:
    await done(publisher(registry, tmp_path / "home"), load_project(GREETING))
    before = list(registry.leaves)
    shorter = '"maxLength": 100', '"maxLength": 50'
    breaking = version_of_greeting(tmp_path / "breaking", "1.2", shorter)
    for dry_run in (True, False):
        steps = []
        with pytest.raises(Refused) as refusal:
            async for step in publisher(registry, tmp_path / "home").publish(breaking, dry_run=dry_run):
                steps.append(step)
        assert refusal.value.code == "publish.breaking"
        assert "breaks its callers of greet" in refusal.value.message and 'version "2.0"' in refusal.value.fix
        assert f'{{"name": "{"a" * 51}"}}' in refusal.value.message, "a counterexample"
        assert [step.what for step in steps] == ["built", "tried", "compared"]
        assert steps[-1].changes[0].facts == (
            "arguments: name: at least 1 character; at most 100 characters → at least 1 character; at most 50 characters",
        )
        assert registry.leaves == before
    major = version_of_greeting(tmp_path / "major", "2.0", shorter)
    steps = await done(publisher(registry, tmp_path / "home"), major, dry_run=True)
    assert [step.what for step in steps] == ["built", "tried", "compared", "unpublished"]
    assert steps[2].said == "with 1.0: 1 of its operations differ; for its callers breaking"
    assert registry.leaves == before


async def test_an_added_optional_member_continues_a_version(registry: SimulatedRegistry, tmp_path: Path) -> None:
    await done(publisher(registry, tmp_path / "home"), load_project(GREETING))
    added = version_of_greeting(
        tmp_path / "added",
        "1.1",
        ('"maxLength": 100}', '"maxLength": 100}, "title": {"type": "string"}'),
        ('"name": "$arguments.name"', '"name": "$arguments.name", "title": "$arguments.title"'),
    )
    steps = await done(publisher(registry, tmp_path / "home"), added)
    assert [step.what for step in steps] == ["built", "tried", "compared", "published", "attested", "attached"]
    [change] = steps[2].changes
    assert "arguments: new member title (string)" in change.facts
    assert steps[2].compatibility is not None
    backward, forward = steps[2].compatibility.pairs
    assert (backward.verdict, backward.calls > 0) == ("compatible", True)
    # The older host closes its arguments.
    assert (forward.verdict, forward.reasons[0].value) == ("breaking", '{"name": "a", "title": ""}')
    logged = [m.body for _, m in registry.statements() if isinstance(m.body, kinds.Publish)][-1]
    base = registry.document_of(uri_of(name="greeting"))
    assert logged.base == kinds.Base(uri_of(name="greeting"), base.sha256), "so it is in the line of 1.0"
    registry.add(kinds.Status(uri_of(name="greeting", version="1.1"), "yanked"), ALICE)
    same = version_of_greeting(tmp_path / "same", "1.2")
    assert (await done(publisher(registry, tmp_path / "home"), same, dry_run=True))[2].said == (
        "with 1.0: no change; for its callers compatible"
    )


async def test_a_document_of_another_manifest_is_not_published(registry: SimulatedRegistry, tmp_path: Path) -> None:
    project, before = version_of_greeting(tmp_path / "greeting", "1.0"), list(registry.leaves)
    stale = dataclasses.replace(project, document=project.document.replace(b'"maxLength": 100', b'"maxLength": 99'))
    with pytest.raises(Refused) as refusal:
        await done(publisher(registry, tmp_path / "home"), stale)
    assert refusal.value.code == "project.file" and "treaty document" in refusal.value.fix
    assert registry.leaves == before


async def test_a_reader_replays_the_published_vectors(registry: SimulatedRegistry, tmp_path: Path) -> None:
    await done(publisher(registry, tmp_path / "home"), load_project(GREETING), allow_uncovered=False)
    async with fetcher(registry, tmp_path / "agent") as agent:
        verified = await agent.fetch(uri_of(name="greeting"))
    report = await check_package(verified.package)
    assert report.passed
    assert [vector.name for vector in report.vectors] == ["guest-errors.json", "guest.json", "host-errors.json", "host.json"]
