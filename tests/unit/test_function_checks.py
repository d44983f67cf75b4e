"""Functions are compared with the manifest before a peer can call them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from meetings import LAPTOP, TOPIC, URI_1, URI_2, buyer, meeting, party, shop

from treaty_agent.sessions.call_context import CallContext
from treaty_agent.sessions.operations import Functions, check_signatures
from treaty_agent.testing.virtual_time import run
from treaty_consensus.errors import Malformed
from treaty_consensus.handler import Operation, Role

URI = "https://registry.example/protocols/example.com/flights/1.1"
TEXT = {"type": "string"}
SEARCH = {"type": "object", "properties": {"to": TEXT, "limit": TEXT}, "required": ["to"], "additionalProperties": False}
# The second argument has no name that Python could use.
ODD = {"type": "object", "properties": {"to": TEXT, "sort-by": TEXT}, "required": ["to"], "additionalProperties": False}


def exact(to: str, limit: str = "") -> None: ...


def by_keyword(*, to: str, limit: str | None = None) -> None: ...


def all_defaults(to: str = "", limit: str = "", more: str = "") -> None: ...


def everything(**arguments: str) -> None: ...


def the_rest(to: str, **rest: str) -> None: ...


def without_limit(to: str) -> None: ...


def requires_limit(to: str, limit: str) -> None: ...


def requires_more(to: str, currency: str, limit: str = "") -> None: ...


def with_context(to: str, context: CallContext, limit: str = "") -> None: ...


def by_position(to: str, /, limit: str = "") -> None: ...


class Bound:
    def search(self, to: str, limit: str = "") -> None: ...


def check(function: Callable[..., Any], arguments: dict[str, Any] = SEARCH) -> None:
    functions, operation = Functions(), Operation("search", arguments, {}, {}, True, 5)
    functions.add(function, name="search")
    check_signatures(functions, Role("seller", "buyer", {}, {"search": operation}), URI)


@pytest.mark.parametrize("function", [exact, by_keyword, all_defaults, everything, the_rest, Bound().search, dict])
def test_functions_that_take_all_arguments_fit(function: Callable[..., Any]) -> None:
    check(function)


@pytest.mark.parametrize(
    ("function", "arguments", "fault"),
    [
        (without_limit, SEARCH, "search does not take the argument limit"),
        (requires_limit, SEARCH, "search requires limit, and a caller may leave it out"),
        (requires_more, SEARCH, "search requires currency, and the operation has no such argument"),
        (by_position, SEARCH, "search does not take the argument to"),
        (by_position, SEARCH, "search takes to by position"),
        (exact, ODD, "search does not take the argument sort-by"),
    ],
)
def test_the_first_call_does_not_find_the_fault(function: Callable[..., Any], arguments: dict[str, Any], fault: str) -> None:
    with pytest.raises(Malformed) as failure:
        check(function, arguments)
    assert failure.value.code == "agent.function"
    assert fault in failure.value.message
    assert URI in failure.value.message


def test_an_operation_of_any_arguments_asks_for_none() -> None:
    check(requires_more, {"type": "object"})
    with pytest.raises(Malformed):
        check(requires_more, {"type": "object", "additionalProperties": False})


def test_the_parameter_of_the_context_is_no_argument() -> None:
    check(with_context)


def test_an_unfitting_protocol_is_not_served_and_others_are(tmp_path: Path) -> None:
    async def main() -> None:
        seller = shop(tmp_path, URI_2)

        @seller.agent.provides(URI_1)
        async def getProductInfo(productId: str) -> Any:  # noqa: N802, N803
            return LAPTOP

        await seller.agent.prepare()
        assert {uri: error.code for uri, error in seller.agent.unserved.items()} == {URI_1: "agent.function"}
        async with meeting(seller) as wire, buyer(tmp_path).agent.connect_over(wire, topic=TOPIC) as session:
            assert session.protocol == URI_2
        await seller.agent.aclose()

    run(main())


def test_a_generator_serves_no_request(tmp_path: Path) -> None:
    async def main() -> None:
        seller = party("shop", tmp_path)

        @seller.agent.provides(URI_2)
        def getProductInfo(productId: str = "", productName: str = "") -> Any:  # noqa: N802, N803
            yield LAPTOP

        with pytest.raises(Malformed) as failure:
            await seller.agent.prepare()
        assert failure.value.code == "agent.function"
        await seller.agent.aclose()

    run(main())
