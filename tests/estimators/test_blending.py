"""Several models, one ranking: scores and their parts are weighted sums, and mixtures are learned where they help."""

import json
import os
import re
import signal
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import nbmf
from helpers import small_matrix
from nbmf.estimators import blend_weights
from nbmf.estimators.blend_fit import BlendFit
from nbmf.estimators.blend_fit import summed as scores_of_sum
from nbmf.estimators.blend_weights import around, is_clear, learn_weights, simplex, size_of
from nbmf.estimators.scores import FactorScores, ModelScores
from nbmf.model.factors import Point
from nbmf.storage.container import StorageError, read, write

SLIM = nbmf.NBSLIM(penalty=1.0, dtype="float64")
FACTORS = nbmf.NBMF(3, max_iter=15, tol=0, dtype="float64", random_state=1)
JUMPS = nbmf.CompoundMF(2, max_iter=15, tol=0, dtype="float64", random_state=2)
ENCODER = nbmf.NBFISM(3, penalty=1.0, n_starts=2, max_iter=15, tol=0, dtype="float64", random_state=4)
STARTS = nbmf.Averaged(nbmf.PoissonMF(2, max_iter=15, tol=0, dtype="float64"), n_runs=2, random_state=3)
BLENDS = {
    "factors": nbmf.Blend([FACTORS, JUMPS, STARTS], [0.5, 0.3, 0.2]),
    "factors and weights": nbmf.Blend([SLIM, STARTS, FACTORS], (0.2, 0.5, 0.3)),
    "factors and an encoder": nbmf.Blend([ENCODER, JUMPS], [0.7, 0.3]),
    "weights and an encoder": nbmf.Blend([SLIM, ENCODER], [0.6, 0.4]),
    "an encoder alone": nbmf.Blend([ENCODER], [1.0]),
    "one member alone": nbmf.Blend([SLIM, FACTORS], np.array([0.0, 1.0])),
    "single precision": nbmf.Blend([nbmf.NBSLIM(penalty=1.0), JUMPS], [0.5, 0.5]),
    "comparison models": nbmf.Blend(
        [nbmf.ExpoMF(2, max_iter=5, random_state=0), nbmf.CoupledCompoundMF(2, max_iter=5, random_state=0)], [0.5, 0.5]
    ),
}
USERS, ITEMS = [f"u{n}" for n in range(30)], [f"i{n}" for n in range(20)]


def data(matrix=None):
    return nbmf.Interactions.from_matrix(small_matrix() if matrix is None else matrix, USERS, ITEMS)


@pytest.fixture(scope="module", params=BLENDS)
def model(request):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return clone(BLENDS[request.param]).fit(data())


def precision(model):
    return 1e-9 if model.result_.dtype == np.float64 else 1e-5


def summed(model, answer):
    return sum(w / s * answer(m) for w, s, m in zip(model.weights_, model.scales_, model.members_, strict=True) if w)


def in_order(found):
    return found.scores[0, np.argsort(found.items[0])]


# ---- answers --------------------------------------------------------------------------------------------------------


