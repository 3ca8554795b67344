"""One contract for the passes of an encoder on every backend: sums and objective are those of `reference`."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import nbmf
from helpers import (
    assert_encodes_as_reference,
    count_matrices,
    encoded,
    encoder_sums,
    gpus,
    random_starts,
    small_matrix,
    ties_of,
)
from nbmf.backends import Sums, encoder_of
from nbmf.backends.cpu.passes import Cpu
from nbmf.backends.reference import Reference
from nbmf.estimators.fism import start_of
from nbmf.inference.encoder import EncoderMM, joined
from nbmf.inference.run import observe, total_log_base
from nbmf.model import Model
from nbmf.model.factors import Prior
from nbmf.model.likelihood import NegativeBinomial, Poisson

BACKENDS = [Cpu(n_threads=2), *gpus(interpreted=False)]
INTERPRETED = [backend for backend in gpus() if backend not in BACKENDS]  # slow: for a few tiny cases
LAWS = [(Poisson(), None), (NegativeBinomial(0.7), None), (NegativeBinomial(0.7), 1), (NegativeBinomial(3.0), 5)]
ids = pytest.mark.parametrize("law", LAWS, ids=str)
dtypes = pytest.mark.parametrize("dtype", ["float64", "float32"])
backends = pytest.mark.parametrize("backend", BACKENDS, ids=str)
UNUSED = Prior(1.0, 1.0)


@dtypes
@ids
@backends
def test_sums_and_evidence(backend, law, dtype):
    counts, starts = encoded(small_matrix(), dtype), random_starts(20, 7, 2, dtype)
    assert_encodes_as_reference(backend, counts, starts, *law, rtol=1e-12 if dtype == "float64" else 1e-5)


@dtypes
@ids
@backends
def test_unknown_cells_are_neither_predicted_nor_inputs(backend, law, dtype):
    """Zero and non-zero cells left out, one user's whole row and one item's whole column among them."""
    unknown = np.random.default_rng(8).random((30, 20)) < 0.2
    unknown[4], unknown[:, 7] = True, True
    counts, starts = encoded(small_matrix(), dtype, unknown), random_starts(20, 4, 2, dtype)
    assert counts.n_unknown > 100
    assert_encodes_as_reference(backend, counts, starts, *law, rtol=1e-12 if dtype == "float64" else 1e-5)


@pytest.mark.parametrize(
    ("law", "n_clusters", "n_components", "dtype"),
    [
        (Poisson(), None, 3, "float32"),
        (Poisson(), None, 17, "float64"),
        (Poisson(), None, 300, "float32"),
        (NegativeBinomial(0.7), None, 3, "float64"),
        (NegativeBinomial(0.7), 2, 3, "float32"),
    ],
)
@pytest.mark.parametrize("has_unknown", [False, True])
@pytest.mark.parametrize("backend", INTERPRETED, ids=str)
def test_sums_and_evidence_by_interpreted_kernels(backend, law, n_clusters, n_components, dtype, has_unknown):
    unknown = np.random.default_rng(8).random((9, 7)) < 0.1 if has_unknown else None
    counts, starts = encoded(small_matrix(9, 7), dtype, unknown), random_starts(7, n_components, 2, dtype)
    rtol = 1e-12 if dtype == "float64" else 1e-5
    assert_encodes_as_reference(backend, counts, starts, law, n_clusters, rtol)


@given(count_matrices(), st.integers(1, 5), st.integers(1, 2), st.sampled_from(LAWS), st.booleans())
def test_sums_and_evidence_of_any_counts(matrix, n_components, n_starts, law, has_unknown):
    """In counts of which one may be all that is left of a sum, differences lose digits: 16 units in the last place."""
    unknown = np.random.default_rng(0).random(matrix.shape) < 0.2 if has_unknown else None
    counts = encoded(matrix, "float64", unknown)
    starts = random_starts(matrix.shape[1], n_components, n_starts, "float64")
    for backend in BACKENDS:
        assert_encodes_as_reference(backend, counts, starts, *law, rtol=1e-9)


@backends
def test_what_an_item_says_of_itself_is_left_out(backend):
    """A user with one item has an intercept and nothing else, however large the count."""
    counts, (one,) = encoded([[10**9, 0], [0, 1]]), random_starts(2, 3, 1, "float64")
    _, [(to_inputs, _, allocated, _)] = encoder_sums(backend, counts, [one], Poisson(), None)
    assert not to_inputs.any()
    assert not allocated[:, :-1].any()
    np.testing.assert_allclose(allocated[:, -1], [math.sqrt(1e9), 1.0], rtol=1e-12)


def sweeps(backend, counts, starts, law, ties, n, moving=None):
    """The state after each sweep, the start included."""
    backend, model = encoder_of(backend), Model(law, UNUSED, UNUSED)
    users, items = joined([one.factors for one in starts], counts)
    states = [observe(model, counts, backend, users, items, ties, total_log_base(law, counts))]
    for _ in range(n):
        states.append(EncoderMM(moving).step(states[-1], counts, backend))
    return states


def halves(backend, counts, state):
    """The objective when only V has moved, and when only [H | b] has."""
    passes, users, items = encoder_of(backend), [], []
    for inferred in state.inferred.starts:
        V, side = inferred.start.factors
        sums, allocated = passes.sum_inputs(counts, inferred)
        users.append((passes.quotient(V, sums), side))
        exposed = passes.expose_outputs(counts, inferred, V)
        items.append((V, passes.quotient(side, Sums(allocated, exposed))))
    return [
        observe(state.model, counts, passes, *joined(moved, counts), state.ties, state.log_base).objective
        for moved in (users, items)
    ]


@dtypes
@given(
    matrix=count_matrices(),
    n_components=st.integers(1, 4),
    law=st.sampled_from(LAWS),
    has_unknown=st.booleans(),
    penalty=st.sampled_from([0.0, 5.0]),
)
def test_every_half_step_and_sweep_ascends(dtype, matrix, n_components, law, has_unknown, penalty):
    unknown = np.random.default_rng(0).random(matrix.shape) < 0.2 if has_unknown else None
    counts, (law, n_clusters) = encoded(matrix, dtype, unknown, penalty), law
    ties = ties_of(matrix.shape[1], n_clusters) if n_clusters else None
    starts = [start_of(counts, n_components, np.random.RandomState(seed)) for seed in (0, 1)]
    for backend in (Reference(), *BACKENDS):
        states = sweeps(backend, counts, starts, law, ties, 5)
        objectives = np.array([state.objective for state in states])
        of_halves = np.array([halves(backend, counts, state) for state in states])
        scale = abs(states[0].log_base) + counts.size + np.abs(objectives).max() + np.abs(counts.by_user.data).sum()
        allowed = {"float64": 1e-12, "float32": 1e-5}[dtype] * scale
        assert np.all(np.diff(objectives) >= -allowed), (backend, objectives)
        assert np.all(of_halves >= objectives[:, None] - allowed), (backend, objectives, of_halves)


@dtypes
@ids
@backends
def test_sweeps_are_those_of_the_reference(backend, law, dtype):
    """Factors after some sweeps; done again, the same bits."""
    counts, (law, n_clusters) = encoded(small_matrix(), dtype), law
    starts = [start_of(counts, 4, np.random.RandomState(seed)) for seed in (0, 1)]
    ties = ties_of(20, n_clusters) if n_clusters else None
    ours, again, plain = (sweeps(each, counts, starts, law, ties, 6)[-1] for each in (backend, backend, Reference()))
    rtol = 1e-10 if dtype == "float64" else 1e-4
    assert ours.objective == again.objective == pytest.approx(plain.objective, rel=rtol)
    for side in ("users", "items"):
        (mine,), (repeated,), (reference,) = (getattr(each, side).parameters for each in (ours, again, plain))
        assert type(mine) is np.ndarray
        assert mine.tobytes() == repeated.tobytes()
        np.testing.assert_allclose(mine, reference, rtol=10 * rtol, atol=rtol * reference.max())


@backends
def test_only_rows_of_new_items_move(backend):
    counts, starts = encoded(small_matrix()), random_starts(20, 3, 2, "float64")
    before, after = sweeps(backend, counts, starts, Poisson(), None, 1, moving=np.array([1, 6]))
    for side in ("users", "items"):
        old, new = (getattr(state, side).parameters[0] for state in (before, after))
        assert set(np.flatnonzero((old != new).any(axis=1))) == {1, 6}
    assert after.objective > before.objective


@ids
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_bits_for_any_number_of_threads(law, dtype, monkeypatch):
    monkeypatch.setattr("nbmf.backends.cpu.passes.LEAST_WORK", 1)  # threads for little work, too
    counts, (law, n_clusters) = encoded(small_matrix(200, 60), dtype), law
    starts, ties = random_starts(60, 6, 2, dtype), ties_of(60, n_clusters) if n_clusters else None
    found = [sweeps(Cpu(n), counts, starts, law, ties, 3)[-1] for n in (1, 2, 4)]
    bits = [(s.objective, s.users.parameters[0].tobytes(), s.items.parameters[0].tobytes()) for s in found]
    assert bits[0] == bits[1] == bits[2]


SETTINGS = [
    {},
    {"likelihood": "negative_binomial"},
    {"likelihood": "negative_binomial", "target": "counts", "n_starts": 1},
]
no_gpu = pytest.mark.filterwarnings("ignore:backend='gpu' finds no GPU")
fitted = pytest.mark.parametrize("settings", SETTINGS, ids=str)
fits = pytest.mark.parametrize("backend", ["cpu", "gpu"] if gpus() else ["cpu"])


def fit(backend, settings, max_iter=8, **control):
    shared = {"n_starts": 2, "random_state": 0, "tol": 0, "max_iter": max_iter, "penalty": 1.0, "backend": backend}
    return nbmf.NBFISM(3, **shared | settings).fit(nbmf.Interactions.from_matrix(small_matrix()), **control)


@no_gpu
@fitted
@fits
def test_a_fit_is_that_of_the_reference(backend, settings):
    unknown = sp.csr_array(np.random.default_rng(1).random((30, 20)) < 0.1)
    for cells in (None, unknown):
        ours, plain = (fit(each, settings | {"dtype": "float64"}, unknown=cells) for each in (backend, "reference"))
        np.testing.assert_allclose(ours.objective_, plain.objective_, rtol=1e-9)
        for name in ("encoder_", "user_factors_", "item_factors_"):
            mine, reference = getattr(ours, name), getattr(plain, name)
            assert type(mine) is np.ndarray
            np.testing.assert_allclose(mine, reference, rtol=1e-6, atol=1e-9 * reference.max(), err_msg=name)
        np.testing.assert_allclose(ours.recommend(n=3).scores, plain.recommend(n=3).scores, rtol=1e-6)


@no_gpu
@fitted
@fits
def test_a_checkpoint_resumes_to_the_bit(backend, settings, tmp_path):
    whole, path = fit(backend, settings, 9), tmp_path / "fit.ckpt"
    fit(backend, settings, 4, checkpoint=path)
    resumed = fit(backend, settings, 9, resume=path)
    assert whole.objective_.tobytes() == resumed.objective_.tobytes()
    for name in ("encoder_", "user_factors_", "item_factors_"):
        assert getattr(whole, name).tobytes() == getattr(resumed, name).tobytes()


@no_gpu
@fits
def test_a_callback_sees_means_of_users(backend):
    seen = []
    model = fit(backend, {}, 2, callbacks=[lambda snapshot: seen.append(snapshot.user_factors)])
    assert [means.shape for means in seen] == [(30, 8)] * 2
    W = np.delete(seen[-1], [3, 7], axis=1)  # without the ones that meet intercepts
    np.testing.assert_allclose(W, model.user_factors_[:, :-1], rtol=1e-6)


@no_gpu
@fits
def test_a_fit_takes_more_items(backend):
    grown = fit(backend, {"tol": 1e-3}).partial_fit(
        nbmf.Interactions.from_arrays([0, 1, 2, 99], [77, 77, 3, 77], [5, 4, 2, 1]), refresh=2
    )
    assert grown.item_factors_.shape == (21, 7)
    assert np.isfinite(grown.item_factors_).all()
