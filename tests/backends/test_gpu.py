"""The gpu backend beyond the contract of test_backends.py: what stays on the device, whole fits, how rows are cut."""

import os
from dataclasses import fields
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

import nbmf
from helpers import (
    canonical,
    count_matrices,
    gpus,
    held,
    large,
    rankings,
    relative,
    small_matrix,
    sorted_best,
)
from nbmf.backends import PAYS_ALONE, Given, find_device, make_backend
from nbmf.backends.counts import Counts
from nbmf.backends.reference import Reference
from nbmf.estimators.fold_in import Steps, fold_compiled, fold_on
from nbmf.estimators.ranking import top
from nbmf.estimators.scores import FactorScores
from nbmf.inference.cavi import CAVI
from nbmf.inference.mm import MM
from nbmf.inference.run import begin
from nbmf.model import Model
from nbmf.model.factors import Gamma, Point, Prior
from nbmf.model.likelihood import NegativeBinomial, Poisson
from nbmf.model.ties import Ties, tie_items

torch = pytest.importorskip("torch", reason="PyTorch is not installed: extra gpu")

from nbmf.backends.gpu import passes as torch_passes  # noqa: E402
from nbmf.backends.gpu.arrays import ResidentGamma, Tiles, cut  # noqa: E402
from nbmf.backends.gpu.device import Gpu  # noqa: E402
from nbmf.backends.gpu.fold import CELL_BYTES, CLUSTER_BYTES, TABLES, batches  # noqa: E402

MATRIX = small_matrix(60, 40)
no_gpu = pytest.mark.filterwarnings("ignore:backend='gpu' finds no GPU")