def test_scores_are_weighted_sums(model):
    rows, tolerance = np.arange(30), precision(model)
    every = summed(model, lambda m: m.predict(np.repeat(USERS, 20), ITEMS * 30).astype(float)).reshape(30, 20)
    np.testing.assert_allclose(model.score_items(rows), every, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(
        model.predict(["u0", "u7"], ["i3", "i0"]), every[[0, 7], [3, 0]], rtol=tolerance, atol=tolerance
    )
    found = model.recommend("u9", n=20, exclude_seen=False)
    np.testing.assert_allclose(found.scores[0], np.sort(every[9])[::-1], rtol=tolerance, atol=tolerance)
    best = model.recommend(USERS, n=3)
    assert not np.any([item in np.array(ITEMS)[small_matrix()[u] > 0] for u in range(30) for item in best.items[u]])
    assert model.result_.scores().dtype in (np.float64, model.result_.dtype)


@pytest.mark.parametrize("basket", [{"i3": 4, "i7": 1}, {}], ids=["basket", "nobody"])
def test_so_are_those_of_somebody_new(model, basket):
    options = {"n": 20, "exclude_seen": False}
    expected = summed(model, lambda m: in_order(m.recommend_for(basket, **options)).astype(float))
    found = in_order(model.recommend_for(basket, **options))
    np.testing.assert_allclose(found, expected, rtol=max(precision(model), 1e-6), atol=precision(model))


def test_the_totals_of_rows_are_sums_of_scores(model):
    rows = nbmf.Interactions.from_matrix(small_matrix()[:3], items=ITEMS)
    best = model.recommend_for(rows, n=20, exclude_seen=False)
    np.testing.assert_allclose(model.predict(rows), best.scores.sum(axis=1), rtol=1e-5)


def test_explanations_add_up(model):
    for why in (model.explain("u3", "i5"), model.explain("u8", "i5"), model.explain_for({"i3": 2, "i9": 1}, "i5")):
        assert why.contributions.sum() + why.prior == pytest.approx(why.score, rel=1e-12)
        assert list(why.contributions) == sorted(why.contributions, reverse=True)
        assert why.components is None
    why = model.explain("u8", "i5")
    assert why.score == pytest.approx(model.predict("u8", "i5")[0], rel=1e-5)
    for item, part in zip(why.items, why.contributions, strict=True):

        def of_item(member, item=item):
            found = member.explain("u8", "i5")
            return found.contributions[found.items == item][0]

        assert part == pytest.approx(summed(model, of_item), rel=1e-9, abs=1e-12)


def test_similarities_are_means_of_relative_similarities(model):
    found, expected = model.similar_items("i4", n=19), dict.fromkeys(ITEMS, 0.0)
    for weight, member in zip(model.weights_, model.members_, strict=True):
        own = member.similar_items("i4", n=19)
        for item, similarity in zip(own.ids, own.similarity, strict=True):
            expected[item] += weight * max(similarity, 0) / own.similarity[0] if weight else 0
    assert "i4" not in found.ids
    np.testing.assert_allclose(found.similarity, [expected[item] for item in found.ids])
    assert len(found.ids) == sum(value > 0 for value in expected.values())
    assert list(found.similarity) == sorted(found.similarity, reverse=True)
    assert model.similar_items("i4", n=2).ids.tolist() == found.ids[:2].tolist()
    with pytest.raises(ValueError, match="ask for at least 1"):
        model.similar_items("i4", n=0)


def test_factors_stay_factors(model):
    scores = model.result_.scores()
    has_weights = any(isinstance(m.result_.scores(), ModelScores) for _, m in zip(*used(model), strict=True))
    assert isinstance(scores, ModelScores if has_weights else FactorScores)


def used(model):
    kept = model.weights_ > 0
    return model.weights_[kept], [m for m, is_kept in zip(model.members_, kept, strict=True) if is_kept]


def test_what_a_blend_has_not_is_a_members_to_say(model):
    for ask in (
        lambda: model.predictive("u0", "i0"),
        lambda: model.predictive_for({"i1": 2}, ["i0"]),
        lambda: nbmf.evaluation.log_likelihood(model, data(), data()),
    ):
        with pytest.raises(ValueError, match=r"a blend of models has no likelihood of counts; .*members_\[0\]"):
            ask()


def test_large_and_small_factors_do_not_overflow():
    huge, tiny = FactorScores(np.full((2, 1), 1e-30, "f4"), np.full((3, 1), 1e15, "f4")), 1e-15
    found = scores_of_sum([(1 / size_of(huge), huge), (0.5 / tiny, huge)], np.dtype(np.float32))
    np.testing.assert_allclose(found.pairs(np.array([0, 1]), np.array([0, 2])), [1.5, 1.5], rtol=1e-5)
    assert size_of(FactorScores(np.zeros((2, 1)), np.ones((3, 1)))) == 1.0


# ---- weights --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts():
    return nbmf.datasets.simulate(300, 80, n_components=4, mean_count=1.0, seed=0).split(seed=0)


def blocks():
    """Four tastes, four kinds of items, and nothing else to know."""
    tastes = 0.02 + 3.0 * (np.arange(300)[:, None] % 4 == np.arange(80) % 4)
    return nbmf.Interactions.from_matrix(np.random.default_rng(0).poisson(tastes)).split(seed=0)


def test_a_useless_member_gets_no_weight():
    """With one component there is only popularity, and all items are equally popular."""
    train, test = blocks()
    useless, useful = nbmf.PoissonMF(1, random_state=0), nbmf.PoissonMF(4, max_iter=100, random_state=0)
    model = nbmf.Blend([useless, useful], random_state=0).fit(train)
    assert model.weights_[0] < 0.1
    alone, blend = (nbmf.evaluate(m, train, test)["ndcg_counts"].mean for m in (model.members_[1], model))
    assert blend > alone - 0.001


def test_one_model_is_taken_where_a_mixture_does_not_help():
    """The scores of the second model are of other users; those of the third come close to the first's."""
    rest, aside = blocks()
    good = nbmf.PoissonMF(4, max_iter=100, random_state=0).fit(rest).result_
    bad = replace(good, user_posterior=Point(np.roll(good.user_posterior.mean, 1, axis=0)))
    for members, chosen in (([good, bad], [1, 0]), ([bad, good], [0, 1])):
        assert learn_weights(members, aside.matrix, 1).tolist() == chosen
    assert learn_weights([good, bad, good], aside.matrix, 1)[1] < 0.1


def test_equal_models_are_not_told_apart_by_chance():
    gain = np.random.default_rng(0).normal(size=400)
    assert not is_clear(gain - gain.mean())
    assert is_clear(gain - gain.mean() + 1)
    assert not is_clear(np.ones(1))


def test_models_that_complete_each_other_are_mixed():
    """Each knows half of the items: only together do they rank them all."""
    rest, aside = blocks()
    fit = nbmf.PoissonMF(4, max_iter=100, random_state=0).fit(rest).result_
    halves = [masked(fit, slice(0, 40)), masked(fit, slice(40, 80))]
    weights = learn_weights(halves, aside.matrix, 2)
    assert weights.min() > 0.1
    np.testing.assert_array_equal(weights, learn_weights(halves, aside.matrix, 1))


def masked(fit, kept):
    items = np.zeros_like(fit.item_posterior.mean)
    items[kept] = fit.item_posterior.mean[kept]
    return replace(fit, item_posterior=Point(items))


def test_weights_do_not_depend_on_threads_and_follow_the_seed(parts):
    models = [nbmf.NBSLIM(penalty=1.0), nbmf.PoissonMF(4, max_iter=60, random_state=0)]
    several = nbmf.Blend([*models, nbmf.NBMF(3, max_iter=60, random_state=0)], random_state=7)
    blends = []
    for n in (1, 2):
        settings = [clone(model).set_params(n_threads=n) for model in several.models]
        blends.append(nbmf.Blend(settings, random_state=7).fit(parts[0]))
    np.testing.assert_array_equal(blends[0].weights_, blends[1].weights_)
    np.testing.assert_array_equal(blends[0].scales_, blends[1].scales_)
    np.testing.assert_array_equal(blends[0].recommend(n=5).scores, blends[1].recommend(n=5).scores)
    best = max(nbmf.evaluate(m, *parts)["ndcg_counts"].mean for m in blends[0].members_)
    assert nbmf.evaluate(blends[0], *parts)["ndcg_counts"].mean > best - 0.02


def test_the_search_covers_the_simplex(monkeypatch):
    for n in range(1, 9):
        weights, step = simplex(n)
        assert len(np.unique(weights, axis=0)) == len(weights) <= max(100, n)
        np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-12)
        assert all(np.any(np.all(weights == one, axis=1)) for one in np.eye(n))
        near = around(weights[-1], step)
        assert len(near) == n - 1
    assert around(np.array([0.75, 0.25]), 0.25).tolist() == [[0.5, 0.5], [1.0, 0.0]]
    monkeypatch.setattr(blend_weights, "MOST_USERS", 40)
    train, _ = nbmf.datasets.simulate(120, 30, n_components=2, seed=0).split(seed=0)
    model = nbmf.Blend([nbmf.NBSLIM(penalty=1.0), nbmf.PoissonMF(2, random_state=0)], random_state=0).fit(train)
    assert model.weights_.sum() == pytest.approx(1)


