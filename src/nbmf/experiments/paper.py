"""The experiments of the paper's §5: three models × numbers of components × random starts, and what they show."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from nbmf.experiments.engine import Engine, Report, Starts, Task, timed
from nbmf.experiments.pool import available_cores
from nbmf.experiments.store import Job, Row, Store
from nbmf.experiments.study import Study

LABELS = {"nbmf": "NBMF", "pf": "PF", "binarized_pf": "binarized PF"}
"""The methods of §5.1 under the names of the paper."""
REL_A = "ndcg_counts"
_BASELINES = {"nbmf": "nbmf", "pf": "poisson", "binarized_pf": "binary"}
_DENSE_COST = 6  # roughly, a fit of NBMF with exact exposures takes six times as long as one of PF


def at_least(s: int) -> str:
    """Return the name of NDCG with rel_B."""
    return f"ndcg_at_least_{s}"


class Entry(NamedTuple):
    """A model with a number of components, averaged over its starts."""

    model: str
    n_components: int

    def __str__(self) -> str:
        return f"{LABELS[self.model]} (K = {self.n_components})"


@dataclass(frozen=True)
class Grid:
    """The settings of §5.1. The n-th start of each model and K has the seed `seed + n`."""

    components: tuple[int, ...] = (5, 10, 20, 50, 100, 200)
    n_starts: int = 5
    seed: int = 0
    thresholds: tuple[int, ...] = (1, 2, 3, 5, 10)
    models: tuple[str, ...] = tuple(LABELS)
    concentration: float = 1.0
    tol: float = 1e-5
    max_iter: int = 10_000

    def __post_init__(self) -> None:
        for name in ("components", "thresholds", "models"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name} is {list(values)}; give at least one, each once")
            if name != "models" and min(values) < 1:
                raise ValueError(f"{name}: {min(values)} is not a whole number from 1")
        if self.n_starts < 1:
            raise ValueError(f"the number of starts is {self.n_starts}; there must be at least 1")
        if not 0 <= self.seed < 2**32 - self.n_starts:
            raise ValueError(f"seed is {self.seed}; it must lie between 0 and 2**32")
        unknown = [model for model in self.models if model not in LABELS]
        if unknown:
            raise ValueError(f"there is no model {unknown[0]!r}; there are {', '.join(LABELS)}")

    @property
    def metrics(self) -> tuple[str, ...]:
        """NDCG with rel_A, and with rel_B for each threshold."""
        return (REL_A, *(at_least(s) for s in self.thresholds))

    @property
    def entries(self) -> list[Entry]:
        """Every model with every number of components."""
        return [Entry(model, K) for model in self.models for K in self.components]

    def jobs_of(self, entry: Entry) -> list[Job]:
        """Return one fit per random start."""
        model, K = entry
        settings: dict[str, Any] = {"n_components": K, "tol": self.tol, "max_iter": self.max_iter}
        if model == "nbmf":
            settings |= {"concentration": self.concentration, "input": "counts"}
        cost = float((_DENSE_COST if model == "nbmf" else 1) * (K + 10))
        return [
            Job(f"{model}-{K}-{start}", _BASELINES[model], self.seed + start, settings, cost)
            for start in range(self.n_starts)
        ]

    def jobs(self) -> list[Job]:
        """Return all fits, the longest first, so that all workers finish at about the same time."""
        jobs = [job for entry in self.entries for job in self.jobs_of(entry)]
        return sorted(jobs, key=lambda job: (-job.cost, job.name))


def open_store(study: Study, grid: Grid, path: str | os.PathLike[str]) -> Store:
    """Open or create the folder of an experiment; ValueError if it holds another one."""
    settings = {"data": study.source(), "grid": asdict(grid), "made with": {"nbmf": version("nbmf")}}
    return Store(Path(path), settings)


def run_grid(
    study: Study,
    grid: Grid,
    path: str | os.PathLike[str],
    *,
    n_workers: int | None = None,
    report: Report = lambda event: None,
) -> Results:
    """Run a grid of fits. Each result is written as soon as it is ready, and an interrupted run resumes.

    A folder that holds another experiment is refused. `n_workers` is the number of processes, one per core by default;
    results are identical for any number.
    """
    store, jobs = open_store(study, grid, path), grid.jobs()
    engine = Engine(store, len(jobs), sum(job.cost for job in jobs), report)
    task = Task(study.train, study.test, ("counts", *grid.thresholds), (), grid.metrics, timed)
    engine.run(task, jobs, n_workers or available_cores())
    return Results(study, grid, store)


class Results(Starts[Entry]):
    """All results of a grid, read from its folder."""

    def __init__(self, study: Study, grid: Grid, store: Store) -> None:
        missing = store.missing(grid.jobs())
        if missing:
            raise ValueError(
                f"{store.folder}: {len(missing)} fits are missing, among them {missing[0].name}; run the grid again"
            )
        rows = store.rows()
        starts = {entry: [rows[job.name] for job in grid.jobs_of(entry)] for entry in grid.entries}
        super().__init__(store, starts, study.train, study.test)
        self.study, self.grid = study, grid

    def all_rows(self) -> list[Row]:
        """Return the rows of all fits."""
        return [row for rows in self.rows.values() for row in rows]

    def best(self, model: str, *, without: int | None = None) -> Entry:
        """Return the model with the number of components that does best by rel_A (of equals the smallest)."""
        entries = [Entry(model, K) for K in sorted(self.grid.components) if without != K]
        return max(entries, key=lambda entry: self.level(entry).mean)

    def chosen(self) -> list[Entry]:
        """Return each model at its best number of components by rel_A, as in the paper."""
        return [self.best(model) for model in self.grid.models]

    def summary(self) -> dict[str, Any]:
        """Return the tables as plain data: by model and K, and by threshold at each model's best K."""

        def cells(entry: Entry, metric: str) -> dict[str, Any]:
            return {"model": entry.model, "components": entry.n_components, **self.level(entry, metric)._asdict()}

        by_threshold = [{"s": s, **cells(e, at_least(s))} for s in self.grid.thresholds for e in self.chosen()]
        return {"ndcg_counts": [cells(entry, REL_A) for entry in self.grid.entries], "ndcg_at_least": by_threshold}
