"""Two agents that meet: real agents and handlers, with a simulated source of protocols and handlers in this process.

The protocol is product-info as it is published. `InlineRuntime` judges events and effects as the sandbox does, but runs the
handler beside the test, so that a test can replace it by one that misbehaves.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from functools import cache, partial
from pathlib import Path
from typing import Any

from connections import NotingConnection
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from signers import ORIGIN, domain_signer

from treaty_agent import Agent, AgentConfig, Identity, Policy
from treaty_agent.sessions.interfaces import AgentEvent, Located, Ports
from treaty_agent.sessions.operation_errors import OperationError
from treaty_agent.transport import memory
from treaty_client.protocols.project import Project, load_project
from treaty_client.protocols.topics import Candidates
from treaty_consensus import canonical
from treaty_consensus.did import Did
from treaty_consensus.errors import NotFound, TreatyError, Unavailable
from treaty_consensus.handler import HandlerPackage, read_wheel
from treaty_consensus.log.note import KeyType, SignerKey
from treaty_handler import Effect, Event, Handler, Session
from treaty_io.network.did_documents import DidDocument, DidResolver, read_did_document
from treaty_sandbox.in_process import DeclarativePackage
from treaty_sandbox.interface import RunningHandler, Runtime, WorkerMetrics
from treaty_sandbox.kept_session import KeptSession
from treaty_sandbox.operation_schemas import Operations
from treaty_sandbox.validation import SessionRules

PROTOCOLS = Path(__file__).parents[2] / "protocols" / "product-info"
TOPIC = "commerce/product-info"
URI_1, URI_2 = (f"https://{ORIGIN}/protocols/publisher.example/product-info/{version}" for version in ("1.0", "1.1"))
REGISTRY = f"https://{ORIGIN}#{SignerKey(ORIGIN, KeyType.ED25519, bytes(32)).verifier}"
MAX_AGE = 3600
LAPTOP = {
    "productId": "P12345",
    "productName": "高性能笔记本电脑",
    "productDescription": "配备最新处理器和大容量内存的高性能笔记本电脑。",
    "price": 1299.99,
    "currency": "USD",
}
LINGERING = 20.0
_modules = itertools.count()


@dataclass(frozen=True)
class Published:
    """A protocol as a fetcher would hand it over."""

    uri: str
    hash: str
    topic: str
    package: HandlerPackage
    seconds_old: int = 0
    document: bytes = b""
    aliases: tuple[str, ...] = ()

    def age(self, now: int) -> int:
        return self.seconds_old


@cache
def product_info(uri: str) -> Published:
    """One of the two versions, built from the repository."""
    project = load_project(PROTOCOLS / uri.rpartition("/")[2])
    return Published(uri, project.protocol_hash, project.topic, read_wheel(*project.build_wheel(uri)), 0, project.document)


@dataclass
class SimulatedProtocols:
    """A registry's protocols as one agent gets them. `store`: what it fetched; `seconds_old`: how old the proofs in it are.
    `documents`: the URIs whose text alone was asked for."""

    published: dict[str, Published] = field(default_factory=lambda: {uri: product_info(uri) for uri in (URI_2, URI_1)})
    store: dict[str, Published] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)
    documents: list[str] = field(default_factory=list)
    consensus: frozenset[str] = frozenset()
    asked: int = 0
    seconds_old: int = 0
    delay: float = 0.0
    failure: TreatyError | None = None

    async def fetch(self, uri: str) -> Published:
        self.fetched.append(uri)
        await asyncio.sleep(self.delay)
        if self.failure is not None:
            raise self.failure
        if uri not in self.published:
            raise NotFound("protocol.unknown", f"{uri} is not published in this log.")
        self.seconds_old = 0
        self.store[self.published[uri].hash] = self.published[uri]
        return self.published[uri]

    async def renew(self, uri: str) -> Published:
        return await self.fetch(uri)

    async def document(self, uri: str) -> bytes:
        self.documents.append(uri)
        if uri not in self.published:
            raise NotFound("protocol.unknown", f"{uri} is not published in this log.")
        return self.published[uri].document

    def cached(self, document_hash: str) -> Published | None:
        return self.store.get(document_hash) if self.seconds_old <= MAX_AGE else None

    def holds(self, uri: str) -> bool:
        return uri in self.published

    async def candidates(self, topic: str, *, fresh: bool = False) -> Candidates:
        self.asked += 1
        return Candidates(tuple(uri for uri, protocol in self.published.items() if protocol.topic == topic), self.consensus)

    async def aclose(self) -> None:
        pass


@dataclass
class SimulatedPublisher:
    """A registry that takes what an agent publishes, into the protocols that others get."""

    shelf: SimulatedProtocols
    published: list[str] = field(default_factory=list)
    failure: TreatyError | None = None

    async def publish(self, project: Project) -> str:
        if self.failure is not None:
            raise self.failure
        uri = f"https://{ORIGIN}/protocols/buyer.example/{project.name}/{project.version}"
        package = read_wheel(*project.build_wheel(uri))
        self.shelf.published[uri] = Published(uri, project.protocol_hash, project.topic, package)
        self.published.append(uri)
        return uri


@dataclass
class SimulatedNames:
    """Ids of the flow profile, each registered with a URI by its owner."""

    shelf: SimulatedProtocols
    pins: Callable[[str], str]

    async def locate(self, id: str, digest: str = "") -> Located:
        return Located(self.pins(id), digest)

    async def fetch(self, id: str, located: Located) -> Published:
        return await self.shelf.fetch(located.uri)


async def did_document(did: Did) -> DidDocument:
    """The document of a domain's identity."""
    return read_did_document(did, canonical.dumps(identity(str(did.host)).did_document()))