def test_given_weights_are_taken_as_they_are(model):
    assert model.weights_.tolist() == list(np.asarray(model.weights, float))
    assert np.all(model.scales_ > 0)


@pytest.mark.filterwarnings("ignore")
def test_too_little_data_asks_for_weights():
    models = [nbmf.NBSLIM(), nbmf.PoissonMF(1)]
    with pytest.raises(ValueError, match="1 count is too few to learn weights from; give more"):
        nbmf.Blend(models).fit([[1, 0], [0, 0]])
    assert nbmf.Blend(models).fit([[1, 2], [0, 0]]).weights_.sum() == 1
    assert nbmf.Blend(models[:1]).fit([[1, 0], [0, 0]]).weights_.tolist() == [1]


# ---- the estimator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([], r"models is \[\]; give a list of estimators"),
        (nbmf.NBSLIM(), "give a list of estimators, as in"),
        ([nbmf.NBSLIM], r"models\[0\] is the class NBSLIM; give an instance, NBSLIM\(\)"),
        ([nbmf.NBMF(2), nbmf.NBMF(2)], r"models\[1\] is the same NBMF as one before it; .* nbmf.Averaged\(NBMF"),
        ([nbmf.NBSLIM()] * 2, r"models\[1\] is the same NBSLIM as one before it; give each once$"),
        ([nbmf.NBFISM(2)] * 2, r"the same NBFISM as one before it; give each once; its n_starts says"),
        (
            [nbmf.NBSLIM(), nbmf.Blend([nbmf.NBSLIM()])],
            r"models\[1\] is a Blend, which cannot be a member; list its models",
        ),
        ([nbmf.NBSLIM(), 3], r"models\[1\] is a int, which cannot be a member; give estimators of nbmf"),
        ([nbmf.NBSLIM(), nbmf.NBMF(0)], "n_components is 0"),
    ],
)
def test_models_that_cannot_be_blended(models, message):
    with pytest.raises((TypeError, ValueError), match=message):
        nbmf.Blend(models).fit(data())


