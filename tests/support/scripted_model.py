"""A scripted language model behind a real HTTP endpoint on loopback, compatible with OpenAI's chat completions.

It knows a few protocols by heart, each in a folder: what the source drafts, what the destination makes of it, the test cases, the
handler. Which one is meant it finds out by what the prompt says; a prompt that is about an agreed protocol and does not contain
its document, to the letter, is answered with 422. For every kind of request it can be told to misbehave first.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sandboxed import handler_sources, sandboxed_product_info

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "vectors" / "negotiation"
PRODUCT_INFO = ROOT / "protocols" / "product-info"
KEY = "sk-loopback-0123456789"
SILENCE = 20.0

Answer = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What goes over the wire. `silent`: nothing, until the server is closed."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    silent: bool = False


Fault = Callable[[Answer], Reply]
"""Makes of the right answer what is sent instead."""


@dataclass(frozen=True)
class Script:
    """One protocol. `draft` differs from `document` by the lines that the destination adds."""

    requirement: str
    topic: str
    draft: str
    document: str
    answers: Mapping[str, Answer]

    def answer(self, name: str, prompt: str) -> Answer | None:
        """What a model that is up to it says; None where the prompt lacks what it has to have."""
        if name == "draft":
            return {"decision": "propose", "document": self.draft, "reason": ""}
        if name == "consider" and self.document not in prompt:
            counter = {"decision": "counter", "document": self.document, "summary": "Added what was missing.", "reason": ""}
            return counter if self.draft in prompt else None
        return self.answers[name] if self.document in prompt else None


class ScriptedModel:
    """See the module.

    `seen`: the names of all requests, in order; `prompts`: their messages; `structured`: whether they had a schema for the
    endpoint to enforce (one without is taken for a repetition of the one before).
    """

    def __init__(self, url: str, scripts: list[Script]) -> None:
        self.url = url
        self.scripts = scripts
        self.faults: dict[str, list[Fault]] = {}
        self.seen: list[str] = []
        self.prompts: list[list[dict[str, str]]] = []
        self.structured: list[bool] = []
        self.closing = threading.Event()

    def misbehave(self, name: str, *faults: Fault) -> None:
        """The next requests of this name are answered so, one each."""
        self.faults.setdefault(name, []).extend(faults)

    def reply(self, body: bytes, authorization: str) -> Reply:
        """The reply to a request."""
        if authorization != f"Bearer {KEY}":
            return Reply(401, error(f"Incorrect key: {authorization}"))
        request = json.loads(body)
        self.structured.append("response_format" in request)
        name = request["response_format"]["json_schema"]["name"] if self.structured[-1] else self.seen[-1]
        self.seen.append(name)
        self.prompts.append(request["messages"])
        prompt = "\n".join(message["content"] for message in request["messages"])
        scripts = [script for script in self.scripts if script.draft in prompt or script.document in prompt]
        if name == "draft":
            scripts = [script for script in self.scripts if script.requirement in prompt]
        answer = scripts[0].answer(name, prompt) if len(scripts) == 1 else None
        if answer is None:
            return Reply(422, error(f"The prompt of {name} does not contain the document that it is about."))
        waiting = self.faults.get(name)
        return waiting.pop(0)(answer) if waiting else completion(json.dumps(answer, ensure_ascii=False))


def completion(content: str | None, *, finish: str = "stop", refusal: str | None = None, tokens: int = 1_000) -> Reply:
    """A completion with this content."""
    message = {"role": "assistant", "content": content, "refusal": refusal}
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    value = {"id": "1", "object": "chat.completion", "choices": [choice], "usage": {"total_tokens": tokens}, "took": 0.5}
    return Reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def error(text: str) -> bytes:
    """An error's body."""
    return json.dumps({"error": {"message": text, "type": "invalid_request_error"}}).encode()


def instead(reply: Reply) -> Fault:
    """This reply, whatever the answer would have been."""
    return lambda _: reply


def prose(answer: Answer) -> Reply:
    """Text that is no JSON."""
    return completion("Certainly! Here is what I came up with: a protocol in three steps.")


def another_schema(answer: Answer) -> Reply:
    """JSON of another shape."""
    return completion(json.dumps({"thoughts": "none", "score": 7}))


