"""One sweep of the full Taste Profile's size on one GPU: seconds of each pass beside its floors; kernels' settings.

    PYTHONPATH=src python benchmarks/gpu.py [--quick] [--tune]
    PYTHONPATH=src python benchmarks/gpu.py [--quick] --encoder     # NBFISM alone, in a few minutes

The data are simulated on the device: 1,019,318 users × 384,546 items, 46 million non-zeros, popularity ~ rank^-0.8.
Floors: `once` is every table, index and result moved once at the bandwidth measured here; `gather` is a row of the
other side brought from memory for every non-zero, as if nothing were in the cache. Every part runs on its own: one that
fails prints why and the others go on.

That the results are right is tested on the same device; where there is a GPU, these tests run the compiled kernels:

    PYTHONPATH=src python -m pytest tests/backends/test_backends.py tests/backends/test_{gpu,encoder,gpu_encoder}.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import traceback

import numpy as np
import scipy.sparse as sp
import torch

from nbmf.backends import encoder_of
from nbmf.backends.cost import Sizes
from nbmf.backends.counts import Counts
from nbmf.backends.encoder import EncoderCounts
from nbmf.backends.gpu import arrays
from nbmf.backends.gpu import triton as passes
from nbmf.backends.gpu.arrays import Tiles
from nbmf.backends.gpu.device import Gpu
from nbmf.backends.gpu.passes import Others
from nbmf.estimators.fism import start_of
from nbmf.estimators.fold_in import FixedSide, Steps, fold_compiled, fold_on
from nbmf.estimators.ranking import top
from nbmf.estimators.scores import FactorScores
from nbmf.inference.cavi import CAVI
from nbmf.inference.encoder import EncoderMM, joined
from nbmf.inference.mm import MM
from nbmf.inference.run import Until, begin, observe, run
from nbmf.model import Model
from nbmf.model.factors import Point, Prior
from nbmf.model.likelihood import NegativeBinomial, Poisson

N_USERS, N_ITEMS, N_DRAWS, K, N_CLUSTERS = 1_019_318, 384_546, 48_400_000, 64, 64
TOL = 1e-5  # of the estimators, unless they are told otherwise
MODEL = Model(NegativeBinomial(1.0), Prior(1.0, 1.0), Prior(1.0, 1.0))


def simulate(n_users, n_items, n_draws, seed=0):
    """Return a csr_array of counts: skewed users and items, bursty counts."""
    draw = torch.Generator("cuda").manual_seed(seed)
    activity = torch.randn(n_users, device="cuda", generator=draw).mul(1.1).exp().double()
    popularity = torch.arange(1, n_items + 1, device="cuda").double().pow(-0.8)
    popularity = popularity[torch.randperm(n_items, device="cuda", generator=draw)]
    pairs = []
    for weights in (activity, popularity):
        upto = torch.cumsum(weights, 0)
        draws = torch.rand(n_draws, device="cuda", dtype=torch.float64, generator=draw) * upto[-1]
        pairs.append(torch.searchsorted(upto, draws).clamp_max(len(upto) - 1))
    cells = torch.unique(pairs[0] * n_items + pairs[1])
    bursts = torch.rand(len(cells), device="cuda", generator=draw).clamp_min(1e-6)
    counts = bursts.pow(-0.6).floor().clamp_max(2000).int()
    indptr = torch.zeros(n_users + 1, dtype=torch.int64, device="cuda")
    indptr[1:] = torch.cumsum(torch.bincount(cells // n_items, minlength=n_users), 0)
    columns = (cells % n_items).int().cpu().numpy()
    return sp.csr_array((counts.cpu().numpy(), columns, indptr.int().cpu().numpy()), shape=(n_users, n_items))


def seconds(function, repeats=7, warm=2):
    """Median time of a call on the device."""
    for _ in range(warm):
        function()
    found = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / 1e3)
    return statistics.median(found)


def part(name, function, *arguments):
    """Do one part of the work; what goes wrong is printed and does not stop the others."""
    begun = time.perf_counter()
    try:
        return function(*arguments)
    except Exception:
        print(f"FAILED {name}\n{traceback.format_exc()[-1500:]}", flush=True)
        return None
    finally:
        torch.cuda.synchronize()
        print(f"  [{name}: {time.perf_counter() - begun:.1f} s]", flush=True)


def ceilings():
    """Bandwidth of a copy, and the rate of a bf16 product."""
    tables = [torch.rand(1 << 30, device="cuda") for _ in range(2)]
    bandwidth = 2 * tables[0].nbytes / seconds(lambda: tables[0].copy_(tables[1]))
    tables.clear()
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    rate = 2 * 8192**3 / seconds(lambda: a @ a)
    print(f"copy {bandwidth / 1e12:.2f} TB/s, bf16 product {rate / 1e12:.0f} TFLOP/s")
    return bandwidth, rate


def time_walks(data, W, H, of_users):
    """Milliseconds of the users' allocation and sums, if wanted, and of the items' sums."""
    shares = torch.rand_like(data.values)
    times = [seconds(lambda: passes.sum_items(data, shares, W, H), 5)]
    if of_users:
        times.append(seconds(lambda: passes.allocate(data, W, H, 1e-25, True), 5))
        times.append(seconds(lambda: passes.sum_users(data, shares, H), 5))
    return " ".join(f"{1e3 * t:.2f}" for t in times)


def tune_walks(matrix, W, H):
    """Settings of the walks over the non-zeros."""
    counts = Counts.of(matrix, np.dtype(np.float32))
    for block, least in ((0, 0), (1 << 16, 0), (1 << 16, 128), (1 << 17, 128), (1 << 18, 128)):
        arrays.LEAST_CUT = least
        data = Gpu(block=block)._resident(counts)
        for step in (8, 16):
            passes.STEP = passes.ITEM_STEP = step
            text = time_walks(data, W, H, not block)
            print(f"  block {block} least {least} step {step}: {text} ms (items, users, sums)", flush=True)
    arrays.LEAST_CUT, passes.STEP, passes.ITEM_STEP = 128, 16, 8


def tune_rows(data, W, H, clusters, α):
    """Settings of the clusters' and the posteriors' kernels."""
    S, one = torch.rand(N_CLUSTERS, K, device="cuda"), torch.ones(1, 1, device="cuda")
    for rows, step in ((4, 8), (2, 16), (8, 8)):
        passes.TIE_ROWS, passes.TIE_STEP = rows, step
        time_of = seconds(lambda: passes.tie(data, W, H, S, clusters, α, False), 5)
        print(f"  tie, with μ: {rows} rows, step {step}: {1e3 * time_of:.2f} ms", flush=True)
    passes.TIE_ROWS, passes.TIE_STEP = 4, 8
    for rows in (4, 8, 16):
        passes.ROWS_OF_GAMMAS = rows
        time_of = seconds(lambda: passes.gamma_moments(1.0, one, W, W), 5)
        print(f"  gamma: {rows} rows, 4 warps: {1e3 * time_of:.2f} ms", flush=True)
    passes.ROWS_OF_GAMMAS = 8
    for rows, warps in ((32, 2), (128, 8)):
        passes.MULTIPLIED_ROWS, passes.MULTIPLY_WARPS = rows, warps
        time_of = seconds(lambda: passes._multiplied(W, S.T), 5)
        print(f"  rows times a table: {rows} rows, {warps} warps: {1e3 * time_of:.2f} ms", flush=True)
    passes.MULTIPLIED_ROWS, passes.MULTIPLY_WARPS = 32, 2


def tune_tiles(W, H, rate):
    """Settings of the exact pass, on a share of the users; milliseconds for all of them."""
    n = 132 * 128 * 2
    rows, α = W[:n].contiguous(), torch.ones(n, device="cuda")
    some_tiles = Tiles(rows[:2048], H, H, α[:2048], None)
    double = Tiles(*(None if table is None else table.double() for table in some_tiles))
    exact = passes.passes.expose_tiles(double, logs=True, sums=True)
    floor = 4.0 * len(W) * len(H) * K / rate
    print(f"  floor of a side at the bf16 product's rate: {1e3 * floor:.0f} ms")
    options = {
        "bf16": [(128, 32, 8, 3, None), (128, 32, 8, 3, 128), (128, 32, 8, 3, 104), (128, 64, 8, 3, 128),
                 (128, 64, 8, 2, 128), (128, 64, 8, 2, 168), (64, 64, 4, 3, 128), (64, 64, 4, 3, 160),
                 (64, 64, 4, 2, 168), (64, 32, 4, 3, None), (64, 32, 4, 3, 104), (64, 32, 4, 3, 128),
                 (64, 32, 4, 4, 128), (256, 32, 8, 3, 224)],
        "tf32": [(128, 32, 8, 3, None)],
        "tf32x3": [(128, 64, 8, 1, None), (128, 32, 8, 2, None)],
    }  # fmt: skip
    for kind, all_settings in options.items():
        precision = {"tf32x3": "float32"}.get(kind, kind)
        for settings in all_settings:
            passes.TILES[kind, True] = passes.TILES[kind, False] = settings
            try:
                times = [
                    seconds(lambda logs=logs, p=precision: passes.expose_tiles(
                        Tiles(rows, H, H, α, None), logs=logs, sums=True, precision=p), 3, 1) * len(W) / n
                    for logs in (True, False)
                ]  # fmt: skip
                some = passes.expose_tiles(some_tiles, logs=True, sums=True, precision=precision)
                off = float(((some[0] - exact[0]).abs() / exact[0]).max()), float(some[1] / exact[1] - 1)
                print(f"  {kind} {settings}: {1e3 * times[0]:.0f} ms, without logarithms {1e3 * times[1]:.0f} ms; "
                      f"sums off by {off[0]:.1e}, logarithms by {off[1]:.1e}", flush=True)  # fmt: skip
            except Exception as error:
                print(f"  {kind} {settings}: {type(error).__name__} {str(error)[:200]}", flush=True)


def sweeps(matrix, start, algorithm, model, backend, tied, n=12):
    """Median seconds of a sweep, as in a fit: the objective comes back to the host each time."""
    counts = Counts.of(matrix, np.dtype(np.float32))
    users, items = (Point(values) for values in start)
    ties = backend.cluster(items, N_CLUSTERS, np.random.RandomState(0)) if tied else None
    state = begin(model, counts, backend, users.value, items.value, ties)
    found = []
    for _ in range(n + 3):
        begun = time.perf_counter()
        state = algorithm.step(state, counts, backend)
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begun)
    memory = torch.cuda.max_memory_allocated() / 1e9
    backend._kept.clear()
    return statistics.median(found[3:]), state.objective, memory


def encoder_sweeps(matrix, n_starts, law, bandwidth, n_components=256):
    """Sweeps of NBFISM beside four gathers per non-zero, with their memory; and each walk of a start beside its own."""
    torch.cuda.reset_peak_memory_stats()
    rng, backend, model = np.random.RandomState(0), encoder_of(Gpu()), Model(law, MODEL.user_prior, MODEL.item_prior)
    counts = EncoderCounts.encoded(matrix, (np.log1p, np.log1p), 10.0, np.dtype(np.float32), None)
    users, items = joined([start_of(counts, n_components, rng).factors for _ in range(n_starts)], counts)
    ties = backend.cluster(items, N_CLUSTERS, rng) if law.has_exposure else None
    # as in a fit, only the step holds the state before it
    states, times = [observe(model, counts, backend, users, items, ties, 0.0)], []
    for _ in range(8):
        times.append(time_of(lambda: states.append(EncoderMM().step(states.pop(), counts, backend)))[0])
    gather = 4 * n_components * matrix.nnz / bandwidth
    print(f"NBFISM {matrix.shape}, {matrix.nnz:,} non-zeros, K = {n_components}, {n_starts} starts, {law.kind}: "
          f"{1e3 * statistics.median(times[2:]):.1f} ms a sweep, floor {4e3 * n_starts * gather:.1f}; "
          f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB; {states[0].objective:.6e}", flush=True)  # fmt: skip
    data, one = backend._resident(counts), states.pop().inferred.starts[0]
    (V, H, _), x = one.start, data.inputs
    for step in (4, 16, 8):  # the last one stays
        passes.ENCODER_STEP = step
        terms = Others(x, one.shares, one.allocated, H), Others(one.shares, x, one.hidden, V)
        walks = (lambda: passes.sum_users(data, x, V), lambda terms=terms: passes.sum_others(data, *terms),
                 lambda: passes.encode(data, x, one.hidden, one.start, 1e-25, law.has_exposure))  # fmt: skip
        found = " ".join(f"{1e3 * seconds(walk, 3, 1):.1f}" for walk in walks)
        print(f"  {step} rows at a time: W, items, μ and R {found} ms; floors 1, 2, 2 × {1e3 * gather:.1f}", flush=True)


def encoders(scale, bandwidth):
    """NBFISM at the size of the full Taste Profile, and at about a tenth of it."""
    for n_users, n_items, n_draws, n_starts in ((N_USERS, N_ITEMS, N_DRAWS, 1), (100_000, 38_000, 4_800_000, 4)):
        matrix = part("simulate", simulate, n_users // scale, n_items // scale, n_draws // scale**2)
        for law in (Poisson(), NegativeBinomial(3.0)):
            part("NBFISM", encoder_sweeps, matrix, n_starts, law, bandwidth)


def passes_of_a_sweep(matrix, start, bandwidth):
    """Milliseconds of each pass of a tied sweep beside its floors."""
    counts, backend = Counts.of(matrix, np.dtype(np.float32)), Gpu()
    data = backend._resident(counts)
    W, H = (torch.from_numpy(values).cuda() for values in start)
    ties = backend.cluster(Point(start[1]), N_CLUSTERS, np.random.RandomState(0))
    clusters = backend._clusters(ties, data)
    α, nnz, row = torch.ones(len(W), device="cuda"), matrix.nnz, 4 * K
    S = backend._sum_clusters(H, clusters)
    shares, excess = passes.allocate(data, W, H, 1e-25, True)[0], passes.tie(data, W, H, S, clusters, α, True)[0]
    users, items, of_clusters = row * len(W), row * len(H), 4 * N_CLUSTERS * len(W)
    newer = W * 1.1  # the items' sums read geometric means and means, which are not the same table
    one, other = torch.ones(1, 1, device="cuda"), H * 1.1
    table = [
        ("allocate, users", lambda: passes.allocate(data, W, H, 1e-25, True), 12 * nnz + 2 * users + items, nnz * row),
        ("sum clusters", lambda: backend._sum_clusters(H, clusters), items, 0),
        ("μ", lambda: passes.intensities(data, W, H), 8 * nnz + users + items, nnz * row),
        ("tie, with μ", lambda: passes.tie(data, W, H, S, clusters, α, True),
         30 * nnz + 5 * users + 2 * items + 6 * of_clusters, 2 * nnz * row),
        ("posterior, users", lambda: passes.gamma_moments(1.0, one, W, newer), 4 * users, 0),
        ("allocated, items", lambda: passes.sum_items(data, shares, W, H), 12 * nnz + users + 2 * items, nnz * row),
        ("exposed, items", lambda: passes.sum_items(data, excess, newer), 12 * nnz + users + items, nnz * row),
        ("clusters, items", lambda: backend._sum_rows(W, newer), users + of_clusters, 0),
        ("posterior, items", lambda: passes.gamma_moments(1.0, one, H, other), 4 * items, 0),
        ("ties", lambda: backend.cluster(Point(start[1]), N_CLUSTERS, np.random.RandomState(0)), 0, 0),
    ]  # fmt: skip
    print(f"  {'pass':24} {'ms':>7} {'once':>7} {'gather':>7}")
    for name, function, once, gathered in table:
        print(f"  {name:24} {1e3 * seconds(function):7.2f} {1e3 * once / bandwidth:7.2f} "
              f"{1e3 * gathered / bandwidth:7.2f}", flush=True)  # fmt: skip
    return data, W, H, clusters, α


def whole_fit(matrix, start, n_sweeps=100):
    """Host arrays → a hundred tied sweeps, ties refreshed as in a fit → host factors."""
    begun = time.perf_counter()
    counts, backend, rng = Counts.of(matrix, np.dtype(np.float32)), Gpu(), np.random.RandomState(0)

    def tie(items):
        return backend.cluster(items, N_CLUSTERS, rng)

    state = begin(MODEL, counts, backend, *start, tie(Point(start[1])))
    there = time.perf_counter()
    found = run(CAVI(), state, counts, backend, Until(n_sweeps, 0), tie=tie)
    swept = time.perf_counter()
    users, items = found.state.users.on_host(), found.state.items.on_host()
    done = time.perf_counter()
    print(f"  to the device {there - begun:.2f} s, {n_sweeps} sweeps {swept - there:.2f} s, back {done - swept:.2f} s, "
          f"together {done - begun:.2f} s; objective {found.objectives[-1]:.6e}; {users.mean.shape}")  # fmt: skip
    assert np.all(np.isfinite(items.mean))
    return users, items, found.state


def newcomers(matrix, users, items, state, n_users=100_000, few=10_000):
    """Fold users in and rank all items for them, from host arrays to host arrays; and some of them on the CPU."""
    counts = sp.csr_array(matrix[:n_users].astype(np.float64))
    some, model, backend = sp.csr_array(counts[:few]), state.model, Gpu()
    sides = {
        "tied CAVI": FixedSide(items, model.likelihood, model.user_prior, state.ties),
        "tied MM": FixedSide(Point(items.mean), model.likelihood, model.user_prior, state.ties),
        "Poisson CAVI": FixedSide(items, Poisson(), model.user_prior, None),
    }
    for name, held in sides.items():
        time_of(lambda held=held: fold_on(backend, some, held, Steps(TOL)))  # compiles
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        seconds_all, found = time_of(lambda held=held: fold_on(backend, counts, held, Steps(TOL)))
        memory = torch.cuda.max_memory_allocated() - before
        fold_compiled(sp.csr_array(some[:64]), held, Steps(TOL))
        seconds_few, plain = time_of(lambda held=held: fold_compiled(some, held, Steps(TOL)))
        off = np.abs(found.factor.mean[:few] - plain.factor.mean).sum(1) / (plain.factor.mean.sum(1) + 1e-30)
        print(f"  fold in, {name}: {n_users:,} users in {seconds_all:.2f} s, {n_users / seconds_all:,.0f} a second; "
              f"{os.cpu_count()} cores {few / seconds_few:,.0f} a second; steps {np.median(found.steps):.0f} (median) "
              f"to {found.steps.max()}; rows off by {off.max():.1e}; {memory / 1e9:.1f} GB", flush=True)  # fmt: skip
    exact, fewest = FixedSide(items, model.likelihood, model.user_prior, None), sp.csr_array(counts[:24])
    plain = fold_compiled(fewest, exact, Steps(TOL, 8)).factor.mean
    for device in (Gpu(), Gpu(precision="bf16")):
        ours = fold_on(device, fewest, exact, Steps(TOL, 8)).factor.mean
        off = np.abs(ours - plain).sum(1) / plain.sum(1)
        taken, found = time_of(lambda device=device: fold_on(device, sp.csr_array(counts[:10_000]), exact, Steps(TOL)))
        print(f"  fold in, exact CAVI {device.precision}: 10,000 users in {taken:.2f} s, steps "
              f"{np.median(found.steps):.0f} to {found.steps.max()}; 24 rows off by {off.max():.1e}",
              flush=True)  # fmt: skip
    scores, rows = FactorScores(users.mean, items.mean), np.arange(n_users)
    top(scores, 10, rows=rows[:few], exclude=matrix, device=backend)
    seconds_all, found = time_of(lambda: top(scores, 10, rows=rows, exclude=matrix, device=backend))
    top(scores, 10, rows=rows[:64], exclude=matrix)
    seconds_few, plain = time_of(lambda: top(scores, 10, rows=rows[:few], exclude=matrix))
    same = np.mean((found.items[:few] == plain.items).all(axis=1))
    print(f"  ten best of {len(items.mean):,} items: {n_users:,} users in {seconds_all:.2f} s, "
          f"{n_users / seconds_all:,.0f} a second; {os.cpu_count()} cores {few / seconds_few:,.0f} a second; the same "
          f"for {same:.2%} of users, scores off by {np.abs(found.scores[:few] / plain.scores - 1).max():.1e}",
          flush=True)  # fmt: skip


def time_of(function):
    """Seconds of one call, and what it returns."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    found = function()
    torch.cuda.synchronize()
    return time.perf_counter() - begun, found


