"""Names that hold what somebody types, found by one scan of all of them, the most taken first."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

MOST_CANDIDATES = 2000  # names looked at for one question: those that are taken most


def folded(text: str) -> str:
    """Return text as it is compared: without case, accents and runs of spaces.

    >>> folded("  Café\\u00a0 Crème ")
    'cafe creme'
    """
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return " ".join(plain.casefold().split())


@dataclass(frozen=True, eq=False)
class Index:
    """Names to search.

    names : one for each user or item
    weight : array of as many numbers; of equally good names the heavier comes first

    Examples
    --------
    >>> index = Index(["Soy milk", "Milk, whole", "Butter milk"], np.array([1, 9, 5]))
    >>> index.find("milk", 3), index.find("SOY mi", 3), index.find("tea", 3)
    ([1, 2, 0], [0], [])
    """

    names: Sequence[str]
    weight: NDArray[np.floating] | NDArray[np.integer]

    @cached_property
    def _lines(self) -> tuple[str, list[int], list[int]]:
        """All names in one text, heaviest first, a line each; where each line starts, and whose it is."""
        order = np.argsort(-self.weight, kind="stable").tolist()
        lines = [folded(self.names[place]) for place in order]
        starts = np.cumsum([0, *(len(line) + 1 for line in lines)])[:-1].tolist()
        return "\n".join(lines), starts, order

    def find(self, wanted: str, n: int) -> list[int]:
        """Return the positions of at most n names that hold every word wanted; of nothing, the heaviest names."""
        words = sorted(folded(wanted).split(), key=len, reverse=True)
        text, starts, order = self._lines
        if not words:
            return order[:n]
        found: list[tuple[int, int]] = []
        for line in self._lines_with(words[0]):
            start = starts[line]
            end = starts[line + 1] - 1 if line + 1 < len(starts) else len(text)
            name = text[start:end]
            if all(word in name for word in words):
                found.append((_fit(name, folded(wanted), words), line))
                if len(found) == MOST_CANDIDATES:
                    break
        return [order[line] for _, line in sorted(found)[:n]]

    def _lines_with(self, word: str) -> Iterator[int]:
        text, starts, _ = self._lines
        place = text.find(word)
        while place >= 0:
            line = bisect_right(starts, place) - 1
            yield line
            if line + 1 == len(starts):
                return
            place = text.find(word, starts[line + 1])


def _fit(name: str, wanted: str, words: Sequence[str]) -> int:
    """How well a name fits, less is better: it is what was typed, or begins so, or all words begin in it somewhere."""
    if name == wanted:
        return 0
    if name.startswith(wanted):
        return 1
    return 2 if all(f" {word}" in f" {name}" for word in words) else 3
