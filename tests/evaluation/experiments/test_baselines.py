"""Models compared, one by one: what each adaptor fits, and the settings that are drawn for it."""

import math
import warnings
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp

import nbmf
from nbmf.cli.options import COMPARED
from nbmf.evaluation.experiments.alternatives import Popularity, ease_weights, fit_ease, in_form
from nbmf.evaluation.experiments.baselines import BASELINES, check_installed
from nbmf.evaluation.experiments.tuned import TunedComparison, trial_settings
from small_study import planted


@pytest.fixture(scope="module")
def parts():
    return planted()


# the models ----------------------------------------------------------------------------------------------------------

SMALL = {
    "knn": {"neighbors": 10},
    "ease": {"penalty": 20.0},
    "edlae": {"penalty": 20.0, "dropout": 0.3},
    "slim": {"l1": 1.0, "l2": 10.0},
    "rp3beta": {"neighbors": 20},
    "als": {"factors": 4, "regularization": 1.0},
    "ials": {"factors": 4},
    "bpr": {"factors": 8, "learning_rate": 0.05},
    "hpf": {"components": 4, "iterations": 50},
    "kl-nmf": {"components": 4},
    "poisson": {"n_components": 4},
    "binary": {"n_components": 4},
    "nbmf": {"n_components": 4},
    "compound": {"n_components": 4},
    "compound-geometric": {"n_components": 4},
    "zero-inflated": {"n_components": 4, "probability": 0.9},
    "robust": {"n_components": 4},
    "bernoulli": {"n_components": 4},
    "averaged": {"n_components": 4, "max_iter": 50},
    "nbslim": {"penalty": 1.0},
    "nbfism": {"n_components": 8, "penalty": 1.0},
    "blend": {"n_components": 8, "penalty": 1.0},
}


@pytest.mark.parametrize("name", SMALL)
def test_every_model_finds_what_was_planted(parts, name):
    model = BASELINES[name]
    if model.package:
        pytest.importorskip(model.package, reason=f"{model.package} comes with the extra 'bench'")
    train, test = parts
    fitted = model.fit(train, 0, 1, **{**model.defaults, **SMALL[name]})
    baseline = nbmf.evaluate(Popularity(train), train, test)
    found = nbmf.compare({name: nbmf.evaluate(fitted, train, test), "popularity": baseline}, baseline="popularity")
    assert found[name].difference_interval[0] > 0.1


def test_the_names_that_can_be_typed_are_those_of_the_models():
    assert set(COMPARED) == set(BASELINES) == {*SMALL, "popularity"}


def test_popularity_counts_users_not_counts():
    train = nbmf.Interactions.from_matrix([[9, 1, 0], [0, 1, 0]])
    assert BASELINES["popularity"].fit(train, 0, 1).score_items(np.array([1])).tolist() == [[1, 2, 0]]


@pytest.mark.parametrize("form", ["counts", "log1p", "binary"])
def test_ease_is_where_its_objective_is_flat(parts, form):
    """Off the diagonal the gradient of ‖X − XB‖² + λ‖B‖² is 0; the diagonal itself is 0."""
    λ = 30.0
    X = in_form(parts.train, form)
    B = ease_weights(X, λ).astype(np.float64)
    G = (X.T @ X).toarray().astype(np.float64)
    gradient = G @ B - G + λ * B
    assert np.all(np.diag(B) == 0)
    np.fill_diagonal(gradient, 0)
    assert np.abs(gradient).max() < 1e-5 * G.max()  # single precision
    scores = fit_ease(parts.train, 0, 1, penalty=λ, input=form).score_items(np.array([3, 5]))
    np.testing.assert_allclose(scores, X.toarray()[[3, 5]] @ B, rtol=1e-4, atol=1e-5)


def every_mask(n):
    """Every way to keep some of n inputs, True for those kept."""
    return np.array(list(product([False, True], repeat=n)))


