"""What a fit will take, from the sizes alone: memory in bytes, and seconds a sweep once one sweep was timed.

For U users, I items, N non-zeros, K components and C clusters a sweep costs, up to a factor of the machine,

    tied: N K + c₁ U C K + c₂ (U + I) K     exact: N K + c₃ U I K + c₂ (U + I) K     Poisson: N K / 2 + c₂ (U + I) K

and a fit holds, beside the data it is given, the arrays that `memory` lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nbmf.counts import BLOCK_USERS

# bytes of Python and the packages of a fit: 330 MB, and 430 while the loops are compiled, once after an installation
INTERPRETER = 450_000_000
# costs relative to one product of a walk over the non-zeros, as benchmarks/scale.py finds them
CLUSTER, ROW, CELL = 0.11, 4.0, 0.075


@dataclass(frozen=True)
class Sizes:
    """What the cost of a fit depends on.

    exposure : "tied", "exact", or None for Poisson, which has none
    """

    n_users: int
    n_items: int
    nnz: int
    n_components: int
    exposure: str | None = "tied"
    n_clusters: int = 64
    dtype: str = "float32"

    @property
    def cost(self) -> float:
        """What a sweep costs, in products of a walk over the non-zeros.

        >>> twice = Sizes(2000, 100, 40_000, 8).cost / Sizes(1000, 100, 20_000, 8).cost
        >>> 1.9 < twice <= 2
        True
        """
        K, rows = self.n_components, self.n_users + self.n_items
        walks = self.nnz * K * (0.5 if self.exposure is None else 1.0)
        if self.exposure == "tied":
            walks += CLUSTER * self.n_users * self.n_clusters * K
        elif self.exposure == "exact":
            walks += CELL * self.n_users * self.n_items * K
        return walks + ROW * rows * K

    def memory(self, backend: str = "cpu") -> dict[str, int]:
        """Return the bytes that a fit holds at its peak, by what they are for.

        backend : "cpu", or "gpu" for the memory of the device
        """
        size, K = np.dtype(self.dtype).itemsize, self.n_components
        U, I, N = self.n_users, self.n_items, self.nnz  # noqa: E741 (the paper's)
        tied, law = self.exposure == "tied", self.exposure is not None
        exposed = 1 if law else 0
        latent = size * N * (1 + law) + size * U * self.n_clusters * tied + size * U * K * (1 + exposed)
        if backend == "gpu":
            runs = 24 * (U + I + N // 128)
            table = {"counts, both ways": N * (4 + size + 4 + 4) + 8 * (U + I) + runs}
            table["factors before and after"] = 2 * size * (2 + exposed) * (U + I) * K
            table["allocations and exposures"] = latent + 2 * size * I * K
            return table | {"building the transpose": 28 * N}
        n_blocks = -(-U // BLOCK_USERS)
        table = {"Python": INTERPRETER, "counts": N * size, "transpose": 8 * N + 4 * n_blocks * (I + 1)}
        table["factors before and after"] = 2 * size * (2 + exposed) * (U + I) * K
        table["allocations and exposures"] = latent
        return table | {"what the allocator keeps": (sum(table.values()) - INTERPRETER) // 4}

    def on_workers(self, n_machines: int, bandwidth: float) -> tuple[int, float]:
        """Return the memory of each of several machines, and the seconds that a sweep spends on the network.

        Users' factors go to the workers and their sums come back; items' factors go to every worker and their sums come
        back from each. All of it passes through the driver, with so many bytes a second.
        """
        size, K = np.dtype(self.dtype).itemsize, self.n_components
        share = Sizes(-(-self.n_users // n_machines), self.n_items, -(-self.nnz // n_machines), *_rest(self))
        moved = size * K * (5 * self.n_users + 4 * self.n_items * n_machines)
        return sum(share.memory().values()), moved / bandwidth


def _rest(sizes: Sizes) -> tuple[Any, ...]:
    return sizes.n_components, sizes.exposure, sizes.n_clusters, sizes.dtype
