"""Fits on several machines, by dask.distributed: users are cut into parts, and sums over users are added over parts.

This is one more backend, around that of a single machine. A worker reads its part of the counts from the file and gets
the factors from here in every sweep; what it finds is added up in the order of the parts. No worker holds anything that
cannot be made again: one that is killed is replaced, its tasks are repeated, and the result is the same to the bit.
"""

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from itertools import pairwise
from numbers import Integral
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends import Array, Given, OnHost, Sums, UserSums, check_kind, group_means
from nbmf.backends.cost import Sizes
from nbmf.backends.counts import Counts, take_unknown
from nbmf.backends.cpu.passes import Cpu, SparseExpectation
from nbmf.backends.slopes import Pair
from nbmf.backends.threads import cut_evenly
from nbmf.data import how_to_install
from nbmf.data.interactions import Interactions, formed
from nbmf.model.factors import Factor, Gamma, Point, Prior
from nbmf.model.likelihood import Likelihood
from nbmf.model.ties import Ties
from nbmf.storage.container import MissingStorageError, Path, StorageError, seal
from nbmf.storage.counts import counts_of_users, fingerprint, is_counts_file, open_counts, store_counts

Client = Any  # a distributed.Client; dask is optional
Future = Any
Model = TypeVar("Model", bound=Any)

_REPORT = attrgetter("sums", "log_evidence")  # what comes back of an expectation
ADDED_AT_ONCE = 4  # parts whose sums are added by one task
PATIENCE = 30  # seconds to wait while there is no worker
# Ctrl-C reaches all processes of a terminal; the driver keeps the last sweep and ends the workers
DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
ALLOWED_DEATHS = 2  # of workers that run a task, before it is taken for the cause


class WorkersKilledError(RuntimeError):
    """Every worker that took a task died."""


def fit(
    model: Model,
    source: Any,
    *,
    client: Client | None = None,
    n_workers: int = 2,
    n_parts: int | None = None,
    folder: Path | None = None,
    memory_limit: int | str = "2GB",
    **options: Any,
) -> Model:
    """Fit a model on the workers of a dask cluster, and return it.

    Without a client it starts processes, so a script must have it below `if __name__ == "__main__":`. Checkpoints are
    written here, so a fit whose workers are all gone can be resumed.

    Parameters
    ----------
    model : estimator
        Any with factors: NBMF(…), PoissonMF(…), CompoundMF(…), ZeroInflatedMF(…), RobustMF(…), BinaryMF(…).
    source : path or dask data frame
        A file that `nbmf.store_counts` has written, or anything that it can read, such as a folder of parquet parts; or
        a dask data frame of such rows, whose columns are recognised by their names.
    client : distributed.Client, optional
        Of the cluster to use; by default one with `n_workers` processes on this machine, for this fit alone.
    n_parts : int, optional
        Number of parts that the users are cut into, by default one per two million counts or more, and at least two.
        With the same parts, any number of workers gives the same result to the bit. A worker does as many parts at a
        time as it has threads, each with the model's `n_threads`, 1 by default.
    folder : path, optional
        Where the compact file goes if there is none yet; the workers of every machine must see it under this name.
    memory_limit : int or str
        Most memory that reading may take here.
    **options
        Of `fit`: unknown, callbacks, stopping, checkpoint, checkpoint_every, resume.
    """
    _check(model, n_workers, n_parts)
    with ExitStack() as stack:
        path = stack.enter_context(_compact(source, folder, memory_limit, client))
        data = open_counts(path)
        if not data.nnz:
            raise ValueError(f"{os.fspath(path)}: no count is above 0, so there is nothing to learn from")
        connected = client
        if connected is None:
            cluster = stack.enter_context(local_cluster(n_workers))
            connected = stack.enter_context(import_module("distributed").Client(cluster))
        size = n_parts or Sizes(data.n_users, data.n_items, data.nnz, model.n_components).parts
        unknown = take_unknown(options.get("unknown"), data.users, data.items)
        parts = cut_users(path, data.matrix, size, np.dtype(model.dtype), model._input(), unknown)
        backend = Cluster(connected, tuple(parts), Cpu(model.n_threads or 1))
        try:
            model.fit(data, backend=backend, **options)
        finally:
            backend.forget()
    return model


