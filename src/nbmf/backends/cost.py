"""What a fit will take: its memory in bytes, from the sizes alone, and its seconds, from those of some of the users."""

from dataclasses import dataclass, replace

import numpy as np

from nbmf.backends.counts import BLOCK_ON_DEVICE, BLOCK_USERS

# bytes of Python and the packages of a fit, and what compiling the loops, once after an installation, adds
INTERPRETER, COMPILING = 350_000_000, 100_000_000
NONZEROS_PER_PART = 2_000_000
ON_THE_WAY = 4  # copies of each array on several machines: old, new, sent and received (docs/scale.md)
PARAMETERS_KEPT = 3  # those of two sweeps, and those extrapolated from them
ALWAYS_WORTH = 16  # parts that are worth it however large each one's sums over the items are


@dataclass(frozen=True)
class Sizes:
    """What the cost of a fit depends on."""

    n_users: int
    n_items: int
    nnz: int
    n_components: int
    exposure: str | None = "tied"  # or "exact", or None for Poisson
    n_clusters: int = 64
    dtype: str = "float32"
    accelerate: bool = False  # whether steps are extrapolated from the parameters of earlier sweeps
    n_starts: int | None = None  # of an encoder, whose users are functions of what they have

    @property
    def is_encoder(self) -> bool:
        """Whether users are functions of what they have."""
        return self.n_starts is not None

    @property
    def products(self) -> float:
        """Products per sweep over the non-zeros, or over every cell: what `backend="auto"` decides by."""
        cells = float(self.n_users) * self.n_items if self.exposure == "exact" else float(self.nnz)
        return cells * self.n_components

    def memory(self, backend: str = "cpu") -> dict[str, int]:
        """Return the bytes that a fit holds at its peak, by their purpose; for "gpu", of the device's memory."""
        if self.is_encoder:
            return self._memory_of_encoder()
        size, K = np.dtype(self.dtype).itemsize, self.n_components
        U, I, N = self.n_users, self.n_items, self.nnz  # noqa: E741 (the paper's)
        exposed = self.exposure is not None
        latent = size * N * (1 + exposed) + size * U * K * (1 + exposed)
        latent += size * U * self.n_clusters if self.exposure == "tied" else 0
        held = {"factors before and after": self._factors, "allocations and exposures": latent}
        if self.accelerate:
            held["the sweep before"] = PARAMETERS_KEPT * 2 * size * (U + I) * K
        if backend == "gpu":
            clusters = (4 * U + size * I) * self.n_clusters + N if self.exposure == "tied" else 0
            held["allocations and exposures"] += 2 * size * I * K + clusters
            partials = min(N, I * -(-U // BLOCK_ON_DEVICE)) * (U > BLOCK_ON_DEVICE)
            held |= {"partial sums of items": size * partials * K, "building the transpose": 28 * N}
            return {"counts, both ways": N * (4 + size + 4 + 4) + 8 * (U + I) + 24 * (U + I + N // 128)} | held
        table = {"counts": N * size, "transpose": 8 * N + 4 * -(-U // BLOCK_USERS) * (I + 1)} | held
        return {"Python": INTERPRETER} | table | {"what the allocator keeps": sum(table.values()) // 4}

    def _memory_of_encoder(self) -> dict[str, int]:
        """Return the same for R starts of an encoder side by side."""
        size, K, R = np.dtype(self.dtype).itemsize, self.n_components, int(self.n_starts or 1)
        U, I, N = self.n_users, self.n_items, self.nnz  # noqa: E741 (the paper's)
        exposed, C = self.exposure is not None, I if self.exposure == "exact" else self.n_clusters
        # W and R, each also without its largest term, and shares; what is exposed is computed in double precision
        hidden = R * (size * (4 * U * K + N) + exposed * 8 * (U * C + 2 * N + I * K))
        table = {
            "counts and inputs": 2 * N * size + 8 * N,
            "transpose": 8 * N + 4 * -(-U // BLOCK_USERS) * (I + 1),
            "factors before and after": 6 * R * size * I * (K + 1),  # and those of each start by themselves
            "users, shares and exposures": hidden + exposed * 8 * (6 * U * K + U * C),
            "sums": 6 * size * I * (K + 1) + exposed * 16 * I * K,
        }
        return {"Python": INTERPRETER} | table | {"what the allocator keeps": sum(table.values()) // 4}

    @property
    def parts(self) -> int:
        """Number of parts that any number of machines cut the users into, so that the bits are always the same.

        Each part has sums for all entries of the items' factor, which should not outweigh its counts.

        >>> Sizes(200_000, 60_000, 10_000_000, 50).parts, Sizes(20_000_000, 1_000_000, 10**9, 50).parts
        (5, 40)
        """
        most = max(ALWAYS_WORTH, 2 * self.nnz // max(1, self.n_items * self.n_components))
        return max(2, min(most, -(-self.nnz // NONZEROS_PER_PART)))

    def memory_of_worker(self, n_machines: int, given: int = 0) -> int:
        """Return the bytes that each of several machines holds, which share the parts and the `given` bytes of data."""
        size, K = np.dtype(self.dtype).itemsize, self.n_components
        users, nnz, data, parts = (-(-n // n_machines) for n in (self.n_users, self.nnz, given, self.parts))
        table = replace(self, n_users=users, nnz=nnz).memory()
        arrays = sum(table[name] for name in ("counts", "transpose", "allocations and exposures"))
        # a part has its own copy of the items' means and geometric means, and its sums for them, until all is added up
        arrays += size * K * (4 * users + (2 + 4 * parts) * self.n_items)
        return INTERPRETER + data + ON_THE_WAY * arrays

    def memory_of_driver(self) -> int:
        """Return the bytes of the process that updates all factors for several machines, without the data."""
        size = np.dtype(self.dtype).itemsize
        sums = 2 * size * (self.n_users + self.n_items) * self.n_components  # as they come in, and put together
        return INTERPRETER + ON_THE_WAY * (size * self.nnz + self._factors + 2 * sums)

    def machines(self, memory: int, given: int = 0) -> int | None:
        """Return the number of machines of this memory that a fit needs; None if even one part is too large.

        >>> Sizes(10_000_000, 100_000, 500_000_000, 50).machines(16 * 10**9)
        11
        """
        if given + sum(self.memory().values()) <= memory:
            return 1
        if self.is_encoder:  # which fits on one machine only
            return None
        return next((n for n in range(2, self.parts + 1) if self.memory_of_worker(n, given) <= memory), None)

    @property
    def moved(self) -> int:
        """Bytes that pass through the driver per sweep on several machines."""
        size, K = np.dtype(self.dtype).itemsize, self.n_components
        # users' means and geometric means go to the workers, both sums come back and the new means go; items' means and
        # geometric means go once, to be passed on, and both sums come back, added up in double precision
        return K * (5 * size * self.n_users + (2 * size + 16) * self.n_items)

    @property
    def _factors(self) -> int:
        """Bytes of both factors before and after a sweep: means, geometric means, and rates if any."""
        rates = self.exposure is not None
        return 2 * np.dtype(self.dtype).itemsize * (2 + rates) * (self.n_users + self.n_items) * self.n_components


def continued(few: tuple[int, float], more: tuple[int, float], n_users: int) -> float:
    """Return the seconds for n_users, on the line through (users, seconds) of few and of more users.

    A pass does the same work for each user, and some for the items. Neither takes less than no time: a clock that says
    so was disturbed, and the slope is bounded.

    >>> continued((10, 3.0), (20, 5.0), 100)
    21.0
    """
    (n_few, of_few), (n_more, of_more) = few, more
    slope = (of_more - of_few) / (n_more - n_few) if n_more > n_few else of_more / n_more
    return of_more + min(max(slope, 0.0), of_more / n_more) * (n_users - n_more)
