"""Check that a wheel is a handler package. A result of `read_wheel` has passed every rule.

The rules are in `docs/specification/handler-packages.md`, "The wheel": a wheel (Python packaging specifications, "Binary
distribution format"), restricted so that all readers see the same content and unpacking runs no code. For example,
`treaty_handler_product_info-1.0-py3-none-any.whl` contains `treaty_handler_product_info/` and its `.dist-info/`, and nothing
else. `archive`, `paths`, `dist_info` and `manifest` each check their part.

Every rule reads each byte a bounded number of times and caps its input before parsing. So a wheel costs at most 8 MiB of text
to inflate, hash and decode, and a manifest and a README to parse.

Python imports the files that end in `.py`, each as exactly one module. A module is a file `NAME.py`, or a folder `NAME/` with
an `__init__.py`, never both. Names are ASCII identifiers. A folder with sources is a package, and so is every folder above it:
without namespace packages, no import depends on other installed distributions. No other file has an ending that an interpreter
treats as code, on any system. A package of the runtime `wasm` has one module, and no file that Python imports (`wasm`).

Text has a single interpretation: the same for an interpreter, a metadata parser and a person. Every file of a package is UTF-8
without NUL. Python sources and metadata files must also be *plain*. Plain text contains none of the characters that readers
treat differently:

- Control characters except tab and line feed. A carriage return may only precede a line feed: alone it ends a line for Python
  but not for most editors, so a comment could hide code. Form feed, U+0085, U+2028 and U+2029 end a line for some readers.
- Marks that change the direction of writing (U+202A to U+202E, U+2066 to U+2069): they display code in another order.
- U+FEFF, which is a byte-order mark at the start of a file.

A source is always read as UTF-8. In its first two lines, where PEP 263 looks for an encoding, it names at most one, and that
is UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from packaging.version import InvalidVersion, Version

from ..canonical import hex_digest
from ..codes import HandlerCode
from ..errors import Malformed, Refused
from .archive import read_archive
from .dist_info import check_metadata, check_place, check_record, check_top_level, check_wheel_file, is_plain, parse_entry_point
from .manifest import MANIFEST_NAME, Manifest, Runtime, parse_manifest
from .wasm import MODULE_NAME, check_module

PREFIX = "treaty-handler-"
VECTORS = "vectors"
"""The folder of the package with the sessions that its handler reproduces. Readers replay them; a handler does not see them."""
# The runtime is in the file name, so that a reader passes over packages of runtimes that it does not have.
TAGS = {Runtime.PYTHON: "py3-none-any", Runtime.WASM: "wasm-none-any"}
# The entry point of a package without code. Its manifest has `messages`, which the host interprets.
DECLARATIVE = "treaty_handler.declarative:handler"
# The entry point of a WebAssembly module. A worker gives it the requests of `treaty_sandbox.worker.wasm`.
WASM = "treaty_handler.wasm:handler"
# Most file systems limit a name to 255 bytes; stores add a digest.
MAX_FILENAME = 160

_FILENAME = re.compile(rf"(treaty_handler(?:_[a-z0-9]+)+)-([a-z0-9.+]+)-({'|'.join(TAGS.values())})\.whl")
_RUNTIMES = {tag: runtime for runtime, tag in TAGS.items()}


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
    def metadata(self) -> bytes:
        """Return the core metadata, which an index serves beside the wheel (PEP 658)."""
        return self.files[f"{self.package}-{self.version}.dist-info/METADATA"]

    @property
    def vectors(self) -> dict[str, bytes]:
        """Return the JSON files of the folder `vectors`: name → content."""
        folder = f"{self.package}/{VECTORS}/"
        named = {path.removeprefix(folder): content for path, content in self.files.items() if path.startswith(folder)}
        return {name: content for name, content in named.items() if name.endswith(".json")}

    @property
    def module(self) -> bytes:
        """Return the WebAssembly module of a package of that runtime."""
        return self.files[f"{self.package}/{MODULE_NAME}"]

    @property
    def is_declarative(self) -> bool:
        """Tell whether the package has no code: its manifest has the forms of all messages."""
        return bool(self.manifest.messages)


def read_wheel(filename: str, data: bytes) -> HandlerPackage:
    """Check a wheel against every rule of this module and return it parsed. CPU-bound; linear in the unpacked size.

    Raises `TooLarge`, `Malformed` or `Refused` (`handler.*`).
    """
    name, version, runtime = parse_filename(filename)
    files = read_archive(data)
    package = name.replace("-", "_")
    dist_info = f"{package}-{version}.dist-info"
    for path, content in files.items():
        _check_file(path, content, package, dist_info, runtime)
    # Cheap checks first: names before hashes, and the manifest with its schemas last.
    check_modules(files)
    check_record(_text(files, f"{dist_info}/RECORD"), f"{dist_info}/RECORD", files)
    check_wheel_file(_text(files, f"{dist_info}/WHEEL"), TAGS[runtime])
    check_metadata(_text(files, f"{dist_info}/METADATA"), name, version)
    if f"{dist_info}/top_level.txt" in files:
        check_top_level(_text(files, f"{dist_info}/top_level.txt"), package)
    entry_point = _entry_point(_text(files, f"{dist_info}/entry_points.txt"), package, files)
    manifest = parse_manifest(_file(files, f"{package}/{MANIFEST_NAME}"))
    if manifest.runtime is not runtime or (str(entry_point) == WASM) != (runtime is Runtime.WASM):
        raise Refused(HandlerCode.MANIFEST, "The file name, the manifest and the entry point name different runtimes.")
    _check_declarative(manifest, entry_point, package, files)
    if runtime is Runtime.WASM:
        check_module(_file(files, f"{package}/{MODULE_NAME}"))
    return HandlerPackage(hex_digest(data), filename, len(data), name, version, entry_point, manifest, MappingProxyType(files))


def parse_filename(filename: str) -> tuple[str, str, Runtime]:
    """Return distribution name (with dashes), version and runtime. Raises `Malformed` or `Refused` (`handler.package`)."""
    if len(filename) > MAX_FILENAME:
        raise Malformed(HandlerCode.PACKAGE, f"A wheel's file name has at most {MAX_FILENAME} characters.")
    match = _FILENAME.fullmatch(filename)
    if match is None:
        raise Refused(
            HandlerCode.PACKAGE,
            f"{filename!a} is not of the form treaty_handler_NAME-VERSION-TAG.whl.",
            fix=f"TAG is {' or '.join(TAGS.values())}. NAME is lower-case words and digits joined by single underscores.",
        )
    package, written, tag = match.groups()
    try:
        version = str(Version(written))
    except InvalidVersion as error:
        raise Malformed(HandlerCode.PACKAGE, f"{written!a} is not a version (PEP 440).") from error
    # One version has one file name: `1.0` and `1.00` would be two packages of one version.
    if written != version:
        normal = f"{package}-{version}-{tag}.whl"
        raise Refused(HandlerCode.PACKAGE, f"The normal form of {filename!a} is {normal}.", fix=f"Rename it to {normal}.")
    return package.replace("_", "-"), version, _RUNTIMES[tag]


def following(filename: str, count: int) -> list[tuple[str, str]]:
    """Return the next versions after that of a wheel, with their file names: post-releases, for the same protocol's version."""
    package, version, tag = filename.split("-", 2)
    base, post = Version(version).public.partition(".dev")[0].partition(".post")[0], Version(version).post or 0
    versions = [f"{base}.post{post + step}" for step in range(1, count + 1)]
    return [(each, f"{package}-{each}-{tag}") for each in versions]


