"""Fits that grow: new users and items, more counts and refreshed factors, without fitting again.

Every function returns the next fit and leaves the given one as it is.
"""

from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends import make_backend
from nbmf.backends.counts import Counts
from nbmf.data.ids import NUMBERS, align
from nbmf.data.interactions import Ids, Interactions, canonical, formed, text_labels
from nbmf.estimators.fit import AverageFit, FactorFit, NewRows
from nbmf.estimators.fold_in import Resources, fold_in
from nbmf.inference.run import Algorithm, Until, observe, run, total_log_base
from nbmf.model.factors import Array, Factor, Point
from nbmf.model.ties import Ties


def of_each(grow: Callable[[FactorFit], FactorFit], fit: FactorFit) -> FactorFit:
    """Grow a fit, or every member of an average."""
    return AverageFit.of([grow(member) for member in fit.members]) if isinstance(fit, AverageFit) else grow(fit)


def add_users(fit: FactorFit, new: NewRows, resources: Resources) -> FactorFit:
    """Append users, folded in with the items as they are."""
    _check_new(fit.user_lookup.find(new.ids)[1], new.ids, "user")
    return of_each(lambda fit: _with_users(fit, new.ids, new.counts, fit.factors_of(new, resources)), fit)


def next_users(fit: FactorFit, counts: sp.csr_array) -> NewRows:
    """Number rows of counts as the next users of a fit whose ids are numbers."""
    return NewRows(_next_ids(fit.users, counts.shape[0], "users"), counts)


def add_items(fit: FactorFit, data: Any, resources: Resources) -> FactorFit:
    """Append items, folded in with the users as they are."""
    whole = new_items(fit, data)
    matrix = align(whole, users=fit.user_lookup)
    by_item = canonical(sp.csr_array(matrix.T))

    def grow(fit: FactorFit) -> FactorFit:
        return _with_items(fit, whole.items, whole.item_names, matrix, fold_in(by_item, fit.fixed_users, resources))

    return of_each(grow, fit)


def new_items(fit: FactorFit, data: Any) -> Interactions:
    """Return counts of new items by users of the fit; rows and columns without ids get theirs."""
    whole = data if isinstance(data, Interactions) else Interactions.from_matrix(data)
    items = whole.items
    rows_named, columns_named = (
        isinstance(data, Interactions) or (text_labels(data, axis) is not None and known.dtype.kind not in NUMBERS)
        for axis, known in (("index", fit.users), ("columns", fit.items))
    )
    if not rows_named:
        if whole.n_users != len(fit.users):
            raise ValueError(f"{whole.n_users} rows for {len(fit.users)} users; give new items a row per user")
        whole = replace(whole, users=fit.users)
    if not columns_named:
        items = _next_ids(fit.items, whole.n_items, "items")
    _check_new(fit.item_lookup.find(items)[1], items, "item")
    return replace(whole, items=items)


def add_counts(fit: FactorFit, data: Interactions, resources: Resources) -> FactorFit:
    """Add counts of known and new users and items, and fold in everybody they concern."""
    return of_each(lambda fit: _with_counts(fit, data, resources), fit)


