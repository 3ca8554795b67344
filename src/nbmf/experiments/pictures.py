"""Which pictures a report has, and the numbers each is drawn from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nbmf.experiments import figures
from nbmf.experiments.grid import at_least
from nbmf.experiments.portrait import Portrait
from nbmf.experiments.results import Entry, Results, count_shares
from nbmf.model.likelihood import Likelihood, NegativeBinomial, Poisson, divergence, log_probability

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONCENTRATIONS = (0.5, 1.0, 10.0, math.inf)
MEAN_COUNT = 5.0  # of the mass functions
INTENSITY = 1.0  # b of d_α(a|b), the paper's


@dataclass(frozen=True)
class Picture:
    """A picture by its file's name, with what is said under it."""

    name: str
    caption: str
    draw: Callable[[], Figure]

    def save(self, folder: Path) -> None:
        """Write it as PNG and PDF."""
        figures.save(self.draw, folder, self.name)


def pictures(results: Results, portrait: Portrait | None) -> list[Picture]:
    """Return all pictures of a report, in its order."""
    found = [by_components(results), by_threshold(results)]
    if portrait is not None:
        found.append(of_user(portrait))
    return [*found, histogram(results), mass_functions(), divergences()]


def by_components(results: Results) -> Picture:
    """Figure map_k."""
    levels = {
        entry: results.level(entry)
        for entry in (Entry(model, K) for model in results.grid.models for K in results.grid.components)
    }
    caption = f"NDCG with the held-out count as relevance (rel_A) against K: mean{_band(results)}."
    return Picture("ndcg_by_components", caption, lambda: figures.by_components(levels))


def by_threshold(results: Results) -> Picture:
    """Figure map threshold."""
    levels = {
        entry: {s: results.level(entry, at_least(s)) for s in results.grid.thresholds} for entry in results.chosen()
    }
    chosen = ", ".join(map(str, levels))
    caption = (
        f"NDCG with relevance 1[count ≥ s] (rel_B) against s: mean{_band(results)}. Each model at its best K by "
        f"rel_A: {chosen}."
    )
    return Picture("ndcg_by_threshold", caption, lambda: figures.by_threshold(levels))


def of_user(portrait: Portrait) -> Picture:
    """Figure explore A."""
    caption = (
        f"User {portrait.user}, by {portrait.model} (K = {portrait.n_components}). Left: the inferred exposure of each "
        "item taken against its count; above the dashed line at 1 an item is over-consumed, below it under-consumed; "
        "some of the most and the least exposed are named. Right: the scores of the items not in train, the best "
        "named; a diamond is held out, so the user did take it."
    )
    return Picture("exposure", caption, lambda: figures.portrait(portrait))


def histogram(results: Results) -> Picture:
    """Figure histo_cumul."""
    shares = count_shares(results.study)
    caption = "Cumulative histogram of the non-zero counts: the share of them that is at least y."
    return Picture("histogram", caption, lambda: figures.histogram(shares))


def mass_functions() -> Picture:
    """Draw the figure of §2.1."""
    counts = list(range(16))
    curves = {
        α: np.exp(log_probability(_law(α), np.array(counts), np.full(len(counts), MEAN_COUNT))).tolist()
        for α in CONCENTRATIONS
    }
    caption = (
        f"The negative binomial's mass function of mean {MEAN_COUNT:g} for several α. For α ≤ 1 the mode is 0; "
        "α → ∞ is Poisson."
    )
    return Picture("mass_functions", caption, lambda: figures.mass_functions(counts, curves, MEAN_COUNT))


def divergences() -> Picture:
    """Figure div_nbf."""
    counts = np.linspace(0, 5, 201)
    curves = {α: divergence(α, counts, np.full(len(counts), INTENSITY)).tolist() for α in CONCENTRATIONS}
    caption = f"The divergence d_α(a|b) for b = {INTENSITY:g} and several α; α → ∞ is Kullback-Leibler's."
    return Picture("divergences", caption, lambda: figures.divergences(counts.tolist(), curves, INTENSITY))


def _law(α: float) -> Likelihood:
    return Poisson() if α == math.inf else NegativeBinomial(α)


def _band(results: Results) -> str:
    n = results.grid.n_starts
    return f" of {n} random starts ± one standard deviation" if n > 1 else " of one start"