def _check_file(path: str, content: bytes, package: str, dist_info: str, runtime: Runtime) -> None:
    top, _, rest = path.partition("/")
    # Checked first and by name alone: an installer would act on these before any import.
    if path.lower().endswith(".pth"):
        raise Refused(HandlerCode.PACKAGE, f"{path} would run code when Python starts.")
    if top.lower().endswith(".data"):
        raise Refused(HandlerCode.PACKAGE, f"{path} would be installed outside the package.")
    is_module = runtime is Runtime.WASM and path == f"{package}/{MODULE_NAME}"
    if not is_module:
        check_ending(path)
    if not rest or top not in (package, dist_info):
        raise Refused(HandlerCode.PACKAGE, f"{path} is outside {package}/, the package's one importable name.")
    if top == dist_info:
        check_place(path, rest, len(content))
    if is_module:
        return
    text = decode(path, content)
    if is_source(path) or (top == dist_info and is_plain(rest)):
        check_plain(path, content, text)
    if is_source(path):
        check_coding(path, text)
        if runtime is Runtime.WASM:
            raise Refused(HandlerCode.PACKAGE, f"{path} is Python, and the package has a WebAssembly module.", fix="Remove one.")


def _entry_point(text: str, package: str, files: Mapping[str, bytes]) -> EntryPoint:
    name, module, attribute = parse_entry_point(text)
    if f"{module}:{attribute}" in (DECLARATIVE, WASM):
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
            HandlerCode.MANIFEST,
            f"The entry point {DECLARATIVE} and the member messages of the manifest need each other.",
            fix="Remove the handler's code and the entry point, or the member messages.",
        )
    if manifest.messages:
        manifest_path, vectors = f"{package}/{MANIFEST_NAME}", f"{package}/{VECTORS}/"
        for path in files:
            is_vector = path.startswith(vectors) and path.endswith(".json")
            if path.startswith(f"{package}/") and path != manifest_path and not is_vector:
                fault = f"The manifest has messages, so the package has only it and vectors; it has {path}."
                raise Refused(HandlerCode.MANIFEST, fault)


def _file(files: Mapping[str, bytes], path: str) -> bytes:
    if path not in files:
        raise Malformed(HandlerCode.PACKAGE, f"The package has no {path}.")
    return files[path]


def _text(files: Mapping[str, bytes], path: str) -> str:
    """Return a file that was checked to be plain text, with line feeds as line ends."""
    return _file(files, path).decode("utf-8").replace("\r\n", "\n")


