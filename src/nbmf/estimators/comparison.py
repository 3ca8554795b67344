"""Comparison models: relatives of NBMF that the paper names (§2.4), for small data.

    ExpoMF                   a ~ Bernoulli(π_i),  1[y > 0] ~ N(a w·h, 1/λ)              Liang et al. (2016)
    RandomGraphExposureMF    a ~ Bernoulli(π_ui),  y ~ Poisson(a [WHᵀ]_ui)              Paquet and Koenigstein (2013)
    CoupledCompoundMF        a ~ Poisson([UVᵀ]_ui),  y ~ Poisson(a [WHᵀ]_ui)            Basbug and Engelhardt (2017)

They answer like the other estimators, so that `nbmf.evaluate` and `nbmf.compare` can hold them beside each other. They
compute with arrays of users × items in plain NumPy, and refuse data for which that would take long.
"""

import math
import warnings
from abc import ABC, abstractmethod
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from nbmf.backends.counts import take_unknown, without
from nbmf.estimators.base import Recommender
from nbmf.estimators.comparison_fit import CoupledFit, RidgeFit, seen_cells
from nbmf.estimators.factorization import Factorization
from nbmf.estimators.factorize import Data, as_number, check_seed, check_whole
from nbmf.estimators.fit import NewRows
from nbmf.inference.comparison import ExposedRidge, ascend
from nbmf.inference.progress import Progress
from nbmf.inference.run import Ending, Until
from nbmf.model.comparison import RandomGraphPoisson
from nbmf.model.factors import Array
from nbmf.model.likelihood import Likelihood

# measured with 2,000 × 2,000 cells, 352,000 of them counts, and K = 50, on two cores that were shared with other work:
# RandomGraphExposureMF 100 sweeps in 65 s and 0.6 GB, CoupledCompoundMF 100 in 127 s and 0.9 GB, ExpoMF 42 in 85 s and
# 0.4 GB
MOST_CELLS = 4_000_000
SPREAD = 0.01  # standard deviation of the factors that ExpoMF starts from


class SmallData(Recommender):
    """Base class of comparison models, which hold arrays of users × items."""

    backend = "reference"

    def _take(self, X: Any) -> Data:
        data = super()._take(X)
        self._check_size(data.matrix.shape)
        return data

    def _rows(self, X: Any, unknown_items: str | None = None, *, mapping: bool = False) -> NewRows:
        new = super()._rows(X, unknown_items, mapping=mapping)
        self._check_size(new.counts.shape, "give fewer rows at a time")
        return new

    def _become(self, result: Any) -> None:
        self._check_size(result.counts.shape)  # which may have grown
        super()._become(result)

    def _check_size(self, shape: tuple[int, ...], remedy: str = "sample users or items, or fit NBMF") -> None:
        if (n_cells := math.prod(shape)) > MOST_CELLS:
            raise ValueError(
                f"{shape[0]:,} users × {shape[1]:,} items are {n_cells:,} cells, and {type(self).__name__} is a "
                f"comparison model for at most {MOST_CELLS:,}; {remedy}"
            )


