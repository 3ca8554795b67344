"""Splits: no count is lost or in both parts, and splits by time put later events into the test part."""

import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbmf import Interactions
from nbmf.data.events import Events
from nbmf.data.interactions import Split

ROWS = st.lists(
    st.tuples(st.sampled_from("uvwx"), st.sampled_from("abcdef"), st.integers(0, 3), st.integers(0, 9)),
    min_size=1,
    max_size=40,
)
SEEDS = st.integers(0, 2**31)
SPLITS = {
    "random": lambda data, seed: data.split(0.4, seed=seed),
    "per user": lambda data, seed: data.split_per_user(0.4, seed=seed),
    "last": lambda data, seed: data.leave_last_out(2, seed=seed),
}


def interactions(rows) -> Interactions:
    return Interactions.from_arrays(*zip(*rows, strict=True))


def events_of(data: Interactions) -> list[tuple]:
    e = data.events
    return sorted(zip(data.users[e.rows], data.items[e.columns], e.counts.tolist(), e.times.tolist(), strict=True))


def pairs_of(data: Interactions) -> set[tuple]:
    rows, columns = data.matrix.nonzero()
    return set(zip(data.users[rows], data.items[columns], strict=True))


def assert_is_made_of(data: Interactions, rows: list[tuple]) -> None:
    """Check that matrix and events hold exactly these rows."""
    expected = np.zeros(data.matrix.shape, int)
    for user, item, count, _ in rows:
        expected[list(data.users).index(user), list(data.items).index(item)] += count
    np.testing.assert_array_equal(data.matrix.toarray(), expected)
    assert data.matrix.has_canonical_format
    assert events_of(data) == sorted(row for row in rows if row[2])


# ---- events


@given(ROWS, st.randoms(use_true_random=False))
def test_events_are_the_rows_in_an_order_of_their_own(rows, random):
    data = interactions(rows)
    assert_is_made_of(data, rows)
    random.shuffle(rows)
    again = interactions(rows).events
    for name in ("rows", "columns", "counts", "times"):
        np.testing.assert_array_equal(getattr(again, name), getattr(data.events, name))


@given(ROWS, st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_filters_keep_the_events_of_what_stays(rows, min_users, min_items, repeat):
    data = interactions(rows).filter(min_users, min_items, repeat=repeat)
    assert_is_made_of(data, [row for row in rows if row[0] in data.users and row[1] in data.items])


def test_without_times_there_are_no_events():
    data = Interactions.from_arrays([1, 2], [1, 1])
    assert data.events is None
    assert data.split(0.5).train.events is None


def test_binarize_leaves_the_events_behind():
    assert Interactions.from_arrays([1, 1], [2, 2], times=[1, 2]).binarize().events is None


def test_events_of_another_matrix_are_refused():
    data = Interactions.from_arrays([1, 2], [1, 1], times=[1, 2])
    for events in (
        Events(data.events.rows[::-1], *(getattr(data.events, name) for name in ("columns", "counts", "times"))),
        data.events.take(np.array([True, False])),
        Events(data.events.rows, data.events.columns, 2 * data.events.counts, data.events.times),
    ):
        with pytest.raises(ValueError, match="do not add up"):
            Interactions(data.users, data.items, data.matrix, events=events)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([1, 2], "2 times for 3 interactions"),
        ([[1], [2], [3]], "must be a list"),
        ([1.0, np.nan, 2.0], "times: nan at position 1 is not a time"),
        (np.array(["2017", "NaT", "2018"], "M8[D]"), "times: NaT at position 1 is not a time"),
        (
            ["2017-01-01", "2017-02-30", "2017-01-01"],
            "'2017-02-30' at position 1 is not a time; write it as 2017-01-31",
        ),
        (["2017-01-01", "1", "2"], "'1' at position 1 is not a time"),
        ([datetime.date(2017, 1, 1), None, 3], "None at position 1 is not a time"),
        ([True, False, True], "times have type bool"),
    ],
)
def test_bad_times_are_named(times, message):
    with pytest.raises(ValueError, match=message):
        Interactions.from_arrays([1, 2, 3], [1, 1, 1], times=times)


# ---- what every split keeps


@pytest.mark.parametrize("kind", SPLITS)
@given(rows=ROWS, seed=SEEDS)
def test_every_non_zero_is_on_one_side(kind, rows, seed):
    data = interactions(rows)
    split = SPLITS[kind](data, seed)
    train, test = split
    assert isinstance(split, Split)
    np.testing.assert_array_equal((train.matrix + test.matrix).toarray(), data.matrix.toarray())
    assert not pairs_of(train) & pairs_of(test)
    assert sorted(events_of(train) + events_of(test)) == events_of(data)
    for part in split:
        assert part.users is data.users
        assert part.items is data.items
    assert set(split.untested) == {user for user in data.users if user not in {pair[0] for pair in pairs_of(test)}}


@pytest.mark.parametrize("kind", SPLITS)
@given(rows=ROWS, seed=SEEDS, random=st.randoms(use_true_random=False))
def test_one_seed_gives_one_split_whatever_the_order_of_the_rows(kind, rows, seed, random):
    first = SPLITS[kind](interactions(rows), seed)
    random.shuffle(rows)
    assert events_of(SPLITS[kind](interactions(rows), seed).test) == events_of(first.test)


