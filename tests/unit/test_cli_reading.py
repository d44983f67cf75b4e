"""`treaty fetch TOPIC`, `info`, `diff`, `open` and `ucp profile`, against a registry on a socket."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import time
import webbrowser
from collections.abc import AsyncIterator
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from signers import domain_signer, identity_body
from simulated_registry import ALICE, BOB, NAME, OPERATOR, TOPIC, SimulatedRegistry, uri_of, with_echo
from socket_registry import SocketRegistry, socket_registry
from treaty_process import treaty_here

from treaty_client.authoring.new_project import NewProtocol, write_project
from treaty_client.policy import Policy
from treaty_client.protocols.export import verify_directory
from treaty_client.registries.trust import TrustedRegistries
from treaty_consensus import kinds
from treaty_consensus.canonical import hex_digest


class Home:
    """A home that trusts the registry."""

    def __init__(self, server: SocketRegistry, folder: Path) -> None:
        address = server.network.resolve[NAME.origin]
        self.folder = folder / "home"
        resolve = f"--resolve={NAME.origin}={address.ip}:{address.port}"
        self.options = ("--home", str(self.folder), resolve, "--ca", str(server.network.ca))

    async def runs(self, *command: str) -> tuple[int, str, str]:
        """Status, output and error output."""
        return await asyncio.to_thread(treaty_here, *command, *self.options)

    async def tells(self, *command: str, status: int = 0) -> Any:
        """What a command prints with `--json`."""
        code, out, err = await self.runs(*command, "--json")
        assert code == status, out + err
        return json.loads(out)


@cache
def consensus() -> SimulatedRegistry:
    """A log whose network elected `echo` 1.0 after three epochs of reports and votes. Version 2.0 has no handler."""
    registry = with_echo()
    elect(registry)
    registry.publish("2.0", document=b"# Echo\n\nThe text comes back twice.\n")
    return registry


def elect(registry: SimulatedRegistry) -> None:
    """Let three agents report and vote for three epochs."""
    agents = [ALICE, *(domain_signer(f"{name}.example") for name in ("bravo", "charlie"))]
    for agent in agents[1:]:
        registry.add(identity_body(agent), OPERATOR)
    document = registry.document_of(uri_of()).sha256
    for epoch in range(3):
        for number, pair in enumerate(combinations(agents, 2)):
            nid = hex_digest(b"%d %d" % (epoch, number))
            registry.add(kinds.Report(TOPIC, nid, document, "agreed", epoch, registry.checkpoint().decode()), *pair)
        for agent in agents:
            registry.add(kinds.Ballot(TOPIC, epoch, ((document,),), registry.checkpoint().decode()), agent)
        registry.decide()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[SocketRegistry]:
    async with socket_registry(tmp_path) as served:
        served.registry = consensus().copy()
        served.registry.now = int(time.time())
        yield served


@pytest.fixture
async def home(server: SocketRegistry, tmp_path: Path) -> Home:
    return await home_of(server, tmp_path)


async def home_of(server: SocketRegistry, tmp_path: Path) -> Home:
    home = Home(server, tmp_path)
    await home.tells("trust", "add", str(NAME))
    await home.tells("policy", "allow", ALICE.did)
    return home


def yank(server: SocketRegistry, uri: str = uri_of(), *, successor: str | None = None) -> None:
    server.registry.add(kinds.Status(uri, "yanked", successor=successor), ALICE)


async def test_the_elected_protocol_is_fetched_with_its_proof(server: SocketRegistry, home: Home, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    fetched = await home.tells("fetch", TOPIC, "--output", str(folder))
    (index, decision), *_ = [(i, s) for i, s in reversed(server.registry.statements()) if isinstance(s.body, kinds.Decision)]
    assert (fetched["uri"], fetched["election"]) == (uri_of(), "consensus")
    assert fetched["decision"] == {"topic": TOPIC, "epoch": 2, "statement": decision.id, "index": index}
    offline = verify_directory(folder, TrustedRegistries(home.folder), Policy([ALICE.did]))
    assert decision.id in [logged.statement.id for logged in offline.evidence.statements] and offline.election == "consensus"

    _, out, _ = await home.runs("fetch", TOPIC)
    assert f"alice.example/echo 1.0 is the consensus of {TOPIC}: registry.example decided so in epoch 2, leaf {index}." in out
    assert "100.0 % of the votes accept it" in out
    assert "decision" not in await home.tells("fetch", uri_of())


async def test_a_stored_proof_from_before_the_election_denies_nothing(server: SocketRegistry, tmp_path: Path) -> None:
    server.registry = with_echo()
    server.registry.now = int(time.time())
    home = await home_of(server, tmp_path)
    assert (await home.tells("fetch", uri_of()))["election"] is None
    elect(server.registry)
    fetched = await home.tells("fetch", TOPIC)
    assert (fetched["uri"], fetched["decision"]["epoch"]) == (uri_of(), 2)
    assert f"is the consensus of {TOPIC}: registry.example decided so in epoch 2" in (await home.runs("fetch", TOPIC))[1]


async def test_another_admitted_publisher_serves_the_elected_document(server: SocketRegistry, home: Home, tmp_path: Path) -> None:
    """The first one that the topic lists has no handler of an admitted publisher."""
    document = server.registry.blobs[server.registry.document_of(uri_of()).sha256]
    server.registry.publish("3.0", document=document)
    assert (await home.tells("fetch", TOPIC))["uri"] == uri_of()
    (home.folder / "policy.toml").write_text("")
    error = (await home.tells("fetch", TOPIC, status=4))["error"]
    assert (error["code"], error["step"]) == ("policy.refused", 6)


async def test_a_withdrawn_elected_protocol_names_its_successor(server: SocketRegistry, home: Home) -> None:
    yank(server, successor=uri_of("2.0"))
    error = (await home.tells("fetch", TOPIC, status=4))["error"]
    assert (error["code"], error["step"]) == ("status.yanked", 9)
    assert "elected alice.example/echo 1.0" in error["message"] and f"its successor is {uri_of('2.0')}" in error["message"]
    assert error["fix"].endswith(f"treaty fetch {uri_of('2.0')}")
    assert not (home.folder / "treaty.lock").exists()


async def test_a_topic_without_a_decision_is_not_yet(server: SocketRegistry, home: Home) -> None:
    server.registry = with_echo()
    error = (await home.tells("fetch", TOPIC, status=6))["error"]
    assert error["code"] == "topic.undecided" and f"treaty topic {TOPIC} --explain" in error["fix"]


async def test_an_absent_name_is_not_found_and_no_matter_of_trust(home: Home) -> None:
    absent = {uri_of("9.9"): "protocol.unknown", f"sha256:{'0' * 64}": "resolve.unknown", "0" * 64: "resolve.unknown"}
    for name, code in absent.items():
        assert (await home.tells("fetch", name, status=5))["error"]["code"] == code
    assert (await home.tells("fetch", "no/topic", status=5))["error"]["code"] == "topic.unknown"
    untrusted = uri_of().replace("registry.example", "other.example")
    assert (await home.tells("fetch", untrusted, status=4))["error"]["code"] == "registry.not-trusted"


async def test_the_reason_that_matters_comes_first(server: SocketRegistry, home: Home) -> None:
    (home.folder / "policy.toml").write_text("")
    error = (await home.tells("fetch", uri_of(), status=4))["error"]
    assert error["code"] == "policy.refused" and error["fix"].endswith(f"treaty policy allow {ALICE.did}")
    yank(server, successor=uri_of("2.0"))
    error = (await home.tells("fetch", uri_of(), status=4))["error"]
    assert (error["code"], error["step"]) == ("status.yanked", 9)
    assert error["fix"].endswith(f"treaty fetch {uri_of('2.0')}")


async def test_a_stranger_that_attached_a_handler_is_not_advised(server: SocketRegistry, home: Home) -> None:
    server.registry.attach("2.0", signer=BOB)
    error = (await home.tells("fetch", uri_of("2.0"), status=4))["error"]
    assert error["code"] == "policy.refused" and BOB.did in error["message"]
    assert error["fix"].endswith("treaty policy allow DID")


async def test_a_protocol_is_shown_on_one_screen(server: SocketRegistry, home: Home) -> None:
    info = await home.tells("info", uri_of())
    body = server.registry.document_of(uri_of())
    assert (info["label"], info["publisher"], info["status"]) == ("alice.example/echo 1.0", ALICE.did, "active")
    assert (info["topic"], info["election"], info["hash"], info["size"]) == (TOPIC, "consensus", body.sha256, body.size)
    assert (info["roles"], info["operations"]) == ({"provider": [], "requester": ["echo"]}, {"echo": "request"})
    assert [(each["publisher"], each["status"]) for each in info["handlers"]] == [(ALICE.did, "active")]
    text = " ".join((await home.runs("info", uri_of()))[1].split())
    assert f"treaty fetch {uri_of()}" in text and f"{dt.datetime.fromtimestamp(info['issued'], dt.UTC).date()}, leaf" in text

    yank(server, successor=uri_of("2.0"))
    info = await home.tells("info", uri_of())
    assert (info["status"], info["successor"]) == ("yanked", uri_of("2.0"))
    text = " ".join((await home.runs("info", uri_of()))[1].split())
    assert f"treaty fetch {uri_of('2.0')}" in text and f"treaty fetch {uri_of()}" not in text
    (handler,) = [s.body for _, s in server.registry.statements() if isinstance(s.body, kinds.Handler)]
    server.registry.withdrawn.add(handler.wheel.sha256)
    assert "roles" not in await home.tells("info", uri_of())
    bare = await home.tells("info", uri_of("2.0"))
    assert "roles" not in bare and bare["handlers"] == []
    assert not (home.folder / "treaty.lock").exists()


async def test_withdrawn_documents_are_compared_too(server: SocketRegistry, home: Home, tmp_path: Path) -> None:
    same = await home.tells("diff", uri_of(), uri_of())
    assert (same["lines"], same["operations"]) == ([], [])
    yank(server)
    difference = await home.tells("diff", uri_of(), uri_of("2.0"))
    assert "+The text comes back twice." in difference["lines"] and difference["is_cut"] is False
    assert difference["operations"] is None, "version 2.0 has no handler"
    project = tmp_path / "project"
    write_project(project, NewProtocol("echo", TOPIC))
    compared = await home.tells("diff", uri_of(), str(project))
    assert {one["name"]: one["change"] for one in compared["operations"]} == {"echo": "removed", "getItem": "added"}
    backward, forward = compared["compatibility"]["backward"], compared["compatibility"]["forward"]
    assert (backward["verdict"], forward["verdict"]) == ("breaking", "undecided"), "a published handler with code is not run"
    shown = (await home.runs("diff", uri_of(), str(project)))[1]
    assert "echo removed" in shown and "The provider has no operation echo." in shown
    assert difference["lines"][:2] == [f"--- {uri_of()}", f"+++ {uri_of('2.0')}"]
    assert (await home.tells("diff", uri_of(), uri_of("9.9"), status=5))["error"]["code"] == "protocol.unknown"


async def test_the_page_of_a_thing_is_opened(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, opened = "https://registry.example", tmp_path / "opened"
    pages = {
        uri_of(): uri_of(),
        TOPIC: f"{root}/topics/{TOPIC}",
        ALICE.did: f"{root}/identities/{ALICE.did}",
        "0" * 64: f"{root}/hashes/{'0' * 64}",
    }
    for name, url in pages.items():
        assert await home.tells("open", name) == {"url": url}
    assert (await home.tells("open", "Not A Name", status=1))["error"]["code"] == "did.syntax"
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.write_text(url) > 0)
    assert (await home.runs("open", TOPIC))[:2] == (0, f"✓ {pages[TOPIC]}\n")
    assert opened.read_text() == pages[TOPIC]
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    assert (await home.runs("open", TOPIC))[:2] == (0, f"{pages[TOPIC]}\n")


@pytest.mark.threat(407)
async def test_a_ucp_profile_has_only_names_that_the_log_verifies(server: SocketRegistry, home: Home, tmp_path: Path) -> None:
    server.registry.publish("4.0", aliases=("example.alice.loyalty", "com.mallory.pay"))
    loyalty = "example.alice.loyalty@2026-04-08=https://alice.example/loyalty.json"
    service = "dev.ucp.shopping@2026-04-08=a2a:https://shop.example/a2a"
    file, uri = tmp_path / "ucp.json", uri_of("4.0")
    command = ("ucp", "profile", uri, "--capability", loyalty, "--service", service)
    assert (await home.tells(*command, "--output", str(file)))["capabilities"] == {"example.alice.loyalty": uri}
    assert json.loads(file.read_bytes()) == {
        "ucp": {
            "version": "2026-04-08",
            "services": {
                "dev.ucp.shopping": [{"version": "2026-04-08", "transport": "a2a", "endpoint": "https://shop.example/a2a"}]
            },
            "capabilities": {
                "example.alice.loyalty": [{"version": "2026-04-08", "spec": uri, "schema": "https://alice.example/loyalty.json"}]
            },
            "payment_handlers": {},
        }
    }
    assert (await home.runs(*command))[1].encode() == file.read_bytes()
    written, parents = file.read_bytes(), ("dev.ucp.shopping.cart", "dev.ucp.shopping.checkout")
    for count, expected in ((1, parents[0]), (2, list(parents))):
        extensions = [f"--extends=example.alice.loyalty={parent}" for parent in parents[:count]]
        profile = json.loads((await home.tells(*command, *extensions))["profile"])
        assert profile["ucp"]["capabilities"]["example.alice.loyalty"][0]["extends"] == expected
    for option, text, code in (
        ("--capability", "com.mallory.pay@2026-04-08=https://mallory.com/pay.json", "resolve.unknown"),
        ("--capability", "example.alice.other@2026-04-08=https://alice.example/other.json", "resolve.unknown"),
        ("--capability", loyalty.replace("alice.example", "registry.example"), "system.usage"),
        ("--capability", loyalty.replace("https", "http"), "system.usage"),
        ("--capability", loyalty.replace("2026-04-08", "2026-02-30"), "system.usage"),
        ("--capability", "Example.alice@2026-04-08=https://alice.example/", "system.usage"),
        ("--extends", "com.mallory.pay=dev.ucp.shopping.cart", "resolve.unknown"),
        ("--extends", "example.alice.loyalty", "system.usage"),
        ("--service", service.replace("a2a:", "soap:"), "system.usage"),
        ("--service", service.replace("shop.example", "127.0.0.1"), "system.usage"),
    ):
        failed = await home.runs(*command, option, text, "--output", str(file), "--json")
        assert json.loads(failed[1])["error"]["code"] == code, (text, failed)
    yank(server, uri)
    assert json.loads((await home.runs(*command, "--output", str(file), "--json"))[1])["error"]["code"] == "status.yanked"
    assert file.read_bytes() == written, "a refused profile changes no file"


async def test_the_lock_is_shown_compared_and_moved(server: SocketRegistry, home: Home) -> None:
    registry = server.registry
    registry.attach("2.0")
    assert [pin["uri"] for pin in (await home.tells("lock", TOPIC))["pinned"]] == [uri_of()]
    assert (await home.tells("sync", "--check"))["pinned"] == [{"uri": uri_of(), "state": "stored"}]
    (outdated,) = (await home.tells("outdated"))["outdated"]
    assert (outdated["pinned"], outdated["uri"], outdated["changes"]) == (uri_of(), uri_of("2.0"), [])
    before = (home.folder / "treaty.lock").read_bytes()
    _, out, _ = await home.runs("upgrade", "--preview")
    assert f"{uri_of()} → {uri_of('2.0')}" in out and f"treaty diff {uri_of()} {uri_of('2.0')}" in out.replace("\n", " ")
    assert (home.folder / "treaty.lock").read_bytes() == before
    await home.tells("upgrade")
    assert [pin["uri"] for pin in (await home.tells("lock"))["pinned"]] == [uri_of(), uri_of("2.0")]
    assert (await home.tells("lock", "--remove", uri_of()))["pinned"][0]["uri"] == uri_of("2.0")
    yank(server, uri_of("2.0"))
    with (home.folder / "policy.toml").open("a") as file:
        file.write("frozen = true\n")
    assert (await home.tells("verify", uri_of("2.0"), status=4))["error"]["code"] == "status.yanked"
    assert (await home.tells("sync", status=4))["error"]["code"] == "status.yanked"
    assert (await home.tells("fetch", uri_of(), status=4))["error"]["code"] == "policy.refused"
    explained = await home.tells("trust", "explain", uri_of("2.0"))
    assert (explained["failed"]["step"], explained["failed"]["code"]) == (9, "status.yanked")


async def test_a_sync_without_the_bytes_fails_as_a_check_and_fetches_them(server: SocketRegistry, home: Home) -> None:
    wheel = (await home.tells("lock", uri_of()))["pinned"][0]["wheel"]
    (home.folder / "store" / "sha256" / wheel[:2] / wheel).unlink()
    assert (await home.tells("sync", "--check", status=5))["error"]["code"] == "memory.nothing"
    assert (await home.tells("sync"))["pinned"] == [{"uri": uri_of(), "state": "fetched"}]
    _, out, _ = await home.runs("trust", "explain", uri_of())
    assert [line.split()[1] for line in out.splitlines() if line.startswith("✓")] == [str(step) for step in range(1, 11)]
