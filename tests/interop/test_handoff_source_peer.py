"""The code that the source of handoff prints, unchanged, as a foreign peer: its models, its sender and its receiver.

`tests/vectors/handoff/source-*.txt` has the lines of the source; only their indentation, which it does not print, is restored.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import time
import uuid
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pydantic.v1
import pytest
from handoffs import Inbox, World, until

from treaty_handler import Invoke, Opened, Received, Result, Send
from treaty_handoff import Escalation, HandoffAgent, Journal, Kind, Outcome, RequestInformation
from treaty_handoff.handler import handler
from treaty_handoff.http import listen
from treaty_handoff.messages import accept, encode

PRINTED = Path(__file__).parents[1] / "vectors" / "handoff"
DESK, PEER = "customer_service_agent_001", "did:example:source"
DONE = Outcome(
    done=("DIAGNOSE_ROOT_CAUSE", "COMMUNICATE_SOLUTION", "COMMUNICATE_SOLUTION_TO_CUSTOMER"),
    criteria_met=True,
    information={"user_preferences": {"language": "en"}},
)


class Time:
    """The source's receiver pretends to work, which takes no time here."""

    @staticmethod
    def sleep(_: float) -> None:
        return


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def source(*names: str, **value: Any) -> dict[str, Any]:
    """Run printed code with the Pydantic that it was written for. Returns its names."""

    def imported(name: str, *arguments: Any) -> Any:
        return pydantic.v1 if name == "pydantic" else __import__(name, *arguments)

    own = {"__import__": imported, "print": lambda *_: None, **value}
    space: dict[str, Any] = {
        "__name__": "__main__",
        "ValidationError": pydantic.v1.ValidationError,
        "time": Time,
        "__builtins__": {**vars(builtins), **own},
    }
    for name in ("models", *names):
        exec(compile((PRINTED / f"source-{name}.txt").read_text(encoding="utf-8"), name, "exec", dont_inherit=True), space)
    return space


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return source()


@pytest.fixture(params=["escalation_message", "request_info_message"])
def written(request: pytest.FixtureRequest, models: dict[str, Any]) -> bytes:
    """A message of the source's main program, as its code writes it."""
    return models[request.param].json(indent=2).encode()  # type: ignore[no-any-return]


@pytest.fixture
async def agent(here: World) -> AsyncIterator[HandoffAgent]:
    """An agent with the names that the source addresses."""
    names = ("technical_support_agent_pool", "user_profile_agent_001")
    async with Journal.open(here.url, names[0], seal=here.seal) as journal:
        yield HandoffAgent(names[0], journal, await here.broker(), groups=names[1:])


def is_read(message: Any, written: bytes) -> bool:
    """Whether a message has all that the source's code wrote: its times are the same moments, and null is absent."""

    def plain(value: Any) -> Any:
        match value:
            case dict():
                return {name: plain(item) for name, item in value.items() if item is not None}
            case list():
                return [plain(item) for item in value]
            case str() if value[:4].isdigit() and "T" in value:
                return datetime.fromisoformat(value.removesuffix("Z")).replace(microsecond=0)
        return value

    return bool(plain(message) == plain(json.loads(written)))


async def test_004_20_and_38_messages_of_the_source_work_over_http(agent: HandoffAgent, written: bytes) -> None:
    inbox = Inbox(agent, outcome=DONE)
    async with listen(agent, "127.0.0.1", 0) as port, httpx.AsyncClient() as client:
        first, again = [await client.post(f"http://127.0.0.1:{port}/handoffs", content=written) for _ in range(2)]
    assert first.status_code == again.status_code == 200 and first.json() == again.json()
    (message,) = inbox.messages
    assert is_read(message, written)
    (answer,) = first.json()["handoffs"]
    data = answer["handoff"]["payload"]["data"]
    assert data["in_reply_to"] == message["metadata"]["message_id"]
    assert data.get("status") == "COMPLETED" or data["missing_keys"] == ["account_status"]


