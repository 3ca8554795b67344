"""The gpu backend against `reference`, folding in and ranking against the CPU, without pytest.

    PYTHONPATH=src python benchmarks/gpu_contract.py

Each case prints the largest deviations; the last line counts those out of tolerance.
"""

from __future__ import annotations

import itertools
import traceback
from functools import partial

import numpy as np
import scipy.sparse as sp
import torch

from nbmf.backends import Sums
from nbmf.backends.counts import Counts
from nbmf.backends.gpu import device as gpu_module
from nbmf.backends.gpu.device import Gpu
from nbmf.backends.reference import Reference
from nbmf.estimators.fold_in import Held, fold_in, fold_in_on
from nbmf.estimators.ranking import FactorScores, top
from nbmf.inference.cavi import CAVI
from nbmf.inference.mm import MM
from nbmf.inference.run import begin
from nbmf.model import Model
from nbmf.model.factors import Point, Prior
from nbmf.model.likelihood import NegativeBinomial, Poisson
from nbmf.model.ties import Ties

PRIOR = Prior(0.8, 1.3)
RTOL = {"float32": 1e-5, "float64": 1e-11}


def matrix_of(n_users, n_items, seed=0):
    """Bursty counts with an empty row, an empty column, a user who took nearly everything and an item that all took."""
    rng = np.random.default_rng(seed)
    count = rng.negative_binomial(0.7, 0.2, (n_users, n_items)) * (rng.random((n_users, n_items)) < 0.3)
    count[3], count[:, 2] = 0, 0
    count[5] = 1 + rng.poisson(2, n_items)
    count[:, 7] = 1 + rng.poisson(1, n_users)
    return count


def deviation(ours, plain):
    """Largest difference, relative to the largest entry of the row; of single numbers, to the largest of all."""
    ours = ours.cpu().numpy() if hasattr(ours, "cpu") else np.asarray(ours)
    ours = np.broadcast_to(ours, plain.shape)
    size = np.abs(plain).max(axis=-1 if plain.shape[-1] > 1 else None, keepdims=True) + 1e-300
    return float(np.max(np.abs(ours - plain) / size)) if np.isfinite(ours).all() else np.inf


def shape_of(law):
    """A number, or the shape of several."""
    return np.shape(law.concentration) or law.concentration


def passes(backend, dtype, law, n_clusters, with_unknown, n_components=9, shape=(70, 50)):
    """One expectation, both sides' sums and the posteriors."""
    rng = np.random.default_rng(1)
    unknown = sp.csr_array(rng.random(shape) < 0.1) if with_unknown else None
    counts = Counts.of(sp.csr_array(matrix_of(*shape)), np.dtype(dtype), unknown)
    sums = [Sums(*(rng.gamma(1.0, 2.0, (n, n_components)).astype(dtype) for _ in range(2))) for n in shape]
    users, items = (Reference().conditional(PRIOR, s) for s in sums)
    ties = Ties(rng.integers(0, n_clusters, shape[1]).astype(np.int32), n_clusters) if n_clusters else None
    newer = Point(users.mean * users.mean.dtype.type(1.5))
    found = []
    for each in (backend, Reference()):
        expectation = each.expect(counts, users, items, law, ties)
        by_item = each.sum_by_item(counts, expectation, newer)
        gamma = each.conditional(Prior(0.3, 0.7), expectation.user_sums)
        moments = [gamma.mean, gamma.geometric_mean, gamma.row_logs[:, None], gamma.row_entropies[:, None]]
        found.append((expectation.log_evidence, [*expectation.user_sums, *by_item, *moments]))
    (ours, arrays), (plain, expected) = found
    return [abs(ours - plain) / abs(plain), *(deviation(a, b) for a, b in zip(arrays, expected, strict=True))]


def sweeps(backend, algorithm, law, n_clusters, dtype="float32"):
    """Relative difference of the objective from that of the reference, after each of ten sweeps; and the same bits."""
    counts = Counts.of(sp.csr_array(matrix_of(200, 120)), np.dtype(dtype))
    rng = np.random.default_rng(2)
    start = [rng.gamma(1.0, 1.0, (n, 6)).astype(dtype) for n in (200, 120)]
    ties = Ties(rng.integers(0, n_clusters, 120).astype(np.int32), n_clusters) if n_clusters else None
    found = []
    for each in (backend, backend, Reference()):
        state, objectives = begin(Model(law, Prior(1, 1), Prior(1, 1)), counts, each, *start, ties), []
        for _ in range(10):
            state = algorithm.step(state, counts, each)
            objectives.append(state.objective)
        found.append((np.array(objectives), state.users.on_host().mean))
    same = found[0][0].tobytes() == found[1][0].tobytes() and found[0][1].tobytes() == found[1][1].tobytes()
    return [float(np.max(np.abs(found[0][0] / found[2][0] - 1))), 0.0 if same else np.inf]


