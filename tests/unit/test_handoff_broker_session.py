"""Agents that meet at a broker in one session: routing, groups, publish and subscribe, membership, and the loss of a member."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from handoffs import DATA, FOLDER

from treaty_agent import Agent, OperationError, Policy, Session
from treaty_agent.testing import Simulation, run
from treaty_handoff import Kind, Message, Priority, build

SECURE = Policy(encryption="required")
"""Members prove their DIDs: what waits is for proofs alone."""
TASK, NOTE, STATUS = Kind.TASK_TRANSFER, Kind.NOTIFICATION, Kind.STATUS_UPDATE


def message(kind: Kind, sender: str, recipient: str | list[str], **parts: Any) -> Message:
    parts = {"task": "task-1", "state": "OPEN", "now": datetime.now(UTC), **parts}
    return build(kind, parts.pop("data", DATA[kind]), sender=sender, recipient=recipient, **parts)


class Member:
    """An agent at the broker, and what it was given."""

    def __init__(self, name: str, agent: Agent) -> None:
        self.name, self.agent, self.messages = name, agent, list[Message]()
        self.may_work = asyncio.Event()
        self.may_work.set()
        self._news = asyncio.Event()

    async def handOff(self, message: Message) -> dict[str, Any]:  # noqa: N802
        await self.may_work.wait()
        self.messages.append(message)
        self._news.set()
        return {"status": "COMPLETED", "information": {"level": "gold"}}

    async def escalate(self, message: Message, target: str) -> dict[str, str]:
        return {"status": "ACCEPTED"}

    async def fallBack(self, message: Message, target: str) -> dict[str, str]:  # noqa: N802
        return {"status": "COMPLETED"}

    async def has(self, *kinds: str) -> list[Message]:
        """Wait until it was given messages of these kinds, in this order; a report is named by its status."""
        async with asyncio.timeout(120):
            while self.kinds != list(kinds):
                self._news.clear()
                await self._news.wait()
        return self.messages

    @property
    def kinds(self) -> list[str]:
        payloads = [entry["payload"] for entry in self.messages]
        return [payload["data"].get("status", payload["handoff_type"]) for payload in payloads]


class Meeting:
    """A broker and its members."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.uri = simulation, simulation.uri("handoff")
        self.broker = simulation.agent("broker.example", SECURE)
        self.broker.on_session(self.uri, role="broker")(self._nothing)

    async def _nothing(self, session: Session) -> None:
        """The handler does the work of a broker; its application may only set rules."""

    @property
    def shared(self) -> Any:
        return self.broker.shared(self.uri)

    async def until_away(self, name: str) -> None:
        """Wait until the broker knows that a member is away."""
        while name in [of["name"] for of in (await self.shared.call("readMembers"))["members"] if of["present"]]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    @asynccontextmanager
    async def join(self, name: str, *, domain: str = "", **attributes: Any) -> AsyncIterator[tuple[Member, Session]]:
        member = Member(name, self.simulation.agent(f"{domain or name}.example", SECURE))
        functions: list[Callable[..., Any]] = [member.handOff, member.escalate, member.fallBack]
        connecting = member.agent.connect("wss://broker.example", protocols=[self.uri], role="member", serving=functions)
        async with connecting as session:
            joining = message(NOTE, name, "broker", data={"event": "JOIN", "attributes": attributes})
            assert await session.call("handOff", message=joining) == {"status": "ACCEPTED"}
            yield member, session


