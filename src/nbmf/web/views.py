"""What a model can be asked, as plain data that JSON can hold. A model answers what it has the methods for, no more."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbmf.data.ids import Lookup
from nbmf.data.interactions import Ids
from nbmf.web.item_map import draw_atlas, largest_factors
from nbmf.web.names import Index

Plain = dict[str, Any]

QUICK_CELLS = 2_000_000  # items × factors that one user's scores take less than a millisecond of
MOST_PLACED = 20_000  # items on the map: those that most users took
MOST_FACTORS, SHOWN_OF_FACTOR = 200, 8  # on cards: those that explain most; items and users on one


class UnknownIdError(Exception):
    """A user or item that the model does not have."""


class NoAnswerError(Exception):
    """A question that this kind of model has no answer to."""


@dataclass(frozen=True, eq=False)
class Views:
    """A model, ready to answer.

    model : anything that `nbmf.load` returns
    mark : which model this is; part of every answer
    seconds : how long the fit took up to the end of each sweep; None if nobody wrote it down
    """

    model: Any
    mark: str
    seconds: Sequence[float] | None = None

    # ---- what the model is ------------------------------------------------------------------------------------------

    @cached_property
    def abilities(self) -> dict[str, bool]:
        """Which questions this model has an answer to."""
        model = self.model
        has_factors = hasattr(model, "user_factors_") and hasattr(model, "item_factors_")
        asked = ("explain", "explain_for", "recommend_for", "similar_items", "similar_users")
        knows_law = hasattr(model, "concentration_")  # of counts; item–item models of other targets do not
        return {
            **{name: hasattr(model, name) for name in asked},
            **{name: knows_law and hasattr(model, name) for name in ("predictive", "predictive_for")},
            # exposures of a Poisson model are all 1
            "exposures": hasattr(model, "exposures") and hasattr(model, "exposure_"),
            "factors": has_factors,
            "map": has_factors,
            "fit": len(getattr(model, "objective_", ())) > 0,
        }

    @cached_property
    def quick(self) -> bool:
        """Whether a known user's recommendations take less time than handing the work to another thread."""
        factors = getattr(self.model, "item_factors_", None)
        return factors is not None and factors.size <= QUICK_CELLS

    @cached_property
    def users(self) -> Lookup:
        """Where each user stands."""
        return Lookup(self.model.users_, "user")

    @cached_property
    def items(self) -> Lookup:
        """Where each item stands."""
        return Lookup(self.model.items_, "item")

    @cached_property
    def names(self) -> list[str]:
        """What each item is called: its name, or its id."""
        names = getattr(self.model, "item_names_", None)
        return [str(name) for name in (self.model.items_ if names is None else names).tolist()]

    @cached_property
    def _counts(self) -> Any:
        """What was fitted, users × items, if the model keeps it."""
        return getattr(getattr(self.model, "result_", None), "counts", None)

    @cached_property
    def takers(self) -> NDArray[np.intp]:
        """How many users took each item."""
        if self._counts is None:
            return np.zeros(len(self.items.ids), np.intp)
        return np.bincount(self._counts.indices, minlength=len(self.items.ids))

    @cached_property
    def taken(self) -> NDArray[np.intp]:
        """How many items each user took."""
        return np.zeros(len(self.users.ids), np.intp) if self._counts is None else np.diff(self._counts.indptr)

    @cached_property
    def _item_index(self) -> Index:
        return Index(self.names, self.takers)

    @cached_property
    def _user_index(self) -> Index:
        return Index([str(user) for user in self.users.ids.tolist()], self.taken)

    def card(self) -> Plain:
        """What model this is: class, sizes, settings, how its fit ended, what it can be asked."""
        model = self.model
        objective: Sequence[float] = getattr(model, "objective_", ())
        concentration = np.asarray(getattr(model, "concentration_", np.nan))
        return {
            "model": self.mark,
            "class": type(model).__name__,
            "n_users": len(self.users.ids),
            "n_items": len(self.items.ids),
            "n_counts": None if self._counts is None else int(self._counts.nnz),
            "n_factors": int(model.item_factors_.shape[1]) if self.abilities["factors"] else None,
            "concentration": _number(np.mean(concentration)) if concentration.size else None,
            "has_names": getattr(model, "item_names_", None) is not None,
            "settings": {name: _told(value) for name, value in sorted(model.get_params(deep=False).items())},
            "fit": {
                "sweeps": len(objective),
                "objective": _number(objective[-1]) if len(objective) else None,
                "ending": getattr(model, "ending_", None),
                "seconds": None if self.seconds is None else self.seconds[-1],
            },
            "scores_are_counts": getattr(model, "target", "counts") == "counts"
            and not getattr(model, "binarize", False),
            "can": self.abilities,
            "example": self.example,
        }

    @cached_property
    def example(self) -> Plain:
        """Whom and what to begin with: somebody who took more than most, and what most took."""
        order = np.argsort(self.taken, kind="stable")
        user, item = int(order[len(order) * 3 // 4]), int(np.argmax(self.takers))
        return {"user": _one(self.users.ids, user), "item": _one(self.items.ids, item)}

    def fit(self) -> Plain:
        """How the fit went: the objective after each sweep, and the seconds up to then."""
        self._need("fit")
        values = [_number(value) for value in np.asarray(self.model.objective_).tolist()]
        known = self.seconds is not None and len(self.seconds) == len(values)
        return {"model": self.mark, "objective": values, "seconds": list(self.seconds or ()) if known else None}

    # ---- one user ---------------------------------------------------------------------------------------------------

    def recommend(self, user: str, n: int, level: float | None = None, include_seen: bool = False) -> Plain:
        """A user's best items; with a level, also an interval that the count is in, and P(y ≥ 1)."""
        known = self._user(user)
        best = self.model.recommend(known, n=n, exclude_seen=not include_seen)
        law = None if level is None or not self.abilities["predictive"] else self.model.predictive
        return {"model": self.mark, "user": known, "items": self._ranked(best, law, known, level)}

    def recommend_for(self, counts: Mapping[Any, float], n: int, level: float | None = None) -> Plain:
        """The same for somebody who was not in the fit."""
        self._need("recommend_for")
        ids = self._basket(counts)
        best = self.model.recommend_for(ids, n=n)
        law = None if level is None or not self.abilities["predictive_for"] else self.model.predictive_for
        return {"model": self.mark, "user": None, "items": self._ranked(best, law, ids, level)}

    def _ranked(self, best: Any, law: Any, whose: Any, level: float | None) -> list[Plain]:
        there = ~np.isneginf(best.scores[0])
        # where fewer than n are left, ids stand beside None, as objects
        items, scores = best.items[0][there].astype(self.items.ids.dtype), best.scores[0][there]
        rows = [
            {"item": item, "name": name, "score": _number(score)}
            for item, name, score in zip(items.tolist(), self._called(items), scores.tolist(), strict=True)
        ]
        if law is None or level is None or not rows:
            return rows
        try:
            found = law(whose, items)
        except (ValueError, AttributeError):  # some models have a law of counts for some of their settings only
            return rows
        lower, upper = (ends.tolist() for ends in found.interval(level))
        for row, low, high, chance in zip(rows, lower, upper, found.at_least(1).tolist(), strict=True):
            row |= {"interval": [low, high], "at_least_one": _number(chance)}
        return rows

    def took(self, user: str, n: int) -> Plain:
        """What a user took, most often first: counts, and, where the model knows, expected counts and exposures."""
        known = self._user(user)
        if hasattr(self.model, "exposures"):
            found = self.model.exposures(known)
            items, columns = found.item, {"count": found.count, "expected": found.intensity}
            if self.abilities["exposures"]:
                columns |= {"exposure": found.exposure, "sd": found.sd}
        else:
            items, columns = self._row_of(known)
        columns = {name: [_number(value) for value in values[:n].tolist()] for name, values in columns.items()}
        ids = items[:n].tolist()
        cells = zip(*columns.values(), strict=True)
        rows = [
            {"item": item, "name": name, **dict(zip(columns, row, strict=True))}
            for item, name, row in zip(ids, self._called(items[:n]), cells, strict=True)
        ]
        return {"model": self.mark, "user": known, "n_items": len(items), "items": rows}

    def _row_of(self, user: Any) -> tuple[Ids, dict[str, NDArray[Any]]]:
        if self._counts is None:
            return self.items.ids[:0], {"count": np.empty(0)}
        row = self._counts[[int(self.users.positions(user)[0])]]
        order = np.argsort(-row.data, kind="stable")
        return self.items.ids[row.indices[order]], {"count": row.data[order]}

    def explain(self, user: str, item: str, n: int) -> Plain:
        """What each item that a user took contributes to the score of another."""
        self._need("explain")
        return self._reasons(self.model.explain(self._user(user), self._item(item)), n)

    def explain_for(self, counts: Mapping[Any, float], item: Any, n: int) -> Plain:
        """The same for somebody who was not in the fit."""
        self._need("explain_for")
        return self._reasons(self.model.explain_for(self._basket(counts), self._item(str(item))), n)

    def _reasons(self, found: Any, n: int) -> Plain:
        cells = zip(found.items.tolist(), self._called(found.items), found.counts, found.contributions, strict=True)
        parts = [
            {"item": item, "name": name, "count": _number(count), "contribution": _number(part)}
            for (item, name, count, part), _ in zip(cells, range(n), strict=False)
        ]
        rest = np.asarray(found.contributions[n:])
        return {
            "model": self.mark,
            "user": found.user,
            "item": found.item,
            "name": self.names[int(self.items.positions(found.item)[0])],
            "score": _number(found.score),
            "prior": _number(found.prior),
            "parts": parts,
            "others": {"n_items": len(rest), "contribution": _number(rest.sum())},
        }

    # ---- likeness and search ----------------------------------------------------------------------------------------

    def similar_items(self, item: str, n: int) -> Plain:
        """The items most like one."""
        self._need("similar_items")
        known = self._item(item)
        found = self.model.similar_items(known, n=n)
        cells = zip(found.ids.tolist(), self._called(found.ids), found.similarity.tolist(), strict=True)
        rows = [{"item": other, "name": name, "similarity": _number(cosine)} for other, name, cosine in cells]
        return {"model": self.mark, "item": known, "items": rows}

    def similar_users(self, user: str, n: int) -> Plain:
        """The users most like one."""
        self._need("similar_users")
        known = self._user(user)
        found = self.model.similar_users(known, n=n)
        cells = zip(found.ids.tolist(), found.similarity.tolist(), strict=True)
        return {
            "model": self.mark,
            "user": known,
            "users": [{"user": other, "similarity": _number(cosine)} for other, cosine in cells],
        }

    def search_items(self, wanted: str, n: int) -> Plain:
        """The item of that id, then those whose names hold what is wanted."""
        places = self._item_index.find(wanted, n)
        with suppress(UnknownIdError):
            exact = int(self.items.positions(self._item(wanted))[0])
            places = [exact, *(place for place in places if place != exact)][:n]
        rows = [
            {"item": _one(self.items.ids, place), "name": self.names[place], "n_users": int(self.takers[place])}
            for place in places
        ]
        return {"model": self.mark, "items": rows}

    def search_users(self, wanted: str, n: int) -> Plain:
        """Users whose ids hold what is wanted."""
        rows = [
            {"user": _one(self.users.ids, place), "n_items": int(self.taken[place])}
            for place in self._user_index.find(wanted, n)
        ]
        return {"model": self.mark, "users": rows}

    # ---- the whole model --------------------------------------------------------------------------------------------

    @cached_property
    def factors(self) -> Plain:
        """Each factor with the items and users that are most its own, and how much of all counts it explains."""
        self._need("factors")
        cards = [
            {
                "factor": owned.factor,
                "rank": owned.rank,
                "share": _number(owned.share),
                "items": [
                    {"item": _one(self.items.ids, place), "name": self.names[place], "share": share}
                    for place, share in owned.items
                ],
                "users": [{"user": _one(self.users.ids, place), "share": share} for place, share in owned.users],
            }
            for owned in largest_factors(
                self.model.user_factors_, self.model.item_factors_, MOST_FACTORS, SHOWN_OF_FACTOR
            )
        ]
        n_factors = int(self.model.item_factors_.shape[1])
        return {"model": self.mark, "n_factors": n_factors, "factors": cards}

    @cached_property
    def map(self) -> Plain:
        """Every item on a plane, in columns: ids, names, places, the factor of the island, how many users took it."""
        self._need("map")
        atlas = draw_atlas(self.model.user_factors_, self.model.item_factors_)
        shown = np.sort(np.argsort(-self.takers, kind="stable")[:MOST_PLACED])
        islands = [
            {"factor": k, "rank": int(atlas.rank[k]), "x": x, "y": y, "radius": radius}
            for k, ((x, y), radius) in enumerate(
                zip(atlas.middle.round(2).tolist(), atlas.radius.round(2).tolist(), strict=True)
            )
            if radius > 0
        ]
        return {
            "model": self.mark,
            "n_items": len(self.items.ids),
            "item": self.items.ids[shown].tolist(),
            "name": [self.names[place] for place in shown.tolist()],
            "x": atlas.place[shown, 0].round(2).tolist(),
            "y": atlas.place[shown, 1].round(2).tolist(),
            "factor": atlas.factor[shown].tolist(),
            "share": atlas.share[shown].round(3).tolist(),
            "n_users": self.takers[shown].tolist(),
            "islands": islands,
        }

    # ---- ids --------------------------------------------------------------------------------------------------------

    def warm(self) -> None:
        """Ask every kind of question once, so that what is compiled or looked up is there for the first client."""
        user, item = str(self.example["user"]), str(self.example["item"])
        self.recommend(user, 1, 0.9)
        self.search_items("a", 1)
        self.search_users("1", 1)
        if self.abilities["recommend_for"]:
            self.recommend_for({item: 1}, 1, 0.9)
        if self.abilities["explain"]:
            self.explain(user, item, 1)

    def _need(self, ability: str) -> None:
        if not self.abilities[ability]:
            raise NoAnswerError(f"this model ({type(self.model).__name__}) has no answer to that: {ability}")

    def _user(self, text: str) -> Any:
        return _known(self.users, text)

    def _item(self, text: str) -> Any:
        return _known(self.items, text)

    def _basket(self, counts: Mapping[Any, float]) -> dict[Any, float]:
        return {self._item(str(item)): count for item, count in counts.items()}

    def _called(self, ids: Ids) -> Iterator[str]:
        return (self.names[place] for place in self.items.positions(ids).tolist())


def _known(lookup: Lookup, text: str) -> Any:
    """Return the id as the model has it; ids like an unknown one are not looked for, which would take long."""
    try:
        places, there = lookup.find(np.array([lookup.from_text(text)]))
    except KeyError:
        there = np.zeros(1, bool)
    if not there.all():
        what, n = lookup.what, len(lookup.ids)
        raise UnknownIdError(
            f"{what} {text!r} is not one of the {n} {what}s of this model; /api/search/{what}s finds them"
        )
    return _one(lookup.ids, int(places[0]))


def _one(ids: Ids, place: int) -> Any:
    return ids[place : place + 1].tolist()[0]


def _number(value: Any) -> Any:
    """A number that JSON has; null stands for what is not finite, and whole numbers are whole."""
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _told(value: Any) -> Any:
    """A setting as JSON or, where it is an array or an estimator, in words."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return _number(value)
    return f"array of shape {value.shape}" if isinstance(value, np.ndarray) else " ".join(str(value).split())[:200]
