"""The leaderboard: its tables, its picture and its pages."""

import importlib.util
import math
import re
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest

from nbmf.evaluation import Comparison
from nbmf.evaluation.compare import Contender
from nbmf.evaluation.experiments.alternatives import Popularity
from nbmf.evaluation.experiments.baselines import BASELINES, Baseline
from nbmf.evaluation.experiments.tuned import compare_tuned
from small_study import QUICK, make_quick, planted, write_plays


@pytest.fixture(scope="module")
def script():
    path = Path(__file__).parents[3] / "benchmarks" / "leaderboard.py"
    if not path.exists():
        pytest.skip("benchmarks/ is not part of this copy")
    pytest.importorskip("matplotlib", reason="pictures come with the extra 'plots'")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(path.parent)
        spec = importlib.util.spec_from_file_location("leaderboard_script", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def failing_fit(train, seed, n_threads, *, penalty):
    if penalty > 1:
        raise ValueError("a penalty above 1")
    return Popularity(train)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Run a comparison in which one model fails and one fails in some trials."""
    with pytest.MonkeyPatch.context() as patched:
        make_quick(patched)
        patched.setitem(BASELINES, "odd", Baseline("odd", failing_fit, {"penalty": 9.0}, {"penalty": (0.1, 10.0)}))
        patched.setitem(BASELINES, "hopeless", Baseline("hopeless", failing_fit, {"penalty": 2.0}, {}))
        plan = replace(QUICK, models=(*QUICK.models, "odd", "hopeless"))
        yield compare_tuned(*planted(), plan, tmp_path_factory.mktemp("ended"), n_workers=1)


def cells(table):
    """Return the rows of a Markdown table, without its head."""
    return [[cell.strip().strip("*") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


# what is shown -------------------------------------------------------------------------------------------------------


def test_tables_are_in_the_order_of_the_goal(script, ended):
    *rows, failed = cells(script.quality_table(ended))
    means = [float(row[1]) for row in rows]
    assert means == sorted(means, reverse=True)
    assert [row[2] == "" for row in rows] == [True, False, False, False]
    assert {row[0]: row[-1] for row in rows} == {"EASE": "1", "PF": "2", "popularity": "1", "odd": "2"}
    assert failed[:3] == ["hopeless", "failed", "ValueError: a penalty above 1"]


def test_the_settings_say_how_many_trials_failed(script, ended):
    rows = {row[0]: row for row in cells(script.settings_table(ended))}
    assert rows["odd"][-1] == str(sum(bool(row.problem) for row in ended.trials("odd")))
    assert rows["EASE"][-2:] == ["3", "0"]
    assert "penalty=" in rows["EASE"][1]


def test_the_summary_has_a_row_per_model_and_data_set(script, ended):
    found = script.levels(ended)
    rows = cells(script.summary({"one": found, "two": found}))
    labels = [BASELINES[contender.name].label for contender in ended.board()]
    assert [row[0] for row in rows] == [*labels, "hopeless"]
    assert all(re.fullmatch(r"0\.\d{4}", row[1]) and row[1] == row[2] for row in rows[:-1])
    assert [row[3] for row in rows] == ["1.0", "2.0", "3.0", "4.0", "5.0"]
    assert rows[-1][1:3] == ["failed", "failed"]


def test_the_summary_marks_what_cannot_be_told_from_the_best(script):
    contenders = [
        Contender("ease", 0.4, (0.3, 0.5), 0.0, (0.0, 0.0), 1, math.nan),
        Contender("nbslim", 0.39, (0.3, 0.5), -0.01, (-0.03, 0.01), 1, math.nan),
        Contender("als", 0.3, (0.2, 0.4), -0.1, (-0.2, -0.05), 1, math.nan),
    ]
    board = Comparison(tuple(contenders), "ndcg_log2", "ease", 100)
    plan = SimpleNamespace(goal="ndcg_log2", models=("ease", "nbslim", "als"))
    result = SimpleNamespace(board=lambda: board, plan=plan, problems=dict)
    text = script.summary({"one": script.levels(result)})
    assert "one: NDCG on log2" in text
    assert re.findall(r"\*\*(.*?)\*\*", text) == ["0.4000", "0.3900"]


def crowded():
    """Return all models close together, as a picture needs them."""
    names = list(BASELINES)
    means = {name: 0.34 + 0.006 * (n % 5) for n, name in enumerate(names)}
    apart = {name: mean - max(means.values()) for name, mean in means.items()}
    contenders = tuple(
        Contender(name, means[name], (0.0, 1.0), d, (d - 0.004, d + 0.004), 1, math.nan) for name, d in apart.items()
    )
    board = Comparison(contenders, "ndcg_counts", max(means, key=means.get), 100)
    plan = SimpleNamespace(goal="ndcg_counts")
    return SimpleNamespace(board=lambda: board, plan=plan, seconds=lambda name: 0.5 * 1.3 ** names.index(name))


def test_labels_of_the_picture_meet_nothing(script):
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    result = crowded()
    figure = script.draw(result)
    axes, renderer = figure.axes[0], figure.canvas.get_renderer()
    boxes = [Text.get_window_extent(text, renderer) for text in axes.texts]  # without lines to the points
    bars = []
    for contender in result.board():
        x, y = result.seconds(contender.name), contender.mean
        bars.append(Bbox(axes.transData.transform([(x, y - 0.004), (x, y + 0.004)])))
    assert {text.get_text() for text in axes.texts} == {model.label for model in BASELINES.values()}
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert not any(box.overlaps(bar) for box in boxes for bar in bars)


def test_pages_are_written_between_marks(script, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- leaderboard -->\nold\n<!-- /leaderboard -->\nafter\n")
    for text in ("new", "newer"):
        script.put_between(page, "leaderboard", text)
    assert page.read_text() == "before\n<!-- leaderboard -->\n\nnewer\n\n<!-- /leaderboard -->\nafter\n"
    script.put_between(page, "other", "more")
    assert page.read_text().endswith("after\n\n<!-- other -->\n\nmore\n\n<!-- /other -->\n")
    page.write_text("<!-- leaderboard -->\n")
    with pytest.raises(ValueError, match="once each"):
        script.put_between(page, "leaderboard", "new")


@pytest.mark.parametrize(
    ("name", "shape", "goal"),
    [
        ("online_retail_invoices", (2859, 1629), "ndcg_counts"),
        ("online_retail_units", (2859, 1629), "ndcg_log2"),
        ("tasteprofile_gouvert", (1502, 786), "ndcg_counts"),
    ],
)
def test_data_sets_are_opened_by_name(script, data_folder, name, shape, goal):
    study, of_trials = script.open_board(name)
    assert (study.name.split("/")[0], study.data.matrix.shape, of_trials) == (name, shape, goal)
    assert study.train.nnz + study.test.nnz == study.data.nnz
    again = script.open_board(name)[0]
    assert (again.test.matrix != study.test.matrix).nnz == 0


def test_invoices_and_units_are_two_counts_of_the_same_events(script, data_folder):
    import pyarrow.parquet as pq

    events = pq.read_table(data_folder / "data" / "online_retail" / "events.parquet")
    user, item, invoice, units = (events[name].to_pylist() for name in ("user", "item", "invoice", "units"))
    n_invoices = Counter((u, i) for u, i, _ in set(zip(user, item, invoice, strict=True)))
    n_units = Counter()
    for u, i, n in zip(user, item, units, strict=True):
        n_units[u, i] += n
    for count, expected in (("invoices", n_invoices), ("units", n_units)):
        data = script.open_board(f"online_retail_{count}")[0].data
        users, items, cells = data.users.tolist(), data.items.tolist(), data.matrix.tocoo()
        found = zip(*(axis.tolist() for axis in cells.coords), cells.data.tolist(), strict=True)
        assert all(expected[users[row], items[column]] == value for row, column, value in found)


def test_the_command_writes_the_page_and_can_be_repeated(script, tmp_path, monkeypatch, capsys):
    make_quick(monkeypatch)
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "leaderboard.md"
    page.write_text("# Which model\n")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    folder = tmp_path / "fits"
    typed = [str(write_plays(tmp_path)), "--models", "popularity,ease", "--trials", "2", "--starts", "1", "--write"]
    monkeypatch.setattr("sys.argv", ["leaderboard.py", *typed, "--folder", str(folder)])
    written = []
    for fits in (5, 0):
        script.main()
        written.append(page.read_text())
        assert len(re.findall(r"\): ndcg_counts 0\.\d{4} in", capsys.readouterr().err)) == fits
    assert written[0] == written[1]
    assert (tmp_path / "docs" / "leaderboard-plays.png").read_bytes() == (
        folder / "plays" / "leaderboard.png"
    ).read_bytes()
    for mark in ("leaderboard plays", "leaderboard command", "leaderboard summary"):
        assert written[0].count(f"<!-- {mark} -->") == 1
    assert "plays.parquet --models popularity,ease --trials 2 --starts 1 --limit 300 --write" in written[0]


def test_data_sets_are_written_one_by_one(script, tmp_path, monkeypatch):
    """The short table has all that were written, in the order of the boards; a second writing replaces the first."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "leaderboard.md").write_text("# Which model\n")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    for name, level in (("mine", 0.1), ("newsgroups20", 0.2), ("groceries", 0.3), ("mine", 0.4)):
        found = {"ease": {"level": level, "is_level_with_best": True}, "als": None}
        script.write_summary(name, {"command": f"python {name} {level}", "metric": "NDCG", "models": found})
    page = (tmp_path / "docs" / "leaderboard.md").read_text()
    assert re.findall(r"^    python (.*)$", page, re.MULTILINE) == ["groceries 0.3", "newsgroups20 0.2", "mine 0.4"]
    text = page[page.index("| model") :]
    assert text.splitlines()[0] == "| model | groceries: NDCG | newsgroups20: NDCG | mine: NDCG | mean place |"
    assert cells(text.split("\n\n")[0]) == [
        ["EASE", "0.3000", "0.2000", "0.4000", "1.0"],
        ["ALS", "failed", "failed", "failed", "2.0"],
    ]


def test_data_that_is_not_there_is_named(script, monkeypatch):
    monkeypatch.delenv("NBMF_DATA", raising=False)
    with pytest.raises(SystemExit, match="set NBMF_DATA to the folder that has data/newsgroups20"):
        script.open_board("newsgroups20")


def test_data_sets_have_names_without_folders(script):
    assert script.name_of("online_retail_units") == script.short_path("online_retail_units") == "online_retail_units"
    assert script.name_of("groceries") == "groceries"
    assert script.name_of("a/plays.2017.tsv.gz") == "plays"
    assert script.name_of("a/taste/interactions.parquet") == "taste"
    assert script.short_path("a/b/taste/interactions.parquet") == "taste/interactions.parquet"