@dataclass
class InlineHandler:
    """A handler's session in this process, judged as in the sandbox."""

    session: Session
    rules: SessionRules
    closed: bool = False
    kept: KeptSession | None = None

    async def handle(self, event: Event) -> Sequence[Effect]:
        if not self.rules.enter(event):
            return []
        return self.rules.leave(event, self.session.handle(event))

    async def close(self) -> None:
        self.closed = True


@dataclass
class InlineRuntime:
    """`wrap`: replaces each session that is opened, for tests of misbehaviour. `opened`: all of them."""

    wrap: Callable[[RunningHandler], RunningHandler] = lambda handler: handler
    opened: list[InlineHandler] = field(default_factory=list)
    delay: float = 0.0

    async def warm(self) -> None:
        pass

    async def preload(self, package: HandlerPackage, *, local: str) -> None:
        if not package.is_declarative:
            _handler(package.digest, package)

    async def open(
        self,
        package: HandlerPackage,
        role: str,
        *,
        local: str,
        peer: str,
        seed: str | None = None,
        kept: KeptSession | None = None,
    ) -> RunningHandler:
        await asyncio.sleep(self.delay)
        operations = Operations(package.manifest)
        rules = SessionRules(package.manifest.roles[role], operations, [peer])
        made = DeclarativePackage(package, operations).handler if package.is_declarative else _handler(package.digest, package)
        session = made.open(role, {"local": local, "peer": peer, "seed": seed or "0" * 32})
        handler = InlineHandler(session, rules)
        self.opened.append(handler)
        return self.wrap(handler)

    def metrics(self) -> WorkerMetrics:
        return WorkerMetrics()

    async def close(self) -> None:
        pass


_loaded: dict[str, Handler] = {}


