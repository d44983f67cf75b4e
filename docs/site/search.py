"""Make the index of the site's search: a hit is a section of a page, and the words of its heading weigh most.

English words are found by their stems, and Chinese ones by their pairs of characters. Sphinx's own Chinese search needs a
dictionary, and finds no word that the dictionary lacks. Pairs of neighbouring characters need none: a query of two or more
characters is the pairs that it holds. `search.js` of the theme ranks by the weights that are made here.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from sphinx.search.en import SearchEnglish

_WORD = re.compile(r"\w+")
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u30ff\uac00-\ud7af"
_PIECE = re.compile(rf"[{_HAN}]+|[^{_HAN}]+")
_IS_HAN = re.compile(rf"[{_HAN}]")
_NO_NAME = re.compile(r"\d|(?=.*\d).{25}")
"""Numbers, times, digests and keys. No reader types one, and each would be a word of the index, which a search loads."""

_HEADING = re.compile(r"(#{1,6}) (.+)")
_FENCE = re.compile(r"[ \t]*(?:```|~~~)")
_MARKUP = re.compile(
    r"!?\[([^]]*)\]\([^)]*\)(?:\{[^}]*\})?|<!--.*?-->|</?[a-z][^>]*>|[|#]|^---$|^orphan: true$|:?-{2,}:?", re.MULTILINE
)
_SHOWN = 200
"""Characters of a section that a hit shows."""

_IN_HEADING, _IN_TITLE = 10, 3
"""A word of the heading counts as so many of the text, and a word of the page's title."""
_FURTHER = {
    **dict.fromkeys(("specification", "reference", "glossary.html"), 0.7),
    "changelog.html": 0.5,
}
"""The weight of pages that a reader needs after a guide, by the beginning of their addresses."""
_SATURATION, _LENGTH = 1.2, 0.6
"""The constants of BM25: how soon a repeated word adds nothing, and how much the length of a section counts."""

_SPLITTER = """
var splitQuery = (query) =>
  (query.match(/[\\p{Letter}\\p{Number}_]+/gu) || [])
    .flatMap((word) => word.match(/[HAN]+|[^HAN]+/gu) || [])
    .flatMap((word) => {
      const letters = Array.from(word);
      if (letters.length < 3 || !/[HAN]/u.test(word)) return [word];
      return letters.slice(1).map((letter, index) => letters[index] + letter);
    });
"""


class SearchMixed(SearchEnglish):
    """English and Chinese in one index."""

    lang = "en"
    js_splitter_code = _SPLITTER.replace("HAN", _HAN)

    def split(self, input: str) -> list[str]:
        """Return the words of a text. A run of Chinese characters gives each of its pairs."""
        return [word for run in _WORD.findall(input) for piece in _PIECE.findall(run) for word in _words(piece)]

    def word_filter(self, word: str) -> bool:
        """Return whether a word is indexed."""
        return bool(_IS_HAN.match(word)) or (super().word_filter(word) and not _NO_NAME.match(word))


def _words(piece: str) -> list[str]:
    if len(piece) == 1 or not _IS_HAN.match(piece):
        return [piece]
    return [first + second for first, second in pairwise(piece)]


class Section(NamedTuple):
    """A heading with the text below it. `title`: that of its page. `anchor`: "" for the page itself."""

    page: str
    anchor: str
    title: str
    heading: str
    text: str


_LANGUAGE = SearchMixed({})


@cache
def stems(text: str) -> tuple[str, ...]:
    """Return the words of a text or a question, as the index has them."""
    words = (word.lower() for word in _LANGUAGE.split(text))
    return tuple(_LANGUAGE.stem(word) for word in words if _LANGUAGE.word_filter(word))


def sections(page: str, text: str) -> Iterator[Section]:
    """Yield the sections of a page of Markdown. `page`: its address in the site. Code belongs to the text of its section."""
    title, heading, lines, anchors, is_code = "", "", list[str](), Counter[str](), False
    anchor = ""
    for line in text.splitlines():
        is_code ^= bool(_FENCE.match(line))
        found = None if is_code else _HEADING.fullmatch(line)
        if found is None:
            lines.append("" if _FENCE.match(line) else line)
            continue
        if heading:
            yield Section(page, anchor, title, heading, _plain("\n".join(lines)))
        heading, lines = _plain(found[2]), []
        title = title or heading
        name = _anchor(heading)
        anchors[name] += 1
        # Sphinx numbers the heading that has no letters, and the second one of a name: then the page is near enough.
        anchor = name if len(found[1]) > 1 and anchors[name] == 1 else ""
    if heading:
        yield Section(page, anchor, title, heading, _plain("\n".join(lines)))


def _anchor(heading: str) -> str:
    """The id that Sphinx gives a heading: its letters and digits in ASCII, with dashes, from the first letter on."""
    letters = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode().lower()
    return re.sub(r"^[-0-9]+|-+$", "", re.sub(r"[^a-z0-9]+", "-", letters))


def _plain(text: str) -> str:
    return " ".join(re.sub("[`*]", "", _MARKUP.sub(lambda found: found[1] or " ", text)).split())


def index(pages: Mapping[str, str]) -> str:
    """Return the index of pages of Markdown, by their addresses: JSON for `search.js`.

    `words` has for each word the numbers of the sections that have it, each with the weight of the word there (BM25).
    """
    found = [section for page, text in sorted(pages.items()) for section in sections(page, text)]
    counted = [Counter(stems(section.text)) for section in found]
    lengths = [sum(counter.values()) for counter in counted]
    for section, counter in zip(found, counted, strict=True):
        for weight, text in ((_IN_TITLE, section.title), (_IN_HEADING, section.heading)):
            for word in set(stems(text)):
                counter[word] += weight
    mean = sum(lengths) / max(len(lengths), 1) or 1
    spread = Counter(word for counter in counted for word in counter)
    words = dict[str, list[int]]()
    for number, (section, counter, length) in enumerate(zip(found, counted, lengths, strict=True)):
        place = 100 * _FURTHER.get(section.page.partition("/")[0], 1)
        least = _SATURATION * (1 - _LENGTH + _LENGTH * length / mean)
        for word, count in counter.items():
            rarity = math.log(1 + (len(found) - spread[word] + 0.5) / (spread[word] + 0.5))
            words.setdefault(word, []).extend((number, round(place * rarity * count / (count + least))))
    shown = [[section.page, section.anchor, section.title, section.heading, _cut(section.text)] for section in found]
    return json.dumps({"sections": shown, "words": words}, ensure_ascii=False, separators=(",", ":"))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN].rpartition(" ")[0] + " …"
