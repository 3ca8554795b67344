"""What a fit leaves: one frozen value that every answer is a function of, and that a model file holds.

`FactorFit` is a fit of factors, `AverageFit` the mean of several of them; those of other models are in `weight_fit` and
`comparison_fit`. Each knows its scores: of the users that were fitted, of new users, and of single pairs.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from nbmf.backends.counts import without
from nbmf.data.ids import Lookup
from nbmf.data.interactions import FORMS, Ids
from nbmf.estimators.fold_in import FixedSide, Resources, fold_in
from nbmf.estimators.ranking import most_typical, name_of_items, nearest
from nbmf.estimators.scores import FactorScores, Scores
from nbmf.inference.run import Ending
from nbmf.model import Model
from nbmf.model.factors import Array, Factor, Point
from nbmf.model.likelihood import Likelihood
from nbmf.model.ties import Ties


class NewRows(NamedTuple):
    """Users who were not fitted; of one, `nothing_known` may say that no counts are known, rather than all 0."""

    ids: Ids
    counts: sp.csr_array
    nothing_known: bool = False

    def check_one(self, method: str) -> None:
        """Refuse several users where one is asked for."""
        if len(self.ids) != 1:
            raise ValueError(f"{method} takes one user; got {len(self.ids)}")


class Reasons(NamedTuple):
    """Parts of one score: a contribution per item the user has, and what no item contributes."""

    contributions: NDArray[np.float64]
    prior: float
    score: float
    by_component: NDArray[np.float64] | None = None  # the whole score again, split by component


@dataclass(frozen=True, eq=False, kw_only=True)
class FitResult(ABC):
    """The data of a fit as given, with its ids, and how the fit went."""

    remedies = MappingProxyType[str, str]({})  # what of findings.py has another name here, or none
    users: Ids
    items: Ids
    counts: sp.csr_array
    objective: NDArray[np.float64]
    ending: Ending
    item_names: Ids | None
    has_feature_names: bool  # whether `items` are the column names of a data frame

    @cached_property
    def user_lookup(self) -> Lookup:
        """Finds the row of a user."""
        return Lookup(self.users, "user")

    @cached_property
    def item_lookup(self) -> Lookup:
        """Finds the column of an item."""
        return Lookup(self.items, "item")

    def names(self, columns: NDArray[np.intp]) -> Ids | None:
        """Return the names of some items, if items have names."""
        return None if self.item_names is None else self.item_names[columns]

    @property
    def fitted(self) -> sp.csr_array:
        """The counts that were fitted."""
        return self.counts

    def pairs(self, users: ArrayLike, items: ArrayLike) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the positions of pairs of ids, or of one id with several others."""
        rows, columns = self.user_lookup.positions(users), self.item_lookup.positions(items)
        if len(rows) != len(columns) and 1 not in (len(rows), len(columns)):
            raise ValueError(f"{len(rows)} users and {len(columns)} items; give pairs, or one of either")
        first, second = np.broadcast_arrays(rows, columns)
        return first, second

    def taken(self, row: int) -> tuple[NDArray[Any], Array]:
        """Return the columns and counts of what a user has, largest count first."""
        return largest_first(self.counts[[row]])

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Type of the scores."""

    @abstractmethod
    def scores(self) -> Scores:
        """Return the scores of all fitted users for all items."""

    @abstractmethod
    def scores_of(self, rows: NewRows, resources: Resources) -> Scores:
        """Return the scores of new users for all items."""

    def intensity_scores(self) -> Scores:
        """Return the intensities of all fitted users for all items, which scores are a multiple of."""
        return self.scores()

    def intensity_scores_of(self, rows: NewRows, resources: Resources) -> Scores:
        """Return the intensities of new users for all items."""
        return self.scores_of(rows, resources)

    def expected(self, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Array:
        """Return the expected counts of pairs, in the form that scores are of."""
        return self.scores().pairs(rows, columns)

    def expected_totals(self, rows: NewRows, resources: Resources) -> Array:
        """Return the expected total of each new user, in the form that scores are of."""
        return self.scores_of(rows, resources).totals()

    @abstractmethod
    def check_of_counts(self) -> None:
        """Refuse where the likelihood is of transformed counts, so that counts have no distribution."""

    @abstractmethod
    def likelihood_of(self, rows: NDArray[np.intp] | None, columns: NDArray[np.intp]) -> Likelihood:
        """Return the likelihood of new counts of pairs; of a new user where `rows` is None."""

    @abstractmethod
    def reasons(
        self, whose: int | NewRows, columns: NDArray[Any], counts: Array, column: int, resources: Resources
    ) -> Reasons:
        """Split the score of one user, by row or new, for item `column` among the user's counts of `columns`."""

    @abstractmethod
    def similar_items(self, column: int, n: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Return the n items most similar to one, without itself, and how similar they are."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FactorFit(FitResult):
    """A fit of factors, with what was learned of the likelihood and the priors."""

    is_product = True  # whether the intensities of what users have are products of factors, as all others are
    user_posterior: Factor
    item_posterior: Factor
    model: Model
    exposure: str | None  # "exact" or "tied"; None where the likelihood has no exposures
    input: str = "counts"  # the form in which the likelihood sees counts
    ties: Ties | None = None
    unknown: sp.csr_array | None = None  # stores the cells that were left out of the likelihood

    @cached_property
    def fixed_items(self) -> FixedSide:
        """The items as they stay while new users are folded in."""
        return FixedSide(
            self.item_posterior, self.model.likelihood.of_new_rows(), self.model.user_prior, self.ties, self.input
        )

    @cached_property
    def fixed_users(self) -> FixedSide:
        """The users as they stay while new items are folded in; users have no clusters."""
        likelihood = self.model.likelihood.transposed().of_new_rows()
        return FixedSide(self.user_posterior, likelihood, self.model.item_prior, None, self.input)

    @property
    def target(self) -> str:
        """The form of the counts that scores are of."""
        return self.input

    def fixed_items_for(self, rows: NDArray[np.intp]) -> FixedSide:
        """The items as they stay while fitted users are folded in again, each with its own parameters."""
        return replace(self.fixed_items, likelihood=self.model.likelihood.of_rows(rows))

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.item_posterior.mean.dtype

    @property
    def fitted(self) -> sp.csr_array:
        """The counts that were fitted, without cells that were left out of the likelihood."""
        return without(self.counts, self.unknown)

    def taken(self, row: int) -> tuple[NDArray[Any], Array]:
        """Return the columns and counts of what a user has, without cells that were left out of the likelihood."""
        columns, counts = super().taken(row)
        if self.unknown is None:
            return columns, counts
        known = ~np.isin(columns, self.unknown[[row]].indices)
        return columns[known], counts[known]

    def factors_of(self, rows: NewRows, resources: Resources) -> Factor:
        """Return the factors of new users; of one of whom nothing is known, the typical user's."""
        if rows.nothing_known:
            return Point(self.typical_user())
        return fold_in(rows.counts, self.fixed_items, resources)

    def typical_user(self) -> Array:
        """Return the prior mean, 1 × K; where no prior is common to all users, the mean of the users."""
        means, prior = self.user_posterior.mean, self.model.user_prior
        if self.user_posterior.is_posterior and not prior.per_row:
            return np.full((1, means.shape[1]), prior.shape / prior.rate, means.dtype)
        return np.asarray(means.mean(axis=0, keepdims=True, dtype=np.float64).astype(means.dtype))

    @cached_property
    def _scored(self) -> tuple[Array, Array]:
        """What scores are products of: the factors, times E[y]/μ on the side whose rows may differ in it."""
        sides = [self.user_posterior.mean, self.item_posterior.mean]
        unit = np.asarray(self.model.likelihood.unit_mean)
        if np.any(unit != 1):
            side = 0 if unit.ndim and len(unit) > 1 else 1
            sides[side] = (sides[side] * unit.reshape(-1, 1)).astype(self.dtype)
        return sides[0], sides[1]

    def scores(self) -> FactorScores:
        return FactorScores(*self._scored)

    def scores_of(self, rows: NewRows, resources: Resources) -> FactorScores:
        users, unit = self.factors_of(rows, resources).mean, np.asarray(self.model.likelihood.of_new_rows().unit_mean)
        if unit.size == 1 and self._scored[1] is self.item_posterior.mean and unit != 1:  # one each for fitted users
            users = (users * unit.ravel()).astype(users.dtype)
        return FactorScores(users, self._scored[1])

    def intensity_scores(self) -> FactorScores:
        return FactorScores(self.user_posterior.mean, self.item_posterior.mean)

    def intensity_scores_of(self, rows: NewRows, resources: Resources) -> FactorScores:
        return FactorScores(self.factors_of(rows, resources).mean, self.item_posterior.mean)

    def seen(self, counts: sp.csr_array) -> sp.csr_array:
        """Return the intensities of the stored cells, where they are not plain products of factors."""
        return sp.csr_array(counts.shape, dtype=self.dtype)

    def row_scores(self, users: Array, counts: sp.csr_array) -> FactorScores:
        """Return the intensities of users with these factors and these counts."""
        return FactorScores(users, self.item_posterior.mean)

    def expected(self, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Array:
        μ = self.intensity_scores().pairs(rows, columns)
        return np.asarray(self._likelihood_of(rows, columns).mean(μ), μ.dtype)

    def expected_totals(self, rows: NewRows, resources: Resources) -> Array:
        likelihood = self.fixed_items.likelihood
        if likelihood.has_linear_mean:
            return super().expected_totals(rows, resources)
        users, items = self.factors_of(rows, resources).mean, self.item_posterior.mean.T
        return np.array([likelihood.mean((user @ items)[None, :]).sum() for user in users], self.dtype)

    def check_of_counts(self) -> None:
        if self.input == "log1p":
            raise ValueError(no_likelihood("input", self.input))

    def likelihood_of(self, rows: NDArray[np.intp] | None, columns: NDArray[np.intp]) -> Likelihood:
        self.check_of_counts()
        return self._likelihood_of(rows, columns)

    def _likelihood_of(self, rows: NDArray[np.intp] | None, columns: NDArray[np.intp]) -> Likelihood:
        if rows is None:
            return self.fixed_items.likelihood.at(np.zeros(len(columns), np.intp), columns)
        return self.model.likelihood.at(rows, columns)

    def reasons(
        self, whose: int | NewRows, columns: NDArray[Any], counts: Array, column: int, resources: Resources
    ) -> Reasons:
        """Split Σ_k ⟨w_uk⟩⟨h_ik⟩ by where ⟨w_uk⟩ = (α^W + Σ_j y_uj φ_ujk)/rate_uk comes from.

        φ is computed from the factors as they are. Before convergence it differs a little from the one of the last
        update, so each component's allocations are shared out in proportion, and the parts always sum to the score.
        """
        rows = None
        if isinstance(whose, NewRows):
            users, place = self.factors_of(whose, resources), 0
        else:
            users, place, rows = self.user_posterior, whose, np.full(len(columns), whose)
        items, count = self.item_posterior, FORMS[self.input](counts.astype(np.float64))
        own = None if rows is None else np.array([place])
        h = items.mean[column].astype(np.float64) * self._likelihood_of(own, np.array([column])).unit_mean
        parts = users.mean[place].astype(np.float64) * h
        if not len(columns):
            return Reasons(np.empty(0), float(parts.sum()), float(parts.sum()), parts)
        from_prior = users.prior_part(self.model.user_prior, place) * h
        share = users.geometric_mean[place].astype(np.float64) * items.geometric_mean[columns]
        λ = np.maximum(share.sum(axis=1), np.finfo(np.float64).tiny)
        likelihood = self._likelihood_of(rows, columns)
        count = likelihood.events(count, λ)
        allocated = count[:, None] * (share / λ[:, None])  # φ
        # where every share has underflowed, the counts speak for themselves
        allocated = np.where(allocated.sum(axis=0) > 0, allocated, count[:, None])
        contributions = (allocated / allocated.sum(axis=0)) @ (parts - from_prior)
        return Reasons(contributions, float(from_prior.sum()), float(parts.sum()), parts)

    def component_name(self, component: int) -> str:
        """Return a name for a component, made of items that mark it."""
        labels = self.items if self.item_names is None else self.item_names
        return name_of_items(labels[self.top_items(component, 8)[0]].tolist())

    @cached_property
    def _expected(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Σ_u⟨w_uk⟩ of each component, and the expected count of each item over all users."""
        users, items = self._scored
        of_users = users.sum(axis=0, dtype=np.float64)
        return of_users, items @ of_users

    def top_items(self, component: int, n: int) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
        """Return the n items that mark a component, their expected counts by it, and its share of all they expect."""
        of_users, total = self._expected
        return most_typical(self._scored[1][:, component] * of_users[component], total, n)

    def similar_items(self, column: int, n: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        return nearest(self.item_posterior.mean, self.user_posterior.mean, column, n)

    def similar_users(self, row: int, n: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        return nearest(self.user_posterior.mean, self.item_posterior.mean, row, n)


@dataclass(frozen=True, eq=False, kw_only=True)
class AverageFit(FactorFit):
    """The mean of the scores of several fits of the same data.

    A score is Σ_k ⟨w_uk⟩⟨h_ik⟩, so the mean over R fits is again a product of factors: those of all members side by
    side, the users' divided by R. Whatever needs only scores needs nothing else.
    """

    members: tuple[FactorFit, ...]

    @classmethod
    def of(cls, members: Sequence[FactorFit]) -> "AverageFit":
        """Average fits of the same data; the objective is that of the best member."""
        best = max(members, key=lambda member: member.objective[-1])
        cut_short = [member.ending for member in members if member.ending is Ending.INTERRUPTED]
        likelihood = best.model.likelihood.averaged([member.model.likelihood for member in members])
        shared = {name: getattr(best, name) for name in FactorFit.__dataclass_fields__}
        # times E[y]/μ of each member over that of the average, so that its scores are the means of theirs
        ratios = [np.asarray(m.model.likelihood.unit_mean / np.asarray(likelihood.unit_mean)) for m in members]
        by_user = [r if r.ndim and len(r) > 1 else 1.0 for r in ratios]
        by_item = [r.reshape(-1, 1) if r.ndim == 0 or len(r) == 1 else 1.0 for r in ratios]
        users, items = (
            [(side.mean * ratio).astype(side.mean.dtype) for side, ratio in zip(sides, each, strict=True)]
            for sides, each in (
                ([m.user_posterior for m in members], by_user),
                ([m.item_posterior for m in members], by_item),
            )
        )
        return cls(
            **shared
            | {
                "ending": cut_short[0] if cut_short else best.ending,
                "user_posterior": Point(_side_by_side(users)),
                "item_posterior": Point(np.hstack(items)),
                "model": replace(best.model, likelihood=likelihood),
                "ties": None,
            },
            members=tuple(members),
        )

    def factors_of(self, rows: NewRows, resources: Resources) -> Point:
        own = [member.factors_of(rows, resources).mean for member in self.members]
        unit = np.asarray(self.model.likelihood.unit_mean)
        if unit.ndim and len(unit) > 1:  # as in `of`, where the parameter of each user is known
            typical = [float(fit.fixed_items.likelihood.unit_mean) for fit in (self, *self.members)]
            own = [(w * (t / typical[0])).astype(w.dtype) for w, t in zip(own, typical[1:], strict=True)]
        return Point(_side_by_side(own))

    def component_name(self, component: int) -> str:
        member, own = self._of_member(component)
        return f"{self.members[member].component_name(own)}; of members_[{member}]"

    def top_items(self, component: int, n: int) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
        member, own = self._of_member(component)
        return self.members[member].top_items(own, n)

    def _of_member(self, component: int) -> tuple[int, int]:
        return divmod(component, self.members[0].item_posterior.dimensions[1])

    def reasons(
        self, whose: int | NewRows, columns: NDArray[Any], counts: Array, column: int, resources: Resources
    ) -> Reasons:
        parts = [member.reasons(whose, columns, counts, column, resources) for member in self.members]
        contributions = sum((part.contributions for part in parts), np.zeros(len(columns))) / len(parts)
        prior, score = (float(np.mean(values)) for values in ([p.prior for p in parts], [p.score for p in parts]))
        by_component = np.concatenate([part.by_component for part in parts]) / len(parts)
        return Reasons(contributions, prior, score, by_component)


def no_likelihood(setting: str, form: str) -> str:
    """Say why a model of transformed counts has no distribution of counts."""
    remedy = f"fit with {setting}='counts'"
    return f"the model was fitted with {setting}={form!r}, so it has no likelihood of counts; {remedy}"


def largest_first(row: sp.csr_array) -> tuple[NDArray[Any], Array]:
    """Return the columns and values that one row stores, largest value first."""
    order = np.argsort(-row.data.astype(np.float64), kind="stable")
    return row.indices[order], row.data[order]


def _side_by_side(users: Sequence[Array]) -> Array:
    return np.asarray(np.hstack(users) / users[0].dtype.type(len(users)))
