"""Attack: wheels made to cost as much as they can, from many keys that cost nothing, at a registry that others use meanwhile."""

from __future__ import annotations

import asyncio
import time
import zipfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from handler_packages import DIST_INFO, FILENAME, PACKAGE, metadata, with_record, zipped
from http_api import post, put
from registries import Publication, blob, publication
from registry_process import Server, empty
from signers import Signer, key_signer

from treaty_consensus import kinds, statement
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import build_wheel, read_wheel
from treaty_consensus.handler.archive import MAX_CONTENT

METADATA, ENTRY_POINTS = f"{DIST_INFO}/METADATA", f"{DIST_INFO}/entry_points.txt"
Files = Mapping[str, bytes]


def with_text(path: str, text: bytes) -> Callable[[Files], Files]:
    """The files with this text at the end of one of them."""
    return lambda files: {**files, path: files.get(path, b"") + text}


HEADERS = b"".join(b"X-%s: 1\n" % name.encode() for name in ("".join(chr(97 + int(c)) for c in str(n)) for n in range(8_000)))
HOSTILE: dict[str, tuple[Callable[[Files], Files], str]] = {
    "bad lines of entry points": (with_text(ENTRY_POINTS, b"bad\n" * 80_000), "handler.package"),
    "bad lines as many as fit": (with_text(ENTRY_POINTS, b"x\n" * 480), "handler.entry-point"),
    "distinct headers": (with_text(METADATA, HEADERS), "handler.package"),
    "distinct headers as many as fit": (with_text(METADATA, HEADERS[:60_000]), "handler.package"),
    "one header again and again": (with_text(METADATA, b"Name: x\n" * 8_000), "handler.package"),
    "a header that goes on and on": (with_text(METADATA, b"Version: 1\n" + b" 1\n" * 20_000), "handler.package"),
    "a record of one path": (with_text(f"{DIST_INFO}/RECORD", b"x,,\n" * 10_000), "handler.package"),
    "a source that names encodings": (with_text(f"{PACKAGE}/x.py", b"#" + b"coding: utf-8 " * 500_000), "handler.package"),
    "a coding without a name": (with_text(f"{PACKAGE}/x.py", b"#coding:" + b" " * 8_000_000 + b"\r"), "handler.package"),
    "text that is not ASCII": (with_text(f"{PACKAGE}/x.py", "é漢".encode() * 1_600_000 + "\u2028".encode()), "handler.package"),
    "a schema of one level": (with_text(f"{PACKAGE}/manifest.json", b"[" + b"0," * 60_000), "handler.manifest"),
    "a schema of many levels": (with_text(f"{PACKAGE}/manifest.json", b"[" * 120_000), "handler.manifest"),
}


def wheel_for(publication: Publication, change: Callable[[Files], Files] = lambda files: files) -> bytes:
    """A wheel for this protocol, with `change` made to its files, and a RECORD that is right about them."""
    about = replace(metadata(), protocol_uri=publication.body.uri, protocol_hash=publication.body.document.sha256)
    files = dict(read_wheel(*build_wheel({"__init__.py": b"handler = 1\n"}, about)).files)
    changed = change(files)
    wrong_record = changed.get(f"{DIST_INFO}/RECORD") != files[f"{DIST_INFO}/RECORD"]
    return zipped(changed if wrong_record else with_record(changed), zipfile.ZIP_DEFLATED)


def attached(publication: Publication, wheel: bytes) -> tuple[kinds.Handler, tuple[bytes, bytes]]:
    """The statement that attaches a wheel, and the bytes that it names."""
    bundle = b'{"attested": true}'
    body = kinds.Handler(
        publication.body.uri, publication.body.document.sha256, FILENAME, blob(wheel), f"{PACKAGE}:handler", blob(bundle)
    )
    return body, (wheel, bundle)


@pytest.fixture
async def server(data: Path) -> AsyncIterator[Server]:
    async with empty(data / "registry") as server:
        await server.start()
        assert await server.ready()
        yield server


