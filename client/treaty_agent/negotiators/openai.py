"""Ask a language model behind an HTTP endpoint that is compatible with OpenAI's chat completions.

    model = OpenAIModel("https://api.example/v1", "some-model", api_key=…)          or OpenAIModel.from_environment()

A request is `POST BASE/chat/completions` with `model`, two to four `messages` and, as `response_format`, the prompt's JSON
Schema. No other field is sent, because endpoints accept different ones. An endpoint that does not know this `response_format` is
asked without it. The schema is part of the prompt in both cases, and every answer is validated here.

Failures:

    429, 500, 502, 503, 504, no connection       asked again, `tries` times in all, after Retry-After (at most 30 s) or 0.5, 1, …
    no answer within `timeout`                   `model.unavailable`
    another status, or no completion in it       `model.unavailable`
    an answer beyond the byte limit              `model.answer`
    a refusal                                    `model.answer`
    no JSON, cut off, another schema, or refused by `prompt.read`     the model is told, at most `attempts` answers

The key is sent in `Authorization` over TLS or to this machine, and never logged or shown.
"""

from __future__ import annotations

import asyncio
import email.utils
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx
import jsonschema_rs
import msgspec

from treaty_consensus.canonical import parse_decimal, parse_json
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError, Unavailable
from treaty_consensus.printable import printable
from treaty_handler import encode_json
from treaty_io import tracing
from treaty_io.codes import AgentCode, ModelCode
from treaty_io.network.exchange import BoundedClient
from treaty_io.network.hosts import Network

from .language_model import PER_DAY, Budget, Prompt

# A document, its base, the test cases and the own code fit; the cap bounds the cost of a request.
MAX_REQUEST = 2 * 1024 * 1024
MAX_RESPONSE = 2 * 1024 * 1024
MAX_WAIT = 30.0
"""The longest Retry-After, in seconds, that is followed; a session cannot wait longer."""
MAX_QUOTED = 32 * 1024
"""Characters of a wrong answer that are sent back to the model."""

_DAY = 86_400.0
# Only statuses after which the same request may succeed; others would fail again at a price.
_BUSY = frozenset({429, 500, 502, 503, 504})
# A key in clear text may go to this machine alone.
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

T = TypeVar("T")
_Messages = list[dict[str, str]]


