"""The log asks its witnesses: whom it counts, what it takes for an answer, what readers get of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar import Litestar
from registries import Web, grant, log, operator_in, publication, publish
from signers import ORIGIN, domain_signer, key_signer
from structlog.testing import capture_logs
from witnesses import NOW, witness_key

from treaty_client.policy import Policy
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_client.registries.bundle import parse_bundle
from treaty_client.registries.trust import RegistryName, TrustedRegistries
from treaty_consensus.errors import Unavailable
from treaty_consensus.kinds import Witnesses
from treaty_consensus.log.checkpoint import Checkpoint, open_checkpoint
from treaty_consensus.log.note import SignerKey, VerifierKey, sign
from treaty_consensus.log.witness import Quorum
from treaty_io.network.exchange import BoundedClient
from treaty_io.network.hosts import Network
from treaty_registry.app import create_app as create_registry_app
from treaty_registry.log import witnesses as log_witnesses
from treaty_registry.log.checkpoints import RENEWAL, Head
from treaty_registry.log.witnesses import WitnessClient
from treaty_registry.registry import Registry
from treaty_registry.serving.views import Views
from treaty_registry.settings import WitnessName
from treaty_registry.telemetry.middleware import Observed
from treaty_registry.witness.box import Boxes
from treaty_registry.witness.cosigner import Cosigner
from treaty_registry.witness.records import WitnessStore
from treaty_registry.witness.server import create_app

KEYS = tuple(witness_key(f"w{number}.example") for number in (1, 2, 3))
WRITER = key_signer("writer")

Answer = Callable[[httpx.Request], Awaitable[httpx.Response]]


@dataclass(frozen=True)
class WitnessNetwork(Network):
    """A network of hosts that are ASGI applications or an `Answer`; any other host is down."""

    hosts: dict[str, Any] = field(default_factory=dict)

    def client(self, *, timeout: float | None = None) -> BoundedClient:
        return BoundedClient(transport=httpx.MockTransport(self._answer))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        host = self.hosts.get(request.url.host)
        if host is None:
            raise httpx.ConnectError("nobody listens", request=request)
        if not isinstance(host, Litestar | Observed):
            answer: Answer = host
            return await answer(request)
        transport = httpx.ASGITransport(host)  # type: ignore[arg-type]  # the two spell ASGI's types differently
        body = httpx.Request(request.method, request.url, headers=request.headers, content=await request.aread())
        response = await transport.handle_async_request(body)
        return httpx.Response(response.status_code, stream=httpx.ByteStream(await response.aread()))


@dataclass
class Watched:
    """Three witnesses of a registry's log, by host, and the registry's client of them."""

    registry: Registry
    cosigners: dict[str, Cosigner]
    hosts: dict[str, Any]
    client: WitnessClient

    def down(self, *names: str) -> None:
        for name in names:
            del self.hosts[name]


def a_cosigner(data: Path, key: SignerKey, log: VerifierKey) -> Cosigner:
    return Cosigner(WitnessStore(data), key, [log], lambda: NOW)


def a_witness(data: Path, key: SignerKey, cosigner: Cosigner) -> Any:
    return create_app(cosigner, Boxes(data, cosigner, key, lambda: NOW))


@asynccontextmanager
async def watching(registry: Registry, tmp_path: Path) -> AsyncIterator[Watched]:
    cosigners = {key.name: a_cosigner(tmp_path / key.name, key, registry.log_key) for key in KEYS}
    hosts = {key.name: a_witness(tmp_path / key.name, key, cosigners[key.name]) for key in KEYS}
    names = [WitnessName(f"https://{key.name}", key.verifier) for key in KEYS]
    client = WitnessClient(names, WitnessNetwork(hosts=hosts), registry.leader, registry.reader)
    try:
        yield Watched(registry, cosigners, hosts, client)
    finally:
        await client.close()


@pytest.fixture
async def watched(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(log_witnesses, "_PAUSE", 0)
    async with watching(registry, tmp_path) as stage:
        yield stage


def parameters(quorum: int, keys: Sequence[SignerKey] = KEYS) -> Witnesses:
    return Witnesses(tuple(str(key.verifier) for key in keys), quorum)


async def cosigned(watched: Watched, quorum: int = 2) -> str:
    """Have the newest head cosigned; the note, which is of exactly that head."""
    head = watched.registry.head
    note = await watched.client.cosign(head, parameters(quorum))
    parameters(quorum).parsed.check(note.encode(), head.signed.checkpoint)
    opened = open_checkpoint(note.encode(), watched.registry.log_key, watched.registry.clock_key)
    assert opened.checkpoint == head.signed.checkpoint and opened.time == head.time
    return note


async def test_a_quorum_cosigns_exactly_the_head_that_is_asked_for(watched: Watched) -> None:
    for seq in range(4):
        await cosigned(watched, quorum=3)
        await cosigned(watched)
        await log(watched.registry, grant(WRITER, seq), WRITER)
    await cosigned(watched, quorum=3)
    for cosigner in watched.cosigners.values():
        latest = cosigner.latest(ORIGIN)
        assert latest is not None and latest.checkpoint == watched.registry.head.signed.checkpoint


async def test_who_is_down_is_missed_only_when_the_quorum_needs_it(watched: Watched) -> None:
    watched.down("w2.example")
    note = await cosigned(watched)
    assert "w2.example" not in note
    before = watched.registry.head
    with pytest.raises(Unavailable) as refusal:
        await watched.client.cosign(before, parameters(3))
    assert refusal.value.code == "witness.quorum"
    assert watched.registry.head is before


async def test_an_unlisted_witness_does_not_count(watched: Watched) -> None:
    watched.down("w1.example")
    with pytest.raises(Unavailable):
        await watched.client.cosign(watched.registry.head, parameters(2, [KEYS[0], KEYS[1], witness_key("unreached.example")]))
    note = await watched.client.cosign(watched.registry.head, parameters(1, KEYS[1:2]))
    assert "w2.example" in note and "w3.example" not in note


async def test_a_client_that_forgot_what_was_cosigned_learns_it(watched: Watched, tmp_path: Path) -> None:
    await cosigned(watched, quorum=3)
    await log(watched.registry, grant(WRITER), WRITER)
    names = [WitnessName(f"https://{key.name}", key.verifier) for key in KEYS]
    forgetful = WitnessClient(names, WitnessNetwork(hosts=watched.hosts), watched.registry.leader, watched.registry.reader)
    assert await forgetful.cosign(watched.registry.head, parameters(3))
    await forgetful.close()


def show_another_history(watched: Watched, data: Path, name: str, size: int) -> None:
    """Restart a witness of a log whose key signed another history, of `size` leaves."""
    other = Checkpoint(ORIGIN, size, b"\5" * 32)
    note = sign(other.format(), [operator_in(data / "registry").log_key])
    store = WitnessStore(data / name)
    store.record(open_checkpoint(note, watched.registry.log_key))
    (key,) = (key for key in KEYS if key.name == name)
    watched.hosts[name] = a_witness(data / name, key, a_cosigner(data / name, key, watched.registry.log_key))


async def test_a_witness_of_another_history_raises_an_alarm(watched: Watched, tmp_path: Path) -> None:
    head = watched.registry.head
    for name, size in (("w1.example", head.size), ("w3.example", head.size - 1)):
        show_another_history(watched, tmp_path, name, size)
    with capture_logs() as logged, pytest.raises(Unavailable):
        await watched.client.cosign(head, parameters(2))
    cried = [(entry["log_level"], entry["witness"]) for entry in logged if entry["event"] == "not witnessed"]
    assert sorted(cried) == [("critical", "w1.example"), ("critical", "w3.example")]


def answering(status: int, body: bytes, kind: str = "text/plain") -> Answer:
    async def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, stream=httpx.ByteStream(body), headers={"Content-Type": kind})

    return answer


def sizes_without_end() -> Answer:
    async def answer(request: httpx.Request) -> httpx.Response:
        old = int(request.content.split(b"\n")[0].removeprefix(b"old "))
        return httpx.Response(409, stream=httpx.ByteStream(b"%d\n" % (old ^ 1)))

    return answer


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "answer",
    [
        answering(200, b""),
        answering(200, b"thanks\n"),
        answering(200, b"x" * 100_000),
        answering(200, "— w1.example AAAA\n".encode()),
        answering(409, b"two\n"),
        answering(409, b"-1\n"),
        answering(409, b"\xff"),
        answering(409, b"9999999\n"),
        answering(404, b""),
        answering(500, b""),
        answering(301, b""),
        sizes_without_end(),
    ],
)
async def test_an_answer_that_is_none_counts_for_nothing(watched: Watched, answer: Answer) -> None:
    watched.hosts["w1.example"] = answer
    before = watched.registry.head
    assert "w1.example" not in await cosigned(watched)
    with capture_logs() as logged, pytest.raises(Unavailable):
        await watched.client.cosign(before, parameters(3))
    assert not [entry for entry in logged if entry["event"] == "not witnessed"], "it was complained of already"
    assert watched.registry.head is before


async def test_another_witnesss_cosignature_is_not_its_own(watched: Watched) -> None:
    watched.hosts["w1.example"] = watched.hosts["w2.example"]
    assert "w1.example" not in await cosigned(watched)


async def test_a_witness_that_does_not_answer_holds_nobody_up_for_long(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    request_seen = asyncio.Event()

    async def never(request: httpx.Request) -> httpx.Response:
        request_seen.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    watched.hosts["w3.example"] = never
    await cosigned(watched)  # the quorum is there without it
    monkeypatch.setattr(log_witnesses, "_PATIENCE", 0.2)
    with pytest.raises(Unavailable):
        await watched.client.cosign(watched.registry.head, parameters(3))
    assert request_seen.is_set()


@pytest.mark.sample(2)
@pytest.mark.threat(63)
@pytest.mark.parametrize(
    ("answer", "level", "code"),
    [
        (answering(409, b""), "critical", "witness.history"),
        (answering(409, b"{}", "application/problem+json"), "critical", "witness.history"),
        (answering(422, b""), "critical", "witness.history"),
        (answering(409, b"0\n", "text/x.tlog.size"), "critical", "witness.history"),
        (answering(409, b"5000\n", "text/x.tlog.size; charset=utf-8"), "critical", "witness.ahead"),
        (answering(409, b"9223372036854775807\n", "text/x.tlog.size"), "critical", "witness.ahead"),
        (answering(409, b"two\n", "text/x.tlog.size"), "warning", "witness.unreachable"),
        (answering(409, b"", "text/x.tlog.size"), "warning", "witness.unreachable"),
        (sizes_without_end(), "warning", "witness.unreachable"),
        (answering(404, b""), "warning", "witness.unreachable"),
        (answering(503, b""), "warning", "witness.unreachable"),
        (answering(200, b"thanks\n"), "warning", "note.form"),
        (answering(200, b""), "warning", "note.form"),
        (answering(200, b"x" * 100_000), "warning", "witness.unreachable"),
        (None, "warning", "witness.unreachable"),
    ],
)
async def test_each_failure_is_logged_once_at_its_true_level(
    watched: Watched, answer: Answer | None, level: str, code: str
) -> None:
    healthy = watched.hosts.pop("w1.example")
    if answer is not None:
        watched.hosts["w1.example"] = answer
    with capture_logs() as logged:
        for _ in range(3):
            await watched.client.cosign(watched.registry.head, parameters(2))
            with pytest.raises(Unavailable):
                await watched.client.cosign(watched.registry.head, parameters(3))
    assert [(entry["log_level"], entry["code"], entry["witness"]) for entry in logged] == [(level, code, "w1.example")]
    assert level != "critical" or "compare" in logged[0]["error"], "it says what to do"
    assert watched.client.failing == {"w1.example": code}
    watched.hosts["w1.example"] = healthy
    with capture_logs() as logged:
        await cosigned(watched, quorum=3)
    assert [entry["event"] for entry in logged] == ["witnessed again"]
    assert watched.client.failing == {}


async def test_a_later_head_of_our_own_is_no_alarm(watched: Watched) -> None:
    old = watched.registry.head
    await log(watched.registry, grant(WRITER, 7), WRITER)
    await cosigned(watched, quorum=3)
    with capture_logs() as logged, pytest.raises(Unavailable):
        await watched.client.cosign(old, parameters(1))
    assert not logged and not watched.client.failing
    await cosigned(watched, quorum=3)


@pytest.mark.threat(64)
async def test_a_hanging_witness_delays_the_others_once(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_witnesses, "_PATIENCE", 0.5)
    monkeypatch.setattr(log_witnesses, "_AGAIN", 0.05)
    registry, requests, healthy = watched.registry, 0, watched.hosts["w3.example"]

    async def never(request: httpx.Request) -> httpx.Response:
        nonlocal requests
        requests += 1
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    watched.hosts["w3.example"] = never
    others = {"w1.example", "w2.example"}
    with capture_logs() as logged:
        async with running(watched):
            await published(watched, others)
            monkeypatch.setattr(log_witnesses, "_PATIENCE", 3600)  # from here on whoever waits for it waits in vain
            for seq in range(3):
                await log(registry, grant(WRITER, 100 + seq), WRITER)
                await published(watched, others)
    assert [(entry["code"], entry["log_level"]) for entry in logged if entry["event"] == "not witnessed"] == [
        ("witness.unreachable", "warning")
    ]
    monkeypatch.setattr(log_witnesses, "_PATIENCE", 0.2)
    async with running(watched):
        await log(registry, grant(WRITER, 103), WRITER)
        before = requests
        async with asyncio.timeout(20):
            while requests < before + 3:  # noqa: ASYNC110 (it is asked again and again, without another head)
                await asyncio.sleep(0.01)
        watched.hosts["w3.example"] = healthy
        await published(watched, others | {"w3.example"})
    assert watched.client.failing == {}


@asynccontextmanager
async def running(watched: Watched) -> AsyncIterator[None]:
    task = asyncio.create_task(watched.client.run())
    try:
        yield
    finally:
        task.cancel()


async def published(watched: Watched, names: set[str]) -> Head:
    """Wait until the newest head is published with these witnesses' cosignatures."""
    async with asyncio.timeout(20):
        while True:
            head = watched.registry.head
            lines = head.published.note.decode()
            if head.published.size == head.size and {key.name for key in KEYS if key.name in lines} == names:
                return head
            await asyncio.sleep(0.01)


