"""Several starts, one model: the mean of their scores ranks better than any of them.

A score is Σ_k ⟨w_uk⟩⟨h_ik⟩, so the mean over R starts is again a product of factors: those of all starts side by side,
the users' divided by R. Whatever asks for scores alone needs nothing else; what looks into a start asks each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils import check_random_state

from nbmf.estimators.base import CountFactorization
from nbmf.estimators.explain import Explanation
from nbmf.estimators.files import write_average
from nbmf.estimators.fit import Fitted
from nbmf.estimators.fold_in import Held
from nbmf.estimators.nbmf import NBMF
from nbmf.model.factors import Factor, Point
from nbmf.model.likelihood import NegativeBinomial, Poisson
from nbmf.storage.container import Path

Array = NDArray[np.floating[Any]]


class Averaged(CountFactorization):
    """The mean of the scores of several fits that differ in their random start.

    Parameters
    ----------
    estimator : what is fitted n_runs times; None: NBMF()
    n_runs : number of starts
    random_state : seed from which those of the starts are drawn; the estimator's own is not used

    Attributes
    ----------
    members_ : the fitted estimators
    user_factors_, item_factors_ : those of all members side by side, n_users × (n_runs·K) and n_items × (n_runs·K)
    objective_ : of the member whose last one is highest; the others are in members_

    It answers as its members do: `recommend`, `predict`, `explain` (parts are means of theirs), `transform`, `save`, …

    Examples
    --------
    >>> import nbmf
    >>> train, test = nbmf.datasets.simulate(80, 60, n_components=4, mean_count=0.5, seed=0).split(seed=0)
    >>> model = nbmf.Averaged(nbmf.NBMF(4), n_runs=3, random_state=0).fit(train)
    >>> model.user_factors_.shape, len(model.members_)
    ((80, 12), 3)
    """

    def __init__(
        self, estimator: CountFactorization | None = None, n_runs: int = 5, *, random_state: Any = None
    ) -> None:
        """Keep the settings; `fit` checks them."""
        self.estimator = estimator
        self.n_runs = n_runs
        self.random_state = random_state

    def fit(self, X: Any, y: None = None, **settings: Any) -> Self:
        """Fit all starts to a users × items matrix of counts.

        Parameters
        ----------
        X : as for the estimator's own fit
        y : ignored
        settings : handed on to the estimator's own fit; a checkpoint cannot be shared by several, so none is taken
        """
        if not isinstance(self.n_runs, int | np.integer) or self.n_runs < 1:
            raise ValueError(f"n_runs is {self.n_runs!r}; it must be a whole number from 1")
        for name in ("checkpoint", "resume"):
            if settings.get(name) is not None:
                raise ValueError(f"{name} is of one start; fit the members one by one to keep checkpoints of them")
        example = self._example
        if "random_state" not in example.get_params(deep=False):
            raise ValueError(f"nothing is random in {type(example).__name__}, so all runs are one; fit it alone")
        rng = check_random_state(self.random_state)
        seeds = [int(rng.randint(np.iinfo(np.int32).max)) for _ in range(self.n_runs)]
        members = []
        for seed in seeds:
            member = NBMF() if self.estimator is None else clone(self.estimator)
            members.append(member.set_params(random_state=seed).fit(X, **settings))
        self._unite(members)
        return self

    def add_users(self, data: Any, *, unknown_items: str = "error") -> Self:
        """Take new users into every member, as its own `add_users` does."""
        return self._each("add_users", data, unknown_items=unknown_items)

    def add_items(self, data: Any) -> Self:
        """Take new items into every member, as its own `add_items` does."""
        return self._each("add_items", data)

    def partial_fit(self, X: Any, y: None = None, *, refresh: int = 0) -> Self:
        """Go on with more data in every member, as its own `partial_fit` does; before a fit this is `fit`."""
        return self._each("partial_fit", X, refresh=refresh) if hasattr(self, "members_") else self.fit(X)

    def explain(self, user: Any, item: Any) -> Explanation:
        """Return what each item the user took contributes to the score: the mean of what it does in the members."""
        return _mean([member.explain(user, item) for member in self._members])

    def explain_for(self, counts: Mapping[Any, Any], item: Any, *, unknown_items: str = "error") -> Explanation:
        """Return the same for somebody who was not in the fit."""
        return _mean([member.explain_for(counts, item, unknown_items=unknown_items) for member in self._members])

    def save(self, path: Path) -> None:
        """Write all members to one file, from which `nbmf.load(path)` brings the mean back as it is."""
        self._check_unchanged()
        members = [(type(m).__name__, m.get_params(deep=False), m._found) for m in self._members]
        write_average(path, {"n_runs": self.n_runs, "random_state": self.random_state}, members)

    @property
    def backend(self) -> str:  # type: ignore[override]
        """That of the members."""
        return self._example.backend

    @property
    def n_threads(self) -> int | None:  # type: ignore[override]
        """That of the members."""
        return self._example.n_threads

    @property
    def tol(self) -> float:  # type: ignore[override]
        """That of the members."""
        return self._example.tol

    @property
    def dtype(self) -> str:  # type: ignore[override]
        """That of the members."""
        return self._example.dtype

    @property
    def binarize(self) -> bool:
        """Whether the members see only if a count is positive."""
        return bool(getattr(self._example, "binarize", False))

    @property
    def _example(self) -> CountFactorization:
        return NBMF() if self.estimator is None else self.estimator

    @property
    def _members(self) -> list[CountFactorization]:
        _ = self._found  # says so if there was no fit
        return self.members_

    def _prepare(self, matrix: sp.csr_array) -> sp.csr_array:
        return self._example._prepare(matrix)

    def _fold(
        self, matrix: sp.csr_array, held: Held, start: Array | None = None, unknown: sp.csr_array | None = None
    ) -> Factor:
        """Fold rows into every member, each with the items as it knows them; `held` is of them all and not used."""
        found = [member._fold(matrix, member._found.held_items).mean for member in self._members]
        return Point(np.hstack(found) / found[0].dtype.type(len(found)))

    def _typical_user(self) -> Array:
        """Those of the members side by side."""
        found = [member._typical_user() for member in self._members]
        return np.asarray(np.hstack(found) / found[0].dtype.type(len(found)))

    def _each(self, method: str, *arguments: Any, **settings: Any) -> Self:
        members = [getattr(clone_with_fit(member), method)(*arguments, **settings) for member in self._members]
        self._unite(members)
        return self

    def _unite(self, members: list[CountFactorization]) -> None:
        """Become the mean of fitted members."""
        fits = [member._found for member in members]
        best = max(fits, key=lambda fit: fit.objective[-1])
        users, items = (
            np.hstack([getattr(fit, side).mean for fit in fits]) for side in ("user_posterior", "item_posterior")
        )
        α: Any = np.mean([np.asarray(fit.model.likelihood.concentration) for fit in fits], axis=0)
        law = Poisson() if isinstance(best.model.likelihood, Poisson) else NegativeBinomial(α[()])
        self.members_ = members
        self._become(
            replace(
                best,
                user_posterior=Point(users / users.dtype.type(len(fits))),
                item_posterior=Point(items),
                model=replace(best.model, likelihood=law),
                ties=None,
            )
        )


def _mean(parts: Sequence[Explanation]) -> Explanation:
    """The mean of explanations of one score, which differ in the order of the items."""
    first = parts[0]
    order = np.argsort(first.items, kind="stable")
    total = np.zeros(len(order))
    for part in parts:
        total += part.contributions[np.argsort(part.items, kind="stable")]
    contributions = total / len(parts)
    prior, score = (float(np.mean(values)) for values in ([p.prior for p in parts], [p.score for p in parts]))
    place = order[np.argsort(-contributions, kind="stable")]
    by_size = np.sort(contributions)[::-1]
    names = None if first.names is None else first.names[place]
    return Explanation(first.user, first.item, first.items[place], first.counts[place], by_size, prior, score, names)


def clone_with_fit(member: CountFactorization) -> CountFactorization:
    """Return a copy that can change while the member stays: what a fit has found is never changed, only replaced."""
    copy: CountFactorization = clone(member)
    copy._become(member._found)
    return copy


def united(members: Sequence[CountFactorization], fits: Sequence[Fitted], settings: dict[str, Any]) -> Averaged:
    """Return the mean of what several fits have found, as `load` needs it."""
    for member, fit in zip(members, fits, strict=True):
        member._become(fit)
    model = Averaged(clone(members[0]).set_params(random_state=None), **settings)
    model._unite(list(members))
    return model
