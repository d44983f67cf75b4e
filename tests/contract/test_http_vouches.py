"""`/vouches`: whom a DID vouches for, and what it signs next."""

from __future__ import annotations

import httpx
from http_api import post, problem, say, unchanged
from registries import ballot
from signers import Signer, domain_signer, signed

from treaty_consensus import kinds
from treaty_registry.keys import Operator
from treaty_registry.registry import Registry

CAROL = domain_signer("carol.example")


async def asked(api: httpx.AsyncClient, signer: Signer) -> dict[str, object]:
    answer = await api.get("/vouches", params={"did": signer.did})
    assert answer.status_code == 200
    value: dict[str, object] = answer.json()
    return value


async def test_the_newest_standing_vouch_of_a_pair_is_shown(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, bob: Signer
) -> None:
    assert await asked(api, alice) == {"seq": 0, "epoch": 0, "vouches": []}
    first = await say(api, alice, kinds.Vouch(bob.did, 0))
    second = await say(api, alice, kinds.Vouch(CAROL.did, 1))
    place = registry.head.size - 1
    of_bob, of_carol = (
        {"to": to.did, "epoch": 0, "statement": statement.id, "index": index}
        for to, statement, index in ((bob, first, place - 1), (CAROL, second, place))
    )
    assert await asked(api, alice) == {"seq": 2, "epoch": 0, "vouches": [of_carol, of_bob]}
    await say(api, alice, ballot(registry))
    assert await registry.decide()
    again = await say(api, alice, kinds.Vouch(bob.did, 2))
    renewed = {"to": bob.did, "epoch": 1, "statement": again.id, "index": registry.head.size - 1}
    assert await asked(api, alice) == {"seq": 3, "epoch": 1, "vouches": [renewed, of_carol]}
    await say(api, alice, kinds.Vouch(CAROL.did, 3, withdrawn=True))
    assert await asked(api, alice) == {"seq": 4, "epoch": 1, "vouches": [renewed]}
    assert await asked(api, bob) == {"seq": 0, "epoch": 1, "vouches": []}


async def test_a_vouch_out_of_turn_or_for_oneself_changes_nothing(
    api: httpx.AsyncClient, registry: Registry, alice: Signer
) -> None:
    await say(api, alice, kinds.Vouch(CAROL.did, 0))
    for body, status, code in [
        (kinds.Vouch(CAROL.did, 0, withdrawn=True), 409, "statement.previous"),
        (kinds.Vouch(CAROL.did, 2), 409, "statement.previous"),
        (kinds.Vouch(alice.did, 1), 422, "electorate.one-principal"),
    ]:
        async with unchanged(registry):
            problem(await post(api, alice.statement(body)), status, code)


async def test_whose_vouches_must_be_said(api: httpx.AsyncClient) -> None:
    problem(await api.get("/vouches"), 400, "http.request")
    problem(await api.get("/vouches?did=alice"), 400, "did.syntax")


async def test_an_operators_report_sets_no_clock(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, operator: Operator
) -> None:
    before = await registry.pool.fetch("select * from clock")
    own = Signer(operator.did, operator.identity.key_id, operator.identity.private_key)
    report = kinds.Report("commerce/product-info", "ab" * 32, "cd" * 32, "agreed", 0, registry.head.note.decode())
    statement = signed(report, own, alice, issued=int(registry.clock().replace(year=2030).timestamp()))
    assert (await post(api, statement)).status_code == 201
    assert await registry.pool.fetch("select * from clock") == before
