"""The likelihoods of comparison models: distributions, their slopes, their limits, and their cells."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from helpers import count_matrices
from nbmf.estimators.factorization import Factorization
from nbmf.model.comparison import PoissonExposure, RandomGraphPoisson, sum_exposures
from nbmf.model.family import ZeroInflatedPoisson
from nbmf.model.likelihood import Poisson, log_probability

LAWS = [
    RandomGraphPoisson(2.0, 3.0, 40.0),  # π = 0.3
    RandomGraphPoisson(5.0, 8.0, 40.0),  # π = 1
    PoissonExposure(0.2),
    PoissonExposure(7.0),
]


def brute_force(y, z):
    """ln Σ_a zᵃaʸ/a! over a ≥ 1 and the mean of a, by fractions of the largest term."""
    logs = [a * math.log(z) - math.lgamma(a + 1) + y * math.log(a) for a in range(1, 3000)]
    largest = max(logs)
    terms = [math.exp(one - largest) for one in logs]
    total = math.fsum(terms)
    return largest + math.log(total), math.fsum(a * term for a, term in enumerate(terms, 1)) / total


# ---- distributions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_exposure_is_the_slope_of_the_evidence(law):
    μ, step = np.array([1e-3, 0.1, 1.0, 7.0, 60.0]), 1e-5
    for count in (0.0, 1.0, 3.0, 40.0, 1000.0):
        above, below = (law.log_evidence(count, μ * (1 + sign * step)) for sign in (1, -1))
        slope, rounding = (below - above) / (2 * step * μ), 1e-15 * (1 + np.abs(above)) / (step * μ)
        assert np.all(np.abs(law.exposure(count, μ) - slope) <= 1e-6 * slope + rounding)


@pytest.mark.parametrize("μ", [0.01, 1.7, 30.0])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_probabilities_sum_to_one_and_have_the_mean_and_variance(law, μ):
    y = np.arange(3000.0)
    p = np.exp(log_probability(law, y, np.full(len(y), μ)))
    assert p.sum() == pytest.approx(1, rel=1e-9)
    assert p @ y == pytest.approx(law.mean(np.array(μ)), rel=1e-8)
    assert p @ (y - p @ y) ** 2 == pytest.approx(law.variance(np.array(μ)), rel=1e-7)
    for count in (0, 1, 5, 60):
        assert law.up_to(count, μ) == pytest.approx(p[: count + 1].sum(), rel=1e-9)
        assert law.above(count, μ) == pytest.approx(p[count + 1 :].sum(), rel=1e-8, abs=1e-14)


@pytest.mark.parametrize("law", LAWS, ids=str)
@settings(max_examples=8)
@given(count_matrices())
def test_every_sweep_ascends(law, matrix):
    """The loop itself raises if one does not."""
    for inference in ("cavi", "mm"):
        model = Factorization(2, likelihood=law, inference=inference, backend="reference", dtype="float64")
        model.set_params(max_iter=10, tol=0, random_state=0, exposure="exact").fit(matrix)
        assert np.isfinite(model.objective_).all()


@pytest.mark.parametrize("law", [RandomGraphPoisson, PoissonExposure])
@pytest.mark.parametrize("value", [0, -1.0, np.nan, np.inf, True])
def test_an_impossible_parameter_is_named(law, value):
    with pytest.raises(ValueError, match=r"(user_degree|mean_exposure) is .*; it must be positive"):
        law(value)


# ---- whole-numbered exposures ---------------------------------------------------------------------------------------


@given(st.floats(0.01, 300), st.floats(1e-12, 1e3))
def test_sums_over_exposures_are_those_of_all_terms(y, z):
    log_sum, mean = sum_exposures(np.array([y]), np.log([z]))
    expected = brute_force(y, z)
    assert log_sum[0] == pytest.approx(expected[0], rel=1e-12, abs=1e-10)
    assert mean[0] == pytest.approx(expected[1], rel=1e-9)


@given(st.integers(1, 200), st.floats(1e-3, 50), st.floats(1e-3, 5))
def test_the_mean_exposure_of_a_count_is_that_of_bayes_rule(y, Λ, μ):
    a = np.arange(1.0, 2000.0)
    weights = stats.poisson.logpmf(a, Λ) + stats.poisson.logpmf(y, a * μ)
    weights = np.exp(weights - weights.max())
    law = PoissonExposure(Λ)
    mean = weights @ a / weights.sum()
    assert law.exposure(y, μ) == pytest.approx(mean, rel=1e-8)
    assert law.exposure_sd(y, μ) ** 2 == pytest.approx(weights @ (a - mean) ** 2 / weights.sum(), rel=1e-5, abs=1e-8)


def test_the_mean_exposure_of_a_zero():
    assert PoissonExposure(3.0).exposure(0, 0.7) == pytest.approx(3 * math.exp(-0.7))
    assert PoissonExposure(3.0).exposure_sd(0, 0.7) ** 2 == pytest.approx(3 * math.exp(-0.7))  # a Poisson variable


def test_sums_of_huge_counts_agree_with_stirling():
    """With y = 10⁹ the mode a solves a·e^(−y/a) = z, and E[a] is within a standard deviation of it."""
    for log_z in (-500.0, 0.0, 10.0):
        mean = sum_exposures(np.array([1e9]), np.array([log_z]))[1][0]
        assert math.log(mean) - 1e9 / mean == pytest.approx(log_z, abs=1e-4)


def test_many_exposures_are_poissons_limit():
    """a/Λ → 1, so y ~ Poisson(Λμ) where Λ is large and μ small."""
    y = np.arange(0.0, 12.0)
    found = log_probability(PoissonExposure(1e7), y, 3e-7)
    np.testing.assert_allclose(found, log_probability(Poisson(), y, 3.0), atol=1e-5)
    assert PoissonExposure(1e7).above(4, 3e-7) == pytest.approx(Poisson().above(4, 3.0), rel=1e-5)


# ---- random graphs --------------------------------------------------------------------------------------------------

COUNTS = sp.csr_array([[3, 1, 0, 0, 0], [0, 2, 0, 1, 0], [0, 0, 0, 5, 0], [0, 0, 0, 0, 0]])


def test_probabilities_follow_from_the_degrees():
    """Users have 2, 2, 1 and 0 counts, items 1, 2, 0, 2 and 0, and there are 5; none is taken as one."""
    expected = np.minimum(1, 2 * np.outer([2, 2, 1, 1], [1, 2, 1, 2, 1]) / 5)
    law = RandomGraphPoisson.of(COUNTS)
    np.testing.assert_allclose(law.probability, expected)
    np.testing.assert_allclose(law.transposed().probability, expected.T)
    np.testing.assert_allclose(law.of_rows(np.array([2, 0])).probability, expected[[2, 0]])
    rows, columns = np.array([0, 2, 3]), np.array([4, 3, 1])
    np.testing.assert_allclose(law.at(rows, columns).probability, expected[rows, columns])


def test_new_users_and_items_have_the_typical_degree():
    law, typical = RandomGraphPoisson.of(COUNTS), 4 ** (1 / 4)  # of 2, 2, 1 and 1
    of_items = np.array([[1, 2, 1, 2, 1]])
    np.testing.assert_allclose(law.of_new_rows().probability, np.minimum(1, 2 * typical * of_items / 5))
    longer = law.extended(2, axis=0)
    np.testing.assert_allclose(longer.of_rows(slice(0, 4)).probability, law.probability)
    np.testing.assert_allclose(longer.of_rows(np.array([4])).probability, law.of_new_rows().probability)
    of_users = np.array([[2], [2], [1], [1]])
    wider = law.extended(1, axis=1)
    np.testing.assert_allclose(wider.probability[:, [5]], np.minimum(1, 2 * of_users * 4 ** (1 / 5) / 5))
    new = law.transposed().of_new_rows()
    np.testing.assert_allclose(new.probability, np.minimum(1, 2 * of_users.T * 4 ** (1 / 5) / 5))


@pytest.mark.parametrize("matrix", [np.zeros((2, 3)), np.ones((1, 1)), np.ones((3, 1)), np.ones((1, 3))])
def test_odd_data_has_probabilities_too(matrix):
    law = RandomGraphPoisson.of(sp.csr_array(matrix))
    probability = np.broadcast_to(law.probability, matrix.shape)
    assert np.all((probability > 0) & (probability <= 1))
    assert np.shape(law.at(np.zeros(2, int), np.zeros(2, int)).exposure(np.zeros(2), np.ones(2))) == (2,)


def test_it_is_the_zero_inflated_likelihood_cell_by_cell():
    law, μ = RandomGraphPoisson.of(COUNTS), np.linspace(0.01, 40, 20).reshape(4, 5)
    count = COUNTS.toarray()
    for row, column in np.argwhere(law.probability < 1):
        one, cell = ZeroInflatedPoisson(law.probability[row, column]), (row, column)
        for name in ("exposure", "exposure_sd", "log_evidence"):
            found = getattr(law, name)(count, μ)[cell]
            assert found == pytest.approx(getattr(one, name)(count[cell], μ[cell]), rel=1e-12, abs=1e-15)
        assert law.log_base(count)[cell] == pytest.approx(one.log_base(count[cell]))


def test_whoever_is_certainly_exposed_is_poisson():
    law, μ = RandomGraphPoisson(5.0, 8.0, 40.0), np.array([1e-9, 1.0, 50.0, 2000.0])
    for count in (0.0, 4.0):
        np.testing.assert_array_equal(law.exposure(count, μ), 1.0)
        np.testing.assert_allclose(law.log_evidence(count, μ), Poisson().log_evidence(count, μ))
