"""The answers of a model as plain data for JSON. A model answers what it has the methods for, and nothing else."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from nbmf.data.ids import Lookup
from nbmf.web.criticism import abilities, criticism, why_no_intervals
from nbmf.web.item_map import SHOWN_SHARES, Factors, Readable, draw_map, sizes_of
from nbmf.web.names import Index

Plain = dict[str, Any]
Counts = Iterable[tuple[Any, float]]  # items and their counts; those of an item that occurs twice are added
Given = Iterable[Any] | None  # ids as they arrive

FAST_CELLS = 2_000_000  # items × factors up to which the scores of one user take less than a millisecond
MOST_MAPPED = 20_000  # items on the map: those with most users
MOST_MATCHES = 100  # items that a search of the factors considers
LIFT_AMONG = 200  # items of largest score, or n, that are ranked by lift: that of rare ones is noise
N_EXAMPLES = 25  # users to look at, one after the other


class NoAnswerError(Exception):
    """This kind of model cannot answer the question."""


class UnknownIdError(NoAnswerError):
    """The model does not have this user or item."""


class Views:
    """A fitted model, ready to answer. Ids of users and items arrive as text and leave as the model has them.

    Every answer carries the `mark` of the model. `seconds` are those up to the end of each sweep, if recorded.
    """

    def __init__(self, model: Any, mark: str, seconds: Sequence[float] | None = None) -> None:
        self.model, self.mark, self.seconds = model, mark, seconds
        self.abilities = abilities(model)
        self.users, self.items = Lookup(model.users_, "user"), Lookup(model.items_, "item")
        self.has_names = getattr(model, "item_names_", None) is not None
        self.names = [str(name) for name in (model.item_names_ if self.has_names else model.items_).tolist()]
        self.counts = model.result_.counts  # users × items, as fitted
        self.n_users = np.bincount(self.counts.indices, minlength=len(self.names))  # of each item
        self.n_items = np.diff(self.counts.indptr)  # of each user
        self.totals = np.asarray(self.counts.sum(axis=0))  # of each item
        self.median_total = plain(float(np.median(self.counts.sum(axis=1))))
        # ids to start with: a user with more items than most, and the item with most users
        by_size = np.argsort(self.n_items, kind="stable")
        [user] = model.users_[[by_size[len(by_size) * 3 // 4]]].tolist()
        self.example = {"user": user, "item": model.items_[[np.argmax(self.n_users)]].tolist()[0]}
        # users with few and with many items in turns
        places = np.unique(np.linspace(0, len(by_size) - 1, N_EXAMPLES).astype(int))
        turns = np.argsort((np.arange(len(places)) * 7 + 12) % N_EXAMPLES)
        self.example_users = model.users_[by_size[places[turns]]].tolist()
        self._item_index = Index(self.names, self.n_users)
        self._user_index = Index([str(user) for user in model.users_.tolist()], self.n_items)
        # where ranking items for a known user takes less time than handing the work to another thread
        self.is_fast = self.abilities["factors"] and model.item_factors_.size <= FAST_CELLS

    def card(self) -> Plain:
        """Return what model this is: class, sizes, settings, how its fit ended, and what it can answer."""
        model = self.model
        objective: Sequence[float] = getattr(model, "objective_", ())
        concentration = np.asarray(getattr(model, "concentration_", np.nan))
        return {
            "model": self.mark,
            "class": type(model).__name__,
            "n_users": len(self.users.ids),
            "n_items": len(self.items.ids),
            "n_counts": int(self.n_items.sum()),
            "median_total": self.median_total,
            "n_factors": self._shown.n_tastes if self.abilities["factors"] else None,
            "concentration": plain(float(np.mean(concentration))) if concentration.size else None,
            "weights": plain(model.weights_) if hasattr(model, "scales_") else None,  # of a blend
            "has_names": self.has_names,
            "settings": {name: setting(value) for name, value in sorted(model.get_params(deep=False).items())},
            "fit": {
                "sweeps": int(getattr(model, "n_iter_", len(objective))),
                "objective": plain(float(objective[-1])) if len(objective) else None,
                "ending": getattr(model, "ending_", None),
                "seconds": None if self.seconds is None else self.seconds[-1],
            },
            "scores_are_counts": model.result_.target == "counts",
            "target": model.result_.target,
            "can": self.abilities,
            "example": self.example,
            "example_users": self.example_users,
        }

    def fit(self) -> Plain:
        """Return the objective after each sweep, the seconds up to then if recorded, and `tol` if it is relative."""
        self._need("fit")
        objective = plain(self.model.objective_)
        seconds = list(self.seconds) if self.seconds and len(self.seconds) == len(objective) else None
        tol = plain(self.model.tol) if self.abilities["factors"] else None
        return {"model": self.mark, "objective": objective, "seconds": seconds, "tol": tol}

    @cached_property
    def check(self) -> Plain:
        """What of the data the model does not fit, and the statistics that say so."""
        self._need("check")
        return {"model": self.mark, **criticism(self.model)}

    @cached_property
    def count_sizes(self) -> Plain:
        """How many counts there are of each size."""
        return {"model": self.mark, "sizes": sizes_of(self.counts.data)}

    def warm_up(self) -> None:
        """Ask each kind of question once, so that code is compiled and lookups are made before the first client."""
        user, item = str(self.example["user"]), str(self.example["item"])
        self.recommend(user, 1, 0.9)
        self.search_items("a", 1)
        self.search_users("1", 1)
        questions: Plain = {"recommend_for": ([(item, 1)], 1, 0.9), "explain": (user, item, 1)}
        questions |= {"similar_items": (item, 1), "similar_users": (user, 1)}
        for name, question in questions.items():
            if self.abilities[name]:
                getattr(self, name)(*question)

    def recommend(self, user: str, n: int, level: float | None = None, **choice: Any) -> Plain:
        """Return the best items for a user; with a level, also an interval of each count, and P(y ≥ 1).

        The choice is made by `include_seen`, and by `allow` and `deny`, lists of item ids.
        """
        [found] = self.recommend_to_all([user], n, level, **choice)["users"]
        return self._recommended(level, **found)

    def recommend_to_all(self, users: Iterable[Any], n: int, level: float | None = None, **choice: Any) -> Plain:
        """Return the best items for each of several users."""
        known = [self._id(self.users, str(user)) for user in users]
        best = self.model.recommend(known, n=n, **self._filter(**choice))
        ranked = (self._ranked(best, row, "predictive", user, level) for row, user in enumerate(known))
        found = [{"user": user, "items": items} for user, items in zip(known, ranked, strict=True)]
        return self._recommended(level, users=found)

    def recommend_for(
        self, counts: Counts, n: int, level: float | None = None, order: str = "score", **choice: Any
    ) -> Plain:
        """Return the best items for a user who is not in the training data, and the names of the items given.

        The order "lift" ranks those of largest score by their share of the scores relative to that of the counts.
        """
        self._need("recommend_for")
        basket, by_lift = self._basket(counts), order == "lift"
        best = self.model.recommend_for(basket, n=max(n, LIFT_AMONG) if by_lift else n, **self._filter(**choice))
        items = self._ranked(best, 0, "predictive_for", basket, level, n if by_lift else None)
        given = self._rows(np.array(list(basket), self.items.ids.dtype))
        return self._recommended(level, user=None, items=items, basket=given)

    def _recommended(self, level: float | None, **parts: Any) -> Plain:
        """Return an answer; if a level was given in vain, it says why."""
        answer = {"model": self.mark, **parts}
        if level is not None and not self.abilities["predictive"]:
            answer["no_intervals"] = why_no_intervals(self.model)
        return answer

    def _filter(self, include_seen: bool = False, allow: Given = None, deny: Given = None) -> Plain:
        """Return what may be recommended, in the model's own terms."""
        lists = {
            name: [self._id(self.items, str(item)) for item in given]
            for name, given in (("allow", allow), ("deny", deny))
            if given is not None
        }
        return {"exclude_seen": not include_seen, **lists}

    def _ranked(
        self, best: Any, row: int, method: str, whose: Any, level: float | None, n_by_lift: int | None = None
    ) -> list[Plain]:
        found = ~np.isneginf(best.scores[row])
        # with fewer than n items left, ids are objects that stand beside None
        items = best.items[row][found].astype(self.items.ids.dtype)
        columns = {"score": best.scores[row][found]}
        if n_by_lift is not None:
            score, total = columns["score"], self.totals[self.items.positions(items)]
            scale = total[:LIFT_AMONG].sum() / max(float(score[:LIFT_AMONG].sum()), 1e-300)
            lift = scale * score / np.maximum(total, 1)
            order = np.argsort(-lift, kind="stable")[:n_by_lift]
            items, columns = items[order], {"score": score[order], "lift": lift[order]}
        if level is not None and len(items) and self.abilities[method]:
            distribution = getattr(self.model, method)(whose, items)
            interval = np.transpose(distribution.interval(level))
            columns |= {"interval": interval, "at_least_one": distribution.at_least(1)}
        return self._rows(items, **columns)

    def history(self, user: str, n: int) -> Plain:
        """Return a user's items, largest count first, with expected counts and exposures where the model has them."""
        known = self._id(self.users, user)
        if hasattr(self.model, "exposures"):
            found = self.model.exposures(known)
            items, columns = found.item, {"count": found.count, "expected": self.model.predict(known, found.item)}
            if self.abilities["exposures"]:
                columns |= {"exposure": found.exposure, "sd": found.sd}
        else:
            row = self.counts[self.users.positions(known)]
            order = np.argsort(-row.data, kind="stable")
            items, columns = self.items.ids[row.indices[order]], {"count": row.data[order]}
        rows = self._rows(items[:n], **{name: values[:n] for name, values in columns.items()})
        factors = self._factors.of_user(self.users.positions(known)[0]) if self.abilities["factors"] else []
        return {"model": self.mark, "user": known, "n_items": len(items), "items": rows, "factors": factors}

    def item(self, item: str, n: int) -> Plain:
        """Return an item: how often it was taken and by whom, and the factors it consists of."""
        known = self._id(self.items, item)
        [place] = self.items.positions(known)
        column = slice(*self._by_item.indptr[place : place + 2])
        users, counts = self._by_item.indices[column], self._by_item.data[column]
        order = np.argsort(-counts, kind="stable")[:n]
        return {
            "model": self.mark,
            "item": known,
            "name": self.names[place],
            "n_users": len(users),
            "total": plain(float(counts.sum())),
            "sizes": sizes_of(counts),
            "users": table(user=self.users.ids[users[order]], count=counts[order]),
            "factors": self._factors.of_item(place) if self.abilities["factors"] else [],
        }

    def explain(self, user: str, item: str, n: int) -> Plain:
        """Return how much each of a user's items contributes to the score of another item."""
        self._need("explain")
        return self._reasons(self.model.explain(self._id(self.users, user), self._id(self.items, item)), n)

    def explain_for(self, counts: Counts, item: Any, n: int) -> Plain:
        """Return the same for a user who is not in the training data."""
        self._need("explain_for")
        return self._reasons(self.model.explain_for(self._basket(counts), self._id(self.items, str(item))), n)

    def _reasons(self, found: Any, n: int) -> Plain:
        [place] = self.items.positions(found.item)
        others, factors = np.asarray(found.contributions[n:]), []
        if found.components is not None and self.abilities["factors"]:
            factors = self._factors.parts(found.components, found.component_scores)
        tastes, common = ([one for one in factors if (one["rank"] is None) == last] for last in (False, True))
        large = [one for one in tastes[:SHOWN_SHARES] if one["contribution"] > 0.02 * found.score]
        small = sum(one["contribution"] for one in tastes[len(large) :])
        shown = [{**one, "contribution": plain(one["contribution"])} for one in large + common]
        return {
            "model": self.mark,
            "user": found.user,
            "item": found.item,
            "name": self.names[place],
            "score": plain(float(found.score)),
            "prior": plain(float(found.prior)),
            "factors": shown,
            "other_factors": {"n_factors": len(tastes) - len(large), "contribution": plain(float(small))},
            "parts": self._rows(found.items[:n], count=found.counts[:n], contribution=found.contributions[:n]),
            "others": {"n_items": len(others), "contribution": plain(float(others.sum()))},
        }

    def similar_items(self, item: str, n: int) -> Plain:
        """Return the items most similar to an item."""
        self._need("similar_items")
        known = self._id(self.items, item)
        found = self.model.similar_items(known, n=n)
        return {"model": self.mark, "item": known, "items": self._rows(found.ids, similarity=found.similarity)}

    def similar_users(self, user: str, n: int) -> Plain:
        """Return the users most similar to a user."""
        self._need("similar_users")
        known = self._id(self.users, user)
        found = self.model.similar_users(known, n=n)
        return {"model": self.mark, "user": known, "users": table(user=found.ids, similarity=found.similarity)}

    def search_items(self, wanted: str, n: int) -> Plain:
        """Return the item with this id, if there is one, and items whose names contain the words."""
        places = self._item_index.find(wanted, n)
        with suppress(UnknownIdError):
            [exact] = self.items.positions(self._id(self.items, wanted)).tolist()
            places = [exact, *(place for place in places if place != exact)][:n]
        found = np.array(places, np.intp)
        return {"model": self.mark, "items": self._rows(self.items.ids[found], n_users=self.n_users[found])}

    def search_users(self, wanted: str, n: int) -> Plain:
        """Return users whose ids contain the words."""
        found = np.array(self._user_index.find(wanted, n), np.intp)
        return {"model": self.mark, "users": table(user=self.users.ids[found], n_items=self.n_items[found])}

    _by_item = cached_property(lambda self: self.counts.tocsc())

    _shown = cached_property(lambda self: Readable.of(self.model))

    @cached_property
    def _factors(self) -> Factors:
        self._need("factors")
        return Factors(self._shown, self.names)

    @cached_property
    def factors(self) -> Plain:
        """The largest factors, with their share of all expected counts and their most typical items and users."""
        factors = [
            {
                **self._factors.labels[one.factor],
                "share": plain(one.share),
                "items": self._rows(self.items.ids[one.items], share=one.item_shares),
                "users": table(user=self.users.ids[fans], share=one.user_shares[: len(fans)]),
            }
            for one in self._factors.largest
            for fans in [one.users if one.factor < self._shown.n_tastes else one.users[:0]]
        ]
        return {"model": self.mark, "n_factors": self._shown.n_tastes, "factors": factors}

    def search_factors(self, wanted: str) -> Plain:
        """Return the factors of all items whose names contain the words, each with those items."""
        found = self._factors.of_items(self._item_index.find(wanted, MOST_MATCHES))
        factors = [{**label, "items": self._rows(self.items.ids[rows], share=share)} for label, rows, share in found]
        return {"model": self.mark, "factors": factors}

    @cached_property
    def map(self) -> Plain:
        """The map of items, in columns, and its islands."""
        self._need("map")
        drawn, own = draw_map(*self._shown.tastes), 1 - self._factors.for_everybody
        shown = np.sort(np.argsort(-self.n_users, kind="stable")[:MOST_MAPPED])
        islands = np.flatnonzero(drawn.radius > 0)
        (x, y), middle = drawn.place[shown].T.round(2), drawn.middle[islands].round(2)
        columns = {"item": self.items.ids[shown], "x": x, "y": y, "factor": drawn.factor[shown]}
        columns |= {"share": (drawn.share * own)[shown].round(3), "n_users": self.n_users[shown]}
        radius, n_items = drawn.radius[islands].round(2), np.bincount(drawn.factor)[islands]
        rows = table(factor=islands, x=middle[:, 0], y=middle[:, 1], radius=radius, n_items=n_items)
        return {
            "model": self.mark,
            "n_items": len(self.items.ids),
            "n_factors": len(drawn.radius),
            "name": [self.names[place] for place in shown.tolist()],
            **{name: column.tolist() for name, column in columns.items()},
            "islands": [{**self._factors.labels[row["factor"]], **row} for row in rows],
        }

    def _need(self, ability: str) -> None:
        if not self.abilities[ability]:
            raise NoAnswerError(f"this model ({type(self.model).__name__}) cannot answer: {ability}")

    def _id(self, lookup: Lookup, text: str) -> Any:
        """Return an id as the model has it. For an unknown one, no similar ids are sought, which would take long."""
        found = np.zeros(1, bool)
        with suppress(KeyError):
            places, found = lookup.find(np.array([lookup.from_text(text)]))
        if not found.all():
            what, n = lookup.what, len(lookup.ids)
            raise UnknownIdError(
                f"{what} {text!r} is not among the {n} {what}s of this model; search for one at /api/search/{what}s"
            )
        return lookup.ids[places].tolist()[0]

    def _basket(self, counts: Counts) -> dict[Any, float]:
        basket: dict[Any, float] = defaultdict(float)
        for item, count in counts:
            basket[self._id(self.items, str(item))] += count
        return basket

    def _rows(self, items: ArrayLike, **columns: ArrayLike) -> list[Plain]:
        """Return one row per item: id, name, and the columns."""
        return table(item=items, name=[self.names[place] for place in self.items.positions(items).tolist()], **columns)


def table(**columns: ArrayLike) -> list[Plain]:
    """Return columns as rows for JSON.

    >>> table(item=np.array(["jazz", "soul"]), score=np.array([2.0, np.inf]))
    [{'item': 'jazz', 'score': 2}, {'item': 'soul', 'score': None}]
    """
    rows = zip(*(plain(column) for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def plain(value: Any) -> Any:
    """Return numbers as JSON has them: whole ones without a fraction, and null for those that are not finite.

    >>> plain(np.array([2.0, 0.5, np.nan]))
    [2, 0.5, None]
    """
    if isinstance(value, np.ndarray):
        return [plain(part) for part in value.tolist()] if value.dtype.kind == "f" else value.tolist()
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def setting(value: Any) -> Any:
    """Return a setting of a model for JSON; arrays and estimators are described in words."""
    if value is None or isinstance(value, bool | int | float | str):
        return plain(value)
    return f"array of shape {value.shape}" if isinstance(value, np.ndarray) else " ".join(str(value).split())[:200]