async def test_what_is_released_is_cosigned_and_published(watched: Watched) -> None:
    registry, everybody = watched.registry, {key.name for key in KEYS}
    async with running(watched):
        await published(watched, everybody)
        for seq in range(3):
            await log(registry, grant(WRITER, seq), WRITER)
        head = await published(watched, everybody)
        Quorum(tuple(key.verifier for key in KEYS), 3).check(head.published.note, head.signed.checkpoint)
        assert not any(key.name in head.note.decode() for key in KEYS), "receipts have the head's own note"
        watched.down("w1.example")
        await log(registry, grant(WRITER, 3), WRITER)
        await published(watched, everybody - {"w1.example"})
        renewed = registry.head
        await registry.leader.renew()
        assert registry.head is not renewed and registry.head.witnessed is not None
        await published(watched, everybody - {"w1.example"})


async def test_readers_get_a_witnessed_checkpoint(watched: Watched, web: Web) -> None:
    registry, alice = watched.registry, domain_signer("alice.example")
    web.serve(alice)
    old, new = publication(alice), publication(alice, version="2.0")
    await publish(registry, alice, old)
    async with running(watched):
        witnessed = (await published(watched, {key.name for key in KEYS})).published
    views = Views(registry)
    await publish(registry, alice, new)
    assert registry.head.size > witnessed.size
    path = old.body.uri.removeprefix(f"https://{ORIGIN}")
    assert (await views.checkpoint()).body == witnessed.note
    bundle = parse_bundle((await views.bundle(path, None)).body)
    assert bundle.checkpoint == witnessed.note
    since = parse_bundle((await views.bundle(path, witnessed.size)).body)
    assert (since.checkpoint, since.consistency) == (witnessed.note, ())
    assert parse_bundle((await views.bundle(path, registry.head.size)).body).consistency is None, "it has not seen as much"
    assert parse_bundle((await views.topic_bundle(old.body.topic, None)).body).checkpoint == witnessed.note
    newest = parse_bundle((await views.bundle(path.replace("/1.0", "/2.0"), None)).body)
    assert newest.checkpoint == registry.head.note, "what is so new is shown at the head that has it"


