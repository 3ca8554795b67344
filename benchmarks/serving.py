"""Milliseconds per answer: recommendations for known and new users, explanations, and adding users and items.

python benchmarks/serving.py         (takes about a minute, most of it the fit)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from measure import repeated
from nbmf.estimators.nbmf import NBMF
from workload import N_CLUSTERS, N_COMPONENTS, N_ITEMS, popular_counts

N_USERS, TIMES = 20_000, 30


def milliseconds(job: Callable[[], object], times: int = TIMES) -> tuple[float, float]:
    """Return the median and the largest time of a job."""
    taken = repeated(job, times)
    return 1000 * float(np.median(taken)), 1000 * max(taken)


def main() -> None:
    """Fit a model, then time its answers."""
    matrix = popular_counts(N_USERS, N_ITEMS, 1_000_000)
    model = NBMF(N_COMPONENTS, exposure="tied", n_clusters=N_CLUSTERS, max_iter=30, random_state=0).fit(matrix)
    sizes = np.diff(matrix.indptr)
    user = int(np.argmin(np.abs(sizes - 30)))
    row = matrix[[user]]
    counts = dict(zip(row.indices.tolist(), row.data.tolist(), strict=True))
    thousand, column = matrix[:1000], matrix[:, [int(row.indices[0])]]
    users, items, posteriors = model.users_, model.items_, model.result_
    print(f"{N_USERS:,} × {N_ITEMS:,}, tied exposures with {N_CLUSTERS} clusters, K = {N_COMPONENTS}")
    answers: dict[str, tuple[float, float]] = {
        f"recommend(user), a user with {len(counts)} counts": milliseconds(lambda: model.recommend(user)),
        f"recommend_for({{…}}), {len(counts)} counts": milliseconds(lambda: model.recommend_for(counts)),
        f"transform(row), {len(counts)} counts": milliseconds(lambda: model.transform(row)),
        "explain(user, item)": milliseconds(lambda: model.explain(user, int(items[0]))),
        "similar_items(item)": milliseconds(lambda: model.similar_items(int(items[0]))),
        "predictive(user, item)": milliseconds(lambda: model.predictive(user, int(items[0])).interval()),
        "transform(1,000 rows)": milliseconds(lambda: model.transform(thousand), 3),
    }

    def take_in(add: Callable[[], object]) -> None:
        add()
        model._become(posteriors)  # as it was

    answers["add_users(1 row)"] = milliseconds(lambda: take_in(lambda: model.add_users(row)), 5)
    answers["add_items(1 column)"] = milliseconds(lambda: take_in(lambda: model.add_items(column)), 3)
    assert model.users_ is users
    for name, (median, largest) in answers.items():
        print(f"  {name:42} {median:9.2f} ms   (at most {largest:.2f})")


if __name__ == "__main__":
    main()
