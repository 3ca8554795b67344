"""NBFISM is its equations: a fit, its answers and its explanations, each held to loops or to one dense product."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import nbinom, poisson
from sklearn.base import clone

import literal
import nbmf
from helpers import small_matrix
from nbmf.data.interactions import FORMS
from nbmf.estimators.cells import fitted_cells, given_cells

PLAIN = {"n_starts": 1, "max_iter": 12, "tol": 0, "dtype": "float64", "random_state": 0}
MODELS = [
    nbmf.NBFISM(3, penalty=2.0, **PLAIN),
    nbmf.NBFISM(3, penalty=0.0, input="counts", target="counts", **PLAIN),
    nbmf.NBFISM(3, likelihood="negative_binomial", target="counts", **PLAIN),
    nbmf.NBFISM(3, likelihood="negative_binomial", concentration=0.5, input="binary", **PLAIN | {"n_starts": 3}),
]
COUNTS = [
    nbmf.NBFISM(3, target="counts", **PLAIN | {"n_starts": 2}),
    nbmf.NBFISM(3, target="counts", likelihood="negative_binomial", concentration=2.0, **PLAIN),
]
MATRIX = small_matrix()
UNKNOWN = np.random.default_rng(4).random(MATRIX.shape) < 0.15


def data(matrix=MATRIX):
    return nbmf.Interactions.from_matrix(matrix, [f"u{n}" for n in range(len(matrix))])


def form(matrix, name):
    """The counts in one of the three forms, with dense arrays."""
    return np.where(matrix > 0, FORMS[name](matrix.astype(float)), 0.0)


def weights(model):
    """B without its diagonal, the mean over the starts."""
    B = model.encoder_ @ model.item_factors_[:, :-1].T / model.n_starts
    np.fill_diagonal(B, 0)
    return B


def intensities(model, matrix=MATRIX):
    return form(matrix, model.input) @ weights(model) + model.item_factors_[:, -1]


def concentration(model):
    return np.inf if model.likelihood == "poisson" else model.concentration


def log_p(model, matrix=MATRIX):
    """ln p(t | μ) of each cell."""
    t, μ, α = form(matrix, model.target), intensities(model, matrix), concentration(model)
    if np.isinf(α):
        return poisson.logpmf(t, μ)
    return nbinom.logpmf(t, α, α / (α + μ))


@pytest.fixture(params=MODELS, ids=str)
def model(request):
    return clone(request.param).fit(data())


@pytest.fixture(params=COUNTS, ids=str)
def of_counts(request):
    return clone(request.param).fit(data())


# ---- the fit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("estimator", MODELS[:3], ids=str)
def test_a_sweep_is_the_equations(estimator, backend, masked):
    """From the second sweep's start, which is the first one's end, to its end and the objective there."""
    matrix, unknown = MATRIX[:11, :6], UNKNOWN[:11, :6] if masked else None
    control = {} if unknown is None else {"unknown": unknown}
    before, after = (clone(estimator).set_params(max_iter=n, backend=backend).fit(matrix, **control) for n in (4, 5))
    seen = matrix if unknown is None else np.where(unknown, 0, matrix)
    x, t, α, ρ = form(seen, before.input), form(seen, before.target), concentration(before), before.penalty
    old, new = ((m.encoder_, m.item_factors_[:, :-1], m.item_factors_[:, -1]) for m in (before, after))
    for found, expected in zip(new, literal.encoder_sweep(x, t, *old, α, ρ, unknown), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-300)
    objective = literal.encoder_objective(x, t, *new, α, ρ, unknown)
    np.testing.assert_allclose(after.objective_[-1], objective, rtol=1e-11)


@pytest.mark.parametrize("estimator", MODELS, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_the_reference_is_the_compiled_fit(estimator, masked):
    control = {"unknown": UNKNOWN} if masked else {}
    fast, plain = (clone(estimator).set_params(backend=name).fit(MATRIX, **control) for name in ("cpu", "reference"))
    for name in ("encoder_", "user_factors_", "item_factors_", "objective_"):
        np.testing.assert_allclose(getattr(fast, name), getattr(plain, name), rtol=1e-8, atol=1e-14)
    single = clone(estimator).set_params(dtype="float32").fit(MATRIX, **control)
    assert single.item_factors_.dtype == single.encoder_.dtype == np.float32
    np.testing.assert_allclose(single.objective_, plain.objective_, rtol=1e-5)


@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial"])
def test_several_starts_are_the_mean_of_each(likelihood):
    settings = PLAIN | {"likelihood": likelihood}
    rng = np.random.RandomState(7)
    singles = [nbmf.NBFISM(2, **settings | {"random_state": rng}).fit(MATRIX) for _ in range(3)]
    three = nbmf.NBFISM(2, **settings | {"n_starts": 3, "random_state": 7}).fit(MATRIX)
    np.testing.assert_array_equal(three.encoder_, np.hstack([one.encoder_ for one in singles]))
    for mean in (
        lambda m: m.predict(np.repeat(np.arange(30), 20), np.tile(np.arange(20), 30)),
        lambda m: m.objective_,
        lambda m: m.recommend(None, 20, exclude_seen=False).scores.sum(axis=1),
        lambda m: m.recommend_for({0: 2, 5: 1}, 20, exclude_seen=False).scores.sum(),
    ):
        np.testing.assert_allclose(mean(three), np.mean([mean(one) for one in singles], axis=0), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_largest_item_of_a_sum_leaves_the_others_whole(dtype):
    """Where one item is all of a component, what it leaves of sums is not rounding, which would look like a fall."""
    X = [[6.107, 0.002, 0.0], [0.041, 0.0, 0.0], [0.043, 0.126, 0.035], [0.836, 0.0, 0.064]]
    settings = {"penalty": 0.0, "max_iter": 200, "tol": 0, "random_state": 48, "dtype": dtype}
    model = nbmf.NBFISM(400, likelihood="negative_binomial", concentration=0.175, **settings).fit(X)
    assert model.n_iter_ == 200
    rng = np.random.default_rng(0)
    counts = np.floor(10 ** rng.uniform(-1, 8, (30, 16))) * (rng.random((30, 16)) < 0.6)
    settings |= {"input": "counts", "penalty": 1e-3, "max_iter": 60}
    for likelihood in ("poisson", "negative_binomial"):
        model = nbmf.NBFISM(40, likelihood=likelihood, **settings).fit(counts, unknown=rng.random(counts.shape) < 0.5)
        assert np.isfinite(model.encoder_).all()


def test_unknown_items_that_are_most_of_a_sum_leave_the_known_ones_whole():
    """What a user's known items expose is most of nothing beside the unknown ones, and yet all there is."""
    rng = np.random.default_rng(3)
    X, unknown = rng.poisson(1.0, (30, 16)), rng.random((30, 16)) < 0.5
    X[4, 2], unknown[4, 2] = 10**9, False
    settings = PLAIN | {"input": "counts", "max_iter": 150, "penalty": 10.0}
    for dtype in ("float32", "float64"):
        both = [
            nbmf.NBFISM(60, backend=name, **settings | {"dtype": dtype}).fit(X, unknown=unknown)
            for name in ("cpu", "reference")
        ]
        np.testing.assert_allclose(both[0].objective_, both[1].objective_, rtol=1e-6)


