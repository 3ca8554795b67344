"""The encoder on the gpu backend beyond the contract of test_encoder.py: how rows are cut, what stays on the device."""

from functools import partial

import numpy as np
import pytest

from helpers import assert_encodes_as_reference, encoded, gpus, random_starts, small_matrix, ties_of
from nbmf.backends import Given, encoder_of
from nbmf.estimators.fism import start_of
from nbmf.inference.encoder import EncoderMM, joined
from nbmf.inference.run import observe
from nbmf.model import Model
from nbmf.model.factors import Encoding, Point, Prior
from nbmf.model.likelihood import NegativeBinomial, Poisson

torch = pytest.importorskip("torch", reason="PyTorch is not installed: extra gpu")

from nbmf.backends.gpu import passes  # noqa: E402
from nbmf.backends.gpu.arrays import ResidentEncoding, ResidentPoint, to_device  # noqa: E402
from nbmf.backends.gpu.device import Gpu  # noqa: E402
from nbmf.backends.gpu.encoder import GpuEncoder, _others  # noqa: E402

LAWS = [(Poisson(), None), (NegativeBinomial(0.7), None), (NegativeBinomial(0.7), 3)]


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("has_unknown", [False, True])
@pytest.mark.parametrize("backend", gpus(), ids=str)
def test_rows_of_several_runs(backend, has_unknown, law, monkeypatch):
    """Rows cut into runs of three non-zeros in blocks of four users; the torch passes by blocks of a few rows."""
    monkeypatch.setattr("nbmf.backends.gpu.device.LONGEST_RUN", 3)
    monkeypatch.setattr("nbmf.backends.gpu.passes.BLOCK_ENTRIES", 40)
    unknown = np.random.default_rng(8).random((9, 12)) < 0.1 if has_unknown else None
    counts, starts = encoded(small_matrix(9, 12), "float64", unknown), random_starts(12, 4, 1, "float64")
    assert_encodes_as_reference(GpuEncoder(kernels=backend.kernels, block=4), counts, starts, *law, rtol=1e-12)


def test_stretches_of_cells_change_nothing(monkeypatch):
    monkeypatch.setattr("nbmf.backends.gpu.encoder.BLOCK", 50)
    counts, starts = encoded(small_matrix()), random_starts(20, 4, 1, "float64")
    assert_encodes_as_reference(Gpu(kernels="torch"), counts, starts, NegativeBinomial(0.7), 5, rtol=1e-12)


def test_more_clusters_than_a_matrix_of_members_has_columns(monkeypatch):
    monkeypatch.setattr("nbmf.backends.gpu.arrays.FEW_CLUSTERS", 2)
    counts, starts = encoded(small_matrix()), random_starts(20, 4, 1, "float64")
    assert_encodes_as_reference(Gpu(kernels="torch"), counts, starts, NegativeBinomial(0.7), 5, rtol=1e-12)


def test_more_components_than_a_program_has_registers():
    """Plain passes take over, whatever was asked for."""
    counts, starts = encoded(small_matrix(9, 7), "float32"), random_starts(7, 513, 1, "float32")
    for backend in gpus():
        assert encoder_of(backend)._passes(torch.ones(1, 513), None) is passes
        assert_encodes_as_reference(backend, counts, starts, Poisson(), None, rtol=1e-5)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("backend", gpus(), ids=str)
def test_factors_stay_on_the_device(backend, law, monkeypatch):
    """From sweep to sweep no array of a factor comes back, counts are copied once, and the bits repeat."""
    counts, (law, n_clusters) = encoded(small_matrix(9, 7), "float32"), law
    ties = ties_of(7, n_clusters) if n_clusters else None
    copied, original = [], to_device
    monkeypatch.setattr("nbmf.backends.gpu.arrays.to_host", lambda values: pytest.fail("an array was fetched"))
    for module in ("arrays", "device", "encoder"):
        monkeypatch.setattr(
            f"nbmf.backends.gpu.{module}.to_device",
            lambda values, device: copied.append(values) or original(values, device),
        )
    found = []
    for _ in range(2):
        passes_of, starts = encoder_of(backend), [start_of(counts, 3, np.random.RandomState(n)) for n in (0, 1)]
        users, items = joined([one.factors for one in starts], counts)
        state, n_copied = (
            observe(Model(law, Prior(1.0, 1.0), Prior(1.0, 1.0)), counts, passes_of, users, items, ties, 0.0),
            [],
        )
        for _ in range(3):
            state = EncoderMM().step(state, counts, passes_of)
            n_copied.append(sum(isinstance(values, np.ndarray) for values in copied))
        assert len(set(n_copied)) == 1
        found.append(state)
    assert isinstance(state.users, ResidentEncoding)
    assert isinstance(state.items, ResidentPoint)
    monkeypatch.undo()
    bits = [[side.on_host().parameters[0].tobytes() for side in (each.users, each.items)] for each in found]
    assert bits[0] == bits[1]


def test_encodings_on_the_device_are_encodings():
    """Whatever is asked of them is what the same numbers give on the host."""
    counts, starts = encoded(small_matrix()), random_starts(20, 3, 2, "float64")
    plain, _ = joined([one.factors for one in starts], counts)
    held = ResidentPoint(to_device(plain.value, Gpu()._device)).encoding(2, counts.x)
    assert held.dimensions == plain.dimensions == (20, 6)
    assert (held.kind, held.is_posterior, held.n_starts) == ("encoding", False, 2)
    np.testing.assert_array_equal(held.mean, plain.mean)
    assert type(held.on_host()) is Encoding
    np.testing.assert_array_equal(held.on_host().parameters[0], plain.value)


def test_rows_of_points_on_the_device():
    rng, rows = np.random.default_rng(0), np.array([4, 1])
    values, new = rng.random((6, 3)), rng.random((2, 3))
    held, plain = ResidentPoint(to_device(values, Gpu()._device)), Point(values)
    for ours, theirs in (
        (held.take(rows), plain.take(rows)),
        (held.replace_rows(rows, Point(new)), plain.replace_rows(rows, Point(new))),
        (held.beside([Point(values), held]), plain.beside([plain, plain])),
    ):
        np.testing.assert_array_equal(ours.mean, theirs.mean)
    np.testing.assert_array_equal(held.mean, values)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_all_others_are_those_of_the_host(dtype, monkeypatch):
    """An item that is next to all of a sum leaves what the others add up to, in whatever blocks they are walked."""
    monkeypatch.setattr("nbmf.backends.gpu.encoder.row_blocks", partial(passes.row_blocks, most=20))
    counts, (one,) = encoded(small_matrix(), dtype), random_starts(20, 3, 1, dtype)
    values, met = one.inputs, counts.met
    values[4, 1], values[11, 2] = 1e18, 1e18
    ones = np.ones(20)
    for weights, scales in ((ones, met), (met, ones)):
        ours = _others(*(to_device(each, Gpu()._device) for each in (values, weights, scales))).cpu().numpy()
        parts = [np.delete(weights[:, None] * values.astype(np.float64), i, axis=0).sum(axis=0) for i in range(20)]
        plain = np.array(parts) * scales[:, None]
        np.testing.assert_allclose(ours, plain, rtol=1e-6 if dtype == "float32" else 1e-12)


def test_a_backend_of_passes_is_its_own_encoder():
    passes_of = encoder_of(Gpu(kernels="torch"))
    assert encoder_of(passes_of) is passes_of
    counts, starts = encoded(small_matrix()), random_starts(20, 3, 1, "float64")
    given = Given(*joined([one.factors for one in starts], counts), Poisson(), None)
    assert passes_of.expect(counts, given).log_evidence < 0
