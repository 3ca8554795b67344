"""What the rows say: means, spreads, the best number of components, and how far two models are apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nbmf.data.interactions import Interactions
from nbmf.evaluation import Comparison, Evaluation, Metric, compare
from nbmf.experiments.grid import LABELS, Grid, Job, at_least
from nbmf.experiments.rows import Folder, Row
from nbmf.experiments.study import Study

REL_A = "ndcg_counts"


class Entry(NamedTuple):
    """A model with a number of components; its starts are averaged."""

    model: str
    n_components: int

    def __str__(self) -> str:
        """Name it for a reader."""
        return f"{LABELS[self.model]} (K = {self.n_components})"


class Level(NamedTuple):
    """The mean of a metric over starts, and its standard deviation from start to start (nan of one start)."""

    mean: float
    sd: float


class Results:
    """All runs of a grid, read from its folder."""

    def __init__(self, study: Study, grid: Grid, folder: Folder) -> None:
        """Read the rows; every run must be there."""
        self.study, self.grid, self.folder = study, grid, folder
        found = folder.rows()
        missing = [job for job in grid.jobs() if job not in found]
        if missing:
            raise ValueError(
                f"{folder.path}: {len(missing)} runs are missing, among them {missing[0]}; run the grid on"
            )
        self.rows: dict[Job, Row] = {job: found[job] for job in sorted(grid.jobs())}
        self._judged: dict[Entry, list[Evaluation]] = {}

    def starts(self, entry: Entry) -> list[Row]:
        """Return the rows of a model's starts."""
        return [self.rows[Job(*entry, n)] for n in range(self.grid.n_starts)]

    def level(self, entry: Entry, metric: str = REL_A) -> Level:
        """Return the mean over starts and the spread between them."""
        values = [row.means[metric] for row in self.starts(entry)]
        return Level(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan)

    def best(self, model: str, metric: str = REL_A, *, without: int | None = None) -> Entry:
        """Return the model with the number of components that does best (of equals the smallest)."""
        entries = [Entry(model, K) for K in sorted(self.grid.components) if without != K]
        return max(entries, key=lambda entry: self.level(entry, metric).mean)

    def chosen(self) -> list[Entry]:
        """Return each model at its best number of components by rel_A, as the paper chose it."""
        return [self.best(model) for model in self.grid.models]

    def compare(self, entries: Sequence[Entry], metric: str, baseline: Entry | None = None) -> Comparison:
        """Compare models user by user, each averaged over its starts."""
        judged: dict[str, Evaluation | Sequence[Evaluation]] = {
            str(entry): self._evaluations(entry) for entry in entries
        }
        return compare(judged, metric, baseline=None if baseline is None else str(baseline))

    def _evaluations(self, entry: Entry) -> list[Evaluation]:
        if entry not in self._judged:
            self._judged[entry] = [self._evaluation(row) for row in self.starts(entry)]
        return self._judged[entry]

    def _evaluation(self, row: Row) -> Evaluation:
        mark = str(self.folder.settings["data"]["fingerprint"])
        return kept_evaluation(self.folder.values(row.job), row.means, self.study.test, mark)


def kept_evaluation(
    values: Mapping[str, NDArray[np.float64]], means: Mapping[str, float], test: Interactions, mark: str
) -> Evaluation:
    """Return what `nbmf.evaluate` found, from what was kept of it; without intervals, which nobody asks of one start.

    values : by metric, one a user; mark : the fingerprint of the data
    """
    metrics = {
        name: Metric(means[name], (math.nan, math.nan), column, int(np.count_nonzero(~np.isnan(column))))
        for name, column in values.items()
    }
    n_tested = int(np.count_nonzero(np.diff(test.matrix.indptr)))
    return Evaluation(metrics, test.users, n_tested, test.n_users - n_tested, mark)


@dataclass(frozen=True)
class Shares:
    """Of the non-zero counts, the share of each size or more: what a cumulative histogram draws."""

    count: list[float]
    share: list[float]

    def at_least(self, count: float) -> float:
        """Return the share of the non-zeros that are as large or larger."""
        place = int(np.searchsorted(self.count, count))
        return self.share[place] if place < len(self.share) else 0.0


def count_shares(study: Study) -> Shares:
    """Return the sizes that occur among all non-zero counts, and how many are as large or larger."""
    sizes, numbers = np.unique(study.data.matrix.data, return_counts=True)
    share = np.cumsum(numbers[::-1])[::-1] / numbers.sum()
    return Shares([float(size) for size in sizes], [float(part) for part in share])


def summary(results: Results) -> dict[str, Any]:
    """Return the tables as plain data: by model and K, and by threshold at each model's best K."""
    by_components = [
        {"model": entry.model, "components": entry.n_components, **results.level(entry)._asdict()}
        for entry in (Entry(model, K) for model in results.grid.models for K in results.grid.components)
    ]
    by_threshold = [
        {"s": s, "model": entry.model, "components": entry.n_components, **results.level(entry, at_least(s))._asdict()}
        for s in results.grid.thresholds
        for entry in results.chosen()
    ]
    return {"ndcg_counts": by_components, "ndcg_at_least": by_threshold}
