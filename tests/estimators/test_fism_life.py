"""NBFISM from its settings to its files: new users and items, more counts, checkpoints, callbacks, odd data."""

import re
import warnings
from copy import copy

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import literal
import nbmf
from helpers import small_matrix
from nbmf.data.interactions import FORMS
from nbmf.estimators import fism
from nbmf.estimators.encoder_fit import EncoderFit
from nbmf.inference.encoder import EncoderMM

PLAIN = {"n_starts": 2, "max_iter": 15, "tol": 0, "dtype": "float64", "random_state": 0}
POISSON = nbmf.NBFISM(3, penalty=1.0, **PLAIN)
NEGATIVE_BINOMIAL = nbmf.NBFISM(3, likelihood="negative_binomial", target="counts", penalty=0.5, n_clusters=4, **PLAIN)
MODELS = {"poisson": POISSON, "exact": NEGATIVE_BINOMIAL, "tied": NEGATIVE_BINOMIAL}
MATRIX = small_matrix()


def data(matrix=MATRIX, first=0):
    return nbmf.Interactions.from_matrix(matrix, [f"u{n + first}" for n in range(len(matrix))])


@pytest.fixture(params=MODELS)
def estimator(request, monkeypatch):
    if request.param == "tied":
        monkeypatch.setattr(fism, "CHEAP_CELLS", 0)
    return clone(MODELS[request.param])


def blocks(n_users=120, n_items=24, seed=0):
    """Four groups of users, each with items of its own."""
    rng = np.random.default_rng(seed)
    same = np.arange(n_users)[:, None] % 4 == np.arange(n_items)[None, :] % 4
    return rng.poisson(np.where(same, 1.5, 0.05))


# ---- new users and more counts --------------------------------------------------------------------------------------


def test_a_new_user_with_the_counts_of_an_old_one_is_that_one(estimator):
    model = estimator.fit(data())
    np.testing.assert_allclose(model.transform(MATRIX), model.user_factors_, rtol=1e-13)
    for user in (5, 8):
        basket = {item: int(MATRIX[user, item]) for item in np.flatnonzero(MATRIX[user]).tolist()}
        for options in ({}, {"exclude_seen": False}):
            new, old = model.recommend_for(basket, 6, **options), model.recommend(f"u{user}", 6, **options)
            assert new.items.tolist() == old.items.tolist()
            np.testing.assert_allclose(new.scores, old.scores, rtol=1e-12)
    V = model.encoder_.copy()
    model.add_users(data(MATRIX[5:9], first=100))
    np.testing.assert_array_equal(model.encoder_, V)
    np.testing.assert_allclose(model.user_factors_[-4:], model.user_factors_[5:9], rtol=1e-13)
    np.testing.assert_allclose(model.predict("u100", model.items_), model.predict("u5", model.items_), rtol=1e-12)


def test_more_counts_are_added_up_and_encoded(estimator):
    model, more = estimator.fit(data()), small_matrix(12, 20, seed=5)
    V, H = model.encoder_.copy(), model.item_factors_.copy()
    model.partial_fit(data(more, first=25))
    total = np.vstack((MATRIX, np.zeros((7, 20), int)))
    total[25:] += more
    assert model.users_.tolist() == [f"u{n}" for n in range(37)]
    np.testing.assert_array_equal(model.encoder_, V)
    np.testing.assert_array_equal(model.item_factors_, H)
    np.testing.assert_array_equal(model.result_.counts.toarray(), total)
    np.testing.assert_allclose(model.user_factors_, model.transform(total), rtol=1e-13)


def test_what_new_users_have_is_scored_once(monkeypatch):
    """However many blocks their scores are walked in."""
    model, rows = clone(POISSON).set_params(n_threads=1).fit(data()), small_matrix(700, 20, seed=3)
    asked, seen = [], EncoderFit.seen
    monkeypatch.setattr(EncoderFit, "seen", lambda fit, *given: asked.append(given) or seen(fit, *given))
    found = model.recommend_for(rows, 20, exclude_seen=False)
    assert len(asked) == 1
    alone = model.recommend_for(rows[:1], 20, exclude_seen=False)
    np.testing.assert_allclose(found.scores[:1], alone.scores, rtol=1e-12)


def test_a_new_item_is_fitted_to_the_end(estimator):
    """`tol` is relative to the objective of all items, of which one item moves a small part."""
    matrix, ending = blocks(200, 80), {"max_iter": 200, "tol": 2e-4, "n_starts": 1}
    model = estimator.set_params(**ending).fit(data(matrix[:, :-1]))
    whole = [copy(model).set_params(tol=tol).add_items(new_item(matrix)) for tol in (2e-4, 0)]
    stopped, run_on = (each.predict(whole[0].users_, np.repeat(whole[0].items_[-1:], 200)) for each in whole)
    assert np.abs(stopped - run_on).max() < 0.05 * run_on.max()


