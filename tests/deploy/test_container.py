"""The image: everything in it is pinned, and it is built, twice alike, and run without rights where buildah is installed.

Tests reach no registry of images. So the base here is Debian's Python 3.11, in a root that mmdebstrap makes; all steps of the
Containerfile are those of a real build.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

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


def test_it_is_reproducible_small_and_runs_without_rights(buildah: Buildah, tmp_path: Path) -> None:
    build(buildah, "one")
    build(buildah, "two")
    one, two = (json.loads(buildah("inspect", "--type", "image", name))["OCIv1"] for name in ("one", "two"))
    assert one["rootfs"] == two["rootfs"]
    assert one["config"]["User"] == "65532:65532"
    root = Path(buildah("mount", buildah("from", "one")))
    materials = json.loads((root / "opt/treaty/share/treaty.cdx.json").read_text())
    assert materials["bomFormat"] == "CycloneDX"
    assert pins(FOLDER / "runtime.lock").keys() <= {part["name"].lower().replace("_", "-") for part in materials["components"]}
    assert not any((root / "opt/treaty/bin" / name).exists() for name in ("pip", "pip3"))
    size = sum(path.lstat().st_size for path in (root / "opt/treaty").rglob("*"))
    assert size < 300 * 1024 * 1024
    writable = [path for path in root.rglob("*") if not path.is_symlink() and path.lstat().st_mode & 0o002]
    assert {str(path.relative_to(root)) for path in writable} <= {"tmp", "var/tmp", "run/lock", "var/lock"}
    # Read-only, as another user, with an empty /data: as far as the program can be started without a PostgreSQL.
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    confined = [
        "bwrap",
        "--unshare-user",
        "--uid",
        "65532",
        "--gid",
        "65532",
        "--ro-bind",
        root,
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
    ]
    confined += ["--bind", tmp_path / "data", "/data", "--tmpfs", "/tmp", "--clearenv", "--setenv", "HOME", "/data"]
    command = [*confined, "/opt/treaty/bin/treaty-registry", "serve", "--data", "/data", "--origin", "registry.example", "--json"]
    database = f"postgresql://treaty@127.0.0.1:{free_port()}/treaty"
    refused = subprocess.run([*map(str, command), "--database", database], capture_output=True, text=True, check=False)
    assert json.loads(refused.stdout)["error"]["code"] == "database.unreachable", refused.stderr
