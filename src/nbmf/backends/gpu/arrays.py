"""What stays on the device between sweeps: the counts both ways round, and factors that are fetched on demand."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from threading import local
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from scipy.special import gammaln

from nbmf.backends import Array
from nbmf.backends.counts import Counts
from nbmf.backends.threads import hand_out
from nbmf.model.factors import Encoding, Factor, Gamma, Point, Prior

Tensor = Any  # a torch.Tensor; torch is optional, so its types are not relied on

Moments = tuple[Tensor, ...]  # the arrays of a `Gamma`

FEW_CLUSTERS = 256  # whose sums are made by a product
LEAST_CUT = 128  # users of an item from which it pays to gather them block by block
PIECE, MOVERS = 1 << 24, 8  # bytes that a thread moves between host and device at a time, and such threads


def to_device(values: Any, device: Any) -> Tensor:
    """Return a tensor of these numbers on the device; one that is there already as it is."""
    if isinstance(values, torch.Tensor):
        return values
    array = np.ascontiguousarray(values)
    if torch.device(device).type == "cuda" and array.nbytes > PIECE:
        there = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name), device=device)
        _move(array, there, out=False)
        return there
    if not array.flags.writeable:  # a file that is mapped into memory; torch would warn that it might write there
        array = array.copy()
    return torch.from_numpy(array).to(device)


def to_host(values: Any) -> Any:
    """Return a NumPy array of the numbers of a tensor; whatever else comes as it is."""
    if not isinstance(values, torch.Tensor):
        return values
    if values.is_cuda and values.nbytes > PIECE:
        array = np.empty(values.shape, str(values.dtype).removeprefix("torch."))
        _move(array, values.contiguous(), out=True)
        return array
    return values.cpu().numpy()


def _move(array: Any, there: Tensor, *, out: bool) -> None:
    """Copy an array to the device, or out of it, by pieces through pinned memory, which the device accesses directly.

    Several threads copy between the array and pinned memory: one alone is slower than the device.
    """
    host, device, step = array.reshape(-1), there.view(-1), PIECE // array.itemsize
    own, stream = local(), torch.cuda.current_stream(there.device)  # other threads begin with another stream

    def move(start: int) -> None:
        if not hasattr(own, "pinned"):
            own.pinned = torch.empty(step, dtype=there.dtype, pin_memory=True)
        part, piece = host[start : start + step], device[start : start + step]
        pinned = own.pinned[: len(part)]
        with torch.cuda.stream(stream):
            if out:
                pinned.copy_(piece)
                np.copyto(part, pinned.numpy())
            else:
                np.copyto(pinned.numpy(), part)
                piece.copy_(pinned)

    hand_out(move, range(0, len(host), step), MOVERS)


class Resident:
    """A factor on the device: its arrays are fetched when they are first asked for, and kept."""

    plain: ClassVar[Any]  # the class of such a factor on the host
    tensors: dict[str, Tensor]

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("tensors", {}):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = self.__dict__[name] = to_host(self.tensors[name])
        return found

    @property
    def dimensions(self) -> tuple[int, int]:
        """Rows and K."""
        n_rows, n_components = next(iter(self.tensors.values())).shape
        return n_rows, n_components

    def on_host(self) -> Any:
        """Return the same factor in NumPy's memory."""
        return self.plain(*(getattr(self, field.name) for field in fields(self.plain)))


