"""Schemas and values that are made to cost the host: refused in the manifest, or checked in bounded time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from costly_schemas import AMBIGUOUS, SECONDS, each

from treaty_anp.hello_profile import messages
from treaty_consensus.errors import Malformed, Refused, TooLarge
from treaty_consensus.handler.schema import check_schema, check_together, pattern_weight, work_of
from treaty_handler import decode_json
from treaty_handler.values import MAX_VALUES
from treaty_sandbox.schemas import MAX_CHECKS, MAX_MATCH, MAX_TEXT, Schemas
from treaty_sandbox.worker import framing


def nested(build: Callable[[Any], Any], levels: int, inner: Any) -> Any:
    for _ in range(levels):
        inner = build(inner)
    return inner


def doubling(*keywords: str) -> dict[str, Any]:
    """Each level refers twice to the next one: 2^20 nodes when it is written out."""
    levels = {f"d{n}": {keywords[0]: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(20)}
    return {"$ref": "#/$defs/d0", "$defs": {**levels, "d20": {"type": "string"}}}


@pytest.mark.threat(43)
@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "[ab][ -y]{1,4000}z"},
        {"pattern": "((a{0,20}){20}){5}z"},
        {"pattern": "(?:(?:a{9}b{9}){9}){9}"},
        {"pattern": "(a|b|ab|ba){300}"},
        {"pattern": "a{,4000}"},
        {"pattern": r"\p{L}{1,20}"},
        {"pattern": "[^a]{1,200}"},
        {"pattern": "é{200}"},
        {"pattern": r"\u{61}{200}"},
        {"pattern": r"[\p{L}\p{N}]{2}"},
        {"pattern": "a" * 3_000},
        {"pattern": "[" * 2_000},
        {"pattern": "(?i)a"},
        {"pattern": "(?x) a{ 4 0 0 0 }"},
        {"patternProperties": {"a{200}": {}}},
        {"allOf": [{"pattern": f"a{n}"} for n in range(30)]},
        {"allOf": [{"uniqueItems": True}] * 480},
        {"items": {"items": {"allOf": [{"uniqueItems": True}] * 60}}},
        {"allOf": [{"multipleOf": 0.01}] * 20},
        {"multipleOf": 1e-300},
        {"multipleOf": 1e16},
        {"allOf": [{"format": "idn-hostname"}] * 20},
        {"allOf": [{"$ref": "#/$defs/a"}] * 20, "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}] * 2}, "b": {"pattern": "a"}}},
        {"properties": {"a": {"unevaluatedProperties": False}}},
        {"unevaluatedItems": False},
        {"format": "regex"},
        {"items": {"format": "regex"}},
        doubling("allOf"),
        doubling("anyOf"),
        {"$defs": {f"d{n}": nested(lambda s: {"not": s}, 20, {"$ref": f"#/$defs/d{n + 1}"}) for n in range(9)}}
        | {"$ref": "#/$defs/d0"},
    ],
    ids=lambda schema: str(schema)[:50],
)
def test_a_schema_that_may_cost_too_much_is_refused(schema: dict[str, Any]) -> None:
    started = time.thread_time()
    with pytest.raises(Refused) as caught:
        check_schema({"$defs": {"d9": {}}, **schema} if "$defs" not in schema else schema | defs(schema), "a result")
    assert caught.value.code == "handler.manifest"
    assert time.thread_time() - started < SECONDS


def defs(schema: dict[str, Any]) -> dict[str, Any]:
    return {"$defs": {"d9": {}, **schema["$defs"]}}


@pytest.mark.parametrize(
    ("pattern", "weight"),
    [
        ("", 0),
        ("^[0-9a-f]{64}$", 66),
        ("([a-f]{8}-){4}", 40),
        (r"^\d{4}-\d{2}-\d{2}$", 12),
        (r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}$", 131),
        (r"^did:[a-z0-9]+:[A-Za-z0-9._:%-]{1,200}$", 208),
        (r"^\S+@\S+$", 23),
        (r"[\]{9}]{5}", 5),
        (r"\{9{3}", 4),
        (r"a\p{Lu}", 401),
        ("^https?://[^/]+(/.*)?$", 32),
    ],
)
def test_patterns_as_they_are_used_are_light(pattern: str, weight: int) -> None:
    assert pattern_weight(pattern) == weight
    Schemas().compile(check_schema({"pattern": pattern}, "a result"), "ask")


@pytest.mark.threat(43)
def test_what_many_schemas_cost_together_is_bounded() -> None:
    small = {"items": {"pattern": "^[ab]{900}"}}
    check_together([small] * 50)  # the same pattern is compiled once
    with pytest.raises(Refused):
        check_together([{"items": {"pattern": f"^[ab]{{900}}{n}"}} for n in range(12)])
    with pytest.raises(Refused):
        check_together([{"enum": list(range(900))}] * 23)


# The worst that the caps admit


def letters(size: int, seed: int = 0) -> str:
    drawn = random.Random(seed)
    return "".join(drawn.choices("ab", k=size))


def brackets(size: int) -> list[Any]:
    """Lists of lists of nothing, all different, for which the validator's own hash is the same."""
    shapes: list[list[Any]] = [[]]
    for shape in shapes:
        shapes += [[shape], [shape, []], [[], shape]]
        if len(shapes) > size:
            break
    return list({repr(shape): shape for shape in shapes}.values())[:size]


