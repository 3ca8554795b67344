"""Where an id stands among others: found by bisection in an order made once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nbmf.data.interactions import Ids

NUMBERS = "biuf"
MOST_COMPARED = 20_000  # ids looked at for one like a wrong one


@dataclass(frozen=True, eq=False)
class Lookup:
    """Ids of one kind, as they were given: all strings or all numbers, each once.

    what : what they are the ids of, for errors: "user" or "item"

    Examples
    --------
    >>> Lookup(np.array(["jazz", "folk", "soul"]), "item").positions(["folk", "soul"])
    array([1, 2])
    """

    ids: Ids
    what: str

    @cached_property
    def _sorted(self) -> tuple[Ids, NDArray[np.intp] | None]:
        """The ids in ascending order and what brings them there; None if they are so already, as data read is."""
        if np.all(self.ids[1:] > self.ids[:-1]):
            return self.ids, None
        order = np.argsort(self.ids, kind="stable")
        return self.ids[order], order

    def find(self, wanted: Ids) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return the positions of some ids, and which of them are there at all."""
        nowhere = np.zeros(len(wanted), np.intp), np.zeros(len(wanted), bool)
        if not len(self.ids) or (wanted.dtype.kind in NUMBERS) != (self.ids.dtype.kind in NUMBERS):
            return nowhere
        ascending, order = self._sorted
        # strings of another width would widen all ids; cut short, they are compared again below
        alike = wanted.astype(self.ids.dtype) if wanted.dtype.kind == self.ids.dtype.kind == "U" else wanted
        try:
            places = np.minimum(np.searchsorted(ascending, alike), len(ascending) - 1)
        except TypeError:  # objects that cannot be compared with these ids are not among them
            return nowhere
        there = np.asarray(ascending[places] == wanted, bool)
        return places if order is None else order[places], there

    def positions(self, wanted: ArrayLike | Iterable[Any]) -> NDArray[np.intp]:
        """Return where one id or several stand; one that is not there raises KeyError."""
        ids = self.as_ids(wanted)
        found, there = self.find(ids)
        if not there.all():
            raise self.unknown(ids[~there].tolist()[0])
        return found

    def as_ids(self, wanted: ArrayLike | Iterable[Any]) -> Ids:
        """Return one id or several as an array; of none, an empty one of the right kind."""
        if isinstance(wanted, Iterable) and not isinstance(wanted, str | bytes) and not hasattr(wanted, "__array__"):
            wanted = list(wanted)
        ids = np.atleast_1d(np.asarray(wanted))
        if ids.dtype.kind == "U" and isinstance(wanted, list):  # where numbers among them have become text
            number = next((one for one in wanted if not isinstance(one, str | list)), None)
            if number is not None:
                raise self.unknown(number)
        if ids.ndim != 1:
            raise ValueError(f"{self.what}s must be one id or a list of ids; got an array of shape {ids.shape}")
        return ids if len(ids) else self.ids[:0]

    def from_text(self, text: str) -> Any:
        """Return an id that was typed as the ids here are: a number, if they are numbers.

        >>> Lookup(np.array([7, 8]), "user").from_text("8"), Lookup(np.array(["7", "8"]), "user").from_text("8")
        (8, '8')
        """
        if self.ids.dtype.kind not in NUMBERS:
            return text
        try:
            number = float(text) if self.ids.dtype.kind == "f" else int(text)
            return self.ids.dtype.type(number).item()
        except (ValueError, OverflowError):
            raise self.unknown(text) from None

    def unknown(self, wanted: Any) -> KeyError:
        """Return the error that names an id which is not there."""
        kind, other = ("numbers", "text") if self.ids.dtype.kind in NUMBERS else ("text", "numbers")
        is_number = isinstance(wanted, int | float)
        n = len(self.ids)
        if is_number != (kind == "numbers"):
            hint = f"ids are {kind} here, not {other}"
        else:
            near = get_close_matches(str(wanted), map(str, self.ids[:MOST_COMPARED].tolist()), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"one of them is {self.ids[:1].tolist()[0]!r}" if n else ""
        return KeyError(f"{self.what} {wanted!r} was not in the data of the fit, which had {n} {self.what}s; {hint}")
