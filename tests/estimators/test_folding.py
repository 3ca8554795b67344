"""Folding in: new rows get what a fit would give them."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

import nbmf
from helpers import LEARNING, MODELS, canonical, count_matrices, held, relative, small_matrix
from nbmf.backends import Given
from nbmf.backends.counts import Counts
from nbmf.backends.reference import Reference
from nbmf.estimators.fold_in import FixedSide, Steps, even_start, fold_compiled, fold_plainly, stopping_tolerance
from nbmf.model.factors import Gamma, Point
from nbmf.model.family import BernoulliPoisson, GeometricJumps, LogarithmicJumps, RobustPoisson, ZeroInflatedPoisson
from nbmf.model.likelihood import NegativeBinomial, Poisson

LAWS = [
    Poisson(),
    NegativeBinomial(0.3),
    NegativeBinomial(20.0),
    LogarithmicJumps(0.8),
    GeometricJumps(0.6),
    BernoulliPoisson(),
    RobustPoisson(0.5),
    ZeroInflatedPoisson(0.3),
]
CONVERGED = {"random_state": 0, "tol": 1e-13, "max_iter": 5000, "dtype": "float64"}


def without_empties(matrix):
    """Keep the rows and columns that have counts: with a rate per row, empty ones shrink for ever."""
    return matrix[matrix.sum(axis=1) > 0][:, matrix.sum(axis=0) > 0]


def objective(counts, factor, side):
    """The part of the objective that depends on the row."""
    data = Counts.of(counts, np.dtype(np.float64))
    found = Reference().expect(data, Given(factor, side.factor, side.likelihood, side.ties)).log_evidence
    return found - factor.divergence(side.prior) if isinstance(factor, Gamma) else found


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_row_of_the_data_gets_the_factors_of_the_fit(model):
    """The fit's last sweeps raise its objective by 1e-13 of itself, so factors are within about 1e-6 of a peak."""
    matrix = small_matrix(24, 16)
    fit = clone(model).set_params(**CONVERGED).fit(matrix)
    assert relative(fit.transform(matrix), fit.user_factors_) < 1e-5
    assert relative(fit.set_params(backend="reference").transform(matrix), fit.user_factors_) < 1e-5


@pytest.mark.parametrize("model", LEARNING, ids=str)
def test_a_row_gets_the_factors_of_a_fit_that_learns(model):
    matrix = without_empties(small_matrix(24, 16))
    fit = clone(model).set_params(**CONVERGED).fit(matrix)
    assert relative(fit.transform(matrix), fit.user_factors_) < 3e-5


def test_users_with_concentrations_of_their_own_keep_them():
    matrix = without_empties(small_matrix(24, 16))
    fit = nbmf.NBMF(3, concentration="learn_per_user", **CONVERGED).fit(matrix)
    rows = np.array([3, 7, 8])
    again = fold_compiled(canonical(matrix[rows]), fit.result_.fixed_items_for(rows), Steps(1e-13)).factor
    assert relative(again.mean, fit.user_factors_[rows]) < 1e-5
    # the concentration of a new user is not known
    assert relative(fit.transform(matrix[rows]), fit.user_factors_[rows]) > 0.01
    assert fit.add_users(matrix[:2]).concentration_.shape == (len(matrix) + 2, 1)


@pytest.mark.parametrize("model", [m for m in MODELS if getattr(m, "exposure", "") != "tied"], ids=str)
def test_a_column_of_the_data_gets_the_factors_of_the_fit(model):
    matrix = small_matrix(24, 16)
    fit = clone(model).set_params(**CONVERGED).fit(matrix)
    expected = fit.item_factors_.copy()
    fit.add_items(matrix)
    np.testing.assert_array_equal(fit.items_, np.arange(32))
    np.testing.assert_array_equal(fit.item_factors_[:16], expected)
    assert relative(fit.item_factors_[16:], expected) < 1e-5


