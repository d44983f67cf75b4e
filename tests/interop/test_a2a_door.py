"""The official client of A2A uses protocols that it never heard of: it sends, streams, cancels, and reads errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.helpers.proto_helpers import get_data_parts, new_data_part, new_text_part
from a2a.server.context import ServerCallContext
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import TaskNotCancelableError, TaskNotFoundError
from google.protobuf.json_format import MessageToDict
from ports import free_port

from treaty_a2a import A2A, operations
from treaty_a2a.door import MAX_MESSAGE
from treaty_agent import Agent, Identity, LocalProtocols, Policy, StaticDocument, current_call
from treaty_consensus.errors import Refused
from treaty_io.identity import ClaimedPeer

EXAMPLES = Path(__file__).parents[2] / "examples"
PROTOCOLS = LocalProtocols([EXAMPLES / "greeting", EXAMPLES / "appointment"])
GREETING, APPOINTMENT = PROTOCOLS.uri("greeting"), PROTOCOLS.uri("appointment")

PROFILE = StaticDocument("application/json", b'{"ucp": {}}', "public, max-age=300")
DOCUMENTS = {"/.well-known/ucp": PROFILE, "/.well-known/agent-card.json": PROFILE}


class Office:
    """An agent behind A2A, and what its functions saw. `open`: its streams that run."""

    def __init__(self, home: Path) -> None:
        self.peers, self.open = list[object](), 0
        self.base, self.http = "", httpx.AsyncClient(timeout=30)
        self.agent = Agent(Identity.create(), PROTOCOLS, Policy(), home=home)
        self.agent.provides(GREETING)(self.greet)
        for function in (self.find, self.book, self.cancel):
            self.agent.provides(APPOINTMENT)(function)

    async def greet(self, name: str) -> str:
        call = current_call()
        assert call is not None
        self.peers.append(call.peer)
        return f"Hello, {name}!"

    async def find(self, day: str) -> AsyncIterator[dict[str, Any]]:
        self.open += 1
        try:
            for hour in range(9, 17):
                yield {"start": f"{day}T{hour:02}:00", "minutes": 30}
                if day == "2030-05-03":
                    await asyncio.sleep(3600)
        finally:
            self.open -= 1

    async def book(self, start: str, name: str) -> str:
        return f"{name} at {start}"

    async def cancel(self, **booking: Any) -> None: ...

    async def call(self, method: str, params: object, **headers: str) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return await self.http.post(f"{self.base}/a2a", json=body, headers={"A2A-Version": "1.0"} | headers)


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    made, port = Office(tmp_path), free_port()
    made.base = f"http://127.0.0.1:{port}"
    public, doors = [f"ws://127.0.0.1:{port}"], [A2A(made.agent)]
    async with made.http, made.agent, made.agent.listen("127.0.0.1", port, public=public, doors=doors, documents=DOCUMENTS):
        yield made


async def client_of(office: Office, *, streaming: bool = True) -> Client:
    """The client that the SDK makes of the agent's card."""
    config = ClientConfig(httpx_client=office.http, streaming=streaming)
    return await ClientFactory(config).create_from_url(office.base)


def message(part: object, *extensions: str) -> SendMessageRequest:
    parts = [part if isinstance(part, Part) else new_data_part(part)]
    return SendMessageRequest(message=Message(message_id="m1", role=Role.ROLE_USER, parts=parts, extensions=extensions))


def greeting(name: object = "Ada", *extensions: str) -> SendMessageRequest:
    return message({"operation": "greet", "arguments": {"name": name}}, *extensions)


def finding(day: str) -> SendMessageRequest:
    return message({"operation": "find", "arguments": {"day": day}})


async def test_the_sdks_client_sends_and_the_data_passes_both_handlers(office: Office) -> None:
    client = await client_of(office)
    for request in (greeting(), greeting("Ada", GREETING)):
        (answer,) = [answer async for answer in client.send_message(request)]
        assert get_data_parts(answer.message.parts) == ["Hello, Ada!"]
        assert list(answer.message.extensions) == [GREETING]
    assert len({*office.peers}) == 1
    assert isinstance(office.peers[0], ClaimedPeer), "A2A proves nobody"
    assert office.peers[0].did.startswith("did:key:") and office.peers[0].did != office.agent.did


