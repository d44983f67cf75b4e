"""Which wheels are handler packages. `read_wheel` decides; whatever it returns has passed every rule below.

A handler package is a wheel (Python packaging specifications, "Binary distribution format") narrowed to what can be read in one
way and does nothing when it is unpacked:

1. Its file name is `treaty_handler_NAME-VERSION-py3-none-any.whl`, each part in normal form, without a build tag.
2. The archive is plain (`archive`), with its caps on bytes, files and unpacked bytes.
3. All files are in two folders: `treaty_handler_NAME/`, the one importable package, and `treaty_handler_NAME-VERSION.dist-info/`.
4. Files are UTF-8 text without NUL. No `.pth`, no `.data/`, no scripts, no native code, no bytecode.
5. `RECORD` lists every other file with its SHA-256 and size, and nothing else. Signature files beside it are not known here.
6. `WHEEL` says 1.x, purelib and the one tag; `METADATA` agrees on name and version and requires no other distribution.
7. `entry_points.txt` has the one group `treaty.handlers` with one entry, `MODULE:ATTRIBUTE`, whose module is in the package.
8. `manifest.json` in the package is valid (`manifest`).
"""

from __future__ import annotations

import base64
import configparser
import csv
import email.parser
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from packaging.metadata import parse_email
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from ..canonical import hex_digest, sha256
from ..errors import Malformed, Refused
from .archive import read_archive
from .manifest import MANIFEST_NAME, Manifest, parse_manifest

PREFIX = "treaty-handler-"
GROUP = "treaty.handlers"
MAX_FILENAME = 160

_BYTECODE = (".pyc", ".pyo")
_NATIVE = (".so", ".pyd", ".dll", ".dylib", ".a", ".lib", ".o", ".obj", ".exe", ".com", ".wasm")
_DIST_INFO = frozenset({"METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt"})
_ENTRY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
_ENTRY_VALUE = re.compile(rf"({_IDENTIFIER}(?:\.{_IDENTIFIER})*):({_IDENTIFIER})")


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """`NAME = MODULE:ATTRIBUTE` of the group `treaty.handlers`."""

    name: str
    module: str
    attribute: str

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"


@dataclass(frozen=True, slots=True)
class HandlerPackage:
    """A wheel that passed every rule. `files`: all of its files, archive name to content."""

    digest: str
    filename: str
    size: int
    name: str
    version: str
    entry_point: EntryPoint
    manifest: Manifest
    files: Mapping[str, bytes]

    @property
    def package(self) -> str:
        """The name of its one importable package."""
        return self.name.replace("-", "_")


def read_wheel(filename: str, data: bytes) -> HandlerPackage:
    """Check a wheel against every rule of this module.

    Raises `TooLarge`, `Malformed` or `Refused`, codes `handler.…`; else it is one.
    """
    name, version = parse_filename(filename)
    files = read_archive(data)
    package = name.replace("-", "_")
    dist_info = f"{package}-{version}.dist-info"
    for path, content in files.items():
        _check_file(path, content, package, dist_info)
    _check_record(files, dist_info)
    _check_wheel_file(_text(files, f"{dist_info}/WHEEL"))
    _check_metadata(_file(files, f"{dist_info}/METADATA"), name, version)
    _file(files, f"{package}/__init__.py")
    entry_point = _entry_point(_text(files, f"{dist_info}/entry_points.txt"), package, files)
    manifest = parse_manifest(_file(files, f"{package}/{MANIFEST_NAME}"))
    return HandlerPackage(hex_digest(data), filename, len(data), name, version, entry_point, manifest, MappingProxyType(files))


def parse_filename(filename: str) -> tuple[str, str]:
    """Distribution name (with dashes) and version. Raises `Malformed`, or `Refused` for a wheel that is no handler package."""
    if len(filename) > MAX_FILENAME:
        raise Malformed("handler.filename", f"A wheel's file name has at most {MAX_FILENAME} characters.")
    try:
        name, version, build, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        raise Malformed("handler.filename", f"{filename!a} is no wheel's file name.") from error
    if not name.startswith(PREFIX) or build or [str(tag) for tag in tags] != ["py3-none-any"]:
        raise Refused("handler.filename", f"{filename} is not of the form treaty_handler_NAME-VERSION-py3-none-any.whl.")
    normal = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    if filename != normal:
        raise Refused("handler.filename", f"The normal form of {filename!a} is {normal}.", fix=f"Rename it to {normal}.")
    return str(name), str(version)


