"""Where the passes over the data are computed. `reference` says what they mean; the others are held to it.

A backend knows no algorithm. Outside `reference` it stores no users × items array and no non-zeros × K array.
"""

import os
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends.counts import Counts
from nbmf.data import how_to_install
from nbmf.model.factors import Factor, Gamma, Point, Prior, largest
from nbmf.model.likelihood import Likelihood
from nbmf.model.ties import Ties, tie_items

if TYPE_CHECKING:
    from nbmf.backends.gpu.device import Gpu

Array = NDArray[np.floating[Any]]

# Underflow can make λ of a non-zero 0 (a prior shape of 0.01 in float32 does); y/λ must stay finite.
LEAST_INTENSITY: dict[np.dtype[Any], Any] = {
    np.dtype(np.float32): np.float32(1e-25),
    np.dtype(np.float64): np.float64(1e-250),
}

EXTRAPOLATED = 1 << 15  # parameters extrapolated at a time
LONGEST_STEP = 10.0  # of the logarithm of a parameter
LEFT_OVER = 1e-6  # of a sum after unknown cells are taken off, below which too few digits are left


class Sums(NamedTuple):
    """All that the data ever contributes to one side."""

    allocated: Array  # rows × K: Σ ⟨c⟩ over each row's non-zeros
    exposed: Array  # rows × K, or 1 × K where all rows agree: Σ ⟨a⟩ ⟨other side⟩ over each row's cells


class Expectation(Protocol):
    """⟨c⟩ and ⟨a⟩ at given factors (Eqs. update_c, update_a), in whatever form a backend keeps them."""

    @property
    def user_sums(self) -> Sums:
        """Sums over each user's cells, with the items' means."""

    @property
    def log_evidence(self) -> float:
        """Σ over all cells of log_events(y, λ) + log_evidence(y, μ), without `Likelihood.log_base`."""


class Given(NamedTuple):
    """What allocations and exposures are inferred from; without ties every cell has its own exposure."""

    users: Factor
    items: Factor
    likelihood: Likelihood
    ties: Ties | None


