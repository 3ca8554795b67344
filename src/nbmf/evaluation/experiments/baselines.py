"""The models that can be compared: ours and the common alternatives, each fitted by a function of the same form.

Models of real numbers may be given the counts, log(1 + count) or 0/1 as their input, whichever ranks best. Iterations
are limited so that a dozen trials of every model take minutes on half a million non-zero counts.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import lapack
from threadpoolctl import threadpool_limits

from nbmf.data import how_to_install
from nbmf.data.interactions import Interactions
from nbmf.estimators.averaged import Averaged
from nbmf.estimators.family import BinaryMF, CompoundMF, RobustMF, ZeroInflatedMF
from nbmf.estimators.nbmf import NBMF, PoissonMF
from nbmf.estimators.slim import NBSLIM
from nbmf.evaluation.evaluate import Judged

Rows = NDArray[np.intp]
Array = NDArray[np.float32]
Space = Mapping[str, tuple[Any, ...]]
"""The values to search for each setting: two numbers are the ends of a range, searched on a log scale and in whole
numbers if both are; strings are the choices."""

_FORMS: dict[str, Callable[[Any], Any]] = {"counts": np.asarray, "log1p": np.log1p, "binary": np.ones_like}
INPUTS = tuple(_FORMS)


@dataclass(frozen=True)
class Baseline:
    """A model that can be compared."""

    label: str  # its name in tables
    fit: Callable[..., Judged]  # (train, seed, n_threads, **settings) → a model that `nbmf.evaluate` accepts
    defaults: Mapping[str, Any]  # all settings, as its authors publish them or its package sets them
    space: Space  # where to search for better ones
    random: bool = True  # whether the seed changes the result
    package: str = ""  # what it needs in addition to nbmf's own dependencies


@dataclass(frozen=True)
class ItemWeights:
    """A model with scores Σ_j x_uj B_ji: `inputs` x are users × items, `weights` B items × items."""

    inputs: sp.csr_array
    weights: Any

    def score_items(self, rows: Rows) -> Array:
        """Return the scores of these users for all items: len(rows) × n_items."""
        scores = self.inputs[rows] @ self.weights
        return np.asarray(scores.toarray() if sp.issparse(scores) else scores)


class Popularity:
    """The baseline without personalization: an item's score is its number of users."""

    def __init__(self, train: Interactions) -> None:
        self.n_users = np.bincount(train.matrix.indices, minlength=train.n_items).astype(float)

    def score_items(self, rows: Rows) -> NDArray[np.float64]:
        """Return the same scores for every user."""
        return np.tile(self.n_users, (len(rows), 1))


def in_form(train: Interactions, form: str) -> sp.csr_array:
    """Return the counts in single precision in one of the forms of INPUTS, users × items."""
    if form not in _FORMS:
        raise ValueError(f"input is {form!r}; it must be one of {', '.join(map(repr, _FORMS))}")
    matrix = train.matrix
    return sp.csr_array((_FORMS[form](matrix.data.astype(np.float32)), matrix.indices, matrix.indptr), matrix.shape)


def fit_knn(train: Interactions, seed: int, n_threads: int, *, neighbors: int, weighting: str, input: str) -> Judged:
    """Fit item-based nearest neighbours (implicit)."""
    from implicit import nearest_neighbours as package  # noqa: PLC0415 (an extra)

    kind = {"cosine": "CosineRecommender", "tfidf": "TFIDFRecommender", "bm25": "BM25Recommender"}[weighting]
    inputs, model = in_form(train, input), getattr(package, kind)(K=neighbors, num_threads=n_threads)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Method expects CSR input")  # it makes the conversion itself
        model.fit(sp.csr_matrix(inputs), show_progress=False)
    return ItemWeights(inputs, sp.csr_array(model.similarity.astype(np.float32)))


def fit_ease(train: Interactions, seed: int, n_threads: int, *, penalty: float, input: str) -> Judged:
    """Fit EASE (Steck, Embarrassingly shallow autoencoders for sparse data, 2019) in closed form.

    B = argmin ‖X − XB‖² + λ‖B‖² with a diagonal of 0: with P = (XᵀX + λI)⁻¹, B_ji = −P_ji / P_ii off the diagonal.
    """
    inputs = in_form(train, input)
    with threadpool_limits(n_threads, user_api="blas"):
        return ItemWeights(inputs, ease_weights(inputs, penalty))


