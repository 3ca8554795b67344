"""The benchmarks' data, counts with item popularity ~ rank^-0.8, and a plain version of Algorithm 1."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.special import digamma, gammaln

N_USERS, N_ITEMS, N_COMPONENTS, N_CLUSTERS = 100_000, 40_000, 50, 64


def popular_counts(
    n_users: int = N_USERS, n_items: int = N_ITEMS, draws: int = 5_080_000, seed: int = 0
) -> sp.csr_array:
    """Draw user-item pairs, users by gamma activity and items by rank^-0.8; the count of a pair is 1 + NB, mean 2.5."""
    rng = np.random.default_rng(seed)
    popularity = np.arange(1, n_items + 1) ** -0.8
    activity = rng.gamma(1.0, 1.0, n_users) + 0.1
    users = rng.choice(n_users, draws, p=activity / activity.sum())
    items = rng.permutation(n_items)[rng.choice(n_items, draws, p=popularity / popularity.sum())]
    pairs = np.unique(users * n_items + items)
    counts = (1 + rng.negative_binomial(0.5, 0.25, pairs.size)).astype(np.float32)
    matrix = sp.csr_array((counts, (pairs // n_items, pairs % n_items)), shape=(n_users, n_items))
    matrix.sort_indices()
    return matrix


def plain_algorithm_1(Y: np.ndarray, W: np.ndarray, H: np.ndarray, tol: float, α: float = 1.0) -> list[float]:
    """Algorithm 1 with α^W = α^H = 1, written straight from the paper in dense float64 NumPy."""
    Y = np.asarray(Y, np.float64)  # of whole numbers, shares would be rounded
    users, items = np.nonzero(Y)
    y = Y[users, items]
    mean_w, mean_h, geometric_w, geometric_h = W, H, W, H
    base = (gammaln(α + y) - gammaln(α) - gammaln(y + 1)).sum()
    objectives = []

    def divergence(shape, rate, prior_rate):
        return (
            (shape - 1) * digamma(shape) - gammaln(shape) + np.log(rate / prior_rate) + shape * (prior_rate / rate - 1)
        ).sum()

    while len(objectives) < 2 or objectives[-1] - objectives[-2] >= tol * abs(objectives[-2]):
        if not objectives:
            share = np.zeros_like(Y)
            share[users, items] = y / (geometric_w @ geometric_h.T)[users, items]
            exposure = (α + Y) / (α + mean_w @ mean_h.T)
        rate_h = 1 / mean_h.mean()
        w = 1 + geometric_w * (share @ geometric_h), 1 + exposure @ mean_h
        new_mean_w = w[0] / w[1]
        h = 1 + geometric_h * (share.T @ geometric_w), rate_h + exposure.T @ new_mean_w
        mean_w, mean_h = new_mean_w, h[0] / h[1]
        geometric_w, geometric_h = np.exp(digamma(w[0])) / w[1], np.exp(digamma(h[0])) / h[1]
        geometric_intensity, intensity = (geometric_w @ geometric_h.T)[users, items], mean_w @ mean_h.T
        share[users, items] = y / geometric_intensity
        exposure = (α + Y) / (α + intensity)
        evidence = (y * np.log(geometric_intensity / (α + intensity[users, items]))).sum()
        evidence += base - α * np.log1p(intensity / α).sum()
        objectives.append(evidence - divergence(*w, 1.0) - divergence(*h, rate_h))
    return objectives