def _with_counts(fit: FactorFit, data: Interactions, resources: Resources) -> FactorFit:
    """Add data to one fit.

    New users are folded in with the known items, then new items with all users, then users with all items: so users and
    items that are only new to each other find each other, too.
    """
    n_users, n_items = fit.counts.shape
    row_known, column_known = fit.user_lookup.find(data.users)[1], fit.item_lookup.find(data.items)[1]
    added = align(data, fit.user_lookup, fit.item_lookup, unknown="append")
    check_known(fit, added)
    new_rows = sp.csr_array(added[n_users:])
    base = replace(fit, counts=added_up(fit.counts, sp.csr_array(added[:n_users, :n_items])))
    if new_rows.shape[0]:
        taken = canonical(sp.csr_array(new_rows[:, :n_items]))
        users = fold_in(taken, fit.fixed_items, resources)
        if (
            not users.is_posterior and added.shape[1] > n_items
        ):  # a point without counts is 0 and could give a new item none
            empty = np.diff(taken.indptr) == 0
            users = Point(np.where(empty[:, None], fit.typical_user(), users.mean))
        base = _with_users(base, data.users[~row_known], taken, users)
    if added.shape[1] > n_items:
        new_columns = canonical(sp.csr_array(added[:, n_items:]))
        names = None if data.item_names is None else data.item_names[~column_known]
        items = fold_in(canonical(sp.csr_array(new_columns.T)), base.fixed_users, resources)
        base = _with_items(base, data.items[~column_known], names, new_columns, items)
    again = np.diff(added.indptr) > 0
    again[n_users:] = added.shape[1] > n_items  # without new items, new users are done
    return _folded_again(base, np.flatnonzero(again), resources)


def check_known(fit: FactorFit, added: sp.csr_array) -> None:
    """Refuse counts in cells that were left out of the likelihood."""
    n_users, n_items = fit.counts.shape
    if fit.unknown is not None and (n_hidden := (fit.unknown * (added[:n_users, :n_items] != 0)).nnz):
        raise ValueError(f"{n_hidden} of these counts are in cells that the fit treats as unknown; fit again instead")


def _folded_again(fit: FactorFit, rows: NDArray[np.intp], resources: Resources) -> FactorFit:
    """Fold some fitted users in again, from where they are."""
    if not len(rows):
        return fit
    start = fit.user_posterior.mean[rows] if fit.user_posterior.is_posterior else None
    counts, unknown = (None if m is None else canonical(sp.csr_array(m[rows])) for m in (fit.counts, fit.unknown))
    again = fold_in(counts, fit.fixed_items_for(rows), resources, start=start, unknown=unknown)
    prior = fit.model.user_prior.with_rows(rows, again)
    users = fit.user_posterior.replace_rows(rows, again)
    return replace(fit, user_posterior=users, model=replace(fit.model, user_prior=prior))


def check_refresh(refresh: Any) -> None:
    """Refuse what is no number of sweeps."""
    if not isinstance(refresh, Integral) or refresh < 0:
        raise ValueError(f"refresh is {refresh!r}; it must be a whole number of sweeps from 0")


def refresh(fit: FactorFit, algorithm: Algorithm, sweeps: int, resources: Resources) -> FactorFit:
    """Sweep over all the data from where the factors are; the clusters of tied items stay."""
    return of_each(lambda fit: _swept(fit, algorithm, sweeps, resources), fit)


def _swept(fit: FactorFit, algorithm: Algorithm, sweeps: int, resources: Resources) -> FactorFit:
    users, items = fit.user_posterior, fit.item_posterior
    backend = make_backend(resources.backend, resources.n_threads)
    counts = Counts.of(formed(fit.counts, fit.input), users.mean.dtype, fit.unknown)
    log_base, sum_users = total_log_base(fit.model.likelihood, counts), algorithm.begins_with_users
    state = observe(fit.model, counts, backend, users, items, fit.ties, log_base, sum_users=sum_users)
    done = run(algorithm, state, counts, backend, Until(sweeps, 0.0))
    return replace(
        fit,
        user_posterior=done.state.users.on_host(),
        item_posterior=done.state.items.on_host(),
        model=done.state.model,
        objective=np.array(done.objectives),
        ending=done.ending,
    )


def _check_new(known: NDArray[np.bool_], ids: Ids, what: str) -> None:
    if known.any():
        raise ValueError(
            f"{what} {ids[known].tolist()[0]!r} is in the model already; partial_fit(data) adds to what is known"
        )


def _next_ids(known: Ids, size: int, what: str) -> Ids:
    """Return the numbers after the largest id, if ids are numbers."""
    if known.dtype.kind not in "iu":
        raise ValueError(
            f"the {what} of this model have ids of their own, such as {known.tolist()[0]!r}; name the new ones too: "
            f"nbmf.Interactions.from_matrix(X, users=…, items=…)"
        )
    return np.asarray(np.arange(size) + known.max() + 1)


