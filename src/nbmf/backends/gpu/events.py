"""`events` and `log_events` of the likelihoods whose counts are made of several events (model/family.py), in PyTorch.

Both depend on the count y and on x, a multiple of λ. They are computed cell by cell in double precision, on the device
that has the counts, and by blocks, so that what they take beside the non-zeros is bounded.
"""

from collections.abc import Callable

import torch

from nbmf.backends.gpu.arrays import RowCounts, Tensor
from nbmf.backends.slopes import Concentrations, Pair

BLOCK = 1 << 21  # numbers in an array of a block: cells, or cells times nodes
STIRLING = 8.0  # from which Stirling's series has all digits, and differences of Γ functions would cancel
FEW = 48  # counts up to which the recurrence takes less time than sampling
MOST = 1e150  # x whose square is finite; from there on every event is one count
REACH = 32  # nodes to either side at which a sum over events is sampled, a quarter of a standard deviation apart


def allocate_events(counts: RowCounts, intensity: Tensor, kind: str, scales: Concentrations) -> Tensor:
    """Turn the λ of each non-zero into its share E[n | y]/λ, in place; return Σ log_events.

    `scales` multiply λ: one per user, or one per item where those have their own. An unknown cell has no events.
    """
    total = torch.zeros((), dtype=torch.float64, device=intensity.device)
    for cells in counts.stretches(BLOCK):
        y, λ = counts.values[cells].double(), intensity[cells].double()
        known = y > 0
        events, logs = LAWS[kind](torch.where(known, y, 1.0), λ * counts.of_cells(cells, *scales))
        intensity[cells] = torch.where(known, events / λ, 0.0).to(intensity.dtype)
        total += torch.where(known, logs, 0.0).sum()
    return total


def logarithmic(y: Tensor, x: Tensor) -> Pair:
    """E[n | y] = x(ψ(y+x) − ψ(x)) and lnΓ(y+x) − lnΓ(x) − ln y!. A count below 1 also has one event."""
    y = y.clamp_min(1.0)
    low, high = x.clamp_max(STIRLING), x.clamp_min(STIRLING)
    direct = 1 + low * (torch.digamma(y + low) - torch.digamma(1 + low))  # ψ(x) = ψ(1+x) − 1/x, so 1/x cannot overflow
    by_series = high * (torch.log1p(y / high) + _stirling(high)[0] - _stirling(y + high)[0])
    by_count = _log_gamma_rise(y + 1, x - 1) - torch.lgamma(x)
    by_intensity = _log_gamma_rise(x, y) - torch.lgamma(y + 1)
    return torch.where(x < STIRLING, direct, by_series), torch.where(x < y, by_count, by_intensity)


def geometric(y: Tensor, x: Tensor) -> Pair:
    """E[n | y] and ln Σ_n C(y−1, n−1) xⁿ/n! = ln((x/y) L(y−1)), L(m) a Laguerre polynomial of order 1 at −x.

    A small count: L(m)/L(m−1) = 2 + x/m − L(m−2)/L(m−1), and E[n] = y(1 − L(y−2)/L(y−1)). Others are sampled.
    """
    ratio, logs = torch.full_like(x, torch.inf), torch.log(x / y)
    for m in range(1, int(y.clamp_max(FEW).max())):
        after, more = 2 + x / m - 1 / ratio, y > m
        ratio, logs = torch.where(more, after, ratio), torch.where(more, logs + after.log(), logs)
    events = y * (1 - 1 / ratio)
    many = ((y > FEW) | (y != y.floor())).nonzero().ravel()
    for part in many.split(BLOCK // (2 * REACH + 1)):
        events[part], logs[part] = _sampled(y[part], x[part])
    return events, logs


def _sampled(y: Tensor, x: Tensor) -> Pair:
    """Return the mean of n under the terms C(y−1, n−1) xⁿ/n!, and ln of their sum.

    They are largest near n with n² + n(1+x) = yx and fall off like a normal density. Where its deviation is above four,
    65 evenly spaced ones give the same sum.
    """
    z = x.clamp_max(MOST)
    mode = 2 * y * z / (1 + z + torch.sqrt((1 + z) ** 2 + 4 * y * z))
    deviation = 1 / torch.sqrt(2 / mode.clamp_min(1) + 1 / (y - torch.minimum(mode, y) + 1))
    centre, step = torch.minimum(mode.round(), y.floor()).clamp_min(1), (deviation / 4).clamp_min(1)
    nodes = torch.arange(-REACH, REACH + 1, dtype=y.dtype, device=y.device)
    away, y = nodes * step[:, None], y[:, None]
    n = centre[:, None] + away
    inside = (n >= 1) & (n <= y.clamp_min(1))
    n = torch.where(inside, n, 1.0)
    chosen = _log_gamma_rise((y - n).clamp_min(0) + 1, n - 1) - torch.lgamma(n)  # C(y−1, n−1)
    terms = torch.where(inside, n * x.log()[:, None] - torch.lgamma(n + 1) + chosen, -torch.inf)
    largest = terms.amax(dim=1)
    weights = torch.exp(terms - largest[:, None])
    total = weights.sum(dim=1)
    return centre + (weights * away).sum(dim=1) / total, largest + torch.log(step * total)


def binary(y: Tensor, x: Tensor) -> Pair:
    """E[n | y = 1] = x/(1 − e^(−x)) and ln(eˣ − 1)."""
    chance = -torch.expm1(-x)
    return x / chance, x + torch.log(chance)


def robust(y: Tensor, x: Tensor) -> Pair:
    """min(y, x) and y ln x, or y ln y − y + x for an outlier, y > x."""
    return torch.minimum(y, x), y * torch.log(torch.maximum(x, y)) + (x - y).clamp_max(0)


LAWS: dict[str, Callable[[Tensor, Tensor], Pair]] = {
    "logarithmic_jumps": logarithmic,
    "geometric_jumps": geometric,
    "bernoulli_poisson": binary,
    "robust_poisson": robust,
}
"""E[n | y] and log_events as functions of y > 0 and x, by the kind of likelihood."""


def _stirling(a: Tensor) -> Pair:
    """Return ε and δ of Stirling's series at a ≥ STIRLING: ψ(a) = ln a − ε, lnΓ(a) = (a−½) ln a − a + ½ ln 2π + δ."""
    y = 1 / a
    s = y * y
    epsilon = 1 / 12 - s * (1 / 120 - s * (1 / 252 - s * (1 / 240 - s * (1 / 132 - s * (691 / 32760 - s / 12)))))
    delta = 1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s * (1 / 1188 - s * (691 / 360360 - s / 156)))))
    return 0.5 * y + s * epsilon, y * delta


def _log_gamma_rise(start: Tensor, rise: Tensor) -> Tensor:
    """Return lnΓ(start + rise) − lnΓ(start), rise ≥ −1; of a large start by the series, without what cancels."""
    large = start.clamp_min(STIRLING + 1)
    end = large + rise
    series = _stirling(end)[1] - _stirling(large)[1]
    by_series = (large - 0.5) * torch.log1p(rise / large) + rise * torch.log(end) - rise + series
    return torch.where(start < STIRLING + 1, torch.lgamma(start + rise) - torch.lgamma(start), by_series)
