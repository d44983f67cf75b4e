"""The context of a call: who calls, how long there is, and its trace."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from meetings import LAPTOP, TOPIC, URI_2, buyer, buyers, meeting, shop

from treaty_client import CallContext, OperationError, TraceContext, current_call
from treaty_client.sessions.call_context import context_parameter
from treaty_client.sessions.operations import Functions, OfferedFunctions, capability_of
from treaty_client.testing import run
from treaty_consensus.errors import Malformed
from treaty_handler import Value

if TYPE_CHECKING:
    from treaty_client.sessions import call_context as only_for_types


TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", flags=1, state="vendor=a")


async def named_freely(productId: str, whatever: CallContext) -> None: ...  # noqa: N803


async def by_a_type_checkers_name(ctx: only_for_types.CallContext) -> None: ...


async def optional(ctx: CallContext | None = None) -> None: ...


async def without(context: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "name"),
    [(named_freely, "whatever"), (by_a_type_checkers_name, "ctx"), (optional, "ctx"), (without, "")],
)
def test_the_context_is_recognised_by_its_annotation(function: Any, name: str) -> None:
    assert context_parameter(function) == name


async def two(one: CallContext, other: CallContext) -> None: ...


async def unnamed(context: CallContext, /) -> None: ...


@pytest.mark.parametrize("function", [two, unnamed])
def test_a_context_that_cannot_be_given_is_refused_at_registration(function: Any) -> None:
    functions = Functions()
    with pytest.raises(Malformed) as refusal:
        functions.add(function)
    assert (refusal.value.code, functions.names) == ("agent.function", ())


def test_the_context_is_no_part_of_an_offered_capability() -> None:
    async def read(productId: str, context: CallContext) -> str:  # noqa: N803
        return productId

    described: Any = capability_of(read)
    assert (list(described.arguments["properties"]), described.arguments["required"]) == (["productId"], ["productId"])
    offers = OfferedFunctions()
    offers.add(read)
    assert offers.functions.context_parameter("read") == "context"


def test_a_made_context_calls_a_function_in_a_test() -> None:
    async def whose(context: CallContext) -> str:
        return context.peer

    made = CallContext(peer="did:wba:buyer.example", peer_is_proved=True)
    assert asyncio.run(whose(made)) == "did:wba:buyer.example"
    assert (made.time_left, made.parameters, len(made.trace.trace_id)) == (math.inf, {}, 32)
    assert current_call() is None


def test_the_time_that_is_left_ends_at_zero() -> None:
    now = 10.0
    made = CallContext(deadline=12.5, clock=lambda: now)
    assert made.time_left == 2.5
    now = 13.0
    assert made.time_left == 0.0


# Over a session


def serve(home: Path, seen: list[CallContext], *, in_thread: bool = False) -> Any:
    """A shop whose function notes its context, and the one that `current_call` gives."""

    async def getProductInfo(productId: str, context: CallContext) -> Value:  # noqa: N802, N803
        seen.extend([context, current_call() or CallContext()])
        return LAPTOP

    def blocking(productId: str, context: CallContext) -> Value:  # noqa: N803
        seen.extend([context, current_call() or CallContext()])
        return LAPTOP

    blocking.__name__ = "getProductInfo"
    return shop(home, URI_2, function=blocking if in_thread else getProductInfo)