class _Message(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    total_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    completion_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0


class _Completion(msgspec.Struct):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: _Usage | None = None


class _ErrorText(msgspec.Struct):
    message: str = ""


class _Error(msgspec.Struct):
    error: _ErrorText | str = ""


class _Reply(NamedTuple):
    status: int
    retry_after: str
    body: bytes


class OpenAIModel:
    """A model at one endpoint. Implements `LanguageModel`. Call `aclose` at the end."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str = "",
        network: Network | None = None,
        budget: Budget | None = None,
        timeout: float = 120.0,
        attempts: int = 3,
        tries: int = 3,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Set the endpoint and the limits; send nothing yet.

        `base_url`: such as `https://api.example/v1`.
        `budget`: for all requests of this object; by default `PER_DAY`, for each day.
        `timeout`: seconds for one answer.
        `attempts`: the number of wrong answers before the request fails.
        `tries`: the number of times that a busy endpoint is asked for each answer.

        Raises `Malformed` (`agent.settings`, `network.url`).
        """
        self._url = _endpoint(base_url, secret=bool(api_key))
        self._name = model
        self._headers = {"Content-Type": "application/json", **_authorization(api_key)}
        self._secret = api_key
        self._network = network or Network()
        self.budget = budget or Budget(PER_DAY, period=_DAY)
        self._timeout, self._attempts, self._tries, self._sleep = timeout, attempts, tries, sleep
        # Assumed until the endpoint refuses: there is no way to ask which it supports.
        self._structured = True
        self._client: BoundedClient | None = None

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str] | None = None,
        *,
        network: Network | None = None,
        budget: Budget | None = None,
    ) -> OpenAIModel | None:
        """Return the model of TREATY_MODEL_URL, TREATY_MODEL and, if the endpoint needs one, TREATY_MODEL_KEY. Return None if the
        first is not set. `budget`: as in `OpenAIModel`. Raises `Malformed` (`agent.settings`)."""
        environment = os.environ if environment is None else environment
        url, name = environment.get("TREATY_MODEL_URL", ""), environment.get("TREATY_MODEL", "")
        if not url:
            return None
        if not name:
            raise Malformed(
                AgentCode.SETTINGS,
                "TREATY_MODEL_URL is set, but TREATY_MODEL is not.",
                fix="Set TREATY_MODEL to the name of the model.",
            )
        return cls(url, name, api_key=environment.get("TREATY_MODEL_KEY", ""), network=network, budget=budget)

    async def complete(self, prompt: Prompt[T], budget: Budget | None = None) -> T:
        """See `LanguageModel`."""
        budgets = [self.budget] if budget is None else [self.budget, budget]
        # Validated here even if the endpoint promised to: an endpoint is not trusted.
        validator = jsonschema_rs.Draft202012Validator(dict(prompt.schema))
        messages = [_message("system", _with_schema(prompt)), _message("user", prompt.user)]
        conversation: _Messages = []
        for _ in range(self._attempts):
            answer = await self._ask(prompt, [*messages, *conversation], budgets)
            try:
                return prompt.read(_parse(answer, validator))
            except TreatyError as error:
                fault = error
            # Only the last wrong answer: the history of all would grow the request with each attempt.
            conversation = [
                _message("assistant", (answer.message.content or "")[:MAX_QUOTED]),
                _message("user", _complaint(fault)),
            ]
        raise Refused(
            ModelCode.ANSWER, f"{self._name} gave no usable answer in {self._attempts} attempts. The last: {fault.message}"
        ) from fault

    async def aclose(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _ask(self, prompt: Prompt[Any], messages: _Messages, budgets: Sequence[Budget]) -> _Choice:
        """Return one completion, before it is validated. Raises `TreatyError`."""
        about = {"gen__ai_operation_name": "chat", "gen__ai_provider_name": "openai", "gen__ai_request_model": self._name}
        with tracing.span(f"chat {self._name}", "client", **about) as span:
            return await self._answered(prompt, messages, budgets, span)

    async def _answered(
        self, prompt: Prompt[Any], messages: _Messages, budgets: Sequence[Budget], span: tracing.OpenSpan
    ) -> _Choice:
        reply: _Reply | None = None
        # Bounded retries: the session has deadlines of its own.
        for number in range(self._tries):
            if number:
                await self._pause(reply, 0.25 * 2**number, budgets)
            reply = await self._post(self._body(prompt, messages), budgets)
            if reply is None:
                continue
            if reply.status == 200:
                return self._completion(reply.body, messages, budgets, span)
            # Remembered: later requests leave the field out at once.
            if self._structured and _knows_no_schema(reply):
                self._structured = False
            elif reply.status not in _BUSY:
                break
        raise self._unavailable(reply)

    async def _post(self, body: bytes, budgets: Sequence[Budget]) -> _Reply | None:
        """Return the endpoint's reply, None if it cannot be reached."""
        # The smallest limit counts: the timeout, or the rest of any budget.
        seconds = min(self._timeout, *(budget.left() for budget in budgets))
        begun = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(body)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise Unavailable(ModelCode.UNAVAILABLE, f"{self._name} did not answer within {seconds:.0f} seconds.") from error
        except httpx.HTTPError:
            return None
        # Also after a failure: the endpoint may have charged for it.
        finally:
            for budget in budgets:
                budget.spend(calls=1, seconds=time.monotonic() - begun)

    async def _exchange(self, body: bytes) -> _Reply:
        if self._client is None:
            self._client = self._network.client(timeout=self._timeout)
        request = self._client.build_request("POST", self._url, content=body, headers=self._headers)
        reply = await self._client.exchange(request, limit=MAX_RESPONSE)
        # The cap counts received bytes, and a compressed body may be much larger.
        if reply.headers.get("content-encoding", "identity") != "identity":
            raise Unavailable(ModelCode.UNAVAILABLE, f"{self._url} sent an encoded body that was not asked for.")
        # The cap bounds the memory that an endpoint can use.
        if not reply.whole:
            raise TooLarge(ModelCode.ANSWER, f"{self._name} answered with more than {MAX_RESPONSE} bytes.")
        return _Reply(reply.status, reply.headers.get("retry-after", ""), reply.body)

    async def _pause(self, reply: _Reply | None, default: float, budgets: Sequence[Budget]) -> None:
        retry_after = _seconds(reply.retry_after) if reply is not None else None
        seconds = default if retry_after is None else retry_after
        # Failing at once is better than a session that times out while it waits.
        if seconds > MAX_WAIT:
            raise Unavailable(
                ModelCode.UNAVAILABLE,
                f"{self._url} allows the next request only after {seconds:.0f} seconds.",
                fix="Try again later.",
            )
        await self._sleep(seconds)
        for budget in budgets:
            budget.spend(seconds=seconds)

    def _body(self, prompt: Prompt[Any], messages: _Messages) -> bytes:
        request: dict[str, Any] = {"model": self._name, "messages": messages}
        if self._structured:
            schema = {"name": prompt.name, "strict": True, "schema": dict(prompt.schema)}
            request["response_format"] = {"type": "json_schema", "json_schema": schema}
        body = encode_json(request)
        if len(body) > MAX_REQUEST:
            raise TooLarge(ModelCode.ANSWER, f"The request {prompt.name} has {len(body)} bytes; at most {MAX_REQUEST} are sent.")
        return body

    def _completion(self, body: bytes, messages: _Messages, budgets: Sequence[Budget], span: tracing.OpenSpan) -> _Choice:
        try:
            completion = msgspec.json.decode(body, type=_Completion)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unavailable(ModelCode.UNAVAILABLE, f"{self._url} answered without a completion.") from error
        choice = completion.choices[0]
        usage = completion.usage or _Usage()
        used = usage.total_tokens
        span.set(gen__ai_usage_input__tokens=usage.prompt_tokens, gen__ai_usage_output__tokens=usage.completion_tokens)
        # Some endpoints report no usage; about four characters are one token.
        estimate = (sum(len(message["content"]) for message in messages) + len(choice.message.content or "")) // 4
        for budget in budgets:
            budget.spend(tokens=used or estimate)
        if choice.message.refusal or choice.finish_reason == "content_filter":
            reason = printable(choice.message.refusal or "by its content filter", 300)
            raise Refused(ModelCode.ANSWER, f"{self._name} refuses to answer: {reason}")
        return choice

    def _unavailable(self, reply: _Reply | None) -> Unavailable:
        if reply is None:
            return Unavailable(ModelCode.UNAVAILABLE, f"{self._url} could not be reached.")
        if reply.status in (401, 403):
            fix = "Set TREATY_MODEL_KEY to a key of this endpoint."
            return Unavailable(ModelCode.UNAVAILABLE, f"{self._url} does not admit this key (status {reply.status}).", fix=fix)
        reason = _error_text(reply.body)
        # An endpoint may quote the key in its error.
        if self._secret:
            reason = reason.replace(self._secret, "…")
        return Unavailable(ModelCode.UNAVAILABLE, f"{self._url} answered with status {reply.status}. {reason}".strip())


def _endpoint(base_url: str, *, secret: bool) -> str:
    Network().endpoint(base_url)
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise Malformed(AgentCode.SETTINGS, f"A model's URL is http or https, without a query: {base_url[:120]!r}.")
    # Before any request: a key that was sent once in clear text is lost.
    if secret and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise Malformed(AgentCode.SETTINGS, "A key is sent over https, or to this machine.", fix="Use https, or no key.")
    return f"{base_url.rstrip('/')}/chat/completions"


def _authorization(api_key: str) -> dict[str, str]:
    if not api_key:
        return {}
    # A line break in a key would add a header of its own.
    if not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        raise Malformed(AgentCode.SETTINGS, "A model's key is printable ASCII without spaces.")
    return {"Authorization": f"Bearer {api_key}"}


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _with_schema(prompt: Prompt[Any]) -> str:
    schema = encode_json(dict(prompt.schema)).decode("utf-8")
    return f"{prompt.system}\nAnswer with one JSON object of this JSON Schema, and with nothing else:\n\n{schema}\n"


def _complaint(error: TreatyError) -> str:
    return f"The answer is not usable: {error.message} Answer the request again, in full, with one JSON object of the schema."


def _parse(answer: _Choice, validator: jsonschema_rs.Draft202012Validator) -> Any:
    """Return the JSON value of an answer. Raises `Malformed`."""
    # Told apart from bad JSON, so that the model writes less and does not repeat itself.
    if answer.finish_reason == "length":
        raise Malformed(ModelCode.ANSWER, "It was cut off before its end, so it has to be shorter.")
    text = _unfenced((answer.message.content or "").strip())
    try:
        value = parse_json(text.encode("utf-8"), limit=MAX_RESPONSE, name="answer")
        validator.validate(value)
    except UnicodeEncodeError as error:
        raise Malformed(ModelCode.ANSWER, "It holds a lone surrogate.") from error
    except jsonschema_rs.ValidationError as error:
        place = "".join(f".{step}" for step in error.instance_path)
        raise Malformed(ModelCode.ANSWER, f"It breaks the schema at ${place}: {printable(error.message, 300)}.") from error
    return value


def _unfenced(text: str) -> str:
    """Remove a Markdown fence around the whole text: models often add one."""
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text[text.index("\n") + 1 : -3]
    return text


def _knows_no_schema(reply: _Reply) -> bool:
    return reply.status in (400, 422) and b"response_format" in reply.body


def _seconds(retry_after: str) -> float | None:
    """Return Retry-After (RFC 9110 §10.2.3) as seconds from now; None if it is not valid."""
    try:
        return float(parse_decimal(retry_after, limit=int(_DAY)))
    except TreatyError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _error_text(body: bytes) -> str:
    """Return the endpoint's error message, made printable."""
    try:
        error = msgspec.json.decode(body, type=_Error).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return printable(error if isinstance(error, str) else error.message, 300)
