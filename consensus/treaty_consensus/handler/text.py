"""Which text has one reading: the same for an interpreter, a parser of metadata and a person.

Every file of a package is UTF-8 without NUL. Python sources and the files that say what a package is are *plain* besides. They
hold none of the characters at which readers part ways:

- control characters but for tab and line feed. A carriage return stands before a line feed only: alone it ends a line for Python
  and not for most editors, so a comment could hide code. Form feed, U+0085, U+2028 and U+2029 end a line for some readers.
- marks that change the direction of writing (U+202A to U+202E, U+2066 to U+2069), which show code in another order than it has.
- U+FEFF, which is a byte-order mark at the start of a file.

A source is read as UTF-8 whatever it says: its first two lines, where PEP 263 looks for the name of an encoding, name no other,
and none twice.
"""

from __future__ import annotations

import re
from itertools import islice

from ..errors import Refused

_PLAIN_ASCII = bytes({0x09, 0x0A, *range(0x20, 0x7F)})
_NOT_PLAIN = frozenset(
    map(chr, {*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF} - {0x09, 0x0A, 0x0D})
)
_LONE_RETURN = re.compile(r"\r(?!\n)")
# More than PEP 263 takes for a name: any such words behind a "#", so that no interpreter sees one that is not seen here.
_CODING = re.compile(r"coding[:=][ \t]*+([-\w.]+)", re.ASCII)
_UTF8 = frozenset({"utf-8", "utf8"})


def decode(path: str, content: bytes) -> str:
    """The text of a file. Raises `Refused` (`handler.binary`)."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused("handler.binary", f"{path} is not UTF-8 text.") from error
    if "\0" in text:
        raise Refused("handler.binary", f"{path} is not text: it holds NUL.")
    return text


def check_plain(path: str, content: bytes, text: str) -> None:
    """Check that `text`, which `content` decodes to, is plain. Raises `Refused` (`handler.text`)."""
    # Taking ASCII out of UTF-8 leaves UTF-8. The set of what remains costs a third of a search, which matters at 8 MiB.
    others = set(content.translate(None, _PLAIN_ASCII).decode("utf-8"))
    at = min((text.index(character) for character in others & _NOT_PLAIN), default=None)
    if at is None and "\r" in others and (lone := _LONE_RETURN.search(text)):
        at = lone.start()
    if at is not None:
        line = text.count("\n", 0, at) + 1
        raise Refused(
            "handler.text",
            f"{path} holds the character U+{ord(text[at]):04X} in line {line}, which not every reader reads alike.",
            fix="Write it as an escape, such as \\u2028; end lines with line feeds.",
        )


def check_coding(path: str, text: str) -> None:
    """Check that a plain source names no encoding but UTF-8. Raises `Refused` (`handler.coding`)."""
    head = "\n".join(line.partition("#")[2] for line in text.split("\n", 2)[:2])
    named = [match[1] for match in islice(_CODING.finditer(head), 2)]
    if named and (len(named) > 1 or named[0].lower().replace("_", "-") not in _UTF8):
        said = " and ".join(name[:40] for name in named)
        raise Refused("handler.coding", f"{path} says that it is {said}; sources are UTF-8.", fix="Take the comment out.")
