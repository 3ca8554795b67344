"""Comparison models: each is what its equations say, ascends, answers like the other estimators, and stays small."""

import inspect
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from scipy import stats
from scipy.special import gammaln, xlogy
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import nbmf
from helpers import canonical, count_matrices, counts_of, small_matrix
from nbmf.backends.reference import Reference
from nbmf.estimators import comparison
from nbmf.inference.comparison import Coupled, ExposedRidge, Pair, ascend, begin_coupled, expect_coupled
from nbmf.inference.run import FallingObjectiveError, Until
from nbmf.model import Model
from nbmf.model.comparison import RandomGraphPoisson
from nbmf.model.factors import Point, Prior
from nbmf.model.likelihood import Poisson
from nbmf.storage.container import StorageError, read, write

MODELS = [
    nbmf.ExpoMF(3, random_state=0),
    nbmf.RandomGraphExposureMF(3, random_state=0),
    nbmf.RandomGraphExposureMF(3, inference="mm", random_state=0),
    nbmf.CoupledCompoundMF(3, random_state=0),
]
each_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: str(model).replace("\n", ""))


def data():
    matrix = small_matrix(40, 25)
    users, items = [f"user {n}" for n in range(40)], [f"item {n}" for n in range(25)]
    return nbmf.Interactions.from_matrix(matrix, users=users, items=items)


def fitted(model, **settings):
    return clone(model).set_params(**settings).fit(data())


def blocks(seed=0):
    """Counts of three groups of users who mostly take the items of their own group, and a third of them set aside."""
    rng = np.random.default_rng(seed)
    group, kind = rng.integers(0, 3, 90), rng.integers(0, 3, 60)
    counts = rng.poisson(np.where(group[:, None] == kind, 1.0, 0.08) * rng.gamma(1, 1, (90, 60)))
    held_out = rng.random(counts.shape) < 0.3
    return counts * ~held_out, counts * held_out


# ---- what each of them computes -------------------------------------------------------------------------------------


def ridge(taken, users, items, penalty, n_sweeps):
    """Ridge regressions of 0 and 1 on the other side's factors, in turns."""
    for _ in range(n_sweeps):
        users = taken @ items @ np.linalg.inv(items.T @ items + penalty[0] * np.eye(items.shape[1]))
        items = taken.T @ users @ np.linalg.inv(users.T @ users + penalty[1] * np.eye(items.shape[1]))
    return users, items


def test_expomf_of_certain_exposures_is_ridge_regression():
    taken = (small_matrix() > 0).astype(float)
    settings = {"probability": 1.0, "user_penalty": 0.7, "item_penalty": 0.2, "dtype": "float64", "tol": 0}
    first, later = (nbmf.ExpoMF(3, random_state=0, max_iter=n, **settings).fit(taken) for n in (1, 6))
    users, items = ridge(taken, first.user_vectors_, first.item_vectors_, (0.7, 0.2), 5)
    np.testing.assert_allclose(later.item_vectors_, items, atol=1e-9)
    np.testing.assert_allclose(later.user_vectors_, users, atol=1e-9)
    np.testing.assert_array_equal(later.probability_, 1.0)
    np.testing.assert_allclose(later.predict(4, np.arange(20)), users[4] @ items.T, atol=1e-9)


def test_exposures_of_expomf_follow_bayes_rule():
    rng, taken = np.random.default_rng(0), (small_matrix(6, 5) > 0).astype(float)
    users, items, π = rng.normal(size=(6, 2)), rng.normal(size=(5, 2)), rng.random(5)
    exposure, log_density = ExposedRidge(2.5, 1.0, 1.0, 1.0, 1.0).expect(canonical(taken), users, items, π)
    density = stats.norm(users @ items.T, 2.5**-0.5).pdf(taken)
    evidence = π * density + (1 - π) * (taken == 0)
    np.testing.assert_allclose(exposure, π * density / evidence)
    assert log_density == pytest.approx(np.log(evidence).sum())


