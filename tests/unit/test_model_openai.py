"""The adapter for OpenAI-compatible endpoints against a real HTTP server: what it sends, and all that goes wrong."""

from __future__ import annotations

import email.utils
import gzip
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from scripted_model import (
    KEY,
    Fault,
    Reply,
    ScriptedModel,
    another_schema,
    changed,
    completion,
    error,
    instead,
    oversized,
    prose,
    refusal,
    scripted_model,
    torn,
    truncated,
)

from treaty_agent.negotiators.language_model import Allowance, Budget, Prompt
from treaty_agent.negotiators.openai import MAX_QUOTED, MAX_REQUEST, OpenAIModel
from treaty_consensus.errors import Malformed, TooLarge, TreatyError, Unavailable
from treaty_io.network.hosts import Network

SCHEMA = {
    "type": "object",
    "properties": {"decision": {"enum": ["propose", "reject"]}, "document": {"type": "string"}, "reason": {"type": "string"}},
    "required": ["decision", "document", "reason"],
    "additionalProperties": False,
}
BUSY = instead(Reply(429, error("slow down"), {"Retry-After": "3"}))
BROKEN = instead(Reply(500, error("oops")))


class Waits:
    """A `sleep` that only writes down."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture
def server() -> Iterator[ScriptedModel]:
    with scripted_model() as running:
        yield running


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
async def model(server: ScriptedModel, waits: Waits) -> AsyncIterator[OpenAIModel]:
    model = OpenAIModel(server.url, "scripted", api_key=KEY, sleep=waits)
    yield model
    await model.aclose()


def prompt(server: ScriptedModel, **kind: Any) -> Prompt[str]:
    """Asks for the first draft of the first protocol; the answer means its document."""

    def read(value: Any) -> str:
        return str(value["document"])

    fields = {"name": "draft", "system": "Draft.", "user": server.scripts[0].requirement, "schema": SCHEMA, "read": read}
    return Prompt(**{**fields, **kind})


async def test_a_request_and_its_answer(server: ScriptedModel, model: OpenAIModel) -> None:
    budget = Budget(Allowance())
    assert await model.complete(prompt(server), budget) == server.scripts[0].draft
    assert server.seen == ["draft"]
    system, user = server.prompts[0]
    assert (system["role"], user["role"]) == ("system", "user")
    assert json.dumps(SCHEMA, separators=(",", ":")) in system["content"]  # for endpoints that enforce no schema
    assert user["content"] == server.scripts[0].requirement
    assert (budget.calls, budget.tokens) == (1, 1_000)


@pytest.mark.parametrize("fault", [prose, another_schema, truncated, torn, changed(decision="maybe"), changed(more=1)])
async def test_a_bad_answer_is_asked_for_again_with_what_is_wrong(
    server: ScriptedModel, model: OpenAIModel, fault: Fault
) -> None:
    server.misbehave("draft", fault)
    assert await model.complete(prompt(server)) == server.scripts[0].draft
    assert server.seen == ["draft", "draft"]
    assert [message["role"] for message in server.prompts[1]] == ["system", "user", "assistant", "user"]
    assert server.prompts[1][3]["content"].startswith("The answer is not usable: ")


@pytest.mark.parametrize("fault", [prose, another_schema, truncated, torn])
async def test_bad_answers_only_end_in_one_error(server: ScriptedModel, model: OpenAIModel, fault: Fault) -> None:
    server.misbehave("draft", *[fault] * 3)
    with pytest.raises(TreatyError) as caught:
        await model.complete(prompt(server))
    assert caught.value.code == "model.answer"
    assert len(server.seen) == 3
    assert all(len(messages) <= 4 for messages in server.prompts)  # bad answers do not pile up


async def test_the_model_is_told_what_a_reader_finds_wrong(server: ScriptedModel, model: OpenAIModel) -> None:
    def read(value: Any) -> str:
        raise Malformed("some.code", "It has no topic.")

    with pytest.raises(TreatyError) as caught:
        await model.complete(prompt(server, read=read))
    assert caught.value.code == "model.answer"
    assert "It has no topic." in caught.value.message
    assert "It has no topic." in server.prompts[2][3]["content"]


async def test_a_long_bad_answer_is_quoted_in_part(server: ScriptedModel, model: OpenAIModel) -> None:
    server.misbehave("draft", instead(completion("x" * (MAX_QUOTED + 5))))
    await model.complete(prompt(server))
    assert server.prompts[1][2]["content"] == "x" * MAX_QUOTED


async def test_a_fence_around_the_answer_is_no_fault(server: ScriptedModel, model: OpenAIModel) -> None:
    server.misbehave("draft", lambda answer: completion(f"```json\n{json.dumps(answer)}\n```\n"))
    assert await model.complete(prompt(server)) == server.scripts[0].draft
    assert server.seen == ["draft"]


@pytest.mark.parametrize("reply", [refusal, instead(completion("", finish="content_filter"))])
async def test_a_refusal_is_final(server: ScriptedModel, model: OpenAIModel, reply: Fault) -> None:
    server.misbehave("draft", reply)
    with pytest.raises(TreatyError) as caught:
        await model.complete(prompt(server))
    assert caught.value.code == "model.answer"
    assert server.seen == ["draft"]


async def test_a_busy_endpoint_is_asked_again_when_it_says(server: ScriptedModel, model: OpenAIModel, waits: Waits) -> None:
    budget = Budget(Allowance())
    later = email.utils.format_datetime(email.utils.localtime().replace(microsecond=0))
    server.misbehave("draft", BUSY, instead(Reply(503, b"", {"Retry-After": later})))
    assert await model.complete(prompt(server), budget) == server.scripts[0].draft
    assert waits.seconds[0] == 3.0
    assert 0.0 <= waits.seconds[1] <= 1.0
    assert budget.calls == 3
    assert budget.left() <= Allowance().seconds - 3.0  # waiting counts


async def test_without_a_time_the_waits_grow(server: ScriptedModel, model: OpenAIModel, waits: Waits) -> None:
    server.misbehave("draft", BROKEN, instead(Reply(429, b"", {"Retry-After": "soon"})))
    await model.complete(prompt(server))
    assert waits.seconds == [0.5, 1.0]


async def test_an_endpoint_that_stays_busy(server: ScriptedModel, model: OpenAIModel) -> None:
    server.misbehave("draft", BROKEN, BROKEN, BROKEN)
    with pytest.raises(Unavailable) as caught:
        await model.complete(prompt(server))
    assert caught.value.code == "model.unavailable"
    assert "500" in caught.value.message
    assert len(server.seen) == 3


async def test_a_wait_that_is_too_long_is_not_waited(server: ScriptedModel, model: OpenAIModel, waits: Waits) -> None:
    server.misbehave("draft", instead(Reply(429, b"", {"Retry-After": "3600"})))
    with pytest.raises(Unavailable) as caught:
        await model.complete(prompt(server))
    assert (caught.value.code, waits.seconds) == ("model.unavailable", [])


async def test_silence(server: ScriptedModel) -> None:
    server.misbehave("draft", instead(Reply(silent=True)))
    model = OpenAIModel(server.url, "scripted", api_key=KEY, timeout=0.2)
    with pytest.raises(Unavailable) as caught:
        await model.complete(prompt(server))
    assert caught.value.code == "model.unavailable"
    await model.aclose()


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (oversized, "model.answer"),
        (instead(Reply(200, b"<html>")), "model.unavailable"),
        (instead(Reply(200, b'{"choices": []}')), "model.unavailable"),
        (instead(Reply(200, b'{"choices": ' + b"[" * 100_000)), "model.unavailable"),
        (instead(Reply(200, gzip.compress(b"{}"), {"Content-Encoding": "gzip"})), "model.unavailable"),
        (instead(Reply(301, b"", {"Location": "https://elsewhere.example/"})), "model.unavailable"),
        (instead(Reply(404, b"not json")), "model.unavailable"),
        (instead(Reply(422, error("no such field"))), "model.unavailable"),
    ],
)
async def test_what_is_no_completion(server: ScriptedModel, model: OpenAIModel, fault: Fault, code: str) -> None:
    server.misbehave("draft", fault)
    with pytest.raises(TreatyError) as caught:
        await model.complete(prompt(server))
    assert caught.value.code == code
    assert server.seen == ["draft"]


async def test_nobody_is_there(waits: Waits) -> None:
    with scripted_model() as gone:
        url, question = gone.url, prompt(gone)
    model = OpenAIModel(url, "scripted", sleep=waits)
    with pytest.raises(Unavailable) as caught:
        await model.complete(question)
    assert caught.value.code == "model.unavailable"
    assert waits.seconds == [0.5, 1.0]
    await model.aclose()


async def test_an_endpoint_without_structured_outputs(server: ScriptedModel, model: OpenAIModel) -> None:
    server.misbehave("draft", instead(Reply(400, error("response_format json_schema is not supported"))))
    for _ in range(2):
        assert await model.complete(prompt(server)) == server.scripts[0].draft
    assert server.structured == [True, False, False]  # it is not asked for again what it does not know


async def test_the_budget_is_kept(server: ScriptedModel, model: OpenAIModel) -> None:
    budget = Budget(Allowance(calls=2))
    server.misbehave("draft", prose, prose, prose)
    with pytest.raises(TreatyError) as caught:
        await model.complete(prompt(server), budget)
    assert caught.value.code == "model.budget"
    assert len(server.seen) == 2


async def test_the_budget_of_all_sessions_is_kept(server: ScriptedModel) -> None:
    model = OpenAIModel(server.url, "scripted", api_key=KEY, budget=Budget(Allowance(tokens=1_500)))
    for _ in range(2):
        await model.complete(prompt(server), Budget(Allowance()))
    with pytest.raises(TreatyError) as caught:
        await model.complete(prompt(server), Budget(Allowance()))
    assert (caught.value.code, len(server.seen)) == ("model.budget", 2)
    await model.aclose()


async def test_tokens_that_an_endpoint_does_not_count_are_estimated(server: ScriptedModel, model: OpenAIModel) -> None:
    budget = Budget(Allowance())
    server.misbehave(
        "draft", instead(completion(json.dumps({"decision": "reject", "document": "", "reason": "x" * 400}), tokens=0))
    )
    await model.complete(prompt(server), budget)
    assert 100 < budget.tokens < 1_000


async def test_a_request_beyond_the_cap_is_not_sent(server: ScriptedModel, model: OpenAIModel) -> None:
    with pytest.raises(TooLarge) as caught:
        await model.complete(prompt(server, user="x" * MAX_REQUEST))
    assert (caught.value.code, server.seen) == ("model.answer", [])


async def test_the_key_shows_nowhere(server: ScriptedModel, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    model = OpenAIModel(server.url, "scripted", api_key=KEY)
    server.misbehave("draft", instead(Reply(400, error(f"Bad request with key {KEY}"))))
    with pytest.raises(Unavailable) as caught:
        await model.complete(prompt(server))
    other = OpenAIModel(server.url, "scripted", api_key="sk-wrong-key")
    with pytest.raises(Unavailable) as refused:
        await other.complete(prompt(server))
    assert refused.value.code == "model.unavailable"
    text = "\n".join([caplog.text, str(caught.value), str(refused.value), repr(model), str(vars(caught.value))])
    assert KEY not in text
    assert "sk-wrong-key" not in text
    await model.aclose()
    await other.aclose()


@pytest.mark.parametrize(
    ("url", "key", "code"),
    [
        ("ftp://model.example/v1", "", "network.url"),
        ("ws://model.example/v1", "", "agent.settings"),
        ("https://user:pass@model.example/v1", "", "network.url"),
        ("https://model.example/v1?x=1", "", "agent.settings"),
        ("http://model.example/v1", "sk-1", "agent.settings"),
        ("https://model.example/v1", "sk 1", "agent.settings"),
        ("https://model.example/v1", "sk-1\r\nHost: evil.example", "agent.settings"),
    ],
)
def test_configurations_that_are_refused(url: str, key: str, code: str) -> None:
    with pytest.raises(Malformed) as caught:
        OpenAIModel(url, "m", api_key=key)
    assert caught.value.code == code


async def test_configuration_from_the_environment(server: ScriptedModel) -> None:
    assert OpenAIModel.from_environment({}) is None
    assert OpenAIModel.from_environment({"TREATY_MODEL": "m"}) is None
    with pytest.raises(Malformed) as caught:
        OpenAIModel.from_environment({"TREATY_MODEL_URL": server.url})
    assert caught.value.code == "agent.settings"
    environment = {"TREATY_MODEL_URL": server.url + "/", "TREATY_MODEL": "scripted", "TREATY_MODEL_KEY": KEY}
    model = OpenAIModel.from_environment(environment, network=Network())
    assert model is not None
    assert await model.complete(prompt(server)) == server.scripts[0].draft
    await model.aclose()
