"""A registry with everything in it that a page must show well, served on a real socket.

python tests/support/populated_catalogue.py --port 8466 [--empty] [--hostile]     serves one until it is interrupted

Statements are made and logged in this process, in few batches, so a catalogue takes seconds. Its clock stands still.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import structlog
from claims import OPERATION, answered, bundle_by, vector, wheel_with
from hostile_texts import PAYLOADS
from http_api import serving
from ports import free_port
from postgres_server import Postgres
from registries import TOPIC, Publication, Web, blob, open_registry, publication
from signers import Signer, domain_signer, signed

from treaty_consensus import canonical, kinds
from treaty_consensus.handler import HandlerMetadata, build_wheel
from treaty_consensus.protocol import Card
from treaty_consensus.statement import Statement
from treaty_registry.log.entry import Logged
from treaty_registry.pages.documentation import ARCHIVE
from treaty_registry.registry import Registry
from treaty_registry.storage.embedded import embedded_postgres

AGENTS = tuple(domain_signer(f"{name}.example") for name in ("alice", "bob", "carol", "dave"))
VOTERS = (*AGENTS, *(domain_signer(f"voter-{number}.example") for number in range(11)))
ALICE, BOB, CAROL, DAVE = AGENTS
LONG = domain_signer(".".join((f"{'agent':a<58}", f"{'of':o<58}", "example")))
CROWDED, LONG_TOPIC, HOSTILE_TOPIC = "social/greeting", "/".join(["t" * 39] * 4), "hostile/text"
SCRIPTS = {
    "chinese": (
        "酒店预订协议",
        "查询房间、价格与空房，并完成预订。" * 8,
        "# 酒店预订协议\n\n## 查询\n\n客户端发送日期与人数。\n",
    ),
    "arabic": ("بروتوكول حجز الفنادق", "حجز الغرف والأسعار (rooms 1–4) من اليمين.", "# بروتوكول\n\n- غرفة\n- سعر 120 EUR\n"),
    "hebrew": ("פרוטוקול הזמנת חדרים", "שאלו על חדר, price: 120 ₪.", "# פרוטוקול\n\nשלום `GET /rooms`.\n"),
    "emoji": ("👩‍👩‍👧‍👦 Family 🏳️‍🌈 tickets 🎟️", "👨🏽‍🚀" * 40, "# 🎟️\n\nOne ticket per 👩‍👩‍👧‍👦.\n"),
    "combining": ("Z̸̢̛͔̈́a̷͇͐l̶̰̈g̵̙̾o̴̧̓ " + "e" + "\u0301" * 60, "q̃̀́̂̄" * 30, "# Z̸̢̛͔̈́a̷͇͐l̶̰̈g̵̙̾o̴̧̓\n\nCombined.\n"),
}
IN_A_PACKAGE = 20
"""Hostile texts in one package."""
LONG_WORD = "W" * 120
DOCUMENT = """# Product information

Ask a shop for a product.

## Messages

| field | type | meaning |
| --- | --- | --- |
| `id` | text | a name of the request, which the answer repeats |
| `product` | text | the name of the product, in the words of the shop's own catalogue |

```json
{"id": "1", "type": "request", "product": "a very long line of an example that is wider than any telephone and has to scroll"}
```

