"""Every likelihood of the family in the loop: half-steps ascend, parameters come back, precisions and threads agree."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbmf
from helpers import count_matrices, counts_of, small_matrix, ties_of
from nbmf.backends import Given
from nbmf.backends.cpu.passes import Cpu
from nbmf.backends.reference import Reference
from nbmf.inference.cavi import CAVI
from nbmf.inference.hyperparameters import Learned
from nbmf.inference.mm import MM
from nbmf.inference.run import Until, begin, observe, run, total_log_base
from nbmf.model import Model
from nbmf.model.factors import Prior
from nbmf.model.family import BernoulliPoisson, GeometricJumps, LogarithmicJumps, RobustPoisson, ZeroInflatedPoisson
from nbmf.model.likelihood import NegativeBinomial

LAWS = [
    LogarithmicJumps(0.3),
    LogarithmicJumps(0.99),
    GeometricJumps(0.3),
    GeometricJumps(0.99),
    BernoulliPoisson(),
    RobustPoisson(0.5),
    ZeroInflatedPoisson(0.3),
]
BACKENDS = [Reference(), Cpu(n_threads=1)]
PRIORS = Prior(0.3, 0.3), Prior(0.5, 0.5)
ESTIMATORS = [
    nbmf.CompoundMF(3, random_state=0),
    nbmf.CompoundMF(3, jumps="geometric", random_state=0),
    nbmf.CompoundMF(3, jump="learn", random_state=0),
    nbmf.ZeroInflatedMF(3, exposure="exact", random_state=0),
    nbmf.ZeroInflatedMF(3, exposure="tied", n_clusters=4, random_state=0),
    nbmf.ZeroInflatedMF(3, probability="learn_per_user", exposure="tied", n_clusters=4, random_state=0),
    nbmf.ZeroInflatedMF(3, probability="learn_per_item", random_state=0),
    nbmf.RobustMF(3, random_state=0),
    nbmf.BinaryMF(3, random_state=0),
]


def start(matrix, law, n_components, ties, backend, dtype=np.float64):
    rng = np.random.default_rng(0)
    data = counts_of(np.minimum(matrix, 1) if law.kind == "bernoulli_poisson" else matrix, dtype)
    W, H = (rng.gamma(1.0, 1.0, (n, n_components)).astype(dtype) for n in matrix.shape)
    return begin(Model(law, *PRIORS), data, backend, W, H, ties), data


def slack(counts, objective):
    """Rounding of a sum of this size, in double precision."""
    return 1e-12 * (abs(objective) + counts.size)


@given(count_matrices(), st.integers(1, 3), st.integers(0, 3), st.sampled_from(LAWS))
def test_every_half_step_of_mm_ascends(matrix, n_components, n_clusters, law):
    ties = ties_of(matrix.shape[1], n_clusters) if n_clusters and law.has_exposure else None
    for backend in BACKENDS:
        state, counts = start(matrix, law, n_components, ties, backend)
        users, items, before = state.users, state.items, state.inferred.log_evidence
        for _ in range(3):
            expectation = backend.expect(counts, Given(users, items, law, ties))
            items = backend.quotient(items, backend.sum_by_item(counts, expectation, users))
            between = backend.expect(counts, Given(users, items, law, ties))
            assert between.log_evidence >= before - slack(counts, before)
            users = backend.quotient(users, between.user_sums)
            before = backend.expect(counts, Given(users, items, law, ties)).log_evidence
            assert before >= between.log_evidence - slack(counts, before)


@given(count_matrices(), st.integers(1, 3), st.integers(0, 3), st.sampled_from(LAWS))
def test_every_half_step_of_cavi_ascends(matrix, n_components, n_clusters, law):
    """With the allocations and exposures inferred anew before each side."""
    ties = ties_of(matrix.shape[1], n_clusters) if n_clusters and law.has_exposure else None
    for backend in BACKENDS:
        state, counts = start(matrix, law, n_components, ties, backend)
        state = CAVI().step(state, counts, backend)
        for _ in range(2):
            fixed, rest = (state.model, counts, backend), (ties, state.log_base)
            users = backend.conditional(state.model.user_prior, state.inferred.user_sums)
            between = observe(*fixed, users, state.items, *rest)
            assert between.objective >= state.objective - slack(counts, state.objective)
            items = backend.conditional(
                state.model.item_prior, backend.sum_by_item(counts, between.inferred, between.users)
            )
            state = observe(*fixed, users, items, *rest)
            assert state.objective >= between.objective - slack(counts, between.objective)


@pytest.mark.parametrize("shape", [(), (30, 1), (1, 20)])
@pytest.mark.parametrize("law", [NegativeBinomial, LogarithmicJumps, GeometricJumps, ZeroInflatedPoisson])
def test_what_does_not_depend_on_the_factors_is_summed_cell_by_cell(law, shape):
    law = law(np.random.default_rng(1).uniform(0.1, 0.9, shape)[()])
    expected = np.broadcast_to(law.log_base(small_matrix()), (30, 20)).sum()
    assert total_log_base(law, counts_of(small_matrix())) == pytest.approx(expected, rel=1e-12)


@given(count_matrices(), st.sampled_from([CAVI, MM]), st.sampled_from(LAWS), st.sampled_from(["all", "item", "user"]))
def test_a_run_that_learns_never_falls(matrix, algorithm, law, group):
    """The loop itself raises if it does; float32 and float64, counts to 10^9, users who took everything."""
    if (group == "user" and law.learns_from == "jumps") or not law.learns_from:
        group = ""
    for dtype in (np.float64, np.float32):
        state, counts = start(matrix, law, 2, None, Cpu(n_threads=1), dtype)
        found = run(algorithm(Learned(group)), state, counts, Cpu(n_threads=1), Until(20, 0))
        assert np.isfinite(found.objectives).all()


@pytest.mark.parametrize("jumps", ["logarithmic", "geometric"])
def test_a_simulation_gives_its_jumps_back(jumps):
    rng = np.random.default_rng(1)
    W, H = rng.gamma(1.0, 1.0, (300, 3)), rng.gamma(1.0, 0.2, (150, 3))
    n_events = rng.poisson(W @ H.T)
    sizes = rng.logseries(0.9, n_events.sum()) if jumps == "logarithmic" else rng.geometric(0.3, n_events.sum())
    counts = np.add.reduceat(np.append(sizes, 0), np.append(0, np.cumsum(n_events))[:-1]).reshape(n_events.shape)
    counts[n_events == 0] = 0
    model = nbmf.CompoundMF(3, jumps=jumps, jump="learn", inference="mm", random_state=0, dtype="float64").fit(counts)
    assert model.jump_ == pytest.approx(0.9 if jumps == "logarithmic" else 0.7, abs=0.02)
    assert model.predict(np.repeat(np.arange(300), 150), np.tile(np.arange(150), 300)).mean() == pytest.approx(
        counts.mean(), rel=1e-3
    )


@pytest.mark.parametrize("exposure", ["exact", "tied"])
def test_a_simulation_gives_its_probability_back(exposure):
    rng = np.random.default_rng(2)
    W, H = rng.gamma(3.0, 1.0, (300, 2)), rng.gamma(3.0, 0.3, (150, 2))
    counts = rng.poisson(W @ H.T) * (rng.random((300, 150)) < 0.4)
    settings = {"exposure": exposure, "n_clusters": 30, "random_state": 0, "dtype": "float64"}
    model = nbmf.ZeroInflatedMF(2, inference="mm", **settings).fit(counts)
    assert model.probability_ == pytest.approx(0.4, abs=0.02)


def test_items_with_jumps_of_their_own_get_them_back():
    rng = np.random.default_rng(3)
    mean_jump = np.where(np.arange(40) < 20, 1.1, 20.0)
    n_events = rng.poisson(rng.gamma(1.0, 1.0, (500, 1)) * rng.gamma(3.0, 0.3, (1, 40)))
    counts = n_events + rng.negative_binomial(np.maximum(n_events, 1e-9), 1 / mean_jump)  # geometric jumps
    model = nbmf.CompoundMF(1, jumps="geometric", jump="learn_per_item", random_state=0).fit(counts)
    assert model.jump_.shape == (1, 40)
    found = 1 / (1 - model.jump_[0])
    # drawn towards the mean of all, about 10, by a hundred events, and the items have some 450 each
    assert np.median(found[:20]) < 6
    assert np.median(found[20:]) > 15


@pytest.mark.parametrize("model", ESTIMATORS, ids=str)
@pytest.mark.parametrize("inference", ["cavi", "mm"])
def test_float32_agrees_with_the_reference_in_float64(model, inference):
    settings = {**model.get_params(), "inference": inference, "max_iter": 20, "tol": 0}
    plain = type(model)(**settings | {"backend": "reference", "dtype": "float64"}).fit(small_matrix(40, 25))
    fast = type(model)(**settings | {"backend": "cpu"}).fit(small_matrix(40, 25))
    np.testing.assert_allclose(fast.objective_, plain.objective_, rtol=1e-4)


@pytest.mark.parametrize("model", ESTIMATORS, ids=str)
def test_any_number_of_threads_gives_the_same_bits(model):
    matrix = small_matrix(700, 60)
    fits = [
        type(model)(**model.get_params() | {"n_threads": n, "max_iter": 8, "tol": 0}).fit(matrix) for n in (1, 2, 4)
    ]
    assert len({fit.user_factors_.tobytes() + fit.objective_.tobytes() for fit in fits}) == 1
