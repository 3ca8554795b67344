"""Alignment: every count lands in the cell of its own user and item, or the error names the unknown id."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbmf import Interactions
from nbmf.data.ids import Lookup, align, check_same

ROWS = st.lists(st.tuples(st.sampled_from("uvwxyz"), st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=30)
USERS = st.lists(st.sampled_from("uvwxyz"), unique=True).map(lambda ids: np.array(ids, "<U3"))
ITEMS = st.lists(st.integers(0, 9), unique=True).map(lambda ids: np.array(ids, np.int64))


def counts(rows) -> dict:
    total = {}
    for user, item, count in rows:
        total[user, item] = total.get((user, item), 0) + count
    return {pair: count for pair, count in total.items() if count}


def cells(matrix, users, items) -> dict:
    assert matrix.shape == (len(users), len(items))
    assert matrix.has_canonical_format
    assert (matrix.data != 0).all()
    rows, columns = matrix.nonzero()
    names = zip(np.asarray(users)[rows].tolist(), np.asarray(items)[columns].tolist(), strict=True)
    return dict(zip(names, matrix.data.tolist(), strict=True))


@given(ROWS, USERS, ITEMS)
def test_known_counts_are_moved_and_others_left_out(rows, users, items):
    data = Interactions.from_arrays(*zip(*rows, strict=True))
    found = align(data, Lookup(users, "user"), Lookup(items, "item"), unknown="ignore")
    known = {pair: n for pair, n in counts(rows).items() if pair[0] in users.tolist() and pair[1] in items.tolist()}
    assert cells(found, users, items) == known


@given(ROWS, USERS, ITEMS)
def test_new_ids_are_appended_in_their_order(rows, users, items):
    data = Interactions.from_arrays(*zip(*rows, strict=True))
    found = align(data, Lookup(users, "user"), Lookup(items, "item"), unknown="append")
    all_users = [*users.tolist(), *(user for user in data.users.tolist() if user not in users)]
    all_items = [*items.tolist(), *(item for item in data.items.tolist() if item not in items)]
    assert cells(found, all_users, all_items) == counts(rows)


@given(ROWS, USERS, ITEMS)
def test_an_unknown_id_with_counts_is_named(rows, users, items):
    """Unknown ids without counts, which splits leave behind, are ignored."""
    data = Interactions.from_arrays(*zip(*rows, strict=True))
    lost = [pair for pair in counts(rows) if pair[0] not in users or pair[1] not in items]
    if lost:
        with pytest.raises(KeyError, match=r"(user '.'|item \d) was not in the data of the fit, which had \d"):
            align(data, Lookup(users, "user"), Lookup(items, "item"))
    else:
        found = align(data, Lookup(users, "user"), Lookup(items, "item"))
        assert cells(found, users, items) == counts(rows)


@given(ROWS, ITEMS)
def test_a_side_without_a_lookup_stays(rows, items):
    data = Interactions.from_arrays(*zip(*rows, strict=True))
    found = align(data, items=Lookup(items, "item"), unknown="ignore")
    assert cells(found, data.users, items) == {pair: n for pair, n in counts(rows).items() if pair[1] in items}
    assert (align(data) != data.matrix).nnz == 0


def test_the_nearest_id_is_suggested():
    data = Interactions.from_arrays(["ann"], ["jaz"])
    with pytest.raises(KeyError, match="item 'jaz' was not in the data of the fit, which had 2 items; did you mean 'j"):
        align(data, items=Lookup(np.array(["jazz", "folk"]), "item"))
    with pytest.raises(KeyError, match="ids are numbers here, not text"):
        align(data, items=Lookup(np.array([1, 2]), "item"))
    with pytest.raises(ValueError, match="unknown is 'drop'; it must be 'error', 'ignore' or 'append'"):
        align(data, unknown="drop")


def test_what_is_given_is_not_touched():
    data = Interactions.from_arrays([1, 1], [7, 8], [2.5, 3.5])
    found = align(data, items=Lookup(np.array([8, 7]), "item"))
    found.data[:] = 0
    assert data.matrix.toarray().tolist() == [[2.5, 3.5]]


def test_ids_that_differ_are_named():
    ids = np.array(["ann", "bob"])
    check_same("user", ids, ["ann", "bob"], ("train", "test"), "split again")
    with pytest.raises(ValueError, match="train has 2 users and test has 1; split again"):
        check_same("user", ids, ids[:1], ("train", "test"), "split again")
    with pytest.raises(ValueError, match="user number 1 is 'bob' in train and 'cy' in test; split again"):
        check_same("user", ids, np.array(["ann", "cy"]), ("train", "test"), "split again")
