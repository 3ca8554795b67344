"""One factorization: settings and counts in, a `FactorFit` out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, DTypeLike, NDArray

from nbmf.backends import Backend
from nbmf.backends.counts import Counts, take_unknown
from nbmf.data.interactions import Ids, formed
from nbmf.estimators.fit import FactorFit
from nbmf.inference.checkpoints import Checkpoints, Origin, read_checkpoint, resumed
from nbmf.inference.progress import Progress
from nbmf.inference.run import Algorithm, Ending, Snapshot, State, Stopping, Until, begin, run
from nbmf.model import Model
from nbmf.model.factors import Point
from nbmf.storage.container import Path

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Control:
    """What a caller of `fit` can watch, stop, save and resume; see `Factorization.fit`."""

    unknown: Any = None
    backend: Backend | None = None
    callbacks: Iterable[Callable[[Snapshot], Any]] = ()
    stopping: Stopping | None = None
    checkpoint: Path | None = None
    checkpoint_every: int | timedelta = timedelta(minutes=1)
    resume: Path | None = None

    def __post_init__(self) -> None:
        if self.stopping is not None and self.resume is not None:
            raise ValueError("stopping cannot be resumed: a checkpoint does not hold the best sweep so far")


@dataclass(frozen=True)
class Data:
    """Counts with their ids."""

    users: Ids
    items: Ids
    matrix: sp.csr_array
    item_names: Ids | None
    has_feature_names: bool


@dataclass(frozen=True)
class Recipe:
    """Settings of one factorization.

    Attributes
    ----------
    name, settings : str, dict
        Of the estimator; a checkpoint can only be resumed with the same ones.
    n_clusters : int or None
        Number of item clusters whose zero cells share an exposure; None ties nothing.
    init : "random" or pair of arrays
        Where the factors start.
    input : str
        What the likelihood sees of a count.
    """

    name: str
    settings: dict[str, Any]
    model: Model
    algorithm: Algorithm
    n_components: int
    n_clusters: int | None
    init: str | tuple[ArrayLike, ArrayLike]
    input: str
    dtype: DTypeLike
    until: Until
    verbose: bool


def factorize(recipe: Recipe, data: Data, backend: Backend, rng: np.random.RandomState, control: Control) -> FactorFit:
    """Run inference and return what it found. Ctrl-C keeps the last finished sweep and warns."""
    unknown = take_unknown(control.unknown, data.users, data.items)
    counts = Counts.of(formed(data.matrix, recipe.input), np.dtype(recipe.dtype), unknown)
    saved = checkpoints = None
    if control.checkpoint is not None or control.resume is not None:
        origin = Origin.of(recipe.name, recipe.settings, counts)
        if control.resume is not None:
            saved, rng = read_checkpoint(control.resume, origin, recipe.until.max_iter)
        if control.checkpoint is not None:
            checkpoints = Checkpoints(control.checkpoint, control.checkpoint_every, origin, rng)
    n_clusters, algorithm = recipe.n_clusters, recipe.algorithm
    tie = partial(backend.cluster, n_clusters=n_clusters, rng=rng) if n_clusters else None

    def start() -> State:
        if saved is not None:
            return resumed(saved, counts, backend, sum_users=algorithm.begins_with_users)
        W, H = _starts(recipe, data.matrix.shape, rng)
        return begin(recipe.model, counts, backend, W, H, tie(Point(H)) if tie else None)

    with Progress(recipe.name, recipe.until.max_iter) if recipe.verbose else nullcontext() as progress:
        watches = (None if progress is None else progress.report, *control.callbacks, control.stopping, checkpoints)
        watch = partial(_watch, watches)
        # start() is not held here: a sweep lets go of what it is done with
        found = run(algorithm, start(), counts, backend, recipe.until, tie=tie, resume=saved, watch=watch)
    if checkpoints is not None:
        checkpoints.finish()
    kept = found.last if control.stopping is None else control.stopping.choose(found.last)
    if found.ending is Ending.INTERRUPTED:
        warnings.warn(f"fit interrupted: the model is that of sweep {kept.sweep}", stacklevel=4)
    return FactorFit(
        users=data.users,
        items=data.items,
        counts=data.matrix,
        item_names=data.item_names,
        has_feature_names=data.has_feature_names,
        model=kept.state.model,
        user_posterior=kept.state.users.on_host(),
        item_posterior=kept.state.items.on_host(),
        objective=np.array(kept.objectives),
        ending=found.ending,
        exposure=("tied" if n_clusters else "exact") if recipe.model.likelihood.has_exposure else None,
        input=recipe.input,
        ties=kept.state.ties,
        unknown=unknown,
    )


def _starts(recipe: Recipe, shape: tuple[int, int], rng: np.random.RandomState) -> tuple[Array, Array]:
    sizes, init = [(n, recipe.n_components) for n in shape], recipe.init
    if isinstance(init, str) and init == "random":
        users, items = (rng.gamma(1.0, 1.0, size).astype(recipe.dtype) for size in sizes)
        return users, items
    if not isinstance(init, tuple | list) or len(init) != 2:
        raise ValueError(f"init is {init!r}; it must be 'random' or a pair of arrays (W0, H0)")
    users, items = (np.ascontiguousarray(values, dtype=recipe.dtype) for values in init)
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
