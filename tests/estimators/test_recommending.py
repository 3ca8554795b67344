"""Recommendations: who may get what, in whose ids, as which table."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbmf
from helpers import small_matrix
from nbmf.data.ids import Lookup


@pytest.fixture(scope="module")
def model():
    data = nbmf.Interactions.from_matrix(
        small_matrix(), users=[f"user {n}" for n in range(30)], items=np.arange(100, 120)
    )
    return nbmf.NBMF(3, random_state=0, max_iter=30).fit(data)


def brute(model, row, may, n, exclude_seen):
    """The best of the items a user may get, found by sorting all scores in double precision."""
    score = model.user_factors_[row].astype(float) @ model.item_factors_.T.astype(float)
    left = [i for i in np.argsort(-score, kind="stable") if may(i) and not (exclude_seen and small_matrix()[row, i])]
    return [100 + i for i in left[:n]]


LISTS = st.one_of(st.none(), st.sets(st.integers(0, 19), max_size=12))


@given(
    st.lists(st.integers(0, 29), min_size=1, max_size=30),
    st.integers(1, 25),
    st.booleans(),
    st.tuples(LISTS, LISTS, st.booleans(), st.booleans()),
)
def test_everybody_gets_the_best_of_what_is_left(model, rows, n, exclude_seen, choice):
    """One list for everybody or one per user, allowed and denied together, compared with sorting."""
    allow, deny, own_allow, own_deny = choice

    def of(row, chosen, own):
        return None if chosen is None else {(i + row) % 20 for i in chosen} if own else chosen

    def asked(chosen, own):
        if chosen is None or not own:
            return None if chosen is None else [100 + i for i in chosen]
        return {f"user {row}": [100 + i for i in of(row, chosen, own)] for row in rows}

    found = model.recommend(
        [f"user {row}" for row in rows],
        n=n,
        exclude_seen=exclude_seen,
        allow=asked(allow, own_allow),
        deny=asked(deny, own_deny),
    )
    assert found.items.shape == found.scores.shape == (len(rows), min(n, 20))
    for row, items, scores in zip(rows, found.items, found.scores, strict=True):
        yes, no = of(row, allow, own_allow), of(row, deny, own_deny)
        expected = brute(
            model, row, lambda i, y=yes, d=no: (y is None or i in y) and not (d and i in d), n, exclude_seen
        )
        assert [item for item in items if item is not None] == expected
        assert np.all(np.isneginf(scores[len(expected) :]))
        assert np.all(np.diff(scores[: len(expected)]) <= 0)


def test_nobody_named_is_everybody(model):
    found = model.recommend(n=4)
    np.testing.assert_array_equal(found.users, model.users_)
    np.testing.assert_array_equal(found.items, model.recommend(model.users_, n=4).items)
    listed = model.recommend(n=4, allow=dict.fromkeys(model.users_, model.items_))
    np.testing.assert_array_equal(listed.items, found.items)


def test_users_without_anything_denied_may_be_missing(model):
    found = model.recommend(["user 1", "user 2"], n=1, exclude_seen=False)
    other = model.recommend(["user 1", "user 2"], n=1, exclude_seen=False, deny={"user 2": found.items[1]})
    assert other.items[0] == found.items[0]
    assert other.items[1] != found.items[1]


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        ({"allow": [100, 777]}, KeyError, "item 777 was not in the data"),
        ({"deny": 778}, KeyError, "item 778"),
        ({"deny": {"user 1": [779]}}, KeyError, "item 779"),
        ({"deny": {"nobody": [100]}}, KeyError, "user 'nobody'"),
        ({"allow": {"user 2": [100]}}, KeyError, "allow has no items for user 'user 1'"),
        ({"allow": ["100"]}, KeyError, "item '100' .* ids are numbers here, not text"),
        ({"n": 0}, ValueError, "n is 0"),
        ({"n": 2.5}, ValueError, "n is 2.5"),
    ],
)
def test_bad_lists_are_named(model, ask, error, message):
    with pytest.raises(error, match=message):
        model.recommend("user 1", **ask)


def test_recommendations_are_tables():
    data = nbmf.Interactions.from_matrix(small_matrix(), users=[f"user {n}" for n in range(30)])
    named = nbmf.Interactions(
        data.users, data.items, data.matrix, item_names=np.array([f"song {n}" for n in range(20)])
    )
    found = nbmf.NBMF(3, random_state=0, max_iter=10).fit(named).recommend(["user 5", "user 3"], n=7)
    assert found.items[0].tolist()[1:] == [None] * 6  # user 5 took all but the one item that nobody took
    frame = found.to_pandas()
    assert frame.columns.tolist() == ["user", "rank", "item", "name", "score"]
    assert frame["user"].tolist() == ["user 5"] + ["user 3"] * 7
    assert frame["rank"].tolist() == [1, *range(1, 8)]
    assert frame["item"].dtype.kind == "i"
    assert frame["name"].tolist() == [f"song {item}" for item in frame["item"]]
    polars = found.to_polars()
    assert polars.columns == frame.columns.tolist()
    for name in ("user", "rank", "item", "name"):
        assert polars[name].to_list() == frame[name].tolist()
    np.testing.assert_allclose(polars["score"].to_numpy(), frame["score"])
    assert repr(found).splitlines()[0] == "Recommendations(2 users × 7 items)"
    assert repr(found).splitlines()[2].split()[:5] == ["user", "5", "1", "2", "song"]
    nothing = nbmf.NBMF(1, random_state=0).fit([[1, 2]]).recommend(0)
    assert len(repr(nothing).splitlines()) == 2  # title and heads
    assert nothing.to_pandas().empty
    assert nothing.to_polars().is_empty()


IDS = st.one_of(
    st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=20, unique=True).map(np.array),
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6), min_size=1, max_size=20, unique=True
    ).map(np.array),
    st.lists(st.text(max_size=6), min_size=1, max_size=20, unique=True).map(lambda ids: np.array(ids, object)),
)


@given(IDS, st.data())
def test_ids_are_found_where_they_stand(ids, data):
    lookup = Lookup(ids, "user")
    places = data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=10))
    assert lookup.positions(ids[places]).tolist() == places
    assert lookup.positions(ids.tolist()).tolist() == list(range(len(ids)))
    strange = 2**50 if ids.dtype.kind == "i" else "a text that is far too long"
    assert not lookup.find(lookup.as_ids(strange))[1].any()
    with pytest.raises(KeyError, match="was not in the data of the fit"):
        lookup.positions([ids.tolist()[0], strange])


def test_ids_are_of_one_kind():
    texts, numbers = Lookup(np.array(["7", "70"]), "item"), Lookup(np.array([7, 70]), "item")
    for lookup, wrong in ((texts, 7), (numbers, "7"), (texts, ["7", 70]), (texts, "700"), (numbers, None)):
        with pytest.raises(KeyError, match="was not in the data of the fit, which had 2 items"):
            lookup.positions(wrong)
    assert numbers.positions(70.0).tolist() == [1]
    assert texts.positions({"70"}).tolist() == texts.positions(pd.Series(["70"])).tolist() == [1]
    assert texts.positions(str(n) for n in (70, 7)).tolist() == [1, 0]
    assert texts.positions([]).tolist() == []
