"""Ballots, reports and vouches that can never count are refused, with the reason, before they are in the log for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import open_electorates
import pytest
from registries import Web, ballot, log, refuse, settings_for
from signers import NOW, Signer, domain_signer, key_signer, signed

from treaty_consensus import kinds
from treaty_registry.admission import electors
from treaty_registry.log.entry import Logged
from treaty_registry.registry import Registry

KEY, OTHER_KEY = key_signer("stranger"), key_signer("other stranger")
ALICE, BOB = domain_signer("alice.example"), domain_signer("bob.example")


@pytest.fixture
async def opened(tmp_path: Path, database: str, web: Web) -> AsyncIterator[Registry]:
    """A registry with an open electorate."""
    settings = replace(settings_for(tmp_path / "registry", database), parameters=open_electorates.write(tmp_path))
    async with Registry.open(settings, clock=lambda: datetime.fromtimestamp(NOW, UTC), resolve=web.resolve) as registry:
        yield registry


def report(registry: Registry) -> kinds.Report:
    return kinds.Report("commerce/product-info", "cd" * 32, "ab" * 32, "agreed", 0, registry.head.note.decode())


def vouch(to: Signer) -> kinds.Vouch:
    return kinds.Vouch(to.did, 0)


@pytest.mark.threat(78)
async def test_a_did_key_neither_votes_nor_vouches(registry: Registry, web: Web) -> None:
    web.serve(ALICE)
    for statement in (
        KEY.statement(ballot(registry)),
        KEY.statement(ballot(registry, topic="invented/topic-1")),
        KEY.statement(vouch(ALICE)),
        ALICE.statement(vouch(KEY)),
        signed(report(registry), *sorted((KEY, OTHER_KEY), key=lambda signer: signer.key_id)),
    ):
        refusal = await refuse(registry, statement)
        assert refusal.code == "electorate.no-principal", statement
        assert "did:key" in refusal.message and "domain" in refusal.fix
    assert not web.fetched, "it is refused before anything is fetched"


@pytest.mark.threat(78)
async def test_it_is_refused_before_its_signature_is_looked_at(registry: Registry) -> None:
    impostor = Signer(KEY.did, KEY.key_id, OTHER_KEY.private_key)
    assert (await refuse(registry, impostor.statement(ballot(registry)))).code == "electorate.no-principal"


async def test_a_domain_votes_and_reports_whom_it_met(registry: Registry, web: Web) -> None:
    web.serve(ALICE, BOB)
    await log(registry, ballot(registry), ALICE)
    await log(registry, report(registry), *sorted((ALICE, KEY), key=lambda signer: signer.key_id))


@pytest.mark.parametrize("host", ["localhost", "shop"])
async def test_a_host_of_one_label_is_no_principal(registry: Registry, web: Web, host: str) -> None:
    web.serve(domain_signer(host))
    assert (await refuse(registry, domain_signer(host).statement(ballot(registry)))).code == "electorate.no-principal"


@pytest.mark.threat(78)
@pytest.mark.parametrize("name", ["shop.alice.example", "alice.example:users:bob", "host.example:8443", "example"])
async def test_an_open_electorate_has_registrable_domains(opened: Registry, web: Web, name: str) -> None:
    web.serve(signer := domain_signer(name.replace(":8443", "%3A8443")))
    assert (await refuse(opened, signer.statement(ballot(opened)))).code == "electorate.no-principal"


async def test_one_principal_does_not_report_or_vouch_for_itself(opened: Registry, web: Web) -> None:
    other = domain_signer("alice.example", "web")
    web.serve(ALICE, other)
    statement = signed(report(opened), *sorted((ALICE, other), key=lambda signer: signer.key_id))
    assert (await refuse(opened, statement)).code == "electorate.one-principal"
    assert (await refuse(opened, ALICE.statement(vouch(other)))).code == "electorate.one-principal"


async def test_a_grant_gives_a_did_key_its_owners_voice(opened: Registry, web: Web) -> None:
    web.serve(ALICE)
    assert (await refuse(opened, KEY.statement(ballot(opened)))).code == "electorate.no-principal"
    await log(opened, kinds.Grant("alice.example", KEY.did), ALICE)
    await log(opened, ballot(opened), KEY)


@pytest.mark.threat(78)
async def test_strangers_grants_silence_no_granted_did(opened: Registry, web: Web) -> None:
    web.serve(ALICE)
    strangers = [key_signer(f"stranger {number}") for number in range(256)]
    outcomes = await opened.submit([signer.statement(kinds.Grant(signer.did, KEY.did)).leaf for signer in strangers])
    assert all(isinstance(outcome, Logged) for outcome in outcomes)
    assert (await refuse(opened, KEY.statement(ballot(opened)))).code == "electorate.no-principal", "none of them is a domain"
    await log(opened, kinds.Grant("alice.example", KEY.did), ALICE)
    await log(opened, ballot(opened), KEY)


async def test_more_grants_than_are_read_refuse_nobody(opened: Registry, monkeypatch: pytest.MonkeyPatch, web: Web) -> None:
    monkeypatch.setattr(electors, "_MOST_GRANTS", 2)
    subdomains = [domain_signer(f"{name}.stranger.example") for name in ("a", "b")]
    web.serve(ALICE, *subdomains)
    for subdomain in subdomains:
        assert (await refuse(opened, KEY.statement(ballot(opened)))).code == "electorate.no-principal"
        await log(opened, kinds.Grant(subdomain.did.removeprefix("did:wba:"), KEY.did), subdomain)
    await log(opened, kinds.Grant("alice.example", KEY.did), ALICE)
    await log(opened, ballot(opened), KEY)


async def test_an_opened_electorate_counts_from_its_first_epoch(registry: Registry, web: Web) -> None:
    subdomain = domain_signer("shop.alice.example")
    web.serve(subdomain, ALICE)
    await registry.announce(open_electorates.draft())
    await log(registry, ballot(registry, 0), subdomain)
    assert await registry.decide()
    assert (await refuse(registry, subdomain.statement(ballot(registry, 1)))).code == "electorate.no-principal"