class ResidentPoint(Resident, Point):
    """Entries known as numbers, on the device."""

    plain = Point

    def __init__(self, value: Tensor) -> None:
        self.__dict__["tensors"] = {"value": value}

    @property
    def total(self) -> float:
        """Σ of the values, in double precision."""
        return float(self.tensors["value"].sum(dtype=torch.float64))

    def take(self, rows: Any) -> "ResidentPoint":
        """Return some of the rows."""
        value = self.tensors["value"]
        return ResidentPoint(value[to_device(rows, value.device)])

    def replace_rows(self, rows: Any, new: Factor) -> "ResidentPoint":
        """Return a copy in which some rows are those of `new`."""
        value = self.tensors["value"].clone()
        value[to_device(rows, value.device)] = entries(new, value.device)
        return ResidentPoint(value)

    def beside(self, others: Sequence[Point]) -> "ResidentPoint":
        """Return these and others' columns side by side."""
        value = self.tensors["value"]
        return ResidentPoint(torch.cat([value, *(entries(point, value.device) for point in others)], dim=1))

    def encoding(self, n_starts: int, inputs: Any) -> "ResidentEncoding":
        """Return the users that these rows make of their inputs."""
        return ResidentEncoding(self.tensors["value"], n_starts, inputs)


class ResidentEncoding(Resident, Encoding):
    """V on the device; `inputs` are on the host, where means of users are made when they are asked for."""

    plain = Encoding

    def __init__(self, value: Tensor, n_starts: int, inputs: Any) -> None:
        self.__dict__.update(tensors={"value": value}, n_starts=n_starts, inputs=inputs)


class ResidentGamma(Resident, Gamma):
    """Gamma posteriors on the device."""

    plain = Gamma

    def __init__(self, moments: Moments, prior_rate: float | Array) -> None:
        # summed and sent now: they are asked for at the end of a sweep, when the device would wait for it
        totals, sent = torch.stack(moments[3:]).sum(dim=1), None
        if totals.is_cuda:
            stream = torch.cuda.current_stream(totals.device)
            totals = torch.empty(3, dtype=totals.dtype, pin_memory=True).copy_(totals, non_blocking=True)
            sent = stream.record_event()
        names = (field.name for field in fields(Gamma) if field.name != "prior_rate")
        tensors = dict(zip(names, moments, strict=True))
        self.__dict__.update(tensors=tensors, totals=totals, sent=sent, prior_rate=prior_rate)

    @cached_property
    def _totals(self) -> list[float]:
        """Σ⟨x⟩, Σ⟨ln x⟩ and the entropy, over all entries."""
        if self.__dict__["sent"] is not None:
            self.__dict__["sent"].synchronize()
        found: list[float] = self.__dict__["totals"].tolist()
        return found

    @property
    def total(self) -> float:
        """Σ⟨x⟩ over all entries."""
        return self._totals[0]

    def divergence(self, prior: Prior) -> float:
        """KL(q‖prior): from three sums where all rows have one prior, so that no array leaves the device."""
        if isinstance(prior.rate, np.ndarray):
            return super().divergence(prior)
        (n_rows, n_components), (mean, log, entropy) = self.dimensions, self._totals
        log_normalizer = n_rows * n_components * (prior.shape * np.log(prior.rate) - gammaln(prior.shape))
        return max(float(-entropy - (log_normalizer + (prior.shape - 1) * log - prior.rate * mean)), 0.0)


def tables(factor: Factor, device: Any) -> tuple[Tensor, Tensor]:
    """Return the mean and the geometric mean of a factor on the device."""
    first, second = ("value", "value") if isinstance(factor, Point) else ("mean", "geometric_mean")
    if isinstance(factor, Resident) and factor.tensors[first].device.type == torch.device(device).type:
        return factor.tensors[first], factor.tensors[second]
    mean = to_device(factor.mean, device)
    return mean, mean if first == second else to_device(factor.geometric_mean, device)


def entries(factor: Factor, device: Any) -> Tensor:
    """Return on the device the numbers that a point or an encoding consists of."""
    if isinstance(factor, Resident) and factor.tensors["value"].device.type == torch.device(device).type:
        return factor.tensors["value"]
    return to_device(factor.parameters[0], device)


class Runs(NamedTuple):
    """Rows cut into runs of bounded length, so that no program of a kernel has much more to do than another."""

    row: Tensor
    first: Tensor  # non-zero of each run
    last: Tensor
    slot: Tensor  # of the partial sums; −1 for a row of one run, whose sums go to the row's own place
    split_row: Tensor  # the rows with several runs,
    split_first: Tensor  # and their slots
    split_last: Tensor
    n_slots: int
    empty_row: Tensor