def new_item(matrix):
    return nbmf.Interactions.from_matrix(matrix[:, -1:], data(matrix).users, [99])


def test_new_items_come_with_users_of_the_fit():
    model = clone(POISSON).fit(data())
    counts = nbmf.Interactions.from_arrays(["u3", "nobody"], [99, 99], [1, 2])
    with pytest.raises(KeyError, match="user 'nobody' was not in the data of the fit"):
        model.add_items(counts)
    assert (model.users_.size, model.items_.size) == (30, 20)


def test_ctrl_c_while_new_items_are_fitted_leaves_the_model_as_it_was(monkeypatch):
    model, more = clone(POISSON).fit(data()), blocks(30, 24)
    before, n_steps, step = model.result_, [], EncoderMM.step

    def interrupted(self, *given):
        n_steps.append(1)
        if len(n_steps) == 3:
            raise KeyboardInterrupt
        return step(self, *given)

    monkeypatch.setattr(EncoderMM, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(data(more), refresh=3)
    assert model.result_ is before
    assert len(n_steps) == 3


def test_an_item_nobody_has_says_nothing():
    """Even without a penalty, which would let its random start stay."""
    matrix = small_matrix().copy()
    matrix[:, 4] = 0
    model = clone(POISSON).set_params(penalty=0.0).fit(data(matrix))
    assert not model.encoder_[4].any()
    np.testing.assert_array_equal(model.recommend_for({4: 5}, 19).scores[0, :5], model.recommend_for({}, 5).scores[0])


def test_a_refresh_ascends_from_where_the_model_is(estimator):
    model, more = estimator.set_params(n_starts=1).fit(data()), small_matrix(12, 20, seed=5)
    sides = model.encoder_.copy(), model.item_factors_[:, :-1].copy(), model.item_factors_[:, -1].copy()
    model.partial_fit(data(more, first=18), refresh=6)
    total = MATRIX.copy()
    total[18:] += more
    forms = (np.where(total > 0, FORMS[form](total.astype(float)), 0) for form in (model.input, model.target))
    α = np.inf if model.likelihood == "poisson" else model.concentration
    before = literal.encoder_objective(*forms, *sides, α, model.penalty)
    assert model.n_iter_ == 6
    if model.result_.exposure != "tied":  # whose objective is a bound below this
        assert model.objective_[0] > before
    assert (np.diff(model.objective_) > 0).all()
    assert (model.encoder_ != sides[0]).any()


def test_a_copy_of_an_item_is_its_most_similar_one():
    counts = blocks()
    for settings in ({}, {"likelihood": "negative_binomial", "target": "counts"}):
        model = nbmf.NBFISM(4, penalty=1.0, **PLAIN | {"max_iter": 60}, **settings).fit(data(counts))
        old = model.item_factors_.copy(), model.encoder_.copy()
        new = nbmf.Interactions.from_matrix(counts[:, [3, 6]], model.users_, [1003, 1006])
        model.add_items(new)
        assert model.items_.tolist() == [*range(24), 1003, 1006]
        for after, before in zip((model.item_factors_, model.encoder_), old, strict=True):
            np.testing.assert_array_equal(after[:24], before)
            assert np.isfinite(after).all()
        for item in (3, 6):
            assert 1000 + item in model.similar_items(item, 6).ids.tolist()  # its group has six
            assert set(model.similar_items(1000 + item, 5).ids) <= {*range(item % 4, 24, 4), 1003, 1006}
            without = np.flatnonzero(counts[:, item] == 0)
            μ = np.array([model.predict(f"u{user}", [item, 1000 + item]) for user in without])
            assert np.corrcoef(μ.T)[0, 1] > 0.9
        model.partial_fit(nbmf.Interactions.from_arrays(["u0", "zoe"], [2000, 3], [2, 1]), refresh=2)
        assert np.isfinite(model.predict("zoe", model.items_)).all()


# ---- while it runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_resumed_fit_is_the_undisturbed_one(estimator, dtype, tmp_path):
    estimator.set_params(dtype=dtype)
    whole = clone(estimator).fit(data())
    for cut in (1, 6, 14):
        path = tmp_path / f"{cut}"
        with pytest.warns(ConvergenceWarning) if estimator.tol else warnings.catch_warnings():
            clone(estimator).set_params(max_iter=cut).fit(data(), checkpoint=path, checkpoint_every=99)
        resumed = clone(estimator).fit(data(), resume=path)
        for name in ("encoder_", "user_factors_", "item_factors_", "objective_"):
            assert getattr(resumed, name).tobytes() == getattr(whole, name).tobytes()
    with pytest.raises(ValueError, match="with n_starts=2, and this one has 3; resume with the same settings"):
        clone(estimator).set_params(n_starts=3).fit(data(), resume=path)


def test_callbacks_see_factors_whose_products_are_scores(estimator):
    seen = []
    model = estimator.fit(data(), callbacks=[lambda s: seen.append((s.objective, s.user_factors @ s.item_factors.T))])
    assert [objective for objective, _ in seen] == model.objective_.tolist()
    np.testing.assert_allclose(seen[-1][1], model.user_factors_ @ model.item_factors_.T, rtol=1e-12)
    assert clone(estimator).fit(data(), callbacks=[lambda s: s.sweep == 4]).n_iter_ == 4


def test_early_stopping_keeps_the_best_sweep():
    train, test = nbmf.Interactions.from_matrix(blocks()).split(seed=0)
    for metric in ("ndcg_counts", "log_likelihood"):
        stopping = nbmf.EarlyStopping(train, test, metric=metric, patience=2, every=3)
        model = nbmf.NBFISM(8, target="counts", penalty=0.1, **PLAIN | {"max_iter": 100}).fit(train, stopping=stopping)
        best = max(stopping.history, key=lambda look: look[1])
        assert model.n_iter_ == best[0]
        if metric == "ndcg_counts":
            assert nbmf.evaluate(model, train, test)["ndcg_counts"].mean == pytest.approx(best[1])
        else:
            assert nbmf.evaluation.log_likelihood(model, train, test).mean == pytest.approx(best[1])
    with pytest.raises(ValueError, match="stop by another metric"):
        nbmf.NBFISM(3).fit(train, stopping=stopping)


def test_a_fit_that_has_not_converged_says_what_to_do():
    with pytest.warns(ConvergenceWarning, match=r"NBFISM has not converged after max_iter=3 sweeps: .* max_iter=6"):
        nbmf.NBFISM(3, max_iter=3, random_state=0).fit(MATRIX)
    model = nbmf.NBFISM(3, max_iter=5000, tol=1e-4, random_state=0).fit(MATRIX)
    assert model.converged_
    assert model.n_iter_ < 5000


def test_threads_change_no_bit(estimator):
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.3, (300, 80))
    one, two = (clone(estimator).set_params(dtype="float32", n_threads=n).fit(counts) for n in (1, 2))
    for name in ("encoder_", "item_factors_", "objective_"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes()


# ---- settings and odd data ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_components": 0}, "n_components is 0; it must be a whole number from 1"),
        ({"n_starts": 1.5}, "n_starts is 1.5; it must be a whole number from 1"),
        ({"n_clusters": True}, "n_clusters is True; it must be a whole number"),
        ({"likelihood": "gaussian"}, "likelihood is 'gaussian'; it must be 'poisson' or 'negative_binomial'"),
        ({"concentration": 0}, "concentration is 0; it must be a positive number"),
        ({"concentration": "learn"}, "concentration is 'learn'; it must be a positive number"),
        ({"penalty": -1}, "penalty is -1; it must be a number from 0"),
        ({"penalty": np.nan}, "penalty is nan; it must be a number from 0"),
        ({"input": "sqrt"}, "input is 'sqrt'; it must be 'log1p', 'binary' or 'counts'"),
        ({"target": None}, "target is None"),
        ({"max_iter": 0}, "max_iter is 0"),
        ({"tol": -1.0}, "tol is -1.0"),
        ({"backend": "tpu"}, "backend is 'tpu'"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"n_threads": 0}, "n_threads is 0"),
        ({"random_state": -1}, "random_state is -1"),
        ({"verbose": "yes"}, "verbose is 'yes'"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        nbmf.NBFISM(**settings).fit(MATRIX)


def test_starts_are_averaged_by_n_starts():
    with pytest.raises(TypeError, match="n_starts"):
        nbmf.Averaged(nbmf.NBFISM(3)).fit(MATRIX)


@pytest.mark.parametrize("input", list(FORMS))
@pytest.mark.parametrize("target", list(FORMS))
def test_forms(input, target):
    model = nbmf.NBFISM(3, input=input, target=target, **PLAIN).fit(MATRIX)
    x, t = (np.where(MATRIX > 0, FORMS[form](MATRIX.astype(float)), 0) for form in (input, target))
    assert (np.diff(model.objective_) > 0).all()
    B = model.encoder_ @ model.item_factors_[:, :-1].T / 2
    np.fill_diagonal(B, 0)
    μ = x @ B + model.item_factors_[:, -1]
    np.testing.assert_allclose(μ.sum(), t.sum(), rtol=0.2)
    np.testing.assert_allclose(model.predict("u5" if model.users_.dtype.kind == "U" else 5, model.items_), μ[5])
    ask = lambda: model.predictive(5, [1]).mean  # noqa: E731
    if target == "counts":
        assert ask() == pytest.approx(μ[5, 1])
        assert np.isfinite(model.score(MATRIX))
    elif target == "log1p":
        with pytest.raises(ValueError, match=r"target='log1p', so it has no likelihood of counts; .*target='counts'"):
            ask()


ODD = {
    "zeros": np.zeros((5, 4)),
    "one user": [[1, 0, 2, 5]],
    "one item": [[1], [0], [7]],
    "one cell": [[3]],
    "one count": np.eye(1, 12, 5).reshape(4, 3),
    "empty rows and columns": np.pad(small_matrix(6, 5), 2),
    "duplicates": np.repeat(small_matrix(6, 5), 3, axis=0),
    "huge": np.where(small_matrix(8, 6) > 5, 10**9, small_matrix(8, 6)),
    "fractions": small_matrix(8, 6) / 7,
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("penalty", [0.0, 1e6])
def test_odd_data_are_fitted(name, dtype, penalty, estimator):
    counts = np.asarray(ODD[name])
    model = estimator.set_params(n_components=9, dtype=dtype, penalty=penalty)
    for input in ("log1p", "counts"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.set_params(input=input, max_iter=40).fit(counts)
        for values in (model.encoder_, model.item_factors_, model.user_factors_, model.objective_):
            assert np.isfinite(values).all()
        assert np.isfinite(model.recommend(None, 3, exclude_seen=False).scores).all()
        assert np.isfinite(model.transform(np.zeros_like(counts))).all()
        allowed = 1e-5 * (1 + np.abs(model.objective_[:-1]) + counts.sum())
        if model.result_.exposure != "tied":  # new ties are another bound, which may be lower
            assert (np.diff(model.objective_) >= -allowed).all()


def test_a_likelihood_of_counts_is_named_by_its_parameter():
    model = nbmf.NBFISM(2, likelihood="negative_binomial", target="counts", concentration=2.5, **PLAIN).fit(MATRIX)
    assert model.concentration_ == 2.5
    assert not hasattr(nbmf.NBFISM(2, likelihood="negative_binomial", **PLAIN).fit(MATRIX), "concentration_")


@pytest.mark.parametrize("name", ["encoder_", "user_factors_", "item_factors_"])
def test_changed_factors_are_not_saved(name, tmp_path):
    model = clone(POISSON).fit(MATRIX)
    model.save(tmp_path / "model.nbmf")
    assert nbmf.load(tmp_path / "model.nbmf").encoder_.tobytes() == model.encoder_.tobytes()
    setattr(model, name, 2 * getattr(model, name))
    with pytest.raises(ValueError, match="no longer th"):
        model.save(tmp_path / "model.nbmf")


def test_a_model_is_not_a_checkpoint(tmp_path):
    clone(POISSON).fit(MATRIX).save(tmp_path / "model.nbmf")
    with pytest.raises(ValueError, match=r"is an encoder model, not a checkpoint; nbmf\.load\(path\) reads it"):
        clone(POISSON).fit(MATRIX, resume=tmp_path / "model.nbmf")


@pytest.mark.parametrize("setting", [{"input": "binary"}, {"target": "binary"}])
def test_a_model_is_not_saved_with_other_forms_than_it_was_fitted_to(setting, tmp_path):
    model = clone(POISSON).fit(MATRIX).set_params(**setting)
    with pytest.raises(ValueError, match="its settings now say"):
        model.save(tmp_path / "model.nbmf")


def test_what_a_check_proposes_are_settings_of_an_encoder():
    """Its priors are none of NBMF's, and the negative binomial is one of its own likelihoods."""
    rng = np.random.default_rng(0)
    bursts = rng.poisson(rng.gamma(0.1, 10.0, (200, 40)) * 0.5)
    found = nbmf.NBFISM(3, target="counts", n_starts=1, max_iter=20, tol=0, random_state=0).fit(bursts).check().findings
    assert found
    assert "likelihood='negative_binomial'" in " ".join(found)
    few = nbmf.NBFISM(40, target="counts", n_starts=1, max_iter=20, tol=0, random_state=0).fit(bursts[:30])
    every = " ".join((*found, *few.check().findings))
    assert not re.search(r"inference=|input=|try NBMF|, NBMF", every)


def test_a_huge_concentration_is_poisson():
    settings = PLAIN | {"target": "counts"}
    one = nbmf.NBFISM(3, likelihood="negative_binomial", concentration=1e29, **settings).fit(MATRIX)
    two = nbmf.NBFISM(3, **settings).fit(MATRIX)
    np.testing.assert_allclose(one.objective_, two.objective_, rtol=1e-10)
    np.testing.assert_allclose(one.encoder_, two.encoder_, rtol=1e-8)
