"""The paper's pictures, drawn from numbers that others computed; each as PNG and PDF.

Sizes are those of print: one column is 3.4 inches, no letter is smaller than 6.5 points. Colours are those of Okabe and
Ito, and no two lines differ by colour alone.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmf.experiments.grid import LABELS
from nbmf.experiments.portrait import Portrait
from nbmf.experiments.results import Entry, Level, Shares
from nbmf.experiments.rows import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN = 3.4  # inches
DPI = 200
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILLION, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
LETTERS, N_NUMBERED = "abcdef", 6
N_MARKED = 3  # of the numbered, those that stand apart on an axis of logarithms
AXES_HEIGHT, KEY_LINE, KEY_WIDTH = 2.1, 0.118, 2.9  # inches of the portrait: its plots, a line of the key, a name in it
KEY_SIZE = 6.5  # points


class Look(NamedTuple):
    """How a line is told from the others."""

    color: str
    marker: str
    line: str

    def settings(self) -> dict[str, Any]:
        """Return them as Matplotlib calls them."""
        return {"color": self.color, "marker": self.marker, "linestyle": self.line}


LOOKS = {
    "nbmf": Look(BLUE, "o", "-"),
    "pf": Look(VERMILLION, "s", "--"),
    "binarized_pf": Look(GREEN, "^", "-."),
}
_CURVES = (Look(BLUE, "o", "-"), Look(VERMILLION, "s", "--"), Look(GREEN, "^", "-."), Look(BLACK, "x", ":"))


def _style() -> AbstractContextManager[None]:
    import matplotlib as mpl  # noqa: PLC0415 (slow to import, and an extra)

    return mpl.rc_context(
        {
            "font.size": 8,
            "axes.titlesize": 8,
            "axes.labelsize": 8,
            "xtick.labelsize": 7,
            "ytick.labelsize": 7,
            "legend.fontsize": 7,
            "legend.frameon": False,
            "legend.handlelength": 2.8,  # so that dashes and dots show
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.linewidth": 0.6,
            "grid.linewidth": 0.4,
            "grid.color": "0.85",
            "axes.axisbelow": True,
            "lines.linewidth": 1.2,
            "lines.markersize": 4,
            "pdf.fonttype": 42,  # letters stay letters
        }
    )


def _figure(height: float, width: float = COLUMN) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415

    return Figure(figsize=(width, height), layout="constrained")


def save(draw: Callable[[], Figure], folder: Path, name: str) -> tuple[Path, Path]:
    """Draw a picture and write it as PNG and PDF, the same bytes every time."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = (folder / f"{name}.png", folder / f"{name}.pdf")
    with _style():
        figure = draw()
        for path, metadata in zip(paths, ({"Software": None}, {"CreationDate": None}), strict=True):
            content = io.BytesIO()
            figure.savefig(content, format=path.suffix[1:], dpi=DPI, metadata=metadata)
            write_whole(path, content.getvalue())
    return paths


def histogram(shares: Shares, what: str = "count") -> Figure:
    """Draw which share of the non-zero counts is at least as large as each size."""
    figure = _figure(2.1)
    axes = figure.subplots()
    percent = [100 * share for share in shares.share]
    axes.step(shares.count, percent, where="pre", color=BLUE)
    axes.set(xscale="log", ylim=(0, 105), xlabel=f"{what} y", ylabel="non-zero counts\nof at least y (%)")
    for size in (2, 10):
        share = 100 * shares.at_least(size)
        axes.plot([size], [share], color=VERMILLION, marker="o", linestyle="none", clip_on=False)
        axes.annotate(
            f"y ≥ {size}: {share:.0f} %", (size, share), xytext=(5, 4), textcoords="offset points", fontsize=7
        )
    _plain_numbers(axes, "x")
    axes.grid(True, axis="y")
    return figure


