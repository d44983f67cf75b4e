"""Check the paths of an archive: one grammar and one tree that all file systems and importers read alike.

    path    = segment *( "/" segment )                                at most 200 characters
    segment = ( letter / digit / "_" ) *( letter / digit / "." / "_" / "+" / "-" )

Letters and digits are ASCII, so a path has one Unicode form. A segment does not end in a dot, and the part before its first
dot is not a Windows device (`CON.py` is the console there). Case is kept, but two paths must differ in more than case: a
folder has one spelling, no two files are equal without case, and no file has the name of a folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..codes import HandlerCode
from ..errors import Refused

# Windows limits a whole path to 260 characters by default; the rest is for the folder of the store.
MAX_NAME = 200

_SEGMENT = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._+-]*[A-Za-z0-9_+-])?")
# Windows opens a device under these names in every folder, with any extension.
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})


def parse_path(raw: bytes) -> str:
    """Return the path if it follows the grammar. Raises `Refused` (`handler.package`)."""
    text = raw.decode("ascii", "replace")
    for segment in text.split("/"):
        if not _SEGMENT.fullmatch(segment) or segment.partition(".")[0].lower() in _DEVICES:
            raise Refused(
                HandlerCode.PACKAGE,
                f"{text!a} is not a plain relative file name.",
                fix="Use ASCII letters, digits and . _ + - in names, no dot at either end, no Windows devices and no folders.",
            )
    return text


def check_tree(paths: Iterable[str]) -> None:
    """Check that all systems can unpack the paths side by side. Raises `Refused` (`handler.package`)."""
    # Path without case → its spelling. A folder's spelling ends in a slash, so it never equals that of a file.
    spelt: dict[str, str] = {}
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
        HandlerCode.PACKAGE,
        f"{path} occurs twice without regard to case, has two spellings, or is both a file and a folder.",
        fix="Rename one of the two.",
    )
