"""Whole sessions as bytes: an agent that plays one side of `greeting.json` says what stands there, and reads the rest."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from treaty_agent import OperationError
from treaty_agent.testing import Simulation, run
from treaty_agent.transport import memory
from treaty_agent.transport.connection import Connection, ConnectionLost, next_message

ROOT = Path(__file__).parents[2]
VECTOR = json.loads((ROOT / "tests" / "vectors" / "sessions" / "greeting.json").read_bytes())


async def greet(name: str) -> str:
    if name == "Mallory":
        raise OperationError(403, "The host does not greet strangers.")
    return f"Hello, {name}!"


class Replay:
    """Play one side of a session verbatim, but for the texts that the other side chose."""

    def __init__(self, session: dict[str, Any], side: str) -> None:
        self.messages, self.side = session["messages"], side
        self.chosen = dict.fromkeys(session["chosen"], "")

    async def play(self, connection: Connection) -> None:
        for message in self.messages:
            if message["from"] == self.side:
                connection.send(self._said(message))
            else:
                self._check(message, await next_message(connection))
        with suppress(ConnectionLost):
            await next_message(connection)

    def _said(self, message: dict[str, str]) -> str | bytes:
        text = message.get("text") or message["frame"]
        for name, value in self.chosen.items():
            text = text.replace(json.dumps(name), json.dumps(value or name))
        return text if "text" in message else text.encode()

    def _check(self, expected: dict[str, str], received: str | bytes) -> None:
        assert isinstance(received, str) is ("text" in expected)
        expected_text = expected.get("text") or expected["frame"][1:]
        if isinstance(received, bytes):
            assert received[0] == ord(expected["frame"][0])
            received = received[1:].decode()
        self._compare(json.loads(expected_text), json.loads(received))

    def _compare(self, expected_value: Any, received: Any) -> None:
        """A message may have more members, and a list of capabilities more entries."""
        if isinstance(expected_value, dict):
            assert expected_value.keys() <= received.keys()
            for name, value in expected_value.items():
                self._compare(value, received[name])
        elif expected_value == []:
            assert isinstance(received, list)
        elif isinstance(expected_value, str) and expected_value in self.chosen:
            assert self.chosen[expected_value] in ("", received)
            self.chosen[expected_value] = received
        else:
            assert received == expected_value


def test_an_agent_answers_as_the_vectors_destination() -> None:
    async def main() -> None:
        async with Simulation([ROOT / "examples" / "greeting"]) as simulation:
            host, uri = simulation.agent("host.example"), simulation.uri("greeting")
            host.provides(uri)(greet)
            await host.prepare()
            assert uri == VECTOR["protocol"]
            for session in VECTOR["sessions"]:
                near, far = memory.pair()
                serving = asyncio.create_task(host.accept(far))
                replaying = asyncio.create_task(Replay(session, "source").play(near))
                await asyncio.sleep(5)
                assert not replaying.done() or not replaying.exception(), session["title"]
                await near.close()
                await serving
                await replaying

    run(main())


def test_an_agent_calls_as_the_vectors_source() -> None:
    async def main() -> None:
        async with Simulation([ROOT / "examples" / "greeting"]) as simulation:
            guest, uri = simulation.agent("guest.example"), simulation.uri("greeting")
            for number, session in enumerate(VECTOR["sessions"]):
                near, far = memory.pair()
                replaying = asyncio.create_task(Replay(session, "destination").play(far))
                async with guest.connect_over(near, protocols=[uri], role="guest") as opened:
                    assert await opened.call("greet", name="Ada") == "Hello, Ada!"
                    assert opened.resumed is bool(number)
                    if not number:
                        with pytest.raises(OperationError, match="does not greet strangers") as refusal:
                            await opened.call("greet", name="Mallory")
                        assert refusal.value.status == 403
                await replaying

    run(main())