def by_components(levels: Mapping[Entry, Level]) -> Figure:
    """Draw NDCG with rel_A against K, one line a model, with a band of one standard deviation over starts."""
    figure = _figure(2.5)
    axes = figure.subplots()
    for model in dict.fromkeys(entry.model for entry in levels):
        points = sorted((entry.n_components, level) for entry, level in levels.items() if entry.model == model)
        K, mean = [n for n, _ in points], [level.mean for _, level in points]
        sd = [0.0 if math.isnan(level.sd) else level.sd for _, level in points]
        axes.plot(K, mean, label=LABELS[model], **LOOKS[model].settings())
        low, high = ([m + sign * s for m, s in zip(mean, sd, strict=True)] for sign in (-1, 1))
        axes.fill_between(K, low, high, color=LOOKS[model].color, alpha=0.15, linewidth=0)
    ticks = sorted({entry.n_components for entry in levels})
    axes.set(xscale="log", xlabel="number of components K", ylabel="NDCG, relevance = count")
    axes.set_xticks(ticks, [str(K) for K in ticks], minor=False)
    axes.set_xticks([], minor=True)
    axes.grid(True, axis="y")
    _legend_above(figure, axes)
    return figure


def by_threshold(levels: Mapping[Entry, Mapping[int, Level]]) -> Figure:
    """Draw NDCG with rel_B against s, each model at the K that its legend names, with error bars over starts."""
    figure = _figure(2.5)
    axes = figure.subplots()
    for entry, by_s in levels.items():
        sd = [0.0 if math.isnan(level.sd) else level.sd for level in by_s.values()]
        means = [level.mean for level in by_s.values()]
        axes.errorbar(list(by_s), means, yerr=sd, capsize=2, label=_short(entry), **LOOKS[entry.model].settings())
    ticks = sorted({s for by_s in levels.values() for s in by_s})
    axes.set(xscale="log", xlabel="threshold s", ylabel="NDCG, relevance = 1[count ≥ s]")
    axes.set_xticks(ticks, [str(s) for s in ticks], minor=False)
    axes.set_xticks([], minor=True)
    axes.grid(True, axis="y")
    _legend_above(figure, axes)
    return figure


def mass_functions(counts: Sequence[int], curves: Mapping[float, Sequence[float]], mean: float) -> Figure:
    """Draw the negative binomial's mass function for several α, with Poisson as α = ∞."""
    figure = _figure(2.5)
    axes = figure.subplots()
    for look, (α, probability) in zip(_CURVES, curves.items(), strict=True):
        label = "α = ∞ (Poisson)" if α == math.inf else f"α = {α:g}"
        axes.plot(counts, probability, label=label, **look.settings())
    axes.set(xlabel="count y", ylabel=f"probability of y, mean {mean:g}", ylim=(0, None))
    axes.grid(True, axis="y")
    axes.legend()
    return figure


def divergences(counts: Sequence[float], curves: Mapping[float, Sequence[float]], intensity: float) -> Figure:
    """Draw d_α(a|b) against a for several α, with Kullback-Leibler's as α = ∞."""
    figure = _figure(2.5)
    axes = figure.subplots()
    for look, (α, value) in zip(_CURVES, curves.items(), strict=True):
        label = "α = ∞ (Kullback-Leibler)" if α == math.inf else f"α = {α:g}"
        settings = {**look.settings(), "markevery": len(counts) // 10}
        axes.plot(counts, value, label=label, **settings)
    axes.set(xlabel="a", ylabel=f"d$_α$(a | b = {intensity:g})  (nats)", ylim=(0, None), xlim=(0, None))
    axes.grid(True, axis="y")
    axes.legend()
    return figure


def portrait(one: Portrait) -> Figure:
    """Draw one user: exposure against count on the left, the scores of what is unseen on the right, both with names."""
    lettered = dict(zip(LETTERS, _extremes(one), strict=False))
    numbered = range(min(N_NUMBERED, len(one.unseen)))
    key = [
        "Taken, some of the most and the least exposed",
        *(f"  {letter}  {_cut(one.taken[n])}" for letter, n in lettered.items()),
    ]
    key += ["Unseen, the best scores, by rank", *(f"  {n + 1}  {_cut(one.unseen[n])}" for n in numbered)]
    below = KEY_LINE * (len(key) + 0.5)
    figure = _figure(AXES_HEIGHT + below)
    share = below / (AXES_HEIGHT + below)
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0, share, 1, 1 - share), wspace=0.06)  # type: ignore[call-arg]
    left, right = figure.subplots(1, 2)
    _draw_taken(left, one, lettered)
    _draw_unseen(right, one, numbered)
    figure.text(0.03, share, "\n".join(key), va="top", fontsize=KEY_SIZE, linespacing=1.3)
    return figure


