"""How probable the held-out counts are to a model that has a law of counts, and whether its probabilities come true.

The cells judged are those not in train: the test counts and all the zeros. In each, the count given its intensity
μ = Σ_k ⟨w_uk⟩⟨h_ik⟩ follows a law of `nbmf.model.likelihood`, the negative binomial one or Poisson's. A model
of binarized counts is judged on binarized ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends.cpu.elementary import exp, log1p
from nbmf.backends.cpu.kernels import compiled
from nbmf.data.interactions import Interactions
from nbmf.estimators.log_prob import check_intensities, log_probabilities, plain
from nbmf.estimators.ranking import Report, Rows, walk, with_sorted_rows
from nbmf.evaluation.judged import Judged, law_of, scores_of, take
from nbmf.evaluation.resampling import Metric, check_boot, intervals, resampled_ratios
from nbmf.evaluation.table import Table
from nbmf.model.likelihood import Concentration, Likelihood

Array = NDArray[np.float64]

PIECE = 512  # cells whose probabilities of 0, 1, 2, … are followed side by side
MOST_COUNTS = 100  # of a table; e^−700 is 0 to `exp`, and any count so low is as improbable then


def log_likelihood(
    model: Judged,
    train: Any,
    test: Any,
    *,
    concentration: Concentration | None = None,
    n_boot: int = 1000,
    seed: int = 0,
    n_threads: int | None = None,
    report: Report | None = None,
) -> Metric:
    """Return the mean of ln p(y) over all cells that are not in train: the test counts and the zeros.

    Parameters
    ----------
    model, train, test : as for `nbmf.evaluate`
    concentration : α of the model's law, infinity for Poisson; an array users × 1 or 1 × items of them; None: the
        model's `concentration_`
    n_boot, seed, n_threads, report : as for `nbmf.evaluate`

    Returns
    -------
    Metric : `mean` over the cells, `interval` over resampled users, `per_user` each user's own mean; −∞, and then no
        interval, if the model holds a test count for impossible (intensity 0)

    Examples
    --------
    >>> W, H = [[1.0], [1.0]], [[2.0], [1.0]]
    >>> found = log_likelihood((W, H), train=[[3, 0], [0, 0]], test=[[0, 1], [1, 0]], concentration=np.inf)
    >>> round(found.mean, 3), round(float(np.log(2) - 2 - 1 - 1) / 3, 3)  # Poisson: y ln μ − μ − ln y!
    (-1.102, -1.102)
    """
    check_boot(n_boot)
    known, held_out, law = _take(model, train, test, concentration)
    scores, n_users, n_items = scores_of(model, known), known.n_users, known.n_items
    total = log_probabilities(law, scores, held_out, known.matrix, n_threads=n_threads, report=report)
    n_cells = n_items - np.diff(known.matrix.indptr)
    judged = n_cells > 0
    per_user = np.divide(total, n_cells, out=np.full(n_users, np.nan), where=judged)
    mean = float(total.sum() / n_cells.sum()) if judged.any() else float("nan")
    interval = (float("nan"), float("nan"))
    if np.isfinite(mean):
        interval = intervals(resampled_ratios(total[:, None], n_cells[:, None].astype(np.float64), n_boot, seed))[0]
    return Metric(mean, interval, per_user, int(judged.sum()))


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Table):
    """How often each count occurs in the cells not in train, and how often the model says it does.

    labels : "0", "1", … and at last the tail, "> n_max"
    observed, predicted : arrays of frequencies, each adding up to 1
    observed_if_taken, predicted_if_taken : the same among the counts from 1; nan for 0
    n_users, n_cells : how many were looked at; fewer users than there are if a sample was taken
    """

    labels: tuple[str, ...]
    observed: Array
    predicted: Array
    observed_if_taken: Array
    predicted_if_taken: Array
    n_users: int
    n_cells: int

    def rows(self) -> list[dict[str, Any]]:
        """Return a plain dictionary for each count."""
        names = ("observed", "predicted", "observed_if_taken", "predicted_if_taken")
        columns = [getattr(self, name).tolist() for name in names]
        return [
            {"count": label, **dict(zip(names, row, strict=True))}
            for label, *row in zip(self.labels, *columns, strict=True)
        ]

    def __repr__(self) -> str:
        """Show a table."""
        lines = [
            f"Calibration over {self.n_cells:,} cells of {self.n_users:,} users",
            f"{'count':>6}  {'observed':>10}  {'predicted':>10}  {'if taken: observed':>19}  {'predicted':>10}",
        ]
        for row in self.rows():
            label, *figures = row.values()
            texts = ["" if np.isnan(figure) else f"{figure:.6f}" for figure in figures]
            lines.append(f"{label:>6}  {texts[0]:>10}  {texts[1]:>10}  {texts[2]:>19}  {texts[3]:>10}".rstrip())
        return "\n".join(lines)


def calibration(
    model: Judged,
    train: Any,
    test: Any,
    n_max: int = 10,
    *,
    concentration: Concentration | None = None,
    max_cells: int = 100_000_000,
    seed: int = 0,
    n_threads: int | None = None,
    report: Report | None = None,
) -> Calibration:
    """Return how often the counts 0, 1, …, n_max and above occur in the cells not in train, observed and predicted.

    Parameters
    ----------
    model, train, test, concentration : as for `log_likelihood`; the counts must be whole
    n_max : largest count with a row of its own, 1 to 100
    max_cells : with more cells than this, users drawn at random (`seed`) stand for all
    n_threads, report : as for `nbmf.evaluate`

    Examples
    --------
    >>> table = calibration(([[1.0]], [[1.0], [1.0]]), [[0, 0]], [[0, 1]], n_max=1, concentration=np.inf)
    >>> table.labels, table.observed, table.predicted.round(3)  # Poisson: 1/e, 1/e and the rest
    (('0', '1', '> 1'), array([0.5, 0.5, 0. ]), array([0.368, 0.368, 0.264]))
    """
    if not isinstance(n_max, int | np.integer) or not 1 <= n_max <= MOST_COUNTS:
        raise ValueError(f"n_max is {n_max!r}; it must be a whole number from 1 to {MOST_COUNTS}")
    known, held_out, law = _take(model, train, test, concentration)
    if np.any(held_out.data % 1):
        raise ValueError(f"test has the count {held_out.data[held_out.data % 1 != 0][0]}; only whole ones have a table")
    scores, n_users = scores_of(model, known), known.n_users
    size = min(n_users, max(1, int(max_cells) // max(known.n_items, 1)))
    rows = np.sort(np.random.RandomState(seed).choice(n_users, size, replace=False))
    expected = Frequencies(law, known.matrix, size, int(n_max))
    walk(scores, rows, [expected], n_threads=n_threads, report=report)
    n_cells = int(known.n_items * size - np.diff(known.matrix.indptr)[rows].sum())
    if not n_cells:
        raise ValueError("every cell is in train; there is nothing to judge")
    counts = np.minimum(held_out[rows].data, n_max + 1).astype(np.int64)
    observed = np.bincount(counts, minlength=n_max + 2) / n_cells
    observed[0] = 1 - len(counts) / n_cells
    predicted = np.append(expected.totals.sum(axis=0) / n_cells, 0.0)
    predicted[-1] = max(0.0, 1 - predicted.sum())
    labels = (*map(str, range(n_max + 1)), f"> {n_max}")
    return Calibration(labels, observed, predicted, _if_taken(observed), _if_taken(predicted), size, n_cells)


def _if_taken(frequency: Array) -> Array:
    taken = frequency[1:].sum()
    return np.concatenate(([np.nan], frequency[1:] / taken if taken > 0 else np.full(len(frequency) - 1, np.nan)))


def _take(
    model: Judged, train: Any, test: Any, concentration: Concentration | None
) -> tuple[Interactions, sp.csr_array, Likelihood]:
    """Return train, the test counts outside train (of ones, for a model of binarized counts), and the model's law."""
    known, held_out = take(train, test)
    law = law_of(model, concentration)
    if getattr(model, "binarize", False):
        held_out = held_out.binarize()
    seen = sp.csr_array((np.ones(known.nnz, bool), known.matrix.indices, known.matrix.indptr), shape=known.matrix.shape)
    counts = sp.csr_array(held_out.matrix - held_out.matrix * seen)
    counts.eliminate_zeros()
    return known, with_sorted_rows(counts), law


