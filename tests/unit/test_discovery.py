"""Finding agents from a domain, a DID or a URL, over HTTPS on the loopback interface."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from loopback import Loopback, response
from rejections import rejection

from treaty_agent.discovery import client
from treaty_agent.discovery.client import Discoverer, Discovery
from treaty_agent.discovery.documents import AgentFacts, OfferedProtocol, collection_page, describe, service_entry
from treaty_command.main import main
from treaty_consensus.errors import Malformed, NotFound, Refused, TooLarge, TreatyError
from treaty_io.network.hosts import Network

HOST, OTHER = "shop.example", "hosting.example"
DID = f"did:wba:{HOST}"
ENTRANCE = "/.well-known/agent-descriptions"
CARD = "/.well-known/agent-card.json"
URI = "https://registry.example/protocols/example.com/product-info/1.1"
FACTS = AgentFacts(DID, (f"wss://{HOST}/",), (OfferedProtocol(URI, "9c" * 32),), "The shop")


@dataclass
class Web:
    """What hosts serve, by URL, and what was asked for."""

    bodies: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    network: Network = field(default_factory=Network)

    @classmethod
    @asynccontextmanager
    async def serving(cls, folder: Path) -> AsyncIterator[Web]:
        web = cls()
        loopback = Loopback(folder)
        async with loopback.serving(web.answer, HOST, OTHER):
            web.network = loopback.network()
            yield web

    async def answer(self, head: str) -> bytes:
        path = head.split(" ")[1]
        (host,) = [line.partition(": ")[2] for line in head.split("\r\n") if line.lower().startswith("host:")]
        url = f"https://{host}{path}"
        self.asked.append(url)
        if url in self.redirects:
            return response(b"", status="302 Found", headers=f"Location: {self.redirects[url]}\r\n")
        return response(self.bodies[url]) if url in self.bodies else response(b"", status="404 Not Found")

    def serve(self, facts: AgentFacts = FACTS, host: str = HOST) -> None:
        self.bodies |= {f"https://{host}{path}": document.body for path, document in describe(facts).items()}

    def put(self, url: str, value: object) -> None:
        self.bodies[url] = json.dumps(value).encode()

    async def discover(self, name: str) -> Discovery:
        return await Discoverer(self.network).discover(name)

    async def refusal(self, name: str) -> TreatyError:
        with pytest.raises(TreatyError) as caught:
            await self.discover(name)
        return caught.value


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with Web.serving(tmp_path) as serving:
        yield serving


def pages(web: Web, count: int, next_of: Callable[[int], str] = lambda n: f"{ENTRANCE}?page={n + 1}") -> None:
    """Pages that each list one agent; `next_of`: where page n goes on."""
    for n in range(count):
        at = ENTRANCE + (f"?page={n}" if n else "")
        web.put(f"https://{HOST}{at}", collection_page(at, [("", f"/a{n}/ad.json")], next_of(n) if n < count - 1 else ""))
        web.put(f"https://{HOST}/a{n}/ad.json", {"type": "AgentDescription", "name": f"agent {n}"})


@pytest.mark.parametrize("name", [HOST, DID, f"https://{HOST}/", f"https://{HOST}{ENTRANCE}", f"https://{HOST}/ad.json"])
async def test_000_65_an_agent_is_discovered_by_domain_did_or_url(name: str, web: Web) -> None:
    web.serve()
    web.put(f"https://{HOST}/.well-known/did.json", {"id": DID, "service": [service_entry(DID, f"https://{HOST}/ad.json")]})
    (agent,) = (await web.discover(name)).agents
    assert (agent.did, agent.address, agent.uris) == (DID, f"wss://{HOST}/", (URI,))
    assert agent.url == f"https://{HOST}/ad.json"
    assert agent.protocols[0].digest == "9c" * 32


async def test_000_65_an_a2a_card_does_where_there_is_nothing_else(web: Web) -> None:
    web.bodies[f"https://{HOST}{CARD}"] = describe(FACTS)[CARD].body
    (agent,) = (await web.discover(HOST)).agents
    assert (agent.uris, agent.address) == ((URI,), f"wss://{HOST}/")
    assert web.asked == [f"https://{HOST}{ENTRANCE}", f"https://{HOST}{CARD}"]


async def test_a_domain_that_publishes_nothing_is_a_clear_error(web: Web) -> None:
    error = await web.refusal(HOST)
    assert (type(error), error.code) == (NotFound, "discovery.nothing")
    web.put(f"https://{HOST}{ENTRANCE}", collection_page("", []))
    assert (await web.refusal(HOST)).code == "discovery.nothing"


async def test_pages_are_followed_in_order(web: Web) -> None:
    pages(web, 3)
    discovery = await web.discover(HOST)
    assert [agent.name for agent in discovery.agents] == ["agent 0", "agent 1", "agent 2"]
    assert discovery.problems == ()


@pytest.mark.parametrize(
    "following, code",
    [
        (f"https://{OTHER}{ENTRANCE}", "discovery.document: another host"),
        (f"https://{HOST}:8443{ENTRANCE}", "discovery.document: another host"),
        (ENTRANCE, "discovery.document: read before"),
        ("/missing", "egress.not-found"),
        ("/ad.json", "discovery.document: not a page|no page"),
    ],
)
async def test_a_next_that_leads_astray_ends_the_pages_and_is_told(following: str, code: str, web: Web) -> None:
    web.serve()
    web.put(f"https://{HOST}{ENTRANCE}", collection_page("", [("", "/ad.json")], following))
    discovery = await web.discover(HOST)
    assert [agent.did for agent in discovery.agents] == [DID]
    assert [rejection(problem.error, code) for problem in discovery.problems] == [code]
    assert not any(OTHER in url for url in web.asked)


@pytest.mark.threat(96)
async def test_pages_and_agents_are_bounded(web: Web) -> None:
    pages(web, client.MAX_PAGES + 3)
    discovery = await web.discover(HOST)
    assert len(discovery.agents) == client.MAX_PAGES
    assert [problem.error.code for problem in discovery.problems] == ["discovery.too-many"]
    web.put(f"https://{HOST}{ENTRANCE}", collection_page("", [("", f"/{n}/ad.json") for n in range(100)], "?page=1"))
    web.put(f"https://{HOST}/0/ad.json", {"type": "AgentDescription"})
    web.asked.clear()
    discovery = await web.discover(HOST)
    assert len(web.asked) == 1 + client.MAX_AGENTS
    assert [p.error.code for p in discovery.problems if p.error.code != "egress.not-found"] == ["discovery.too-many"]
    assert isinstance(discovery.problems[0].error, TooLarge)


async def test_a_broken_description_hides_no_other(web: Web) -> None:
    elsewhere = AgentFacts(f"did:wba:{OTHER}:a", (f"wss://{OTHER}/",))
    web.serve(elsewhere, OTHER)
    web.bodies[f"https://{HOST}/broken.json"] = b"<html>"
    items = [("", f"https://{HOST}/broken.json"), ("", f"https://{OTHER}/a/ad.json"), ("", f"https://{OTHER}{ENTRANCE}")]
    web.put(f"https://{HOST}{ENTRANCE}", collection_page("", items))
    discovery = await web.discover(HOST)
    assert [agent.did for agent in discovery.agents] == [elsewhere.did]
    assert [(p.url, p.error.code) for p in discovery.problems] == [
        (f"https://{HOST}/broken.json", "discovery.document"),
        (f"https://{OTHER}{ENTRANCE}", "discovery.document"),
    ]


@pytest.mark.threat(96)
async def test_redirects_are_not_followed(web: Web) -> None:
    web.serve()
    web.redirects[f"https://{HOST}{ENTRANCE}"] = f"https://{OTHER}/"
    error = await web.refusal(HOST)
    assert (type(error), error.code) == (Refused, "egress.answer")
    assert web.asked == [f"https://{HOST}{ENTRANCE}"]


@pytest.mark.threat(96)
async def test_a_description_must_not_lead_into_ones_own_network(web: Web) -> None:
    items = [("", "https://127.0.0.1/ad.json"), ("", "https://localhost/ad.json"), ("", f"https://{HOST}:8443/ad.json")]
    web.put(f"https://{HOST}{ENTRANCE}", collection_page("", items))
    assert (await web.refusal(HOST)).code == "egress.unreachable"
    assert web.asked == [f"https://{HOST}{ENTRANCE}"]


@pytest.mark.threat(108)
async def test_a_did_leads_to_its_own_description_only(web: Web) -> None:
    web.serve()
    at = f"https://{HOST}/agents/a/did.json"
    did = f"{DID}:agents:a"
    web.put(at, {"id": did, "service": [service_entry(did, f"https://{HOST}/ad.json")]})
    error = await web.refusal(did)
    assert (type(error), error.code) == (Refused, "discovery.document")
    web.put(f"https://{HOST}/ad.json", {"type": "AgentDescription", "name": "nameless"})
    assert [agent.did for agent in (await web.discover(did)).agents] == [did]
    web.put(at, {"id": did})
    assert (await web.refusal(did)).code == "discovery.nothing"


@pytest.mark.parametrize("name", ["", "Shop.Example", "shop example", "-", "shop.example/ad.json"])
async def test_what_is_no_name_is_asked_nowhere(name: str, web: Web) -> None:
    error = await web.refusal(name)
    assert (type(error), error.code, web.asked) == (Malformed, "network.url", [])


async def test_only_https_is_fetched(web: Web) -> None:
    assert (await web.refusal(f"http://{HOST}/ad.json")).code == "network.url"
    assert (await web.refusal("did:wba:shop.example%3A8443")).code == "network.url"
    assert (await web.refusal("did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK")).code == "did.method"
    assert web.asked == []


async def _command(web: Web, *arguments: str) -> None:
    """The command in this process, whose event loop already runs."""
    resolve = [part for host in (HOST, OTHER) for part in ("--resolve", f"{host}=127.0.0.1:{web.network.resolve[host].port}")]
    await asyncio.to_thread(main, ["discover", *arguments, *resolve, "--ca", str(web.network.ca)])


async def test_the_command_shows_what_agents_say(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    protocols = tuple(replace(protocol, role="provider") for protocol in FACTS.protocols)
    web.serve(AgentFacts(DID, FACTS.addresses, protocols, "[red]The shop[/]"))
    items = [("", "/ad.json"), ("", "/missing")]
    web.put(f"https://{HOST}{ENTRANCE}", collection_page("", items))
    await _command(web, HOST, "--json")
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [agent["did"] for agent in value["agents"]] == [DID]
    assert value["agents"][0]["protocols"] == [{"uri": URI, "digest": "9c" * 32, "version": "1.1", "role": "provider"}]
    assert [problem["code"] for problem in value["problems"]] == ["egress.not-found"]
    await _command(web, HOST)
    output = capsys.readouterr().out
    for phrase in ("[red]The shop[/]", DID, f"wss://{HOST}/", URI.rpartition("/")[2], "provider", "egress.not-found"):
        assert phrase in output


async def test_the_command_says_what_is_wrong(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        await _command(web, HOST, "--json")
    assert end.value.code == 5
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "discovery.nothing"


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    main(["discover", "--help"])
    output = capsys.readouterr().out
    assert "treaty discover" in output
    assert "--resolve" in output
