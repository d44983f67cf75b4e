"""A handler that emits, requests or cancels more than it may: nothing of that event happens, and the worker is ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from handler_packages import ANYTHING, LOCAL, MANIFEST, PEER, PROBE, package
from rejections import rejection
from sandboxes import LEVELS

from treaty_consensus.errors import Malformed, Refused, TreatyError
from treaty_handler import (
    Call,
    Cancel,
    Cancelled,
    Effect,
    Emit,
    Event,
    Failure,
    Invoke,
    Item,
    Opened,
    Request,
    Requested,
    Result,
    Return,
    Timer,
)
from treaty_sandbox import HandlerSession, SandboxPool
from treaty_sandbox.operation_schemas import Operations
from treaty_sandbox.schemas import MAX_CHECKS
from treaty_sandbox.validation import SessionRules

pytestmark = [pytest.mark.usefixtures("level"), pytest.mark.parametrize("level", LEVELS, indirect=True)]
TEXTS: dict[str, Any] = {**ANYTHING, "kind": "stream", "result": {"type": "string"}}
EVENT: dict[str, Any] = {"kind": "event", "arguments": {"type": "object"}}
KINDS: dict[str, Any] = {
    "operations": {"ask": ANYTHING, "watch": TEXTS, "note": EVENT, "serve": ANYTHING, "feed": TEXTS, "noted": EVENT},
    "roles": {
        "client": {"peer": "server", "calls": ["ask", "watch", "note"], "invokes": ["serve", "feed", "noted"]},
        "server": {"peer": "client", "calls": [], "invokes": []},
    },
}
# The code of a call is run, and nothing is returned by itself.
SILENT = PROBE.replace(', Return(call=event.call, value=space["value"], error=space["error"])]', "]")


@asynccontextmanager
async def opened(manifest: dict[str, Any] = KINDS) -> AsyncIterator[HandlerSession]:
    """A session whose stream `w` may give two items and whose request `a` is pending; the handler invoked `f` and `s`."""
    async with SandboxPool(size=0) as pool:
        worker = await pool.load_code(package(SILENT, manifest), local=LOCAL, peers=[PEER])
        session = await worker.open("client")
        await session.handle(Opened())
        await session.handle(Call(call="a", operation="ask", arguments={"code": ""}))
        if manifest is KINDS:
            await session.handle(Call(call="w", operation="watch", arguments={"code": ""}))
            await session.handle(Requested(call="w", count=2))
            invokes = "Invoke(call='f', operation='feed', arguments={}), Invoke(call='s', operation='serve', arguments={})"
            await session.handle(Call(call="x", operation="note", arguments={"code": f"effects = [{invokes}]"}))
        yield session


async def effects(session: HandlerSession, code: str) -> Sequence[Effect]:
    return await session.handle(Call(call="y", operation="ask", arguments={"code": f"effects = [{code}]"}))


@pytest.mark.sample(10)
@pytest.mark.threat(55)
@pytest.mark.parametrize(
    ("effect", "why"),
    [
        ("*[Emit(call='w', value='text')] * 3", "items"),
        ("Emit(call='never', value='text')", "pending|no stream"),
        ("Emit(call='a', value='text')", "pending|no stream"),
        ("Emit(call='x', value='text')", "pending|no stream"),
        ("Emit(call='f', value='text')", "pending|no stream"),
        ("Return(call='w'), Emit(call='w', value='text')", "pending|no stream"),
        ("Emit(call='w', value=1)", "schema|item|result|listed"),
        ("Emit(call='w', value=b'bytes')", "schema|item|result|listed"),
        ("Emit(call='w', value='\\ud800')", "raised"),
        ("Return(call='w', value='text')", "schema|item|result|listed"),
        ("Return(call='x', value='text')", "schema|item|result|listed"),
        ("Return(call='x', error=Failure(code=404))", "schema|item|result|listed"),
        ("Request(call='f', count=0)", "items"),
        ("Request(call='f', count=-1)", "items"),
        ("Request(call='f', count=1025)", "items"),
        ("*[Request(call='f', count=1)] * 1025", "items"),
        ("Request(call='f', count=2 ** 62), Request(call='f', count=2 ** 62)", "items"),
        ("Request(call='s', count=1)", "pending|no stream"),
        ("Request(call='w', count=1)", "pending|no stream"),
        ("Request(call='never', count=1)", "pending|no stream"),
        ("Cancel(call='w')", "pending|no stream"),
        ("Cancel(call='never')", "pending|no stream"),
        ("Cancel(call='f'), Cancel(call='f')", "pending|no stream"),
        ("Cancel(call='f'), Request(call='f', count=1)", "pending|no stream"),
        ("Invoke(call='f', operation='feed', arguments={})", "pending|no stream"),
        ("Invoke(call='2', operation='watch', arguments={})", "may not invoke"),
        ("Emit(call='w', value='text', more=1)", "raised"),
        ("Request(call='f', count='1')", "not of the kind"),
        ("Request(call='f', count=True)", "not of the kind"),
        ("Request(call='f', count=1.0)", "not of the kind"),
        ("Emit(call=1, value='text')", "not of the kind"),
        ("Cancel(call=None)", "not of the kind"),
        ("Requested(call='w', count=1)", "broke its interface"),
        ("Item(call='f', value='text')", "broke its interface"),
        ("Cancelled(call='w')", "broke its interface"),
    ],
)
async def test_an_effect_that_breaks_a_rule_of_streams(effect: str, why: str) -> None:
    async with opened() as session:
        with pytest.raises(Refused) as caught:
            await effects(session, effect)
        assert rejection(caught.value, f"handler.failed: {why}") == f"handler.failed: {why}"
        assert caught.value.message.isprintable()
        with pytest.raises(TreatyError):  # the worker is gone
            await session.handle(Call(call="z", operation="ask", arguments={"code": ""}))


async def test_what_is_allowed_happens_and_credit_comes_back() -> None:
    async with opened() as session:
        two = [Emit(call="w", value="1"), Emit(call="w", value="2")]
        assert await effects(session, "Emit(call='w', value='1'), Emit(call='w', value='2')") == two
        await session.handle(Cancelled(call="y"))
        assert "y" not in session.pending_calls
        await session.handle(Requested(call="w", count=1))
        code = "Emit(call='w', value='3'), Return(call='w'), Request(call='f', count=1024), Cancel(call='s')"
        assert await effects(session, code) == [
            Emit(call="w", value="3"),
            Return(call="w"),
            Request(call="f", count=1024),
            Cancel(call="s"),
        ]
        assert set(session.pending_calls) == {"a", "x", "y"}
        await session.handle(Item(call="f", value="text"))
        with pytest.raises(Malformed) as wrong:
            await session.handle(Item(call="f", value=1))
        assert wrong.value.code == "operation.result"
        with pytest.raises(Malformed):
            await session.handle(Result(call="f", value="a stream ends without a value"))
        await session.handle(Result(call="f", error=Failure(code=500)))


async def test_interface_1_has_no_new_events_or_effects() -> None:
    async with opened(MANIFEST) as session:
        assert await session.handle(Cancelled(call="a")) == []
        assert session.pending_calls == ("a",)
        with pytest.raises(Refused) as caught:
            await effects(session, "Cancel(call='a')")
        assert caught.value.code == "handler.failed"


def rules(result: dict[str, Any] | None = None) -> SessionRules:
    operations = {**KINDS["operations"], "watch": {**TEXTS, "result": result or TEXTS["result"]}}
    manifest = package(SILENT, {**KINDS, "operations": operations}).manifest
    rules = SessionRules(manifest.roles["client"], Operations(manifest), [PEER])
    rules.enter(Opened())
    rules.enter(Call(call="w", operation="watch", arguments={}))
    rules.leave(Timer(name="t"), [Invoke(call="f", operation="feed", arguments={})])
    return rules


def test_events_that_came_too_late_are_not_delivered() -> None:
    session_rules = rules()
    session_rules.leave(Timer(name="t"), [Return(call="w")])
    assert not session_rules.enter(Requested(call="w", count=1))
    assert not session_rules.enter(Cancelled(call="w"))


@pytest.mark.parametrize(
    "event",
    [
        Requested(call="w", count=0),
        Requested(call="w", count=1025),
        Item(call="f", value="not asked for"),
        Item(call="w", value="a call"),
        Item(call="never", value=""),
    ],
)
def test_a_mistake_of_the_host_with_a_stream(event: Event) -> None:
    session_rules = rules()
    with pytest.raises(ValueError):
        session_rules.enter(event)
    assert session_rules.pending_calls == ("w",)


@pytest.mark.threat(45)
def test_the_items_of_one_event_share_one_budget() -> None:
    session_rules = rules({"items": {"multipleOf": 1.7e-9}})
    session_rules.enter(Requested(call="w", count=1_024))
    value = [1.7e308] * 50
    assert MAX_CHECKS < 1_024 * 50 * 150
    with pytest.raises(Refused, match="cost too much") as caught:
        session_rules.leave(Timer(name="t"), [Emit(call="w", value=value)] * 1_024)
    assert caught.value.code == "handler.failed"
