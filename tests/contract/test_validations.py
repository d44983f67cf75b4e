"""`POST /validations`: a workflow's token proves a key for its account, once; all else is refused and logs nothing."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from http_api import problem, publish
from registries import Web, contents, grant, new_or_not, publication, refuse, settings_for
from signers import NOW, ORIGIN, Signer, key_signer
from workflow_issuer import HOST, WorkflowIssuer, jwk, rsa_key

from treaty_consensus import statement
from treaty_consensus.did import encode_multikey
from treaty_consensus.kinds import Validation
from treaty_consensus.workflow_evidence import audience, check_evidence
from treaty_registry.app import create_app
from treaty_registry.registry import Registry

DID = "did:treaty:github.com:octo-org"
DAY = 24 * 3600


@dataclass
class Time:
    """The registry's clock, and the issuer's."""

    now: int = NOW

    def __call__(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)


@dataclass
class World:
    """A registry that validates accounts, over HTTP, and the issuer that it pins."""

    registry: Registry
    api: httpx.AsyncClient
    issuer: WorkflowIssuer
    time: Time

    async def prove(self, key: str = "run 1", *, token: str = "", **claims: Any) -> httpx.Response:
        """Ask for a validation of a key, as the run of a workflow does."""
        multikey = encode_multikey(key_signer(key).public_key)
        token = token or self.issuer.token(audience(ORIGIN, multikey), **claims)
        return await self.api.post("/validations", json={"key": multikey}, headers={"Authorization": f"Bearer {token}"})

    async def refused(self, expected: str, **arguments: Any) -> None:
        """Ask for one that is refused and changes nothing."""
        before = await contents(self.registry)
        problem(await self.prove(**arguments), 401, expected)
        assert await contents(self.registry) == before


def run_of(key: str, did: str = DID) -> Signer:
    """The signer of a run whose key was validated."""
    plain = key_signer(key)
    return Signer(did, f"{did}#{encode_multikey(plain.public_key)}", plain.private_key)


@asynccontextmanager
async def opened(folder: Path, database: str | None, issuer: WorkflowIssuer, time: Time) -> AsyncIterator[World]:
    settings = replace(
        settings_for(folder / "registry", database),
        new=False,
        resolve={HOST: ("127.0.0.1", issuer.port)},
        ca=issuer.authority,
        validate=frozenset({"oidc"}),
    )
    async with Registry.open(new_or_not(settings), clock=time, resolve=Web().resolve) as registry:
        transport = httpx.ASGITransport(create_app(registry, period=0))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=f"https://{ORIGIN}") as api:
            yield World(registry, api, issuer, time)


@pytest.fixture
def issuer(tmp_path: Path) -> Iterator[WorkflowIssuer]:
    with WorkflowIssuer(now=lambda: NOW).serving(tmp_path) as issuer:
        yield issuer


@pytest.fixture
async def world(tmp_path: Path, database: str, issuer: WorkflowIssuer) -> AsyncIterator[World]:
    async with opened(tmp_path, database, issuer, Time()) as world:
        yield world


def grant_of(key: str, world: World) -> statement.Statement:
    """A statement of a run that needs nothing else."""
    return run_of(key).statement(grant(run_of(key)), issued=world.time.now)


async def logged(registry: Registry) -> list[tuple[Validation, int]]:
    """The validations in the log, with their times."""
    leaves = await registry.leaves(range(registry.head.size))
    statements = [statement.parse(leaf) for leaf in leaves.values() if b"payloadType" in leaf]
    return [(each.body, each.issued) for each in statements if isinstance(each.body, Validation)]


def unsigned(header: dict[str, object], claims: dict[str, object], secret: bytes = b"") -> str:
    """A token that no issuer made."""

    def encoded(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

    text = f"{encoded(json.dumps(header).encode())}.{encoded(json.dumps(claims).encode())}"
    return f"{text}.{encoded(hmac.digest(secret, text.encode(), 'sha256') if secret else b'')}"


async def test_a_token_lets_a_run_publish_for_its_account(world: World) -> None:
    reply = await world.prove()
    assert reply.status_code == 201, reply.text
    run = run_of("run 1")
    assert reply.json() == {"did": DID, "keyid": run.key_id, "tenure": 1, "ends": NOW + 3600}
    ((stated, issued),) = await logged(world.registry)
    assert (stated.method, stated.account) == ("oidc", "65")
    assert stated.workflow == "Octo-Org/protocols/.github/workflows/publish.yml@refs/tags/v1.0"
    data = await world.registry.blob(stated.document.sha256)
    # Everything but the issuer's signature can be checked without the operator, and neither token nor person is public.
    evidence = check_evidence(data, stated, log=ORIGIN, issued=issued)
    assert evidence.claims.repository_owner == "Octo-Org"
    assert b"a person" not in data and b"eyJ" not in data
    mine = publication(run)
    assert mine.body.uri.startswith(f"https://{ORIGIN}/protocols/github.com:octo-org/")
    await publish(world.api, run, mine)
    assert (await world.api.get(f"/identities/{DID}")).json()["validated"] == "oidc"
    record = (await world.api.get(mine.body.uri.removeprefix(f"https://{ORIGIN}"), headers={"Accept": "application/json"})).json()
    assert (record["publisher"], record["validated"]) == (DID, "oidc")


@pytest.mark.threat(445)
async def test_a_token_is_used_once(world: World, tmp_path: Path, database: str) -> None:
    token = world.issuer.token(audience(ORIGIN, encode_multikey(key_signer("run 1").public_key)))
    replies = await asyncio.gather(*(world.prove(token=token) for _ in range(4)))
    assert sorted(reply.status_code for reply in replies) == [201, 401, 401, 401]
    head, body, signature = token.split(".")
    await world.refused("token.invalid: used before", token=token)
    # The same bytes in another spelling are the same token.
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    respelt = signature[:-1] + last[last.index(signature[-1]) ^ 1]
    await world.refused("token.invalid", token=f"{head}.{body}.{respelt}")


async def test_a_restart_forgets_no_token(tmp_path: Path, database: str, issuer: WorkflowIssuer) -> None:
    token = issuer.token(audience(ORIGIN, encode_multikey(key_signer("run 1").public_key)))
    async with opened(tmp_path, database, issuer, Time()) as world:
        assert (await world.prove(token=token)).status_code == 201
    async with opened(tmp_path, database, issuer, Time()) as world:
        await world.refused("token.invalid: used before", token=token)


@pytest.mark.threat(445)
@pytest.mark.threat(446)
async def test_tokens_that_prove_nothing(world: World) -> None:
    """Each is refused for its own reason, and spends nothing."""
    fresh = encode_multikey(key_signer("run 1").public_key)
    workflow = "Octo-Org/protocols/.github/workflows/publish.yml@refs/heads/main"
    cases: list[tuple[str, dict[str, Any]]] = [
        ("another registry or another key", {"aud": audience("other.example", fresh)}),
        ("another registry or another key", {"aud": audience(ORIGIN, encode_multikey(key_signer("thief").public_key))}),
        ("another registry or another key", {"aud": "sigstore"}),
        ("issued by", {"iss": f"https://{HOST}/enterprise"}),
        ("issued by", {"iss": "https://evil.example"}),
        ("not valid now", {"exp": NOW - 40}),
        ("not valid now", {"nbf": NOW + 60}),
        ("not valid now", {"iat": NOW + 60}),
        ("not valid now", {"exp": NOW + 3600}),
        ("a stranger's change", {"event_name": "pull_request_target", "environment": "release"}),
        ("a stranger's change", {"event_name": "pull_request"}),
        ("a stranger's change", {"event_name": "issue_comment"}),
        ("do not belong together", {"repository": "other/protocols"}),
        ("another repository", {"workflow_ref": workflow.replace("protocols", "fork")}),
        ("not valid", {"repository_owner_id": None}),
        ("not valid", {"jti": None}),
        ("not valid", {"aud": [audience(ORIGIN, fresh)]}),
    ]
    for pattern, claims in cases:
        reply = await world.prove(**claims)
        assert reply.json()["code"] == "token.invalid" and pattern in reply.json()["detail"], (claims, reply.text)
    assert not await logged(world.registry)
    assert (await world.prove()).status_code == 201


async def test_another_owner_in_other_letters_is_the_same(world: World) -> None:
    assert (await world.prove(repository_owner="octo-org")).json()["did"] == DID
    assert (await world.prove("run 2", repository_owner="OCTO-ORG")).json()["tenure"] == 1
    # No letters of GitHub's names: it would be another namespace, or two.
    problem(await world.prove(repository_owner="octo:org", repository="octo:org/x"), 400, "did.syntax")


@pytest.mark.threat(445)
async def test_keys_that_the_issuer_did_not_sign_with(world: World) -> None:
    multikey = encode_multikey(key_signer("run 1").public_key)
    claims: dict[str, object] = json.loads(
        base64.urlsafe_b64decode(world.issuer.token(audience(ORIGIN, multikey)).split(".")[1] + "==")
    )
    public = rsa_key("first").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    headers: tuple[tuple[dict[str, object], bytes], ...] = (
        ({"alg": "none", "kid": "first", "typ": "JWT"}, b""),
        ({"alg": "HS256", "kid": "first", "typ": "JWT"}, public),
        ({"alg": "RS256", "kid": "first", "typ": "JWT", "jwk": jwk("evil")}, b"x"),
        ({"alg": "RS256", "kid": "first", "typ": "JWT", "jku": "https://evil.example"}, b"x"),
        ({"alg": "RS256", "kid": "first", "crit": ["exp"], "typ": "JWT"}, b"x"),
    )
    for header, secret in headers:
        reply = await world.prove(token=unsigned(header, claims, secret))
        problem(reply, 400, "token.invalid: header")
    await world.refused("token.invalid: did not sign", token=unsigned({"alg": "RS256", "kid": "first"}, claims, b"x"))
    # Another key under the issuer's name for its own.
    forged = world.issuer.token(audience(ORIGIN, multikey), key="evil", kid="first")
    await world.refused("token.invalid: did not sign", token=forged)


async def test_the_issuer_rotates_with_an_overlap(world: World) -> None:
    assert (await world.prove()).status_code == 201
    assert world.issuer.asked == 1
    # A key that the set lacks: the registry asks no more than once in 30 seconds, whatever strangers name.
    for number in range(5):
        forged = world.issuer.token(
            audience(ORIGIN, encode_multikey(key_signer("run 1").public_key)), key="evil", kid=f"k{number}"
        )
        await world.refused("token.invalid: no key", token=forged)
    assert world.issuer.asked == 1


async def test_keys_of_one_run_end_and_of_two_runs_overlap(world: World) -> None:
    first, second = await asyncio.gather(world.prove("run 1"), world.prove("run 2"))
    assert (first.status_code, second.status_code) == (201, 201)
    await publish(world.api, run_of("run 1"), publication(run_of("run 1"), "one"))
    await publish(world.api, run_of("run 2"), publication(run_of("run 2"), "two"))
    world.time.now += 3700
    # The log's clock stood still meanwhile, and the registry's did not.
    assert (await refuse(world.registry, grant_of("run 1", world))).code == "statement.unknown-key"
    # A later run acts for the same publisher, with nothing kept from the ones before.
    world.issuer.now = lambda: world.time.now
    assert (await world.prove("run 3")).json()["tenure"] == 1
    await publish(world.api, run_of("run 3"), publication(run_of("run 3"), "three"))


@pytest.mark.threat(447)
async def test_a_name_that_was_taken_anew_waits(world: World) -> None:
    assert (await world.prove()).status_code == 201
    assert (await world.prove("run 2", repository_owner_id="66")).json()["tenure"] == 2
    mine = publication(run_of("run 2"))
    for digest, data in mine.blobs.items():
        await world.registry.put_blob(digest, run_of("run 2").statement(mine.body).leaf, data)
    assert (await refuse(world.registry, run_of("run 2").statement(mine.body))).code == "identity.new-tenure"
    # No key of the account before signs for the new one.
    assert (await refuse(world.registry, run_of("run 1").statement(mine.body))).code == "statement.unknown-key"
    world.time.now += 31 * DAY
    world.issuer.now = lambda: world.time.now
    assert (await world.prove("run 3", repository_owner_id="66")).json()["tenure"] == 2
    await publish(world.api, run_of("run 3"), publication(run_of("run 3")))


@pytest.mark.threat(446)
async def test_a_reusable_workflow_of_others_is_named(world: World) -> None:
    steps = "builders/shared/.github/workflows/publish.yml@refs/tags/v2"
    assert (await world.prove(job_workflow_ref=steps)).json()["did"] == DID
    ((stated, _),) = await logged(world.registry)
    assert stated.workflow == steps


async def test_a_registry_that_validates_nothing_says_so(api: httpx.AsyncClient, registry: Registry) -> None:
    before = registry.head.size
    reply = await api.post("/validations", json={"key": "z6Mk"}, headers={"Authorization": "Bearer x"})
    problem(reply, 401, "token.invalid: validates no accounts")
    assert registry.head.size == before
