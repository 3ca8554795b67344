"""`nbmf check`, and the findings below the metrics of `nbmf evaluate`."""

import json

import numpy as np
import pytest

import nbmf
from helpers import small_matrix, typed, write_rows
from nbmf.cli.options import make_model
from nbmf.cli.terminal import MODELS, in_the_shell
from nbmf.estimators.findings import JUMPS, NAMED

QUICK = ["-k", "3", "--max-iter", "40"]


@pytest.fixture(scope="module")
def bursts(tmp_path_factory):
    """A file of few pairs with counts over many orders of magnitude."""
    rng = np.random.default_rng(0)
    counts = np.floor(np.exp(rng.uniform(0, 9, (120, 60)))) * (rng.random((120, 60)) < 0.06)
    rows = [(f"user {user}", f"item {item}", int(counts[user, item])) for user, item in np.argwhere(counts).tolist()]
    return write_rows(tmp_path_factory.mktemp("bursts") / "bursts.csv", rows, ("user", "item", "count"))


@pytest.fixture(scope="module")
def model_file(bursts, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.nbmf"
    typed("fit", bursts, "-o", path, *QUICK)
    return path


def test_check_is_the_models_check(model_file):
    answer = json.loads(typed("check", model_file, "--draws", 30, "--seed", 4, "--json").stdout)
    found = nbmf.load(model_file).check(n_draws=30, seed=4)
    assert answer["class"] == "NBMF"
    assert answer["fits"] is found.fits is False
    assert answer["findings"] == list(found.findings)
    assert (answer["cells"], answer["draws"]) == (found.n_cells, 30)
    assert [row["observed"] for row in answer["statistics"]] == [each.observed for each in found.statistics]
    assert [row["fits"] for row in answer["statistics"]] == [each.fits for each in found.statistics]


def test_findings_are_lines_with_what_to_type(model_file):
    lines = typed("check", model_file).stdout.splitlines()
    assert lines[0].startswith("NBMF expects ")
    assert lines[0].endswith(": try --model compound, --input log1p or --model nbslim")
    table = lines.index(next(line for line in lines if line.startswith("statistic ")))
    assert table == len(nbmf.load(model_file).check().findings) + 1
    assert lines[table + 2].split()[:5] == ["share", "of", "zeros", "all", "cells"]
    assert lines[table + 2].endswith("no")


@pytest.mark.parametrize(
    ("remedies", "typed_as"),
    [
        (
            "ZeroInflatedMF, NBMF or a smaller concentration",
            "--model zero-inflated, --model nbmf or a smaller --concentration",
        ),
        ("jumps='geometric' or larger jumps", "--model compound-geometric or a larger --jump"),
        (
            "a larger concentration, smaller jumps or PoissonMF",
            "a larger --concentration, a smaller --jump or --model poisson",
        ),
        ("fewer components or inference='cavi'", "fewer --components or --inference cavi"),
        ("rates='per_row'", "--rates per_row"),
        ("a larger max_iter", "a larger --max-iter"),
        ("RobustMF", "--model robust"),
        ("BinaryMF", "--model bernoulli"),
    ],
)
def test_every_remedy_can_be_typed(remedies, typed_as):
    about = "NBMF has larger jumps, so try not to: 3 of 5 members"
    assert in_the_shell(f"{about}: try {remedies}") == f"{about}: try {typed_as}"


def test_every_model_that_is_proposed_is_one_of_nbmf_fit():
    assert set(MODELS) == {*NAMED, *JUMPS, "NBSLIM", "NBFISM"}
    for python, shell in MODELS.items():
        model = make_model(shell, {})
        assert type(model).__name__ == python or python == f"jumps={model.jumps!r}"


def test_a_model_that_fits_says_so_with_the_same_exit_code(tmp_path):
    data = nbmf.datasets.simulate(80, 60, n_components=2, mean_count=0.5, seed=0)
    nbmf.NBMF(2, random_state=0, max_iter=200, tol=1e-4).fit(data).save(tmp_path / "model.nbmf")
    assert typed("check", tmp_path / "model.nbmf").stdout.startswith("NBMF fits its data: ")
    answer = json.loads(typed("check", tmp_path / "model.nbmf", "--json").stdout)
    assert answer["fits"] is True
    assert answer["findings"] == []


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_is_written(model_file, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"check.{suffix}"
    path.write_text("old")
    told = typed("check", model_file, "-o", path, "--draws", 5)
    assert str(path) in told.stderr
    assert path.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml"}[suffix])
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{model}", "-o", "picture.txt"], "-o picture.txt: the name must end in .png, .pdf or .svg"),
        (["{model}", "-o", "no/such/folder/a.png"], "there is no folder"),
        (["{model}", "--draws", "1"], "1 is not in the range x>=2"),
        (["nothing.nbmf"], "nothing.nbmf"),
        (["{slim}"], "NBSLIM does not define draws of its counts, so it cannot be checked; NBMF and CompoundMF can"),
        (["{coupled}"], "CoupledCompoundMF does not define draws of its counts, so it cannot be checked"),
        (["{robust}"], "RobustMF is a profile likelihood and has no distribution of counts, so it cannot be checked; "),
        (["{logs}"], "fitted with --input log1p, so it has no likelihood of counts"),
    ],
)
def test_what_cannot_be_checked_is_said_in_a_sentence(model_file, tmp_path, arguments, said):
    names = {"model": model_file, "slim": tmp_path / "slim.nbmf", "logs": tmp_path / "logs.nbmf"}
    nbmf.NBSLIM(max_iter=2, tol=0).fit(small_matrix()).save(names["slim"])
    for name, kind in (("robust", nbmf.RobustMF), ("coupled", nbmf.CoupledCompoundMF)):
        names[name] = tmp_path / f"{name}.nbmf"
        kind(2, max_iter=2, tol=0, random_state=0).fit(small_matrix()).save(names[name])
    nbmf.NBMF(2, input="log1p", max_iter=2, tol=0, random_state=0).fit(small_matrix()).save(names["logs"])
    told = typed("check", *(argument.format(**names) for argument in arguments), code=2)
    assert said in told.stderr
    assert not told.stdout


def test_evaluate_has_a_section_with_the_findings(bursts):
    told = typed("evaluate", bursts, *QUICK).stdout
    table, section = told.split("\nDoes it fit the counts it was fitted to?\n")
    assert table.startswith("NBMF: ")
    assert section.splitlines()[0].startswith("NBMF expects ")
    answer = json.loads(typed("evaluate", bursts, *QUICK, "--json").stdout)
    assert answer["check"]["fits"] is False
    assert len(answer["check"]["findings"]) == len(section.splitlines())


def test_evaluate_has_none_where_there_is_nothing_to_check(bursts):
    for model in ("popularity", "nbslim"):
        assert "Does it fit" not in typed("evaluate", bursts, "--model", model).stdout
        assert json.loads(typed("evaluate", bursts, "--model", model, "--json").stdout)["check"] is None
