"""Item–item weights: μ_ui = b_i + Σ_{j≠i} x_uj B_ji with B ≥ 0, by the paper's MM update with users' rows held fixed.

W of Eq. (nmfH) is x with a column of ones, H is (Bᵀ, b), and B has an exponential prior of rate ρ:

    B_ji ← B_ji · Σ_u x_uj t_ui/μ_ui / (Σ_u x_uj (α + t_ui)/(α + μ_ui) + ρ),   no ρ for b.

The items are independent of each other. From a start in which every weight of an item is the same, each update raises
the objective: the log-likelihood of the targets t, less ρ ΣB.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends.cpu.slim import FALLEN, LANES, SETTLED, choose_candidates, fit_candidates, fit_lanes
from nbmf.backends.threads import hand_out
from nbmf.inference.run import FallingObjectiveError
from nbmf.model.likelihood import NegativeBinomial

Array = NDArray[np.floating[Any]]
Csr = tuple[NDArray[Any], NDArray[Any], Array]
Report = Callable[[int, int], None]

PLAIN_ROUNDING = 1e-12
CHUNK_ITEMS = 256  # for which one thread finds the neighbours and fits the weights at a time


@dataclass(frozen=True, eq=False)
class Weights:
    """Fitted weights B, items × items, 0 on the diagonal and sparse if items have few neighbours, and intercepts b."""

    weights: Array | sp.csr_array
    intercept: Array
    objective: NDArray[np.float64]  # the sum over the items after each sweep
    n_sweeps: NDArray[np.intp]
    settled: bool  # whether every item's objective stopped rising before the last sweep


@dataclass(frozen=True, eq=False)
class Regressions:
    """Every item's regression on the others; x and t are canonical, not negative and of one floating type."""

    inputs: sp.csr_array  # x, users × items
    targets: sp.csr_array  # t, users × items
    concentration: float  # α
    penalty: float  # ρ

    @property
    def n_items(self) -> int:
        """Number of regressions."""
        return int(self.targets.shape[1])

    @cached_property
    def constants(self) -> NDArray[np.float64]:
        """Part of each item's log-likelihood that does not depend on μ: Σ lnΓ(α+t) − lnΓ(α) − lnΓ(t+1)."""
        terms = NegativeBinomial(self.concentration).log_base(self.targets.data.astype(np.float64))
        return np.bincount(self.targets.indices, terms, self.n_items).astype(np.float64)

    def starts(self, input_means: NDArray[np.float64]) -> tuple[Array, Array]:
        """Return b and the weight that an item's neighbours start with: each side brings half the item's mean."""
        half = np.asarray(self.targets.sum(axis=0, dtype=np.float64)).ravel() / (2 * self.targets.shape[0])
        start = np.divide(half, input_means, out=np.zeros_like(half), where=input_means > 0)
        return half.astype(self.targets.dtype), start.astype(self.targets.dtype)


