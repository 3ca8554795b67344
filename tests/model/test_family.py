"""The laws of the family: each is its two functions and their derivatives, a distribution, and Poisson in the limit."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from helpers import count_matrices
from nbmf.estimators.factorization import Factorization
from nbmf.model.comparison import PoissonExposure
from nbmf.model.family import BernoulliPoisson, GeometricJumps, LogarithmicJumps, RobustPoisson, ZeroInflatedPoisson
from nbmf.model.likelihood import Poisson, log_probability

LAWS = [
    LogarithmicJumps(0.3),
    LogarithmicJumps(0.97),
    GeometricJumps(0.3),
    GeometricJumps(0.97),
    BernoulliPoisson(),
    RobustPoisson(0.5),
    ZeroInflatedPoisson(0.3),
]
DISTRIBUTIONS = [law for law in LAWS if law.kind != "robust_poisson"]
COUNTS = np.array([1.0, 2, 3, 7, 40, 1000, 10**6, 10**9])[:, None]
INTENSITIES = np.array([1e-8, 1e-3, 0.3, 2.1, 50, 1e4])


def literal_geometric(y, λ, p):
    """Σ_n C(y−1, n−1) pʸ zⁿ/n! as printed, and the mean of n under its terms."""
    z, terms = (1 - p) * λ / p, []
    for n in range(1, y + 1):
        terms.append(math.comb(y - 1, n - 1) * z**n / math.factorial(n))
    total = math.fsum(terms)
    return y * math.log(p) + math.log(total), math.fsum(n * t for n, t in enumerate(terms, 1)) / total


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_events_and_exposure_are_the_slopes(law):
    counts = COUNTS if law.kind != "bernoulli_poisson" else COUNTS[:1]
    step = 1e-4
    up, down = (law.log_events(counts, INTENSITIES * np.exp(sign * step)) for sign in (1, -1))
    slope, rounding = (up - down) / (2 * step), 1e-11 * counts * (1 + np.log(counts))  # the size of what cancels
    assert np.all(np.abs(law.events(counts, INTENSITIES) - slope) <= 1e-6 * slope + rounding)
    for count in (0.0, 3.0):
        μ = np.array([0.1, 1.0, 7.0])
        slope = (law.log_evidence(count, μ + 1e-6) - law.log_evidence(count, μ - 1e-6)) / 2e-6
        np.testing.assert_allclose(law.exposure(count, μ), -slope, rtol=1e-6)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_count_has_between_one_and_as_many_events(law):
    events = law.events(COUNTS, INTENSITIES)
    assert np.all(np.isfinite(events))
    if law.kind not in ("bernoulli_poisson", "robust_poisson"):
        assert np.all(events >= 1 - 1e-12)
        assert np.all(events <= COUNTS * (1 + 1e-12))
    assert np.all(law.events(0.0, INTENSITIES) == 0)


@pytest.mark.parametrize("μ", [0.01, 1.7, 30.0])
@pytest.mark.parametrize("law", DISTRIBUTIONS, ids=str)
def test_probabilities_sum_to_one_and_have_the_mean_and_variance(law, μ):
    y = np.arange(2.0) if law.kind == "bernoulli_poisson" else np.arange(30_000.0)
    p = np.exp(log_probability(law, y, np.full(len(y), μ)))
    assert p.sum() == pytest.approx(1, rel=1e-9)
    assert p @ y == pytest.approx(law.mean(np.array(μ)), rel=1e-7)
    assert p @ (y - p @ y) ** 2 == pytest.approx(law.variance(np.array(μ)), rel=1e-6)
    for count in (0, 1, 5, 60):
        assert law.up_to(count, μ) == pytest.approx(p[: count + 1].sum(), rel=1e-8)
        assert law.above(count, μ) == pytest.approx(p[count + 1 :].sum(), rel=1e-7, abs=1e-14)


@given(st.integers(1, 60), st.floats(1e-6, 1e3), st.floats(0.02, 0.98))
def test_geometric_jumps_are_the_printed_sum(y, λ, p):
    log_sum, mean = literal_geometric(y, λ, p)
    law = GeometricJumps(p)
    assert law.log_events(y, λ) + law.log_base(y) == pytest.approx(log_sum, rel=1e-10, abs=1e-9)
    assert GeometricJumps(p).events(y, λ) == pytest.approx(mean, rel=1e-10)


@given(st.integers(0, 10**6), st.floats(1e-6, 1e6), st.floats(0.02, 0.98))
def test_logarithmic_jumps_are_scipys_negative_binomial(y, μ, θ):
    expected = stats.nbinom.logpmf(y, μ / -np.log1p(-θ), 1 - θ)
    assert log_probability(LogarithmicJumps(θ), y, μ) == pytest.approx(expected, rel=1e-8, abs=1e-6)


@given(st.integers(0, 30), st.floats(1e-3, 10))
def test_poisson_is_the_limit(y, μ):
    expected = log_probability(Poisson(), y, μ)
    for law in (LogarithmicJumps(1e-11), GeometricJumps(1e-11), ZeroInflatedPoisson(1 - 1e-12), RobustPoisson(1e8)):
        assert log_probability(law, y, μ) == pytest.approx(expected, rel=1e-5, abs=1e-5)
        assert law.events(y, μ) == pytest.approx(y, rel=1e-5)


def test_counts_become_one_event_each_where_jumps_are_heavy():
    np.testing.assert_allclose(LogarithmicJumps(1 - 1e-12).events([1, 10, 1e6], 1e-3), 1, rtol=1e-2)


@pytest.mark.parametrize("law", [LogarithmicJumps(0.9), GeometricJumps(0.6)], ids=str)
def test_a_fraction_of_a_count_has_one_event(law):
    """Otherwise ln Σ λⁿ/n! would be concave in ln λ, and sweeps could lower the objective."""
    λ = np.geomspace(1e-6, 1e6, 40)
    np.testing.assert_allclose(law.events(0.3, λ), 1, rtol=1e-9)
    np.testing.assert_allclose(np.diff(law.log_events(0.3, λ)), np.diff(np.log(λ)), rtol=1e-6)


@pytest.mark.parametrize("law", [LogarithmicJumps(), GeometricJumps()], ids=str)
def test_a_mean_jump_makes_the_parameter(law):
    means = np.array([[1 + 1e-6, 1.5, 3, 40, 1e5]])
    np.testing.assert_allclose(law.relearned(means).unit_mean, means, rtol=1e-9)
    assert isinstance(law.relearned(2.5).jump, float)
    assert law.relearned(0.0).unit_mean == pytest.approx(1)  # of data without counts


@pytest.mark.parametrize("inference", ["cavi", "mm"])
@pytest.mark.parametrize("law", LAWS, ids=str)
@settings(max_examples=8)
@given(count_matrices())
def test_every_sweep_ascends(law, inference, matrix):
    """The loop itself raises if one does not."""
    form = "binary" if law.kind == "bernoulli_poisson" else "counts"
    model = Factorization(2, likelihood=law, inference=inference, input=form, backend="reference", dtype="float64")
    model.set_params(max_iter=15, tol=0, random_state=0).fit(matrix)
    assert np.isfinite(model.objective_).all()


@pytest.mark.parametrize(
    "law", [GeometricJumps(0.5), PoissonExposure(np.array([[5000.0, 0.5, 4097, 30, 1e6]]))], ids=str
)
def test_tails_do_not_depend_on_what_else_is_asked_for(law):
    """Large intensities are sampled; small ones beside them are not."""
    μ = np.array([[5000.0, 0.5, 4097.0, 30.0, 1e6]])
    y = np.array([[10_000.0, 0.0, 8000.0, 61.0, 2e6]]) if law.kind == "geometric_jumps" else law.mean(μ).round()
    for tail in ("above", "up_to"):
        together = getattr(law, tail)(y, μ)
        for n in range(5):
            one = law.at(np.array([0]), np.array([n])) if law.varies else law
            assert getattr(one, tail)(y[:, n], μ[:, n]) == pytest.approx(together[:, n], rel=1e-12)
    np.testing.assert_allclose(law.above(y, μ) + law.up_to(y, μ), 1, rtol=1e-9)
    drawn = GeometricJumps(0.5).sample(np.random.RandomState(0), np.full(100_000, 5000.0))
    assert GeometricJumps(0.5).above(10_100, 5000.0) == pytest.approx((drawn > 10_100).mean(), abs=0.005)


@pytest.mark.parametrize("value", [0, 1, -0.5, np.nan, True])
def test_an_impossible_parameter_is_named(value):
    for law in (LogarithmicJumps, GeometricJumps, ZeroInflatedPoisson):
        with pytest.raises(ValueError, match="must be between 0 and 1"):
            law(value)
    with pytest.raises(ValueError, match="penalty is"):
        RobustPoisson(-1.0)
