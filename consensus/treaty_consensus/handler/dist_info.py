"""Check the files of a package's `.dist-info/` folder strictly, in one pass.

`docs/specification/handler-packages.md`, "The wheel", lists the files with their caps. For example, entry_points.txt is

    [treaty.handlers]
    product-info = treaty_handler_product_info.session:Provider

All files except the licences are plain text (`text`). Headers are `Name: value` lines; a line that begins with a space or tab
continues the previous value. Names are compared without case, and a name that is not core metadata is refused: a reader that
knows it might act on it. Each line is read only once.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping

from ..canonical import sha256
from ..codes import HandlerCode
from ..errors import Malformed, Refused, TooLarge
from .archive import MAX_FILES
from .paths import MAX_NAME

GROUP = "treaty.handlers"

# Room for a README; the builder writes about 300 bytes.
MAX_METADATA = 64 * 1024
# Five lines; Generator is a tool's name and version.
MAX_WHEEL_FILE = 1024
# Two lines: a name of 64 characters, and a module, which is a path of the archive, with an attribute.
MAX_ENTRY_POINTS = 1024
# One line a file: its path, `,sha256=` with 43 characters, a comma, seven digits and a line end.
MAX_RECORD = MAX_FILES * (MAX_NAME + 64)

_CAPS = {
    "METADATA": MAX_METADATA,
    "WHEEL": MAX_WHEEL_FILE,
    "RECORD": MAX_RECORD,
    "entry_points.txt": MAX_ENTRY_POINTS,
    "top_level.txt": MAX_NAME,
}
_ONCE = re.compile(
    "metadata-version|name|version|summary|description(?:-content-type)?|keywords|home-page|download-url|author(?:-email)?|"
    "maintainer(?:-email)?|license(?:-expression)?|requires-python"
)
_REPEATED = re.compile(
    "dynamic|platform|supported-platform|license-file|classifier|requires-dist|requires-external|project-url|provides-extra|"
    "provides-dist|obsoletes-dist|requires|provides|obsoletes|import-name|import-namespace"
)
_HEADER = re.compile(r"([A-Za-z][A-Za-z-]*):[ \t]*(.*)")
_ENTRY_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_ENTRY_VALUE = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*"
_ENTRY = re.compile(rf"({_ENTRY_NAME})[ \t]*=[ \t]*({_ENTRY_VALUE})")
_COMMANDS = ("[console_scripts]", "[gui_scripts]")


def check_place(path: str, rest: str, size: int) -> None:
    """Check that a file may lie at `rest` below the folder, and its size, before it is parsed.

    Raises `Refused` (`handler.package`) or `TooLarge` (`handler.package`).
    """
    if rest not in _CAPS and not rest.startswith("licenses/"):
        raise Refused(HandlerCode.PACKAGE, f"{path} is not allowed in a handler package. Remove it.")
    if size > _CAPS.get(rest, size):
        raise TooLarge(HandlerCode.PACKAGE, f"{path} has at most {_CAPS[rest]} bytes, this one has {size}.")


def is_plain(rest: str) -> bool:
    """Tell whether the file at `rest` below the folder must be plain text."""
    return rest in _CAPS


def check_record(text: str, record: str, files: Mapping[str, bytes]) -> None:
    """Check that RECORD, at the path `record`, lists exactly these files.

    Raises `Malformed` (`handler.package`) or `Refused` (`handler.package`).
    """
    listed: dict[str, tuple[str, str]] = {}
    for line in text.removesuffix("\n").split("\n"):
        # No quoting as in CSV: the grammar of paths has no comma, and a quoted path would be a second spelling.
        path, *rest = line.split(",")
        if len(rest) != 2 or path in listed:
            raise Malformed(HandlerCode.PACKAGE, "A line of RECORD is not PATH,HASH,SIZE, or a path occurs twice.")
        listed[path] = (rest[0], rest[1])
    if listed.keys() != files.keys():
        odd = min(listed.keys() ^ files.keys())
        raise Refused(HandlerCode.PACKAGE, f"RECORD and the archive do not list the same files: {ascii(odd)[:240]}.")
    for path, entry in listed.items():
        # RECORD cannot hold its own hash, so the format leaves its fields empty.
        if entry != (("", "") if path == record else record_of(files[path])):
            raise Refused(HandlerCode.PACKAGE, f"{path} differs from its entry in RECORD. Rebuild the wheel.")


def record_of(content: bytes) -> tuple[str, str]:
    """Return the second and third field of a file's line in RECORD."""
    digest = base64.urlsafe_b64encode(sha256(content)).decode("ascii").rstrip("=")
    return f"sha256={digest}", str(len(content))