def cut(indptr: Tensor, columns: Tensor, longest: int, block: int = 0, least: int = 0) -> Runs:
    """Cut rows into runs of at most `longest` non-zeros, whose columns lie in one block of `block`, if not 0.

    Rows of fewer than `least` non-zeros are not cut into blocks: adding up their parts would take too long.
    """
    device, n_rows, nnz = indptr.device, len(indptr) - 1, len(columns)
    row_of = torch.repeat_interleave(torch.arange(n_rows, device=device), torch.diff(indptr))
    part = torch.zeros_like(row_of)
    if block:
        part = torch.where(torch.diff(indptr)[row_of] < least, part, columns.long() // block)
    new = torch.ones(nnz, dtype=torch.bool, device=device)
    new[1:] = (row_of[1:] != row_of[:-1]) | (part[1:] != part[:-1])
    starts = new.nonzero().ravel()
    lengths = torch.diff(starts, append=torch.tensor([nnz], device=device))
    n_runs = (lengths + longest - 1) // longest
    which = torch.repeat_interleave(torch.arange(len(starts), device=device), n_runs)
    before = torch.cumsum(n_runs, 0) - n_runs
    first = starts[which] + longest * (torch.arange(len(which), device=device) - before[which])
    last = torch.minimum(first + longest, starts[which] + lengths[which])
    row = row_of[first]
    of_row = torch.bincount(row, minlength=n_rows)
    split_row = (of_row > 1).nonzero().ravel()
    split_last = torch.cumsum(of_row[split_row], 0)
    split = of_row[row] > 1
    slot = torch.where(split, torch.cumsum(split, 0) - 1, -1)
    # the runs of a block come together: the rows that they gather are then still in the cache. In a block, those of
    # like length do, which one program walks over side by side
    order = torch.argsort(last - first, descending=True, stable=True)
    order = order[torch.argsort(part[first[order]], stable=True)]
    row, first, last, slot = (values[order] for values in (row.int(), first, last, slot.int()))
    splits = split_row.int(), split_last - of_row[split_row], split_last
    n_slots = int(split_last[-1]) if len(split_last) else 0
    return Runs(row, first, last, slot, *splits, n_slots, empty_row=(of_row == 0).nonzero().ravel())


class Clusters(NamedTuple):
    """Ties on the device."""

    labels: Tensor  # the cluster of each item
    of_cells: Tensor  # and of each non-zero's, in as few bytes as will do
    sizes: Tensor
    members: Tensor  # the items of one cluster after another
    belongs: Tensor | None  # items × clusters, 1 where an item is in a cluster; None for more than FEW_CLUSTERS
    n_unseen: Tensor  # users × clusters, the number of items that a user has no count for

    @classmethod
    def of(cls, labels: Tensor, n_clusters: int, counts: "RowCounts") -> "Clusters":
        """Count the items of each cluster, and the user's stored cells among them."""
        sizes, belongs = torch.bincount(labels, minlength=n_clusters), None
        if n_clusters <= FEW_CLUSTERS:
            belongs = (labels[:, None] == torch.arange(n_clusters, device=labels.device)).to(counts.values.dtype)
        of_cells = labels.to(torch.uint8 if n_clusters <= 256 else labels.dtype)[counts.columns]
        place = counts.rows * n_clusters + of_cells
        stored = torch.bincount(place, minlength=counts.shape[0] * n_clusters).view(-1, n_clusters)
        return cls(labels, of_cells, sizes, torch.argsort(labels, stable=True), belongs, (sizes - stored).int())


class Tiles(NamedTuple):
    """What exact exposures over every cell are made of: means, weights of the columns, and the α of rows or columns."""

    rows: Tensor
    columns: Tensor
    weights: Tensor
    α_rows: Tensor
    α_columns: Tensor | None


@dataclass(frozen=True)
class RowCounts:
    """Counts on the device, user by user; a negative value is an unknown cell. Runs have at most `longest` of them."""

    shape: tuple[int, int]
    indptr: Tensor
    columns: Tensor
    values: Tensor
    longest: int
    user_runs: Runs
    has_unknown: bool

    @classmethod
    def copied(cls, matrix: sp.csr_array, device: Any, longest: int) -> "RowCounts":
        """Copy a matrix to the device."""
        indptr = to_device(matrix.indptr.astype(np.int64), device)
        columns, values = to_device(matrix.indices.astype(np.int32, copy=False), device), to_device(matrix.data, device)
        runs, has_unknown = cut(indptr, columns, longest), bool((values < 0).any())
        return cls(matrix.shape, indptr, columns, values, longest, runs, has_unknown)

    def take(self, rows: Tensor) -> "RowCounts":
        """Return some of the rows."""
        lengths = torch.diff(self.indptr)[rows]
        indptr = _starts(lengths)
        shift = torch.repeat_interleave(self.indptr[rows] - indptr[:-1], lengths)
        cells = torch.arange(len(shift), device=rows.device) + shift
        columns, shape = self.columns[cells], (len(rows), self.shape[1])
        runs = cut(indptr, columns, self.longest)
        return RowCounts(shape, indptr, columns, self.values[cells], self.longest, runs, self.has_unknown)

    @cached_property
    def by_length(self) -> Tensor:
        """The users, those with most non-zeros first."""
        return torch.argsort(torch.diff(self.indptr), descending=True, stable=True).int()

    @property
    def rows(self) -> Tensor:
        """The user of each non-zero."""
        users = torch.arange(self.shape[0], device=self.indptr.device)
        return torch.repeat_interleave(users, torch.diff(self.indptr))

    def stretches(self, most: int) -> Iterator[slice]:
        """The non-zeros in their order, at most so many at a time."""
        return (slice(start, start + most) for start in range(0, len(self.columns), most))

    def rows_of(self, cells: slice) -> Tensor:
        """Return the users of a stretch of non-zeros."""
        places = torch.arange(*cells.indices(len(self.columns)), device=self.indptr.device)
        return torch.searchsorted(self.indptr, places, right=True) - 1

    def of_cells(self, cells: slice, by_user: Tensor, by_item: Tensor | None) -> Tensor:
        """Return a parameter of a stretch of non-zeros: their users', or their items' where those have their own."""
        return by_user[self.rows_of(cells)] if by_item is None else by_item[self.columns[cells].long()]


@dataclass(frozen=True)
class ResidentCounts(RowCounts):
    """The counts both ways round: by item there are each non-zero's user and its place among the users' non-zeros."""

    item_indptr: Tensor
    item_users: Tensor
    order: Tensor
    item_runs: Runs

    @classmethod
    def of(cls, counts: Counts, device: Any, longest: int, block: int) -> "ResidentCounts":
        """Copy the counts by user to the device, and transpose them there."""
        by_user = RowCounts.copied(counts.by_user, device, longest)
        order = torch.argsort(by_user.columns, stable=True)
        users = by_user.rows.int()[order]
        indptr = _starts(torch.bincount(by_user.columns, minlength=by_user.shape[1]))
        places = order.int() if len(order) < 2**31 else order
        runs = cut(indptr, users, longest, block, LEAST_CUT)
        return cls(**vars(by_user), item_indptr=indptr, item_users=users, order=places, item_runs=runs)

    def add_up(self, values: Tensor, group: str) -> Tensor:
        """Return the sum of the non-zeros' values over "all" cells, each "user" or each "item"."""
        if group == "all":
            return values.sum()[None]
        by_user = group == "user"
        lengths = torch.diff(self.indptr if by_user else self.item_indptr)
        return torch.segment_reduce(values if by_user else values[self.order], "sum", lengths=lengths, initial=0)


def _starts(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(torch.cumsum(lengths, 0), (1, 0))