class Backend(Protocol):
    """The passes an algorithm is made of."""

    def expect(self, counts: Counts, given: Given, *, sum_users: bool = True) -> Expectation:
        """Infer allocations and exposures, Eqs. (update_c) and (update_a), and sum them for each user in one walk."""

    def sum_by_item(self, counts: Counts, expectation: Any, users: Factor) -> Sums:
        """Sum what `expect` found over each item's cells, with users whose means may be newer."""

    def slopes(self, counts: Counts, expectation: Any, group: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ∂/∂α and ∂²/∂α² of the log-evidence, over "all" cells, each "user" (n × 1) or "item" (1 × n)."""

    def mean_exposure(self, counts: Counts, expectation: Any, group: str) -> NDArray[np.float64]:
        """Return the mean of ⟨a⟩ over "all" known cells, those of each "user" (n × 1) or "item" (1 × n)."""

    def conditional(self, prior: Prior, sums: Sums) -> Gamma:
        """Return Gamma(prior shape + allocated, prior rate + exposed) with its moments: Eqs. (update_w), (update_h)."""

    def quotient(self, factor: Factor, sums: Sums) -> Point:
        """Return allocated / exposed: Eqs. (nmfW), (nmfH). Where nothing is exposed, the factor stays."""

    def parameters(self, factor: Factor) -> tuple[Any, ...]:
        """Return the parameters of a factor, wherever the backend keeps them."""

    def extrapolate(self, factor: Factor, here: tuple[Any, ...], past: tuple[Any, ...], step: float) -> Factor:
        """Return a factor of this kind with the parameters here · (here/past)^step."""

    def cluster(self, items: Factor, n_clusters: int, rng: np.random.RandomState) -> Ties:
        """Tie similar items."""


class FoldJob(NamedTuple):
    """Rows of counts to fold in, while `factor`, that of the columns, stays fixed."""

    counts: sp.csr_array  # a negative one is an unknown cell
    factor: Factor
    likelihood: Likelihood
    prior: Prior  # of the rows
    ties: Ties | None
    start: Array  # means of the rows
    least_sum: float  # of a row's means that sets the rate of its own prior
    tol: float  # a row is done when an update changes it by less than this, relative to its size,
    most: int  # or after so many updates


class Folds(NamedTuple):
    """Rows that were folded in: their factor, of the same kind and type as the fixed one, and their updates."""

    factor: Factor
    steps: NDArray[np.int64]


BACKENDS = ("auto", "cpu", "gpu", "gpu-bf16", "reference")
COMPILED = (
    "poisson",
    "negative_binomial",
    "logarithmic_jumps",
    "geometric_jumps",
    "bernoulli_poisson",
    "robust_poisson",
    "zero_inflated_poisson",
)
"""Kinds of likelihood for which there are kernels."""


def check_kind(likelihood: Likelihood) -> None:
    """Raise ValueError for a likelihood that no kernel knows."""
    if likelihood.kind not in COMPILED:
        raise ValueError(
            f"there are no compiled kernels for the likelihood {likelihood.kind!r}; backend='reference' takes any "
            "likelihood"
        )


def group_means(sums: NDArray[np.float64], cells: NDArray[np.float64], group: str) -> NDArray[np.float64]:
    """Divide sums over the known cells of each user, or item, by how many there are; "all" is one mean."""
    if group == "all":
        return np.asarray(sums.sum() / max(float(cells.sum()), 1.0))
    means: NDArray[np.float64] = np.divide(sums, cells, out=np.ones(len(sums)), where=cells > 0)
    return means[None, :] if group == "item" else means[:, None]


@dataclass(frozen=True)
class UserSums:
    """Base class of expectations that may come without the users' sums."""

    sums: Sums | None

    @property
    def user_sums(self) -> Sums:
        """The sums of Eq. (update_w)."""
        if self.sums is None:
            raise ValueError("the users' sums were not asked for: expect(..., sum_users=True) makes them")
        return self.sums


class OnHost:
    """Base class of the backends whose factors are NumPy arrays."""

    def quotient(self, factor: Factor, sums: Sums) -> Point:
        """Return allocated / exposed, which is the old value times the ratio of sums that the paper prints."""
        # where nothing is exposed no value changes the likelihood, and the old one stays; an update that is cut short
        # raises it, too
        value, exposed = factor.mean, np.broadcast_to(sums.exposed, factor.mean.shape)
        with np.errstate(over="ignore"):
            quotient = np.divide(sums.allocated, exposed, out=value.copy(), where=exposed > 0)
        return Point(np.minimum(quotient, largest(value.dtype), dtype=value.dtype))

    def parameters(self, factor: Factor) -> tuple[Array, ...]:
        """Return the parameters of a factor."""
        return factor.parameters

    def extrapolate(self: Any, factor: Factor, here: tuple[Any, ...], past: tuple[Any, ...], step: float) -> Factor:
        """Return a factor of this kind with the parameters here · (here/past)^step, none of them 0 or too large."""
        found = [_extrapolated(a, np.asarray(b), step) for a, b in zip(here, past, strict=True)]
        if not isinstance(factor, Gamma):
            return Point(*found)
        shape, exposed = found
        rate = exposed + np.asarray(factor.prior_rate, exposed.dtype)
        sums = Sums(np.minimum(shape, rate * largest(shape.dtype)), exposed)
        posterior: Gamma = self.conditional(Prior(0.0, factor.prior_rate), sums)
        return posterior

    def cluster(self, items: Factor, n_clusters: int, rng: np.random.RandomState) -> Ties:
        """Tie items that are alike."""
        return tie_items(items.mean, n_clusters, rng)


def _extrapolated(here: Array, past: Array, step: float) -> Array:
    found, least, most = np.empty_like(here), np.finfo(here.dtype).tiny, largest(here.dtype)
    rows = max(1, EXTRAPOLATED // here.shape[1])
    for start in range(0, len(here), rows):  # by blocks that stay in the cache
        part = slice(start, start + rows)
        now = np.maximum(here[part], least)
        with np.errstate(over="ignore", divide="ignore"):
            change = np.log(now / np.maximum(past[part], least))
        change *= here.dtype.type(step)
        np.minimum(now * np.exp(np.clip(change, -LONGEST_STEP, LONGEST_STEP, out=change)), most, out=found[part])
    return found


# products per sweep (non-zeros × K, or cells × K for exact exposures) from which copying to a GPU and back pays
PAYS_ON_A_GPU = 5e7
# products from which starting a GPU pays for folding in or ranking once: about a second of work for two cores
PAYS_ALONE = 5e10
FEW_ROWS = 16  # fewer are folded in and ranked by the CPU before a device has the items
# those of NVIDIA, of Windows' Linux subsystem and of AMD, on Linux, where alone there is Triton
GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def make_backend(name: str, n_threads: int | None = None, work: float = 0.0) -> Backend:
    """Return the backend of that name; "auto" is the fastest one here for `work` products per sweep.

    Without a GPU "gpu" runs on the CPU and warns; "gpu-bf16" has the fastest exact pass, with half the digits.
    """
    if name in ("gpu", "gpu-bf16"):
        if find_spec("torch") is None:
            raise ModuleNotFoundError(f"backend='gpu' needs PyTorch, which is not installed; {how_to_install('gpu')}")
        if _has_gpu():
            return _gpu(name)
        warnings.warn(
            "backend='gpu' finds no GPU that PyTorch and Triton can use, so PyTorch computes on the CPU, slower than "
            "backend='cpu'",
            stacklevel=3,
        )
        return _gpu(name, "cpu")
    from nbmf.backends.cpu.passes import Cpu  # noqa: PLC0415 (numba is slow to import)
    from nbmf.backends.reference import Reference  # noqa: PLC0415

    if name == "auto" and work >= PAYS_ON_A_GPU and _has_gpu():
        return _gpu(name)
    if name in ("auto", "cpu"):
        return Cpu(n_threads)
    if name == "reference":
        return Reference()
    raise ValueError(f"backend is {name!r}; it must be one of {', '.join(map(repr, BACKENDS))}")


def encoder_of(backend: Any) -> Any:
    """Return the passes of an encoder (see encoder.py) on the same machine as a backend's own."""
    if not hasattr(backend, "encoder"):
        raise ValueError(f"{type(backend).__name__} has no passes for NBFISM; fit it on one machine, without `backend`")
    return backend.encoder


def find_device(name: str, work: float, n_rows: int) -> Any:
    """Return the GPU that should fold in or rank n_rows rows, or None if the CPU should."""
    asked = name in ("gpu", "gpu-bf16") or (name == "auto" and work >= PAYS_ALONE)
    return _gpu(name) if asked and n_rows >= FEW_ROWS and _has_gpu() else None


def _has_gpu() -> bool:
    # importing PyTorch and Triton takes a second or two and 200 MB, so they are asked only where there is a device file
    if find_spec("torch") is None or find_spec("triton") is None or not any(map(os.path.exists, GPU_DEVICES)):
        return False
    import torch  # noqa: PLC0415

    return bool(torch.cuda.is_available())


def _gpu(name: str, device: str | None = None) -> "Gpu":
    from nbmf.backends.gpu.device import Gpu  # noqa: PLC0415 (torch is slow to import)

    return Gpu(device, "bf16" if name == "gpu-bf16" else "float32")
