"""The passes of the gpu backend by Triton's kernels; passes.py says what each function means."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton

from nbmf.backends.encoder import OWN
from nbmf.backends.gpu import encoder_kernels, kernels, passes
from nbmf.backends.gpu.arrays import Clusters, Moments, ResidentCounts, RowCounts, Runs, Tensor, Tiles
from nbmf.backends.gpu.passes import Encoded, Found, Others, Tied

MOST_CLUSTERS = 1024  # one program can hold no more
MOST_COMPONENTS = 512
ROWS_OF_GAMMAS = 8
SHARED_ROWS = 16
MULTIPLIED_ROWS, MULTIPLY_WARPS, MOST_MULTIPLIED = 32, 2, 128  # rows times a table, and the table's longest side
WARP_BYTES = 512  # that a warp asks for at once: a run's row of a table, or the rows of several runs
STEP, WARPS = 16, 1  # rows of each run that a program gathers at a time, and its warps
ITEM_STEP = 8
TIE_ROWS, TIE_STEP, TIE_WARPS = 4, 8, 1
LOG_BLOCK = 1024  # non-zeros whose logarithms a program adds up
JOIN_STEP = 16
ENCODER_STEP = 4  # an eighth of a warp's registers for each of two tables
MOST_TILED = 128
# rows and columns of a tile, warps, stages and registers, by the type of the factors and whether logarithms are wanted:
# the fastest on an H200 for K = 64 (benchmarks/gpu.py --tune)
TILES: dict[tuple[str, bool], Any] = {("bf16", True): (128, 32, 8, 3, 128), ("bf16", False): (128, 64, 8, 3, 128)}
TILES |= {("tf32", logs): (128, 32, 8, 3, None) for logs in (True, False)}
TILES |= {("tf32x3", logs): (128, 64, 8, 1, None) for logs in (True, False)}
WIDE_TILES = {"bf16": (128, 32, 8, 2, None), "tf32": (64, 32, 4, 2, None), "tf32x3": (64, 32, 4, 1, None)}  # to K = 128
PROGRAMS = 1056  # blocks of tiles that keep a large device busy: for fewer rows, columns are cut into stretches
SHORTEST = 4096  # columns of a stretch
FINITE = 1e37  # what a product of factors 1 + μ/α must stay below
FEW = 0.25  # mean of μ/α of a row up to which its sums are made of 1 − exposure, which then loses fewer digits


def allocate(counts: RowCounts, users: Tensor, items: Tensor, least: float, sum_users: bool) -> Found:
    """Eq. (update_c)."""
    runs, shares = counts.user_runs, torch.empty_like(counts.values)
    sums, partials = _places(runs, users)
    least_of = torch.full((1,), least, dtype=users.dtype, device=users.device)
    arguments = (counts.columns, counts.values, users, items, least_of, shares, sums, partials)
    settings = {"SUMS": sum_users, "MOST": torch.finfo(users.dtype).max}
    _walk(kernels.allocate_runs, runs, users, STEP, WARPS)(*arguments, **settings)
    return shares, _join(runs, partials, sums) if sum_users else None, _log(counts, shares)


def expose(counts: RowCounts, users: Tensor, items: Tensor, α_users: Tensor, α_items: Tensor, sum_users: bool) -> Found:
    """Eq. (update_a) for exact exposures, of the non-zeros."""
    runs, excess = counts.user_runs, torch.empty_like(counts.values)
    sums, partials = _places(runs, users)
    logs = torch.zeros(len(runs.row), dtype=torch.float64, device=users.device)  # at least one run per program
    alphas = α_users if α_items is None else α_items
    arguments = (counts.columns, counts.values, users, items, alphas, excess, sums, partials, logs)
    settings = {"SUMS": sum_users, "BY_ITEM": α_items is not None, "PLAIN": False}
    _walk(kernels.expose_runs, runs, users, STEP, WARPS)(*arguments, **settings)
    return excess, _join(runs, partials, sums) if sum_users else None, logs.sum()


def intensities(counts: RowCounts, users: Tensor, items: Tensor) -> Tensor:
    """Σ_k of the user's times the item's numbers, for each non-zero."""
    runs, found = counts.user_runs, torch.empty_like(counts.values)
    arguments = (counts.columns, counts.values, users, items, users, found, users, users, users)
    _walk(kernels.expose_runs, runs, users, STEP, WARPS)(*arguments, SUMS=False, BY_ITEM=False, PLAIN=True)
    return found


def tie(
    counts: RowCounts,
    users: Tensor,
    items: Tensor,
    cluster_sums: Tensor,
    clusters: Clusters,
    α_users: Tensor,
    wanted: bool,
) -> Tied:
    """Eq. (update_a) for tied exposures."""
    excess, unseen = intensities(counts, users, items), _multiplied(users, cluster_sums.T)
    n_programs, size = triton.cdiv(len(users), TIE_ROWS), len(cluster_sums)
    logs = torch.empty(n_programs, dtype=torch.float64, device=users.device)
    rows = counts.by_length, counts.indptr, clusters.of_cells, counts.values, clusters.n_unseen, α_users
    settings = {"ROWS": TIE_ROWS, "STEP": TIE_STEP, "C": size, "BLOCK_C": max(16, triton.next_power_of_2(size))}
    _launch(kernels.tie_rows, n_programs, TIE_WARPS, *rows, excess, unseen, logs, len(users), **settings)
    exposed = _multiplied(unseen, cluster_sums, sum_users(counts, excess, items)) if wanted else None
    return Tied(excess, unseen, exposed, logs.sum())


def _multiplied(rows: Tensor, table: Tensor, added: Tensor | None = None) -> Tensor:
    """Return rows times a small table; or, as `passes.add_unseen`, add that to `added`, in place."""
    if rows.dtype == torch.float64 or max(table.shape) > MOST_MULTIPLIED:
        return rows @ table if added is None else passes.add_unseen(added, rows, table)
    (size, width), n_programs = table.shape, triton.cdiv(len(rows), MULTIPLIED_ROWS)
    found = torch.empty(len(rows), width, dtype=rows.dtype, device=rows.device) if added is None else added
    blocks = {"BLOCK_M": max(16, triton.next_power_of_2(size)), "BLOCK_N": max(16, triton.next_power_of_2(width))}
    arguments = rows, table.contiguous(), found, found, len(rows)
    settings = {"ROWS": MULTIPLIED_ROWS, "M": size, "N": width, **blocks, "ADD": added is not None}
    _launch(kernels.multiply_rows, n_programs, MULTIPLY_WARPS, *arguments, **settings)
    return found


def sum_users(counts: RowCounts, weights: Tensor, items: Tensor) -> Tensor:
    """Σ over each user's non-zeros of a weight times the item's row."""
    runs = counts.user_runs
    sums, partials = _places(runs, items, counts.shape[0])
    arguments = (counts.columns, weights, weights, items, items, sums, partials)
    _walk(kernels.sum_runs, runs, items, STEP, WARPS)(*arguments, ORDERED=False, SCALED=False, MOST=0.0)
    return _join(runs, partials, sums)


def sum_items(counts: ResidentCounts, weights: Tensor, table: Tensor, own: Tensor | None = None) -> Tensor:
    """Σ over each item's non-zeros of a weight times the user's row, and times the item's own row if there are some."""
    runs = counts.item_runs
    sums, partials = _places(runs, table, counts.shape[1])
    arguments = (counts.item_users, counts.order, weights, table, table if own is None else own, sums, partials)
    settings = {"ORDERED": True, "SCALED": own is not None, "MOST": torch.finfo(table.dtype).max}
    _walk(kernels.sum_runs, runs, table, ITEM_STEP, WARPS)(*arguments, **settings)
    return _join(runs, partials, sums)


