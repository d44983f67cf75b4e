"""A page shows a statement as soon as it is logged, although answers are kept; and what did not change is not made again.

The period of answers is an hour here, so nothing is dropped only because time has passed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from http_api import attach, path_of, post, publish, say
from msgspec.structs import replace
from pages_read import Page, everybody_reports, read
from registries import TOPIC, Publication, Web, ballot, publication
from signers import ORIGIN, Signer, domain_signer, signed

from treaty_consensus import canonical, kinds, statement
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.statement import Statement
from treaty_registry.app import create_app
from treaty_registry.keys import load_operator
from treaty_registry.operator.parameters import ParametersDraft
from treaty_registry.operator.rotations import ROLES, prepare
from treaty_registry.registry import Registry
from treaty_registry.serving.cache import ResponseCache
from treaty_registry.serving.representation import Representation

HOUR = 3600.0
PAGE = {"Accept": "text/html"}
OTHER = "music"


class WatchedCache(ResponseCache):
    """A cache that knows everything that was ever kept in it."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def keep(self, key: str, view: Representation, subjects: Iterable[str] = ()) -> None:
        self.made.append(key)
        super().keep(key, view, subjects)

    def drop(self, *subjects: str) -> None:
        """Drop what depends on these subjects, as the end of a period does, and begin to watch again."""
        assert self.head is not None
        self.renew(self.head, subjects)
        self.made.clear()


@dataclass
class Scene:
    """A registry with a protocol, its cache, a browser in front of it, and four agents with domains."""

    registry: Registry
    memory: WatchedCache
    browser: httpx.AsyncClient
    agents: list[Signer]
    made: Publication
    keys: Path

    @property
    def path(self) -> str:
        return path_of(self.made.body.uri)

    async def operate(self, body: kinds.Body) -> Statement:
        """Log a statement of the operator."""
        statement = load_operator(self.keys).state(body, issued=self.registry.clock()).statement
        assert (await post(self.browser, statement)).status_code == 201
        return statement

    async def report(self, epoch: int = 0) -> Statement:
        """Log a report of two agents."""
        nid = canonical.hex_digest(f"session {epoch}".encode())
        note = self.registry.head.note.decode()
        body = kinds.Report(TOPIC, nid, self.made.body.document.sha256, "agreed", epoch, note)
        statement = signed(body, *self.agents[:2])
        assert (await post(self.browser, statement)).status_code == 201
        return statement


@pytest.fixture
async def scene(registry: Registry, web: Web, tmp_path: Path) -> AsyncIterator[Scene]:
    """A registry with one protocol, whose answers are kept for an hour."""
    agents = [domain_signer(f"{name}.example") for name in ("alpha", "bravo", "charlie", "delta")]
    web.serve(*agents)
    memory = WatchedCache()
    transport = httpx.ASGITransport(create_app(registry, memory, HOUR))  # type: ignore[arg-type]  # the two spell ASGI's types differently
    async with httpx.AsyncClient(transport=transport, base_url=f"https://{ORIGIN}", headers=PAGE) as browser:
        statement = publication(agents[0])
        for agent in agents:
            await publish(browser, agent, publication(agent, "first-word", topic=OTHER))
        await publish(browser, agents[0], statement)
        yield Scene(registry, memory, browser, agents, statement, tmp_path / "registry" / "keys")


def agent_page(agent: Signer) -> str:
    return f"/identities/{agent.did}"


def is_linked(statement: Statement, page: Page) -> bool:
    """Whether a page has a link to a statement."""
    return f"/statements/{statement.id}" in page.targets


async def logs_publish(scene: Scene) -> list[tuple[str, Callable[[Page], bool]]]:
    newer = publication(scene.agents[0], version="2.0")
    statement = await publish(scene.browser, scene.agents[0], newer)
    versions = scene.path.rpartition("/")[0]
    pages_of = [
        (path, lambda page: path_of(newer.body.uri) in page.targets) for path in (f"/topics/{TOPIC}", versions, scene.path)
    ]
    return [*pages_of, (agent_page(scene.agents[0]), lambda page: is_linked(statement, page))]


async def logs_handler(scene: Scene) -> list[tuple[str, Callable[[Page], bool]]]:
    statement = await attach(scene.browser, scene.agents[1], scene.made)
    return [(path, lambda page: is_linked(statement, page)) for path in (scene.path, agent_page(scene.agents[1]))]


async def logs_status(scene: Scene) -> list[tuple[str, Callable[[Page], bool]]]:
    statement = await say(scene.browser, scene.agents[0], kinds.Status(scene.made.body.uri, "deprecated"))
    return [(path, lambda page: is_linked(statement, page)) for path in (scene.path, agent_page(scene.agents[0]))]


async def logs_grant(scene: Scene) -> list[tuple[str, Callable[[Page], bool]]]:
    statement = await say(scene.browser, scene.agents[0], kinds.Grant("alpha.example", scene.agents[1].did))
    return [(agent_page(agent), lambda page: is_linked(statement, page)) for agent in scene.agents[:2]]


async def logs_report(scene: Scene) -> list[tuple[str, Callable[[Page], bool]]]:
    statement = await scene.report()
    return [(agent_page(agent), lambda page: is_linked(statement, page)) for agent in scene.agents[:2]]


async def logs_ballot(scene: Scene) -> list[tuple[str, Callable[[Page], bool]]]:
    statement = await say(scene.browser, scene.agents[2], ballot(scene.registry, 0, scene.made.body.document.sha256))
    return [
        (agent_page(scene.agents[2]), lambda page: is_linked(statement, page) and path_of(scene.made.body.uri) in page.targets)
    ]