@pytest.mark.deep
async def test_an_agent_ahead_gets_the_witnessed_head(watched: Watched, web: Web, tmp_path: Path) -> None:
    registry, alice = watched.registry, domain_signer("alice.example")
    web.serve(alice)
    old, new = publication(alice), publication(alice, version="2.0")
    await publish(registry, alice, old)
    async with running(watched):
        await published(watched, {key.name for key in KEYS})
    await publish(registry, alice, new)
    network = WitnessNetwork(hosts={ORIGIN: create_registry_app(registry)})
    TrustedRegistries(tmp_path).add(RegistryName(f"https://{ORIGIN}", registry.log_key))
    strict = Policy(witnesses=Quorum(tuple(key.verifier for key in KEYS), 2))
    async with Fetcher(tmp_path, strict, network, clock=lambda: NOW) as agent:
        newest = await agent.head(ORIGIN).observe(registry.head.note)
        assert newest.checkpoint.size > registry.head.published.size
        assert await agent.document(old.body.uri) == old.document
        assert agent.registries.get(ORIGIN).seen == registry.head.note
        with pytest.raises(VerificationFailed) as refusal:
            await agent.document(new.body.uri)
        assert (refusal.value.step, refusal.value.code) == (2, "checkpoint.not-witnessed")
    async with Fetcher(tmp_path, Policy(), network, clock=lambda: NOW) as agent:
        assert await agent.document(new.body.uri) == new.document
    async with running(watched), Fetcher(tmp_path, strict, network, clock=lambda: NOW) as agent:
        await log(registry, grant(WRITER), WRITER)
        await published(watched, {key.name for key in KEYS})
        assert await agent.document(new.body.uri) == new.document


