"""Make the pages. Each is made from the structures that the API serves as JSON, and cached like them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from treaty_consensus.codes import RegistryCode
from treaty_consensus.errors import TooLarge, TreatyError

from ..admission.fair_queue import FairQueue
from ..catalogue.agents import AgentQueries
from ..catalogue.retrieval import Query
from ..log.changes import CATALOGUE, HEAD, PERIODIC, acts, versions_of
from ..problems import Problem
from ..serving.history import TopicHistory
from ..serving.negotiation import page_of
from ..serving.representation import SVG, TEXT, XML, PackedRepresentation, Representation
from ..serving.views import Made, Views
from . import agent, ballot, crawling, home, log, protocol, replay, search, versions
from . import topic as topic_page
from .assets import Assets
from .documentation import ARCHIVE, Documentation
from .inspection import Inspection
from .renderer import PAGE_REFUSAL_HEADERS, Gathered, Renderer
from .replay import TITLES, examples

if TYPE_CHECKING:
    from pathlib import Path

Context: TypeAlias = Mapping[str, object] | Gathered
"""The values of a template. `Gathered`: a page that is made again only of other data."""
_WIDTH, _WAITING, _MAX_REFUSALS = 4, 128, 64
_UNKNOWN = "::"


class Pages:
    """Makes and caches the pages. One per process, on one event loop."""

    def __init__(self, views: Views, site: Path = ARCHIVE) -> None:
        """`site`: the archive of the documentation, or a path where nothing is."""
        self.views = views
        self.assets = Assets()
        self.renderer = Renderer(views.registry.origin, self.assets, views.memory, views.registry.contact)
        self.agents = AgentQueries(views.registry.pool)
        self.history = TopicHistory(views.registry, views.standings)
        self.assets.keep_in(views.memory)
        self.inspection = Inspection(views)
        # Pages that wait for foreign blobs have turns of their own, so that they hold up no other answer.
        self._inspecting = FairQueue(time.monotonic, width=_WIDTH, waiting=_WAITING, code=RegistryCode.BUSY)
        # One at a time: each thread more that computes takes the interpreter from the loop, which answers all others.
        self._replaying = FairQueue(time.monotonic, width=1, waiting=_WAITING, code=RegistryCode.BUSY)
        self.documentation = Documentation(site)
        # Most refusals are a few equal ones, also in a flood of them.
        self._refusals = lru_cache(_MAX_REFUSALS)(self._rendered)

    async def home(self) -> Representation:
        """Return the first page: search, topics, the newest protocols and elections, and the size of everything."""
        return await self._show("/", "home.html", lambda: home.context(self.views, self.history), CATALOGUE, PERIODIC)

    async def robots(self) -> Representation:
        """Return `robots.txt`."""
        return Representation(self.renderer.text("robots.txt", {"base": self.views.registry.base_url}), TEXT)

    async def sitemap(self) -> Representation:
        """Return `sitemap.xml`: topics, and the newest protocols."""
        return await self._file("/sitemap.xml", "sitemap.xml", XML, lambda: crawling.sitemap(self.views), CATALOGUE)

    async def llms(self) -> Representation:
        """Return `llms.txt`: the elected protocols, and where a program reads the rest."""
        return await self._file(
            "/llms.txt", "llms.txt", TEXT, lambda: crawling.llms(self.views, self.history), CATALOGUE, PERIODIC
        )

    async def badge(self, path: str) -> Representation:
        """Return the badge of the version at `path`, as SVG. Raises `Malformed`, `NotFound`."""
        uri = self.views.uri(path)
        return await self._file(
            f"{path}.svg", "badge.svg", SVG, lambda: crawling.badge(self.views, self.history, uri), uri, PERIODIC
        )

    async def search(self, target: str, query: Query) -> Representation:
        """Return a page of search results. Raises as `Retrieval.page`."""
        return await self._show(
            target, "search.html", lambda: search.context(self.views, query), CATALOGUE, queue=self.views.searches
        )

    async def topics(self, target: str, after: str) -> Representation:
        """Return a page of the topics. Raises `Malformed`."""

        async def context() -> Context:
            page = await self.views.elections.topics(after)
            return {"page": page, "after": after}

        return await self._show(target, "topics.html", context, CATALOGUE)

    async def topic(self, topic: str) -> Representation:
        """Return the page of a topic: the protocol to speak there, and the reasons. Raises `Malformed`, `NotFound`."""

        async def context() -> Context:
            return await topic_page.gather(self.views, self.history, self.agents, self.renderer, topic)

        return await self._show(f"/topics/{topic}", "topic.html", context, topic, PERIODIC)

    async def agent(self, target: str, did: str, kind: str | None, before: int | None) -> Representation:
        """Return the page of a DID. `kind`, `before`: which of its statements. Raises `Malformed`, `NotFound`."""

        async def context() -> Context:
            return await agent.gather(self.views, did, kind, before)

        return await self._show(target, "agent.html", context, did, acts(did), PERIODIC)

    async def protocol(self, path: str) -> Representation:
        """Return the page of the version at `path`. Raises `Malformed`, `NotFound`."""
        uri = self.views.uri(path)

        async def context() -> Context:
            return await protocol.gather(self.views, self.inspection, self.renderer, uri)

        # The list of versions and its newest one are on the page too.
        return await self._show(path, "protocol.html", context, uri, versions_of(uri), PERIODIC, queue=self._inspecting)

    async def versions(self, target: str, namespace: str, name: str, pair: tuple[str, str] | None = None) -> Representation:
        """Return the page of all versions, with the difference of a `pair` of them. Raises as `versions.context`."""
        path = f"/protocols/{namespace}/{name}"

        async def context() -> Context:
            return await versions.context(self.views, self.inspection, namespace, name, pair)

        about = [self.views.uri(place) for place in (path, *(f"{path}/{version}" for version in pair or ()))]
        return await self._show(target, "versions.html", context, *about, PERIODIC, queue=self._inspecting)

    async def by_hash(self, digest: str) -> Representation:
        """Return the page of the protocols with one document. Raises as `Catalogue.by_hash`."""

        async def context() -> Context:
            return {"found": await self.views.catalogue.by_hash(digest)}

        return await self._show(f"/hashes/{digest}", "hashes.html", context, CATALOGUE)

    async def resolve(self, target: str, name: str) -> Representation:
        """Return the page of the possible meanings of a name. Raises as `Catalogue.resolve`."""

        async def context() -> Context:
            return {"found": await self.views.catalogue.resolve(name)}

        return await self._show(target, "resolve.html", context, CATALOGUE)

    async def log(self, target: str, before: int | None) -> Representation:
        """Return the page of the log: its head, its tree, and the entries below index `before`, by default the newest."""
        return await self._show(target, "log.html", lambda: log.log_context(self.views, self.renderer, before), HEAD)

    async def statement(self, id_: str) -> Representation:
        """Return the page of a logged statement. Raises `Malformed`, `NotFound`."""
        return await self._show(f"/statements/{id_}", "entry.html", lambda: log.entry_context(self.views, id_))

    async def ballot(self, target: str, topic: str, did: str | None) -> Representation:
        """Return the page that makes a ballot. `did`: shows its weight. Raises `Malformed`, `NotFound`."""
        return await self._show(target, "ballot.html", lambda: ballot.gather(self.views, topic, did), topic, HEAD, PERIODIC)

    async def replay(self, target: str, example: str | None) -> Representation:
        """Return the page that replays negotiations, empty or with an example of `replay_examples.TITLES`."""
        values = {} if example is None else examples()[example]

        async def context() -> Context:
            return self._replayed(values)

        return await self._show(target, "replay.html", context)

    async def replay_given(self, form: bytes, source: str | None) -> tuple[bytes, bool]:
        """Return the page about a recording that a form sent, and whether it was replayed. `source`: the sender's IP address.

        Raises `Malformed` for another form, and `Unavailable` (`registry.busy`).
        """
        async with self._replaying.turn(source or _UNKNOWN, 1):
            return await asyncio.to_thread(self._replayed_page, form)

    def _replayed_page(self, form: bytes) -> tuple[bytes, bool]:
        context = self._replayed(replay.read_form(form) or {"transcript": ""})
        return self.renderer.text("replay.html", context), context["problem"] is None

    def _replayed(self, inputs: Mapping[str, str]) -> Mapping[str, object]:
        page = {"titles": TITLES, "given": dict.fromkeys(replay.FIELDS, "") | dict(inputs), "shown": None, "problem": None}
        try:
            return {**page, "shown": replay.replay(inputs)} if inputs else page
        except TooLarge as error:
            return {**page, "given": dict.fromkeys(replay.FIELDS, ""), "problem": error}  # it is not sent back
        except TreatyError as error:
            return {**page, "problem": error}

    def problem(self, problem: Problem) -> tuple[bytes, Mapping[str, str]]:
        """Return the body and the headers of the page about a refusal."""
        return self._refusals(problem), PAGE_REFUSAL_HEADERS

    def _rendered(self, problem: Problem) -> bytes:
        return self.renderer.text("problem.html", {"problem": problem})

    async def _file(
        self,
        target: str,
        template: str,
        media_type: str,
        context: Callable[[], Awaitable[Mapping[str, object]]],
        *subjects: str,
    ) -> Representation:
        """Return the cached file at a target, or a new one. `subjects`: those it depends on (`log.changes`)."""

        async def view() -> Made:
            return PackedRepresentation(self.renderer.text(template, await context()), media_type), subjects

        return await self.views.made(target, view)

    async def _show(
        self,
        target: str,
        template: str,
        context: Callable[[], Awaitable[Context]],
        *subjects: str,
        queue: FairQueue | None = None,
    ) -> Representation:
        """Return the cached page at a target, or a new one. `subjects`: those it depends on (`log.changes`)."""

        async def view() -> Made:
            values = await context()
            if isinstance(values, Gathered):
                return self.renderer.gathered(template, values), subjects
            return self.renderer.page(template, values), subjects

        return await self.views.made(page_of(target), view, queue)
