"""The common alternatives to our models, each fitted by a function of the same form.

A fit takes (train, seed, n_threads, **settings) and returns what `nbmf.evaluate` accepts as a model. Models of real
numbers may be given the counts, log(1 + count) or 0/1 as their input, whichever ranks best.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import lapack
from threadpoolctl import threadpool_limits

from nbmf.data.interactions import Interactions
from nbmf.evaluation.evaluate import Judged

Rows = NDArray[np.intp]
Array = NDArray[np.float32]

_FORMS: dict[str, Callable[[Any], Any]] = {"counts": np.asarray, "log1p": np.log1p, "binary": np.ones_like}
INPUTS = tuple(_FORMS)


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


def fit_ease(
    train: Interactions, seed: int, n_threads: int, *, penalty: float, input: str, dropout: float = 0.0
) -> Judged:
    """Fit EASE (Steck, Embarrassingly shallow autoencoders for sparse data, 2019) in closed form, or EDLAE.

    B = argmin ‖X − XB‖² + ‖Λ^½ B‖² with a diagonal of 0: with P = (XᵀX + Λ)⁻¹, B_ji = −P_ji / P_ii off the diagonal.
    EASE has Λ = λI. EDLAE (Steck, Autoencoders that don't overfit towards the identity, 2020) predicts an input from
    the others, each of which is dropped with probability p: Λ = λI + p/(1 − p) diag(XᵀX).
    """
    inputs = in_form(train, input)
    with threadpool_limits(n_threads, user_api="blas"):
        return ItemWeights(inputs, ease_weights(inputs, penalty, dropout))


def ease_weights(inputs: sp.csr_array, penalty: float, dropout: float = 0.0) -> Array:
    """Return B, items × items, for the inputs X, users × items."""
    gram = np.asfortranarray((inputs.T @ inputs).toarray())
    diagonal = np.diag_indices_from(gram)
    gram[diagonal] += np.float32(penalty) + np.float32(dropout / (1 - dropout)) * gram[diagonal]
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


def fit_slim(
    train: Interactions, seed: int, n_threads: int, *, l1: float, l2: float, iterations: int, input: str
) -> Judged:
    """Fit SLIM (Ning, Karypis 2011), nonnegative weights with an elastic net (fastslim)."""
    import fastslim  # noqa: PLC0415

    inputs = in_form(train, input)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fastslim.ConvergenceWarning)  # iterations are a setting, as in other models
        weights = fastslim.fit(inputs, l1, l2, max_iter=iterations, n_threads=n_threads)
    return ItemWeights(inputs, sp.csr_array(weights.astype(np.float32)))


def fit_rp3beta(
    train: Interactions, seed: int, n_threads: int, *, neighbors: int, input: str, **exponents: float
) -> Judged:
    """Fit RP3β (Paudel et al. 2017): random walks of three steps, with a penalty for popular items (irspack)."""
    from irspack import RP3betaRecommender  # noqa: PLC0415

    inputs = in_form(train, input)
    model = RP3betaRecommender(sp.csr_matrix(inputs), top_k=neighbors, n_threads=n_threads, **exponents).learn()
    return ItemWeights(inputs, sp.csr_array(model.W.astype(np.float32)))


def fit_ials(
    train: Interactions, seed: int, n_threads: int, *, factors: int, iterations: int, input: str, **weights: float
) -> Judged:
    """Fit weighted matrix factorization with penalties scaled by frequency (Rendle et al. 2022; irspack).

    The loss is Σ y_ui (w_u·h_i − 1)² over the non-zero inputs y, plus α₀ Σ (w_u·h_i)² over all cells, plus
    λ Σ_u (N_u + α₀ I)‖w_u‖² and likewise for items, where N_u is a user's number of items. `weights` are α₀ (alpha0)
    and λ (reg).
    """
    from irspack import IALSRecommender  # noqa: PLC0415

    model = IALSRecommender(
        sp.csr_matrix(in_form(train, input)), n_components=factors, nu=1.0, random_seed=seed, n_threads=n_threads,
        **weights,
    )  # fmt: skip
    model.start_learning()
    for _ in range(iterations):  # its `learn` would draw a progress bar
        model.run_epoch()
    return model.get_user_embedding(), model.get_item_embedding()