def _draw_taken(axes: Axes, one: Portrait, lettered: Mapping[str, int]) -> None:
    axes.plot(one.count, one.exposure, "o", color=BLUE, markersize=3, alpha=0.6, markeredgewidth=0)
    axes.axhline(1, color=VERMILLION, linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="count y", ylabel="inferred exposure ⟨a⟩", title="taken")
    axes.margins(x=0.12, y=0.1)
    for letter, n in lettered.items():
        _mark(axes, letter, one.count[n], one.exposure[n])
    _plain_numbers(axes, "x", "y")


def _draw_unseen(axes: Axes, one: Portrait, numbered: Sequence[int]) -> None:
    axes.plot(range(1, len(one.score) + 1), one.score, "o", color="0.6", markersize=2.5, markeredgewidth=0)
    later = [n for n, held_out in enumerate(one.held_out) if held_out]
    if later:
        ranks, scores = [n + 1 for n in later], [one.score[n] for n in later]
        axes.plot(ranks, scores, "D", color=VERMILLION, markersize=3, markeredgewidth=0, label="held out")
        axes.legend(loc="upper right", handletextpad=0.1, handlelength=1, borderpad=0)
    axes.set(xscale="log", xlabel="rank", ylabel="score (expected count)", title="unseen")
    axes.set_ylim(0, None)
    for n in numbered[:N_MARKED]:
        _mark(axes, str(n + 1), n + 1, one.score[n])
    axes.set_xticks([10**power for power in range(len(str(len(one.score))))])
    _plain_numbers(axes, "x")


def _mark(axes: Axes, text: str, x: float, y: float) -> None:
    axes.annotate(text, (x, y), xytext=(2.5, 2), textcoords="offset points", fontsize=KEY_SIZE)


def _extremes(one: Portrait) -> list[int]:
    """Return which points get a letter: of the most and the least exposed, those that stand apart; from the top."""
    places = list(zip(_on_unit_axis(one.count), _on_unit_axis(one.exposure), strict=True))
    order = sorted(range(len(places)), key=lambda n: -one.exposure[n])
    chosen: list[int] = []
    for candidates, size in ((order, len(LETTERS) - 2), (order[::-1], len(LETTERS))):
        for n in candidates:
            if len(chosen) < size and all(_apart(places[n], places[other]) for other in chosen):
                chosen.append(n)
    return sorted(chosen, key=lambda n: -one.exposure[n])


def _on_unit_axis(values: Sequence[float]) -> list[float]:
    """Return where the values stand on an axis of logarithms that is 1 long."""
    logarithms = [math.log(value) for value in values]
    low, high = min(logarithms, default=0.0), max(logarithms, default=1.0)
    return [(value - low) / ((high - low) or 1.0) for value in logarithms]


def _apart(place: tuple[float, float], other: tuple[float, float]) -> bool:
    return max(abs(place[0] - other[0]), abs(place[1] - other[1])) > 0.1


def _short(entry: Entry) -> str:
    return f"{LABELS[entry.model]}, K = {entry.n_components}"


def _cut(name: str) -> str:
    """Return as much of a name as a line of the key has room for."""
    room = 72 * KEY_WIDTH
    width = _width(name)
    if width <= room:
        return name
    cut = name[: int(len(name) * room / width)]
    while _width(cut + "…") > room:
        cut = cut[:-1]
    return cut.rstrip() + "…"


def _width(text: str) -> float:
    from matplotlib.textpath import TextPath  # noqa: PLC0415

    return float(TextPath((0, 0), text, size=KEY_SIZE).get_extents().width)


def _legend_above(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), columnspacing=0.9, handlelength=2.2)


def _plain_numbers(axes: Axes, *which: str) -> None:
    """Write 100, not 10², on an axis of logarithms; on a short one 2 and 5 too."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    for name in which:
        axis = getattr(axes, f"{name}axis")
        low, high = sorted(getattr(axes, f"get_{name}lim")())
        if high < 100 * low:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