def test_edlae_is_the_best_prediction_over_all_dropouts(parts):
    """The least squares of EDLAE's paper with every mask: each input is predicted when it is itself dropped."""
    p, λ = 0.3, 5.0
    train = nbmf.Interactions.from_matrix(parts.train.matrix.toarray()[:20, :5])
    X = train.matrix.toarray().astype(np.float64)
    B = np.zeros((5, 5))
    masks = every_mask(4)
    chances = np.prod(np.where(masks, 1 - p, p), axis=1)
    for i in range(5):
        others = np.delete(np.arange(5), i)
        gram, target = λ * (1 - p) ** 2 * np.eye(4), np.zeros(4)  # weights are for kept inputs: B/(1 − p)
        for mask, chance in zip(masks, chances, strict=True):
            kept = X[:, others] * mask
            gram += chance * kept.T @ kept
            target += chance * kept.T @ X[:, i]
        B[others, i] = (1 - p) * np.linalg.solve(gram, target)
    np.testing.assert_allclose(ease_weights(in_form(train, "counts"), λ, p), B, rtol=1e-4, atol=1e-6)
    ours = BASELINES["edlae"].fit(train, 0, 1, penalty=λ, dropout=p, input="counts")
    np.testing.assert_allclose(ours.score_items(np.arange(20)), X @ B, rtol=1e-4, atol=1e-5)


def test_edlae_is_that_of_its_package(parts):
    package = pytest.importorskip("irspack", reason="irspack comes with the extra 'bench'")
    inputs = in_form(parts.train, "log1p")
    theirs = package.EDLAERecommender(sp.csr_matrix(inputs), reg=30.0, dropout_p=0.4).learn()
    np.testing.assert_allclose(ease_weights(inputs, 30.0, 0.4), theirs.W, rtol=1e-3, atol=1e-5)


def test_slim_is_where_its_objective_is_flat_or_at_its_bound(parts):
    """½‖x_i − Xw‖² + l1 Σw + ½ l2 Σw², w ≥ 0, w_i = 0: its gradient is 0 at positive weights and positive at 0."""
    pytest.importorskip("fastslim", reason="fastslim comes with the extra 'bench'")
    l1, l2 = 2.0, 5.0
    model = BASELINES["slim"].fit(parts.train, 0, 1, l1=l1, l2=l2, iterations=1000, input="log1p")
    X, W = in_form(parts.train, "log1p").toarray().astype(np.float64), model.weights.toarray()
    gradient = X.T @ (X @ W - X) + l1 + l2 * W
    free = ~np.eye(len(W), dtype=bool)
    assert np.all(W >= 0)
    assert np.all(np.diag(W) == 0)
    assert 0.05 < np.mean(W > 0) < 0.9
    assert np.abs(gradient[W > 0]).max() < 0.05  # it stops when no weight moves by 1e-4
    assert gradient[free].min() > -0.05


def test_rp3beta_walks_from_item_to_user_to_item(parts):
    pytest.importorskip("irspack", reason="irspack comes with the extra 'bench'")
    alpha, beta = 0.7, 0.4
    ours = BASELINES["rp3beta"].fit(parts.train, 0, 1, neighbors=60, alpha=alpha, beta=beta, input="counts")
    X = parts.train.matrix.toarray().astype(np.float64)
    expected = np.zeros((X.shape[1], X.shape[1]))
    steps = np.where(X > 0, X**alpha, 0)
    for i, j in np.ndindex(expected.shape):
        for u in np.flatnonzero(steps[:, i] * steps[:, j]):
            expected[i, j] += steps[u, i] / steps[:, i].sum() * steps[u, j] / steps[u].sum()
        expected[i, j] /= max(X[:, j].sum(), 1) ** beta
    np.testing.assert_allclose(ours.weights.toarray(), expected, rtol=1e-5, atol=1e-9)