# ---- the own item ---------------------------------------------------------------------------------------------------


def test_a_count_says_nothing_of_itself(model):
    """A change of one count moves the scores of others, of the items with a weight, and not its own."""
    rows = MATRIX[5:6].copy()
    more = rows.copy()
    more[0, 4] += 5
    before, after = (scores_of_new(model, counts) for counts in (rows, more))
    np.testing.assert_allclose(after[4], before[4], rtol=1e-12)
    moved = np.flatnonzero(abs(after - before) > 1e-9 * before)
    expected = weights(model)[4] * (form(more, model.input) - form(rows, model.input))[0, 4]
    np.testing.assert_allclose(after - before, expected, atol=1e-10 * before.max())
    assert len(moved) == (0 if model.input == "binary" else np.count_nonzero(expected > 1e-9 * before))


def scores_of_new(model, row):
    found = model.recommend_for(row, model.n_features_in_, exclude_seen=False)
    scores = np.full(model.n_features_in_, np.nan)
    scores[found.items[0].astype(int)] = found.scores[0]
    return scores


def test_all_answers_have_the_same_intensities(model):
    μ = intensities(model)
    users, items = model.users_, model.items_
    np.testing.assert_allclose([model.predict(user, items) for user in users], μ, rtol=1e-10)
    best = model.recommend(users, 20, exclude_seen=False)
    np.testing.assert_allclose(np.take_along_axis(μ, best.items.astype(int), axis=1), best.scores, rtol=1e-10)
    listed = model.recommend(users[:9], 20, exclude_seen=False, allow=dict.fromkeys(users[:9].tolist(), items))
    np.testing.assert_allclose(listed.scores, best.scores[:9], rtol=1e-10)
    unseen = model.recommend(users, 20)
    assert (unseen.items == None).sum() == np.count_nonzero(MATRIX)  # noqa: E711
    assert not any(MATRIX[u, i] for u, row in enumerate(unseen.items) for i in row if i is not None)
    for user in (5, 7):
        scores = [model.explain(users[user], item).score for item in items]
        np.testing.assert_allclose(scores, μ[user], rtol=1e-10)
        found = model.exposures(users[user])
        places = found.item.astype(int)
        np.testing.assert_allclose(found.intensity, μ[user][places], rtol=1e-10)
        t, α = form(MATRIX[user], model.target)[places], concentration(model)
        expected = np.ones(len(t)) if np.isinf(α) else (α + t) / (α + found.intensity)
        np.testing.assert_allclose(found.exposure, expected, rtol=1e-10)
    np.testing.assert_allclose(fitted_cells(model.result_).intensity, μ.ravel(), rtol=1e-10)


