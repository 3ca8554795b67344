"""The paper in loops: each printed equation as it stands, one cell and one component at a time.

Slow on purpose. Tests hold the package to it. W is users × K, H is items × K, Y users × items, all lists or arrays;
a gamma posterior is a pair (shape, rate) of arrays. Only the errata noted in docs/paper.md are corrected.
"""

from __future__ import annotations

from math import exp, inf, lgamma, log

import numpy as np
from scipy.special import digamma


def cells(Y):
    return [(u, i) for u in range(len(Y)) for i in range(len(Y[0]))]


def intensity(W, H, u, i):
    """[WHᵀ]_ui."""
    return sum(W[u][k] * H[i][k] for k in range(len(W[0])))


def probability(y, α, p):
    """P(Y = y) = Γ(y+α) / (y! Γ(α)) p^y (1−p)^α, below Eq. (NB)."""
    return exp(lgamma(y + α) - lgamma(y + 1) - lgamma(α)) * p**y * (1 - p) ** α


def divergence(a, b, α):
    """d_α(a|b) of §3.1; 0 ln 0 is 0."""
    return (a * log(a / b) if a > 0 else 0.0) - (α + a) * log((α + a) / (α + b))


def log_likelihood(Y, W, H, α):
    """log p(Y; W, H) by Eq. (NB), p = 1/(1 + α/[WHᵀ])."""
    total = 0.0
    for u, i in cells(Y):
        y, μ = float(Y[u][i]), intensity(W, H, u, i)
        total += lgamma(y + α) - lgamma(y + 1) - lgamma(α) + α * log(α / (α + μ))
        total += y * log(μ / (α + μ)) if y > 0 else 0.0
    return total


def nmf_h(Y, W, H, α):
    """Eq. (nmfH)."""
    new = np.empty_like(H)
    for i in range(len(H)):
        for k in range(len(H[0])):
            numerator = sum(Y[u][i] / intensity(W, H, u, i) * W[u][k] for u in range(len(W)))
            denominator = sum((Y[u][i] + α) / (intensity(W, H, u, i) + α) * W[u][k] for u in range(len(W)))
            new[i][k] = H[i][k] * numerator / denominator
    return new


def nmf_w(Y, W, H, α):
    """Eq. (nmfW)."""
    new = np.empty_like(W)
    for u in range(len(W)):
        for k in range(len(W[0])):
            numerator = sum(Y[u][i] / intensity(W, H, u, i) * H[i][k] for i in range(len(H)))
            denominator = sum((Y[u][i] + α) / (intensity(W, H, u, i) + α) * H[i][k] for i in range(len(H)))
            new[u][k] = W[u][k] * numerator / denominator
    return new


def mean(q):
    """⟨x⟩ = α/β."""
    return q[0] / q[1]


def mean_log(q):
    """⟨log x⟩ = Ψ(α) − log β."""
    return digamma(q[0]) - np.log(q[1])


def update_c(log_w, log_h, u, i):
    """φ_uik ∝ exp(⟨log w_uk⟩ + ⟨log h_ik⟩), Eq. (update_c)."""
    weights = [exp(log_w[u][k] + log_h[i][k]) for k in range(len(log_w[0]))]
    return [weight / sum(weights) for weight in weights]


def update_a(Y, w, h, α, u, i):
    """(α̃_ui, β̃_ui) of Eq. (update_a)."""
    return α + Y[u][i], α + intensity(w, h, u, i)


def latent(Y, w, h, log_w, log_h, α):
    """φ and q(a) of every cell: the first two lines of Algorithm 1."""
    φ = {(u, i): update_c(log_w, log_h, u, i) for u, i in cells(Y)}
    a = {(u, i): update_a(Y, w, h, α, u, i) for u, i in cells(Y)}
    return φ, a


def update_w(Y, φ, a, h, α_w, β_w):
    """(α̃^W, β̃^W) of Eq. (update_w)."""
    n_users, n_items, n_components = len(Y), len(Y[0]), len(h[0])
    shape, rate = np.empty((n_users, n_components)), np.empty((n_users, n_components))
    for u in range(n_users):
        for k in range(n_components):
            shape[u][k] = α_w + sum(Y[u][i] * φ[u, i][k] for i in range(n_items))
            rate[u][k] = β_w + sum(a[u, i][0] / a[u, i][1] * h[i][k] for i in range(n_items))
    return shape, rate


def update_h(Y, φ, a, w, α_h, β_h):
    """(α̃^H, β̃^H) of Eq. (update_h)."""
    n_users, n_items, n_components = len(Y), len(Y[0]), len(w[0])
    shape, rate = np.empty((n_items, n_components)), np.empty((n_items, n_components))
    for i in range(n_items):
        for k in range(n_components):
            shape[i][k] = α_h + sum(Y[u][i] * φ[u, i][k] for u in range(n_users))
            rate[i][k] = β_h + sum(a[u, i][0] / a[u, i][1] * w[u][k] for u in range(n_users))
    return shape, rate


def update_hyper(h, α_h):
    """β^H of Eq. (update_hyper), with IK where the paper prints UI (erratum 1)."""
    return α_h / (sum(sum(row) for row in h) / (len(h) * len(h[0])))


def expected_log_gamma(shape, rate, mean_x, mean_log_x):
    """E[log G(x; shape, rate)]."""
    return shape * log(rate) - lgamma(shape) + (shape - 1) * mean_log_x - rate * mean_x