def truncated(answer: Answer) -> Reply:
    """The first half, and it says so."""
    text = json.dumps(answer)
    return completion(text[: len(text) // 2], finish="length")


def torn(answer: Answer) -> Reply:
    """The first half, and it does not say so."""
    text = json.dumps(answer)
    return completion(text[: len(text) // 2])


def refusal(answer: Answer) -> Reply:
    """It does not want to."""
    return completion(None, refusal="I cannot help with protocols.")


def oversized(answer: Answer) -> Reply:
    """More than anybody should read."""
    return completion("x" * 3_000_000)


def changed(**fields: Any) -> Fault:
    """The answer with other fields."""
    return lambda answer: completion(json.dumps({**answer, **fields}))


def code(change: Callable[[str], str]) -> Fault:
    """The answer with other code in its `__init__.py`."""

    def fault(answer: Answer) -> Reply:
        files = [
            {**file, "content": change(file["content"])} if file["path"] == "__init__.py" else file for file in answer["files"]
        ]
        return completion(json.dumps({**answer, "files": files}))

    return fault


def load_scripts() -> list[Script]:
    """The three protocols: JSON with one operation, lines of text with three, binary messages with a state."""
    return [
        _script(
            "product-info",
            "I want to look up products of a shop by their id or name.",
            (PRODUCT_INFO / "1.0" / "document.md")
            .read_text()
            .replace("# Product information 1.0\n", "# Product information\n\n- Topic: commerce/product-info\n"),
            {name: content.decode() for name, content in handler_sources().items()},
            _coded_manifest(),
        ),
        *(
            _script(
                name,
                requirement,
                (FOLDER / name / "document.md").read_text(),
                {"__init__.py": (FOLDER / name / "handler.py").read_text()},
                (FOLDER / name / "manifest.json").read_text(),
            )
            for name, requirement in (
                ("booking", "I want to find trains, book seats on them and give bookings back."),
                ("counter", "I want to count events at a meter, each event exactly once."),
            )
        ),
    ]


def _coded_manifest() -> str:
    handler = sandboxed_product_info("1.0").handler
    assert handler is not None
    return json.dumps(handler.manifest, indent=2)


def _script(name: str, requirement: str, document: str, sources: Mapping[str, str], manifest: str) -> Script:
    cases = (FOLDER / name / "cases.md").read_text()
    written = {
        "summary": f"What {name} is about.",
        "manifest": manifest,
        "files": [{"path": path, "content": content} for path, content in sources.items()],
        "test_cases": cases,
    }
    fine = {"decision": "accept", "summary": "", "reason": ""}
    answers: dict[str, Answer] = {
        "consider": {**fine, "document": ""},
        "tests": {"test_cases": cases},
        "consider_tests": {**fine, "test_cases": ""},
        "handler": written,
        "repair": written,
        "judge": {"at_fault": False, "reason": "The document says so under Flow."},
        "answer": {"answer": "In cents."},
    }
    topic = document.split("- Topic: ")[1].split("\n")[0]
    draft = "\n".join(line for line in document.split("\n") if "has failed" not in line and "timed out" not in line)
    assert draft != document
    return Script(requirement, topic, draft, document, answers)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client hung up."""


@contextmanager
def scripted_model() -> Iterator[ScriptedModel]:
    """A server that knows the three protocols, gone afterwards."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            reply = Reply(404, error(f"There is no {self.path}."))
            if self.path == "/v1/chat/completions":
                reply = model.reply(body, self.headers.get("Authorization", ""))
            if reply.silent:
                model.closing.wait(SILENCE)
                self.close_connection = True
                return
            self.send_response(reply.status)
            for header, value in reply.headers.items():
                self.send_header(header, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            try:
                self.wfile.write(reply.body)
            except OSError:  # the client had enough
                self.close_connection = True

        def log_message(self, format: str, *arguments: object) -> None:
            """Keep quiet."""

    server = _Server(("127.0.0.1", 0), Handler)
    model = ScriptedModel(f"http://127.0.0.1:{server.server_port}/v1", load_scripts())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield model
    finally:
        model.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
