"""Message routing with the source's names: roles in one process, and the same roles at agents."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from routing import FOLDER

import treaty_routing
from treaty_agent import Agent, Identity, LocalProtocols, OperationError
from treaty_routing import MESSAGE_ROUTE_TO_NONE, Action, Environment, Message, Role, UserRequirement
from treaty_routing.agents import AgentEnvironment, join
from treaty_routing.handler.environment import Full

PROTOCOLS = LocalProtocols([FOLDER])
URI = PROTOCOLS.uri("message-routing")


class Split(Action):
    """Publishes as many messages as its requirement says."""


class Note(Action):
    """Answers with the number of its news."""


class Splitter(Role):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.set_actions([Split])

    async def _act(self) -> Message:
        assert self.rc.env is not None
        for number in range(int(self.rc.news[0].content)):
            self.rc.env.publish_message(Message(f"part {number}", cause_by=Split, send_to=Noter))
        return Message("done", send_to=MESSAGE_ROUTE_TO_NONE)


class Noter(Role):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.noted: list[str] = []
        self.set_actions([Note()])
        self._watch({Split})

    async def _act(self) -> Message | None:
        self.noted += [message.content for message in self.rc.news]
        return await super()._act() if self.name == "talker" else None


async def run_all(environment: Environment) -> None:
    for _ in range(20):
        if environment.is_idle:
            return
        await environment.run()
    raise AssertionError("It is not idle.")


RECIPIENTS = [Noter, Noter(), "Noter", {Noter, "Eve"}, ["app.roles.Noter"], ("Noter",), frozenset({"Bob"})]


@pytest.mark.parametrize("recipient", RECIPIENTS)
@pytest.mark.parametrize("cause", [Split, Split(), "Split", "app.actions.Split"])
async def test_005_20_classes_objects_sets_and_module_paths_are_names(recipient: Any, cause: Any) -> None:
    environment, bob = Environment(), Noter(name="Bob")
    environment.add_roles([bob])
    message = Message("x", send_to=recipient, cause_by=cause, sent_from=bob)
    assert (message.cause_by, message.sent_from, message.role) == ("Split", "Noter", "user")
    environment.publish_message(message)
    await run_all(environment)
    assert bob.noted == ["x"]


def test_005_01_a_message_has_the_defaults_of_the_source() -> None:
    message = Message(content="x")
    assert (message.cause_by, message.sent_from, message.send_to) == ("UserRequirement", "", {"<all>"})
    message.cause_by, message.send_to = Split, Noter
    assert (message.cause_by, message.send_to) == ("Split", {"Noter"})
    assert Message("x").id != Message("x").id


async def test_unnamed_roles_get_names_and_a_class_is_all_of_them() -> None:
    environment, roles = Environment(), [Noter(), Noter(), Noter(name="Eve")]
    environment.add_roles(roles)
    assert list(environment.roles) == ["Noter-1", "Noter-2", "Eve"]
    environment.publish_message(Message("x", send_to=Noter, cause_by=Split))
    await run_all(environment)
    assert [role.noted for role in roles] == [["x"]] * 3
    idle = Role()
    for refused in (Noter(name="Eve"), idle):
        with pytest.raises(ValueError, match=r"\w"):
            environment.add_role(refused)
    assert (idle.name, idle.rc.env) == ("", None)
    assert list(environment.roles) == ["Noter-1", "Noter-2", "Eve"]


@pytest.mark.parametrize("count", [129, 256])
async def test_005_18_one_action_publishes_more_than_a_round_takes(count: int) -> None:
    environment, noter = Environment(), Noter()
    environment.add_roles([Splitter(), noter])
    environment.publish_message(Message(str(count)))
    await environment.run(2)
    assert noter.noted == [f"part {number}" for number in range(128)]
    await run_all(environment)
    assert noter.noted == [f"part {number}" for number in range(count)]


def test_the_user_is_told_when_too_many_messages_wait() -> None:
    environment = Environment()
    environment.add_role(Noter())
    for number in range(256):
        environment.publish_message(Message(str(number)))
    with pytest.raises(Full):
        environment.publish_message(Message("one more"))
    assert len(environment.messages) == 256


async def test_005_19_a_history_says_how_many_messages_are_gone() -> None:
    environment, talker = Environment(max_messages=3), Noter(name="talker")
    environment.add_role(talker)
    histories = []

    async def run(history: list[Message]) -> str:
        histories.append([message.content for message in history])
        return "noted"

    talker.actions[0].run = run  # type: ignore[method-assign]
    for number in range(4):
        environment.publish_message(Message(f"part {number}", cause_by=Split))
        await run_all(environment)
    gone = "[5 earlier messages are gone.]"
    assert [message.content for message in environment.messages] == [gone, "noted", "part 3", "noted"]
    assert environment.messages[0].cause_by == "Forgotten"
    assert environment.history.startswith(f"\nsystem: {gone}\n")
    assert histories[0] == ["part 0"]
    assert histories[-1] == ["[4 earlier messages are gone.]", "part 2", "noted", "part 3"]
    roomy = Environment()
    for number in range(1_100):
        roomy.publish_message(Message(str(number), send_to=MESSAGE_ROUTE_TO_NONE))
    assert [message.content for message in roomy.messages] == [str(number) for number in range(1_100)]


class Draft(Action):
    async def run(self, history: list[Message]) -> str:
        return "a draft"


class Polish(Action):
    async def run(self, history: list[Message]) -> Message:
        return Message(f"polished: {history[-1].content}", cause_by=self)


class Author(Role):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.set_actions([Draft, Polish])
        self._watch([UserRequirement])


async def test_005_17_actions_go_by_order_or_as_the_role_thinks() -> None:
    class Thinking(Author):
        async def _think(self) -> bool:
            done = sum(message.cause_by == "Draft" for message in self.rc.history)
            self.set_todo(Draft if done < 2 else Polish)
            return bool(self.rc.history[-1].cause_by != "Polish")

    by_order, thinking = Author(name="Ann"), Thinking(name="Tom")
    by_order._set_react_mode("by_order")
    thinking._set_react_mode("react", 3)
    for role, expected in ((by_order, ["Draft", "Polish"]), (thinking, ["Draft", "Draft", "Polish"])):
        environment = Environment()
        environment.add_role(role)
        environment.publish_message(Message("write"))
        await run_all(environment)
        assert [message.cause_by for message in role.rc.history][1:] == expected[:-1]
        assert environment.messages[-1].content == "polished: a draft"
    with pytest.raises(ValueError, match="by_order or react"):
        thinking._set_react_mode("plan_and_act")
    with pytest.raises(ValueError, match="one action of a class"):
        thinking.set_actions([Draft, Draft()])


async def test_a_role_without_a_choice_fails_alone() -> None:
    environment, noter = Environment(), Noter()
    noter._watch([UserRequirement])
    environment.add_roles([Author(), noter])
    environment.publish_message(Message("write"))
    with pytest.raises(ExceptionGroup) as raised:
        await environment.run()
    assert "override _think" in str(raised.value.exceptions[0])
    assert noter.noted == ["write"]


async def test_the_same_roles_join_an_environment_at_another_agent(tmp_path: Path) -> None:
    noter, splitter = Noter(name="talker"), Splitter(name="Sam")
    async with Agent(Identity.create(), PROTOCOLS, home=tmp_path / "lead") as lead:
        environment = AgentEnvironment(lead, URI)
        async with lead.listen("127.0.0.1", 0) as port, Agent(Identity.create(), PROTOCOLS, home=tmp_path / "other") as other:
            address = f"ws://127.0.0.1:{port}"
            third = Agent(Identity.create(), PROTOCOLS, home=tmp_path / "third")
            async with third, join(splitter, other, address, URI):
                with pytest.raises(OperationError) as refused:
                    async with join(Noter(name="Splitter"), third, address, URI):
                        raise AssertionError("joined")
                assert refused.value.status == 409
                async with join(noter, third, address, URI):
                    noter.actions[0].run = _count  # type: ignore[method-assign]
                    await environment.publish_message(Message("129", send_to=Splitter))
                    assert await environment.run(10) == []
                    assert await environment.is_idle()
                    messages = await environment.messages()
    assert noter.noted == [f"part {number}" for number in range(129)]
    assert [message.cause_by for message in messages if message.sent_from == "Noter"] == ["Note", "Note"]
    assert len(messages) == 1 + 129 + 1 + 2


async def _count(history: list[Message]) -> str:
    return str(len(history))


def test_in_one_process_it_needs_no_agent_and_no_library() -> None:
    script = (
        "import sys; before = set(sys.modules); import treaty_routing; "
        "print({name.partition('.')[0] for name in sys.modules.keys() - before} - set(sys.stdlib_module_names))"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout
    assert sorted(ast.literal_eval(output)) == ["treaty_handler", "treaty_routing"]
    assert Path(treaty_routing.__file__).parent.joinpath("handler").resolve() == (FOLDER / "handler").resolve()