def entropy_of_gamma(shape, rate):
    return shape - log(rate) + lgamma(shape) + (1 - shape) * float(digamma(shape))


def elbo(Y, φ, a, W, H, α, α_w, β_w, α_h, β_h):
    """∫ q log p(Y, z; θ)/q dz over all of c, a, W, H; nothing collapsed. W, H are (shape, rate)."""
    w, h, log_w, log_h = mean(W), mean(H), mean_log(W), mean_log(H)
    total = 0.0
    for u, i in cells(Y):
        y, (shape, rate) = float(Y[u][i]), a[u, i]
        mean_a, mean_log_a = shape / rate, float(digamma(shape)) - log(rate)
        total += expected_log_gamma(α, α, mean_a, mean_log_a) + entropy_of_gamma(shape, rate)
        for k in range(len(w[0])):
            c = y * φ[u, i][k]
            # E log Poisson(c; a w h) and −E log Mult(c; y, φ): their E log c! cancel
            total += c * (mean_log_a + log_w[u][k] + log_h[i][k]) - mean_a * w[u][k] * h[i][k]
            total -= c * log(φ[u, i][k])
        total -= lgamma(y + 1)
    for (shapes, rates), logs, prior in ((W, log_w, (α_w, β_w)), (H, log_h, (α_h, β_h))):
        for shape, rate, mean_log_x in zip(np.ravel(shapes), np.ravel(rates), np.ravel(logs), strict=True):
            total += expected_log_gamma(*prior, shape / rate, float(mean_log_x)) + entropy_of_gamma(shape, rate)
    return total


def tied(Y, w, h, a, labels, α):
    """q(a) with the zero cells of a user in one cluster sharing one: Gamma(α, α + m_uc), m_uc their mean intensity."""
    shared = dict(a)
    for u in range(len(Y)):
        for c in set(labels):
            zeros = [i for i in range(len(Y[0])) if labels[i] == c and Y[u][i] == 0]
            for i in zeros:
                shared[u, i] = (α, α + sum(intensity(w, h, u, j) for j in zeros) / len(zeros))
    return shared


# ---- the encoder of NBFISM: x are inputs, T targets, users × items; V and H items × K, b one per item ---------------


def encoded_intensity(x, V, H, b, u, i):
    """μ_ui = b_i + Σ_{j≠i} x_uj Σ_k V_jk H_ik."""
    others = [j for j in range(len(V)) if j != i]
    return b[i] + sum(x[u][j] * V[j][k] * H[i][k] for j in others for k in range(len(V[0])))


def known_cells(T, unknown):
    return [(u, i) for u, i in cells(T) if unknown is None or not unknown[u][i]]


def log_density(t, μ, α):
    """ln p(t | μ) of the negative binomial, and of Poisson's law for infinite α."""
    if α == inf:
        return (t * log(μ) if t > 0 else 0.0) - μ - lgamma(t + 1)
    total = lgamma(t + α) - lgamma(t + 1) - lgamma(α) + α * log(α / (α + μ))
    return total + (t * log(μ / (α + μ)) if t > 0 else 0.0)


def encoder_objective(x, T, V, H, b, α, ρ, unknown=None):
    """Σ_ui ln p(t_ui | μ_ui) − ρ Σ_{j≠i} B_ji."""
    total = sum(log_density(float(T[u][i]), encoded_intensity(x, V, H, b, u, i), α) for u, i in known_cells(T, unknown))
    return total - ρ * sum(
        V[j][k] * H[i][k] for j, i in cells(np.empty((len(V), len(V)))) if j != i for k in range(len(V[0]))
    )


def encoder_sweep(x, T, V, H, b, α, ρ, unknown=None):
    """V, then H and b, each allocated / exposed, from the allocations and exposures at the old V, H and b."""
    G, E = np.zeros((2, len(T), len(T[0])))
    for u, i in known_cells(T, unknown):
        t, μ = float(T[u][i]), encoded_intensity(x, V, H, b, u, i)
        G[u][i] = t / μ if t > 0 else 0.0
        E[u][i] = 1.0 if α == inf else (α + t) / (α + μ)
    n, users, items = len(V), range(len(T)), range(len(V))
    met = {
        (j, i): (sum(x[u][j] * G[u][i] for u in users), sum(x[u][j] * E[u][i] for u in users) + ρ)
        for j in items
        for i in items
    }
    new_V, new_H, new_b = np.array(V), np.array(H), np.array(b)
    for j in range(n):
        for k in range(len(V[0])):
            allocated = V[j][k] * sum(met[j, i][0] * H[i][k] for i in items if i != j)
            exposed = sum(met[j, i][1] * H[i][k] for i in items if i != j)
            new_V[j][k] = allocated / exposed if exposed > 0 else V[j][k]
    for i in range(n):
        for k in range(len(V[0])):
            allocated = H[i][k] * sum(met[j, i][0] * V[j][k] for j in items if j != i)
            exposed = sum(met[j, i][1] * new_V[j][k] for j in items if j != i)
            new_H[i][k] = allocated / exposed if exposed > 0 else H[i][k]
        total = sum(E[u][i] for u in users)
        new_b[i] = b[i] * sum(G[u][i] for u in users) / total if total > 0 else b[i]
    return new_V, new_H, new_b
