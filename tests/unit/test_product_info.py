"""The first-party protocol: its transcripts, its document, its two corrections, and a whole conversation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from sandboxed import sandboxed_package, sandboxed_product_info

from treaty_client.protocols.project import Project, load_project
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import HandlerPackage, read_wheel
from treaty_consensus.protocol import PART_BEGIN, PART_END
from treaty_handler import (
    Audit,
    Call,
    Effect,
    End,
    Failure,
    Invoke,
    Opened,
    PeerLost,
    Received,
    Result,
    Return,
    Send,
    SetTimer,
    Timer,
    Value,
    decode_json,
    encode_json,
)
from treaty_sandbox import Isolation, SandboxPool, run_vectors
from treaty_sandbox.interface import LoadedSession

FOLDER = Path(__file__).parents[2] / "protocols" / "product-info"
BUYER, SHOP = "did:wba:buyer.example", "did:wba:shop.example"
LAPTOP = {
    "productId": "P12345",
    "productName": "高性能笔记本电脑",
    "productDescription": "配备最新处理器和大容量内存的高性能笔记本电脑。",
    "price": 1299.99,
    "currency": "USD",
}

version = pytest.mark.parametrize("version", ["1.0", "1.1"])


Load = Callable[[str], tuple[Project, HandlerPackage]]


@pytest.fixture(params=["forms", "code"])
def load(request: pytest.FixtureRequest) -> Load:
    """The protocol as it is published, and the same protocol with a handler that has code: both pass all tests."""

    def loaded(version: str) -> tuple[Project, HandlerPackage]:
        if request.param == "code":
            return sandboxed_product_info(version), sandboxed_package(version)
        project = load_project(FOLDER / version)
        uri = f"https://registry.example/protocols/example.com/product-info/{version}"
        return project, read_wheel(*project.build_wheel(uri))

    return loaded


@pytest.mark.sample(3)
@version
@pytest.mark.parametrize("isolation", ["bubblewrap", "none"])
async def test_vectors(load: Load, version: str, isolation: Isolation) -> None:
    project, package = load(version)
    assert len(project.vectors) >= 11
    async with SandboxPool(size=0, levels=(isolation,)) as pool:
        assert await run_vectors(pool, package, project.vectors) == []


def prose(version: str) -> str:
    """A document without its generated part."""
    before, _, generated = (FOLDER / version / "document.md").read_text().partition(PART_BEGIN)
    return before + generated.partition(PART_END)[2]


def schemas(version: str) -> dict[str, Any]:
    """The JSON Schemas of a document, by title."""
    text = prose(version)
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    return {block["title"]: block for block in blocks if "$schema" in block}


@version
def test_the_documents_own_test_cases_satisfy_its_schemas(version: str) -> None:
    text = prose(version)
    messages = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    messages = [message for message in messages if "messageId" in message]
    assert len(messages) == {"1.0": 4, "1.1": 6}[version]
    for message in messages:
        title = "ProductInfoRequest" if message["type"] == "REQUEST" else "ProductInfoResponse"
        jsonschema_rs.Draft202012Validator(schemas(version)[title]).validate(message)


@version
def test_correction_1_no_product_is_null_unless_the_code_is_200(version: str) -> None:
    valid = jsonschema_rs.Draft202012Validator(schemas(version)["ProductInfoResponse"]).is_valid
    response = {"messageId": "m", "type": "RESPONSE", "status": {"code": 404, "message": "产品未找到"}, "productInfo": None}
    assert valid(response)
    assert not valid({**response, "status": {"code": 200, "message": "OK"}})
    assert valid({**response, "status": {"code": 200, "message": "OK"}, "productInfo": LAPTOP})
    assert not valid({name: value for name, value in response.items() if name != "productInfo"})


@version
def test_correction_2_an_id_or_a_name(version: str) -> None:
    valid = jsonschema_rs.Draft202012Validator(schemas(version)["ProductInfoRequest"]).is_valid
    request = {"messageId": "m", "type": "REQUEST", "action": "getProductInfo"}
    assert valid({**request, "productId": "P1"})
    assert valid({**request, "productName": "lamp"})
    assert valid({**request, "productName": "lamp", "productId": "P1"})
    assert not valid(request)


@version
def test_document_and_manifest_agree(version: str) -> None:
    manifest = json.loads((FOLDER / version / "manifest.json").read_text())
    operation = manifest["operations"]["getProductInfo"]
    product = dict(schemas(version)["ProductInfoResponse"]["properties"]["productInfo"])
    assert {**product, "type": "object"} == operation["result"]
    own_codes = {code for code in operation["errors"] if len(code) > 3}
    assert own_codes == ({"100001", "100002", "100003"} if version == "1.1" else set())
    text = (FOLDER / version / "document.md").read_text()
    assert all(code in text for code in own_codes)
    assert "within 15 seconds" in text
    assert operation["timeout"] == 15


@version
async def test_the_handlers_judgement_is_the_schemas(load: Load, version: str) -> None:
    """`validate` and the published schema say the same of a message and of what is left when any part of it is broken."""
    request = {"messageId": "m", "type": "REQUEST", "action": "getProductInfo", "productId": "P1", "productName": "x"}
    response = {"messageId": "m", "type": "RESPONSE", "status": {"code": 200, "message": "OK"}, "productInfo": LAPTOP}
    gone = {"messageId": "m", "type": "RESPONSE", "status": {"code": 410, "message": ""}, "productInfo": None}
    schemas_of, package = schemas(version), load(version)[1]
    async with SandboxPool(size=0, levels=("none",)) as pool:
        worker = await pool.load(package, local=BUYER, peers=[SHOP])
        for sender, title, message in (
            ("requester", "ProductInfoRequest", request),
            ("provider", "ProductInfoResponse", response),
            ("provider", "ProductInfoResponse", gone),
        ):
            valid = jsonschema_rs.Draft202012Validator(schemas_of[title]).is_valid
            assert await worker.validate(message, sender) == []
            for broken in breakages(message):
                issues = await worker.validate(broken, sender)
                # The schema leaves `type` and `action` to the text, which names the one word that each may be.
                is_valid = valid(broken) and isinstance(broken, dict) and broken["type"] == message["type"]
                is_valid = is_valid and broken.get("action") == message.get("action")
                # It leaves to the text too that a response with another code than 200 has no product. The forms say so.
                if is_valid and package.is_declarative and sender == "provider":
                    is_valid = (broken["status"]["code"] == 200) == (broken["productInfo"] is not None)
                assert (issues == []) == is_valid, (broken, issues)


def breakages(message: dict[str, Any]) -> list[Value]:
    """The message without each part, and with another kind of value in its place."""
    broken: list[Value] = [None, [], "text", {}]
    for name, value in message.items():
        rest = {key: item for key, item in message.items() if key != name}
        others: list[Value] = [None, 7, "x", [], {}, True, 1.5]
        broken += [rest, *({**rest, name: other} for other in others)]
        if isinstance(value, dict):
            broken += [{**rest, name: inner} for inner in breakages(value)]
    return broken


class Wire:
    """A requester and a provider in two workers, the effects of each carried to the other. Business logic is a function."""

    def __init__(self, sides: dict[str, LoadedSession], logic: Callable[[dict[str, Value]], Value]) -> None:
        self.sides = sides
        self.logic = logic
        self.returned: list[Return] = []
        self.timers: dict[str, float] = {}
        self.notes: list[str] = []

    async def deliver(self, side: str, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(peer=peer, data=data):
                    await self.deliver(peer, await self.sides[peer].handle(Received(peer=side, data=data)))
                case Invoke(call=call, arguments=arguments):
                    answer = self.logic(arguments)
                    failed = isinstance(answer, Failure)
                    result = Result(call=call, error=answer) if failed else Result(call=call, value=answer)
                    await self.deliver(side, await self.sides[side].handle(result))
                case Return():
                    self.returned.append(effect)
                case SetTimer(name=name, seconds=seconds):
                    self.timers.pop(name, None)
                    if seconds is not None:
                        self.timers[name] = seconds
                case Audit(text=text):
                    self.notes.append(text)

    async def call(self, call: str, **arguments: Value) -> Return:
        event = Call(call=call, operation="getProductInfo", arguments=arguments)
        await self.deliver(BUYER, await self.sides[BUYER].handle(event))
        return self.returned[-1]


def shop(arguments: dict[str, Value]) -> Value:
    if arguments.get("productId") == "P12345" or arguments.get("productName") == LAPTOP["productName"]:
        return LAPTOP
    return Failure(code=404, message="产品未找到")


async def open_wire(pool: SandboxPool, package: HandlerPackage, logic: Callable[[dict[str, Value]], Value]) -> Wire:
    sides: dict[str, LoadedSession] = {}
    for local, peer, role in ((BUYER, SHOP, "requester"), (SHOP, BUYER, "provider")):
        worker = await pool.load(package, local=local, peers=[peer])
        sides[local] = await worker.open(role)
        assert await sides[local].handle(Opened()) == []
    return Wire(sides, logic)


async def test_two_strangers_talk_through_two_sandboxes(load: Load) -> None:
    async with SandboxPool(size=2) as pool:
        wire = await open_wire(pool, load("1.0")[1], shop)
        assert await wire.call("1", productId="P12345") == Return(call="1", value=LAPTOP)
        assert await wire.call("2", productId="P99999") == Return(call="2", error=Failure(code=404, message="产品未找到"))
        assert await wire.call("3", productName=LAPTOP["productName"]) == Return(call="3", value=LAPTOP)
        assert wire.timers == {}
        with pytest.raises(TreatyError) as caught:
            await wire.call("4", product="P12345")
        assert caught.value.code == "operation.arguments"
        assert len(wire.returned) == 3


async def test_a_timeout_is_15_seconds_and_says_so(load: Load) -> None:
    async with SandboxPool(size=0, levels=("none",)) as pool:
        worker = await pool.load(load("1.0")[1], local=BUYER, peers=[SHOP])
        session = await worker.open("requester")
        await session.handle(Opened())
        timer, send = await session.handle(Call(call="1", operation="getProductInfo", arguments={"productId": "P1"}))
        assert isinstance(send, Send)
        assert isinstance(timer, SetTimer)
        assert (timer.name, timer.seconds) == (decode_json(send.data)["messageId"], 15.0)
        assert re.fullmatch(r"[0-9a-f]{16}", timer.name)
        [failed] = await session.handle(Timer(name=timer.name))
        assert isinstance(failed, Return)
        assert failed.error is not None
        assert failed.error.code == 504


@pytest.mark.sample(15)
@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[" * 5_000,
        b'{"a":' * 2_000,
        b'{"messageId":"ID","type":"RESPONSE","status":{"code":200,"message":"x"},"productInfo":{"price":1e999}}',
        b'{"messageId":"ID","type":"RESPONSE","status":{"code":9007199254740993,"message":"x"},"productInfo":null}',
        b'{"messageId":"ID","type":"RESPONSE","status":{"code":true,"message":"x"},"productInfo":null}',
        b'{"messageId":"ID","type":"RESPONSE","status":{"code":404,"message":"\\ud800"},"productInfo":null}',
        b'{"messageId":"ID","type":"RESPONSE","status":{"code":-1,"message":"x"},"productInfo":null}',
        b'{"messageId":{"a":1},"type":"RESPONSE"}',
        b'{"messageId":"ID","type":"REQUEST","action":"getProductInfo","productId":"P"}',
        encode_json(
            {"messageId": "ID", "status": {"code": 404, "message": "x" * 100_000}, "productInfo": None, "type": "RESPONSE"}
        ),
        encode_json({"messageId": "x" * 500_000, "type": "REQUEST", "action": "getProductInfo", "productId": 1}),
        encode_json(
            {
                "messageId": "ID",
                "type": "RESPONSE",
                "status": {"code": 200, "message": ""},
                "productInfo": {**LAPTOP, "price": 2**53 - 1, "x": [[[]]]},
            }
        ),
    ],
)
@pytest.mark.parametrize("role", ["requester", "provider"])
async def test_no_message_of_a_hostile_peer_ends_the_worker(load: Load, hostile: bytes, role: str) -> None:
    async with SandboxPool(size=0, levels=("none",)) as pool:
        worker = await pool.load(load("1.1")[1], local=BUYER, peers=[SHOP])
        session = await worker.open(role)
        await session.handle(Opened())
        data = hostile
        if role == "requester":
            call = Call(call="1", operation="getProductInfo", arguments={"productId": "P1"})
            _, send = await session.handle(call)
            assert isinstance(send, Send)
            data = hostile.replace(b"ID", decode_json(send.data)["messageId"].encode())
        effects = await session.handle(Received(peer=SHOP, data=data))
        assert effects
        assert worker.alive
        assert not any(isinstance(effect, End) for effect in effects)


async def test_a_flood_of_requests_is_answered_with_429(load: Load) -> None:
    async with SandboxPool(size=0, levels=("none",)) as pool:
        worker = await pool.load(load("1.0")[1], local=SHOP, peers=[BUYER])
        session = await worker.open("provider")
        await session.handle(Opened())
        for number in range(300):
            request = {"messageId": str(number), "type": "REQUEST", "action": "getProductInfo", "productId": "P"}
            [effect] = await session.handle(Received(peer=BUYER, data=encode_json(request)))
            if number < 256:
                assert effect == Invoke(call=str(number + 1), operation="getProductInfo", arguments={"productId": "P"})
            else:
                assert isinstance(effect, Send)
                assert decode_json(effect.data)["status"]["code"] == 429
        await session.handle(Result(call="7", value=LAPTOP))
        request = {"messageId": "again", "type": "REQUEST", "action": "getProductInfo", "productId": "P"}
        [effect] = await session.handle(Received(peer=BUYER, data=encode_json(request)))
        assert isinstance(effect, Invoke)


async def test_many_calls_at_once_and_a_lost_peer(load: Load) -> None:
    async with SandboxPool(size=0, levels=("none",)) as pool:
        worker = await pool.load(load("1.0")[1], local=BUYER, peers=[SHOP])
        session = await worker.open("requester")
        await session.handle(Opened())
        for number in range(1_024):
            call = Call(call=str(number), operation="getProductInfo", arguments={"productId": "P"})
            assert len(await session.handle(call)) == 2
        with pytest.raises(TreatyError) as caught:
            await session.handle(Call(call="more", operation="getProductInfo", arguments={"productId": "P"}))
        assert caught.value.code == "session.busy"
        effects = await session.handle(PeerLost(peer=SHOP))
        failed = [effect for effect in effects if isinstance(effect, Return)]
        assert [effect.call for effect in failed] == [str(number) for number in range(1_024)]
        assert effects[-1] == End(status="failed")
        assert session.ended


async def test_the_codes_of_1_1_are_unknown_to_1_0(load: Load) -> None:
    def sold_out(_: dict[str, Value]) -> Value:
        return Failure(code=100001, message="Out of stock")

    async with SandboxPool(size=0, levels=("none",)) as pool:
        newer = await open_wire(pool, load("1.1")[1], sold_out)
        assert await newer.call("1", productId="P") == Return(call="1", error=Failure(code=100001, message="Out of stock"))
        older = await open_wire(pool, load("1.0")[1], sold_out)
        with pytest.raises(TreatyError) as caught:
            await older.call("1", productId="P")
        assert caught.value.code == "operation.result"
