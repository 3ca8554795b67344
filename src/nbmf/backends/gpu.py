"""The passes on one GPU, by PyTorch and Triton; where there is none, by PyTorch on the CPU, for tests.

Counts are copied to the device once, factors stay there from sweep to sweep (resident.py), and a few sums are all that
leaves it in a sweep. triton_passes.py has the kernels, torch_passes.py what they mean. Rows are cut into runs of
bounded length and summed without atomic operations: the same fit on the same device gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nbmf.backends import Sums, torch_passes
from nbmf.backends.clustering import cluster_rows
from nbmf.backends.curves import stored_slopes, unseen_slopes
from nbmf.backends.resident import Clusters, ResidentCounts, ResidentGamma, ResidentPoint, tables, to_device
from nbmf.counts import Counts
from nbmf.factors import Factor, Gamma, Point, Prior
from nbmf.likelihood import Likelihood, Poisson
from nbmf.ties import Ties, tie_items

Tensor = Any

# Underflow can make λ of a non-zero 0 (see cpu.py); y/λ must stay finite
LEAST_INTENSITY = {torch.float32: 1e-25, torch.float64: 1e-250}
LONGEST_RUN = 512
BLOCK_ROWS = 4096  # rows summed in single precision before the sum goes to double
FEW_CLUSTERS = 256
CLUSTERED_ON_DEVICE = 1e9  # items × K × clusters from which k-means on the host would take longer than a sweep


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
    block : users whose rows a walk over the items gathers together; 0: all
    """

    device: str | None = None
    precision: str = "float32"
    kernels: str | None = None
    block: int = 0

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
        data, W, H = self._resident(counts), tables(users, self._device), tables(items, self._device)
        passes = self._passes(W[0], ties)
        shares, allocated, log = passes.allocate(data, W[1], H[1], LEAST_INTENSITY[W[0].dtype], sum_users)
        found = ResidentExpectation(W, H, likelihood, ties, shares, None, None, None, (log,))
        if isinstance(likelihood, Poisson):
            exposed = self._sum_rows(H[0])
            log = -self._sum_rows(W[0]) @ exposed
            exposed = exposed[None, :].to(W[0].dtype)
            if data.has_unknown:
                left_out = passes.sum_users(data, (data.values < 0).to(W[0].dtype), H[0])
                log = log + (W[0] * left_out).sum(dtype=torch.float64)
                exposed = (exposed - left_out).clamp_min(0)  # below 0 is rounding
        elif ties is None:
            α = self._concentrations(likelihood, W[0])
            excess, of_stored, log_of_stored = passes.expose(data, W[0], H[0], *α, sum_users)
            exposed, log = passes.expose_tiles(
                W[0], H[0], H[0], *α, logs=True, sums=sum_users, precision=self.precision
            )
            exposed = exposed + of_stored if sum_users else None
            found = replace(found, excess=excess, log_evidences=(*found.log_evidences, log_of_stored))
        else:
            clusters = self._clusters(ties, data)
            cluster_sums = self._sum_clusters(H[0], clusters)
            α_users, _ = self._concentrations(likelihood, W[0])
            excess, unseen, log = passes.tie(data, W[0], H[0], W[0] @ cluster_sums.T, clusters, α_users)
            exposed = None
            if sum_users:
                # A_uc S_c has the seen cells too, which the excess has taken off; below 0 is rounding
                of_stored = passes.sum_users(data, excess, H[0])
                exposed = torch.addmm(of_stored, unseen, cluster_sums).clamp_min_(0)
            found = replace(found, excess=excess, unseen=unseen)
        sums = None if allocated is None or exposed is None else Sums(allocated, exposed)
        return replace(found, sums=sums, log_evidences=(*found.log_evidences, log))

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
        labels = self._clusters(ties, data).labels
        return Sums(allocated, of_stored.add_(of_clusters[labels]).clamp_min_(0))

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

    def _passes(self, table: Tensor, ties: Ties | None) -> Any:
        """The kernels that can do it."""
        if self._kernels == "torch":
            return torch_passes
        from nbmf.backends import triton_passes  # noqa: PLC0415 (not everywhere where torch is)

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
        sizes = clusters.sizes
        if len(sizes) <= FEW_CLUSTERS:  # one cluster may have most of the items: a product takes as long for any
            belongs = clusters.labels[:, None] == torch.arange(len(sizes), device=sizes.device)
            return self._sum_rows(values, belongs.to(values.dtype)).to(values.dtype)
        rows = values[clusters.members].double()
        return torch.segment_reduce(rows, "sum", lengths=sizes, axis=0, initial=0).to(values.dtype)

    def _clusters(self, ties: Ties, counts: ResidentCounts) -> Clusters:
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
