"""The OpenAPI document is true: requests made from it are answered as it says, and never with a 500."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import schemathesis
from conftest import Postgres
from http_api import free_port, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from registries import TOPIC, Web, ballot, open_registry, publication, publish
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance
from signers import domain_signer

from treaty_consensus.errors import TreatyError

EXAMPLES = 20
schemathesis.serializer.alias(["application/timestamp-query", "application/x-ndjson"], "application/octet-stream")


@dataclass(frozen=True)
class Live:
    """A registry on a socket, in a thread of its own, and names of what is in it."""

    base_url: str
    known: dict[str, str]


@pytest.fixture(scope="module")
def live(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Serves until the module's tests are done."""
    port = free_port()
    known: dict[str, str] = {}
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        agent, web = domain_signer("alice.example"), Web()
        web.serve(agent)
        async with postgres.fresh() as database, open_registry(tmp_path_factory.mktemp("live"), database, web) as registry:
            made = publication(agent)
            logged = await publish(registry, agent, made)
            assert not isinstance(logged, TreatyError)
            await registry.submit([agent.statement(ballot(registry, 0, made.body.document.sha256)).leaf])
            await registry.decide()
            document = made.body.document.sha256
            known.update(namespace="alice.example", name="product-info", version="1.0", topic=TOPIC, did=agent.did)
            known.update(
                sha256=document,
                hash=document,
                digest=document,
                statement=logged.id,
                path="0/000.p/2",
                uri=made.body.uri,
                q="product",
            )
            async with serving(registry, port):
                started.set()
                await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(60)
    yield Live(f"http://127.0.0.1:{port}", known)
    stop.set()
    thread.join(60)


def test_every_operation_is_as_described(live: Live) -> None:
    document = httpx.get(f"{live.base_url}/schema").json()
    assert document["openapi"].startswith("3.1")
    assert len(document["paths"]) >= 22
    seen: set[int] = set()
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        assert isinstance(found, Ok), found
        _exercise(found.ok(), live, seen)
    assert {200, 400, 404} <= seen


def test_every_operation_explains_itself(live: Live) -> None:
    document = httpx.get(f"{live.base_url}/schema").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"] and operation["description"], (method, path)
            refusals = {status for status, response in operation["responses"].items() if status >= "400"}
            assert {"400", "414", "431", "503"} <= refusals, (method, path)


def _exercise(operation: Any, live: Live, seen: set[int]) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        case: Case[Any] = data.draw(operation.as_strategy())
        if data.draw(st.booleans()):
            for parameters in (case.path_parameters, case.query):
                for name in set(parameters or {}) & live.known.keys():
                    parameters[name] = live.known[name]
        response = case.call(base_url=live.base_url)
        seen.add(response.status_code)
        case.validate_response(
            response,
            checks=[not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance],
        )

    run()
