"""Interactions hold the ids and counts they were given, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import nbmf
from helpers import count_matrices
from nbmf import Interactions
from nbmf.backends.counts import Counts

IDS = st.one_of(st.integers(-5, 5), st.integers(2**40, 2**40 + 3))
ROWS = st.lists(st.tuples(IDS, st.sampled_from(["a", "b", "ç", ""]), st.integers(0, 10**9)), min_size=1)


@given(ROWS)
def test_arrays_add_up_and_count_what_they_add(rows):
    users, items, counts = zip(*rows, strict=True)
    data = Interactions.from_arrays(users, items, counts)
    expected = {}
    for user, item, count in rows:
        expected[user, item] = expected.get((user, item), 0) + count
    dense = data.matrix.toarray()
    assert list(data.users) == sorted(set(users))
    assert list(data.items) == sorted(set(items))
    for u, user in enumerate(data.users):
        for i, item in enumerate(data.items):
            assert dense[u, i] == expected.get((user, str(item)), 0)
    assert data.n_repeated == len(rows) - len(expected)
    assert data.nnz == sum(count > 0 for count in expected.values())


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, bool, np.int64])
def test_sums_do_not_wrap_around(dtype):
    data = Interactions.from_arrays([1] * 300, [1] * 300, np.ones(300, dtype))
    assert data.matrix.toarray().tolist() == [[300]]
    entries = (np.ones(300, dtype), ([0] * 300, [0] * 300))
    assert Interactions.from_matrix(sp.coo_array(entries, shape=(1, 1))).matrix.toarray().tolist() == [[300]]


def test_without_counts_each_row_counts_once():
    assert Interactions.from_arrays([1, 1, 2], [5, 5, 5]).matrix.toarray().tolist() == [[2], [1]]


def test_matrix_keeps_ids_shape_and_real_values():
    matrix = sp.coo_array(([0.5, 2.0, 0.0], ([0, 2, 1], [1, 0, 1])), shape=(3, 2))
    data = Interactions.from_matrix(matrix, users=["x", "y", "z"])
    assert (data.n_users, data.n_items, data.nnz) == (3, 2, 2)
    assert list(data.items) == [0, 1]
    np.testing.assert_array_equal(data.matrix.toarray(), matrix.toarray())
    assert matrix.nnz == 3  # the argument is unchanged


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Interactions.from_arrays([1, 2], [1], [1, 2]), "lengths 2, 1 and 2"),
        (lambda: Interactions.from_arrays([1], [1], [-3]), "count -3 at position 0; counts start at 0"),
        (lambda: Interactions.from_arrays([1, 1], [1, 2], [1, np.nan]), "NaN: count nan at position 1"),
        (lambda: Interactions.from_arrays([1], [1], [np.inf]), "infinity"),
        (lambda: Interactions.from_arrays([1], [1], ["many"]), "must be numbers"),
        (lambda: Interactions.from_arrays([[1]], [1]), "list of ids"),
        (lambda: Interactions.from_arrays([1, 1], [1, 1], [2**62, 2**62]), "more than 2\\*\\*63 - 1"),
        (lambda: Interactions.from_arrays([1, "a"], [1, 1]), "1 and 'a' .position 1. are of different types"),
        (lambda: Interactions.from_arrays([1, 2], ["a", None]), "items: no id at position 1"),
        (lambda: Interactions.from_arrays([1.0, np.nan], [1, 1]), "users: no id at position 1"),
        (lambda: Interactions.from_matrix([[1, 0], [0, -2]]), "count -2 at row 1, column 1"),
        (lambda: Interactions.from_matrix([[1, 0]], users=["a", "b"]), "2 ids for 1 users"),
        (lambda: Interactions.from_matrix([[1, 0]], items=["a", "a"]), "'a'.* more than once"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_filter_takes_items_first_and_once():
    #            a  b  c
    matrix = [
        [1, 1, 1],
        [1, 1, 0],
        [0, 1, 0],
    ]
    data = Interactions.from_matrix(matrix, items=["a", "b", "c"])
    once = data.filter(min_users_per_item=2, min_items_per_user=2)
    assert list(once.items) == ["a", "b"]  # c had one user
    assert list(once.users) == [0, 1]  # user 2 had one item left
    strict = data.filter(min_users_per_item=3, min_items_per_user=2, repeat=True)
    assert (strict.n_users, strict.n_items) == (0, 0)


@given(count_matrices(), st.integers(0, 3), st.integers(0, 3))
def test_repeated_filter_is_stable(matrix, min_users, min_items):
    data = Interactions.from_matrix(matrix).filter(min_users, min_items, repeat=True)
    assert np.all(np.diff(data.matrix.indptr) >= min_items)
    assert np.all(np.bincount(data.matrix.indices, minlength=data.n_items) >= min_users)
    rows, columns = np.ix_(data.users, data.items)
    np.testing.assert_array_equal(data.matrix.toarray(), matrix[rows, columns])


@given(count_matrices(), st.floats(0, 1), st.integers(0, 2**31))
def test_split_shares_out_the_non_zeros(matrix, fraction, seed):
    data = Interactions.from_matrix(matrix)
    train, test = data.split(fraction, seed=seed)
    np.testing.assert_array_equal(train.matrix.toarray() + test.matrix.toarray(), matrix)
    assert test.nnz == int(fraction * data.nnz)
    assert train.nnz + test.nnz == data.nnz
    assert train.users is data.users
    assert test.items is data.items
    again = data.split(fraction, seed=seed)[1]
    np.testing.assert_array_equal(again.matrix.toarray(), test.matrix.toarray())


def test_split_is_the_authors(taste_profile):
    """The author held out RandomState(1992).choice(63973, 12794, replace=False), in file order."""
    train, test = taste_profile
    whole = Interactions.from_matrix(train.matrix + test.matrix)
    ours = whole.split(0.2, seed=1992)[1]
    assert (ours.matrix != test.matrix).nnz == 0


def test_binarize():
    data = Interactions.from_matrix([[0, 7], [2, 0]]).binarize()
    assert data.matrix.toarray().tolist() == [[0, 1], [1, 0]]


@given(count_matrices(), st.integers(1, 8))
def test_counts_lie_both_ways(matrix, block_users):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nbmf.backends.counts.BLOCK_USERS", block_users)
        counts = Counts.of(Interactions.from_matrix(matrix).matrix, np.dtype(np.float64))
        assert len(counts.by_item) == -(-len(matrix) // block_users)
    back = np.zeros_like(matrix)
    for n, block in enumerate(counts.by_item):
        items = np.repeat(np.arange(matrix.shape[1]), np.diff(block.indptr))
        back[n * block_users + block.indices, items] += counts.by_user.data[block.data].astype(np.int64)
    np.testing.assert_array_equal(back, matrix)


# ---- how they are looked at -----------------------------------------------------------------------------------------

PLAYS = Interactions.from_arrays(["ann", "bob", "ann", "eve"], ["jazz", "jazz", "folk", "jazz"], [3, 1, 12, 0])
NAMED = replace(PLAYS, item_names=np.array(["Folk & co", "Jazz"]))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (Interactions.from_arrays([1], [2]), "1 user × 1 item, 1 non-zero count, total 1"),
        (
            Interactions.from_arrays([1, 1], [2, 2]),
            "1 user × 1 item, 1 non-zero count, total 2, 1 repeated pair added up",
        ),
        (Interactions.from_arrays([1, 1, 1], [2, 2, 2]), "total 3, 2 repeated pairs added up"),
        (Interactions.from_matrix([[0, 0]]), "1 user × 2 items, 0 non-zero counts, total 0"),
        (Interactions.from_matrix([[1.0, 2.0]]), "2 non-zero counts, total 3.0"),
        (Interactions.from_matrix([[0.5, 2.0]]), "2 non-zero counts, total 2.5, not all whole numbers"),
        (Interactions.from_matrix([[2**63 - 1, 2]]), "total 9.223372036854776e+18"),
    ],
)
def test_a_sentence_about_them(data, text):
    assert repr(data).startswith("Interactions(")
    assert repr(data).endswith(f"{text})")


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ([7], "1 event from 7 to 7"),
        (
            [1_600_000_500, 1_600_100_000],
            "2 events from 1600000500 to 1600100000, as Unix time 2020-09-13 to 2020-09-14",
        ),
        ([1_600_000_500_000.5], "as Unix time 2020-09-13 to 2020-09-13"),
        ([5, 1_600_000_500], "2 events from 5 to 1600000500"),
        (["2017-01-31"], "1 event from 2017-01-31 to 2017-01-31"),
    ],
)
def test_times_that_look_like_unix_time_are_also_shown_as_dates(times, text):
    events = Interactions.from_arrays(range(len(times)), range(len(times)), times=times).events
    assert events.summary.endswith(text)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
@pytest.mark.parametrize("data", [PLAYS, NAMED], ids=["ids", "names"])
def test_data_frames_come_back_the_same(data, kind):
    frame = getattr(data, f"to_{kind}")()
    name = ["name"] if data.item_names is not None else []
    assert list(frame.columns) == ["user", "item", *name, "count"]
    again = nbmf.read_interactions(frame, user="user", item="item", count="count")
    kept = data.select_users(np.array([0, 1]))  # eve has no count
    assert again.users.tolist() == kept.users.tolist()
    assert (again.matrix != kept.matrix).nnz == 0
    if name:
        assert frame["name"].to_list() == ["Folk & co", "Jazz", "Jazz"]


def test_one_users_counts():
    assert PLAYS.of_user("ann") == {"folk": 12, "jazz": 3}
    assert list(PLAYS.of_user("ann")) == ["folk", "jazz"]
    assert PLAYS.of_user("eve") == {}
    with pytest.raises(
        KeyError, match=r"user 'anne' was not in these interactions, which had 3 users; did you mean 'ann'"
    ):
        PLAYS.of_user("anne")


def test_a_notebook_shows_the_first_rows():
    html = NAMED._repr_html_()
    assert "<td>ann</td><td>folk</td><td>Folk &amp; co</td><td>12</td>" in html
    assert "more" not in html
    many = Interactions.from_matrix(np.ones((100, 100), int))
    assert many._repr_html_().count("<tr>") == 11
    assert "and 9,990 more" in many._repr_html_()
