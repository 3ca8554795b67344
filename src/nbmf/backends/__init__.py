"""Where the passes over the data are done. `reference` says what they mean; the others are held to it.

A backend knows no algorithm; outside `reference` it stores no users × items and no non-zeros × K array.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nbmf.counts import Counts
from nbmf.factors import Factor, Gamma, Prior
from nbmf.likelihood import Likelihood
from nbmf.ties import Ties

Array = NDArray[np.floating[Any]]


class Sums(NamedTuple):
    """All that the data ever contributes to one side of the factorization.

    allocated : rows × K, Σ ⟨c⟩ over the row's non-zeros: the counts shared out among the components
    exposed : rows × K (or 1 × K where all rows agree), Σ ⟨a⟩ ⟨other side⟩ over all of the row's cells
    """

    allocated: Array
    exposed: Array


class Expectation(Protocol):
    """⟨c⟩ and ⟨a⟩ at given factors (Eqs. update_c, update_a), in whatever form a backend keeps them."""

    @property
    def user_sums(self) -> Sums:
        """The sums over each user's cells, with the items' means."""

    @property
    def log_evidence(self) -> float:
        """Σ over all cells of y ln λ + log_evidence(y, μ), without `Likelihood.log_base`, which no factor enters."""


class Backend(Protocol):
    """The passes an algorithm is made of."""

    def expect(
        self,
        counts: Counts,
        users: Factor,
        items: Factor,
        likelihood: Likelihood,
        ties: Ties | None,
        *,
        sum_users: bool = True,
    ) -> Expectation:
        """Infer allocations and exposures from the factors; `ties=None` gives every cell its own exposure."""

    def sum_by_item(self, counts: Counts, expectation: Any, user_means: Array) -> Sums:
        """Sum what this backend's `expect` found over each item's cells, with the given users' means."""

    def slopes(self, counts: Counts, expectation: Any, group: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ∂/∂α and ∂²/∂α² of the log-evidence at the intensities of an expectation.

        group : sum over "all" cells (a number), those of each "user" (n_users × 1) or of each "item" (1 × n_items)
        """

    def conditional(self, prior: Prior, sums: Sums) -> Gamma:
        """Return Gamma(prior shape + allocated, prior rate + exposed) with its moments: Eqs. (update_w), (update_h)."""


def make_backend(name: str, n_threads: int | None = None) -> Backend:
    """Return the backend of that name; "auto" is the fastest that runs here."""
    from nbmf.backends.cpu import Cpu  # noqa: PLC0415 (numba is slow to import)
    from nbmf.backends.reference import Reference  # noqa: PLC0415

    if name in ("auto", "cpu"):
        return Cpu(n_threads)
    if name == "reference":
        return Reference()
    raise ValueError(f"backend is {name!r}; it must be 'auto', 'cpu' or 'reference'")