def main() -> None:
    """Do all parts."""
    options = argparse.ArgumentParser()
    options.add_argument("--quick", action="store_true", help="a hundredth of the size")
    options.add_argument("--tune", action="store_true", help="try kernels' settings too")
    options.add_argument("--encoder", action="store_true", help="NBFISM alone")
    chosen = options.parse_args()
    scale = 10 if chosen.quick else 1
    import triton

    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    bandwidth, rate = part("ceilings", ceilings) or (4.3e12, 0.79e15)
    if chosen.encoder:
        encoders(scale, bandwidth)
        return
    matrix = part("simulate", simulate, N_USERS // scale, N_ITEMS // scale, N_DRAWS // scale**2)
    rng = np.random.RandomState(1)
    start = [rng.standard_exponential((n, K)).astype(np.float32) for n in matrix.shape]
    print(f"{matrix.shape[0]:,} × {matrix.shape[1]:,}, {matrix.nnz:,} non-zeros, K = {K}, longest rows "
          f"{np.diff(matrix.indptr).max():,} and {np.bincount(matrix.indices).max():,}")  # fmt: skip
    found = part("passes", passes_of_a_sweep, matrix, start, bandwidth)
    found = found if chosen.tune else None  # its memory
    torch.cuda.empty_cache()
    for name, algorithm, model, backend, tied, n in (
        ("tied CAVI", CAVI(), MODEL, Gpu(), True, 12),
        ("tied MM", MM(), MODEL, Gpu(), True, 8),
        ("Poisson CAVI", CAVI(), Model(Poisson(), *[Prior(1.0, 1.0)] * 2), Gpu(), False, 8),
        ("exact CAVI, bf16", CAVI(), MODEL, Gpu(precision="bf16"), False, 5),
    ):
        torch.cuda.reset_peak_memory_stats()
        result = part(name, sweeps, matrix, start, algorithm, model, backend, tied, n)
        if result:
            exposure = "tied" if tied else None if model.likelihood == Poisson() else "exact"
            stated = Sizes(*matrix.shape, matrix.nnz, K, exposure, N_CLUSTERS if tied else 0).memory("gpu")
            print(f"{name}: {1e3 * result[0]:.1f} ms a sweep, objective {result[1]:.6e}, {result[2]:.1f} GB "
                  f"({sum(stated.values()) / 1e9:.1f} stated)", flush=True)  # fmt: skip
        torch.cuda.empty_cache()
    part("whole fit", whole_fit, matrix, start)
    medium = part("simulate", simulate, 100_000 // scale, 38_000 // scale, 4_800_000 // scale**2)
    of_medium = [rng.standard_exponential((n, K)).astype(np.float32) for n in medium.shape]
    for name in ("whole fit of a tenth", "whole fit of a tenth, again"):
        part(name, whole_fit, medium, of_medium)
    fitted = part("whole fit again", whole_fit, matrix, start)
    if fitted:
        part("newcomers", newcomers, matrix, *fitted)
    if chosen.tune and found:
        part("walks", tune_walks, matrix, found[1], torch.from_numpy(start[1]).cuda())
        part("rows", tune_rows, *found)
        # intensities like those of a fit, most of them far below α
        small = [torch.from_numpy(values).cuda() * 2e-3 for values in start]
        part("tiles", tune_tiles, *small, rate)


if __name__ == "__main__":
    main()