def test_ials_is_where_its_loss_is_least_in_the_users(parts):
    """After many sweeps each user solves the least squares of fit_ials, whose penalty grows with activity."""
    pytest.importorskip("irspack", reason="irspack comes with the extra 'bench'")
    α0, λ = 0.3, 0.01
    W, H = BASELINES["ials"].fit(parts.train, 0, 1, factors=3, alpha0=α0, reg=λ, iterations=300, input="log1p")
    Y = in_form(parts.train, "log1p").toarray().astype(np.float64)
    for u in range(5):
        weight = λ * (np.count_nonzero(Y[u]) + α0 * len(H))
        gram = (H.T * (Y[u] + α0)) @ H + weight * np.eye(3)
        np.testing.assert_allclose(W[u], np.linalg.solve(gram, H.T @ Y[u]), rtol=0.02, atol=0.01)


def test_forms_of_the_counts():
    train = nbmf.Interactions.from_matrix([[3, 0], [0, 1]])
    for form, expected in (("counts", 3.0), ("log1p", math.log(4)), ("binary", 1.0)):
        assert in_form(train, form)[0, 0] == pytest.approx(expected)
    with pytest.raises(ValueError, match="input is 'sqrt'; it must be one of 'counts', 'log1p', 'binary'"):
        in_form(train, "sqrt")


def test_neighbours_score_as_their_package_does(parts):
    package = pytest.importorskip("implicit.nearest_neighbours", reason="implicit comes with the extra 'bench'")
    ours = BASELINES["knn"].fit(parts.train, 0, 1, neighbors=7, weighting="cosine", input="log1p")
    theirs, inputs = package.CosineRecommender(K=7, num_threads=1), sp.csr_matrix(in_form(parts.train, "log1p"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.fit(inputs, show_progress=False)
    items, scores = theirs.recommend(4, inputs[4].astype(np.float64), N=5, filter_already_liked_items=False)
    np.testing.assert_allclose(np.sort(ours.score_items(np.array([4]))[0])[::-1][:5], scores, rtol=1e-5)
    np.testing.assert_allclose(ours.score_items(np.array([4]))[0, items], scores, rtol=1e-5)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("nbmf.evaluation.experiments.baselines.find_spec", lambda name: None)
    check_installed("ease")
    with pytest.raises(ModuleNotFoundError, match=r"the model als needs the package implicit; in a clone of nbmf, run"):
        TunedComparison(("ease", "als"))


# settings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BASELINES)
def test_settings_are_drawn_from_their_ranges(name):
    model = BASELINES[name]
    drawn = trial_settings(model.defaults, model.space, 40, seed=3)
    assert drawn[0] == model.defaults
    assert set(model.space) <= set(model.defaults)
    assert len(drawn) == (40 if model.space else 1)
    assert drawn == trial_settings(model.defaults, model.space, 40, seed=3)
    assert drawn[:12] == trial_settings(model.defaults, model.space, 12, seed=3)  # more can be added later
    for setting, where in model.space.items():
        values = [settings[setting] for settings in drawn[1:]]
        if isinstance(where[0], str):
            assert set(values) == set(where)
        else:
            low, high = where
            assert all(low <= value <= high for value in values)
            assert min(values) < low * (high / low) ** 0.15  # to both ends of the range
            assert max(values) > low * (high / low) ** 0.85
            assert {type(value) for value in values} == {type(low)}
    if model.space:
        assert drawn != trial_settings(model.defaults, model.space, 40, seed=4)


def test_draws_fill_a_range_more_evenly_than_chance():
    """Of n points two neighbours are never further apart than 4/n of any range; independent ones often are."""
    n = 12
    space = dict.fromkeys("abcd", (1.0, math.e))
    for seed in range(5):
        drawn = trial_settings(dict.fromkeys(space, 1.0), space, n + 1, seed)[1:]
        for name in space:
            shares = np.sort([0.0, *(math.log(settings[name]) for settings in drawn), 1.0])
            assert np.diff(shares).max() < 4 / n