def beside(schema: dict[str, Any], item: Any) -> list[Any]:
    """As many items as the caps and the schema's work admit, to the last."""
    work, size = work_of(schema), len(item.encode()) if isinstance(item, str) else 0
    text = min(MAX_TEXT, MAX_CHECKS * 64 // work.text if work.text else MAX_TEXT)
    return [item] * (min(MAX_VALUES - 1, MAX_CHECKS // work.checks - 1, (text - 64) // size if size else MAX_VALUES))


def most_costly() -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Names, schemas that are accepted, and the values that take longest."""
    for count in (20, 60, 120):
        schema = each(*[{"type": "string"}] * count)
        yield f"{count} types", schema, beside(schema, 0)
    for weight in (8, 64, 200, 900):
        schema = each({"pattern": f"[ab][ -y]{{1,{weight}}}z"})
        text = letters(MAX_MATCH // (weight + 3))
        yield f"a pattern of {weight}, longest texts", schema, beside(schema, text)
        yield f"a pattern of {weight}, short texts", schema, beside(schema, letters(40))
    schema = each({"pattern": AMBIGUOUS})  # what the engine learns from one text does not help with the next
    yield "an ambiguous pattern", schema, [letters(MAX_MATCH // pattern_weight(AMBIGUOUS), seed) for seed in range(200)]
    schema = each(*({"pattern": f"[ab][ -y]{{1,50}}z{n}"} for n in range(9)))
    yield "9 patterns", schema, beside(schema, letters(200))
    for divisor in (0.1, 1.7e-9, 7):
        schema = {"items": {"multipleOf": divisor}}
        yield f"multiples of {divisor}", schema, beside(schema, divisor * 1e300)
        yield f"no multiples of {divisor}", each(schema["items"]), beside(each(schema["items"]), 1.7e308)
    schema = {"uniqueItems": True}
    yield "unique lists", schema, brackets(1_700)
    yield "unique objects", schema, [{"a": "e.", "b": n + 0.5} for n in range(6_600)]
    yield "unique numbers", schema, [n + 0.5 for n in range(19_900)]
    schema = {"uniqueItems": True, "items": {"uniqueItems": True, "items": {"uniqueItems": True}}}
    yield "unique all the way down", schema, [[[n + 0.5] for n in range(k, k + 80)] for k in range(60)]
    for name, text in (
        ("idn-hostname", "é" * 31),
        ("hostname", "xn--" + "a" * 59),
        ("email", "a@" + ".".join(["b" * 20] * 10)),
        ("uri-template", "{a}" * 600),
        ("uri-reference", "a%20" * 500),
        ("iri", "http://é/" + "é" * 800),
    ):
        schema = each({"format": name})
        yield f"format {name}", schema, beside(schema, text)
    schema = each({"enum": ["a" * 100 + str(n) for n in range(100, 580)]})
    yield "a long enumeration", schema, beside(schema, "a" * 100 + "999")
    schema = {"not": {"patternProperties": {"[ab][ -y]{1,90}z": False}, "additionalProperties": True}}
    yield "patterns of names", schema, {letters(100) + str(n): 0 for n in range(100)}
    schema = {"anyOf": [{"type": "string"}] * 480}  # whose explanation would quote the value 480 times
    yield "many alternatives", schema, ["x" * 50] * 2_000
    yield "fewer alternatives", {"anyOf": [{"type": "string"}] * 20}, ["x" * 50] * 2_400
    schema = nested(lambda s: {"anyOf": [s, {"type": "string"}]}, 14, {"type": "string"})
    yield "nested alternatives", schema, beside(schema, "x")
    schema = nested(lambda s: {"contains": s, "items": s}, 6, {"type": "string"})
    yield "nested contains", schema, [[[[0] * 20] * 10] * 9] * 9
    yield "lengths", {"allOf": [{"maxLength": 10**9}] * 300}, "é" * 200_000


@pytest.mark.deep
@pytest.mark.threat(44)
def test_the_worst_case_that_the_caps_admit() -> None:
    """Prints what each takes (`pytest -s`): the figure in the documentation is the largest of them."""
    slowest = 0.0
    for name, schema, value in most_costly():
        compiled = Schemas().compile(check_schema(schema, name), "ask")
        started = time.thread_time()
        outcome = "valid"
        try:
            compiled.check(value, "operation.result", "The result")
        except Malformed as error:
            outcome = error.message[:90]
        spent = time.thread_time() - started
        slowest = max(slowest, spent)
        print(f"{name:40} {spent * 1000:7.1f} ms  {outcome}")
        assert spent < SECONDS, name
    print(f"{'the slowest':40} {slowest * 1000:7.1f} ms")


def test_values_at_the_caps_are_looked_at_and_beyond_refused() -> None:
    check = Schemas().compile(check_schema({"items": {"type": "integer"}}, "a result"), "ask").check
    check([0] * (MAX_VALUES - 1), "operation.result", "The result")
    for value in ([0] * MAX_VALUES, ["a" * 1024] * (MAX_TEXT // 1024 + 1), {"a" * MAX_TEXT: 0, "b": 0}):
        with pytest.raises(Malformed):
            check(value, "operation.result", "The result")


def test_work_times_size_and_the_clock_of_patterns_are_bounds() -> None:
    many = Schemas().compile(check_schema({"items": {"allOf": [{"type": "integer"}] * 400}}, "a result"), "ask").check
    many([0] * 2_000, "operation.result", "The result")
    with pytest.raises(Malformed, match="too large for their schema"):
        many([0] * 10_000, "operation.result", "The result")
    slow = Schemas().compile(check_schema(each({"pattern": AMBIGUOUS}), "a result"), "ask").check
    slow([letters(1_400)], "operation.result", "The result")
    with pytest.raises(Malformed, match="too long to match"):
        slow([letters(1_400, seed) for seed in range(200)], "operation.result", "The result")


def test_only_a_small_value_gets_an_explanation() -> None:
    """An explanation quotes the value for each of the alternatives: gigabytes, for values at the caps."""
    check = Schemas().compile(check_schema({"anyOf": [{"type": "string"}] * 480}, "a result"), "ask").check
    with pytest.raises(Malformed, match="too large to say where"):
        check(["x" * 50] * 2_000, "operation.result", "The result")
    with pytest.raises(Malformed, match=r"at \$"):
        check([1], "operation.result", "The result")


@pytest.mark.threat(44)
def test_a_text_too_long_for_its_pattern_is_refused() -> None:
    schemas = Schemas()
    matches = schemas.compile(check_schema({"pattern": "^[a-f]{64}$"}, "a result"), "ask").check
    matches("a" * 64, "operation.result", "The result")
    denied = schemas.compile(check_schema({"not": {"pattern": "^[a-f]{64}$"}}, "a result"), "ask").check
    denied("b" * 100, "operation.result", "The result")
    for check in (matches, denied):
        with pytest.raises(Malformed, match="too long for its pattern"):
            check("b" * (MAX_MATCH // 66 + 1), "operation.result", "The result")
    denied("b" * 100, "operation.result", "The result")  # the next check begins anew


# What these keywords mean is what the standard says


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"pattern": "b"}, ["abc", 1, None], ["xyz", ""]),
        ({"pattern": "^é$"}, ["é"], ["e"]),
        ({"uniqueItems": True}, [[], [1, 2], [1, True], [0, False], ["1", 1], [{"a": 1}, {"a": 2}], [[1], [[1]]], "aa"], []),
        ({"uniqueItems": True}, [], [[1, 1.0], [0, -0.0], [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], [[], []], ["x", "x"]]),
        ({"uniqueItems": False}, [[1, 1]], []),
        ({"multipleOf": 0.01}, [0.07, 19.99, 4, 0, 1e300, "x"], [0.075, 1e-300]),
        ({"multipleOf": 3}, [9, 9.0, -3, 0], [10, 9.5]),
        ({"multipleOf": 1e-9}, [1e300, 1.7e308, 0.5], [1e-10, 5e-324]),
    ],
)
def test_the_metered_keywords(schema: dict[str, Any], valid: list[Any], invalid: list[Any]) -> None:
    check = Schemas().compile(check_schema(schema, "a result"), "ask").check
    for value in valid:
        check(value, "operation.result", "The result")
    for value in invalid:
        with pytest.raises(Malformed):
            check(value, "operation.result", "The result")


# What is counted before objects are made of it


@pytest.mark.threat(46)
@pytest.mark.parametrize("item", [None, 1, 300, 2**40, 1.5, "", "x" * 40, "x" * 400, b"", b"x" * 70_000, [], {}])
def test_a_reply_has_so_many_values(item: object) -> None:
    most = framing.MAX_REPLY_VALUES - 3  # the frame, its kind, and the list are values too

    def reply(count: int) -> bytes:
        return framing.encode_frame("value", [item, *[None] * (count - 1)])[framing.HEADER :]

    assert framing.decode_reply(reply(most)).kind == "value"
    with pytest.raises(ValueError, match="at most 65536 values"):
        framing.decode_reply(reply(most + 1))


@pytest.mark.threat(46)
def test_a_message_of_the_peer_has_so_many_values() -> None:
    started = time.thread_time()
    for filler in ("0,", "[],", '"",', "{},"):
        data = '{"action":"codeGeneration","status":"generated","x":[' + filler * 300_000 + "0]}"
        with pytest.raises(TooLarge):
            messages.parse(data.encode()[: messages.MAX_MESSAGE])
        with pytest.raises(ValueError, match="values"):
            decode_json(data.encode())
    assert time.thread_time() - started < SECONDS
    # A text may hold as many commas and brackets as it likes.
    payload = '{"action":"fixErrorNegotiation","status":"negotiating","errorDescription":"' + ',[{\\"\\\\' * 2_000 + '"}'
    assert isinstance(messages.parse(payload.encode()), messages.FixErrorNegotiation)
    assert decode_json(b'{"a":"' + b',[{\\"\\\\' * 50_000 + b'"}')