async def test_long_without_witnesses_the_newest_head_is_published(registry: Registry) -> None:
    head = registry.head
    witnessed = head.cosigned(b"")
    later = replace(head, signed=replace(head.signed, time=head.time + 2 * RENEWAL), witnessed=witnessed)
    assert later.published is witnessed
    too_late = replace(head, signed=replace(head.signed, time=head.time + 2 * RENEWAL + 1), witnessed=witnessed)
    assert too_late.published is too_late
    assert head.published is head


async def test_published_heads_never_go_back(registry: Registry) -> None:
    leader, first = registry.leader, registry.head
    leader.witness(first.cosigned(b"first"))
    await log(registry, grant(WRITER), WRITER)
    assert registry.head.published.size == first.size
    second = registry.head
    # Two renewals without a witness.
    leader.follow(replace(second, signed=replace(second.signed, time=second.time + 2 * RENEWAL + 1)))
    alone = registry.head.published
    assert (alone.size, alone.time) == (second.size, second.time + 2 * RENEWAL + 1)
    # The witness returns with an earlier head; another node, which was the leader, knows of an earlier one still.
    late = replace(second, signed=replace(second.signed, time=second.time + 2 * RENEWAL))
    leader.witness(late.cosigned(b"late"))
    assert registry.head.published.note == alone.note
    leader.follow(replace(registry.head, witnessed=first.cosigned(b"first")))
    assert registry.head.published.note == alone.note
    # A head that was read before the one that is served now.
    leader.follow(first)
    assert (registry.head.size, registry.head.published.note) == (second.size, alone.note)
    leader.witness(registry.head.cosigned(b"again"))
    assert registry.head.published.note == registry.head.note + b"again"


async def test_a_head_keeps_one_head_that_was_published_before_it(registry: Registry) -> None:
    await registry.leader.renew()
    await registry.leader.renew()
    before = registry.head.published_before
    assert before is not None and before.published_before is None and before.witnessed is None


async def test_an_older_head_does_not_replace_a_newer_one(watched: Watched) -> None:
    registry = watched.registry
    older = registry.head.cosigned(b"")
    await log(registry, grant(WRITER), WRITER)
    newer = registry.head.cosigned(b"")
    registry.leader.witness(newer)
    registry.leader.witness(older)
    assert registry.head.witnessed is newer
