"""The door of the estimators: what scikit-learn's users hand in, checked and made a canonical matrix of counts."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from nbmf.data.interactions import canonical, check_matrix, widened

# y/λ, and products of sixteen shapes in the moments of gammas, must stay numbers
RANGES = {np.dtype(np.float32): (1e-20, 1e29), np.dtype(np.float64): (1e-100, 1e35)}


def take_matrix(estimator: BaseEstimator, X: Any, *, reset: bool) -> sp.csr_array:
    """Return a scipy sparse matrix, array or data frame as a canonical matrix.

    reset : note the columns and their names in the estimator; else they must be those it has noted
    """
    if isinstance(X, str | bytes | PathLike):
        raise TypeError(f"{X!r} is no matrix; nbmf.read_interactions({X!r}) reads files")
    if isinstance(X, Mapping) and not sp.issparse(X):  # one kind of sparse matrix is a dictionary
        raise TypeError("a mapping is no matrix; recommend_for({item: count}) takes one user's counts")
    if {"user", "item"} <= set(map(str, getattr(X, "columns", ()))) <= {"user", "item", "count"}:
        raise ValueError("this data frame lists interactions; nbmf.read_interactions(frame) makes Interactions of it")
    wide = widened(X) if sp.issparse(X) else X  # repeated entries are added up
    checked = validate_data(estimator, wide, accept_sparse="csr", ensure_all_finite=False, reset=reset)
    matrix = sp.csr_array(checked)
    check_matrix(matrix)
    if not (matrix.has_canonical_format and np.all(matrix.data)):
        matrix = canonical(matrix.copy() if sp.issparse(X) else matrix)
    return matrix


def check_range(matrix: sp.csr_array, dtype: Any) -> None:
    """Refuse counts whose products with others leave the range of the factors' numbers."""
    least, most = RANGES[np.dtype(dtype)]
    for count in (matrix.data.max(initial=1), matrix.data.min(initial=1)):
        if not least <= count <= most:
            remedy = "scale the data" if np.dtype(dtype) == np.float64 else "scale the data or use dtype='float64'"
            raise ValueError(f"count {count} is out of the range of {np.dtype(dtype)}; {remedy}")
