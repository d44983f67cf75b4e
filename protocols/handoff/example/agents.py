"""The four agents. Each runs as `python agents.py NAME FOLDER URL` until it is ended, and writes its story as lines of JSON.

They understand the same messages, and act on them by their temper: the desk reads one line, the technician reads everything.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from settings import DESK, EXPERT, EXPERT_POOL, FLOW, PERSON, SUPPORT, SUPPORT_POOL, TASK, Deployment

from treaty_handoff import (
    ApprovalRequest,
    CustomerInfo,
    Escalation,
    Handling,
    HandoffAgent,
    Kind,
    Notification,
    Outcome,
    Priority,
    RequestInformation,
    Status,
    TechnicalDetails,
    build,
    respond,
)
from treaty_handoff.messages import derived_id


def say(name: str, text: str) -> None:
    """Write a line of the story."""
    print(json.dumps({"agent": name, "text": text}), flush=True)


def now() -> datetime:
    return datetime.now(UTC)


def desk(agent: HandoffAgent) -> None:
    """The customer service, terse: it answers questions from its card file, and reads only how things ended."""

    @agent.handles(Kind.REQUEST_INFORMATION)
    async def answer(handling: Handling) -> Outcome:
        card = {"router_firmware": "4.2.1", "line": "DSL-7"}
        return Outcome(information={key: card[key] for key in handling.data["requested_info_keys"] if key in card})

    @agent.handles(Kind.STATUS_UPDATE)
    async def note(handling: Handling) -> None:
        say(DESK, str(handling.data["status"]))

    @agent.handles(Kind.NOTIFICATION)
    async def end(handling: Handling) -> None:
        say(DESK, f"tells the customer: {handling.data['event']}")


async def escalate(agent: HandoffAgent) -> None:
    """The desk hands the problem off. The same problem has the same id, so that a second start changes nothing."""
    at = "2023-10-27T10:20:05.000Z"
    message = build(
        Escalation(
            issue_category="NETWORK_CONNECTIVITY",
            severity="CRITICAL",
            customer_info=CustomerInfo(user_id="john.doe@example.com", name="John Doe", contact_number="+1-555-123-4567"),
            technical_details=TechnicalDetails(router_model="RouterX-Pro", isp="GlobalNet", symptoms="It drops every hour."),
        ),
        sender=DESK,
        recipient=SUPPORT_POOL,
        task=TASK,
        flow=FLOW,
        state="CUSTOMER_ISSUE_ESCALATED",
        now=now(),
        priority=Priority.HIGH,
        actions=[
            {"action_type": "INITIAL_GREETING", "details": "The user described the problem.", "timestamp": at},
            {"action_type": "DIAGNOSTIC_ATTEMPT", "details": "A restart did not help.", "timestamp": at},
        ],
        summary="The connection drops every hour since two days; a restart did not help.",
        instructions={
            "next_steps_suggestion": "Review the logs.",
            "required_actions": ["DIAGNOSE_ROOT_CAUSE"],
            "success_criteria": "The root cause is known and removed.",
            "failure_handling_strategy": {"escalate_to": EXPERT_POOL, "fallback_action": "notify_customer_of_delay"},
        },
    )
    await agent.send(message)
    say(DESK, "escalates")


def support(agent: HandoffAgent) -> None:
    """The technician, thorough: it reads the whole history and asks for more before it gives up."""

    @agent.handles(Kind.ESCALATION)
    async def diagnose(handling: Handling) -> Outcome:
        for action in handling.message["context"]["previous_actions"]:
            say(SUPPORT, f"reads {action['action_type']}")
        question = build(
            RequestInformation(requested_info_keys=("router_firmware", "line")),
            sender=SUPPORT,
            recipient=handling.message["metadata"]["sender_id"],
            task=TASK,
            flow=FLOW,
            state="DATA_COLLECTION",
            now=now(),
            message_id=derived_id(handling.message["metadata"]["message_id"], "firmware"),
        )
        answer = await agent.ask(question, 60)
        say(SUPPORT, f"learns {answer['payload']['data']['information']}")
        raise RuntimeError("The line card has to be replaced, which is not for this level.")

    @agent.handles(Kind.STATUS_UPDATE)
    async def pass_on(handling: Handling) -> None:
        status = handling.data["status"]
        if status not in ("COMPLETED", "DENIED"):
            return
        event = "YOUR LINE WORKS AGAIN" if status == "COMPLETED" else "YOUR REPAIR IS DELAYED"
        note = Notification(event=event, detail=handling.data.get("detail", ""))
        await handling.send(build(note, sender=SUPPORT, recipient=DESK, task=TASK, flow=FLOW, state=status, now=now()))


def expert(agent: HandoffAgent) -> None:
    """The expert: it knows the remedy, and needs a person's approval for its price."""

    @agent.handles(Kind.ESCALATION)
    async def plan(handling: Handling) -> Outcome:
        await handling.transaction.set_state(TASK, handling.message)
        say(EXPERT, f"takes over after {len(handling.message['context']['previous_actions'])} steps")
        await handling.send(
            build(
                ApprovalRequest(subject="Replace the line card for 180 EUR?", options=("yes", "no")),
                sender=EXPERT,
                recipient=PERSON,
                task=TASK,
                flow=FLOW,
                state="AWAITING_APPROVAL",
                now=now(),
            )
        )
        return Outcome(Status.IN_PROGRESS, detail="A person has to approve it.")

    @agent.handles(Kind.STATUS_UPDATE)
    async def decided(handling: Handling) -> None:
        approved = handling.data["status"] == "APPROVED"
        say(EXPERT, "replaces the line card" if approved else "leaves it")
        data = {"status": "COMPLETED" if approved else "DENIED", "criteria_met": approved}
        data |= {"actions_done": ["DIAGNOSE_ROOT_CAUSE"], "detail": "The line card was faulty."}
        about = await handling.transaction.state(TASK)
        state = str(data["status"])
        await handling.send(respond(about, Kind.STATUS_UPDATE, data, sender=EXPERT, state=state, now=now(), key="end"))


def person(agent: HandoffAgent) -> None:
    """A person joins: the question is shown, and a line of the standard input decides."""

    @agent.handles(Kind.APPROVAL_REQUEST)
    async def decide(handling: Handling) -> Outcome:
        say(PERSON, f"{handling.data['subject']} [yes/no]")
        line = await asyncio.to_thread(sys.stdin.readline)
        return Outcome(Status.APPROVED if line.strip().lower() in ("yes", "y") else Status.DENIED)


AGENTS: dict[str, Callable[[HandoffAgent], None]] = {DESK: desk, SUPPORT: support, EXPERT: expert, PERSON: person}


async def main(name: str, folder: Path, url: str) -> None:
    async with Deployment(folder, url).agent(name) as (agent, _):
        AGENTS[name](agent)
        async with agent.running():
            if name == DESK:
                await escalate(agent)
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