@pytest.fixture
async def api(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    url = f"http://127.0.0.1:{server.port}"
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        yield client


def of(server: Server, publication: Publication) -> Publication:
    """A publication at the registry that is running."""
    uri = publication.body.uri.replace("registry.example", server.about["origin"])
    return Publication(
        kinds.Publish(uri, publication.body.topic, publication.body.document, publication.body.card, "negotiated"),
        publication.document,
        publication.card,
    )


async def send(api: httpx.AsyncClient, server: Server, agent: Signer, body: kinds.Body, *blobs: bytes) -> httpx.Response:
    """Upload what a statement names, and submit it."""
    signed = agent.statement(body, log=server.about["origin"])
    for data in blobs:
        uploaded = await put(api, data, signed)
        assert uploaded.status_code in (201, 204), uploaded.text
    return await post(api, signed)


async def attack(api: httpx.AsyncClient, server: Server, name: str) -> tuple[str, httpx.Response]:
    """Attach a hostile wheel to a protocol of the attacker's own, which is never published: contents are read before that."""
    attacker = key_signer(f"attacker with {name}")
    statement = of(server, publication(attacker))
    body, blobs = attached(statement, wheel_for(statement, HOSTILE[name][0]))
    return name, await send(api, server, attacker, body, *blobs)


@pytest.mark.deep
@pytest.mark.threat(73)
async def test_honest_wheels_pass_while_costly_ones_are_refused(api: httpx.AsyncClient, server: Server) -> None:
    honest = key_signer("honest")
    attacks = [asyncio.create_task(attack(api, server, name)) for name in HOSTILE]
    made = of(server, publication(honest))
    body, blobs = attached(made, wheel_for(made))
    async with asyncio.timeout(60):  # a registry that reads as it is told to is busy for hours
        published = await send(api, server, honest, made.body, *made.blobs.values())
        handled = await send(api, server, honest, body, *blobs)
        outcomes = await asyncio.gather(*attacks)
    assert (published.status_code, handled.status_code) == (201, 201)
    for name, answer in outcomes:
        assert (answer.json()["code"], answer.status_code // 100) == (HOSTILE[name][1], 4), name
    authors = {did.text for leaf in await server.leaves() for did in statement.parse(leaf).authors}
    assert honest.did in authors
    assert not authors & {key_signer(f"attacker with {name}").did for name in HOSTILE}
    assert await server.stop() == 0


@pytest.mark.deep
@pytest.mark.threat(73)
async def test_a_stop_ends_the_registry_during_hostile_work(api: httpx.AsyncClient, server: Server) -> None:
    agent = key_signer("attacker")
    statement = of(server, publication(agent))

    async def attach(number: int) -> None:
        text = f"# {number}\n# é漢".encode() + "é漢".encode() * ((MAX_CONTENT - 20_000) // 5)
        body, blobs = attached(statement, wheel_for(statement, with_text(f"{PACKAGE}/x.py", text)))
        await send(api, server, agent, body, *blobs)

    wheels = [asyncio.create_task(attach(number)) for number in range(40)]
    done, waiting = await asyncio.wait(wheels, return_when=asyncio.FIRST_COMPLETED)
    assert not any(task.exception() for task in done) and len(waiting) > 20, "the work is under way"
    begun = time.monotonic()
    async with asyncio.timeout(60):
        status = await server.stop()
    print(f"stopped after {time.monotonic() - begun:.1f} s with {len(waiting)} requests under way")
    assert status == 0
    for outcome in await asyncio.gather(*wheels, return_exceptions=True):
        assert outcome is None or isinstance(outcome, httpx.HTTPError | AssertionError)


def work(*changes: Callable[[Files], Files]) -> list[float]:
    """Seconds of processor time that reading each of these wheels takes, at best of five: in turn, because a processor that
    others use is not always as fast."""
    statement = publication(key_signer("anybody"))
    wheels = [wheel_for(statement, change) for change in changes]
    costs: list[list[float]] = [[] for _ in wheels]
    for _ in range(5):
        for wheel, cost in zip(wheels, costs, strict=True):
            begun = time.process_time()
            with pytest.raises(TreatyError):
                read_wheel(FILENAME, wheel)
            cost.append(time.process_time() - begun)
    return [min(cost) for cost in costs]


ALL_THAT_FITS = with_text(f"{PACKAGE}/x.py", b"# a comment\n" * ((MAX_CONTENT - 20_000) // 12) + b"\0")
"""A source as large as a package may be, refused for its last byte."""


@pytest.mark.sample(4)
@pytest.mark.threat(41)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_wheel_costs_no_more_than_a_few_honest_ones(name: str) -> None:
    hostile, honest = work(HOSTILE[name][0], ALL_THAT_FITS)
    assert hostile < 20 * honest
