"""Lay the Markdown of the repository out as the site has it, with links that follow.

No page is copied in the repository. The parts that only the site has are written into their pages (`docs.generate.SITE`). A page
of docs/ keeps its place: docs/glossary.md is glossary.html. A README of docs/ is the index of its folder. Other READMEs, and
pages for those who change Treaty, are of the repository alone: a link to one is its text. Each other file that a page links is
under files/, as it is. A linked folder is a page that lists its files. A picture of `<picture>`, which is HTML, is below `EXTRA`,
and the site has it as it is. Test vectors are below vectors/, at addresses that last, whether a page links them or not.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from docs.generate import LISTS, vectors
from docs.generate.parts import completed

ROOT = Path(__file__).parents[2]
HOME = Path(__file__).with_name("index.md")

_PATTERNS = (
    "*.md",
    "docs/*.md",
    "docs/guides/*.md",
    "docs/quickstarts/*.md",
    "docs/reference/*.md",
    "docs/specification/*.md",
)
_OF_REPOSITORY = (
    *(ROOT / name for name in ("CONTRIBUTING.md", "bench", "docs/decisions")),
    *(
        ROOT / "docs" / "specification" / name
        for name in ("election-bound.md", "election-v2.md", "home-caches.md", "language-model.md")
    ),
)
"""Pages and folders for those who change Treaty: decisions, measurements, a proof, a former rule, private files, and
the requests to a model."""
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)")
_CODE = re.compile(r"(`+)(?:(?!\1).)+?\1(?!`)")
_LINK = re.compile(r"(?P<before>\]\()(?P<target>[^()\s#]*)(?P<anchor>#[^()\s]*)?(?P<after>\))")
_NAMED = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s#]+)(?:#[^()\s]*)?\)")
_SOURCE = re.compile(r'(?P<before>\b(?:src|srcset)=")(?P<target>[^"\s:]+)(?P<after>")')
EXTRA = "extra"
"""The folder of the files that no Markdown names, so that Sphinx has to be told of them."""
_ORPHAN = "---\norphan: true\n---\n\n"
_LISTED = 100
"""Files in the list of a folder."""


class LinkError(Exception):
    """A page links a file that is not in the repository. The message names both."""


@cache
def _vectors() -> frozenset[Path]:
    return frozenset(vectors.files())


@cache
def pages() -> frozenset[Path]:
    """Return the pages that the site always has."""
    return frozenset([HOME, *(path for pattern in _PATTERNS for path in ROOT.glob(pattern) if not _is_of_repository(path))])


def _is_of_repository(path: Path) -> bool:
    is_readme = path.name == "README.md" and not path.is_relative_to(ROOT / "docs")
    return is_readme or any(path.is_relative_to(part) for part in _OF_REPOSITORY)


def place(path: Path) -> str:
    """Return the path in the site of a file or folder of the repository. A folder's is that of the page that shows it."""
    if path.is_dir():
        readme = path / "README.md"
        return place(readme) if readme in pages() else f"files/{path.relative_to(ROOT).as_posix()}/index.md"
    if path == HOME:
        return "index.md"
    parts = path.relative_to(ROOT).parts
    if path not in pages() and path.suffix not in (".svg", ".png"):
        # Any other Markdown is a part of something, such as a prompt or an example, and is shown as it is.
        return "/".join(("files", *parts)) + (".txt" if path.suffix == ".md" else "")
    if parts[0] == "docs":
        parts = parts[1:]
    if len(parts) == 1:
        return parts[0].lower()
    return "/".join("index.md" if part == "README.md" else part for part in parts)


def stage(folder: Path) -> None:
    """Write the sources of the site into an empty folder. Raises `LinkError`."""
    waiting = [*pages()]
    staged = set[Path]()
    while waiting:
        path = waiting.pop()
        if path in staged:
            continue
        staged.add(path)
        target = folder / place(path)
        if path.is_dir() and path / "README.md" in pages():
            waiting.append(path / "README.md")
        elif path.is_dir():
            _write(target, _ORPHAN + _listing(path))
            waiting += _files(path)
        elif path in pages():
            text = completed(path.read_text(encoding="utf-8"))
            waiting += _linked(path, text)
            for picture in _pictures(path, text):
                _copy(picture, folder / EXTRA / place(picture))
            _write(target, moved(path, text))
        else:
            _copy(path, target)