async def test_activated_extensions_are_repeated_in_their_version(office: Office) -> None:
    extensions = f"{GREETING}, {GREETING[:-3]}9.9, https://example.com/other"
    params = MessageToDict(greeting())
    answer = await office.call("SendMessage", params, **{"A2A-Extensions": extensions})
    assert answer.headers["A2A-Extensions"] == GREETING
    answer = await office.call("SendMessage", params)
    assert "A2A-Extensions" not in answer.headers
    assert answer.json()["result"]["message"]["parts"] == [{"data": "Hello, Ada!"}]


async def test_a_stream_is_a_task_and_its_items_are_artifacts(office: Office) -> None:
    client = await client_of(office)
    answers = [answer async for answer in client.send_message(finding("2030-05-02"))]
    items = [get_data_parts(each.artifact_update.artifact.parts) for each in answers if each.HasField("artifact_update")]
    assert [item["start"] for (item,) in items] == [f"2030-05-02T{hour:02}:00" for hour in range(9, 17)]
    assert answers[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    task = await client.get_task(GetTaskRequest(id=answers[-1].status_update.task_id))
    assert (task.status.state, len(task.artifacts)) == (TaskState.TASK_STATE_COMPLETED, 8)
    (waited,) = [answer async for answer in (await client_of(office, streaming=False)).send_message(finding("2030-05-02"))]
    assert (waited.task.status.state, len(waited.task.artifacts)) == (TaskState.TASK_STATE_COMPLETED, 8)
    assert office.open == 0


async def test_a_cancellation_ends_the_function(office: Office) -> None:
    client = await client_of(office)
    answers = client.send_message(finding("2030-05-03"))
    begun = await anext(answers)
    while not (await anext(answers)).HasField("artifact_update"):
        pass
    assert office.open == 1
    task = await client.cancel_task(CancelTaskRequest(id=begun.task.id))
    assert task.status.state == TaskState.TASK_STATE_CANCELED
    async with asyncio.timeout(20):
        while office.open:  # noqa: ASYNC110  # the office has no event for a test
            await asyncio.sleep(0.01)
    with pytest.raises(TaskNotCancelableError):
        await client.cancel_task(CancelTaskRequest(id=begun.task.id))
    with pytest.raises(TaskNotFoundError):
        await client.cancel_task(CancelTaskRequest(id="other"))


WRONG: list[tuple[object, int, str]] = [
    (new_text_part("Please greet Ada."), -32005, "Operations: greet"),
    ({"operation": "greet", "arguments": {"name": 7}}, -32602, "$.name"),
    ({"operation": "greet", "arguments": []}, -32602, "The data of a message"),
    ({"operation": "greet", "arguments": {}, "other": 1}, -32602, "The data of a message"),
    ({"operation": "\x1b[2J" + "x" * 500, "arguments": {}}, -32602, "There is no operation"),
    (7, -32602, "The data of a message"),
]


@pytest.mark.parametrize(("part", "code", "words"), WRONG)
async def test_a_wrong_message_gets_its_code_and_reaches_no_function(office: Office, part: object, code: int, words: str) -> None:
    answer = (await office.call("SendMessage", MessageToDict(message(part)))).json()
    assert (answer["error"]["code"], words in answer["error"]["message"]) == (code, True)
    info, *bad_request = answer["error"]["data"]
    assert (info["@type"], info["domain"]) == ("type.googleapis.com/google.rpc.ErrorInfo", "a2a-protocol.org")
    assert [each["@type"] for each in bad_request] == ["type.googleapis.com/google.rpc.BadRequest"] * (code == -32602)
    assert "\x1b" not in str(answer)
    assert (office.peers, (await office.call("ListTasks", {})).json()["result"]["tasks"]) == ([], [])


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("GetExtendedAgentCard", {}, -32004),
        ("CreateTaskPushNotificationConfig", {"taskId": "1", "url": "https://example.com"}, -32003),
        ("GetTaskPushNotificationConfig", {"taskId": "1", "id": "1"}, -32003),
        ("GetTask", {"id": "other"}, -32001),
        ("SubscribeToTask", {"id": "other"}, -32001),
        ("Other", {}, -32601),
    ],
)
async def test_each_method_has_its_code(office: Office, method: str, params: object, code: int) -> None:
    assert (await office.call(method, params)).json()["error"]["code"] == code