def encode(
    counts: RowCounts, inputs: Tensor, hidden: Tensor, start: tuple[Tensor, ...], least: float, intensities: bool
) -> Encoded:
    """Eq. (update_c) of an encoder."""
    runs, shares = counts.user_runs, torch.empty_like(counts.values)
    sums, partials = _places(runs, hidden)
    kept = [torch.empty_like(shares) for _ in range(2 * intensities)]
    least_of = torch.full((1,), least, dtype=hidden.dtype, device=hidden.device)
    found = (shares, *(kept or (shares, shares)), sums, partials)
    arguments = (counts.columns, inputs, counts.values, hidden, *start, least_of, *found)
    settings = {"KEEP": intensities, "OWN": _own(hidden), "MOST": torch.finfo(hidden.dtype).max}
    _walk(encoder_kernels.encode_runs, runs, hidden, ENCODER_STEP, WARPS)(*arguments, **settings)
    allocated = passes.finite(_join(runs, partials, sums))
    return Encoded(shares, allocated, _log(counts, shares), kept)


def sum_others(counts: ResidentCounts, *terms: Others) -> list[Tensor]:
    """Σ over each item's non-zeros, one term after the other."""
    runs, found = counts.item_runs, []
    for term in terms:
        sums, partials = _places(runs, term.mine)
        launch = _walk(encoder_kernels.sum_others_runs, runs, term.mine, ENCODER_STEP, WARPS)
        launch(counts.item_users, counts.order, *term, sums, partials, OWN=_own(term.mine))
        found.append(_join(runs, partials, sums))
    return found


