"""Build the site, check it, and pack it into one file.

The archive is the same for the same sources: its members have one time and stand in order. So a wheel that carries it can be
built again to the byte.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx

from .search import index
from .staging import ROOT, stage, write_lists, write_vectors

ARCHIVE = ROOT / "registry" / "treaty_registry" / "site.zip"
"""Where `make site` puts the site: beside the code that serves it, so that a wheel carries it."""
PAGES = ROOT / "registry" / "treaty_registry" / "pages" / "static"

_TIME = (1980, 1, 1, 0, 0, 0)
_UNUSED = re.compile(
    r"\.buildinfo|\.doctrees/.*|objects\.inv|_static/(?:basic|pygments)\.css|_static/(?:file|minus|plus)\.png"
    r"|_static/(?:doctools|documentation_options|searchtools|sphinx_highlight|(?:base|english)-stemmer)\.js"
)
_OF_REGISTRY = frozenset({"/", "/protocols", "/topics", "/log"})


class SiteError(Exception):
    """The site has a fault: a warning of Sphinx, a link to nothing, or a style or script in a page. The message lists them."""


def build(archive: Path = ARCHIVE) -> bool:
    """Write the site into an archive; return False if it is of these sources already. Raises `SiteError`, `LinkError`."""
    with tempfile.TemporaryDirectory(prefix="treaty-site-") as folder:
        sources, output, kept = Path(folder, "sources"), Path(folder, "html"), Path(folder, "kept")
        sources.mkdir()
        stage(sources)
        write_vectors(kept)
        write_lists(kept)
        digest = _digest(sources, kept, Path(__file__).parent, PAGES)
        if _comment(archive) == digest:
            return False
        _make(sources, output)
        write_index(sources, output)
        shutil.copytree(kept, output, dirs_exist_ok=True)
        check(output)
        pack(output, archive, digest)
    return True


def write_index(sources: Path, output: Path) -> None:
    """Write the index of the search in the place of Sphinx's own, which ranks whole pages. Files of code are not searched."""
    pages = {path.relative_to(sources).as_posix(): path for path in sources.rglob("*.md")}
    texts = {
        f"{name.removesuffix('.md')}.html": path.read_text(encoding="utf-8")
        for name, path in pages.items()
        if not name.startswith("files/")
    }
    (output / "searchindex.js").write_text(f"var searchIndex = {index(texts)};\n", encoding="utf-8")


def _digest(*folders: Path) -> bytes:
    """The digest of everything that the site is made of: sources, vectors, this package, the style of the pages, its programs."""
    versions = {name: version(name) for name in ("sphinx", "myst-parser", "docutils", "pygments", "treaty-agents")}
    digest = hashlib.sha256(repr(versions).encode())
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest().encode()


def _comment(archive: Path) -> bytes:
    """The digest of the sources that an archive was built from, or nothing."""
    if not archive.is_file() or not zipfile.is_zipfile(archive):
        return b""
    with zipfile.ZipFile(archive) as packed:
        return packed.comment


def pack(folder: Path, archive: Path, digest: bytes = b"") -> None:
    """Pack the files of a folder that the site serves. A crash leaves the former archive. `digest`: that of their sources."""
    new = archive.with_suffix(".new")
    with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        packed.comment = digest
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and not _UNUSED.fullmatch(name):
                packed.writestr(zipfile.ZipInfo(name, _TIME), path.read_bytes(), zipfile.ZIP_DEFLATED, 9)
    new.replace(archive)


def check(folder: Path) -> None:
    """Raise `SiteError` for a link to nothing, and for a style or script in a page, which a strict policy of a server forbids."""
    faults = [*_faults(folder)]
    if faults:
        raise SiteError("\n".join(faults))


def _make(sources: Path, output: Path) -> None:
    # Sphinx writes the moment of the build nowhere when this is set.
    os.environ.setdefault("SOURCE_DATE_EPOCH", "0")
    with open(os.devnull, "w") as quiet, tempfile.TemporaryFile("w+") as warnings:  # noqa: PTH123
        app = Sphinx(
            sources,
            Path(__file__).parent,
            output,
            output / ".doctrees",
            "html",
            status=quiet,
            warning=warnings,
            freshenv=True,
            parallel=os.cpu_count() or 1,
        )
        app.build()
        warnings.seek(0)
        found = warnings.read().strip()
    if found:
        raise SiteError(found)


class _Page(HTMLParser):
    """The links, ids and forbidden parts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := found.get(name))}
        self.links += [value for name in ("href", "src", "srcset", "action") if (value := found.get(name))]
        if "style" in found or tag == "style" or (tag == "script" and "src" not in found):
            self.inline.append(f"<{tag}>")
        self.inline += [f"{tag} {name}" for name in found if name.startswith("on")]


def _faults(output: Path) -> Iterator[str]:
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(output.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(output).as_posix()
        yield from (f"{name}: {found} stands in the page itself" for found in page.inline)
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or link in _OF_REGISTRY:
                continue
            target = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            if not target.is_file():
                yield f"{name} links {link}, which is not there"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield f"{name} links {link}, which has no such heading"
