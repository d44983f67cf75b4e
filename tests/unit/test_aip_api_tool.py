"""Tools of AIP that call an HTTP API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from aip_nodes import LOOPBACK, nodes

from treaty_agent import OperationError
from treaty_aip import Tool, ToolResponse


class Echo(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        reply = {"method": self.command, "path": self.path, "body": body, "token": self.headers.get("X-Token")}
        status = 418 if "teapot" in self.path else 302 if "moved" in self.path else 200
        data = b"x" * 2_000_000 if "large" in self.path else json.dumps(reply).encode()
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815  # the names that http.server calls

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


async def called(url: str, method: str, **arguments: str) -> ToolResponse:
    async with nodes() as network:
        tool = await network.tool(Tool.creat_api_tool(LOOPBACK, url, method, {"X-Token": "t"}, 5, tool_id="api"))
        agent = await network.agent("a")
        return await agent.call_tool("api", arguments=arguments, address=tool.address)


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST", "PUT", "PATCH"])
async def test_003_09_and_40_arguments_go_to_url_query_and_body(api: str, method: str) -> None:
    answer = await called(f"{api}/items/{{id}}?a=1", method, id="x/../y z", other="ü&b")
    data = json.loads(answer.content[0].text or "")
    assert (answer.is_error, data["method"], data["token"]) == (False, method, "t")
    in_query = method in ("GET", "DELETE")
    assert data["path"] == "/items/x%2F..%2Fy%20z?a=1" + ("&other=%C3%BC%26b" if in_query else "")
    assert data["body"] == "" if in_query else json.loads(data["body"]) == {"other": "ü&b"}


@pytest.mark.parametrize(
    ("path", "arguments"), [("teapot", {}), ("moved", {}), ("large", {}), ("{id}", {}), ("{id}", {"id": ".."})]
)
async def test_003_09_a_failure_of_the_api_is_an_error_of_the_tool(api: str, path: str, arguments: dict[str, str]) -> None:
    answer = await called(f"{api}/{path}", "GET", **arguments)
    assert (answer.is_error, answer.content) == (True, [])
    assert answer.error_message


async def test_003_09_an_api_that_is_not_there_is_an_error_of_the_tool() -> None:
    assert (await called("http://127.0.0.1:1/", "GET")).is_error


@pytest.mark.parametrize(
    ("url", "method"), [("http://x/", "TRACE"), ("ftp://x/", "GET"), ("http://{host}/", "GET"), ("http://u{x}/", "GET")]
)
def test_an_api_that_a_caller_could_choose_is_refused(url: str, method: str) -> None:
    with pytest.raises(OperationError):
        Tool.creat_api_tool(LOOPBACK, url, method)


def test_003_09_the_description_comes_from_the_call_or_the_url() -> None:
    tool = Tool.creat_api_tool("h:1", "https://api.example/users/{id}")
    assert (tool.tool_info.arguments, tool.tool_info.description) == ({"id": "any"}, "GET https://api.example/users/{id}")

    async def fetch(user: str, *, deep: bool = False) -> str:
        """Fetch a user."""
        return user

    tool_info = Tool.create_function_tool(fetch, "h:1").tool_info
    assert (tool_info.tool_id, tool_info.description, tool_info.arguments) == (
        "fetch",
        "Fetch a user.",
        {"user": "str", "deep": "bool"},
    )


async def test_003_09_a_function_may_have_any_names_of_arguments() -> None:
    def named(function: str, arguments: str, self: str) -> str:
        return function + arguments + self

    async with nodes() as network:
        tool = await network.tool(Tool.create_function_tool(named, LOOPBACK))
        agent = await network.agent("a")
        answer = await agent.call_tool("named", arguments={"function": "x", "arguments": "y", "self": "z"}, address=tool.address)
        assert answer.content[0].text == "xyz"