def _check(model: Any, n_workers: int, n_parts: int | None) -> None:
    if not hasattr(model, "user_shape"):
        raise TypeError(f"the model is a {type(model).__name__}; several machines fit models with factors, as NBMF is")
    model._check_settings()
    for name, value in (("n_workers", n_workers), ("n_parts", 1 if n_parts is None else n_parts)):
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} is {value!r}; it must be a whole number from 1")
    if model.backend not in ("auto", "cpu"):
        raise ValueError(f"backend is {model.backend!r}; workers compute on their CPUs: leave it at 'auto' or 'cpu'")


@dataclass(frozen=True)
class Part:
    """The counts of users `start` to `stop` of a file, as one worker reads them."""

    number: int
    path: str
    seal: str | None  # the checksum in the file's header, which shows whether it is still the same file
    fingerprint: str  # of these counts, which shows whether they are still the same
    start: int
    stop: int
    dtype: np.dtype[Any]
    input: str  # the form of the counts that the likelihood sees
    unknown: sp.csr_array | None = field(repr=False)

    def load(self) -> Counts:
        """Read the counts; on a worker."""
        if not os.path.exists(self.path):
            raise MissingStorageError(
                f"{self.path}: a worker finds no such file; put it where every machine sees it under this name "
                "(folder=…)"
            )
        matrix = counts_of_users(self.path, self.start, self.stop) if seal(self.path) == self.seal else None
        if matrix is None or fingerprint(matrix) != self.fingerprint:
            raise StorageError(f"{self.path}: was replaced or changed since the fit began; start the fit anew")
        return Counts.of(formed(matrix, self.input), self.dtype, self.unknown)

    @property
    def rows(self) -> slice:
        """The users."""
        return slice(self.start, self.stop)

    def __str__(self) -> str:
        return f"part {self.number} (users {self.start:,} to {self.stop:,} of {self.path})"


def cut_users(
    path: Path, matrix: sp.csr_array, n_parts: int, dtype: np.dtype[Any], input: str = "counts", unknown: Any = None
) -> list[Part]:
    """Cut the users into parts of about equal numbers of counts."""
    n_users = matrix.shape[0]
    bounds = cut_evenly(matrix.indptr + np.arange(n_users + 1, dtype=np.int64), min(n_parts, n_users))
    name = os.path.abspath(os.fsdecode(path))
    mark, parts = seal(name), []
    for n, (start, stop) in enumerate(pairwise(bounds)):
        left_out = None if unknown is None else unknown[start:stop]
        parts.append(Part(n, name, mark, fingerprint(matrix, start, stop), start, stop, dtype, input, left_out))
    return parts


def _arrays(factor: Factor, rows: slice = slice(None)) -> list[Array]:
    """Return what is sent of a factor: its means, and geometric means where those are others."""
    kinds = [factor.mean] if isinstance(factor, Point) else [factor.mean, factor.geometric_mean]
    return [values[rows] for values in kinds]


def _aligned(arrays: list[Array]) -> Any:
    """Copy what came over the network to where arrays begin: the bits of matrix products may depend on it."""
    copies = [np.array(values) for values in arrays]
    return SimpleNamespace(mean=copies[0], geometric_mean=copies[-1])


@dataclass(frozen=True)
class SpreadExpectation(UserSums):
    """Allocations and exposures that stay with the workers, one per part, and what came back of them."""

    found: list[Future]
    log_evidence: float


