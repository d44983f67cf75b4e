"""The source's example protocol, data-sharing, with a handler: a provider that answers queries, and a consumer that asks them.

A message is a JSON object. Both sides count the queries of their peer, and keep the count. `basic-transfer` is the same under
another name, for changes of the protocol.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from meetings import MAX_AGE, Party, Published, SimulatedProtocols, party
from signers import ORIGIN

from treaty_agent import Policy
from treaty_anp.flow_profile.capabilities import ProtocolOffer
from treaty_anp.flow_profile.payloads import Metrics
from treaty_consensus.canonical import hex_digest
from treaty_consensus.handler import HandlerMetadata, build_wheel, read_wheel

SHARING, TRANSFER = "anp:protocol:data-sharing:1.0", "anp:protocol:basic-transfer:1.1"
QUERY = "SELECT * FROM dataset WHERE category='AI' LIMIT 100"
ROWS = [{"name": "高性能笔记本电脑", "category": "AI"}]

HANDLER = """
from treaty_handler import *


class Side:
    def __init__(self, peer):
        self.peer, self.count, self.terms, self.changes, self.calls, self.asked = peer, 0, {}, 0, [], {}

    def snapshot(self):
        return encode_json([self.count, self.terms, self.changes, self.calls])

    def handle(self, event):
        match event:
            case Opened(stored=stored, parameters=terms):
                self.count, self.terms = int(stored.get("queries", b"0")), terms
            case Renegotiated(parameters=terms):
                self.terms, self.changes = terms, self.changes + 1
            case Call(call=call, arguments=arguments):
                self.calls.append(call)
                return [Send(peer=self.peer, data=encode_json(arguments))]
            case Received(data=data, stream=stream):
                return self.received(decode_json(data), stream)
            case Result(call=call, value=value, error=error):
                answer = {"rows": value} if error is None else {"error": error.code}
                answer |= {"queries": self.count, "terms": self.terms, "changes": self.changes, "action": self.asked.pop(call)}
                return [Send(peer=self.peer, data=encode_json(answer))]
            case PeerLost() | Close():
                return [End()]
        return []

    def received(self, message, stream):
        if "query" not in message:
            return [Return(call=self.calls.pop(0), value=message)] if self.calls else []
        self.count += 1
        call = str(self.count)
        self.asked[call] = stream
        kept = Persist(key="queries", value=call.encode())
        return [kept, Invoke(call=call, operation="query", arguments={"query": message["query"]})]


class Handler:
    def open(self, role, parameters, snapshot=b""):
        return Side(parameters["peer"])

    def encode(self, message):
        return encode_json(message)

    def decode(self, data):
        return decode_json(data)

    def validate(self, message, sender):
        return []


handler = Handler()
"""
OPERATION = {
    "arguments": {"type": "object"},
    "result": {},
    "errors": {"404": "There is no such data."},
    "idempotent": True,
    "timeout": 15,
}
MANIFEST = {
    "operations": {"query": OPERATION},
    "roles": {
        "consumer": {"peer": "provider", "calls": ["query"], "invokes": []},
        "provider": {"peer": "consumer", "calls": [], "invokes": ["query"]},
    },
}


@cache
def published(id: str, interface: int = 4) -> Published:
    """The protocol of an id, as a fetcher hands it over. `interface`: of its handler."""
    name, version = id.split(":")[2:]
    uri = f"https://{ORIGIN}/protocols/publisher.example/{name}/{version}"
    package = f"treaty_handler_{name.replace('-', '_')}"
    metadata = HandlerMetadata(
        name=name,
        version=version,
        summary="Ask for data.",
        licence="Apache-2.0",
        entry_point=f"{package}:handler",
        protocol_uri=uri,
        protocol_hash=hex_digest(id.encode()),
        manifest={**MANIFEST, "interface": interface},
    )
    wheel = build_wheel({"__init__.py": HANDLER.encode()}, metadata)
    return Published(uri, hex_digest(id.encode()), "data/sharing", read_wheel(*wheel), aliases=(id,))


def offer(id: str = SHARING, **fields: Any) -> ProtocolOffer:
    """The source's description of data-sharing, for an agent's registry."""
    members = {"capabilities": ("query", "stream", "batch"), "preference": 0.9, **fields}
    return ProtocolOffer(id, metrics=Metrics("low", "high", "medium"), uri=published(id).uri, **members)


def sharer(name: str, home: Path, *offers: ProtocolOffer, policy: Policy | None = None, **options: Any) -> Party:
    """An agent NAME.example that offers these, data-sharing by default, and answers queries."""
    offers = offers or (offer(),)
    protocols = {side.uri: side for side in map(published, (SHARING, TRANSFER))}
    policy = policy or Policy(publishers=["did:wba:publisher.example"], max_age=MAX_AGE, encryption="off")
    side = party(name, home, protocols=SimulatedProtocols(protocols), policy=policy, **options)
    for own_offer in offers:
        side.agent.flow.registry.add(own_offer)

        @side.agent.provides(own_offer.uri)
        async def query(query: str) -> list[Any]:
            return ROWS if query == QUERY else []

    return side
