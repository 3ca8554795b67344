"""How probable a model considers the held-out counts, and whether its probabilities are calibrated.

The cells evaluated are those not in train: the test counts and all zeros. In each, the count given its intensity
μ = Σ_k ⟨w_uk⟩⟨h_ik⟩ has a likelihood of `nbmf.model`. A model of logarithms
is refused, as it has no likelihood of counts; one of binary input is evaluated on whether there is a count.
"""

import math
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends.cpu.elementary import exp, log1p
from nbmf.backends.cpu.kernels import compiled
from nbmf.data.interactions import Interactions, formed
from nbmf.estimators.fit import FitResult
from nbmf.estimators.log_prob import check_intensities, log_probabilities
from nbmf.estimators.metrics import Array, check_whole, ratio
from nbmf.estimators.ranking import walk, with_sorted_rows
from nbmf.estimators.scores import Rows
from nbmf.estimators.table import RowTable, Shown
from nbmf.evaluation.evaluate import Judged, Walking, as_interactions, scores_of
from nbmf.evaluation.resampling import Metric, intervals, resampled_ratios
from nbmf.model.likelihood import Likelihood, NegativeBinomial, Parameter, Poisson, log_probability

FOLLOWED = ("poisson", "negative_binomial")  # likelihoods whose p(c+1) follows from p(c) in compiled code
PIECE = 512  # cells whose probabilities of 0, 1, 2, … are computed side by side
MOST_COUNTS = 100  # of a table; where p(0) < e^−700 underflows to 0, all these counts are about as improbable


