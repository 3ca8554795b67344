"""One fit by sweeps: settings and counts in, the sweep to keep out."""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from nbmf.backends import Backend
from nbmf.backends.counts import Counts
from nbmf.data.interactions import Ids
from nbmf.estimators.cells import cheap_cells
from nbmf.estimators.findings import misfit
from nbmf.estimators.fit import FactorFit
from nbmf.inference.checkpoints import Checkpoints, Origin, read_checkpoint, resumed
from nbmf.inference.progress import Progress
from nbmf.inference.run import Ending, Snapshot, State, Tie, Until, begin, run
from nbmf.model import Model
from nbmf.model.factors import Array, Point
from nbmf.storage.container import Path

HEAVY_LARGEST, HEAVY_MEAN = 1000, 50  # counts, and means of those that are not 0, from which a fit takes long


@dataclass(frozen=True)
class Control:
    """What a caller of `fit` can watch, stop, save and resume; see `Factorization.fit`."""

    unknown: Any = None
    backend: Backend | None = None
    callbacks: Iterable[Callable[[Snapshot], Any]] = ()
    stopping: Any = None  # called after each sweep; its `choose(last)` returns the snapshot to keep
    checkpoint: Path | None = None
    checkpoint_every: int | timedelta = timedelta(minutes=1)
    resume: Path | None = None

    @classmethod
    def of(cls, unknown: Any, options: dict[str, Any]) -> "Control":
        """Take the keywords of `fit`."""
        if odd := options.keys() - cls.__dataclass_fields__.keys():
            raise TypeError(f"fit() got an unexpected keyword argument {min(odd)!r}")
        return cls(unknown, **options)

    def __post_init__(self) -> None:
        if self.stopping is not None and self.resume is not None:
            raise ValueError("stopping cannot be resumed: a checkpoint does not hold the best sweep so far")


class MisfitWarning(UserWarning):
    """The model expects far more non-zero counts than there are."""


@dataclass(frozen=True)
class Data:
    """Counts with their ids."""

    users: Ids
    items: Ids
    matrix: sp.csr_array
    item_names: Ids | None
    has_feature_names: bool

    def result(self, objectives: Any, ending: Ending) -> dict[str, Any]:
        """Return the fields that every `FitResult` has."""
        parts = {"users": self.users, "items": self.items, "counts": self.matrix, "item_names": self.item_names}
        ended = {"objective": np.array(objectives), "ending": ending}
        return parts | ended | {"has_feature_names": self.has_feature_names}


def check_whole(name: str, value: Any, otherwise: str = "") -> None:
    """Refuse a setting that is not a whole number from 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number from 1{otherwise}")
    if int(value) >= 2**63:
        raise ValueError(f"{name} is {value!r}; it must be below 2**63{otherwise}")


def as_number(value: Any) -> float:
    """Return a setting as a number, NaN if it is none or none that a float can hold."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


