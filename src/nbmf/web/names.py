"""Search for names by the words in them, in one scan of all names."""

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

MOST_CANDIDATES = 2000  # matches that one search compares: those of largest weight


def folded(text: str) -> str:
    """Return text as it is compared: without case, accents and repeated spaces.

    >>> folded("  Café\\u00a0 Crème ")
    'cafe creme'
    """
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return " ".join(plain.casefold().split())


class Index:
    """Names to search; of two names that match equally well, the one of larger weight comes first.

    >>> index = Index(["Soy milk", "Milk, whole", "Butter milk"], np.array([1, 9, 5]))
    >>> index.find("milk", 3), index.find("SOY mi", 3), index.find("tea", 3)
    ([1, 2, 0], [0], [])
    """

    def __init__(self, names: Sequence[str], weight: NDArray[np.floating] | NDArray[np.integer]) -> None:
        self.names, self.weight = names, weight

    @cached_property
    def _lines(self) -> tuple[str, list[int], list[int]]:
        """All names as lines of one text, largest weight first; the starts of the lines and of the end; their names."""
        order = np.argsort(-self.weight, kind="stable").tolist()
        lines = [folded(self.names[place]) for place in order]
        starts = np.cumsum([0, *(len(line) + 1 for line in lines)]).tolist()
        return "\n".join(lines), starts, order

    def find(self, wanted: str, n: int) -> list[int]:
        """Return the positions of at most n names that contain every word; without words, those of largest weight."""
        words = sorted(folded(wanted).split(), key=len, reverse=True)
        text, starts, order = self._lines
        if not words:
            return order[:n]
        found: list[tuple[int, int]] = []
        place = text.find(words[0])
        while place >= 0 and len(found) < MOST_CANDIDATES:
            line = bisect_right(starts, place) - 1
            end = starts[line + 1] - 1
            name = text[starts[line] : end]
            if all(word in name for word in words):
                found.append((_rank(name, folded(wanted), words), line))
            place = text.find(words[0], end)
        return [order[line] for _, line in sorted(found)[:n]]


def _rank(name: str, wanted: str, words: Sequence[str]) -> int:
    """Return how well a name matches, best first: equal, same beginning, words at their beginnings, anything else."""
    if name == wanted:
        return 0
    if name.startswith(wanted):
        return 1
    return 2 if all(f" {word}" in f" {name}" for word in words) else 3
