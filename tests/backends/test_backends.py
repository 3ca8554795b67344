"""One contract for every backend: the sums, the objective and the posteriors are those of `reference`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import literal
from helpers import count_matrices, counts_of, gpus, small_matrix, ties_of
from nbmf.backends import Given, Sums, make_backend, slopes
from nbmf.backends.cpu.elementary import exp, log, log1p
from nbmf.backends.cpu.kernels import gamma_rows
from nbmf.backends.cpu.passes import Cpu
from nbmf.backends.reference import Reference
from nbmf.inference.run import total_log_base
from nbmf.model.factors import Point, Prior, largest
from nbmf.model.family import BernoulliPoisson, GeometricJumps, LogarithmicJumps, RobustPoisson, ZeroInflatedPoisson
from nbmf.model.likelihood import NegativeBinomial, Poisson
from nbmf.model.ties import Ties, tie_items

BACKENDS = [Cpu(n_threads=2), *gpus(interpreted=False)]
INTERPRETED = [backend for backend in gpus() if backend not in BACKENDS]  # slow: for a few tiny cases
LAWS = [
    Poisson(),
    NegativeBinomial(0.3),
    NegativeBinomial(10.0),
    LogarithmicJumps(0.9),
    GeometricJumps(0.7),
    BernoulliPoisson(),
    RobustPoisson(0.5),
    ZeroInflatedPoisson(0.3),
]
PRIOR = Prior(0.8, 1.3)


def posteriors(shape, n_components, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Reference().conditional(
            PRIOR,
            Sums(*(rng.gamma(1.0, 2.0, (n, n_components)).astype(dtype) for _ in range(2))),
        )
        for n in shape
    ]


def on_host(values):
    """Sums as NumPy sees them, wherever a backend keeps them."""
    return values.cpu().numpy() if hasattr(values, "cpu") else values


def assert_same(backend, counts, users, items, law, ties, rtol, atol=0.0):
    ours, plain = (b.expect(counts, Given(users, items, law, ties)) for b in (backend, Reference()))
    total = counts.total
    assert ours.log_evidence == pytest.approx(plain.log_evidence, rel=rtol, abs=rtol * (1 + total))
    newer = Point(users.mean * users.mean.dtype.type(1.5))  # CAVI hands over the new means
    by_item = [b.sum_by_item(counts, e, newer) for b, e in ((backend, ours), (Reference(), plain))]
    for mine, reference in ((ours.user_sums, plain.user_sums), by_item):
        np.testing.assert_allclose(on_host(mine.allocated), reference.allocated, rtol=rtol, atol=1e-30)
        exposed = np.broadcast_to(on_host(mine.exposed), reference.exposed.shape)
        np.testing.assert_allclose(exposed, reference.exposed, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n_clusters", [None, 1, 5, 20])
@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_sums_and_evidence(backend, law, n_clusters, dtype):
    counts = counts_of(small_matrix(), dtype)
    users, items = posteriors((30, 20), 7, dtype)
    ties = ties_of(20, n_clusters) if n_clusters else None
    assert_same(backend, counts, users, items, law, ties, rtol=1e-12 if dtype == "float64" else 3e-6)


@pytest.mark.parametrize(
    ("law", "n_clusters", "dtype"),
    [
        (Poisson(), None, "float32"),
        (NegativeBinomial(0.3), None, "float32"),
        (NegativeBinomial(0.3), 5, "float64"),
        (NegativeBinomial(np.linspace(0.2, 3, 9)[:, None]), 1, "float32"),
        (NegativeBinomial(np.linspace(0.2, 3, 7)[None, :]), None, "float32"),
        (LogarithmicJumps(np.linspace(0.2, 0.9, 7)[None, :]), None, "float32"),
        (GeometricJumps(0.7), 2, "float64"),
        (ZeroInflatedPoisson(0.3), None, "float64"),
        (ZeroInflatedPoisson(np.linspace(0.1, 0.9, 9)[:, None]), 3, "float32"),
    ],
)
@pytest.mark.parametrize("backend", INTERPRETED, ids=str)
def test_sums_and_evidence_by_interpreted_kernels(backend, law, n_clusters, dtype):
    unknown = np.random.default_rng(8).random((9, 7)) < 0.1
    counts = counts_of(small_matrix(9, 7), dtype, unknown)
    users, items = posteriors((9, 7), 3, dtype)
    ties = ties_of(7, n_clusters) if n_clusters else None
    rtol = 1e-12 if dtype == "float64" else 3e-6
    assert_same(backend, counts, users, items, law, ties, rtol, atol=rtol * 10)


@given(count_matrices(), st.integers(1, 5), st.sampled_from(LAWS), st.integers(0, 4))
def test_sums_and_evidence_of_any_counts(matrix, n_components, law, n_clusters):
    counts = counts_of(matrix)
    users, items = posteriors(matrix.shape, n_components, np.float64)
    ties = ties_of(matrix.shape[1], n_clusters) if n_clusters else None
    for backend in BACKENDS:
        assert_same(backend, counts, users, items, law, ties, rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n_clusters", [None, 5])
@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_unknown_cells_are_not_zeros(backend, law, n_clusters, dtype):
    """Zero and non-zero cells left out, one user's whole row and one item's whole column among them."""
    unknown = np.random.default_rng(8).random((30, 20)) < 0.2
    unknown[4], unknown[:, 7] = True, True
    counts = counts_of(small_matrix(), dtype, unknown)
    users, items = posteriors((30, 20), 7, dtype)
    ties = ties_of(20, n_clusters) if n_clusters else None
    rtol = 1e-12 if dtype == "float64" else 3e-6
    assert_same(backend, counts, users, items, law, ties, rtol, atol=rtol * 10)
    allocated, exposed = (
        on_host(values) for values in backend.expect(counts, Given(users, items, law, ties)).user_sums
    )
    assert np.all(allocated[4] == 0)
    np.testing.assert_allclose(np.broadcast_to(exposed, users.mean.shape)[4], 0, atol=rtol * 10)


def test_unknown_cells_are_literally_left_out():
    """The objective is that of the other cells, whatever count an unknown cell has."""
    Y, unknown = small_matrix(6, 4, seed=2), np.zeros((6, 4), bool)
    unknown[1, 2] = unknown[3, :] = True
    W, H = posteriors(Y.shape, 3, np.float64, seed=5)
    law = NegativeBinomial(0.7)
    found = [
        Cpu().expect(counts_of(matrix, unknown=unknown), Given(W, H, law, None)).log_evidence
        for matrix in (Y, np.where(unknown, 99, Y))
    ]
    μ, λ = W.mean @ H.mean.T, W.geometric_mean @ H.geometric_mean.T
    cells = np.where(Y > 0, Y * np.log(λ), 0) + law.log_evidence(Y, μ) - law.log_base(Y)
    assert found == pytest.approx([cells[~unknown].sum()] * 2, rel=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("shape", "n_clusters"), [((30, 1), None), ((30, 1), 5), ((1, 20), None)])
@pytest.mark.parametrize("law", [NegativeBinomial, LogarithmicJumps, GeometricJumps, ZeroInflatedPoisson])
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_parameters_of_users_and_of_items(backend, law, shape, n_clusters, dtype):
    unknown, rng = np.random.default_rng(8).random((30, 20)) < 0.1, np.random.default_rng(9)
    law = law(rng.gamma(1.0, 1.0, shape) + 0.05 if law is NegativeBinomial else rng.uniform(0.05, 0.95, shape))
    users, items = posteriors((30, 20), 7, dtype)
    ties = ties_of(20, n_clusters) if n_clusters else None
    rtol = 1e-12 if dtype == "float64" else 3e-6
    assert_same(backend, counts_of(small_matrix(), dtype, unknown), users, items, law, ties, rtol, atol=rtol)


@pytest.mark.parametrize("n_clusters", [None, 5])
@pytest.mark.parametrize("group", ["all", "user", "item"])
@pytest.mark.parametrize("backend", [Reference(), *BACKENDS], ids=str)
def test_slopes_are_those_of_the_evidence(backend, group, n_clusters, monkeypatch):
    """∂/∂α and ∂²/∂α², against differences of the objective itself, with one α, one a user and one an item."""
    monkeypatch.setattr(slopes, "BLOCK_WORK", 50)  # several blocks of users
    if group == "item" and n_clusters:
        pytest.skip("the cells of a cluster share one α")
    unknown = np.random.default_rng(8).random((30, 20)) < 0.1
    counts = counts_of(small_matrix(), unknown=unknown)
    users, items = posteriors((30, 20), 7, np.float64)
    ties = ties_of(20, n_clusters) if n_clusters else None
    shape = {"all": (), "user": (30, 1), "item": (1, 20)}[group]
    α = np.random.default_rng(9).gamma(1.0, 1.0, shape) + 0.3

    def evidence(value):
        law = NegativeBinomial(float(value) if group == "all" else value)
        return total_log_base(law, counts) + backend.expect(counts, Given(users, items, law, ties)).log_evidence

    law = NegativeBinomial(float(α) if group == "all" else α)
    slope, curvature = backend.slopes(counts, backend.expect(counts, Given(users, items, law, ties)), group)
    assert slope.shape == curvature.shape == shape
    for place in [(), (3, 0), (17, 0)] if group == "user" else [(), (0, 4)] if group == "item" else [()]:
        step = np.zeros(shape)
        step[place or ...] = 1e-3
        low, middle, high = evidence(α - step), evidence(α), evidence(α + step)
        which = np.s_[place] if place else np.s_[...]
        assert np.sum(slope[which]) == pytest.approx((high - low) / 2e-3, rel=1e-4)
        assert np.sum(curvature[which]) == pytest.approx((high - 2 * middle + low) / 1e-6, rel=1e-3)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n_clusters", [None, 5, 20])
@pytest.mark.parametrize("group", ["all", "user", "item"])
@pytest.mark.parametrize("law", [ZeroInflatedPoisson, NegativeBinomial])
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_mean_exposures(backend, law, group, n_clusters, dtype):
    """Of one parameter and of one per user or item; a user and an item without any known cell have no say."""
    unknown, rng = np.random.default_rng(8).random((30, 20)) < 0.1, np.random.default_rng(9)
    unknown[4], unknown[:, 7] = True, True
    counts, (users, items) = counts_of(small_matrix(), dtype, unknown), posteriors((30, 20), 7, dtype)
    ties = ties_of(20, n_clusters) if n_clusters else None
    shapes = {(), {"all": (), "user": (30, 1), "item": (1, 20)}[group]} - ({(1, 20)} if n_clusters else set())
    for shape in shapes:
        given = Given(users, items, law(rng.uniform(0.1, 0.9, shape) if shape else 0.3), ties)
        ours, plain = (
            b.mean_exposure(counts, b.expect(counts, given, sum_users=False), group) for b in (backend, Reference())
        )
        assert ours.shape == {"all": (), "user": (30, 1), "item": (1, 20)}[group]
        np.testing.assert_allclose(ours, plain, rtol=1e-12 if dtype == "float64" else 3e-6)


@pytest.mark.parametrize("law", [law for law in LAWS if not law.has_exposure], ids=str)
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_exposures_of_one_are_not_learned_from(backend, law):
    counts, (users, items) = counts_of(small_matrix()), posteriors((30, 20), 3, np.float64)
    expectation = backend.expect(counts, Given(users, items, law, None))
    with pytest.raises(TypeError, match="has no exposures to learn from"):
        backend.mean_exposure(counts, expectation, "all")
    with pytest.raises(TypeError, match="has no concentration to learn"):
        backend.slopes(counts, expectation, "all")


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_fractions_are_counts_too(backend, law):
    """Real numbers go through the same formulas; those below 1 are one event at most."""
    matrix = small_matrix() * np.random.default_rng(0).uniform(0.05, 1, (30, 20))
    matrix[:3] *= 100
    users, items = posteriors((30, 20), 4, np.float64)
    assert_same(backend, counts_of(matrix), users, items, law, None, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:overflow encountered")  # of NumPy, which interprets Triton's kernels
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("backend", [Reference(), *BACKENDS, *INTERPRETED], ids=str)
def test_nothing_is_allocated_to_a_factor_of_zero(backend, dtype):
    """However large the factors of the other side and y/λ are; a number however small takes at most the counts."""
    counts = counts_of(np.array([[0.0, 2.0], [1e15, 1.0]]), dtype)
    huge = np.full((2, 2), largest(np.dtype(dtype)), dtype)
    for small in (0.0, np.finfo(dtype).smallest_subnormal):
        few = np.array([[0.0, small], [0.0, 1.0]], dtype)
        for users, items in ((Point(few), Point(huge)), (Point(huge), Point(few))):
            found = backend.expect(counts, Given(users, items, Poisson(), None))
            for sums, factor in ((found.user_sums, users), (backend.sum_by_item(counts, found, users), items)):
                allocated = on_host(sums.allocated)
                assert np.all(allocated[factor.value == 0] == 0)
                assert np.all(allocated <= 1.001e15)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_tiles_larger_and_smaller_than_the_matrix(backend):
    """More rows and columns than a tile holds, and neither a multiple of it."""
    matrix = np.random.default_rng(3).poisson(0.3, (301, 1100))
    users, items = posteriors(matrix.shape, 3, np.float64)
    assert_same(backend, counts_of(matrix), users, items, NegativeBinomial(0.5), None, rtol=1e-12)


@pytest.mark.parametrize("ties", [None, [0, 1, 0, 2]])
def test_reference_is_literal(ties):
    """The two sums and the objective, from the paper's loops."""
    Y, α = small_matrix(6, 4, seed=2), 0.7
    W, H = posteriors(Y.shape, 3, np.float64, seed=5)
    law, counts = NegativeBinomial(α), counts_of(Y)
    clusters = None if ties is None else Ties(np.array(ties, np.int32), 3)
    expectation = Reference().expect(counts, Given(W, H, law, clusters))
    φ, a = literal.latent(Y, W.mean, H.mean, np.log(W.geometric_mean), np.log(H.geometric_mean), α)
    if ties is not None:
        a = literal.tied(Y, W.mean, H.mean, a, ties, α)
    shape, rate = literal.update_w(Y, φ, a, H.mean, PRIOR.shape, PRIOR.rate)
    q = Reference().conditional(PRIOR, expectation.user_sums)
    np.testing.assert_allclose([q.shape, q.rate], [shape, rate], rtol=1e-12)
    shape, rate = literal.update_h(Y, φ, a, W.mean, PRIOR.shape, PRIOR.rate)
    q = Reference().conditional(PRIOR, Reference().sum_by_item(counts, expectation, W))
    np.testing.assert_allclose([q.shape, q.rate], [shape, rate], rtol=1e-12)
    uncollapsed = literal.elbo(Y, φ, a, (W.shape, W.rate), (H.shape, H.rate), α, *[PRIOR.shape, PRIOR.rate] * 2)
    collapsed = expectation.log_evidence + law.log_base(Y).sum() - W.divergence(PRIOR) - H.divergence(PRIOR)
    assert collapsed == pytest.approx(uncollapsed, rel=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("rate", [0.3, np.linspace(0.1, 2, 30)[:, None]], ids=["one", "own"])
@pytest.mark.parametrize("backend", [*BACKENDS, *INTERPRETED], ids=str)
def test_extrapolated_factors(backend, rate, dtype):
    """Parameters are here · (here/past)^step, and moments are those of such a posterior; a point is one parameter."""
    rng = np.random.default_rng(3)
    past, here = (
        backend.conditional(Prior(0.7, rate), Sums(*(rng.gamma(1, 1, (30, 3)).astype(dtype) for _ in range(2))))
        for _ in range(2)
    )
    sides = backend.parameters(here), backend.parameters(past)
    found = backend.extrapolate(here, *sides, 0.4).on_host()
    shape, exposed = (on_host(a) * (on_host(a) / on_host(b)) ** 0.4 for a, b in zip(*sides, strict=True))
    plain = Reference().conditional(Prior(0.0, rate), Sums(shape, exposed))
    for name in ("mean", "geometric_mean", "exposed", "row_means", "row_logs"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(plain, name), rtol=1e-10 if dtype == "float64" else 4e-6
        )
    assert found.prior_rate is here.prior_rate
    zero, one = (np.array([[value, 2.0]], dtype) for value in (0.0, 1.0))
    point = backend.extrapolate(Point(zero), *(backend.parameters(Point(values)) for values in (zero, one)), 1.0)
    np.testing.assert_allclose(point.on_host().value, [[0, 2]], atol=1e-30)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("backend", [*BACKENDS, *INTERPRETED], ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_moments_of_gamma(backend, shared, dtype):
    allocated = (10.0 ** np.linspace(-3, 10, 60).reshape(20, 3)).astype(dtype)
    exposed = (10.0 ** np.linspace(-4, 8, 3 if shared else 60).reshape(-1, 3)).astype(dtype)
    ours, plain = (
        b.conditional(Prior(0.01, 0.3), Sums(*(s.astype(t) for s in (allocated, exposed))))
        for b, t in ((backend, dtype), (Reference(), "float64"))
    )
    rtol, atol = (1e-12, 0) if dtype == "float64" else (6e-6, 1e-30)  # small shapes: e^(−1/shape) of single precision
    for name in ("mean", "geometric_mean", "shape", "rate", "row_means", "row_logs"):
        np.testing.assert_allclose(getattr(ours, name), getattr(plain, name), rtol=rtol, atol=atol)
    if dtype == "float32":
        np.testing.assert_allclose(ours.row_entropies, plain.row_entropies, rtol=1e-5, atol=1e-4)
        return
    # scipy's entropy is a difference of terms of size shape·ln shape; ours is not
    size = (allocated * np.log(allocated + 2)).sum(axis=1) + 100
    assert np.all(np.abs(ours.row_entropies - plain.row_entropies) < 1e-14 * size)


@given(st.floats(1e-300, 1e300))
def test_logarithm(x):
    assert log(x) == pytest.approx(np.log(x), rel=1e-15, abs=1e-16)


@given(st.floats(0, 1e300))
def test_logarithm_of_one_plus(x):
    assert log1p(x) == pytest.approx(np.log1p(x), rel=1e-15)


@given(st.floats(2.0**-120, 2.0**120, width=32))
def test_single_precision_logarithms(x):
    """Numba's scalars come back as doubles: what counts is that no more than single precision was lost."""
    assert log(np.float32(x)) == pytest.approx(np.log(x), rel=3e-7, abs=1e-7)
    assert log1p(np.float32(x)) == pytest.approx(np.log1p(x), rel=3e-7)


@given(st.floats(-699, 699))
def test_exponential(x):
    assert exp(x) == pytest.approx(np.exp(x), rel=1e-15)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n_clusters", [None, 8])
@pytest.mark.parametrize("law", LAWS[:2], ids=str)
def test_same_bits_for_any_number_of_threads(law, n_clusters, dtype):
    rng = np.random.default_rng(0)
    matrix = rng.poisson(0.2, (3000, 700)) * rng.integers(1, 9, (3000, 700))
    counts = counts_of(matrix, dtype)
    start = [Point(rng.gamma(1, 1, (n, 9)).astype(dtype)) for n in matrix.shape]
    ties = ties_of(700, n_clusters) if n_clusters else None
    seen = []
    for n_threads in (1, 2, 4):
        backend = Cpu(n_threads)
        expectation = backend.expect(counts, Given(*start, law, ties))
        users = backend.conditional(PRIOR, expectation.user_sums)
        items = backend.conditional(PRIOR, backend.sum_by_item(counts, expectation, users))
        after = backend.expect(counts, Given(users, items, law, ties))
        seen.append([users.mean, items.geometric_mean, items.row_entropies, np.array(after.log_evidence)])
    for other in seen[1:]:
        for ours, theirs in zip(seen[0], other, strict=True):
            assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("n_components", [3, 4, 8, 50])
def test_same_bits_wherever_the_arrays_lie(n_components):
    """Compiled loops may come in two versions, one for arrays that lie close together."""
    seen = set()
    shapes = [(2, n_components)] * 4 + [(2,)] * 3
    for gap in (0, 2, 8, 512):
        ends = np.cumsum([np.prod(shape) + gap for shape in shapes])
        memory = np.empty(ends[-1])
        allocated, exposed, mean, geometric_mean, *rows = (
            memory[end - gap - np.prod(shape) : end - gap].reshape(shape)
            for shape, end in zip(shapes, ends, strict=True)
        )
        allocated[:] = np.random.default_rng(0).gamma(1, 1, allocated.shape)
        exposed[:] = np.random.default_rng(1).gamma(1, 1, allocated.shape)
        gamma_rows(0, 2, 0.5, np.array([0.5]), allocated, exposed, mean, geometric_mean, *rows)
        seen.add(b"".join(array.tobytes() for array in (mean, geometric_mean, *rows)))
    assert len(seen) == 1


def test_clusters_cover_the_items():
    means = np.random.default_rng(0).gamma(1, 1, (50, 4))
    ties = tie_items(means, 6, np.random.RandomState(0))
    assert set(ties.labels) == set(range(6))
    assert sorted(np.concatenate(ties.members)) == list(range(50))
    assert all(set(ties.labels[items]) == {c} for c, items in enumerate(ties.members))
    assert list(tie_items(means, 99, np.random.RandomState(0)).labels) == list(range(50))


class Foreign:
    """A likelihood that no kernel knows."""

    kind, concentration = "foreign", 1.0


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_a_likelihood_without_kernels_is_refused(backend):
    users, items = posteriors((30, 20), 3, np.float64)
    with pytest.raises(ValueError, match=r"'foreign'.*backend='reference' takes any likelihood"):
        backend.expect(counts_of(small_matrix()), Given(users, items, Foreign(), None))


def test_an_unknown_backend_is_named():
    with pytest.raises(ValueError, match="'abacus'"):
        make_backend("abacus")