def ease_weights(inputs: sp.csr_array, penalty: float) -> Array:
    """Return B, items × items, for the inputs X, users × items."""
    gram = np.asfortranarray((inputs.T @ inputs).toarray())
    gram[np.diag_indices_from(gram)] += np.float32(penalty)
    factor, failed = lapack.spotrf(gram, lower=True, overwrite_a=True)
    inverse, failed_too = lapack.spotri(factor, lower=True, overwrite_c=True)
    if failed or failed_too:
        raise ValueError(f"penalty {penalty} is too small for single precision; the matrix cannot be inverted")
    below = np.tril(inverse, -1)
    return np.asarray((below + below.T) / -np.diag(inverse), np.float32)


def fit_implicit(
    kind: str, train: Interactions, seed: int, n_threads: int, *, input: str = "binary", **settings: Any
) -> Judged:
    """Fit a factorization of the package implicit, given as module.Class."""
    module, _, name = kind.rpartition(".")
    make = getattr(import_module(module), name)
    with threadpool_limits(1, user_api="blas"):  # it has threads of its own, and warns of others
        model = make(num_threads=n_threads, random_state=seed, **settings)
        model.fit(sp.csr_matrix(in_form(train, input)), show_progress=False)
    return model.user_factors, model.item_factors


def fit_hpf(
    train: Interactions, seed: int, n_threads: int, *, components: int, iterations: int, input: str, **shapes: float
) -> Judged:
    """Fit hierarchical Poisson factorization (hpfrec)."""
    import hpfrec  # noqa: PLC0415

    model = hpfrec.HPF(
        k=components, maxiter=iterations, check_every=iterations, stop_crit="maxiter", ncores=n_threads,
        random_seed=seed + 1,  # it takes 0 for no seed
        reindex=False, verbose=False, keep_data=False, keep_all_objs=False, produce_dicts=False, **shapes,
    )  # fmt: skip
    model.fit(in_form(train, input).tocoo())
    found = (model.Theta, train.n_users), (model.Beta, train.n_items)
    users, items = (np.pad(rows, ((0, n - len(rows)), (0, 0))) for rows, n in found)  # it omits the last without counts
    return users, items


def fit_kl_nmf(
    train: Interactions, seed: int, n_threads: int, *, components: int, penalty: float, iterations: int, input: str
) -> Judged:
    """Fit KL-divergence nonnegative matrix factorization by multiplicative updates (scikit-learn)."""
    from sklearn.decomposition import NMF  # noqa: PLC0415

    model = NMF(
        components, solver="mu", beta_loss="kullback-leibler", init="random", alpha_W=penalty, max_iter=iterations,
        tol=0.0, random_state=seed,
    )  # fmt: skip
    with threadpool_limits(n_threads, user_api="blas"):
        users = model.fit_transform(sp.csr_matrix(in_form(train, input)))
    return users, model.components_.T


def _fit_own(make: Callable[..., Any], train: Interactions, seed: int, n_threads: int, **settings: Any) -> Judged:
    return cast(Judged, make(random_state=seed, n_threads=n_threads, **settings).fit(train))


def check_installed(model: str) -> None:
    """Raise ModuleNotFoundError, with the command to type, if a model's package is missing."""
    package = BASELINES[model].package
    if package and find_spec(package) is None:
        raise ModuleNotFoundError(f"the model {model} needs the package {package}; {how_to_install('bench')}")


def _own_defaults(estimator: Any, *names: str) -> dict[str, Any]:
    return {name: estimator.get_params(deep=False)[name] for name in names}


_PF_SPACE: Space = {
    "n_components": (5, 200),
    "user_shape": (0.1, 3.0),
    "item_shape": (0.1, 3.0),
    "rates": ("shared", "per_row"),
    "max_iter": (30, 300),
}
_NB_SPACE: Space = {**_PF_SPACE, "concentration": (0.1, 10.0), "input": ("counts", "log1p")}
_SLIM_SPACE: Space = {
    "concentration": (0.3, 30.0),
    "penalty": (3.0, 100.0),
    "input": INPUTS,
    "target": INPUTS,
    "tol": (0.5, 10.0),
}
_JUMP_SPACE: Space = {**_PF_SPACE, "jump": ("learn", "learn_per_item")}
_ZERO_SPACE: Space = {**_PF_SPACE, "probability": ("learn", "learn_per_user")}
_ROBUST_SPACE: Space = {**_PF_SPACE, "penalty": (3.0, 300.0)}
_PF_DEFAULTS = _own_defaults(PoissonMF(), *_PF_SPACE, "tol")
_NB_DEFAULTS = _own_defaults(NBMF(), *_PF_SPACE, "tol", "concentration", "input")

