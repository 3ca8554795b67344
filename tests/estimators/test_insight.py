"""Explanations, similar users and items, and the predictive distribution of counts."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

import nbmf
from helpers import count_distribution, count_matrices, small_matrix
from nbmf.estimators.fit import FactorFit
from nbmf.estimators.predictive import Predictive
from nbmf.evaluation import log_likelihood
from nbmf.model.likelihood import NegativeBinomial, Poisson
from nbmf.web.item_map import Factors, Readable

MODELS = [
    nbmf.NBMF(3, exposure="exact"),
    nbmf.NBMF(3, exposure="tied", n_clusters=4, concentration=0.4, user_shape=0.3),
    nbmf.NBMF(3, inference="mm"),
    nbmf.NBMF(3, concentration="learn_per_item", rates="per_row", shapes="learn"),
    nbmf.PoissonMF(3),
    nbmf.PoissonMF(3, binarize=True),
    nbmf.PoissonMF(3, inference="mm"),
]


def fitted(model, **settings):
    users, items = [f"user {n}" for n in range(30)], [f"item {n:02}" for n in range(20)]
    data = nbmf.Interactions.from_matrix(small_matrix(), users=users, items=items)
    return clone(model).set_params(**{"random_state": 0, "max_iter": 30, "dtype": "float64", **settings}).fit(data)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_parts_add_up_to_the_score(model, dtype):
    """Up to rounding in the factors' dtype, long before convergence, also for new users and users without counts."""
    model = fitted(model, dtype=dtype).add_users(
        nbmf.Interactions.from_matrix([[0, 2, 7]], users=["zoe"], items=["item 00", "item 04", "item 07"])
    )
    rounding = 1e-13 if dtype == "float64" else 3e-7
    for user in ("user 0", "user 3", "user 5", "zoe"):
        for item in ("item 00", "item 02", "item 13"):
            found = model.explain(user, item)
            assert found.score == pytest.approx(model.predict(user, item)[0], rel=rounding, abs=1e-300)
            assert found.contributions.sum() + found.prior == pytest.approx(found.score, rel=1e-13, abs=1e-300)
            assert np.all(found.contributions >= 0)
            assert (found.prior == 0) == (model.inference == "mm")
            products = model.user_factors_[model.users_ == user] * model.item_factors_[model.items_ == item]
            np.testing.assert_allclose(found.component_scores, np.sort(products[0])[::-1], rtol=rounding)
            np.testing.assert_allclose(found.component_scores, products[0][found.components], rtol=rounding)
            assert found.component_scores.sum() == pytest.approx(found.score, rel=1e-13, abs=1e-300)
    assert model.explain("zoe", "item 00").items.tolist() in (["item 07", "item 04"], ["item 04", "item 07"])
    assert len(model.explain("user 3", "item 00").items) == 0


NEW = {"item 04": 2, "item 07": 7, "item 01": 1}