@dataclass(frozen=True)
class Cluster(OnHost):
    """The passes on the workers of a cluster, one part of the users each; posteriors are updated here."""

    client: Client = field(repr=False)
    parts: tuple[Part, ...]
    passes: Cpu = field(default_factory=partial(Cpu, 1), repr=False)  # what a worker does a part with

    def expect(self, counts: Counts, given: Given, *, sum_users: bool = True) -> SpreadExpectation:
        """Infer allocations and exposures of every part."""
        check_kind(given.likelihood)
        shared = [self._send((_arrays(given.items), given.ties))] * len(self.parts)
        users = [self._send(_arrays(given.users, part.rows)) for part in self.parts]
        likelihoods = [given.likelihood.of_rows(part.rows) for part in self.parts]
        infer = partial(_infer, self.passes, sum_users)
        found = self._submit_each("expect", infer, self._counts, users, likelihoods, shared)
        reports: list[tuple[Any, float]] = self._gather(self._submit_each("report", _REPORT, found))
        sums = _stacked([sums for sums, _ in reports]) if sum_users else None
        return SpreadExpectation(sums, found, float(sum(log for _, log in reports)))

    def sum_by_item(self, counts: Counts, expectation: SpreadExpectation, users: Factor) -> Sums:
        """Sum the same allocations and exposures for each item, in the order of the parts."""
        means = [self._send([users.mean[part.rows]]) for part in self.parts]
        tasks = self._submit_each("sum", partial(_sum_items, self.passes), self._counts, expectation.found, means)
        (total,) = self._gather([self._reduced(tasks)])
        return Sums(*(values.astype(users.mean.dtype) for values in total))

    def slopes(self, counts: Counts, expectation: SpreadExpectation, group: str) -> Pair:
        """∂/∂α and ∂²/∂α² of the log-evidence: those of users one part after another, others added up."""
        tasks = self._submit_each("slopes", partial(self.passes.slopes, group=group), self._counts, expectation.found)
        join = np.concatenate if group == "user" else partial(np.sum, axis=0)
        slope, curvature = (join(values) for values in zip(*self._gather(tasks), strict=True))
        return slope, curvature

    def mean_exposure(self, counts: Counts, expectation: SpreadExpectation, group: str) -> NDArray[np.float64]:
        """Return the mean of ⟨a⟩ over known cells, from sums and numbers of cells of the parts."""
        add_up = partial(_sum_exposures, self.passes, group)
        found = self._gather(self._submit_each("exposures", add_up, self._counts, expectation.found))
        join = partial(np.sum, axis=0) if group == "item" else np.concatenate
        sums, cells = (join(values) for values in zip(*found, strict=True))
        return group_means(sums, cells, group)

    def conditional(self, prior: Prior, sums: Sums) -> Gamma:
        """Return the posterior and its moments, made here."""
        return Cpu().conditional(prior, sums)

    def forget(self) -> None:
        """Release the counts on the workers."""
        self.__dict__.pop("_counts", None)

    @cached_property
    def _counts(self) -> list[Future]:
        return [self._submit("load", part, part.load) for part in self.parts]

    def _reduced(self, sums: Sequence[Future]) -> Future:
        """Add up the sums of all parts on the workers, some neighbours at a time: only the total arrives here."""
        parts = self.parts
        while len(sums) > 1:
            groups = range(0, len(sums), ADDED_AT_ONCE)
            sums = [self._submit("add", parts[k], _added, *sums[k : k + ADDED_AT_ONCE]) for k in groups]
            parts = parts[::ADDED_AT_ONCE]
        return sums[0]

    def _submit_each(self, what: str, function: Any, *arguments: Sequence[Any]) -> list[Future]:
        return [self._submit(what, part, function, *own) for part, *own in zip(self.parts, *arguments, strict=True)]

    def _submit(self, what: str, part: Part, function: Any, *arguments: Any) -> Future:
        key = f"nbmf-{what}-{part.number}-{os.urandom(8).hex()}"
        return self.client.submit(function, *arguments, key=key, pure=False)

    def _send(self, value: Any) -> Future:
        """Send a value to whichever workers need it, as a task that returns it, so that it outlives any worker."""
        with import_module("dask").config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
            return self.client.submit(_same, value, key=f"nbmf-send-{os.urandom(8).hex()}", pure=False)

    def _gather(self, tasks: Sequence[Future]) -> list[Any]:
        """Return the results of the tasks, in their order; wait for them as long as there are workers."""
        distributed: Any = import_module("distributed")
        alone = 0
        try:
            while alone < PATIENCE:
                try:
                    with self.client.as_current():  # waiting in the loop of a later client would bind the tasks to it
                        distributed.wait(tasks, timeout=1)
                    break
                except TimeoutError:
                    alone = 0 if self.client.ncores() else alone + 1
            else:
                raise WorkersKilledError(
                    f"there has been no worker for {PATIENCE} seconds; start some, and resume from a checkpoint if "
                    "there is one"
                )
            found: list[Any] = self.client.gather(list(tasks))
        except distributed.KilledWorker as error:
            number = re.match(r"nbmf-[a-z]+-([0-9]+)-", error.task)  # as `_submit` names tasks
            failed = self.parts[int(number[1])] if number else "the factors on their way"
            raise WorkersKilledError(
                f"{failed}: every worker that took its task died ({error.task}; the last at "
                f"{error.last_worker.address}). Most often they run out of memory: give them more, or ask for more "
                f"parts than {len(self.parts)}"
            ) from error
        return found