def test_kernels_are_run():
    """Says what is not run here; the other tests take whatever `gpus` gives."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed: its kernels are neither run nor interpreted")
    if "TRITON_INTERPRET" in os.environ:
        pytest.skip("there is no GPU: Triton's kernels are interpreted on small data, bf16 not at all")
    assert torch.cuda.is_available()


@given(count_matrices(), st.integers(1, 3), st.integers(0, 3))
def test_runs_are_all_non_zeros(matrix, longest, block):
    """Each non-zero is in one run, none is longer than asked for, and the slots of a row are in its order."""
    counts = sp.csr_array(matrix)
    counts.eliminate_zeros()
    indptr, columns = torch.from_numpy(counts.indptr.astype(np.int64)), torch.from_numpy(counts.indices)
    runs = cut(indptr, columns, longest, block)
    row, first, last, slot = (values.numpy() for values in runs[:4])
    assert sorted(np.concatenate([np.arange(*pair) for pair in zip(first, last, strict=True)] or [[]])) == list(
        range(counts.nnz)
    )
    assert np.all((last > first) & (last - first <= longest))
    of_non_zero = np.repeat(np.arange(len(matrix)), np.diff(counts.indptr))
    assert np.all(of_non_zero[first] == row)
    if block:
        assert np.all(counts.indices[first] // block == counts.indices[last - 1] // block)
        assert np.all(np.diff(counts.indices[first] // block) >= 0)
    for n, at, end in zip(*(values.tolist() for values in runs[4:7]), strict=True):
        mine = slot[row == n]
        assert sorted(mine) == list(range(at, end))
        assert np.all(np.diff(first[row == n][np.argsort(mine)]) > 0)
    assert np.all((slot >= 0) == np.isin(row, runs.split_row.numpy()))


@pytest.mark.parametrize("backend", gpus(), ids=str)
@pytest.mark.parametrize("n_clusters", [0, 5])
def test_rows_of_several_runs(backend, n_clusters, monkeypatch):
    monkeypatch.setattr("nbmf.backends.gpu.device.LONGEST_RUN", 3)
    monkeypatch.setattr("nbmf.backends.gpu.arrays.LEAST_CUT", 2)
    backend = Gpu(kernels=backend.kernels, block=4)
    counts = Counts.of(sp.csr_array(small_matrix(9, 12)), np.dtype(np.float64))
    rng = np.random.default_rng(0)
    users, items = (Point(rng.gamma(1, 1, (n, 4))) for n in (9, 12))
    ties = Ties(rng.integers(0, 5, 12).astype(np.int32), 5) if n_clusters else None
    sums = []
    for each in (backend, Reference()):
        found = each.expect(counts, Given(users, items, NegativeBinomial(0.5), ties))
        sums.append([*found.user_sums, *each.sum_by_item(counts, found, users)])
    for ours, plain in zip(*sums, strict=True):
        np.testing.assert_allclose(ours.cpu().numpy(), plain, rtol=1e-12)


@pytest.mark.parametrize("size", [0.01, 1.0])
@pytest.mark.parametrize("by_column", [False, True])
def test_few_rows_by_stretches_of_columns(by_column, size, monkeypatch):
    """Each stretch has sums of its own, which are added up; where μ is mostly small they are made of 1 − exposure."""
    passes = pytest.importorskip("nbmf.backends.gpu.triton", reason="Triton is not installed")
    rng = np.random.default_rng(0)
    rows, columns = (
        torch.from_numpy(rng.gamma(1, size, (n, 3)).astype(np.float32)).to(Gpu()._device) for n in (5, 300)
    )
    α = [torch.full_like(rows[:, 0], 0.7), columns.sum(1) + 0.1 if by_column else None]
    monkeypatch.setattr(passes, "SHORTEST", 100)
    assert passes._stretch(5, 300, 128, 128) == 128
    ours, plain = (
        each.expose_tiles(Tiles(rows, columns, columns, *α), logs=True, sums=True) for each in (passes, torch_passes)
    )
    np.testing.assert_allclose(ours[0].cpu(), plain[0].cpu(), rtol=1e-5)
    assert float(ours[1]) == pytest.approx(float(plain[1]), rel=1e-5)


def largest_deviation(ours, plain):
    """Relative to the largest entry of the row."""
    size = np.maximum(np.abs(plain).max(axis=1, keepdims=True), 1e-30)  # rows without a count have nothing allocated
    return float(np.max(np.abs(ours.cpu().numpy() - plain) / size))


def deviations(backend, shape, n_components, n_clusters):
    """Of the sums of both sides and of the log-evidence from those of the reference, in single precision."""
    counts, rng = Counts.of(sp.csr_array(small_matrix(*shape)), np.dtype(np.float32)), np.random.default_rng(1)
    users, items = (Point(rng.gamma(1, 1, (n, n_components)).astype(np.float32)) for n in shape)
    ties = Ties(rng.integers(0, n_clusters, shape[1]).astype(np.int32), n_clusters) if n_clusters else None
    found = []
    for each in (backend, Reference()):
        expectation = each.expect(counts, Given(users, items, NegativeBinomial(0.5), ties))
        sums = [*expectation.user_sums, *each.sum_by_item(counts, expectation, users)]
        found.append((expectation.log_evidence, sums))
    (ours, sums), (plain, plain_sums) = found
    return [abs(ours / plain - 1), *(largest_deviation(a, b) for a, b in zip(sums, plain_sums, strict=True))]


@pytest.mark.parametrize("n_components", [2, 33, 64, 100, 130])
@pytest.mark.parametrize(("shape", "n_clusters"), [((70, 50), 5), ((300, 700), 0), ((20, 9000), 0)])
@pytest.mark.parametrize("backend", gpus(interpreted=False), ids=str)
def test_factors_of_any_width(backend, shape, n_clusters, n_components):
    """Kernels take components, rows and columns in powers of two, and few rows by stretches of columns."""
    assert max(deviations(backend, shape, n_components, n_clusters)) < 1e-5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU: these are products of its tensor cores")
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_products_of_fewer_digits(precision):
    assert max(deviations(Gpu(precision=precision), (70, 50), 9, 0)) < 5e-3


@pytest.mark.parametrize("n_clusters", [0, 5])
@pytest.mark.parametrize("law", [Poisson(), NegativeBinomial(0.7)], ids=str)
@pytest.mark.parametrize("algorithm", [CAVI(), MM()], ids=str)
@pytest.mark.parametrize("backend", gpus(interpreted=False), ids=str)
def test_sweeps_are_those_of_the_reference(backend, algorithm, law, n_clusters):
    """The objective within 1e-4, in single precision, and the same bits when it is done again."""
    counts = Counts.of(sp.csr_array(small_matrix(60, 40)), np.dtype(np.float32))
    rng = np.random.default_rng(2)
    start = [rng.gamma(1, 1, (n, 5)).astype(np.float32) for n in (60, 40)]
    ties = Ties(rng.integers(0, 5, 40).astype(np.int32), 5) if n_clusters else None
    model, found = Model(law, Prior(1, 1), Prior(1, 1)), []
    for each in (backend, backend, Reference()):
        state, objectives = begin(model, counts, each, *start, ties), []
        for _ in range(8):
            state = algorithm.step(state, counts, each)
            objectives.append(state.objective)
        found.append((np.array(objectives), state.users.on_host().mean))
    np.testing.assert_allclose(found[0][0], found[2][0], rtol=1e-4)
    assert found[0][0].tobytes() == found[1][0].tobytes()
    assert found[0][1].tobytes() == found[1][1].tobytes()


def test_posteriors_on_the_device_are_gammas():
    """Whatever is asked of them is what the same numbers give on the host."""
    rng = np.random.default_rng(0)
    sums = nbmf.backends.Sums(*(rng.gamma(1, 1, (6, 3)) for _ in range(2)))
    for prior in (Prior(0.5, 2.0), Prior(0.5, rng.gamma(1, 1, (6, 1)))):
        held, plain = (each.conditional(prior, sums) for each in (Gpu(kernels="torch"), Reference()))
        assert isinstance(held, ResidentGamma)
        assert held.dimensions == plain.dimensions == (6, 3)
        assert held.total == pytest.approx(plain.total, rel=1e-12)
        assert held.divergence(prior) == pytest.approx(plain.divergence(prior), rel=1e-12)
        fetched = held.on_host()
        assert type(fetched) is Gamma
        np.testing.assert_allclose([fetched.shape, fetched.rate], [plain.shape, plain.rate], rtol=1e-12)


@no_gpu
@pytest.mark.parametrize(
    "settings",
    [
        {"exposure": "exact"},
        {"exposure": "exact", "accelerate": True},
        {"exposure": "tied", "n_clusters": 4},
        {"inference": "mm"},
    ],
)
def test_a_fit_is_that_of_the_cpu(settings):
    if torch.cuda.is_available() and "accelerate" in settings:
        pytest.skip("longer steps magnify rounding, which differs from device to device")
    data = nbmf.Interactions.from_matrix(small_matrix())
    fits = [
        nbmf.NBMF(3, random_state=0, max_iter=12, dtype="float64", backend=backend, **settings).fit(data)
        for backend in ("gpu", "cpu")
    ]
    np.testing.assert_allclose(fits[0].objective_, fits[1].objective_, rtol=1e-9)
    np.testing.assert_allclose(fits[0].user_factors_, fits[1].user_factors_, rtol=1e-5, atol=1e-9)
    assert type(fits[0].user_posterior_.mean) is np.ndarray


@no_gpu
@pytest.mark.parametrize("concentration", ["learn", "learn_per_user"])
def test_hyperparameters_are_learned_alike(concentration):
    data = nbmf.Interactions.from_matrix(small_matrix())
    settings = {"concentration": concentration, "rates": "per_row", "shapes": "learn", "exposure": "exact"}
    fits = [
        nbmf.NBMF(2, random_state=0, max_iter=6, dtype="float64", backend=backend, **settings).fit(data)
        for backend in ("gpu", "cpu")
    ]
    np.testing.assert_allclose(fits[0].concentration_, fits[1].concentration_, rtol=1e-6)
    np.testing.assert_allclose(fits[0].objective_, fits[1].objective_, rtol=1e-8)


@no_gpu
def test_a_checkpoint_resumes_to_the_bit(tmp_path):
    data, path = nbmf.Interactions.from_matrix(small_matrix()), tmp_path / "fit.ckpt"
    settings = {"random_state": 0, "tol": 0, "backend": "gpu"}
    whole = nbmf.NBMF(2, max_iter=9, **settings).fit(data)
    nbmf.NBMF(2, max_iter=4, **settings).fit(data, checkpoint=path)
    resumed = nbmf.NBMF(2, max_iter=9, **settings).fit(data, resume=path)
    assert whole.objective_.tobytes() == resumed.objective_.tobytes()
    assert whole.user_factors_.tobytes() == resumed.user_factors_.tobytes()


def test_clusters_on_the_device_are_nearest_centres():
    """Well apart, clusters are found as they are; else every row is at the nearest centre of its own kind's mean."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 4, 300)
    rows = np.eye(4)[truth] * 50 + rng.normal(0, 1, (300, 4))
    labels, again = (Gpu().cluster(Point(rows), 4, np.random.RandomState(0)).labels for _ in range(2))
    assert len(set(zip(truth.tolist(), labels.tolist(), strict=True))) == 4
    assert labels.tobytes() == again.tobytes()
    assert labels.tobytes() == tie_items(rows, 4, np.random.RandomState(0)).labels.tobytes()
    assert set(Gpu().cluster(Point(np.ones((5, 2))), 3, np.random.RandomState(0)).labels) <= {0, 1, 2}


