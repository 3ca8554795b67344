"""The passes of an encoder on one GPU; backends/encoder.py says what they mean, passes.py what each walk does.

V, H and b stay on the device. W and R of a start take users × K each: at 1,019,318 users × 384,546 items, 47 million
non-zeros and K = 256, 2.1 GB per start, beside 0.8 GB per start for its factors, as much for the new ones, about 4 GB
for one start's sums, and 1 GB for the counts; building their transpose takes another 1.3 GB for a moment.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import torch

from nbmf.backends import LEAST_INTENSITY, Given, Sums, check_kind
from nbmf.backends.counts import Counts
from nbmf.backends.encoder import EncoderCounts
from nbmf.backends.gpu.arrays import Clusters, ResidentCounts, ResidentPoint, Tensor, entries, to_device
from nbmf.backends.gpu.device import Gpu, _on_host
from nbmf.backends.gpu.events import BLOCK
from nbmf.backends.gpu.inflated import sum_by_cluster
from nbmf.backends.gpu.passes import Encoded, Others, finite, row_blocks
from nbmf.model.factors import Factor
from nbmf.model.likelihood import Likelihood
from nbmf.model.ties import Ties


@dataclass(frozen=True)
class ResidentInputs(ResidentCounts):
    """The targets, with the input of each stored cell, and the rest of `EncoderCounts`."""

    inputs: Tensor
    met: Tensor
    penalty: float


class ResidentStart(NamedTuple):
    """One start on the device: V and H, items × K, and b."""

    inputs: Tensor
    outputs: Tensor
    intercept: Tensor

    @property
    def factors(self) -> tuple[ResidentPoint, ResidentPoint]:
        """V and [H | b]."""
        side = torch.cat((self.outputs, self.intercept[:, None]), dim=1)
        return ResidentPoint(self.inputs), ResidentPoint(side)


class Exposed(NamedTuple):
    """Exposures of unseen cells by user and cluster, of stored cells, their difference, and Σ_i E_ui H_i."""

    unseen: Tensor
    exposures: Tensor
    excess: Tensor
    labels: Tensor
    users: Tensor


class ResidentInferred(NamedTuple):
    """Of one start: W and R of each user, the shares of the stored cells, and exposures if they vary."""

    start: ResidentStart
    hidden: Tensor
    allocated: Tensor
    shares: Tensor
    exposed: Exposed | None


@dataclass(frozen=True)
class ResidentEncoderExpectation:
    """All that was inferred, on the device."""

    starts: list[ResidentInferred]
    logs: tuple[Tensor, ...]

    @cached_property
    def log_evidence(self) -> float:
        """The mean over the starts, in one transfer."""
        return float(torch.stack(self.logs).mean())


@dataclass(frozen=True)
class GpuEncoder(Gpu):
    """One device. Rows of many components outgrow its cache, so that an item gathers those of all its users at once."""

    block: int = 0

    @property
    def encoder(self) -> Self:
        """These passes."""
        return self

    def expect(self, counts: Counts, given: Given, *, sum_users: bool = True) -> ResidentEncoderExpectation:
        """Infer allocations and exposures of every start."""
        check_kind(given.likelihood)
        data = self._resident(counts)
        found, logs = zip(*[self._infer_start(data, given, one) for one in self._starts(given)], strict=True)
        return ResidentEncoderExpectation(list(found), logs)

    def _starts(self, given: Given) -> list[ResidentStart]:
        """Copy the starts, which stand side by side, to where their rows are contiguous."""
        V, side = entries(given.users, self._device), entries(given.items, self._device)
        n_starts = side.shape[1] - V.shape[1]
        pairs = zip(V.chunk(n_starts, dim=1), side.chunk(n_starts, dim=1), strict=True)
        return [ResidentStart(*(part.contiguous() for part in (v, h[:, :-1], h[:, -1]))) for v, h in pairs]

    def _infer_start(self, data: ResidentInputs, given: Given, one: ResidentStart) -> tuple[ResidentInferred, Tensor]:
        (V, H, b), has_exposure = one, given.likelihood.has_exposure
        passes, least = self._passes(V, None), float(LEAST_INTENSITY[_on_host(V.dtype)])
        varies, ones = has_exposure or data.has_unknown, torch.ones_like(data.met)
        hidden = passes.sum_users(data, data.inputs, V)
        found = passes.encode(data, data.inputs, hidden, one, least, varies)
        if has_exposure:  # −ρ Σ_{j≠i} B_ji
            log = -data.penalty * (_weighed(V, ones) @ _weighed(H, ones) - _own(V, H, ones)).clamp_min(0)
        else:  # −Σ μ over all cells − ρ ΣB
            log = _own(V, H, data.met) - _weighed(V, data.met) @ _weighed(H, ones)
            log = log - data.shape[0] * b.sum(dtype=torch.float64)
        exposed = None
        if varies:
            clusters = self._clusters(self._ties(given, data), data)
            exposed, more = self._expose(data, clusters, given.likelihood, one, hidden, found)
            log = log + more
        return ResidentInferred(one, hidden, found.allocated, found.shares, exposed), found.log + log

    def _expose(
        self,
        data: ResidentInputs,
        clusters: Clusters,
        likelihood: Likelihood,
        one: ResidentStart,
        hidden: Tensor,
        found: Encoded,
    ) -> tuple[Exposed, Tensor]:
        """Find exposures, and what of the log-evidence depends on them; without gamma exposures, known cells have 1."""
        passes, (_, H, b), (intensities, whole) = self._passes(one.outputs, None), one, found.intensities
        sums, labels = self._sum_clusters(H, clusters), clusters.labels
        unseen = torch.addmm(self._sum_clusters(b[:, None], clusters).T, hidden, sums.T)
        unseen -= sum_by_cluster(passes, data, whole, clusters)
        α = float(np.ravel(likelihood.concentration)[0]) if likelihood.has_exposure else None
        log = torch.zeros((), dtype=torch.float64, device=H.device)
        for rows in row_blocks(*unseen.shape):
            n_unseen = clusters.n_unseen[rows]
            μ = unseen[rows].clamp_min(0) / n_unseen.clamp_min(1)  # below 0 is rounding
            if α is not None:
                log -= (α * n_unseen.double() * torch.log1p(μ.double() / α)).sum()
            exposure = torch.ones_like(μ) if α is None else α / (α + μ)
            unseen[rows] = torch.where(n_unseen > 0, exposure, 0)
        exposures, excess = torch.empty_like(found.shares), torch.empty_like(found.shares)
        for cells in data.stretches(BLOCK):
            t, μ = data.values[cells].double(), intensities[cells].double()
            known = t >= 0
            if α is None:
                exposure = torch.ones_like(t)
                log += torch.where(known, 0, μ).sum()
            else:
                exposure = (α + t) / (α + μ)
                log -= torch.where(known, t * np.log(α) + (α + t) * torch.log1p(μ / α), 0).sum()
            exposures[cells] = torch.where(known, exposure, 0).to(exposures.dtype)
            shared = unseen[data.rows_of(cells), labels[data.columns[cells]].long()]
            excess[cells] = exposures[cells] - shared
        users = passes.sum_users(data, excess, H).addmm_(unseen, sums).clamp_min_(0)
        return Exposed(unseen, exposures, excess, labels.long(), users), log

    def sum_inputs(self, counts: EncoderCounts, inferred: ResidentInferred) -> tuple[Sums, Tensor]:
        """Return both sums of V, and what is allocated to [H | b]."""
        data, (V, H, b), exposed = self._resident(counts), inferred.start, inferred.exposed
        passes, shares = self._passes(V, None), inferred.shares
        of_inputs = Others(data.inputs, shares, inferred.allocated, H)
        to_inputs, to_outputs = passes.sum_others(data, of_inputs, Others(shares, data.inputs, inferred.hidden, V))
        to_intercepts = self._by_item(data, shares)[0].mul_(b).to(b.dtype)
        allocated = torch.cat((finite(to_outputs).mul_(H), to_intercepts[:, None]), dim=1)
        if exposed is None:
            return Sums(finite(to_inputs).mul_(V), _others(H, torch.ones_like(data.met), data.met)), allocated
        found = passes.sum_others(data, Others(data.inputs, exposed.exposures, exposed.users, H))[0]
        found += (data.penalty * (H.sum(dim=0, dtype=torch.float64) - H)).to(H.dtype)
        return Sums(finite(to_inputs).mul_(V), found.clamp_min_(0)), allocated

    def expose_outputs(self, counts: EncoderCounts, inferred: ResidentInferred, inputs: Factor) -> Tensor:
        """Return what [H | b] is exposed to, with a V that may be newer."""
        data, V, exposed = self._resident(counts), entries(inputs, self._device), inferred.exposed
        if exposed is None:
            known = torch.full_like(V[:, :1], data.shape[0])
            return torch.cat((_others(V, data.met, torch.ones_like(data.met)), known), dim=1)
        passes, labels = self._passes(V, None), exposed.labels
        hidden = passes.sum_users(data, data.inputs, V)
        beyond, own = self._by_item(data, exposed.excess, exposed.exposures * data.inputs)
        found = self._sum_rows(hidden, exposed.unseen)[labels]
        found += passes.sum_items(data, exposed.excess, hidden)
        found += data.penalty * V.sum(dim=0, dtype=torch.float64) - (own + data.penalty)[:, None] * V
        known = exposed.unseen.sum(dim=0, dtype=torch.float64)[labels] + beyond
        return torch.cat((found, known[:, None]), dim=1).clamp_min_(0).to(V.dtype)

    def _by_item(self, data: ResidentInputs, *weights: Tensor) -> list[Tensor]:
        """Sum weights of the stored cells for each item, in double precision."""
        ones = torch.ones(data.shape[0], 1, dtype=torch.float64, device=data.inputs.device)
        return [self._passes(ones, None).sum_items(data, each, ones)[:, 0] for each in weights]

    def _ties(self, given: Given, data: ResidentInputs) -> Ties:
        """Return the clusters whose unseen cells share an exposure: without ties each item's, or all if all have 1."""
        if given.likelihood.has_exposure and given.ties is not None:
            return given.ties
        n_items = data.shape[1]
        n_clusters = n_items if given.likelihood.has_exposure else 1
        found: Ties | None = self._kept.get("implied")
        if found is None or (len(found.labels), found.n_clusters) != (n_items, n_clusters):
            found = self._kept["implied"] = Ties(np.arange(n_items, dtype=np.int32) % n_clusters, n_clusters)
        return found

    def _resident(self, counts: Counts) -> ResidentInputs:
        found = super()._resident(counts)
        if not isinstance(found, ResidentInputs):
            assert isinstance(counts, EncoderCounts)
            inputs, met = (to_device(values, self._device) for values in (counts.inputs, counts.met))
            found = ResidentInputs(**vars(found), inputs=inputs, met=met, penalty=counts.penalty)
            self._kept["resident"] = found
        return found


