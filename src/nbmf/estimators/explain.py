"""Why: how exposed a user was, what a recommendation rests on, who and what is alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.data.ids import Lookup
from nbmf.data.interactions import Ids
from nbmf.estimators.newcomers import Newcomers
from nbmf.estimators.ranking import FactorScores, top
from nbmf.model.factors import Factor, Gamma, Point

Array = NDArray[np.floating[Any]]

SHOWN = 5


@dataclass(frozen=True)
class Exposures:
    """What one user took, and how exposed to it the model thinks the user was: five arrays, largest count first.

    item : ids
    count, intensity : y and μ = ⟨w⟩·⟨h⟩
    exposure, sd : mean and standard deviation of a given y; above 1 is over-exposed, below 1 under-exposed
    """

    item: Ids
    count: Array
    intensity: Array
    exposure: Array
    sd: Array

    def to_pandas(self) -> Any:
        """Return a data frame with a row for each item."""
        import pandas as pd  # noqa: PLC0415 (optional)

        return pd.DataFrame(vars(self))


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Where a user's score for an item comes from: parts that add up to it.

    user, item : the ids asked for; the user is None for one who was not in the fit
    items, counts : what the user took and how often, largest contribution first
    contributions : array, how much of the score each of those brings
    prior : how much the prior alone brings, before the user took anything; 0 for maximum likelihood
    score : the expected count E[y*], the sum of the contributions and the prior's part
    names : of `items`, or None
    """

    user: Any
    item: Any
    items: Ids
    counts: Array
    contributions: NDArray[np.float64]
    prior: float
    score: float
    names: Ids | None = None

    def to_pandas(self) -> Any:
        """Return a data frame with a row for each item: item, (name,) count, contribution."""
        import pandas as pd  # noqa: PLC0415 (optional)

        names = {} if self.names is None else {"name": self.names}
        return pd.DataFrame({"item": self.items, **names, "count": self.counts, "contribution": self.contributions})

    def __repr__(self) -> str:
        """Show the score and its largest parts."""
        labels = self.items if self.names is None else self.names
        lines = [f"Explanation(user {self.user!r}, item {self.item!r}: score {self.score:.4g})"]
        for label, part in zip(labels[:SHOWN], self.contributions, strict=False):
            lines.append(f"  {part:10.4g}  {label}")
        if len(self.items) > SHOWN:
            lines.append(f"  {self.contributions[SHOWN:].sum():10.4g}  {len(self.items) - SHOWN} other items")
        return "\n".join([*lines, f"  {self.prior:10.4g}  prior"])


@dataclass(frozen=True, eq=False, repr=False)
class Alike:
    """The users or items most like one of them, most alike first.

    ids : array of n ids
    similarity : array of n cosines, from 0 to 1
    names : of items that have names, or None
    """

    ids: Ids
    similarity: NDArray[np.float64]
    names: Ids | None = None

    def to_pandas(self) -> Any:
        """Return a data frame: id, (name,) similarity."""
        import pandas as pd  # noqa: PLC0415 (optional)

        names = {} if self.names is None else {"name": self.names}
        return pd.DataFrame({"id": self.ids, **names, "similarity": self.similarity})

    def __repr__(self) -> str:
        """Show all of them."""
        labels = self.ids if self.names is None else self.names
        rows = [f"  {value:.3f}  {label}" for label, value in zip(labels, self.similarity, strict=True)]
        return "\n".join([f"Alike({len(self.ids)})", *rows])


