"""Compiled `events` and `log_events` of the likelihoods whose counts are made of several events (model/family.py).

Both depend on the count y and on x, a multiple of λ. They are computed in double precision, one cell at a time and
without reordering. A function returns E[n | y], and a logarithm in two parts, ln(inside) + outside, so that the
logarithms of a row can be taken together.
"""

import numpy as np

from nbmf.backends.cpu.compiler import compiler
from nbmf.backends.cpu.elementary import exp, log, log1p

LAWS = {"logarithmic_jumps": 1, "geometric_jumps": 2, "bernoulli_poisson": 3, "robust_poisson": 4}
"""The numbers by which compiled code knows likelihoods."""

HALF_LN_2PI = 0.9189385332046727
STIRLING = 8.0  # from which Stirling's series has all digits
SMALL = 16.0  # counts up to which products take less time than the series
LARGEST = 1e18  # whose powers up to SMALL are finite
FEW = 48.0  # counts up to which the recurrence takes less time than sampling
MOST = 1e150
REACH = 9  # standard deviations to either side beyond which terms are nothing
NEGLIGIBLE = 1e-19

compiled = compiler(fastmath=False)


@compiler(fastmath={"reassoc"})
def _sum(values):
    """Sum a row; in any order, but always the same."""
    total = 0.0
    for p in range(len(values)):
        total += values[p]
    return total


@compiled
def _series(a):
    """Return ε and δ of Stirling's series at a ≥ STIRLING: ψ(a) = ln a − ε, lnΓ(a) = (a−½) ln a − a + ½ ln 2π + δ."""
    y = 1.0 / a
    s = y * y
    epsilon = 1 / 12 - s * (1 / 120 - s * (1 / 252 - s * (1 / 240 - s * (1 / 132 - s * (691 / 32760 - s / 12)))))
    delta = 1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s * (1 / 1188 - s * (691 / 360360 - s / 156)))))
    return 0.5 * y + s * epsilon, y * delta


@compiled
def _gamma(a):
    """Return ψ(a) and lnΓ(a)."""
    product, slope, z = 1.0, 0.0, a
    if a < STIRLING:
        for step in range(8):
            slope = slope * (a + step) + product
            product = product * (a + step)
        z = a + 8.0
    epsilon, delta = _series(z)
    log_z = log(z)
    return log_z - epsilon - slope / product, (z - 0.5) * log_z - z + HALF_LN_2PI + delta - log(product)


@compiled
def _log_of_ratio(rise, start):
    """Return ln((start + rise)/start), rise > −start."""
    return log1p(rise / start) if rise >= 0.0 else -log1p(-rise / (start + rise))


@compiled
def _log_gamma_rise(start, rise):
    """Return lnΓ(start + rise) − lnΓ(start) for start and start + rise ≥ STIRLING, without what cancels."""
    end = start + rise
    return (start - 0.5) * _log_of_ratio(rise, start) + rise * log(end) - rise + _series(end)[1] - _series(start)[1]


@compiled
def logarithmic(y, x):
    """E[n | y] = x(ψ(y+x) − ψ(x)) and lnΓ(y+x) − lnΓ(x) − ln y!. A count below 1 also has one event."""
    y = max(y, 1.0)
    if y <= SMALL and y == np.floor(y):  # Π (x+j)/(j+1), j < y, and its slope
        capped = min(x, LARGEST)
        product, slope, factorial = capped, 1.0, 1.0
        for j in range(1, int(y)):
            slope = slope * (capped + j) + product
            product *= capped + j
            factorial *= j + 1.0
        return capped * slope / product, product / factorial, 0.0 if x == capped else y * log(x / capped)
    if y <= SMALL:
        if x < STIRLING:
            higher, lower = _gamma(y + x), _gamma(x)
            return x * (higher[0] - lower[0]), 1.0, higher[1] - lower[1] - _gamma(y + 1.0)[1]
        mean = x * (log1p(y / x) + _series(x)[0] - _series(x + y)[0])
        return mean, 1.0, _log_gamma_rise(x, y) - _gamma(y + 1.0)[1]
    if x < STIRLING:
        lower, total = _gamma(x), x + y
        mean = x * (log(total) - _series(total)[0] - lower[0])
        return mean, 1.0, _log_gamma_rise(y + 1.0, x - 1.0) - lower[1]
    (slow, low), (fast, high) = _series(x), _series(x + y)
    growth = log1p(y / x)
    rest = y * log1p((x - 1.0) / (y + 1.0)) - 0.5 * log(y + 1.0) + 1.0 - HALF_LN_2PI
    return x * (growth + slow - fast), 1.0, (x - 0.5) * growth + rest + high - low - _series(y + 1.0)[1]