def with_unknown(matrix):
    """The counts as `fold_in` takes them, some of them unknown."""
    unknown = sp.csr_array(np.random.default_rng(1).random(matrix.shape) < 0.05)
    return Counts.of(canonical(matrix), np.dtype(np.float64), unknown).by_user


@pytest.mark.parametrize("n_clusters", [0, 4])
@pytest.mark.parametrize("kind", ["points", "one rate", "own rates"])
@pytest.mark.parametrize("α", [np.inf, 0.4, np.linspace(0.2, 3, 30)[:, None]], ids=["Poisson", "one", "own"])
@pytest.mark.parametrize("backend", gpus(interpreted=False), ids=str)
def test_folding_in_is_that_of_the_cpu(backend, α, kind, n_clusters):
    """After any number of steps, in double precision; some rows settle before."""
    law = Poisson() if np.max(α) == np.inf else NegativeBinomial(α)
    side = held(20, law, n_clusters, bayesian=kind != "points", own_rates=kind == "own rates")
    counts = with_unknown(small_matrix())
    ours, plain = (fold(counts, side, Steps(1e-2, 12)) for fold in (partial(fold_on, backend), fold_compiled))
    assert len(set(ours.steps)) > 1
    np.testing.assert_array_equal(ours.steps, plain.steps)
    names = ["mean"] if kind == "points" else ["mean", "geometric_mean", "shape", "rate", "prior_rate", "row_logs"]
    for name in names:
        np.testing.assert_allclose(
            getattr(ours.factor, name), getattr(plain.factor, name), rtol=1e-9, atol=1e-12, err_msg=name
        )


