"""The image: everything in it is pinned, and it is built, twice alike, and run without rights where buildah is installed.

Tests reach no registry of images. So the base here is Debian's Python 3.11, in a root that mmdebstrap makes; all steps of the
Containerfile are those of a real build.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gather
import go_programs
import httpx
import pytest
from build_cache import kept
from depth import FULL
from http_api import publish
from object_server import BUCKET, object_server, objects
from ports import free_port
from registries import publication
from signers import ORIGIN, key_signer

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "container"
FILE = FOLDER / "Containerfile"
TIME = "1700000000"
USER = 65532


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9.-]+)==([^ ;\\]+)", path.read_text(), re.MULTILINE))


def test_the_base_is_pinned_and_nothing_runs_as_root() -> None:
    text = FILE.read_text()
    assert re.search(r"^ARG BASE=\S+@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${BASE}", "scratch"]
    last = text.rpartition("\nFROM ")[2]
    assert "\nUSER 65532:65532\n" in last and "\nRUN " not in last


def test_the_libraries_are_those_of_the_whole_lock() -> None:
    whole, image = pins(ROOT / "requirements.lock"), pins(FOLDER / "runtime.lock")
    assert len(image) > 30 and image.items() <= whole.items()
    for lock in ("runtime.lock", "build.lock"):
        packages = re.split(r"^(?=[a-z])", (FOLDER / lock).read_text(), flags=re.MULTILINE)[1:]
        assert all("--hash=sha256:" in package for package in packages)


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="This system has no packages of Debian.")
def test_a_program_is_copied_with_its_libraries_only(tmp_path: Path) -> None:
    programs, linked = tmp_path / "programs", tmp_path / "linked"
    programs.mkdir()
    linked.symlink_to("programs")
    shutil.copy("/usr/bin/env", programs / "env")
    (programs / "env").chmod(0o6755)
    root = gather.Root(tmp_path / "root")
    root.add(linked / "env")
    root.add_libraries()
    assert root.place(linked).readlink() == Path("programs")
    copied = root.place(programs / "env")
    assert copied.read_bytes() == (programs / "env").read_bytes() and copied.stat().st_mode & 0o7777 == 0o755
    (libc,) = (package for package in gather.debian_packages(root) if package["name"] == "libc6")
    assert {Path(file["name"]).name for file in libc["components"]} >= {"libc.so.6"}
    for file in libc["components"]:
        digest = hashlib.sha256(Path(file["name"]).read_bytes()).hexdigest()
        assert file["hashes"] == [{"alg": "SHA-256", "content": digest}]


@pytest.fixture(scope="module")
def versitygw(request: pytest.FixtureRequest) -> Path:
    return go_programs.build("s3", request.config.cache.mkdir("go")) / "versitygw"


@pytest.fixture(scope="module")
def base(request: pytest.FixtureRequest) -> Path:
    """The root of a base image, kept from run to run."""
    if not FULL:
        pytest.skip("A build takes minutes: it is in make test-deep.")
    if os.geteuid() != 0:
        pytest.skip("Only root can become the user of the image.")
    for program in ("buildah", "mmdebstrap", "go", "setpriv"):
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


async def test_it_is_reproducible_small_and_runs_without_rights(
    buildah: Buildah, versitygw: Path, tmp_path: Path, database: str
) -> None:
    await asyncio.to_thread(build, buildah, "one")
    await asyncio.to_thread(build, buildah, "two")
    one, two = (json.loads(buildah("inspect", "--type", "image", name))["OCIv1"] for name in ("one", "two"))
    assert one["rootfs"] == two["rootfs"]
    assert one["config"]["User"] == "65532:65532"
    root = Path(buildah("mount", buildah("from", "one")))
    check_files(root)
    await serves_with_all_parts(root, tmp_path, database, versitygw)


def check_files(root: Path) -> None:
    """It has no shell, no package manager, no file that gives rights, and nothing to write to. All of it is in its bill."""
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in root.rglob("*") if path.lstat().st_mode & 0o6000]
    programs = {path.name for path in files if path.parent.name in ("bin", "sbin")}
    assert programs and not programs & {"apt", "bash", "dash", "dpkg", "mount", "perl", "pip", "pip3", "sh", "su"}
    assert not any((root / "usr/lib" / name).exists() for name in ("apt", "dpkg"))
    assert sum(path.stat().st_size for path in files) < 320 * 1024 * 1024
    writable = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_symlink() and path.lstat().st_mode & 0o002}
    assert writable == {"tmp"}
    assert {str(path.relative_to(root)) for path in root.rglob("*") if path.lstat().st_uid} == {"backup", "data"}
    wheels = {path.name.split("-")[0] for path in (root / "opt/treaty/share/wheels").iterdir()}
    assert wheels == {"treaty_agents", "treaty_handler"}, "of the registry's own index"
    check_bill(root, json.loads((root / "opt/treaty/share/treaty.cdx.json").read_text()), files)


def check_bill(root: Path, bill: dict[str, Any], files: list[Path]) -> None:
    """Each library of the lock is in it with a hash of the lock, and each file of Debian with its own."""
    assert bill["bomFormat"] == "CycloneDX" and "serialNumber" not in bill
    parts = {part["purl"]: part for part in bill["components"]}
    assert len(parts) == len(bill["components"])
    lock = (FOLDER / "runtime.lock").read_text()
    for name, version in pins(FOLDER / "runtime.lock").items():
        (digest,) = parts.pop(f"pkg:pypi/{name}@{version}")["hashes"]
        assert f"sha256:{digest['content']}" in lock
    debian = {purl: part for purl, part in parts.items() if purl.startswith("pkg:deb/debian/")}
    (python,) = (part for purl, part in parts.items() if purl not in debian)
    assert python["name"] == "python" and python["hashes"] and bill["metadata"]["component"]["hashes"]
    assert {"libc6", "libssl3", "zlib1g"} <= {part["name"] for part in debian.values()}
    named = {file["name"]: file["hashes"][0]["content"] for part in debian.values() for file in part["components"]}
    for name, digest in named.items():
        assert hashlib.sha256((root / name.lstrip("/")).read_bytes()).hexdigest() == digest
    # All else is the program and its compiled modules, and what no package has because the installation of one makes it.
    rest = {path for path in files if "__pycache__" not in path.parts and not path.is_relative_to(root / "opt/treaty")}
    assert {f"/{path.relative_to(root)}" for path in rest} - named.keys() == {"/etc/ssl/certs/ca-certificates.crt"}


CONFINE = """
import ctypes, os, sys
root, user, program, *arguments = sys.argv[1:]
prctl = ctypes.CDLL(None, use_errno=True).prctl
os.chroot(root)
os.chdir("/data")
for capability in range(64):
    prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
