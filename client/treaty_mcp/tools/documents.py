"""A document as a result: a page of it, quoted, with the hash of the whole."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from treaty_consensus.errors import Malformed
from treaty_io.codes import RpcCode

from .quoting import MAX_TEXT, NOTE, quoted
from .tool import ToolResult


class DocumentPage(msgspec.Struct, frozen=True):
    """Characters of a document from `begin` on; `next` is where the rest begins, or null."""

    uri: str
    hash: str
    begin: int
    next: int | None
    text: str


def page_of(uri: str, document: bytes, begin: int, proof: Mapping[str, Any]) -> ToolResult:
    """Return a page of a document. Raises `Malformed` (`rpc.answer`)."""
    digest = hashlib.sha256(document).hexdigest()
    try:
        whole = document.decode()
    except UnicodeDecodeError as error:
        raise Malformed(RpcCode.ANSWER, "The document is no UTF-8 text.") from error
    begin = max(0, begin)
    end = begin + MAX_TEXT
    following = end if end < len(whole) else None
    text = quoted(whole[begin:end])
    head = f"{NOTE}\n{uri}, SHA-256 {digest}, from character {begin}:"
    rest = [] if following is None else [f"The rest begins at {following}."]
    value = DocumentPage(uri, digest, begin, following, text)
    return ToolResult(msgspec.to_builtins(value), "\n".join([head, text, *rest]), {**proof, "document": digest})
