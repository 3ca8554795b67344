"""Parts of the users, each small enough for one worker, who reads its counts from the file: `Part`, `cut_users`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from nbmf.backends.counts import Counts
from nbmf.model.likelihood import Likelihood, NegativeBinomial
from nbmf.storage.container import MissingStorageError, Path, StorageError, seal
from nbmf.storage.counts import counts_of_users


@dataclass(frozen=True)
class Part:
    """The counts of users `start` to `stop` of a file, and how a fit wants them.

    seal : checksum in the file's header, which tells whether it is still the same file
    """

    number: int
    path: str
    seal: str | None
    start: int
    stop: int
    dtype: np.dtype[Any]
    binarize: bool
    unknown: sp.csr_array | None = field(repr=False)

    def load(self) -> Counts:
        """Read the counts; on a worker."""
        if not os.path.exists(self.path):
            raise MissingStorageError(
                f"{self.path}: is not there for a worker; put it where every machine sees it under this name (folder=…)"
            )
        if seal(self.path) != self.seal:
            raise StorageError(f"{self.path}: was replaced since the fit began; start the fit anew")
        matrix = counts_of_users(self.path, self.start, self.stop)
        if self.binarize:
            matrix = sp.csr_array((np.ones_like(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape)
        return Counts.of(matrix, self.dtype, self.unknown)

    def law(self, likelihood: Likelihood) -> Likelihood:
        """The law of these users."""
        α = likelihood.concentration
        if not isinstance(α, np.ndarray) or len(α) == 1:
            return likelihood
        return NegativeBinomial(α[self.start : self.stop])

    def __str__(self) -> str:
        """Name the part for a person."""
        return f"part {self.number} (users {self.start:,} to {self.stop:,} of {self.path})"


def cut_users(
    path: Path,
    matrix: sp.csr_array,
    n_parts: int,
    dtype: np.dtype[Any],
    binarize: bool = False,
    unknown: sp.csr_array | None = None,
) -> list[Part]:
    """Cut the users into parts of about equal numbers of counts."""
    n_users = matrix.shape[0]
    upto = matrix.indptr + np.arange(n_users + 1, dtype=np.int64)
    bounds = np.unique(np.searchsorted(upto, np.linspace(0, upto[-1], min(n_parts, n_users) + 1))).tolist()
    name = os.path.abspath(os.fsdecode(path))
    mark = seal(name)
    return [
        Part(n, name, mark, start, stop, dtype, binarize, None if unknown is None else unknown[start:stop])
        for n, (start, stop) in enumerate(pairwise(bounds))
    ]