def check_seed(value: Any) -> None:
    """Refuse what cannot seed a random generator."""
    try:
        check_random_state("" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        wanted = "None, a whole number from 0 to 2**32 - 1, or a RandomState"
        raise ValueError(f"random_state is {value!r}; it must be {wanted}") from None


class Problem(Protocol):
    """What is fitted: counts, and where to start from."""

    @property
    def counts(self) -> Counts:
        """The counts in the form that the likelihood sees."""

    def start(self, backend: Backend, rng: np.random.RandomState, tie: Tie | None) -> State:
        """Return the state before the first sweep; `tie` makes ties of items where exposures share them."""


@dataclass(frozen=True)
class Factors:
    """Users' and items' factors, from random numbers or given ones."""

    settings: Any
    model: Model
    counts: Counts

    def start(self, backend: Backend, rng: np.random.RandomState, tie: Tie | None) -> State:
        """Return the state before the first sweep."""
        W, H = _starts(self.settings, self.counts.by_user.shape, rng)
        return begin(self.model, self.counts, backend, W, H, tie(Point(H)) if tie else None)


def conduct(
    settings: Any, problem: Problem, n_clusters: int | None, backend: Backend, control: Control, hint: str = ""
) -> tuple[Snapshot, Ending]:
    """Run inference with the settings of an estimator; return the sweep to keep and how the run ended.

    Ctrl-C keeps the last sweep. A fit that has not converged warns, with the `hint` after what else to try.
    """
    rng, counts = check_random_state(settings.random_state), problem.counts
    until, algorithm = Until(settings.max_iter, settings.tol), settings._algorithm()
    saved = checkpoints = None
    if control.checkpoint is not None or control.resume is not None:
        chosen = settings.get_params(deep=False)
        # checkpoints from before `input` was a setting do not have it
        fixed = {name: value for name, value in chosen.items() if name != "input" or value != "counts"}
        origin = Origin.of(type(settings).__name__, fixed, counts)
        if control.resume is not None:
            saved, rng = read_checkpoint(control.resume, origin, until.max_iter)
        if control.checkpoint is not None:
            checkpoints = Checkpoints(control.checkpoint, control.checkpoint_every, origin, rng)
    tie = partial(backend.cluster, n_clusters=n_clusters, rng=rng) if n_clusters else None
    with Progress(type(settings).__name__, until.max_iter) if settings.verbose else nullcontext() as progress:
        watches = (None if progress is None else progress.report, *control.callbacks, control.stopping, checkpoints)
        found = run(
            algorithm,
            problem.start(backend, rng, tie)  # not held here: a sweep lets go of what it is done with
            if saved is None
            else resumed(saved, counts, backend, sum_users=algorithm.begins_with_users),
            counts,
            backend,
            until,
            tie=tie,
            resume=saved,
            watch=partial(_watch, watches),
        )
    if checkpoints is not None:
        checkpoints.finish()
    kept = found.last if control.stopping is None else control.stopping.choose(found.last)
    if found.ending is Ending.INTERRUPTED:
        warnings.warn(f"fit interrupted: the model is that of sweep {kept.sweep}", stacklevel=3)
    if found.ending is Ending.MAX_ITER and until.tol > 0 and control.stopping is None:
        gained = ""
        is_alone = kept.state.momentum is None  # with momentum, one sweep says little
        if is_alone and kept.before and np.isfinite(kept.before):
            gain = (kept.objective - kept.before) / abs(kept.before)
            gained = f": the last one raised the objective by {gain:.1e} of its size, and tol is {until.tol:g}"
        warnings.warn(
            f"{type(settings).__name__} has not converged after max_iter={until.max_iter} sweeps{gained}; "
            f"{more_sweeps(settings)}{hint}",
            ConvergenceWarning,
            stacklevel=3,
        )
    return kept, found.ending


def warn_of_misfit(fit: FactorFit) -> None:
    """Warn if the model expects far more non-zero counts than there are."""
    share = cheap_cells(fit).occupancy()
    if share.is_misfit:
        warnings.warn(f"the model {misfit(share, fit)}", MisfitWarning, stacklevel=3)


def check_stopping(control: Control, form: str, setting: str = "input") -> None:
    """Refuse to stop by the log-likelihood of counts where the model has none."""
    if form != "counts" and getattr(control.stopping, "metric", "") == "log_likelihood":
        raise ValueError(f"{setting} is {form!r}, so test counts have no log-likelihood; stop by another metric")


def more_sweeps(settings: Any) -> str:
    """Say what to try after a fit that has not converged."""
    can_accelerate = not getattr(settings, "accelerate", True)
    return f"try {'accelerate=True and ' if can_accelerate else ''}max_iter={2 * settings.max_iter}"


def large_counts(counts: sp.csr_array, form: str, setting: str = "input") -> str:
    """Return what else to try where counts are so large that fits take many sweeps."""
    large = form == "counts" and counts.nnz and (counts.data.max() > HEAVY_LARGEST or counts.data.mean() > HEAVY_MEAN)
    return f"; counts are large: try {setting}='log1p' or NBSLIM" if large else ""


def _starts(settings: Any, shape: tuple[int, int], rng: np.random.RandomState) -> tuple[Array, Array]:
    sizes, init, dtype = [(n, settings.n_components) for n in shape], settings.init, settings.dtype
    if isinstance(init, str):  # "random"
        users, items = (rng.gamma(1.0, 1.0, size).astype(dtype) for size in sizes)
        return users, items
    users, items = (np.ascontiguousarray(values, dtype=dtype) for values in init)
    for name, values, size in (("W0", users, sizes[0]), ("H0", items, sizes[1])):
        if values.shape != size:
            raise ValueError(f"init: {name} has shape {values.shape}; this data and n_components need {size}")
        if not np.all((values > 0) & np.isfinite(values)):
            raise ValueError(f"init: {name} must be positive and finite; a zero would stay zero for ever")
    return users, items


def _watch(watches: Sequence[Callable[[Snapshot], Any] | None], snapshot: Snapshot) -> bool:
    """Call all of them; only True itself ends a run, as loggers return all sorts of things."""
    answers = [watch(snapshot) for watch in watches if watch is not None]
    return any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers)