def check_wheel_file(text: str, tag: str) -> None:
    """Check the headers of WHEEL. `tag`: that of the file name. Raises `Refused` (`handler.package`)."""
    headers = _headers(text.rstrip("\n"))
    # Generator is free text, and nothing acts on it.
    fields = {name: values for name, values in headers.items() if name != "generator"}
    version = fields.pop("wheel-version", [])
    if len(version) != 1 or not re.fullmatch(r"1\.[0-9]{1,3}", version[0]):
        raise Refused(HandlerCode.PACKAGE, "WHEEL must have one Wheel-Version 1.x.")
    if fields != {"root-is-purelib": ["true"], "tag": [tag]}:
        raise Refused(HandlerCode.PACKAGE, f"WHEEL must say Root-Is-Purelib: true and Tag: {tag}, and nothing else.")


def check_metadata(text: str, name: str, version: str) -> None:
    """Check that METADATA describes this distribution and requires no other.

    `name`: in normal form, with dashes.

    Raises `Malformed` (`handler.package`) or `Refused` (`handler.package`).
    """
    # The first empty line ends the headers; the description follows.
    headers = _headers(text.partition("\n\n")[0].rstrip("\n"))
    for field, values in headers.items():
        if not _REPEATED.fullmatch(field) and not (_ONCE.fullmatch(field) and len(values) == 1):
            raise Malformed(HandlerCode.PACKAGE, f"METADATA has {ascii(field)[:80]} twice, or it is not core metadata.")
    if not re.fullmatch(r"[12]\.[0-9]", "".join(headers.get("metadata-version", []))):
        raise Malformed(HandlerCode.PACKAGE, "METADATA must have one Metadata-Version 1.x or 2.x.")
    stated_name = re.sub(r"[-_.]+", "-", "".join(headers.get("name", []))).lower()
    if stated_name != name or headers.get("version") != [version]:
        raise Refused(HandlerCode.PACKAGE, "METADATA and the file name differ in name or version.")
    package = name.replace("-", "_")
    if any(value != package for value in headers.get("import-name", [])) or "import-namespace" in headers:
        raise Refused(HandlerCode.PACKAGE, f"METADATA names another module than {package}.")
    # A dependency would bring code that this wheel's digest does not cover.
    if headers.keys() & {"requires-dist", "requires-external", "requires"}:
        raise Refused(
            HandlerCode.PACKAGE,
            "A handler package requires no other distribution.",
            fix="Use the standard library and treaty_handler; the sandbox holds nothing else.",
        )


def check_top_level(text: str, package: str) -> None:
    """Check that top_level.txt names the one package. Raises `Refused` (`handler.package`)."""
    if text.strip("\n") != package:
        raise Refused(HandlerCode.PACKAGE, f"top_level.txt names something else than {package}.")


def parse_entry_point(text: str) -> tuple[str, str, str]:
    """Return name, module and attribute of the one entry point.

    Raises `Refused` (`handler.package`, `handler.entry-point`) or `Malformed` (`handler.entry-point`).
    """
    lines = [line for line in (line.rstrip(" \t") for line in text.split("\n")) if line]
    # An installer would put a command on the user's path.
    for command in _COMMANDS:
        if command in lines:
            raise Refused(HandlerCode.PACKAGE, f"entry_points.txt installs a command ({command}).")
    if len(lines) != 2 or lines[0] != f"[{GROUP}]":
        raise Refused(HandlerCode.ENTRY_POINT, f"entry_points.txt is not one group {GROUP} with one entry.")
    match = _ENTRY.fullmatch(lines[1])
    if match is None:
        raise Malformed(HandlerCode.ENTRY_POINT, "The entry point is not of the form NAME = MODULE:ATTRIBUTE.")
    module, _, attribute = match[2].partition(":")
    return match[1], module, attribute


def _headers(text: str) -> dict[str, list[str]]:
    """Return lower-case name → values in order. Raises `Malformed` (`handler.package`)."""
    headers: dict[str, list[str]] = {}
    values: list[str] = []
    for line in text.split("\n"):
        if values and line[:1] in (" ", "\t") and line.strip(" \t"):
            # A checked value never ends in a newline, so this mark alone makes a continued value fail its check.
            if not values[-1].endswith("\n"):
                values[-1] += "\n"
            continue
        match = _HEADER.fullmatch(line)
        if match is None:
            raise Malformed(HandlerCode.PACKAGE, f"{ascii(line)[:80]} is not of the form Name: value.")
        values = headers.setdefault(match[1].lower(), [])
        values.append(match[2])
    return headers