@pytest.mark.parametrize("bayesian", [True, False])
@given(count_matrices(), st.sampled_from(LAWS), st.sampled_from([0, 1, 3]), st.booleans())
def test_compiled_and_plain_rows_agree(bayesian, matrix, law, n_clusters, own_rates):
    side = held(matrix.shape[1], law, n_clusters, bayesian=bayesian, own_rates=own_rates)
    fast = fold_compiled(canonical(matrix), side, Steps(1e-9, 40))
    plain = fold_plainly(canonical(matrix), side, Steps(1e-9, 40))
    np.testing.assert_allclose(fast.factor.mean, plain.factor.mean, rtol=1e-7, atol=1e-300)
    assert np.all(np.abs(fast.steps - plain.steps) <= 1)
    if bayesian:
        np.testing.assert_allclose(fast.factor.geometric_mean, plain.factor.geometric_mean, rtol=1e-6, atol=1e-300)
        np.testing.assert_allclose(fast.factor.rate, plain.factor.rate, rtol=1e-7)


def test_concentrations_of_rows_and_columns():
    matrix, rng = canonical(small_matrix()), np.random.default_rng(3)
    for shape, n_clusters in (((30, 1), 0), ((30, 1), 4), ((1, 20), 0)):
        side = held(20, NegativeBinomial(rng.gamma(1, 1, shape) + 0.1), n_clusters)
        fast, plain = (fold(matrix, side, Steps(0, 20)) for fold in (fold_compiled, fold_plainly))
        np.testing.assert_allclose(fast.factor.mean, plain.factor.mean, rtol=1e-9)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_unknown_cells_are_as_if_the_item_were_not_there(law):
    matrix = small_matrix()
    side = held(20, law, 0)
    unknown = np.zeros((30, 20), bool)
    unknown[:, 4:9] = True
    left_out = Counts.of(canonical(matrix), np.dtype(float), sp.csr_array(unknown)).by_user
    kept = ~unknown[0]
    rest = Gamma(side.factor.mean[kept], side.factor.geometric_mean[kept], *list(vars(side.factor).values())[2:])
    fewer = fold_compiled(canonical(matrix[:, kept]), FixedSide(rest, law, side.prior, None), Steps(1e-10))
    np.testing.assert_allclose(fold_compiled(left_out, side, Steps(1e-10)).factor.mean, fewer.factor.mean, rtol=1e-7)
    np.testing.assert_allclose(fold_plainly(left_out, side, Steps(1e-10)).factor.mean, fewer.factor.mean, rtol=1e-7)


