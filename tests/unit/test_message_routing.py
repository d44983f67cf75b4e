"""The rules of message routing, on the rules alone and in sessions that are wired to each other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from routing import ENVIRONMENT, FOLDER, Wired, member_did, routing_package, routing_project, rules, wired

from treaty_handler import Call, Failure, Opened, Persist
from treaty_sandbox import Isolation, SandboxPool, run_vectors

UUID4 = re.compile(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}")
ONE = {"<idle>": ["Do"], "Do": ["<idle>"]}


def test_the_program_of_the_readme_writes_verses(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out == "\nuser: rain\nassistant: Verses about rain\n"


class Noting:
    """The application of a member that notes its news. `answer`: what its actions return."""

    def __init__(self, answer: Callable[[str], dict[str, Any]] = lambda action: {}, *choices: str) -> None:
        self.answer, self.choices = answer, list(choices)
        self.news: list[list[str]] = []
        self.actions: list[str] = []
        self.asked: list[tuple[str, list[str]]] = []
        self.last: list[dict[str, Any]] = []

    async def act(self, action: str, news: list[dict[str, Any]]) -> dict[str, Any]:
        self.actions.append(action)
        self.news.append([message["content"] for message in news])
        self.last = news
        return self.answer(action)

    async def think(self, state: str, choices: list[str], news: list[dict[str, Any]]) -> dict[str, Any]:
        self.asked.append((state, choices))
        return {"state": self.choices.pop(0)}


async def join(wiring: Wired, name: str, address: str = "", **more: Any) -> Any:
    """Have a member join; its class is Worker unless given, and shared."""
    members = {"name": name, "address": address or "Worker", "shared": True, "transitions": ONE, **more}
    return await wiring.call(member_did(name), "join", **members)


async def publish(wiring: Wired, content: str, **fields: Any) -> Any:
    """Publish a message of the user."""
    return await wiring.call(ENVIRONMENT, "publish", content=content, **fields)


async def run(wiring: Wired, rounds: int = 10) -> Any:
    """Run rounds until the environment is idle."""
    return await wiring.call(ENVIRONMENT, "run", rounds=rounds)


def made(content: str = "x", **fields: Any) -> Any:
    """A message of the rules."""
    return rules().message.complete({"content": content, "id": content, **fields}, str)


def member(name: str = "Bob", address: str = "Writer", watch: tuple[str, ...] = ()) -> Any:
    """A member of the rules."""
    return rules().member.Member(name, address, rules().flow.Flow.in_order("Do"), watch)


def news_of(one: Any, *messages: Any) -> list[str]:
    """The contents of the news in a look at these messages."""
    for message in messages:
        one.put(message)
    one.begin()
    contents = [message.content for message in one.news]
    one.failed()
    return contents


def environment(*members: tuple[str, str]) -> Any:
    """An environment of the rules with these members."""
    room = rules().environment.Environment()
    for name, address in members:
        assert room.join(name, address, shares=True) == ""
    return room


@pytest.mark.sample(1)
@pytest.mark.parametrize("isolation", ["bubblewrap", "none"])
async def test_vectors(isolation: Isolation) -> None:
    async with SandboxPool(size=0, levels=(isolation,)) as pool:
        assert await run_vectors(pool, routing_package(), routing_project().vectors) == []


async def test_005_01_what_is_missing_or_empty_has_its_default() -> None:
    bob = Noting()
    async with wired({"Bob": bob, "Eve": Noting()}) as wiring:
        await join(wiring, "Bob")
        await join(wiring, "Eve", "Speaker")
        first = await publish(wiring, "from the user", id="", cause_by="", send_to=[], sent_from="", role="")
        second = await wiring.call(member_did("Eve"), "publish", content="from Eve")
        await run(wiring)
        rest = {"instruct_content": None, "role": "user", "cause_by": "UserRequirement", "send_to": ["<all>"]}
        assert bob.last == [
            {"id": first["id"], "content": "from the user", "sent_from": "", **rest},
            {"id": second["id"], "content": "from Eve", "sent_from": "Speaker", **rest},
        ]
        assert UUID4.fullmatch(first["id"])
        assert UUID4.fullmatch(second["id"])
        assert first["id"] != second["id"]
        assert await publish(wiring, "with an id", id="mine") == {"id": "mine"}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("send_to", "receivers"),
    [
        (["<all>"], ["Bob", "Eve", "Dan"]),
        (["Bob"], ["Bob"]),
        (["Writer"], ["Bob", "Eve"]),
        (["Reader", "Bob"], ["Bob", "Dan"]),
        (["<none>", "Dan"], ["Dan"]),
    ],
)
async def test_005_02_a_member_gets_its_messages_by_name_or_class(send_to: list[str], receivers: list[str]) -> None:
    assert (
        environment(("Bob", "Writer"), ("Eve", "Writer"), ("Dan", "Reader")).publish(made(send_to=send_to)).receivers == receivers
    )
    members = {name: Noting() for name in ("Bob", "Eve", "Dan")}
    async with wired(members) as wiring:
        for name in members:
            await join(wiring, name, "Reader" if name == "Dan" else "Writer")
        # Dan is the sender, and is given the message as the others are.
        await wiring.call(member_did("Dan"), "publish", content="x", send_to=send_to)
        for name in members:
            await wiring.call(ENVIRONMENT, "run")
            recalled = await wiring.call(member_did(name), "recall")
            assert len(recalled["messages"]) == (name in receivers)


def test_005_03_news_are_watched_or_addressed_and_unseen() -> None:
    bob = member(watch=("Work",))
    watched, named, classed = made("1", cause_by="Work"), made("2", send_to=["Bob"]), made("3", send_to=["Writer"])
    assert news_of(bob, watched, named, classed, made("4")) == ["1", "2"]
    assert news_of(bob, watched, named, classed, made("5", cause_by="Work")) == ["5"]
    assert news_of(bob, made("6", cause_by="Work"), made("6", cause_by="Work")) == ["6"], "seen within one batch"
    assert [message.content for message in bob.memory] == ["1", "2", "3", "4", "5", "6"]


async def test_005_03_a_function_gets_the_news_alone() -> None:
    bob = Noting()
    async with wired({"Bob": bob}) as wiring:
        await join(wiring, "Bob", watch=["Work"])
        await publish(wiring, "watched", id="w", cause_by="Work")
        await publish(wiring, "no news", cause_by="Other")
        await run(wiring)
        await publish(wiring, "watched", id="w", cause_by="Work")
        await publish(wiring, "no news either", cause_by="Other")
        await run(wiring)
        assert bob.news == [["watched"]]
        recalled = await wiring.call(member_did("Bob"), "recall", causes=["Other"])
        assert [message["content"] for message in recalled["messages"]] == ["no news", "no news either"]


async def test_005_04_watched_messages_to_others_are_not_received() -> None:
    assert environment(("Bob", "Writer"), ("Eve", "Reader")).publish(made(cause_by="Work", send_to=["Eve"])).receivers == ["Eve"]
    bob, eve = Noting(), Noting()
    async with wired({"Bob": bob, "Eve": eve}) as wiring:
        await join(wiring, "Bob", watch=["Work"])
        await join(wiring, "Eve", watch=["Work"])
        await publish(wiring, "for Eve", cause_by="Work", send_to=["Eve"])
        await run(wiring)
        assert (bob.news, eve.news) == ([], [["for Eve"]])
        assert (await wiring.call(member_did("Bob"), "recall"))["messages"] == []


@pytest.mark.parametrize("recipient", ["<none>", "nobody"])
async def test_005_05_a_message_without_recipient_warns(recipient: str) -> None:
    bob = Noting()
    async with wired({"Bob": bob}) as wiring:
        await join(wiring, "Bob")
        received = wiring.received.copy()
        await publish(wiring, "lost", id="m1", send_to=[recipient])
        assert wiring.notes == ["The message m1 has no recipient."]
        assert wiring.received == received
        assert [message["content"] for message in await wiring.history()] == ["lost"]
        assert await run(wiring) == {"idle": True, "rounds": 0, "failures": []}
        assert bob.news == []


async def test_005_06_a_message_to_oneself_skips_the_history() -> None:
    bob, eve = Noting(), Noting()
    async with wired({"Bob": bob, "Eve": eve}) as wiring:
        await join(wiring, "Bob", "Writer")
        await join(wiring, "Eve", "Writer")
        for number, own in enumerate((["<self>"], ["Bob"], ["Writer", "Bob"])):
            await wiring.call(member_did("Bob"), "publish", content=str(number), send_to=own)
        assert await wiring.history() == []
        await run(wiring)
        assert (bob.news, eve.news) == ([["0", "1", "2"]], [])
        assert [message["send_to"] for message in bob.last] == [["Writer"], ["Bob"], ["Bob", "Writer"]]
        # With others, it goes to the class, so that Eve has it too.
        await wiring.call(member_did("Bob"), "publish", content="both", send_to=["<self>", "Dan"])
        assert [message["send_to"] for message in await wiring.history()] == [["Dan", "Writer"]]
        await run(wiring)
        assert (bob.news[-1], eve.news[-1]) == (["both"], ["both"])


async def test_005_06_a_message_to_oneself_is_news_next_round() -> None:
    first, second = {"content": "again", "send_to": ["<self>"]}, {"content": "end", "send_to": ["Bob"]}
    answers: Iterator[dict[str, Any]] = iter([{"publish": [first]}, {"response": second}])
    bob = Noting(lambda action: next(answers))
    async with wired({"Bob": bob}) as wiring:
        await join(wiring, "Bob")
        await publish(wiring, "begin")
        assert await run(wiring) == {"idle": True, "rounds": 3, "failures": []}
        assert bob.news == [["begin"], ["again"]], "its own response has been seen"
        assert len(await wiring.history()) == 1


FIELDS: dict[str, Any] = {
    "id": "other",
    "content": "other",
    "instruct_content": {"a": 2},
    "role": "system",
    "cause_by": "Other",
    "sent_from": "Other",
    "send_to": ["<all>", "Other"],
}


def test_005_07_history_and_memory_keep_equal_messages_once() -> None:
    one = {"id": "1", "content": "x", "instruct_content": {"a": 1, "b": [1]}, "send_to": ["Bob", "Eve"]}
    same = {**one, "instruct_content": {"b": [1], "a": 1}, "send_to": ["Eve", "Bob", "Eve"]}
    first, second = environment(), member()
    for draft in (one, same, one):
        message = rules().message.complete(draft, str)
        first.publish(message)
        second.put(message)
    second.begin()
    assert len(first.history) == len(second.memory) == 1
    for name, value in FIELDS.items():
        message = rules().message.complete({**one, name: value}, str)
        first.publish(message)
        second.put(message)
    second.begin()
    assert len(first.history) == len(second.memory) == 1 + len(FIELDS), "all fields count"
    for value in (1, True, 1.0, "1"):  # equal or nearly so for Python
        first.publish(rules().message.complete({**one, "instruct_content": {"a": value}}, str))
    assert len(first.history) == 5 + len(FIELDS)


def test_005_07_a_memory_forgets_the_oldest() -> None:
    memory = rules().memory.Memory()
    for number in range(1_005):
        assert memory.add(made(str(number)))
    assert (len(memory), memory.forgotten, next(iter(memory)).content) == (1_000, 5, "5")
    for number in range(50):
        memory.add(made(f"{number:2}" + "x" * 60_000))
    assert sum(len(message.key) for message in memory) <= 1024 * 1024
    assert memory.forgotten > 1_000


async def test_005_07_a_repeated_message_is_news_once() -> None:
    bob = Noting()
    async with wired({"Bob": bob}) as wiring:
        await join(wiring, "Bob")
        for _ in range(2):
            await publish(wiring, "x", id="1")
            await run(wiring)
        assert len(await wiring.history()) == 1
        assert bob.news == [["x"]]


def test_005_08_a_member_without_news_is_idle() -> None:
    bob = member()
    assert bob.is_idle
    bob.put(made())
    assert not bob.is_idle, "something is buffered"
    bob.begin()
    assert not bob.is_idle, "there are news, and something to do"
    bob.acted(None)
    assert bob.is_idle


def test_005_08_a_choosing_member_is_not_idle() -> None:
    flow = rules().flow.Flow({"<idle>": ["A", "B"], "A": ["B", "<idle>"], "B": ["<idle>"]})
    bob = rules().member.Member("Bob", "Worker", flow)
    bob.put(made())
    bob.begin()
    assert not bob.is_idle, "it has to choose, and has done nothing yet"
    bob.decide("A")
    assert not bob.is_idle, "it does A"
    bob.acted(None)
    assert not bob.is_idle, "it has to choose again"
    bob.decide("<idle>")
    assert bob.is_idle


async def test_005_08_the_environment_is_idle_when_all_members_are() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    class Waiting(Noting):
        async def act(self, action: str, news: list[dict[str, Any]]) -> dict[str, Any]:
            begun.set()
            await gate.wait()
            return {}

    async with wired({"Bob": Noting(), "Eve": Waiting()}) as wiring:

        async def idle() -> list[bool]:
            state = await wiring.call(ENVIRONMENT, "readMembers")
            return [state["idle"], *(one["idle"] for one in state["members"])]

        await join(wiring, "Bob", "Writer")
        await join(wiring, "Eve", "Reader")
        assert await idle() == [True, True, True]
        await publish(wiring, "x", send_to=["Eve"])
        assert await idle() == [False, True, False], "buffered"
        running = asyncio.create_task(run(wiring))
        await asyncio.wait_for(begun.wait(), 30)
        assert await idle() == [False, True, False], "something to do"
        gate.set()
        await running
        assert await idle() == [True, True, True]
        await wiring.call(member_did("Bob"), "publish", content="x", send_to=["<self>"])
        assert await idle() == [False, False, True], "a message to itself, which the environment did not see"


async def test_005_09_the_members_that_are_not_idle_work_at_once() -> None:
    """Two actions that wait for each other end only if both run; the third member is not asked."""
    met = asyncio.Barrier(2)

    class Meeting(Noting):
        async def act(self, action: str, news: list[dict[str, Any]]) -> dict[str, Any]:
            await asyncio.wait_for(met.wait(), 10)
            return await super().act(action, news)

    members = {"Bob": Meeting(), "Eve": Meeting(), "Dan": Noting()}
    async with wired(members) as wiring:
        for name in members:
            await join(wiring, name)
        await publish(wiring, "x", send_to=["Bob", "Eve"])
        before = wiring.received[member_did("Dan")]
        assert await run(wiring) == {"idle": True, "rounds": 1, "failures": []}
        assert [one.news for one in members.values()] == [[["x"]], [["x"]], []]
        assert wiring.received[member_did("Dan")] == before, "an idle member hears nothing of the round"
    team, applications = rules().in_process.Team(), (Meeting(), Meeting())
    for name, application in zip(("Bob", "Eve"), applications, strict=True):
        team.add(member(name, name), application)
    team.publish({"content": "x"})
    await team.run()
    assert team.is_idle


async def test_005_09_a_rounds_messages_are_later_news() -> None:
    bob = Noting(lambda action: {"response": {"content": "from Bob", "cause_by": "Do"}})
    eve = Noting()
    async with wired({"Bob": bob, "Eve": eve}) as wiring:
        await join(wiring, "Bob", "Writer")
        await join(wiring, "Eve", "Reader", watch=["Do", "UserRequirement"])
        await publish(wiring, "x")
        assert await wiring.call(ENVIRONMENT, "run") == {"idle": False, "rounds": 1, "failures": []}
        assert eve.news == [["x"]]
        assert (await run(wiring))["idle"]
        assert eve.news == [["x"], ["from Bob"]]


async def test_005_10_a_member_watches_user_requirement() -> None:
    assert member().watch == {"UserRequirement"}
    bob, eve = Noting(), Noting()
    async with wired({"Bob": bob, "Eve": eve}) as wiring:
        await join(wiring, "Bob")
        await join(wiring, "Eve", watch=["Work"])
        await publish(wiring, "of the user")
        await publish(wiring, "of work", cause_by="Work")
        await run(wiring)
        assert (bob.news, eve.news) == ([["of the user"]], [["of work"]])


TWO = {"<idle>": ["Write"], "Write": ["Review"], "Review": ["Write", "<idle>"]}


async def test_005_17_the_last_response_of_the_actions_is_published() -> None:
    bob = Noting(lambda action: {"response": f"{action} is done"}, "Write", "<idle>")
    async with wired({"Bob": bob}) as wiring:
        await join(wiring, "Bob", transitions=TWO, maxActions=10)
        await publish(wiring, "x")
        await run(wiring)
        assert bob.actions == ["Write", "Review", "Write", "Review"]
        assert bob.asked == [("Review", ["Write", "<idle>"])] * 2, "asked only where there is a choice"
        last = {key: (await wiring.history())[-1][key] for key in ("content", "cause_by", "sent_from", "send_to")}
        assert last == {"content": "Review is done", "cause_by": "Review", "sent_from": "Worker", "send_to": ["<all>"]}
        assert len(await wiring.history()) == 2, "the responses between are in the memory alone"
        recollection = (await wiring.call(member_did("Bob"), "recall", causes=["Write", "Review"]))["messages"]
        assert [message["cause_by"] for message in recollection] == bob.actions


@pytest.mark.parametrize(("choice", "limit", "actions"), [("Elsewhere", 10, 2), ("<idle>", 10, 2), ("Write", 3, 3)])
async def test_005_17_a_limit_or_an_unoffered_choice_ends_a_reaction(choice: str, limit: int, actions: int) -> None:
    bob = Noting(lambda action: {}, choice)
    async with wired({"Bob": bob}) as wiring:
        await join(wiring, "Bob", transitions=TWO, maxActions=limit)
        await publish(wiring, "x")
        assert (await run(wiring))["idle"]
        assert len(bob.actions) == actions


def test_005_17_actions_in_order_are_each_done_once() -> None:
    flow = rules().flow.Flow.in_order("A", "B", "C")
    assert (flow.limit, flow.actions, flow.after("<idle>"), flow.after("C")) == (3, ("A", "B", "C"), ("A",), ("<idle>",))


@pytest.mark.parametrize(
    "transitions",
    [
        {},
        {"<idle>": ["A"]},
        {"A": ["A"], "B": ["A"]},
        {"<idle>": ["A"], "A": ["B"]},
        {"<idle>": ["<idle>", "A"], "A": ["<idle>"]},
        {"<idle>": ["A", "A"], "A": ["<idle>"]},
        {"<idle>": ["A"], "A": []},
        {"<idle>": ["a.b"], "a.b": ["<idle>"]},
        {"<idle>": "A", "A": ["<idle>"]},
        [],
    ],
)
def test_005_17_transitions_with_a_fault_are_refused(transitions: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        rules().flow.Flow(transitions)


async def test_005_17_a_member_with_faulty_transitions_is_refused() -> None:
    async with wired({"Bob": Noting()}) as wiring:
        refused = await join(wiring, "Bob", transitions={"<idle>": ["A"], "A": ["B"]})
        assert isinstance(refused, Failure)
        assert refused.code == 400
        assert (await wiring.call(ENVIRONMENT, "readMembers"))["members"] == []
        assert await join(wiring, "Bob") == {}


def test_a_large_snapshot_resumes_a_session() -> None:
    parameters = {"seed": "0" * 32, "local": "did:example:local", "peer": "did:example:peer"}
    session = rules().handler.open("environment", parameters)
    for number in range(40):
        arguments = {"content": str(number), "instruct_content": {"a": [0] * 900}, "send_to": ["<none>"]}
        session.handle(Call(call=str(number), operation="publish", arguments=arguments))
    moved = rules().handler.open("environment", parameters, session.snapshot())
    page = Call(call="page", operation="readHistory", arguments={"start": 10})
    assert moved.handle(page) == session.handle(page)
    assert moved.snapshot() == session.snapshot()


def test_what_is_stored_is_the_history_and_no_more() -> None:
    parameters = {"seed": "0" * 32, "local": "did:example:local", "peer": ""}
    session = rules().handler.open("environment", parameters)
    stored: dict[str, bytes] = {}
    for number in range(1_100):
        arguments = {"content": f"{number}" + "x" * (60_000 if number > 1_050 else 0), "send_to": ["<none>"]}
        for effect in session.handle(Call(call=str(number), operation="publish", arguments=arguments)):
            if not isinstance(effect, Persist):
                continue
            if effect.value is None:
                del stored[effect.key]
            else:
                stored[effect.key] = effect.value
                assert len(stored) <= 1_000
                assert sum(map(len, stored.values())) <= 1024 * 1024
    again = rules().handler.open("environment", parameters)
    assert again.handle(Opened(stored=stored)) == []
    for start in (0, 1_080, 1_095):
        page = Call(call="page", operation="readHistory", arguments={"start": start})
        assert again.handle(page) == session.handle(page)
