"""The paths of the files in an archive: one grammar, and one tree, that all file systems and importers read alike.

    path    = segment *( "/" segment )                                at most 200 characters
    segment = ( letter / digit / "_" ) *( letter / digit / "." / "_" / "+" / "-" )

Letters and digits are ASCII, so there is one Unicode form of a path. A segment does not end in a dot, and the part before its
first dot is no device of Windows (`CON.py` is the console there). Case is kept but tells no two paths apart: a folder has one
spelling, no two files are equal when case is folded, and no file has the name of a folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import Refused

MAX_NAME = 200

_SEGMENT = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._+-]*[A-Za-z0-9_+-])?")
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})


def parse_path(raw: bytes) -> str:
    """The path, when it follows the grammar. Raises `Refused` (`handler.zip-name`)."""
    text = raw.decode("ascii", "replace")
    for segment in text.split("/"):
        if not _SEGMENT.fullmatch(segment) or segment.partition(".")[0].lower() in _DEVICES:
            raise Refused(
                "handler.zip-name",
                f"{text!a} is no plain relative file name.",
                fix="Use ASCII letters, digits and . _ + - in names, no dot at either end and no device of Windows; no folders.",
            )
    return text


def check_tree(paths: Iterable[str]) -> None:
    """Check that the paths can be unpacked side by side everywhere. Raises `Refused` (`handler.zip-duplicate`)."""
    spelt: dict[str, str] = {}  # folded path → as it is spelt; a folder with a slash at its end, so it never equals a file
    for path in paths:
        for slash in (index for index, character in enumerate(path) if character == "/"):
            folder = path[: slash + 1]
            if spelt.setdefault(path[:slash].lower(), folder) != folder:
                raise _twice(path)
        if path.lower() in spelt:
            raise _twice(path)
        spelt[path.lower()] = path


def _twice(path: str) -> Refused:
    return Refused(
        "handler.zip-duplicate",
        f"{path} occurs twice when upper and lower case are one, is spelt in two ways, or is a file and a folder.",
        fix="Rename one of the two.",
    )
