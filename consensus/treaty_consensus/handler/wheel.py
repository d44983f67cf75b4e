"""Check that a wheel is a handler package. A result of `read_wheel` has passed every rule.

The rules are in `docs/specification/handler-packages.md`, "The wheel": a wheel (Python packaging specifications, "Binary
distribution format"), restricted so that all readers see the same content and unpacking runs no code. For example,
`treaty_handler_product_info-1.0-py3-none-any.whl` contains `treaty_handler_product_info/` and its `.dist-info/`, and nothing
else. `archive`, `paths`, `modules`, `text`, `dist_info` and `manifest` each check their part.

Every rule reads each byte a bounded number of times and caps its input before parsing. So a wheel costs at most 8 MiB of text
to inflate, hash and decode, and a manifest and a README to parse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from packaging.version import InvalidVersion, Version

from ..canonical import hex_digest
from ..codes import HandlerCode
from ..errors import Malformed, Refused
from .archive import read_archive
from .dist_info import (
    check_metadata,
    check_place,
    check_record,
    check_top_level,
    check_wheel_file,
    is_plain,
    parse_entry_point,
)
from .manifest import MANIFEST_NAME, Manifest, parse_manifest
from .modules import check_ending, check_modules, is_source
from .text import check_coding, check_plain, decode

PREFIX = "treaty-handler-"
VECTORS = "vectors"
"""The folder of the package with the sessions that its handler reproduces. Readers replay them; a handler does not see them."""
TAG = "py3-none-any"
# The entry point of a package without code. Its manifest has `messages`, which the host interprets.
DECLARATIVE = "treaty_handler.declarative:handler"
# Most file systems limit a name to 255 bytes; stores add a digest.
MAX_FILENAME = 160

_FILENAME = re.compile(rf"(treaty_handler(?:_[a-z0-9]+)+)-([a-z0-9.+]+)-{TAG}\.whl")


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """Hold the entry point `NAME = MODULE:ATTRIBUTE` of the group `treaty.handlers`."""

    name: str
    module: str
    attribute: str

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"


@dataclass(frozen=True, slots=True)
class HandlerPackage:
    """Hold a wheel that passed every rule. `files`: archive name → content, for all files."""

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
        """Return the name of the one importable package."""
        return self.name.replace("-", "_")

    @property
    def vectors(self) -> dict[str, bytes]:
        """Return the JSON files of the folder `vectors`: name → content."""
        folder = f"{self.package}/{VECTORS}/"
        named = {path.removeprefix(folder): content for path, content in self.files.items() if path.startswith(folder)}
        return {name: content for name, content in named.items() if name.endswith(".json")}

    @property
    def is_declarative(self) -> bool:
        """Tell whether the package has no code: its manifest has the forms of all messages."""
        return bool(self.manifest.messages)


def read_wheel(filename: str, data: bytes) -> HandlerPackage:
    """Check a wheel against every rule of this module and return it parsed. CPU-bound; linear in the unpacked size.

    Raises `TooLarge`, `Malformed` or `Refused` (`handler.*`).
    """
    name, version = parse_filename(filename)
    files = read_archive(data)
    package = name.replace("-", "_")
    dist_info = f"{package}-{version}.dist-info"
    for path, content in files.items():
        _check_file(path, content, package, dist_info)
    # Cheap checks first: names before hashes, and the manifest with its schemas last.
    check_modules(files)
    check_record(_text(files, f"{dist_info}/RECORD"), f"{dist_info}/RECORD", files)
    check_wheel_file(_text(files, f"{dist_info}/WHEEL"))
    check_metadata(_text(files, f"{dist_info}/METADATA"), name, version)
    if f"{dist_info}/top_level.txt" in files:
        check_top_level(_text(files, f"{dist_info}/top_level.txt"), package)
    entry_point = _entry_point(_text(files, f"{dist_info}/entry_points.txt"), package, files)
    manifest = parse_manifest(_file(files, f"{package}/{MANIFEST_NAME}"))
    _check_declarative(manifest, entry_point, package, files)
    return HandlerPackage(hex_digest(data), filename, len(data), name, version, entry_point, manifest, MappingProxyType(files))


def parse_filename(filename: str) -> tuple[str, str]:
    """Return distribution name (with dashes) and version. Raises `Malformed` or `Refused` (`handler.filename`)."""
    if len(filename) > MAX_FILENAME:
        raise Malformed(HandlerCode.FILENAME, f"A wheel's file name has at most {MAX_FILENAME} characters.")
    match = _FILENAME.fullmatch(filename)
    if match is None:
        raise Refused(
            HandlerCode.FILENAME,
            f"{filename!a} is not of the form treaty_handler_NAME-VERSION-{TAG}.whl.",
            fix="NAME is lower-case words and digits joined by single underscores.",
        )
    package, written = match.groups()
    try:
        version = str(Version(written))
    except InvalidVersion as error:
        raise Malformed(HandlerCode.FILENAME, f"{written!a} is not a version (PEP 440).") from error
    # One version has one file name: `1.0` and `1.00` would be two packages of one version.
    if written != version:
        normal = f"{package}-{version}-{TAG}.whl"
        raise Refused(HandlerCode.FILENAME, f"The normal form of {filename!a} is {normal}.", fix=f"Rename it to {normal}.")
    return package.replace("_", "-"), version


def _check_file(path: str, content: bytes, package: str, dist_info: str) -> None:
    top, _, rest = path.partition("/")
    # Checked first and by name alone: an installer would act on these before any import.
    if path.lower().endswith(".pth"):
        raise Refused(HandlerCode.PTH, f"{path} would run code when Python starts.")
    if top.lower().endswith(".data"):
        raise Refused(HandlerCode.DATA, f"{path} would be installed outside the package.")
    check_ending(path)
    if not rest or top not in (package, dist_info):
        raise Refused(HandlerCode.TOP_LEVEL, f"{path} is outside {package}/, the package's one importable name.")
    if top == dist_info:
        check_place(path, rest, len(content))
    text = decode(path, content)
    if is_source(path) or (top == dist_info and is_plain(rest)):
        check_plain(path, content, text)
    if is_source(path):
        check_coding(path, text)


def _entry_point(text: str, package: str, files: Mapping[str, bytes]) -> EntryPoint:
    name, module, attribute = parse_entry_point(text)
    if f"{module}:{attribute}" == DECLARATIVE:
        return EntryPoint(name, module, attribute)
    _file(files, f"{package}/__init__.py")
    path = module.replace(".", "/")
    # Otherwise the entry point could name code that the wheel's digest does not cover.
    if module.split(".")[0] != package or not {f"{path}.py", f"{path}/__init__.py"} & files.keys():
        raise Refused(HandlerCode.ENTRY_POINT, f"The entry point's module {module} is not in the package.")
    return EntryPoint(name, module, attribute)


def _check_declarative(manifest: Manifest, entry_point: EntryPoint, package: str, files: Mapping[str, bytes]) -> None:
    """Check that a package has either message forms or code: the interpreter of forms runs outside of the sandbox."""
    if bool(manifest.messages) != (str(entry_point) == DECLARATIVE):
        raise Refused(
            HandlerCode.DECLARATIVE,
            f"The entry point {DECLARATIVE} and the member messages of the manifest need each other.",
            fix="Remove the handler's code and the entry point, or the member messages.",
        )
    if manifest.messages:
        manifest_path, vectors = f"{package}/{MANIFEST_NAME}", f"{package}/{VECTORS}/"
        for path in files:
            is_vector = path.startswith(vectors) and path.endswith(".json")
            if path.startswith(f"{package}/") and path != manifest_path and not is_vector:
                fault = f"The manifest has messages, so the package has only it and vectors; it has {path}."
                raise Refused(HandlerCode.DECLARATIVE, fault)


def _file(files: Mapping[str, bytes], path: str) -> bytes:
    if path not in files:
        raise Malformed(HandlerCode.MISSING, f"The package has no {path}.")
    return files[path]


def _text(files: Mapping[str, bytes], path: str) -> str:
    """Return a file that was checked to be plain text, with line feeds as line ends."""
    return _file(files, path).decode("utf-8").replace("\r\n", "\n")
