"""`nbmf plan`: memory as the sizes say, seconds as a clock tells; what cannot be planned is told in a sentence."""

import json
from importlib import import_module

import numpy as np
import pytest
from click.testing import CliRunner

import nbmf
from nbmf.backends.cost import Sizes
from nbmf.cli import main

plan = import_module("nbmf.cli.plan")  # not the command, which has the same name in the package


@pytest.fixture(scope="module")
def plays(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plays.csv"
    rng = np.random.default_rng(0)
    rows = zip(rng.integers(0, 60, 500), rng.integers(0, 30, 500), rng.integers(1, 5, 500), strict=True)
    path.write_text("".join(f"u{user},{item},{count}\n" for user, item, count in rows))
    return path


@pytest.fixture
def quick(monkeypatch):
    """A clock that goes by what is done, in place of seconds: the products of each sweep."""
    monkeypatch.setattr(plan, "_timed", lambda samples, sizes, backend: [3.0 + each.nnz * 0.5 for each in samples])


def typed(*arguments, code=0):
    result = CliRunner().invoke(main, ["plan", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def test_json_has_every_way_to_expose(plays, monkeypatch):
    """Timed for good, on all users: the data are small."""
    monkeypatch.setattr(plan, "TIMED_SECONDS", 0.0)
    told = json.loads(typed(plays, "-k", 4, "--clusters", 5, "--json").stdout)
    data = nbmf.read_interactions(plays)
    assert (told["users"], told["items"], told["counts"]) == (data.n_users, data.n_items, data.nnz)
    assert [each["exposure"] for each in told["plans"]] == ["tied", "exact", "Poisson"]
    for each, exposure in zip(told["plans"], ("tied", "exact", None), strict=True):
        sizes = Sizes(data.n_users, data.n_items, data.nnz, 4, exposure, 5)
        assert each["memory"] == sum(each["memory by use"].values()) > sum(sizes.memory().values())
        assert each["memory of a GPU"] == sum(sizes.memory("gpu").values())
        assert each["backend"] == "cpu"
        assert each["machines"] == 1
        assert 0 < each["seconds a sweep"] < 5


def test_a_file_of_counts_is_its_source(plays, tmp_path, quick):
    nbmf.store_counts(plays, tmp_path / "c")
    ours, source = (json.loads(typed(path, "--json").stdout)["plans"] for path in (tmp_path / "c", plays))
    assert [each["seconds a sweep"] for each in ours] == [each["seconds a sweep"] for each in source]


@pytest.mark.parametrize(
    ("command", "option"),
    [("plan", "--user"), ("plan", "--item"), ("fit", "--user"), ("fit", "--count"), ("evaluate", "--time")],
)
def test_a_file_of_counts_has_no_columns_to_choose(plays, tmp_path, command, option):
    nbmf.store_counts(plays, tmp_path / "c")
    written = ["-o", str(tmp_path / "m")] if command == "fit" else []
    told = CliRunner().invoke(main, [command, str(tmp_path / "c"), option, "nonsense", *written])
    assert told.exit_code == 2
    assert f"c: is a file that nbmf has written and has no columns to choose, so {option} nonsense" in told.stderr
    assert not (tmp_path / "m").exists()


def test_seconds_of_all_users_from_those_of_some(tmp_path, quick, monkeypatch):
    """Where every user has as many counts the line is met, whatever the sample."""
    data = nbmf.Interactions.from_matrix(np.ones((500, 4), np.int64))
    seconds = []
    for sample in (100, 300, 10**6):
        monkeypatch.setattr(plan, "SAMPLE", sample)
        seconds.append(plan._predicted(data.matrix, Sizes(500, 4, 2000, 3), None))
    assert seconds == [pytest.approx(3.0 + 2000 * 0.5)] * 3


def test_machines_of_other_sizes(plays, quick):
    assert "no number of them" in typed(plays, "--memory", "200 MB").stdout
    assert "machines of 2 GB" in typed(plays, "--memory", "2GB").stdout


def test_several_machines_have_a_driver():
    sizes = Sizes(10_000_000, 100_000, 500_000_000, 50)
    few = {"exposure": "tied", "backend": "cpu", "seconds a sweep": 1.0, "memory": 1e9, "memory of a GPU": 1e9}
    row = plan._row(few | {"machines": 11, "memory of the driver": sizes.memory_of_driver()})
    assert row[-1] == f"11, and {sizes.memory_of_driver() / 1e9:.1f} GB for their driver"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.csv"], "there is no such file"),
        (["{plays}", "--memory", "much"], "--memory is 'much'; give bytes, or a text such as '2GB'"),
        (["{plays}", "--memory", "16"], "--memory is '16', which is 16 bytes; say 16GB"),
        (["{plays}", "--min-users", "99"], "nothing is left with --min-users 99"),
        (["{plays}", "--components", "0"], "0 is not in the range"),
        (["{model}"], "is a model, not a counts"),
    ],
)
def test_faults_are_told_in_a_sentence(plays, tmp_path, arguments, message):
    model = tmp_path / "model"
    nbmf.PoissonMF(1, max_iter=1).fit(np.eye(2)).save(model)
    told = typed(*(argument.format(plays=plays, model=model) for argument in arguments), code=2)
    assert message in told.stderr
    assert "Traceback" not in told.stderr
