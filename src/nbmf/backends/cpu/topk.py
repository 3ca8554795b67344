"""Compiled loops over rows of scores: making them, keeping the best, counting the items ranked before given ones.

Rows may go on beyond the last item: that is padding. NaN is neither above, level with nor below anything.
"""

import numpy as np

from nbmf.backends.cpu import kernels
from nbmf.backends.cpu.elementary import compiled

CHUNK = 64  # scores compared with a user's threshold before any one is looked at; a loop of fixed length is vectorized
PIECE = 2048  # scores that stay in the first-level cache while they are compared with one placed item after another
FEW = 400  # items to place up to which comparing the row with each is quicker than a search per score of the row


@kernels.compiled
def score_rows(users, items, scores):
    """Set scores[u, i] to the product of user u's and item i's rows as they lie in memory: for a few users."""
    for i in range(len(items)):
        for u in range(len(users)):
            total = users.dtype.type(0)
            for k in range(users.shape[1]):
                total += users[u, k] * items[i, k]
            scores[u, i] = total


@compiled
def _worse(score, item, other_score, other_item):
    return score < other_score or (score == other_score and item > other_item)


@compiled
def _sift_down(items, scores, size, item, score):
    """Replace the top of a heap by an item, and let it sink until no worse one is below it."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _worse(scores[child + 1], items[child + 1], scores[child], items[child]):
            child += 1
        if not _worse(scores[child], items[child], score, item):
            break
        items[place], scores[place] = items[child], scores[child]
        place = child
    items[place], scores[place] = item, score


@compiled
def keep_best(scores, items, rows, indptr, indices, passed, best_items, best_scores):
    """Put a tile's scores into the users' heaps of best items, whose top is the worst kept.

    `items` are the ascending item positions of the first columns. Row `rows[n]` of the csr matrix (indptr, indices), if
    any, has the items to leave out of user n's; `passed` is the first of them that earlier tiles have not passed.
    """
    n_columns, size = len(items), best_scores.shape[1]
    for n in range(len(rows)):
        row, heap_items, heap_scores = scores[n][:n_columns], best_items[n], best_scores[n]
        least = heap_scores[0]
        if indices is not None:
            skip, end = passed[n], indptr[rows[n] + 1]
        for start in range(0, n_columns, CHUNK):
            part = row[start : start + CHUNK]
            if len(part) == CHUNK:
                hits = np.int32(0)
                for j in range(CHUNK):
                    hits = np.int32(hits + (part[j] > least))
                if hits == 0:
                    continue
            for j in range(len(part)):
                if part[j] > least:
                    item = items[start + j]
                    if indices is not None:
                        while skip < end and indices[skip] < item:
                            skip += 1
                        if skip < end and indices[skip] == item:
                            continue
                    _sift_down(heap_items, heap_scores, size, item, part[j])
                    least = heap_scores[0]
        if indices is not None:
            passed[n] = skip


@kernels.compiled
def keep_best_listed(users, items, indptr, indices, best_items, best_scores):
    """Put each user's scores for the items of a list, row n of a csr matrix, into the user's heap of best items."""
    size = best_scores.shape[1]
    for n in range(len(users)):
        for p in range(indptr[n], indptr[n + 1]):
            item, score = indices[p], users.dtype.type(0)
            for k in range(users.shape[1]):
                score += users[n, k] * items[item, k]
            if score > best_scores[n, 0]:
                _sift_down(best_items[n], best_scores[n], size, item, score)


@compiled
def sort_best(best_items, best_scores):
    """Turn each user's heap into a list, best first: the worst one left goes to the end, again and again."""
    for n in range(len(best_items)):
        items, scores = best_items[n], best_scores[n]
        for size in range(best_items.shape[1] - 1, 0, -1):
            item, score = items[size], scores[size]
            items[size], scores[size] = items[0], scores[0]
            _sift_down(items, scores, size, item, score)


@compiled
def _search(row, wanted, above, level):
    """`_count` for many wanted scores: sort those, and find by bisection where each score of the row falls."""
    n_wanted = len(wanted)
    order = np.argsort(wanted)
    ascending = wanted[order]
    reached, equal = np.zeros(n_wanted + 1, np.int64), np.zeros(n_wanted + 1, np.int64)
    for j in range(len(row)):
        low, high = 0, n_wanted  # how many wanted scores are at most row[j]
        while low < high:
            middle = (low + high) // 2
            if ascending[middle] <= row[j]:
                low = middle + 1
            else:
                high = middle
        reached[low] += 1
        if low > 0 and ascending[low - 1] == row[j]:
            equal[low] += 1
    at_least, n_equal = 0, 0
    for t in range(n_wanted - 1, -1, -1):
        at_least += reached[t + 1]
        if t == n_wanted - 1 or ascending[t] != ascending[t + 1]:  # else they were counted at the last of its equals
            n_equal = equal[t + 1]
        above[order[t]], level[order[t]] = at_least - n_equal, n_equal


@compiled
def _count(row, wanted, above, level):
    """Count the scores of a row that are greater than, and equal to, each wanted one: for a few by a loop for each."""
    if len(wanted) > FEW:
        _search(row, wanted, above, level)
        return
    above[:] = 0
    level[:] = 0
    for start in range(0, len(row), PIECE):
        part = row[start : start + PIECE]
        for t in range(len(wanted)):
            score, greater, equal = wanted[t], np.int32(0), np.int32(0)
            for j in range(len(part)):
                greater = np.int32(greater + (part[j] > score))
                equal = np.int32(equal + (part[j] == score))
            above[t] += greater
            level[t] += equal


@compiled
def place_rows(scores, n_items, rows, indptr, indices, seen_indptr, seen_indices, above, level):
    """For each item to place, an entry of (indptr, indices), count the items ranked before it and level with it.

    Seen items come after all others. Both csr matrices have ascending columns; `scores` are whole rows.
    """
    for n in range(len(rows)):
        first, last = indptr[rows[n]], indptr[rows[n] + 1]
        seen = seen_indices[seen_indptr[rows[n]] : seen_indptr[rows[n] + 1]]
        row, n_wanted = scores[n][:n_items], last - first
        wanted, seen_scores = np.empty(n_wanted, scores.dtype), np.empty(len(seen), scores.dtype)
        for t in range(n_wanted):
            wanted[t] = row[indices[first + t]]
        for p in range(len(seen)):
            seen_scores[p] = row[seen[p]]
        seen_above, seen_level = np.empty(n_wanted, np.int64), np.empty(n_wanted, np.int64)
        _count(row, wanted, above[first:last], level[first:last])
        _count(seen_scores, wanted, seen_above, seen_level)
        p = 0
        for t in range(n_wanted):
            item = indices[first + t]
            while p < len(seen) and seen[p] < item:
                p += 1
            if p < len(seen) and seen[p] == item:
                above[first + t] = len(row) - len(seen) + seen_above[t]
                level[first + t] = seen_level[t]
            else:
                above[first + t] -= seen_above[t]
                level[first + t] -= seen_level[t]
