"""Compiled loops over a tile of intensities, for exact exposures: the cells as if every count were 0."""

from __future__ import annotations

import numpy as np

from nbmf.backends.cpu.elementary import log1p
from nbmf.backends.cpu.kernels import compiled


@compiled
def expose_tile(intensity, concentrations, row_logs):  # type: ignore[no-untyped-def]
    """Replace each intensity μ of a tile by the exposure α/(α+μ) of an unseen cell; take α ln(1 + μ/α) off `row_logs`.

    α is that of the row. Logarithms are taken of products of eight: 1 + μ/α < 10³⁸ keeps those finite. None: no
    logarithms wanted.
    """
    n_rows, n_columns = intensity.shape
    eighth = n_columns // 8
    for row in range(n_rows):
        concentration = concentrations[row]
        if row_logs is not None:
            total, scale = 0.0, 1.0 / np.float64(concentration)
            for j in range(eighth):
                more = 0.0  # Π(1 + x) − 1: without the 1, small x keep their digits
                for part in range(8):
                    x = np.float64(intensity[row, part * eighth + j]) * scale
                    more += x + more * x
                total += log1p(more)
            for j in range(8 * eighth, n_columns):
                total += log1p(np.float64(intensity[row, j]) * scale)
            row_logs[row] -= concentration * total
        for j in range(n_columns):
            intensity[row, j] = concentration / (concentration + intensity[row, j])


@compiled
def expose_tile_by_column(intensity, concentrations, row_logs):  # type: ignore[no-untyped-def]
    """`expose_tile` with the α of the column."""
    n_rows, n_columns = intensity.shape
    for row in range(n_rows):
        if row_logs is not None:
            total = 0.0
            for j in range(n_columns):
                α = np.float64(concentrations[j])
                total += α * log1p(np.float64(intensity[row, j]) / α)
            row_logs[row] -= total
        for j in range(n_columns):
            intensity[row, j] = concentrations[j] / (concentrations[j] + intensity[row, j])


@compiled
def slope_tile(intensity, concentrations, slopes, curvatures):  # type: ignore[no-untyped-def]
    """Add up ∂/∂α and ∂²/∂α² of −α ln(1 + μ/α): −ln(1 + μ/α) + μ/(α+μ) and μ²/(α(α+μ)²), α that of the row."""
    n_rows, n_columns = intensity.shape
    for row in range(n_rows):
        α, slope, curvature = np.float64(concentrations[row]), 0.0, 0.0
        for j in range(n_columns):
            μ = np.float64(intensity[row, j])
            share = μ / (α + μ)
            slope += share - log1p(μ / α)
            curvature += share * share
        slopes[row] += slope
        curvatures[row] += curvature / α
