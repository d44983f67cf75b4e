"""Find agents by a domain, a DID or a URL, and choose the candidates of a Hello from their descriptions.

docs/specification/discovery.md has the rules, sections 2 and 4. For example, `shop.example` leads to the page at
https://shop.example/.well-known/agent-descriptions, and this to the description at https://shop.example/ad.json.

All documents are fetched through the egress guard. A discovery reads at most 8 pages and 32 descriptions, and follows `next` on
the same host only. An unreadable description is reported beside the others. The results are not trusted (see `parsing`).

The destination picks the first candidate that it provides and that its policy allows, so the order of candidates is the source's
preference. A description may be old, so a candidate that it does not list is offered too. Each chosen protocol is fetched and
verified under the policy before its code runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from treaty_anp.discovery.parsing import CARD_PATH, DESCRIPTIONS_PATH, AgentDescription, CollectionPage, parse, parse_service
from treaty_anp.hello_profile.hello import MAX_CANDIDATES
from treaty_consensus.did import Did, is_host, parse_did
from treaty_consensus.errors import Malformed, NotFound, Refused, TooLarge, TreatyError, Unavailable
from treaty_io.codes import DiscoveryCode, NetworkCode
from treaty_io.errors import PeerUnavailable
from treaty_io.network.egress import EgressGuard
from treaty_io.network.hosts import Network

# A reader looks for one agent. A directory of thousands is for search engines.
MAX_PAGES = 8
MAX_AGENTS = 32
_AT_ONCE = 8


@dataclass(frozen=True)
class SkippedDocument:
    """A document at `url` that was skipped, and the error."""

    url: str
    error: TreatyError


@dataclass(frozen=True)
class Discovery:
    """The result of a discovery: at least one agent, in the order of the pages, and the documents that could not be read."""

    agents: tuple[AgentDescription, ...]
    problems: tuple[SkippedDocument, ...] = ()


class Discoverer:
    """Find agents over a network. It keeps no connection open. For one event loop.

    The user has named the host, so it is asked as often as a discovery needs. `get`: fetch a document; `discovery.cache` gives
    one that remembers.
    """

    def __init__(self, network: Network, *, get: Callable[[str], Awaitable[bytes]] | None = None) -> None:
        self._fetch = get or EgressGuard(network, interval=0).get

    async def discover(self, name: str) -> Discovery:
        """Find the agents of a domain, a DID or a URL, by the form of `name`.

        If no agent can be read, raises `Malformed` (`network.url`, `did.*`), `NotFound`
        (`discovery.nothing`), `Refused` (`discovery.document`), `PeerUnavailable` (`egress.*`), and the other errors of the guard
        and of `parse`.
        """
        if name.startswith("did:"):
            return await self.did(parse_did(name))
        host = name.removeprefix("https://").removesuffix("/")
        if is_host(host):
            return await self.domain(host)
        if "://" in name:
            return await self.url(name)
        raise Malformed(
            NetworkCode.URL,
            f"Not a domain, a DID or a URL: {name[:120]!r}.",
            fix="Name shop.example, did:wba:shop.example or https://shop.example/ad.json.",
        )

    async def _get(self, url: str) -> bytes:
        try:
            return await self._fetch(url)
        except Unavailable as error:  # the documents of an agent are a part of it
            raise PeerUnavailable(error.code, error.message, fix=error.fix) from error

    async def domain(self, host: str) -> Discovery:
        """Find the agents that a domain lists, or else the agent of its A2A card. Raises the errors of `discover`."""
        try:
            return await self.url(f"https://{host}{DESCRIPTIONS_PATH}")
        except NotFound:
            pass
        try:
            return await self.url(f"https://{host}{CARD_PATH}")
        except NotFound as error:
            raise NotFound(
                DiscoveryCode.NOTHING,
                f"{host} publishes neither {DESCRIPTIONS_PATH} nor {CARD_PATH}.",
                fix="Ask the agent's operator for its address, its DID, or the URL of its description.",
            ) from error

    async def did(self, did: Did) -> Discovery:
        """Find the agents that a DID's document names. They must have this DID. Raises the errors of `discover`."""
        urls = parse_service(await self._get(did.document_url), did)
        if not urls:
            raise NotFound(
                DiscoveryCode.NOTHING,
                f"The document of {did.text} names no agent description.",
                fix=f"Look at its domain: treaty discover {did.host}",
            )
        return await self._descriptions(urls, [], did)

    async def url(self, url: str) -> Discovery:
        """Find the agent at a URL, or the agents of the page there and the following pages. Raises the errors of `discover`."""
        document = parse(await self._get(url), url)
        if isinstance(document, AgentDescription):
            return Discovery((document,))
        urls, problems = await self._pages(document, url)
        if not urls and not problems:
            raise NotFound(DiscoveryCode.NOTHING, f"{url} lists no agents.")
        return await self._descriptions(urls, problems)

    async def _pages(self, page: CollectionPage, url: str) -> tuple[list[str], list[SkippedDocument]]:
        """Return the URLs that a page and the following pages list, and the problem that ended the reading early."""
        urls, seen = list(page.items), {url}
        try:
            while page.next is not None:
                if urlsplit(page.next).netloc != urlsplit(url).netloc:
                    raise Refused(DiscoveryCode.DOCUMENT, f"The page after {url} is at another host, which is not allowed.")
                if page.next in seen:
                    raise Refused(DiscoveryCode.DOCUMENT, f"The page after {url} is {page.next}, which was read before.")
                if len(seen) == MAX_PAGES or len(urls) > MAX_AGENTS:
                    break
                url = page.next
                seen.add(url)
                following = parse(await self._get(url), url)
                if not isinstance(following, CollectionPage):
                    raise Malformed(DiscoveryCode.DOCUMENT, f"The document at {url} is not a page of agents.")
                page = following
                urls += page.items
        except TreatyError as error:
            return urls, [SkippedDocument(url, error)]
        if page.next is not None:
            return urls, [SkippedDocument(url, _too_many())]
        return urls, []

    async def _descriptions(self, urls: Sequence[str], problems: list[SkippedDocument], did: Did | None = None) -> Discovery:
        """Read at most `MAX_AGENTS` descriptions. `did`: the DID that they must have."""
        turns = asyncio.Semaphore(_AT_ONCE)  # all URLs may be at one host, which must not get 32 requests at once

        async def read(url: str) -> AgentDescription | SkippedDocument:
            async with turns:
                try:
                    return await self._description(url, did)
                except TreatyError as error:
                    return SkippedDocument(url, error)

        distinct_urls = list(dict.fromkeys(urls))
        read_all = await asyncio.gather(*map(read, distinct_urls[:MAX_AGENTS]))
        agents = tuple(agent for agent in read_all if isinstance(agent, AgentDescription))
        problems = [*problems, *(agent for agent in read_all if isinstance(agent, SkippedDocument))]
        if len(distinct_urls) > MAX_AGENTS and not any(problem.error.code == DiscoveryCode.TOO_MANY for problem in problems):
            problems.append(SkippedDocument(distinct_urls[MAX_AGENTS], _too_many()))
        if not agents:
            raise problems[0].error
        return Discovery(agents, tuple(problems))

    async def _description(self, url: str, did: Did | None) -> AgentDescription:
        document = parse(await self._get(url), url)
        if not isinstance(document, AgentDescription):
            raise Malformed(DiscoveryCode.DOCUMENT, f"The document at {url} is a page and not an agent description.")
        if did is not None and document.did not in ("", did.text):
            raise Refused(DiscoveryCode.DOCUMENT, f"{did.text} leads to {url}, which describes {document.did}.")
        return document if did is None else replace(document, did=did.text)


