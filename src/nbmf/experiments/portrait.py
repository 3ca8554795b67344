"""One user in numbers (§5.2): the exposure of each item the user has, and the scores of all other items."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nbmf.estimators.nbmf import NBMF
from nbmf.experiments.baselines import BASELINES
from nbmf.experiments.paper import Results
from nbmf.experiments.pool import available_cores
from nbmf.experiments.store import Job, write_whole
from nbmf.experiments.study import Study

N_NAMED = 12  # of the best unseen items; more than a figure names


@dataclass(frozen=True)
class Portrait:
    """One user according to one fitted NBMF.

    Attributes
    ----------
    taken, count, exposure : list
        Names of the user's items in train, y and ⟨a⟩ of each, largest count first.
    unseen, score, held_out : list
        The items not in train, best first: names (of the first few), Σ_k ⟨w⟩⟨h⟩ of all, and whether the item is in
        test.
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


def portray(study: Study, model: Any, user: Any = None) -> Portrait:
    """Return the portrait of a user by an NBMF fitted to `study.train`.

    By default the user is, among those with a middling number of items, the one with the most different counts.
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
    """Return the portrait by the best NBMF fit, which is kept in the folder; None without NBMF.

    The fit is repeated from its seed, which gives the same bits, so that no factors need to be stored.
    """
    if "nbmf" not in results.grid.models:
        return None
    job = best_fit(results)
    wanted = {"fit": job.name, "asked for": None if user is None else str(user)}
    path = results.store.folder / "portrait.json"
    if path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if all(stored.get(name) == value for name, value in wanted.items()):
            return Portrait(**stored["portrait"])
    row_of(results.study, user)  # raises for an unknown user before the fit
    model = BASELINES[job.model].fit(results.study.train, job.seed, available_cores(), **job.settings)
    assert isinstance(model, NBMF)
    if not model.converged_ and model.n_iter_ < results.grid.max_iter:
        raise KeyboardInterrupt  # Ctrl-C cut the fit short
    portrait = portray(results.study, model, user)
    write_whole(path, json.dumps({**wanted, "portrait": asdict(portrait)}, indent=1, ensure_ascii=False) + "\n")
    return portrait


def best_fit(results: Results) -> Job:
    """Return the NBMF fit with the highest objective at the best number of components by rel_A."""
    return max(results.rows[results.best("nbmf")], key=lambda row: row.convergence["objective"]).job


def row_of(study: Study, user: Any = None) -> int:
    """Return the row of a user given by id, as a value or as text; None chooses one as `portray` does."""
    if user is None:
        return _most_different_counts(study)
    ids = study.data.users.tolist()
    named = [n for n, known in enumerate(ids) if known == user or str(known) == str(user)]
    if not named:
        raise ValueError(f"user {user!r} is not among the {len(ids)} users; the first is {ids[0]!r}")
    return named[0]


def _most_different_counts(study: Study) -> int:
    matrix = study.train.matrix
    n_items = np.diff(matrix.indptr)
    low, high = np.quantile(n_items, (0.25, 0.75))
    middling = np.flatnonzero((n_items >= low) & (n_items <= high))
    return int(max(middling, key=lambda row: len(np.unique(matrix.data[matrix.indptr[row] : matrix.indptr[row + 1]]))))