async def logs_vouch(scene: Scene) -> list[tuple[str, Callable[[Page], bool]]]:
    statement = await say(scene.browser, scene.agents[2], kinds.Vouch(scene.agents[3].did, 0))
    return [(agent_page(scene.agents[2]), lambda page: is_linked(statement, page) and scene.agents[3].did in page.text)]


async def logs_decision(scene: Scene) -> list[tuple[str, Callable[[Page], bool]]]:
    await everybody_reports(scene.registry, scene.agents, scene.made.body.document.sha256, 0)
    await scene.registry.decide()
    return [
        (f"/topics/{TOPIC}", lambda page: "candidate" in page.text and "Epoch 0 is open" not in page.text),
        # An epoch closes for all topics.
        (f"/topics/{OTHER}", lambda page: "Epoch 1 is open" in page.text),
        (scene.path, lambda page: "It stands for election in its topic." in page.text),
        (scene.path.rpartition("/")[0], lambda page: "candidate" in page.text),
        (agent_page(scene.agents[0]), lambda page: "No epoch has closed yet." not in page.text),
    ]


async def logs_parameters(scene: Scene) -> list[tuple[str, Callable[[Page], bool]]]:
    announced = await scene.registry.announce(ParametersDraft(replace(development_parameters(), candidate_pairs=4)))
    return [("/log", lambda page: f"/statements/{announced.statement}" in page.targets)]


async def logs_withdrawal(scene: Scene) -> list[tuple[str, Callable[[Page], bool]]]:
    await scene.operate(kinds.Withdrawal(scene.made.body.document.sha256, "malicious"))
    return [(scene.path, lambda page: "The document was withdrawn." in page.text)]


async def logs_rotation(scene: Scene) -> list[tuple[str, Callable[[Page], bool]]]:
    _, clock = prepare(scene.keys, [*ROLES])
    await scene.registry.rotate(0)
    return [("/log", lambda page: clock in page.text)]


CASES: dict[str, Callable[[Scene], Awaitable[list[tuple[str, Callable[[Page], bool]]]]]] = {
    "publish": logs_publish,
    "handler": logs_handler,
    "status": logs_status,
    "grant": logs_grant,
    "report": logs_report,
    "ballot": logs_ballot,
    "vouch": logs_vouch,
    "decision": logs_decision,
    "parameters": logs_parameters,
    "withdrawal": logs_withdrawal,
    "rotation": logs_rotation,
}


def test_each_kind_of_statement_is_here() -> None:
    # The genesis is older than every page. The page of an unknown agent is a refusal, which is never kept.
    assert set(CASES) == set(statement.KINDS) - {"genesis", "identity", "validation"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", CASES)
async def test_a_page_that_was_kept_shows_a_statement_at_once(scene: Scene, kind: str) -> None:
    everything = [f"/topics/{TOPIC}", f"/topics/{OTHER}", scene.path, scene.path.rpartition("/")[0], "/log"]
    everything += map(agent_page, scene.agents)
    before = {path: await read(scene.browser, path) for path in everything}
    for path, shows in await CASES[kind](scene):
        assert not shows(before[path]), f"{path} shows it before"
        assert shows(await read(scene.browser, path)), f"{path} does not show it"


async def test_a_decision_drops_the_records_of_its_topic_and_no_others(scene: Scene) -> None:
    elsewhere = path_of(publication(scene.agents[0], "first-word").body.uri)
    await everybody_reports(scene.registry, scene.agents, scene.made.body.document.sha256, 0)
    for path in (scene.path, elsewhere):
        assert (await scene.browser.get(f"{path}.json")).json()["election"] is None
    await scene.registry.decide()
    scene.memory.made.clear()
    records = [(await scene.browser.get(f"{path}.json")).json() for path in (scene.path, elsewhere)]
    assert [record["election"] and record["election"]["state"] for record in records] == ["candidate", None]
    assert scene.memory.made == [f"{scene.path}.json"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("template", ["protocol.html", "agent.html", "topic.html"])
async def test_a_page_is_rendered_again_only_of_other_data(scene: Scene, template: str) -> None:
    path = {"protocol.html": scene.path, "agent.html": agent_page(scene.agents[0]), "topic.html": f"/topics/{TOPIC}"}[template]
    first = await scene.browser.get(path)
    await say(scene.browser, scene.agents[3], kinds.Vouch(scene.agents[2].did, 0))
    scene.memory.drop(TOPIC, scene.made.body.uri, scene.agents[0].did)
    again = await scene.browser.get(path)
    assert again.text == first.text
    assert scene.memory.made == [f"html {path}"], "it was read again, and nothing was rendered"
    await attach(scene.browser, scene.agents[0], scene.made)
    await scene.report()
    scene.memory.drop(TOPIC)
    assert (await scene.browser.get(path)).text != first.text
    assert any(key.startswith(f"page {template} ") for key in scene.memory.made)


async def test_the_card_of_a_candidate_is_drawn_once_for_a_decision(scene: Scene) -> None:
    rival = publication(scene.agents[1], "rival")
    await publish(scene.browser, scene.agents[1], rival)
    # Of each pair of agents one report counts.
    await everybody_reports(scene.registry, scene.agents[:3], scene.made.body.document.sha256, 0)
    for first in scene.agents[:3]:
        await everybody_reports(scene.registry, [first, scene.agents[3]], rival.body.document.sha256, 0)
    await scene.registry.decide()
    await read(scene.browser, f"/topics/{TOPIC}")
    assert sum(key.startswith("part candidate.html ") for key in scene.memory.made) == 2
    # One more report of one of the two is on its card.
    await scene.report(epoch=1)
    scene.memory.drop(TOPIC)
    await read(scene.browser, f"/topics/{TOPIC}")
    assert sum(key.startswith("part candidate.html ") for key in scene.memory.made) == 1
