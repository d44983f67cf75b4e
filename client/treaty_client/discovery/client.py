"""Finding agents: from a domain, a DID, or the URL of a document, to what their descriptions say.

    a domain    https://HOST/.well-known/agent-descriptions, its pages and the descriptions they list; where there is none,
                https://HOST/.well-known/agent-card.json
    a DID       the services of type AgentDescription of its document
    a URL       whatever of these is there

Everything is fetched through the egress guard: https on port 443, public addresses, no redirects, 64 KiB, 3 seconds. A discovery
reads at most 8 pages and 32 descriptions, and follows `next` on the same host only; a description may be anywhere. One that
cannot be read does not hide the others: it is reported beside them. What comes back is hearsay (see `reading`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from treaty_consensus.did import Did, is_host, parse_did
from treaty_consensus.errors import Malformed, NotFound, Refused, TooLarge, TreatyError

from ..network.egress import EgressGuard
from ..network.hosts import Network
from .reading import CARD_PATH, DESCRIPTIONS_PATH, AgentDescription, CollectionPage, parse, parse_service

MAX_PAGES = 8
MAX_AGENTS = 32
_AT_ONCE = 8


@dataclass(frozen=True)
class Problem:
    """Something at `url` that was passed over, and why."""

    url: str
    error: TreatyError


@dataclass(frozen=True)
class Discovery:
    """What was found: at least one agent, in the order of the pages; and what could not be read."""

    agents: tuple[AgentDescription, ...]
    problems: tuple[Problem, ...] = ()


class Discoverer:
    """Reads online documents over a network; keeps nothing open. For one event loop.

    A host is asked as often as a discovery needs, for its user has named it; so `guard`, if one is given, should have no interval
    between requests.
    """

    def __init__(self, network: Network, *, guard: EgressGuard | None = None) -> None:
        self._guard = guard or EgressGuard(network, interval=0)

    async def discover(self, name: str) -> Discovery:
        """The agents of a domain, a DID or a URL, by the form of `name`.

        Raises `Malformed` (`discovery.name`, `did.*`), `NotFound` (`discovery.nothing`, `discovery.no-service`), `Refused`
        (`discovery.did`) and what the guard and `parse` raise, when no agent could be read at all.
        """
        if name.startswith("did:"):
            return await self.did(parse_did(name))
        host = name.removeprefix("https://").removesuffix("/")
        if is_host(host):
            return await self.domain(host)
        if "://" in name:
            return await self.url(name)
        raise Malformed(
            "discovery.name",
            f"Not a domain, a DID or a URL: {name[:120]!r}.",
            fix="Name shop.example, did:wba:shop.example or https://shop.example/ad.json.",
        )

    async def domain(self, host: str) -> Discovery:
        """The agents that a domain lists; the one of its A2A card where it lists none. Raises as `discover`."""
        try:
            return await self.url(f"https://{host}{DESCRIPTIONS_PATH}")
        except NotFound:
            pass
        try:
            return await self.url(f"https://{host}{CARD_PATH}")
        except NotFound as error:
            raise NotFound(
                "discovery.nothing",
                f"{host} publishes neither {DESCRIPTIONS_PATH} nor {CARD_PATH}.",
                fix="Ask for the agent's own address, its DID, or the URL of its description.",
            ) from error

    async def did(self, did: Did) -> Discovery:
        """The agents that a DID's document leads to, which must be this DID's. Raises as `discover`."""
        urls = parse_service(await self._guard.get(did.document_url), did)
        if not urls:
            raise NotFound(
                "discovery.no-service",
                f"The document of {did.text} names no agent description.",
                fix=f"Look at its domain: treaty discover {did.host}",
            )
        return await self._descriptions(urls, [], did)

    async def url(self, url: str) -> Discovery:
        """What is found at a URL: one agent, or all of a page and those after it. Raises as `discover`."""
        found = parse(await self._guard.get(url), url)
        if isinstance(found, AgentDescription):
            return Discovery((found,))
        urls, problems = await self._pages(found, url)
        if not urls and not problems:
            raise NotFound("discovery.nothing", f"{url} lists no agents.")
        return await self._descriptions(urls, problems)

    async def _pages(self, page: CollectionPage, url: str) -> tuple[list[str], list[Problem]]:
        """The descriptions that a page and those after it list, and why it ended early."""
        urls, seen = list(page.items), {url}
        try:
            while page.next is not None:
                if urlsplit(page.next).netloc != urlsplit(url).netloc:
                    raise Refused("discovery.next", f"{url} goes on at another host, which is not followed.")
                if page.next in seen:
                    raise Refused("discovery.next", f"{url} goes on at {page.next}, which was read before.")
                if len(seen) == MAX_PAGES or len(urls) > MAX_AGENTS:
                    break
                url = page.next
                seen.add(url)
                following = parse(await self._guard.get(url), url)
                if not isinstance(following, CollectionPage):
                    raise Malformed("discovery.document", f"What is at {url} is not a page of agents.")
                page = following
                urls += page.items
        except TreatyError as error:
            return urls, [Problem(url, error)]
        if page.next is not None:
            return urls, [Problem(url, _too_many())]
        return urls, []

    async def _descriptions(self, urls: Sequence[str], problems: list[Problem], did: Did | None = None) -> Discovery:
        """Read descriptions, at most `MAX_AGENTS`; `did`: whose they have to be."""
        turns = asyncio.Semaphore(_AT_ONCE)

        async def read(url: str) -> AgentDescription | Problem:
            async with turns:
                try:
                    return await self._description(url, did)
                except TreatyError as error:
                    return Problem(url, error)

        asked = list(dict.fromkeys(urls))
        read_all = await asyncio.gather(*map(read, asked[:MAX_AGENTS]))
        agents = tuple(found for found in read_all if isinstance(found, AgentDescription))
        problems = [*problems, *(found for found in read_all if isinstance(found, Problem))]
        if len(asked) > MAX_AGENTS and not any(problem.error.code == "discovery.too-many" for problem in problems):
            problems.append(Problem(asked[MAX_AGENTS], _too_many()))
        if not agents:
            raise problems[0].error
        return Discovery(agents, tuple(problems))

    async def _description(self, url: str, did: Did | None) -> AgentDescription:
        found = parse(await self._guard.get(url), url)
        if not isinstance(found, AgentDescription):
            raise Malformed("discovery.document", f"What is at {url} is a page, where an agent description is due.")
        if did is not None and found.did not in ("", did.text):
            raise Refused("discovery.did", f"{did.text} leads to {url}, which describes {found.did}.")
        return found if did is None else replace(found, did=did.text)


def _too_many() -> TooLarge:
    return TooLarge(
        "discovery.too-many",
        f"There is more: at most {MAX_PAGES} pages and {MAX_AGENTS} agents are read.",
        fix="Name the agent you look for by its DID, or by the URL of its description.",
    )
