"""What an agent offers before there is a protocol: what a function's signature says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from treaty_agent.sessions.operations import OfferedFunctions, capability_of
from treaty_consensus.errors import Malformed


class Product(TypedDict):
    productId: str
    price: float


@dataclass
class Filter:
    below: Annotated[float, msgspec.Meta(gt=0)]
    currency: Literal["EUR", "USD"] = "EUR"


async def search(words: str, filter: Filter, limit: int = 10) -> list[Product]:
    """Find products.

    By their names.
    """
    return []


def test_a_function_is_described_by_its_name_docstring_and_hints() -> None:
    capability = capability_of(search)
    assert (capability.name, capability.description) == ("search", "Find products.\n\nBy their names.")
    properties: Any = capability.arguments["properties"]
    definitions: Any = capability.arguments["$defs"]
    assert capability.arguments["type"] == "object"
    assert capability.arguments["required"] == ["words", "filter"]
    assert capability.arguments["additionalProperties"] is False
    assert properties["words"] == {"type": "string"}
    assert properties["filter"]["$ref"] == "#/$defs/Filter"
    assert definitions["Filter"]["properties"]["below"] == {"type": "number", "exclusiveMinimum": 0}
    assert capability.result["type"] == "array"
    assert capability.result["items"] == {"$ref": "#/$defs/Product"}


def test_what_has_no_hint_may_be_anything() -> None:
    def ping(value, other=None):  # type: ignore[no-untyped-def]
        return value

    capability = capability_of(ping)
    assert capability.description == ""
    assert capability.arguments["properties"] in (
        {"value": {}, "other": {"default": None}},
        {"value": {}, "other": {}},
    )
    assert (capability.arguments["required"], dict(capability.result)) == (["value"], {})


def positional(value: str, /) -> str:
    return value


def variadic(**values: str) -> str:
    return ""


def undescribable(value: complex) -> str:
    return ""


def unknown(value: Nowhere) -> str:  # type: ignore[name-defined] # noqa: F821
    return ""


@pytest.mark.parametrize("function", [positional, variadic, undescribable, unknown, lambda value: value])
def test_an_indescribable_function_is_not_offered(function: Any) -> None:
    offers = OfferedFunctions()
    with pytest.raises(Malformed) as refusal:
        offers.add(function)
    assert refusal.value.code == "agent.function"
    assert offers.capabilities == ()
    assert offers.functions.names == ()


def test_a_name_is_offered_once() -> None:
    offers = OfferedFunctions()
    offers.add(search)
    with pytest.raises(Malformed):
        offers.add(search)
    assert len(offers.capabilities) == 1
