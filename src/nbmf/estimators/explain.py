"""Why: how exposed a user was, what a score is made of, which users and items are similar, what marks a component."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbmf.data.ids import Lookup
from nbmf.data.interactions import FORMS, Ids
from nbmf.estimators.fit import FactorFit, FitResult, NewRows, Reasons, largest_first
from nbmf.estimators.fold_in import Resources
from nbmf.estimators.ranking import check_at_least_one
from nbmf.estimators.table import Shown, Table, first_rows
from nbmf.model.factors import Array

SHOWN = 5  # components and items of an explanation


@dataclass(frozen=True, eq=False, repr=False)
class Exposures(Table):
    """What one user has, and how exposed to it the model believes the user was; largest count first.

    Attributes
    ----------
    item : array
        Ids.
    count, intensity : array
        y and μ = ⟨w⟩·⟨h⟩.
    exposure, sd : array
        Mean and standard deviation of a given y; above 1 is over-exposed, below 1 under-exposed.
    input : str
        The model's setting: for "log1p" and "binary", intensities and exposures are of the transformed counts.
    """

    item: Ids
    count: Array
    intensity: Array
    exposure: Array
    sd: Array
    input: str = "counts"

    @property
    def columns(self) -> dict[str, Any]:
        """One row per item: item, count, intensity, exposure, sd."""
        return {name: getattr(self, name) for name in ("item", "count", "intensity", "exposure", "sd")}

    def shown(self) -> Shown:
        """Return title, heads and rows."""
        of = {"log1p": ", of ln(1 + count)", "binary": ", of whether there is a count"}.get(self.input, "")
        return f"Exposures({len(self.item):,} items{of})", *first_rows(self.columns)


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Table):
    """What a user's score for an item is made of: parts that sum to it, by component and by item.

    Attributes
    ----------
    user, item : id
        Whose score it is; the user is None for one who was not fitted.
    items, counts : array
        What the user has and how often, largest contribution first.
    contributions : array
        How much of the score each of those items contributes.
    prior : float
        What no count contributes: the prior's part, the intercept of NBSLIM or NBFISM, or all of it for a user
        without counts.
    score : float
        The expected count, or expected target of NBSLIM or NBFISM: the sum of the contributions and the prior's part.
    names : array or None
        Names of `items`.
    components : array or None
        Numbers of the components, as in `components_`, largest part first; None for NBSLIM, which has none. Those of
        `Averaged` are the components of all members, one member after the other.
    component_scores : array or None
        ⟨w_uk⟩⟨h_ik⟩ of these components, which sum to the score: the prior's part is inside them.
    name_component : callable or None
        Returns a component's name.
    """

    user: Any
    item: Any
    items: Ids
    counts: Array
    contributions: NDArray[np.float64]
    prior: float
    score: float
    names: Ids | None = None
    components: NDArray[np.intp] | None = None
    component_scores: NDArray[np.float64] | None = None
    name_component: Callable[[int], str] | None = None

    @cached_property
    def component_names(self) -> list[str] | None:
        """Each of the components by two items that mark it, as `top_items` finds them; None where there are none."""
        return None if self.components is None else self._names(len(self.components))

    def _names(self, n: int) -> list[str]:
        if self.components is None or self.name_component is None:
            return []
        return [self.name_component(k) for k in self.components[:n].tolist()]

    @property
    def columns(self) -> dict[str, Any]:
        """One row per item: item, (name,) count, contribution."""
        names = {} if self.names is None else {"name": self.names}
        return {"item": self.items, **names, "count": self.counts, "contribution": self.contributions}

    def to_pandas(self, by: str = "item") -> Any:
        """Return a pandas data frame, largest part of the score first.

        Parameters
        ----------
        by : "item" or "component"
            One row per item the user has (item, (name,) count, contribution), to which the prior's part must be added
            to get the score; or one row per component (component, name, contribution).
        """
        if by == "item":
            return super().to_pandas()
        if by != "component" or self.components is None:
            raise ValueError(f"by is {by!r}; it must be 'item', or 'component' for a model that has components")
        import pandas as pd  # noqa: PLC0415 (optional)

        named = {"component": self.components, "name": self.component_names}
        return pd.DataFrame({**named, "contribution": self.component_scores})

    def shown(self) -> Shown:
        """Return title, heads and rows: the largest components, then the largest items."""
        rows: list[tuple[str, str]] = []
        if self.components is not None and self.component_scores is not None:
            named = [f"{k} ({name})" for k, name in zip(self.components, self._names(SHOWN), strict=False)]
            rows += [("by component", ""), *_largest(named, self.component_scores, "components"), ("by item", "")]
        labels = self.items if self.names is None else self.names
        rows += [*_largest(labels.tolist(), self.contributions, "items"), ("  prior", f"{self.prior:.4g}")]
        title = f"Explanation(user {self.user!r}, item {self.item!r}: score {self.score:.4g})"
        return title, ("", "contribution"), rows


def _largest(labels: Sequence[Any], parts: NDArray[np.float64], what: str) -> list[tuple[str, str]]:
    """Return rows for the first parts, and one for the sum of the others."""
    rows = [(f"  {label}", f"{part:.4g}") for label, part in zip(labels[:SHOWN], parts, strict=False)]
    if len(parts) > SHOWN:
        rows.append((f"  {len(parts) - SHOWN} other {what}", f"{parts[SHOWN:].sum():.4g}"))
    return rows


@dataclass(frozen=True, eq=False, repr=False)
class Similar(Table):
    """The users or items most similar to one of them, most similar first, with cosines, or √(B_ji B_ij) for NBSLIM."""

    ids: Ids
    similarity: NDArray[np.float64]
    names: Ids | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """One row each: id, (name,) similarity."""
        names = {} if self.names is None else {"name": self.names}
        return {"id": self.ids, **names, "similarity": self.similarity}

    def shown(self) -> Shown:
        """Return title, heads and rows."""
        return f"Similar({len(self.ids):,})", *first_rows(self.columns)


Alike = Similar
"""The earlier name of `Similar`."""


@dataclass(frozen=True, eq=False, repr=False)
class TopItems(Table):
    """The items that mark a component, best first.

    Attributes
    ----------
    component : int
        Number of the component, as in `components_`.
    items, names : array, array or None
        Ids of the items, and their names if items have names.
    weight : array
        What of each item's scores comes from the component, over all users: Σ_u⟨w_uk⟩⟨h_ik⟩ times the mean of a count
        of intensity 1, which is an expected count where scores are.
    share : array
        What part of the item's whole expected count that is, from 0 to 1.
    """

    component: int
    items: Ids
    names: Ids | None
    weight: NDArray[np.float64]
    share: NDArray[np.float64]

    @property
    def columns(self) -> dict[str, Any]:
        """One row per item: item, (name,) weight, share."""
        names = {} if self.names is None else {"name": self.names}
        return {"item": self.items, **names, "weight": self.weight, "share": self.share}

    def shown(self) -> Shown:
        """Return title, heads and rows."""
        return f"TopItems(component {self.component}: {len(self.items):,} items)", *first_rows(self.columns)


def exposures(fit: FactorFit, user: Any) -> Exposures:
    """Return how exposed a user was to each item the user has, E[a | y]: (α+y)/(α+μ) for NBMF, Eq. (update_a)."""
    row = one_place(fit.user_lookup, user, "exposures are those of one user")
    columns, count = fit.taken(row)
    intensity = fit.intensity_scores().of(np.array([row])).pairs(np.zeros(len(columns), np.intp), columns)
    likelihood = fit.model.likelihood.at(np.full(len(columns), row), columns)
    y = FORMS[fit.input](count)
    intensity = intensity.astype(np.float64)
    sd = likelihood.exposure_sd(y, intensity)
    return Exposures(fit.items[columns], count, intensity, likelihood.exposure(y, intensity), sd, fit.input)


def explain(fit: FitResult, user: Any, item: Any, resources: Resources) -> Explanation:
    """Split the score of a fitted user for an item."""
    row = one_place(fit.user_lookup, user, "explain one user's score")
    column = one_place(fit.item_lookup, item, "explain the score of one item")
    taken = fit.taken(row)
    reasons = fit.reasons(row, *taken, column, resources)
    return _explanation(fit, fit.users[row : row + 1].tolist()[0], column, taken, reasons)


def explain_for(fit: FitResult, new: NewRows, item: Any, resources: Resources) -> Explanation:
    """Split the score of a user who was not fitted."""
    column = one_place(fit.item_lookup, item, "explain the score of one item")
    new.check_one("explain_for")
    taken, whose = largest_first(new.counts), new._replace(nothing_known=not new.counts.nnz)
    return _explanation(fit, None, column, taken, fit.reasons(whose, *taken, column, resources))


def _explanation(
    fit: FitResult, user: Any, column: int, taken: tuple[NDArray[Any], Array], reasons: Reasons
) -> Explanation:
    order = np.argsort(-reasons.contributions, kind="stable")
    columns, counts = taken[0][order], taken[1][order]
    by_component: dict[str, Any] = {}
    if reasons.by_component is not None:
        components = np.argsort(-reasons.by_component, kind="stable")
        by_component = {"components": components, "component_scores": reasons.by_component[components]}
        by_component["name_component"] = getattr(fit, "component_name", None)
    return Explanation(
        user,
        fit.items[column : column + 1].tolist()[0],
        fit.items[columns],
        counts,
        reasons.contributions[order],
        reasons.prior,
        reasons.score,
        fit.names(columns),
        **by_component,
    )


def top_items(fit: FactorFit, component: Any, n: int) -> TopItems:
    """Return the n items that mark a component."""
    check_at_least_one(n)
    n_components = fit.item_posterior.dimensions[1]
    if not isinstance(component, Integral) or not 0 <= int(component) < n_components:
        raise ValueError(f"there is no component {component!r}; the components are numbered 0 to {n_components - 1}")
    best, weight, share = fit.top_items(int(component), int(n))
    return TopItems(int(component), fit.items[best], fit.names(best), weight, share)


def similar_items(fit: FitResult, item: Any, n: int) -> Similar:
    """Return the n items most similar to one."""
    near, similarity = fit.similar_items(one_place(fit.item_lookup, item, "similar_items takes one item"), n)
    return Similar(fit.items[near], similarity, fit.names(near))


def similar_users(fit: FactorFit, user: Any, n: int) -> Similar:
    """Return the n users most similar to one."""
    near, similarity = fit.similar_users(one_place(fit.user_lookup, user, "similar_users takes one user"), n)
    return Similar(fit.users[near], similarity)


def one_place(lookup: Lookup, wanted: Any, rule: str) -> int:
    """Return the position of the one id that is wanted."""
    if np.ndim(wanted):
        raise ValueError(f"{rule}; got {np.size(wanted)}")
    return int(lookup.positions(wanted)[0])
