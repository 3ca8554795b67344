"""Learned hyper-parameters: each update reaches the optimum it claims, and the objective still never falls."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import digamma

from helpers import count_matrices, small_matrix
from nbmf.backends import Sums
from nbmf.backends.counts import Counts
from nbmf.backends.cpu.passes import Cpu
from nbmf.backends.reference import Reference
from nbmf.data.datasets import simulate
from nbmf.inference.cavi import CAVI, with_priors
from nbmf.inference.hyperparameters import Learned
from nbmf.inference.mm import MM
from nbmf.inference.run import Until, begin, run
from nbmf.model import Model
from nbmf.model.factors import Prior
from nbmf.model.likelihood import NegativeBinomial
from nbmf.model.ties import Ties

PRIORS = Prior(0.6, 1.3), Prior(1.7, 0.4)
EVERYTHING = Learned(likelihood="all", rates=True, shapes=True)


def fit(matrix, algorithm, n_components=3, backend=None, ties=None, max_iter=25, seed=0):
    rng = np.random.RandomState(seed)
    counts = Counts.of(sp.csr_array(matrix), np.dtype(np.float64))
    W, H = (rng.gamma(1.0, 1.0, (n, n_components)) for n in matrix.shape)
    model = Model(NegativeBinomial(1.0), Prior(1.0, 1.0), Prior(1.0, 1.0))
    backend = backend or Cpu(1)
    state = begin(model, counts, backend, W, H, ties)
    return run(algorithm, state, counts, backend, Until(max_iter, 0))  # raises if the objective falls


@pytest.mark.parametrize("backend", [Reference(), Cpu(2)], ids=str)
@pytest.mark.parametrize(
    ("algorithm", "n_clusters"),
    [
        (CAVI(EVERYTHING), None),
        (CAVI(EVERYTHING), 4),
        (CAVI(Learned(likelihood="user")), None),
        (CAVI(Learned(likelihood="user", rates=True)), 4),
        (CAVI(Learned(likelihood="item", shapes=True)), None),
        (MM(Learned(likelihood="all")), None),
        (MM(Learned(likelihood="user")), 4),
        (MM(Learned(likelihood="item")), None),
    ],
    ids=str,
)
def test_a_run_that_learns_never_falls(algorithm, n_clusters, backend):
    matrix = small_matrix()
    ties = Ties(np.arange(matrix.shape[1], dtype=np.int32) % n_clusters, n_clusters) if n_clusters else None
    found = fit(matrix, algorithm, backend=backend, ties=ties)
    learned = found.state.model.likelihood.concentration
    group = algorithm.learned.likelihood
    assert np.shape(learned) == {"all": (), "user": (len(matrix), 1), "item": (1, matrix.shape[1])}[group]
    assert np.all(np.asarray(learned) != 1.0)


@given(count_matrices(), st.sampled_from(["all", "user", "item"]), st.booleans(), st.booleans())
def test_learning_survives_any_counts(matrix, group, rates, shapes):
    found = fit(matrix, CAVI(Learned(group, rates, shapes)), n_components=2, max_iter=6)
    assert np.isfinite(found.state.objective)
    assert np.all(np.isfinite(found.state.users.mean))
    assert np.all(found.state.users.mean >= 0)


@pytest.mark.parametrize("algorithm", [CAVI(Learned("all")), MM(Learned("all"))], ids=str)
@pytest.mark.parametrize("concentration", [0.3, 3.0])
def test_the_concentration_of_simulated_counts_is_found(algorithm, concentration):
    """Within a third: 60,000 cells of mean 2 determine it well, but the factors absorb some of the dispersion."""
    data = simulate(300, 200, n_components=2, concentration=concentration, mean_count=2.0, seed=5)
    found = fit(data.matrix, algorithm, n_components=2, max_iter=80)
    assert found.state.model.likelihood.concentration == pytest.approx(concentration, rel=1 / 3)


def test_concentrations_of_users_tell_bursty_from_steady_ones():
    parts = [simulate(100, 150, n_components=1, concentration=α, mean_count=2.0, seed=6).matrix for α in (0.2, 20.0)]
    found = fit(sp.vstack(parts), CAVI(Learned("user")), n_components=2, max_iter=60)
    bursty, steady = np.split(found.state.model.likelihood.concentration.ravel(), 2)
    assert np.median(bursty) < 0.5 < np.median(steady)
    assert np.mean(bursty[:, None] < steady) > 0.95


def posteriors(seed=3):
    rng = np.random.default_rng(seed)
    return [
        Reference().conditional(prior, Sums(*(rng.gamma(1.0, 2.0, (n, 4)) for _ in range(2))))
        for n, prior in zip((9, 7), PRIORS, strict=True)
    ]


@pytest.mark.parametrize("rates", [False, True])
def test_learned_priors_are_the_best_for_the_factors(rates):
    """No other shape, and no other rate where it is learned, makes the ELBO's prior terms larger."""
    users, items = posteriors()
    model = Model(NegativeBinomial(1.0), *PRIORS)
    learned = with_priors(model, users, items, Learned(rates=rates))
    for factor, prior in ((items, learned.item_prior), *([(users, learned.user_prior)] if rates else [])):
        for factor_of in (0.97, 1.03):
            worse = (
                np.asarray(prior.rate, float) * np.where(np.arange(np.size(prior.rate)) == 0, factor_of, 1.0)[:, None]
            )
            other = replace(prior, rate=worse if rates else prior.rate * factor_of)
            assert factor.divergence(other) > factor.divergence(prior)
    shaped = with_priors(model, users, items, Learned(rates=rates, shapes=True))
    for factor, prior in ((users, shaped.user_prior), (items, shaped.item_prior)):
        expected = np.mean(np.log(prior.rate)) + factor.row_logs.sum() / factor.mean.size
        assert digamma(prior.shape) == pytest.approx(expected, rel=1e-10, abs=1e-12)
        for factor_of in (0.97, 1.03):
            assert factor.divergence(replace(prior, shape=prior.shape * factor_of)) > factor.divergence(prior)


def test_rates_of_rows_are_those_of_hierarchical_poisson_factorization():
    users, items = posteriors()
    learned = with_priors(Model(NegativeBinomial(1.0), *PRIORS), users, items, Learned(rates=True))
    np.testing.assert_allclose(learned.user_prior.rate[:, 0], 0.6 * 4 / users.mean.sum(axis=1))
    np.testing.assert_allclose(learned.item_prior.rate[:, 0], 1.7 * 4 / items.mean.sum(axis=1))


@pytest.mark.parametrize("backend", [Reference(), Cpu(2)], ids=str)
def test_a_rate_for_each_row_enters_the_posterior(backend):
    rng = np.random.default_rng(1)
    rate, sums = rng.gamma(1.0, 1.0, (9, 1)), Sums(*(rng.gamma(1.0, 2.0, (9, 4)) for _ in range(2)))
    found = backend.conditional(Prior(0.7, rate), sums)
    for row in range(9):
        alone = backend.conditional(Prior(0.7, rate[row, 0]), Sums(*(values[[row]] for values in sums)))
        np.testing.assert_allclose(found.mean[[row]], alone.mean, rtol=1e-12)
        np.testing.assert_allclose(found.rate[[row]], alone.rate, rtol=1e-12)
