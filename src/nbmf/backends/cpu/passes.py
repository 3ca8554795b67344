"""The passes on several threads of one machine: compiled walks over the non-zeros, matrix products over the tiles.

Each row is done by one thread (see kernels.py), and matrix products of fixed tiles run on one BLAS thread each, so
results are identical for any number of threads.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import call
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends import LEAST_INTENSITY, Array, Given, OnHost, Sums, UserSums, check_kind, group_means
from nbmf.backends.counts import Counts
from nbmf.backends.cpu import inflated, kernels
from nbmf.backends.cpu.events import LAWS
from nbmf.backends.remainder import cancels, log_evidence_of_cells, sum_known
from nbmf.backends.slopes import SHAPES, Concentrations, Pair, sum_slopes
from nbmf.backends.threads import cut_evenly, hand_out, one_blas_thread
from nbmf.model.factors import Gamma, Prior
from nbmf.model.family import ZeroInflatedPoisson
from nbmf.model.likelihood import Likelihood
from nbmf.model.ties import Ties

Loop = tuple[Any, ...]  # what does rows `start` to `stop`, and its further arguments
Job = tuple[NDArray[Any], Loop]  # where each row's non-zeros begin (all 0 for equal work), and what does the rows

TILE_ROWS, TILE_COLUMNS = 128, 800  # a tile and its factors stay in a core's own cache
BLOCK_ROWS = 4096  # rows summed in single precision before the sum goes to double
CANCELLING = LAWS["bernoulli_poisson"]  # whose Σ log_events and Σ μ may be any numbers with a small difference
LARGE_COUNT = 1000.0  # from which logarithms in single precision would show in the objective
ROW_WORK = 16  # what a row costs beside its non-zeros, in non-zeros
LEAST_WORK = 4096  # non-zeros for which waking a thread pays
SHARES = 32  # many, so that all threads end together, and not a function of their number


@dataclass(frozen=True)
class SparseExpectation(UserSums):
    """The latent variables of the non-zeros (`shares`, `excess`: see kernels.py) and, if tied, of the unseen cells."""

    given: Given
    shares: Array
    excess: Array | None
    unseen: Array | None  # exact ones are computed again by tiles, faster than a users × items array could be read
    log_evidence: float


@dataclass(frozen=True)
class Cpu(OnHost):
    """Threads on one machine: `n_threads` of them, all cores by default."""

    n_threads: int | None = None

    @property
    def encoder(self) -> Any:
        """The passes of an encoder."""
        from nbmf.backends.cpu.encoder import CpuEncoder  # noqa: PLC0415 (compiled only where there is an encoder)

        return CpuEncoder(self.n_threads)

    def expect(self, counts: Counts, given: Given, *, sum_users: bool = True) -> SparseExpectation:
        """Infer allocations and exposures, and sum them for each user in the same walks."""
        check_kind(given.likelihood)
        users, items, likelihood, ties = given
        by_user, dtype = counts.by_user, users.mean.dtype
        walk, log_evidence = _walk(by_user), np.zeros(by_user.shape[0])
        shares, allocated = np.empty(by_user.nnz, dtype), np.empty_like(users.mean) if sum_users else None
        factors = (users.geometric_mean, items.geometric_mean, LEAST_INTENSITY[dtype])
        precise = counts.values[0].max(initial=0.0) > LARGE_COUNT
        law = _law(likelihood)
        allocate = (kernels.allocate_rows, *walk, *factors, *law, shares, allocated, log_evidence, precise)
        excess = unseen = labels = sizes = None
        α, loops = _exposure_parameters(likelihood, by_user.shape[0], dtype), _exposure_loops(likelihood)
        if α is None:
            exposed: Array | None = self._expose_all(counts, given, log_evidence)
            of_zeros = float(log_evidence.sum())
            self._share_out((by_user.indptr, allocate))
            if law[0] == CANCELLING and cancels(counts, float(log_evidence.sum()) - of_zeros):
                log_evidence = log_evidence_of_cells(counts, given)
        else:
            excess, exposed = np.empty_like(shares), np.empty_like(users.mean) if sum_users else None
            if ties is not None:
                labels, sizes = _unsigned(ties.labels), np.array(list(map(len, ties.members)), dtype)
                unseen = np.empty((len(users.mean), ties.n_clusters), dtype)
            means, found = (users.mean, items.mean), (exposed, log_evidence)
            expose = (loops.expose_rows, *walk, *means, *α, labels, sizes, excess, unseen, *found, precise)
            if ties is None:
                self._expose_unseen(loops, *means, items.mean, α, *found, allocate, expose)
                if exposed is not None:
                    _not_below_zero(exposed)
            else:
                tie = (_tie_rows, users.mean, self._sum_clusters(ties, items.mean), unseen, exposed, allocate, expose)
                with one_blas_thread():
                    self._share_out((by_user.indptr, tie))
        sums = None if allocated is None or exposed is None else Sums(allocated, exposed)
        return SparseExpectation(sums, given, shares, excess, unseen, float(log_evidence.sum()))

    def _expose_all(self, counts: Counts, given: Given, log_evidence: NDArray[np.float64]) -> Array:
        """Return the users' sums where every known cell has exposure 1; add −Σ μ to `log_evidence`."""
        user_means, item_means = given.users.mean, given.items.mean
        if counts.unknown is None:
            exposed = self._sum_rows(item_means)[None, :]
            log_evidence[:1] = -self._sum_rows(user_means) @ exposed[0]
        else:
            exposed = sum_known(counts.unknown, item_means)
            log_evidence -= (user_means * exposed).sum(axis=1)
        return exposed.astype(user_means.dtype)

    def sum_by_item(self, counts: Counts, expectation: SparseExpectation, users: Any) -> Sums:
        """Sum the same allocations and exposures for each item, Eq. (update_h)."""
        before, items, likelihood, ties = expectation.given
        user_means, excess, allocated = users.mean, expectation.excess, np.zeros_like(items.mean)
        if excess is None:
            known = None if counts.unknown is None else sum_known(sp.csr_array(counts.unknown.T), user_means)
            exposed = (self._sum_rows(user_means)[None, :] if known is None else known).astype(user_means.dtype)
        elif ties is None:
            exposed = np.empty_like(items.mean)
        else:
            exposed = self._sum_rows(user_means, expectation.unseen).astype(user_means.dtype)[ties.labels]
        # tied exposures lay one block's table while another is read; exact ones walk over all blocks together
        n_buffers = len(counts.by_item) if ties is None else 2
        tables, lays = _tables(counts.by_item, before.geometric_mean, None if excess is None else user_means, n_buffers)
        walks = []
        for block, table in zip(counts.by_item, tables, strict=True):
            found = (expectation.shares, excess, table, items.geometric_mean, allocated, exposed)
            walks.append((block.indptr, (kernels.sum_rows, *_walk(block), *found)))
        α = _exposure_parameters(likelihood, len(before.mean), before.mean.dtype)
        if α is not None and ties is None:
            turned = _turned(α, likelihood, len(items.mean))
            self._share_out(*lays)
            then, tiles = (loop for _, loop in walks), _exposure_loops(likelihood)
            self._expose_unseen(tiles, items.mean, before.mean, user_means, turned, exposed, None, *then)
        else:
            self._share_out(*lays[:1])
            for n, walk in enumerate(walks, 1):
                self._share_out(walk, *lays[n : n + 1])
        _not_below_zero(exposed)
        return Sums(allocated, exposed)

    def conditional(self, prior: Prior, sums: Sums) -> Gamma:
        """Return the posterior and its moments, in double precision until they are stored."""
        mean, geometric_mean = np.empty_like(sums.allocated), np.empty_like(sums.allocated)
        rows = [np.empty(len(mean)) for _ in range(3)]
        constants = float(prior.shape), np.asarray(prior.rate, np.float64).reshape(-1)
        fill = (kernels.gamma_rows, *constants, *sums, mean, geometric_mean, *rows)
        self._share_out((np.zeros(len(mean) + 1, np.int64), fill))
        return Gamma(mean, geometric_mean, sums.exposed, prior.rate, *rows)

    def slopes(self, counts: Counts, expectation: SparseExpectation, group: str) -> Pair:
        """∂/∂α and ∂²/∂α² of the log-evidence: of all cells as if their counts were 0, corrected in the stored ones."""
        (users, _, likelihood, ties), unseen = expectation.given, expectation.unseen
        α = _exposure_parameters(likelihood, len(users.mean), np.dtype(np.float64))
        if likelihood.learns_from != "slopes" or α is None or expectation.excess is None:
            raise TypeError(f"{type(likelihood).__name__} has no concentration to learn")
        sums = sum_slopes(counts.by_user, expectation.excess, α, (ties, unseen), group)
        if ties is None:
            of_zeros = self._unseen_slopes(expectation.given, α, group)
            sums += np.sum(of_zeros, axis=1, keepdims=True) if group == "all" else of_zeros
        slope, curvature = sums.reshape(2, *SHAPES[group])
        return slope, curvature

    def mean_exposure(self, counts: Counts, expectation: SparseExpectation, group: str) -> NDArray[np.float64]:
        """Return the mean of ⟨a⟩ over known cells."""
        cells = counts.n_known(0 if group == "item" else 1)
        return group_means(self.sum_exposures(counts, expectation, group), cells, group)

    def sum_exposures(self, counts: Counts, expectation: SparseExpectation, group: str) -> NDArray[np.float64]:
        """Sum ⟨a⟩ over the known cells of each "item" or "user"; for "all", in any number of parts.

        They are those of all cells as if their counts were 0, corrected in the stored ones.
        """
        (users, items, likelihood, ties), by_user = expectation.given, counts.by_user
        α = _exposure_parameters(likelihood, len(users.mean), users.mean.dtype)
        if α is None or expectation.excess is None:
            raise TypeError(f"{type(likelihood).__name__} has no exposures to learn from")
        if group == "all" and expectation.unseen is not None and ties is not None:
            of_clusters = expectation.unseen.sum(axis=0, dtype=np.float64)
            shared = float(of_clusters @ np.bincount(ties.labels, minlength=ties.n_clusters))
            return np.array([shared + float(expectation.excess.sum(dtype=np.float64))])
        if ties is not None and expectation.unseen is not None:
            sizes, unseen = np.bincount(ties.labels, minlength=ties.n_clusters), expectation.unseen
            sums = unseen.sum(0, np.float64)[ties.labels] if group == "item" else unseen.astype(np.float64) @ sizes
        else:
            rows, columns = (items.mean, users.mean) if group == "item" else (users.mean, items.mean)
            exposed, ones = np.empty((len(rows), 1), rows.dtype), np.ones((len(columns), 1), rows.dtype)
            sides = _turned(α, likelihood, len(rows)) if group == "item" else α
            self._expose_unseen(_exposure_loops(likelihood), rows, columns, ones, sides, exposed, None)
            sums = exposed[:, 0].astype(np.float64)
        stored = np.repeat(np.arange(len(users.mean)), np.diff(by_user.indptr)) if group != "item" else by_user.indices
        total: NDArray[np.float64] = sums + np.bincount(stored, expectation.excess, len(sums))
        return total

    def _unseen_slopes(self, given: Given, α: Concentrations, group: str) -> NDArray[np.float64]:
        """Sums over each user's, or each item's, cells as if every count were 0, by tiles."""
        rows, columns, by_row = given.users.mean, given.items.mean, α[0]
        if group == "item":
            rows, columns = columns, rows
            by_row = np.full(len(rows), α[0][0]) if α[1] is None else α[1]
        by_row, sums, transposed = by_row.astype(rows.dtype), np.zeros((2, len(rows))), np.ascontiguousarray(columns.T)

        def add(top: int) -> None:
            block = slice(top, top + TILE_ROWS)
            for left in range(0, len(columns), TILE_COLUMNS):
                tile = rows[block] @ transposed[:, left : left + TILE_COLUMNS]
                kernels.slope_tile(tile, by_row[block], *sums[:, block])

        with one_blas_thread():
            hand_out(add, range(0, len(rows), TILE_ROWS), self.n_threads)
        return sums

    def _expose_unseen(
        self,
        loops: ModuleType,
        rows: Array,
        columns: Array,
        weights: Array,
        α: Concentrations,
        exposed: Any,
        logs: Any,
        *then: Loop,
    ) -> None:
        """Exact exposures as if every count were 0, tile by tile; after each tile of rows, `then` does the non-zeros.

        Sets `exposed` to Σ over columns of exposures times weights, and adds their log-evidence to `logs`, unless they
        are None; for gamma exposures those are α/(α+μ) and −α ln(1 + μ/α).
        """
        transposed, (by_row, by_column) = np.ascontiguousarray(columns.T), α
        # a multiple of four, so that two or four threads end together
        n_tiles = min(4 * -(-len(rows) // (4 * TILE_ROWS)), len(rows))

        def expose_rows(n: int) -> None:
            top, bottom = len(rows) * n // n_tiles, len(rows) * (n + 1) // n_tiles
            buffer = np.empty((bottom - top) * TILE_COLUMNS, rows.dtype)
            total, of_rows = np.zeros((bottom - top, weights.shape[1])), None if logs is None else logs[top:bottom]
            for left in range(0, len(columns), TILE_COLUMNS):
                right = min(left + TILE_COLUMNS, len(columns))
                tile = buffer[: (bottom - top) * (right - left)].reshape(bottom - top, right - left)
                np.matmul(rows[top:bottom], transposed[:, left:right], out=tile)
                of_columns = None if by_column is None else by_column[left:right]
                loops.expose_tile(tile, by_row[top:bottom], of_columns, of_rows)
                if exposed is not None:
                    total += tile @ weights[left:right]
            if exposed is not None:
                exposed[top:bottom] = total
            for walk, *arguments in then:
                walk(top, bottom, *arguments)

        with one_blas_thread():
            hand_out(expose_rows, range(n_tiles), self.n_threads)

    def _sum_rows(self, values: Array, weights: Array | None = None) -> NDArray[np.float64]:
        """Σ over rows of values, or of weightsᵀ values: rows by blocks in single precision, blocks in double."""

        def sum_block(top: int) -> Array:
            block = slice(top, top + BLOCK_ROWS)
            # the smaller side first: a tenth faster
            return values[block].sum(axis=0) if weights is None else (values[block].T @ weights[block]).T

        with one_blas_thread():
            blocks = hand_out(sum_block, range(0, len(values), BLOCK_ROWS), self.n_threads)
        total: NDArray[np.float64] = np.sum(blocks, axis=0, dtype=np.float64)
        return total

    def _sum_clusters(self, ties: Ties, values: Array) -> Array:
        bounds, members = np.cumsum([0, *map(len, ties.members)]), np.concatenate(ties.members)
        sums, ones = np.empty((ties.n_clusters, values.shape[1]), values.dtype), np.ones(len(values), values.dtype)
        self._share_out((bounds, (kernels.sum_groups, bounds, _unsigned(members), ones, values, sums)))
        return sums

    def _share_out(self, *jobs: Job) -> None:
        """Do all rows of each job, in stretches of about equal work."""
        tasks = []
        for indptr, (loop, *arguments) in jobs:
            work = indptr + ROW_WORK * np.arange(len(indptr), dtype=np.int64)
            bounds = cut_evenly(work, max(1, min(SHARES, int(work[-1]) // LEAST_WORK)))
            tasks += [partial(loop, start, stop, *arguments) for start, stop in pairwise(bounds)]
        hand_out(call, tasks, self.n_threads)


def _tie_rows(
    start: int, stop: int, means: Array, cluster_sums: Array, unseen: Array, exposed: Array | None, *loops: Loop
) -> None:
    """Tied exposures: ⟨w_u⟩·S_c, from which a walk makes A_uc; then Σ_c A_uc S_c on top of the walk's sums."""
    rows, ((allocate, *to_allocate), (expose, *to_expose)) = slice(start, stop), loops
    allocate(start, stop, *to_allocate)
    np.matmul(means[rows], cluster_sums.T, out=unseen[rows])
    expose(start, stop, *to_expose)
    if exposed is not None:
        # A_uc S_c has the seen cells too, which the walk has taken off in advance
        exposed[rows] += unseen[rows] @ cluster_sums
        _not_below_zero(exposed[rows])


def _not_below_zero(exposed: Array) -> Array:
    """Put right, in place, what rounding made of a sum from which about as much was taken off."""
    return np.maximum(exposed, 0, out=exposed)


def _tables(
    blocks: tuple[sp.csr_array, ...], geometric: Array, means: Array | None, n_buffers: int
) -> tuple[list[Array], list[Job]]:
    """Return the users' rows that a walk over each block gathers, and the jobs that lay them side by side, if any."""
    bounds = np.cumsum([0, *(block.shape[1] for block in blocks)])
    rows = [slice(start, stop) for start, stop in pairwise(bounds.tolist())]
    if means is None:
        return [geometric[of_block][:, None] for of_block in rows], []
    size = min(n_buffers, len(blocks))
    buffers = np.empty((size, int(np.diff(bounds).max()), 2, geometric.shape[1]), geometric.dtype)
    tables = [buffers[n % size, : block.shape[1]] for n, block in enumerate(blocks)]
    lays = [
        (np.zeros(len(table) + 1, np.int64), (_lay_side_by_side, geometric[of_block], means[of_block], table))
        for of_block, table in zip(rows, tables, strict=True)
    ]
    return tables, lays


def _lay_side_by_side(start: int, stop: int, first: Array, second: Array, both: Array) -> None:
    both[start:stop, 0], both[start:stop, 1] = first[start:stop], second[start:stop]


def _walk(matrix: sp.csr_array) -> tuple[NDArray[Any], ...]:
    values = matrix.data if matrix.data.dtype.kind == "f" else _unsigned(matrix.data)
    return matrix.indptr, _unsigned(matrix.indices), values


def _unsigned(positions: NDArray[Any]) -> NDArray[Any]:
    """Positions that compiled code need not test for being negative, which then count from the end."""
    return positions.view(f"u{positions.itemsize}")


def _exposure_parameters(likelihood: Likelihood, n_users: int, dtype: np.dtype[Any]) -> Concentrations | None:
    """Return the α or π of each user, and of each item where those have their own; None if exposures are all 1."""
    if not likelihood.has_exposure:
        return None
    α = likelihood.exposure_parameter
    if isinstance(likelihood, ZeroInflatedPoisson):
        dtype = np.dtype(np.float64)  # in single precision, π near 1 would be 1
    if isinstance(α, np.ndarray) and α.shape[1] > 1:
        return np.ones(n_users, dtype), α.astype(dtype).ravel()
    return np.full(n_users, np.ravel(α), dtype), None


def _turned(α: Concentrations, likelihood: Likelihood, n_items: int) -> Concentrations:
    """Return exposure parameters with the roles of users and items swapped."""
    by_user, by_item = α
    if by_item is None and np.ndim(likelihood.exposure_parameter) == 0:
        by_item = np.full(n_items, by_user[0])
    return (by_user, by_user) if by_item is None else (by_item, None)


def fold_parameters(likelihood: Likelihood) -> tuple[NDArray[np.float64], bool, int, NDArray[np.float64]]:
    """Return what `fold.fold_rows` needs of a likelihood; parameters are rows × columns, either of which may be 1."""
    check_kind(likelihood)
    exposure, scale = (
        np.array(value, np.float64, ndmin=2) for value in (likelihood.exposure_parameter, likelihood.events_scale)
    )
    return exposure, isinstance(likelihood, ZeroInflatedPoisson), LAWS.get(likelihood.kind, 0), scale


def _exposure_loops(likelihood: Likelihood) -> ModuleType:
    """Return the loops for the likelihood's exposures."""
    return inflated if isinstance(likelihood, ZeroInflatedPoisson) else kernels


def _law(likelihood: Likelihood) -> tuple[int | None, NDArray[np.float64] | None]:
    """Return the number by which compiled code knows the likelihood's events, and their scales; None for counts."""
    law = LAWS.get(likelihood.kind)
    return law, None if law is None else np.array(likelihood.events_scale, np.float64, ndmin=2)
