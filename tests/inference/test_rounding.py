"""Numbers at the edge of their precision: rounding is no fall, masks leave nothing below 0, factors stay finite."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import nbmf
from nbmf.backends import Given, make_backend
from nbmf.backends.counts import Counts
from nbmf.model.factors import Point, largest
from nbmf.model.family import BernoulliPoisson, GeometricJumps


def sparse_counts(seed, shape=(12, 13)):
    rng = np.random.default_rng(seed)
    return rng.poisson(rng.gamma(0.5, 2.0, shape)) * (rng.random(shape) < 0.2).astype(float)


@pytest.mark.parametrize(
    "model",
    [
        nbmf.PoissonMF(5, user_shape=10.0, item_shape=0.01),
        nbmf.PoissonMF(2, user_shape=100.0, item_shape=0.3, accelerate=True),
        nbmf.NBMF(3, exposure="exact"),
        nbmf.NBMF(3, exposure="tied", n_clusters=4),
    ],
    ids=["poisson", "accelerated", "exact", "tied"],
)
def test_rounding_is_not_a_fall(model):
    """Where nothing is left to gain, the objective moves by the last places of what is summed up in it."""
    for seed in range(12):
        fitted = clone(model).set_params(dtype="float64", tol=0, max_iter=150, random_state=seed)
        assert fitted.fit(sparse_counts(seed)).n_iter_ == 150


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exposure", ["exact", "tied"])
def test_nothing_is_summed_up_but_the_factors(exposure, dtype):
    """Without counts and nearly without exposures, the objective is a difference of entropies and tends to 0."""
    for seed in range(6):
        model = nbmf.NBMF(3, concentration=1e-10, exposure=exposure, n_clusters=4, dtype=dtype, random_state=seed)
        model.set_params(tol=0, max_iter=40).fit(np.zeros((16, 5)))
        assert abs(model.objective_[-1]) < 1e-5


def test_a_fit_that_stands_still_has_converged():
    """No sweep gains 1e-15 of the objective in single precision: it would go up and down until max_iter."""
    model = nbmf.NBMF(2, tol=1e-15, max_iter=3000, random_state=0).fit(sparse_counts(3))
    assert model.converged_


def test_a_dip_is_not_the_end():
    """The rounding of one huge count exceeds what a sweep gains, long before nothing is left to gain."""
    X = np.random.default_rng(0).poisson(np.random.default_rng(1).gamma(0.5, 2.0, (60, 40))).astype(float)
    X[0, 0] = 1e7
    model = nbmf.NBMF(5, random_state=0, max_iter=2000).fit(X)
    assert min(np.diff(model.objective_)) < 0
    assert model.n_iter_ == 2000


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exposure", ["exact", "tied"])
def test_a_row_or_column_of_unknown_cells(exposure, dtype, tmp_path):
    """What an unknown cell adds to an exact sum is taken off again; what is left of a whole row must not be below 0."""
    for seed in range(10):
        X, unknown = sparse_counts(seed, (20, 15)), np.zeros((20, 15))
        unknown[3], unknown[:, 4] = 1, 1
        model = nbmf.NBMF(4, exposure=exposure, n_clusters=4, dtype=dtype, max_iter=10, tol=0, random_state=seed)
        model.fit(X, unknown=sp.csr_array(unknown))
        assert np.all(model.result_.user_posterior.exposed >= 0)
        assert np.all(model.result_.item_posterior.exposed >= 0)
        model.save(tmp_path / "masked.nbmf")
        assert np.array_equal(nbmf.load(tmp_path / "masked.nbmf").user_factors_, model.user_factors_)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_points_stay_finite(backend, dtype):
    """A new user of items that hardly anybody takes would need a factor beyond any number."""
    tiny = np.finfo(dtype).tiny
    H = np.full((6, 1), 100 * tiny, dtype)
    model = nbmf.PoissonMF(1, inference="mm", init=(np.ones((4, 1)), H), max_iter=1, dtype=dtype, backend=backend)
    model.fit(np.zeros((4, 6)))
    model.result_.item_posterior.value[:] = H
    found = model.transform(np.full((1, 6), 1e9))
    assert np.all(np.isfinite(found))
    assert found.max() <= largest(np.dtype(dtype)) * (1 + 1e-6)
    assert np.isfinite(found.max() ** 2)


@pytest.mark.filterwarnings("ignore:backend='gpu' finds no GPU")
@pytest.mark.parametrize("backend", ["cpu", "reference", "gpu"])
@pytest.mark.parametrize("inference", ["cavi", "mm"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_unknown_cells_may_hold_nearly_all_intensity(dtype, inference, backend):
    """Then little is left of a sum over all cells once they are taken off; no probability of counts is above 1."""
    if backend == "gpu":
        pytest.importorskip("torch")
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X, unknown = rng.poisson(1.0, (9, 9)).astype(float), rng.random((9, 9)) < 0.5
        X[0, 0], unknown[0] = 1e9, True
        unknown[0, 0] = unknown[3, 3] = False
        model = nbmf.PoissonMF(2, user_shape=0.01, item_shape=0.01, inference=inference, dtype=dtype, random_state=seed)
        model.set_params(tol=0, max_iter=40, backend=backend).fit(X, unknown=sp.csr_array(unknown))
        assert max(model.objective_) <= 32 * np.finfo(dtype).eps * 1e9


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_intensities_that_underflow(backend):
    """Shapes of 0.01 make geometric means of 1e-40 and less."""
    X = np.random.default_rng(0).poisson(0.5, (6, 8))
    model = nbmf.NBMF(2, user_shape=0.01, item_shape=0.01, backend=backend, max_iter=30, random_state=0).fit(X)
    assert np.all(np.isfinite(model.transform(np.eye(8))))


def test_a_long_step_does_not_overflow():
    """From such a start, extrapolated shapes are large where rates are small."""
    W0 = np.array([[4.348283361366181, 0.7286156968988462, 0.14460964120357175, 4.438632710169301]])
    H0 = np.array([[0.0001137043724993057, 1.5988146046795375e-11, 1.1949955866095234e-12, 4.895550876644865e-09]])
    model = nbmf.NBMF(4, concentration=3218459.7659964436, init=(W0, H0), exposure="tied", n_clusters=3)
    model.set_params(accelerate=True, tol=0, max_iter=500).fit(np.array([[2]]))
    assert np.isfinite(model.objective_).all()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_no_divergence_from_a_prior_is_below_zero(backend):
    """Without a known cell the posteriors are the priors, and entropies of any size must cancel."""
    unknown = sp.csr_array(np.ones((29, 1)))
    for shape in np.geomspace(0.01, 100, 25):
        model = nbmf.PoissonMF(4, user_shape=shape, dtype="float64", backend=backend, max_iter=2, tol=0, random_state=0)
        assert model.fit(np.zeros((29, 1)), unknown=unknown).objective_[-1] <= 0


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("count", [1.0, 1e15])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_new_counts_of_an_item_that_had_none(dtype, count, backend):
    """Its factors are 0 by maximum likelihood and stay so, however large those of its users and y/λ are."""
    start = np.full((2, 1), largest(np.dtype(dtype)) / 100), np.ones((3, 1))
    model = nbmf.PoissonMF(1, inference="mm", init=start, max_iter=1, tol=0, dtype=dtype, backend=backend)
    model.fit(np.array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0]]))
    model.partial_fit(nbmf.Interactions.from_matrix([[0.0, 0.0, count]]), refresh=2)
    assert np.all(np.isfinite(model.user_factors_))
    assert np.all(np.isfinite(model.item_factors_))
    assert model.item_factors_[2] == 0


@pytest.mark.parametrize("learn", ["learn", "learn_per_user"])
def test_learning_from_an_exposure_that_is_lost_beside_the_shared_one(learn):
    """⟨a⟩ − A_uc is stored, and ⟨a⟩ is far below the last place of A_uc if a count has a huge intensity."""
    start = np.ones((1, 1)), np.array([[1e9], [1e-9]])
    model = nbmf.NBMF(1, concentration=learn, inference="mm", exposure="tied", n_clusters=1, init=start)
    model.set_params(max_iter=1, tol=0, backend="cpu").fit(np.array([[3.0, 0.0]]))
    assert np.all(np.isfinite(model.concentration_))


@pytest.mark.filterwarnings("ignore:backend='gpu' finds no GPU")
@pytest.mark.parametrize("backend", ["cpu", "reference", "gpu"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_users_who_took_everything_have_any_intensity(dtype, backend):
    """The best chances of their counts are 1, so intensities grow for ever, and those of their counts must cancel."""
    if backend == "gpu":
        pytest.importorskip("torch")
    X = np.random.default_rng(0).poisson(1.0, (12, 9)) * np.ones(9)
    X[:2], X[:, 3] = 1, 1
    for seed in range(6):
        model = nbmf.BinaryMF(3, inference="mm", accelerate=True, dtype=dtype, backend=backend, random_state=seed)
        model.set_params(tol=0, max_iter=60).fit(X)
        assert max(model.objective_) <= 0


@pytest.mark.filterwarnings("ignore:backend='gpu' finds no GPU")
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("has_unknown", [False, True])
def test_the_log_likelihood_of_huge_intensities_is_that_of_the_cells(has_unknown, dtype, backend):
    if backend == "gpu":
        pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    X = np.ones((7, 6))
    X[0, 0], X[1, 1:3] = 0, 0
    W, H = np.geomspace(1, 1e15, 7)[:, None] * rng.gamma(1.0, 1.0, (7, 2)), rng.gamma(1.0, 1.0, (6, 2))
    H[:3] *= 1e-12  # of the items that some have not taken
    unknown = sp.csr_array(np.eye(7, 6)) if has_unknown else None
    data = Counts.of(sp.csr_array(X), np.dtype(dtype), unknown)
    sides = Point(W.astype(dtype)), Point(H.astype(dtype))
    found, expected = (
        make_backend(name, 1).expect(data, Given(*sides, BernoulliPoisson(), None)).log_evidence
        for name in (backend, "reference")
    )
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.filterwarnings("ignore:backend='gpu' finds no GPU")
@pytest.mark.parametrize("backend", ["cpu", "reference", "gpu"])
@pytest.mark.parametrize("count", [0.3, 3.7, 30, 1e6, 1e15])
def test_so_many_events_that_each_is_one_count(count, backend):
    """The square of what a huge intensity becomes at short jumps is no number."""
    if backend == "gpu":
        pytest.importorskip("torch")
    data = Counts.of(sp.csr_array([[count]]), np.dtype(np.float64))
    sides = Point(np.array([[1e138]])), Point(np.array([[1e138]]))
    found = make_backend(backend, 1).expect(data, Given(*sides, GeometricJumps(1e-9), None))
    assert found.user_sums.allocated == pytest.approx(max(np.floor(count), 1.0))
    assert np.isfinite(found.log_evidence)


@pytest.mark.filterwarnings("error::RuntimeWarning", "ignore:backend='gpu' finds no GPU")
@pytest.mark.parametrize("backend", ["cpu", "reference", "gpu"])
@pytest.mark.parametrize("jumps", ["logarithmic", "geometric"])
@pytest.mark.parametrize("jump", ["learn", "learn_per_item"])
def test_jumps_are_learned_though_factors_of_zero_lose_the_events(jump, jumps, backend):
    """Without a count every factor becomes 0 by maximum likelihood and stays so, whatever counts are added."""
    if backend == "gpu":
        pytest.importorskip("torch")
    model = nbmf.CompoundMF(1, jumps=jumps, jump=jump, inference="mm", max_iter=2, backend=backend, random_state=0)
    model.fit(np.zeros((7, 10)))
    model.partial_fit(nbmf.Interactions.from_matrix(np.eye(5, 6)), refresh=2)
    assert np.all((model.jump_ > 0) & (model.jump_ < 1))
    assert np.isfinite(model.objective_).all()
