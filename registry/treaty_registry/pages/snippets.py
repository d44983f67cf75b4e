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

# More functions than this fill a page and help nobody's first attempt. `treaty stubs` writes all of them.
MAX_FUNCTIONS = 8


@dataclass(frozen=True)
class Snippets:
    """Texts to copy. `caller`, `provider`: programs, or empty where a protocol needs more than these can show."""

    fetch: str
    stubs: str
    caller: str = ""
    provider: str = ""


def snippets(uri: str, digest: str, name: str, publisher: str, package: PackageView | None) -> Snippets:
    """Return the snippets of a protocol. `publisher`: of the handler. `package`: of the same, if it could be read."""
    accepted = f" \\\n    --publisher {publisher}"
    fetch = f"treaty fetch {uri}{accepted}\n# the same document, by its hash\ntreaty fetch sha256:{digest}{accepted}"
    stubs = f"treaty stubs {uri}{accepted} --output {name.replace('-', '_')}_stubs.py"
    if package is None:
        return Snippets(fetch, stubs)
    operations = {operation.name: operation for operation in package.operations}
    roles = {role.name: role for role in package.roles}
    for role in package.roles:
        request = _request(role, operations)
        # One side calls and the other answers; a session of another shape needs more than a first program.
        if request is None or role.is_shared or roles[role.peer].is_shared or request.name not in roles[role.peer].invokes:
            continue
        served = [operations[name] for name in roles[role.peer].invokes]
        # A caller that is called back must provide functions too, which is more than a first program.
        provider = "" if role.invokes else _provider(uri, roles[role.peer], served)
        return Snippets(fetch, stubs, "" if role.invokes else _caller(uri, role, request), provider)
    return Snippets(fetch, stubs)


def _request(role: PackageRole, operations: Mapping[str, PackageOperation]) -> PackageOperation | None:
    """Return the operation to call first: one with an example that succeeds, if there is one."""
    requests = [operations[name] for name in role.calls if operations[name].kind == "request"]
    good = (operation for operation in requests if operation.example and not operation.example.is_error)
    return next(good, requests[0] if requests else None)


def _caller(uri: str, role: PackageRole, operation: PackageOperation) -> str:
    arguments = _example(operation.example.arguments if operation.example else "{}")
    values = arguments if isinstance(arguments, dict) else {}
    return f"""\
import asyncio
import sys

from treaty_agent import Agent

URI = {uri!r}


async def main(address: str) -> None:
    async with Agent.from_home() as agent, agent.connect(address, protocols=[URI], role={role.name!r}) as session:
        print(await session.call({operation.name!r}, **{values!r}))


asyncio.run(main(sys.argv[1]))  # such as ws://127.0.0.1:8765
"""


def _provider(uri: str, role: PackageRole, operations: Sequence[PackageOperation]) -> str:
    names = [operation.name for operation in operations]
    if len(names) > MAX_FUNCTIONS or any(map(keyword.iskeyword, names)):
        return ""
    functions = "\n".join(line for operation in operations for line in _function(role, operation))
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


def _function(role: PackageRole, operation: PackageOperation) -> Iterator[str]:
    yield ""
    yield f"        @agent.provides(URI, role={role.name!r})"
    yield f"        async def {operation.name}(**arguments):"
    example = operation.example if operation.example and not operation.example.is_error else None
    if operation.kind == "stream":
        for item in example.items if example else ():
            yield f"            yield {_example(item)!r}"
        if example is None or not example.items:
            yield "            return"
            yield "            yield"
    elif operation.kind == "event":
        yield "            print(arguments)"
    elif example is not None:
        yield f"            return {_example(example.outcome)!r}"
    else:
        yield "            raise NotImplementedError"
    yield ""


def _example(text: str) -> Any:
    """Return the value of an example, or None when its text was cut."""
    try:
        return json.loads(text)
    except ValueError:
        return None