def _too_many() -> TooLarge:
    return TooLarge(
        DiscoveryCode.TOO_MANY,
        f"There are more entries: at most {MAX_PAGES} pages and {MAX_AGENTS} agents are read.",
        fix="Name the agent by its DID, or by the URL of its description.",
    )


def candidates(
    agent: AgentDescription, own: Sequence[str] = (), *, consensus: Collection[str] = (), role: str = ""
) -> tuple[str, ...]:
    """Return the URIs for a Hello, best first, at most `MAX_CANDIDATES`.

    `own`: the protocols that this side speaks, best first, for example those of a topic. If it is empty, the agent's list is
    returned in its order. `consensus`: the members of `own` that are the consensus of their topic; they come first, listed or
    not. Then follow the protocols of both sides, then the rest of `own`. `role`: this side's role; protocols in which the agent
    lists the same role come last, because two equal roles rarely speak with each other.
    """
    listed = frozenset(agent.uris)
    equal = frozenset(protocol.uri for protocol in agent.protocols if role and protocol.role == role)

    def rank(uri: str) -> tuple[bool, int]:
        return uri in equal, 0 if uri in consensus or not own else 1 if uri in listed else 2

    return tuple(sorted(dict.fromkeys(own or agent.uris), key=rank)[:MAX_CANDIDATES])
