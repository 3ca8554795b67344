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
from nbmf.experiments.store import write_whole
from nbmf.experiments.study import Study

N_NAMED = 12  # of the best unseen items; more than a figure names


@dataclass(frozen=True)
class Portrait:
    """One user according to one fitted NBMF."""

    user: str
    model: str
    n_components: int
    taken: list[str]  # names of the user's items in train, largest count first
    count: list[float]  # y of each
    exposure: list[float]  # ⟨a⟩ of each
    unseen: list[str]  # names of the best items not in train
    score: list[float]  # Σ_k ⟨w⟩⟨h⟩ of all items not in train, best first
    held_out: list[bool]  # whether each of those is in test


def portray(study: Study, model: Any, user: Any = None) -> Portrait:
    """Return the portrait of a user by an NBMF fitted to `study.train`.

    By default the user is, among those with a middling number of items, the one with the most different counts.
    """
    row = row_of(study, user)
    named = study.data.users.tolist()[row]
    exposures, labels = model.exposures(named), study.labels()
    label_of = dict(zip(study.data.items.tolist(), labels, strict=True))
    score = (model.item_factors_ @ model.user_factors_[row]).astype(np.float64)
    unseen = np.setdiff1d(np.arange(study.data.n_items), study.train.matrix[[row]].indices)
    unseen = unseen[np.argsort(-score[unseen], kind="stable")]
    return Portrait(
        str(named),
        type(model).__name__,
        model.n_components,
        [label_of[item] for item in exposures.item.tolist()],
        exposures.count.astype(float).tolist(),
        exposures.exposure.astype(float).tolist(),
        [labels[item] for item in unseen[:N_NAMED]],
        score[unseen].tolist(),
        np.isin(unseen, study.test.matrix[[row]].indices).tolist(),
    )


def kept_portrait(results: Results, user: Any = None) -> Portrait:
    """Return the portrait by the best NBMF fit, which is kept in the folder.

    The fit is repeated from its seed, which gives the same bits, so that no factors need to be stored.
    """
    # the fit with the highest objective at the best number of components by rel_A
    job = max(results.rows[results.best("nbmf")], key=lambda row: row.convergence["objective"]).job
    wanted = {"fit": job.name, "asked for": None if user is None else str(user)}
    path = results.store.folder / "portrait.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if stored and all(stored.get(name) == value for name, value in wanted.items()):
        return Portrait(**stored["portrait"])
    row_of(results.study, user)  # raises for an unknown user before the fit
    model = BASELINES[job.model].fit(results.study.train, job.seed, available_cores(), **job.settings)
    assert isinstance(model, NBMF)
    if not model.converged_ and model.n_iter_ < results.grid.max_iter:
        raise KeyboardInterrupt  # Ctrl-C cut the fit short
    portrait = portray(results.study, model, user)
    write_whole(path, json.dumps({**wanted, "portrait": asdict(portrait)}, indent=1, ensure_ascii=False) + "\n")
    return portrait


def row_of(study: Study, user: Any = None) -> int:
    """Return the row of a user given by id, as a value or as text; None chooses one as `portray` does."""
    ids, matrix = study.data.users.tolist(), study.train.matrix
    if user is None:
        n_items = np.diff(matrix.indptr)
        low, high = np.quantile(n_items, (0.25, 0.75))
        middling = np.flatnonzero((n_items >= low) & (n_items <= high))
        counts = np.split(matrix.data, matrix.indptr[1:-1])
        return int(max(middling, key=lambda row: len(np.unique(counts[row]))))
    named = [n for n, known in enumerate(ids) if known == user or str(known) == str(user)]
    if not named:
        raise ValueError(f"user {user!r} is not among the {len(ids)} users; the first is {ids[0]!r}")
    return named[0]