def meeting(play: Callable[[Meeting], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Simulation([FOLDER]) as simulation:
            meeting = Meeting(simulation)
            async with simulation.serving(meeting.broker):
                await play(meeting)

    run(main())


@pytest.mark.threat(240)
def test_004_23_agents_hand_off_through_a_broker() -> None:
    async def play(broker: Meeting) -> None:
        async with broker.join("anna") as (anna, from_anna), broker.join("ben") as (ben, _), broker.join("eve") as (eve, _):
            task = message(TASK, "anna", "ben")
            assert await from_anna.call("handOff", message=task) == {"status": "ACCEPTED"}
            assert await ben.has("TASK_TRANSFER") == [task]
            (report,) = await anna.has("COMPLETED")
            assert report["payload"]["data"]["in_reply_to"] == task["metadata"]["message_id"]
            with pytest.raises(OperationError, match="carol"):
                await from_anna.call("handOff", message=message(TASK, "anna", "carol"))
            with pytest.raises(OperationError):
                await from_anna.call("handOff", message=message(TASK, "ben", "eve"))
            assert await from_anna.call("handOff", message=task) == {"status": "DUPLICATE"}
            both = message(NOTE, "anna", ["ben", "eve"])
            await from_anna.call("handOff", message=both)
            await ben.has("TASK_TRANSFER", "NOTIFICATION")
            assert await eve.has("NOTIFICATION") == [both]

    meeting(play)


def test_004_11_a_group_gets_messages_once_without_a_member() -> None:
    async def play(broker: Meeting) -> None:
        async with AsyncExitStack() as stack:
            anna, send = await stack.enter_async_context(broker.join("anna"))
            ben, _ = await stack.enter_async_context(broker.join("ben", groups=["pool"]))
            async with broker.join("cleo", groups=["pool"]) as (cleo, _):
                tasks = [message(TASK, "anna", "pool") for _ in range(4)]
                for task in tasks[:2]:
                    await send.call("handOff", message=task)
                await anna.has("COMPLETED", "COMPLETED")
                messages = [*ben.messages, *cleo.messages]
                assert sorted(entry["metadata"]["message_id"] for entry in messages) == sorted(
                    entry["metadata"]["message_id"] for entry in tasks[:2]
                )
            await broker.until_away("cleo")
            for task in tasks[2:]:
                await send.call("handOff", message=task)
            await anna.has(*["COMPLETED"] * 4)
            assert ben.messages[-2:] == tasks[2:]

    meeting(play)


def test_004_25_a_member_answers_a_question_to_its_group() -> None:
    async def play(broker: Meeting) -> None:
        async with broker.join("anna") as (anna, send), broker.join("ben", groups=["pool"]) as (ben, _):
            question = message(Kind.REQUEST_INFORMATION, "anna", "pool")
            await send.call("handOff", message=question)
            (answer,) = await anna.has("PROVIDE_INFORMATION")
            assert ben.messages == [question] and answer["metadata"]["sender_id"] == "pool"
            assert answer["payload"]["data"] == {
                "in_reply_to": question["metadata"]["message_id"],
                "information": {"level": "gold"},
                "missing_keys": [],
            }

    meeting(play)


@pytest.mark.threat(240)
def test_004_22_urgent_messages_reach_a_returning_member_first() -> None:
    async def play(broker: Meeting) -> None:
        async with broker.join("anna") as (_, send):
            async with broker.join("ben"):
                pass
            await broker.until_away("ben")
            order = [Priority.LOW, Priority.CRITICAL, Priority.MEDIUM]
            for priority in order:
                note = message(NOTE, "anna", "ben", priority=priority)
                assert await send.call("handOff", message=note) == {"status": "ACCEPTED"}
            # Another agent cannot take the name, and with it the messages.
            with pytest.raises(OperationError):
                async with broker.join("ben", domain="eve"):
                    pass
            async with broker.join("ben") as (ben, _):
                await ben.has(*["NOTIFICATION"] * 3)
                assert [entry["metadata"]["priority"] for entry in ben.messages] == ["CRITICAL", "MEDIUM", "LOW"]

    meeting(play)


def test_004_24_the_broker_routes_by_type_priority_and_data() -> None:
    async def play(broker: Meeting) -> None:
        joined = broker.join("anna"), broker.join("desk"), broker.join("expert")
        async with joined[0] as (anna, send), joined[1] as (desk, _), joined[2] as (expert, _):
            rule: dict[str, Any] = {"to": ["expert"], "recipients": ["desk"], "kinds": ["ESCALATION"], "priority": "HIGH"}
            rule |= {"where": {"technical_details.symptoms": "The connection drops."}}
            await broker.shared.call("setRoutes", rules=[rule])
            with pytest.raises(OperationError):
                await broker.shared.call("setRoutes", rules=[{"to": "desk"}])
            urgent = message(Kind.ESCALATION, "anna", "desk", priority=Priority.HIGH)
            others = [message(Kind.ESCALATION, "anna", "desk"), message(NOTE, "anna", "desk", priority=Priority.CRITICAL)]
            for entry in (urgent, *others):
                await send.call("handOff", message=entry)
            assert await expert.has("ESCALATION") == [urgent]
            assert await desk.has("ESCALATION", "NOTIFICATION") == others
            # The report of the expert reaches the sender, though the message was to the desk.
            await anna.has("COMPLETED", "COMPLETED")

    meeting(play)


def test_004_37_agents_react_to_events_without_coordinator() -> None:
    async def play(broker: Meeting) -> None:
        wants: Mapping[str, Any] = {"kinds": ["NOTIFICATION"], "where": {"event": "LINE_RESTORED"}}
        async with (
            broker.join("support") as (support, send),
            broker.join("desk") as (desk, _),
            broker.join("billing", subscriptions=[wants]) as (billing, _),
        ):
            await send.call("handOff", message=message(NOTE, "support", "desk", data={"event": "OTHER"}))
            restored = message(NOTE, "support", "desk")
            await send.call("handOff", message=restored)
            await desk.has("NOTIFICATION", "NOTIFICATION")
            assert await billing.has("NOTIFICATION") == [restored]
            # A notification expects no report.
            await broker.shared.call("handOff", message=message(NOTE, "operator", "support"))
            await support.has("NOTIFICATION")
            members = (await broker.shared.call("readMembers"))["members"]
            assert [(member["name"], member["present"]) for member in members] == [
                ("support", True),
                ("desk", True),
                ("billing", True),
            ]

    meeting(play)