def _check_file(path: str, content: bytes, package: str, dist_info: str) -> None:
    top, _, rest = path.partition("/")
    lower = path.lower()
    if lower.endswith(".pth"):
        raise Refused("handler.pth", f"{path} would run code when Python starts.")
    if top.lower().endswith(".data"):
        raise Refused("handler.data", f"{path} would be installed outside the package.")
    if lower.endswith(_BYTECODE) or "__pycache__" in lower.split("/"):
        raise Refused("handler.bytecode", f"{path} is bytecode; packages carry source only.")
    if lower.endswith(_NATIVE) or ".so." in lower:
        raise Refused("handler.native", f"{path} is native code.")
    if not rest or top not in (package, dist_info):
        raise Refused("handler.top-level", f"{path} is outside {package}/, the package's one importable name.")
    if top == dist_info and rest not in _DIST_INFO and not rest.startswith("licenses/"):
        raise Refused("handler.dist-info", f"{path} has no place in a handler package.")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused("handler.binary", f"{path} is not UTF-8 text.") from error
    if "\0" in text:
        raise Refused("handler.binary", f"{path} is not text: it holds NUL.")


def _check_record(files: Mapping[str, bytes], dist_info: str) -> None:
    record = f"{dist_info}/RECORD"
    try:
        rows = list(csv.reader(_text(files, record).splitlines(), strict=True))
    except csv.Error as error:
        raise Malformed("handler.record", "RECORD does not parse.") from error
    listed: dict[str, tuple[str, str]] = {}
    for row in rows:
        if len(row) != 3 or row[0] in listed:
            raise Malformed("handler.record", "A line of RECORD is not PATH,HASH,SIZE, or a path occurs twice.")
        listed[row[0]] = (row[1], row[2])
    if listed.keys() != files.keys():
        odd = min(listed.keys() ^ files.keys())
        raise Refused("handler.record", f"RECORD and the archive do not list the same files: {ascii(odd)[:240]}.")
    for path, (digest, size) in listed.items():
        expected = ("", "") if path == record else (f"sha256={_record_digest(files[path])}", str(len(files[path])))
        if (digest, size) != expected:
            raise Refused("handler.record-hash", f"{path} is not what RECORD says.")


def _record_digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(sha256(content)).decode("ascii").rstrip("=")


def _check_wheel_file(text: str) -> None:
    headers = email.parser.HeaderParser().parsestr(text)
    versions = headers.get_all("Wheel-Version", [])
    if len(versions) != 1 or not re.fullmatch(r"1\.[0-9]{1,3}", versions[0]):
        raise Refused("handler.wheel", "WHEEL says no version 1.x.")
    if headers.get_all("Root-Is-Purelib") != ["true"] or headers.get_all("Tag") != ["py3-none-any"] or "Build" in headers:
        raise Refused("handler.wheel", "WHEEL says something else than purelib, py3-none-any.")


def _check_metadata(data: bytes, name: str, version: str) -> None:
    raw, unparsed = parse_email(data)
    if unparsed:
        raise Malformed("handler.metadata", f"METADATA does not parse: {ascii(min(unparsed))[:80]}.")
    if canonicalize_name(raw.get("name", "")) != name or raw.get("version") != version:
        raise Refused("handler.metadata", "METADATA and the file name differ in name or version.")
    if raw.get("requires_dist") or raw.get("requires_external") or raw.get("requires"):
        raise Refused(
            "handler.requires",
            "A handler package requires no other distribution.",
            fix="Use the standard library and treaty_handler; the sandbox holds nothing else.",
        )


def _entry_point(text: str, package: str, files: Mapping[str, bytes]) -> EntryPoint:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, default_section="", strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names are case-sensitive here
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise Malformed("handler.entry-point", "entry_points.txt does not parse.") from error
    for section in parser.sections():
        if section in ("console_scripts", "gui_scripts"):
            raise Refused("handler.script", f"entry_points.txt installs a command ({section}).")
    if parser.sections() != [GROUP] or len(parser[GROUP]) != 1:
        raise Refused("handler.entry-point", f"entry_points.txt is not one group {GROUP} with one entry.")
    [(name, value)] = parser[GROUP].items()
    match = _ENTRY_VALUE.fullmatch(value)
    if match is None or not _ENTRY_NAME.fullmatch(name):
        raise Malformed("handler.entry-point", "The entry point is not of the form NAME = MODULE:ATTRIBUTE.")
    module, attribute = match[1], match[2]
    path = module.replace(".", "/")
    if module.split(".")[0] != package or not {f"{path}.py", f"{path}/__init__.py"} & files.keys():
        raise Refused("handler.entry-point", f"The entry point's module {module} is not in the package.")
    return EntryPoint(name, module, attribute)


def _file(files: Mapping[str, bytes], path: str) -> bytes:
    if path not in files:
        raise Malformed("handler.missing", f"The package has no {path}.")
    return files[path]


def _text(files: Mapping[str, bytes], path: str) -> str:
    return _file(files, path).decode("utf-8")  # every file was checked to be UTF-8
