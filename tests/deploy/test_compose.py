"""`compose.yaml` is one of the specification, and its services are a working registry: run as processes of this machine."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import go_programs
import httpx
import jsonschema_rs
import operating_guides as guides
import pytest
import trustme
import yaml
from composition import FILE, PROXY, Composition, interpolated
from go_programs import needs_go
from http_api import publish
from postgres_pair import PROGRAMS
from postgres_server import Postgres
from registries import publication
from registry_process import empty
from signers import ORIGIN, key_signer

from treaty_io.network.hosts import Address, Network
from treaty_registry.cli.variables import check_variables

SCHEMA = json.loads((Path(__file__).parent / "schemas" / "compose.json").read_text())
HOSTS = {"REGISTRY_HOST": ORIGIN, "WITNESS_1_HOST": "w1.registry.example", "WITNESS_2_HOST": "w2.registry.example"}
VALUES = {**HOSTS, "POSTGRES_PASSWORD": "secret", "STORE_PASSWORD": "another secret"}
AUTHOR = key_signer("author")


def test_the_file_fits_the_schema_of_compose() -> None:
    file = yaml.safe_load(FILE.read_text())
    jsonschema_rs.validator_for(SCHEMA).validate(file)
    file["services"]["registry"]["read-only"] = True
    assert not jsonschema_rs.validator_for(SCHEMA).is_valid(file)


def test_every_image_is_pinned_and_every_container_confined() -> None:
    file = yaml.safe_load(interpolated(FILE.read_text(), VALUES))
    for name, service in file["services"].items():
        assert "build" in service or re.search(r"@sha256:[0-9a-f]{64}$", service["image"]), name
        assert "no-new-privileges:true" in service["security_opt"], name
        # PostgreSQL's image changes its user at the start, and writes beside its data.
        assert name == "postgres" or (service["read_only"] and service["cap_drop"] == ["ALL"]), name
        assert service["mem_limit"] and service["pids_limit"] and service["cpus"], name
        # What runs to its end is waited for.
        assert "healthcheck" in service or service["restart"] == "no", name
    # What is not the proxy's is reached from this machine alone.
    assert all(port.startswith("127.0.0.1:") for name in file["services"] if name != "proxy" for port in ports_of(file, name))
    assert file["services"]["proxy"]["networks"]["inside"]["ipv4_address"] == PROXY
    assert file["services"]["registry"]["environment"]["TREATY_REGISTRY_TRUSTED_PROXY"] == PROXY


def ports_of(file: dict[str, Any], service: str) -> list[str]:
    return list(file["services"][service].get("ports", ()))


def test_the_example_names_every_value() -> None:
    example = (FILE.parent / "env.example").read_text()
    names = set(re.findall(r"\$\{(\w+)", FILE.read_text())) - {"TREATY_IMAGE"}
    assert names == set(re.findall(r"^(\w+)=", example, re.MULTILINE))


@pytest.fixture
async def composition(request: pytest.FixtureRequest, tmp_path: Path, database: str) -> AsyncIterator[Composition]:
    cache = request.config.cache.mkdir("go")
    caddy, store = (go_programs.build(name, cache) / program for name, program in (("caddy", "caddy"), ("s3", "versitygw")))
    composition = Composition(tmp_path, dict(VALUES), database, caddy, store)
    try:
        yield composition
    finally:
        for process in composition.processes.values():
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


def certificate(composition: Composition) -> Network:
    """Put a certificate for all three names where the guide says. Returns the network of a client that trusts its authority."""
    tls = composition.folder / "tls"
    tls.mkdir()
    authority = trustme.CA()
    pair = authority.issue_cert(*HOSTS.values())
    pair.private_key_and_cert_chain_pem.write_to_path(str(tls / "own.pem"))
    authority.cert_pem.write_to_path(str(tls / "ca.pem"))
    (tls / "own.caddy").write_text(f"tls {tls / 'own.pem'} {tls / 'own.pem'}\n")
    where = Address("127.0.0.1", composition.ports["443"])
    composition.extra = {
        "TREATY_REGISTRY_CA": str(tls / "ca.pem"),
        "TREATY_REGISTRY_RESOLVE": " ".join(f"{host}={where.ip}:{where.port}" for host in HOSTS.values()),
    }
    return Network(dict.fromkeys(HOSTS.values(), where), tls / "ca.pem")


async def printed(composition: Composition, service: str, pattern: str) -> str:
    async with asyncio.timeout(120):
        while True:
            results = re.search(pattern, composition.log(service))
            if results:
                return results[1]
            assert composition.processes[service].returncode is None, composition.log(service)
            await asyncio.sleep(0.1)


@pytest.mark.deep
@needs_go("Caddy and the object store of compose.yaml")
async def test_its_services_are_a_witnessed_registry(composition: Composition) -> None:
    network = certificate(composition)
    await composition.run("bucket")
    await composition.start("store")
    await composition.start("proxy")
    output = await composition.run("registry", "init", "--json")
    composition.values["LOG_KEY"] = json.loads(output)["key"]
    keys = []
    for service, host in (("witness-1", "w1.registry.example"), ("witness-2", "w2.registry.example")):
        await composition.start(service)
        keys.append(f"https://{host}#" + await printed(composition, service, r"key: (\S+)"))
    composition.values["WITNESSES"] = " ".join(keys)
    assert await composition.health("registry") != 0 and await composition.health("backup") != 0
    await composition.start("registry")
    await printed(composition, "registry", r"(listens at)")
    where = network.resolve[ORIGIN]
    async with httpx.AsyncClient(transport=network.transport(where), base_url=f"https://{ORIGIN}", timeout=60) as api:
        made_here = publication(AUTHOR)
        await publish(api, AUTHOR, made_here)
        async with asyncio.timeout(60):
            note = ""
            while "\n3\n" not in note or not all(f"— {host} " in note for host in HOSTS.values()):
                await asyncio.sleep(0.1)
                note = (await api.get("/checkpoint")).text
        (digest, data), *_ = made_here.blobs.items()
        assert (await api.get(f"/blobs/sha256/{digest}")).content == data
        stored = composition.place("store", f"/store/treaty-registry/sha256/{digest[:2]}/{digest}")
        assert stored.read_bytes() == data
    async with httpx.AsyncClient(trust_env=False) as prometheus:
        metrics = await prometheus.get(f"http://127.0.0.1:{composition.ports['9464']}/metrics")
        assert "\ntreaty_log_size 3.0\n" in metrics.text
    await composition.start("backup")
    await printed(composition, "backup", r"(3 leaves \(3 new\))")
    assert composition.place("backup", "/backup/registry/checkpoint").exists()
    for service in (*composition.processes,):
        assert await composition.health(service) == 0, service
    assert await composition.stop("registry") == 0
    for service in ("store", "proxy", "witness-1"):
        await composition.stop(service)
        assert await composition.health(service) != 0, service


@pytest.mark.deep
async def test_a_major_upgrade_of_postgresql_follows_the_guide(
    data: Path, database: str, postgres: Postgres, tmp_path: Path
) -> None:
    commands = re.findall(r"exec postgres (pg_\w+) --username treaty (.*)", guides.DEPLOYING)
    assert [program for program, _ in commands] == ["pg_dump", "pg_restore"]
    async with empty(data / "registry", "--database", database, "--origin", ORIGIN) as server:
        await server.start()
        assert await server.ready()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60, trust_env=False) as api:
            await publish(api, AUTHOR, publication(AUTHOR))
        before = await server.leaves()
        assert await server.stop() == 0
        connection = await asyncpg.connect(postgres.url)
        await connection.execute("create database next")
        await connection.close()
        for (program, line), url in zip(commands, (database, postgres.database("next")), strict=True):
            here = {"treaty": url, "/var/lib/postgresql/treaty.dump": str(tmp_path / "dump")}
            words = [here.get(word, word) for word in line.split()]
            await asyncio.to_thread(subprocess.run, [PROGRAMS / program, *words], check=True)
        server.options = ("--database", postgres.database("next"), *server.options[2:])
        await server.start()
        assert await server.ready()
        assert await server.leaves() == before
        assert (await server.run("audit"))["findings"] == []
        assert await server.stop() == 0


def test_every_setting_is_one() -> None:
    environment = yaml.safe_load(FILE.read_text())["services"]["registry"]["environment"]
    check_variables(environment)
