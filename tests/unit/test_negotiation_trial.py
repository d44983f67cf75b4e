"""Trying a handler that a model wrote: three right ones pass, and each way of being wrong is found and told."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from sandboxes import descendants, gone
from scripted_model import load_scripts

from treaty_agent.negotiators.documents import NegotiatedDocument
from treaty_agent.negotiators.handler_check import try_handler
from treaty_agent.negotiators.package import Written, build, project_files, read_written
from treaty_agent.negotiators.prompts import system
from treaty_agent.negotiators.test_cases import CaseMessage, Success, TestCase
from treaty_consensus.errors import TreatyError
from treaty_handler import Failure, decode_json
from treaty_sandbox import SandboxLimits, SandboxPool, parse_vector

SCRIPTS = {script.topic.split("/")[1]: script for script in load_scripts()}
LIMITS = SandboxLimits(event=1.0, load=2.0)


@pytest.fixture
async def pool() -> AsyncIterator[SandboxPool]:
    before = descendants()
    async with SandboxPool(size=0, limits=LIMITS) as pool:
        yield pool
    assert gone(descendants() - before)


def written(name: str) -> Written:
    return read_written(SCRIPTS[name].answers["handler"])


async def tried(pool: SandboxPool, name: str, handler: Written) -> dict[str, bytes]:
    document = NegotiatedDocument(SCRIPTS[name].document, "A title", SCRIPTS[name].topic, "")
    files = project_files(document, handler, topic=document.topic, licence="Apache-2.0", vectors={})
    return await try_handler(pool, await build(files, document.uri), handler.cases)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("product-info", {"requester", "provider"}),
        ("train-tickets", {"traveller", "railway"}),
        ("event-counter", {"sensor", "meter"}),
    ],
)
async def test_a_right_handler_passes_and_gives_vectors(pool: SandboxPool, name: str, roles: set[str]) -> None:
    vectors = await tried(pool, name, written(name))
    assert set(vectors) == {f"{role}.json" for role in roles}
    for filename, data in vectors.items():
        vector = parse_vector(filename, data)
        assert vector.roles == (filename.removesuffix(".json"),)
        assert len(vector.steps) == 2 + 2 * len(written(name).cases)


async def test_the_example_that_a_model_is_shown_is_right(pool: SandboxPool) -> None:
    text = system("handler")
    (manifest,) = re.findall(r"^manifest:\n\n```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (source,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    cases = [
        _greeting("m1", "Ada", Success("Hello, Ada!"), {"greeting": "Hello, Ada!"}),
        _greeting("m2", "Bob", Failure(code=404, message="Away."), {"error": {"code": 404, "message": "Away."}}),
    ]
    example = Written("Greet.", decode_json(manifest.encode()), {"__init__.py": source}, tuple(cases))
    document = NegotiatedDocument("# Greeting\n", "Greeting", "", "")
    files = project_files(document, example, topic="", licence="MIT", vectors={})
    assert set(await try_handler(pool, await build(files, document.uri), cases)) == {"guest.json", "host.json"}


def _greeting(drawn: str, name: str, outcome: Success | Failure, answer: dict[str, Any]) -> TestCase:
    request, response = CaseMessage("json", {"id": drawn, "name": name}), CaseMessage("json", {"id": drawn, **answer})
    return TestCase(f"{name} comes", "greet", {"name": name}, outcome, request, response, "It happens.")


MISTAKES = [
    # the caller's request, its answer, the other side's invocation, its response
    ("word, drawn, *(str", "word.lower(), drawn, *(str", "expected the request SEARCH req001"),
    ("value=decode_json(found[2].encode())", "value=[]", 'expected the outcome {"value": [{"trip"'),
    (
        'arguments["seats"] = int(arguments["seats"])',
        'arguments["seats"] = 1',
        'expected bookTrip with {"trip": "EC-173", "seats": 2}',
    ),
    ('f"OK {self.open.pop(call)} {encode', 'f"Ok {self.open.pop(call)} {encode', "expected the response OK req001"),
    # ids from elsewhere, a constant one, one that is not echoed
    ("derive_id(self.seed, self.made)", "derive_id('0', self.made)", "ids may differ only where they are derive_id"),
    ("return [Invoke(", "return [Audit(text='!'), Invoke(", ""),
    # what the timers and the loss of the peer do
    ("[SetTimer(name=drawn, seconds=SECONDS), Send", "[Send", "expected one Return once its timers ran out"),
    ("for call in self.open.values()]", "for call in self.nobody]", "AttributeError"),
    # state that a snapshot loses
    ("return encode_json([self.made, self.open])", "return encode_json([self.made, {}])", "snapshot"),
    ("return encode_json([self.made, self.open])", "return 5", "broke its interface"),
    # foreign bytes
    ('except ValueError:\n            return ""', 'except KeyError:\n            return ""', "The handler raised"),
    (
        '400 This is no request.")] if named else [Audit(text="Ignored a line.")]',
        '400 This is no request.")]',
        "The role railway",
    ),
    # loading
    ("from treaty_handler import (", "import numpy\nfrom treaty_handler import (", "No module named 'numpy'"),
    ("handler = Tickets()", "tickets = Tickets()", "The handler raised"),
    ("handler = Tickets()", "handler = Tickets(", "does not compile"),
    ("handler = Tickets()", "while True:\n    pass", "sandbox."),
    ("handler = Tickets()", "handler = Tickets()\nblob = bytearray(10**9)", "used up its memory"),
    # events
    ("found = OK.fullmatch(line) or", "while line: pass\n        found = OK.fullmatch(line) or", "took longer"),
    ("if found is None or found[1] not in self.open:", "if found is None:", "The handler raised"),
    ("def open(self, role", "def begin(self, role", "The handler raised"),
    # doors
    ("SECONDS = 20", 'import socket\nsocket.create_connection(("127.0.0.1", 1))\nSECONDS = 20', "The handler raised"),
    ("SECONDS = 20", 'import subprocess\nsubprocess.run(["id"])\nSECONDS = 20', "The handler raised"),
    ("SECONDS = 20", 'open("/etc/passwd")\nSECONDS = 20', "The handler raised"),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("right", "wrong", "phrase"), MISTAKES)
async def test_a_mistake_is_found(pool: SandboxPool, right: str, wrong: str, phrase: str) -> None:
    handler = written("train-tickets")
    source = handler.sources["__init__.py"]
    assert source.count(right) >= 1
    spoilt = replace(handler, sources={"__init__.py": source.replace(right, wrong)})
    if not phrase:  # notes are nobody's business
        assert await tried(pool, "train-tickets", spoilt)
        return
    with pytest.raises(TreatyError) as caught:
        await tried(pool, "train-tickets", spoilt)
    assert phrase in f"{caught.value.code} {caught.value.message}"


@pytest.mark.parametrize(
    ("role", "change"),
    [
        ("traveller", {"invokes": ["bookTrip"]}),
        ("traveller", {"calls": ["searchTrips", "bookTrip"]}),
        ("railway", {"invokes": []}),
    ],
)
async def test_roles_of_another_shape(pool: SandboxPool, role: str, change: dict[str, Any]) -> None:
    handler = written("train-tickets")
    roles = {**handler.manifest["roles"], role: {**handler.manifest["roles"][role], **change}}
    with pytest.raises(TreatyError) as caught:
        await tried(pool, "train-tickets", replace(handler, manifest={**handler.manifest, "roles": roles}))
    assert caught.value.code == "negotiation.code"


@pytest.mark.parametrize("kind", ["stream", "event"])
async def test_an_operation_that_is_no_request(pool: SandboxPool, kind: str) -> None:
    handler = written("train-tickets")
    name, operation = next(iter(handler.manifest["operations"].items()))
    other = {**operation, "kind": kind} if kind == "stream" else {"kind": kind, "arguments": operation["arguments"]}
    operations = {**handler.manifest["operations"], name: other}
    with pytest.raises(TreatyError) as caught:
        await tried(pool, "train-tickets", replace(handler, manifest={**handler.manifest, "operations": operations}))
    assert caught.value.code == "negotiation.code"


async def test_a_state_that_is_kept_wrongly(pool: SandboxPool) -> None:
    handler = written("event-counter")
    source = handler.sources["__init__.py"].replace("        self.last = number\n", "")
    with pytest.raises(TreatyError) as caught:
        await tried(pool, "event-counter", replace(handler, sources={"__init__.py": source}))
    assert caught.value.code == "negotiation.code"
    assert "Test case 2 (Five more), role meter" in caught.value.message


async def test_two_roles_agree_with_the_cases_but_not_together(pool: SandboxPool) -> None:
    handler = written("train-tickets")
    source = handler.sources["__init__.py"]
    picky = source.replace(
        "        if found is None:\n            named", '        if found is None or "req0" not in line:\n            named'
    )
    assert picky != source
    with pytest.raises(TreatyError) as caught:
        await tried(pool, "train-tickets", replace(handler, sources={"__init__.py": picky}))
    assert "together with the other" in caught.value.message


ECHOES = [
    (
        "        found = OK.fullmatch(line)",
        '        if line == "PONG":\n            return [Send(peer=self.peer, data=b"PING")] * 2\n',
    ),
    ("        found = REQUEST.fullmatch(line)", '        if self.seed[0] == "1":\n            return [self.say("PONG")] * 2\n'),
]


@pytest.mark.threat(111)
async def test_two_roles_that_multiply_messages_are_stopped(pool: SandboxPool) -> None:
    """Each is right by itself; together they would send 2^64 messages for one call."""
    handler = written("train-tickets")
    source = handler.sources["__init__.py"]
    for place, echo in ECHOES:
        assert source.count(place) == 1
        source = source.replace(place, echo + place)
    with pytest.raises(TreatyError, match="after at most 64 messages of both roles") as caught:
        await tried(pool, "train-tickets", replace(handler, sources={"__init__.py": source}))
    assert caught.value.code == "negotiation.code"
    assert "role traveller together with the other" in caught.value.message


async def test_a_role_that_asks_twice_for_a_message_is_detected(pool: SandboxPool) -> None:
    handler = written("train-tickets")
    source = handler.sources["__init__.py"]
    once = "        return [Invoke(call=str(self.made), operation=operation, arguments=arguments)]\n"
    assert source.count(once) == 1
    twice = once.replace(
        "        return [",
        '        return [*([Invoke(call="x", operation=operation, arguments=arguments)] * (self.seed[0] == "1")), ',
    )
    with pytest.raises(TreatyError, match="expected one Invoke because of a message") as caught:
        await tried(pool, "train-tickets", replace(handler, sources={"__init__.py": source.replace(once, twice)}))
    assert "role railway together with the other" in caught.value.message