def fit_plainly(
    problem: Regressions, max_iter: int, tol: float, *, n_neighbors: int | None = None, accelerate: bool = False
) -> Weights:
    """Fit by whole matrices of users × items and items × items: the shortest correct form."""
    x, t = problem.inputs.toarray().astype(np.float64), problem.targets.toarray().astype(np.float64)
    α, ρ, near = problem.concentration, problem.penalty, _plain_neighbors(x, t, n_neighbors)
    b, start = (values.astype(np.float64) for values in problem.starts(x.mean(axis=0) @ near))
    B, ratio = near * start, np.ones_like(near)
    history: list[Array] = []
    going, stretched, n_sweeps = np.ones(len(b), bool), np.full(len(b), accelerate), np.zeros(len(b), np.intp)
    for sweep in range(max_iter + 1):
        μ = x @ B + b
        share = np.divide(t, μ, out=np.zeros_like(t), where=t > 0)
        terms = np.log1p(np.divide(α, μ, out=np.zeros_like(t), where=t > 0)) * t + α * np.log1p(μ / α)
        now = problem.constants - terms.sum(axis=0) - ρ * B.sum(axis=0)
        moves = going.copy()
        if sweep:
            before = history[-1]
            now, n_sweeps[going] = np.where(going, now, before), sweep
            back = stretched & (now < before - PLAIN_ROUNDING * abs(before))  # to where the plain step leads
            B = np.where(back, B / np.sqrt(np.where(ratio > 0, ratio, 1.0)), B)
            now, stretched = np.where(back, before, now), stretched & ~back
            going &= back | (now - before < 0) | (now - before > tol)
            moves = going & ~back
        history.append(now)
        if not going.any() or sweep == max_iter:
            break
        exposure = (α + t) / (α + μ)
        ratio = np.where(moves, (x.T @ share) / np.maximum(x.T @ exposure + ρ, np.finfo(float).tiny), 1.0)
        B = B * np.where(stretched, ratio * np.sqrt(ratio), ratio)
        b = np.where(moves, b * share.sum(axis=0) / exposure.sum(axis=0), b)
    objective = np.array([values.sum() for values in history[1:]])
    dtype, weights = problem.targets.dtype, B if n_neighbors is None else sp.csr_array(B)
    return Weights(weights.astype(dtype), b.astype(dtype), objective, n_sweeps, not going.any())


def _plain_neighbors(x: Array, t: Array, n_neighbors: int | None) -> NDArray[np.float64]:
    """Return 1 where the row's item is a neighbour of the column's, else 0."""
    n_items = x.shape[1]
    others = 1.0 - np.eye(n_items)
    if n_neighbors is None or n_neighbors >= n_items - 1:
        return others
    strength = others * (x.T @ t) / np.sqrt(np.maximum(x.sum(axis=0), np.finfo(float).tiny))[:, None]
    place = np.argsort(np.argsort(-strength, axis=0, kind="stable"), axis=0, kind="stable")
    return np.where((strength > 0) & (place < n_neighbors), 1.0, 0.0)


def fit(
    problem: Regressions,
    max_iter: int,
    tol: float,
    *,
    n_neighbors: int | None,
    accelerate: bool,
    n_threads: int | None,
    report: Report = lambda done, total: None,
) -> Weights:
    """Fit on several threads, with the same bits for any number of them.

    An item stops when a sweep adds no more than `tol` to its objective. It has at most `n_neighbors` neighbours, or all
    others. `accelerate` takes longer steps, B · ratio^(3/2), as long as they do not lower the item's objective.
    `report` is called with the number of items done and of all items.
    """
    return _Fit(problem, (max_iter, float(tol), accelerate), n_threads, report).run(n_neighbors)


