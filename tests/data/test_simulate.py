"""Simulations: factors and counts follow the distributions of the model."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import nbmf
from nbmf import Interactions
from nbmf.data.simulate import draw_counts, simulate


def degrees(data: Interactions) -> tuple[np.ndarray, np.ndarray]:
    """Non-zeros of each user and of each item."""
    return np.diff(data.matrix.indptr), np.bincount(data.matrix.indices, minlength=data.n_items)


@pytest.mark.parametrize("concentration", [0.2, 1.0, 5.0, math.inf])
def test_counts_follow_the_model(concentration):
    """Many users share one row of W, so the counts of each item are independent draws from one distribution."""
    n = 20_000
    H = np.array([[0.02, 0.0], [0.3, 0.1], [0.0, 2.0], [9.0, 1.0], [0.0, 0.0]])
    W = np.tile([1.0, 0.7], (n, 1))
    counts = draw_counts(W, H, concentration, np.random.RandomState(0)).toarray()
    for y, μ in zip(counts.T, H @ W[0], strict=True):
        likelihood = scipy.stats.poisson(μ)
        if concentration != math.inf:
            likelihood = scipy.stats.nbinom(concentration, concentration / (concentration + μ))
        values = np.arange(max(int(likelihood.ppf(1 - 50 / n)), 1))  # the last class, all larger counts, expects 50
        expected = n * np.append(likelihood.pmf(values), likelihood.sf(values[-1]))
        observed = np.append(np.bincount(y, minlength=len(values))[: len(values)], np.sum(y > values[-1]))
        seen = expected > 0
        assert observed[~seen].sum() == 0
        statistic = np.sum((observed[seen] - expected[seen]) ** 2 / expected[seen])
        assert scipy.stats.chi2.sf(statistic, max(seen.sum() - 1, 1)) > 1e-3
    correlation = np.corrcoef(counts[:, :4].T)[np.triu_indices(4, 1)]
    assert np.abs(correlation).max() < 4 / math.sqrt(n)


@pytest.mark.parametrize("concentration", [0.5, math.inf])
def test_factors_follow_their_priors(concentration):
    data = simulate(
        2000, 1500, n_components=4, concentration=concentration, user_shape=0.5, item_shape=2.0, mean_count=0.3
    )
    for values, shape, rate in ((data.user_factors, 0.5, 0.5), (data.item_factors, 2.0, 2.0 * 4 / 0.3)):
        assert scipy.stats.kstest(values.ravel(), scipy.stats.gamma(shape, scale=1 / rate).cdf).pvalue > 1e-3
    μ = data.user_factors @ data.item_factors.T
    variance = μ + μ**2 / concentration
    assert abs(data.matrix.sum() - μ.sum()) < 4 * math.sqrt(variance.sum())
    y = data.matrix.toarray()
    assert np.mean((y - μ) ** 2 / variance) == pytest.approx(1, abs=0.05)


@given(st.integers(1, 30), st.integers(1, 30), st.floats(0.1, 100), st.floats(1e-3, 5), st.integers(0, 2**31))
def test_any_draw_is_sound_and_repeats(n_users, n_items, concentration, mean_count, seed):
    data, again = (
        simulate(n_users, n_items, concentration=concentration, mean_count=mean_count, seed=seed) for _ in range(2)
    )
    assert data.matrix.shape == (n_users, n_items)
    assert data.matrix.has_canonical_format
    assert (data.matrix.data > 0).all()
    assert (data.matrix != again.matrix).nnz == 0
    np.testing.assert_array_equal(data.item_factors, again.item_factors)


def test_blocks_make_one_matrix(monkeypatch):
    monkeypatch.setattr("nbmf.data.simulate.BLOCK_POINTS", 50)
    data = simulate(300, 40, mean_count=0.5)
    μ = data.user_factors @ data.item_factors.T
    assert data.matrix.shape == (300, 40)
    variance = μ + μ**2
    for axis in (0, 1):
        deviation = (data.matrix.sum(axis=axis) - μ.sum(axis)) / np.sqrt(variance.sum(axis))
        assert np.mean(deviation**2) == pytest.approx(1, abs=0.5)


def test_no_users_by_items_array_is_made():
    data = simulate(1_000_000, 100_000, n_components=2, mean_count=1e-6)  # a dense array would take 800 GB
    assert data.nnz == pytest.approx(100_000, rel=0.02)


def test_truth_follows_a_filter():
    data = simulate(100, 60, mean_count=0.3)
    kept = data.filter(min_users_per_item=20, min_items_per_user=15)
    assert 0 < kept.n_users < 100
    assert 0 < kept.n_items < 60
    np.testing.assert_array_equal(kept.user_factors, data.user_factors[kept.users])
    np.testing.assert_array_equal(kept.item_factors, data.item_factors[kept.items])
    assert kept.split().train.concentration == data.concentration


def test_the_model_finds_the_truth_again():
    data = simulate(400, 200, n_components=3, mean_count=2.0, user_shape=0.3, item_shape=0.3)
    model = nbmf.NBMF(3, concentration=1.0, user_shape=0.3, item_shape=0.3, random_state=0, max_iter=200).fit(data)
    truth, found = (
        w @ h.T for w, h in ((data.user_factors, data.item_factors), (model.user_factors_, model.item_factors_))
    )
    assert np.corrcoef(truth.ravel(), found.ravel())[0, 1] > 0.9


@pytest.mark.parametrize("concentration", [0.5, 1.0, math.inf])
def test_imitation_has_the_marginals_of_its_model(concentration):
    """Long tails on both sides, an item that most users have, a user without items and an item without users."""
    rng = np.random.RandomState(0)
    popularity = 1 / np.arange(1, 401) ** 0.8
    chance = np.minimum(rng.pareto(1.5, (800, 1)) * popularity, 0.95)
    chance[0], chance[:, 7] = 0, 0
    data = Interactions.from_matrix((rng.random_sample((800, 400)) < chance).astype(int))
    drawn = simulate(like=data, concentration=concentration)
    assert drawn.matrix.shape == (800, 400)
    assert drawn.nnz == pytest.approx(data.nnz, rel=0.03)
    for wanted, found in zip(degrees(data), degrees(drawn), strict=True):
        assert found[wanted == 0].sum() == 0
        assert scipy.stats.spearmanr(wanted, found).statistic > 0.9
        order = np.argsort(-wanted, kind="stable")
        for part in np.array_split(order, 8):  # from the most to the least active or popular
            # a tenth for binomial noise and for tastes
            assert found[part].sum() == pytest.approx(
                wanted[part].sum(), rel=0.1, abs=4 * math.sqrt(wanted[part].sum())
            )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"concentration": 0}, "concentration is 0"),
        ({"n_components": 0}, "n_components is 0"),
        ({"user_shape": -1.0}, "user_shape is -1.0"),
        ({"n_users": 0}, "0 users × 500 items"),
        ({"mean_count": 0.0}, "mean count 0.0"),
        ({"mean_count": 1e9}, r"add up to .*; at most 2,147,483,648 are drawn: ask for fewer"),
        ({"like": Interactions.from_matrix([[1]]), "n_users": 7}, "leave out n_users, n_items and mean_count"),
        ({"like": Interactions.from_matrix([[0]])}, "no non-zero count"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        simulate(**settings)


def test_a_misspelled_shape_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'users_shape'"):
        simulate(users_shape=2.0)
