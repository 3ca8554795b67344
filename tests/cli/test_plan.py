"""`nbmf plan`: memory from the sizes, seconds from a clock, and faults reported in a sentence."""

import json
import tracemalloc
from functools import partial

import numpy as np
import pytest

import helpers
import nbmf
from nbmf.backends.cost import Sizes
from nbmf.cli.options import make_model
from nbmf.cli.plan import _row
from nbmf.inference import timing

typed = partial(helpers.typed, "plan")


@pytest.fixture
def quick(monkeypatch):
    """A clock that counts the work of a sweep instead of seconds."""
    monkeypatch.setattr(timing, "_timed", lambda samples, *_: [3.0 + each.nnz * 0.5 for each in samples])


def test_json_has_every_way_to_expose(plays, monkeypatch):
    """With the real clock; the data are small, so all users are timed."""
    monkeypatch.setattr(timing, "TIMED_SECONDS", 0.0)
    told = json.loads(typed(plays, "-k", 4, "--clusters", 5, "--json").stdout)
    data = nbmf.read_interactions(plays)
    assert (told["users"], told["items"], told["counts"]) == (data.n_users, data.n_items, data.nnz)
    assert [each["exposure"] for each in told["plans"]] == ["tied", "exact", "Poisson"]
    for each, exposure in zip(told["plans"], ("tied", "exact", None), strict=True):
        sizes = Sizes(data.n_users, data.n_items, data.nnz, 4, exposure, 5)
        assert each["memory"] == sum(each["memory_by_use"].values()) > sum(sizes.memory().values())
        assert each["gpu_memory"] == sum(sizes.memory("gpu").values())
        assert each["backend"] == "cpu"
        assert each["machines"] == 1
        assert 0 < each["seconds_per_sweep"] < 5


@pytest.mark.parametrize(
    ("model", "exposures"),
    [
        ("poisson", ["none"]),
        ("binary", ["none"]),
        ("compound", ["none"]),
        ("compound-geometric", ["none"]),
        ("zero-inflated", ["tied", "exact"]),
        ("robust", ["none"]),
        ("bernoulli", ["none"]),
    ],
)
def test_every_model_can_be_planned(plays, monkeypatch, model, exposures):
    """With sweeps of its own likelihood, on the form of the counts that it sees."""
    monkeypatch.setattr(timing, "TIMED_SECONDS", 0.0)
    seen, sweep = [], timing._sweep
    monkeypatch.setattr(timing, "_sweep", lambda matrix, *rest: seen.append((matrix, rest[-1])) or sweep(matrix, *rest))
    told = json.loads(typed(plays, "--model", model, "-k", 3, "--json").stdout)
    assert told["model"] == model
    assert [each["exposure"] for each in told["plans"]] == exposures
    assert {type(likelihood) for _, likelihood in seen} == {type(make_model(model, {})._likelihood())}
    assert all((matrix.max() == 1) == (model in ("binary", "bernoulli")) for matrix, _ in seen)


@pytest.mark.parametrize("n_starts", [1, 3])
def test_an_encoder_is_planned_for_one_machine(plays, monkeypatch, n_starts):
    """With sweeps of all of its starts, and without a GPU."""
    monkeypatch.setattr(timing, "TIMED_SECONDS", 0.0)
    seen, steps = [], timing._steps
    monkeypatch.setattr(timing, "_steps", lambda *given: seen.append(given) or steps(*given))
    options = "--model", "nbfism", "-k", 5, "--joint-starts", n_starts
    told = json.loads(typed(plays, *options, "--json").stdout)
    (each,) = told["plans"]
    data = nbmf.read_interactions(plays)
    sizes = Sizes(data.n_users, data.n_items, data.nnz, 5, None, n_starts=n_starts)
    assert each["memory"] == sum(each["memory_by_use"].values()) > sum(sizes.memory().values())
    assert (each["exposure"], each["gpu_memory"], each["machines"]) == ("none", None, 1)
    assert (told["components"], told["starts"]) == (5, n_starts)
    assert [(type(algorithm).__name__, state.users.n_starts) for algorithm, state, *_ in seen] == [
        ("EncoderMM", n_starts)
    ]
    assert 0 < each["seconds_per_sweep"] < 5
    shown = typed(plays, *options).stdout
    assert f"K = 5, {n_starts} starts" in shown
    assert "not estimated" in shown.splitlines()[-1]