@pytest.mark.parametrize("model", [*MODELS, nbmf.Averaged(nbmf.NBMF(2, max_iter=9, dtype="float64"), 2)], ids=str)
@pytest.mark.parametrize("counts", [NEW, {}], ids=["three items", "nothing"])
def test_newcomers_get_the_reasons_and_laws_of_their_recommendations(model, counts):
    """Parts add up to the scores, means are the scores, and the distribution is that of a user of the fit."""
    settings = {} if isinstance(model, nbmf.Averaged) else {"max_iter": 30, "dtype": "float64"}
    users, items = [f"user {n}" for n in range(30)], [f"item {n:02}" for n in range(20)]
    data = nbmf.Interactions.from_matrix(small_matrix(), users=users, items=items)
    model = clone(model).set_params(random_state=0, **settings).fit(data)
    best = model.recommend_for(counts, n=4)
    law = model.predictive_for(counts, best.items[0])
    np.testing.assert_allclose(law.mean, best.scores[0], rtol=1e-12)
    for item, score in zip(best.items[0], best.scores[0], strict=True):
        why = model.explain_for(counts, item)
        assert why.user is None
        assert why.score == pytest.approx(score, rel=1e-12)
        assert why.contributions.sum() + why.prior == pytest.approx(score, rel=1e-12)
        assert why.component_scores.sum() == pytest.approx(score, rel=1e-12)
        assert sorted(why.components) == list(range(model.components_.shape[0]))
        assert dict(zip(why.items.tolist(), why.counts.tolist(), strict=True)) == counts
        assert np.all(np.diff(why.contributions) <= 0)
    if counts and hasattr(model, "add_users"):
        rows = nbmf.Interactions.from_arrays(["zoe"] * 3, list(counts), list(counts.values()))
        known = clone(model).fit(data).add_users(rows)
        same = known.predictive("zoe", best.items[0])
        np.testing.assert_allclose(law.sd, same.sd, rtol=1e-9)
        np.testing.assert_array_equal(law.interval(0.9), same.interval(0.9))


def test_newcomers_unknown_items_are_named():
    model = fitted(MODELS[0])
    for ask in (model.explain_for, model.predictive_for):
        with pytest.raises(KeyError, match="item 'item 99' was not in the data"):
            ask({"item 99": 1}, "item 00")
        with pytest.raises(KeyError, match="item 'item 98' was not in the data"):
            ask({"item 04": 1}, "item 98")


@pytest.mark.parametrize("inference", ["cavi", "mm"])
def test_parts_are_those_of_the_formula(inference):
    """Σ_k h_ik y_uj φ_ujk / rate_uk, literally, where the fit has converged."""
    model = fitted(nbmf.NBMF(3, inference=inference, concentration=0.7), max_iter=3000, tol=1e-14)
    Y, users, items = small_matrix(), model.user_posterior_, model.item_posterior_
    u, i = 7, 4
    found = model.explain("user 7", "item 04")
    exposure = (0.7 + Y[u]) / (0.7 + model.user_factors_[u] @ model.item_factors_.T)
    rate = exposure @ model.item_factors_ + (1.0 if inference == "cavi" else 0.0)
    for j, part in zip(found.items, found.contributions, strict=True):
        column = int(j.removeprefix("item "))
        φ = users.geometric_mean[u] * items.geometric_mean[column]
        φ = φ / φ.sum()
        assert part == pytest.approx((model.item_factors_[i] * Y[u, column] * φ / rate).sum(), rel=1e-4)
    if inference == "cavi":
        assert found.prior == pytest.approx((model.item_factors_[i] / rate).sum(), rel=1e-4)
    assert found.contributions.tolist() == sorted(found.contributions, reverse=True)
    counts = dict(zip(found.items, found.counts, strict=True))
    assert counts == {f"item {n:02}": Y[u, n] for n in np.flatnonzero(Y[u])}


def test_explanations_can_be_shown():
    model = fitted(MODELS[0])
    found = model.explain("user 5", "item 02")
    frame = found.to_pandas()
    assert frame.columns.tolist() == ["item", "count", "contribution"]
    assert frame["contribution"].sum() + found.prior == pytest.approx(found.score)
    assert repr(found).startswith("Explanation(user 'user 5', item 'item 02': score ")
    assert "14 other items" in repr(found)
    assert "prior" in repr(found)
    lines = [line.split("  ")[0] for line in map(str.strip, repr(found).splitlines()[2:])]
    named = [f"{k} ({' · '.join(model.top_items(k, 2).items)})" for k in found.components]
    assert lines == ["by component", *named, "by item", *found.items[:5], "14 other items", "prior"]
    by_component = found.to_pandas(by="component")
    assert by_component["component"].tolist() == found.components.tolist()
    assert by_component["contribution"].sum() == pytest.approx(found.score)
    with pytest.raises(ValueError, match="by is 'factor'"):
        found.to_pandas(by="factor")
    with pytest.raises(ValueError, match="explain one user's score; got 2"):
        model.explain(["user 1", "user 2"], "item 00")
    with pytest.raises(KeyError, match="item 'item 99'"):
        model.explain("user 1", "item 99")