@pytest.mark.parametrize(
    "weights",
    [
        [-0.5, 1.5],
        [1.0],
        [2, 1],
        "equal",
        [np.nan, 1.0],
        [True, False],
        ["1", "0"],
        None,
        [[0.5, 0.5, 0.5]],
        [[0.5, 0.5]],
    ],
)
def test_weights_that_are_none(weights):
    with pytest.raises(
        ValueError, match=r"weights is .*give a number from 0 per model, of sum 1, .*0\.5, 0\.5.*'learn'"
    ):
        nbmf.Blend([SLIM, FACTORS], weights).fit(data())


def test_settings_are_scikit_learns():
    blend = nbmf.Blend([SLIM, FACTORS], [0.25, 0.75], random_state=4)
    copied = clone(blend)
    assert copied.models is not blend.models
    assert [type(model) for model in copied.models] == [nbmf.NBSLIM, nbmf.NBMF]
    assert copied.models[0] is not SLIM
    assert str(copied) == str(blend)
    assert set(blend.get_params(deep=True)) == {"models", "weights", "random_state"}
    assert blend.set_params(weights="learn").weights == "learn"
    assert (blend.backend, blend.n_threads, blend.dtype, blend.tol) == ("auto", None, "float64", 0)
    mixed = nbmf.Blend([nbmf.NBSLIM(n_threads=1), nbmf.NBMF(backend="cpu", dtype="float64")])
    assert (mixed.backend, mixed.n_threads, mixed.dtype, mixed.tol) == ("auto", None, "float32", 1e-5)


