"""The estimators a user meets: counts in, factors and recommendations out."""

from dataclasses import replace
from typing import Any

import scipy.sparse as sp
from numpy.typing import ArrayLike

from nbmf.estimators.factorization import Factorization
from nbmf.inference.hyperparameters import Learned
from nbmf.model.likelihood import Likelihood, NegativeBinomial, Poisson

LEARNED = {"learn": "all", "learn_per_user": "user", "learn_per_item": "item"}


class NBMF(Factorization):
    """Negative binomial matrix factorization: y_ui ~ Poisson(a_ui [WHᵀ]_ui), a_ui ~ Gamma(α, α).

    Parameters
    ----------
    n_components : int
        K, the number of components.
    concentration : float or str
        α. The variance of a count with mean μ is μ(1 + μ/α), so large α is close to Poisson. "learn" finds it from the
        data, between 0.001 and 10,000; "learn_per_user" and "learn_per_item" (exact exposures only) find one each. The
        most likely α is often smaller than the one that ranks best, which `nbmf.tune` looks for.
    user_shape, item_shape : float
        α^W and α^H, the shapes of the gamma priors ("cavi"). Below 1 favours sparse factors.
    rates : "shared" or "per_row"
        "shared" is the paper's choice: one learned β^H for all items, and β^W = α^W. "per_row" learns a rate for every
        user and item, as in hierarchical Poisson factorization ("cavi").
    shapes : "fixed" or "learn"
        Whether to learn the shapes, starting from user_shape and item_shape ("cavi").
    inference : "cavi" or "mm"
        Variational Bayes (Algorithm 1), or maximum likelihood (Eqs. nmfH, nmfW).
    input : "counts", "log1p" or "binary"
        What the likelihood sees of a count y: y, ln(1 + y), or whether there is one. Expected counts, exposures, parts
        and `score` are then those of the transformed count, and after "log1p" there is no distribution of counts.
        Counts of hundreds or thousands, which exposures do not absorb, need "log1p".
    exposure : "auto", "exact" or "tied"
        "exact" gives every cell its own exposure. "tied" lets the zero cells of a user share one in each cluster of
        items, which costs no more than the non-zeros do. "auto" is exact while there are at most 32 cells per non-zero
        count (the cells then cost about as much as the non-zeros) or 4 million cells in all.
    n_clusters : int
        Number of item clusters if exposures are tied.
    init : "random" or pair of arrays
        Where the factors start: every entry from Gamma(1, 1), or positive arrays, users × K and items × K.
    max_iter : int
        Largest number of sweeps.
    tol : float
        Stop when a sweep raises the objective by less than this, relatively (τ); 0 never stops early.
    accelerate : bool
        Extrapolate each sweep along the last two while the objective rises: far fewer sweeps to the same objective.
        `tol` is then compared with the mean gain of the last 20 sweeps.
    backend : str
        "cpu" (threads), "gpu" or "gpu-bf16" (one CUDA device, see docs/scale.md), "reference" (plain NumPy with dense
        arrays, for small data), or "auto", which takes a GPU where there is one and it pays.
    n_threads : int, optional
        Number of threads, all cores by default. Results are identical for any number.
    dtype : "float32" or "float64"
        Precision of the factors; sums are in double precision either way.
    random_state : int, RandomState or None
        Seed of the start.
    verbose : bool
        Whether to show progress on standard error.

    Attributes
    ----------
    user_factors_, item_factors_ : array
        Posterior means ⟨W⟩ (n_users × K) and ⟨H⟩ (n_items × K); components_ is ⟨H⟩ᵀ.
    user_posterior_, item_posterior_ : Gamma or Point
        Of `nbmf.model.factors`: gammas for "cavi", points for "mm".
    objective_ : array
        ELBO ("cavi") or log-likelihood ("mm") after each sweep; higher is better.
    n_iter_, converged_, ending_ : int, bool, str
        Number of sweeps, whether `tol` ended them, and how they ended: "converged", "max_iter", "stopped" (by a
        callback or by `stopping`) or "interrupted" (by Ctrl-C).
    concentration_, exposure_ : float or array, str
        What was used. A concentration per user is an array n_users × 1, one per item 1 × n_items.
    users_, items_, item_names_ : array
        Ids of the rows and columns, and the items' names where the data had them, otherwise None.

    Examples
    --------
    >>> import nbmf
    >>> users = ["ann", "ann", "bob", "cy", "cy", "dee", "dee"]
    >>> items = ["jazz", "blues", "jazz", "punk", "ska", "punk", "ska"]
    >>> data = nbmf.Interactions.from_arrays(users, items, [9, 5, 7, 8, 2, 3, 6])
    >>> model = nbmf.NBMF(n_components=2, random_state=0).fit(data)
    >>> model.recommend("bob", n=1).items
    array([['blues']], dtype='<U5')
    """

    def __init__(
        self,
        n_components: int = 50,
        *,
        concentration: float | str = 1.0,
        user_shape: float = 1.0,
        item_shape: float = 1.0,
        rates: str = "shared",
        shapes: str = "fixed",
        inference: str = "cavi",
        input: str = "counts",
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
        if not isinstance(self.concentration, str):
            return NegativeBinomial(self.concentration)
        if self.concentration not in LEARNED:
            raise ValueError(
                f"concentration is {self.concentration!r}; it must be a positive number or one of "
                f"{', '.join(map(repr, LEARNED))}"
            )
        return NegativeBinomial(1.0)  # where learning starts

    def _learned(self) -> Learned:
        group = LEARNED[self.concentration] if isinstance(self.concentration, str) else ""
        return replace(super()._learned(), likelihood=group)

    def _n_ties(self, matrix: sp.csr_array, likelihood: Likelihood) -> int | None:
        return self._untied_items(super()._n_ties(matrix, likelihood), matrix, "concentration")


class PoissonMF(Factorization):
    """Poisson factorization, the baseline: y_ui ~ Poisson([WHᵀ]_ui), on raw counts or on whether there are any.

    Parameters
    ----------
    binarize : bool
        Whether to replace every positive count by 1 before the fit: another way to say input="binary".

    The others are those of `NBMF`.

    Examples
    --------
    >>> PoissonMF(n_components=1, random_state=0).fit([[4, 0], [2, 2]]).predict([0, 1], [0, 0]).round(0)
    array([3., 3.], dtype=float32)
    """

    def __init__(
        self,
        n_components: int = 50,
        *,
        binarize: bool = False,
        user_shape: float = 1.0,
        item_shape: float = 1.0,
        rates: str = "shared",
        shapes: str = "fixed",
        inference: str = "cavi",
        input: str = "counts",
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
        return Poisson()

    def _input(self) -> str:
        form = super()._input()
        if self.binarize and form == "log1p":
            raise ValueError("binarize is True, which means input='binary', but input is 'log1p'; give one of them")
        return "binary" if self.binarize else form