def test_unknown_cells_explain_nothing():
    unknown = np.zeros((30, 20), bool)
    unknown[7, 3] = True
    model = nbmf.NBMF(3, random_state=0, max_iter=20, dtype="float64").fit(small_matrix(), unknown=unknown)
    assert small_matrix()[7, 3] > 0
    found = model.explain(7, 0)
    assert 3 not in found.items
    assert found.contributions.sum() + found.prior == pytest.approx(found.score, rel=1e-13)


def test_likeness_does_not_depend_on_scales():
    """Multiplying a component of W and dividing that of H by the same number gives the same model."""
    model = fitted(nbmf.NBMF(3, inference="mm"))
    scale = np.array([1e-3, 1.0, 70.0])
    W, H = model.user_factors_ * scale, model.item_factors_ / scale
    other = nbmf.NBMF(3, inference="mm", init=(W + 1e-300, H + 1e-300), dtype="float64", max_iter=1, tol=0)
    other.fit(nbmf.Interactions.from_matrix(small_matrix(), users=model.users_, items=model.items_))
    model.set_params(max_iter=1, tol=0, init=(model.user_factors_ + 1e-300, model.item_factors_ + 1e-300)).fit(
        nbmf.Interactions.from_matrix(small_matrix(), users=model.users_, items=model.items_)
    )
    for ask in (lambda m: m.similar_items("item 05", n=19), lambda m: m.similar_users("user 6", n=29)):
        np.testing.assert_allclose(ask(model).similarity, ask(other).similarity, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("side", ["items", "users"])
def test_likeness_is_the_cosine_of_expected_counts(side):
    model = fitted(MODELS[0], dtype="float32")
    W, H = (values.astype(np.float64) for values in (model.user_factors_, model.item_factors_))
    rows, ids = (H * W.sum(axis=0), model.items_) if side == "items" else (W * H.sum(axis=0), model.users_)
    cosine = rows @ rows[4] / np.linalg.norm(rows, axis=1) / np.linalg.norm(rows[4])
    cosine[4] = -1
    found = (model.similar_items if side == "items" else model.similar_users)(ids[4], n=6)
    assert found.ids.tolist() == ids[np.argsort(-cosine, kind="stable")[:6]].tolist()
    np.testing.assert_allclose(found.similarity, np.sort(cosine)[::-1][:6], rtol=1e-9)
    assert found.to_pandas().columns.tolist() == ["id", "similarity"]
    assert repr(found).startswith("Similar(6)")


def marked():
    """Two groups of users with items of their own, and one item that everybody has most of."""
    counts = np.zeros((40, 9), int)
    counts[:20, :4], counts[20:, 4:8], counts[:, 8] = 3, 3, 5
    counts[:2, 3] = 0
    return nbmf.NBMF(2, random_state=0, dtype="float64").fit(counts)


def test_items_that_mark_a_component_are_its_own():
    model = marked()
    one, other = (model.top_items(k, n=9) for k in (0, 1))
    assert {frozenset(one.items[:4].tolist()), frozenset(other.items[:4].tolist())} == {
        frozenset(range(4)),
        frozenset(range(4, 8)),
    }
    assert 8 not in (one.items[0], other.items[0])
    for found in (one, other):
        expected = model.user_factors_.sum(axis=0) * model.item_factors_
        np.testing.assert_allclose(found.weight, expected[found.items, found.component], rtol=1e-12)
        share = (expected / expected.sum(axis=1, keepdims=True))[found.items, found.component]
        np.testing.assert_allclose(found.share, share, rtol=1e-12)
    assert one.to_pandas().columns.tolist() == ["item", "weight", "share"]
    assert repr(one).startswith("TopItems(component 0: 9 items)")
    for wrong in (2, -1, 0.5):
        with pytest.raises(ValueError, match=f"no component {wrong}; the components are numbered 0 to 1"):
            model.top_items(wrong)


def test_components_of_an_average_are_those_of_its_members():
    counts = marked().result_.counts
    model = nbmf.Averaged(nbmf.NBMF(2, dtype="float64"), n_runs=3, random_state=1).fit(counts)
    assert model.top_items(3).items.tolist() == model.members_[1].top_items(1).items.tolist()
    why = model.explain(0, 8)
    for k, name in zip(why.components, why.component_names, strict=True):
        own = model.members_[k // 2].explain(0, 8)
        assert name == f"{own.component_names[own.components.tolist().index(k % 2)]}; of members_[{k // 2}]"


def test_only_components_that_are_shown_are_named(monkeypatch):
    named, name = [], FactorFit.component_name
    monkeypatch.setattr(FactorFit, "component_name", lambda fit, k: named.append(k) or name(fit, k))
    why = nbmf.NBMF(12, max_iter=5, tol=0, random_state=0).fit(small_matrix()).explain(0, 1)
    assert named == []
    assert "7 other components" in repr(why)
    assert named == why.components[:5].tolist()
    assert len(why.component_names) == len(why.to_pandas(by="component")) == 12


def test_components_have_the_same_name_in_the_explorer():
    model = nbmf.NBMF(4, max_iter=30, tol=0, random_state=0).fit(small_matrix())
    labels = Factors(Readable.of(model), [str(item) for item in model.items_]).labels
    assert [model.result_.component_name(k) for k in range(4)] == [labels[k]["name"] for k in range(4)]


def test_item_weights_have_no_components():
    why = nbmf.NBSLIM().fit(small_matrix()).explain(0, 1)
    assert why.components is why.component_scores is why.component_names is None
    assert "component" not in repr(why)
    with pytest.raises(ValueError, match="a model that has components"):
        why.to_pandas(by="component")


ANSWERS = {
    "recommend": lambda m: m.recommend([0, 1], n=5),
    "exposures": lambda m: m.exposures(5),
    "explain": lambda m: m.explain(5, "<item> 02"),
    "similar_items": lambda m: m.similar_items("<item> 05"),
    "top_items": lambda m: m.top_items(1),
    "predictive": lambda m: m.predictive(5, m.items_),
}


@pytest.mark.parametrize("ask", ANSWERS.values(), ids=ANSWERS)
def test_answers_are_shown_as_tables(ask):
    """The same cells as text and as HTML, whose angle brackets are escaped; no arrays, no addresses."""
    data = nbmf.Interactions.from_matrix(small_matrix(), items=[f"<item> {n:02}" for n in range(20)])
    found = ask(clone(MODELS[3]).set_params(random_state=0, max_iter=10).fit(data))
    title, head, rows = found.shown()
    text, html = repr(found), found._repr_html_()
    assert text.splitlines()[0] == title
    assert len(text.splitlines()) == 2 + len(rows) == html.count("<tr>") + 1
    assert "array(" not in text
    assert " at 0x" not in text
    assert "<item>" in text
    assert "&lt;item&gt;" in html
    assert "<item>" not in html
    assert all(len(row) == len(head) for row in rows)
    assert len(found.to_pandas()) > 0


def test_long_tables_are_cut():
    model = fitted(MODELS[0])
    text = repr(model.recommend(n=4))
    assert len(text.splitlines()) == 2 + 25 + 1
    n_left = np.count_nonzero(np.isfinite(model.recommend(n=4).scores)) - 25
    assert text.splitlines()[-1] == f"… {n_left:,} more"
    pairs = model.predictive(["user 1"] * 60, ["item 00", "item 01"] * 30)
    assert repr(pairs).splitlines()[-1] == "… 35 more"


def test_one_alone_is_like_nobody():
    model = nbmf.NBMF(2, random_state=0).fit([[3]])
    assert len(model.similar_items(0).ids) == len(model.similar_users(0).ids) == 0
    with pytest.raises(ValueError, match="n is 0"):
        model.similar_items(0, n=0)


@pytest.mark.parametrize("α", [0.3, 1.0, 40.0, np.inf])
def test_the_law_of_a_pair_is_scipys(α):
    μ = np.array([0.0, 1e-3, 0.4, 3.0, 250.0])
    likelihood = Poisson() if α == np.inf else NegativeBinomial(α)
    found, expected = Predictive(np.arange(5), np.arange(5), μ[None], likelihood), count_distribution(α, μ)
    np.testing.assert_allclose(found.mean, μ)
    np.testing.assert_allclose(found.sd, expected.std(), rtol=1e-10)
    for count in (0, 1, 2, 7, 300):
        np.testing.assert_allclose(found.probability(count), expected.pmf(count), rtol=1e-9, atol=1e-300)
        np.testing.assert_allclose(found.at_least(count), expected.sf(count - 1), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(found.at_least([0, 1, 2, 3, 4]), expected.sf(np.arange(5) - 1), rtol=1e-9)
    for level in (0.5, 0.9, 0.99):
        lower, upper = found.interval(level)
        tail = (1 - level) / 2
        assert np.all(expected.cdf(lower - 1) <= tail)
        assert np.all(expected.cdf(lower) > tail)
        assert np.all(expected.sf(upper) <= tail)
        assert np.all((expected.sf(upper - 1) > tail) | (upper == 0))
        assert np.all(expected.cdf(upper) - expected.cdf(lower - 1) >= level - 1e-12)


def test_drawn_factors_are_mixed_over():
    model = fitted(nbmf.NBMF(3, concentration=2.0))
    users, items = ["user 1", "user 1", "user 3"], ["item 00", "item 07", "item 02"]
    mixed = model.predictive(users, items, factors="posterior", n_draws=4000, seed=1)
    W, H = model.user_posterior_, model.item_posterior_
    rows, columns = [1, 1, 3], [0, 7, 2]
    means = [(f.mean[r], f.mean[r] / f.rate[r]) for f, r in ((W, rows), (H, columns))]
    expected = (means[0][0] * means[1][0]).sum(axis=1)
    # the variance of a product of independent numbers, component by component
    spread = (
        (means[0][1] + means[0][0] ** 2) * (means[1][1] + means[1][0] ** 2) - (means[0][0] * means[1][0]) ** 2
    ).sum(axis=1)
    assert np.all(np.abs(mixed.mean - expected) < 5 * np.sqrt(spread / 4000))
    sd = np.sqrt(expected + (expected**2 + spread) / 2.0 + spread)
    np.testing.assert_allclose(mixed.sd, sd, rtol=0.15)
    same = model.predictive(users, items, factors="posterior", n_draws=4000, seed=1)
    assert same.mean.tobytes() == mixed.mean.tobytes()
    lower, upper = mixed.interval(0.8)
    assert np.all(1 - mixed.at_least(lower) <= 0.1)
    assert np.all(mixed.at_least(upper + 1) <= 0.1)
    np.testing.assert_allclose(sum(mixed.probability(n) for n in range(4)), 1 - mixed.at_least(4), rtol=1e-9)


@pytest.mark.parametrize(("concentration", "n_users", "n_items"), [(1.0, 120, 80), (5.0, 300, 200)])
def test_ninety_percent_intervals_hold_ninety_percent(concentration, n_users, n_items):
    """Fresh counts of the same users and items, with means of about 60, so that a single count has little probability.

    An interval that must hold 0.9 then holds hardly more: 0.91 to 0.92 with the true factors, because P(y = 0) of the
    cells with means below 19 exceeds the tail. Fitted factors are off by a tenth or more, which the intervals of
    their means do not know; here that cancels what whole counts add.
    """
    settings = {"n_components": 3, "concentration": concentration}
    truth = nbmf.datasets.simulate(n_users, n_items, mean_count=60.0, seed=1, **settings)
    model = nbmf.NBMF(**settings, random_state=0, max_iter=400, tol=1e-8, accelerate=True).fit(truth)
    rng, μ = np.random.default_rng(0), (truth.user_factors @ truth.item_factors.T).ravel()
    fresh = rng.poisson(rng.gamma(concentration, μ / concentration))
    cells = np.divmod(np.arange(μ.size), n_items)
    forecasts = [Predictive(*cells, μ[None], NegativeBinomial(concentration)), model.predictive(*cells)]
    for lower, upper in (forecast.interval(0.9) for forecast in forecasts):
        assert np.mean((lower <= fresh) & (fresh <= upper)) == pytest.approx(0.9, abs=0.03)


def test_few_counts_leave_more_open():
    """The fewer counts a user has, the wider the drawn intensities spread relative to their means."""
    truth = nbmf.datasets.simulate(300, 60, n_components=2, concentration=20.0, mean_count=4.0, seed=2)
    seen = truth.matrix.toarray() * (np.random.default_rng(0).random((300, 60)) < 0.5)
    model = nbmf.NBMF(2, concentration=20.0, random_state=0, max_iter=100).fit(seen)
    users, items = np.arange(300), np.arange(300) % 60
    mixed = model.predictive(users, items, factors="posterior")
    relative = mixed.intensity.std(axis=0) / mixed.mean
    few, many = (np.argsort(seen.sum(axis=1))[part] for part in (slice(0, 30), slice(-30, None)))
    assert np.median(relative[few]) > 2 * np.median(relative[many])
    assert np.mean(mixed.sd > model.predictive(users, items).sd) > 0.7


def test_intervals_of_small_counts_hold_what_they_say():
    """Most counts are 0, so the interval holds more than 0.9: exactly as much as its own probabilities say."""
    truth = nbmf.datasets.simulate(200, 100, n_components=3, mean_count=0.5, seed=3)
    μ = truth.user_factors @ truth.item_factors.T
    found = Predictive(*np.divmod(np.arange(μ.size), 100), μ.reshape(1, -1), NegativeBinomial(truth.concentration))
    lower, upper = found.interval(0.9)
    promised = found.at_least(lower) - found.at_least(upper + 1)
    counts = truth.matrix.toarray().ravel()
    held = (lower <= counts) & (counts <= upper)
    assert promised.min() >= 0.9
    sd = np.sqrt((promised * (1 - promised)).sum()) / μ.size
    assert abs(held.mean() - promised.mean()) < 4 * sd
    assert held.mean() > 0.93


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_score_of_known_users_is_the_held_out_likelihood(model):
    matrix, rng = small_matrix(40, 25), np.random.default_rng(0)
    train = np.where(rng.random(matrix.shape) < 0.3, 0, matrix)
    data = [nbmf.Interactions.from_matrix(part) for part in (train, matrix - train)]
    fit = clone(model).set_params(random_state=0, max_iter=20, dtype="float64").fit(data[0])
    expected = log_likelihood(fit, *data, n_boot=2)
    assert fit.score(data[1]) == pytest.approx(expected.mean, rel=1e-12)
    np.testing.assert_allclose(fit.score_samples(data[1]), expected.per_user, rtol=1e-12)
    # cells that were fitted are left out of the score
    assert fit.score(nbmf.Interactions.from_matrix(matrix)) == pytest.approx(expected.mean, rel=1e-12)


@pytest.mark.parametrize("model", [m for m in MODELS if m.inference == "cavi"], ids=str)
def test_score_of_new_rows_is_that_after_folding_in(model):
    fit = clone(model).set_params(random_state=0, max_iter=20, dtype="float64").fit(small_matrix())
    rows = small_matrix(12, 20, seed=9)
    μ = fit.transform(rows) @ fit.item_factors_.T
    counts = np.minimum(rows, 1) if getattr(model, "binarize", False) else rows
    cells = count_distribution(fit.concentration_, μ).logpmf(counts)
    np.testing.assert_allclose(fit.score_samples(rows), cells.mean(axis=1), rtol=1e-9)
    assert fit.score(sp.csr_array(rows)) == pytest.approx(cells.mean(), rel=1e-9)
    mixed = nbmf.Interactions.from_matrix(
        np.concatenate((np.zeros((1, 20), int), rows)), users=[4, *range(100, 112)]
    )  # user 4 was fitted
    np.testing.assert_allclose(fit.score_samples(mixed)[1:], cells.mean(axis=1), rtol=1e-9)
    α, μ = fit.concentration_, fit.user_factors_[4] @ fit.item_factors_.T
    zeros = count_distribution(np.ravel(α) if np.ndim(α) else α, μ).logpmf(0)[small_matrix()[4] == 0]
    assert fit.score_samples(mixed)[0] == pytest.approx(zeros.mean(), rel=1e-9)


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda m: m.predictive("user 1", "item 00", factors="all"), ValueError, "factors is 'all'"),
        (lambda m: m.predictive("user 1", "item 00", factors="posterior", n_draws=0), ValueError, "n_draws is 0"),
        (lambda m: m.predictive(["user 1"] * 2, ["item 00"] * 3), ValueError, "2 users and 3 items"),
        (lambda m: m.predictive("user 1", "item 00").interval(1.0), ValueError, "level is 1.0"),
        (lambda m: m.predictive("user 1", "item 00").probability(0.5), ValueError, "count 0.5 has no probability"),
        (lambda m: m.predictive("user 1", "item 00").at_least(-1), ValueError, "count -1 has no probability"),
        (lambda m: m.predictive("nobody", "item 00"), KeyError, "user 'nobody'"),
    ],
)
def test_bad_questions_are_named(ask, error, message):
    with pytest.raises(error, match=message):
        ask(fitted(MODELS[0]))