def add_shared(exposed: Tensor, of_clusters: Tensor, labels: Tensor) -> Tensor:
    """Add to each item's sums those that its cluster shares."""
    arguments, n_programs = (exposed, of_clusters, labels, len(exposed)), triton.cdiv(len(exposed), SHARED_ROWS)
    _launch(kernels.add_shared_rows, n_programs, 4, *arguments, **_sizes(exposed), ROWS=SHARED_ROWS)
    return exposed


def expose_tiles(tiles: Tiles, *, logs: bool, sums: bool, precision: str = "float32") -> tuple[Tensor | None, Tensor]:
    """Exact exposures over every cell; tiles never leave the chip."""
    rows, columns, weights, α_rows, α_columns = tiles
    α_rows, α_columns = α_rows.to(rows.dtype), None if α_columns is None else α_columns.to(rows.dtype)
    block_k = max(16, triton.next_power_of_2(rows.shape[1]))
    if rows.dtype == torch.float64 or block_k > MOST_TILED:
        return passes.expose_tiles(tiles, logs=logs, sums=sums)
    kind = {"float32": "tf32x3", "tf32": "tf32", "bf16": "bf16"}[precision]
    height, width, warps, stages, registers = TILES[kind, logs] if block_k <= 64 else WIDE_TILES[kind]
    # one side is divided by α: products are then x = μ/α
    scaled = (rows / α_rows[:, None], columns) if α_columns is None else (rows, columns / α_columns[:, None])
    log_every, few, kind_of_few = _range(*scaled)
    tables = [values.bfloat16() if kind == "bf16" else values for values in (*scaled, weights)]
    n_blocks, length = triton.cdiv(len(rows), height), _stretch(len(rows), len(columns), height, 2 * width)
    n_stretches = triton.cdiv(len(columns), length)
    found = torch.empty(n_stretches, len(rows), weights.shape[1], dtype=torch.float32, device=rows.device)
    of_rows = torch.zeros(n_stretches, len(rows), dtype=torch.float64, device=rows.device)
    kernels.expose_tiles[(n_blocks, n_stretches)](
        *tables, α_rows if α_columns is None else α_columns, few, found, of_rows, len(rows), len(columns), length,
        K=rows.shape[1], BLOCK_K=block_k, TILE_ROWS=height, TILE_COLUMNS=width, BY_COLUMN=α_columns is not None,
        LOGS=logs, SUMS=sums, FEW=kind_of_few, LOG_EVERY=log_every if logs else 1, EXACT_LOGS=kind != "bf16",
        PRECISION="ieee" if kind == "bf16" else kind, num_warps=warps, num_stages=stages, maxnreg=registers,
    )  # fmt: skip
    total = of_rows if α_columns is not None else of_rows * α_rows.double()
    if not sums:
        return None, total.sum()
    if not kind_of_few:
        return found[0] if n_stretches == 1 else found.sum(0, dtype=torch.float64).float(), total.sum()
    exposed = found.sum(0, dtype=torch.float64)
    # below 0 is rounding
    exposed = torch.where(few[:, None] > 0, weights.sum(0, dtype=torch.float64) - exposed, exposed).clamp_min_(0)
    return exposed.float(), total.sum()


