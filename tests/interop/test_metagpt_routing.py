"""MetaGPT's own classes and ours do the same, side by side, with a scripted model.

It is the release 0.8.2, with its real messages, roles, memory and environment. Compared message for message and field for field
are: the history of the feedback loop in its order; which members buffer a message, and for which it is news; the defaults of a
message; the actions of a reaction.

What cannot be compared, and why:

- `<self>` (rule 6): the release does not know it. A later state of its repository does, which is not on PyPI.
- Names of classes and actions: they are module paths there, of which the last part is compared.
- Ids that were not given: both are new UUIDs, so only their form is compared.
- The history as the release has it is a text for debugging, without ids and with duplicates. It is compared as that text. The
  messages behind it are collected in the release's own `Memory`.
- A duplicate within one batch is news twice there, and once here (rule 3): `test_a_duplicate_in_one_batch_is_news_twice_there`.
- The choice of no action, `-1`, ends a reaction here; there the release raises an error.
- The number of rounds: there a member's news stay until it looks again, so that the last round does nothing.
- Two members without a name share one key there. Here a name is required.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import source_listing
from routing import rules
from routing_process import in_processes
from routing_runs import in_sessions, in_team

import treaty_routing

SEED = Path(__file__).parents[3] / "shared" / "seeds" / "metagpt-agent-communication.txt"


@pytest.fixture(scope="module")
def metagpt(metagpt_script: Callable[[str], Any]) -> Iterator[Any]:
    with metagpt_script("metagpt_run.py") as running:
        yield running


@pytest.mark.sample(1)
@pytest.mark.parametrize("begin", [in_team, in_sessions, in_processes])
@pytest.mark.parametrize("rounds", [3, 4])
async def test_the_histories_of_the_feedback_loop_agree(metagpt: Any, begin: Any, rounds: int) -> None:
    theirs, ours = metagpt.call("loop", rounds=rounds), await begin(rounds)
    assert len(ours.history) > 11 + 30 * rounds
    assert theirs["history"] == ours.history
    assert theirs["calls"] == {name: dict(application.calls) for name, application in ours.members.items()}
    assert theirs["idle"] is ours.is_idle is True


@pytest.mark.parametrize("rounds", [1, 3])
async def test_the_sources_listing_runs_in_both_and_does_the_same(metagpt: Any, rounds: int) -> None:
    theirs = metagpt.call("listing", rounds=rounds)
    namespace, runs = source_listing.prepared({**vars(treaty_routing), "__name__": "listing"}, rounds)
    environment = await namespace["main"]()
    assert [(name, contents) for name, contents in theirs["runs"]] == runs
    assert [name for name, _ in runs] == [*source_listing.FILLED] * rounds
    # Here a message of a role says its class where the role does not say a sender.
    ours = [message.to_draft() for message in environment.messages]
    left_out = {"id": "", "sent_from": ""}
    assert [message | left_out for message in theirs["history"]] == [message | left_out for message in ours]
    assert len(ours) == 12 + 3 * rounds
    assert theirs["idle"] is environment.is_idle is True


def test_the_listing_is_the_sources() -> None:
    if not SEED.exists():
        pytest.skip("no folder of the sources beside this clone")
    printed = SEED.read_text(encoding="utf-8").partition("第一步")[2].replace("Aciton", "Action").splitlines()
    words = r"class |def |async |return |self\.|super|subtasks|for |env|context|while|await"
    code = [line.strip() for line in printed if re.match(words, line)]
    listed = {line.strip() for line in source_listing.LISTING.read_text(encoding="utf-8").splitlines()}
    assert len(code) > 50
    assert sorted({line for line in code if line not in listed}) == []


async def test_the_text_of_the_history_agrees(metagpt: Any) -> None:
    ours = await in_team(3)
    about = [message["instruct_content"] or message["content"] for message in ours.history]
    lines = [f"{message['role']}: {text}" for message, text in zip(ours.history, about, strict=True)]
    assert metagpt.call("loop", rounds=3)["text"] == "".join(f"\n{line}" for line in lines)


MEMBERS = [
    {"name": "Bob", "address": "Writer", "watch": ["Work"]},
    {"name": "Eve", "address": "Writer", "watch": ["Review"]},
    {"name": "Dan", "address": "Reader", "watch": ["Work", "Review"]},
]


def delivered(members: list[dict[str, Any]], batches: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """What our rules do with these messages, as `deliver` of the script says what the release does."""
    package = rules()
    environment = package.environment.Environment()
    ours = {}
    for member in members:
        flow = package.flow.Flow.in_order("First")
        ours[member["name"]] = package.member.Member(member["name"], member["address"], flow, member.get("watch", ()))
        assert environment.join(member["name"], member["address"], shares=True) == ""
    deliveries: dict[str, dict[str, list[str]]] = {name: {"buffered": [], "news": []} for name in ours}
    for batch in batches:
        for draft in batch:
            message = package.message.complete(draft, str)
            for name in environment.publish(message).receivers:
                ours[name].put(message)
                deliveries[name]["buffered"].append(message.id)
        for name, member in ours.items():
            member.begin()
            deliveries[name]["news"] += [message.id for message in member.news]
            member.failed()
    return {"members": deliveries, "history": [message.id for message in environment.history]}


RECIPIENTS: list[list[str]] = [[], ["<all>"], ["<none>"], ["Bob"], ["Writer"], ["Eve", "Reader"], ["<none>", "Dan"], ["nobody"]]


def test_the_same_members_buffer_a_message_and_take_it_for_news(metagpt: Any) -> None:
    messages = [
        {"id": f"{cause}-{number}", "content": "x", "cause_by": cause, "send_to": recipients}
        for cause in ("Work", "Review", "Other")
        for number, recipients in enumerate(RECIPIENTS)
    ]
    ours = delivered(MEMBERS, [messages])
    assert metagpt.call("deliver", members=MEMBERS, batches=[messages]) == ours
    # The cases tell the rules apart: some messages are buffered and no news, and some reach nobody.
    assert 0 < len(ours["members"]["Eve"]["news"]) < len(ours["members"]["Eve"]["buffered"]) < len(messages)


def test_a_message_that_was_seen_is_no_news_in_a_later_look(metagpt: Any) -> None:
    first, second = ({"id": number, "content": "x", "cause_by": "Work"} for number in "12")
    ours = delivered(MEMBERS, [[first], [first, second]])
    assert metagpt.call("deliver", members=MEMBERS, batches=[[first], [first, second]]) == ours
    assert ours["members"]["Bob"] == {"buffered": ["1", "1", "2"], "news": ["1", "2"]}


def test_a_duplicate_in_one_batch_is_news_twice_there(metagpt: Any) -> None:
    batches = [[{"id": "1", "content": "x", "cause_by": "Work"}] * 2]
    theirs, ours = metagpt.call("deliver", members=MEMBERS, batches=batches), delivered(MEMBERS, batches)
    assert theirs["history"] == ours["history"] == ["1"]
    assert (theirs["members"]["Bob"]["news"], ours["members"]["Bob"]["news"]) == (["1", "1"], ["1"])


def test_the_defaults_of_a_message_agree(metagpt: Any) -> None:
    theirs = metagpt.call("defaults")
    package = rules()
    ours = package.message.complete({"content": "x"}, lambda: package.wire.make_id("0" * 32, 1)).to_value()
    for message in (theirs, ours):
        assert re.fullmatch(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}", message.pop("id"))
    assert theirs == ours


@pytest.mark.parametrize(
    ("mode", "limit", "answers"),
    [("by_order", 1, []), ("react", 1, ["1"]), ("react", 3, ["1", "0", "1"]), ("react", 2, ["0", "0"])],
)
async def test_the_actions_of_a_reaction_agree(metagpt: Any, mode: str, limit: int, answers: list[str]) -> None:
    package = rules()
    done: list[str] = []

    class Doing:
        def __init__(self) -> None:
            self.answers = [("First", "Second")[int(answer)] for answer in answers]

        async def think(self, state: str, choices: list[str], news: list[Any]) -> dict[str, str]:
            return {"state": self.answers.pop(0)}

        async def act(self, action: str, news: list[Any]) -> dict[str, Any]:
            done.append(action)
            return {"response": "done"}

    Flow, both = package.flow.Flow, ["First", "Second"]  # noqa: N806
    free = Flow({"<idle>": both, "First": both, "Second": both}, limit)
    team = package.in_process.Team()
    team.add(package.member.Member("Eve", "Doing", Flow.in_order(*both) if mode == "by_order" else free), Doing())
    team.publish({"content": "begin"})
    await team.run()
    assert metagpt.call("react", mode=mode, limit=limit, answers=answers) == done
