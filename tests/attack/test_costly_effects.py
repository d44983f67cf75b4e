"""Effects that are each cheap to check and together costly: one budget bounds all that one event causes."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from costly_schemas import AMBIGUOUS, SECONDS, each
from handler_packages import ANYTHING, LOCAL, MANIFEST, PEER, package
from sandboxes import probe

from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.handler.schema import pattern_weight
from treaty_handler import Call, Effect, Failure, Invoke, Opened, Return, Timer
from treaty_sandbox import SandboxPool
from treaty_sandbox.operation_schemas import MAX_FAILURE_TEXT, Operations
from treaty_sandbox.schemas import MAX_MATCH
from treaty_sandbox.validation import MAX_PENDING, SessionRules


def amplified(schema: dict[str, Any]) -> dict[str, Any]:
    """A manifest whose client answers `ask`, and invokes `fetch` with values `x` of this schema."""
    fetch = {**ANYTHING, "arguments": {"type": "object", "properties": {"x": schema}}}
    client = {**MANIFEST["roles"]["client"], "invokes": ["fetch"]}
    return {
        "operations": {**MANIFEST["operations"], "ask": {**ANYTHING, "result": schema}, "fetch": fetch},
        "roles": {**MANIFEST["roles"], "client": client},
    }


def rules_of(schema: dict[str, Any]) -> SessionRules:
    manifest = package(manifest=amplified(schema)).manifest
    rules = SessionRules(manifest.roles["client"], Operations(manifest), [PEER])
    rules.enter(Opened())
    return rules


HALF = MAX_MATCH // pattern_weight(AMBIGUOUS) // 2
MANY: dict[str, tuple[dict[str, Any], str]] = {
    "negated patterns": (
        {"items": {"not": {"pattern": AMBIGUOUS}}},
        f"[format(r.getrandbits({HALF}), '0{HALF}b').replace('0', 'a').replace('1', 'b') for _ in 'xx']",
    ),
    "short texts": (
        each({"pattern": AMBIGUOUS}),
        "[format(r.getrandbits(60), '060b').replace('0', 'a').replace('1', 'b') for _ in range(40)]",
    ),
    "multiples": (each({"multipleOf": 1.7e-9}), "[1.7e308] * 50"),
    "unique": ({"items": {"uniqueItems": True}}, "[[n + .5 for n in range(48)]]"),
    "enumeration": (each({"enum": list(range(100, 580))}), "[0] * 20"),
    "host names": (each({"format": "idn-hostname"}), "['a' + chr(233) * 31] * 20"),
}
"""Schemas, and values of which each is cheap and 1,024 fit into one reply; `r` is a `random.Random`."""


@pytest.mark.sample(2)
@pytest.mark.threat(45)
@pytest.mark.parametrize("name", MANY)
def test_the_effects_of_one_event_share_one_budget(name: str) -> None:
    schema, source = MANY[name]
    values = [eval(source, {"r": random.Random(seed)}) for seed in range(MAX_PENDING)]
    alone, together = rules_of(schema), rules_of(schema)
    for number, value in enumerate(values[:50]):  # each event has a budget of its own
        alone.leave(Timer(name="t"), [Invoke(call=f"{number}", operation="fetch", arguments={"x": value})])
    effects = [Invoke(call=f"{number}", operation="fetch", arguments={"x": value}) for number, value in enumerate(values)]
    started = time.thread_time()
    with pytest.raises(Refused, match="cost too much to check") as caught:
        together.leave(Timer(name="t"), effects)
    spent = time.thread_time() - started
    print(f"{name:40} {spent * 1000:7.1f} ms")
    assert caught.value.code == "handler.failed"
    assert spent < SECONDS


def test_returns_share_the_budget_of_their_event() -> None:
    for answer in (
        {"value": [1.7e308] * 50},
        {"value": None, "error": Failure(code=500, message="\x00" * MAX_FAILURE_TEXT)},
    ):
        rules = rules_of(each({"multipleOf": 1.7e-9}))
        for number in range(MAX_PENDING):
            rules.enter(Call(call=f"{number}", operation="ask", arguments={}))
        with pytest.raises(Refused, match=r"at once|cost too much") as caught:
            rules.leave(Timer(name="t"), [Return(call=f"{number}", **answer) for number in range(MAX_PENDING)])
        assert caught.value.code == "handler.failed"


@pytest.mark.threat(45)
def test_an_event_of_many_small_effects_is_admitted() -> None:
    text = {"type": "string", "maxLength": 100}
    name = {**text, "pattern": "^[a-z][a-z0-9-]{0,62}$"}
    price = {"type": "number", "multipleOf": 0.01}
    item = {"type": "object", "properties": {"id": name, "title": text, "mail": {**text, "format": "email"}, "price": price}}
    rules = rules_of(item)
    value = {"id": "p-99", "title": "A lamp", "mail": "shop@example.org", "price": 19.99}
    for number in range(MAX_PENDING):
        rules.enter(Call(call=f"{number}", operation="ask", arguments={}))
    effects: list[Effect] = [
        *(Return(call=f"{number}", value=value) for number in range(MAX_PENDING)),
        *(Invoke(call=f"{number}", operation="fetch", arguments={"x": value}) for number in range(MAX_PENDING)),
    ]
    assert rules.leave(Timer(name="t"), effects) == effects
    assert rules.pending_calls == ()


# An honest session beside them


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "zeros": ({}, "import os\nos.write(0, (3900014).to_bytes(4, 'big') + b'\\x92\\xa7effects\\xdd' + (3900000).to_bytes(4, 'big')"
              " + bytes(3900000))"),
    "zeros by the interface": ({}, "value = [0] * 3_900_000"),
    "texts": ({}, "value = ['a' * 99] * 40_000"),
    "pattern": ({"items": {"pattern": "[ab][ -y]{1,900}z"}}, "import random\nr = random.Random(1)\n"
                "value = [''.join(r.choice('ab') for _ in range(570))] * 5_000"),
    "alternatives": ({"anyOf": [{"type": "string"}] * 480}, "value = ['x' * 50] * 4_000"),
    "unique": ({"allOf": [{"uniqueItems": True}] * 4}, "value = [[n + .5, []] for n in range(6_000)] + [[], []]"),
    "depth": ({}, "for _ in range(500): value = [value]"),
    "notes": ({}, "effects = [Audit(text='x' * 1000)] * 4_000"),
    **{f"many: {name}": (schema, "import random\nr = random.Random(1)\neffects = [Invoke(call=str(n), operation='fetch', "
                         f"arguments={{'x': {source}}}) for n in range({MAX_PENDING})]")
       for name, (schema, source) in MANY.items()},
}  # fmt: skip


class Lag:
    """The most processor time that the loop's thread spent between two ticks."""

    def __init__(self) -> None:
        self.most = 0.0

    async def watch(self) -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.thread_time()
            self.most, last = max(self.most, now - last), now