def _stretch(n_rows: int, n_columns: int, height: int, least: int) -> int:
    """Return the number of columns per program: all, unless there are too few rows to keep the device busy."""
    n_stretches = max(1, min(PROGRAMS * height // max(n_rows, 1), n_columns // SHORTEST))
    return max(least, -(-n_columns // (n_stretches * least)) * least)


def _range(rows: Tensor, columns: Tensor) -> tuple[int, Tensor, int]:
    """Return how many tiles' factors 1 + x may share a logarithm, and in which rows x is mostly small."""
    # in those, 1 − exposure is summed; the third number says whether they are no rows (0), all (1) or some (2)
    few = (rows @ columns.mean(0, dtype=torch.float64).to(rows.dtype) < FEW).to(torch.int8)
    # no product is above that of the lengths of the two rows
    lengths = [values.square().sum(1).max().double() for values in (rows, columns)]
    n_few, longest_row, longest_column = torch.stack((few.sum().double(), *lengths)).tolist()  # one transfer
    largest = math.sqrt(longest_row) * math.sqrt(longest_column)
    share = next((n for n in (8, 4, 2) if (2 * n + 1) * math.log(2 + largest) < math.log(FINITE)), 1)
    return share, few, 0 if n_few == 0 else 1 if n_few == len(rows) else 2


def gamma_moments(prior_shape: float, prior_rates: Tensor, allocated: Tensor, exposed: Tensor) -> Moments:
    """Moments of the posteriors."""
    mean, geometric_mean = torch.empty_like(allocated), torch.empty_like(allocated)
    found = [torch.empty(len(allocated), dtype=torch.float64, device=allocated.device) for _ in range(3)]
    shape = torch.full((1,), prior_shape, dtype=torch.float64, device=allocated.device)
    arguments = (allocated, exposed, prior_rates.double(), shape, mean, geometric_mean, *found, len(allocated))
    settings = {"ROWS": ROWS_OF_GAMMAS, "OWN_RATES": len(prior_rates) > 1, "SHARED": len(exposed) == 1 < len(allocated)}
    settings["SHIFT"] = 8 if allocated.dtype == torch.float64 else 4
    n_programs = triton.cdiv(len(allocated), ROWS_OF_GAMMAS)
    _launch(kernels.gamma_rows, n_programs, 4, *arguments, **settings, **_sizes(allocated))
    return mean, geometric_mean, exposed, *found


def _launch(kernel: Any, n_programs: int, warps: int, *arguments: Any, **settings: Any) -> None:
    if n_programs:
        kernel[(n_programs,)](*arguments, **settings, num_warps=warps)


def _sizes(table: Tensor) -> dict[str, int]:
    return {"K": table.shape[1], "BLOCK_K": max(16, triton.next_power_of_2(table.shape[1]))}


def _own(table: Tensor) -> float:
    """Return the part of a sum that is rounding."""
    return float(OWN * torch.finfo(table.dtype).eps)


def _log(counts: RowCounts, shares: Tensor) -> Tensor:
    """Σ y ln λ of the non-zeros from their shares y/λ."""
    n_blocks = triton.cdiv(len(shares), LOG_BLOCK)
    logs = torch.empty(n_blocks, dtype=torch.float64, device=shares.device)
    _launch(kernels.log_shares, n_blocks, 4, counts.values, shares, logs, len(shares), BLOCK=LOG_BLOCK)
    return logs.sum()


def _walk(kernel: Any, runs: Runs, table: Tensor, step: int, warps: int) -> Callable[..., None]:
    """Return a function that launches a walk over runs, as many of them at a time as its warps can read rows of."""
    sizes = _sizes(table)
    width, most = sizes["BLOCK_K"] * table.element_size(), warps * WARP_BYTES
    n_runs = max(1, most // width)
    sizes |= {"RUNS": n_runs, "STEP": max(1, step * most // max(width, most))}
    return partial(_launch, kernel, triton.cdiv(len(runs.row), n_runs), warps, *runs[:4], len(runs.row), **sizes)


def _places(runs: Runs, table: Tensor, n_rows: int | None = None) -> tuple[Tensor, Tensor]:
    """Make room for sums and partial sums; the sums of a row without non-zeros are 0."""
    rows = len(table) if n_rows is None else n_rows
    sums = torch.empty(rows, table.shape[1], dtype=table.dtype, device=table.device)
    sums.index_fill_(0, runs.empty_row, 0)  # assigning would copy a 0 from the host, and wait
    return sums, torch.empty(max(runs.n_slots, 1), table.shape[1], dtype=table.dtype, device=table.device)


def _join(runs: Runs, partials: Tensor, sums: Tensor) -> Tensor:
    _launch(kernels.join_runs, len(runs.split_row), 2, *runs[4:7], partials, sums, **_sizes(sums), STEP=JOIN_STEP)
    return sums