def test_cells_of_other_data_have_the_intensities_of_what_users_had(model):
    """Users of the fit keep their factors, and their new counts are no inputs; all others are what they have."""
    other, known = small_matrix(seed=3), np.arange(30) < 20
    rows = nbmf.Interactions.from_matrix(other, [f"u{n}" if n < 20 else f"new {n}" for n in range(30)])
    cells = given_cells(model.result_, *model._known(rows), model._resources)
    np.testing.assert_allclose(
        cells.intensity, np.where(known[:, None], intensities(model), intensities(model, other)).ravel(), rtol=1e-10
    )
    if model.target == "counts":
        assert model.check(rows, n_draws=3)


def test_probabilities_are_those_of_the_intensities(of_counts):
    model, whole = of_counts, log_p(of_counts)
    np.testing.assert_allclose(model.score_samples(MATRIX), whole.mean(axis=1), rtol=1e-9)
    np.testing.assert_allclose(model.score(MATRIX), whole.mean(), rtol=1e-9)
    other = small_matrix(seed=3)
    t, μ, α = np.where(MATRIX > 0, 0, other), intensities(model), concentration(model)
    cells = poisson.logpmf(t, μ) if np.isinf(α) else nbinom.logpmf(t, α, α / (α + μ))
    zeros = MATRIX == 0
    expected = [cells[u][zeros[u]].mean() if zeros[u].any() else np.nan for u in range(30)]
    np.testing.assert_allclose(model.score_samples(data(other)), expected, rtol=1e-9, atol=1e-12)
    train, test = data(), data(t)
    np.testing.assert_allclose(nbmf.evaluation.log_likelihood(model, train, test).mean, cells[zeros].mean(), rtol=1e-9)
    law = model.predictive("u5", model.items_)
    np.testing.assert_allclose(law.mean, μ[5], rtol=1e-10)
    np.testing.assert_allclose(model.predictive_for(dict(enumerate(MATRIX[7])), model.items_).mean, μ[7], rtol=1e-10)
    ranked = nbmf.evaluate(model, train, test)
    dense = nbmf.evaluate((μ, np.eye(20)), train, test)
    np.testing.assert_array_equal(ranked["ndcg_counts"].per_user, dense["ndcg_counts"].per_user)


def test_explanations_add_up(model):
    x, H, b = form(MATRIX, model.input), model.item_factors_[:, :-1], model.item_factors_[:, -1]
    for user, item in ((5, 4), (5, 2), (7, 0), (3, 1)):
        why = model.explain(f"u{user}", item)
        found = dict(zip(why.items.tolist(), why.contributions.tolist(), strict=True))
        expected = {j: x[user, j] * weights(model)[j, item] for j in np.flatnonzero(MATRIX[user]).tolist()}
        assert found == pytest.approx(expected, rel=1e-10)
        assert found.get(item, 0.0) == 0.0
        assert why.prior == pytest.approx(b[item])
        assert why.contributions.sum() + why.prior == pytest.approx(why.score, rel=1e-12)
        assert why.component_scores.sum() == pytest.approx(why.score, rel=1e-10)
        others = np.delete(x[user], item) @ np.delete(model.encoder_, item, axis=0) / model.n_starts
        by_component = np.append(others * H[item], b[item])
        np.testing.assert_allclose(why.component_scores, by_component[why.components], rtol=1e-9, atol=1e-15)
        assert why.component_names[why.components.tolist().index(H.shape[1])] == "everybody"
        new = model.explain_for({j: int(MATRIX[user, j]) for j in found}, item)
        np.testing.assert_allclose(new.score, why.score, rtol=1e-10)
        np.testing.assert_allclose(new.contributions, why.contributions, rtol=1e-10)


def test_unknown_cells_are_no_inputs_and_no_targets(model):
    unknown = UNKNOWN.copy()
    unknown[8], unknown[:, 9] = True, True
    other = np.where(unknown, MATRIX + 7, MATRIX)
    one, two = (clone(model).fit(data(matrix), unknown=unknown) for matrix in (MATRIX, other))
    for name in ("encoder_", "item_factors_", "user_factors_", "objective_"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    known = np.where(unknown, 0, MATRIX)
    np.testing.assert_allclose([one.predict(user, one.items_) for user in one.users_], intensities(one, known))
    assert np.isfinite(one.encoder_).all()
    assert not set(one.exposures("u5").item) & set(np.flatnonzero(unknown[5]))
    assert not one.result_.encode(sp.csr_array(known[[8]]))[0, :-1].any()
    assert np.isfinite(one.recommend("u8", 3).scores).all()