def test_probabilities_of_expomf_are_those_of_its_prior_and_exposures():
    counts, settings = small_matrix(), {"exposed_prior": 3.0, "unexposed_prior": 5.0, "tol": 0, "dtype": "float64"}
    model = nbmf.ExpoMF(2, random_state=0, max_iter=1, **settings).fit(counts)
    algorithm, rng = model.result_.algorithm, np.random.RandomState(0)
    users, items = (comparison.SPREAD * rng.standard_normal((n, 2)) for n in counts.shape)
    exposure, _ = algorithm.expect(canonical(counts > 0), users, items, np.full(20, 0.1))
    np.testing.assert_allclose(model.probability_, (3 - 1 + exposure.sum(axis=0)) / (3 + 5 - 2 + 30))


def test_a_regression_is_the_best_there_is():
    """No step away from the solution of `solve` lowers the weighted squares and the penalty."""
    rng, taken = np.random.default_rng(0), (small_matrix(6, 5) > 0).astype(float)
    weight, items = np.where(taken > 0, 1.0, rng.random((6, 5))), rng.normal(size=(5, 2))
    users = ExposedRidge(2.0, 0.3, 1.0, 1.0, 1.0).solve(weight, canonical(taken), items, 0.3)
    loss = lambda W: 2.0 * (weight * (taken - W @ items.T) ** 2).sum() + 0.3 * (W**2).sum()  # noqa: E731
    for _ in range(20):
        assert loss(users) < loss(users + 1e-3 * rng.normal(size=users.shape))


def test_the_random_graph_is_that_of_the_known_counts():
    counts = small_matrix()
    unknown = np.zeros(counts.shape, bool)
    unknown[5, :10] = True
    model = nbmf.RandomGraphExposureMF(2, max_iter=3, tol=0).fit(counts, unknown=unknown)
    known = canonical(np.where(unknown, 0, counts))
    np.testing.assert_array_equal(model.result_.model.likelihood.probability, RandomGraphPoisson.of(known).probability)
    pairs = np.repeat(np.arange(30), 20), np.tile(np.arange(20), 30)
    expected = RandomGraphPoisson.of(known).probability * (model.user_factors_ @ model.item_factors_.T)
    np.testing.assert_allclose(model.predictive(*pairs).mean, expected.ravel(), rtol=1e-6)
    np.testing.assert_allclose(model.predict(*pairs), expected.ravel(), rtol=1e-5)
    why = model.exposures(5)
    assert np.all(why.exposure == 1)  # a count says so


def pairs_of(shape, rng):
    model = Model(Poisson(), Prior(0.5, 0.5), Prior(0.7, 0.7))
    return [Pair(model, *(Point(rng.gamma(1, 1, (n, 2))) for n in shape)) for _ in range(2)]


def test_the_evidence_of_coupled_factorizations_is_a_sum_over_exposures():
    """At points, where both means agree, it is ln Σ_a Poisson(a | Λ) Poisson(y | aμ)."""
    count = small_matrix(6, 5)
    exposing, tasting = pairs_of(count.shape, np.random.default_rng(0))
    found = expect_coupled(counts_of(count), exposing, tasting, Reference())
    a = np.arange(400.0)[:, None, None]
    terms = stats.poisson.pmf(a, exposing.intensity) * stats.poisson.pmf(count, a * tasting.intensity)
    expected = np.log(terms.sum(axis=0)).sum() + gammaln(count + 1.0).sum()
    assert found.log_evidence == pytest.approx(expected)
    mean = (a * terms).sum(axis=0) / terms.sum(axis=0)
    np.testing.assert_allclose(found.tasting.exposure, mean)
    np.testing.assert_allclose(found.exposing.share, mean / exposing.intensity)
    np.testing.assert_allclose(found.tasting.share, count / tasting.intensity)