class Explaining(Newcomers):
    """The part of an estimator that says why."""

    def exposures(self, user: Any) -> Exposures:
        """Return how exposed a user was to each item the user took: ⟨a_ui⟩ = (α+y)/(α+μ), Eq. (update_a)."""
        row = one_place(self._found.user_lookup, user, "exposures are those of one user")
        columns, count = self._taken(row)
        intensity = (self.item_factors_[columns] @ self.user_factors_[row]).astype(np.float64)
        law = self._found.model.likelihood.at(np.full(len(columns), row), columns)
        exposure = law.exposure(count, intensity)
        # q(a) = Gamma(α+y, α+μ): its standard deviation is √(α+y)/(α+μ); Poisson's exposure is 1 for certain
        sd = exposure / np.sqrt(law.concentration + count)
        return Exposures(self.items_[columns], count, intensity, exposure, sd)

    def explain(self, user: Any, item: Any) -> Explanation:
        """Return what each item the user took contributes to the user's score for an item.

        The user's factors are ⟨w_uk⟩ = (α^W + Σ_j y_uj φ_ujk)/rate_uk, where φ_ujk is the share of component k in what
        the user took of item j. So the score Σ_k ⟨w_uk⟩⟨h_ik⟩ is a sum over the items j, plus the prior's part
        Σ_k α^W⟨h_ik⟩/rate_uk, in which nothing is approximate: the parts add up to the score to rounding, in double
        precision, of factors that are in single precision unless dtype="float64" was asked for. φ is that of the
        factors as they are; before convergence it differs a little from the one the last update was made with, so
        each component's allocations are shared out in proportion. For maximum likelihood there is no prior, and
        w_uk = Σ_j y_uj φ_ujk/exposed_uk.

        Examples
        --------
        >>> import nbmf
        >>> data = nbmf.Interactions.from_arrays(["ann", "ann", "bob", "cy"], ["jazz", "soul", "jazz", "folk"])
        >>> model = nbmf.NBMF(2, random_state=0).fit(data)
        >>> why = model.explain("bob", "soul")
        >>> why.items, bool(np.isclose(why.contributions.sum() + why.prior, why.score))
        (array(['jazz'], dtype='<U4'), True)
        """
        found = self._found
        row = one_place(found.user_lookup, user, "explain one user's score")
        column = one_place(found.item_lookup, item, "explain the score of one item")
        columns, taken = self._taken(row)
        name = found.users[row : row + 1].tolist()[0]
        return self._reasons(name, column, found.user_posterior, row, found.counts[[row]], columns, taken)

    def explain_for(self, counts: Mapping[Any, Any], item: Any, *, unknown_items: str = "error") -> Explanation:
        """Return what each item that somebody took, who was not in the fit, contributes to the score of an item.

        Parameters
        ----------
        counts, unknown_items : as for `recommend_for`, whose score it explains

        Examples
        --------
        >>> import nbmf
        >>> data = nbmf.Interactions.from_arrays(["ann", "ann", "bob", "cy"], ["jazz", "soul", "jazz", "folk"])
        >>> model = nbmf.NBMF(2, random_state=0).fit(data)
        >>> why = model.explain_for({"jazz": 3}, "soul")
        >>> why.items, bool(np.isclose(why.score, model.predictive_for({"jazz": 3}, "soul").mean[0]))
        (array(['jazz'], dtype='<U4'), True)
        """
        found = self._found
        column = one_place(found.item_lookup, item, "explain the score of one item")
        matrix = self._row(counts, unknown_items)
        users = self._fold(matrix, found.held_items) if matrix.nnz else Point(self._typical_user())
        order = np.argsort(-matrix.data, kind="stable")
        return self._reasons(None, column, users, 0, matrix, matrix.indices[order], matrix.data[order])

    def _reasons(
        self,
        user: Any,
        column: int,
        users: Factor,
        row: int,
        counts: sp.csr_array,
        columns: NDArray[Any],
        taken: Array,
    ) -> Explanation:
        """Part the score of one row of `users`, whose counts are the one row of `counts`, among `columns`."""
        found = self._found
        items = found.item_posterior
        count = self._prepare(counts).toarray()[0, columns].astype(np.float64)
        parts = users.mean[row].astype(np.float64) * items.mean[column].astype(np.float64)
        from_prior = np.zeros_like(parts)
        if isinstance(users, Gamma):
            rate = np.broadcast_to(users.rate, users.mean.shape)[row].astype(np.float64)
            from_prior = np.minimum(found.model.user_prior.shape / rate, users.mean[row]) * items.mean[column]
        share = users.geometric_mean[row].astype(np.float64) * items.geometric_mean[columns]
        share /= np.maximum(share.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)  # φ
        allocated = count[:, None] * share
        total = allocated.sum(axis=0)
        if len(columns):  # where every share has underflown, all counts tell alike
            allocated = np.where(total > 0, allocated, count[:, None])
            total = allocated.sum(axis=0)
            contributions = (allocated / total) @ (parts - from_prior)
        else:
            contributions, from_prior = np.empty(0), parts
        order = np.argsort(-contributions, kind="stable")
        names = None if self.item_names_ is None else self.item_names_[columns[order]]
        return Explanation(
            user,
            found.items[column : column + 1].tolist()[0],
            found.items[columns[order]],
            taken[order],
            contributions[order],
            float(from_prior.sum()),
            float(parts.sum()),
            names,
        )

    def similar_items(self, item: Any, n: int = 10) -> Alike:
        """Return the n items most like one: cosines of the items' expected counts by component, itself left out.

        Component k of an item is Σ_u⟨w_uk⟩⟨h_ik⟩, what all users together are expected to take of the item on account
        of that component. The factors alone would not do: multiplying column k of H by a number and dividing column k
        of W by it leaves the model as it is but changes the cosines; products of the two do not change. Equal cosines
        are in the order of the items.
        """
        found = self._found
        place = one_place(found.item_lookup, item, "similar_items of one item")
        near, cosine = _nearest(found.item_posterior.mean, found.user_posterior.mean, place, n)
        names = None if found.item_names is None else found.item_names[near]
        return Alike(found.items[near], cosine, names)

    def similar_users(self, user: Any, n: int = 10) -> Alike:
        """Return the n users most like one: cosines of their expected counts by component, Σ_i⟨w_uk⟩⟨h_ik⟩.

        As for `similar_items`.
        """
        found = self._found
        place = one_place(found.user_lookup, user, "similar_users of one user")
        near, cosine = _nearest(found.user_posterior.mean, found.item_posterior.mean, place, n)
        return Alike(found.users[near], cosine)

    def _taken(self, row: int) -> tuple[NDArray[Any], Array]:
        """Return the columns of what a user took and its counts, largest first."""
        counts = self._found.counts
        start, stop = counts.indptr[row], counts.indptr[row + 1]
        columns, count = counts.indices[start:stop], counts.data[start:stop]
        unknown = self._found.unknown
        if unknown is not None:  # no part of the likelihood, so none of the factors
            said = ~np.isin(columns, unknown.indices[unknown.indptr[row] : unknown.indptr[row + 1]])
            columns, count = columns[said], count[said]
        order = np.argsort(-count.astype(np.float64), kind="stable")
        return columns[order], count[order]


def one_place(lookup: Lookup, wanted: Any, rule: str) -> int:
    """Return where the one id stands that is wanted."""
    if np.ndim(wanted):
        raise ValueError(f"{rule}; got {np.size(wanted)}")
    return int(lookup.positions(wanted)[0])


def _nearest(rows: Array, others: Array, place: int, n: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the n rows with the largest cosines to one, after each component is scaled by its total on the other side.

    A row of zeros is like nothing: its cosines are 0.
    """
    if n < 1:
        raise ValueError(f"n is {n}; ask for at least 1")
    scaled = rows * others.sum(axis=0, dtype=np.float64)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    profile = np.divide(scaled, length, out=np.zeros_like(scaled), where=length > 0)
    itself = np.arange(len(rows)) != place
    n = min(n, len(rows) - 1)
    if n == 0:
        return np.empty(0, np.intp), np.empty(0)
    near, cosine = top(FactorScores(profile[[place]], profile), n, allowed=itself, n_threads=1)
    return near[0], np.minimum(cosine[0], 1.0)