def test_a_warning_is_said_once_with_the_number_of_members():
    models = [nbmf.NBMF(2, max_iter=2, random_state=0), nbmf.PoissonMF(2, max_iter=2, random_state=0), SLIM]
    with pytest.warns(ConvergenceWarning, match="2 of 3 members: NBMF has not converged") as caught:
        model = nbmf.Blend(models, random_state=0).fit(data())
    assert len([one for one in caught if one.category is ConvergenceWarning]) == 1
    assert not model.converged_
    assert model.ending_ == "max_iter"
    assert model.n_iter_ == max(member.n_iter_ for member in model.members_)
    assert len(model.objective_) == 0


@pytest.mark.filterwarnings("ignore")
def test_ctrl_c_ends_all_fits(monkeypatch):
    fits, fit = [], nbmf.NBMF.fit

    def interrupted(self, X):
        fits.append(self)
        return fit(self, X, callbacks=[lambda snapshot: os.kill(os.getpid(), signal.SIGINT)])

    monkeypatch.setattr(nbmf.NBMF, "fit", interrupted)
    blend = nbmf.Blend([FACTORS, SLIM])
    with pytest.raises(KeyboardInterrupt):
        blend.fit(data())
    assert len(fits) == 1
    assert not hasattr(blend, "members_")


def test_growing_grows_every_member():
    model = nbmf.Blend([FACTORS, JUMPS, STARTS], [0.5, 0.3, 0.2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model.fit(data())
    before, members, known = model.weights_ / model.scales_, list(model.members_), model.predict(USERS, "i4")
    model.add_users(nbmf.Interactions.from_arrays(["new", "new"], ["i1", "i2"], [3, 1]))
    assert model.users_.tolist() == [*USERS, "new"]
    np.testing.assert_array_equal(model.predict(USERS, "i4"), known)
    np.testing.assert_array_equal(model.weights_ / model.scales_, before)
    assert all(len(member.users_) == 30 for member in members)  # members handed out before are not changed
    model.partial_fit(nbmf.Interactions.from_arrays(["zoe", "u1"], ["song", "i3"], [2, 2]), refresh=1)
    assert model.users_.tolist()[-1] == "zoe"
    assert model.items_.tolist()[-1] == "song"
    expected = summed(model, lambda m: m.predict("zoe", "i3"))
    np.testing.assert_allclose(model.predict("zoe", "i3"), expected, rtol=1e-9)
    stiff = nbmf.Blend([SLIM, JUMPS], [0.5, 0.5]).partial_fit(data())
    for grow in (stiff.add_users, stiff.partial_fit):
        with pytest.raises(ValueError, match=r"NBSLIM has no \w+, so a blend with it cannot grow; fit the blend again"):
            grow(data())


def test_it_is_evaluated_like_any_model(model):
    train, test = data(), data(np.roll(small_matrix(), 1, axis=0) * (small_matrix() == 0))
    fit = model.result_
    arrays = model.score_items(np.arange(30))
    assert isinstance(fit, BlendFit)
    found = nbmf.evaluate(model, train, test, n_boot=1)["ndcg_counts"].mean
    other = nbmf.evaluate((arrays, np.eye(20)), train, test, n_boot=1)["ndcg_counts"].mean
    assert found == pytest.approx(other, abs=1e-9)


def test_frames_keep_their_names():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(small_matrix(), columns=ITEMS, index=USERS)
    model = nbmf.Blend([SLIM, FACTORS], [0.5, 0.5]).fit(frame)
    assert model.feature_names_in_.tolist() == ITEMS
    assert model.recommend("u3", n=2).items.shape == (1, 2)
    np.testing.assert_allclose(
        model.predict(frame.iloc[:2]), nbmf.Blend([SLIM, FACTORS], [0.5, 0.5]).fit(data()).predict(data())[:2]
    )


# ---- files ----------------------------------------------------------------------------------------------------------


def test_one_file_holds_them_all(model, tmp_path):
    path = tmp_path / "model.nbmf"
    model.save(path)
    same = nbmf.load(path)
    assert [type(member) for member in same.members_] == [type(member) for member in model.members_]
    assert str(same.get_params()["models"]) == str(model.get_params()["models"])
    assert same.weights == model.weights_.tolist()
    for one, other in ((same.weights_, model.weights_), (same.scales_, model.scales_)):
        np.testing.assert_array_equal(one, other)
    options = {"n": 20, "exclude_seen": False}
    np.testing.assert_array_equal(same.recommend(**options).scores, model.recommend(**options).scores)
    new = {"i2": 1, "i8": 3}
    np.testing.assert_array_equal(same.recommend_for(new, **options).scores, model.recommend_for(new, **options).scores)
    np.testing.assert_array_equal(same.explain("u3", "i5").contributions, model.explain("u3", "i5").contributions)
    np.testing.assert_array_equal(same.similar_items("i3", 9).similarity, model.similar_items("i3", 9).similarity)
    same.save(tmp_path / "again.nbmf")
    assert path.read_bytes() == (tmp_path / "again.nbmf").read_bytes()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda model: model.members_[1].fit(data(2 * small_matrix())), r"members_\[1\] is"),
        (lambda model: setattr(model.members_[1], "item_factors_", 2 * model.members_[1].item_factors_), "factors are"),
        (lambda model: model.members_.pop(), "members_ are"),
        (lambda model: model.members_.reverse(), r"members_\[0\] is"),
        (lambda model: setattr(model, "weights_", np.array([0.1, 0.9])), "weights_ or scales_ are"),
        (lambda model: setattr(model, "scales_", np.ones(2)), "weights_ or scales_ are"),
    ],
)
def test_what_was_changed_is_not_saved(change, what, tmp_path):
    """A file would hold something else than what answers."""
    model = nbmf.Blend([SLIM, FACTORS], [0.5, 0.5]).fit(data())
    change(model)
    with pytest.raises(StorageError, match=f"{what} no longer th.* of the fit"):
        model.save(tmp_path / "model.nbmf")
    assert not (tmp_path / "model.nbmf").exists()