def test_coupled_factorizations_climb_their_own_lower_bound():
    """The bound, written out with the exposures' and allocations' own distributions, is the objective of a state."""
    count = small_matrix(6, 5)
    counts, backend = counts_of(count), Reference()
    state = begin_coupled(*pairs_of(count.shape, np.random.default_rng(0)), counts, backend)
    for _ in range(3):
        state = Coupled().step(state, counts, backend)
    exposing, tasting = state.pairs
    a = np.arange(400.0)[:, None, None]
    log_q = xlogy(a, exposing.geometric_intensity) + xlogy(count, a) - a * tasting.intensity - gammaln(a + 1)
    q = np.exp(log_q - log_q.max(axis=0))
    q /= q.sum(axis=0)
    # E[ln p(a, y, allocations)] + entropy; that of the allocations turns Σ ln of parts into ln of their sum
    expected_log = xlogy(a, exposing.geometric_intensity) - exposing.intensity - gammaln(a + 1)
    expected_log = expected_log + xlogy(count, a * tasting.geometric_intensity) - gammaln(count + 1.0)
    expected_log = expected_log - a * tasting.intensity
    with np.errstate(invalid="ignore"):
        bound = np.where(q > 0, q * (expected_log - np.log(np.where(q > 0, q, 1))), 0).sum()
    assert state.objective == pytest.approx(bound - exposing.divergence - tasting.divergence)


# ---- ascent ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@each_model
@settings(max_examples=12)
@given(matrix=count_matrices())
def test_every_sweep_ascends(model, dtype, matrix):
    """The loops themselves raise if one does not; the bound of what rounding allows is theirs."""
    found = clone(model).set_params(max_iter=12, tol=0, dtype=dtype).fit(matrix)
    assert np.isfinite(found.objective_).all()
    assert found.n_iter_ == 12
    slack = 1e-4 if dtype == "float32" else 1e-9
    assert np.all(np.diff(found.objective_) >= -slack * np.abs(found.objective_[1:]) - 1e-9)


def test_an_objective_that_falls_is_an_error(monkeypatch):
    algorithm, seen = ExposedRidge(1.0, 1.0, 1.0, 1.0, 1.0), canonical(small_matrix(6, 5) > 0)
    start = algorithm.observe(seen, np.ones((6, 2)), np.ones((5, 2)), np.full(5, 0.5))
    monkeypatch.setattr(ExposedRidge, "step", lambda self, state, seen: replace(state, objective=state.objective - 1))
    with pytest.raises(FallingObjectiveError, match="sweep 1: the objective went from"):
        ascend(algorithm, start, seen, Until(3, 0.0), lambda last: None)


@each_model
def test_fits_end_as_others_do(model):
    assert not fitted(model, max_iter=2, tol=0).converged_
    assert fitted(model, max_iter=300, tol=1e-3).converged_
    with pytest.warns(ConvergenceWarning, match=r"has not converged after max_iter=2 .*max_iter=4"):
        fitted(model, max_iter=2)


@pytest.mark.parametrize("kind", [nbmf.ExpoMF, nbmf.CoupledCompoundMF])
def test_ctrl_c_keeps_the_last_sweep(kind, monkeypatch):
    def interrupt(self, done):
        if done.sweep == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(comparison.Progress, "report", interrupt)
    with pytest.warns(UserWarning, match="fit interrupted: the model is that of sweep 3"):
        model = kind(2, random_state=0, tol=0).fit(small_matrix())
    assert (model.n_iter_, model.ending_) == (3, "interrupted")
    monkeypatch.undo()
    np.testing.assert_array_equal(
        model.objective_, kind(2, random_state=0, tol=0, max_iter=3).fit(small_matrix()).objective_
    )


@each_model
def test_progress_is_shown(model, capsys):
    fitted(model, max_iter=3, tol=0, verbose=True)
    assert "sweep 3 of at most 3, objective" in capsys.readouterr().err
    fitted(model, max_iter=3, tol=0)
    assert not capsys.readouterr().err


# ---- answers --------------------------------------------------------------------------------------------------------