def folds(backend, bayesian, law, n_clusters, own_rates, dtype):
    """Folding in against the CPU's, relative to the rows."""
    rng = np.random.default_rng(5)
    counts = sp.csr_array(matrix_of(150, 80).astype(np.float64))
    counts.eliminate_zeros()
    sums = Sums(*(rng.gamma(1.0, 2.0, (80, 6)).astype(dtype) for _ in range(2)))
    items = Reference().conditional(PRIOR, sums) if bayesian else Point(sums.allocated)
    ties = Ties(rng.integers(0, n_clusters, 80).astype(np.int32), n_clusters) if n_clusters else None
    held = Held(items, law, Prior(0.8, np.ones((80, 1)) if own_rates else 1.3), ties)
    ours, plain = (
        fold(counts, held, tol=1e-7, max_steps=40).factor for fold in (partial(fold_in_on, backend), fold_in)
    )
    return [deviation(ours.mean, plain.mean), deviation(ours.geometric_mean, plain.geometric_mean)]


def ranks(backend, n, dtype, shape=(300, 5000)):
    """1 for each user whose best items are others than the CPU's: whole numbers, so that equal scores are equal."""
    rng = np.random.default_rng(6)
    W, H = (rng.integers(0, 4, (size, 3)).astype(dtype) for size in shape)
    seen = sp.csr_array(rng.random(shape) < np.where(np.arange(shape[0]) == 3, 1.0, 0.05)[:, None])
    settings = {"exclude": seen, "allowed": rng.random(shape[1]) < 0.9}
    ours, plain = (top(FactorScores(W, H), n, device=device, **settings) for device in (backend, None))
    return [float((ours.items != plain.items).sum()), float((ours.scores != plain.scores).sum())]


def main():
    """Run all cases on the device there is."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kinds = [Gpu(device), Gpu(device, block=16), Gpu(device, kernels="torch")]
    laws = [Poisson(), NegativeBinomial(0.3), NegativeBinomial(10.0)]
    own = [NegativeBinomial(np.random.default_rng(3).gamma(1, 1, shape) + 0.1) for shape in ((70, 1), (1, 50))]
    cases = [
        (f"{backend.kernels or 'triton'} block={backend.block} {type(law).__name__} {shape_of(law)} "
         f"C={n_clusters} {dtype} unknown={unknown}", RTOL[dtype], passes, (backend, dtype, law, n_clusters, unknown))
        for backend, law, n_clusters, dtype, unknown in itertools.product(
            kinds, [*laws, *own], (0, 5, 50), ("float32", "float64"), (False, True))
        if not (n_clusters and np.shape(law.concentration) == (1, 50))
    ]  # fmt: skip
    cases += [
        (f"ten sweeps {type(algorithm).__name__} {law} C={n}", 1e-4, sweeps, (Gpu(device), algorithm, law, n))
        for algorithm, law, n in itertools.product((CAVI(), MM()), laws[:2], (0, 5))
    ]
    cases += [("bf16 tiles", 5e-3, passes, (Gpu(device, "bf16"), "float32", laws[2], 0, False)),
              ("tf32 tiles", 5e-3, passes, (Gpu(device, "tf32"), "float32", laws[1], 0, False))]  # fmt: skip
    for size in (2, 33, 64, 100, 130):
        cases.append((f"K={size}", 1e-5, passes, (Gpu(device), "float32", laws[1], 5, False, size)))
        cases.append((f"K={size} exact", 1e-5, passes, (Gpu(device), "float32", laws[1], 0, False, size, (300, 700))))
    for law, shape in itertools.product(laws[1:], ((20, 9000), (200, 20_000))):  # few rows, stretches of columns
        cases.append((f"exact {law} {shape}", 1e-5, passes, (Gpu(device), "float32", law, 0, False, 16, shape)))
    cases += [
        (f"folds {backend.kernels or 'triton'} {law} C={n} bayesian={bayesian} own={own} {dtype}",
         {"float32": 2e-4, "float64": 1e-6}[dtype], folds, (backend, bayesian, law, n, own, dtype))
        for backend, bayesian, law, n, own, dtype in itertools.product(
            kinds[::2], (True, False), laws, (0, 5), (False, True), ("float32", "float64"))
        if bayesian or not own
    ]  # fmt: skip
    cases += [(f"ranks n={n} {dtype}", 0, ranks, (Gpu(device), n, dtype))
              for n, dtype in itertools.product((1, 10, 700), ("float32", "float64"))]  # fmt: skip
    wrong = 0
    for longest in (256, 4):  # the second cuts nearly every row
        gpu_module.LONGEST_RUN = longest
        for name, tolerance, function, arguments in cases:
            try:
                arguments[0]._kept.clear()
                found = function(*arguments)
                bad = not max(found) <= tolerance
                wrong += bad
                if bad:
                    print("OUT OF TOLERANCE", f"run={longest}", name, " ".join(f"{value:.1e}" for value in found))
            except Exception:
                wrong += 1
                print("FAILED", f"run={longest}", name, "\n", traceback.format_exc()[-1200:], flush=True)
            if wrong > 12:
                print("more than 12 cases are wrong: the rest is not run")
                raise SystemExit(1)
    print(f"{2 * len(cases)} cases on {device}, {wrong} wrong")


if __name__ == "__main__":
    main()
