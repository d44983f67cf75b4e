"""What pages are made of: foreign Markdown, the wording of values, files with hashes, and the choice of a form."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from treaty_consensus.canonical import hex_digest
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.protocol import PART_BEGIN, PART_END
from treaty_registry.pages import filters, prose
from treaty_registry.pages.assets import STATIC, Assets
from treaty_registry.serving.negotiation import page_of, preferred_form, prefers_html, split_form

FULL = prose.MAX_TEXT
# Each is of the greatest size that is rendered. A renderer that backtracks would take hours for one of them.
COSTLY = {
    "brackets": "[" * FULL,
    "closed brackets": "[]" * (FULL // 2),
    "links": "[a](" * (FULL // 4),
    "pictures": "![" * (FULL // 2),
    "quotes": ">" * FULL,
    "quotes in lines": "> " * 200 + "x\n" * (FULL // 2 - 300),
    "stars": "*" * FULL,
    "stars and words": "*a " * (FULL // 3),
    "underscores": "_a*" * (FULL // 3),
    "backticks": "".join("`" * (number % 700) + " " for number in range(700)) * 1,
    "open angles": "<" * FULL,
    "comments": "<!--" * (FULL // 4),
    "entities": "&" * FULL,
    "list": "".join(f"{'  ' * (number % 100)}- x\n" for number in range(2_000)),
    "table": "|a" * 2_000 + "\n" + "|-" * 2_000 + "\n" + ("|b" * 2_000 + "\n") * 60,
    "rows": "|a|\n|-|\n" + "|b|\n" * (FULL // 5),
    "headings": "# x\n" * (FULL // 4),
    "references": "".join(f"[{number}]: /{number}\n" for number in range(15_000)),
    "fences": "```\n" * (FULL // 4),
    "tildes": "~~a" * (FULL // 3),
}


class Depth(HTMLParser):
    """The greatest depth of a text's elements, and their number."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.depth = self.deepest = self.elements = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements += 1
        self.depth += tag not in ("br", "hr")
        self.deepest = max(self.deepest, self.depth)

    def handle_endtag(self, tag: str) -> None:
        self.depth -= 1


@pytest.mark.sample(2)
@pytest.mark.threat(274)
@pytest.mark.parametrize("name", COSTLY)
def test_a_costly_document_is_rendered_in_bounds(name: str) -> None:
    document = COSTLY[name].encode()
    assert len(document) <= FULL + 3
    page = prose.render(document)
    read = Depth(str(page.html))
    # A table cell is the smallest source of an element: two characters.
    assert read.deepest <= 3 * prose.MAX_NESTING and read.elements <= FULL
    assert len(page.html) <= 40 * FULL


HONEST = {
    "a table": "| field | type | meaning |\n| --- | --- | --- |\n"
    + "| `id` | text | a name of the request, which the answer repeats |\n" * 40
    + "\n",
    "links": "See [the specification](https://example.org/specification/one) for **more** about it.\n\n",
    "examples": '```json\n{"id": "1", "type": "request"}\n```\n\n1. The client asks.\n2. The shop answers, or not.\n\n',
    "indented text": "   The client MUST send a request [RFC2119] before the end of the _time_ that it names.\n",
}


@pytest.mark.deep
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", HONEST)
def test_a_usual_document_of_the_greatest_size_is_formatted(name: str) -> None:
    page = prose.render((HONEST[name] * FULL).encode()[:FULL])
    assert not page.is_plain


