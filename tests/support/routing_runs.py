"""Whole runs of the feedback loop: in one process without agents, and in five sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import feedback_script as script
from routing import ENVIRONMENT, Script, joining, member_did, rules, wired

ROUNDS = 50
"""More rounds of an environment than any of these runs has. A run that does not end is one that is not idle."""


@dataclass(frozen=True)
class Run:
    """What is left of a run. `seen`: what the members have in their memories."""

    rounds: int
    members: dict[str, Script]
    history: Sequence[dict[str, Any]]
    seen: Sequence[dict[str, Any]]
    is_idle: bool


async def in_team(rounds: int) -> Run:
    """A run in one process."""
    package = rules()
    applications = {name: Script(name, rounds) for name in script.MEMBERS}
    team, members = package.in_process.Team(), []
    for name, application in applications.items():
        flow = package.flow.Flow.in_order(script.ACTIONS[name])
        members.append(package.member.Member(name, script.MEMBERS[name], flow, script.WATCHES[name]))
        team.add(members[-1], application)
    team.publish(script.REQUEST)
    for _ in range(ROUNDS):
        if not team.is_idle:
            await team.run()
    # A member keeps its own responses too.
    seen = [message.to_value() for member in members for message in member.memory if message.sent_from != member.address]
    return Run(rounds, applications, [message.to_value() for message in team.history], seen, team.is_idle)


async def in_sessions(rounds: int) -> Run:
    """A run in five sessions, each in a process of its own."""
    applications = {name: Script(name, rounds) for name in script.MEMBERS}
    seen: list[dict[str, Any]] = []
    async with wired(applications) as wiring:
        for name in applications:
            assert await wiring.call(member_did(name), "join", **joining(name)) == {}
        await wiring.call(ENVIRONMENT, "publish", **script.REQUEST)
        await wiring.call(ENVIRONMENT, "run", rounds=ROUNDS)
        for name, address in script.MEMBERS.items():
            recalled = (await wiring.call(member_did(name), "recall"))["messages"]
            seen += [message for message in recalled if message["sent_from"] != address]
        state = await wiring.call(ENVIRONMENT, "readMembers")
        return Run(rounds, applications, await wiring.history(), seen, state["idle"])
