"""Runs inside an environment that has MetaGPT: its real messages, roles and environment, with a scripted model, one call a line.

Its providers of models and its tools need some seventy packages, which routing does not use. Modules of those are empty here.
"""

from __future__ import annotations

import asyncio
import importlib.abc
import importlib.machinery
import json
import os
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ABSENT = frozenset(
    {
        "PIL",
        "aiohttp",
        "anthropic",
        "boto3",
        "botocore",
        "bs4",
        "chardet",
        "dashscope",
        "docx",
        "git",
        "gitignore_parser",
        "google",
        "imap_tools",
        "joblib",
        "nbclient",
        "nbformat",
        "openai",
        "pandas",
        "playwright",
        "qianfan",
        "requests",
        "rich",
        "sklearn",
        "sparkai",
        "tiktoken",
        "tree_sitter",
        "tree_sitter_python",
        "volcenginesdkarkruntime",
        "zhipuai",
    }
)


class _Anything(type):
    """A class that has each attribute, which is such a class too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything(name)


def _anything(name: str) -> _Anything:
    return _Anything(name, (), {"__init__": lambda self, *_, **__: None, "__class_getitem__": classmethod(lambda cls, _: cls)})


class _Empty(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        is_absent = name.partition(".")[0] in ABSENT
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_absent else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


# MetaGPT reads its settings when it is imported, from the home folder, and writes logs into the present one.
_FOLDER = tempfile.TemporaryDirectory()
_HOME = Path(_FOLDER.name)
os.environ["HOME"] = _FOLDER.name
os.chdir(_HOME)
(_HOME / ".metagpt").mkdir()
(_HOME / ".metagpt" / "config2.yaml").write_text("llm: {api_type: openai, api_key: none, model: scripted}\n")
sys.meta_path.insert(0, _Finder())
sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

import feedback_script as script  # noqa: E402
import loguru  # type: ignore[import-not-found]  # noqa: E402
import source_listing  # noqa: E402
from metagpt.actions import Action  # type: ignore[import-not-found]  # noqa: E402
from metagpt.configs.llm_config import LLMType  # type: ignore[import-not-found]  # noqa: E402
from metagpt.environment.base_env import Environment  # type: ignore[import-not-found]  # noqa: E402
from metagpt.memory import Memory  # type: ignore[import-not-found]  # noqa: E402
from metagpt.provider.base_llm import BaseLLM  # type: ignore[import-not-found]  # noqa: E402
from metagpt.provider.llm_provider_registry import register_provider  # type: ignore[import-not-found]  # noqa: E402
from metagpt.roles.role import Role  # type: ignore[import-not-found]  # noqa: E402
from metagpt.schema import Message  # type: ignore[import-not-found]  # noqa: E402
from pydantic import BaseModel  # noqa: E402

loguru.logger.remove()
ANSWERS: list[str] = []
"""The answers of the scripted model to the prompts with which a role chooses its next state."""


@register_provider([LLMType.OPENAI])
class Scripted(BaseLLM):  # type: ignore[misc]
    """The scripted model."""

    def __init__(self, config: Any) -> None:
        self.config = config

    async def aask(self, msg: Any, *_: Any, **__: Any) -> str:
        await asyncio.sleep(0)  # a model lets others go on
        return ANSWERS.pop(0) if ANSWERS else script.model(msg)

    async def _achat_completion(self, *_: Any, **__: Any) -> Any: ...
    async def acompletion(self, *_: Any, **__: Any) -> Any: ...
    async def _achat_completion_stream(self, *_: Any, **__: Any) -> Any: ...


class About(BaseModel):
    """The instruct_content of the script."""

    task: int
    round: int


class Recorded(Environment):  # type: ignore[misc]
    """An environment that keeps the messages that were published, in the source's own memory."""

    published: Memory = Memory()

    def publish_message(self, message: Any, peekable: bool = True) -> bool:
        self.published.add(message)
        return bool(super().publish_message(message, peekable))


NAMES = ("Split", "Work", "Compile", "Review", "First", "Second")
ACTIONS = {name: type(name, (Action,), {"__module__": __name__}) for name in NAMES}


class Looping(Role):  # type: ignore[misc]
    """A role that works on each of its news, as the source's document says: it publishes, and returns a dummy."""

    rounds: int = 0
    turns: int = 0
    calls: Any = None

    async def _act(self) -> Any:
        answers = [await self.llm.aask(f"{self.rc.todo.name}: {message.content}") for message in self.rc.news]
        for message in self.rc.news:
            self.calls[_short(message.cause_by)] += 1
        for answer in answers:
            for draft in script.drafts(self.name, answer, self.rounds):
                self.rc.env.publish_message(_message(draft))
        self.turns += 1
        dummy = _message(script.dummy(self.name, self.turns))
        self.rc.memory.add(dummy)
        return dummy


