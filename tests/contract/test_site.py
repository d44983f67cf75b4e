"""The site of the documentation: its links hold, its pages obey a strict Content-Security-Policy, and its search splits words."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from built_site import built_site
from docs.site.__main__ import main
from docs.site.archive import SiteError, check, pack
from docs.site.search import SearchMixed, index, sections, stems
from docs.site.staging import HOME, ROOT, LinkError, moved, pages, place, stage


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> zipfile.ZipFile:
    """The built site. The build itself fails for a warning, a link to nothing, and a style or script in a page."""
    return zipfile.ZipFile(built_site(request.config.cache.mkdir("site")))


@pytest.mark.deep
def test_every_page_of_the_repository_is_in_the_site(site: zipfile.ZipFile) -> None:
    names = set(site.namelist())
    assert {place(page).removesuffix(".md") + ".html" for page in pages()} <= names
    assert {"index.html", "concept.html", "glossary.html", "specification/index.html", "search.html", "searchindex.js"} <= names


@pytest.mark.deep
def test_every_page_is_in_the_list_of_all_pages(site: zipfile.ZipFile) -> None:
    listed = set(
        re.findall(r'class="toctree-l1(?: current)?"><a class="[^"]*" href="([^"#]*)"', site.read("search.html").decode())
    )
    assert {place(page).removesuffix(".md") + ".html" for page in pages()} - listed - {"index.html"} == set()


@pytest.mark.deep
def test_a_page_has_the_registrys_frame_and_style(site: zipfile.ZipFile) -> None:
    page = site.read("glossary.html").decode()
    for part in ('href="/protocols"', 'href="_static/treaty.css"', 'class="skip"', '<main id="main"', 'name="q"'):
        assert part in page
    style = ROOT / "registry/treaty_registry/pages/static/treaty.css"
    assert site.read("_static/treaty.css") == style.read_bytes()


@pytest.mark.deep
def test_the_heading_that_pages_of_the_registry_link_is_there(site: zipfile.ZipFile) -> None:
    glossary = site.read("glossary.html").decode()
    for heading in ("protocols", "the-log", "elections", "handlers", "sessions", "identity-and-trust"):
        assert f'id="{heading}"' in glossary


@pytest.mark.deep
def test_every_vector_is_at_an_address_that_lasts(site: zipfile.ZipFile) -> None:
    index = json.loads(site.read("vectors/index.json"))
    entries = [entry for page in index.values() for entry in page]
    assert len(entries) > 100
    for entry in entries:
        assert hashlib.sha256(site.read(f"vectors/{entry['file']}")).hexdigest() == entry["sha256"]
    assert 'data-list="../lists/vectors-log.json"' in site.read("specification/log.html").decode()
    listed = [file for row in json.loads(site.read("lists/vectors-log.json")) for file in row["file"]]
    assert "vectors/log/rfc6962.json" in listed and set(listed) <= set(site.namelist())


@pytest.mark.deep
def test_an_unchanged_site_is_not_built_again(site: zipfile.ZipFile, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(str(site.filename))
    before = path.stat()
    assert main([str(path)]) == 0
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert "of these sources already" in capsys.readouterr().out


@pytest.mark.deep
def test_an_example_is_text(site: zipfile.ZipFile) -> None:
    examples = [site.read(name) for name in site.namelist() if name.endswith("/agents.py")]
    assert (ROOT / "examples/agents.py").read_bytes() in examples


def test_every_page_stands_in_the_menu() -> None:
    """The build says so too, and takes minutes."""
    menu = set(re.findall(r"^(?:.* <)?([a-z0-9/-]+)>?$", HOME.read_text(encoding="utf-8"), re.MULTILINE))
    assert {place(page).removesuffix(".md") for page in pages() - {HOME}} - menu == set()


MOST_WORDS = 90_000
"""Of the pages of the site, written and generated. It may only fall: a new fact takes the place of another one, or is a link."""


def test_the_site_has_fewer_words(tmp_path: Path) -> None:
    stage(tmp_path)
    staged = [path for path in tmp_path.rglob("*.md") if path.relative_to(tmp_path).parts[0] != "files"]
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in staged) <= MOST_WORDS


def test_pages_for_those_who_change_treaty_are_not_in_the_site() -> None:
    assert not [page for page in pages() if page.name == "CONTRIBUTING.md" or page.parent.name == "decisions"]
    assert moved(ROOT / "README.md", "[`a`](CONTRIBUTING.md), [b](docs/decisions/the-log.md#x)") == "`a`, b"
    index = (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")
    topics = re.findall(r"^- \[[^]]+\]\(([\w-]+)\.md\): ", index, re.MULTILINE)
    assert sorted(topics) == sorted(path.stem for path in (ROOT / "docs/decisions").glob("*.md") if path.name != "README.md")


@pytest.mark.deep
def test_a_table_for_programs_is_beside_the_page_that_shows_it(site: zipfile.ZipFile) -> None:
    threats = json.loads(site.read("lists/threats.json"))
    assert len(threats) > 100 and all(row["threat"] and row["answer"] and row["tests"] for row in threats)
    assert 'data-list="lists/threats.json"' in site.read("security.html").decode()
    assert 'data-list="../lists/rules-000.json"' in site.read("specification/conformance.html").decode()


def test_equal_files_make_an_equal_archive(tmp_path: Path) -> None:
    folder = tmp_path / "html"
    folder.mkdir()
    for name in ("b.html", "a.html"):
        (folder / name).write_text(name)
    pack(folder, tmp_path / "one.zip")
    (folder / "a.html").touch()
    pack(folder, tmp_path / "two.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('<a href="absent.html">x</a>', "is not there"),
        ('<a href="other.html#absent">x</a>', "no such heading"),
        ('<img src="absent.png">', "is not there"),
        ("<style>p {}</style>", "stands in the page itself"),
        ('<p style="color: red">x</p>', "stands in the page itself"),
        ("<script>1</script>", "stands in the page itself"),
        ('<p onclick="1">x</p>', "stands in the page itself"),
    ],
)
def test_a_fault_of_a_page_fails_the_build(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "other.html").write_text('<p id="here">x</p>')
    (tmp_path / "page.html").write_text('<a href="other.html#here">x</a><a href="/topics">x</a>')
    check(tmp_path)
    (tmp_path / "page.html").write_text(text)
    with pytest.raises(SiteError, match=fault):
        check(tmp_path)


def test_links_follow_their_pages() -> None:
    guide = ROOT / "docs/guides/calling.md"
    assert moved(guide, "[a](../glossary.md#x) and `[b](../glossary.md)`") == "[a](/glossary.md#x) and `[b](../glossary.md)`"
    assert moved(guide, "[`c`](../../SECURITY.md)") == "[`c`](/security.md)"
    assert moved(guide, "[d](https://example.com) [e](#here)") == "[d](https://example.com) [e](#here)"
    assert moved(guide, "```\n[f](../glossary.md)\n```\n") == "```\n[f](../glossary.md)\n```\n"
    assert moved(ROOT / "README.md", "[g](docs/specification)") == "[g](/specification/index.md)"
    assert moved(ROOT / "README.md", "[h](examples/agents.py)") == "[h](/files/examples/agents.py)"


@pytest.mark.parametrize("target", ["absent.md", "../../../../etc/passwd"])
def test_a_link_to_nothing_or_out_of_the_repository_is_an_error(target: str) -> None:
    with pytest.raises(LinkError, match="which is not there"):
        moved(ROOT / "docs/guides/calling.md", f"[a]({target})")


def test_chinese_words_are_found_by_their_pairs() -> None:
    language = SearchMixed({})
    assert language.split("book 预订房间 now") == ["book", "预订", "订房", "房间", "now"]
    assert language.split("价") == ["价"]
    assert language.split("v2预订") == ["v2", "预订"]
    assert all(map(language.word_filter, ("预订", "价", "sandbox")))
    assert not language.word_filter("the")


QUESTIONS = {
    "how do I cancel a call": "guides/handlers.html#streams-events-and-cancellation",
    "exit status": "guides/command-line.html#exit-statuses",
    "rotate a key": "guides/operating.html#rotate-a-key",
    "disk full": "guides/operating.html#a-disk-is-full",
    "what is repeated when a call has no answer": "guides/calling.html#what-is-repeated",
    "test my agent without a registry": "guides/testing.html#without-a-registry-outside-of-tests",
    "MCP or A2A": "index.html#",
    "what do I have to install": "quickstarts/install.html#",
    "take a published version back": "guides/handlers.html#after-publishing",
    "session.busy": "guides/serving.html#how-much-at-once",
    "the lost disk of a registry": "guides/deploying.html#survive-a-lost-disk",
    "my topic has no consensus": "guides/deciding-a-topic.html#",
}
"""Questions of a user, and the section that answers each."""


def ranked(made: str, questions: list[str]) -> list[list[list[str]]]:
    """The hits of each question, as the page ranks them."""
    program = (ROOT / "docs/site/treaty/static/search.js").read_text(encoding="utf-8")
    asked = json.dumps([stems(question) for question in questions])
    script = f"{program}\nconst made = {made};\nconsole.log(JSON.stringify({asked}.map((words) => rank(made, words))));"
    try:
        done = subprocess.run(["node"], input=script, capture_output=True, text=True, check=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no Node.js here")
    found: list[list[list[str]]] = json.loads(done.stdout)
    return found


def test_a_question_of_a_user_finds_the_section_that_answers_it() -> None:
    made = index({place(page).removesuffix(".md") + ".html": page.read_text(encoding="utf-8") for page in pages()})
    hits = dict(zip(QUESTIONS, ranked(made, list(QUESTIONS)), strict=True))
    first = {question: [f"{page}#{anchor}" for page, anchor, *_ in found[:3]] for question, found in hits.items()}
    assert {question: found for question, found in first.items() if QUESTIONS[question] not in found} == {}


def test_words_of_a_heading_and_more_matches_come_first() -> None:
    text = "The key of a log is rotated by its operator. " * 3
    made = index(
        {
            "a.html": f"# Logs\n\n{text}\n\n## Other\n\nconstructor",
            "b.html": "# Keys\n\n```sh\n# Rotate a key\n```\n\n## Rotate a key\n\n[Read](/a.html) this.\n",
        }
    )
    by_heading, by_both, by_beginning, by_none = ranked(made, ["rotate a key", "operator rotates", "constr", "toString"])
    assert by_heading[0] == ["b.html", "rotate-a-key", "Keys", "Rotate a key", "Read this."]
    assert by_both[0][:2] == ["a.html", ""]
    assert [hit[:2] for hit in by_beginning] == [["a.html", "other"]]
    assert by_none == []


def test_a_second_heading_of_a_name_leads_to_its_page() -> None:
    found = sections("a.html", "# A\n\n## B\n\n## B\n\n### 预订\n")
    assert [(section.heading, section.anchor) for section in found] == [("A", ""), ("B", "b"), ("B", ""), ("预订", "")]


@pytest.mark.deep
def test_every_hit_of_the_search_leads_to_its_heading(site: zipfile.ZipFile) -> None:
    search_index = json.loads(site.read("searchindex.js").decode().removeprefix("var searchIndex = ").rstrip(";\n"))
    assert len(search_index["sections"]) > 500
    pages = {section[0] for section in search_index["sections"]}
    ids = {page: set(re.findall(r' id="([^"]+)"', site.read(page).decode())) for page in pages}
    assert [(page, anchor) for page, anchor, *_ in search_index["sections"] if anchor and anchor not in ids[page]] == []


@pytest.mark.deep
def test_the_browser_splits_words_as_the_index_does(site: zipfile.ZipFile) -> None:
    """The splitter of the index and that of the page are two programs."""
    language, code = SearchMixed({}), site.read("_static/language_data.js").decode()
    splitter = code[code.index("var splitQuery") :]
    texts = ["book 预订房间 now", "价", "v2预订", "a-b_c", "订房"]
    script = f"{splitter}\nfor (const text of {texts!r}) console.log(splitQuery(text).join(' '));"
    try:
        done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no Node.js here")
    assert done.stdout.splitlines() == [" ".join(language.split(text)) for text in texts]