os.setgroups([])
os.setresgid(*[int(user)] * 3)
os.setresuid(*[int(user)] * 3)
prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
os.execv(program, [program, *arguments])
"""
"""Becomes a program of the image, in which there is none that could confine another one."""


@dataclass
class Image:
    """The files of an image, whose command is run as a container runs it: user 65532, a read-only root, and no capability."""

    root: Path
    folder: Path
    variables: dict[str, str]
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def start(self, name: str, *arguments: str) -> Any:
        """Start a command on a data folder of its own; return the value that it prints first."""
        data = self.folder / name
        if not data.exists():
            data.mkdir(mode=0o700)
            os.chown(data, USER, USER)
        variables_of = {
            "HOME": "/data",
            "PATH": "/opt/treaty/bin",
            "TREATY_REGISTRY_DATA": "/data",
            "TREATY_WITNESS_DATA": "/data",
            "TREATY_REGISTRY_WHEELS": "/opt/treaty/share/wheels",
        }
        variables = ["env", "--ignore-environment", *(f"{key}={value}" for key, value in (variables_of | self.variables).items())]
        words = [*variables, sys.executable, "-c", CONFINE, self.root, USER, "/opt/treaty/bin/treaty-registry"]
        mounts = "\n".join([*self._mounts(data), 'exec "$@"'])
        command = ["unshare", "--mount", "--ipc", "--uts", "sh", "-ec", mounts, "sh", *words, *arguments, "--json"]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(*map(str, command), stdout=-1, stderr=log)
        self.processes.append(process)
        assert process.stdout is not None
        line = await process.stdout.readline()
        assert line, (self.folder / f"{name}.log").read_text()[-2000:]
        return json.loads(line)

    def _mounts(self, data: Path) -> list[str]:
        root = self.root
        devices = ("null", "zero", "full", "random", "urandom", "tty")
        return [
            f"mount --bind {root} {root} && mount -t proc proc {root}/proc && mount -t tmpfs -o mode=755 tmpfs {root}/dev",
            *(f"touch {root}/dev/{name} && mount --bind /dev/{name} {root}/dev/{name}" for name in devices),
            f"mkdir {root}/dev/shm && mount -t tmpfs -o mode=1777 tmpfs {root}/dev/shm",
            f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp && mount --bind {data} {root}/data",
            f"mount -o remount,bind,ro {root}",
        ]

    def status(self, number: int) -> dict[str, str]:
        """Return what the kernel says of a process, which has kept its id from `unshare` on."""
        lines = Path(f"/proc/{self.processes[number].pid}/status").read_text().splitlines()
        return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}

    async def stop(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def serves_with_all_parts(root: Path, folder: Path, database: str, versitygw: Path) -> None:
    """Its command is a registry with its state in PostgreSQL and an object store, and two witnesses, all of this image."""
    port, database_port = free_port(), free_port()
    url = re.sub(r"@/(\w+)\?.*", rf"@127.0.0.1:{database_port}/\1?sslmode=disable", database)
    (folder / "store").mkdir()
    with object_server(folder / "store", versitygw) as store:
        shared = {"TREATY_REGISTRY_PORT": str(port), "TREATY_REGISTRY_BASE_URL": f"http://127.0.0.1:{port}"}
        blobs = {"TREATY_DATABASE_URL": url, "TREATY_BLOBS_URL": f"s3://{BUCKET}/registry"}
        image = Image(root, folder, {**shared, **blobs, **store})
        async with await asyncio.start_server(partial(relayed, socket_of(database)), "127.0.0.1", database_port):
            try:
                output = await image.start("registry", "init", "--origin", ORIGIN)
                witnesses = []
                for name in ("w1.example", "w2.example"):
                    about = await image.start(name, "witness", "--port", str(free_port()), "--name", name, "--log", output["key"])
                    witnesses.append(f"{about['url']}#{about['key']}")
                image.variables["TREATY_REGISTRY_WITNESS"] = " ".join(witnesses)
                assert (await image.start("registry", "serve")).get("size") == 2
                status = image.status(-1)
                assert status["Uid"].split() == [str(USER)] * 4 and status["NoNewPrivs"] == "1"
                assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd")} == {"0" * 16}
                await takes_and_has_witnessed(port)
                assert any(name.startswith("registry/sha256/") for name in objects())
            finally:
                await image.stop()
    assert (folder / "registry" / "keys" / "log.key").stat().st_uid == USER


async def takes_and_has_witnessed(port: int) -> None:
    """It takes a publication, serves it, and both witnesses cosign the log that has it."""
    publisher = key_signer("author")
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as api, asyncio.timeout(60):
        assert (await api.get("/health/ready")).status_code == 200
        statement = publication(publisher)
        await publish(api, publisher, statement)
        note = ""
        while "\n3\n" not in note or not all(f"— {name} " in note for name in ("w1.example", "w2.example")):
            await asyncio.sleep(0.1)
            note = (await api.get("/checkpoint")).text
        (digest, data), *_ = statement.blobs.items()
        assert (await api.get(f"/blobs/sha256/{digest}")).content == data


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
