"""Models that grow: new users and items taken in, counts added, factors refreshed, without another fit."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends import make_backend
from nbmf.backends.counts import Counts
from nbmf.data.ids import NUMBERS
from nbmf.data.interactions import Ids, Interactions, canonical
from nbmf.estimators.fit import Fitted, typical
from nbmf.estimators.fold_in import put, stack
from nbmf.estimators.newcomers import Newcomers, typical_user
from nbmf.inference.run import Algorithm, run
from nbmf.inference.state import observe, total_log_base
from nbmf.model import Model
from nbmf.model.factors import Factor, Gamma, Point, Prior
from nbmf.model.likelihood import Likelihood, NegativeBinomial
from nbmf.model.ties import Ties

Array = NDArray[np.floating[Any]]


class Growing(Newcomers):
    """The part of an estimator that takes new data into a fitted model."""

    def _become(self, fitted: Fitted) -> None:
        raise TypeError(f"{type(self).__name__} cannot take over what a fit has found")

    def _algorithm(self) -> Algorithm:
        raise TypeError(f"{type(self).__name__} names no algorithm")

    def fit(self, X: Any, y: None = None) -> Self:
        """Start anew."""
        raise TypeError(f"{type(self).__name__} cannot be fitted")

    def add_users(self, data: Any, *, unknown_items: str = "error") -> Self:
        """Take new users into the model, with factors as `transform` gives them; nothing else changes.

        Parameters
        ----------
        data, unknown_items : as for `transform`. The users of Interactions must be new; the rows of a matrix get the
            numbers after the largest user id

        Examples
        --------
        >>> import nbmf
        >>> model = nbmf.NBMF(2, random_state=0).fit([[4, 0, 1], [0, 3, 0], [5, 1, 2]])
        >>> model.add_users([[3, 0, 0]]).recommend(3, n=1).items
        array([[2]])
        """
        found = self._found
        ids, matrix = self._rows(data, unknown_items)
        if not isinstance(data, Interactions):
            ids = _next_ids(found.users, len(ids), "users")
        _check_new(found.user_lookup.find(ids)[1], ids, "user")
        self._become(_with_users(found, ids, matrix, self._fold(matrix, found.held_items)))
        return self

    def add_items(self, data: Any) -> Self:
        """Take new items into the model, with factors from the users' as they are; nothing else changes.

        The mirror of `add_users`. Exposures of a new item are exact, one for each user; if those of the model are tied,
        the item joins the cluster whose mean is nearest to its own.

        Parameters
        ----------
        data : Interactions of new items and users of the fit; or a matrix or array with a row for each user of the fit
            and a column for each new item, which get the numbers after the largest item id

        Examples
        --------
        >>> import nbmf
        >>> model = nbmf.NBMF(2, random_state=0).fit([[4, 0, 1], [0, 3, 0], [5, 1, 2]])
        >>> model.add_items([[0], [2], [0]]).items_
        array([0, 1, 2, 3])
        """
        found = self._found
        whole = data if isinstance(data, Interactions) else Interactions.from_matrix(data)
        items = whole.items
        if not isinstance(data, Interactions):
            if whole.n_users != len(found.users):
                raise ValueError(f"{whole.n_users} rows for {len(found.users)} users; give new items a row for each")
            whole = replace(whole, users=found.users)
            items = _next_ids(found.items, whole.n_items, "items")
        _check_new(found.item_lookup.find(items)[1], items, "item")
        rows = found.user_lookup.positions(whole.users)
        matrix = _placed(whole.matrix, rows, np.arange(len(items)), (len(found.users), len(items)))
        new = self._fold(canonical(sp.csr_array(matrix.T)), found.held_users)
        self._become(_with_items(found, items, whole.item_names, matrix, new))
        return self

    def partial_fit(self, X: Any, y: None = None, *, refresh: int = 0) -> Self:
        """Go on with more data: users and items may appear, and counts of known pairs are added up.

        Users who have counts in the data get factors for all they took, new items get theirs, and all other factors
        stay; with `refresh`, everybody's are then refreshed by sweeps from where they are. On an estimator that is not
        fitted this is `fit`.

        Parameters
        ----------
        X : Interactions; or a scipy sparse matrix, array or data frame with a column for each item of the fit, whose
            rows are new users and get the numbers after the largest user id
        y : ignored
        refresh : number of sweeps over all the data, old and new. With sweeps, `objective_` and `n_iter_` are theirs

        Examples
        --------
        >>> import nbmf
        >>> data = nbmf.Interactions.from_arrays(["ann", "bob", "bob"], ["jazz", "jazz", "folk"])
        >>> model = nbmf.NBMF(2, random_state=0).fit(data)
        >>> more = nbmf.Interactions.from_arrays(["ann", "cy"], ["jazz", "soul"])
        >>> model.partial_fit(more, refresh=5).recommend("cy", n=1).items
        array([['jazz']], dtype='<U4')
        >>> model.exposures("ann").count
        array([2])
        """
        if not hasattr(self, "user_factors_"):
            return self.fit(X, y)
        if not isinstance(refresh, Integral) or refresh < 0:
            raise ValueError(f"refresh is {refresh!r}; it must be a whole number of sweeps from 0")
        found = self._found
        if isinstance(X, Interactions):
            grown = self._joined_by(found, X)
        else:
            _, matrix = self._rows(X)
            ids = _next_ids(found.users, matrix.shape[0], "users")
            grown = _with_users(found, ids, matrix, self._fold(matrix, found.held_items))
        self._become(self._refreshed(grown, int(refresh)) if refresh else grown)
        return self

    def _joined_by(self, found: Fitted, data: Interactions) -> Fitted:
        """Add data of known and new users and items.

        New users are folded in with the known items, then new items with all users, then users with all items: so users
        and items that are only new to each other find each other, too.
        """
        n_users, n_items = found.counts.shape
        rows, row_known = found.user_lookup.find(data.users)
        columns, column_known = found.item_lookup.find(data.items)
        rows, columns = _numbered(rows, row_known, n_users), _numbered(columns, column_known, n_items)
        shape = n_users + int((~row_known).sum()), n_items + int((~column_known).sum())
        added = _placed(data.matrix, rows, columns, shape)
        if found.unknown is not None and (n_hidden := (found.unknown * (added[:n_users, :n_items] != 0)).nnz):
            raise ValueError(
                f"{n_hidden} of these counts are of cells that the fit was told are unknown; fit anew instead"
            )
        new_rows = sp.csr_array(added[n_users:])
        base = replace(found, counts=_sum(found.counts, sp.csr_array(added[:n_users, :n_items])))
        if new_rows.shape[0]:
            taken = canonical(sp.csr_array(new_rows[:, :n_items]))
            users = self._fold(taken, found.held_items)
            if isinstance(users, Point) and shape[1] > n_items:  # who has no counts is 0 and could give a new item none
                empty = np.diff(taken.indptr) == 0
                users = Point(np.where(empty[:, None], typical_user(found), users.mean))
            base = _with_users(base, data.users[~row_known], taken, users)
        if shape[1] > n_items:
            new_columns = canonical(sp.csr_array(added[:, n_items:]))
            names = None if data.item_names is None else data.item_names[~column_known]
            items = self._fold(canonical(sp.csr_array(new_columns.T)), base.held_users)
            base = _with_items(base, data.items[~column_known], names, new_columns, items)
        has_counts = np.diff(data.matrix.indptr) > 0
        again = row_known & has_counts if shape[1] == n_items else ~row_known | has_counts
        touched = np.sort(rows[again])  # without new items, new users are done
        if not len(touched):
            return base
        start = base.user_posterior.mean[touched] if isinstance(base.user_posterior, Gamma) else None
        counts, unknown = (
            None if m is None else canonical(sp.csr_array(m[touched])) for m in (base.counts, base.unknown)
        )
        anew = self._fold(counts, base.held_items_for(touched), start, unknown)
        return replace(
            base, user_posterior=put(base.user_posterior, touched, anew), model=_with_user_rates(base, touched, anew)
        )

    def _refreshed(self, found: Fitted, sweeps: int) -> Fitted:
        """Sweep over all the data from where the factors are; the clusters of tied items stay."""
        users, items = found.user_posterior, found.item_posterior
        backend = make_backend(self.backend, self.n_threads)
        counts = Counts.of(self._prepare(found.counts), users.mean.dtype, found.unknown)
        log_base = total_log_base(found.model.likelihood, counts)
        bayesian = isinstance(users, Gamma)  # MM starts with the items' sums
        state = observe(found.model, counts, backend, users, items, found.ties, log_base, sum_users=bayesian)
        done = run(self._algorithm(), state, counts, backend, max_iter=sweeps, tol=0)
        return replace(
            found,
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
    """Go on counting, if the ids are numbers."""
    if known.dtype.kind not in "iu":
        raise ValueError(
            f"the {what} of this model have ids of their own, such as {known.tolist()[0]!r}; give new ones theirs: "
            f"nbmf.Interactions.from_matrix(X, users=…, items=…)"
        )
    return np.asarray(np.arange(size) + known.max() + 1)


def _joined(known: Ids, new: Ids, what: str) -> Ids:
    if len(new) and (known.dtype.kind in NUMBERS) != (new.dtype.kind in NUMBERS):
        raise ValueError(
            f"{what}: {known.tolist()[0]!r} and {new.tolist()[0]!r} are of different types; ids are all strings or all "
            "numbers"
        )
    return np.concatenate((known, new)) if len(new) else known


def _numbered(positions: NDArray[np.intp], known: NDArray[np.bool_], size: int) -> NDArray[np.intp]:
    """Give those that are not known the positions after all others, in their order."""
    return np.where(known, positions, size + np.cumsum(~known) - 1)


def _placed(
    matrix: sp.csr_array, rows: NDArray[np.intp], columns: NDArray[np.intp], shape: tuple[int, int]
) -> sp.csr_array:
    """Put the entries of a matrix into other rows and columns."""
    row = np.repeat(rows, np.diff(matrix.indptr))
    return canonical(sp.csr_array((matrix.data, (row, columns[matrix.indices])), shape=shape))


def _sum(first: sp.csr_array, second: sp.csr_array) -> sp.csr_array:
    """Add counts, with the check of `canonical` that the sums are numbers."""
    a, b = first.tocoo(), second.tocoo()
    entries = np.concatenate((a.data, b.data)), (np.concatenate((a.row, b.row)), np.concatenate((a.col, b.col)))
    return canonical(sp.csr_array(sp.coo_array(entries, shape=first.shape)))


def _with_users(found: Fitted, ids: Ids, counts: sp.csr_array, new: Factor) -> Fitted:
    """Append users."""
    model = found.model
    if isinstance(model.user_prior.rate, np.ndarray) and isinstance(new, Gamma):
        rates = np.concatenate((model.user_prior.rate, np.asarray(new.prior_rate)))
        model = replace(model, user_prior=Prior(model.user_prior.shape, rates))
    return replace(
        found,
        users=_joined(found.users, ids, "users"),
        counts=canonical(sp.csr_array(sp.vstack((found.counts, counts), format="csr"))),
        user_posterior=stack(found.user_posterior, new),
        unknown=_resized(found.unknown, len(ids), 0),
        model=replace(model, likelihood=_longer(model.likelihood, len(ids), axis=0)),
    )


def _with_items(found: Fitted, ids: Ids, names: Ids | None, counts: sp.csr_array, new: Factor) -> Fitted:
    """Append items."""
    model = found.model
    if isinstance(model.item_prior.rate, np.ndarray) and isinstance(new, Gamma):
        rates = np.concatenate((model.item_prior.rate, np.asarray(new.prior_rate)))
        model = replace(model, item_prior=Prior(model.item_prior.shape, rates))
    if found.item_names is not None or names is not None:
        known = _texts(found.items) if found.item_names is None else found.item_names
        names = np.concatenate((known.astype(object), (_texts(ids) if names is None else names).astype(object)))
    return replace(
        found,
        items=_joined(found.items, ids, "items"),
        item_names=names,
        counts=canonical(sp.csr_array(sp.hstack((found.counts, counts), format="csr"))),
        item_posterior=stack(found.item_posterior, new),
        unknown=_resized(found.unknown, 0, len(ids)),
        ties=None if found.ties is None else _tied_to_nearest(found.ties, found.item_posterior.mean, new.mean),
        model=replace(model, likelihood=_longer(model.likelihood, len(ids), axis=1)),
    )


def _with_user_rates(found: Fitted, rows: NDArray[np.intp], anew: Factor) -> Model:
    """The model with the rates of some users' own priors as they were just learned."""
    prior = found.model.user_prior
    if not isinstance(prior.rate, np.ndarray) or not isinstance(anew, Gamma):
        return found.model
    rates = prior.rate.copy()
    rates[rows] = anew.prior_rate
    return replace(found.model, user_prior=Prior(prior.shape, rates))


