"""Render foreign Markdown as HTML that is safe to show.

The document of a protocol is written by a stranger. It is rendered without raw HTML, and the result passes a list of allowed
elements and attributes. It has no pictures from elsewhere: a picture becomes a link. A link leaves with `nofollow`, and only to
http, https or mailto. An id has a prefix, so it cannot take the place of an id of the page. Front matter is shown as it is
written, and the two marks of the generated part are the only text that is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
import nh3
from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, table
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markupsafe import Markup

from treaty_consensus.protocol import PART_BEGIN, PART_END

MAX_TEXT = 256 * 1024
"""Bytes that are rendered."""
MAX_LINES = 10_000
MAX_WORK = 140_000
"""Units of work for one document: a third of a second at most. A usual document of the greatest size needs about half."""
MAX_PLAIN = 64 * 1024
"""Bytes of a document that are shown as plain text."""
_CELL, _INLINE = 2, 2  # units of a cell, and of a place in a line where markup may begin
# A link in angle brackets is parsed and written again as a URL; stars and their like are paired over the whole paragraph.
_COSTLY = {"<": 16, "*": 6, "_": 6, "~": 6, "!": 4, "[": 4}
_MAX_CELLS = 5_000
MAX_NESTING = 20
_PREFIX = "doc-"
_TAGS = {
    *("h1", "h2", "h3", "h4", "h5", "h6", "p", "br", "hr", "blockquote", "pre", "code", "em", "strong", "s", "del"),
    *("ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "a", "div"),
}
_ATTRIBUTES = {
    "a": {"href", "title"},
    "code": {"class"},
    "ol": {"start"},
    "div": {"class", "tabindex"},
    "pre": {"tabindex"},
    **{f"h{level}": {"id"} for level in range(1, 7)},
}
# A model reads these, and a person does not see them: controls, marks that reorder a line, zero-width spaces, invisible
# operators, tags, and the variation selectors that can carry bytes. Joiners and plain marks of direction are part of usual
# writing, so they do not count.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u200b\u202a-\u202e\u2060-\u2069\u206a-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\U000e0100-\U000e01ef]"
)
_NOT_WORD = re.compile(r"[^\w]+")
_FRONT = re.compile(r"---\n((?:[A-Za-z][\w-]*:.*\n|[ \t]+.*\n){1,64})---\n")
# Exactly these lines: any other comment is text of the author, which a model reads, so a person sees it too.
_MARKS = re.compile(rf"^(?:{re.escape(PART_BEGIN)}|{re.escape(PART_END)})$", re.MULTILINE)


@dataclass(frozen=True)
class Heading:
    """A heading of a document, for its table of contents."""

    level: int
    text: str
    id: str


@dataclass(frozen=True)
class Prose:
    """A rendered document. `is_cut`: only its beginning is shown. `is_plain`: it is shown as it was written.

    `unseen`: the number of its characters that a reader does not see, or that reorder what a reader sees.
    """

    html: Markup
    headings: tuple[Heading, ...]
    is_cut: bool
    is_plain: bool = False
    unseen: int = 0


class _Exhausted(Exception):
    """A document needs more work than `MAX_WORK`."""


def render(document: bytes) -> Prose:
    """Return a document as HTML. Bytes that are no UTF-8 are replaced. Never raises."""
    # Nested quotes are read again for each line, so lines cost more than bytes.
    lines = document[:MAX_TEXT].split(b"\n", MAX_LINES)
    is_cut = len(document) > MAX_TEXT or len(lines) > MAX_LINES
    text = b"\n".join(lines[:MAX_LINES]).decode("utf-8", errors="replace")
    # Of the whole document: what is cut off is read by agents, too.
    unseen = len(_UNSEEN.findall(document.decode("utf-8", errors="replace")))
    front = _FRONT.match(text)
    body = _MARKS.sub("", text[front.end() :] if front else text)
    parser = _parser(body)
    try:
        tokens = parser.parse(body)
    except _Exhausted:
        return replace(_plain(document), unseen=unseen)
    headings = _headings(tokens)
    # A block of code, so that no markup in it has a meaning.
    tokens = [Token("fence", "code", 0, content=front[1], info="yaml"), *tokens] if front else tokens
    html = parser.renderer.render(_without_pictures(tokens), parser.options, {})
    html = html.replace("<table>", '<div class="scroll" tabindex="0"><table>').replace("</table>", "</table></div>")
    # A wide example scrolls in its place, also by keyboard.
    html = html.replace("<pre>", '<pre tabindex="0">')
    clean = nh3.clean(
        html, tags=_TAGS, attributes=_ATTRIBUTES, url_schemes={"http", "https", "mailto"}, link_rel="nofollow noopener noreferrer"
    )
    return Prose(Markup(clean), headings, is_cut, unseen=unseen)  # noqa: S704 (cleaned)


def _parser(text: str) -> MarkdownIt:
    """Return the parser of one document. It raises `_Exhausted` when its budget is spent."""
    # The rule for tables asks no other rule about a cell, so cells are paid for beforehand.
    left = MAX_WORK - _CELL * text.count("|")

    def spend(units: int) -> bool:
        nonlocal left
        left -= units
        if left < 0:
            raise _Exhausted
        return False  # as a rule that does not apply

    def on_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
        # The tokens are spent when all blocks are found.
        if len(state.tokens) > left:
            raise _Exhausted
        return spend(1 + state.level)

    def on_tokens(state: StateCore | StateInline) -> None:
        spend(len(state.tokens))

    def on_inline(state: StateInline, silent: bool) -> bool:
        return spend(_COSTLY.get(state.src[state.pos], _INLINE))

    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": MAX_NESTING}).enable(["table", "strikethrough"])
    ending = ["paragraph", "reference", "blockquote", "list"]  # also asked whether another block ends one of these
    parser.block.ruler.before("table", "budget", on_block, {"alt": ending})
    parser.block.ruler.at("table", _bounded_table, {"alt": ["paragraph", "reference"]})
    parser.core.ruler.after("block", "budget", on_tokens)
    parser.inline.ruler.before("text", "budget", on_inline)
    parser.inline.ruler2.before("balance_pairs", "budget", on_tokens)
    return parser


def _bounded_table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """The rule for tables, which end after `_MAX_CELLS` cells. It completes short rows, so cells cost more than bytes."""
    columns = state.src.count("|", state.bMarks[start], state.eMarks[start]) + 1
    return table(state, start, min(end, start + 2 + _MAX_CELLS // columns), silent)


def _plain(document: bytes) -> Prose:
    """Return the beginning of a document as it was written."""
    text = document[:MAX_PLAIN].decode("utf-8", errors="replace")
    return Prose(Markup('<pre tabindex="0">{}</pre>').format(text), (), len(document) > MAX_PLAIN, is_plain=True)


def encode(rendered: Prose) -> bytes:
    """Return a rendered document as bytes, for `restore`."""
    html = str.__str__(rendered.html)
    return msgspec.msgpack.encode(_Encoded(html, rendered.headings, rendered.is_cut, rendered.is_plain, rendered.unseen))


def restore(encoded: bytes) -> Prose:
    """Return the document that `encode` encoded in this process."""
    decoded = msgspec.msgpack.decode(encoded, type=_Encoded)
    # Cleaned before it was encoded.
    return Prose(Markup(decoded.html), decoded.headings, decoded.is_cut, decoded.is_plain, decoded.unseen)  # noqa: S704


class _Encoded(msgspec.Struct):
    """The same members as `Prose`, with the HTML as plain text."""

    html: str
    headings: tuple[Heading, ...]
    is_cut: bool
    is_plain: bool
    unseen: int


def _headings(tokens: list[Token]) -> tuple[Heading, ...]:
    """Give each heading an id, and return them."""
    headings: list[Heading] = []
    ids: set[str] = set()
    repeated: dict[str, int] = {}
    for opening, inline in pairwise(tokens):
        if opening.type != "heading_open":
            continue
        words = "".join(child.content for child in inline.children or [] if child.type in ("text", "code_inline"))
        base = _PREFIX + (_NOT_WORD.sub("-", words.lower()).strip("-") or "section")
        id_ = base
        # Counted on from the last heading of the same words: a search from the start costs the square of their number.
        while id_ in ids:
            repeated[base] = repeated.get(base, 1) + 1
            id_ = f"{base}-{repeated[base]}"
        ids.add(id_)
        opening.attrSet("id", id_)
        # One step down: the page itself has the heading of the first level.
        level = min(int(opening.tag[1]) + 1, 6)
        headings.append(Heading(level, words, id_))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 1, 6)}"
    return tuple(headings)


def _without_pictures(tokens: list[Token]) -> list[Token]:
    """Replace each picture by a link to it."""
    for token in tokens:
        if not token.children:
            continue
        children: list[Token] = []
        for child in token.children:
            if child.type != "image":
                children.append(child)
                continue
            opening = Token("link_open", "a", 1, attrs={"href": child.attrGet("src") or ""})
            text = Token("text", "", 0, content=child.content or "picture")
            children += [opening, text, Token("link_close", "a", -1)]
        token.children = children
    return tokens