class _Fit:
    """The arrays that the threads share, and what each of them does."""

    def __init__(self, problem: Regressions, ending: tuple[Any, ...], n_threads: int | None, report: Report) -> None:
        self.problem, self.ending, self.n_threads, self.report = problem, ending, n_threads, report
        matrices = (problem.inputs, problem.inputs.tocsc(), problem.targets.tocsc())
        self.rows, self.columns, self.targets = map(_parts, matrices)
        dtype = problem.targets.dtype.type
        self.model = dtype(problem.concentration), dtype(problem.penalty), problem.constants
        self.input_means = np.asarray(problem.inputs.mean(axis=0, dtype=np.float64)).ravel()
        # of each item how its regression went, and whether all of them shall stop
        self.records = np.zeros(problem.n_items, np.intp), np.full(problem.n_items, SETTLED), np.zeros(1, np.uint8)

    def run(self, n_neighbors: int | None) -> Weights:
        weights, intercept, gains = self._all() if n_neighbors is None else self._few(n_neighbors)
        n_sweeps, states, _ = self.records
        if np.any(states == FALLEN):
            item = int(np.argmax(states == FALLEN))
            raise FallingObjectiveError(
                f"the objective of item number {item} fell in sweep {n_sweeps[item]}, by more than rounding; "
                "counts or settings are out of the range of their numbers: scale the data, or use target='log1p'"
            )
        objective = np.cumsum(np.sum(gains, axis=0))[1 : n_sweeps.max(initial=0) + 1]
        return Weights(weights, intercept, objective, n_sweeps, bool(np.all(states == SETTLED)))

    def _all(self) -> tuple[Array, Array, Sequence[Array]]:
        n_items, dtype = self.problem.n_items, self.problem.targets.dtype
        weights = np.zeros((n_items, n_items), dtype)
        intercept, start = self.problem.starts(self.input_means.sum() - self.input_means)
        # items with as many users need about as many sweeps, and lanes go on until the last of them stops
        order = np.argsort(np.diff(self.targets[0]), kind="stable")[::-1]

        def fit_block(first: int) -> Array:
            items, gains = order[first : first + LANES], np.zeros(1 + self.ending[0])
            block, b = np.zeros((n_items, LANES), dtype), np.zeros(LANES, dtype)
            block[:, : len(items)], b[: len(items)] = start[items], intercept[items]
            block[items, np.arange(len(items))] = 0
            data = self.rows, self.columns, self.targets
            fit_lanes(items, *data, *self.model, *self.ending, block, b, gains, *self.records)
            weights[:, items], intercept[items] = block[:, : len(items)], b[: len(items)]
            return gains

        return weights, intercept, self._share_out(fit_block, LANES)

    def _few(self, n_neighbors: int) -> tuple[sp.csr_array, Array, Sequence[Array]]:
        n_items, dtype = self.problem.n_items, self.problem.targets.dtype
        popularity = np.asarray(self.problem.inputs.sum(axis=0, dtype=np.float64)).ravel()
        intercept = np.zeros(n_items, dtype)

        def fit_chunk(first: int) -> tuple[Array, sp.csr_array]:
            last, gains = min(first + CHUNK_ITEMS, n_items), np.zeros(1 + self.ending[0])
            bounds, near = self._neighbors(first, last, n_neighbors, popularity)
            rows = np.repeat(np.arange(first, last), np.diff(bounds[first : last + 1]))
            b, start = self.problem.starts(np.bincount(rows, self.input_means[near], n_items).astype(np.float64))
            intercept[first:last] = b[first:last]
            own = np.repeat(start[first:last], np.diff(bounds[first : last + 1]))
            data = bounds, near.astype(np.uint32), self.columns, self.targets, self.problem.targets.shape[0]
            fit_candidates(first, last, *data, *self.model, *self.ending, own, intercept, gains, *self.records)
            return gains, sp.csr_array((own, (rows - first, near)), shape=(last - first, n_items))

        gains, blocks = zip(*self._share_out(fit_chunk, CHUNK_ITEMS), strict=True)
        weights = sp.csr_array(sp.vstack(blocks, format="csr").T.tocsr())
        weights.eliminate_zeros()
        return weights, intercept, gains

    def _neighbors(
        self, first: int, last: int, n_neighbors: int, popularity: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        """Return where each item's neighbours begin (other items have none), and the neighbours."""
        n_items = self.problem.n_items
        lengths = np.zeros(n_items, np.int64)
        if n_neighbors >= n_items - 1:
            lengths[first:last] = n_items - 1
            near = np.concatenate([np.delete(np.arange(n_items), item) for item in range(first, last)])
        else:
            chosen = np.zeros((last - first, n_neighbors), np.intp)
            choose_candidates(first, last, self.rows, self.targets, popularity, n_neighbors, chosen, lengths)
            near = chosen[np.arange(n_neighbors) < lengths[first:last, None]]
        return np.concatenate([[0], np.cumsum(lengths)]), near

    def _share_out(self, job: Callable[[int], Any], step: int) -> list[Any]:
        tasks, n_items = range(0, self.problem.n_items, step), self.problem.n_items
        report: Callable[[int], None] = lambda n_jobs: self.report(min(n_jobs * step, n_items), n_items)  # noqa: E731
        return hand_out(job, tasks, self.n_threads, report=report, stop=self.records[-1])


def _parts(matrix: sp.csr_array | sp.csc_array) -> Csr:
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.uint32), matrix.data
