"""Draws from the model, without making a users × items array.

    w_uk ~ Gamma(α^W, β^W),   h_ik ~ Gamma(α^H, β^H),   y_ui ~ Poisson(a_ui μ_ui),   a_ui ~ Gamma(α, α),   μ = W Hᵀ

so that y_ui ~ NB(α, p_ui), p = μ/(μ+α). Such a count is the sum of N ~ Poisson(λ) parts, λ = α ln(1 + μ/α), each from
the logarithmic distribution P(n) ∝ pⁿ/n: its generating function exp(λ (ln(1−pz)/ln(1−p) − 1)) is ((1−p)/(1−pz))^α,
that of NB(α, p), since λ = −α ln(1−p). As λ ≤ μ, we scatter points of rate μ, component by component, and keep each
with probability λ/μ: thinned Poisson points are Poisson points. The work grows with their number, the sum of all μ.
"""

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.data.interactions import Interactions, canonical
from nbmf.model.likelihood import NegativeBinomial

Array = NDArray[np.float64]

BLOCK_POINTS = 1 << 20
MOST_POINTS = 1 << 31


@dataclass(frozen=True, repr=False, eq=False)
class Simulation(Interactions):
    """Interactions drawn from the model, with the factors that they were drawn from. Filters select the factors too.

    Attributes
    ----------
    user_factors, item_factors : ndarray
        W, n_users × K, and H, n_items × K.
    concentration : float
        α.
    """

    user_factors: Array = field(kw_only=True)
    item_factors: Array = field(kw_only=True)
    concentration: float = field(kw_only=True)

    def select_users(self, rows: NDArray[np.intp]) -> Self:
        """Keep the users at these positions, which must ascend, with their factors."""
        return replace(super().select_users(rows), user_factors=self.user_factors[rows])

    def select_items(self, columns: NDArray[np.intp]) -> Self:
        """Keep the items at these positions, which must ascend, with their factors."""
        return replace(super().select_items(columns), item_factors=self.item_factors[columns])


def simulate(
    n_users: int | None = None,
    n_items: int | None = None,
    *,
    n_components: int = 10,
    concentration: float = 1.0,
    mean_count: float | None = None,
    like: Interactions | None = None,
    seed: int = 0,
    **shapes: float,
) -> Simulation:
    """Draw interactions from the model: gamma factors, then negative binomial counts.

    Cite: Gouvert, Oberlin, Févotte, Negative Binomial Matrix Factorization for Recommender Systems.

    Parameters
    ----------
    n_users, n_items : int
        Sizes, by default 1000 and 500. Some users and items may have no counts.
    n_components, concentration : int and float
        K, and α; an infinite α draws Poisson counts.
    mean_count : float
        Mean over all cells, zeros included, by default 0.1.
    like : Interactions
        Imitate this data instead of giving sizes and a mean: in expectation each row, each column and the whole have as
        many non-zeros as the data. The rows of W and H are gamma draws, scaled to sums that depend on these numbers
        alone. Which items go together and how large the non-zeros are is not imitated.
    seed : int
        Seed of NumPy's legacy generator.

    Other Parameters
    ----------------
    user_shape, item_shape : float
        α^W and α^H, by default 1. β^W = α^W, so that users' factors have mean 1; β^H follows from the mean count.

    Returns
    -------
    Simulation
        Interactions with the ids 0, 1, 2, … Memory grows with the non-zeros and the factors, time with the sum of μ.

    Examples
    --------
    >>> data = simulate(200, 100, n_components=3, mean_count=0.2)
    >>> data.user_factors.shape, data.item_factors.shape
    ((200, 3), (100, 3))
    >>> intensity = data.user_factors @ data.item_factors.T
    >>> bool(abs(data.matrix.sum() / intensity.sum() - 1) < 0.05)
    True
    """
    if concentration != math.inf:
        NegativeBinomial(concentration)  # checks it
    user_shape, item_shape = (shapes.pop(name, 1.0) for name in ("user_shape", "item_shape"))
    if shapes:
        raise TypeError(f"simulate() got an unexpected keyword argument {next(iter(shapes))!r}")
    for name, value in (("n_components", n_components), ("user_shape", user_shape), ("item_shape", item_shape)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}; it must be positive")
    rng = np.random.RandomState(seed)
    if like is None:
        sizes = (1000 if n_users is None else n_users, 500 if n_items is None else n_items)
        mean = 0.1 if mean_count is None else mean_count
        if min(sizes) < 1 or not 0 < mean < math.inf:
            raise ValueError(f"{sizes[0]} users × {sizes[1]} items with mean count {mean}: all three must be positive")
        W = rng.gamma(user_shape, 1 / user_shape, (sizes[0], n_components))
        H = rng.gamma(item_shape, mean / (n_components * item_shape), (sizes[1], n_components))
    elif n_users is None and n_items is None and mean_count is None:
        W, H = _factors_like(like, n_components, concentration, (user_shape, item_shape), rng)
    else:
        raise ValueError("like= brings its own sizes and mean; leave out n_users, n_items and mean_count")
    counts = draw_counts(W, H, concentration, rng)
    users, items = np.arange(len(W)), np.arange(len(H))
    return Simulation(users, items, counts, user_factors=W, item_factors=H, concentration=concentration)