async def test_the_wire_of_0_3_is_the_sdks_own(office: Office) -> None:
    data = {"operation": "greet", "arguments": {"name": "Ada"}}
    old = {"kind": "message", "messageId": "1", "role": "user", "parts": [{"kind": "data", "data": data}]}
    answer = (await office.call("message/send", {"message": old}, **{"A2A-Version": ""})).json()
    assert answer["result"]["parts"][0]["data"] == {"value": "Hello, Ada!"}
    answer = (await office.call("SendMessage", MessageToDict(greeting()), **{"A2A-Version": ""})).json()
    assert answer["error"]["code"] == -32009


async def test_the_card_names_the_door_and_its_skills_are_operations(office: Office) -> None:
    card = (await office.http.get(f"{office.base}/.well-known/agent-card.json")).json()
    door = {"url": f"{office.base}/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    assert card["supportedInterfaces"][1:] == [door]
    assert [skill["name"] for skill in card["skills"]] == ["greet", "find", "book", "cancel"]
    assert "securityRequirements" not in card


async def test_a_document_of_the_owner_is_served_beside_the_agents_own(office: Office) -> None:
    answer = await office.http.get(f"{office.base}/.well-known/ucp")
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, PROFILE.body, "application/json")
    assert (answer.headers["cache-control"], answer.headers["etag"]) == ("public, max-age=300", PROFILE.etag)
    again = await office.http.get(f"{office.base}/.well-known/ucp", headers={"If-None-Match": PROFILE.etag})
    assert (again.status_code, again.content) == (304, b"")


# Strangers


@pytest.mark.threat(401)
async def test_web_pages_and_large_bodies_are_refused_unread(office: Office) -> None:
    answer = await office.call("SendMessage", MessageToDict(greeting()), Origin="https://evil.example")
    assert (answer.status_code, answer.json()["code"]) == (403, "connection.origin")
    answer = await office.http.post(f"{office.base}/a2a", content=b"[" * (MAX_MESSAGE + 1))
    assert (answer.status_code, answer.json()["code"]) == (413, "connection.too-large")
    answer = await office.http.post(f"{office.base}/a2a", content=b"[" * MAX_MESSAGE, headers={"A2A-Version": "1.0"})
    assert answer.json()["error"]["code"] == -32603
    assert (await office.http.get(f"{office.base}/a2a")).status_code == 405
    assert office.peers == []


@pytest.mark.threat(401)
async def test_an_agent_that_wants_proofs_has_no_door(tmp_path: Path) -> None:
    async with Agent(Identity.create(), PROTOCOLS, Policy(encryption="required"), home=tmp_path) as agent:
        with pytest.raises(Refused) as refused:
            A2A(agent)
        assert refused.value.code == "agent.settings"


@pytest.mark.threat(402)
async def test_a_network_sees_and_loses_its_own_tasks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MAX_TASKS_BYTES", 10 * operations.TASK_OVERHEAD)
    tasks = operations.KeptTasks()
    victim, flood = (ServerCallContext(state={operations.ADDRESS: f"{host}:1"}) for host in ("192.0.2.1", "198.51.100.1"))
    await tasks.save(Task(id="victim"), victim)
    assert await tasks.get("victim", flood) is None
    assert not (await tasks.list(ListTasksRequest(), flood)).tasks
    for number in range(100):
        await tasks.save(Task(id=f"flood {number}"), flood)
    assert await tasks.get("victim", victim) is not None
    assert [task.id for task in (await tasks.list(ListTasksRequest(page_size=50), flood)).tasks].count("flood 99") == 1
    assert len((await tasks.list(ListTasksRequest(page_size=50), flood)).tasks) < 5


@pytest.mark.threat(402)
async def test_a_stream_that_goes_on_fails_at_the_bound_of_a_task(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MAX_TASK", 2 * operations.TASK_OVERHEAD // 8)
    client = await client_of(office, streaming=False)
    (answer,) = [answer async for answer in client.send_message(finding("2030-05-02"))]
    assert (answer.task.status.state, len(answer.task.artifacts)) == (TaskState.TASK_STATE_FAILED, 1)
    (about,) = get_data_parts(answer.task.status.message.parts)
    assert about["code"] == "session.outbox-full"
    async with asyncio.timeout(20):
        while office.open:  # noqa: ASYNC110  # the office has no event for a test
            await asyncio.sleep(0.01)
