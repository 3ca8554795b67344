"""One contract for every algorithm: it follows the paper, and the objective never falls."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import digamma, gammaln, xlogy

import literal
from helpers import count_matrices, counts_of, small_matrix, ties_of
from nbmf.backends import Given
from nbmf.backends.cpu.passes import Cpu
from nbmf.backends.reference import Reference, pool_unseen
from nbmf.inference.accelerate import Accelerated
from nbmf.inference.cavi import CAVI, with_item_rate
from nbmf.inference.mm import MM
from nbmf.inference.run import Ending, FallingObjectiveError, Momentum, Until, begin, observe, run
from nbmf.model import Model
from nbmf.model.factors import Gamma, Prior
from nbmf.model.likelihood import NegativeBinomial, Poisson

ALGORITHMS = [CAVI(), MM()]
BACKENDS = [Reference(), Cpu(n_threads=2)]
MODEL = Model(NegativeBinomial(0.7), Prior(0.9, 0.9), Prior(0.6, 0.6))


def start(matrix, backend, model=MODEL, n_components=3, ties=None, seed=0, dtype=np.float64):
    counts = counts_of(matrix, dtype)
    rng = np.random.RandomState(seed)
    W, H = (rng.gamma(1, 1, (n, n_components)).astype(dtype) for n in matrix.shape)
    return begin(model, counts, backend, W, H, ties), counts


def slack(counts, objective, dtype=np.float64):
    """How far rounding may lower the objective, in units of the last place of its terms."""
    return 64 * np.finfo(dtype).eps * (abs(objective) + float(counts.by_user.data.sum()) + 1)


# ---- the printed equations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_mm_is_literal(backend):
    Y, α = 1 + small_matrix(7, 5), 0.7
    Y[2, 1:4] = 0  # no row or column is empty: the equations divide by their intensity, which tends to 0
    state, counts = start(Y, backend)
    W, H = state.users.mean, state.items.mean
    for _ in range(3):
        H = literal.nmf_h(Y, W, H, α)
        W = literal.nmf_w(Y, W, H, α)
        state = MM().step(state, counts, backend)
        np.testing.assert_allclose(state.items.mean, H, rtol=1e-11, atol=1e-300)
        np.testing.assert_allclose(state.users.mean, W, rtol=1e-11, atol=1e-300)
        assert state.objective == pytest.approx(literal.log_likelihood(Y, W, H, α), rel=1e-12)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_cavi_is_algorithm_1(backend, tied):
    Y, α, α_w, α_h = small_matrix(7, 5), 0.7, 0.9, 0.6
    ties = ties_of(5, 2) if tied else None
    state, counts = start(Y, backend, ties=ties)
    w, h = state.users.mean, state.items.mean
    log_w, log_h = np.log(w), np.log(h)
    for _ in range(3):
        φ, a = literal.latent(Y, w, h, log_w, log_h, α)
        if ties is not None:
            a = literal.tied(Y, w, h, a, list(ties.labels), α)
        β_h = literal.update_hyper(h, α_h)
        W = literal.update_w(Y, φ, a, h, α_w, α_w)
        w, log_w = literal.mean(W), literal.mean_log(W)
        H = literal.update_h(Y, φ, a, w, α_h, β_h)
        h, log_h = literal.mean(H), literal.mean_log(H)
        state = CAVI().step(state, counts, backend)
        np.testing.assert_allclose(state.users.mean, w, rtol=1e-11)
        np.testing.assert_allclose(state.items.shape, H[0], rtol=1e-11)
        np.testing.assert_allclose(state.items.rate, H[1], rtol=1e-11)
        φ, a = literal.latent(Y, w, h, log_w, log_h, α)
        if ties is not None:
            a = literal.tied(Y, w, h, a, list(ties.labels), α)
        expected = literal.elbo(Y, φ, a, W, H, α, α_w, α_w, α_h, β_h)
        assert state.objective == pytest.approx(expected, rel=1e-11)


def test_item_rate_maximizes_the_bound():
    """Eq. (update_hyper), corrected: no other β^H gives a higher ELBO."""
    state, counts = start(small_matrix(), Reference())
    state = CAVI().step(state, counts, Reference())
    best = with_item_rate(state.model, state.items)

    def bound(rate):
        model = Model(MODEL.likelihood, MODEL.user_prior, Prior(best.item_prior.shape, rate))
        return observe(model, counts, Reference(), state.users, state.items, None, 0.0).objective

    rate = best.item_prior.rate
    assert bound(rate) > max(bound(rate * 1.01), bound(rate * 0.99))


# ---- limits and equalities ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.parametrize("ties", [None, 4])
def test_large_concentration_is_poisson(algorithm, ties):
    backend, seen = Cpu(n_threads=1), []
    for law in (Poisson(), NegativeBinomial(1e12)):
        state, counts = start(
            small_matrix(), backend, Model(law, Prior(1, 1), Prior(1, 1)), ties=ties and ties_of(20, ties)
        )
        for _ in range(5):
            state = algorithm.step(state, counts, backend)
        seen.append((state.objective, state.users.mean))
    assert seen[0][0] == pytest.approx(seen[1][0], rel=1e-8)
    np.testing.assert_allclose(seen[0][1], seen[1][1], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_a_cluster_for_each_item_is_exact(algorithm, backend):
    seen = []
    for ties in (None, ties_of(20, 20).__class__(np.arange(20, dtype=np.int32), 20)):
        state, counts = start(small_matrix(), backend, ties=ties)
        for _ in range(5):
            state = algorithm.step(state, counts, backend)
        seen.append((state.objective, state.items.mean))
    assert seen[0][0] == pytest.approx(seen[1][0], rel=1e-12)
    np.testing.assert_allclose(seen[0][1], seen[1][1], rtol=1e-9)


def test_ties_bound_from_below():
    state, counts = start(small_matrix(), Reference())
    state = CAVI().step(state, counts, Reference())
    objectives = [
        observe(state.model, counts, Reference(), state.users, state.items, ties, 0.0).objective
        for ties in (None, ties_of(20, 6), ties_of(20, 1))
    ]
    assert objectives[0] > objectives[1] > objectives[2]


# ---- the objective never falls --------------------------------------------------------------------------------------


@given(count_matrices(), st.integers(1, 4), st.integers(0, 3), st.sampled_from([0.1, 1.0, 20.0]))
def test_every_half_step_of_mm_ascends(matrix, n_components, n_clusters, α):
    ties = ties_of(matrix.shape[1], n_clusters) if n_clusters else None
    model = Model(NegativeBinomial(α), Prior(1, 1), Prior(1, 1))
    for backend in BACKENDS:
        state, counts = start(matrix, backend, model, n_components, ties)
        users, items, before = state.users, state.items, state.inferred.log_evidence
        for _ in range(4):
            expectation = backend.expect(counts, Given(users, items, model.likelihood, ties))
            items = backend.quotient(items, backend.sum_by_item(counts, expectation, users))
            between = backend.expect(counts, Given(users, items, model.likelihood, ties))
            assert between.log_evidence >= before - slack(counts, before)
            users = backend.quotient(users, between.user_sums)
            before = backend.expect(counts, Given(users, items, model.likelihood, ties)).log_evidence
            assert before >= between.log_evidence - slack(counts, before)
            assert np.isfinite(users.mean).all()
            assert (items.mean >= 0).all()


def bound(count, users, items, old_users, old_items, model, ties, law):
    """The ELBO with q(c), q(a) inferred from old factors: what one block update must not lower."""
    α = law.concentration
    old_intensity, intensity = old_users.mean @ old_items.mean.T, users.mean @ items.mean.T
    if ties is not None:
        old_intensity = pool_unseen(old_intensity, count == 0, ties)
    shape, rate = α + count, α + old_intensity
    mean_a, log_a = shape / rate, digamma(shape) - np.log(rate)
    total = count * log_a - mean_a * intensity - gammaln(count + 1)
    total += α * np.log(α) - gammaln(α) + (α - 1) * log_a - α * mean_a  # ⟨ln p(a)⟩
    total += shape - np.log(rate) + gammaln(shape) + (1 - shape) * digamma(shape)  # entropy of q(a)
    weights = old_users.geometric_mean[:, None] * old_items.geometric_mean[None]
    φ = weights / weights.sum(axis=2, keepdims=True)
    logs = np.log(users.geometric_mean)[:, None] + np.log(items.geometric_mean)[None]
    total += count * (φ * logs - xlogy(φ, φ)).sum(axis=2)
    for factor, prior in ((users, model.user_prior), (items, model.item_prior)):
        total = total.sum() - (factor.divergence(prior) if isinstance(factor, Gamma) else 0)
    return float(total)


@given(count_matrices(), st.integers(1, 4), st.integers(0, 3), st.sampled_from([0.1, 1.0, 20.0]))
def test_every_half_step_of_cavi_ascends(matrix, n_components, n_clusters, α):
    ties = ties_of(matrix.shape[1], n_clusters) if n_clusters else None
    law = NegativeBinomial(α)
    for backend in BACKENDS:
        state, counts = start(matrix, backend, Model(law, Prior(1, 1), Prior(0.5, 0.5)), n_components, ties)
        state = CAVI().step(state, counts, backend)
        for _ in range(3):
            model = with_item_rate(state.model, state.items)
            users = backend.conditional(model.user_prior, state.inferred.user_sums)
            items = backend.conditional(model.item_prior, backend.sum_by_item(counts, state.inferred, users))
            after = observe(model, counts, backend, users, items, ties, state.log_base)
            old = state.users, state.items
            values = [
                state.objective,
                bound(matrix, *old, *old, model, ties, law),  # β^H
                bound(matrix, users, state.items, *old, model, ties, law),  # W
                bound(matrix, users, items, *old, model, ties, law),  # H
                after.objective,  # c and a
            ]
            # the uncollapsed bound has terms of size y ln y
            allowed = 40 * slack(counts, values[0])
            assert np.all(np.diff(values) >= -allowed)
            assert np.isfinite(users.geometric_mean).all()
            state = after


@given(count_matrices(), st.integers(1, 4), st.integers(0, 3), st.sampled_from(ALGORITHMS), st.booleans())
def test_a_run_never_falls(matrix, n_components, n_clusters, algorithm, accelerate):
    """The loop itself raises if it does; float32 and float64, counts to 10^9."""
    ties = ties_of(matrix.shape[1], n_clusters) if n_clusters else None
    for dtype in (np.float64, np.float32):
        state, counts = start(matrix, Cpu(n_threads=1), MODEL, n_components, ties, dtype=dtype)
        chosen = Accelerated(algorithm) if accelerate else algorithm
        found = run(chosen, state, counts, Cpu(n_threads=1), Until(25, 0))
        assert np.isfinite(found.objectives).all()
        assert (found.state.users.mean >= 0).all()
        assert len(found.objectives) == 25


# ---- acceleration and the loop --------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_acceleration_gets_further(algorithm):
    backend = Cpu(n_threads=1)
    state, counts = start(small_matrix(60, 40), backend, n_components=6)
    plain, fast = (run(a, state, counts, backend, Until(150, 0)) for a in (algorithm, Accelerated(algorithm)))
    assert np.all(np.diff(fast.objectives) >= -slack(counts, fast.objectives[-1]))
    first = np.argmax(np.array(fast.objectives) >= plain.objectives[-1])
    assert 0 < first < 75


def test_a_step_that_would_lower_the_objective_is_discarded():
    """Then the sweep is the plain one, and the next step is shorter; otherwise it is longer."""
    backend = Cpu(n_threads=1)
    state, counts = start(small_matrix(), backend)
    algorithm = CAVI()
    for _ in range(6):
        state = algorithm.step(state, counts, backend)
    found = algorithm.improve(state, counts, backend)
    here = tuple(backend.parameters(side) for side in found.sides)
    worse = tuple(tuple(values / np.float32(20) for values in side[:1]) + side[1:] for side in here)
    for past, follows in ((worse, False), (tuple(backend.parameters(s) for s in (state.users, state.items)), True)):
        after = Accelerated(algorithm).step(replace(state, momentum=Momentum(past, 0.9, 1.0, 3)), counts, backend)
        plain = algorithm.step(state, counts, backend)
        assert (after.objective == plain.objective) is not follows
        assert after.objective >= state.objective
        assert after.momentum[1:] == ((pytest.approx(0.945), 1.0, 4) if follows else (pytest.approx(0.6), 0.9, 4))


def test_momentum_has_settled_when_twenty_sweeps_gained_little_each():
    backend = Cpu(n_threads=1)
    state, counts = start(small_matrix(60, 40), backend, n_components=6)
    found = run(Accelerated(CAVI()), state, counts, backend, Until(1000, 1e-4))
    assert found.ending is Ending.CONVERGED
    gains = (np.array(found.objectives[20:]) - found.objectives[:-20]) / np.abs(found.objectives[:-20])
    assert gains[-1] <= 20e-4
    assert np.all(gains[1:-1] > 20e-4)  # the first is from the start, which has no ELBO


def test_stops_at_the_relative_increase():
    backend = Cpu(n_threads=1)
    state, counts = start(small_matrix(), backend)
    found = run(CAVI(), state, counts, backend, Until(1000, 1e-4))
    assert found.ending is Ending.CONVERGED
    increase = np.diff(found.objectives) / np.abs(found.objectives[:-1])
    assert increase[-1] < 1e-4
    assert np.all(increase[:-1] >= 1e-4)
    assert run(CAVI(), state, counts, backend, Until(3, 1e-4)).ending is Ending.MAX_ITER


def test_ties_are_refreshed_and_then_frozen():
    backend, made = Cpu(n_threads=1), []
    state, counts = start(small_matrix(), backend, ties=ties_of(20, 4))

    def tie(items):
        made.append(len(sweeps))
        return ties_of(20, 4, seed=len(made))

    sweeps = []
    found = run(CAVI(), state, counts, backend, Until(60, 0), tie=tie, watch=lambda s: sweeps.append(s.sweep))
    assert made == [0, 1, 3, 7, 15, 31]  # within the sweep after so many
    assert np.all(np.diff(found.objectives[31:]) >= 0)
    made.clear()
    early = run(CAVI(), state, counts, backend, Until(500, 0.5), tie=tie)
    assert early.ending is Ending.CONVERGED
    assert len(made) == 3  # in the first two sweeps, and when the third would have been the last


def test_an_interrupt_keeps_the_last_finished_sweep():
    backend = Cpu(n_threads=2)
    state, counts = start(small_matrix(), backend)

    def interrupt_at(n):
        def watch(snapshot):
            if snapshot.sweep == n:
                raise KeyboardInterrupt

        return watch

    found = run(CAVI(), state, counts, backend, Until(50, 0), watch=interrupt_at(7))
    assert found.ending is Ending.INTERRUPTED
    assert found.objectives == run(CAVI(), state, counts, backend, Until(7, 0)).objectives
    assert found.state.objective == found.objectives[-1]

    class Interrupted:
        def step(self, state, counts, backend):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Interrupted(), state, counts, backend, Until(50, 0))


@pytest.mark.parametrize("times", [3, 1.0001])
def test_a_falling_objective_raises(times):
    backend = Reference()
    state, counts = start(small_matrix(), backend)

    class Backwards:
        def step(self, state, counts, backend):
            worse = state.users.mean * times
            return observe(state.model, counts, backend, type(state.users)(worse), state.items, None, state.log_base)

    better = run(MM(), state, counts, backend, Until(1000, 0)).state
    with pytest.raises(FallingObjectiveError, match="sweep 1: the objective went from"):
        run(Backwards(), better, counts, backend, Until(5, 0))
