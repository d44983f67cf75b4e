"""An environment in one process: its errors, and one of several members that fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from routing import rules


class Writer:
    """An application with a fixed answer."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.news = answer, list[str]()

    async def act(self, action: str, news: list[dict[str, Any]]) -> Any:
        self.news += [message["content"] for message in news]
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def team_of(**answers: Any) -> tuple[Any, dict[str, Writer]]:
    """A team whose members have these answers, and their applications."""
    team, writers = rules().in_process.Team(), {name: Writer(answer) for name, answer in answers.items()}
    for name, writer in writers.items():
        team.add(rules().member.Member(name, "Writer", rules().flow.Flow.in_order("Write")), writer)
    return team, writers


@pytest.mark.parametrize(
    "answer",
    [
        RuntimeError("No model."),
        {"response": {"content": "x", "role": "boss"}},
        {"publish": [{"content": "kept back"}, {"content": "x", "sent_from": "Eve"}]},
        {"publish": [{"content": 7}]},
    ],
)
async def test_a_member_that_fails_ends_its_own_reaction_alone(answer: Any) -> None:
    team, writers = team_of(Bob=answer, Eve={"response": "from Eve"})
    team.publish({"content": "begin"})
    with pytest.raises(ExceptionGroup) as raised:
        await team.run()
    assert len(raised.value.exceptions) == 1
    assert [message.content for message in team.history] == ["begin", "from Eve"]
    writers["Bob"].answer = {}
    while not team.is_idle:
        await team.run()
    team.publish({"content": "again"})
    await team.run()
    assert writers["Bob"].news == ["begin", "again"]


def test_a_message_with_faults_changes_nothing() -> None:
    team, _ = team_of(Bob={})
    for draft in ({}, {"content": "x", "to": "Bob"}, {"content": "x", "send_to": ["<everyone>"]}, {"content": "x", "id": "a.b"}):
        with pytest.raises(ValueError, match=r"\w"):
            team.publish(draft)
    assert len(team.history) == 0
    assert team.is_idle


def test_a_name_is_one_members() -> None:
    team, _ = team_of(Bob={})
    for name, address in (("Bob", "Other"), ("Writer", "Other"), ("Eve", "Bob")):
        with pytest.raises(ValueError, match="Another member"):
            team.add(rules().member.Member(name, address, rules().flow.Flow.in_order("Write")), Writer({}))


async def test_a_member_without_room_misses_a_message_alone() -> None:
    team, writers = team_of(Bob={}, Eve={})
    for number in range(256):
        team.publish({"content": str(number), "send_to": ["Bob"]})
    with pytest.raises(rules().environment.Full):
        team.publish({"content": "too much", "send_to": ["Bob"]})
    assert len(team.history) == 256
    team.publish({"content": "for all"})
    assert len(team.history) == 257
    await team.run()
    assert writers["Eve"].news == ["for all"]
    assert len(writers["Bob"].news) == 256


async def test_members_begin_anew_after_a_cancelled_round() -> None:
    team, writers = team_of(Bob={"response": "done"})
    begun = asyncio.Event()

    async def hang(action: str, news: list[dict[str, Any]]) -> Any:
        begun.set()
        await asyncio.Event().wait()

    act, writers["Bob"].act = writers["Bob"].act, hang  # type: ignore[method-assign]
    team.publish({"content": "given up"})
    running = asyncio.create_task(team.run())
    await begun.wait()
    running.cancel()
    await asyncio.wait([running])
    assert team.is_idle
    writers["Bob"].act = act  # type: ignore[method-assign]
    team.publish({"content": "again"})
    await team.run()
    assert writers["Bob"].news == ["again"]
    assert [message.content for message in team.history] == ["given up", "again", "done"]