1. The client asks.
2. The shop answers, or says why not.
"""


@dataclass
class Draft:
    """Statements and the blobs that they name, to be logged in one batch."""

    statements: list[Statement] = field(default_factory=list)
    blobs: list[tuple[Statement, bytes]] = field(default_factory=list)

    def publish(self, agent: Signer, publication: Publication) -> kinds.Publish:
        self.add(publication.body, agent, publication.document, publication.card)
        return publication.body

    def add(self, body: kinds.Body, agent: Signer, *blobs: bytes) -> None:
        statement = agent.statement(body)
        self.statements.append(statement)
        self.blobs += [(statement, data) for data in blobs]

    async def log(self, registry: Registry) -> None:
        for statement, data in self.blobs:
            await registry.put_blob(canonical.hex_digest(data), statement.leaf, data)
        for first in range(0, len(self.statements), 64):
            outcomes = await registry.submit([statement.leaf for statement in self.statements[first : first + 64]])
            refused = [outcome for outcome in outcomes if not isinstance(outcome, Logged)]
            assert not refused, refused[0]


def texts(agent: Signer, name: str, topic: str, card: Card, document: str, *aliases: str, version: str = "1.0") -> Publication:
    """A protocol with these texts."""
    uri = publication(agent, name, version, topic).body.uri
    data, about = document.encode(), card.encode()
    return Publication(kinds.Publish(uri, topic, blob(data), blob(about), "negotiated", aliases), data, about)


async def populate(registry: Registry, web: Web) -> None:
    """Log what the pages show: elections, warnings, handlers, and texts of every length and direction."""
    web.serve(*VOTERS, LONG)
    draft = Draft()
    card = Card("Product information", "Ask a shop for a product.", ("shop", "catalogue"), "Apache-2.0")
    product = [
        draft.publish(ALICE, texts(ALICE, "product-info", TOPIC, card, DOCUMENT)),
        draft.publish(ALICE, texts(ALICE, "product-info", TOPIC, card, DOCUMENT + "\n3. Both go on.\n", version="2.0")),
        draft.publish(BOB, publication(BOB, "catalogue-query")),
    ]
    _handlers(draft, product[0], product[2])
    _warnings(draft)
    for name, (title, summary, document) in SCRIPTS.items():
        draft.publish(ALICE, texts(ALICE, name, "travel/booking", Card(title, summary[:500]), document))
    long_card = Card(LONG_WORD, "S" * 500, tuple(f"{n:x}".ljust(39, "g") for n in range(10, 26)), "L" * 64)
    alias = f"https://{ALICE.did.removeprefix('did:wba:')}/{'a' * 200}"
    draft.publish(LONG, texts(LONG, "n" * 39, LONG_TOPIC, long_card, f"# {'H' * 300}\n\n{'x' * 3000}\n", alias, version="1.2.3"))
    crowd = [draft.publish(AGENTS[n % 4], publication(AGENTS[n % 4], f"greeting-{n}", topic=CROWDED)) for n in range(32)]
    await draft.log(registry)
    await _elect(registry, product, crowd)


def _handlers(draft: Draft, code_free: kinds.Publish, sandboxed: kinds.Publish) -> None:
    vectors = {"client-ask.json": vector("client", "ask", "tell"), "server-ask.json": answered("server", "ask")}
    for agent, body, is_code_free in ((ALICE, code_free, True), (BOB, sandboxed, False)):
        filename, wheel, entry = wheel_with(vectors, uri=body.uri, document=body.document.sha256, is_code_free=is_code_free)
        bundle = bundle_by("https://token.actions.githubusercontent.com")
        handler = kinds.Handler(body.uri, body.document.sha256, filename, blob(wheel), entry, blob(bundle))
        draft.add(handler, agent, wheel, bundle)


def _warnings(draft: Draft) -> None:
    for state in ("deprecated", "yanked", "revoked"):
        statement = draft.publish(CAROL, publication(CAROL, f"was-{state}", topic="travel/trains"))
        draft.add(kinds.Status(statement.uri, state), CAROL)


async def _elect(registry: Registry, product: Sequence[kinds.Publish], crowd: Sequence[kinds.Publish]) -> None:
    """Decide two topics over three epochs: one with a consensus and a loser, one with 32 candidates.

    In an epoch one report of a pair counts, so each candidate has pairs of its own.
    """
    pairs, many = list(combinations(AGENTS, 2)), list(combinations(VOTERS, 2))
    agreements = [(product[0], pair) for pair in pairs[:3]] + [(product[2], pair) for pair in pairs[3:]]
    agreements += [(body, pair) for number, body in enumerate(crowd) for pair in many[3 * number : 3 * number + 3]]
    for epoch in range(3):
        draft = Draft()
        for body, pair in agreements:
            nid = canonical.hex_digest(f"{epoch} {body.uri} {pair[0].did} {pair[1].did}".encode())
            report = kinds.Report(body.topic, nid, body.document.sha256, "agreed", epoch, registry.head.note.decode())
            draft.statements.append(signed(report, *pair))
        if epoch == 0:
            for voter, agent in enumerate(VOTERS):
                if agent in AGENTS:
                    _vote(draft, registry, agent, TOPIC, product if voter < 3 else product[::-1])
                turn = 0 if voter % 3 else 7 * (voter % 4)
                _vote(draft, registry, agent, CROWDED, [*crowd[turn:], *crowd[:turn]])
        await draft.log(registry)
        assert await registry.decide()


def _vote(draft: Draft, registry: Registry, agent: Signer, topic: str, order: Sequence[kinds.Publish]) -> None:
    tiers = tuple((body.document.sha256,) for body in order)
    draft.add(kinds.Ballot(topic, 0, (*tiers, (kinds.NONE,)), registry.head.note.decode()), agent)


async def attack(registry: Registry, web: Web) -> None:
    """Log each hostile text as the title, the summary, the licence, an alias and the document of a protocol."""
    web.serve(*AGENTS, LONG)
    draft = Draft()
    for number, payload in enumerate(PAYLOADS):
        card = Card(payload[:120], payload[:500], licence=payload[:64])
        line = "".join(payload.split())
        aliases = (line[:200],) if line.isascii() and line.isprintable() else ()
        publication = texts(AGENTS[number % 4], f"p{number}", HOSTILE_TOPIC, card, f"{payload}\n\n# {payload}\n", *aliases)
        draft.publish(AGENTS[number % 4], publication)
        if number % IN_A_PACKAGE == 0:
            _hostile_package(draft, AGENTS[number % 4], publication.body, PAYLOADS[number : number + IN_A_PACKAGE])
    changed = texts(ALICE, "p0", HOSTILE_TOPIC, Card("x", ""), "\n\n".join(PAYLOADS), version="2.0")
    draft.publish(ALICE, changed)
    _hostile_package(draft, ALICE, changed.body, PAYLOADS[IN_A_PACKAGE : 2 * IN_A_PACKAGE])
    await draft.log(registry)


def _hostile_package(draft: Draft, agent: Signer, body: kinds.Publish, payloads: Sequence[str]) -> None:
    """Attach a package with a hostile text in every place of a manifest, a vector and a certificate that takes one."""
    operations, vectors = {}, {}
    for number, payload in enumerate(payloads):
        about = {
            "title": payload,
            "description": payload,
            "const": payload,
            "default": payload,
            "format": payload,
            "enum": [payload],
        }
        schema = {
            "type": "object",
            "description": payload,
            "required": [payload],
            "properties": {payload: about},
            "anyOf": [about],
        }
        name = f"o{number}"
        operations[name] = {**OPERATION, "arguments": schema, "result": about, "errors": {"404": payload}}
        event = {"call": {"call": payload, "operation": name, "arguments": {payload: payload}}}
        effects = [{"return": {"call": payload, "value": [payload]}}]
        vector = {"title": payload, "role": "client", "steps": [{"event": event, "effects": effects}]}
        vectors[f"vectors/{name}.json"] = json.dumps(vector).encode()
    names = [*operations]
    manifest = {
        "operations": operations,
        "roles": {
            "client": {"peer": "server", "calls": names, "invokes": []},
            "server": {"peer": "client", "calls": [], "invokes": names},
        },
    }
    entry = "treaty_handler_asked:handler"
    metadata = HandlerMetadata(
        "asked",
        str(len(draft.statements)),
        " ".join(payloads[0].split()),
        "Apache-2.0",
        entry,
        body.uri,
        body.document.sha256,
        manifest,
    )
    filename, wheel = build_wheel({"__init__.py": b"handler = None\n", **vectors}, metadata)
    ascii = next(payload for payload in payloads if payload.isascii())
    bundle = bundle_by(payloads[-1][:100], v1=True, identity=ascii)
    handler = kinds.Handler(body.uri, body.document.sha256, filename, blob(wheel), entry, blob(bundle))
    draft.add(handler, agent, wheel, bundle)


async def nothing(registry: Registry, web: Web) -> None:
    """Leave a registry empty."""


Filling = Callable[[Registry, Web], Awaitable[None]]


@asynccontextmanager
async def served(database: str, port: int, fill: Filling, site: Path = ARCHIVE) -> AsyncIterator[str]:
    """Serve a filled registry on a port, and yield its URL. `site`: the archive of the documentation."""
    web = Web()
    with tempfile.TemporaryDirectory(prefix="treaty-") as folder:
        async with open_registry(Path(folder) / "registry", database, web) as registry:
            await fill(registry, web)
            async with serving(registry, port, site) as url:
                yield url


@contextmanager
def in_a_thread(postgres: Postgres, fill: Filling, site: Path = ARCHIVE) -> Iterator[str]:
    """Serve a filled registry from a thread of its own, for a browser that blocks this one. `site`: as for `served`."""
    ready, ended = threading.Event(), asyncio.Event()
    state: dict[str, object] = {}

    async def run() -> None:
        state["loop"] = asyncio.get_running_loop()
        async with postgres.fresh() as database, served(database, free_port(), fill, site) as url:
            state["url"] = url
            ready.set()
            await ended.wait()

    def start() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:  # the test must end, whatever went wrong
            state["error"] = error
            ready.set()
            raise

    thread = threading.Thread(target=start)
    thread.start()
    ready.wait()
    if "error" in state:
        raise RuntimeError("the registry did not start") from state["error"]  # type: ignore[misc]
    try:
        yield str(state["url"])
    finally:
        loop = state["loop"]
        assert isinstance(loop, asyncio.AbstractEventLoop)
        loop.call_soon_threadsafe(ended.set)
        thread.join()


async def _serve(port: int, fill: Filling) -> None:
    with tempfile.TemporaryDirectory(prefix="treaty-") as folder:
        async with embedded_postgres(Path(folder)) as url:
            postgres = Postgres(url)
            await postgres.prepare()
            async with postgres.fresh() as database, served(database, port, fill) as address:
                print(address, flush=True)
                await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    # By default a termination would end this process alone, and leave its database running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8466)
    parser.add_argument("--empty", action="store_true")
    parser.add_argument("--hostile", action="store_true")
    chosen = parser.parse_args()
    asyncio.run(_serve(chosen.port, nothing if chosen.empty else attack if chosen.hostile else populate))
