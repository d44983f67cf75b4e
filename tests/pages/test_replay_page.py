"""The replay of negotiations: the verdicts are those of the code of agents, and hostile input gets a sentence."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from flow_peers import FlowWire, delegation, registry, sharing
from hostile_texts import PAYLOADS
from http_api import path_of, publish
from pages_read import Page
from registries import publication
from signers import Signer

from treaty_anp.flow_profile.capabilities import ProtocolRegistry
from treaty_anp.transcript import replay as repeat
from treaty_registry.pages import prose
from treaty_registry.pages import replay as replay_page
from treaty_registry.pages.replay import MAX_REPLAYED, TITLES, examples, replay
from treaty_registry.registry import Registry

BASE = "https://registry.example/protocols/example.com"
NEW, OLD = f"{BASE}/product-info/1.1", f"{BASE}/product-info/1.0"


def described(*protocols: tuple[str, str, str], name: str = "An agent") -> str:
    listed = [{"type": "StructuredInterface", "protocol": uri, "digest": digest, "role": role} for uri, digest, role in protocols]
    return json.dumps({"type": "AgentDescription", "name": name, "interfaces": listed})


def fates(inputs: Mapping[str, str]) -> dict[str, str]:
    return {verdict.uri: verdict.fate for verdict in replay(inputs).verdicts}


async def send(api: httpx.AsyncClient, **inputs: str) -> tuple[int, Page, str]:
    response = await api.post("/replay", data=inputs)
    assert response.headers["content-type"] == "text/html; charset=utf-8", response.text
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert response.headers["cache-control"] == "no-store"
    return response.status_code, Page(response.text), response.text


@pytest.mark.parametrize("name", TITLES)
async def test_examples_are_one_click_away(api: httpx.AsyncClient, name: str) -> None:
    start = Page((await api.get("/replay")).text)
    (link,) = [target for target in start.targets if target.endswith(f"={name}")]
    page = Page((await api.get(link)).text)
    assert "Which candidates were there?" in page.text and len(page.charts) == 1 and len(page.tables) == 1
    status, sent, _ = await send(api, **examples()[name])
    assert status == 200 and sent.tables == page.tables and sent.charts == page.charts


def test_transcripts_of_the_examples_are_real() -> None:
    assert [repeat(example["transcript"].encode()) for example in examples().values() if "transcript" in example] == [2, 2]
    assert [*fates(examples()["agreed"]).values()] == ["dropped", "chosen", "kept"]
    assert [*fates(examples()["nothing"]).values()] == ["dropped", "dropped"]


def test_the_connecting_agent_is_left_and_speaks_in_words() -> None:
    agreed, nothing = (replay(examples()[name]) for name in ("agreed", "nothing"))
    assert agreed.sides == ("the agent that connects", "the agent that answers") and agreed.sender == 1
    assert [(step.direction, step.label) for step in agreed.arrows] == [
        ("received", "sourceHello: 3 candidates"),
        ("sent", "destinationHello: selects product-info/1.1"),
    ]
    assert [step.label for step in nothing.arrows] == ["sourceHello: 2 candidates", "protocolNegotiation: rejected"]


def test_the_outcome_is_a_sentence() -> None:
    assert replay(examples()["agreed"]).outcome == f"They chose {NEW}."
    failed = replay(examples()["nothing"])
    assert failed.outcome.startswith("It failed. In ") and failed.outcome.endswith("(session.role)")
    assert failed.outcome.endswith(failed.steps[-1].text) and failed.steps[-1].name == "Ended"


def test_the_flow_profile_is_shown_by_its_actions() -> None:
    replayed = replay({"transcript": _flow_transcript(registry(sharing()), registry(sharing()))})
    assert [step.label for step in replayed.arrows][:2] == ["initialize", "capabilities-exchange"] and replayed.sender == 0
    failed = replay({"transcript": _flow_transcript(registry(sharing()), registry(delegation()))})
    assert failed.outcome == "It failed. The two sides speak no protocol in common. (session.no-common-protocol)"


def _flow_transcript(mine: ProtocolRegistry, theirs: ProtocolRegistry) -> str:
    return FlowWire.join(mine, theirs).settle().recorders["initiator"].transcript().decode()


def test_descriptions_are_judged_as_agents_do() -> None:
    same, other = "ab" * 32, "cd" * 32
    buyer = described((NEW, same, "client"), (OLD, same, "client"))
    assert fates({"first": buyer, "second": described((OLD, same, "server"), (NEW, same, "server"))}) == {
        NEW: "chosen",
        OLD: "kept",
    }
    assert fates({"first": buyer, "second": described((OLD, same, "server"))}) == {NEW: "dropped", OLD: "chosen"}
    assert fates({"first": buyer, "second": described((NEW, other, "server"), (OLD, same, "server"))})[NEW] == "dropped"
    assert set(fates({"first": buyer, "second": described((NEW, same, "client"))}).values()) == {"dropped"}
    card = {"name": "A card", "supportedInterfaces": [], "capabilities": {"extensions": [{"uri": OLD}]}}
    assert fates({"first": buyer, "second": json.dumps(card)})[OLD] == "chosen"


HOSTILE = {
    "nothing": {"transcript": ""},
    "no transcript": {"transcript": "hello"},
    "changed": {"transcript": examples()["agreed"]["transcript"].replace("orders", "others")},
    "cut": {"transcript": examples()["agreed"]["transcript"][:-20]},
    "deep": {"first": "[" * 100_000, "second": "{}"},
    "deep object": {"first": '{"interfaces":' * 5_000, "second": described((NEW, "", ""))},
    "one side": {"first": described((NEW, "", ""))},
    "no protocols": {"first": described(), "second": described()},
    "a page of agents": {"first": '{"items": []}', "second": described((NEW, "", ""))},
    "many": {"first": json.dumps({"type": "AgentDescription", "interfaces": [{}] * 300}), "second": described((NEW, "", ""))},
    "surrogates": {"first": '{"type": "AgentDescription", "name": "\\ud800"}', "second": described((NEW, "", ""))},
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", HOSTILE)
async def test_bad_input_gets_a_sentence(api: httpx.AsyncClient, registry: Registry, name: str) -> None:
    before = registry.head.size
    status, page, _ = await send(api, **HOSTILE[name])
    assert status == 400 and "This cannot be replayed" in page.text
    assert registry.head.size == before


async def test_large_input_is_refused_before_it_is_read(api: httpx.AsyncClient) -> None:
    status, page, text = await send(api, transcript="x" * (MAX_REPLAYED + 1))
    assert status == 400 and "at most 256 KiB" in page.text and len(text) < 20_000
    response = await api.post("/replay", data={"transcript": "é" * MAX_REPLAYED})
    assert response.status_code == 413
    assert (await api.post("/replay", content=b"x", headers={"Content-Type": "text/plain"})).status_code == 415
    many = "&".join(f"a{number}=1" for number in range(50))
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert (await api.post("/replay", content=many, headers=form)).status_code == 400
    assert (await api.post("/replay", content="transcript=%ff%fe", headers=form)).status_code == 400


@pytest.mark.threat(281)
async def test_replays_and_documents_take_turns(api: httpx.AsyncClient, alice: Signer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads that compute would leave little of the interpreter to the loop, which answers all others."""
    running, most = 0, Counter[str]()

    def counted(name: str, work: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(value: Any) -> Any:
            nonlocal running
            running += 1
            most[name] = max(most[name], running)
            time.sleep(0.05)  # others could begin meanwhile
            running -= 1
            return work(value)

        return run

    statements = [publication(alice, f"p{number}") for number in range(4)]
    for one in statements:
        await publish(api, alice, one)
    monkeypatch.setattr(replay_page, "replay", counted("replays", replay))
    sent = await asyncio.gather(*(api.post("/replay", data=examples()["agreed"]) for _ in range(5)))
    assert [answer.status_code for answer in sent] == [200] * 5
    monkeypatch.setattr(prose, "render", counted("documents", prose.render))
    responses = await asyncio.gather(*(api.get(path_of(one.body.uri), headers={"Accept": "text/html"}) for one in statements))
    assert [answer.status_code for answer in responses] == [200] * 4
    assert most == {"replays": 1, "documents": 1}


@pytest.mark.threat(276)
async def test_a_replay_asks_no_address_that_it_names(api: httpx.AsyncClient) -> None:
    requests = 0

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        uris = [f"http://{address}/protocols/a.example/b/1.0", f"https://{address}/protocols/a.example/b/1.0", NEW]
        listed = [
            {
                "type": "StructuredInterface",
                "protocol": uri,
                "digest": "ab" * 32,
                "role": "client",
                "url": f"http://{address}/{n}",
            }
            for n, uri in enumerate(uris)
        ]
        about = {"type": "AgentDescription", "name": "a", "did": f"did:wba:{address}", "interfaces": listed}
        status, _, _ = await send(api, first=json.dumps(about), second=described((NEW, "ab" * 32, "server")))
        assert status == 200
        await asyncio.sleep(0.1)
    assert requests == 0


@pytest.mark.sample(5)
@pytest.mark.parametrize("payload", PAYLOADS[::4])
async def test_hostile_texts_stay_texts(api: httpx.AsyncClient, payload: str) -> None:
    inputs = {
        "first": described((NEW, "", ""), (f"x:{''.join(payload.split())}", "", ""), name=payload),
        "second": described((NEW, "", ""), name=payload),
    }
    for sent in (inputs, {"transcript": payload}, {"first": payload, "second": payload}):
        _, page, text = await send(api, **sent)
        assert page.handlers == [] and all(script.startswith("/static/") for script in page.scripts)
        assert "</textarea><script" not in text
