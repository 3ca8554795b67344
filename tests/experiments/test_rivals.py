"""Models compared, one by one: what each adaptor fits, and the settings that are drawn for it."""

import math
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import nbmf
from nbmf.cli.options import COMPARED
from nbmf.experiments.contest import Contest
from nbmf.experiments.rivals import RIVALS, Popularity, check_installed, ease_weights, fit_ease, taken
from nbmf.experiments.search import Between, OneOf, trial_settings
from small_contest import planted


@pytest.fixture(scope="module")
def parts():
    return planted()


# the models ----------------------------------------------------------------------------------------------------------

SMALL = {
    "knn": {"neighbors": 10},
    "ease": {"penalty": 20.0},
    "als": {"factors": 4, "regularization": 1.0},
    "bpr": {"factors": 8, "learning_rate": 0.05},
    "hpf": {"components": 4, "iterations": 50},
    "kl-nmf": {"components": 4},
    "poisson": {"n_components": 4},
    "binary": {"n_components": 4},
    "nbmf": {"n_components": 4},
    "averaged": {"n_components": 4, "max_iter": 50},
    "nbslim": {"penalty": 1.0},
}


@pytest.mark.parametrize("name", SMALL)
def test_every_model_finds_what_was_planted(parts, name):
    rival = RIVALS[name]
    if rival.package:
        pytest.importorskip(rival.package, reason=f"{rival.package} comes with the extra 'bench'")
    train, test = parts
    model = rival.fit(train, 0, 1, **{**rival.defaults, **SMALL[name]})
    baseline = nbmf.evaluate(Popularity(train), train, test)
    found = nbmf.compare({name: nbmf.evaluate(model, train, test), "popularity": baseline}, baseline="popularity")
    assert found[name].difference_interval[0] > 0.1


def test_the_names_that_can_be_typed_are_those_of_the_models():
    assert set(COMPARED) == set(RIVALS) == {*SMALL, "popularity"}


def test_popularity_counts_users_not_counts():
    train = nbmf.Interactions.from_matrix([[9, 1, 0], [0, 1, 0]])
    assert RIVALS["popularity"].fit(train, 0, 1).score_items(np.array([1])).tolist() == [[1, 2, 0]]


@pytest.mark.parametrize("form", ["counts", "log1p", "binary"])
def test_ease_is_where_its_objective_is_flat(parts, form):
    """Off the diagonal the gradient of ‖X − XB‖² + λ‖B‖² is 0; the diagonal itself is 0."""
    λ = 30.0
    X = taken(parts.train, form)
    B = ease_weights(X, λ).astype(np.float64)
    G = (X.T @ X).toarray().astype(np.float64)
    gradient = G @ B - G + λ * B
    assert np.all(np.diag(B) == 0)
    np.fill_diagonal(gradient, 0)
    assert np.abs(gradient).max() < 1e-5 * G.max()  # single precision
    scores = fit_ease(parts.train, 0, 1, penalty=λ, input=form).score_items(np.array([3, 5]))
    np.testing.assert_allclose(scores, X.toarray()[[3, 5]] @ B, rtol=1e-4, atol=1e-5)


def test_forms_of_the_counts():
    train = nbmf.Interactions.from_matrix([[3, 0], [0, 1]])
    for form, expected in (("counts", 3.0), ("log1p", math.log(4)), ("binary", 1.0)):
        assert taken(train, form)[0, 0] == pytest.approx(expected)
    with pytest.raises(ValueError, match="input is 'sqrt'; it must be one of 'counts', 'log1p', 'binary'"):
        taken(train, "sqrt")


def test_neighbours_score_as_their_package_does(parts):
    package = pytest.importorskip("implicit.nearest_neighbours", reason="implicit comes with the extra 'bench'")
    ours = RIVALS["knn"].fit(parts.train, 0, 1, neighbors=7, weighting="cosine", input="log1p")
    theirs, inputs = package.CosineRecommender(K=7, num_threads=1), sp.csr_matrix(taken(parts.train, "log1p"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.fit(inputs, show_progress=False)
    items, scores = theirs.recommend(4, inputs[4].astype(np.float64), N=5, filter_already_liked_items=False)
    np.testing.assert_allclose(np.sort(ours.score_items(np.array([4]))[0])[::-1][:5], scores, rtol=1e-5)
    np.testing.assert_allclose(ours.score_items(np.array([4]))[0, items], scores, rtol=1e-5)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("nbmf.experiments.rivals.find_spec", lambda name: None)
    check_installed("ease")
    with pytest.raises(
        ModuleNotFoundError, match=r"the model als needs the package implicit: pip install 'nbmf\[bench\]'"
    ):
        Contest(("ease", "als"))


# settings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIVALS)
def test_settings_are_drawn_from_their_ranges(name):
    rival = RIVALS[name]
    drawn = trial_settings(rival.defaults, rival.space, 40, seed=3)
    assert drawn[0] == rival.defaults
    assert set(rival.space) <= set(rival.defaults)
    assert len(drawn) == (40 if rival.space else 1)
    assert drawn == trial_settings(rival.defaults, rival.space, 40, seed=3)
    assert drawn[:12] == trial_settings(rival.defaults, rival.space, 12, seed=3)  # more can be added later
    for setting, where in rival.space.items():
        values = [settings[setting] for settings in drawn[1:]]
        if isinstance(where, OneOf):
            assert set(values) == set(where.values)
        else:
            assert all(where.low <= value <= where.high for value in values)
            assert min(values) < where.low * (where.high / where.low) ** 0.15  # to both ends of the range
            assert max(values) > where.low * (where.high / where.low) ** 0.85
            assert not where.whole or all(isinstance(value, int) for value in values)
    if rival.space:
        assert drawn != trial_settings(rival.defaults, rival.space, 40, seed=4)


def test_draws_fill_a_range_more_evenly_than_chance():
    """Of n points two neighbours are never further apart than 4/n of any range; independent ones often are."""
    n = 12
    space = {name: Between(1, math.e) for name in "abcd"}
    for seed in range(5):
        drawn = trial_settings(dict.fromkeys(space, 1.0), space, n + 1, seed)[1:]
        for name in space:
            shares = np.sort([0.0, *(math.log(settings[name]) for settings in drawn), 1.0])
            assert np.diff(shares).max() < 4 / n
