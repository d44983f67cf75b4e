"""What an `anp:protocol` id means: what the owner or the policy says, and what the publisher's own statement proves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from fetching import fetcher
from flow_peers import BUYER, SHOP
from simulated_registry import ALICE, BOB, SimulatedRegistry, match_of, uri_of, with_echo

from treaty_agent.sessions.flow_context import DidKeys, PolicyNames
from treaty_agent.sessions.interfaces import Located
from treaty_consensus.errors import Malformed, NotFound, Refused, TreatyError, Unavailable
from treaty_consensus.statement import Statement
from treaty_io.identity import Identity

ID = "anp:protocol:echo:2.0"


def claimed(*aliases: str, signer: object = ALICE, listed: bool = True) -> tuple[SimulatedRegistry, Statement]:
    """A registry in which a publisher's echo 2.0 claims to be `aliases`, and `/resolve` says so of `ID`."""
    registry = with_echo()
    assert signer in (ALICE, BOB)
    who = ALICE if signer is ALICE else BOB
    publication = registry.publish("2.0", signer=who, aliases=aliases)
    registry.attach("2.0", signer=who, of=who)
    if listed:
        registry.aliases[ID] = [match_of(publication, verified=False)]
    return registry, publication


async def test_an_admitted_publishers_claim_is_fetched_and_checked(tmp_path: Path) -> None:
    registry, publication = claimed(ID)
    async with fetcher(registry, tmp_path) as source:
        names = PolicyNames(source)
        located = await names.locate(ID)
        assert located == Located(uri_of("2.0"), str(match_of(publication)["hash"]))
        verified = await names.fetch(ID, located)
        assert (verified.uri, verified.hash) == (located.uri, located.digest)
        assert await names.locate(ID, located.digest) == located


async def test_an_unadmitted_claim_is_refused(tmp_path: Path) -> None:
    registry, _ = claimed(ID, signer=BOB)
    async with fetcher(registry, tmp_path) as source:
        with pytest.raises(Refused) as failure:
            await PolicyNames(source).locate(ID)
        assert failure.value.code == "resolve.ambiguous"
        assert BOB.did in failure.value.message


async def test_a_registrys_invented_claim_is_detected(tmp_path: Path) -> None:
    registry, publication = claimed("anp:protocol:other:1.0")
    async with fetcher(registry, tmp_path / "a") as source:
        located = await PolicyNames(source).locate(ID)
        with pytest.raises(Refused) as failure:
            await PolicyNames(source).fetch(ID, located)
        assert failure.value.code == "resolve.ambiguous"
    registry, publication = claimed(ID, signer=BOB)
    registry.aliases[ID] = [{**match_of(publication, verified=False), "publisher": ALICE.did}]
    registry.attach("2.0", signer=ALICE, of=BOB)
    async with fetcher(registry, tmp_path / "b") as source:
        located = await PolicyNames(source).locate(ID)
        with pytest.raises(TreatyError) as failure_:
            await PolicyNames(source).fetch(ID, located)
        assert failure_.value.code == "resolve.ambiguous"


async def test_several_publishers_are_taken_in_the_policys_order(tmp_path: Path) -> None:
    registry, alices = claimed(ID)
    bobs = registry.publish("2.0", signer=BOB, document=b"# Another echo\n", aliases=(ID,))
    registry.attach("2.0", signer=BOB, of=BOB)
    registry.aliases[ID].append(match_of(bobs, verified=False))
    for publishers, expected in (((ALICE, BOB), ALICE), ((BOB, ALICE), BOB)):
        async with fetcher(registry, tmp_path / expected.did[8:11], publishers=publishers) as source:
            located = await PolicyNames(source).locate(ID)
            assert located.uri == uri_of("2.0", signer=expected)
            assert (await PolicyNames(source).fetch(ID, located)).author == expected.did
    async with fetcher(registry, tmp_path / "meant", publishers=(ALICE, BOB)) as source:
        match = match_of(bobs)["hash"]
        assert isinstance(match, str)
        assert match != match_of(alices)["hash"]
        assert (await PolicyNames(source).locate(ID, match)).uri == uri_of("2.0", signer=BOB)