@pytest.mark.parametrize("n_clusters", [0, 4])
@pytest.mark.parametrize("shape", [(), (1, 20)])
@pytest.mark.parametrize("backend", gpus(interpreted=False), ids=str)
def test_folding_in_single_precision(backend, shape, n_clusters):
    """Exact exposures over all cells are in single precision here and in double on the CPU; tied ones are not."""
    if n_clusters and shape:
        pytest.skip("the cells of a cluster share one α")
    α = np.random.default_rng(0).gamma(1, 1, shape) + 0.1
    side = held(20, NegativeBinomial(α if shape else float(α)), n_clusters, dtype="float32")
    counts = with_unknown(small_matrix())
    ours, plain = (fold(counts, side, Steps(0, 20)).factor for fold in (partial(fold_on, backend), fold_compiled))
    assert ours.mean.dtype == np.float32
    assert relative(ours.mean, plain.mean) < 1e-5


@pytest.mark.parametrize("n_clusters", [0, 3])
@pytest.mark.parametrize("backend", [backend for backend in gpus() if backend not in gpus(interpreted=False)], ids=str)
def test_folding_in_by_interpreted_kernels(backend, n_clusters):
    side, counts = held(6, NegativeBinomial(0.4), n_clusters), with_unknown(small_matrix(7, 6))
    ours, plain = (fold(counts, side, Steps(0, 2)).factor for fold in (partial(fold_on, backend), fold_compiled))
    np.testing.assert_allclose(ours.mean, plain.mean, rtol=1e-9)