class Frequencies:
    """A visit that sums, over each user's cells not in train, the probabilities of the counts 0 to n_max."""

    def __init__(self, law: Likelihood, train: sp.csr_array, n_users: int, n_max: int) -> None:
        """Prepare for the users of a walk."""
        self.concentration, self.train, self.totals = law.concentration, train, np.zeros((n_users, n_max + 1))

    def __call__(self, start: int, rows: Rows, left: int, scores: NDArray[Any]) -> None:
        """Take in the whole rows of scores of some users."""
        check_intensities(scores)
        totals = self.totals[start : start + len(rows)]
        if isinstance(self.concentration, np.ndarray):
            μ, α, unseen = plain(scores, rows, self.concentration, self.train)
            probability = np.exp(-α * np.log1p(μ / α))
            for count in range(totals.shape[1]):
                totals[:, count] = np.sum(probability, axis=1, where=unseen)
                probability *= (α + count) / (count + 1) * μ / (α + μ)
            return
        seen = self.train.indptr, self.train.indices
        sum_probabilities(scores, self.train.shape[1], rows, *seen, float(self.concentration), totals)


@compiled
def _follow(intensity, concentration, sign, probability, ratio, totals):  # type: ignore[no-untyped-def]
    """Add sign · p(count | μ) to totals[count] for a few intensities; p(0), then p(c+1) from p(c)."""
    poisson, scale, size = concentration == np.inf, 1.0 / concentration, len(intensity)
    for j in range(size):
        μ = np.float64(intensity[j])
        probability[j] = exp(-μ if poisson else -concentration * log1p(μ * scale))
        ratio[j] = μ if poisson else μ / (concentration + μ)
    for count in range(len(totals)):
        total = 0.0
        for j in range(size):
            total += probability[j]
        totals[count] += sign * total
        factor = (1.0 if poisson else concentration + count) / (count + 1.0)
        for j in range(size):
            probability[j] *= factor * ratio[j]


@compiled
def sum_probabilities(scores, n_items, rows, indptr, indices, concentration, totals):  # type: ignore[no-untyped-def]
    """For each user, Σ p(count | μ) over all cells but those of the csr matrix, for the counts 0, 1, …"""
    probability, ratio = np.empty(PIECE), np.empty(PIECE)
    for n in range(len(rows)):
        row = scores[n][:n_items]
        for start in range(0, len(row), PIECE):
            _follow(row[start : start + PIECE], concentration, 1.0, probability, ratio, totals[n])
        seen = row[indices[indptr[rows[n]] : indptr[rows[n] + 1]]]
        for start in range(0, len(seen), PIECE):
            _follow(seen[start : start + PIECE], concentration, -1.0, probability, ratio, totals[n])
