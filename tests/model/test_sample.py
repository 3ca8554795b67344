"""Draws from a likelihood have its mean, its variance and its probabilities."""

import numpy as np
import pytest

from nbmf.model.family import BernoulliPoisson, GeometricJumps, LogarithmicJumps, RobustPoisson, ZeroInflatedPoisson
from nbmf.model.likelihood import KINDS, NegativeBinomial, Poisson, log_probability

LAWS = [
    Poisson(),
    NegativeBinomial(0.2),
    NegativeBinomial(5.0),
    LogarithmicJumps(0.3),
    LogarithmicJumps(0.9),
    GeometricJumps(0.3),
    GeometricJumps(0.9),
    BernoulliPoisson(),
    ZeroInflatedPoisson(0.3),
]
PER_USER = [
    NegativeBinomial(np.array([[0.2], [5.0]])),
    LogarithmicJumps(np.array([[0.3], [0.9]])),
    GeometricJumps(np.array([[0.3], [0.9]])),
    ZeroInflatedPoisson(np.array([[0.3], [0.8]])),
]
N = 200_000
FAR = 5  # standard errors; at a fixed seed this is passed or not for good


def drawn(law, μ):
    return law.sample(np.random.RandomState(3), np.full(N, μ))


@pytest.mark.parametrize("μ", [0.05, 1.7, 40.0])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_draws_have_the_mean_the_variance_and_the_zeros(law, μ):
    y, mean, variance = drawn(law, μ), law.mean(np.array(μ)), law.variance(np.array(μ))
    assert y.dtype.kind == "i"
    assert y.min() >= 0
    assert abs(y.mean() - mean) < FAR * np.sqrt(variance / N)
    squares = (y - mean) ** 2
    assert abs(squares.mean() - variance) < FAR * squares.std() / np.sqrt(N) + 1 / N
    zeros = law.up_to(0, μ)
    assert abs((y == 0).mean() - zeros) < FAR * np.sqrt(zeros * (1 - zeros) / N) + 1 / N


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_each_count_is_as_frequent_as_probable(law):
    counts = np.arange(2.0 if law.kind == "bernoulli_poisson" else 12.0)
    p = np.exp(log_probability(law, counts, np.full(len(counts), 1.7)))
    frequency = np.array([(drawn(law, 1.7) == count).mean() for count in counts])
    np.testing.assert_array_less(np.abs(frequency - p), FAR * np.sqrt(p * (1 - p) / N))


@pytest.mark.parametrize("law", PER_USER, ids=lambda law: law.kind)
def test_parameters_of_users_are_spread_over_the_cells_as_in_the_mean(law):
    μ = np.broadcast_to(np.array([0.5, 3.0]).repeat(50_000), (2, 100_000))
    y, mean = law.sample(np.random.RandomState(0), μ), law.mean(μ)
    assert y.shape == mean.shape == μ.shape
    groups = (np.array([cells.reshape(4, -1) for cells in each]) for each in (y, mean, law.variance(μ)))
    y, mean, variance = (each.mean(axis=-1) for each in groups)
    np.testing.assert_array_less(np.abs(y - mean), FAR * np.sqrt(variance / 25_000))
    assert law.transposed().sample(np.random.RandomState(0), μ.T).shape == μ.T.shape


def test_an_intensity_of_zero_draws_zeros():
    for law in LAWS:
        assert not law.sample(np.random.RandomState(0), np.zeros(100)).any()


def test_the_same_seed_draws_the_same():
    for law in LAWS:
        np.testing.assert_array_equal(drawn(law, 1.7), drawn(law, 1.7))


def test_a_profile_likelihood_has_no_draws_and_says_so():
    with pytest.raises(ValueError, match="'robust_poisson' does not define its draws"):
        RobustPoisson().sample(np.random.RandomState(0), np.ones(3))
    ours = {kind for kind, law in KINDS.items() if law.__module__ in ("nbmf.model.likelihood", "nbmf.model.family")}
    assert len(ours) == 7
    assert {kind for kind in ours if not KINDS[kind].has_draws} == {"robust_poisson"}