BASELINES: dict[str, Baseline] = {
    "popularity": Baseline("popularity", lambda train, seed, n_threads: Popularity(train), {}, {}, random=False),
    "knn": Baseline(
        "item kNN",
        fit_knn,
        {"neighbors": 20, "weighting": "cosine", "input": "counts"},
        {"neighbors": (5, 1000), "weighting": ("cosine", "tfidf", "bm25"), "input": INPUTS},
        random=False,
        package="implicit",
    ),
    "ease": Baseline(
        "EASE",
        fit_ease,
        {"penalty": 500.0, "input": "binary"},
        {"penalty": (10.0, 5000.0), "input": INPUTS},
        random=False,
    ),
    "als": Baseline(
        "ALS",  # weighted matrix factorization by alternating least squares
        partial(fit_implicit, "implicit.cpu.als.AlternatingLeastSquares"),
        {"factors": 100, "regularization": 0.01, "alpha": 1.0, "iterations": 15, "input": "counts"},
        {
            "factors": (20, 200),
            "regularization": (1.0, 300.0),
            "alpha": (0.3, 10.0),
            "iterations": (5, 30),
            "input": INPUTS,
        },
        package="implicit",
    ),
    "bpr": Baseline(
        "BPR",  # Bayesian personalized ranking, which ignores the counts' sizes
        partial(fit_implicit, "implicit.cpu.bpr.BayesianPersonalizedRanking"),
        {"factors": 100, "learning_rate": 0.01, "regularization": 0.01, "iterations": 100},
        {"factors": (10, 200), "learning_rate": (0.003, 0.1), "regularization": (0.001, 0.5), "iterations": (20, 200)},
        package="implicit",
    ),
    "hpf": Baseline(
        "hpfrec",
        fit_hpf,
        {"components": 30, "a": 0.3, "c": 0.3, "iterations": 100, "input": "counts"},
        {"components": (5, 100), "a": (0.05, 1.0), "c": (0.05, 1.0), "iterations": (20, 100), "input": INPUTS},
        package="hpfrec",
    ),
    "kl-nmf": Baseline(
        "KL-NMF",
        fit_kl_nmf,
        {"components": 20, "penalty": 0.0, "iterations": 100, "input": "counts"},
        {"components": (5, 100), "penalty": (1e-5, 1e-2), "iterations": (20, 100), "input": INPUTS},
    ),
    "poisson": Baseline("PF", partial(_fit_own, PoissonMF), _PF_DEFAULTS, _PF_SPACE),
    "binary": Baseline("binarized PF", partial(_fit_own, partial(PoissonMF, binarize=True)), _PF_DEFAULTS, _PF_SPACE),
    "nbmf": Baseline("NBMF", partial(_fit_own, NBMF), _NB_DEFAULTS, _NB_SPACE),
    "compound": Baseline(
        "CompoundMF", partial(_fit_own, CompoundMF), _own_defaults(CompoundMF(), *_JUMP_SPACE, "tol"), _JUMP_SPACE
    ),
    "compound-geometric": Baseline(
        "CompoundMF, geometric",
        partial(_fit_own, partial(CompoundMF, jumps="geometric")),
        _own_defaults(CompoundMF(), *_JUMP_SPACE, "tol"),
        _JUMP_SPACE,
    ),
    "zero-inflated": Baseline(
        "ZeroInflatedMF",
        partial(_fit_own, ZeroInflatedMF),
        _own_defaults(ZeroInflatedMF(), *_ZERO_SPACE, "tol"),
        _ZERO_SPACE,
    ),
    "robust": Baseline(
        "RobustMF", partial(_fit_own, RobustMF), _own_defaults(RobustMF(), *_ROBUST_SPACE, "tol"), _ROBUST_SPACE
    ),
    "bernoulli": Baseline(
        "BinaryMF", partial(_fit_own, BinaryMF), _own_defaults(BinaryMF(), *_PF_SPACE, "tol"), _PF_SPACE
    ),
    "averaged": Baseline(
        "NBMF, 5 starts averaged",
        partial(_fit_own, lambda random_state, **own: Averaged(NBMF(**own), n_runs=5, random_state=random_state)),
        _NB_DEFAULTS,
        {**_NB_SPACE, "n_components": (5, 100), "max_iter": (30, 150)},
    ),
    "nbslim": Baseline(
        "NBSLIM",
        lambda train, seed, n_threads, **own: NBSLIM(n_threads=n_threads, **own).fit(train),
        _own_defaults(NBSLIM(), *_SLIM_SPACE),
        _SLIM_SPACE,
        random=False,
    ),
}
"""The models by the names typed on the command line."""
