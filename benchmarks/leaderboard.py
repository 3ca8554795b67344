"""Which model ranks held-out counts best, and in how many seconds: ours and the common alternatives, tuned alike.

python benchmarks/leaderboard.py [NAME | FILE …] [--trials 12] [--starts 5] [--models a,b] [--folder DIR]
                                 [--workers N] [--limit SECONDS] [--write]

(extra `bench`: the packages compared, the groceries; extra `plots`.) NAME is one of those in boards.py, FILE has users,
items and counts. Results go to DIR/NAME as they are ready: the same command resumes an interrupted run, and models,
trials and starts can be added. --write puts tables and pictures into docs/leaderboard.md, beside those of data sets
that were written before, and the levels that its first table is made of into docs/leaderboard.json.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from boards import BOARDS, SEED, open_board
from nbmf.evaluation import Comparison
from nbmf.evaluation.experiments.baselines import BASELINES
from nbmf.evaluation.experiments.engine import available_cores, shown_by
from nbmf.evaluation.experiments.figures import BLUE, VERMILLION, Picture
from nbmf.evaluation.experiments.report import bold, literal, table
from nbmf.evaluation.experiments.store import Row, write_whole
from nbmf.evaluation.experiments.study import Study
from nbmf.evaluation.experiments.tuned import (
    GOAL,
    THRESHOLDS,
    Result,
    TunedComparison,
    compare_tuned,
    row_in_words,
    settings_in_words,
)
from nbmf.inference.progress import RunsProgress
from pages import ROOT, put_between

CAPTION = "Round and orange: our models. A bar is the 95 % interval of the difference to the best."
OURS = (
    "nbmf",
    "compound",
    "compound-geometric",
    "zero-inflated",
    "robust",
    "bernoulli",
    "averaged",
    "nbslim",
    "nbfism",
    "blend",
)
SIZE = (6.4, 4.4)  # inches
LEAST_SECONDS = 1e-3  # shorter times are hardly measured
MARK_PIXELS = 3.0  # half the width of a mark
HEADS = {
    GOAL: "NDCG on counts",
    "ndcg_log2": "NDCG on log2",
    **{f"ndcg_at_least_{s}": f"count ≥ {s}" for s in THRESHOLDS},
    "recall_at_20": "recall@20",
    "ndcg_binary_at_100": "NDCG@100",
    "coverage_at_20": "coverage@20",
}
RANKED = tuple(metric for metric in HEADS if not metric.startswith("coverage"))  # better models have more of them


def main() -> None:
    """Compare the models on each data set and show the result."""
    options = _options()
    budget = (options.models, options.trials, options.starts, SEED, options.limit)
    for source in options.data:
        study, goal = open_board(source)
        plan = TunedComparison(*budget, goal=goal)
        print(f"{study.name}: {study.data}; held out: {study.split}", flush=True)
        name = name_of(source)
        folder = options.folder / name
        result = compare_on(study, plan, folder, options.workers, name)
        print(page(study, result), flush=True)
        Picture("leaderboard", lambda width, result=result: draw(result)).save(folder)
        if options.write:
            write_page(name, study, result, folder)
            write_summary(name, {"command": command_of(source, options), **levels(result)})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="*", default=["groceries"], help=f"{', '.join(BOARDS)}, or files")
    parser.add_argument("--trials", type=int, default=12, help="settings to try per model")
    parser.add_argument("--starts", type=int, default=5, help="final fits per model that is random")
    parser.add_argument("--models", type=lambda text: tuple(text.split(",")), default=tuple(BASELINES))
    parser.add_argument("--folder", type=Path, default=Path("leaderboard"), help="folder of the results")
    parser.add_argument("--workers", type=int, default=None, help="trials at a time; by default one per core")
    parser.add_argument("--limit", type=float, default=300.0, help="time limit per fit, in seconds")
    parser.add_argument("--write", action="store_true", help="write docs/leaderboard.md")
    return parser.parse_args()


def name_of(source: str) -> str:
    """Return a word for a data set: its own name, the file's, or the folder's if the file's says nothing."""
    path = Path(source)
    word = path.parent.name if path.stem.startswith("interactions") and path.parent.name else path.name.split(".")[0]
    return re.sub(r"\W+", "_", word)


def short_path(source: str) -> str:
    """Return a path without the folders that differ between machines."""
    return source if source in BOARDS else "/".join(Path(source).parts[-2:])


def compare_on(study: Study, plan: TunedComparison, folder: Path, n_workers: int | None, title: str) -> Result:
    """Run or resume a comparison, and show its progress."""
    with RunsProgress(title, what="fits") as progress:
        report = shown_by(progress, partial(row_in_words, goal=plan.goal))
        # the worker processes do not need the items' names
        train, test = (replace(part, item_names=None) for part in (study.train, study.test))
        return compare_tuned(train, test, plan, folder, n_workers=n_workers, report=report)