@compiled
def _geometric_term(n, y, log_x):
    """Return ln of C(y−1, n−1) xⁿ/n!."""
    rest = y - n + 1.0
    chosen = _log_gamma_rise(rest, n - 1.0) if rest >= STIRLING else _gamma(y)[1] - _gamma(rest)[1]  # Γ(y)/Γ(y−n+1)
    gamma = _gamma(n)[1]
    return n * log_x - 2.0 * gamma - log(n) + chosen


@compiled
def geometric(y, x):
    """E[n | y] and ln Σ_n C(y−1, n−1) xⁿ/n! = ln((x/y) L(y−1)), L(m) a Laguerre polynomial of order 1 at −x.

    Few events: L(m)/L(m−1) = 2 + x/m − L(m−2)/L(m−1), and E[n] = y(1 − L(y−2)/L(y−1)). Otherwise terms are summed
    outward from the largest; or, where they spread so far that they make a smooth curve, sampled.
    """
    if y <= FEW and y == np.floor(y):
        ratio, product, outside = np.inf, 1.0, 0.0
        for m in range(1, int(y)):
            ratio = 2.0 + x / m - 1.0 / ratio
            product *= ratio
            if product > MOST:
                outside += log(product)
                product = 1.0
        return y * (1.0 - 1.0 / ratio) if y > 1.0 else 1.0, product * (x / y), outside
    log_x, total, mean = log(x), 0.0, 0.0
    z = min(x, MOST)  # from there on every event is one count
    mode = 2.0 * y * z / (1.0 + z + np.sqrt((1.0 + z) ** 2 + 4.0 * y * z))
    centre = min(max(np.rint(mode), 1.0), max(np.floor(y), 1.0))
    deviation = 1.0 / np.sqrt(2.0 / max(mode, 1.0) + 1.0 / (y - min(mode, y) + 1.0))
    step, largest = max(deviation / 2.0, 1.0), _geometric_term(centre, y, log_x)
    if deviation <= 4.0:
        step = 1.0
        for sign in (1.0, -1.0):
            n, term = centre, 1.0
            while True:
                if sign > 0.0:
                    term *= x * (y - n) / (n * (n + 1.0)) if n + 1.0 <= y else 0.0
                else:
                    term *= n * (n - 1.0) / (x * (y - n + 1.0)) if n > 1.0 else 0.0
                n += sign
                if not term > NEGLIGIBLE:
                    break
                total += term
                mean += term * (n - centre)
        total += 1.0
    else:
        for node in range(-2 * REACH, 2 * REACH + 1):
            n = centre + node * step
            if 1.0 <= n <= y:
                term = exp(_geometric_term(n, y, log_x) - largest)
                total += term
                mean += term * (n - centre)
    return centre + mean / total, step * total, largest


@compiled
def fall(x):
    """Return 1 − e^(−x), x ≥ 0."""
    if x > 0.5:
        return 1.0 - exp(-x)
    total = 0.0
    for n in range(16, 1, -1):
        total = (1.0 - total) * x / n
    return x * (1.0 - total)


@compiled
def binary(y, x):
    """E[n | y = 1] = x/(1 − e^(−x)) and ln(eˣ − 1)."""
    chance = fall(x)
    return x / chance, chance, x


@compiled
def robust(y, x):
    """min(y, x) and y ln x, or y ln y − y + x for an outlier, y > x."""
    return min(y, x), 1.0, y * log(max(x, y)) + min(x - y, 0.0)


