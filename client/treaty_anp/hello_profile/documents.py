"""Parse the header of a candidate document: the part of a proposed protocol for programs. An agent judges the rest.

A candidate is a protocol document (`treaty_consensus.protocol`): Markdown, at most 256 KiB. Its header:

    # Product information                              the title: the first heading of level 1
                                                       then, up to the next heading, among other text:
    - Topic: commerce/product-info                     where it would be published
    - Base: https://agents.example/protocols/info      it is this protocol, with the changes that follow …
    - Base-SHA-256: 9c1e…                              … and these are the bytes that it changes

Headings are ATX headings (`#` to `######` and a blank) outside of fenced code. A header line is `-` or `*`, a blank, one of the
three names as spelt here, a colon and the value, outside of fenced code; each comes once at most. A topic is one of Treaty's; a
base is an `https:` URI of at most 512 ASCII characters without blanks, its digest 64 lower-case hexadecimal digits.

A document with a base is not whole without it, so its header pins it: one without the digest is refused, as what a URI serves may
change after the agreement. The form in which the source specification names a base, in a sentence, is understood as well, with
or without a digest; it is natural language:

    This is based on an existing protocol (URI: https://agents.example/protocols/info, SHA-256: 9c1e…)
    该流程基于已有协议(URI: https://agents.example/protocols/info, SHA-256: 9c1e…)实现。

that is, outside of fenced code: `based on` or `基于`, at most 80 characters of the same line, and the parenthesis. The first one
counts, and only where the header names no base.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from treaty_consensus.canonical import parse_digest
from treaty_consensus.errors import Malformed, Refused
from treaty_consensus.protocol import MAX_URI, check_document, is_topic
from treaty_io.codes import ClientDocumentCode

# Fenced code is content: an example in it must not change what the document is.
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t](.*)")
_HEADER = re.compile(r"[-*] +(Topic|Base|Base-SHA-256):(.*)")
_SENTENCE = re.compile(
    # The window of 80 characters bounds the search in a stranger's text.
    r"(?:based on|基于)[^\n(（]{0,80}[(（]\s*URI\s*[:：]\s*(https://[^\s,，()（）]{1,512})\s*(?:[,，]\s*SHA-256\s*[:：]\s*(\w{1,64})\s*)?[)）]",
    re.IGNORECASE,
)
_URI = re.compile(rf"https://[!-~]{{1,{MAX_URI - 8}}}")


@dataclass(frozen=True)
class Base:
    """The protocol that a document changes: where it is, and the digest of its bytes; "" where a sentence does not pin it."""

    uri: str
    sha256: str

    @property
    def is_pinned(self) -> bool:
        """Whether the document says which bytes it changes."""
        return bool(self.sha256)


@dataclass(frozen=True)
class DocumentDescription:
    """The header of a document; a missing value is ""."""

    title: str
    topic: str
    base: Base | None


def parse_candidate(text: str) -> DocumentDescription:
    """The header of a candidate document. Raises `Malformed` or `Refused` (`document.header`), or as
    `check_document` does."""
    check_document(text.encode("utf-8", "surrogatepass"))
    lines = list(_prose(text))
    title, header = _header(lines)
    topic = header.get("Topic", "")
    if topic and not is_topic(topic):
        raise Malformed(ClientDocumentCode.HEADER, f"{topic[:80]!a} is not a topic, such as commerce/product-info.")
    uri, digest = header.get("Base"), header.get("Base-SHA-256")
    if uri is None and digest is not None:
        raise Malformed(ClientDocumentCode.HEADER, "A document with Base-SHA-256 has a Base.")
    # The header counts alone where it names a base: a sentence may mention other protocols.
    base = _named_in_a_sentence(lines) if uri is None else _pinned(uri, digest)
    return DocumentDescription(title, topic, base)


def _prose(text: str) -> Iterator[str]:
    """The lines that are not in fenced code."""
    fence = ""
    for line in re.split(r"\r\n|\n|\r", text):
        match = _FENCE.fullmatch(line)
        if fence:
            if match and match[1].startswith(fence) and not match[2].strip():
                fence = ""
        elif match and not (match[1][0] == "`" and "`" in match[2]):
            fence = match[1]
        else:
            yield line


def _header(lines: list[str]) -> tuple[str, dict[str, str]]:
    """The title, and the header lines below it."""
    title, header = None, dict[str, str]()
    for line in lines:
        heading = _HEADING.fullmatch(line)
        if heading and title is not None:
            break
        if heading and heading[1] == "#":
            title = _title(heading[2])
        named = _HEADER.fullmatch(line)
        if named and title is not None:
            # Two values could be read in two ways, by one reader each.
            if named[1] in header:
                raise Malformed(ClientDocumentCode.HEADER, f"The header says {named[1]} twice.")
            header[named[1]] = named[2].strip(" \t")
    return title or "", header


def _title(text: str) -> str:
    """A heading's text without the signs that may close it."""
    title = text.strip(" \t")
    closed = title.rstrip("#")
    return closed.rstrip(" \t") if closed != title and closed[-1:] in ("", " ", "\t") else title


def _named_in_a_sentence(lines: list[str]) -> Base | None:
    for line in lines:
        match = _SENTENCE.search(line)
        if match:
            return _base(match[1], match[2])
    return None


def _pinned(uri: str, digest: str | None) -> Base:
    base = _base(uri, digest)
    check_pinned(base)
    return base


def check_pinned(base: Base | None) -> None:
    """Raise `Refused` (`document.header`) for a base whose bytes are not pinned."""
    if base is not None and not base.is_pinned:
        raise Refused(
            ClientDocumentCode.HEADER,
            f"The document changes {base.uri[:200]} and does not say which bytes are meant.",
            fix="Add the line: - Base-SHA-256: and the SHA-256 of that protocol's document.",
        )


def _base(uri: str, digest: str | None) -> Base:
    if not _URI.fullmatch(uri):
        raise Malformed(ClientDocumentCode.HEADER, f"{uri[:80]!a} is not the https: URI of a protocol.")
    try:
        return Base(uri, parse_digest(digest) if digest else "")
    except Malformed as error:
        raise Malformed(ClientDocumentCode.HEADER, "Base-SHA-256 is 64 lower-case hexadecimal digits.") from error