# tables --------------------------------------------------------------------------------------------------------------


def page(study: Study, result: Result) -> str:
    """Return the tables of one data set as Markdown."""
    data, board = study.data, result.board()
    facts = (
        f"{data.n_users:,} users × {data.n_items:,} items, {data.nnz:,} non-zero counts; held out: {study.split}; "
        f"{board.n_users:,} users evaluated. Seconds are the median of the starts with {available_cores()} threads, "
        "megabytes the largest growth of a fit's process. Bold: the best of a column."
    )
    chosen = "The settings that the trials chose, and their NDCG on the counts set aside:"
    return "\n\n".join([literal(facts), quality_table(result), chosen, settings_table(result)])


def quality_table(result: Result) -> str:
    """Return a row per model, best first: metrics, the paired difference to the best, seconds, megabytes."""
    board, goal = result.board(), result.plan.goal
    others = [metric for metric in HEADS if metric != goal]
    leaders = {metric: max(result.rows, key=lambda model: result.level(model, metric).mean) for metric in RANKED}
    rows = []
    for contender in board:
        name = contender.name
        cells = {metric: f"{result.level(name, metric).mean:.4f}" for metric in HEADS}
        shown = {metric: bold(cell) if leaders.get(metric) == name else cell for metric, cell in cells.items()}
        apart = "" if name == board.reference else difference(board, name)
        costs = [_seconds(result.seconds(name)), _megabytes(result.rows[name]), str(contender.n_starts)]
        rows.append([literal(BASELINES[name].label), shown[goal], apart, *(shown[metric] for metric in others), *costs])
    for name, problem in result.problems().items():
        rows.append([literal(BASELINES[name].label), "failed", literal(problem), *[""] * (len(others) + 3)])
    heads = (HEADS[metric] for metric in others)
    head = ("model", HEADS[goal], "difference to the best (95 % interval)", *heads, "seconds", "MB", "starts")
    return table(head, rows)


def settings_table(result: Result) -> str:
    """Return the settings each model was compared with, and how its trials ranked the counts set aside."""
    rows = []
    for contender in result.board():
        name = contender.name
        trials = result.trials(name)
        n_failed = sum(bool(row.problem) for row in trials)
        words = (literal(BASELINES[name].label), literal(settings_in_words(result.settings[name] or {})))
        best = (_best(some, result.plan.goal) for some in (trials[:1], trials[1:]))
        rows.append([*words, *best, str(len(trials)), str(n_failed)])
    return table(("model", "chosen settings", "the defaults", "the best drawn", "trials", "failed"), rows, n_words=2)


def levels(result: Result) -> dict[str, Any]:
    """Return what the short table shows of a data set: each model's level, best first; None is a failure."""
    found: dict[str, Any] = {}
    for contender in result.board():
        low, high = contender.difference_interval
        found[contender.name] = {"level": round(contender.mean, 4), "is_level_with_best": bool(low <= 0 <= high)}
    return {"metric": HEADS[result.plan.goal], "models": found | dict.fromkeys(result.problems())}


