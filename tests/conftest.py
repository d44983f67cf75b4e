"""Fixtures for everybody: a PostgreSQL for the whole run, a fresh database and a registry for each test."""

from __future__ import annotations

import asyncio
import gc
import logging
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from build_cache import trust_no_authority
from depth import FULL, OF_TESTS, examples
from hypothesis import settings
from postgres_server import Postgres
from rabbitmq_server import RabbitServer, rabbitmq
from registries import Web, open_registry
from signers import Signer, domain_signer

from treaty_command.log import PACKAGES
from treaty_registry.registry import Registry
from treaty_registry.storage.embedded import embedded_postgres
from treaty_registry.telemetry.logs import LogLines

if TYPE_CHECKING:
    from handoffs import World

    from treaty_sandbox import Isolation

settings.register_profile("treaty", deadline=None, max_examples=examples(100))  # a busy machine is no failure
settings.load_profile("treaty")
trust_no_authority()
# To standard error, as a server does: a test reads the answers of commands on standard output. The default draws tracebacks,
# which takes a second.
structlog.configure(processors=[structlog.processors.KeyValueRenderer()], logger_factory=lambda *_: LogLines())
# Until the tests are collected: their modules stay, and looking for garbage among them takes a tenth of a run.
gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage from here on, and not among the imported modules."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to `make test-deep` the tests that are marked `deep`, and the cases beyond the first ones of a `sample`."""
    if FULL:
        return
    seen: Counter[str] = Counter()
    selected: list[pytest.Item] = []
    deep: list[pytest.Item] = []
    for item in items:
        test = item.nodeid.partition("[")[0]
        seen[test] += 1
        sample = item.get_closest_marker("sample")
        beyond = sample is not None and seen[test] > sample.args[0]
        (deep if beyond or item.get_closest_marker("deep") else selected).append(item)
    if deep:
        config.hook.pytest_deselected(items=deep)
        items[:] = selected


@pytest.fixture(scope="session", autouse=True)
def environment_of_the_product() -> Iterator[None]:
    """A registry refuses variables that it does not know, those of the tests too."""
    with pytest.MonkeyPatch.context() as environment:
        for name in OF_TESTS:
            environment.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def type_cache(request: pytest.FixtureRequest) -> Path:
    """Where mypy keeps the types of our modules and of Python's, for all tests of `type_checkers`."""
    return request.config.cache.mkdir("mypy")


@pytest.fixture(autouse=True)
def same_log() -> Iterator[None]:
    """A command that runs in this process sets the log of the process. The next test gets the one from above."""
    configuration = structlog.get_config()
    level = logging.root.level
    logs = [(log, log.level, log.propagate, log.handlers[:]) for log in map(logging.getLogger, PACKAGES)]
    yield
    structlog.configure(**configuration)
    logging.root.setLevel(level)
    for log, level, propagates, handlers in logs:
        log.setLevel(level)
        log.propagate, log.handlers[:] = propagates, handlers


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The server for the whole run; it ends with it."""
    with temporary_directory() as directory, asyncio.Runner() as runner:
        running = embedded_postgres(directory)
        server = Postgres(runner.run(running.__aenter__()))
        try:
            runner.run(server.prepare())
            yield server
        finally:
            runner.run(running.__aexit__(None, None, None))


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """A directory that another user may traverse: pytest's own are closed again by the next run of pytest, and PostgreSQL, when
    it is started by root, runs as another user."""
    with tempfile.TemporaryDirectory(prefix="treaty-") as directory:
        yield Path(directory)


@pytest.fixture
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Isolation:
    """The level of the sandbox of each pool that says none."""
    from treaty_sandbox import SandboxPool  # here, because few tests need it

    isolation: Isolation = request.param
    defaults = SandboxPool.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "levels", (isolation,))
    return isolation


@pytest.fixture
def data() -> Iterator[Path]:
    """An empty data directory for a registry with an embedded PostgreSQL."""
    with temporary_directory() as directory:
        yield directory


@pytest.fixture
async def database(postgres: Postgres) -> AsyncIterator[str]:
    """The URL of a database of this test's own."""
    async with postgres.fresh() as url:
        yield url


@pytest.fixture
def web() -> Web:
    """The DID documents that the registry can fetch."""
    return Web()


@pytest.fixture
def alice(web: Web) -> Signer:
    """An agent with a domain, whose document can be fetched."""
    return _agent(web, "alice.example")


@pytest.fixture
def bob(web: Web) -> Signer:
    """Another one."""
    return _agent(web, "bob.example")


def _agent(web: Web, domain: str) -> Signer:
    agent = domain_signer(domain)
    web.serve(agent)
    return agent


@pytest.fixture
async def registry(tmp_path: Path, database: str, web: Web) -> AsyncIterator[Registry]:
    """A registry in this process, with its genesis and parameters logged."""
    async with open_registry(tmp_path / "registry", database, web) as opened:
        yield opened


@pytest.fixture(scope="session")
def rabbit() -> Iterator[RabbitServer]:
    """A RabbitMQ for the whole run."""
    with rabbitmq() as server:
        yield server


@pytest.fixture
async def here(database: str) -> AsyncIterator[World]:
    """Agents with the queues of PostgreSQL."""
    async with _world(database, None) as world:
        yield world


@pytest.fixture(params=["postgres", "rabbitmq"])
async def anywhere(request: pytest.FixtureRequest, database: str) -> AsyncIterator[World]:
    """Agents with the queues of each broker."""
    url = request.getfixturevalue("rabbit").url if request.param == "rabbitmq" else None
    async with _world(database, url) as world:
        yield world


def _world(database: str, rabbit: str | None) -> AbstractAsyncContextManager[World]:
    # Here, because it takes a quarter of the start of a test that needs none of it.
    from handoffs import world

    from treaty_handoff import Seal

    return world(database, rabbit, seal=Seal(b"k" * 32))