@pytest.mark.parametrize("kind", ["points", "one rate", "own rates"])
def test_folding_in_by_batches(kind, monkeypatch):
    """Rows do not see each other: a batch for each row gives what one for all does."""
    side = held(20, NegativeBinomial(0.4), 4, bayesian=kind != "points", own_rates=kind == "own rates")
    counts = with_unknown(small_matrix(8, 20))
    whole = fold_on(Gpu(kernels="torch"), counts, side, Steps(1e-3, 4))
    monkeypatch.setattr("nbmf.backends.gpu.fold.BATCH_BYTES", 1)
    parts = fold_on(Gpu(kernels="torch"), counts, side, Steps(1e-3, 4))
    np.testing.assert_array_equal(parts.steps, whole.steps)
    for field in fields(whole.factor):
        pair = (np.asarray(getattr(folded.factor, field.name)) for folded in (parts, whole))
        np.testing.assert_allclose(*pair, rtol=1e-9, err_msg=field.name)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.integers(1, 4))
def test_batches_are_all_rows_within_the_bound(lengths, n_components):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nbmf.backends.gpu.fold.BATCH_BYTES", 4000)
        found = list(batches(np.cumsum([0, *lengths]), n_components, 2))
    assert [n for part in found for n in range(part.start, part.stop)] == list(range(len(lengths)))
    of_row = 8 * TABLES * n_components + 2 * CLUSTER_BYTES
    needs = [of_row * (part.stop - part.start) + CELL_BYTES * sum(lengths[part]) for part in found]
    assert all(need <= 4000 or part.stop == part.start + 1 for need, part in zip(needs, found, strict=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 10, 2000])
def test_the_best_items_are_those_of_the_cpu(dtype, n, monkeypatch):
    """Whole-number factors, so that equal scores are many and exact; several blocks of users."""
    monkeypatch.setattr("nbmf.backends.gpu.topk.BLOCK_BYTES", 1 << 20)
    W, H, train, rng = large(dtype)
    settings = {"rows": rng.permutation(len(W))[:200], "exclude": sp.csr_array(train)}
    for allowed in (None, rng.random(len(H)) < 0.9, np.arange(len(H)) < 7):
        ours, plain = (top(FactorScores(W, H), n, allowed=allowed, device=d, **settings) for d in (Gpu(), None))
        np.testing.assert_array_equal(ours.items, plain.items)
        np.testing.assert_array_equal(ours.scores, plain.scores)


@given(rankings(), st.integers(1, 8))
def test_the_best_of_any_scores(ranking, n):
    score, _, train = ranking
    eye = np.eye(score.shape[1], dtype=score.dtype)
    found = top(FactorScores(score, eye), n, exclude=sp.csr_array(train), device=Gpu())
    expected = sorted_best(score, n, train > 0, np.ones(score.shape[1], bool))
    for ours, plain in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, plain)


def test_nobody_and_nothing_to_rank():
    scores = FactorScores(np.ones((2, 1)), np.ones((3, 1)))
    heard = []
    found = top(scores, 2, rows=np.array([], int), device=Gpu(), report=lambda *pair: heard.append(pair))
    assert found.items.shape == (0, 2)
    assert heard == [(0, 0)]
    assert (top(scores, 2, allowed=np.zeros(3, bool), exclude=sp.csr_array((2, 3)), device=Gpu()).items == -1).all()


def test_what_is_not_a_number_is_never_the_best():
    scores = FactorScores(np.array([[1.0, 0.0]]), np.array([[1.0, np.inf], [3.0, 0.0], [np.nan, 0.0], [2.0, 1.0]]))
    assert top(scores, 4, device=Gpu()).items.tolist() == [[1, 3, -1, -1]] == top(scores, 4).items.tolist()