class RandomGraphExposureMF(SmallData, Factorization):
    """Comparison model: Poisson factorization with random-graph exposures, for at most 4 million cells.

    y_ui ~ Poisson(a_ui [WHᵀ]_ui), a_ui ~ Bernoulli(π_ui), after Paquet and Koenigstein (2013). Who has come across what
    is a random graph with the degrees of the data, π_ui = min(1, 2 d_u d_i / n): d_u and d_i are the numbers of the
    user's and the item's counts, n that of all counts, and 2 says that half of what users come across has no count.

    Scores are intensities, the expected counts of what the user has come across, so an item's popularity enters π but
    not the score. `predictive(users, items).mean` is the expected count πμ. A user or item that is added later has the
    typical degree, the geometric mean; one without counts is taken as having one.

    Parameters
    ----------
    n_components : int
        K, the number of components.

    The others are those of `NBMF`; the backend is "reference", and exposures are exact.

    Examples
    --------
    >>> model = RandomGraphExposureMF(2, random_state=0).fit([[9, 5, 0, 0], [7, 0, 0, 0], [0, 0, 8, 2], [0, 0, 3, 6]])
    >>> model.recommend(1, n=1).items  # the second item, of which the first user has 5
    array([[1]])
    """

    exposure = "exact"

    def __init__(
        self,
        n_components: int = 50,
        *,
        user_shape: float = 1.0,
        item_shape: float = 1.0,
        rates: str = "shared",
        shapes: str = "fixed",
        inference: str = "cavi",
        input: str = "counts",
        init: str | tuple[ArrayLike, ArrayLike] = "random",
        max_iter: int = 100,
        tol: float = 1e-5,
        accelerate: bool = False,
        n_threads: int | None = None,
        dtype: str = "float32",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self._keep(locals())

    def _likelihood(self) -> Likelihood:
        return RandomGraphPoisson()

    def _likelihood_for(self, data: Data, unknown: Any) -> Likelihood:
        return RandomGraphPoisson.of(without(data.matrix, take_unknown(unknown, data.users, data.items)))


class DenseModel(SmallData, ABC):
    """Base class of comparison models with an algorithm of their own."""

    def fit(self, X: Any, y: None = None) -> Self:
        """Factorize a users × items matrix of counts. Ctrl-C keeps the last finished sweep and warns.

        Parameters
        ----------
        X : Interactions, sparse matrix, array or data frame
            Of shape (n_users, n_items), any finite numbers from 0. What a sparse matrix does not store is a zero.
        """
        with self._refitting():
            self._check_settings()
            result = self._factorized(self._take(X))
            self._become(result)
        self._warn(result)
        return self

    def score_items(self, rows: NDArray[np.intp]) -> Array:
        """Return the scores of the users in these rows of the training data for all items: len(rows) × n_items."""
        return self._fit.score_rows(rows)

    @property
    def _fit(self) -> RidgeFit | CoupledFit:
        return cast("RidgeFit | CoupledFit", super()._fit)

    @abstractmethod
    def _factorized(self, data: Data) -> RidgeFit | CoupledFit:
        """Run the algorithm."""

    def _warn(self, result: RidgeFit | CoupledFit) -> None:
        """Warn of a fit that was cut short."""
        name, n_sweeps = type(self).__name__, len(result.objective)
        if result.ending is Ending.INTERRUPTED:
            warnings.warn(f"fit interrupted: the model is that of sweep {n_sweeps}", stacklevel=3)
        if result.ending is Ending.MAX_ITER and self.tol > 0:
            warnings.warn(
                f"{name} has not converged after max_iter={self.max_iter} sweeps: tol is {self.tol:g}; "
                f"try max_iter={2 * self.max_iter}",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _check_settings(self) -> None:
        super()._check_settings()
        check_whole("n_components", self.n_components)
        check_seed(self.random_state)


class ExpoMF(DenseModel):
    """Comparison model: exposure matrix factorization (Liang et al. 2016), for at most 4 million cells.

    A Gaussian model of whether there is a count: 1[y_ui > 0] ~ N(w_u·h_i, 1/λ) where a_ui = 1, and no count where
    a_ui = 0, with a_ui ~ Bernoulli(π_i). Expectation–maximization alternates between the probability that an item
    without a count was seen,

        E[a_ui] = π_i N(0 | w_u·h_i, 1/λ) / (π_i N(0 | w_u·h_i, 1/λ) + 1 − π_i),

    and ridge regressions of both sides that weigh each cell by it. With π = 1 this is a plain factorization of zeros
    and ones. Scores are π_i w_u·h_i, the expectation of whether there is a count, and may be negative.

    Parameters
    ----------
    n_components : int
        K, the number of components.
    precision : float
        λ, the precision of the Gaussian. From about 2π on, the model prefers to believe that everybody saw everything.
    user_penalty, item_penalty : float
        λ_w and λ_h, the precisions of the Gaussian priors on W and H. Few counts need small ones, or W and H shrink
        to 0; on 1,502 users × 786 items with 51,179 counts, 3 ranked better than 1.
    probability : float
        Where every π_i starts, above 0 and at most 1; at 1 it stays there.
    exposed_prior, unexposed_prior : float
        α and β of the prior Beta(α, β) on π_i, from 1; at 1 and 1, π_i is the mean of E[a_ui].
    max_iter, tol, n_threads, random_state, verbose
        As of `NBMF`.
    dtype : "float32" or "float64"
        Precision in which factors are kept; they are computed in double precision.

    Attributes
    ----------
    user_vectors_, item_vectors_ : array
        W (n_users × K) and H (n_items × K), of any sign.
    probability_ : array
        π, one per item.
    objective_ : array
        Log-density of the data, W, H and π after each sweep, up to a constant; higher is better.
    n_iter_, converged_, ending_, users_, items_, item_names_
        As of `NBMF`.

    Examples
    --------
    >>> model = ExpoMF(2, user_penalty=0.1, item_penalty=0.1, random_state=0).fit(
    ...     [[9, 5, 0, 0], [7, 0, 0, 0], [0, 0, 8, 2], [0, 0, 3, 6]]
    ... )
    >>> model.recommend(1, n=1).items  # the second item, of which the first user has 5
    array([[1]])
    """

    def __init__(
        self,
        n_components: int = 50,
        *,
        precision: float = 1.0,
        user_penalty: float = 1.0,
        item_penalty: float = 1.0,
        probability: float = 0.1,
        exposed_prior: float = 1.0,
        unexposed_prior: float = 1.0,
        max_iter: int = 100,
        tol: float = 1e-5,
        n_threads: int | None = None,
        dtype: str = "float32",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self._keep(locals())

    def _factorized(self, data: Data) -> RidgeFit:
        rng, (n_users, n_items) = check_random_state(self.random_state), data.matrix.shape
        users, items = (SPREAD * rng.standard_normal((n, self.n_components)) for n in (n_users, n_items))
        penalties = float(self.user_penalty), float(self.item_penalty)
        algorithm = ExposedRidge(
            float(self.precision), *penalties, float(self.exposed_prior), float(self.unexposed_prior)
        )
        seen, until = seen_cells(data.matrix), Until(self.max_iter, self.tol)
        start = algorithm.observe(seen, users, items, np.full(n_items, float(self.probability)))
        with Progress(type(self).__name__, self.max_iter, quiet=not self.verbose) as progress:
            last, ending = ascend(algorithm, start, seen, until, progress.report)
        return RidgeFit(
            **data_fields(data),
            objective=np.array(last.objectives),
            ending=ending,
            algorithm=algorithm,
            user_vectors=last.state.users.astype(self.dtype),
            item_vectors=last.state.items.astype(self.dtype),
            probability=last.state.probability,
        )

    def _become(self, result: RidgeFit) -> None:  # type: ignore[override]
        super()._become(result)
        self.user_vectors_, self.item_vectors_ = result.user_vectors, result.item_vectors
        self.probability_ = result.probability

    def _check_settings(self) -> None:
        super()._check_settings()
        for name in ("precision", "user_penalty", "item_penalty"):
            if not 1e-10 <= as_number(getattr(self, name)) <= 1e10:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be a number from 1e-10 to 1e10")
        if not 0 < as_number(self.probability) <= 1:
            raise ValueError(f"probability is {self.probability!r}; it must be above 0 and at most 1")
        for name in ("exposed_prior", "unexposed_prior"):
            if not 1 <= as_number(getattr(self, name)) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be a number from 1")


def data_fields(data: Data) -> dict[str, Any]:
    """Return the fields of every `FitResult` that come from the data."""
    return {
        "users": data.users,
        "items": data.items,
        "counts": data.matrix,
        "item_names": data.item_names,
        "has_feature_names": data.has_feature_names,
    }
