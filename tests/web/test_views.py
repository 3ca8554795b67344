"""The answers of a model as plain data: they are the model's own, and only those that it has."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

import nbmf
from nbmf.web.item_map import draw_map, largest_factors
from nbmf.web.names import Index, folded
from nbmf.web.reload import ServedModel, history_of
from nbmf.web.views import NoAnswerError, UnknownIdError, Views
from serving import plays, write_model

MODELS = [
    nbmf.NBMF(4, max_iter=15, random_state=0),
    nbmf.NBMF(4, max_iter=15, random_state=0, exposure="tied", n_clusters=3, rates="per_row"),
    nbmf.PoissonMF(4, max_iter=15, random_state=0),
    nbmf.Averaged(nbmf.NBMF(3, max_iter=9), 2, random_state=0),
]
USER, ITEM, USER_ITEM = "ann/7", 104, "107"


@pytest.fixture(scope="module", params=MODELS, ids=str)
def views(request):
    return Views(clone(request.param).fit(plays()), "mark")


def test_recommendations_are_the_models_own(views):
    model = views.model
    answer, best = views.recommend(USER, 5, 0.8), model.recommend(USER, n=5)
    assert answer["user"] == USER
    assert [row["item"] for row in answer["items"]] == best.items[0].tolist()
    assert [row["score"] for row in answer["items"]] == best.scores[0].tolist()
    assert [row["name"] for row in answer["items"]] == best.names[0].tolist()
    distribution = model.predictive(USER, best.items[0])
    assert [row["interval"] for row in answer["items"]] == np.transpose(distribution.interval(0.8)).tolist()
    assert [row["at_least_one"] for row in answer["items"]] == pytest.approx(distribution.at_least(1).tolist())
    assert "interval" not in views.recommend(USER, 1)["items"][0]
    everything = views.recommend(USER, 30, include_seen=True)["items"]
    assert len(everything) == 30 > len(views.recommend(USER, 30)["items"])


def test_recommendations_for_a_basket_are_the_models_own(views):
    counts = {str(row["item"]): row["count"] for row in views.history(USER, 30)["items"]}
    basket = {int(item): count for item, count in counts.items()}
    answer, best = views.recommend_for(counts.items(), 5, 0.9)["items"], views.model.recommend_for(basket, n=5)
    assert [row["item"] for row in answer] == best.items[0].tolist()
    assert [row["score"] for row in answer] == best.scores[0].tolist()
    distribution = views.model.predictive_for(basket, best.items[0])
    assert [row["interval"] for row in answer] == np.transpose(distribution.interval(0.9)).tolist()
    assert [row["at_least_one"] for row in answer] == pytest.approx(distribution.at_least(1).tolist())
    why = views.explain_for(counts.items(), answer[0]["item"], 3)
    assert why["score"] == pytest.approx(answer[0]["score"], rel=1e-5)
    assert len(why["parts"]) == 3
    assert why["others"]["n_items"] == len(counts) - 3


def test_a_basket_of_a_users_counts_is_like_that_user(views):
    """Among the nearest of 40 users; not always the nearest, as these fits end before the users have settled."""
    model = views.model
    counts = {str(row["item"]): row["count"] for row in views.history(USER, 30)["items"]}
    score = {row["item"]: row["score"] for row in views.recommend_for(counts.items(), 30)["items"]}
    assert score.keys() == {row["item"] for row in views.recommend(USER, 30)["items"]}
    places = np.flatnonzero(np.isin(model.items_, list(score)))
    of_basket = np.log([score[item] for item in model.items_[places].tolist()])
    of_users = np.log(model.user_factors_ @ model.item_factors_[places].T)
    distance = np.linalg.norm(of_users - of_basket, axis=1)
    assert USER in model.users_[np.argsort(distance)[:3]]


def test_the_check_is_the_models_own(views):
    answer, found = views.check, views.model.check()
    assert answer["fits"] == found.fits
    assert answer["findings"] == list(found.findings)
    assert [panel["title"] for panel in answer["panels"]] == [panel.title for panel in found.panels]
    marks = [mark for panel in answer["panels"] for mark in panel["marks"]]
    assert len(marks) == len(found.statistics)
    assert sum(not mark["fits"] for mark in marks) == sum(not each.fits for each in found.statistics)
    json.dumps(answer, allow_nan=False)
    assert views.check is answer  # computed once


def test_logarithms_have_nothing_to_check():
    views = Views(nbmf.NBMF(3, input="log1p", max_iter=9, random_state=0).fit(plays()), "mark")
    assert not views.card()["can"]["check"]
    with pytest.raises(NoAnswerError, match="cannot answer: check"):
        _ = views.check


def test_parts_add_up_whatever_is_listed(views):
    found = views.model.explain(USER, ITEM)
    for n in (1, 3, 1000):
        why = views.explain(USER, str(ITEM), n)
        listed = sum(part["contribution"] for part in why["parts"])
        assert listed + why["others"]["contribution"] + why["prior"] == pytest.approx(why["score"])
        assert why["score"] == pytest.approx(found.score)
        assert len(why["parts"]) + why["others"]["n_items"] == len(found.items)


def test_factors_add_up_to_the_score(views):
    for why in (views.explain(USER, str(ITEM), 3), views.explain_for([(USER_ITEM, 3)], ITEM, 3)):
        listed = [part["contribution"] for part in why["factors"]]
        assert sum(listed) + why["other_factors"]["contribution"] == pytest.approx(why["score"])
        assert listed == sorted(listed, reverse=True)
        assert len(listed) + why["other_factors"]["n_factors"] == views.card()["n_factors"]
        labels = {one["factor"]: one["name"] for one in views.factors["factors"]}
        assert all(part["name"] == labels[part["factor"]] for part in why["factors"])


def test_factors_are_numbered_by_size_and_named_after_items(views):
    found = views.factors["factors"]
    assert [one["rank"] for one in found] == list(range(len(found)))
    assert [one["share"] for one in found] == sorted((one["share"] for one in found), reverse=True)
    for one in found:
        assert set(one["name"].split(" · ")) <= {row["name"] for row in one["items"]}
    assert {one["factor"]: one["name"] for one in views.map["islands"]}.items() <= {
        one["factor"]: one["name"] for one in found
    }.items()


def test_a_search_finds_the_factors_of_items_that_no_card_lists(views):
    for item, name in zip(views.items.ids.tolist(), views.names, strict=True):
        found = views.search_factors(name)["factors"]
        assert any(row["item"] == item for one in found for row in one["items"])
        best = views.item(str(item), 1)["factors"][0]
        share = {one["factor"]: row["share"] for one in found for row in one["items"] if row["item"] == item}
        assert share[best["factor"]] == best["share"] == max(share.values())
    assert views.search_factors("no such song")["factors"] == []


def test_an_item_is_described_by_its_own_column(views):
    column = plays().matrix.toarray()[:, ITEM - 100]
    found = views.item(str(ITEM), 3)
    assert (found["n_users"], found["total"]) == (np.count_nonzero(column), column.sum())
    assert [row["count"] for row in found["users"]] == sorted(column, reverse=True)[:3]
    assert all(column[views.users.positions(row["user"])[0]] == row["count"] for row in found["users"])
    assert sum(row["n"] for row in found["sizes"]) == found["n_users"]
    for row in found["sizes"]:
        assert row["n"] == np.count_nonzero((column >= row["least"]) & (column < row["below"]) & (column > 0))


def test_lift_ranks_by_shares_and_undoes_popularity(views):
    basket = [(USER_ITEM, 3.0)]
    by_lift, by_score = (views.recommend_for(basket, 40, None, order)["items"] for order in ("lift", "score"))
    score = {row["item"]: row["score"] for row in by_score}
    total = dict(zip(views.items.ids.tolist(), plays().matrix.sum(axis=0).tolist(), strict=True))
    usual = sum(score.values()) / sum(total[item] for item in score)
    for row in by_lift:
        assert row["lift"] == pytest.approx(row["score"] / (max(total[row["item"]], 1) * usual), rel=1e-5)
    assert [row["lift"] for row in by_lift] == sorted((row["lift"] for row in by_lift), reverse=True)
    assert [row["item"] for row in by_lift] != [row["item"] for row in by_score]
    assert "lift" not in by_score[0]


def test_lift_ranks_as_many_items_as_asked_for_and_no_more_than_it_must(monkeypatch):
    model = nbmf.PoissonMF(2, max_iter=2, tol=0, random_state=0).fit(np.random.default_rng(0).poisson(1, (20, 400)))
    views, usual, asked = Views(model, "mark"), model.recommend_for, []
    monkeypatch.setattr(
        model, "recommend_for", lambda basket, n, **choice: asked.append(n) or usual(basket, n, **choice)
    )
    few, many = (views.recommend_for([("5", 3.0)], n, None, "lift", include_seen=True)["items"] for n in (10, 300))
    assert (len(few), len(many)) == (10, 300)
    assert asked == [200, 300]  # ranking all 400 takes far longer where there are many
    lift = {row["item"]: row["lift"] for row in many}
    assert {row["item"] for row in few} <= lift.keys()
    assert all(row["lift"] == lift[row["item"]] for row in few)


def test_an_answer_to_a_basket_names_its_items(views):
    given = views.recommend_for([(USER_ITEM, 3.0), (str(ITEM), 1.0)], 1)["basket"]
    assert [(row["item"], row["name"]) for row in given] == [(107, "Early song 7"), (104, views.names[4])]


def test_there_are_users_to_look_at(views):
    users = views.card()["example_users"]
    assert len(users) == len(set(users)) == 25
    assert set(users) <= set(views.model.users_.tolist())


def test_the_history_of_a_user(views):
    history, found = views.history(USER, 4), views.model.exposures(USER)
    assert history["n_items"] == len(found.item)
    assert [row["item"] for row in history["items"]] == found.item[:4].tolist()
    assert [row["count"] for row in history["items"]] == found.count[:4].tolist()
    assert ("exposure" in history["items"][0]) == (not isinstance(views.model, nbmf.PoissonMF))
    shares = [one["share"] for one in history["factors"]]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 1.001


def test_the_history_has_expected_counts():
    for model in (nbmf.NBMF(4), nbmf.CompoundMF(4), nbmf.ZeroInflatedMF(4)):
        model.set_params(max_iter=15, tol=0, random_state=0).fit(plays())
        rows = Views(model, "mark").history(USER, 4)["items"]
        expected, items = [row["expected"] for row in rows], [row["item"] for row in rows]
        assert expected == model.predict(USER, items).tolist()
        is_intensity = expected == pytest.approx(model.exposures(USER).intensity[:4], rel=1e-5)
        assert is_intensity == isinstance(model, nbmf.NBMF)


def test_likeness_is_the_models_own(views):
    assert [row["item"] for row in views.similar_items(str(ITEM), 3)["items"]] == views.model.similar_items(
        ITEM, 3
    ).ids.tolist()
    assert [row["user"] for row in views.similar_users(USER, 3)["users"]] == views.model.similar_users(
        USER, 3
    ).ids.tolist()


def test_every_answer_is_json_and_names_the_model(views):
    views.warm_up()
    for answer in (
        views.card(),
        views.fit(),
        views.factors,
        views.map,
        views.count_sizes,
        views.item(str(ITEM), 3),
        views.history("bob 4 é", 9),
        views.search_users("", 3),
    ):
        assert json.loads(json.dumps(answer, allow_nan=False))["model"] == "mark"


def test_unknown_ids_are_told_without_a_search_for_others(views):
    for ask in (
        lambda: views.recommend("nobody", 1),
        lambda: views.explain(USER, "soup", 1),
        lambda: views.history("", 1),
    ):
        with pytest.raises(UnknownIdError, match=r"is not among the (40 users|30 items) of this model"):
            ask()
    for item in ("1e2", "104.0", "-1", str(2**70), "nan"):
        with pytest.raises(UnknownIdError):
            views.similar_items(item, 1)


def test_a_user_without_counts(views):
    empty = str(views.model.users_[3])
    assert views.history(empty, 5)["items"] == []
    assert len(views.recommend(empty, 5, 0.9)["items"]) == 5
    assert views.explain(empty, str(ITEM), 5)["parts"] == []


class ItemItem:
    """A model of another family: no factors, no exposures, no distribution of counts."""

    def __init__(self, model):
        self.users_, self.items_, self.item_names_ = model.users_, model.items_, None
        self.result_, self.recommend, self.explain = model.result_, model.recommend, model.explain

    def get_params(self, deep=True):
        return {"penalty": 1.5}


def test_a_model_answers_what_it_has_and_no_more():
    views = Views(ItemItem(clone(MODELS[0]).fit(plays())), "mark")
    card = views.card()
    assert [name for name, has in card["can"].items() if has] == ["explain"]
    assert card["n_factors"] is None
    assert card["fit"]["sweeps"] == 0
    views.warm_up()
    assert set(views.recommend(USER, 1, 0.9)["items"][0]) == {"item", "name", "score"}
    assert set(views.history(USER, 1)["items"][0]) == {"item", "name", "count"}
    for ask in (
        lambda: views.factors,
        lambda: views.map,
        views.fit,
        lambda: views.check,
        lambda: views.recommend_for({}, 1),
        lambda: views.similar_users(USER, 1),
    ):
        with pytest.raises(NoAnswerError, match=r"\(ItemItem\) cannot answer"):
            ask()


def test_a_blend():
    model = nbmf.Blend([nbmf.NBSLIM(penalty=0.5), clone(MODELS[3])], [0.5, 0.5]).fit(plays())
    views = Views(model, "mark")
    views.warm_up()
    able = {name for name, has in views.abilities.items() if has}
    assert able == {"explain", "explain_for", "recommend_for", "similar_items"}
    card = views.card()
    assert (card["class"], card["scores_are_counts"], card["fit"]["sweeps"]) == ("Blend", False, model.n_iter_)
    assert json.loads(json.dumps(card["settings"]))["models"].startswith("[NBSLIM(penalty=0.5), Averaged(")
    answer = views.recommend(USER, 3, 0.9)
    assert [row["item"] for row in answer["items"]] == model.recommend(USER, n=3).items[0].tolist()
    assert answer["no_intervals"] == "Blend has no distribution of counts, as its scores are of several models"
    why = views.explain(USER, str(answer["items"][0]["item"]), 100)
    assert why["score"] == pytest.approx(why["prior"] + sum(part["contribution"] for part in why["parts"]))


@pytest.fixture(scope="module", params=[1, 3], ids=["one start", "three starts"])
def encoder(request):
    model = nbmf.NBFISM(4, n_starts=request.param, penalty=0.5, max_iter=30, tol=0, random_state=0)
    return Views(model.fit(plays()), "mark")


def test_an_encoder_is_shown_as_its_first_start(encoder):
    """Which is a model by itself: its components and what is for everybody explain all of its scores."""
    encoder.warm_up()
    model, card = encoder.model, encoder.card()
    assert (card["n_factors"], card["target"], card["scores_are_counts"]) == (4, "log1p", False)
    assert {name for name, has in card["can"].items() if not has} == {
        *("predictive", "predictive_for", "exposures", "check")
    }
    alone = nbmf.NBFISM(**{**model.get_params(), "n_starts": 1}).fit(plays())
    users, items = model.result_.first_start
    np.testing.assert_allclose(users @ items.T, alone.user_factors_ @ alone.item_factors_.T, rtol=1e-3, atol=1e-5)
    listed = encoder.factors["factors"]
    assert encoder.factors["n_factors"] == 4
    assert sum(one["share"] for one in listed) == pytest.approx(1)
    assert sum(one["share"] for one in encoder.item(USER_ITEM, 1)["factors"]) == pytest.approx(1, abs=1e-3)


def test_what_is_for_everybody_comes_last_and_names_nothing(encoder):
    last = 4 * encoder.model.n_starts
    assert encoder.model.result_.component_name(last) == "everybody"
    everybody = {"factor": last, "rank": None, "name": "everybody"}
    answers = encoder.factors["factors"], encoder.item(USER_ITEM, 1)["factors"], encoder.history(USER, 1)["factors"]
    for *tastes, common in answers:
        assert {name: common[name] for name in everybody} == everybody
        shares = [one["share"] for one in tastes]
        assert shares == sorted(shares, reverse=True)
        assert all(one["rank"] is not None for one in tastes)
    assert encoder.factors["factors"][-1]["users"] == []
    drawn = encoder.map
    assert drawn["n_factors"] == 4
    assert {one["factor"] for one in drawn["islands"]} == set(drawn["factor"]) <= set(range(4))
    shares = dict(zip(drawn["item"], drawn["share"], strict=True))
    own = {one["factor"]: one["share"] for one in encoder.item(USER_ITEM, 1)["factors"]}
    place = drawn["item"].index(int(USER_ITEM))
    assert shares[int(USER_ITEM)] == pytest.approx(own[drawn["factor"][place]], abs=1e-3)
    found = encoder.search_factors("song")["factors"]
    assert {one["factor"] for one in found} <= set(range(4))


def test_the_tastes_behind_a_score_are_those_of_all_starts(encoder):
    """Each component counts with the one of the first start that is most like it, so that the parts add up."""
    model = encoder.model
    kin = model.result_.kin
    assert kin[:4].tolist() == [0, 1, 2, 3]
    assert (len(kin), kin[-1]) == (4 * model.n_starts + 1, 4)
    for why, found in (
        (encoder.explain(USER, str(ITEM), 3), model.explain(USER, ITEM)),
        (encoder.explain_for([(USER_ITEM, 3)], ITEM, 3), model.explain_for({int(USER_ITEM): 3}, ITEM)),
    ):
        *tastes, common = why["factors"]
        assert common["contribution"] == pytest.approx(why["prior"])
        parts = [one["contribution"] for one in tastes]
        assert parts == sorted(parts, reverse=True)
        whole = sum(parts) + common["contribution"] + why["other_factors"]["contribution"]
        assert whole == pytest.approx(why["score"]) == pytest.approx(found.score)
        of_all = dict(zip(found.components.tolist(), found.component_scores.tolist(), strict=True))
        for one in tastes:
            of_kin = sum(of_all[k] for k in np.flatnonzero(kin == one["factor"]).tolist())
            assert one["contribution"] == pytest.approx(of_kin)


def test_kin_are_the_components_that_explain_the_same_items():
    """Starts of one seed are one start, in whatever order its components stand."""
    model = nbmf.NBFISM(4, n_starts=1, penalty=0.5, max_iter=30, tol=0, random_state=0).fit(plays())
    fit, order = model.result_, np.array([2, 0, 3, 1])
    V, H, b = fit.encoder, fit.item_posterior.mean[:, :-1], fit.intercepts
    shared = {name: getattr(fit, name) for name in fit.__dataclass_fields__}
    own = {"user_posterior", "item_posterior", "encoder", "intercepts", "input_form"}
    sides = np.hstack((V, V[:, order])), np.hstack((H, H[:, order])), np.hstack((b, b))
    twice = type(fit).of(sides, fit.input_form, **{name: shared[name] for name in shared.keys() - own})
    assert twice.kin.tolist() == [0, 1, 2, 3, *order.tolist(), 4]


@pytest.mark.parametrize("target", ["counts", "log1p"])
def test_a_model_without_factors(target):
    model = nbmf.NBSLIM(penalty=0.5, target=target, max_iter=9).fit(plays())
    views = Views(model, "mark")
    views.warm_up()
    lacking = {name for name, has in views.abilities.items() if not has}
    distributions = set() if target == "counts" else {"predictive", "predictive_for"}
    assert lacking == {"exposures", "factors", "map", "similar_users", "check"} | distributions
    assert views.card()["scores_are_counts"] == (target == "counts")
    assert views.item(USER_ITEM, 1)["factors"] == views.history(USER, 1)["factors"] == []
    assert views.fit()["tol"] is None  # its tol is no relative gain
    best = views.recommend(USER, 3, 0.9)["items"]
    assert [row["item"] for row in best] == model.recommend(USER, n=3).items[0].tolist()
    assert all(("interval" in row) == (target == "counts") for row in best)
    for answer in (
        views.recommend(USER, 3, 0.9),
        views.recommend_for([], 3, 0.9),
        views.recommend_to_all([USER], 3, 0.9),
    ):
        assert ("no_intervals" in answer) == (target == "log1p")
    assert "no_intervals" not in views.recommend(USER, 3)
    counts = [row["count"] for row in views.history(USER, 3)["items"]]
    assert counts == sorted(counts, reverse=True)
    why = views.explain_for([(USER_ITEM, 3), ("109", 1)], str(best[0]["item"]), 9)
    assert why["score"] == pytest.approx(why["prior"] + sum(part["contribution"] for part in why["parts"]))
    again = views.recommend_for([(USER_ITEM, 3), ("109", 1)], 30, 0.9)["items"]
    assert all(("interval" in row) == (target == "counts") for row in again)
    assert why["score"] == pytest.approx(next(row["score"] for row in again if row["item"] == why["item"]), rel=1e-5)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (nbmf.RobustMF(2), "RobustMF is a profile likelihood and has no distribution of counts"),
        (nbmf.NBMF(2, input="log1p"), "NBMF has no distribution of counts, as its scores are of ln(1 + count)"),
        (nbmf.CoupledCompoundMF(2), None),
        (nbmf.RandomGraphExposureMF(2), None),
    ],
    ids=str,
)
def test_intervals_or_why_there_are_none(model, why):
    views = Views(clone(model).set_params(max_iter=9, tol=0, random_state=0).fit(plays()), "mark")
    for answer in (views.recommend(USER, 3, 0.9), views.recommend_for([(USER_ITEM, 3)], 3, 0.9)):
        assert answer.get("no_intervals") == why
        assert all(("interval" in row) == (why is None) for row in answer["items"])


# ---- search ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.sampled_from("abc É\n"), max_size=6), min_size=1, max_size=9), st.text("abcé ", max_size=4))
def test_search_finds_what_a_loop_finds(names, wanted):
    weight = np.arange(len(names)) % 4
    found = Index(names, weight).find(wanted, len(names))
    words = folded(wanted).split()
    assert sorted(found) == [n for n, name in enumerate(names) if all(word in folded(name) for word in words)]
    if not words:
        assert weight[found].tolist() == sorted(weight, reverse=True)


def test_search_puts_the_best_fit_first_and_then_the_heavier():
    names = ["late tea", "tea", "steam", "tea, green", "black tea", "tea, red"]
    found = Index(names, np.array([9, 1, 99, 2, 5, 3])).find("Tea", 5)
    assert [names[place] for place in found] == ["tea", "tea, red", "tea, green", "late tea", "black tea"]


def test_an_id_is_found_before_names(views):
    assert views.search_items("105", 3)["items"][0]["item"] == 105
    assert {row["user"] for row in views.search_users("ANN/1", 50)["users"]} == {
        f"ann/{n}" for n in (1, 11, 13, 15, 17, 19)
    }


# ---- the whole model ------------------------------------------------------------------------------------------------


def factors(n_users=50, n_items=300, n_factors=7, seed=0):
    rng = np.random.default_rng(seed)
    return rng.gamma(0.3, 1.0, (n_users, n_factors)), rng.gamma(0.1, 1.0, (n_items, n_factors))


def test_factors_explain_everything_together_and_scale_does_not_matter():
    users, items = factors()
    found = largest_factors(users, items, 7, 5)
    assert sum(one.share for one in found) == pytest.approx(1.0)
    assert [one.share for one in found] == sorted((one.share for one in found), reverse=True)
    scale = np.array([1.0, 10.0, 0.1, 3.0, 7.0, 1e4, 1e-3])
    for one, same in zip(found, largest_factors(users * scale, items / scale, 7, 5), strict=True):
        assert (same.factor, same.share) == (one.factor, pytest.approx(one.share))
        for name in ("items", "users", "item_shares", "user_shares"):
            np.testing.assert_array_equal(getattr(same, name), getattr(one, name))
    k = found[0].factor
    expected = items * users.sum(axis=0)
    worth = expected[:, k] ** 3 / expected.sum(axis=1) ** 2
    assert set(found[0].items.tolist()) == set(np.argsort(-worth, kind="stable")[:5].tolist())
    for one in found:  # a bar shows the share, so the longest comes first
        assert one.item_shares.tolist() == sorted(one.item_shares, reverse=True)


@pytest.mark.parametrize(("n_items", "n_factors"), [(300, 7), (1, 1), (5, 1), (3, 8), (900, 2)])
def test_no_two_items_lie_on_one_another_and_islands_do_not_overlap(n_items, n_factors):
    drawn = draw_map(*factors(n_items=n_items, n_factors=n_factors))
    apart = np.linalg.norm(drawn.place[:, None] - drawn.place, axis=2) + 9 * np.eye(n_items)
    assert apart.min() > 0.5
    there = drawn.radius > 0
    middle, radius = drawn.middle[there], drawn.radius[there]
    gaps = np.linalg.norm(middle[:, None] - middle, axis=2) - radius - radius[:, None] + 1e9 * np.eye(len(middle))
    assert gaps.min() > -1e-6
    on = np.linalg.norm(drawn.place - drawn.middle[drawn.factor], axis=1)
    assert np.all(on <= drawn.radius[drawn.factor] + 1e-9)


def test_a_map_does_not_depend_on_scale_and_purer_items_are_further_in():
    users, items = factors()
    drawn, scale = draw_map(users, items), np.array([1.0, 10.0, 0.1, 3.0, 7.0, 1e4, 1e-3])
    np.testing.assert_allclose(draw_map(users * scale, items / scale).place, drawn.place, rtol=1e-6, atol=1e-6)
    distance = np.linalg.norm(drawn.place - drawn.middle[drawn.factor], axis=1)
    for k in range(7):
        members = np.flatnonzero(drawn.factor == k)
        pure = members[np.argsort(-drawn.share[members])]
        assert distance[pure[: len(pure) // 3]].mean() < distance[pure[-len(pure) // 3 :]].mean()


def test_items_that_nobody_takes_are_on_the_map_too():
    drawn = draw_map(np.ones((3, 2)), np.zeros((4, 2)))
    assert np.isfinite(drawn.place).all()


# ---- reloading ------------------------------------------------------------------------------------------------------


def test_new_files_are_loaded_and_damaged_ones_refused(tmp_path, caplog):
    path = tmp_path / "model.nbmf"
    write_model(path)
    served = ServedModel(str(path))
    first = served.views
    assert not served.reload()
    good = path.read_bytes()
    content = bytearray(good)
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert not served.reload()
    assert served.views is first
    assert "does not match its checksum" in served.refused
    assert "still serving the old one" in caplog.text
    path.write_bytes(good)
    assert not served.reload()
    assert served.refused is None
    path.rename(tmp_path / "away")
    caplog.clear()
    assert [served.reload(), served.reload()] == [False, False]
    assert served.views is first
    assert served.refused == f"{path} is missing"
    assert caplog.text.count("is missing, still serving the model that was read from it") == 1
    (tmp_path / "away").rename(path)
    assert not served.reload()
    assert served.refused is None
    write_model(path, seed=1)
    assert served.reload()
    assert served.views.mark != first.mark
    assert served.refused is None
    assert (served.n_loaded, served.n_refused) == (2, 1)
    path.write_bytes(path.read_bytes())  # the same model again
    assert not served.reload()


def test_the_seconds_of_a_fit_are_those_of_this_very_model(tmp_path):
    from nbmf.storage.container import seal

    path = str(tmp_path / "model.nbmf")
    n_sweeps = write_model(path).n_iter_
    assert ServedModel(path).views.fit()["seconds"] is None
    for mark, seconds in (("another", None), (seal(path), list(np.linspace(0.1, 1, n_sweeps)))):
        with open(history_of(path), "w") as stream:
            json.dump({"model": mark, "seconds": list(np.linspace(0.1, 1, n_sweeps))}, stream)
        assert ServedModel(path).views.fit()["seconds"] == seconds