@each_model
def test_they_rank_far_above_chance(model):
    """Random scores reach 0.39 on these blocks; a model that finds them has more than 0.45."""
    train, test = blocks()
    rng = np.random.default_rng(0)
    chance = nbmf.evaluate((rng.random((90, 3)), rng.random((60, 3))), train, test)["ndcg_at_least_1"].mean
    found = nbmf.evaluate(clone(model).fit(train), train, test)["ndcg_at_least_1"].mean
    assert found > chance + 0.06


def scores_of(model, user, items):
    """What recommendations are ranked by: expected counts, or the intensities of what a random graph shows."""
    if not isinstance(model, nbmf.RandomGraphExposureMF):
        return model.predict(user, items)
    rows, columns = model.result_.pairs(user, items)
    return model.result_.scores().pairs(rows, columns)


@each_model
def test_recommendations_and_predictions_agree(model):
    model = fitted(model)
    best = model.recommend(n=25, exclude_seen=False)
    for row, user in enumerate(model.users_):
        scores = scores_of(model, user, best.items[row])
        np.testing.assert_allclose(scores, best.scores[row], rtol=1e-5, atol=1e-7)
        assert np.all(np.diff(best.scores[row]) <= 0)
    unseen = model.recommend("user 5", n=25)
    assert not set(unseen.columns["item"]) & set(data().items[data().matrix[[5]].indices])
    assert model.recommend("user 7", n=2, allow=["item 3", "item 4"], exclude_seen=False).items.shape == (1, 2)


def test_scores_are_expectations():
    """π_i w·h, the intensity μ of what a random graph shows, and Λμ."""
    expo, graph, coupled = models = [fitted(MODELS[n]) for n in (0, 1, 3)]
    found = [np.array([scores_of(model, user, model.items_) for user in model.users_]) for model in models]
    expected = [
        (expo.user_vectors_ @ expo.item_vectors_.T) * expo.probability_,
        graph.user_factors_ @ graph.item_factors_.T,
        (coupled.exposing_user_posterior_.mean @ coupled.exposing_item_posterior_.mean.T)
        * (coupled.user_posterior_.mean @ coupled.item_posterior_.mean.T),
    ]
    assert 0 < expo.probability_.min() < expo.probability_.max() < 1
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", [nbmf.ExpoMF, nbmf.CoupledCompoundMF])
def test_scores_of_rows_are_predictions(kind):
    model = kind(3, random_state=0).fit(data())
    found = model.score_items(np.array([3, 8]))
    np.testing.assert_allclose(found[1], model.predict("user 8", model.items_), rtol=1e-5)


@each_model
def test_a_fitted_user_is_folded_in_to_the_same_scores(model):
    """All users have as many items, because new users of a random graph have the typical degree."""
    rng = np.random.default_rng(0)
    counts = np.array([rng.permutation([4, 2, 1, 1, 3, 1, *[0] * 14]) for _ in range(30)])
    model = clone(model).set_params(max_iter=3000, tol=1e-12, dtype="float64").fit(counts)
    found = model.recommend_for(counts[[8]], n=20, exclude_seen=False)
    expected = scores_of(model, 8, found.items[0])
    np.testing.assert_allclose(found.scores[0], expected, atol=1e-3 * np.abs(expected).max())
    is_score = not hasattr(model, "likelihood_") or model.likelihood_.has_linear_mean
    total = found.scores if is_score else model.predictive_for(counts[[8]], np.arange(20)).mean
    assert model.predict(counts[[8]]) == pytest.approx(total.sum(), rel=1e-5)


@each_model
def test_a_user_of_whom_nothing_is_known_gets_what_is_popular(model):
    model = fitted(model)
    best = model.recommend_for({}, n=5)
    assert np.isfinite(best.scores).all()
    why = model.explain_for({}, best.items[0, 0])
    assert why.prior == pytest.approx(why.score) == pytest.approx(best.scores[0, 0], rel=1e-5)


