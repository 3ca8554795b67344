"""The passes on one GPU, by PyTorch and Triton; where there is none, by PyTorch on the CPU, for tests.

Counts are copied to the device once, factors stay there from sweep to sweep (resident.py), and a few sums are all that
leaves it in a sweep. triton_passes.py has the kernels, torch_passes.py what they mean. Rows are cut into runs of
bounded length and summed without atomic operations: the same fit on the same device gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from nbmf.backends import Folds, Sums
from nbmf.backends.counts import BLOCK_ON_DEVICE, Counts
from nbmf.backends.gpu import passes as torch_passes
from nbmf.backends.gpu.arrays import (
    Clusters,
    ResidentCounts,
    ResidentGamma,
    ResidentPoint,
    RowCounts,
    tables,
    to_device,
    to_host,
)
from nbmf.backends.gpu.clusters import cluster_rows
from nbmf.backends.gpu.fold import Rows, batches, fetch, joined, settle
from nbmf.backends.gpu.slopes import stored_slopes, unseen_slopes
from nbmf.backends.gpu.topk import best
from nbmf.model.factors import Factor, Gamma, Point, Prior
from nbmf.model.likelihood import Likelihood, Poisson
from nbmf.model.ties import Ties, tie_items

Array = NDArray[np.floating[Any]]
Tensor = Any

# Underflow can make λ of a non-zero 0 (see cpu.py); y/λ must stay finite
LEAST_INTENSITY = {torch.float32: 1e-25, torch.float64: 1e-250}
LONGEST_RUN = 512
BLOCK_ROWS = 4096  # rows summed in single precision before the sum goes to double
CLUSTERED_ON_DEVICE = 1e9  # items × K × clusters from which k-means on the host would take longer than a sweep


class Inferred(NamedTuple):
    """What a pass over the data finds, as `ResidentExpectation` keeps it."""

    shares: Tensor
    excess: Tensor | None
    unseen: Tensor | None
    sums: Sums | None
    log_evidences: tuple[Tensor, ...]


@dataclass(frozen=True)
class ResidentExpectation:
    """The latent variables of the non-zeros on the device, as in `cpu.SparseExpectation`."""

    users: tuple[Tensor, Tensor]
    items: tuple[Tensor, Tensor]
    likelihood: Likelihood
    ties: Ties | None
    shares: Tensor
    excess: Tensor | None
    unseen: Tensor | None
    sums: Sums | None
    log_evidences: tuple[Tensor, ...]

    @cached_property
    def log_evidence(self) -> float:
        """The sum of what the passes found."""
        return float(torch.stack(self.log_evidences).sum())

    @property
    def user_sums(self) -> Sums:
        """The sums of Eq. (update_w), on the device."""
        if self.sums is None:
            raise ValueError("the users' sums were not asked for: expect(..., sum_users=True) makes them")
        return self.sums


@dataclass(frozen=True)
class Gpu:
    """One device.

    Parameters
    ----------
    device : "cuda" or "cpu"; None takes the GPU if there is one
    precision : of the products over tiles, for exact exposures of single-precision factors: "float32" (three passes of
        tf32, all digits), "tf32" or "bf16" (fastest; exposures lose digits after the third)
    kernels : "triton" or "torch"; None takes Triton on a GPU
    block : users whose rows a walk over the items gathers together, so that they are still in the cache; 0: all
    """

    device: str | None = None
    precision: str = "float32"
    kernels: str | None = None
    block: int = BLOCK_ON_DEVICE

    def expect(
        self,
        counts: Counts,
        users: Factor,
        items: Factor,
        likelihood: Likelihood,
        ties: Ties | None,
        *,
        sum_users: bool = True,
    ) -> ResidentExpectation:
        """Infer allocations and exposures, Eqs. (update_c) and (update_a), and sum them for each user."""
        W, H = tables(users, self._device), tables(items, self._device)
        α = None if isinstance(likelihood, Poisson) else self._concentrations(likelihood, W[0])
        found = self._infer(self._resident(counts), W, H, α, ties, sum_users)
        return ResidentExpectation(W, H, likelihood, ties, *found)

    def _infer(
        self,
        data: RowCounts,
        W: tuple[Tensor, Tensor],
        H: tuple[Tensor, Tensor],
        α: tuple[Tensor, Tensor | None] | None,
        ties: Ties | None,
        sum_users: bool,
        *,
        tile_type: Any = None,
        log_tiles: bool = True,
    ) -> Inferred:
        """`expect` on the device; products over every cell are of `tile_type`, None for the factors' own."""
        passes = self._passes(W[0], ties)
        shares, allocated, log_of_shares = passes.allocate(data, W[1], H[1], LEAST_INTENSITY[W[0].dtype], sum_users)
        excess = unseen = exposed = None
        logs = [log_of_shares]
        if α is None:
            exposed = self._sum_rows(H[0])
            log = -self._sum_rows(W[0]) @ exposed
            exposed = exposed[None, :].to(W[0].dtype)
            if data.has_unknown:
                left_out = passes.sum_users(data, (data.values < 0).to(W[0].dtype), H[0])
                log = log + (W[0] * left_out).sum(dtype=torch.float64)
                exposed = (exposed - left_out).clamp_min(0)  # below 0 is rounding
        elif ties is None:
            excess, of_stored, log = passes.expose(data, W[0], H[0], *α, sum_users)
            logs.append(log)
            w, h, *αs = (None if table is None else table.to(tile_type or table.dtype) for table in (W[0], H[0], *α))
            settings = {"logs": log_tiles, "sums": sum_users, "precision": self.precision}
            exposed, log = passes.expose_tiles(w, h, h, *αs, **settings)
            exposed = exposed + of_stored if sum_users else None
        else:
            clusters = self._clusters(ties, data)
            cluster_sums = self._sum_clusters(H[0], clusters)
            excess, unseen, log = passes.tie(data, W[0], H[0], W[0] @ cluster_sums.T, clusters, α[0])
            if sum_users:
                # A_uc S_c has the seen cells too, which the excess has taken off; below 0 is rounding
                of_stored = passes.sum_users(data, excess, H[0])
                exposed = of_stored.addmm_(unseen, cluster_sums).clamp_min_(0)
        sums = None if allocated is None or exposed is None else Sums(allocated, exposed)
        return Inferred(shares, excess, unseen, sums, (*logs, log))

    def sum_by_item(self, counts: Counts, expectation: ResidentExpectation, users: Factor) -> Sums:
        """Sum the same allocations and exposures for each item, Eq. (update_h)."""
        data, ties, excess = self._resident(counts), expectation.ties, expectation.excess
        (old_means, geometric), means = expectation.users, tables(users, self._device)[0]
        passes = self._passes(means, ties)
        allocated, of_stored = passes.sum_items(data, expectation.shares, geometric, excess, means)
        allocated *= expectation.items[1]
        if excess is None:
            exposed = self._sum_rows(means)[None, :].to(means.dtype)
            if data.has_unknown:
                unknown = (data.values < 0).to(means.dtype)
                exposed = (exposed - passes.sum_items(data, unknown, means, None, None)[0]).clamp_min(0)
            return Sums(allocated, exposed)
        if ties is None:
            by_user, by_item = self._concentrations(expectation.likelihood, old_means)
            if by_item is None and np.ndim(expectation.likelihood.concentration) == 0:
                by_item = torch.full_like(expectation.items[0][:, 0], float(by_user[0]))
            α = (by_item, None) if by_item is not None else (by_user, by_user)
            exposed, _ = passes.expose_tiles(
                expectation.items[0], old_means, means, *α, logs=False, sums=True, precision=self.precision
            )
            return Sums(allocated, exposed + of_stored)
        of_clusters = self._sum_rows(means, expectation.unseen).to(means.dtype)
        return Sums(allocated, passes.add_shared(of_stored, of_clusters, self._clusters(ties, data).labels))

    def conditional(self, prior: Prior, sums: Sums) -> Gamma:
        """Return the posterior and its moments, in double precision until they are stored."""
        allocated, exposed = (to_device(values, self._device) for values in sums)
        rates = self._column(np.asarray(prior.rate, np.float64))
        moments = self._passes(allocated, None).gamma_moments(float(prior.shape), rates, allocated, exposed)
        return ResidentGamma(moments, prior.rate)

    def quotient(self, factor: Factor, sums: Sums) -> Point:
        """Return allocated / exposed, Eqs. (nmfH) and (nmfW); where nothing is exposed the old value stays."""
        allocated, exposed = (to_device(values, self._device) for values in sums)
        value = tables(factor, self._device)[0]
        return ResidentPoint(torch.where(exposed > 0, allocated / exposed, value))

    def cluster(self, items: Factor, n_clusters: int, rng: np.random.RandomState) -> Ties:
        """Tie items that are alike; few ones by the host, as `cpu` does."""
        n_items, n_components = items.dimensions
        if n_clusters >= n_items or n_items * n_components * n_clusters < CLUSTERED_ON_DEVICE:
            return tie_items(items.mean, n_clusters, rng)
        return Ties(cluster_rows(tables(items, self._device)[0], n_clusters, rng), n_clusters)

    def slopes(
        self, counts: Counts, expectation: ResidentExpectation, group: str
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """∂/∂α and ∂²/∂α² of the log-evidence: the cells as if every count were 0, and what the stored ones differ."""
        data, law = self._resident(counts), expectation.likelihood
        if expectation.excess is None:
            raise TypeError(f"{type(law).__name__} has no concentration to learn")
        labels = None if expectation.ties is None else self._clusters(expectation.ties, data).labels
        α = self._concentrations(law, expectation.users[0].double())
        means = (expectation.users[0], expectation.items[0])
        unseen = unseen_slopes(data, means, α, group, expectation.unseen, labels)
        stored = stored_slopes(data, α, group, expectation.excess, expectation.unseen, labels)
        shape = {"all": (), "user": (-1, 1), "item": (1, -1)}[group]
        first, second = ((a + b).cpu().numpy().reshape(shape) for a, b in zip(unseen, stored, strict=True))
        return first, second

    def fold(
        self,
        counts: sp.csr_array,
        factor: Factor,
        likelihood: Likelihood,
        prior: Prior,
        ties: Ties | None,
        *,
        start: Array,
        least_sum: float,
        tol: float,
        most: int,
    ) -> Folds:
        """Fold rows in, the other side's factor held fixed, in batches that bound the memory; see `folds.fold_rows`."""
        means, geometric_means = tables(factor, self._device)
        own, n_components, shape = means.dtype, means.shape[1], float(prior.shape)
        H, passes = (means.double(), geometric_means.double()), self._passes(means, None)
        α = np.atleast_2d(np.asarray(likelihood.concentration, np.float64))
        of_columns = self._column(α).ravel() if α.shape[1] > 1 else None

        def update(data: RowCounts, rows: Rows) -> Rows:
            W = rows.mean, rows.geometric_mean
            αs = None if isinstance(likelihood, Poisson) else (rows.concentrations.ravel(), of_columns)
            sums: Any = self._infer(data, W, H, αs, ties, True, tile_type=own, log_tiles=False).sums
            rates, steps = rows.rates, rows.steps + 1
            if not isinstance(factor, Gamma):
                mean = torch.where(sums.exposed > 0, sums.allocated / sums.exposed, rows.mean)
                return Rows(mean, mean, sums.allocated, sums.exposed, rates, rows.concentrations, steps)
            if np.ndim(prior.rate):
                rates = shape * n_components / rows.mean.sum(1, keepdim=True).clamp_min(least_sum)
            found = passes.gamma_moments(shape, rates, sums.allocated, sums.exposed)
            moments = (found.mean, found.geometric_mean)
            return Rows(*moments, sums.allocated, sums.exposed, rates, rows.concentrations, steps)

        parts = []
        for part in batches(counts.indptr, n_components, 0 if ties is None else ties.n_clusters):
            data = RowCounts.copied(counts[part], self._device, LONGEST_RUN)
            αs = self._column(α[part] if len(α) > 1 else α[:, :1])
            rows = Rows.at(to_device(start[part], self._device), float(np.ravel(prior.rate)[0]), αs)
            parts.append(fetch(settle(data, rows, update, tol, most), factor, prior, passes, own))
        self._kept.clear()
        return joined(parts)

    def best(self, users: Array, items: Array, n: int, exclude: sp.csr_array | None) -> tuple[NDArray[np.intp], Array]:
        """Return the columns and scores of each user's n best items; see `resident_ranks.best`."""
        columns, scores = best(to_device(users, self._device), to_device(items, self._device), n, exclude)
        return to_host(columns), to_host(scores)

    def _passes(self, table: Tensor, ties: Ties | None) -> Any:
        """The kernels that can do it."""
        if self._kernels == "torch":
            return torch_passes
        from nbmf.backends.gpu import triton as triton_passes  # noqa: PLC0415 (not everywhere where torch is)

        n_clusters = 0 if ties is None else ties.n_clusters
        return triton_passes if triton_passes.fits(table.shape[1], n_clusters) else torch_passes

    def _concentrations(self, likelihood: Likelihood, users: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the α of each user, and that of each item where it is the items' own; the users' then mean nothing."""
        α = np.atleast_2d(np.asarray(likelihood.concentration, np.float64))
        on_device = self._column(α).ravel().to(users.dtype)
        if α.shape[1] > 1:
            return torch.ones_like(users[:, 0]), on_device
        return on_device.expand(len(users)).contiguous(), None

    def _column(self, values: NDArray[np.float64]) -> Tensor:
        """Put numbers below each other on the device; one alone is made there, as copies wait for what is under way."""
        if values.size == 1:
            return torch.full((1, 1), float(values.item()), dtype=torch.float64, device=self._device)
        return to_device(values.reshape(-1, 1), self._device)

    def _sum_rows(self, values: Tensor, weights: Tensor | None = None) -> Tensor:
        """Σ over rows of values, or of weightsᵀ values: rows by blocks in their precision, blocks in double."""
        if weights is None:
            return values.sum(dim=0, dtype=torch.float64)
        whole = len(values) - len(values) % BLOCK_ROWS
        a, b = (table[:whole].view(-1, BLOCK_ROWS, table.shape[1]) for table in (weights, values))
        blocks = torch.bmm(a.transpose(1, 2), b).sum(dim=0, dtype=torch.float64)
        return blocks + (weights[whole:].T @ values[whole:]).double()

    def _sum_clusters(self, values: Tensor, clusters: Clusters) -> Tensor:
        """S_c: the sum of the rows of each cluster's items."""
        if clusters.belongs is not None:  # one cluster may have most of the items: a product takes as long for any
            return self._sum_rows(values, clusters.belongs).to(values.dtype)
        rows = values[clusters.members].double()
        return torch.segment_reduce(rows, "sum", lengths=clusters.sizes, axis=0, initial=0).to(values.dtype)

    def _clusters(self, ties: Ties, counts: RowCounts) -> Clusters:
        """The ties on the device, kept while they are the same."""
        if self._kept.get("ties") is not ties or self._kept.get("counted") is not counts:
            labels = to_device(ties.labels.astype(np.int32), self._device)
            clusters = Clusters.of(labels, ties.n_clusters, counts)
            self._kept.update(ties=ties, counted=counts, clusters=clusters)
        found: Clusters = self._kept["clusters"]
        return found

    def _resident(self, counts: Counts) -> ResidentCounts:
        """The counts on the device, kept while they are the same."""
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

    @cached_property
    def _kernels(self) -> str:
        return self.kernels or ("triton" if self._device.type == "cuda" else "torch")
