"""A contest as tables and a picture: who ranks best, with which settings, for how many seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbmf.evaluation import Comparison
from nbmf.experiments.contest import GOAL, THRESHOLDS, FitRow, Standing
from nbmf.experiments.figures import BLUE, VERMILLION
from nbmf.experiments.grid import at_least
from nbmf.experiments.pages import Best, Table
from nbmf.experiments.rivals import RIVALS
from nbmf.experiments.search import settings_in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS = ("nbmf", "averaged", "nbslim")
SIZE = (5.6, 3.6)  # inches
LEAST_SECONDS = 1e-3  # less is hardly measured
MARK_PIXELS = 3.0  # half the width of a mark
HEADS = {
    GOAL: "NDCG on counts",
    **{at_least(s): f"count ≥ {s}" for s in THRESHOLDS},
    "recall_at_20": "recall@20",
}


def quality_table(standing: Standing) -> Table:
    """Return a row for each model, best first: metrics, the paired difference to the best, seconds, megabytes."""
    others = [metric for metric in HEADS if metric != GOAL]
    board = standing.compare()
    leaders = {metric: max(standing.starts, key=lambda model: standing.mean(model, metric)) for metric in HEADS}
    rows = []
    for contender in board:
        name = contender.name
        cells = {metric: f"{standing.mean(name, metric):.4f}" for metric in HEADS}
        shown = {metric: Best(cell) if leaders[metric] == name else cell for metric, cell in cells.items()}
        apart = "" if name == board.reference else difference(board, name)
        costs = [_seconds(standing.seconds(name)), _megabytes(standing.megabytes(name)), str(contender.n_starts)]
        rows.append([RIVALS[name].label, shown[GOAL], apart, *(shown[metric] for metric in others), *costs])
    for name, problem in standing.problems().items():
        rows.append([RIVALS[name].label, "failed", problem, *[""] * (len(others) + 3)])
    head = (
        "model",
        HEADS[GOAL],
        "difference to the best (95 % interval)",
        *(HEADS[metric] for metric in others),
        "seconds",
        "MB",
        "starts",
    )
    return Table(head, rows)


def settings_table(standing: Standing) -> Table:
    """Return which settings each model was judged with, and how its trials ranked the counts set aside."""
    rows = []
    for contender in standing.compare():
        name = contender.name
        trials = standing.trials(name)
        failed = sum(not row.is_sound for row in trials)
        words = settings_in_words(standing.settings[name] or {})
        rows.append([RIVALS[name].label, words, _best(trials[:1]), _best(trials[1:]), str(len(trials)), str(failed)])
    return Table(("model", "chosen settings", "the defaults", "the best drawn", "trials", "failed"), rows, n_words=2)


def _best(trials: Sequence[FitRow]) -> str:
    """Return the best NDCG of some trials; nothing where there are none."""
    found = [row.means[GOAL] for row in trials if row.is_sound]
    return f"{max(found):.4f}" if found else ""


def difference(board: Comparison, name: str) -> str:
    """Say how far a model is from the reference."""
    low, high = board[name].difference_interval
    return f"{board[name].difference:+.4f} ({low:+.4f} to {high:+.4f})"


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _megabytes(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.0f}"


def picture(standing: Standing) -> Figure:
    """Draw NDCG on counts against the seconds of a fit; a bar is the interval of the difference to the best."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (slow to import, and an extra)

    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    board = standing.compare()
    labels: list[tuple[str, float, float]] = []
    bars: list[tuple[float, float, float]] = []
    for contender in board:
        x, y = max(standing.seconds(contender.name), LEAST_SECONDS), contender.mean
        below, above = (abs(bound - contender.difference) for bound in contender.difference_interval)
        color, marker = (VERMILLION, "o") if contender.name in OURS else (BLUE, "s")
        axes.errorbar(x, y, [[below], [above]], color=color, marker=marker, linestyle="none", capsize=2)
        labels.append((RIVALS[contender.name].label, x, y))
        bars.append((x, y - below, y + above))
    axes.set(xscale="log", xlabel="seconds of a fit", ylabel="NDCG on held-out counts")
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
    """Write each label beside its point where it meets no other label, no bar (x, from y, to y) and no edge."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.text import Text as Words  # noqa: PLC0415
    from matplotlib.transforms import Bbox  # noqa: PLC0415

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()  # so that places are known
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
            box = Words.get_window_extent(text, renderer)  # without the line to its point, which meets the bar
            fits = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
            if fits and not any(box.overlaps(other) for other in taken):
                break
            text.remove()
        else:
            text = axes.annotate(label, (x, y), fontsize=7)  # nowhere is free: better two in one place than none
        taken.append(Words.get_window_extent(text, renderer))


def _places() -> Sequence[tuple[float, float, str]]:
    """Return where a label may stand, in points from its own, the nearest first."""
    near = [(6.0, 0.0, "left"), (-6.0, 0.0, "right")]
    shifts = [
        (across, sign * up) for up in (8.0, 14.0, 20.0, 28.0, 38.0, 50.0) for across in (6.0, 16.0) for sign in (1, -1)
    ]
    return [*near, *((a, b, "left") for a, b in shifts), *((-a, b, "right") for a, b in shifts)]