@pytest.mark.parametrize("bayesian", [True, False])
@pytest.mark.parametrize("n_clusters", [0, 3])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_every_step_raises_the_rows_objective(law, n_clusters, bayesian):
    matrix = canonical(small_matrix(8, 20)[[0, 3, 5]])  # an empty row and a user who took everything among them
    side = held(20, law, n_clusters, bayesian=bayesian)
    found = [objective(matrix, fold_compiled(matrix, side, Steps(0, n)).factor, side) for n in (*range(1, 12), 50, 300)]
    assert np.all(np.diff(found) >= -1e-12 * np.abs(found[:-1]))
    assert found[-1] > found[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_clusters", [0, 3])
def test_rows_are_folded_in_one_by_one(n_clusters, dtype):
    """The same bits for any number of threads, whatever other rows are folded in with them, every time."""
    matrix = canonical(small_matrix(300, 20))
    side = held(20, NegativeBinomial(1.0), n_clusters, dtype=dtype)
    one, two, four = (fold_compiled(matrix, side, Steps(1e-5), n_threads=n).factor for n in (1, 2, 4))
    assert one.mean.dtype == np.dtype(dtype)
    assert one.mean.tobytes() == two.mean.tobytes() == four.mean.tobytes()
    alone = fold_compiled(sp.csr_array(matrix[[77]]), side, Steps(1e-5)).factor
    assert alone.mean.tobytes() == one.mean[[77]].tobytes()
    assert alone.geometric_mean.tobytes() == one.geometric_mean[[77]].tobytes()


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_float32_agrees_with_float64(model):
    matrix = small_matrix()
    fit = clone(model).set_params(random_state=0, dtype="float64", tol=1e-6, max_iter=60).fit(matrix)
    W, H = fit.user_factors_.copy(), fit.item_factors_.copy()
    same = clone(fit).set_params(dtype="float32", init=(W + 1e-30, H + 1e-30), max_iter=1, tol=1e-6).fit(matrix)
    again = clone(same).set_params(dtype="float64").fit(matrix)
    found, expected = same.transform(matrix), again.transform(matrix)
    assert found.dtype == np.float32
    assert relative(found, expected) < 2e-3  # the effect of rounding the items' factors and of stopping at 1e-6


def test_a_row_without_counts_has_the_prior_shape():
    """Nothing is allocated to it, but its unseen cells still carry information, as in a fit."""
    fit = nbmf.NBMF(3, user_shape=0.8, random_state=0, dtype="float64").fit(small_matrix())
    fit.add_users(np.zeros((1, 20)))
    np.testing.assert_allclose(fit.user_posterior_.shape[-1], 0.8, rtol=1e-12)
    assert np.all(fit.user_posterior_.rate[-1] > fit.user_posterior_.prior_rate)
    likely = nbmf.NBMF(3, inference="mm", random_state=0).fit(small_matrix())
    assert not likely.transform(np.zeros((1, 20))).any()


def test_the_start_expects_the_total():
    matrix, side = canonical(small_matrix()), held(20, Poisson(), 0)
    expected = np.maximum(matrix.sum(axis=1), 1)
    np.testing.assert_allclose((even_start(matrix, side) @ side.factor.mean.T).sum(axis=1), expected)


def test_rows_are_stacked_and_put():
    side = [held(5, Poisson(), 0, seed=n).factor for n in (0, 1)]
    both = side[0].append(side[1])
    np.testing.assert_array_equal(both.mean, np.concatenate([factor.mean for factor in side]))
    assert both.exposed.shape == both.mean.shape
    back = both.replace_rows(np.arange(5, 10), side[0])
    np.testing.assert_array_equal(back.geometric_mean[5:], side[0].geometric_mean)
    np.testing.assert_array_equal(back.geometric_mean[:5], side[0].geometric_mean)
    np.testing.assert_array_equal(both.geometric_mean[5:], side[1].geometric_mean)
    assert Point(np.ones((1, 2))).append(Point(np.zeros((2, 2)))).mean.tolist() == [[1, 1], [0, 0], [0, 0]]


def test_items_are_matched_by_their_ids():
    data = nbmf.Interactions.from_matrix(small_matrix(), items=[f"item {n:02}" for n in range(20)])
    model = nbmf.NBMF(3, random_state=0).fit(data)
    order = np.random.default_rng(0).permutation(20)[:12]
    some = nbmf.Interactions.from_matrix(small_matrix()[:4, order], users=list("abcd"), items=data.items[order])
    whole = np.zeros((4, 20), int)
    whole[:, order] = small_matrix()[:4, order]
    np.testing.assert_array_equal(model.transform(some), model.transform(whole))
    more = nbmf.Interactions.from_matrix([[5, 7, 1]], items=["item 03", "item 77", "item 78"])
    with pytest.raises(KeyError, match=r"item 'item 77' was not in .* unknown_items='ignore'"):
        model.transform(more)
    with pytest.warns(UserWarning, match=r"2 items were not in .* 'item 77' among them: 2 of 3 counts"):
        found = model.transform(more, unknown_items="ignore")
    np.testing.assert_array_equal(found, model.transform(np.eye(20)[[3]] * 5))
    frame = pd.DataFrame(small_matrix(), columns=data.items)
    named = nbmf.NBMF(3, random_state=0).fit(frame)
    np.testing.assert_array_equal(named.transform(frame), model.transform(frame.to_numpy()))
    with pytest.raises(ValueError, match="feature names"):
        named.transform(frame[frame.columns[::-1]])


@pytest.mark.parametrize("tol", [0, 1, np.float32(1e-3), np.inf])
def test_any_tolerance_is_a_plain_float(tol):
    """Loops are compiled for each type they meet, which takes many seconds: nobody should wait for that at tol=1."""
    assert type(stopping_tolerance(tol, np.dtype(np.float32))) is float