def _same(value: Any) -> Any:
    return value


def _infer(
    passes: Cpu, sums: bool, counts: Counts, users: list[Array], likelihood: Likelihood, shared: tuple[Any, Ties | None]
) -> SparseExpectation:
    given = Given(_aligned(users), _aligned(shared[0]), likelihood, shared[1])
    return passes.expect(counts, given, sum_users=sums)


def _sum_items(passes: Cpu, counts: Counts, found: SparseExpectation, users: list[Array]) -> Sums:
    return passes.sum_by_item(counts, found, _aligned(users))


def _sum_exposures(
    passes: Cpu, group: str, counts: Counts, found: SparseExpectation
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return passes.sum_exposures(counts, found, group), counts.n_known(0 if group == "item" else 1)


def _added(first: Sums, *others: Sums) -> Sums:
    allocated, exposed = (values.astype(np.float64) for values in first)
    for part in others:
        allocated += part.allocated
        exposed = exposed + part.exposed  # one row for all items, or one for each where cells are unknown
    return Sums(allocated, exposed)


def _stacked(sums: Sequence[Sums]) -> Sums:
    """Return the rows of all parts one after another, or one row of exposures where all rows agree."""
    allocated, exposed = np.concatenate([part.allocated for part in sums]), sums[0].exposed
    if not all(len(part.exposed) == 1 < len(part.allocated) for part in sums):
        exposed = np.concatenate([np.broadcast_to(part.exposed, part.allocated.shape) for part in sums])
    return Sums(allocated, exposed)


@contextmanager
def local_cluster(n_workers: int) -> Iterator[Any]:
    """Start processes on this machine, each of which is replaced when it dies."""
    try:
        dask, distributed = import_module("dask"), import_module("distributed")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"several workers need dask; {how_to_install('dask')}") from error
    # dask gives a worker up for good this long after a death if by chance it is just being replaced again
    settings: dict[str, Any] = {"distributed.deploy.lost-worker-timeout": "1 day"}
    settings["distributed.scheduler.allowed-failures"] = ALLOWED_DEATHS
    options: dict[str, Any] = {"threads_per_worker": 1, "processes": True, "dashboard_address": None, "preload": [DEAF]}
    options["scheduler_kwargs"] = {"dashboard_address": "127.0.0.1:0"}  # the usual port is taken when another fit runs
    with dask.config.set(settings), distributed.LocalCluster(n_workers=n_workers, **options) as cluster:
        yield cluster


@contextmanager
def _compact(source: Any, folder: Path | None, memory_limit: int | str, client: Client | None) -> Iterator[Path]:
    """Yield the path of a compact file of the counts, made for the fit if there is none yet."""
    if isinstance(source, Interactions):
        raise TypeError(
            "workers read a file, and Interactions are in memory: give the path that nbmf.store_counts wrote, or what "
            "they were read from"
        )
    if isinstance(source, str | os.PathLike) and is_counts_file(source):
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="nbmf-", dir=folder) as place:
        if hasattr(source, "__dask_graph__"):
            if not hasattr(source, "to_parquet"):
                name = type(source).__name__
                raise TypeError(f"cannot read interactions from dask's {name}; make it a dask data frame")
            with nullcontext() if client is None else client.as_current():
                source.to_parquet(os.path.join(place, "parts"), write_index=False)
            source = os.path.join(place, "parts")
        path = os.path.join(place, "fit.counts")
        store_counts(source, path, memory_limit=memory_limit)
        yield path