def draw_counts(W: Array, H: Array, concentration: float, rng: np.random.RandomState) -> sp.csr_array:
    """Draw independent y_ui ~ NB(α, μ/(μ+α)), μ = WHᵀ, as derived at the top of this file."""
    expected = np.cumsum(W @ H.sum(axis=0))
    if not expected[-1] < MOST_POINTS:
        points = f"the intensities add up to {expected[-1]:.2g}, which is about how many points would be drawn"
        remedy = "ask for fewer users or items, a lower mean, or a larger concentration"
        raise ValueError(f"{points}; at most {MOST_POINTS:,} are drawn: {remedy}")
    cumulative = np.ascontiguousarray(np.cumsum(H, axis=0).T)
    ends = np.searchsorted(expected, np.arange(BLOCK_POINTS, expected[-1] + BLOCK_POINTS, BLOCK_POINTS)) + 1
    edges = np.unique(np.clip(np.concatenate(([0], ends, [len(W)])), 0, len(W)))
    blocks = []
    for start, end in pairwise(edges):
        users, items = _scatter(W[start:end], cumulative, rng)
        intensity = _intensities(W[start:end], H, users, items)
        counts = np.ones(len(users), np.int64)
        if concentration != math.inf:
            kept = rng.random_sample(len(users)) * intensity < concentration * np.log1p(intensity / concentration)
            users, items, intensity = users[kept], items[kept], intensity[kept]
            p = np.minimum(intensity / (intensity + concentration), np.nextafter(1.0, 0.0))
            counts = rng.logseries(p).astype(np.int64)
        blocks.append(canonical(sp.csr_array((counts, (users, items)), shape=(end - start, len(H)))))
    return sp.csr_array(sp.vstack(blocks, format="csr"))


def _scatter(W: Array, cumulative: Array, rng: np.random.RandomState) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Draw points of rate Σ_k w_uk h_ik: first their number per user and component, then the item of each."""
    n_points = rng.poisson(W * cumulative[:, -1])
    users, items = [], []
    for k, sums in enumerate(cumulative):
        users.append(np.repeat(np.arange(len(W), dtype=np.int32), n_points[:, k]))
        place = np.searchsorted(sums, rng.random_sample(len(users[-1])) * sums[-1], side="right")
        items.append(np.minimum(place, len(sums) - 1).astype(np.int32))  # rounding may put a place after the last
    return np.concatenate(users), np.concatenate(items)


def _intensities(W: Array, H: Array, users: NDArray[np.int32], items: NDArray[np.int32]) -> Array:
    """Evaluate μ at some cells, in blocks, because each cell takes two rows of K numbers."""
    μ = np.empty(len(users))
    for start in range(0, len(users), 1 << 15):
        part = slice(start, start + (1 << 15))
        μ[part] = np.einsum("nk,nk->n", W[users[part]], H[items[part]])
    return μ


def _factors_like(
    data: Interactions, n_components: int, α: float, shapes: tuple[float, float], rng: np.random.RandomState
) -> tuple[Array, Array]:
    """Draw tastes, rows that sum to 1, and scale each row so that it has the expected number of non-zeros."""
    if not data.nnz:
        raise ValueError(f"like={data!r} has no non-zero count to imitate")
    W, H = (rng.standard_gamma(shape, (n, n_components)) for n, shape in zip(data.matrix.shape, shapes, strict=True))
    for rows in (W, H):
        sums = rows.sum(axis=1, keepdims=True)
        np.divide(rows, sums, out=rows, where=sums > 0)
    sample = rng.randint(data.n_users, size=2000), rng.randint(data.n_items, size=2000)
    overlap = n_components * np.einsum("nk,nk->n", W[sample[0]], H[sample[1]])  # mean 1
    activity = np.diff(data.matrix.indptr)
    popularity = np.bincount(data.matrix.indices, minlength=data.n_items)
    user_scale, item_scale = _scales(activity, popularity, overlap, α)
    W *= user_scale[:, None]
    H *= n_components * item_scale[:, None]
    mean = W.mean()
    return W / mean, H * mean


def _scales(activity: NDArray[Any], popularity: NDArray[Any], overlap: Array, α: float) -> tuple[Array, Array]:
    """Find s and t with Σ_i q(s_u t_i) = activity_u and Σ_u q(s_u t_i) = popularity_i, q(x) = E P(y ≥ 1 | x · overlap).

    Rows with equal numbers have equal scales, so each number is one unknown. The sides are fitted in turn: q(cx) lies
    between q(x) and c q(x), so multiplying a scale by the missing factor never overshoots. No scale suffices for a user
    with (nearly) every item, so the number of rounds is limited.
    """
    log_x = np.linspace(-60.0, 60.0, 1201)
    μ = np.exp(log_x)[:, None] * overlap
    log_q = np.log(-np.expm1(-μ if α == math.inf else -α * np.log1p(μ / α)).mean(axis=1))

    def fitted(target: NDArray[Any], own: Array, other: Array, n_others: NDArray[Any]) -> Array:
        expected = np.exp(np.interp(own[:, None] + other, log_x, log_q)) @ n_others
        return np.asarray(own + np.log(target) - np.log(expected))

    (users, of_user, n_users), (items, of_item, n_items) = (
        np.unique(numbers, return_inverse=True, return_counts=True) for numbers in (activity, popularity)
    )
    with np.errstate(divide="ignore"):  # scale 0, logarithm −∞, for rows without counts
        s, t = np.log(users) - math.log(activity.sum()) / 2, np.log(items) - math.log(activity.sum()) / 2
        for _ in range(100):
            before = s
            s = fitted(users, s, t, n_items)
            t = fitted(items, t, s, n_users)
            if np.allclose(s, before, rtol=0, atol=1e-3):
                break
    return np.exp(s)[of_user], np.exp(t)[of_item]
