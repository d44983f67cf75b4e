"""Pass messages between a host and a server of MCP, and check the tools.

- `tools/list` of the host is answered by the guard: it asks the server for all pages, and leaves out each tool that is not the
  pinned one.
- `tools/call` passes if its tool was in the newest list as it is pinned. Before the first call, and after the server announced
  another list, the guard asks for the list itself.
- Instructions of the server that are not the pinned ones are taken out of its answers.
- An answer passes if the host waits for it, so that a server cannot answer `tools/list` in the place of the guard.

All else passes as it is, in both directions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from treaty_agent.rpc.mcp import META
from treaty_consensus.errors import Malformed, TooLarge, TreatyError, Unavailable
from treaty_consensus.printable import printable
from treaty_io.codes import RpcCode

from .pins import Pin
from .published import PublishedInterface
from .tool_list import MAX_INSTRUCTIONS, MAX_TOOLS, ToolChange, ToolList
from .upstream import MAX_WAITING, EndpointUpstream, Message, ProcessUpstream

PATIENCE = 60.0
"""Seconds for a page of the list. Some servers start slowly."""
MAX_PAGES = 64
_OWN = "treaty-guard-"
_INVALID, _INTERNAL = -32600, -32603

Send = Callable[[Message], Awaitable[None]]


class Guard:
    """One host and one server. For one event loop; `run` it once.

    `report`: called with the differences of a list that is not the pinned one, once for each such list.
    """

    def __init__(
        self,
        upstream: ProcessUpstream | EndpointUpstream,
        pin: Pin,
        report: Callable[[list[ToolChange], ToolList], None],
        published: PublishedInterface | None = None,
    ) -> None:
        """`published`: the interface that a log has. At first sight only tools that are its operations are accepted."""
        self._upstream, self._pin, self._report, self._published = upstream, pin, report, published
        self._waiting: dict[tuple[type, Any], str] = {}
        """The methods of the host's requests that are at the server, by the type and the value of their ids."""
        self._asked: dict[str, asyncio.Future[Message]] = {}
        self._count = 0
        self._allowed: frozenset[str] | None = None
        self._instructions: str | None = None
        self._reported = ""
        # One look at the list at a time.
        self._turn = asyncio.Lock()
        # One message at a time: two halves of a long line would not be one.
        self._sending = asyncio.Lock()

    async def run(self, host: AsyncIterator[Message | None], send: Send) -> None:
        """Serve until the host or the server ends. `host`: yields its messages, and None for a line that is none."""

        async def send_one(message: Message) -> None:
            async with self._sending:
                await send(message)

        await self._upstream.start()
        tasks = (asyncio.create_task(self._downward(send_one)), asyncio.create_task(self._upward(host, send_one)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            await self._upstream.aclose()
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _upward(self, host: AsyncIterator[Message | None], send: Send) -> None:
        async with asyncio.TaskGroup() as group:
            turns = asyncio.Semaphore(MAX_WAITING)
            async for message in host:
                method = message.get("method") if message else None
                if message is None or ("method" in message and not isinstance(method, str)):
                    await send(_error(None, _INVALID, "This is no message of JSON-RPC. The guard takes no batches."))
                elif method in ("tools/list", "tools/call") and "id" in message:
                    # In a task: the server may ask the host for something before it lists its tools.
                    await turns.acquire()
                    work = self._list(message, send) if method == "tools/list" else self._call(message, send)
                    group.create_task(work).add_done_callback(lambda _: turns.release())
                else:
                    await self._pass_on(message, send)

    async def _pass_on(self, message: Message, send: Send) -> None:
        if "id" in message and "method" in message:
            key = type(message["id"]), message["id"]
            if not isinstance(message["id"], str | int) or key in self._waiting or len(self._waiting) >= MAX_TOOLS:
                await send(
                    _error(None, _INVALID, "The id of a request is a text or a number, and no other request waits with it.")
                )
                return
            self._waiting[key] = message["method"]
        await self._upstream.send(message)

    async def _downward(self, send: Send) -> None:
        async for message in self._upstream.messages():
            if "method" in message:
                if message["method"] == "notifications/tools/list_changed":
                    self._allowed = None
                await send(message)
                continue
            number = message.get("id")
            if isinstance(number, str) and (asked := self._asked.get(number)) is not None:
                if not asked.done():
                    asked.set_result(message)
            elif isinstance(number, str | int) and (method := self._waiting.pop((type(number), number), "")):
                await send(self._without_other_instructions(message, method))

    def _without_other_instructions(self, message: Message, method: str) -> Message:
        result = message.get("result")
        if method not in ("initialize", "server/discover") or not isinstance(result, dict):
            return message
        text = result.get("instructions", "")
        self._instructions = text if isinstance(text, str) else ""
        accepted = self._pin.accepted
        # At first sight they are pinned with the tools.
        is_known = accepted is None or accepted.instructions == self._instructions
        if is_known and isinstance(text, str) and len(text) <= MAX_INSTRUCTIONS:
            return message
        return {**message, "result": {name: value for name, value in result.items() if name != "instructions"}}

    async def _list(self, message: Message, send: Send) -> None:
        try:
            tools = await self._checked(message)
        except TreatyError as error:
            await send(_error(message["id"], _INTERNAL, error.message))
            return
        result: Message = {"tools": tools}
        if _is_stateless(message):
            result |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        await send({"jsonrpc": "2.0", "id": message["id"], "result": result})

    async def _call(self, message: Message, send: Send) -> None:
        params = message.get("params")
        name = params.get("name") if isinstance(params, dict) else None
        try:
            if self._allowed is None:
                await self._checked(message)
        except TreatyError as error:
            await send(_error(message["id"], _INTERNAL, error.message))
            return
        if isinstance(name, str) and self._allowed is not None and name in self._allowed:
            await self._pass_on(message, send)
            return
        text = f"The guard blocks {printable(str(name), 80)}: it is not the tool that the owner accepted. Ask the owner."
        result: Message = {"content": [{"type": "text", "text": text}], "isError": True}
        if _is_stateless(message):
            result["resultType"] = "complete"
        await send({"jsonrpc": "2.0", "id": message["id"], "result": result})

    async def _checked(self, message: Message) -> list[Any]:
        """Ask the server for its tools, in the era of a message; return those that are as pinned. Raises `TreatyError`."""
        async with self._turn:
            self._allowed = None
            listed = await self._listed(message)
            accepted = self._pin.accepted
            pinned_text = accepted.instructions if accepted else ""
            found = ToolList.of(listed, pinned_text if self._instructions is None else self._instructions)
            differences: list[ToolChange] = []
            if accepted is None and self._published is not None:
                first, differences = self._published.accepted(found, listed)
                await asyncio.to_thread(self._pin.compare, first)
            accepted = await asyncio.to_thread(self._pin.compare, found)
            if found != accepted:
                self._tell([*differences, *accepted.changes(found)], found)
            same = frozenset(name for name, text in found.texts.items() if accepted.texts.get(name) == text)
            self._allowed = same
            return [tool for tool in listed if tool["name"] in same]

    def _tell(self, changes: list[ToolChange], found: ToolList) -> None:
        # A host may list the tools before each turn of its model.
        if found.digest != self._reported:
            self._reported = found.digest
            self._report(changes, found)

    async def _listed(self, message: Message) -> list[Any]:
        params = message.get("params")
        about = {"_meta": params["_meta"]} if isinstance(params, dict) and "_meta" in params else {}
        # A progress token of the host is for its own request.
        if isinstance(about.get("_meta"), dict):
            about["_meta"] = {name: value for name, value in about["_meta"].items() if name != "progressToken"}
        tools: list[Any] = []
        cursor: Any = None
        for _ in range(MAX_PAGES):
            match await self._ask("tools/list", {**about, **({} if cursor is None else {"cursor": cursor})}):
                case {"result": {"tools": list(page)} as result}:
                    tools += page
                    cursor = result.get("nextCursor")
                case {"error": {"message": str(text)}}:
                    raise Unavailable(RpcCode.UNREACHABLE, f"The server lists no tools: {printable(text, 300)}")
                case _:
                    raise Malformed(RpcCode.ANSWER, "The server answers tools/list in another form.")
            if len(tools) > MAX_TOOLS:
                break
            if cursor is None:
                return tools
        raise TooLarge(RpcCode.ANSWER, f"The server lists more than {MAX_TOOLS} tools or {MAX_PAGES} pages.")

    async def _ask(self, method: str, params: Message) -> Message:
        self._count += 1
        number = f"{_OWN}{self._count}"
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._upstream.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
                reply: Message = await answer
                return reply
        except TimeoutError as error:
            raise Unavailable(RpcCode.UNREACHABLE, "The server does not list its tools.") from error
        finally:
            del self._asked[number]


def _is_stateless(message: Message) -> bool:
    params = message.get("params")
    return isinstance(params, dict) and isinstance(params.get("_meta"), dict) and f"{META}protocolVersion" in params["_meta"]


def _error(number: Any, code: int, text: str) -> Message:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": text}}