def _resized(matrix: sp.csr_array | None, more_rows: int, more_columns: int) -> sp.csr_array | None:
    if matrix is None:
        return None
    wider = matrix.copy()
    wider.resize((matrix.shape[0] + more_rows, matrix.shape[1] + more_columns))
    return wider


def _longer(law: Likelihood, size: int, axis: int) -> Likelihood:
    """Where every row (or column) has its own concentration, give new ones the geometric mean."""
    α = law.concentration
    if not isinstance(α, np.ndarray) or α.shape[axis] == 1:
        return law
    shape = (size, 1) if axis == 0 else (1, size)
    return NegativeBinomial(np.concatenate((α, np.full(shape, typical(α))), axis=axis))


def _tied_to_nearest(ties: Ties, known: Array, new: Array) -> Ties:
    """Put each new item into the cluster whose mean is nearest."""
    sizes = np.bincount(ties.labels, minlength=ties.n_clusters)
    there = np.flatnonzero(sizes)
    centres = np.array([known[ties.members[c]].mean(axis=0, dtype=np.float64) for c in there])
    distance = (centres**2).sum(axis=1) - 2 * new.astype(np.float64) @ centres.T
    labels = there[np.argmin(distance, axis=1)].astype(np.int32)
    return Ties(np.concatenate((ties.labels, labels)), ties.n_clusters)


def _texts(ids: Ids) -> Ids:
    return np.array([str(one) for one in ids.tolist()], object)
