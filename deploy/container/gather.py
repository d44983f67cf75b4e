"""Gather the root of the image: Python, the program, the libraries that both load, and nothing else.

    python3 gather.py ROOT PROGRAM REPORT... < BILL > BILL

`PROGRAM` is the folder of the installed program, and each `REPORT` one of `pip install --report`. `BILL` is the CycloneDX
document of the Python packages. It gets the hash of each file that pip installed, Python itself, and each package of Debian with
the hashes of those of its files that are in the root.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EXTRA = ("/etc/ssl/certs/ca-certificates.crt", "/usr/lib/os-release")
"""Files that no library names: the authorities of the web, and which Debian it is."""
LINKS = {"/etc/os-release": "/usr/lib/os-release", "/usr/lib/ssl/cert.pem": "/etc/ssl/certs/ca-certificates.crt"}
"""Links of the root. OpenSSL looks for the authorities at the second one."""
FOLDERS = {"dev": 0o755, "proc": 0o755, "sys": 0o755, "etc": 0o755, "tmp": 0o1777}
UNUSED = (
    *("ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tests", "tkinter", "turtledemo", "venv"),
    *("__pycache__", "config-*", "dist-packages", "site-packages", "_test*", "_tkinter*", "_xxtest*"),
)
"""Of the standard library: it installs, it draws windows, or it tests."""
_LOADED = re.compile(r"(?:=> )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)


class Root:
    """The root of the image, below a folder of the build."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: set[Path] = set()

    def add(self, path: Path) -> None:
        """Copy a file of the build to the same place, and each link on the way to it."""
        for step in (*reversed(path.parents), path):
            if step.is_symlink():
                target = step.readlink()
                self.link(step, target)
                return self.add(Path(os.path.normpath(step.parent / target / path.relative_to(step))))
        place = self.place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
        # Without setuid and setgid: a process gains rights by nothing in here.
        place.chmod(path.stat().st_mode & 0o755)
        self.files.add(path)
        return None

    def add_folder(self, top: Path, without: Sequence[str] = ()) -> None:
        """Copy a folder, but for names of these patterns."""
        for path in sorted(top.iterdir()):
            if any(path.match(pattern) for pattern in without):
                continue
            if path.is_dir() and not path.is_symlink():
                self.add_folder(path, without)
            elif path.is_dir():
                self.link(path, path.readlink())
            else:
                self.add(path)

    def add_libraries(self) -> None:
        """Copy the libraries that the files load, as the loader finds them."""
        for path in sorted(file for file in self.files if _is_elf(file)):
            said = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
            if "not found" in said:
                raise SystemExit(f"{path} loads a library that is not there:\n{said}")
            for library in _LOADED.findall(said):
                if Path(library) not in self.files:
                    self.add(Path(library))

    def place(self, path: Path) -> Path:
        return self.folder / path.relative_to("/")

    def link(self, path: Path, target: Path) -> None:
        """Make a link, where there is none."""
        place = self.place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_symlink():
            place.symlink_to(target)


def gather(folder: Path, program: Path) -> Root:
    """Return the root that runs `program`."""
    root = Root(folder)
    for name, mode in FOLDERS.items():
        (folder / name).mkdir(parents=True)
        (folder / name).chmod(mode)
    root.add_folder(program)
    root.add(Path(sys.executable))
    root.add_folder(Path(sysconfig.get_path("stdlib")), UNUSED)
    for extra in EXTRA:
        root.add(Path(extra))
    root.add_libraries()
    for link, target in LINKS.items():
        root.link(Path(link), Path(target))
    return root


def debian_packages(root: Root) -> list[dict[str, Any]]:
    """Return the packages of Debian that have a file in the root, as components with these files."""
    # A package may list a file below /lib or below /usr/lib, which are one folder.
    names = {name: file for file in root.files for name in (str(file), str(file).removeprefix("/usr"))}
    said = subprocess.run(["dpkg-query", "--search", *sorted(names)], capture_output=True, text=True, check=False).stdout
    files = defaultdict(set)
    for owner, _, name in (line.partition(": ") for line in said.splitlines()):
        if name in names:
            files[owner].add(names[name])
    form = "${Package}\\t${Version}\\t${Architecture}\\t${source:Package}\\t${source:Version}\\n"
    described = subprocess.run(["dpkg-query", "--show", f"--showformat={form}", *sorted(files)], capture_output=True, check=True)
    rows = [line.split("\t") for line in described.stdout.decode().splitlines()]
    codename = platform.freedesktop_os_release()["VERSION_ID"]
    return [
        {
            "type": "library",
            "bom-ref": f"debian:{name}",
            "name": name,
            "version": version,
            "purl": f"pkg:deb/debian/{name}@{version.replace('+', '%2B')}?arch={architecture}&distro=debian-{codename}",
            "properties": [
                {"name": "aquasecurity:trivy:SrcName", "value": source},
                {"name": "aquasecurity:trivy:SrcVersion", "value": source_version},
            ],
            "components": [_file(file, root) for file in sorted(files.get(name, ()) or files[f"{name}:{architecture}"])],
        }
        for name, version, architecture, source, source_version in rows
    ]


def complete(bill: dict[str, Any], root: Root, reports: list[dict[str, Any]]) -> None:
    """Add to a bill of Python packages all else in the root, and the hash of each file that pip installed."""
    installed = {_normal(item["metadata"]["name"]): item["download_info"] for report in reports for item in report["install"]}
    for component in (bill["metadata"]["component"], *bill["components"]):
        digest = installed[_normal(component["name"])]["archive_info"]["hashes"]["sha256"]
        component["hashes"] = [{"alg": "SHA-256", "content": digest}]
    version = platform.python_version()
    python = {
        "type": "application",
        "bom-ref": "python",
        "name": "python",
        "version": version,
        "cpe": f"cpe:2.3:a:python:python:{version}:*:*:*:*:*:*:*",
        "purl": f"pkg:generic/python@{version}",
        "licenses": [{"license": {"id": "PSF-2.0"}}],
        "hashes": _file(Path(sys.executable).resolve(), root)["hashes"],
    }
    bill["components"] += [python, *debian_packages(root)]


def _file(path: Path, root: Root) -> dict[str, Any]:
    digest = hashlib.sha256(root.place(path).read_bytes()).hexdigest()
    return {"type": "file", "name": str(path), "hashes": [{"alg": "SHA-256", "content": digest}]}


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    folder, program, *reports = map(Path, sys.argv[1:])
    root = gather(folder, program)
    bill = json.load(sys.stdin)
    complete(bill, root, [json.loads(report.read_text()) for report in reports])
    json.dump(bill, sys.stdout, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