def _others(values: Tensor, weights: Tensor, scales: Tensor) -> Tensor:
    """Return for each row the weighted sum of all other rows, times the row's scale; `Whole` says how."""
    total, largest, rest = _whole(values, weights)
    found = torch.empty_like(values)
    for rows in row_blocks(*values.shape):
        left = total - weights[rows, None] * values[rows]
        is_largest = torch.arange(rows.start, rows.start + len(left), device=values.device)[:, None] == largest
        found[rows] = (torch.where(is_largest, rest, left) * scales[rows, None]).to(values.dtype)
    return found


def _whole(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `Whole.of` does."""
    total, most, rest = torch.zeros(3, values.shape[1], dtype=torch.float64, device=values.device)
    largest = torch.zeros_like(total, dtype=torch.int64)
    for rows in row_blocks(*values.shape):
        parts = weights[rows, None] * values[rows].double()
        found, at = parts.max(dim=0)
        sums = parts.sum(dim=0)
        others = parts.scatter_(0, at[None], 0.0).sum(dim=0)
        is_larger = found > most
        rest = rest + torch.where(is_larger, others + most, sums)
        largest, most = torch.where(is_larger, rows.start + at, largest), torch.maximum(found, most)
        total = total + sums
    return total, largest, rest


def _weighed(values: Tensor, weights: Tensor) -> Tensor:
    parts = [weights[rows] @ values[rows].double() for rows in row_blocks(*values.shape)]
    return torch.stack(parts).sum(dim=0)


def _own(V: Tensor, H: Tensor, weights: Tensor) -> Tensor:
    """Σ_j weight × Σ_k V_jk H_jk."""
    parts = [weights[rows] @ (V[rows].double() * H[rows]).sum(dim=1) for rows in row_blocks(*V.shape)]
    return torch.stack(parts).sum()