@compiled
def events_of(law, y, x):
    """Return E[n | y] and the parts of its logarithm for one of LAWS; nothing for an unknown cell."""
    if y <= 0.0:
        return 0.0, 1.0, 0.0
    if law == 1:
        return logarithmic(y, x)
    if law == 2:
        return geometric(y, x)
    return binary(y, x) if law == 3 else robust(y, x)


@compiled
def _logarithmic_row(counts, x, events, logs):
    """Fill `events`, and `logs` with the arguments of the logarithms; return the sum of the remaining terms.

    Small counts by their products, without branches, so that several are done at once; then the others.
    """
    for p in range(len(counts)):
        y, first, second, third = np.float64(counts[p]), x[p] + 1.0, x[p] + 2.0, x[p] + 3.0
        product = x[p] if y < 1.5 else x[p] * first
        slope = 1.0 if y < 1.5 else first + x[p]
        slope = slope if y < 2.5 else slope * second + product
        product = product if y < 2.5 else product * second
        slope = slope if y < 3.5 else slope * third + product
        product = product if y < 3.5 else product * third
        events[p] = x[p] * slope / product
        logs[p] = product * (1.0 if y < 1.5 else 0.5 if y < 2.5 else 1 / 6 if y < 3.5 else 1 / 24)
    return _others(1, counts, x, events, logs)


@compiled
def _geometric_row(counts, x, events, logs):
    """The same for geometric jumps: L(y−1), and L(y−1) − L(y−2), which is a Laguerre polynomial of order 0."""
    for p in range(len(counts)):
        y, z = np.float64(counts[p]), x[p]
        fourth = 1.0 + z * (3.0 + z * (1.5 + z / 6))
        third = 1.0 + z * (2.0 + z * 0.5)
        difference = 1.0 if y < 1.5 else 1.0 + z if y < 2.5 else third if y < 3.5 else fourth
        polynomial = 1.0 if y < 1.5 else 2.0 + z
        polynomial = polynomial if y < 2.5 else polynomial + third
        polynomial = polynomial if y < 3.5 else polynomial + fourth
        events[p] = y * difference / polynomial
        logs[p] = polynomial * (z / y)
    return _others(2, counts, x, events, logs)


@compiled
def _others(law, counts, x, events, logs):
    """Do what the products of small counts cannot, and return the other parts of the logarithms."""
    total = 0.0
    for p in range(len(counts)):
        y = np.float64(counts[p])
        if y > 4.0 or x[p] > LARGEST or y < 1.0 or y != np.floor(y):
            events[p], logs[p], outside = events_of(law, y, x[p])
            total += outside
    return total


@compiled
def _binary_row(counts, x, events, logs):
    """The same, for whether there is a count; 1 − e^(−x) of a small x by its series."""
    for p in range(len(counts)):
        series = x[p] * (1.0 - x[p] * (0.5 - x[p] * (1 / 6 - x[p] * (1 / 24 - x[p] / 120))))
        chance = series if x[p] < 2e-3 else 1.0 - exp(-x[p])
        known = counts[p] > 0
        events[p] = x[p] / chance if known else 0.0
        logs[p] = chance if known else 1.0
    total = 0.0
    for p in range(len(counts)):
        total += x[p] if counts[p] > 0 else 0.0
    return total


@compiled
def allocate_events(law, scales, columns, counts, intensity, shares, work):
    """Set `shares` to E[n | y]/λ of one row's cells, whose λ are in `intensity`; return Σ log_events.

    `scales` has one number for all columns, or one each; `work` has three rows at least as long as this one.
    """
    size = len(counts)
    x, events, logs = work[0, :size], work[1, :size], work[2, :size]
    for p in range(size):
        x[p] = np.float64(intensity[p]) * scales[columns[p] if len(scales) > 1 else 0]
    if law == 1:
        total = _logarithmic_row(counts, x, events, logs)
    elif law == 2:
        total = _geometric_row(counts, x, events, logs)
    elif law == 3:
        total = _binary_row(counts, x, events, logs)
    else:
        total = 0.0
        for p in range(size):
            events[p], logs[p], outside = events_of(law, np.float64(counts[p]), x[p])
            total += outside
    for p in range(size):
        shares[p] = events[p] / intensity[p]
    for p in range(size):
        logs[p] = log(logs[p])
    return total + _sum(logs)
