"""Why: how exposed a user was, what a score is made of, which users and items are similar."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbmf.data.ids import Lookup
from nbmf.data.interactions import Ids
from nbmf.estimators.fit import FactorFit, FitResult, NewRows, Reasons, largest_first
from nbmf.estimators.fold_in import Resources
from nbmf.model.factors import Array

SHOWN = 5


@dataclass(frozen=True)
class Exposures:
    """What one user has, and how exposed to it the model believes the user was; largest count first.

    Attributes
    ----------
    item : array
        Ids.
    count, intensity : array
        y and μ = ⟨w⟩·⟨h⟩.
    exposure, sd : array
        Mean and standard deviation of a given y; above 1 is over-exposed, below 1 under-exposed.
    """

    item: Ids
    count: Array
    intensity: Array
    exposure: Array
    sd: Array

    def to_pandas(self) -> Any:
        """Return a pandas data frame with one row per item."""
        import pandas as pd  # noqa: PLC0415 (optional)

        return pd.DataFrame(vars(self))


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """What a user's score for an item is made of: parts that sum to it.

    Attributes
    ----------
    user, item : id
        Whose score it is; the user is None for one who was not fitted.
    items, counts : array
        What the user has and how often, largest contribution first.
    contributions : array
        How much of the score each of those items contributes.
    prior : float
        What no count contributes: the prior's part, NBSLIM's intercept, or all of it for a user without counts.
    score : float
        The expected count, or NBSLIM's expected target: the sum of the contributions and the prior's part.
    names : array or None
        Names of `items`.
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
        """Return a pandas data frame with one row per item: item, (name,) count, contribution."""
        import pandas as pd  # noqa: PLC0415 (optional)

        names = {} if self.names is None else {"name": self.names}
        return pd.DataFrame({"item": self.items, **names, "count": self.counts, "contribution": self.contributions})

    def __repr__(self) -> str:
        labels = self.items if self.names is None else self.names
        lines = [f"Explanation(user {self.user!r}, item {self.item!r}: score {self.score:.4g})"]
        for label, part in zip(labels[:SHOWN], self.contributions, strict=False):
            lines.append(f"  {part:10.4g}  {label}")
        if len(self.items) > SHOWN:
            lines.append(f"  {self.contributions[SHOWN:].sum():10.4g}  {len(self.items) - SHOWN} other items")
        return "\n".join([*lines, f"  {self.prior:10.4g}  prior"])


@dataclass(frozen=True, eq=False, repr=False)
class Alike:
    """The users or items most similar to one of them, most similar first, with cosines, or √(B_ji B_ij) for NBSLIM."""

    ids: Ids
    similarity: NDArray[np.float64]
    names: Ids | None = None

    def to_pandas(self) -> Any:
        """Return a pandas data frame: id, (name,) similarity."""
        import pandas as pd  # noqa: PLC0415 (optional)

        names = {} if self.names is None else {"name": self.names}
        return pd.DataFrame({"id": self.ids, **names, "similarity": self.similarity})

    def __repr__(self) -> str:
        labels = self.ids if self.names is None else self.names
        rows = [f"  {value:.3f}  {label}" for label, value in zip(labels, self.similarity, strict=True)]
        return "\n".join([f"Alike({len(self.ids)})", *rows])


def exposures(fit: FactorFit, user: Any) -> Exposures:
    """Return how exposed a user was to each item the user has, E[a | y]: (α+y)/(α+μ) for NBMF, Eq. (update_a)."""
    row = one_place(fit.user_lookup, user, "exposures are those of one user")
    columns, count = fit.taken(row)
    intensity = (fit.item_posterior.mean[columns] @ fit.user_posterior.mean[row]).astype(np.float64)
    likelihood = fit.model.likelihood.at(np.full(len(columns), row), columns)
    sd = likelihood.exposure_sd(count, intensity)
    return Exposures(fit.items[columns], count, intensity, likelihood.exposure(count, intensity), sd)


def explain(fit: FitResult, user: Any, item: Any, resources: Resources) -> Explanation:
    """Split the score of a fitted user for an item."""
    row = one_place(fit.user_lookup, user, "explain one user's score")
    column = one_place(fit.item_lookup, item, "explain the score of one item")
    reasons = fit.reasons(row, fit.counts[[row]], fit.taken(row)[0], column, resources)
    return _explanation(fit, fit.users[row : row + 1].tolist()[0], column, fit.taken(row), reasons)


def explain_for(fit: FitResult, new: NewRows, item: Any, resources: Resources) -> Explanation:
    """Split the score of a user who was not fitted."""
    column = one_place(fit.item_lookup, item, "explain the score of one item")
    new.check_one("explain_for")
    taken = largest_first(new.counts)
    return _explanation(fit, None, column, taken, fit.reasons(None, new.counts, taken[0], column, resources))


def _explanation(
    fit: FitResult, user: Any, column: int, taken: tuple[NDArray[Any], Array], reasons: Reasons
) -> Explanation:
    order = np.argsort(-reasons.contributions, kind="stable")
    columns, counts = taken[0][order], taken[1][order]
    return Explanation(
        user,
        fit.items[column : column + 1].tolist()[0],
        fit.items[columns],
        counts,
        reasons.contributions[order],
        reasons.prior,
        reasons.score,
        fit.names(columns),
    )


def similar_items(fit: FitResult, item: Any, n: int) -> Alike:
    """Return the n items most similar to one."""
    near, similarity = fit.similar_items(one_place(fit.item_lookup, item, "similar_items takes one item"), n)
    return Alike(fit.items[near], similarity, fit.names(near))


def similar_users(fit: FactorFit, user: Any, n: int) -> Alike:
    """Return the n users most similar to one."""
    near, similarity = fit.similar_users(one_place(fit.user_lookup, user, "similar_users takes one user"), n)
    return Alike(fit.users[near], similarity)


def one_place(lookup: Lookup, wanted: Any, rule: str) -> int:
    """Return the position of the one id that is wanted."""
    if np.ndim(wanted):
        raise ValueError(f"{rule}; got {np.size(wanted)}")
    return int(lookup.positions(wanted)[0])