def test_what_was_learned_is_loaded_as_learned(tmp_path, parts):
    model = nbmf.Blend([nbmf.NBSLIM(), nbmf.PoissonMF(3, random_state=0)], random_state=5).fit(parts[0])
    model.save(tmp_path / "model.nbmf")
    same = nbmf.load(tmp_path / "model.nbmf")
    assert str(same) == str(model)
    single = tmp_path / "single.nbmf"
    sizes = []
    for member in model.members_:
        member.save(single)
        sizes.append(single.stat().st_size)
    assert (tmp_path / "model.nbmf").stat().st_size < sum(sizes) - parts[0].matrix.data.nbytes  # counts are there once


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("written") / "model.nbmf"
    clone(BLENDS["factors and weights"]).fit(data()).save(path)
    return read(path)


def in_the_member(name, value):
    return lambda document, arrays: document["members"][0].update({name: value})


FORGED = {
    "negative weights": (
        lambda d, a: a.update(weights=np.array([-0.5, 1.0, 0.5])),
        "its weights are not numbers from 0",
    ),
    "heavy weights": (lambda d, a: a.update(weights=np.ones(3)), "its weights are not numbers from 0 that sum to 1"),
    "no weight": (lambda d, a: a.update(weights=np.array([np.nan, 0.5, 0.5])), "its weights are not numbers from 0"),
    "few weights": (lambda d, a: a.update(weights=np.array([0.5, 0.5])), "it must be 3"),
    "scale of 0": (lambda d, a: a.update(scales=np.array([0.0, 1.0, 1.0])), "or its scales not positive numbers"),
    "no scales": (lambda d, a: a.pop("scales"), "it has no array 'scales'"),
    "no members": (lambda d, a: d.update(members=[]), "it has no members"),
    "odd members": (lambda d, a: d.update(members=[1, 2, 3]), "it has no members"),
    "nested": (in_the_member("kind", "blend"), "one of its members is 'blend'"),
    "a checkpoint": (in_the_member("kind", "checkpoint"), "one of its members is 'checkpoint'"),
    "another kind": (in_the_member("kind", "model"), "holds a 'NBSLIM', and nbmf.load knows NBMF"),
    "another class": (in_the_member("class", "os.system"), "holds a 'os.system', and nbmf.load knows NBSLIM"),
    "lost array": (lambda d, a: a.pop("0/intercept"), "it has no array 'intercept'"),
    "equal to nothing": (
        lambda d, a: d["equal"].update({"1/0/counts.data": "x"}),
        "equal others, which it does not have",
    ),
    "equal to a list": (
        lambda d, a: d["equal"].update({"1/0/counts.data": ["x"]}),
        "equal others, which it does not have",
    ),
    "other settings": (lambda d, a: d["settings"].update(speed=3), "has the setting 'speed', unknown to this nbmf"),
    "the same twice": (
        lambda d, a: (d.update(members=[d["members"][0]] * 3), a.update(same_arrays(a))),
        "is the same NBSLIM as one before it",
    ),
}


