"""Runs inside the environment of the official SDK: one side of negotiations, whose language model reads from a script.

In, a line each: {"begin": "source" or "destination", "answers": […], "code": FOLDER} for a new negotiation, {"frame": B64} for
the SDK. Out: {"ready": true} when frames may come, {"frame": B64}, and at the end of a negotiation {"agreed": BOOL, "module":
PATH, "peer_generated": BOOL or null}. An answer of the model is {"text": …}, {"fail": …} or {"tool": {…}}, arguments for the
SDK's one tool.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import sys
from types import SimpleNamespace
from typing import Any

from anp.meta_protocol import MetaProtocol  # type: ignore[import-not-found]
from anp.utils.llm.base_llm import BaseLLM  # type: ignore[import-not-found]

logging.disable(logging.CRITICAL)
OUT, sys.stdout = sys.stdout, sys.stderr  # what the SDK prints is not an event


def tell(**event: object) -> None:
    """Say what happened."""
    print(json.dumps(event), file=OUT, flush=True)


class ScriptedModel(BaseLLM):  # type: ignore[misc]
    """Gives the answers of the script in their order, whichever way it is asked."""

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        completions = SimpleNamespace(create=self._create)
        super().__init__(SimpleNamespace(chat=SimpleNamespace(completions=completions)), "scripted")
        self._answers = answers

    async def async_generate_response(self, system_prompt: str, user_prompt: str) -> str:
        """How the SDK has drafts and code written."""
        text: str = self._next()["text"]
        return text

    async def async_generate_vision_response(self, system_prompt: str, user_prompt: str, image_path: str) -> str:
        """Not asked for in a negotiation."""
        raise AssertionError("a negotiation has no pictures")

    async def async_openai_generate_parse(self, system_prompt: str, user_prompt: str, response_format: Any) -> Any:
        """Not asked for in a negotiation."""
        raise AssertionError("a negotiation parses its own answers")

    async def async_generate_vision_parse_response(
        self, system_prompt: str, user_prompt: str, image_path: str, response_format: Any
    ) -> Any:
        """Not asked for in a negotiation."""
        raise AssertionError("a negotiation has no pictures")

    async def _create(self, **request: Any) -> Any:
        answer = self._next()
        calls = None
        if "tool" in answer:
            function = SimpleNamespace(name="get_capability_info", arguments=json.dumps(answer["tool"]))
            calls = [SimpleNamespace(id="call-1", function=function)]
        message = SimpleNamespace(content=answer.get("text"), tool_calls=calls)
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])

    def _next(self) -> dict[str, Any]:
        answer = self._answers.pop(0) if self._answers else {"fail": "the script is at its end"}
        if "fail" in answer:
            raise RuntimeError(answer["fail"])
        return answer


async def send(data: bytes) -> None:
    """A frame of the SDK."""
    tell(frame=base64.b64encode(data).decode())


async def capability(requirement: str, input_description: str, output_description: str) -> str:
    """What the SDK's tool says of this side."""
    return f"It can do this: {requirement}"


async def talk(protocol: Any, role: str) -> None:
    """Negotiate, have the code written, say so and wait for the other side's."""
    if role == "source":
        agreed, module = await protocol.negotiate_protocol("Get a product by its id.", "a product id", "the product")
    else:
        agreed, module = await protocol.wait_remote_negotiation()
    generated = None
    if agreed:
        await protocol.notify_code_generation()
        generated = await protocol.wait_for_code_generation()
    tell(agreed=agreed, module=module, peer_generated=generated)


async def main() -> None:
    """One negotiation after the other."""
    reader = asyncio.StreamReader(limit=1 << 22)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    protocol: Any = None
    talking: asyncio.Task[None] | None = None
    while line := await reader.readline():
        order = json.loads(line)
        if "frame" in order:
            protocol.handle_meta_data(base64.b64decode(order["frame"]))
            continue
        if talking is not None:
            talking.cancel()
        protocol = MetaProtocol(send, capability, ScriptedModel(order["answers"]), order["code"])
        talking = asyncio.create_task(talk(protocol, order["begin"]))
        if order["begin"] == "destination":
            await asyncio.sleep(0)  # until it waits: it drops what came before
        tell(ready=True)


if __name__ == "__main__":
    asyncio.run(main())
