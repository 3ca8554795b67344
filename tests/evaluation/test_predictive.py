"""Probabilities of held-out counts, against the laws of scipy cell by cell."""

import numpy as np
import pytest
from scipy.stats import nbinom

import nbmf
from helpers import count_distribution, small_matrix
from nbmf.evaluation import calibration, log_likelihood


def halves(seed=0):
    """Train and test of a small matrix with an empty user, one who took everything, and one cell in both."""
    matrix, rng = small_matrix(40, 25), np.random.default_rng(seed)
    held_out = rng.random(matrix.shape) < 0.3
    held_out[5] = False
    train, test = np.where(held_out, 0, matrix), np.where(held_out, matrix, 0)
    train[5] = 1
    test[7, 0], train[7, 0] = 4, 2
    return train, test, rng.gamma(1, 1, (40, 3)), rng.gamma(1, 1, (25, 3))


@pytest.mark.parametrize("α", [0.3, 1.0, 40.0, np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_likelihood_is_the_mean_over_the_cells_outside_train(α, dtype):
    train, test, W, H = halves()
    W, H = W.astype(dtype), H.astype(dtype)
    found = log_likelihood((W, H), train, test, concentration=α, n_boot=50)
    intensity = W.astype(np.float64) @ H.astype(np.float64).T
    cells = np.where(train > 0, np.nan, count_distribution(α, intensity).logpmf(test))
    rel = 1e-10 if dtype == np.float64 else 1e-7  # BLAS may sum products of single precision in any order
    assert found.mean == pytest.approx(np.nanmean(cells), rel=rel)
    known = [user for user in range(40) if (train[user] == 0).any()]
    np.testing.assert_allclose(found.per_user[known], np.nanmean(cells[known], axis=1), rtol=10 * rel)
    assert np.isnan(found.per_user[5])
    assert found.n_users == 39
    assert found.interval[0] < found.mean < found.interval[1]


@pytest.mark.parametrize("shape", [(40, 1), (1, 25)])
def test_concentrations_of_users_and_of_items(shape):
    train, test, W, H = halves()
    α = np.random.default_rng(4).gamma(1.0, 1.0, shape) + 0.1
    outside = train == 0
    of_cells = nbinom(α, α / (α + W @ H.T))
    found = log_likelihood((W, H), train, test, concentration=α, n_boot=5)
    assert found.mean == pytest.approx(of_cells.logpmf(test)[outside].mean(), rel=1e-10)
    table = calibration((W, H), train, test, n_max=3, concentration=α)
    for count in range(4):
        assert table.predicted[count] == pytest.approx(of_cells.pmf(count)[outside].mean(), rel=1e-10)


def test_huge_intensities_have_finite_logarithms():
    W, H = np.array([[1e200], [1e-9]]), np.ones((9, 1))
    found = log_likelihood((W, H), np.zeros((2, 9)), np.zeros((2, 9)), concentration=0.5)
    np.testing.assert_allclose(found.per_user, -0.5 * np.log1p([2e200, 2e-9]), rtol=1e-12)


def test_log_likelihood_of_fitted_models():
    train, test, _, _ = halves()
    train[7, 0] = 0
    for model in (nbmf.NBMF(3, concentration=0.5), nbmf.PoissonMF(3), nbmf.PoissonMF(3, binarize=True)):
        fit = model.set_params(random_state=0, max_iter=20, dtype="float64").fit(train)
        μ = fit.user_factors_ @ fit.item_factors_.T
        judged = np.minimum(test, 1) if getattr(model, "binarize", False) else test
        expected = count_distribution(fit.concentration_, μ).logpmf(judged)[train == 0].mean()
        assert log_likelihood(fit, train, test, n_boot=5).mean == pytest.approx(expected, rel=1e-10)


def test_an_impossible_count_is_infinitely_unlikely():
    found = log_likelihood(([[1.0], [0.0]], [[1.0]]), [[0], [0]], [[1], [1]], concentration=1.0)
    assert found.mean == -np.inf
    assert found.per_user.tolist() == [np.log(1 / 4), -np.inf]
    assert np.isnan(found.interval).all()


@pytest.mark.parametrize("α", [0.3, 1.0, np.inf])
def test_calibration_is_the_mean_of_the_probabilities(α):
    train, test, W, H = halves()
    W[2] *= 400  # intensities for which e^−μ is 0
    table = calibration((W, H), train, test, n_max=6, concentration=α)
    outside = train == 0
    predicted = [count_distribution(α, W @ H.T).pmf(n)[outside].mean() for n in range(7)]
    np.testing.assert_allclose(table.predicted[:-1], predicted, rtol=1e-10)
    np.testing.assert_allclose(table.predicted[-1], count_distribution(α, W @ H.T).sf(6)[outside].mean(), rtol=1e-9)
    observed = [(test[outside] == n).mean() for n in range(7)] + [(test[outside] > 6).mean()]
    np.testing.assert_allclose(table.observed, observed, rtol=1e-12)
    taken = test[outside & (test > 0)]
    np.testing.assert_allclose(table.observed_if_taken[1:-1], [(taken == n).mean() for n in range(1, 7)], rtol=1e-12)
    np.testing.assert_allclose(table.predicted_if_taken[1:], table.predicted[1:] / table.predicted[1:].sum())
    assert table.labels == ("0", "1", "2", "3", "4", "5", "6", "> 6")
    assert (table.n_users, table.n_cells) == (40, outside.sum())


def test_counts_drawn_from_the_law_are_calibrated():
    rng = np.random.default_rng(0)
    W, H = rng.gamma(1, 1, (300, 4)), rng.gamma(1, 1, (200, 4))
    drawn = rng.poisson(rng.gamma(0.7, 1 / 0.7, (300, 200)) * (W @ H.T))
    table = calibration((W, H), np.zeros_like(drawn), drawn, concentration=0.7)
    sd = np.sqrt(table.predicted * (1 - table.predicted) / table.n_cells)
    assert np.all(np.abs(table.observed - table.predicted) < 4 * sd)
    wrong = calibration((W, H), np.zeros_like(drawn), drawn, concentration=np.inf)
    assert np.any(np.abs(wrong.observed - wrong.predicted) > 40 * sd)


def test_a_sample_of_users_stands_for_all():
    train, test, W, H = halves()
    table = calibration((W, H), train, test, concentration=1.0, max_cells=250, seed=3)
    rows = np.sort(np.random.RandomState(3).choice(40, 10, replace=False))
    part = calibration((W[rows], H), train[rows], test[rows], concentration=1.0)
    assert table.rows()[1:] == part.rows()[1:]
    assert (table.n_users, table.n_cells) == (10, (train[rows] == 0).sum())
    assert f"{table.n_cells:,} cells of 10 users" in repr(table)
    assert table.to_pandas()["count"].tolist() == list(table.labels)


def test_same_bits_for_one_and_three_threads():
    rng = np.random.default_rng(0)
    W, H = (rng.gamma(1, 1, (n, 4)).astype(np.float32) for n in (400, 300))
    train, test = (rng.random((400, 300)) < share for share in (0.1, 0.02))
    one, three = (
        (
            log_likelihood((W, H), train, test, concentration=1.0, n_threads=n, n_boot=5).per_user.tobytes(),
            calibration((W, H), train, test, concentration=1.0, n_threads=n).predicted.tobytes(),
        )
        for n in (1, 3)
    )
    assert one == three


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda W, H, y: log_likelihood((W, H), y, y), TypeError, "has no concentration_"),
        (lambda W, H, y: log_likelihood((-W, H), y, y, concentration=1.0), ValueError, "the model has the score -1"),
        (lambda W, H, y: calibration((W, H), y, y, 0, concentration=1.0), ValueError, "n_max is 0"),
        (lambda W, H, y: calibration((W, H), y * 0, y / 2, concentration=1.0), ValueError, "count 0.5; only whole"),
        (lambda W, H, y: calibration((W, H), y, y * 0, concentration=1.0), ValueError, "every cell is in train"),
    ],
)
def test_bad_questions_are_named(ask, error, message):
    with pytest.raises(error, match=message):
        ask(np.ones((2, 1)), np.ones((3, 1)), np.ones((2, 3)))