def test_maximum_likelihood_has_no_posterior():
    with pytest.raises(ValueError, match="no posterior to draw from"):
        fitted(nbmf.NBMF(3, inference="mm")).predictive("user 1", "item 00", factors="posterior")


@given(count_matrices(), st.integers(1, 9), st.sampled_from(MODELS))
def test_any_counts_can_be_explained(matrix, n_components, model):
    fit = clone(model).set_params(n_components=n_components, max_iter=8, tol=0, random_state=0).fit(matrix)
    user, item = len(matrix) - 1, matrix.shape[1] - 1
    found = fit.explain(user, item)
    assert found.contributions.sum() + found.prior == pytest.approx(found.score, rel=1e-10, abs=1e-300)
    assert np.all(found.contributions >= 0)
    for alike in (fit.similar_items(item), fit.similar_users(user)):
        assert np.all((alike.similarity >= 0) & (alike.similarity <= 1))
    forecast = fit.predictive(user, np.arange(matrix.shape[1]))
    for values in (forecast.mean, forecast.sd, forecast.at_least(3), forecast.probability(1), *forecast.interval()):
        assert np.all(np.isfinite(values) & (values >= 0))
    assert not np.isnan(fit.score(matrix))


def test_intervals_of_enormous_means_end():
    """Beyond 2^53 doubles are more than 1 apart."""
    data = nbmf.Interactions.from_matrix([[2**56, 2**55], [2**55, 2**54]])
    model = nbmf.PoissonMF(1, random_state=0, dtype="float64").fit(data)
    low, high = model.predictive(0, 0).interval(0.9)
    assert 0 < low[0] <= model.predict(0, 0)[0] * (1 + 1e-6)
    assert high[0] >= low[0]
