"""The passes on several threads of one machine: compiled walks over the non-zeros, matrix products over the tiles.

Rows are shared out by equal work, each done by one thread (see kernels.py), and matrix products run on one BLAS thread
each with fixed tiles, so the number of threads changes nothing but the time.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from nbmf.backends import OnHost, Sums
from nbmf.backends.counts import Counts
from nbmf.backends.cpu import kernels, tiles
from nbmf.backends.slopes import sum_slopes
from nbmf.model.factors import Factor, Gamma, Prior
from nbmf.model.likelihood import Likelihood, Poisson
from nbmf.model.ties import Ties

Array = NDArray[np.floating[Any]]
Job = tuple[NDArray[Any], Callable[[int, int], None]]  # where each row's non-zeros begin; what does a stretch of rows

TILE_ROWS, TILE_COLUMNS = 128, 800  # a tile and its factors stay in a core's own cache
BLOCK_ROWS = 4096  # rows summed in single precision before the sum goes to double
# Underflow can make λ of a non-zero 0 (a prior shape of 0.01 in float32 does); y/λ must stay finite.
LEAST_INTENSITY = {np.dtype(np.float32): np.float32(1e-25), np.dtype(np.float64): np.float64(1e-250)}
LARGE_COUNT = 1000.0  # from which logarithms in single precision would show in the objective
ROW_WORK = 16  # what a row costs beside its non-zeros, in non-zeros
LEAST_WORK = 4096  # non-zeros for which waking a thread pays
SHARES = 32  # many, so that all threads end together, and not a function of their number


@dataclass(frozen=True)
class SparseExpectation:
    """The latent variables of the non-zeros (`shares`, `excess`: see kernels.py) and how to get those of the others.

    The unseen cells' exposures are `unseen[user, cluster]` if tied. If exact they are computed from the factors again
    by tiles, faster than a users × items array could be read; for Poisson they are 1.
    """

    users: Factor
    items: Factor
    likelihood: Likelihood
    ties: Ties | None
    shares: Array
    excess: Array | None
    unseen: Array | None
    sums: Sums | None
    log_evidence: float

    @property
    def user_sums(self) -> Sums:
        """The sums of Eq. (update_w), made in the same walks as the shares and the excess."""
        if self.sums is None:
            raise ValueError("the users' sums were not asked for: expect(..., sum_users=True) makes them")
        return self.sums


@dataclass(frozen=True)
class Cpu(OnHost):
    """Threads on one machine; `n_threads=None` takes as many as numba does."""

    n_threads: int | None = None

    def expect(
        self,
        counts: Counts,
        users: Factor,
        items: Factor,
        likelihood: Likelihood,
        ties: Ties | None,
        *,
        sum_users: bool = True,
    ) -> SparseExpectation:
        """Infer allocations and exposures, Eqs. (update_c) and (update_a), and sum them for each user in one walk."""
        by_user, dtype = counts.by_user, users.mean.dtype
        walk = _walk(by_user)
        shares, allocated = np.empty(by_user.nnz, dtype), np.empty_like(users.mean) if sum_users else None
        log_evidence = np.zeros(by_user.shape[0])
        factors = (users.geometric_mean, items.geometric_mean, LEAST_INTENSITY[dtype])
        precise = counts.values[0].max(initial=0.0) > LARGE_COUNT
        allocate = partial(_call, kernels.allocate_rows, (*walk, *factors, shares, allocated, log_evidence, precise))
        excess = unseen = None
        exposed: Array | None
        if isinstance(likelihood, Poisson):
            exposed = self._sum_rows(items.mean)[None, :].astype(dtype)
            log_evidence[:1] = -self._sum_rows(users.mean) @ self._sum_rows(items.mean)
            if counts.unknown is not None:
                left_out = counts.unknown @ items.mean
                log_evidence += (users.mean * left_out).sum(axis=1, dtype=np.float64)
                exposed = np.maximum(exposed - left_out, 0)  # below 0 is rounding
            self._share_out((by_user.indptr, allocate))
        else:
            by_user_α, by_item_α = _concentrations(likelihood, by_user.shape[0], dtype)
            labels = sizes = None
            excess, exposed = np.empty_like(shares), np.empty_like(users.mean) if sum_users else None
            if ties is not None:
                labels, sizes = _unsigned(ties.labels), np.array(list(map(len, ties.members)), dtype)
                unseen = np.empty((len(users.mean), ties.n_clusters), dtype)
            means, found = (users.mean, items.mean), (exposed, log_evidence)
            if by_item_α is None:
                settings = (by_user_α, labels, sizes, excess, unseen)
                expose = partial(_call, kernels.expose_rows, (*walk, *means, *settings, *found, precise))
            else:
                expose = partial(_call, kernels.expose_rows_by_item, (*walk, *means, by_item_α, excess, *found))
            if ties is None or unseen is None:
                self._expose_unseen(*means, items.mean, (by_user_α, by_item_α), *found, allocate, expose)
            else:
                sums = self._sum_clusters(ties, items.mean)
                self._tie(by_user.indptr, users.mean, sums, unseen, exposed, allocate, expose)
        user_sums = None if allocated is None or exposed is None else Sums(allocated, exposed)
        total = float(log_evidence.sum())
        return SparseExpectation(users, items, likelihood, ties, shares, excess, unseen, user_sums, total)

    def sum_by_item(self, counts: Counts, expectation: SparseExpectation, users: Factor) -> Sums:
        """Sum the same allocations and exposures for each item, Eq. (update_h)."""
        before, items, ties, user_means = expectation.users, expectation.items, expectation.ties, users.mean
        allocated, excess = np.zeros_like(items.mean), expectation.excess
        if excess is None:
            exposed = self._sum_rows(user_means)[None, :].astype(user_means.dtype)
            if counts.unknown is not None:
                exposed = np.maximum(exposed - counts.unknown.T @ user_means, 0)
        elif ties is None:
            exposed = np.empty_like(items.mean)
        else:
            exposed = self._sum_rows(user_means, expectation.unseen).astype(user_means.dtype)[ties.labels]

        blocks, geometric = counts.by_item, before.geometric_mean
        bounds = np.cumsum([0, *(block.shape[1] for block in blocks)])
        rows = [slice(start, stop) for start, stop in pairwise(bounds.tolist())]
        tables, lays = [geometric[of_block][:, None] for of_block in rows], []
        if excess is not None:
            # one table is laid while the other is read; exact exposures walk over all blocks together
            n_buffers = len(blocks) if ties is None else min(2, len(blocks))
            buffers = np.empty((n_buffers, int(np.diff(bounds).max()), 2, geometric.shape[1]), geometric.dtype)
            tables = [buffers[n % n_buffers, : block.shape[1]] for n, block in enumerate(blocks)]
            for of_block, table in zip(rows, tables, strict=True):
                arguments = (geometric[of_block], user_means[of_block], table)
                lays.append((_even(len(table)), partial(_call, kernels.lay_side_by_side, arguments)))
        walks = []
        for block, table in zip(blocks, tables, strict=True):
            found = (expectation.shares, excess, table, items.geometric_mean, allocated, exposed)
            walks.append((block.indptr, partial(_call, kernels.sum_rows, (*_walk(block), *found))))
        if excess is not None and ties is None:
            by_user, by_item = _concentrations(expectation.likelihood, len(before.mean), before.mean.dtype)
            if by_item is None and np.ndim(expectation.likelihood.concentration) == 0:
                by_item = np.full(len(items.mean), by_user[0])
            αs = (by_item, by_user if by_item is None else None)
            self._share_out(*lays)
            self._expose_unseen(items.mean, before.mean, user_means, αs, exposed, None, *(walk for _, walk in walks))
        else:
            self._share_out(*lays[:1])
            for n, walk in enumerate(walks, 1):
                self._share_out(walk, *lays[n : n + 1])
            np.maximum(exposed, 0, out=exposed)  # as in `_tie`
        return Sums(allocated, exposed)

    def conditional(self, prior: Prior, sums: Sums) -> Gamma:
        """Return the posterior and its moments, in double precision until they are stored."""
        mean, geometric_mean = np.empty_like(sums.allocated), np.empty_like(sums.allocated)
        rows = [np.empty(len(mean)) for _ in range(3)]
        constants = float(prior.shape), np.asarray(prior.rate, np.float64).reshape(-1)
        arguments = (*constants, *sums, mean, geometric_mean, *rows)
        self._share_out((_even(len(mean)), partial(_call, kernels.gamma_rows, arguments)))
        return Gamma(mean, geometric_mean, sums.exposed, prior.rate, *rows)

    def slopes(
        self, counts: Counts, expectation: SparseExpectation, group: str
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """∂/∂α and ∂²/∂α² of the log-evidence: the cells as if every count were 0, and what the stored ones differ."""
        law, ties, excess, unseen = expectation.likelihood, expectation.ties, expectation.excess, expectation.unseen
        if excess is None:
            raise TypeError(f"{type(law).__name__} has no concentration to learn")
        sums = sum_slopes(counts.by_user, law, ties, excess, unseen, group)
        if ties is None:
            of_zeros = self._unseen_slopes(expectation, group)
            sums = sums + (np.sum(of_zeros, axis=1, keepdims=True) if group == "all" else of_zeros)
        slope, curvature = sums.reshape(2, *{"all": (), "user": (-1, 1), "item": (1, -1)}[group])
        return slope, curvature

    def _unseen_slopes(
        self, expectation: SparseExpectation, group: str
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Sums over each user's, or each item's, cells as if every count were 0, by tiles."""
        rows, columns = expectation.users.mean, expectation.items.mean
        by_row, by_item = _concentrations(expectation.likelihood, len(rows), rows.dtype)
        if group == "item":
            rows, columns = columns, rows
            by_row = np.full(len(rows), by_row[0]) if by_item is None else by_item
        slopes, curvatures = np.zeros((2, len(rows)))
        transposed = np.ascontiguousarray(columns.T)

        def add(top: int) -> None:
            block = slice(top, top + TILE_ROWS)
            for left in range(0, len(columns), TILE_COLUMNS):
                tile = rows[block] @ transposed[:, left : left + TILE_COLUMNS]
                tiles.slope_tile(tile, by_row[block], slopes[block], curvatures[block])

        with self._blas.limit(limits=1, user_api="blas"):
            self._run(add, range(0, len(rows), TILE_ROWS))
        return slopes, curvatures

    def _expose_unseen(
        self,
        rows: Array,
        columns: Array,
        weights: Array,
        concentrations: tuple[Array | None, Array | None],
        exposed: Array | None,
        log_evidence: NDArray[np.float64] | None,
        *then: Callable[[int, int], None],
    ) -> None:
        """Exact exposures as if every count were 0, tile by tile; after each tile of rows, `then` does the non-zeros.

        Sets `exposed` to Σ over columns of α/(α+μ) weights, and takes Σ α ln(1 + μ/α) off `log_evidence`; None: not
        wanted. `concentrations` are those of the rows or those of the columns.
        """
        transposed, (by_row, by_column) = np.ascontiguousarray(columns.T), concentrations
        # a multiple of four, so that two or four threads end together
        n_tiles = min(4 * -(-len(rows) // (4 * TILE_ROWS)), len(rows))

        def expose_rows(n: int) -> None:
            top, bottom = len(rows) * n // n_tiles, len(rows) * (n + 1) // n_tiles
            buffer = np.empty((bottom - top) * TILE_COLUMNS, rows.dtype)
            total = np.zeros((bottom - top, weights.shape[1]))
            logs = None if log_evidence is None else log_evidence[top:bottom]
            for left in range(0, len(columns), TILE_COLUMNS):
                right = min(left + TILE_COLUMNS, len(columns))
                tile = buffer[: (bottom - top) * (right - left)].reshape(bottom - top, right - left)
                np.matmul(rows[top:bottom], transposed[:, left:right], out=tile)
                if by_column is not None:
                    tiles.expose_tile_by_column(tile, by_column[left:right], logs)
                elif by_row is not None:
                    tiles.expose_tile(tile, by_row[top:bottom], logs)
                if exposed is not None:
                    total += tile @ weights[left:right]
            if exposed is not None:
                exposed[top:bottom] = total
            for walk in then:
                walk(top, bottom)

        with self._blas.limit(limits=1, user_api="blas"):
            self._run(expose_rows, range(n_tiles))

    def _tie(
        self,
        indptr: NDArray[Any],
        user_means: Array,
        cluster_sums: Array,
        unseen: Array,
        exposed: Array | None,
        allocate: Callable[[int, int], None],
        expose: Callable[[int, int], None],
    ) -> None:
        """Tied exposures: ⟨w_u⟩·S_c, from which a walk makes A_uc; then Σ_c A_uc S_c on top of the walk's sums."""

        def tie_rows(start: int, stop: int) -> None:
            rows = slice(start, stop)
            allocate(start, stop)
            np.matmul(user_means[rows], cluster_sums.T, out=unseen[rows])
            expose(start, stop)
            if exposed is not None:
                # A_uc S_c has the seen cells too, which the walk has taken off in advance; below 0 is rounding
                exposed[rows] += unseen[rows] @ cluster_sums
                np.maximum(exposed[rows], 0, out=exposed[rows])

        with self._blas.limit(limits=1, user_api="blas"):
            self._share_out((indptr, tie_rows))

    def _sum_rows(self, values: Array, weights: Array | None = None) -> NDArray[np.float64]:
        """Σ over rows of values, or of weightsᵀ values: rows by blocks in single precision, blocks in double."""

        def sum_block(top: int) -> Array:
            block = slice(top, top + BLOCK_ROWS)
            # the smaller side first: a tenth faster
            return values[block].sum(axis=0) if weights is None else (values[block].T @ weights[block]).T

        with self._blas.limit(limits=1, user_api="blas"):
            blocks = self._run(sum_block, range(0, len(values), BLOCK_ROWS))
        total: NDArray[np.float64] = np.sum(blocks, axis=0, dtype=np.float64)
        return total

    def _sum_clusters(self, ties: Ties, values: Array) -> Array:
        """S_c: the sum of the rows of each cluster's items."""
        bounds, members = np.cumsum([0, *map(len, ties.members)]), np.concatenate(ties.members)
        sums = np.empty((ties.n_clusters, values.shape[1]), values.dtype)
        arguments = (bounds, _unsigned(members), np.ones(len(values), values.dtype), values, sums)
        self._share_out((bounds, partial(_call, kernels.sum_groups, arguments)))
        return sums

    def _share_out(self, *jobs: Job) -> None:
        """Call each job(start, stop) for stretches of rows of about equal work that together are all its rows."""
        tasks = []
        for indptr, job in jobs:
            work = indptr + ROW_WORK * np.arange(len(indptr), dtype=np.int64)
            n_shares = max(1, min(SHARES, int(work[-1]) // LEAST_WORK))
            bounds = np.unique(np.searchsorted(work, np.linspace(0, work[-1], n_shares + 1))).tolist()
            tasks += [partial(job, start, stop) for start, stop in pairwise(bounds)]
        self._run(lambda n: tasks[n](), range(len(tasks)))

    def _run(self, job: Callable[[int], Any], starts: range) -> list[Any]:
        """Return what job(start) gives for each start, done by whichever thread is free; this one works too."""
        results: list[Any] = [None] * len(starts)
        tasks = iter(range(len(starts)))  # shared: taking the next is one step of the interpreter

        def work() -> None:
            for n in tasks:
                results[n] = job(starts[n])

        helpers = [self._pool.submit(work) for _ in range(min(self._n_threads, len(starts)) - 1)]
        work()
        for helper in helpers:
            helper.result()
        return results

    @cached_property
    def _n_threads(self) -> int:
        return self.n_threads or numba.get_num_threads()

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max(1, self._n_threads - 1), thread_name_prefix="nbmf")

    @cached_property
    def _blas(self) -> ThreadpoolController:
        return ThreadpoolController()


def _call(kernel: Any, arguments: tuple[Any, ...], start: int, stop: int) -> None:
    kernel(start, stop, *arguments)


def _walk(matrix: sp.csr_array) -> tuple[NDArray[Any], ...]:
    """What a walk over the non-zeros reads."""
    values = matrix.data if matrix.data.dtype.kind == "f" else _unsigned(matrix.data)
    return matrix.indptr, _unsigned(matrix.indices), values


def _even(n_rows: int) -> NDArray[np.int64]:
    """In place of `indptr`: rows of equal work."""
    return np.zeros(n_rows + 1, np.int64)


def _unsigned(positions: NDArray[Any]) -> NDArray[Any]:
    """Positions that compiled code need not test for being negative, which then count from the end."""
    return positions.view(f"u{positions.itemsize}")


def _concentrations(likelihood: Likelihood, n_users: int, dtype: np.dtype[Any]) -> tuple[Array, Array | None]:
    """Return the α of each user, and that of each item where it is the items' own; the users' then mean nothing."""
    α = likelihood.concentration
    if isinstance(α, np.ndarray) and α.shape[1] > 1:
        return np.ones(n_users, dtype), α.astype(dtype).ravel()
    return np.full(n_users, np.ravel(α), dtype), None
