"""Each request is named, counted in its group, and told by one line of the log."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from ports import free_port
from prometheus_client.parser import text_string_to_metric_families
from registry_process import Server, empty

from treaty_consensus.errors import Malformed
from treaty_registry.app import openapi_document
from treaty_registry.settings import MetricsAddress
from treaty_registry.telemetry.middleware import GROUPS, OTHER, route_group

_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@asynccontextmanager
async def served(data: Path, *options: str) -> AsyncIterator[tuple[Server, httpx.AsyncClient, int]]:
    """A registry in a process of its own, a client of it, and the port of its metrics."""
    metrics = free_port()
    async with empty(data / "registry", "--metrics-address", str(metrics), *options) as server:
        await server.start()
        assert await server.ready()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
            yield server, client, metrics


def lines(server: Server) -> list[dict[str, object]]:
    return [json.loads(line) for line in (server.data.parent / f"{server.data.name}.log").read_text().splitlines()]


async def samples(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    async with httpx.AsyncClient(trust_env=False) as client:
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    families = text_string_to_metric_families(text)
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for family in families for sample in family.samples}


def listeners() -> list[str]:
    """The addresses of this machine's listening sockets, as Linux writes them."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A"]


async def test_requests_are_named_counted_and_told(data: Path) -> None:
    async with served(data) as (server, client, metrics):
        echoed = await client.get("/checkpoint", headers={"X-Request-ID": "abc-12345"})
        numbered = await client.get("/checkpoint")
        wrong = await client.get("/checkpoint", headers={"X-Request-ID": "did:wba:alice.example"})
        missing = await client.get("/nothing/here/did:wba:alice.example")
        odd = await client.request("BREW", "/checkpoint")
        headers = {"Content-Type": "application/json", "traceparent": f"00-{_TRACE}-00f067aa0ba902b7-01"}
        refused = await client.post("/statements", content=b"{}", headers=headers)
        assert echoed.headers["X-Request-ID"] == "abc-12345"
        ids = [answer.headers["X-Request-ID"] for answer in (numbered, wrong, missing, odd, refused)]
        assert all(re.fullmatch("[0-9a-f]{16}", id_) for id_ in ids)
        assert len(set(ids)) == len(ids)
        counters = await samples(metrics)
        assert counters["treaty_http_requests_total", (("group", "log"), ("method", "GET"), ("status", "200"))] == 3
        assert counters["treaty_http_requests_total", (("group", "other"), ("method", "GET"), ("status", "404"))] == 1
        assert counters["treaty_http_requests_total", (("group", "log"), ("method", "other"), ("status", "405"))] == 1
        assert counters["treaty_http_request_seconds_count", (("group", "statements"),)] == 1
        assert counters["treaty_refusals_total", (("code", "statement.form"),)] == 1
        assert (
            counters["treaty_leader", ()]
            == counters["treaty_clock_is_right", ()]
            == counters["treaty_event_loop_answers", ()]
            == 1
        )
        assert counters["treaty_log_size", ()] == counters["treaty_statements_total", (("outcome", "logged"),)] == 2
        assert counters["treaty_http_requests_in_flight", ()] == 0
        by_id = {line["request_id"]: line for line in lines(server) if line["event"] == "request"}
    line = by_id[refused.headers["X-Request-ID"]]
    assert (line["group"], line["method"], line["status"], line["trace_id"]) == ("statements", "POST", 400, _TRACE)
    assert echoed.headers["X-Request-ID"] not in by_id, "reads are counted, not told"


@pytest.mark.deep
async def test_metrics_are_on_loopback_and_on_no_path_of_the_registry(data: Path) -> None:
    async with served(data) as (_, client, metrics):
        assert (await client.get("/metrics")).status_code == 404
        listening = listeners()
    assert f"0100007F:{metrics:04X}" in listening
    assert f"00000000:{metrics:04X}" not in listening


@pytest.mark.deep
async def test_strangers_cannot_make_new_series(data: Path) -> None:
    async with served(data) as (_, client, metrics):

        async def flood(first: int) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
            for number in range(first, first + 100):
                await client.request(f"M{number}", f"/p{number}/q{number}")
                await client.get(f"/protocols/n{number}.example/a/1.0", headers={"X-Request-ID": f"request-{number}"})
                await client.get(f"/p{number}.json", params={"q": str(number)})
                await client.post("/statements", content=b"%d" % number, headers={"Content-Type": f"text/x{number}"})
            return set(await samples(metrics))

        once = await flood(0)
        assert await flood(1000) == once


def test_each_route_has_a_group() -> None:
    paths = json.loads(openapi_document())["paths"]
    assert [path for path in paths if route_group(path) == OTHER] == []
    assert {route_group(path) for path in paths} <= GROUPS


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("10.0.0.7:9464", ("10.0.0.7", 9464)),
        ("[::1]:9464", ("::1", 9464)),
        ("localhost:1", ("127.0.0.1", 1)),
    ],
)
def test_an_address_for_metrics_is_parsed(text: str, address: tuple[str, int]) -> None:
    parsed = MetricsAddress.parse(text)
    assert (parsed.host, parsed.port) == address


@pytest.mark.parametrize("text", ["", "x", "0", "65536", "9464x", "example.com:9464", "127.0.0.1:", "::1:x", "١٢٣"])
def test_another_address_for_metrics_is_refused(text: str) -> None:
    with pytest.raises(Malformed) as refused:
        MetricsAddress.parse(text)
    assert refused.value.code == "settings.value"


@pytest.mark.deep
async def test_a_taken_port_for_metrics_is_refused_at_the_start(data: Path) -> None:
    async with served(data) as (server, _, metrics):
        for occupied in (metrics, server.port):
            # It ends before it makes a database, so nothing of it must be stopped.
            second = Server(
                data / "second", free_port(), options=("--metrics-address", str(occupied), "--database", "postgresql://x/x")
            )
            await second.start()
            assert not await second.ready()
            assert second.process is not None
            assert await second.process.wait() == 1
