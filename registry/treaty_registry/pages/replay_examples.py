"""Examples of the page that replays a negotiation, recorded by the code of agents itself, so that they are never out of date."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

from treaty_anp.hello_profile.hello import Hello, Provided
from treaty_anp.hello_profile.machine import Machine
from treaty_anp.hello_profile.states import Timeouts
from treaty_anp.transcript import TranscriptRecorder

_BASE = "https://registry.example/protocols/example.com"
_ORDER, _INFO, _OLD = f"{_BASE}/orders/2.0", f"{_BASE}/product-info/1.1", f"{_BASE}/product-info/1.0"
TITLES: Mapping[str, str] = {
    "agreed": "A transcript: the second candidate is chosen",
    "nothing": "A transcript: no candidate is left",
    "descriptions": "Two agent descriptions",
}


@lru_cache(maxsize=1)
def examples() -> Mapping[str, Mapping[str, str]]:
    """Return the fields of the form for each of `TITLES`."""
    return {
        "agreed": {"transcript": _recorded((_ORDER, _INFO, _OLD), {_INFO: _provided("client"), _OLD: _provided("client")})},
        "nothing": {"transcript": _recorded((_ORDER, _OLD), {_OLD: _provided("server")})},
        "descriptions": {
            "first": _description("Buyer", "buyer.example", {_ORDER: "buyer", _INFO: "client", _OLD: "client"}),
            "second": _description("Shop", "shop.example", {_OLD: "server", _INFO: "server"}),
        },
    }


def _provided(peer: str) -> Provided:
    return Provided("ab" * 32, False, "server", (peer,))


def _recorded(candidates: tuple[str, ...], provides: Mapping[str, Provided]) -> str:
    """Return the transcript of an agent that answers a Hello with these candidates."""
    recorder = TranscriptRecorder()
    asked = Hello(
        type="sourceHello",
        message_id="0" * 32,
        session_id="1" * 32,
        source_did="did:wba:buyer.example",
        destination_did="did:wba:shop.example",
        random="2" * 64,
        candidate_protocols=candidates,
        candidate_roles=dict.fromkeys(candidates, "client"),
    )
    own = Hello(
        type="destinationHello",
        message_id="3" * 32,
        session_id="",
        source_did="did:wba:shop.example",
        destination_did="",
        random="4" * 64,
    )
    machine = Machine.responder(own, now=0.0, timeouts=Timeouts(), recorder=recorder, provides=dict(provides))
    machine.receive(asked.format(), 0.25)
    text = recorder.transcript().decode()
    recorder.close()
    return text


def _description(name: str, host: str, protocols: Mapping[str, str]) -> str:
    listed = [
        {"type": "StructuredInterface", "protocol": uri, "digest": "ab" * 32, "role": role, "url": f"wss://{host}/anp"}
        for uri, role in protocols.items()
    ]
    about = {"type": "AgentDescription", "name": name, "did": f"did:wba:{host}", "interfaces": listed}
    return json.dumps(about, indent=2, ensure_ascii=False)
