"""A full run with all that tells about it: two strangers meet, and their report is committed. One trace has all of it, and
neither the log nor the metrics nor the traces have a secret or say who they are."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from did_host import did_host
from meetings import LAPTOP, identity
from node_processes import cluster, leaf, post
from ports import free_port
from registry_process import Server, empty
from signers import domain_signer
from trace_collector import CollectedSpan, TraceCollector, trace_collector
from working_agents import CUSTOMER, SELLER

from treaty_agent import Agent, AgentConfig, Policy
from treaty_io import tracing
from treaty_io.network.hosts import Address, Network

TREATY = Path(sys.executable).with_name("treaty")
PROTOCOL = Path(__file__).parents[2] / "protocols" / "product-info" / "1.1"
_DID = re.compile(r"did:[a-z0-9]+:[^\s\"',}]+")
_ADDRESS = re.compile(r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f]*:[0-9a-f:]*:[0-9a-f]*)(?![\w.])")


@dataclass
class Run:
    """What a run left."""

    log: str
    metrics: str
    traces: TraceCollector
    secrets: list[str]


def treaty(home: Path, *arguments: str) -> dict[str, Any]:
    command = [str(TREATY), *arguments, "--home", str(home), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def secrets_in(folder: Path) -> list[str]:
    """The long words of all keys and identities in a folder."""
    files = [file for file in folder.rglob("*") if file.is_file() and (folder.name == "keys" or file.name == "identity.json")]
    return [word for file in files for word in re.findall(r"[A-Za-z0-9+/_-]{40,}={0,2}", file.read_text())]


async def meet(server: Server, uri: str, publisher: str, options: tuple[str, ...], folder: Path) -> None:
    """Let a customer and a seller meet once, with a report."""
    port = int(options[0].rpartition(":")[2])
    network = Network({host: Address("127.0.0.1", port) for host in (CUSTOMER, SELLER)}, folder / "ca.pem")
    config = {
        name: AgentConfig(Policy(publishers=[publisher], report=True, report_delay=0), home=folder / name)
        for name in (CUSTOMER, SELLER)
    }
    async with Agent(identity(SELLER), server.about["name"], config[SELLER], network=network) as seller:

        @seller.provides(uri)
        async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
            return LAPTOP

        async with (
            seller.listen("127.0.0.1", 0) as at,
            Agent(identity(CUSTOMER), server.about["name"], config[CUSTOMER], network=network) as customer,
            customer.connect(f"ws://127.0.0.1:{at}", protocols=[uri]) as session,
        ):
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP


@pytest.fixture
async def run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Run]:
    metrics = free_port()
    with trace_collector() as traces, did_host(tmp_path, domain_signer(CUSTOMER), domain_signer(SELLER)) as options:
        settings = {"TREATY_REGISTRY_LOG_LEVEL": "debug", "TREATY_REGISTRY_LOG_FORMAT": "json"}
        for name, value in {**traces.environment, **settings}.items():
            monkeypatch.setenv(name, value)
        try:
            async with empty(data / "registry", "--metrics-address", str(metrics), *options) as server:
                await server.start()
                assert await server.ready()
                publisher = await asyncio.to_thread(treaty, tmp_path / "publisher", "identity", "new")
                await asyncio.to_thread(treaty, tmp_path / "publisher", "trust", "add", server.about["base_url"], "--yes")
                published_protocol = await asyncio.to_thread(treaty, tmp_path / "publisher", "publish", str(PROTOCOL))
                await meet(server, published_protocol["uri"], publisher["did"], options, tmp_path)
                async with httpx.AsyncClient(base_url=server.about["base_url"], trust_env=False) as client:
                    # What a stranger puts into a request reaches nothing.
                    for path in (f"/identities/did:wba:{CUSTOMER}", f"/standing/did:wba:{SELLER}", "/protocols?q=192.0.2.7"):
                        await client.get(path, headers={"Authorization": "Bearer hunter2hunter2", "X-Forwarded-For": "192.0.2.7"})
                    await client.post(
                        "/statements", content=b'{"payload":"192.0.2.7"}', headers={"Content-Type": "application/json"}
                    )
                async with httpx.AsyncClient(trust_env=False) as client:
                    text = (await client.get(f"http://127.0.0.1:{metrics}/metrics")).text
                await asyncio.to_thread(tracing.stop)
                await server.stop()
            log = (data / "registry.log").read_text()
            yield Run(log, text, traces, secrets_in(data / "registry" / "keys") + secrets_in(tmp_path))
        finally:
            tracing.stop()


@pytest.mark.deep
async def test_a_run_is_one_trace_and_tells_no_secret(run: Run) -> None:
    _check_trace(run.traces)
    assert run.secrets, "the run has keys"
    for name, text in (("log", run.log), ("metrics", run.metrics), ("traces", "\n".join(run.traces.raw))):
        assert text, name
        assert _DID.findall(text) == [], name
        assert [address for address in _ADDRESS.findall(text) if _is_address(address)] == [], name
        assert [word for word in (CUSTOMER, SELLER, "hunter2", "Bearer", *run.secrets) if word in text] == [], name
    lines = [json.loads(line) for line in run.log.splitlines()]
    committed = [line for line in lines if line["event"] == "request" and line.get("statements")]
    assert committed, "lines of requests name the statements that they logged"
    assert all(line["request_id"] and line["trace_id"] for line in committed)


@pytest.mark.deep
async def test_a_statement_that_another_node_places_is_one_trace(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with trace_collector() as traces:
        for name, value in traces.environment.items():
            monkeypatch.setenv(name, value)
        async with cluster(data, 2) as servers:
            leader = await servers.leader()
            (other,) = [node for node in servers.nodes if node is not leader]
            assert (await post(other.port, leaf(0))).status_code == 201
            for node in servers.nodes:
                await node.stop()
    (placed,) = traces.named("POST nodes")
    spans = {span.id: span for span in traces.spans if span.trace == placed.trace}
    (commit,) = [span for span in spans.values() if span.name == "commit"]
    path = [above.name for above in _ancestors(commit, spans)]
    assert path == ["sequence", "POST nodes", "forward", "sequence", "admit", "POST statements"]


def _check_trace(traces: TraceCollector) -> None:
    (opened,) = traces.named("open session", "treaty-agent")
    spans = {span.id: span for span in traces.spans if span.trace == opened.trace}
    assert len([span for span in spans.values() if span.name == "handshake"]) == 2, "of both sides"
    commits = [span for span in spans.values() if span.name == "commit"]
    path = [above.name for above in _ancestors(commits[-1], spans)]
    assert path == ["sequence", "admit", "POST statements", "POST registry", "report", "open session"]
    (request,) = [span for span in spans.values() if span.name == "POST statements"]
    assert request.attributes["http.response.status_code"] == 201
    assert [len(id_) for id_ in request.attributes["treaty.statements"]] == [64]


def _ancestors(span: CollectedSpan, spans: dict[str, CollectedSpan]) -> list[CollectedSpan]:
    above = spans.get(span.parent)
    return [above, *_ancestors(above, spans)] if above else []


def _is_address(text: str) -> bool:
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False
