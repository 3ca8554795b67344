"""The door of the estimators: input in any of the accepted forms, checked and turned into a canonical matrix."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from nbmf.data.ids import Lookup, align
from nbmf.data.interactions import Interactions, canonical, check_counts, check_matrix, widened


def take_matrix(estimator: BaseEstimator, X: Any, *, reset: bool) -> sp.csr_array:
    """Return a scipy sparse matrix, array or data frame as a canonical matrix.

    Parameters
    ----------
    reset : bool
        Whether to record the columns and their names in the estimator. Otherwise they must match those on record.
    """
    if isinstance(X, str | bytes | PathLike):
        raise TypeError(f"{X!r} is not a matrix; nbmf.read_interactions({X!r}) reads files")
    if isinstance(X, Mapping) and not sp.issparse(X):  # one kind of sparse matrix is a dictionary
        raise TypeError("a mapping is not a matrix; recommend_for({item: count}) takes one user's counts")
    if {"user", "item"} <= set(map(str, getattr(X, "columns", ()))) <= {"user", "item", "count"}:
        raise ValueError("this data frame lists interactions; nbmf.read_interactions(frame) turns it into Interactions")
    wide = widened(X) if sp.issparse(X) else X  # repeated entries are added up
    checked = validate_data(estimator, wide, accept_sparse="csr", ensure_all_finite=False, reset=reset)
    matrix = sp.csr_array(checked)
    check_matrix(matrix)
    if not (matrix.has_canonical_format and np.all(matrix.data)):
        matrix = canonical(matrix.copy() if sp.issparse(X) else matrix)
    return matrix


def as_row(counts: Mapping[Any, Any], items: Lookup) -> Interactions:
    """Return one user's counts, a mapping from item ids, as Interactions."""
    ids, values = items.as_ids(list(counts)), widened(np.array(list(counts.values()) or np.empty(0)))
    check_counts(values, lambda place: f"item {list(counts)[place]!r}")
    return Interactions(np.arange(1), ids, sp.csr_array(values[None, :]))


def align_items(data: Interactions, items: Lookup, unknown_items: str) -> sp.csr_array:
    """Put counts into the columns of known items.

    Parameters
    ----------
    unknown_items : str
        "error" to refuse items that are not known, "ignore" to leave them out with a warning.
    """
    try:
        matrix = align(data, items=items, unknown=unknown_items)
    except KeyError as error:
        raise KeyError(f"{error.args[0]}; unknown_items='ignore' leaves such items out") from None
    if matrix.nnz < data.nnz:
        lost = np.setdiff1d(data.matrix.indices, np.flatnonzero(items.find(data.items)[1]))
        warnings.warn(
            f"{len(lost)} items were not in the data of the fit, {data.items[lost[:1]].tolist()[0]!r} among them: "
            f"{data.nnz - matrix.nnz} of {data.nnz} counts are left out",
            stacklevel=4,
        )
    return matrix
