"""The picture of one user as numbers: how exposed to what was taken, and the scores of all the rest (§5.2)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nbmf.estimators.factorization import Factorization
from nbmf.experiments.grid import Job
from nbmf.experiments.results import Results
from nbmf.experiments.rows import write_whole
from nbmf.experiments.study import Study

N_NAMED = 12  # of the best unseen items, more than a picture names


@dataclass(frozen=True)
class Portrait:
    """One user, by one fitted NBMF.

    taken, count, exposure : names of the items in train, y and ⟨a⟩ of each, largest count first
    unseen, score, held_out : of the items not in train, best first: names (of the first few), Σ_k ⟨w⟩⟨h⟩ of all, and
        whether the item is in test, that is taken after all
    """

    user: str
    model: str
    n_components: int
    taken: list[str]
    count: list[float]
    exposure: list[float]
    unseen: list[str]
    score: list[float]
    held_out: list[bool]


def portray(study: Study, model: Factorization, user: Any = None) -> Portrait:
    """Return the portrait of a user, by a model fitted to `study.train`.

    user : an id; None takes, of the users with a middling number of items, the one with the most different counts
    """
    row = row_of(study, user)
    labels, named = study.labels(), study.data.users.tolist()[row]
    exposures = model.exposures(named)
    place = {item: n for n, item in enumerate(study.data.items.tolist())}
    score = (model.item_factors_ @ model.user_factors_[row]).astype(np.float64)
    unseen = np.setdiff1d(np.arange(study.data.n_items), study.train.matrix[[row]].indices)
    unseen = unseen[np.argsort(-score[unseen], kind="stable")]
    return Portrait(
        str(named),
        type(model).__name__,
        model.n_components,
        [labels[place[item]] for item in exposures.item.tolist()],
        [float(count) for count in exposures.count],
        [float(exposure) for exposure in exposures.exposure],
        [labels[item] for item in unseen[:N_NAMED]],
        [float(value) for value in score[unseen]],
        np.isin(unseen, study.test.matrix[[row]].indices).tolist(),
    )


def kept_portrait(results: Results, user: Any = None) -> Portrait | None:
    """Return the portrait by the best of the NBMF fits, made once and kept in the folder; None without NBMF.

    The fit is made anew from its seed: the same bits, and no factors need be kept.
    """
    if "nbmf" not in results.grid.models:
        return None
    job = best_fit(results)
    wanted = {"run": str(job), "asked for": None if user is None else str(user)}
    path = results.folder.path / "portrait.json"
    if path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if all(stored.get(name) == value for name, value in wanted.items()):
            return Portrait(**stored["portrait"])
    row_of(results.study, user)  # an unknown user is told before the fit
    model = results.grid.estimator(job).fit(results.study.train)
    if not model.converged_ and model.n_iter_ < results.grid.max_iter:
        raise KeyboardInterrupt  # the fit was cut short; nobody wants its portrait
    portrait = portray(results.study, model, user)
    write_whole(path, json.dumps({**wanted, "portrait": asdict(portrait)}, indent=1, ensure_ascii=False) + "\n")
    return portrait


def best_fit(results: Results) -> Job:
    """Return the NBMF run of highest objective among those with the best number of components by rel_A."""
    rows = results.starts(results.best("nbmf"))
    return max(rows, key=lambda row: row.objective).job


def row_of(study: Study, user: Any = None) -> int:
    """Return the row of a user given by id, as it is or as it is written; None chooses one, as in `portray`."""
    if user is None:
        return _most_different_counts(study)
    ids = study.data.users.tolist()
    named = [n for n, known in enumerate(ids) if known == user or str(known) == str(user)]
    if not named:
        raise ValueError(f"user {user!r} is not among the {len(ids)} users; the first is {ids[0]!r}")
    return named[0]


def _most_different_counts(study: Study) -> int:
    """Return the user with the most different counts among those with a middling number of items."""
    matrix = study.train.matrix
    n_taken = np.diff(matrix.indptr)
    low, high = np.quantile(n_taken, (0.25, 0.75))
    middling = np.flatnonzero((n_taken >= low) & (n_taken <= high))
    return int(max(middling, key=lambda row: len(np.unique(matrix.data[matrix.indptr[row] : matrix.indptr[row + 1]]))))