async def test_two_claims_of_a_publisher_need_the_document(tmp_path: Path) -> None:
    registry, first = claimed(ID)
    second = registry.publish("3.0", aliases=(ID,))
    registry.attach("3.0")
    registry.aliases[ID].append(match_of(second, verified=False))
    async with fetcher(registry, tmp_path) as source:
        names = PolicyNames(source)
        with pytest.raises(Refused) as failure:
            await names.locate(ID)
        assert failure.value.code == "resolve.ambiguous"
        for publication in (first, second):
            digest = match_of(publication)["hash"]
            assert isinstance(digest, str)
            assert (await names.locate(ID, digest)).digest == digest


async def test_what_nobody_claims_or_another_document_is_not_found(tmp_path: Path) -> None:
    registry, _ = claimed(ID)
    async with fetcher(registry, tmp_path) as source:
        for name, digest in ((ID, "ab" * 32), ("anp:protocol:nothing:1.0", "")):
            with pytest.raises(NotFound) as failure:
                await PolicyNames(source).locate(name, digest)
            assert failure.value.code == "resolve.unknown"
        with pytest.raises(Malformed):
            await PolicyNames(source).locate(ID, "AB")
        with pytest.raises(Refused) as wrong:
            await PolicyNames(source).fetch(ID, Located(uri_of("2.0"), "ab" * 32))
        assert wrong.value.code == "session.hash-mismatch"


async def test_claims_by_hash_or_for_foreign_protocols_do_not_count(tmp_path: Path) -> None:
    registry, publication = claimed(ID)
    registry.aliases[ID] = [
        match_of(publication, by="agora"),
        {**match_of(publication), "uri": uri_of("2.0").replace("registry.", "other.")},
    ]
    async with fetcher(registry, tmp_path) as source:
        with pytest.raises(NotFound):
            await PolicyNames(source).locate(ID)


async def test_the_owners_own_word_goes_first_and_asks_nobody(tmp_path: Path) -> None:
    registry, _ = claimed(listed=False)
    async with fetcher(registry, tmp_path) as source:
        names = PolicyNames(source, pins=lambda id: uri_of("2.0") if id == ID else "")
        before = list(registry.requests)
        located = await names.locate(ID)
        assert registry.requests == before
        assert (await names.fetch(ID, located)).uri == uri_of("2.0")


async def test_a_registry_that_does_not_answer_is_said_to(tmp_path: Path) -> None:
    registry, _ = claimed(ID)
    async with fetcher(registry, tmp_path, down=True) as source:
        with pytest.raises(Unavailable):
            await PolicyNames(source).locate(ID)


# Keys


async def test_001_33_a_did_key_needs_nobody_and_others_their_resolver() -> None:
    own = Identity.create()
    assert await DidKeys()(own.did) == [own.public_key]

    async def documents(did: str) -> Mapping[str, bytes]:
        return {f"{did}#key-1": BUYER.public_key}

    async def of_anp(did: str) -> list[bytes]:
        return [SHOP.public_key]

    keys = DidKeys(documents, {"anp": of_anp})
    assert await keys("did:wba:buyer.example") == [BUYER.public_key]
    assert await keys("did:anp:123456789abcdefghi") == [SHOP.public_key]
    for resolver, did in ((keys, "did:other:x"), (DidKeys(), "did:anp:x"), (DidKeys(), BUYER.did), (keys, "nothing")):
        with pytest.raises(Refused) as failure:
            await resolver(did)
        assert failure.value.code == "did.method"

    async def broken(did: str) -> list[bytes]:
        return [b"short"]

    with pytest.raises(Malformed):
        await DidKeys(broken)(BUYER.did)
