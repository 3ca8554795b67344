"""`NBSLIM`, the item–item member of the family: a user's expected counts are made of the user's other counts."""

import warnings
from collections.abc import Callable
from typing import Any, Self, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from nbmf.data.interactions import FORMS, formed
from nbmf.estimators.base import Recommender, one_of
from nbmf.estimators.factorize import Data, as_number, check_whole, more_sweeps
from nbmf.estimators.log_prob import log_probabilities
from nbmf.estimators.slim_fit import Regressions, fit, fit_plainly
from nbmf.estimators.weight_fit import WeightFit
from nbmf.inference.progress import QUIET_SECONDS, RunsProgress
from nbmf.inference.run import Ending
from nbmf.model.factors import Array
from nbmf.model.likelihood import NegativeBinomial

FEW_ITEMS, FEW_USERS = 5000, 300_000  # up to which every item may be every other's neighbour
NEIGHBORS = 200


class NBSLIM(Recommender):
    """A negative binomial model of each item given the others: t_ui ~ NB(α, mean μ_ui), μ_ui = b_i + Σ_{j≠i} x_uj B_ji.

    x and t are the user's counts or their logarithms, and B ≥ 0 has an exponential prior. It needs no random start, and
    a new user is one product. An item's weights start equal and move apart only as far as its users' counts support: an
    item stops when a sweep adds less than `tol` to its log-likelihood, rare items after few sweeps, popular ones after
    many. Sweeping to the end would fit the data better and rank worse.

    Parameters
    ----------
    concentration : float
        α, as for `NBMF`. Logarithms of counts vary less than counts, so it is larger here.
    penalty : float
        ρ, the rate of the exponential prior on the weights. A neighbour that few users have counts less.
    input : "log1p", "binary" or "counts"
        x: ln(1 + y), whether there is a count, or y.
    target : "log1p", "binary" or "counts"
        t, likewise. Scores are expected targets, and expected counts only for "counts".
    n_neighbors : int, None or "auto"
        Largest number of neighbours of an item, those that most often go with it. None allows all others, which takes
        memory for n_items² weights and 192 numbers per user and thread. "auto" is None up to 5,000 items and 300,000
        users, and 200 beyond.
    max_iter : int
        Largest number of sweeps.
    tol : float
        An item stops when a sweep adds no more than this to its own objective, in nats.
    accelerate : bool
        Take longer steps as long as they raise the objective: the same objective in two thirds of the sweeps.
    backend : "auto", "cpu" or "reference"
        Threads ("auto" and "cpu"), or plain NumPy with dense arrays, for small data.
    n_threads : int, optional
        Number of threads, all cores by default. Results are identical for any number.
    dtype : "float32" or "float64"
        Precision of the weights; sums are in double precision either way.
    verbose : bool
        Whether to show progress on standard error.

    Attributes
    ----------
    weights_ : array or csr_array
        B, n_items × n_items: one unit of input of item j adds weights_[j, i] to item i; sparse where items have few
        neighbours.
    intercept_ : array
        b, one per item.
    objective_ : array
        Log-likelihood of the targets less ρ ΣB, after each sweep; higher is better.
    n_iter_, converged_, ending_ : int, bool, str
        As of `NBMF`; converged if every item stopped by `tol`.
    users_, items_, item_names_ : array
        As of `NBMF`.

    Examples
    --------
    >>> import nbmf
    >>> users = ["ann", "ann", "bob", "cy", "cy", "dee", "dee"]
    >>> items = ["jazz", "blues", "jazz", "punk", "ska", "punk", "ska"]
    >>> data = nbmf.Interactions.from_arrays(users, items, [9, 5, 7, 8, 2, 3, 6])
    >>> model = nbmf.NBSLIM(penalty=1.0).fit(data)
    >>> model.recommend("bob", n=1).items
    array([['blues']], dtype='<U5')
    """

    def __init__(
        self,
        *,
        concentration: float = 3.0,
        penalty: float = 20.0,
        input: str = "log1p",
        target: str = "log1p",
        n_neighbors: int | str | None = "auto",
        max_iter: int = 100,
        tol: float = 5.0,
        accelerate: bool = True,
        backend: str = "auto",
        n_threads: int | None = None,
        dtype: str = "float32",
        verbose: bool = False,
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: None = None) -> Self:
        """Find the weights from a users × items matrix of counts.

        Parameters
        ----------
        X : Interactions, sparse matrix, array or data frame
            Of shape (n_users, n_items), any finite numbers from 0. What a sparse matrix does not store is a zero.
        """
        with self._refitting():
            self._check_settings()
            self._become(self._weigh(self._take(X)))
        return self

    def _weigh(self, data: Data) -> WeightFit:
        x, t = (formed(data.matrix, form, self.dtype) for form in (self.input, self.target))
        problem = Regressions(x, t, float(self.concentration), float(self.penalty))
        ending: dict[str, Any] = {"max_iter": self.max_iter, "tol": self.tol, "accelerate": self.accelerate}
        ending["n_neighbors"] = self._most_neighbors(*data.matrix.shape)
        name, quiet = type(self).__name__, not self.verbose
        with RunsProgress(name, compiles=True, what="items", pause=QUIET_SECONDS, quiet=quiet) as progress:
            if self.backend == "reference":
                found = fit_plainly(problem, **ending)
            else:
                show: Callable[[int, int], None] = lambda done, total: progress.report(done, total, done / total)  # noqa: E731
                found = fit(problem, **ending, n_threads=self.n_threads, report=show)
        if not found.settled and self.tol > 0:
            warnings.warn(
                f"{name} has not converged after max_iter={self.max_iter} sweeps: the last one added more than tol="
                f"{self.tol:g} to the objective of some items; {more_sweeps(self)}",
                ConvergenceWarning,
                stacklevel=3,
            )
        return WeightFit(
            **data.result(found.objective, Ending.CONVERGED if found.settled else Ending.MAX_ITER),
            input=self.input,
            target=self.target,
            concentration=float(self.concentration),
            weights=found.weights,
            intercept=found.intercept,
        )

    def score_items(self, rows: NDArray[np.intp]) -> Array:
        """Return the scores of the users in these rows of the training data for all items: len(rows) × n_items."""
        return self._fit.intensities(self._fit.counts[rows])

    def score(self, X: Any, y: None = None) -> float:
        """Return the mean of ln p(t) over the cells of X, larger is better: how well the others predict each item.

        No cell's own count is among its predictors. This is a likelihood of counts only for target="counts"; compare
        only models with the same target.
        """
        rows, fit = self._rows(X), self._fit
        targets, nothing = formed(rows.counts, fit.target, np.float64), sp.csr_array(rows.counts.shape, dtype=np.int8)
        scores = fit.scores_of(rows, self._resources)
        likelihood = NegativeBinomial(fit.concentration)
        total = log_probabilities(likelihood, scores, targets, nothing, n_threads=self.n_threads)
        return float(total.mean() / rows.counts.shape[1])

    @property
    def _fit(self) -> WeightFit:
        return cast("WeightFit", super()._fit)

    def _become(self, result: WeightFit) -> None:  # type: ignore[override]
        super()._become(result)
        self.weights_, self.intercept_ = result.weights, result.intercept
        self.__dict__.pop("concentration_", None)
        if result.target == "counts":  # otherwise it is not a parameter of the counts
            self.concentration_ = result.concentration

    def _most_neighbors(self, n_users: int, n_items: int) -> int | None:
        if self.n_neighbors == "auto":
            return None if n_items <= FEW_ITEMS and n_users <= FEW_USERS else NEIGHBORS
        return self.n_neighbors if self.n_neighbors is None else int(self.n_neighbors)

    def _check_settings(self) -> None:
        super()._check_settings()
        if not 1e-30 < as_number(self.concentration) < 1e30:
            raise ValueError(f"concentration is {self.concentration!r}; it must be a positive number")
        if not 0 <= as_number(self.penalty) < 1e30:
            raise ValueError(f"penalty is {self.penalty!r}; it must be a number from 0")
        for name in ("input", "target"):
            one_of(name, getattr(self, name), FORMS)
        one_of("backend", self.backend, ("auto", "cpu", "reference"))
        if self.n_neighbors not in ("auto", None):
            check_whole("n_neighbors", self.n_neighbors, ", None for all items, or 'auto'")
