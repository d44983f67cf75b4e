"""Make the index of the site's search: English words by their stems, and Chinese ones by their pairs of characters.

Sphinx's own Chinese search needs a dictionary, and finds no word that the dictionary lacks. Pairs of neighbouring characters need
none: a query of two or more characters is the pairs that it holds.
"""

from __future__ import annotations

import re
from itertools import pairwise

from sphinx.search.en import SearchEnglish

_WORD = re.compile(r"\w+")
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u30ff\uac00-\ud7af"
_PIECE = re.compile(rf"[{_HAN}]+|[^{_HAN}]+")
_IS_HAN = re.compile(rf"[{_HAN}]")
_NO_NAME = re.compile(r"\d|(?=.*\d).{25}")
"""Numbers, times, digests and keys. No reader types one, and each would be a word of the index, which a search loads."""

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