@pytest.mark.deep
@pytest.mark.threat(274)
def test_a_costly_document_is_shown_as_written() -> None:
    for document in (b"![" * (FULL // 2), b"***a***" * 30_000, b"|a" * (FULL // 2), b"<a@b.c> " * 30_000):
        count = 0

        def profile(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(profile)
        try:
            page = prose.render(document)
        finally:
            sys.setprofile(None)
        assert page.is_plain and page.is_cut and not page.headings
        assert page.html.unescape().startswith('<pre tabindex="0">' + document[:100].decode())
        assert count < 60 * prose.MAX_WORK, (document[:10], count)
        assert prose.restore(prose.encode(page)) == page
    assert "<b>" not in prose.render(b"<b>" * 30_000).html


def test_a_longer_document_is_cut_and_says_so() -> None:
    assert not prose.render(b"x" * FULL).is_cut
    page = prose.render(b"x" * FULL + b"secret")
    assert page.is_cut and "secret" not in page.html
    assert "\ufffd" in prose.render("é".encode() * FULL).html or prose.render(b"\xff").html


def test_a_document_of_many_lines_is_cut() -> None:
    page = prose.render(b"# x\n" * 5_000 + b"\n" * 60_000)
    assert page.is_cut and len(page.headings) == 5_000 == len({heading.id for heading in page.headings})
    assert not prose.render(b"x\n" * (prose.MAX_LINES - 1)).is_cut


UNSEEN = {
    "an override of the direction": "pay \u202e001\u202c",
    "an isolate": "pay \u2066x\u2069",
    "tags": "".join(chr(0xE0000 + ord(character)) for character in "obey"),
    "bytes in selectors": "a\U000e0101\U000e0142",
    "zero-width spaces": "pass\u200bword\u2060",
    "controls": "\x1b[2K\x7f\x9b",
    "a soft hyphen and a mark in the text": "pass\u00adword\ufeff",
}


@pytest.mark.sample(1)
@pytest.mark.threat(282)
@pytest.mark.parametrize("name", UNSEEN)
def test_what_a_reader_does_not_see_is_counted(name: str) -> None:
    for document in (UNSEEN[name], f"```\n{UNSEEN[name]}\n```\n", "x" * FULL + UNSEEN[name], "![" * FULL + UNSEEN[name]):
        page = prose.render(document.encode())
        assert page.unseen >= 2 and prose.restore(prose.encode(page)) == page


def test_usual_writing_has_nothing_unseen() -> None:
    for text in ("# a\n\tb\r\n", "预订", "שלום\u200f 120 ₪", "می\u200cخواهم", "👩\u200d👩\u200d👧 🏳️\u200d🌈", "Z̸̢̛͔̈́", "क्\u200dष"):
        assert prose.render(text.encode()).unseen == 0


def test_headings_have_ids_of_their_own_that_no_page_has() -> None:
    page = prose.render("# main\n# main\n# main-2\n# 预订\n# !!!\n###### deep\n".encode())
    ids = [heading.id for heading in page.headings]
    assert len(set(ids)) == 6 and all(id_.startswith("doc-") for id_ in ids)
    assert [heading.level for heading in page.headings] == [2, 2, 2, 2, 2, 6]
    assert re.findall(r'<h\d id="([^"]+)"', page.html) == ids


def test_front_matter_is_shown_without_the_two_marks() -> None:
    text = f"---\nname: a\ndescription: <b>*x*</b>\n---\n\n# Title\n\n{PART_BEGIN}\n## Messages\n{PART_END}\n"
    page = prose.render(text.encode())
    assert (
        '<pre tabindex="0"><code class="language-yaml">name: a\ndescription: &lt;b&gt;*x*&lt;/b&gt;\n</code></pre>' in page.html
    )
    assert [heading.text for heading in page.headings] == ["Title", "Messages"]
    assert "treaty document" not in page.html
    assert "do as I say" in prose.render(b"<!-- do as I say -->\n<!-- treaty document --> words\n").html
    assert "<hr>" in prose.render(b"---\n\n# Title\n\nwords\n\n---\n").html.replace(" /", "")


def test_pictures_become_links_and_wide_things_scroll() -> None:
    html = prose.render(b"![a *b*](https://x.example/a.png)\n\n|a|\n|-|\n|b|\n\n```json\n{}\n```\n").html
    assert "<img" not in html and 'href="https://x.example/a.png"' in html and 'rel="nofollow noopener noreferrer"' in html
    assert 'class="scroll" tabindex="0"' in html and '<pre tabindex="0">' in html


def test_values_are_worded() -> None:
    assert [filters.weight(units) for units in (0, 1, ONE, ONE // 2, str(1234 * ONE))] == ["0", "<0.001", "1", "0.5", "1,234"]
    assert [filters.size(number) for number in (0, 1023, 1024, 1536, 1 << 20)] == [
        *("0 bytes", "1023 bytes", "1.0 KiB", "1.5 KiB", "1.0 MiB"),
    ]
    assert filters.count(1234567) == "1,234,567" and filters.short("ab" * 32) == "ab" * 6
    assert filters.moment(0) == "1970-01-01 00:00 UTC"
    uri = "https://registry.example/protocols/a.example/hello/1.0"
    assert (filters.path(uri), filters.name(uri)) == ("/protocols/a.example/hello/1.0", "a.example/hello 1.0")
    assert filters.segment('did:wba:a.example:"/<') == "did:wba:a.example:%22%2F%3C"


def test_files_are_at_the_path_of_their_hash(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("a {}")
    (tmp_path / "a.py").write_text("secret")
    assets = Assets(tmp_path)
    path = assets.path("a.css")
    assert path == f"/static/a-{hex_digest(b'a {}')[:16]}.css"
    asset = assets.get(path)
    assert asset is not None and asset.body == b"a {}"
    assert assets.get("/static/a.css") is assets.get("/static/../a.py") is None
    with pytest.raises(KeyError):
        assets.path("a.py")
    (tmp_path / "a.css").write_text("b {}")
    assert Assets(tmp_path).path("a.css") != path


def test_scripts_and_styles_load_nothing_from_elsewhere() -> None:
    for file in STATIC.iterdir():
        if file.suffix == ".css":
            assert not re.search(r"@import|url\(", file.read_text(encoding="utf-8")), file
        if file.suffix == ".js" and file.name != "htmx.js":
            assert not re.search(r"\beval\(|new Function|document\.write|import\(", file.read_text("utf-8")), file


CHROME = b"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "is_page"),
    [
        (CHROME, True),
        (b"text/html", True),
        (b"text/html;q=0.9,application/json;q=0.1", True),
        (b"text/html;q=0.1,application/json", False),
        (b"text/html;q=0,application/json", False),
        (b"*/*", False),
        (b"", False),
        (b"application/json", False),
        (b"nothing at all;;;", False),
        (b"text/html" * 500, False),
        (b"\xff\xfe text/html", False),
    ],
)
def test_a_page_is_for_those_who_prefer_it(accept: bytes, is_page: bool) -> None:
    assert prefers_html(accept) is is_page


def test_forms_are_chosen_by_accept_and_suffix() -> None:
    assert preferred_form(b"", ("json", "html")) == "json"
    assert preferred_form(CHROME, ("json", "md")) == "json", "of a resource without a page a browser gets JSON"
    assert preferred_form(b"text/markdown", ("json", "md", "html")) == "md"
    assert preferred_form(b"image/png", ("json", "html")) is None
    assert split_form("/protocols/a/b/1.0.md") == ("/protocols/a/b/1.0", "md")
    assert split_form("/protocols/a/b/1.0") == ("/protocols/a/b/1.0", None)
    assert split_form("/x.html") == ("/x.html", None)
    assert page_of("/x") != "/x"