async def test_004_20_and_22_messages_of_the_source_work_from_a_queue(here: World, agent: HandoffAgent, written: bytes) -> None:
    inbox, queue = Inbox(agent, outcome=DONE), json.loads(written)["metadata"]["recipient_id"]
    assert here.seal is not None
    await (await here.broker()).publish(queue, here.seal.close(written, f"queue/{queue}"), 3)
    await here.run(agent)
    assert is_read((await inbox.wait())[0], written)
    await until(lambda: agent.metrics.total("completed") == 1)


def test_004_20_messages_of_the_source_work_in_a_session(models: dict[str, Any], written: bytes) -> None:
    session = handler.open("receiver", {"peer": PEER, "seed": "0" * 32})
    at = round(time.time() * 1000)
    session.handle(Opened(at=at))
    effects = session.handle(Received(peer=PEER, data=written, at=at))
    (invoked,) = [effect for effect in effects if isinstance(effect, Invoke)]
    assert is_read(invoked.arguments["message"], written)
    value = {**DONE.value(), "criteria_met": True}
    del value["result"]
    ended = session.handle(Result(call=invoked.call, value=value, at=at))
    # The source's models read the receipt, and the answer.
    for effect in (*effects, *ended):
        if isinstance(effect, Send):
            read = models["HandoffMessage"].parse_raw(effect.data)
            assert read.payload.data["in_reply_to"] == json.loads(written)["metadata"]["message_id"]


async def test_004_19_the_sender_of_the_source_escalates(agent: HandoffAgent) -> None:
    inbox, posted = Inbox(agent, outcome=DONE), list[httpx.Response]()

    class Producer:
        """A producer whose topics are behind HTTP."""

        def __init__(self, port: int) -> None:
            self.port = port

        def send(self, topic: str, message: str) -> None:
            posted.append(httpx.post(f"http://127.0.0.1:{self.port}/handoffs", content=message))

    async with listen(agent, "127.0.0.1", 0) as port:
        sender = source("sender")["CustomerServiceAgent"](DESK)
        sender.message_producer = Producer(port)
        customer = {"name": "Alice Smith", "email": "[email protected]", "phone": "123-456-7890"}
        await asyncio.to_thread(sender.handle_customer_request, customer, "My home network is not working at all.")
    assert [answer.status_code for answer in posted] == [200]
    (message,) = inbox.messages
    assert message["metadata"]["task_id"] == str(sender.current_task_id)
    assert Escalation.read(message["payload"]["data"]).customer_info.contact_number == "123-456-7890"


@pytest.mark.parametrize("kind", [Kind.ESCALATION, Kind.REQUEST_INFORMATION, Kind.TASK_TRANSFER])
def test_004_20_the_receiver_of_the_source_works_on_our_messages(here: World, kind: Kind) -> None:
    printed: list[str] = []
    space = source("receiver", print=printed.append)
    agent, task = space["TechnicalSupportAgent"]("technical_support_agent_001"), str(uuid.uuid4())
    parts = {"task": task, "flow": str(uuid.uuid4()), "lifetime": timedelta(hours=1), "summary": "It drops."}
    message = here.message(kind, "desk", "support", **parts)
    agent.process_handoff_message(encode(message).decode())
    done = {Kind.ESCALATION: "Completed diagnosis for", Kind.REQUEST_INFORMATION: "Processed info request for"}
    assert agent.task_queue == ([f"{done[kind]} {task}"] if kind in done else [])
    assert kind in done or f"Unhandled handoff type: HandoffType.TASK_TRANSFER. Task {task}" in "\n".join(printed)
    # Its models write what they read, and we read it again.
    assert accept(json.loads(space["HandoffMessage"].parse_raw(encode(message)).json())) == message


def test_004_19_typed_data_read_those_of_the_source(models: dict[str, Any]) -> None:
    message = accept(json.loads(models["request_info_message"].json()))
    assert RequestInformation.read(message["payload"]["data"]).requested_info_keys == ("user_preferences", "account_status")
