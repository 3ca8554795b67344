"""Estimators of the other likelihoods of the family: compound, zero-inflated, robust and binary counts."""

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from nbmf.backends.counts import take_unknown, without
from nbmf.estimators.base import one_of
from nbmf.estimators.factorization import Factorization
from nbmf.estimators.factorize import Data, as_number
from nbmf.estimators.fit import FactorFit
from nbmf.inference.hyperparameters import Learned
from nbmf.model.family import BernoulliPoisson, GeometricJumps, LogarithmicJumps, RobustPoisson, ZeroInflatedPoisson
from nbmf.model.likelihood import Likelihood

JUMPS = {"logarithmic": LogarithmicJumps, "geometric": GeometricJumps}
LARGEST = 1e18  # counts beyond which a sum of jumps has no digits left
LEARNED = {"learn": "all", "learn_per_user": "user", "learn_per_item": "item"}


class CompoundMF(Factorization):
    """Compound Poisson factorization: n_ui ~ Poisson([WHᵀ]_ui) events, and a count is the sum of their sizes.

    It separates how often something happens, which the factors explain, from how much of it there is at a time. So it
    needs no exposures, its cost depends only on the non-zero counts, and a few large counts do not outweigh the rest.
    Scores are expected counts, the mean size of an event times [WHᵀ]_ui.

    Parameters
    ----------
    n_components : int
        K, the number of components.
    jumps : "logarithmic" or "geometric"
        The distribution of the sizes: P(j) = θʲ/(ρj), ρ = −ln(1−θ), which is heavy-tailed and makes y a negative
        binomial variable with variance mean/(1−θ); or P(j) = (1−p) p^(j−1).
    jump : "learn_per_item", "learn" or float
        θ or p: learned from the data, for each item or one for all, or a number between 0 and 1. An item's own jumps
        are pooled with a hundred events of average size, so those of rare items are nearly those of all.
    user_shape, item_shape : float
        Shapes of the gamma priors. Below 1 favours sparse factors, which suits these models (docs/models.md).
    rates : "per_row" or "shared"
        Whether each user and each item has a prior rate of its own ("cavi"), which ranks better where activity varies
        a lot.

    The others are those of `NBMF`.

    Attributes
    ----------
    jump_ : float or array
        θ or p, an array 1 × n_items if there is one per item.
    likelihood_ : Likelihood
        With what was learned.

    Examples
    --------
    >>> import nbmf
    >>> users, items = ["ann", "ann", "bob", "cy", "cy"], ["jazz", "soul", "jazz", "folk", "punk"]
    >>> data = nbmf.Interactions.from_arrays(users, items, [900, 5, 70, 8, 6])
    >>> nbmf.CompoundMF(2, random_state=0).fit(data).recommend("bob", n=1).items
    array([['soul']], dtype='<U4')
    """

    def __init__(
        self,
        n_components: int = 50,
        *,
        jumps: str = "logarithmic",
        jump: float | str = "learn_per_item",
        user_shape: float = 0.3,
        item_shape: float = 0.3,
        rates: str = "per_row",
        shapes: str = "fixed",
        inference: str = "cavi",
        init: str | tuple[ArrayLike, ArrayLike] = "random",
        max_iter: int = 500,
        tol: float = 1e-5,
        accelerate: bool = False,
        backend: str = "auto",
        n_threads: int | None = None,
        dtype: str = "float32",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self._keep(locals())

    def _likelihood(self) -> Likelihood:
        one_of("jumps", self.jumps, JUMPS)
        check_parameter("jump", self.jump, ("learn", "learn_per_item"))
        return JUMPS[self.jumps](0.5 if isinstance(self.jump, str) else self.jump)

    def _likelihood_for(self, data: Data, unknown: Any) -> Likelihood:
        """Begin with one event per count."""
        counts = without(data.matrix, take_unknown(unknown, data.users, data.items)).data
        if counts.max(initial=0) > LARGEST:
            raise ValueError(f"a count is {counts.max():g}; {type(self).__name__} takes counts up to {LARGEST:g}")
        likelihood = self._likelihood()
        if not isinstance(self.jump, str) or not len(counts):
            return likelihood
        return likelihood.relearned(float(np.mean(counts, dtype=np.float64)))

    def _learned(self) -> Learned:
        return replace(super()._learned(), likelihood=LEARNED.get(str(self.jump), ""))

    def _become(self, result: FactorFit) -> None:  # type: ignore[override]
        super()._become(result)
        self.jump_ = result.model.likelihood.parameters["jump"]


class ZeroInflatedMF(Factorization):
    """Zero-inflated Poisson factorization: y_ui ~ Poisson(a_ui [WHᵀ]_ui), a_ui ~ Bernoulli(π): exposed, or not at all.

    Suits data in which many zeros mean that the user never came across the item, and the other counts are hardly more
    dispersed than Poisson counts. Scores are expected counts, π[WHᵀ]_ui.

    Parameters
    ----------
    n_components : int
        K, the number of components.
    probability : "learn", "learn_per_item", "learn_per_user" or float
        π, the probability of being exposed: learned from the data, for all cells or for each item (exact exposures
        only) or user, or a number between 0 and 1.
    user_shape, item_shape : float
        Shapes of the gamma priors.

    The others are those of `NBMF`.

    Attributes
    ----------
    probability_ : float or array
        π, an array n_users × 1 or 1 × n_items if there are several.
    likelihood_ : Likelihood
        With what was learned.

    Examples
    --------
    >>> model = ZeroInflatedMF(1, probability=0.5, random_state=0).fit([[4, 0], [2, 2]])
    >>> bool(model.exposures(0).exposure[0] == 1)  # whatever was taken was seen
    True
    """

    def __init__(
        self,
        n_components: int = 50,
        *,
        probability: float | str = "learn",
        user_shape: float = 1.0,
        item_shape: float = 1.0,
        rates: str = "shared",
        shapes: str = "fixed",
        inference: str = "cavi",
        exposure: str = "auto",
        n_clusters: int = 64,
        init: str | tuple[ArrayLike, ArrayLike] = "random",
        max_iter: int = 500,
        tol: float = 1e-5,
        accelerate: bool = False,
        backend: str = "auto",
        n_threads: int | None = None,
        dtype: str = "float32",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self._keep(locals())

    def _likelihood(self) -> Likelihood:
        check_parameter("probability", self.probability, LEARNED)
        return ZeroInflatedPoisson(0.5 if isinstance(self.probability, str) else self.probability)

    def _learned(self) -> Learned:
        return replace(super()._learned(), likelihood=LEARNED.get(str(self.probability), ""))

    def _n_ties(self, matrix: sp.csr_array, likelihood: Likelihood) -> int | None:
        return self._untied_items(super()._n_ties(matrix, likelihood), matrix, "probability")

    def _become(self, result: FactorFit) -> None:  # type: ignore[override]
        super()._become(result)
        self.probability_ = result.model.likelihood.parameters["probability"]


class RobustMF(Factorization):
    """Robust Poisson factorization: y_ui ~ Poisson([WHᵀ]_ui + s_ui) with sparse outliers s_ui ≥ 0, each of penalty ρs.

    A count above (1+ρ)[WHᵀ]_ui is an outlier: what exceeds that is put down to s_ui and does not pull the factors. It
    is a profile likelihood, so it has expected counts but no distribution of new ones, and `score` can only be compared
    between models with the same penalty.

    Parameters
    ----------
    n_components : int
        K, the number of components.
    penalty : float
        ρ. Large is Poisson. It must exceed 1/density, where the density is the share of the cells that are not 0: far
        below it every count is an outlier, and the model ranks like popularity.
    user_shape, item_shape : float
        Shapes of the gamma priors.

    The others are those of `NBMF`.

    Examples
    --------
    >>> RobustMF(1, penalty=1.0, random_state=0).fit([[4, 4], [4, 4000]]).predict(0, 0) < 100
    array([ True])
    """

    def __init__(
        self,
        n_components: int = 50,
        *,
        penalty: float = 30.0,
        user_shape: float = 1.0,
        item_shape: float = 1.0,
        rates: str = "shared",
        shapes: str = "fixed",
        inference: str = "cavi",
        init: str | tuple[ArrayLike, ArrayLike] = "random",
        max_iter: int = 500,
        tol: float = 1e-5,
        accelerate: bool = False,
        backend: str = "auto",
        n_threads: int | None = None,
        dtype: str = "float32",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self._keep(locals())

    def _likelihood(self) -> Likelihood:
        if not as_number(self.penalty) > 0:
            raise ValueError(f"penalty is {self.penalty!r}; it must be a positive number (large is Poisson)")
        return RobustPoisson(as_number(self.penalty))


class BinaryMF(Factorization):
    """Bernoulli–Poisson factorization of whether there is a count: P(y_ui ≥ 1) = 1 − exp(−[WHᵀ]_ui).

    The model of binarized data that Poisson factorization only approximates. Counts above 1 are taken as 1. Scores are
    the intensities [WHᵀ]_ui; `predict` returns probabilities.

    Parameters
    ----------
    n_components : int
        K, the number of components.
    user_shape, item_shape : float
        Shapes of the gamma priors.

    The others are those of `NBMF`.

    Examples
    --------
    >>> model = BinaryMF(1, random_state=0).fit([[4, 0], [2, 2]])
    >>> bool(0 < model.predict(0, 0)[0] < 1)
    True
    """

    def __init__(
        self,
        n_components: int = 50,
        *,
        user_shape: float = 0.3,
        item_shape: float = 0.3,
        rates: str = "shared",
        shapes: str = "fixed",
        inference: str = "cavi",
        init: str | tuple[ArrayLike, ArrayLike] = "random",
        max_iter: int = 500,
        tol: float = 1e-5,
        accelerate: bool = False,
        backend: str = "auto",
        n_threads: int | None = None,
        dtype: str = "float32",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self._keep(locals())

    def _likelihood(self) -> Likelihood:
        return BernoulliPoisson()

    def _input(self) -> str:
        return "binary"


def check_parameter(name: str, value: Any, learned: Any) -> None:
    """Refuse a setting that is neither a probability nor one of the ways to learn it."""
    if not (value in learned if isinstance(value, str) else 0 < as_number(value) < 1):
        ways = ", ".join(map(repr, learned))
        raise ValueError(f"{name} is {value!r}; it must be a number between 0 and 1, or one of {ways}")