@pytest.mark.parametrize("kind", SPLITS)
def test_another_seed_gives_another_split(kind):
    data = interactions([(user, item, 1, 0) for user in "uvwx" for item in "abcdef"])
    assert len({tuple(events_of(SPLITS[kind](data, seed).test)) for seed in range(20)}) > 10


@given(ROWS, st.floats(0, 1))
def test_each_user_gives_a_share_and_keeps_one(rows, fraction):
    data = interactions(rows)
    test = data.split_per_user(fraction).test
    n_stored = np.diff(data.matrix.indptr).tolist()
    assert np.diff(test.matrix.indptr).tolist() == [max(min(int(fraction * n), n - 1), 0) for n in n_stored]


@given(ROWS, st.integers(1, 4), SEEDS)
def test_the_last_are_left_out(rows, n, seed):
    data = interactions(rows)
    train, test = data.leave_last_out(n, seed=seed)
    last = {}
    for user, item, _, time in events_of(data):
        last[user, item] = max(time, last.get((user, item), time))
    for user in data.users:
        kept, out = ([last[pair] for pair in pairs_of(part) if pair[0] == user] for part in (train, test))
        assert len(out) == max(min(n, len(kept) + len(out) - 1), 0)
        assert max(kept, default=0) <= min(out, default=10)


def test_equal_times_are_drawn():
    data = interactions([("u", item, 1, 0) for item in "abc"])
    drawn = [next(iter(pairs_of(data.leave_last_out(seed=seed).test)))[1] for seed in range(300)]
    assert min(drawn.count(item) for item in "abc") > 70  # 100 each on average; 70 is 3.7 standard deviations off


# ---- by date


@given(ROWS, st.integers(0, 10), st.booleans())
def test_the_test_part_is_later(rows, date, repeats):
    data = interactions(rows)
    whole = events_of(data)
    before, after = [e for e in whole if e[3] < date], [e for e in whole if e[3] >= date]
    if not before or not after:
        with pytest.raises(ValueError, match="part would be empty: the split is at"):
            data.split_by_date(date)
        return
    train, test = data.split_by_date(date, repeats=repeats)
    consumed = set() if repeats else {e[:2] for e in before}
    assert_is_made_of(train, before)
    assert_is_made_of(test, [e for e in after if e[:2] not in consumed])
    if repeats:
        np.testing.assert_array_equal((train.matrix + test.matrix).toarray(), data.matrix.toarray())


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=60), st.floats(0.05, 0.95))
def test_a_fraction_is_a_date(times, fraction):
    data = Interactions.from_arrays(range(len(times)), range(len(times)), times=times)
    n_test = int(fraction * len(times))
    cut = sorted(times)[-n_test] if n_test else None
    if cut is None or cut == min(times):
        with pytest.raises(ValueError, match=r"leaves none for the test part|part would be empty"):
            data.split_by_date(test_fraction=fraction)
        return
    split = data.split_by_date(test_fraction=fraction)
    assert split.test.nnz == sum(time >= cut for time in times) >= n_test
    assert events_of(split.train) == events_of(data.split_by_date(cut).train)


@pytest.mark.parametrize("unit", ["D", "s", "us", "ns"])
def test_dates_may_be_written_in_many_ways(unit):
    times = np.array(["2016-12-31", "2017-01-01", "2017-01-02"], f"M8[{unit}]")
    data = Interactions.from_arrays([1, 1, 1], ["a", "b", "c"], times=times)
    for date in (
        "2017-01-01",
        "2017-01-01T00:00:00Z",
        "2017-01-01T01:00+01:00",
        datetime.date(2017, 1, 1),
        datetime.datetime(2017, 1, 1),
        datetime.datetime(2017, 1, 1, tzinfo=datetime.UTC),
        np.datetime64("2017-01"),
        np.datetime64("2017-01-01", "ns"),
    ):
        assert data.split_by_date(date).train.matrix.toarray().tolist() == [[1, 0, 0]]


DATED = Interactions.from_arrays([1, 1], ["a", "b"], times=["2017-01-01", "2018-01-01"])
UNDATED = Interactions.from_arrays([1, 1], ["a", "b"])


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (UNDATED.leave_last_out, r"have no times.*read_interactions\(…, time='column'\)"),
        (lambda: UNDATED.split_by_date("2017-01-01"), "have no times"),
        (lambda: DATED.binarize().leave_last_out(), r"split before binarize\(\)"),
        (lambda: DATED.leave_last_out(0), "n is 0; it must be a whole number from 1"),
        (lambda: DATED.leave_last_out(1.5), "n is 1.5; it must be a whole number"),
        (DATED.split_by_date, "either a date or test_fraction"),
        (lambda: DATED.split_by_date("2017-06-01", test_fraction=0.2), "either a date or test_fraction"),
        (lambda: DATED.split_by_date(1496275200), "does not fit the times: there are 2 events from 2017-01-01 to 2018"),
        (lambda: DATED.split_by_date("soon"), "date: 'soon'.* is not a time; write it as"),
        (lambda: DATED.split_by_date("2019-01-01"), "the test part would be empty: the split is at 2019-01-01, and"),
        (lambda: DATED.split_by_date("2017-01-01"), "the train part would be empty"),
        (lambda: DATED.split_by_date(test_fraction=2), "test_fraction is 2; it must lie between 0 and 1"),
        (lambda: DATED.split_per_user(-0.1), "test_fraction is -0.1"),
    ],
)
def test_bad_splits_are_named(split, message):
    with pytest.raises(ValueError, match=message):
        split()
