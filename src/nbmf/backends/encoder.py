"""The passes of an encoder, in which users are functions of what they have: what they mean, with dense arrays.

    μ_ui = b_i + Σ_{j≠i} x_uj B_ji,   B = V Hᵀ,   t_ui ~ p(t | μ_ui)

x and t are forms of the counts. The diagonal of B is left out: a count never explains itself. B has an exponential
prior of rate ρ, `EncoderCounts.penalty`. With allocations and exposures at the old parameters, G = t/μ and
E = exposure(t, μ), the sums of both sides are

    V_jk: allocated = V_jk Σ_{i≠j} (XᵀG)_ji H_ik,   exposed = Σ_{i≠j} ((XᵀE)_ji + ρ) H_ik
    H_ik: allocated = H_ik Σ_{j≠i} (XᵀG)_ji V_jk,   exposed = Σ_{j≠i} ((XᵀE)_ji + ρ) V_jk, V being the new one
    b_i:  allocated = b_i Σ_u G_ui,                 exposed = Σ_u E_ui

Several starts stand side by side: V is items × RK, and the other side is items × R(K+1), [H | b] of each of R starts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends import LEAST_INTENSITY, Array, Given, OnHost, Sums
from nbmf.backends.counts import Counts
from nbmf.backends.reference import pool_unseen
from nbmf.model.factors import Factor, Point

OWN = 16  # units in the last place of a sum, below which what is left without an item's own part is rounding
BLOCK_ROWS = 1 << 14  # rows whose differences are made in double precision at a time

Form = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True)
class EncoderCounts(Counts):
    """The targets t as `by_user`, and for each stored cell its input x, which is 0 in an unknown cell."""

    inputs: Array
    penalty: float

    @classmethod
    def encoded(
        cls, matrix: sp.csr_array, forms: tuple[Form, Form], penalty: float, dtype: Any, unknown: sp.csr_array | None
    ) -> Self:
        """Take a canonical matrix of counts, and the functions that make inputs and targets of them."""
        counts = Counts.of(matrix.astype(np.float64), np.dtype(np.float64), unknown).by_user
        known = counts.data > 0
        inputs, targets = np.zeros(counts.nnz, dtype), counts.data.astype(dtype)
        inputs[known], targets[known] = (form(counts.data[known]) for form in forms)
        by_user = sp.csr_array((targets, counts.indices, counts.indptr), shape=counts.shape)
        return cls(by_user, inputs, float(penalty))

    @cached_property
    def x(self) -> sp.csr_array:
        """The inputs, users × items."""
        return sp.csr_array((self.inputs, self.by_user.indices, self.by_user.indptr), shape=self.by_user.shape)

    @cached_property
    def met(self) -> NDArray[np.float64]:
        """Σ_u x_uj + ρ of each item: the prior is as if ρ more of its input had been met with nothing taken."""
        totals = np.bincount(self.by_user.indices, self.inputs.astype(np.float64), self.by_user.shape[1])
        return np.asarray(totals + self.penalty)


class Start(NamedTuple):
    """One start: V and H, items × K, and b."""

    inputs: Array
    outputs: Array
    intercept: Array

    @property
    def side(self) -> Array:
        """[H | b], items × (K+1)."""
        return np.column_stack((self.outputs, self.intercept))

    @property
    def factors(self) -> tuple[Point, Point]:
        """V and [H | b]."""
        return Point(self.inputs), Point(self.side)


def starts_of(inputs: Factor, outputs: Factor) -> list[Start]:
    """Return the starts that stand side by side."""
    (V,), (H,) = inputs.parameters, outputs.parameters
    n_starts = H.shape[1] - V.shape[1]
    pairs = zip(np.split(V, n_starts, axis=1), np.split(H, n_starts, axis=1), strict=True)
    return [Start(*map(np.ascontiguousarray, (v, h[:, :-1], h[:, -1]))) for v, h in pairs]


class Inferred(Protocol):
    """⟨c⟩ and ⟨a⟩ of one start, in whatever form a backend keeps them."""

    @property
    def start(self) -> Start:
        """The start that they were inferred from."""


class EncoderExpectation(Protocol):
    """⟨c⟩ and ⟨a⟩ of all starts."""

    @property
    def starts(self) -> list[Any]:
        """What was inferred from each start."""

    @property
    def log_evidence(self) -> float:
        """The mean over the starts of Σ ln p(t | μ), without `Likelihood.log_base`, less ρ ΣB."""


class EncoderBackend(Protocol):
    """The passes of an encoder; `quotient` and `cluster` are those of every backend."""

    def expect(self, counts: EncoderCounts, given: Given, *, sum_users: bool = True) -> EncoderExpectation:
        """Infer allocations and exposures; `given.users` is an `Encoding`."""

    def sum_inputs(self, counts: EncoderCounts, inferred: Any) -> tuple[Sums, Array]:
        """Return both sums of V, and what is allocated to [H | b]."""

    def expose_outputs(self, counts: EncoderCounts, inferred: Any, inputs: Factor) -> Array:
        """Return what [H | b] is exposed to, with a V that may be newer."""


@dataclass(frozen=True)
class DenseInferred:
    """Of one start: (XᵀG) and (XᵀE) + ρ without their diagonals, items × items, and Σ_u G, Σ_u E of each item."""

    start: Start
    share: Array
    exposure: Array
    share_totals: Array
    exposure_totals: Array
    log_evidence: float


@dataclass(frozen=True)
class DenseEncoderExpectation:
    """Everything that was inferred, with dense arrays."""

    starts: list[DenseInferred]

    @property
    def log_evidence(self) -> float:
        """The mean over the starts."""
        return float(np.mean([start.log_evidence for start in self.starts]))


@dataclass(frozen=True)
class ReferenceEncoder(OnHost):
    """Dense NumPy, in double precision; for small data and for tests."""

    def expect(self, counts: EncoderCounts, given: Given, *, sum_users: bool = True) -> DenseEncoderExpectation:
        """Eqs. (update_c) and (update_a), with μ = b + X B."""
        return DenseEncoderExpectation([_infer(counts, given, one) for one in starts_of(given.users, given.items)])

    def sum_inputs(self, counts: EncoderCounts, inferred: DenseInferred) -> tuple[Sums, Array]:
        """Return both sums of V, and what is allocated to [H | b]."""
        V, H, b = inferred.start
        sums = Sums((V * (inferred.share @ H)).astype(V.dtype), (inferred.exposure @ H).astype(V.dtype))
        return sums, np.column_stack((H * (inferred.share.T @ V), b * inferred.share_totals)).astype(V.dtype)

    def expose_outputs(self, counts: EncoderCounts, inferred: DenseInferred, inputs: Factor) -> Array:
        """Return what [H | b] is exposed to."""
        exposed = inferred.exposure.T @ inputs.mean
        return np.column_stack((exposed, inferred.exposure_totals)).astype(inputs.mean.dtype)


def _infer(counts: EncoderCounts, given: Given, one: Start) -> DenseInferred:
    likelihood, (V, H, b) = given.likelihood, (values.astype(np.float64) for values in one)
    x, t = counts.x.toarray().astype(np.float64), counts.by_user.toarray().astype(np.float64)
    unknown = t < 0
    t[unknown] = 0
    B = _without_diagonal(V @ H.T)
    μ = np.maximum(x @ B + b, LEAST_INTENSITY[one.inputs.dtype])
    pooled = μ if given.ties is None else pool_unseen(μ, (t == 0) & ~unknown, given.ties)
    log_evidence = likelihood.log_events(t, μ) + likelihood.log_evidence(t, pooled) - likelihood.log_base(t)
    share, exposure = np.divide(t, μ, out=np.zeros_like(t), where=t > 0), likelihood.exposure(t, pooled)
    log_evidence[unknown], exposure[unknown] = 0, 0
    crossed = (_without_diagonal(x.T @ share), _without_diagonal(x.T @ exposure + counts.penalty))
    total = float(log_evidence.sum()) - counts.penalty * float(B.sum())
    return DenseInferred(one, *crossed, share.sum(axis=0), exposure.sum(axis=0), total)


def _without_diagonal(square: Array) -> Array:
    np.fill_diagonal(square, 0)
    return square


def evidence_of_all(counts: EncoderCounts, one: Start) -> float:
    """Return −Σ_ui μ_ui − ρ ΣB over every cell, the part of a log-likelihood that its zeros bring."""
    total = sum_weights(one, counts.met) + counts.by_user.shape[0] * one.intercept.sum(dtype=np.float64)
    return -float(total)


def sum_weights(one: Start, weights: NDArray[np.float64]) -> float:
    """Return Σ_j weight_j Σ_{i≠j} B_ji."""
    V, H = one.inputs, one.outputs
    whole, total = Whole.of(H, np.ones(len(H))), 0.0
    for rows in _blocks(len(V)):
        others = whole.total - H[rows]
        inside = (whole.largest >= rows.start) & (whole.largest < rows.start + len(others))
        others[whole.largest[inside] - rows.start, inside] = whole.rest[inside]
        total += float(weights[rows] @ np.einsum("jk,jk->j", V[rows], others))
    return total


class Whole(NamedTuple):
    """A weighted sum of rows, column by column: its largest row, and the sum of the others.

    Where one row is most of a sum, taking it off would leave nothing but rounding.
    """

    total: NDArray[np.float64]
    largest: NDArray[np.intp]
    rest: NDArray[np.float64]

    @classmethod
    def of(cls, values: Array, weights: NDArray[np.float64]) -> "Whole":
        """Sum up in double precision."""
        columns, (most, rest) = np.arange(values.shape[1]), np.zeros((2, values.shape[1]))
        total, largest = np.zeros(values.shape[1]), np.zeros(values.shape[1], np.intp)
        for rows in _blocks(len(values)):
            parts = weights[rows, None] * values[rows]
            at, sums = parts.argmax(axis=0), parts.sum(axis=0)
            found = parts[at, columns]
            parts[at, columns] = 0
            others, is_larger = parts.sum(axis=0), found > most
            rest += np.where(is_larger, others + most, sums)
            largest[is_larger], most = rows.start + at[is_larger], np.maximum(found, most)
            total += sums
        return cls(total, largest, rest)


def _blocks(n_rows: int) -> list[slice]:
    return [slice(top, top + BLOCK_ROWS) for top in range(0, n_rows, BLOCK_ROWS)]