def loop(rounds: int) -> dict[str, Any]:
    """The feedback loop: the history, the calls of each member, and whether the environment is idle."""
    environment, roles = Recorded(published=Memory()), []
    for name, address in script.MEMBERS.items():
        role = _class(Looping, address)(name=name, profile=name, rounds=rounds, calls=Counter())
        role.set_actions([ACTIONS[script.ACTIONS[name]](name=script.ACTIONS[name])])
        role._watch(ACTIONS.get(cause, cause) if cause != "UserRequirement" else _requirement() for cause in script.WATCHES[name])
        roles.append(role)
    environment.add_roles(roles)
    environment.publish_message(Message(**{**script.REQUEST, "send_to": type(roles[0])}))
    asyncio.run(_until_idle(environment))
    return {
        "history": [_value(message) for message in environment.published.get()],
        "text": environment.history,
        "calls": {role.name: dict(role.calls) for role in roles},
        "idle": environment.is_idle,
    }


def deliver(members: list[dict[str, Any]], batches: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """What each member buffers of some messages, and what of it is news; and which of the messages the history has.

    The members look after each batch.
    """
    environment, roles = Recorded(published=Memory()), []
    deliveries: dict[str, dict[str, list[str]]] = {member["name"]: {"buffered": [], "news": []} for member in members}
    for member in members:
        role = _class(Role, member["address"])(name=member["name"], profile=member["name"])
        if "watch" in member:
            role.rc.watch = set(member["watch"])
        roles.append(role)
    environment.add_roles(roles)
    classes = {type(role).__name__: type(role) for role in roles}
    for batch in batches:
        for message in batch:
            recipients = {classes.get(name, name) for name in message.get("send_to", [])}
            environment.publish_message(Message(**{**message, "send_to": recipients}))
        for role in roles:
            buffered = role.rc.msg_buffer.pop_all()
            for message in buffered:
                role.rc.msg_buffer.push(message)
            asyncio.run(role._observe())
            deliveries[role.name]["buffered"] += [message.id for message in buffered]
            deliveries[role.name]["news"] += [message.id for message in role.rc.news]
    return {"members": deliveries, "history": [message.id for message in environment.published.get()]}


def defaults() -> dict[str, Any]:
    """A message of which only the content is given."""
    return _value(Message(content="x"))


def react(mode: str, limit: int, answers: list[str]) -> list[str]:
    """The actions that a role with two actions does in one reaction. `answers`: of the model, where it chooses."""
    done: list[str] = []

    class Doing(Role):  # type: ignore[misc]
        async def _act(self) -> Any:
            done.append(self.rc.todo.name)
            return Message(content="done")

    role = Doing(name="Eve", profile="Eve")
    role.set_actions([ACTIONS[name](name=name) for name in ("First", "Second")])
    role._set_react_mode(mode, limit)
    ANSWERS[:] = answers
    asyncio.run(role.run("begin"))
    ANSWERS.clear()
    return done


class Named(Role):  # type: ignore[misc]
    """A role with a name and a profile: roles without a profile share one key, so that the last alone is run."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"name": f"{type(self).__name__}-1", "profile": type(self).__name__, **kwargs})


def listing(rounds: int) -> dict[str, Any]:
    """The source's listing, with our fillings of its actions."""
    from metagpt.actions.add_requirement import UserRequirement  # type: ignore[import-not-found]
    from metagpt.const import MESSAGE_ROUTE_TO_NONE  # type: ignore[import-not-found]
    from metagpt.context import Context  # type: ignore[import-not-found]

    names = {"Action": Action, "Context": Context, "Environment": Recorded, "Message": Message, "Role": Named}
    names |= {"MESSAGE_ROUTE_TO_NONE": MESSAGE_ROUTE_TO_NONE, "UserRequirement": UserRequirement, "__name__": "listing"}
    namespace, runs = source_listing.prepared(names, rounds)
    Recorded.model_fields["published"].default = Memory()
    environment = asyncio.run(namespace["main"]())
    history = [_value(message) for message in environment.published.get()]
    return {"history": history, "runs": runs, "idle": environment.is_idle}


async def _until_idle(environment: Any) -> None:
    while not environment.is_idle:
        await environment.run()


def _class(base: type, name: str) -> Any:
    return type(name, (base,), {"__module__": __name__})


def _requirement() -> Any:
    from metagpt.actions.add_requirement import UserRequirement

    return UserRequirement


def _message(draft: dict[str, Any]) -> Any:
    about = draft.get("instruct_content")
    cause = ACTIONS[draft["cause_by"]]
    members = {"instruct_content": None if about is None else About(**about), "cause_by": cause, "send_to": set(draft["send_to"])}
    return Message(**{**draft, **members})


def _value(message: Any) -> dict[str, Any]:
    value: dict[str, Any] = message.model_dump()
    value["instruct_content"] = None if message.instruct_content is None else message.instruct_content.model_dump()
    # Causes and classes are module paths there.
    return value | {
        "cause_by": _short(message.cause_by),
        "sent_from": _short(message.sent_from),
        "send_to": sorted(map(_short, message.send_to)),
    }


def _short(name: str) -> str:
    return name.rpartition(".")[2]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "loop": loop,
    "deliver": deliver,
    "defaults": defaults,
    "react": react,
    "listing": listing,
}


def main() -> None:
    """Answer each line of the standard input."""
    for line in sys.stdin:
        data = json.loads(line)
        try:
            answer = {"result": FUNCTIONS[data["call"]](**data["arguments"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