def _handler(digest: str, package: HandlerPackage) -> Handler:
    """The package's handler, imported under a name of its own."""
    if digest not in _loaded:
        with tempfile.TemporaryDirectory() as folder:
            for path, content in package.files.items():
                target = Path(folder, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            name = f"handler_under_test_{next(_modules)}"
            root = Path(folder, package.package)
            spec = importlib.util.spec_from_file_location(name, root / "__init__.py", submodule_search_locations=[str(root)])
            assert spec is not None
            assert spec.loader is not None
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            _loaded[digest] = getattr(module, package.entry_point.attribute)
    return _loaded[digest]


def identity(domain: str) -> Identity:
    """The identity of a domain, with a key derived from its name."""
    signer = domain_signer(domain)
    return Identity(signer.did, signer.key_id, Ed25519PrivateKey.from_private_bytes(signer.private_key.private_bytes_raw()))


@dataclass
class Party:
    """An agent and everything it stands on."""

    agent: Agent
    protocols: SimulatedProtocols
    runtime: InlineRuntime
    home: Path
    events: list[AgentEvent]
    publisher: SimulatedPublisher

    def names(self) -> list[str]:
        return [event.name for event in self.events if not event.operation]


def party(
    name: str,
    home: Path,
    *,
    policy: Policy | None = None,
    log_of: Callable[[str], Any] | None = None,
    protocols: SimulatedProtocols | None = None,
    fetch: Callable[[Did], Awaitable[DidDocument]] = did_document,
    own: Identity | None = None,
    sandbox: Runtime | None = None,
    **options: Any,
) -> Party:
    """An agent called `NAME.example`; `options` are the agent's, and the fields of its configuration. `fetch`: gets the documents
    of DIDs. `own`: another identity than that of the domain. `sandbox`: runs the handlers, in the place of this process."""
    protocols, runtime, events = protocols or SimulatedProtocols(), InlineRuntime(), list[AgentEvent]()
    publisher = SimulatedPublisher(protocols)
    settings = {name: options.pop(name) for name in {field.name for field in fields(AgentConfig)} & options.keys()}

    def no_log(origin: str) -> Any:
        raise Unavailable("registry.unreachable", f"{origin} is not simulated here.")

    agent = Agent(
        own or identity(f"{name}.example"),
        REGISTRY,
        AgentConfig(policy or Policy(publishers=["did:wba:publisher.example"], max_age=MAX_AGE), home=home / name, **settings),
        on_event=events.append,
        ports=Ports(
            protocols, sandbox or runtime, log_of or no_log, publisher, DidResolver(fetch), partial(SimulatedNames, protocols)
        ),
        **options,
    )
    return Party(agent, protocols, runtime, home / name, events, publisher)


def shop(home: Path, *uris: str, name: str = "shop", **options: Any) -> Party:
    """An agent that sells one laptop, by product-info of these versions (both unless given)."""
    side = party(name, home, **options)
    for uri in uris or (URI_2, URI_1):

        @side.agent.provides(uri)
        async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
            if productId != LAPTOP["productId"]:
                raise OperationError(404, "产品未找到")
            return LAPTOP

    return side


def buyer(home: Path, *, name: str = "buyer", **options: Any) -> Party:
    """An agent that provides nothing."""
    return party(name, home, **options)


class Tap(NotingConnection):
    """A connection that notes what goes over it."""

    def kinds(self, *, contexts: bool = False) -> list[str]:
        """Each message in a word: hello, or a frame by its PT. `contexts`: also the contexts of calls."""
        words = [f"{way}{_kind(message)}" for way, message in self.seen]
        return [kind for kind in words if contexts or not kind.endswith("context")]


def _kind(message: str | bytes) -> str:
    if isinstance(message, str):
        return "hello"
    if message.startswith(b'\x00{"action":"callContext"'):
        return "application" if b"\n@" in message else "context"
    return {0: "meta", 1: "application", 2: "natural", 3: "verification"}[message[0] >> 6]


@asynccontextmanager
async def meeting(seller: Party, *, at: str = "") -> AsyncIterator[Tap]:
    """An open connection to an agent that is ready to serve, at an address of its own; its end of it is waited for. A session
    that its application has left may use it for `LINGERING` seconds more."""
    if not seller.protocols.fetched:
        await seller.agent.prepare()
    near, far = memory.pair()
    task = asyncio.create_task(seller.agent.accept(far))
    try:
        yield Tap(near, at or f"memory:{seller.agent.did}")
        await asyncio.wait({task}, timeout=LINGERING)
    finally:
        await near.close()
        await task
