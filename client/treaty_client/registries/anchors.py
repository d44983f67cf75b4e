"""Anchors of one's own: the principals from which trust is to start when an audit asks "what if I trusted these instead".

A file of UTF-8 lines, at most 64 KiB, each of them a registrable domain in lower-case A-labels, or empty; `#` begins a comment.
1 to 512 domains, each once. Whether a domain is registrable, the suffix list says by which an electorate reads domains; one that
is not, or that the log does not know, is an anchor from which nothing starts.
"""

from __future__ import annotations

from pathlib import Path

from treaty_consensus.did import is_host
from treaty_consensus.errors import Malformed, NotFound, TooLarge
from treaty_consensus.kinds import MAX_ANCHORS

MAX_FILE = 64 * 1024


def read_anchors(path: Path) -> tuple[str, ...]:
    """The anchors of a file, sorted. Raises `NotFound` (`anchors.missing`), and what `parse_anchors` raises."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise NotFound("anchors.missing", f"{path} cannot be read: {error.strerror}.") from error
    return parse_anchors(data)


def parse_anchors(data: bytes) -> tuple[str, ...]:
    """The anchors of a file's bytes, sorted. Raises `TooLarge` (`anchors.size`), `Malformed` (`anchors.line`, `anchors.none`)."""
    if len(data) > MAX_FILE:
        raise TooLarge("anchors.size", f"A file of anchors has at most {MAX_FILE} bytes.")
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise Malformed("anchors.line", "A file of anchors is UTF-8 text.") from error
    anchors: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        domain = line.partition("#")[0].strip(" \t\r")
        if not domain:
            continue
        if "." not in domain or not is_host(domain):
            raise Malformed("anchors.line", f"Line {number} is no domain such as example.com.")
        if domain in anchors:
            raise Malformed("anchors.line", f"Line {number} names {domain} once more.")
        anchors[domain] = None
    if not anchors:
        raise Malformed("anchors.none", "The file names no anchor, and without one nobody is trusted.")
    if len(anchors) > MAX_ANCHORS:
        raise TooLarge("anchors.size", f"There are at most {MAX_ANCHORS} anchors.")
    return tuple(sorted(anchors))
