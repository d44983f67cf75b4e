"""The metadata pages of devpi and verdaccio beside our record from PostgreSQL: one package in one version, each server on the one
processor that the registry has in its turn.

Both are optional and nobody's dependency: `--with-devpi PROGRAM` names a `devpi-server`, `--with-verdaccio PROGRAM` a
`verdaccio`, each in an environment of its own. devpi's page is a project as JSON: after its simple page it hangs up each time.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import httpx

from treaty_client.protocols.project import load_project

from .contest import Group, Meter, Row
from .http_load import load_generator
from .publishing import PRODUCT_INFO, author
from .reading import RECORDS, steady, sweep
from .servers import Processors, SceneFailed, free_port, listens, ready, registry, running, workspace

_RECORD = "record from PostgreSQL"
_DEVPI = Row("devpi", _RECORD, "devpi-server's metadata of a project", "1/s", "record", "devpi", 15)
_VERDACCIO = Row("verdaccio", _RECORD, "verdaccio's metadata of a package", "1/s", "record", "verdaccio", 5)
ROWS = (_DEVPI, _VERDACCIO)
_NAME = "treaty-bench-package"

_VERDACCIO_CONFIG = """
storage: {folder}/storage
auth: {{htpasswd: {{file: {folder}/htpasswd}}}}
packages: {{"**": {{access: $all, publish: $all}}}}
log: {{type: stdout, level: error}}
"""


def group(devpi: str | None, verdaccio: str | None) -> Group:
    """The rows for the programs that were named."""
    rows = tuple(row for row, program in zip(ROWS, (devpi, verdaccio), strict=True) if program)
    return Group("rivals", rows, partial(_scene, devpi, verdaccio), turns=4)


@asynccontextmanager
async def _scene(devpi: str | None, verdaccio: str | None) -> AsyncIterator[Mapping[str, Meter]]:
    processors = Processors.divided()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(workspace())
        served = await stack.enter_async_context(registry(folder, processors.server))
        writer = await stack.enter_async_context(author(served, folder))
        paths = [f"{path}.json" for path in await writer.publish_many(RECORDS)]
        generator = stack.enter_context(load_generator(processors.load))
        meters = {"record": sweep(generator, served.port, paths, writer)}
        if devpi:
            port = await stack.enter_async_context(_devpi(devpi, folder, processors.server))
            meters["devpi"] = steady(generator, port, f"/root/dev/{_NAME}", accept="application/json")
        if verdaccio:
            port = await stack.enter_async_context(_verdaccio(verdaccio, folder, processors.server))
            meters["verdaccio"] = steady(generator, port, f"/{_NAME}")
        yield meters


@asynccontextmanager
async def _devpi(program: str, folder: Path, processors: frozenset[int] | None) -> AsyncIterator[int]:
    """devpi-server with an index that holds one wheel; yields its port."""
    port, log, data = free_port(), folder / "devpi.log", str(folder / "devpi")
    with running([str(Path(_which(program)).parent / "devpi-init"), "--serverdir", data, "--no-root-pypi"], log) as process:
        await ready(process, log, lambda: process.poll() == 0)
    command = [_which(program), "--serverdir", data, "--host", "127.0.0.1", "--port", str(port)]
    with running(command, log, processors) as process:
        await ready(process, log, lambda: listens(port))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            login = await client.post("/+login", json={"user": "root", "password": ""})
            token = login.json()["result"]["password"]
            client.headers["X-Devpi-Auth"] = base64.b64encode(f"root:{token}".encode()).decode()
            _check(await client.put("/root/dev", json={"type": "stage", "bases": []}))
            fields = {":action": "file_upload", "name": _NAME, "version": "1.0"}
            wheel = f"{_NAME.replace('-', '_')}-1.0-py3-none-any.whl"
            _check(await client.post("/root/dev/", data=fields, files={"content": (wheel, _wheel())}))
        yield port


@asynccontextmanager
async def _verdaccio(program: str, folder: Path, processors: frozenset[int] | None) -> AsyncIterator[int]:
    """verdaccio with one package; yields its port."""
    port, log, config = free_port(), folder / "verdaccio.log", folder / "verdaccio.yaml"
    config.write_text(_VERDACCIO_CONFIG.format(folder=folder))
    with running([_which(program), "--config", str(config), "--listen", f"127.0.0.1:{port}"], log, processors) as process:
        await ready(process, log, lambda: listens(port))
        archive = f"{_NAME}-1.0.0.tgz"
        version = {"name": _NAME, "version": "1.0.0", "dist": {"tarball": f"http://127.0.0.1:{port}/{_NAME}/-/{archive}"}}
        attachment = {"content_type": "application/octet-stream", "data": base64.b64encode(_wheel()).decode()}
        package = {"_id": _NAME, "name": _NAME, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            _check(await client.put(f"/{_NAME}", json=package | {"_attachments": {archive: attachment}}))
        yield port


def _wheel() -> bytes:
    """Some bytes to upload: a handler's wheel."""
    project = load_project(PRODUCT_INFO / "1.1")
    return project.build_wheel(f"https://bench.example/protocols/bench.example/{project.name}/{project.version}")[1]


def _which(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise SceneFailed(f"there is no program {program}")
    return found


def _check(response: httpx.Response) -> None:
    if not response.is_success:
        raise SceneFailed(f"{response.request.method} {response.url}: {response.status_code} {response.text[:300]}")
