"""Write commands and Python for one protocol, for readers to copy.

Foreign texts become Python only as literals by `repr`, and as names that a manifest restricts to ASCII identifiers.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..catalogue.packages import PackageOperation, PackageRole, PackageView
from .foreign_samples import ForeignSamples, foreign_samples

# More functions than this fill a page and help nobody's first attempt. `treaty stubs` writes all of them.
MAX_FUNCTIONS = 8


@dataclass(frozen=True)
class Snippets:
    """Texts to copy. `caller`, `provider`: programs of the side that connects and of the other one, or empty where they would be
    too long to read. `foreign`: programs in other languages, of a protocol without code."""

    fetch: str
    stubs: str
    caller: str = ""
    provider: str = ""
    foreign: ForeignSamples | None = None


def snippets(uri: str, digest: str, name: str, publisher: str, package: PackageView | None) -> Snippets:
    """Return the snippets of a protocol. `publisher`: of the handler. `package`: of the same, if it could be read."""
    accepted = f" \\\n    --publisher {publisher}"
    fetch = f"treaty fetch {uri}{accepted}\n# the same document, by its hash\ntreaty fetch sha256:{digest}{accepted}"
    stubs = f"treaty stubs {uri}{accepted} --output {name.replace('-', '_')}_stubs.py"
    if package is None:
        return Snippets(fetch, stubs)
    operations = {operation.name: operation for operation in package.operations}
    roles = {role.name: role for role in package.roles}
    # All peers of a shared role are in one session, so the other side connects.
    connecting = [role for role in package.roles if not role.is_shared]
    role = min(connecting, key=lambda role: _rank(role, operations), default=None)
    if role is None:
        return Snippets(fetch, stubs)
    invoked = [operations[name] for name in role.invokes]
    served = [operations[name] for name in roles[role.peer].invokes]
    called = _first_call(role, operations)
    return Snippets(
        fetch,
        stubs,
        _caller(uri, role, called, invoked),
        _provider(uri, roles[role.peer], served),
        foreign_samples(uri, role, called, served) if package.is_declarative else None,
    )


def _rank(role: PackageRole, operations: Mapping[str, PackageOperation]) -> tuple[bool, bool, int]:
    """Return the sort key of the side that connects: it has a call to make, best a request, and is called back little."""
    kinds = {operations[name].kind for name in role.calls}
    return not kinds, "request" not in kinds, len(role.invokes)


def _first_call(role: PackageRole, operations: Mapping[str, PackageOperation]) -> PackageOperation | None:
    """Return the operation to call first: best a request with an example that succeeds. None for a role that calls nothing."""

    def rank(operation: PackageOperation) -> tuple[bool, bool]:
        return operation.kind != "request", operation.example is None or operation.example.is_error

    return min((operations[name] for name in role.calls), key=rank, default=None)


def _caller(uri: str, role: PackageRole, operation: PackageOperation | None, invoked: Sequence[PackageOperation]) -> str:
    """Return a program that connects, calls `operation` if there is one, and serves the `invoked` operations meanwhile."""
    if not _are_functions(invoked):
        return ""
    functions = "".join(f"{line}\n" for each in invoked for line in ("", "", *_function(each)))
    serving = f", serving=[{', '.join(each.name for each in invoked)}]" if invoked else ""
    place = f"address, protocols=[URI], role={role.name!r}{serving}"
    if operation is None:
        body = f"""\
    async with Agent.from_home() as agent, agent.stay({place}) as stay:
        async for session in stay:
            print(await session.wait_ended())"""
    else:
        body = f"""\
    async with Agent.from_home() as agent, agent.connect({place}) as session:
{_call(operation)}"""
    return f"""\
import asyncio
import sys

from treaty_agent import Agent

URI = {uri!r}
{functions}

async def main(address: str) -> None:
{body}


asyncio.run(main(sys.argv[1]))  # such as ws://127.0.0.1:8765
"""


def _call(operation: PackageOperation) -> str:
    arguments = _example(operation.example.arguments if operation.example else "{}")
    values = arguments if isinstance(arguments, dict) else {}
    # `within` bounds a call, and other words are no names of arguments: such values are passed as a mapping.
    are_names = all(name.isidentifier() and not keyword.iskeyword(name) and name != "within" for name in values)
    passed = ", ".join(f"{name}={value!r}" for name, value in values.items()) if are_names else repr(values)
    call = f"{operation.name!r}, {passed}" if passed else repr(operation.name)
    if operation.kind == "stream":
        return f"""\
        async for item in session.stream({call}):
            print(item)"""
    return f"        print(await session.call({call}))"


def _provider(uri: str, role: PackageRole, operations: Sequence[PackageOperation]) -> str:
    """Return a program that listens, and serves the operations with the answers of their examples."""
    if not _are_functions(operations):
        return ""
    decorated = [("", f"@agent.provides(URI, role={role.name!r})", *_function(operation)) for operation in operations]
    if not decorated:
        served = "", f"@agent.on_session(URI, role={role.name!r})", "async def begun(session):", "    print(session.peer)"
        decorated = [served]
    functions = "\n".join(f"        {line}" if line else "" for lines in decorated for line in lines)
    return f"""\
import asyncio

from treaty_agent import Agent

URI = {uri!r}


async def main() -> None:
    async with Agent.from_home() as agent:
{functions}

        async with agent.listen("127.0.0.1", 8765) as port:
            print(f"ws://127.0.0.1:{{port}}", flush=True)
            await asyncio.Event().wait()


asyncio.run(main())
"""


def _are_functions(operations: Sequence[PackageOperation]) -> bool:
    """Return whether a program can define these operations as functions of their names, and few enough to read."""
    return len(operations) <= MAX_FUNCTIONS and not any(keyword.iskeyword(operation.name) for operation in operations)


def _function(operation: PackageOperation) -> Iterator[str]:
    """Yield the lines of a function that answers as the operation's example does."""
    yield f"async def {operation.name}(**arguments):"
    example = operation.example if operation.example and not operation.example.is_error else None
    if operation.kind == "stream":
        for item in example.items if example else ():
            yield f"    yield {_example(item)!r}"
        if example is None or not example.items:
            yield "    return"
            yield "    yield"
    elif operation.kind == "event":
        yield "    print(arguments)"
    elif example is not None:
        yield f"    return {_example(example.outcome)!r}"
    else:
        yield "    raise NotImplementedError"


def _example(text: str) -> Any:
    """Return the value of an example, or None when its text was cut."""
    try:
        return json.loads(text)
    except ValueError:
        return None
