"""Which fits an experiment is made of: models × numbers of components × random starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nbmf.estimators.nbmf import NBMF, PoissonMF

LABELS = {"nbmf": "NBMF", "pf": "PF", "binarized_pf": "binarized PF"}
"""The compared methods of §5.1, by the names of the paper."""

DENSE_COST = 6  # a fit of NBMF with exact exposures against one of PF, roughly; for the order and the time left


@dataclass(frozen=True, order=True)
class Job:
    """One fit."""

    model: str
    n_components: int
    start: int

    def __str__(self) -> str:
        """Name the job in a word that can be a file's name."""
        return f"{self.model}-{self.n_components}-{self.start}"

    @property
    def cost(self) -> float:
        """How long it takes, in no unit."""
        return (DENSE_COST if self.model == "nbmf" else 1) * (self.n_components + 10)


@dataclass(frozen=True)
class Grid:
    """The settings of §5.1; the n-th start of each model and K has the seed `seed + n`."""

    components: tuple[int, ...] = (5, 10, 20, 50, 100, 200)
    n_starts: int = 5
    seed: int = 0
    thresholds: tuple[int, ...] = (1, 2, 3, 5, 10)
    models: tuple[str, ...] = tuple(LABELS)
    concentration: float = 1.0
    tol: float = 1e-5
    max_iter: int = 10_000

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        for name in ("components", "thresholds", "models"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name} is {list(values)}; give at least one, each once")
        for name, values in (("components", self.components), ("thresholds", self.thresholds)):
            if min(values) < 1:
                raise ValueError(f"{name}: {min(values)} is not a whole number from 1")
        if self.n_starts < 1:
            raise ValueError(f"the number of starts is {self.n_starts}; there must be at least 1")
        if not 0 <= self.seed < 2**32 - self.n_starts:
            raise ValueError(f"seed is {self.seed}; it must lie between 0 and 2**32")
        unknown = [model for model in self.models if model not in LABELS]
        if unknown:
            raise ValueError(f"there is no model {unknown[0]!r}; there are {', '.join(LABELS)}")

    @property
    def relevance(self) -> tuple[str | int, ...]:
        """What `nbmf.evaluate` is asked for: rel_A, and rel_B of each threshold."""
        return ("counts", *self.thresholds)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of those metrics."""
        return ("ndcg_counts", *(at_least(s) for s in self.thresholds))

    def jobs(self) -> list[Job]:
        """Return all fits, the longest first, so that all processes end at about the same time."""
        jobs = [Job(m, K, n) for m in self.models for K in self.components for n in range(self.n_starts)]
        return sorted(jobs, key=lambda job: (-job.cost, job))

    def estimator(self, job: Job, n_threads: int | None = None) -> NBMF | PoissonMF:
        """Return the model of a job, to be fitted."""
        settings: dict[str, Any] = {
            "tol": self.tol,
            "max_iter": self.max_iter,
            "random_state": self.seed + job.start,
            "n_threads": n_threads,
        }
        if job.model == "nbmf":
            return NBMF(job.n_components, concentration=self.concentration, **settings)
        return PoissonMF(job.n_components, binarize=job.model == "binarized_pf", **settings)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings, for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def at_least(s: int) -> str:
    """Return the name of NDCG with rel_B."""
    return f"ndcg_at_least_{s}"