@pytest.mark.parametrize("exposure", [None, "tied", "exact"])
def test_the_memory_of_an_encoder_is_what_a_fit_takes(exposure, monkeypatch):
    """Arrays alone: without Python, and what the allocator keeps. Smaller peaks are seen if memory is freed sooner."""
    monkeypatch.setattr("nbmf.estimators.fism.CHEAP_CELLS", 0 if exposure == "tied" else 10**7)
    rng, law = np.random.default_rng(0), "negative_binomial" if exposure else "poisson"
    data = nbmf.Interactions.from_matrix(rng.poisson(0.05, (4000, 600)))
    settings = {"likelihood": law, "n_starts": 3, "max_iter": 2, "tol": 0, "random_state": 0}
    nbmf.NBFISM(8, **settings).fit(data)
    tracemalloc.start()
    try:
        model = nbmf.NBFISM(60, **settings).fit(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert model.n_iter_ == 2
    stated = Sizes(data.n_users, data.n_items, data.nnz, 60, exposure, n_starts=3).memory()
    arrays = sum(size for use, size in stated.items() if use not in ("Python", "what the allocator keeps"))
    assert 0.85 * peak < arrays < 1.3 * peak


def test_an_encoder_with_exposures_is_planned_for_both_kinds(plays, monkeypatch):
    monkeypatch.setattr(timing, "TIMED_SECONDS", 0.0)
    options = "--model", "nbfism", "-k", 5, "--likelihood", "negative_binomial", "--clusters", 3
    told = json.loads(typed(plays, *options, "--json").stdout)
    assert [each["exposure"] for each in told["plans"]] == ["tied", "exact"]
    assert typed(plays, *options).stdout.count("not estimated") == 2
    assert "--likelihood is not a setting of the model nbmf" in typed(plays, "--likelihood", "poisson", code=2).stderr


def test_an_encoder_too_large_for_a_machine_is_not_shared_out():
    sizes = Sizes(10_000_000, 100_000, 500_000_000, 200, None, n_starts=4)
    assert sizes.machines(16 * 10**9) is None
    assert sizes.machines(10**12) == 1
    more = Sizes(10_000_000, 100_000, 500_000_000, 200, "tied", n_starts=4)
    assert sum(more.memory().values()) > sum(sizes.memory().values())


def test_a_file_of_counts_is_its_source(plays, tmp_path, quick):
    nbmf.store_counts(plays, tmp_path / "c")
    ours, source = (json.loads(typed(path, "--json").stdout)["plans"] for path in (tmp_path / "c", plays))
    assert [each["seconds_per_sweep"] for each in ours] == [each["seconds_per_sweep"] for each in source]


@pytest.mark.parametrize(
    ("command", "option"),
    [("plan", "--user"), ("plan", "--item"), ("fit", "--user"), ("fit", "--count"), ("evaluate", "--time")],
)
def test_a_file_of_counts_has_no_columns_to_choose(plays, tmp_path, command, option):
    nbmf.store_counts(plays, tmp_path / "c")
    written = ["-o", str(tmp_path / "m")] if command == "fit" else []
    told = helpers.typed(command, tmp_path / "c", option, "nonsense", *written, code=2)
    assert f"c: this file was written by nbmf and has no columns to choose; leave out {option} nonsense" in told.stderr
    assert not (tmp_path / "m").exists()


def test_seconds_of_all_users_from_those_of_some(tmp_path, quick, monkeypatch):
    """Where every user has the same number of counts, any sample predicts the exact time."""
    data = nbmf.Interactions.from_matrix(np.ones((500, 4), np.int64))
    seconds = []
    for sample in (100, 300, 10**6):
        monkeypatch.setattr(timing, "SAMPLED_COUNTS", sample)
        seconds.append(timing.seconds_per_sweep(data.matrix, Sizes(500, 4, 2000, 3), None))
    assert seconds == [pytest.approx(3.0 + 2000 * 0.5)] * 3


def test_machines_of_other_sizes(plays, quick):
    assert "no number suffices" in typed(plays, "--memory", "200 MB").stdout
    assert "machines of 2 GB" in typed(plays, "--memory", "2GB").stdout


def test_several_machines_have_a_driver():
    sizes = Sizes(10_000_000, 100_000, 500_000_000, 50)
    few = {"exposure": "tied", "backend": "cpu", "seconds_per_sweep": 1.0, "memory": 1e9, "gpu_memory": 1e9}
    row = _row(few | {"machines": 11, "driver_memory": sizes.memory_of_driver()})
    assert row[-1] == f"11, plus {sizes.memory_of_driver() / 1e9:.1f} GB for the driver"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.csv"], "there is no such file"),
        (["{plays}", "--memory", "much"], "--memory is 'much'; give bytes, or a text such as '2GB'"),
        (["{plays}", "--memory", "16"], "--memory is '16', which is 16 bytes; write 16GB"),
        (["{plays}", "--min-users", "99"], "nothing is left with --min-users 99"),
        (["{plays}", "--components", "0"], "0 is not in the range"),
        (["{plays}", "--joint-starts", "2"], "--joint-starts is not a setting of the model nbmf"),
        (["{model}"], "is a model, not a file of counts"),
    ],
)
def test_faults_are_told_in_a_sentence(plays, tmp_path, arguments, message):
    model = tmp_path / "model"
    nbmf.PoissonMF(1, max_iter=1).fit(np.eye(2)).save(model)
    told = typed(*(argument.format(plays=plays, model=model) for argument in arguments), code=2)
    assert message in told.stderr
    assert "Traceback" not in told.stderr