_BYTECODE = (".pyc", ".pyo")
_NATIVE = (".so", ".pyd", ".dll", ".dylib", ".a", ".lib", ".o", ".obj", ".exe", ".com", ".wasm")
_SOURCE_LIKE = re.compile(r"\.py[a-z]*$")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:/[A-Za-z_][A-Za-z0-9_]*)*")
_INIT = "__init__.py"


def is_source(path: str) -> bool:
    """Tell whether Python imports this file."""
    return path.endswith(".py")


def check_ending(path: str) -> None:
    """Check that a file is either a source by its exact ending, or not code.

    Raises `Refused` (`handler.package`).
    """
    # On systems without case, `X.PYC` is bytecode too.
    lower = path.lower()
    if lower.endswith(_BYTECODE) or "__pycache__" in lower.split("/"):
        raise Refused(HandlerCode.PACKAGE, f"{path} is bytecode; packages carry source only.")
    # Versioned libraries end in `.so.1`.
    if lower.endswith(_NATIVE) or ".so." in lower:
        raise Refused(HandlerCode.PACKAGE, f"{path} is native code.")
    # Python on Windows also imports `.pyw`.
    if _SOURCE_LIKE.search(lower) and not path.endswith((".py", ".pyi")):
        raise Refused(HandlerCode.PACKAGE, f"{path} is a source to some interpreters only.", fix="Let sources end in .py.")


def check_modules(paths: Collection[str]) -> None:
    """Check that every source is the only module of its name.

    `paths`: all files of the archive; no two are equal without case.

    Raises `Refused` (`handler.package`).
    """
    # Lower case: some systems find a folder by any case.
    folders = {path[:index].lower() for path in paths for index, character in enumerate(path) if character == "/"}
    for path in filter(is_source, paths):
        module = path.removesuffix(".py")
        if not _MODULE.fullmatch(module):
            raise Refused(
                HandlerCode.PACKAGE,
                f"{path} has a name that Python cannot import.",
                fix="Name modules and packages by identifiers.",
            )
        # Which of the two Python imports depends on the order of its finders.
        if module.lower() in folders:
            raise Refused(
                HandlerCode.PACKAGE, f"{path} and the folder {module}/ have one module name.", fix="Rename one of them."
            )
        folder = path.rpartition("/")[0]
        while folder:
            # Without it the folder would be a namespace package, which other distributions can extend.
            if f"{folder}/{_INIT}" not in paths:
                raise Refused(HandlerCode.PACKAGE, f"{folder}/ holds sources and no {_INIT}.", fix=f"Add an empty {_INIT}.")
            folder = folder.rpartition("/")[0]


_PLAIN_ASCII = bytes({0x09, 0x0A, *range(0x20, 0x7F)})
_NOT_PLAIN = frozenset(
    map(chr, {*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF} - {0x09, 0x0A, 0x0D})
)
_LONE_RETURN = re.compile(r"\r(?!\n)")
# Matches more than PEP 263 does, so that no interpreter finds an encoding that this check misses.
_CODING = re.compile(r"coding[:=][ \t]*+([-\w.]+)", re.ASCII)
_UTF8 = frozenset({"utf-8", "utf8"})


def decode(path: str, content: bytes) -> str:
    """Return the text of a file. Raises `Refused` (`handler.package`)."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(HandlerCode.PACKAGE, f"{path} is not UTF-8 text.") from error
    if "\0" in text:
        raise Refused(HandlerCode.PACKAGE, f"{path} is not text: it holds NUL.")
    return text


def check_plain(path: str, content: bytes, text: str) -> None:
    """Check that the text of a file is plain. Raises `Refused` (`handler.package`).

    `text`: `content`, decoded.
    """
    # UTF-8 without its ASCII bytes is still UTF-8. A set of the remaining characters takes a third of the time of a search, which
    # matters at 8 MiB.
    others = set(content.translate(None, _PLAIN_ASCII).decode("utf-8"))
    at = min((text.index(character) for character in others & _NOT_PLAIN), default=None)
    if at is None and "\r" in others and (lone := _LONE_RETURN.search(text)):
        at = lone.start()
    if at is not None:
        line = text.count("\n", 0, at) + 1
        raise Refused(
            HandlerCode.PACKAGE,
            f"{path} holds the character U+{ord(text[at]):04X} in line {line}, which some readers interpret differently.",
            fix="Write it as an escape, such as \\u2028; end lines with line feeds.",
        )


def check_coding(path: str, text: str) -> None:
    """Check that a plain source names no encoding except UTF-8. Raises `Refused` (`handler.package`)."""
    # Only comments: PEP 263 looks for the encoding there.
    head = "\n".join(line.partition("#")[2] for line in text.split("\n", 2)[:2])
    named = [match[1] for match in islice(_CODING.finditer(head), 2)]
    if named and (len(named) > 1 or named[0].lower().replace("_", "-") not in _UTF8):
        codings = " and ".join(name[:40] for name in named)
        raise Refused(
            HandlerCode.PACKAGE, f"{path} declares the encoding {codings}; sources are UTF-8.", fix="Remove the comment."
        )
