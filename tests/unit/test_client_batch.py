"""Batches of statements from the client's side: the time that a slow registry gets, and an answer that does not come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine

import httpx
import pytest
from simulated_registry import ALICE, BASE_URL

from treaty_agent.testing import virtual_time
from treaty_client.registries.api import MAX_BATCH, RegistryClient
from treaty_consensus.kinds import Grant
from treaty_consensus.statement import Statement
from treaty_io.errors import RegistryUnavailable
from treaty_io.network.exchange import BoundedClient
from treaty_io.network.hosts import Network

Answer = Callable[[httpx.Request], Coroutine[None, None, httpx.Response]]


def statements(number: int) -> list[Statement]:
    return [ALICE.statement(Grant("alice.example", f"did:wba:agent-{index}.example")) for index in range(number)]


def client_of(answer: Answer) -> RegistryClient:
    return RegistryClient(BASE_URL, Network(), client=BoundedClient(transport=httpx.MockTransport(answer)))


def answering_after(seconds: float) -> Answer:
    async def answer(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(seconds)
        line = json.dumps({"status": 201, "id": "0" * 64, "receipt": "a receipt"}).encode() + b"\n"
        body = line * request.content.count(b"\n") if request.method == "POST" else b"a checkpoint"
        return httpx.Response(200, stream=httpx.ByteStream(body))

    return answer


def test_a_full_batch_gets_the_time_that_a_slow_registry_needs() -> None:
    async def run() -> None:
        batch = statements(MAX_BATCH)
        assert await client_of(answering_after(100)).submit_batch(batch) == [b"a receipt"] * MAX_BATCH
        # Nothing else may take so long: a short batch, or a read.
        with pytest.raises(RegistryUnavailable) as late:
            await client_of(answering_after(100)).submit_batch(batch[:2])
        assert late.value.code == "registry.uncertain"
        with pytest.raises(RegistryUnavailable) as late:
            await client_of(answering_after(100)).checkpoint()
        assert late.value.code == "network.deadline"

    virtual_time.run(run())


async def breaking(request: httpx.Request) -> httpx.Response:
    raise httpx.RemoteProtocolError("Server disconnected without sending a response.", request=request)


async def impatient_proxy(request: httpx.Request) -> httpx.Response:
    return httpx.Response(504, stream=httpx.ByteStream(b"<html>Gateway Time-out</html>"))


@pytest.mark.parametrize("answer", [answering_after(10_000), breaking, impatient_proxy])
@pytest.mark.parametrize("number", [1, 3])
def test_unanswered_statements_may_be_sent_again(answer: Answer, number: int) -> None:
    async def run() -> None:
        batch = statements(number)
        with pytest.raises(RegistryUnavailable) as error:
            await (client_of(answer).submit(batch[0]) if number == 1 else client_of(answer).submit_batch(batch))
        assert error.value.code == "registry.uncertain"
        assert "may be logged" in error.value.message and f"/proofs/{batch[0].id}" in error.value.fix
        assert "URL" not in error.value.message + error.value.fix

    virtual_time.run(run())


async def refusing(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("", request=request) from ConnectionRefusedError()


async def busy(request: httpx.Request) -> httpx.Response:
    return httpx.Response(503, stream=httpx.ByteStream(b'{"code":"registry.busy","detail":"Busy."}'))


@pytest.mark.parametrize(("answer", "code"), [(refusing, "registry.unreachable"), (busy, "registry.busy")])
async def test_statements_that_were_not_taken_are_not_called_uncertain(answer: Answer, code: str) -> None:
    with pytest.raises(RegistryUnavailable) as error:
        await client_of(answer).submit_batch(statements(2))
    assert error.value.code == code


async def test_a_broken_connection_does_not_blame_the_url() -> None:
    with pytest.raises(RegistryUnavailable) as error:
        await client_of(breaking).checkpoint()
    assert error.value.code == "registry.broken" and "URL" not in error.value.message + error.value.fix