def write_vectors(folder: Path) -> None:
    """Write the test vectors and their list into the folder of the built site: Sphinx would name them by a hash."""
    for path in _vectors():
        _copy(path, folder / _vector_place(path))
    _write(folder / "vectors" / "index.json", vectors.index())


def write_lists(folder: Path) -> None:
    """Write the tables that are files for programs (`docs.generate.LISTS`) into the folder of the built site."""
    for name, rows in LISTS.items():
        _write(folder / "lists" / f"{name}.json", json.dumps(rows(), indent=1, ensure_ascii=False))


def _vector_place(path: Path) -> str:
    return f"vectors/{vectors.name(path)}"


def moved(page: Path, text: str) -> str:
    """Return a page's text with the links as the site needs them. Links in code are none."""
    return "".join(_moved_line(page, line) if is_prose else line for line, is_prose in _lines(text))


def _moved_line(page: Path, line: str) -> str:
    def follow(match: re.Match[str]) -> str:
        if not _is_relative(match["target"]):
            return match[0]
        target = _resolved(page, match["target"])
        if target in _vectors():
            relative = os.path.relpath(_vector_place(target), Path(place(page)).parent)
            return f"{match['before']}{relative}{match['after']}{{.external}}"
        return f"{match['before']}/{place(target)}{match['anchor'] or ''}{match['after']}"

    def unlink(match: re.Match[str]) -> str:
        is_named = _is_relative(match["target"]) and _is_of_repository(_resolved(page, match["target"]))
        return match["text"] if is_named else match[0]

    def show(match: re.Match[str]) -> str:
        picture = os.path.relpath(place(_resolved(page, match["target"])), Path(place(page)).parent)
        return f"{match['before']}{picture}{match['after']}"

    return _outside_code(line, lambda part: _SOURCE.sub(show, _LINK.sub(follow, _NAMED.sub(unlink, part))))


def _pictures(page: Path, text: str) -> list[Path]:
    """The pictures that the HTML of a page shows."""
    prose = (_CODE.sub("", line) for line, is_prose in _lines(text) if is_prose)
    return [_resolved(page, match["target"]) for line in prose for match in _SOURCE.finditer(line)]


def _linked(page: Path, text: str) -> list[Path]:
    """The files and folders that a page links."""
    found = list[Path]()
    for line, is_prose in _lines(text):
        if is_prose:
            targets = [match["target"] for match in _LINK.finditer(_CODE.sub(lambda code: "`" * len(code[0]), line))]
            files = [_resolved(page, target) for target in targets if _is_relative(target)]
            found += [path for path in files if path not in _vectors() and not _is_of_repository(path)]
    return found


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is outside a block of code."""
    is_code = False
    for line in text.splitlines(keepends=True):
        if _FENCE.match(line):
            is_code = not is_code
            yield line, False
        else:
            yield line, not is_code


def _outside_code(line: str, change: Callable[[str], str]) -> str:
    # A link's text may hold code, so code is hidden while the links of a line are changed.
    hidden = [code[0] for code in _CODE.finditer(line)]
    parts = change(_CODE.sub("\x00", line)).split("\x00")
    return "".join(part + code for part, code in zip(parts, [*hidden, ""], strict=True))


def _is_relative(target: str) -> bool:
    return bool(target) and not re.match(r"[a-z]+:|/", target)


def _resolved(page: Path, target: str) -> Path:
    path = Path(os.path.normpath(page.parent / target))
    if not path.exists() or not path.is_relative_to(ROOT):
        raise LinkError(f"{page.relative_to(ROOT)} links {target}, which is not there.")
    return path


def _listing(folder: Path) -> str:
    name = folder.relative_to(ROOT).as_posix()
    lines = [f"- [{path.relative_to(folder).as_posix()}](/{place(path)})" for path in _files(folder)]
    return f"# `{name}`\n\nThe files of this folder:\n\n" + "\n".join(lines) + "\n"


def _files(folder: Path) -> list[Path]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return [path for path in found if not path.name.startswith(".")][:_LISTED]


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