def same_arrays(arrays):
    own = {name[2:]: array for name, array in arrays.items() if name.startswith("0/")}
    return {f"{n}/{name}": array for n in (1, 2) for name, array in own.items()}


@pytest.mark.parametrize("forged", FORGED)
def test_forged_files_are_refused(written, tmp_path, forged):
    document, arrays = json.loads(json.dumps(written.document)), dict(written.arrays)
    change, sentence = FORGED[forged]
    change(document, arrays)
    write(tmp_path / "model.nbmf", document, arrays)
    with pytest.raises(StorageError, match=re.escape(sentence)):
        nbmf.load(tmp_path / "model.nbmf")


def test_members_of_other_users_are_refused(written, tmp_path):
    clone(SLIM).fit(nbmf.Interactions.from_matrix(small_matrix(), list(reversed(USERS)), ITEMS)).save(tmp_path / "m")
    other, document, arrays = read(tmp_path / "m"), dict(written.document), dict(written.arrays)
    document["members"] = [*document["members"][:2], other.document]
    arrays |= {f"2/{name}": array for name, array in other.arrays.items()}
    document["equal"] = {name: first for name, first in document["equal"].items() if not name.startswith("2/")}
    write(tmp_path / "model.nbmf", document, arrays)
    with pytest.raises(StorageError, match="not fits of the same users and items"):
        nbmf.load(tmp_path / "model.nbmf")


def test_members_that_claim_too_much_memory_are_refused(written, tmp_path):
    """A small file may not stand for a thousand copies of its largest array."""
    arrays = dict(written.arrays) | {"0/x": np.zeros(1 << 20, "u1")}
    equal = {f"0/x{n}": "0/x" for n in range(1000)}
    write(tmp_path / "model.nbmf", written.document | {"equal": written.document["equal"] | equal}, arrays)
    with pytest.raises(StorageError, match="its 3 members take too much memory"):
        nbmf.load(tmp_path / "model.nbmf")


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_damaged_file_is_refused(tmp_path, place):
    path = tmp_path / "model.nbmf"
    nbmf.Blend([SLIM, FACTORS], [0.5, 0.5]).fit(data()).save(path)
    whole = bytearray(path.read_bytes())
    whole[int(place * len(whole))] ^= 4
    path.write_bytes(whole)
    with pytest.raises(StorageError):
        nbmf.load(path)


def test_the_page_names_every_entry(written):
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    section = page[page.index("## A blend") : page.index("## A model of item")]
    known = {"kind", "version", "written_by", "settings", "members", "equal", "weights", "scales"}
    assert set(written.document) == known - {"weights", "scales"}
    assert all(f"`{name}`" in section for name in known - {"kind"})


def test_an_unfitted_blend_says_so(tmp_path):
    blend = nbmf.Blend([SLIM])
    for ask in (lambda: blend.recommend(0), lambda: blend.save(tmp_path / "m"), lambda: blend.add_users(data())):
        with pytest.raises(ValueError, match="is not fitted yet"):
            ask()


def test_sparse_and_dense_matrices_are_the_same_data():
    one, other = (clone(BLENDS["factors and weights"]).fit(X) for X in (small_matrix(), sp.csr_array(small_matrix())))
    np.testing.assert_array_equal(one.recommend(n=4).scores, other.recommend(n=4).scores)
