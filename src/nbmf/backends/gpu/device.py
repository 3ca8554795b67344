"""The passes on one GPU, by PyTorch and Triton; where there is none, by PyTorch on the CPU, for tests.

Counts are copied to the device once, factors stay there from sweep to sweep (arrays.py), and a few sums are all that
leaves it per sweep. Rows are summed without atomic operations: the same fit on the same device gives the same bits.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from nbmf.backends import (
    LEAST_INTENSITY,
    LONGEST_STEP,
    Array,
    FoldJob,
    Folds,
    Given,
    Sums,
    UserSums,
    check_kind,
    group_means,
)
from nbmf.backends.counts import BLOCK_ON_DEVICE, Counts
from nbmf.backends.gpu import arrays
from nbmf.backends.gpu import passes as torch_passes
from nbmf.backends.gpu.arrays import ResidentCounts, RowCounts, Tensor, Tiles, tables, to_device, to_host
from nbmf.backends.gpu.events import LAWS, allocate_events
from nbmf.backends.gpu.fold import Rows, batches, fetch, joined, settle
from nbmf.backends.gpu.inflated import Inflated
from nbmf.backends.gpu.topk import best
from nbmf.backends.remainder import cancels, log_evidence_of_cells
from nbmf.backends.slopes import SHAPES, Concentrations, Pair, of_stored, of_unseen
from nbmf.model.factors import Factor, Gamma, Point, Prior, largest
from nbmf.model.family import ZeroInflatedPoisson
from nbmf.model.likelihood import Likelihood, NegativeBinomial
from nbmf.model.ties import Ties, draw_far, far_apart

Tables = tuple[Pair, Pair, Likelihood, Ties | None]  # `Given` with the mean and the geometric mean of each factor

LONGEST_RUN = 512
BLOCK_ROWS = 4096  # rows summed in single precision before the sum goes to double
DISTANCES = 1 << 24  # from centres that are held at a time


@dataclass(frozen=True)
class ResidentExpectation(UserSums):
    """The latent variables of the non-zeros on the device, as in `cpu.passes.SparseExpectation`."""

    given: Tables
    shares: Tensor
    excess: Tensor | None
    unseen: Tensor | None
    log_evidences: tuple[Tensor, ...]
    confronted: tuple[Counts, Given] | None = None  # on the host; None while folding in

    @cached_property
    def log_evidence(self) -> float:
        """The sum of what the passes found."""
        if self.confronted is not None and self.given[2].kind == "bernoulli_poisson":
            counts, given = self.confronted
            if cancels(counts, float(self.log_evidences[0])):
                return float(log_evidence_of_cells(counts, given).sum())
        return float(torch.stack(self.log_evidences).sum())


@dataclass(frozen=True)
class Gpu:
    """One device, "cuda" or "cpu"; by default the GPU if there is one, with Triton's kernels and not torch's.

    The products over tiles, for exact exposures of single-precision factors, have the precision "float32" (three passes
    of tf32, all digits), "tf32" or "bf16" (fastest; exposures lose digits after the third). A walk over the items
    gathers the rows of `block` users together, so that they are still in the cache; 0: of all.
    """

    device: str | None = None
    precision: str = "float32"
    kernels: str | None = None
    block: int = BLOCK_ON_DEVICE

    @property
    def encoder(self) -> Any:
        """The passes of an encoder."""
        from nbmf.backends.gpu.encoder import GpuEncoder  # noqa: PLC0415 (it builds on this module)

        return GpuEncoder(self.device, kernels=self.kernels)

    def expect(self, counts: Counts, given: Given, *, sum_users: bool = True) -> Any:
        """Infer allocations and exposures, and sum them for each user."""
        check_kind(given.likelihood)
        users, items = (tables(factor, self._device) for factor in (given.users, given.items))
        given_there = (users, items, given.likelihood, given.ties)
        parameters = self._parameters(given.likelihood, len(users[0]), users[0].dtype)
        found = self._infer(self._resident(counts), given_there, parameters, sums=sum_users)
        return replace(found, confronted=(counts, given))

    def _infer(
        self, data: RowCounts, given: Tables, α: Concentrations, *, sums: bool, tile_type: Any = None
    ) -> ResidentExpectation:
        """`expect` with the `_parameters` of these users; a `tile_type` is that of products without logarithms."""
        W, H, likelihood, ties = given
        passes, own = self._passes(W[0], ties), W[0].dtype
        exposures, least = _exposures(passes, likelihood), float(LEAST_INTENSITY[_on_host(own)])
        if likelihood.kind in LAWS:
            shares = passes.intensities(data, W[1], H[1]).clamp_min_(least)
            logs = [allocate_events(data, shares, likelihood.kind, α)]
            allocated = passes.sum_users(data, shares, H[1]).mul_(W[1]) if sums else None
        else:
            shares, allocated, *logs = passes.allocate(data, W[1], H[1], least, sums)
        excess = unseen = exposed = None
        if not likelihood.has_exposure:
            if data.has_unknown:
                left_out = passes.sum_users(data, (data.values < 0).double(), H[0].double())
                exposed = torch_passes.sum_known(left_out, *_unknown(data), H[0])
                log = -(W[0] * exposed).sum()
            else:
                exposed = self._sum_rows(H[0])[None, :]
                log = -self._sum_rows(W[0]) @ exposed[0]
            exposed = exposed.to(own)
        elif ties is None:
            excess, of_stored_cells, log = exposures.expose(data, W[0], H[0], *α, sums)
            logs.append(log)
            means, weights = (table.to(tile_type or own) for table in (W[0], H[0]))
            tiles = Tiles(means, weights, weights, *α)
            exposed, log = exposures.expose_tiles(tiles, logs=tile_type is None, sums=sums, precision=self.precision)
            exposed = (exposed + of_stored_cells).clamp_min_(0) if sums else None  # unknown cells were taken off
        else:
            clusters = self._clusters(ties, data)
            cluster_sums = self._sum_clusters(H[0], clusters)
            excess, unseen, exposed, log = exposures.tie(data, W[0], H[0], cluster_sums, clusters, α[0], sums)
        found = None if allocated is None or exposed is None else Sums(allocated, exposed)
        return ResidentExpectation(found, given, shares, excess, unseen, (*logs, log))

    def sum_by_item(self, counts: Counts, expectation: ResidentExpectation, users: Factor) -> Sums:
        """Sum the same allocations and exposures for each item, Eq. (update_h)."""
        ((old_means, geometric), items, likelihood, ties), excess = expectation.given, expectation.excess
        data, means = self._resident(counts), tables(users, self._device)[0]
        passes = self._passes(means, ties)
        # one after the other: rows of both tables would crowd each other out of the cache
        allocated = passes.sum_items(data, expectation.shares, geometric, items[1])
        of_stored_cells = None if excess is None else passes.sum_items(data, excess, means)
        if not likelihood.has_exposure:
            exposed = self._sum_rows(means)[None, :]
            if data.has_unknown:
                left_out = passes.sum_items(data, (data.values < 0).double(), means.double())
                exposed = torch_passes.sum_known(left_out, *_unknown(data)[::-1], means)
            return Sums(allocated, exposed.to(means.dtype))
        if ties is None:
            α = self._parameters(likelihood, len(old_means), old_means.dtype)
            tiles = Tiles(items[0], old_means, means, *_turned(α, likelihood, len(items[0])))
            exposures = _exposures(passes, likelihood)
            exposed, _ = exposures.expose_tiles(tiles, logs=False, sums=True, precision=self.precision)
            return Sums(allocated, (exposed + of_stored_cells).clamp_min_(0))
        of_clusters = self._sum_rows(means, expectation.unseen).to(means.dtype)
        return Sums(allocated, passes.add_shared(of_stored_cells, of_clusters, self._clusters(ties, data).labels))

    def conditional(self, prior: Prior, sums: Sums) -> Gamma:
        """Return the posterior and its moments; kernels compute them in the factors' own precision, torch in double."""
        allocated, exposed = (to_device(values, self._device) for values in sums)
        rates = self._column(np.asarray(prior.rate, np.float64))
        moments = self._passes(allocated, None).gamma_moments(float(prior.shape), rates, allocated, exposed)
        return arrays.ResidentGamma(moments, prior.rate)

    def quotient(self, factor: Factor, sums: Sums) -> Point:
        """Return allocated / exposed, Eqs. (nmfH) and (nmfW); where nothing is exposed the old value stays."""
        allocated, exposed = (to_device(values, self._device) for values in sums)
        value = tables(factor, self._device)[0]
        return arrays.ResidentPoint(_quotient(allocated, exposed, value, value.dtype))

    def parameters(self, factor: Factor) -> tuple[Tensor, ...]:
        """Return the parameters of a factor, on the device."""
        mean = tables(factor, self._device)[0]
        if not isinstance(factor, Gamma):
            return (mean,)
        exposed = factor.tensors["exposed"] if isinstance(factor, arrays.Resident) else factor.exposed
        exposed = to_device(exposed, self._device)
        return mean * self._rate(factor, exposed), exposed

    def extrapolate(self, factor: Factor, here: tuple[Any, ...], past: tuple[Any, ...], step: float) -> Factor:
        """See `OnHost.extrapolate`."""
        least, most, found = torch.finfo(here[0].dtype).tiny, largest(_on_host(here[0].dtype)), []
        for now, before in zip(here, past, strict=True):
            change = torch.log(now.clamp_min(least) / to_device(before, self._device).clamp_min(least)).mul_(step)
            found.append(change.clamp_(-LONGEST_STEP, LONGEST_STEP).exp_().mul_(now.clamp_min(least)).clamp_max_(most))
        if not isinstance(factor, Gamma):
            return arrays.ResidentPoint(*found)
        exposed: Any = found[1]
        shape: Any = torch.minimum(found[0], self._rate(factor, exposed) * most)
        return self.conditional(Prior(0.0, factor.prior_rate), Sums(shape, exposed))

    def _rate(self, factor: Gamma, exposed: Tensor) -> Tensor:
        return exposed + self._column(np.asarray(factor.prior_rate, np.float64)).to(exposed.dtype)

    def cluster(self, items: Factor, n_clusters: int, rng: np.random.RandomState) -> Ties:
        """Tie items that are alike, as `ties.tie_items` does: the host draws centres, the device finds the nearest."""
        means = tables(items, self._device)[0]
        if n_clusters >= len(means):
            return Ties(np.arange(len(means), dtype=np.int32), len(means))
        rows = means - means.mean(dim=0)
        drawn, weights = draw_far(to_host(rows.square().sum(dim=1)), n_clusters, rng)
        some = rows[to_device(drawn, self._device)]
        centres = some[to_device(far_apart(to_host(some), weights, rng.random_sample(n_clusters)), self._device)]
        lengths = centres.square().sum(dim=1)
        labels = [
            (lengths - 2 * part @ centres.T).argmin(dim=1) for part in rows.split(max(1, DISTANCES // n_clusters))
        ]
        return Ties(to_host(torch.cat(labels).int()), n_clusters)

    def slopes(self, counts: Counts, expectation: ResidentExpectation, group: str) -> Pair:
        """∂/∂α and ∂²/∂α² of the log-evidence: of all cells as if their counts were 0, corrected in the stored ones."""
        data, ((users, _), (items, _), likelihood, ties) = self._resident(counts), expectation.given
        α = self._parameters(likelihood, len(users), torch.float64)
        if likelihood.learns_from != "slopes" or expectation.excess is None:
            raise TypeError(f"{type(likelihood).__name__} has no concentration to learn")
        (by_user, by_item), rows, columns, shared = α, data.rows, data.columns.long(), None
        if ties is None:
            sides = (users, items, by_user)
            if group == "item":
                sides = (items, users, by_user[:1].expand(len(items)) if by_item is None else by_item)
            zeros = torch_passes.slope_tiles(*sides)
        else:
            clusters, unseen = self._clusters(ties, data), to_device(expectation.unseen, self._device).double()
            shared = unseen[rows, clusters.labels[columns].long()]
            zeros = of_unseen(unseen, clusters.n_unseen, by_user, torch)
        of_cells = by_user[rows] if by_item is None else by_item[columns]
        eps = torch.finfo(expectation.excess.dtype).eps
        stored = of_stored(data.values.double(), expectation.excess.double(), of_cells, shared, eps, torch)
        sums = [data.add_up(values, group) for values in stored]
        first, second = (a + (b.sum() if group == "all" else b) for a, b in zip(sums, zeros, strict=True))
        return first.cpu().numpy().reshape(SHAPES[group]), second.cpu().numpy().reshape(SHAPES[group])

    def mean_exposure(self, counts: Counts, expectation: ResidentExpectation, group: str) -> NDArray[np.float64]:
        """Return the mean of ⟨a⟩ over known cells: of all as if their counts were 0, corrected in the stored ones."""
        data, ((users, _), (items, _), likelihood, ties) = self._resident(counts), expectation.given
        if not likelihood.has_exposure or expectation.excess is None:
            raise TypeError(f"{type(likelihood).__name__} has no exposures to learn from")
        by_item = group == "item"
        if ties is not None:
            unseen, clusters = to_device(expectation.unseen, self._device).double(), self._clusters(ties, data)
            sums = unseen.sum(0)[clusters.labels.long()] if by_item else unseen @ clusters.sizes.double()
        else:
            α = self._parameters(likelihood, len(users), users.dtype)
            sides = (items, users, *_turned(α, likelihood, len(items))) if by_item else (users, items, *α)
            tiles = Tiles(*sides[:2], torch.ones_like(sides[1][:, :1]), *sides[2:])
            exposures = _exposures(torch_passes, likelihood)  # Triton's kernel has weights for K components
            sums = exposures.expose_tiles(tiles, logs=False, sums=True)[0][:, 0].double()
        sums += data.add_up(expectation.excess.double(), "item" if by_item else "user")
        return group_means(sums.cpu().numpy(), counts.n_known(0 if by_item else 1), group)

    def fold(self, job: FoldJob) -> Folds:
        """Fold rows in, the other side's factor held fixed, in batches that bound the memory."""
        check_kind(job.likelihood)
        prior, shape = job.prior, float(job.prior.shape)
        means, geometric_means = tables(job.factor, self._device)
        own, n_components, passes = means.dtype, means.shape[1], self._passes(means, None)
        H = means.double(), geometric_means.double()
        of_rows, of_columns = self._parameters(job.likelihood, len(job.start), torch.float64)

        def update(data: RowCounts, rows: Rows) -> Rows:
            given = (rows.mean, rows.geometric_mean), H, job.likelihood, job.ties
            parameters = rows.parameters.ravel(), of_columns
            sums: Any = self._infer(data, given, parameters, sums=True, tile_type=own).user_sums
            allocated, exposed = sums
            rates = rows.rates
            if not isinstance(job.factor, Gamma):
                mean = geometric_mean = _quotient(allocated, exposed, rows.mean, own)
            else:
                if np.ndim(prior.rate):
                    rates = shape * n_components / rows.mean.sum(1, keepdim=True).clamp_min(job.least_sum)
                mean, geometric_mean, *_ = passes.gamma_moments(shape, rates, allocated, exposed)
            return Rows(mean, geometric_mean, allocated, exposed, rates, rows.parameters, rows.steps + 1)

        parts = []
        for part in batches(job.counts.indptr, n_components, 0 if job.ties is None else job.ties.n_clusters):
            data = RowCounts.copied(job.counts[part], self._device, LONGEST_RUN)
            start = to_device(job.start[part], self._device)
            nothing, ones = torch.zeros_like(start), torch.ones_like(start[:, :1])
            rates, steps = ones * float(np.ravel(prior.rate)[0]), torch.zeros_like(ones, dtype=torch.int64)
            rows = Rows(start, start, nothing, nothing, rates, of_rows[part, None], steps)
            parts.append(fetch(settle(data, rows, update, job.tol, job.most), job, passes, own))
        self._kept.clear()
        return joined(parts)

    def best(self, users: Array, items: Array, n: int, exclude: sp.csr_array | None) -> tuple[NDArray[np.intp], Array]:
        """Return the columns and scores of each user's n best items; see `topk.best`."""
        columns, scores = best(to_device(users, self._device), to_device(items, self._device), n, exclude)
        return columns.cpu().numpy(), scores.cpu().numpy()

    def _passes(self, table: Tensor, ties: Ties | None) -> Any:
        if (self.kernels or ("triton" if self._device.type == "cuda" else "torch")) == "torch":
            return torch_passes
        from nbmf.backends.gpu import triton as triton_passes  # noqa: PLC0415 (not installed wherever torch is)

        fits = ties is None or ties.n_clusters <= triton_passes.MOST_CLUSTERS
        return triton_passes if fits and table.shape[1] <= triton_passes.MOST_COMPONENTS else torch_passes

    def _parameters(self, likelihood: Likelihood, n_users: int, dtype: Any) -> Concentrations:
        """Return the α or π of each user, and of each item where those have their own, or what λ is multiplied by.

        All but α are in double precision: in single, π near 1 would be 1.
        """
        value = likelihood.exposure_parameter if likelihood.has_exposure else likelihood.events_scale
        values = np.atleast_2d(np.asarray(value, np.float64))
        dtype = dtype if isinstance(likelihood, NegativeBinomial) else torch.float64
        on_device = self._column(values).ravel().to(dtype)
        if values.shape[1] > 1:
            return torch.ones(n_users, dtype=dtype, device=self._device), on_device
        return on_device.expand(n_users).contiguous(), None

    def _column(self, values: NDArray[np.float64]) -> Tensor:
        """Put numbers below each other on the device; one alone is made there, as copies wait for what is under way."""
        if values.size == 1:
            return torch.full((1, 1), float(values.item()), dtype=torch.float64, device=self._device)
        return to_device(values.reshape(-1, 1), self._device)

    def _sum_rows(self, values: Tensor, weights: Tensor | None = None) -> Tensor:
        """Σ over rows of values, or of weightsᵀ values: rows by blocks in their precision, blocks in double."""
        whole = len(values) - len(values) % BLOCK_ROWS
        blocks, rest = values[:whole].view(-1, BLOCK_ROWS, values.shape[1]), values[whole:]
        if weights is None:  # summing to double would first make doubles of all of them
            sums, last = blocks.sum(dim=1), rest.sum(dim=0)
        else:
            of_blocks = weights[:whole].view(-1, BLOCK_ROWS, weights.shape[1])
            sums, last = torch.bmm(of_blocks.transpose(1, 2), blocks), weights[whole:].T @ rest
        return sums.sum(dim=0, dtype=torch.float64) + last.double()

    def _sum_clusters(self, values: Tensor, clusters: arrays.Clusters) -> Tensor:
        if clusters.belongs is not None:  # one cluster may have most of the items: a product takes as long for any
            return self._sum_rows(values, clusters.belongs).to(values.dtype)
        rows = values[clusters.members].double()
        return torch.segment_reduce(rows, "sum", lengths=clusters.sizes, axis=0, initial=0).to(values.dtype)

    def _clusters(self, ties: Ties, counts: RowCounts) -> arrays.Clusters:
        if self._kept.get("ties") is not ties or self._kept.get("counted") is not counts:
            labels = to_device(ties.labels.astype(np.int32), self._device)
            clusters = arrays.Clusters.of(labels, ties.n_clusters, counts)
            self._kept.update(ties=ties, counted=counts, clusters=clusters)
        found: arrays.Clusters = self._kept["clusters"]
        return found

    def _resident(self, counts: Counts) -> ResidentCounts:
        if self._kept.get("counts") is not counts:
            self._kept.pop("resident", None)  # its memory first
            resident = ResidentCounts.of(counts, self._device, LONGEST_RUN, self.block)
            self._kept.update(counts=counts, resident=resident)
        found: ResidentCounts = self._kept["resident"]
        return found

    @cached_property
    def _kept(self) -> dict[str, Any]:
        return {}

    @cached_property
    def _device(self) -> Any:
        return torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _exposures(passes: Any, likelihood: Likelihood) -> Any:
    """Return the passes for the likelihood's exposures."""
    return Inflated(passes) if isinstance(likelihood, ZeroInflatedPoisson) else passes


def _turned(α: Concentrations, likelihood: Likelihood, n_items: int) -> Concentrations:
    """Return exposure parameters with the roles of users and items swapped."""
    by_user, by_item = α
    if by_item is None and np.ndim(likelihood.exposure_parameter) == 0:
        by_item = by_user[:1].expand(n_items).contiguous()
    return (by_user, by_user) if by_item is None else (by_item, None)


def _unknown(data: RowCounts) -> tuple[Tensor, Tensor]:
    """Return the rows and columns of the unknown cells."""
    unknown = data.values < 0
    return data.rows[unknown], data.columns[unknown].long()


def _quotient(allocated: Tensor, exposed: Tensor, before: Tensor, dtype: Any) -> Tensor:
    """See `OnHost.quotient`; `dtype` is that in which the factor is kept."""
    return torch.where(exposed > 0, allocated / exposed, before).clamp_max(largest(_on_host(dtype)))


def _on_host(dtype: Any) -> np.dtype[Any]:
    """Return NumPy's name of a type of PyTorch's."""
    return np.dtype(str(dtype).removeprefix("torch."))
