"""Walks over scores: the best items and the ranks of given items, compared with sorting whole rows."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from helpers import large, rankings, sorted_best
from nbmf.backends.cpu.topk import FEW
from nbmf.estimators.ranking import nearest, places, top, walk
from nbmf.estimators.scores import TILE_ROWS, FactorScores, ModelScores


def counted_places(score, test, train):
    """(above, level) of each test item, one comparison at a time."""
    found = []
    for row, wanted, seen in zip(score, test, train, strict=True):
        for i in np.flatnonzero(wanted):
            keys = [(bool(seen[j]), -row[j]) for j in range(len(row))]
            found.append((sum(key < keys[i] for key in keys), sum(key == keys[i] for key in keys)))
    return np.array(found, int).reshape(-1, 2).T


@given(rankings(), st.integers(1, 8), st.data())
def test_best_and_places_of_any_scores(ranking, n, data):
    score, test, train = ranking
    allowed = data.draw(hnp.arrays(bool, score.shape[1]))
    scores = ModelScores(lambda rows: score[rows], *score.shape)
    found = top(scores, n, exclude=sp.csr_array(train), allowed=allowed)
    for ours, expected in zip(found, sorted_best(score, n, train > 0, allowed), strict=True):
        np.testing.assert_array_equal(ours, expected)
    placed = places(scores, sp.csr_array(test), sp.csr_array(train))
    np.testing.assert_array_equal((placed.above, placed.level), counted_places(score, test, train))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 10, 2000])
def test_best_across_tiles(dtype, n):
    W, H, train, rng = large(dtype)
    allowed = rng.random(len(H)) < 0.9
    found = top(FactorScores(W, H), n, exclude=sp.csr_array(train), allowed=allowed)
    for ours, expected in zip(found, sorted_best(W @ H.T, n, train, allowed), strict=True):
        np.testing.assert_array_equal(ours, expected)
    rows = np.array([7, 3, 7])
    np.testing.assert_array_equal(top(FactorScores(W, H), n, rows=rows).items, top(FactorScores(W, H), n).items[rows])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_places_of_few_and_of_many(dtype):
    W, H, train, rng = large(dtype)
    W, train = W[:20], train[:20]
    test = rng.random(train.shape) < np.where(np.arange(20) < 3, 0.5, 0.02)[:, None]
    test[8], test[9] = False, True
    n_test = test.sum(axis=1)
    assert (n_test > FEW).sum() == 4
    found = places(FactorScores(W, H), sp.csr_array(test), sp.csr_array(train))
    score = W @ H.T
    key = np.where(train, score - 1e6, score)  # seen ones last; whole numbers, so exact in either precision
    above = [(key[u] > key[u, i]).sum() for u, i in zip(*np.nonzero(test), strict=True)]
    level = [(key[u] == key[u, i]).sum() for u, i in zip(*np.nonzero(test), strict=True)]
    np.testing.assert_array_equal(found.above, above)
    np.testing.assert_array_equal(found.level, level)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_users", [1, 40, 300])
@pytest.mark.parametrize("n_items", [5, 787, 1667])
def test_equal_items_score_equally_wherever_they_stand(dtype, n_users, n_items):
    """Items that nobody took all have the same posterior; rounding must not rank them."""
    rng = np.random.default_rng(0)
    scores = FactorScores(
        rng.gamma(1, 1, (n_users, 50)).astype(dtype), np.tile(rng.gamma(1, 1, 50), (n_items, 1)).astype(dtype)
    )
    assert (top(scores, n_items).items == np.arange(n_items)).all()
    last = sp.csr_array((np.ones(n_users), (np.arange(n_users), np.full(n_users, n_items - 1))))
    assert (places(scores, last, sp.csr_array(last.shape)).level == n_items).all()


def test_what_is_not_a_number_is_nobodys_best():
    score = np.array([[np.nan, 1.0, -np.inf, 2.0]])
    scores = ModelScores(lambda rows: score[rows], 1, 4)
    assert top(scores, 4).items.tolist() == [[3, 1, -1, -1]]
    placed = places(scores, sp.csr_array(np.ones((1, 4))), sp.csr_array((1, 4)))
    assert placed.level.tolist() == [0, 1, 1, 1]


def test_unsorted_rows_are_sorted_first():
    messy = sp.csr_array((np.ones(3), np.array([3, 0, 2]), np.array([0, 3])), shape=(1, 4))
    scores = FactorScores(np.ones((1, 1)), np.arange(4.0)[:, None])
    assert top(scores, 4, exclude=messy).items.tolist() == [[1, -1, -1, -1]]
    assert places(scores, messy, sp.csr_array((1, 4))).above.tolist() == [3, 1, 0]  # by item: 0, 2, 3
    assert messy.indices.tolist() == [3, 0, 2]


def test_nothing_to_rank():
    scores = FactorScores(np.ones((2, 1)), np.ones((3, 1)))
    assert top(scores, 2, rows=np.array([], int)).items.shape == (0, 2)
    assert (top(scores, 2, allowed=np.zeros(3, bool)).items == -1).all()


@pytest.mark.parametrize("n_threads", [1, 2])
def test_report_counts_the_users_and_errors_come_through(n_threads):
    W, H, _, _ = large(np.float32)
    heard = []
    top(FactorScores(W, H), 3, n_threads=n_threads, report=lambda done, total: heard.append((done, total)))
    assert heard == [(TILE_ROWS, len(W)), (len(W), len(W))]  # whichever block was done first

    def refuse(start, rows, left, scores):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        walk(FactorScores(W, H), np.arange(len(W)), [refuse], n_threads=n_threads)


def test_a_model_must_score_every_item():
    with pytest.raises(ValueError, match=r"shape \(2, 3\); it must be \(2, 4\)"):
        top(ModelScores(lambda rows: np.ones((len(rows), 3)), 2, 4), 1)


def test_no_row_is_too_long_or_too_short_to_be_compared():
    """Cosines do not depend on lengths, of which a square may overflow or underflow."""
    rng = np.random.default_rng(0)
    rows, others = rng.gamma(1.0, 1.0, (8, 3)), rng.gamma(1.0, 1.0, (5, 3))
    lengths = 2.0 ** np.array([[0], [450], [-450], [0], [450], [-450], [1], [2]])
    for place in range(3):
        found = nearest(rows * lengths, others * 2.0**450, place, 7)
        for one, other in zip(found, nearest(rows, others, place, 7), strict=True):
            np.testing.assert_array_equal(one, other)
