"""The OpenAPI document is true: schemathesis finds nothing in any of its phases, and nothing is ever answered with a 500."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
import schemathesis
from depth import FULL
from http_api import serving
from hypothesis import settings
from ports import free_port
from postgres_server import Postgres
from registries import TOPIC, Web, ballot, open_registry, publication, publish
from schemathesis import engine
from schemathesis.engine import events
from signers import domain_signer

from treaty_consensus.errors import TreatyError

EXAMPLES = max(3, settings().max_examples // 30)  # of hypothesis's profile, so that a larger one searches longer
UNSAYABLE = ("POST /.*", "PUT /.*", "GET /speakers", "GET /protocols")
"""Operations that refuse what their schemas allow, for a reason that no schema can give: a signature that is missing, one of two
parameters, too many words."""

PHASES = ("examples", "coverage", "fuzzing", "stateful")
# The phase of coverage takes most of the time: each value at each bound of each parameter.
RUN = PHASES if FULL else ("examples", "fuzzing", "stateful")

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
    values: dict[str, str] = {}
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        agent, web = domain_signer("alice.example"), Web()
        web.serve(agent)
        async with postgres.fresh() as database, open_registry(tmp_path_factory.mktemp("live"), database, web) as registry:
            statement = publication(agent)
            logged = await publish(registry, agent, statement)
            assert not isinstance(logged, TreatyError)
            await registry.submit([agent.statement(ballot(registry, 0, statement.body.document.sha256)).leaf])
            await registry.decide()
            await publish(registry, agent, publication(agent, name="open", topic="not/decided"))
            document = statement.body.document.sha256
            values.update(namespace="alice.example", name="product-info", version="1.0", topic=TOPIC, did=agent.did)
            values.update(sha256=document, hash=document, digest=document, statement=logged.id)
            values.update(path="0/000.p/2", uri=statement.body.uri, q="product")
            async with serving(registry, port):
                started.set()
                await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(60)
    yield Live(f"http://127.0.0.1:{port}", values)
    stop.set()
    thread.join(60)


def findings(live: Live, parameters: dict[str, str], *phases: str) -> tuple[list[str], set[str]]:
    """What schemathesis finds with all of its checks, in these phases or in all; and which it took. `parameters`: values to use
    where an operation has a parameter of that name."""
    excused = {"positive_data_acceptance": {"enabled": False}}
    config = schemathesis.Config.from_dict(
        {
            "base-url": live.base_url,
            "continue-on-failure": True,
            "generation": {"max-examples": EXAMPLES, "deterministic": True, "database": "none"},
            "suppress-health-check": ["all"],
            "parameters": parameters,
            "operations": [{"include-name-regex": f"^{name}$", "checks": excused} for name in UNSAYABLE],
            "phases": {name: {"enabled": not phases or name in phases} for name in PHASES},
        }
    )
    problems: list[str] = []
    phases_run: set[str] = set()
    for event in engine.from_schema(schemathesis.openapi.from_url(f"{live.base_url}/schema", config=config)).execute():
        match event:
            case events.NonFatalError() | events.FatalError():
                problems.append(repr(event))
            case events.ScenarioFinished(phase=phase, recorder=recorder):
                phases_run.add(str(phase))
                for check in (check for checks in recorder.checks.values() for check in checks):
                    if check.failure_info is not None:
                        problems.append(f"{recorder.label}: {check.name}: {check.failure_info.code_sample}")
    return problems, phases_run


@pytest.mark.deep
@pytest.mark.threat(88)
def test_no_phase_finds_anything(live: Live) -> None:
    finding, phases = findings(live, {}, *RUN)
    assert not finding, "\n".join(finding[:10])
    assert {*RUN} - {"examples"} <= {phase.lower().rpartition(".")[2] for phase in phases}


def test_no_phase_finds_anything_among_what_is_there(live: Live) -> None:
    finding, _ = findings(live, live.known, "fuzzing")
    assert not finding, "\n".join(finding[:10])


def test_every_operation_explains_itself(live: Live) -> None:
    schema = httpx.get(f"{live.base_url}/schema")
    assert schema.headers["etag"] and schema.json()["openapi"].startswith("3.1")
    assert httpx.get(f"{live.base_url}/schema/openapi.json").content == schema.content
    assert len(schema.json()["paths"]) >= 22
    for path, methods in schema.json()["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"] and operation["description"], (method, path)
            refusals = {status for status, response in operation["responses"].items() if status >= "400"}
            assert {"400", "405", "414", "431", "500", "503"} <= refusals, (method, path)
            for parameter in operation.get("parameters", ()):
                assert {"pattern", "enum", "format"} & parameter["schema"].keys(), (method, path, parameter["name"])


def test_what_is_there_has_the_form_that_is_described(live: Live) -> None:
    """Every GET, of things that exist: decided and undecided, with and without what may be null."""
    document = schemathesis.openapi.from_url(f"{live.base_url}/schema")
    values = live.known
    versions = "/protocols/{namespace}/{name}"
    paths = {
        f"/topics/{TOPIC}": "/topics/{topic}",
        "/topics/not/decided": "/topics/{topic}",
        "/topics": "/topics",
        "/log": "/log",
        "/protocols?q=product": "/protocols",
        "/protocols/alice.example/product-info": versions,
        "/protocols/alice.example/product-info/1.0": f"{versions}/{{version}}",
        "/protocols/alice.example/open/1.0": f"{versions}/{{version}}",
        f"/hashes/{values['sha256']}": "/hashes/{sha256}",
        f"/resolve?uri={values['uri']}": "/resolve",
        f"/identities/{values['did']}": "/identities/{did}",
        f"/standing/{values['did']}": "/standing/{did}",
        f"/speakers?topic={TOPIC}": "/speakers",
        f"/ballots?topic={TOPIC}&did={values['did']}": "/ballots",
        f"/vouches?did={values['did']}": "/vouches",
    }
    for path, described in paths.items():
        response = httpx.get(live.base_url + path)
        assert response.status_code == 200, path
        document[described]["GET"].validate_response(response)