def summary(boards: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the short table: each model's NDCG and its place among the models, best first on average.

    Bold are the best and those whose difference to it has an interval that contains 0.
    """
    places: dict[str, list[int]] = {}
    for board in boards.values():
        for place, (model, found) in enumerate(board["models"].items(), 1):
            places.setdefault(model, []).append(len(board["models"]) if found is None else place)
    average = {model: sum(found) / len(found) for model, found in places.items()}
    rows = []
    for model in sorted(average, key=lambda model: average[model]):
        cells = (_level(board["models"], model) for board in boards.values())
        rows.append([literal(BASELINES[model].label), *cells, f"{average[model]:.1f}"])
    heads = (f"{name}: {board['metric']}" for name, board in boards.items())
    return table(["model", *heads, "mean place"], rows)


def _level(models: Mapping[str, Any], model: str) -> str:
    if model not in models:
        return ""
    if models[model] is None:
        return "failed"
    shown = f"{models[model]['level']:.4f}"
    return bold(shown) if models[model]["is_level_with_best"] else shown


def _best(trials: Sequence[Row], goal: str) -> str:
    """Return the best NDCG of some trials, or nothing if there are none."""
    found = [row.means[goal] for row in trials if not row.problem]
    return f"{max(found):.4f}" if found else ""


def difference(board: Comparison, name: str) -> str:
    """Return the difference of a model to the reference, with its interval."""
    low, high = board[name].difference_interval
    return f"{board[name].difference:+.4f} ({low:+.4f} to {high:+.4f})"


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _megabytes(starts: Sequence[Row]) -> str:
    most = max(row.megabytes for row in starts)
    return "" if math.isnan(most) else f"{most:.0f}"


# picture -------------------------------------------------------------------------------------------------------------


def draw(result: Result) -> Figure:
    """Draw the NDCG against the seconds of a fit; a bar is the interval of the difference to the best."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    board = result.board()
    labels: list[tuple[str, float, float]] = []
    bars: list[tuple[float, float, float]] = []
    for contender in board:
        x, y = max(result.seconds(contender.name), LEAST_SECONDS), contender.mean
        below, above = (abs(bound - contender.difference) for bound in contender.difference_interval)
        color, marker = (VERMILLION, "o") if contender.name in OURS else (BLUE, "s")
        axes.errorbar(x, y, [[below], [above]], color=color, marker=marker, linestyle="none", capsize=2)
        labels.append((BASELINES[contender.name].label, x, y))
        bars.append((x, y - below, y + above))
    axes.set(xscale="log", xlabel="seconds of a fit", ylabel=f"{HEADS[result.plan.goal]}, held out")
    axes.margins(x=0.12, y=0.08)
    axes.grid(True)
    _label(figure, axes, labels, bars)
    return figure


def _label(
    figure: Figure,
    axes: Axes,
    labels: Sequence[tuple[str, float, float]],
    bars: Sequence[tuple[float, float, float]],
) -> None:
    """Write each label beside its point so that it meets no other label, no bar (x, from y, to y) and no edge."""
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()  # fixes all positions
    renderer = canvas.get_renderer()
    ends = [axes.transData.transform([(x, low), (x, high)]) for x, low, high in bars]
    taken = [Bbox(pair).padded(MARK_PIXELS) for pair in ends]
    inside = axes.get_window_extent(renderer)
    for label, x, y in labels:
        for across, up, side in _places():
            text = axes.annotate(
                label, (x, y), xytext=(across, up), textcoords="offset points", ha=side, va="center", fontsize=7,
                arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "0.5", "shrinkA": 0, "shrinkB": 3},
            )  # fmt: skip
            text.update_positions(renderer)
            box = Text.get_window_extent(text, renderer)  # without the line to its point, which meets the bar
            fits = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
            if fits and not any(box.overlaps(other) for other in taken):
                break
            text.remove()
        else:
            text = axes.annotate(
                label, (x, y), fontsize=7
            )  # nothing is free: two labels in one place are better than none
        taken.append(Text.get_window_extent(text, renderer))


def _places() -> Sequence[tuple[float, float, str]]:
    """Return the offsets of a label from its point, in points, the nearest first."""
    near = [(6.0, 0.0, "left"), (-6.0, 0.0, "right")]
    shifts = [
        (across, sign * up) for up in (8.0, 14.0, 20.0, 28.0, 38.0, 50.0) for across in (6.0, 16.0) for sign in (1, -1)
    ]
    return [*near, *((a, b, "left") for a, b in shifts), *((-a, b, "right") for a, b in shifts)]


# pages ---------------------------------------------------------------------------------------------------------------


def write_page(name: str, study: Study, result: Result, folder: Path) -> None:
    """Put the tables and the picture of a data set into docs."""
    image = f"leaderboard-{name}.png"
    write_whole(ROOT / "docs" / image, (folder / "leaderboard.png").read_bytes())
    shown = f"![NDCG on held-out counts against the seconds of a fit, {name}]({image})"
    text = f"## {name}\n\n{shown}\n\n{CAPTION}\n\n{page(study, result)}"
    put_between(ROOT / "docs" / "leaderboard.md", f"leaderboard {name}", text)


def write_summary(name: str, board: Mapping[str, Any]) -> None:
    """Put a data set into the short table, in the order of BOARDS, and its command on the page."""
    kept, shown = ROOT / "docs" / "leaderboard.json", ROOT / "docs" / "leaderboard.md"
    boards = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    boards[name] = dict(board)
    order = [*(known for known in BOARDS if known in boards), *(other for other in boards if other not in BOARDS)]
    boards = {each: boards[each] for each in order}
    write_whole(kept, json.dumps(boards, indent=1) + "\n")
    put_between(shown, "leaderboard command", "\n".join(f"    {each['command']}" for each in boards.values()))
    put_between(shown, "leaderboard summary", summary(boards))


def command_of(source: str, options: argparse.Namespace) -> str:
    """Return the command that was typed for one data set."""
    models = [] if options.models == tuple(BASELINES) else ["--models", ",".join(options.models)]
    budget = ["--trials", str(options.trials), "--starts", str(options.starts), "--limit", f"{options.limit:g}"]
    return shlex.join(["python", "benchmarks/leaderboard.py", short_path(source), *models, *budget, "--write"])


if __name__ == "__main__":
    main()
