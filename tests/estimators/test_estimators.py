"""The estimators as a user meets them."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

import nbmf
from helpers import count_matrices, small_matrix
from nbmf.inference.run import run
from nbmf.model.factors import Point

MODELS = [
    nbmf.NBMF(4, exposure="exact"),
    nbmf.NBMF(4, exposure="tied", n_clusters=5),
    nbmf.NBMF(4, inference="mm", accelerate=True),
    nbmf.PoissonMF(4),
    nbmf.PoissonMF(4, binarize=True, accelerate=True),
]


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_float32_threads_agree_with_float64_reference(model):
    matrix = small_matrix(80, 60)
    # whether an extrapolation is accepted can hang on rounding, after which the runs diverge
    fast = clone(model).set_params(random_state=3, max_iter=40, tol=0, accelerate=False).fit(matrix)
    plain = clone(fast).set_params(backend="reference", dtype="float64").fit(matrix)
    np.testing.assert_allclose(fast.objective_, plain.objective_, rtol=1e-4)
    assert fast.user_factors_.dtype == np.float32
    assert fast.components_.shape == (4, 60)
    assert fast.n_iter_ == len(fast.objective_) == 40
    assert not fast.converged_


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_same_bits_for_one_two_and_four_threads(model, dtype):
    matrix = np.random.default_rng(0).poisson(0.3, (900, 300))
    fits = [
        clone(model).set_params(n_threads=n, dtype=dtype, random_state=1, max_iter=12, tol=0).fit(matrix)
        for n in (1, 2, 4)
    ]
    for other in fits[1:]:
        assert other.user_factors_.tobytes() == fits[0].user_factors_.tobytes()
        assert other.item_factors_.tobytes() == fits[0].item_factors_.tobytes()
        assert list(other.objective_) == list(fits[0].objective_)


def test_every_kind_of_input_is_the_same_matrix():
    matrix = small_matrix()
    inputs = [
        nbmf.Interactions.from_matrix(matrix),
        matrix,
        matrix.astype(float),
        sp.csr_matrix(matrix),
        sp.coo_array(matrix),
        sp.csc_array(matrix),
        pd.DataFrame(matrix, columns=[f"item {n}" for n in range(20)]),
    ]
    fits = [nbmf.NBMF(3, random_state=0, max_iter=5).fit(X) for X in inputs]
    for fit in fits[1:]:
        np.testing.assert_array_equal(fit.user_factors_, fits[0].user_factors_)


def test_input_is_left_alone():
    twice = sp.csr_array((np.array([1.0, 2.0, 0.0]), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 2))
    model = nbmf.NBMF(1, random_state=0, max_iter=3).fit(twice)
    assert twice.nnz == 3
    same = nbmf.NBMF(1, random_state=0, max_iter=3).fit(np.array([[0.0, 3.0], [0.0, 0.0]]))
    np.testing.assert_array_equal(model.user_factors_, same.user_factors_)


def test_binarized_is_poisson_of_ones():
    matrix = small_matrix()
    binary = nbmf.PoissonMF(3, binarize=True, random_state=0).fit(matrix)
    ones = nbmf.PoissonMF(3, random_state=0).fit(matrix > 0)
    np.testing.assert_array_equal(binary.item_factors_, ones.item_factors_)


def test_given_start_is_the_random_one():
    matrix, rng = small_matrix(), np.random.RandomState(7)
    W, H = rng.gamma(1, 1, (30, 3)), rng.gamma(1, 1, (20, 3))
    given_start = nbmf.NBMF(3, init=(W, H), max_iter=4).fit(matrix)
    np.testing.assert_array_equal(
        given_start.user_factors_, nbmf.NBMF(3, random_state=7, max_iter=4).fit(matrix).user_factors_
    )


def test_auto_exposure_follows_its_rule():
    dense, sparse = sp.random_array((300, 200), density=0.1), sp.random_array((3000, 2000), density=0.01)
    fits = [nbmf.NBMF(2, max_iter=1, random_state=0).fit(X) for X in (dense, sparse)]
    assert [fit.exposure_ for fit in fits] == ["exact", "tied"]
    assert nbmf.NBMF(2, max_iter=1, exposure="exact").fit(sparse).exposure_ == "exact"


@given(count_matrices(), st.integers(1, 9), st.sampled_from(MODELS))
def test_any_counts_fit(matrix, n_components, model):
    fit = clone(model).set_params(n_components=n_components, max_iter=15, tol=0, random_state=0).fit(matrix)
    for values in (fit.user_factors_, fit.item_factors_, fit.objective_):
        assert np.isfinite(values).all()
    assert (fit.user_factors_ >= 0).all()
    assert (fit.item_factors_ >= 0).all()


def test_real_values_fit():
    matrix = np.random.default_rng(0).gamma(0.5, 1, (20, 10))
    assert np.all(np.diff(nbmf.NBMF(2, random_state=0, dtype="float64").fit(matrix).objective_) > 0)


@pytest.mark.parametrize(
    ("settings", "X", "message"),
    [
        ({}, [[1.0, np.nan]], "NaN: count nan at row 0, column 1"),
        ({}, [[1.0, np.inf]], "infinity"),
        ({}, sp.csr_array([[0, 1], [-4, 0]]), "Negative values in data: count -4 at row 1, column 0"),
        ({}, np.empty((0, 3)), "0 sample"),
        ({}, nbmf.Interactions.from_matrix([[1, 2]]).filter(), "0 users and 0 items"),
        ({}, [[1e39, 1.0]], r"count 1e\+39 is out of the range of float32; .*float64"),
        ({}, [[1e-50, 1.0]], "count 1e-50 is out of the range"),
        ({}, pd.DataFrame({"user": [1], "item": [2], "count": [3]}), "read_interactions"),
        ({"n_threads": 0}, [[1]], "n_threads is 0"),
        ({"concentration": "1"}, [[1]], "concentration is '1'"),
        ({"concentration": 1e40}, [[1]], "concentration is 1e"),
        ({"user_shape": "a"}, [[1]], "user_shape is 'a'"),
        ({"dtype": "foo"}, [[1]], "dtype is 'foo'"),
        ({"init": None}, [[1]], "init is None"),
        ({"n_components": 0}, [[1]], "n_components is 0"),
        ({"max_iter": 1.5}, [[1]], "max_iter is 1.5"),
        ({"tol": -1}, [[1]], "tol is -1"),
        ({"concentration": 0}, [[1]], "concentration is 0"),
        ({"user_shape": -1}, [[1]], "user_shape is -1"),
        ({"inference": "magic"}, [[1]], "inference is 'magic'; it must be 'cavi' or 'mm'"),
        ({"exposure": "none"}, [[1]], "exposure is 'none'"),
        ({"n_clusters": 0}, [[1]], "n_clusters is 0"),
        ({"backend": "gpu9"}, [[1]], "backend is 'gpu9'"),
        ({"dtype": "int8"}, [[1]], "dtype is 'int8'"),
        ({"init": "best"}, [[1]], "init is 'best'"),
        ({"n_components": True}, [[1]], "n_components is True"),
        ({"tol": 10**400}, [[1]], "tol is 1000"),
        ({"accelerate": "no"}, [[1]], "accelerate is 'no'; it must be True or False"),
        ({"random_state": -1}, [[1]], "random_state is -1; it must be None, a whole number from 0"),
        ({"init": (np.ones((1, 3)), np.ones((2, 1)))}, [[1, 2]], r"W0 has shape \(1, 3\)"),
        ({"n_components": 1, "init": (np.ones((1, 1)), np.zeros((1, 1)))}, [[1]], "H0 must be positive"),
    ],
)
def test_bad_settings_and_input_are_named(settings, X, message):
    with pytest.raises(ValueError, match=message):
        nbmf.NBMF(**settings).fit(X)


def fitted(model=None):
    users = np.array([f"user {n}" for n in range(30)])
    data = nbmf.Interactions.from_matrix(small_matrix(), users=users, items=np.arange(100, 120))
    return (model or nbmf.NBMF(3, random_state=0, max_iter=30)).fit(data), data


def test_a_failed_fit_changes_nothing():
    model, data = fitted()
    before = model.predict(data.users, data.items[0])
    with pytest.raises(ValueError, match="W0 has shape"):
        model.set_params(init=(np.ones((2, 2)), np.ones((2, 2)))).fit(data.filter(1, 1))
    np.testing.assert_array_equal(model.predict(data.users, data.items[0]), before)
    with pytest.raises(ValueError, match="not fitted yet"):
        clone(model).predict(0, 0)


def test_column_names_are_the_items_ids():
    frame = pd.DataFrame(small_matrix(), columns=[f"item {n}" for n in range(20)])
    assert nbmf.NBMF(2, max_iter=2).fit(frame).recommend(3, n=1).items[0, 0].startswith("item ")


def test_many_items_that_nobody_took():
    """Many items are alike, so some clusters stay empty; nobody is told."""
    matrix = np.zeros((30, 100), int)
    matrix[:, :5] = small_matrix(30, 5)
    for inference in ("cavi", "mm"):
        fit = nbmf.NBMF(3, exposure="tied", n_clusters=20, inference=inference, random_state=0, max_iter=20).fit(matrix)
        assert np.isfinite(fit.objective_).all()


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda m: m.predict([["user 1"]], 100), ValueError, "got an array of shape"),
        (lambda m: m.predict(["user 1", "user 2"], [100, 101, 102]), ValueError, "2 users and 3 items"),
        (lambda m: m.exposures(["user 1", "user 2"]), ValueError, "one user; got 2"),
        (lambda m: m.recommend(3), KeyError, "user 3 was not in the data"),
        (lambda m: m.recommend("user 1", n=0), ValueError, "n is 0"),
    ],
)
def test_bad_questions_are_named(ask, error, message):
    with pytest.raises(error, match=message):
        ask(fitted()[0])


def test_predict_is_the_score():
    model, data = fitted()
    score = model.user_factors_ @ model.item_factors_.T
    np.testing.assert_allclose(model.predict(data.users[[4, 7]], data.items[[1, 3]]), score[[4, 7], [1, 3]], rtol=1e-6)
    np.testing.assert_allclose(model.predict("user 4", data.items), score[4], rtol=1e-6)
    with pytest.raises(KeyError, match="item 7 was not in the data"):
        model.predict("user 1", 7)


def test_recommend_ranks_what_was_not_seen():
    model, data = fitted()
    found = model.recommend(data.users, n=6)
    score = model.user_factors_ @ model.item_factors_.T
    score[data.matrix.nonzero()] = -np.inf
    for row in range(30):
        left = np.isfinite(score[row]).sum()
        best = np.argsort(-score[row], kind="stable")[: min(6, left)]
        assert list(found.items[row, : len(best)]) == list(data.items[best])
        assert all(item is None for item in found.items[row, len(best) :])
    everything = model.recommend("user 5", n=99, exclude_seen=False)
    assert sorted(everything.items[0]) == list(data.items)
    assert list(everything.scores[0]) == sorted(everything.scores[0], reverse=True)


def test_equal_scores_keep_the_order_of_the_items():
    model, _ = fitted()
    model._become(replace(model.result_, item_posterior=Point(np.ones_like(model.item_factors_))))
    assert list(model.recommend("user 1", n=4, exclude_seen=False).items[0]) == [100, 101, 102, 103]


def test_exposures_are_the_posterior_of_a():
    model, _ = fitted(nbmf.NBMF(3, concentration=0.5, random_state=0, max_iter=30))
    found = model.exposures("user 5")
    assert len(found.item) == 19
    assert list(found.count) == sorted(found.count, reverse=True)
    μ = model.predict("user 5", found.item)
    np.testing.assert_allclose(found.exposure, (0.5 + found.count) / (0.5 + μ), rtol=1e-6)
    np.testing.assert_allclose(found.sd, np.sqrt(0.5 + found.count) / (0.5 + μ), rtol=1e-6)
    poisson, _ = fitted(nbmf.PoissonMF(3, random_state=0, max_iter=30))
    assert set(poisson.exposures("user 5").exposure) == {1.0}
    assert set(poisson.exposures("user 5").sd) == {0.0}


def test_an_interrupted_fit_is_a_fit(monkeypatch):
    def interrupted(*args, watch, **settings):
        def stop(snapshot):
            watch(snapshot)
            if snapshot.sweep == 4:
                raise KeyboardInterrupt

        return run(*args, watch=stop, **settings)

    monkeypatch.setattr("nbmf.estimators.factorize.run", interrupted)
    with pytest.warns(UserWarning, match="the model is that of sweep 4"):
        model = nbmf.NBMF(3, random_state=0).fit(small_matrix())
    assert model.n_iter_ == 4
    assert not model.converged_
    monkeypatch.undo()
    whole = nbmf.NBMF(3, random_state=0, max_iter=4).fit(small_matrix())
    np.testing.assert_array_equal(model.user_factors_, whole.user_factors_)


def test_verbose_writes_plain_lines_where_nobody_watches(capfd):
    nbmf.NBMF(2, random_state=0, max_iter=3, verbose=True).fit(small_matrix())
    out, err = capfd.readouterr()
    assert out == ""
    assert "NBMF: sweep 3 of at most 3, objective -" in err
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nbmf.NBMF(2, random_state=0, max_iter=3, tol=0).fit(small_matrix())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("exposure", ["exact", "tied"])
@pytest.mark.parametrize("estimator", [nbmf.NBMF, nbmf.PoissonMF])
def test_what_is_unknown_has_no_say(estimator, exposure):
    """The counts of unknown cells do not change the fit; taking them for zeros would."""
    matrix, unknown = small_matrix(), np.random.default_rng(2).random((30, 20)) < 0.3
    settings = {"exposure": exposure, "n_clusters": 4} if estimator is nbmf.NBMF else {}

    def fit(counts, mask):
        model = estimator(3, max_iter=15, dtype="float64", random_state=0, **settings)
        return model.fit(counts, unknown=mask).user_factors_

    found = fit(matrix, unknown)
    np.testing.assert_array_equal(found, fit(np.where(unknown, 77, matrix), sp.csr_array(unknown)))
    assert not np.allclose(found, fit(np.where(unknown, 0, matrix), None), rtol=1e-3)


def test_unknown_cells_of_other_data_are_named():
    data = nbmf.Interactions.from_arrays(["ann", "bob"], ["jazz", "folk"])
    with pytest.raises(ValueError, match=r"shape \(1, 2\)"):
        nbmf.NBMF(1).fit(data, unknown=[[1, 0]])
    other = nbmf.Interactions.from_arrays(["ann", "cy"], ["jazz", "folk"])
    with pytest.raises(ValueError, match="user number 1 is 'bob' in the counts and 'cy' in unknown"):
        nbmf.NBMF(1).fit(data, unknown=other)


@pytest.mark.parametrize(
    ("concentration", "shape"), [("learn", ()), ("learn_per_user", (30, 1)), ("learn_per_item", (1, 20))]
)
def test_a_learned_concentration_serves_every_method(concentration, shape):
    model = nbmf.NBMF(3, concentration=concentration, rates="per_row", shapes="learn", max_iter=20, random_state=0)
    matrix = small_matrix()
    model.fit(matrix)
    assert np.shape(model.concentration_) == shape
    exposures = model.exposures(3)
    α = np.broadcast_to(model.concentration_, (30, 20))[3, exposures.item]
    np.testing.assert_allclose(exposures.exposure, (α + exposures.count) / (α + exposures.intensity), rtol=1e-6)
    np.testing.assert_allclose(exposures.sd, exposures.exposure / np.sqrt(α + exposures.count), rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"concentration": "lern"}, "'learn_per_item'"),
        ({"concentration": "learn_per_item", "exposure": "tied"}, "exposure='exact'"),
        ({"rates": "row"}, "'per_row'"),
        ({"shapes": "free"}, "'learn'"),
        ({"rates": "per_row", "inference": "mm"}, "no priors"),
    ],
)
def test_bad_learning_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        nbmf.NBMF(2, **settings).fit(small_matrix())


@pytest.mark.parametrize(("given", "way_out"), [("plays.tsv", "read_interactions"), ({"jazz": 1}, "recommend_for")])
def test_what_is_no_matrix_is_told_where_it_belongs(given, way_out):
    with pytest.raises(TypeError, match=way_out):
        nbmf.NBMF(1).fit(given)


def test_a_fit_that_fails_leaves_the_earlier_one():
    pd = pytest.importorskip("pandas")
    model = nbmf.NBMF(2, max_iter=5, random_state=0).fit(pd.DataFrame(np.eye(3), columns=list("abc")))
    with pytest.raises(ValueError, match="init"):
        model.set_params(init="bad").fit(pd.DataFrame(np.ones((4, 2)), columns=list("pq")))
    assert (model.n_features_in_, list(model.feature_names_in_)) == (3, list("abc"))
    model.set_params(init="random").fit(np.ones((4, 2)))
    assert not hasattr(model, "feature_names_in_")


def test_unknown_counts_are_held_out_for_score():
    train, test = nbmf.datasets.simulate(60, 40, n_components=3, mean_count=0.5, seed=0).split(seed=0)
    whole = nbmf.Interactions.from_matrix(train.matrix + test.matrix)
    hidden, absent = (nbmf.NBMF(3, random_state=0).fit(data, unknown=test) for data in (whole, train))
    assert hidden.score(test) == pytest.approx(absent.score(test), rel=1e-12)


def test_counts_of_unknown_cells_are_not_added_in_silence():
    data = nbmf.Interactions.from_arrays([0, 0, 1], [0, 1, 1], [2, 3, 4])
    model = nbmf.NBMF(1, random_state=0).fit(data, unknown=[[0, 1], [0, 0]])
    with pytest.raises(ValueError, match="unknown"):
        model.partial_fit(nbmf.Interactions.from_arrays([0], [1], [50]))


@pytest.mark.parametrize("concentration", [1e4, 1e6, 1e8])
def test_large_concentrations_do_not_fall(concentration):
    """Σ α ln(1 + μ/α) keeps its digits, so long runs rise to the end; exact exposures, double precision."""
    data = nbmf.datasets.simulate(80, 60, n_components=3, seed=0)
    settings = {"concentration": concentration, "exposure": "exact", "dtype": "float64", "tol": 0, "max_iter": 700}
    objective = nbmf.NBMF(3, random_state=0, **settings).fit(data).objective_
    assert len(objective) == 700
    rounding = 32 * np.finfo(float).eps * abs(objective[-1])  # of the sum over 4,800 cells
    assert np.diff(objective).min() >= -rounding
    assert objective[-1] > objective[0]


def test_single_precision_holds_for_large_counts():
    """The objective in float32 agrees with float64 even with a count of 10^6."""
    rng = np.random.default_rng(0)
    matrix = rng.poisson(rng.gamma(0.1, 30.0, (60, 30)))
    matrix[3, 4] = 1_000_000
    init = tuple(rng.gamma(1.0, 1.0, (n, 5)) for n in matrix.shape)
    single, double = (
        nbmf.NBMF(5, init=init, dtype=dtype, tol=0, max_iter=40).fit(matrix).objective_[-1]
        for dtype in ("float32", "float64")
    )
    assert single == pytest.approx(double, rel=1e-4)


def test_a_subclass_may_have_settings_of_its_own():
    class Mine(nbmf.NBMF):
        def __init__(self, n_components=2, extra=1):
            super().__init__(n_components, max_iter=3, random_state=0)
            self.extra = extra

    assert Mine(extra=5).fit(small_matrix()).n_iter_ == 3
    assert Mine(extra=5).get_params()["extra"] == 5


def test_one_user_is_one_user():
    model = nbmf.NBMF(2, max_iter=3, random_state=0).fit(small_matrix())
    two = small_matrix()[:2]
    with pytest.raises(ValueError, match="explain_for takes one user; got 2"):
        model.explain_for(two, 0)
    with pytest.raises(ValueError, match="predictive_for takes one user; got 2"):
        model.predictive_for(two, 0)
    for method in (model.transform, model.add_users, model.score):
        with pytest.raises(TypeError, match="a mapping is not a matrix"):
            method({0: 1})


def test_a_misspelled_keyword_of_fit_is_named():
    with pytest.raises(TypeError, match=r"fit\(\) got an unexpected keyword argument 'callback'"):
        nbmf.NBMF(2).fit(small_matrix(), callback=[])
