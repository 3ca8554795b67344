"""The likelihoods of the family on the gpu backend: events and exposures by blocks, whole fits, folding in."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

import nbmf
from helpers import counts_of, gpus, held, relative, small_matrix, ties_of
from nbmf.backends import Given
from nbmf.backends.reference import Reference
from nbmf.estimators.fold_in import Steps, fold_compiled, fold_on
from nbmf.inference.cavi import CAVI
from nbmf.inference.mm import MM
from nbmf.inference.run import begin
from nbmf.model import Model
from nbmf.model.factors import Point, Prior
from nbmf.model.family import BernoulliPoisson, GeometricJumps, LogarithmicJumps, RobustPoisson, ZeroInflatedPoisson

torch = pytest.importorskip("torch", reason="PyTorch is not installed: extra gpu")

from nbmf.backends.gpu import events  # noqa: E402
from nbmf.backends.gpu.arrays import to_host  # noqa: E402
from nbmf.backends.gpu.device import Gpu  # noqa: E402

EVENTS = [LogarithmicJumps(0.9), GeometricJumps(0.7), BernoulliPoisson(), RobustPoisson(0.5)]
LAWS = [*EVENTS, ZeroInflatedPoisson(0.3)]
INTERPRETED = [backend for backend in gpus() if backend not in gpus(interpreted=False)]
no_gpu = pytest.mark.filterwarnings("ignore:backend='gpu' finds no GPU")
not_converged = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
UNKNOWN = np.random.default_rng(8).random((30, 20)) < 0.1


def events_of(law, count, intensity):
    """What the device makes of a count and an intensity."""
    y, λ = (torch.tensor(np.atleast_1d(values), dtype=torch.float64) for values in (count, intensity))
    return [values.numpy() for values in events.LAWS[law.kind](y, λ * law.events_scale)]


@pytest.mark.parametrize("law", EVENTS, ids=str)
def test_events_are_those_of_the_model(law):
    """Around every count and intensity at which another formula takes over, and far beyond."""
    count = [1, 2, 3, 7, 8, 9, 40, 47, 48, 49, 50, 1000, 10**6, 10**9, 0.3, 1.5, 2.7, 60.7]
    count, intensity = (values.ravel() for values in np.meshgrid(count, [*10.0 ** np.arange(-25, 8), 7.9, 12.1, 18.3]))
    found, logs = events_of(law, count, intensity)
    np.testing.assert_allclose(found, law.events(count, intensity), rtol=1e-11)
    size = 1 + count * np.log1p(count)  # of the terms that cancel
    assert np.all(np.abs(logs - law.log_events(count, intensity)) <= 1e-14 * size + 1e-14 * np.abs(logs))


@pytest.mark.parametrize("law", EVENTS, ids=str)
@given(st.integers(1, 10**4), st.floats(1e-6, 1e4))
def test_events_are_the_slope_of_their_logarithm(law, count, intensity):
    (up,), (down,) = (events_of(law, count, intensity * np.exp(sign * 1e-4))[1] for sign in (1, -1))
    rounding = 1e-11 * count * (1 + np.log(count))
    assert events_of(law, count, intensity)[0][0] == pytest.approx((up - down) / 2e-4, rel=1e-6, abs=rounding)


def sums_of(backend, counts, law, ties, seed=0):
    rng = np.random.default_rng(seed)
    users, items = (Point(rng.gamma(1, 1, (n, 4))) for n in counts.by_user.shape)
    found = backend.expect(counts, Given(users, items, law, ties))
    sums = [*found.user_sums, *backend.sum_by_item(counts, found, users)]
    return [np.array(found.log_evidence), *map(to_host, sums)]


def assert_as_reference(backend, counts, law, ties):
    for ours, plain in zip(*(sums_of(each, counts, law, ties) for each in (backend, Reference())), strict=True):
        np.testing.assert_allclose(np.broadcast_to(ours, plain.shape), plain, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("n_clusters", [0, 5])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_blocks_change_nothing(law, n_clusters, monkeypatch):
    """A few non-zeros and rows at a time, and clusters whose matrix of members would be too large to keep."""
    monkeypatch.setattr("nbmf.backends.gpu.events.BLOCK", 130)
    monkeypatch.setattr("nbmf.backends.gpu.inflated.BLOCK", 130)
    monkeypatch.setattr("nbmf.backends.gpu.inflated.TILE", 70)
    monkeypatch.setattr("nbmf.backends.gpu.arrays.FEW_CLUSTERS", 2)
    matrix = small_matrix() * np.where(np.arange(20) % 3, 1, 100)
    ties = ties_of(20, n_clusters) if n_clusters else None
    assert_as_reference(Gpu(kernels="torch"), counts_of(matrix, unknown=UNKNOWN), law, ties)


@pytest.mark.parametrize("n_clusters", [0, 5])
@pytest.mark.parametrize("law", [LogarithmicJumps(0.9), ZeroInflatedPoisson(0.3)], ids=str)
@pytest.mark.parametrize("backend", gpus(), ids=str)
def test_rows_of_several_runs(backend, law, n_clusters, monkeypatch):
    monkeypatch.setattr("nbmf.backends.gpu.device.LONGEST_RUN", 3)
    ties = ties_of(12, n_clusters) if n_clusters else None
    assert_as_reference(Gpu(kernels=backend.kernels, block=4), counts_of(small_matrix(9, 12)), law, ties)


@pytest.mark.parametrize("n_clusters", [0, 5])
@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("algorithm", [CAVI(), MM()], ids=str)
@pytest.mark.parametrize("backend", gpus(interpreted=False), ids=str)
def test_sweeps_are_those_of_the_reference(backend, algorithm, law, n_clusters):
    """The objective within 1e-4, in single precision, and the same bits when it is done again."""
    if n_clusters and not law.has_exposure:
        pytest.skip("there is nothing to tie")
    counts, rng = counts_of(small_matrix(60, 40), np.float32), np.random.default_rng(2)
    start = [rng.gamma(1, 1, (n, 5)).astype(np.float32) for n in (60, 40)]
    ties = ties_of(40, n_clusters) if n_clusters else None
    model, found = Model(law, Prior(0.5, 0.5), Prior(0.5, 0.5)), []
    for each in (backend, backend, Reference()):
        state, objectives = begin(model, counts, each, *start, ties), []
        for _ in range(8):
            state = algorithm.step(state, counts, each)
            objectives.append(state.objective)
        found.append((np.array(objectives), state.users.on_host().mean))
    np.testing.assert_allclose(found[0][0], found[2][0], rtol=1e-4)
    assert found[0][0].tobytes() == found[1][0].tobytes()
    assert found[0][1].tobytes() == found[1][1].tobytes()


MODELS = [
    nbmf.CompoundMF(3),
    nbmf.CompoundMF(3, inference="mm"),
    nbmf.CompoundMF(3, jump="learn_per_item", accelerate=True),
    nbmf.CompoundMF(3, jumps="geometric"),
    nbmf.ZeroInflatedMF(3, exposure="exact"),
    nbmf.ZeroInflatedMF(3, exposure="tied", n_clusters=4, inference="mm"),
    nbmf.ZeroInflatedMF(3, exposure="tied", n_clusters=4, probability="learn_per_user"),
    nbmf.ZeroInflatedMF(3, exposure="exact", probability="learn_per_item", rates="per_row", shapes="learn"),
    nbmf.RobustMF(3),
    nbmf.BinaryMF(3),
]


@no_gpu
@not_converged
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_fit_is_that_of_the_cpu(model):
    """With what it learns about the likelihood."""
    if torch.cuda.is_available() and model.accelerate:
        pytest.skip("longer steps magnify rounding, which differs from device to device")
    settings = {"random_state": 0, "max_iter": 8, "dtype": "float64", "tol": 0}
    fits = [
        clone(model).set_params(backend=backend, **settings).fit(small_matrix(), unknown=UNKNOWN)
        for backend in ("gpu", "cpu")
    ]
    np.testing.assert_allclose(fits[0].objective_, fits[1].objective_, rtol=1e-9)
    np.testing.assert_allclose(fits[0].user_factors_, fits[1].user_factors_, rtol=1e-5, atol=1e-9)
    for name, value in fits[0].likelihood_.parameters.items():
        np.testing.assert_allclose(value, fits[1].likelihood_.parameters[name], rtol=1e-7)
    assert type(fits[0].user_posterior_.mean) is np.ndarray


OWN = np.linspace(0.1, 0.9, 30)[:, None]
FOLDED = [*LAWS, LogarithmicJumps(OWN), LogarithmicJumps(OWN[:20].T), ZeroInflatedPoisson(OWN)]


@pytest.mark.parametrize("n_clusters", [0, 4])
@pytest.mark.parametrize("kind", ["points", "one rate", "own rates"])
@pytest.mark.parametrize("law", [*FOLDED, ZeroInflatedPoisson(OWN[:20].T)], ids=str)
@pytest.mark.parametrize("backend", gpus(interpreted=False), ids=str)
def test_folding_in_is_that_of_the_cpu(backend, law, kind, n_clusters):
    """After any number of steps, in double precision; some rows settle before and leave the others alone."""
    if n_clusters and law.has_exposure and np.shape(law.exposure_parameter) == (1, 20):
        pytest.skip("the cells of a cluster share one π")
    side = held(20, law, n_clusters, bayesian=kind != "points", own_rates=kind == "own rates")
    counts = counts_of(small_matrix(), unknown=UNKNOWN).by_user
    ours, plain = (fold(counts, side, Steps(1e-2, 12)) for fold in (partial(fold_on, backend), fold_compiled))
    assert len(set(ours.steps)) > 1 or law.kind == "robust_poisson"  # rows with own rates shrink for long
    np.testing.assert_array_equal(ours.steps, plain.steps)
    for name in ["mean"] if kind == "points" else ["mean", "geometric_mean", "shape", "rate", "prior_rate"]:
        pair = (getattr(folds.factor, name) for folds in (ours, plain))
        np.testing.assert_allclose(*pair, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("backend", gpus(interpreted=False), ids=str)
def test_folding_in_single_precision(backend, law):
    """Exact exposures over all cells are in single precision here and in double on the CPU."""
    side, counts = held(20, law, 0, dtype="float32"), counts_of(small_matrix(), unknown=UNKNOWN).by_user
    ours, plain = (fold(counts, side, Steps(0, 20)).factor for fold in (partial(fold_on, backend), fold_compiled))
    assert ours.mean.dtype == np.float32
    assert relative(ours.mean, plain.mean) < 1e-5


@pytest.mark.parametrize(("law", "n_clusters"), [(GeometricJumps(0.7), 0), (ZeroInflatedPoisson(0.3), 3)], ids=str)
@pytest.mark.parametrize("backend", INTERPRETED, ids=str)
def test_folding_in_by_interpreted_kernels(backend, law, n_clusters):
    side, counts = held(6, law, n_clusters), counts_of(small_matrix(7, 6)).by_user
    ours, plain = (fold(counts, side, Steps(0, 2)).factor for fold in (partial(fold_on, backend), fold_compiled))
    np.testing.assert_allclose(ours.mean, plain.mean, rtol=1e-9)
