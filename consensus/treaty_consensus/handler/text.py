"""Check that text has a single interpretation: the same for an interpreter, a metadata parser and a person.

Every file of a package is UTF-8 without NUL. Python sources and metadata files must also be *plain*. Plain text contains none
of the characters that readers treat differently:

- Control characters except tab and line feed. A carriage return may only precede a line feed: alone it ends a line for Python
  but not for most editors, so a comment could hide code. Form feed, U+0085, U+2028 and U+2029 end a line for some readers.
- Marks that change the direction of writing (U+202A to U+202E, U+2066 to U+2069): they display code in another order.
- U+FEFF, which is a byte-order mark at the start of a file.

A source is always read as UTF-8. In its first two lines, where PEP 263 looks for an encoding, it names at most one, and that
is UTF-8.
"""

from __future__ import annotations

import re
from itertools import islice

from ..codes import HandlerCode
from ..errors import Refused

_PLAIN_ASCII = bytes({0x09, 0x0A, *range(0x20, 0x7F)})
_NOT_PLAIN = frozenset(
    map(chr, {*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF} - {0x09, 0x0A, 0x0D})
)
_LONE_RETURN = re.compile(r"\r(?!\n)")
# Matches more than PEP 263 does, so that no interpreter finds an encoding that this check misses.
_CODING = re.compile(r"coding[:=][ \t]*+([-\w.]+)", re.ASCII)
_UTF8 = frozenset({"utf-8", "utf8"})


def decode(path: str, content: bytes) -> str:
    """Return the text of a file. Raises `Refused` (`handler.binary`)."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(HandlerCode.BINARY, f"{path} is not UTF-8 text.") from error
    if "\0" in text:
        raise Refused(HandlerCode.BINARY, f"{path} is not text: it holds NUL.")
    return text


def check_plain(path: str, content: bytes, text: str) -> None:
    """Check that the text of a file is plain. Raises `Refused` (`handler.text`).

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
            HandlerCode.TEXT,
            f"{path} holds the character U+{ord(text[at]):04X} in line {line}, which some readers interpret differently.",
            fix="Write it as an escape, such as \\u2028; end lines with line feeds.",
        )


def check_coding(path: str, text: str) -> None:
    """Check that a plain source names no encoding except UTF-8. Raises `Refused` (`handler.coding`)."""
    # Only comments: PEP 263 looks for the encoding there.
    head = "\n".join(line.partition("#")[2] for line in text.split("\n", 2)[:2])
    named = [match[1] for match in islice(_CODING.finditer(head), 2)]
    if named and (len(named) > 1 or named[0].lower().replace("_", "-") not in _UTF8):
        said = " and ".join(name[:40] for name in named)
        raise Refused(HandlerCode.CODING, f"{path} declares the encoding {said}; sources are UTF-8.", fix="Remove the comment.")
