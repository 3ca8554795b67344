"""Encoders that grow: more counts, new users and new items, without fitting again."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_random_state

from nbmf.backends.encoder import EncoderBackend, EncoderCounts
from nbmf.data.ids import align
from nbmf.data.interactions import FORMS, Interactions, canonical
from nbmf.estimators.encoder_fit import EncoderFit
from nbmf.estimators.grow import added_up, check_known, joined_ids, joined_names, resized, tied_to_nearest
from nbmf.inference.encoder import EncoderMM
from nbmf.inference.run import Ending, Run, State, Until, observe, run, total_log_base
from nbmf.model.factors import Array, Encoding, Point

MOST_SWEEPS = 100  # for the rows of new items


class Growth(NamedTuple):
    """How new items are fitted."""

    backend: EncoderBackend
    penalty: float
    tol: float
    random_state: Any


def sides_of(state: State) -> tuple[Array, Array, Array]:
    """Return V, H and the intercepts of all starts, items × RK, RK and R."""
    V, (wide,) = state.users.on_host().parameters[0], state.items.on_host().parameters
    n_starts = wide.shape[1] - V.shape[1]
    parts = wide.reshape(len(wide), n_starts, -1)
    return V, np.ascontiguousarray(parts[..., :-1]).reshape(V.shape), np.ascontiguousarray(parts[..., -1])


def add_counts(fit: EncoderFit, data: Interactions, growth: Growth, refresh: int = 0) -> EncoderFit:
    """Add counts of known and new users and items; new items are fitted, and with `refresh` sweeps everything is."""
    n_users, n_items = fit.counts.shape
    row_known, column_known = fit.user_lookup.find(data.users)[1], fit.item_lookup.find(data.items)[1]
    added = align(data, fit.user_lookup, fit.item_lookup, unknown="append")
    check_known(fit, added)
    more = added.shape[0] - n_users, added.shape[1] - n_items
    counts, unknown = resized(fit.counts, *more), resized(fit.unknown, *more)
    names = None if data.item_names is None else data.item_names[~column_known]
    grown = replace(
        fit,
        counts=added_up(counts, canonical(sp.csr_array(added))),
        unknown=unknown,
        users=joined_ids(fit.users, data.users[~row_known], "users"),
        items=joined_ids(fit.items, data.items[~column_known], "items"),
        item_names=joined_names(fit, data.items[~column_known], names),
    )
    sides = fit.encoder, np.ascontiguousarray(fit.item_posterior.mean[:, :-1]), fit.intercepts
    if more[1]:
        sides = _with_new_items(grown, sides, more[1], growth)
        if fit.ties is not None:
            grown = replace(grown, ties=tied_to_nearest(fit.ties, fit.item_posterior.mean, _items(sides)[n_items:]))
    if refresh:
        done = _sweep(grown, sides, growth, EncoderMM(), Until(refresh, 0.0))
        sides = sides_of(done.state)
        grown = replace(grown, objective=np.array(done.objectives), ending=done.ending)
    return EncoderFit.of(sides, fit.input_form, **_shared(grown))


def _with_new_items(
    fit: EncoderFit, sides: tuple[Array, Array, Array], n_new: int, growth: Growth
) -> tuple[Array, Array, Array]:
    """Return V, H and b with rows of new items, fitted while all other rows stay."""
    V, H, b = sides
    rng, counts = check_random_state(growth.random_state), fit.counts[:, -n_new:]
    share = np.asarray(counts.sum(axis=0)).ravel() / max(float(fit.counts.sum()), 1.0)
    totals = np.array([values.mean(axis=0, dtype=np.float64) for values in (V, H)])
    fresh = [rng.gamma(1.0, 1.0, (n_new, V.shape[1])) * total for total in totals]
    fresh[1] *= np.maximum(len(V) * share, 1 / len(V))[:, None]
    start = b.mean(axis=0, dtype=np.float64) * np.maximum(len(V) * share, 1 / len(V))[:, None]
    wider = tuple(np.concatenate((old, new.astype(old.dtype))) for old, new in zip(sides, (*fresh, start), strict=True))
    ties = None if fit.ties is None else tied_to_nearest(fit.ties, _items(sides), _items(wider)[len(V) :])
    moving = np.arange(len(V), len(V) + n_new)
    until = Until(MOST_SWEEPS, growth.tol * n_new / (len(V) + n_new))  # the others' part of the objective stays
    done = _sweep(replace(fit, ties=ties), wider, growth, EncoderMM(moving), until)  # type: ignore[arg-type]
    if done.ending is Ending.INTERRUPTED:
        raise KeyboardInterrupt  # the model stays as it was
    return sides_of(done.state)


def _sweep(
    fit: EncoderFit, sides: tuple[Array, Array, Array], growth: Growth, algorithm: EncoderMM, until: Until
) -> Run:
    V, H, b = sides
    forms = FORMS[fit.input_form], FORMS[fit.input]
    counts = EncoderCounts.encoded(fit.counts, forms, growth.penalty, V.dtype, fit.unknown)
    items = np.concatenate((H.reshape(len(H), b.shape[1], -1), b[..., None]), axis=2).reshape(len(H), -1)
    users, log_base = Encoding(V, b.shape[1], counts.x), total_log_base(fit.model.likelihood, counts)
    backend: Any = growth.backend
    state = observe(fit.model, counts, backend, users, Point(items), fit.ties, log_base)
    return run(algorithm, state, counts, backend, until)


def _items(sides: tuple[Array, ...]) -> Array:
    return np.column_stack((sides[1], sides[2].mean(axis=1)))


def _shared(fit: EncoderFit) -> dict[str, Any]:
    own = {"user_posterior", "item_posterior", "encoder", "intercepts", "input_form"}
    return {name: getattr(fit, name) for name in fit.__dataclass_fields__ if name not in own}