@each_model
def test_the_parts_of_an_explanation_sum_to_the_score(model):
    model = fitted(model)
    for why in (model.explain("user 8", "item 3"), model.explain_for({"item 1": 2, "item 7": 1}, "item 3")):
        assert why.contributions.sum() + why.prior == pytest.approx(why.score, rel=1e-6)
        assert why.component_scores.sum() == pytest.approx(why.score, rel=1e-6)
        assert why.component_scores.shape == (3,)
        assert len(why.component_names) == 3
        assert "by component" in str(why)
        assert len(why.to_pandas(by="component")) == 3
    assert model.explain("user 8", "item 3").score == pytest.approx(model.predict("user 8", "item 3")[0], rel=1e-5)


def test_an_explanation_of_expomf_leaves_nothing_over_when_it_has_converged():
    model = fitted(MODELS[0], max_iter=3000, tol=1e-13, dtype="float64", user_penalty=0.3, item_penalty=0.3)
    for why in (model.explain("user 8", "item 3"), model.explain_for({"item 1": 2, "item 7": 1}, "item 3")):
        assert abs(why.prior) < 1e-4 * np.abs(why.contributions).sum()


@each_model
def test_similar_items_are_those_of_a_block(model):
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.kron(np.eye(3), np.ones((20, 8))) * 1.5)
    model = clone(model).fit(counts)
    assert set(model.similar_items(3, n=7).ids.tolist()) == set(range(8)) - {3}


def test_predictive_distributions():
    coupled, graph = fitted(MODELS[3]), fitted(MODELS[1])
    for model in (coupled, graph):
        new = model.predictive("user 8", ["item 3", "item 4"])
        low, high = new.interval(0.9)
        assert np.all(low <= new.mean)
        assert np.all(new.mean <= high + 1)
        np.testing.assert_allclose(new.at_least(1) + new.probability(0), 1)
        assert len(model.predictive_for({"item 1": 2}, ["item 3"]).mean) == 1
        assert "item 3" in str(new)
    mean = coupled.predictive("user 8", coupled.items_).mean
    np.testing.assert_allclose(mean, coupled.predict("user 8", coupled.items_), rtol=1e-5)
    best = coupled.recommend_for({"item 1": 2}, n=3)
    np.testing.assert_allclose(coupled.predictive_for({"item 1": 2}, best.items[0]).mean, best.scores[0], rtol=1e-5)


def test_what_makes_no_sense_is_refused():
    model = fitted(MODELS[0])
    for ask in (
        lambda: model.predictive("user 8", "item 3"),
        lambda: model.predictive_for({"item 1": 1}, "item 3"),
        lambda: nbmf.evaluation.log_likelihood(model, data(), data()),
    ):
        with pytest.raises(ValueError, match="a Gaussian model of whether there is a count, so counts have no distr"):
            ask()
    with pytest.raises(ValueError, match="no likelihood given their means alone"):
        fitted(MODELS[3]).result_.likelihood_of(np.arange(2), np.arange(2))


def test_the_random_graph_grows_and_is_averaged():
    model = fitted(MODELS[1])
    more = nbmf.Interactions.from_arrays(["new", "new"], ["item 1", "item 30"], [2, 1])
    assert model.partial_fit(more, refresh=2).recommend("new", n=3).items.shape == (1, 3)
    assert nbmf.Averaged(MODELS[1], n_runs=2, random_state=0).fit(data()).predict("user 3", "item 4") > 0


# ---- the same inputs, settings and files ----------------------------------------------------------------------------


@each_model
def test_every_form_of_the_data_gives_the_same_fit(model):
    pd = pytest.importorskip("pandas")
    counts, given = small_matrix(), {"max_iter": 5, "tol": 0}
    frame = pd.DataFrame(counts, index=[f"u{n}" for n in range(30)], columns=[f"i{n}" for n in range(20)])
    forms = counts, sp.csr_array(counts), sp.coo_matrix(counts), nbmf.Interactions.from_matrix(counts), frame
    models = [clone(model).set_params(**given).fit(form) for form in forms]
    for one in models:
        np.testing.assert_array_equal(one.objective_, models[0].objective_)
    assert models[-1].recommend("u3", n=1).items[0, 0].startswith("i")
    assert models[-1].feature_names_in_.tolist() == frame.columns.tolist()


