"""A domain without a web server names its keys in TXT records: it publishes, is marked, and hands over its name after a wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from name_server import NameServer
from registries import Web, grant, new_or_not, publication, publish, refuse, settings_for
from signers import NOW, Signer, domain_signer, key_signer, signed

from treaty_consensus.canonical import b64decode
from treaty_consensus.did import Did, Validated, did_key, encode_multikey, parse_did
from treaty_consensus.errors import Malformed, Unavailable
from treaty_consensus.kinds import Validation
from treaty_consensus.statement import MAX_PAYLOAD, parse, parse_draft
from treaty_io.network.did_documents import DidDocument
from treaty_registry.domain_records import DomainRecords
from treaty_registry.log.entry import Logged
from treaty_registry.registry import Registry

DAY = 24 * 3600


def holder(key: str, domain: str = "plain.example") -> Signer:
    """The holder of a key that a domain's record names."""
    plain, did = key_signer(key), f"did:treaty:{domain}"
    return Signer(did, f"{did}#{encode_multikey(plain.public_key)}", plain.private_key)


def record(key: str) -> str:
    return did_key(key_signer(key).public_key)


@dataclass
class Time:
    now: int = NOW

    def __call__(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)


@pytest.fixture
async def names() -> AsyncIterator[NameServer]:
    async with NameServer({"_treaty.plain.example": [record("first"), "v=other"]}).serving() as names:
        yield names


@asynccontextmanager
async def opened(folder: Path, database: str, names: NameServer, time: Time, *ways: Validated) -> AsyncIterator[Registry]:
    settings = replace(
        settings_for(folder / "registry", database), nameserver=("127.0.0.1", names.port), validate=frozenset(ways)
    )
    async with Registry.open(new_or_not(settings), clock=time) as registry:
        yield registry


async def test_a_record_lets_its_key_publish(tmp_path: Path, database: str, names: NameServer) -> None:
    names.authenticated = True
    async with opened(tmp_path, database, names, Time(), "dns") as registry:
        owner = holder("first")
        logged = await publish(registry, owner, publication(owner))
        assert isinstance(logged, Logged), logged
        assert publication(owner).body.uri.split("/protocols/")[1].startswith("plain.example/")
        identity = await registry.authentication_keys(owner.did)
        assert identity == {owner.key_id: owner.public_key}
        # Its evidence is public, with what the resolver said about DNSSEC.
        leaves = await registry.leaves(range(registry.head.size))
        bodies = [parse(leaf).body for leaf in leaves.values()]
        (stated,) = [body for body in bodies if isinstance(body, Validation)]
        assert (stated.method, stated.tenure, stated.account) == ("dns", 1, None)
        expected = f'{{"authenticated":true,"name":"_treaty.plain.example","records":["{record("first")}"]}}'
        assert (await registry.blob(stated.document.sha256)).decode() == expected
        # Known now: no statement asks the name server again.
        asked = len(names.asked)
        await publish(registry, owner, publication(owner, version="2.0"))
        assert len(names.asked) == asked
        # Nobody else's key, and no vote.
        assert (await refuse(registry, holder("thief").statement(grant(holder("thief"))))).code == "statement.unknown-key"


@pytest.mark.threat(449)
async def test_a_new_key_is_looked_up_and_waits(tmp_path: Path, database: str, names: NameServer) -> None:
    time = Time()
    async with opened(tmp_path, database, names, time, "dns") as registry:
        await publish(registry, holder("first"), publication(holder("first")))
        names.records["_treaty.plain.example"] = [record("second")]
        mine = publication(holder("second"), version="2.0")
        assert getattr(await publish(registry, holder("second"), mine), "code", "") == "identity.new-tenure"
        assert (await refuse(registry, holder("first").statement(grant(holder("first"))))).code == "statement.unknown-key"
        time.now += 31 * DAY
        # The log's clock moves with a statement of the operator, such as this look-up of another domain.
        names.records["_treaty.other.example"] = [record("first")]
        await publish(registry, holder("first", "other.example"), publication(holder("first", "other.example")))
        assert isinstance(await publish(registry, holder("second"), mine), Logged)