@no_gpu
@pytest.mark.parametrize(
    "model", [nbmf.NBMF(3), nbmf.PoissonMF(3), nbmf.CompoundMF(3), nbmf.ZeroInflatedMF(3), nbmf.BinaryMF(3)], ids=str
)
def test_a_model_asks_the_device_for_many_users_only(model, monkeypatch):
    """Many users are folded in and ranked there, to the CPU's answers; one is not worth the way."""
    fit = clone(model).set_params(random_state=0, max_iter=5, tol=1e-2, backend="gpu").fit(small_matrix())
    new = small_matrix(40, 20, seed=3)
    plain = fit.transform(new), fit.recommend_for(new, n=3), fit.recommend(n=3)
    asked = []
    for name in ("fold", "best"):
        method = getattr(Gpu, name)
        monkeypatch.setattr(Gpu, name, lambda *a, _f=method, _n=name, **s: asked.append(_n) or _f(*a, **s))
    monkeypatch.setattr("nbmf.backends._has_gpu", lambda: True)
    found = fit.transform(new), fit.recommend_for(new, n=3), fit.recommend(n=3)
    assert asked == ["fold", "fold", "best", "best"]
    assert relative(found[0], plain[0]) < 1e-4
    for ours, theirs in zip(found[1:], plain[1:], strict=True):
        np.testing.assert_allclose(ours.scores, theirs.scores, rtol=1e-4)
    fit.transform(new[:1])
    fit.recommend(0)
    fit.set_params(backend="cpu").transform(new)
    fit.set_params(backend="auto").recommend(n=3)
    assert len(asked) == 4


def test_a_device_is_found_where_it_pays(monkeypatch):
    assert find_device("auto", 1e30, 10**6) is None or torch.cuda.is_available()
    monkeypatch.setattr("nbmf.backends._has_gpu", lambda: True)
    assert isinstance(find_device("auto", PAYS_ALONE, 10**6), Gpu)
    assert find_device("auto", PAYS_ALONE / 2, 10**6) is None
    assert find_device("gpu-bf16", 0, 100).precision == "bf16"
    assert find_device("gpu", 1e30, 1) is None
    assert find_device("cpu", 1e30, 10**6) is None


def test_without_a_gpu_the_user_is_told():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.warns(UserWarning, match="no GPU"):
        make_backend("gpu")
    assert type(make_backend("auto", None, work=1e30)).__name__ == "Cpu"


def test_without_torch_the_way_out_is_named(monkeypatch):
    monkeypatch.setattr("nbmf.backends.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install '.\[gpu\]'"):
        make_backend("gpu")


@no_gpu
@pytest.mark.parametrize("inference", ["cavi", "mm"])
@pytest.mark.parametrize("settings", [{"concentration": "learn"}, {"accelerate": True}], ids=str)
def test_a_resumed_fit_goes_the_undisturbed_way(tmp_path, inference, settings):
    """Which is that of the CPU: from the first sweep on, α is learned and steps are extrapolated, or not, as there."""
    model = nbmf.NBMF(3, inference=inference, dtype="float64", max_iter=12, tol=0, random_state=0, **settings)
    model.set_params(backend="cpu").fit(MATRIX)
    objectives = model.objective_
    model.set_params(backend="gpu").fit(MATRIX)
    np.testing.assert_allclose(model.objective_, objectives, rtol=1e-9)
    model.set_params(max_iter=5).fit(MATRIX, checkpoint=tmp_path / "checkpoint")
    model.set_params(max_iter=12).fit(MATRIX, resume=tmp_path / "checkpoint")
    np.testing.assert_allclose(model.objective_, objectives, rtol=1e-9)


def test_a_heavy_row_among_light_ones_keeps_its_digits():
    """Most exposures are near 1, so 1 − exposure is summed; of those near 0 it would leave few digits."""
    passes = pytest.importorskip("nbmf.backends.gpu.triton", reason="Triton is not installed")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, columns = (torch.rand(n, 4, generator=torch.Generator().manual_seed(n)).to(device) for n in (4000, 64))
    rows *= 0.05
    rows[7] = torch.tensor([800.0, 0.0, 0.0, 0.0])
    α = torch.ones(len(rows), device=device)
    found, _ = passes.expose_tiles(Tiles(rows, columns, columns, α, None), logs=False, sums=True)
    tiles = Tiles(rows.double(), columns.double(), columns.double(), α.double(), None)
    truth, _ = torch_passes.expose_tiles(tiles, logs=False, sums=True)
    torch.testing.assert_close(found.double(), truth, rtol=2e-6, atol=0.0)