@each_model
def test_a_seed_repeats_a_fit(model):
    one, same, other = (fitted(model, random_state=seed, max_iter=4, tol=0) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.objective_, same.objective_)
    np.testing.assert_array_equal(one.recommend(n=4).scores, same.recommend(n=4).scores)
    assert one.objective_[0] != other.objective_[0]


@each_model
def test_settings_are_kept(model):
    assert clone(model).get_params() == model.get_params()
    assert set(inspect.signature(type(model)).parameters) == set(model.get_params())


@pytest.mark.parametrize(
    ("kind", "setting", "values"),
    [
        (nbmf.ExpoMF, "precision", (0, -1.0, np.inf, "x", True)),
        (nbmf.ExpoMF, "user_penalty", (0, np.nan, None)),
        (nbmf.ExpoMF, "item_penalty", (0, np.nan, None)),
        (nbmf.ExpoMF, "probability", (0, 1.5, "x")),
        (nbmf.ExpoMF, "exposed_prior", (0.5, np.inf)),
        (nbmf.ExpoMF, "unexposed_prior", (0, None)),
        (nbmf.CoupledCompoundMF, "n_exposure_components", (0, 1.5, "x")),
        (nbmf.CoupledCompoundMF, "user_shape", (0, np.inf, "x")),
        (nbmf.CoupledCompoundMF, "item_shape", (-1, None)),
        *((type(model), "n_components", (0, 2.5, None)) for model in MODELS),
        *((type(model), "random_state", ("x", -1)) for model in MODELS),
        *((type(model), "dtype", ("f2",)) for model in MODELS),
        *((type(model), "tol", (-1, None)) for model in MODELS),
    ],
)
def test_settings_that_make_no_sense_are_named(kind, setting, values):
    for value in values:
        with pytest.raises(ValueError, match=f"^{setting} is "):
            kind(**{setting: value}).fit(small_matrix())


@each_model
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_saved_comes_back_to_the_bit(model, dtype, tmp_path):
    model = fitted(model, max_iter=5, tol=0, dtype=dtype)
    model.save(tmp_path / "model.nbmf")
    back = nbmf.load(tmp_path / "model.nbmf")
    assert type(back) is type(model)
    assert back.get_params() == model.get_params()
    for ask in (
        lambda one: one.recommend(n=25, exclude_seen=False),
        lambda one: one.recommend_for({"item 1": 2, "item 3": 1}, n=5),
        lambda one: one.recommend_for({}, n=5),
        lambda one: one.explain("user 8", "item 3"),
        lambda one: one.explain_for({"item 1": 2}, "item 3"),
        lambda one: one.similar_items("item 3"),
    ):
        np.testing.assert_equal(ask(back).columns, ask(model).columns)
    for name in ("objective_", "n_iter_", "converged_", "ending_", "users_", "items_", "n_features_in_"):
        np.testing.assert_array_equal(getattr(back, name), getattr(model, name))
    back.save(tmp_path / "again.nbmf")
    assert (tmp_path / "again.nbmf").read_bytes() == (tmp_path / "model.nbmf").read_bytes()
    if not isinstance(model, nbmf.ExpoMF):
        np.testing.assert_array_equal(back.predictive("user 8", "item 3").sd, model.predictive("user 8", "item 3").sd)


