"""The host of a handler, step by step: what is late does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from meetings import URI_2, product_info
from pauses import pause
from queued_steps import Queue

from treaty_agent.sessions.handler_context import HandlerContext
from treaty_agent.sessions.handler_host import HandlerHost
from treaty_agent.sessions.handler_state import SessionStore
from treaty_agent.sessions.operations import Functions
from treaty_agent.testing.virtual_time import run
from treaty_anp.call_metadata import CallMetadata
from treaty_anp.trace_context import TraceContext
from treaty_handler import Effect, Event, Invoke, Received, Result, Send, SetTimer, Timer
from treaty_io.identity import ProvedPeer

PEER = ProvedPeer("did:wba:b.example")
ROLE = product_info(URI_2).package.manifest.roles["provider"]


class Asking:
    """A handler that answers what it receives with the effects that were set."""

    kept = None

    def __init__(self) -> None:
        self.effects: Sequence[Effect] = ()
        self.seen: list[Event] = []

    async def handle(self, event: Event) -> Sequence[Effect]:
        self.seen.append(event)
        return self.effects if isinstance(event, Received) else ()

    async def close(self) -> None: ...


def host(home: Path) -> tuple[HandlerHost, Asking, Queue]:
    handler, queue, functions = Asking(), Queue(PEER), Functions()

    async def getProductInfo(productId: str) -> str:  # noqa: N802, N803
        return productId

    functions.add(getProductInfo)
    store = SessionStore.of_proved(home, "ab" * 32, ROLE.name, "did:wba:a.example", PEER)
    return HandlerHost(handler, HandlerContext(PEER, ROLE, 10), functions, store, queue), handler, queue


def test_a_replaced_timer_does_not_ring(tmp_path: Path) -> None:
    async def main() -> None:
        hosted, handler, queue = host(tmp_path)
        handler.effects = [SetTimer(name="t", seconds=10)]
        await hosted.received(b"")
        await asyncio.sleep(11)  # it rang, and waits for its turn
        await hosted.received(b"")
        await queue.perform()
        assert [event for event in handler.seen if isinstance(event, Timer)] == []
        await asyncio.sleep(11)
        await queue.perform()
        assert len([event for event in handler.seen if isinstance(event, Timer)]) == 1

    run(main())


def test_timers_due_in_a_pause_ring_after_the_messages(tmp_path: Path) -> None:
    async def main() -> None:
        hosted, handler, queue = host(tmp_path)
        names = {"late": 0.5, "gone": 0.2, "early": 0.1, "last": 0.45}
        handler.effects = [
            *(SetTimer(name=name, seconds=seconds) for name, seconds in names.items()),
            SetTimer(name="gone", seconds=None),
        ]
        await hosted.received(b"")
        handler.effects = []
        pause(0.6)  # the pause: one timer is only a little late at its end
        for _ in range(3):  # each in a later turn of the loop, as messages of a socket
            await asyncio.sleep(0.01)
            await hosted.received(b"")
        while len(queue.steps) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await queue.perform()
        rung = [event.name if isinstance(event, Timer) else "message" for event in handler.seen]
        assert rung == ["message"] * 4 + ["early", "last", "late"]
        await hosted.close()

    asyncio.run(main())


def test_events_for_a_replaced_handler_are_dropped(tmp_path: Path) -> None:
    async def main() -> None:
        hosted, handler, queue = host(tmp_path)
        handler.effects = [
            SetTimer(name="t", seconds=10),
            Invoke(call="1", operation="getProductInfo", arguments={"productId": "x"}),
        ]
        await hosted.received(b"")
        await asyncio.sleep(11)
        assert len(queue.steps) == 2
        await hosted.close()
        await queue.perform()
        assert [event for event in handler.seen if isinstance(event, Timer | Result)] == []

    run(main())


def test_a_messages_context_is_for_its_functions_alone(tmp_path: Path) -> None:
    async def main() -> None:
        hosted, handler, queue = host(tmp_path)
        handler.effects = [Send(peer="did:wba:b.example", data=b"")]
        await hosted.received(b"", metadata=CallMetadata(TraceContext.new(), 1000))
        assert queue.sent == [None]

    run(main())