@pytest.mark.deep
@pytest.mark.threat(44, 45)
async def test_an_honest_session_beside_hostile_ones() -> None:
    lag = Lag()
    async with SandboxPool(size=0) as pool, probe() as honest:

        async def attack(name: str) -> str:
            schema, code = HOSTILE[name]
            worker = await pool.load(package(manifest=amplified(schema)), local=LOCAL, peers=[PEER])
            session = await worker.open("client")
            await session.handle(Opened())
            try:
                await session.handle(Call(call="1", operation="ask", arguments={"code": code}))
            except TreatyError as error:
                return error.code
            finally:
                await worker.close()
            return "done"

        watching = asyncio.create_task(lag.watch())
        attacks = [asyncio.create_task(attack(name)) for name in HOSTILE]
        answers = 0
        while not all(task.done() for task in attacks):
            answers += 1
            assert await honest.run(f"value = {answers}") == answers
        watching.cancel()
        codes = dict(zip(HOSTILE, await asyncio.gather(*attacks), strict=True))
        effects = await honest.effects("value = 'still here'")
    assert isinstance(effects[-1], Return)
    assert effects[-1].value == "still here"
    print(f"{answers} honest answers beside {codes}; longest without a tick: {lag.most * 1000:.0f} ms of processor time")
    assert set(codes.values()) <= {"handler.failed", "sandbox.limit"}
    assert "done" not in codes.values()
    assert {codes[f"many: {name}"] for name in MANY} == {"handler.failed"}
    assert answers > len(HOSTILE)
    assert lag.most < SECONDS