def log_likelihood(
    model: Judged,
    train: Any,
    test: Any,
    *,
    concentration: Parameter | None = None,
    likelihood: Likelihood | None = None,
    n_boot: int = 1000,
    seed: int = 0,
    **walking: Unpack[Walking],
) -> Metric:
    """Return the mean of ln p(y) over all cells that are not in train: the test counts and the zeros.

    Parameters
    ----------
    model, train, test, n_boot, seed, n_threads, report
        As for `nbmf.evaluate`.
    concentration : float or array, optional
        α of the likelihood, a number (infinity for Poisson) or an array users × 1 or 1 × items; by default the model's.
    likelihood : Likelihood, optional
        Any other likelihood, by default the model's.

    Returns
    -------
    Metric
        `mean` over the cells, `interval` over resampled users, and each user's own mean in `per_user`. If a test count
        is impossible (intensity 0) the mean is −∞ and has no interval.

    Examples
    --------
    >>> W, H = [[1.0], [1.0]], [[2.0], [1.0]]
    >>> found = log_likelihood((W, H), train=[[3, 0], [0, 0]], test=[[0, 1], [1, 0]], concentration=np.inf)
    >>> round(found.mean, 3), round(float(np.log(2) - 2 - 1 - 1) / 3, 3)  # Poisson: y ln μ − μ − ln y!
    (-1.102, -1.102)
    """
    check_whole("n_boot", n_boot)
    known, held_out, likelihood = _prepare(model, train, test, concentration, likelihood)
    intensities = scores_of(model, known, intensities=True)
    total = log_probabilities(likelihood, intensities, held_out, known.matrix, **walking)
    n_cells = known.n_items - np.diff(known.matrix.indptr)
    mean = float(total.sum() / n_cells.sum()) if n_cells.any() else float("nan")
    interval = (float("nan"), float("nan"))
    if np.isfinite(mean):
        interval = intervals(resampled_ratios(total[:, None], n_cells[:, None].astype(np.float64), n_boot, seed))[0]
    return Metric(mean, interval, ratio(total, n_cells), int(np.count_nonzero(n_cells)))


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(RowTable):
    """How often each count occurs in the cells not in train, and how often the model predicts it.

    Attributes
    ----------
    labels : tuple of str
        "0", "1", … and the tail, "> n_max".
    observed, predicted : array
        Frequencies, which add up to 1.
    observed_if_taken, predicted_if_taken : array
        The same among the counts from 1; nan for 0.
    n_users, n_cells : int
        The users and cells that were counted; fewer than all if users were sampled.
    """

    labels: tuple[str, ...]
    observed: Array
    predicted: Array
    observed_if_taken: Array
    predicted_if_taken: Array
    n_users: int
    n_cells: int

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain dictionary per count."""
        names = ("observed", "predicted", "observed_if_taken", "predicted_if_taken")
        columns = (getattr(self, name).tolist() for name in names)
        return [dict(zip(("count", *names), row, strict=True)) for row in zip(self.labels, *columns, strict=True)]

    def shown(self) -> Shown:
        """Return title, heads and rows."""
        title = f"Calibration over {self.n_cells:,} cells of {self.n_users:,} users"
        head = ("count", "observed", "predicted", "if taken: observed", "predicted")
        rows = []
        for label, *values in (row.values() for row in self.rows()):
            rows.append([label, *("" if np.isnan(value) else f"{value:.6f}" for value in values)])
        return title, head, rows


def calibration(
    model: Judged,
    train: Any,
    test: Any,
    n_max: int = 10,
    *,
    concentration: Parameter | None = None,
    max_cells: int = 100_000_000,
    seed: int = 0,
    **walking: Unpack[Walking],
) -> Calibration:
    """Return how often the counts 0, 1, …, n_max and above occur in the cells not in train, observed and predicted.

    Parameters
    ----------
    model, train, test, concentration, n_threads, report
        As for `log_likelihood`; the counts must be whole numbers.
    n_max : int
        Largest count with a row of its own, 1 to 100.
    max_cells, seed : int
        If there are more cells than this, users drawn at random with this seed stand for all.

    Examples
    --------
    >>> table = calibration(([[1.0]], [[1.0], [1.0]]), [[0, 0]], [[0, 1]], n_max=1, concentration=np.inf)
    >>> table.labels, table.observed, table.predicted.round(3)  # Poisson: 1/e, 1/e and the rest
    (('0', '1', '> 1'), array([0.5, 0.5, 0. ]), array([0.368, 0.368, 0.264]))
    """
    if not isinstance(n_max, int | np.integer) or not 1 <= n_max <= MOST_COUNTS:
        raise ValueError(f"n_max is {n_max!r}; it must be a whole number from 1 to {MOST_COUNTS}")
    known, held_out, likelihood = _prepare(model, train, test, concentration)
    if not likelihood.is_normalized:
        raise ValueError(f"the probabilities of {likelihood.kind!r} do not sum to 1, so there is nothing to tabulate")
    broken = held_out.data[held_out.data % 1 != 0]
    if len(broken):
        raise ValueError(f"test has the count {broken[0]}; only whole numbers can be tabulated")
    scores, n_users = scores_of(model, known, intensities=True), known.n_users
    size = min(n_users, max(1, int(max_cells) // max(known.n_items, 1)))
    rows = np.sort(np.random.RandomState(seed).choice(n_users, size, replace=False))
    expected = Frequencies(likelihood, known.matrix, size, int(n_max))
    walk(scores, rows, [expected], **walking)
    n_cells = int(known.n_items * size - np.diff(known.matrix.indptr)[rows].sum())
    if not n_cells:
        raise ValueError("every cell is in train; there is nothing to evaluate")
    counts = np.minimum(held_out[rows].data, n_max + 1).astype(np.int64)
    observed = np.bincount(counts, minlength=n_max + 2) / n_cells
    observed[0] = 1 - len(counts) / n_cells
    predicted = np.append(expected.totals.sum(axis=0) / n_cells, 0.0)
    predicted[-1] = max(0.0, 1 - predicted.sum())
    labels = (*map(str, range(n_max + 1)), f"> {n_max}")
    return Calibration(labels, observed, predicted, _if_taken(observed), _if_taken(predicted), size, n_cells)


def why_incomparable(model: Any, *, is_binary: bool = False) -> str:
    """Return why a fitted model has no likelihood of counts that could be compared with those of others, "" if it has.

    If the data `is_binary`, a likelihood of whether there is a count is one of the data.
    """
    fit, likelihood = getattr(model, "result_", None), getattr(model, "likelihood_", None)
    form = getattr(fit, "target", "counts")
    if form == "log1p":
        return "it is of ln(1 + count)"
    if likelihood is None and not hasattr(model, "concentration_"):
        return "it only ranks"
    if form == "binary" and not is_binary:
        return "it is of whether there is a count"
    if likelihood is not None and not likelihood.is_normalized:
        return "its probabilities do not sum to 1"
    return ""


def counts_likelihood(model: Any, train: Any, test: Any, **walking: Unpack[Walking]) -> float:
    """Return the mean of `log_likelihood`, nan for a model without one that can be compared with those of others."""
    is_binary = bool(np.all(train.matrix.data == 1) and np.all(test.matrix.data == 1))
    if why_incomparable(model, is_binary=is_binary):
        return math.nan
    return log_likelihood(model, train, test, n_boot=1, **walking).mean


def _if_taken(frequency: Array) -> Array:
    with np.errstate(invalid="ignore"):  # 0/0 is nan: no count is taken
        return np.append(np.nan, frequency[1:] / frequency[1:].sum())


def _prepare(
    model: Judged, train: Any, test: Any, concentration: Parameter | None, likelihood: Likelihood | None = None
) -> tuple[Interactions, sp.csr_array, Likelihood]:
    """Return train, the test counts outside train in the form that the model is of, and the likelihood."""
    known, held_out = as_interactions(train, test)
    fit = getattr(model, "result_", None)
    if isinstance(fit, FitResult):
        fit.check_of_counts()
    if concentration is None and likelihood is None:
        likelihood = getattr(model, "likelihood_", None)
    α = getattr(model, "concentration_", None) if concentration is None else concentration
    if likelihood is None and α is not None:
        likelihood = Poisson() if np.ndim(α) == 0 and α == np.inf else NegativeBinomial(α)
    if likelihood is None:
        raise TypeError(
            f"{type(model).__name__} has no concentration_, so its likelihood is unknown; "
            "give concentration=…, a positive number, or infinity for Poisson"
        )
    tested = formed(held_out.matrix, getattr(fit, "target", "counts"))
    seen = sp.csr_array((np.ones(known.nnz, bool), known.matrix.indices, known.matrix.indptr), shape=known.matrix.shape)
    counts = sp.csr_array(tested - tested * seen)
    counts.eliminate_zeros()
    return known, with_sorted_rows(counts), likelihood


class Frequencies:
    """A visit that sums the probabilities of the counts 0 to n_max over each user's cells not in train."""

    def __init__(self, likelihood: Likelihood, train: sp.csr_array, n_users: int, n_max: int) -> None:
        self.likelihood, self.train, self.totals = likelihood, train, np.zeros((n_users, n_max + 1))

    def __call__(self, start: int, rows: Rows, left: int, scores: NDArray[Any]) -> None:
        """Add the rows of scores of some users."""
        check_intensities(scores)
        totals, likelihood = self.totals[start : start + len(rows)], self.likelihood.of_rows(rows)
        if not likelihood.varies and likelihood.kind in FOLLOWED:
            seen = self.train.indptr, self.train.indices
            sum_probabilities(scores, self.train.shape[1], rows, *seen, float(likelihood.concentration), totals)
            return
        μ, unseen = scores[:, : self.train.shape[1]].astype(np.float64), self.train[rows].toarray() == 0
        for count in range(int(min(totals.shape[1], likelihood.most + 1))):
            with np.errstate(divide="ignore"):
                probability = np.exp(log_probability(likelihood, float(count), μ))
            totals[:, count] = np.sum(probability, axis=1, where=unseen)


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
    """Add, for each user, Σ p(count | μ) over all cells except those of the csr matrix, for the counts 0, 1, …"""
    probability, ratio = np.empty(PIECE), np.empty(PIECE)
    for n in range(len(rows)):
        row = scores[n][:n_items]
        for start in range(0, len(row), PIECE):
            _follow(row[start : start + PIECE], concentration, 1.0, probability, ratio, totals[n])
        seen = row[indices[indptr[rows[n]] : indptr[rows[n] + 1]]]
        for start in range(0, len(seen), PIECE):
            _follow(seen[start : start + PIECE], concentration, -1.0, probability, ratio, totals[n])