def joined_ids(known: Ids, new: Ids, what: str) -> Ids:
    """Append ids of the same type."""
    if len(new) and (known.dtype.kind in NUMBERS) != (new.dtype.kind in NUMBERS):
        raise ValueError(
            f"{what}: {known.tolist()[0]!r} and {new.tolist()[0]!r} are of different types; ids are all strings or all "
            "numbers"
        )
    return np.concatenate((known, new)) if len(new) else known


def added_up(first: sp.csr_array, second: sp.csr_array) -> sp.csr_array:
    """Add counts; `canonical` checks that the sums are finite."""
    a, b = first.tocoo(), second.tocoo()
    entries = np.concatenate((a.data, b.data)), (np.concatenate((a.row, b.row)), np.concatenate((a.col, b.col)))
    return canonical(sp.csr_array(sp.coo_array(entries, shape=first.shape)))


def _with_users(fit: FactorFit, ids: Ids, counts: sp.csr_array, new: Factor) -> FactorFit:
    """Append users."""
    model = fit.model
    return replace(
        fit,
        users=joined_ids(fit.users, ids, "users"),
        counts=canonical(sp.csr_array(sp.vstack((fit.counts, counts), format="csr"))),
        user_posterior=fit.user_posterior.append(new),
        unknown=resized(fit.unknown, len(ids), 0),
        model=replace(
            model, likelihood=model.likelihood.extended(len(ids), axis=0), user_prior=model.user_prior.extended(new)
        ),
    )


def _with_items(fit: FactorFit, ids: Ids, names: Ids | None, counts: sp.csr_array, new: Factor) -> FactorFit:
    """Append items."""
    model = fit.model
    return replace(
        fit,
        items=joined_ids(fit.items, ids, "items"),
        item_names=joined_names(fit, ids, names),
        counts=canonical(sp.csr_array(sp.hstack((fit.counts, counts), format="csr"))),
        item_posterior=fit.item_posterior.append(new),
        unknown=resized(fit.unknown, 0, len(ids)),
        ties=None if fit.ties is None else tied_to_nearest(fit.ties, fit.item_posterior.mean, new.mean),
        model=replace(
            model, likelihood=model.likelihood.extended(len(ids), axis=1), item_prior=model.item_prior.extended(new)
        ),
    )


def joined_names(fit: FactorFit, ids: Ids, names: Ids | None) -> Ids | None:
    """Return the names of the items with those of new ones; where either has none, ids are names."""
    if fit.item_names is None and names is None:
        return None
    known = _texts(fit.items) if fit.item_names is None else fit.item_names
    return np.concatenate((known.astype(object), (_texts(ids) if names is None else names).astype(object)))


def resized(matrix: sp.csr_array | None, more_rows: int, more_columns: int) -> sp.csr_array | None:
    """Return a matrix, if any, with more empty rows and columns."""
    if matrix is None:
        return None
    wider = matrix.copy()
    wider.resize((matrix.shape[0] + more_rows, matrix.shape[1] + more_columns))
    return wider


def tied_to_nearest(ties: Ties, known: Array, new: Array) -> Ties:
    """Put each new item into the cluster whose mean is nearest."""
    sizes = np.bincount(ties.labels, minlength=ties.n_clusters)
    there = np.flatnonzero(sizes)
    centres = np.array([known[ties.members[c]].mean(axis=0, dtype=np.float64) for c in there])
    distance = (centres**2).sum(axis=1) - 2 * new.astype(np.float64) @ centres.T
    labels = there[np.argmin(distance, axis=1)].astype(np.int32)
    return Ties(np.concatenate((ties.labels, labels)), ties.n_clusters)


def _texts(ids: Ids) -> Ids:
    return np.array([str(one) for one in ids.tolist()], object)
