"""Checkpoints: a file from which an interrupted fit resumes, bit for bit as if nothing had happened."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from reprlib import repr as shortened
from typing import Any

import numpy as np

from nbmf.backends import Backend
from nbmf.backends.counts import Counts
from nbmf.inference.progress import Interval
from nbmf.inference.run import Momentum, Snapshot, State, revive
from nbmf.model.factors import Factor
from nbmf.storage import codec
from nbmf.storage.container import (
    Arrays,
    Contents,
    Path,
    StorageError,
    check_place,
    open_as,
    remove_leftovers,
    unwritten,
    write,
)

VERSION = 1
FREE = ("max_iter", "tol", "n_threads", "verbose")
"""Settings that may differ when a fit is resumed: none of them affects a sweep."""
BLOCK = 1 << 20


@dataclass(frozen=True)
class Origin:
    """What a run started from and must be resumed with: an estimator, its settings, the data."""

    name: str
    settings: dict[str, Any]
    data: dict[str, Any]

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Any], counts: Counts) -> "Origin":
        """Describe a run; arrays among the settings and the counts are identified by their checksums."""
        arrays: Arrays = {}
        packed = codec.pack_settings({key: value for key, value in settings.items() if key not in FREE}, arrays)
        digests = {key: sha256(values.tobytes()).hexdigest() for key, values in arrays.items()}
        matrix, digest = counts.by_user, sha256()
        for values, kind in ((matrix.indptr, "<i8"), (matrix.indices, "<i8"), (matrix.data, "<f8")):
            for start in range(0, len(values), BLOCK):  # independent of their types, without a copy of everything
                digest.update(values[start : start + BLOCK].astype(kind))
        data = {"shape": list(map(int, matrix.shape)), "nnz": int(matrix.nnz), "sha256": digest.hexdigest()}
        return cls(name, packed | digests, data)

    def check(self, contents: Contents) -> None:
        """Refuse a checkpoint of something else."""
        theirs = Origin(*(contents.value(*part) for part in (("class", str), ("settings", dict), ("data", dict))))
        begun = f"{contents.path}: was written by a fit"
        if theirs.name != self.name:
            raise StorageError(f"{begun} of {theirs.name}, and this is {self.name}; resume with the same estimator")
        for name in sorted(self.settings.keys() | theirs.settings.keys()):
            ours, other = self.settings.get(name), theirs.settings.get(name)
            if ours != other:
                is_array = name.startswith("settings.")  # known by its checksum only
                values = f"{name}={shortened(other)}, and this one has {shortened(ours)}"
                apart = f"another {name.split('.')[1]}" if is_array else values
                raise StorageError(
                    f"{begun} with {apart}; resume with the same settings ({', '.join(FREE)} may change)"
                )
        if theirs.data != self.data:
            other, ours = (
                f"({shortened(data.get('shape'))}, {shortened(data.get('nnz'))} non-zeros)"
                for data in (theirs.data, self.data)
            )
            raise StorageError(f"{begun} to other counts {other} than these {ours}; resume with the same data")


def write_checkpoint(path: Path, origin: Origin, snapshot: Snapshot, generator: Mapping[str, Any]) -> None:
    """Write the position of a run; `generator` is the state of its random generator after that sweep."""
    arrays: Arrays = {"objectives": np.array(snapshot.objectives, np.float64)}
    state = snapshot.state
    past, *momentum = state.momentum or ((),)
    for n, values in enumerate(parameter for side in past for parameter in side):
        arrays[f"past.{n}"] = values.cpu().numpy() if hasattr(values, "cpu") else values  # a device's
    document = {
        "kind": "checkpoint",
        "version": VERSION,
        "class": origin.name,
        "settings": origin.settings,
        "data": origin.data,
        "generator": codec.pack_generator("generator", generator, arrays),
        "before": codec.pack_number(snapshot.before),
        "pending": list(snapshot.pending),
        "momentum": momentum,
        "log_base": codec.pack_number(state.log_base),
        **codec.pack_ties(state.ties, arrays),
        **codec.pack_model(state.model, arrays),
        **codec.pack_factor("users", state.users, arrays),
        **codec.pack_factor("items", state.items, arrays),
    }
    _unpack(unwritten(path, document, arrays), origin)
    write(path, document, arrays)


def read_checkpoint(path: Path, origin: Origin, max_iter: int) -> tuple[Snapshot, np.random.RandomState]:
    """Return the position of a run that started like this one, and its random generator."""
    contents = open_as("checkpoint", path, VERSION)
    origin.check(contents)
    snapshot, generator = _unpack(contents, origin)
    if snapshot.sweep > max_iter:
        raise StorageError(f"{contents.path}: stands after sweep {snapshot.sweep}, beyond max_iter={max_iter}")
    return snapshot, generator


def _unpack(contents: Contents, origin: Origin) -> tuple[Snapshot, np.random.RandomState]:
    n_users, n_items = origin.data["shape"]
    users, items = codec.unpack_factors(contents, n_users, n_items)
    if (dtype := users.parameters[0].dtype) != origin.settings["dtype"]:  # an encoder has no means without the data
        raise contents.fault(f"its factors are {dtype}, not {origin.settings['dtype']}")
    objectives = contents.array("objectives", "f", None)
    if not len(objectives) or np.isnan(objectives).any():
        raise contents.fault("it has no sweep, or one without an objective")
    pending = contents.value("pending", list)
    if not all(type(n) is int for n in pending):
        raise contents.fault(f"its pending refreshes are {shortened(pending)}")
    log_base = codec.unpack_number(contents, "log_base")
    if not math.isfinite(log_base):
        raise contents.fault(f"its log_base is {log_base}")
    state = State(
        model=codec.unpack_model(contents, n_users, n_items),
        users=users,
        items=items,
        ties=codec.unpack_ties(contents, n_items),
        expectation=None,
        objective=float(objectives[-1]),
        log_base=log_base,
        momentum=_unpack_momentum(contents, users, items, len(objectives)),
    )
    generator = codec.unpack_generator(contents, "generator", contents.document.get("generator"))
    before = codec.unpack_number(contents, "before")
    return Snapshot(state, before, tuple(objectives.tolist()), tuple(pending)), generator


def _unpack_momentum(contents: Contents, users: Factor, items: Factor, n_objectives: int) -> Momentum | None:
    """Return the momentum of a run, whose parameters must be like those of these factors."""
    # checkpoints from before there was momentum have none, and it starts anew
    match contents.document.get("momentum", []):
        case []:
            return None
        case [float(step), float(limit), int(n)] if 0 < step <= 1 and 0 < limit <= 1 and 0 <= n <= n_objectives:
            steps = step, limit, int(n)
        case other:
            raise contents.fault(f"its momentum is {shortened(other)}")
    now = [*users.parameters, *items.parameters]
    past = [contents.array(f"past.{n}", "f", *values.shape) for n, values in enumerate(now)]
    if any(a.dtype != b.dtype or not np.isfinite(a).all() for a, b in zip(past, now, strict=True)):
        raise contents.fault("the parameters of its momentum are not finite, or of another type")
    half = len(users.parameters)
    return Momentum((tuple(past[:half]), tuple(past[half:])), *steps)


def resumed(snapshot: Snapshot, counts: Counts, backend: Backend, *, sum_users: bool) -> State:
    """Return the state to continue from, with a warning if this machine computes other bits than the one before."""
    state = revive(snapshot.state, counts, backend, sum_users=sum_users)
    if state.objective != snapshot.objective:
        warnings.warn(
            f"the objective after sweep {snapshot.sweep} is {state.objective!r} here and {snapshot.objective!r} in the "
            "checkpoint: this machine or version rounds differently from the one that wrote it. The fit continues, but "
            "not bit for bit as it would have there",
            stacklevel=4,
        )
    return state


class Checkpoints:
    """Takes every snapshot of a run and writes one now and then; `finish` writes the last."""

    def __init__(self, path: Path, every: int | timedelta, origin: Origin, generator: np.random.RandomState) -> None:
        check_place(path)
        self.interval = Interval(every)
        remove_leftovers(path)
        self.path, self.origin, self.generator = path, origin, generator
        self.newest: tuple[Snapshot, Mapping[str, Any]] | None = None
        self.n_written = 0

    def __call__(self, snapshot: Snapshot) -> None:
        """Record a sweep, and write it if it is time."""
        self.newest = snapshot, self.generator.get_state(legacy=False)
        if self.interval.is_over(snapshot.sweep):
            self.finish()

    def finish(self) -> None:
        """Write the newest snapshot unless it is written already; if that fails, warn and let the fit continue."""
        if self.newest is None or self.newest[0].sweep == self.n_written:
            return
        try:
            write_checkpoint(self.path, self.origin, *self.newest)
        except StorageError as error:
            warnings.warn(f"checkpoint of sweep {self.newest[0].sweep}: {error}", stacklevel=2)
        else:
            self.n_written = self.newest[0].sweep
