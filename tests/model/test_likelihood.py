"""The likelihoods of a count, compared with SciPy and the paper's formulas, and in the limit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import literal
from nbmf.model.likelihood import NegativeBinomial, Poisson, divergence, log_probability

COUNTS = st.one_of(st.integers(0, 30), st.sampled_from([10**6, 10**9]))
INTENSITIES = st.floats(1e-3, 1e9)
CONCENTRATIONS = st.floats(0.05, 50)


@given(COUNTS, INTENSITIES, CONCENTRATIONS)
def test_negative_binomial_is_scipys(count, intensity, α):
    ours = log_probability(NegativeBinomial(α), count, intensity)
    # scipy's own difference of log-gammas of 10^9 keeps 1e-5
    assert ours == pytest.approx(stats.nbinom.logpmf(count, α, α / (α + intensity)), rel=1e-8, abs=1e-4)


@given(st.integers(0, 30), st.floats(1e-3, 100), CONCENTRATIONS)
def test_negative_binomial_is_the_papers(count, intensity, α):
    printed = literal.probability(count, α, 1 / (1 + α / intensity))
    assert np.exp(log_probability(NegativeBinomial(α), count, intensity)) == pytest.approx(printed, rel=1e-10)


@given(st.integers(0, 30), st.floats(1e-3, 100))
def test_poisson_is_scipys_and_the_limit(count, intensity):
    expected = stats.poisson.logpmf(count, intensity)
    assert log_probability(Poisson(), count, intensity) == pytest.approx(expected, rel=1e-10, abs=1e-12)
    # the difference is O((y² + μ²)/α)
    almost = log_probability(NegativeBinomial(1e10), count, intensity)
    assert almost == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert NegativeBinomial(1e10).exposure(count, intensity) == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize("law", [Poisson(), NegativeBinomial(0.3), NegativeBinomial(4.0)])
def test_exposure_is_minus_the_slope_of_the_evidence(law):
    count, intensity, step = np.array([0.0, 1, 2.5, 40])[:, None], np.array([0.1, 1, 7]), 1e-6
    slope = (law.log_evidence(count, intensity + step) - law.log_evidence(count, intensity - step)) / (2 * step)
    np.testing.assert_allclose(law.exposure(count, intensity), -slope, rtol=1e-6)


def test_variance_and_mean_are_the_papers():
    α, μ = 0.7, 3.0
    count = np.arange(4000)
    p = np.exp(log_probability(NegativeBinomial(α), count, μ))
    assert p @ count == pytest.approx(μ, rel=1e-9)
    assert p @ (count - μ) ** 2 == pytest.approx(μ * (1 + μ / α), rel=1e-9)


@given(st.integers(0, 30), st.floats(1e-2, 100), CONCENTRATIONS)
def test_divergence_is_printed_and_is_minus_the_log_likelihood(count, intensity, α):
    ours = float(divergence(α, count, intensity))
    assert ours == pytest.approx(literal.divergence(count, intensity, α), rel=1e-7, abs=1e-9)
    assert ours >= -1e-12
    law, other = NegativeBinomial(α), intensity * 1.7
    rise = log_probability(law, count, intensity) - log_probability(law, count, other)
    assert float(divergence(α, count, other)) - ours == pytest.approx(rise, rel=1e-7, abs=1e-9)


def test_divergence_tends_to_kullback_leibler():
    y, μ = np.array([0.0, 1, 5]), np.array([0.5, 3, 2])
    np.testing.assert_allclose(divergence(1e9, y, μ), divergence(np.inf, y, μ), rtol=1e-6)


@pytest.mark.parametrize("α", [0, -1, np.inf, np.nan])
def test_an_impossible_concentration_is_named(α):
    with pytest.raises(ValueError, match="concentration is"):
        NegativeBinomial(α)