async def test_an_old_key_hands_over_without_a_wait(tmp_path: Path, database: str, names: NameServer) -> None:
    async with opened(tmp_path, database, names, Time(), "dns") as registry:
        old, new = holder("first"), holder("second")
        await publish(registry, old, publication(old))
        names.records["_treaty.plain.example"] = [record("second")]
        half = await registry.testimony(old.did, old.key_id)
        body = parse_draft(b64decode(half.payload, limit=MAX_PAYLOAD)).body
        assert isinstance(body, Validation) and (body.tenure, body.method) == (1, "dns")
        operator = registry.signer
        assert operator is not None
        both = signed(body, old, Signer(operator.did, operator.key_id, operator.private_key))
        (outcome,) = await registry.submit([both.leaf])
        assert isinstance(outcome, Logged), outcome
        assert isinstance(await publish(registry, new, publication(new, version="2.0")), Logged)


@pytest.mark.threat(449)
async def test_a_domain_with_a_document_has_no_records(tmp_path: Path, database: str, names: NameServer) -> None:
    """Who controls the name server for an hour is no second owner of the namespace."""
    web, owner = Web(), domain_signer("plain.example", "web")
    web.serve(owner)
    settings = replace(settings_for(tmp_path / "registry", database), validate=frozenset({"dns"}))
    records = DomainRecords(("127.0.0.1", names.port))

    async def resolve(did: Did) -> DidDocument:
        return await (records.resolve(did) if did.validated_by else web.resolve(did))

    async with Registry.open(new_or_not(settings), clock=Time(), resolve=resolve) as registry:
        assert isinstance(await publish(registry, owner, publication(owner)), Logged)
        size = registry.head.size
        (outcome,) = await registry.submit([holder("first").statement(grant(holder("first"))).leaf])
        # What was looked up waits as an upload does; nothing is logged.
        assert getattr(outcome, "code", "") == "statement.unknown-key" and registry.head.size == size


async def test_a_registry_reads_no_records_unless_it_says_so(tmp_path: Path, database: str, names: NameServer) -> None:
    async with opened(tmp_path, database, names, Time()) as registry:
        refusal = await refuse(registry, holder("first").statement(grant(holder("first"))))
        assert refusal.code == "statement.unknown-key" and "--validate dns" in refusal.fix
        assert names.asked == []


async def test_answers_that_name_no_key(names: NameServer) -> None:
    records = DomainRecords(("127.0.0.1", names.port))
    did = parse_did("did:treaty:plain.example")
    for texts in ([], ["v=other"], ["did:key:z6MkNotAKey"], [record(f"key {number}") for number in range(9)]):
        names.records["_treaty.plain.example"] = texts
        with pytest.raises(Malformed):
            await records.resolve(did)
    names.records["_treaty.plain.example"] = [record("second"), record("first"), record("first")]
    first = await records.resolve(did)
    # In another order it is the same evidence: a name server may turn its records around at each question.
    names.records["_treaty.plain.example"].reverse()
    assert (await records.resolve(did)).data == first.data
    assert set(first.keys.values()) == {key_signer("first").public_key, key_signer("second").public_key}


async def test_names_in_other_scripts_and_aliases(names: NameServer) -> None:
    records = DomainRecords(("127.0.0.1", names.port))
    # As A-labels, so that one domain has one DID.
    names.records["_treaty.xn--bcher-kva.example"] = [record("first")]
    assert (await records.resolve(parse_did("did:treaty:xn--bcher-kva.example"))).keys
    names.aliases["_treaty.alias.example"] = "_treaty.plain.example"
    aliased = await records.resolve(parse_did("did:treaty:alias.example"))
    # The evidence is about the name that was asked for.
    assert b'"name":"_treaty.alias.example"' in aliased.data


async def test_a_name_server_that_is_silent_ends_nothing(names: NameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treaty_registry.domain_records.DEADLINE", 0.2)
    records = DomainRecords(("127.0.0.1", names.port))
    names.is_silent = True
    with pytest.raises(Unavailable):
        await records.resolve(parse_did("did:treaty:plain.example"))
    names.is_silent = False
    assert (await records.resolve(parse_did("did:treaty:plain.example"))).keys