FORGED = {
    nbmf.ExpoMF: [
        ({"precision": "inf"}, {}, "not all positive"),
        ({"user_penalty": -1.0}, {}, "not all positive"),
        ({}, {"probability": np.full(25, 1.5)}, "probabilities"),
        ({}, {"probability": np.full(25, 0.5, np.float32)}, "probabilities"),
        ({}, {"user_vectors": np.full((40, 3), np.nan)}, "differ in type"),
        ({}, {"user_vectors": np.full((40, 3), np.nan, np.float32)}, "not finite"),
        ({}, {"item_vectors": np.ones((25, 2), np.float32)}, "differ in type or in number of components"),
        ({"class": "NBMF"}, {}, "holds a 'NBMF'"),
    ],
    nbmf.CoupledCompoundMF: [
        ({"exposing_users.law": "point"}, {"exposing_users.value": np.ones((40, 3), np.float32)}, "differ in kind"),
        ({"exposing_items.prior.rate": -1.0}, {}, "not above 0"),
        ({}, {"exposing_items.mean": np.ones((25, 2), np.float32)}, "geometric_mean"),
        ({"class": "ExpoMF"}, {}, "holds a 'ExpoMF'"),
    ],
}


@each_model
def test_the_page_of_formats_names_what_a_file_has(model, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    fitted(model, max_iter=2, tol=0).save(tmp_path / "model.nbmf")
    found = read(tmp_path / "model.nbmf")
    assert f'"{found.document["kind"]}"' in page
    assert type(model).__name__ in page
    for name in [*found.document, *found.arrays]:
        general = re.sub("^(exposing_)?(users|items)[.]", "SIDE.", name)
        general = re.sub("^likelihood[.].*", "likelihood.NAME", general)
        assert f"`{general}`" in page, name


@each_model
def test_settings_of_a_file_are_checked(model, tmp_path):
    fitted(model, max_iter=2, tol=0).save(tmp_path / "model.nbmf")
    found = read(tmp_path / "model.nbmf")
    for setting, value in (("tol", "x"), ("n_components", 0), ("random_state", "x"), ("verbose", -1)):
        changed = found.document["settings"] | {setting: value}
        write(tmp_path / "forged", found.document | {"settings": changed}, found.arrays)
        with pytest.raises(StorageError, match=f"{setting} is "):
            nbmf.load(tmp_path / "forged")


@pytest.mark.parametrize("kind", FORGED)
def test_forged_files_are_refused(kind, tmp_path):
    model = kind(3, max_iter=2, tol=0, random_state=0).fit(data())
    model.save(tmp_path / "model.nbmf")
    found = read(tmp_path / "model.nbmf")
    for entries, arrays, message in FORGED[kind]:
        write(tmp_path / "forged", found.document | entries, found.arrays | arrays)
        with pytest.raises(StorageError, match=message):
            nbmf.load(tmp_path / "forged")
    for name in (name for name in found.arrays if name.startswith(("user_v", "item_v", "exposing", "prob"))):
        write(tmp_path / "forged", found.document, {key: a for key, a in found.arrays.items() if key != name})
        with pytest.raises(StorageError, match=f"it has no array '{name}'"):
            nbmf.load(tmp_path / "forged")


# ---- small data only ------------------------------------------------------------------------------------------------


@each_model
def test_they_say_what_they_are_for(model):
    first = inspect.getdoc(type(model)).splitlines()[0]
    assert first.startswith("Comparison model: ")
    assert f"at most {comparison.MOST_CELLS // 10**6} million cells" in first


@each_model
def test_large_data_is_refused(model, monkeypatch):
    big = sp.csr_array(([1], ([0], [0])), shape=(2001, 2000))
    with pytest.raises(ValueError, match=r"^2,001 users × 2,000 items are 4,002,000 cells, .* 4,000,000; .*NBMF"):
        clone(model).fit(big)
    monkeypatch.setattr(comparison, "MOST_CELLS", 1000)
    model = fitted(model, max_iter=2, tol=0)
    assert model.recommend_for(data().matrix, n=2).items.shape == (40, 2)
    with pytest.raises(ValueError, match=r"41 users × 25 items are 1,025 cells, .*; give fewer rows at a time"):
        model.recommend_for(sp.csr_array((41, 25)), n=2)
    if isinstance(model, nbmf.RandomGraphExposureMF):
        with pytest.raises(ValueError, match=r"41 users × 25 items are 1,025 cells, .* or fit NBMF"):
            model.partial_fit(nbmf.Interactions.from_arrays(["new"], ["item 3"]))
        assert len(model.users_) == 40
