"""The figures of the paper, drawn from results and written as PNG and PDF for print and as SVG for the report.

No text is smaller than 6.5 points. SVG takes the colour of text and axes from the reader's colour scheme. The colours
are those of Okabe and Ito, and no two lines differ by colour alone.
"""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmf.evaluation.experiments.engine import Level
from nbmf.evaluation.experiments.paper import LABELS, Entry, Portrait, Results, at_least
from nbmf.evaluation.experiments.store import write_whole
from nbmf.evaluation.experiments.study import Study
from nbmf.model.likelihood import NegativeBinomial, Poisson, divergence, log_probability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.4, 6.8  # inches: widths in print and on a phone, and on a wide screen
BLACK, BLUE, GREEN, VERMILLION = "#000000", "#0072B2", "#009E73", "#D55E00"
LETTERS, N_NUMBERED = "abcdef", 6
N_MARKED = 3  # of the numbered items; the first ranks stand far enough apart on a logarithmic axis
AXES_HEIGHT, KEY_LINE, KEY_WIDTH = 2.1, 0.118, 2.9  # inches of a portrait: its plots, a line of its key, a name in it
KEY_SIZE = 6.5  # points
CONCENTRATIONS = (0.5, 1.0, 10.0, math.inf)
MEAN_COUNT = 5.0  # of the mass functions
INTENSITY = 1.0  # b of d_α(a|b), as in the paper
STYLE = Path(__file__).with_suffix(".mplstyle")
SCHEMES = "svg{color:#1b1b1b;fill:currentColor}@media(prefers-color-scheme:dark){svg{color:#e8e8e4}}"
MOST_SHAPES = 3000  # points that an SVG keeps as shapes

Lines = Mapping[str, Mapping[int, Level]]  # by model and place on the axis
_CURVES = [
    {"color": color, "marker": marker, "linestyle": line}
    for color, marker, line in ((BLUE, "o", "-"), (VERMILLION, "s", "--"), (GREEN, "^", "-."), (BLACK, "x", ":"))
]
LOOKS = dict(zip(LABELS, _CURVES, strict=False))


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its files."""

    name: str
    draw: "Callable[[float], Figure]"  # of a width in inches

    def save(self, folder: Path) -> None:
        """Write PNG and PDF, the same bytes every time."""
        import matplotlib as mpl  # noqa: PLC0415 (slow to import, and an extra)

        folder.mkdir(parents=True, exist_ok=True)
        with mpl.rc_context(fname=STYLE):
            figure = self.draw(COLUMN)
            for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
                content = io.BytesIO()
                figure.savefig(content, format=kind, dpi=200, metadata=metadata)
                write_whole(folder / f"{self.name}.{kind}", content.getvalue())

    def save_for_screens(self, folder: Path) -> None:
        """Write SVG for phones and, twice as wide, for other screens; the same bytes every time."""
        import matplotlib as mpl  # noqa: PLC0415

        folder.mkdir(parents=True, exist_ok=True)
        with mpl.rc_context(fname=STYLE):
            for kind, width in (("", COLUMN), ("_wide", PAGE)):
                write_whole(folder / f"{self.name}{kind}.svg", _for_both_schemes(self.draw(width)))


def _for_both_schemes(figure: "Figure") -> bytes:
    """Return a figure as SVG in which everything black takes the colour of the text around it."""
    content = io.StringIO()
    figure.savefig(content, format="svg", dpi=200, metadata={"Date": None}, transparent=True)
    return (
        content.getvalue()
        .replace("<style", f"<style>{SCHEMES}</style><style", 1)
        .replace(BLACK, "currentColor")
        .encode()
    )


def all_pictures(results: Results, portrait: Portrait) -> list[Picture]:
    """Return all figures of a report, in its order."""
    return [
        Picture("ndcg_by_components", partial(_draw_by_components, results)),
        Picture("ndcg_by_threshold", partial(_draw_by_threshold, results)),
        of_user(portrait),
        Picture("histogram", partial(_draw_histogram, results.study)),
        Picture("mass_functions", _draw_mass_functions),
        Picture("divergences", _draw_divergences),
    ]


def of_user(portrait: Portrait) -> Picture:
    """Figure explore A: the exposures and scores of one user."""
    return Picture("exposure", partial(_draw_portrait, portrait))


def _figure(width: float, height: float, n_columns: int = 1) -> "tuple[Figure, Any]":
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, n_columns)


def _draw_by_components(results: Results, width: float) -> "Figure":
    """Figure map_k: NDCG with rel_A against K."""
    grid = results.grid
    lines = {model: {K: results.level(Entry(model, K)) for K in grid.components} for model in grid.models}
    return _draw_levels(width, lines, LABELS, "number of components K", "NDCG, relevance = count")


def _draw_by_threshold(results: Results, width: float) -> "Figure":
    """Figure map threshold: NDCG with rel_B against s, each model at its best K."""
    chosen = results.chosen()
    lines = {e.model: {s: results.level(e, at_least(s)) for s in results.grid.thresholds} for e in chosen}
    names = {entry.model: f"{LABELS[entry.model]}, K = {entry.n_components}" for entry in chosen}
    return _draw_levels(width, lines, names, "threshold s", "NDCG, relevance = 1[count ≥ s]")


def _draw_mass_functions(width: float) -> "Figure":
    """Figure of §2.1: the negative binomial's mass function for several α, with Poisson as α = ∞."""
    counts, mean = np.arange(16), np.full(16, MEAN_COUNT)
    likelihoods = {α: Poisson() if α == math.inf else NegativeBinomial(α) for α in CONCENTRATIONS}
    curves = {α: np.exp(log_probability(likelihood, counts, mean)) for α, likelihood in likelihoods.items()}
    return _draw_curves(width, counts, curves, "Poisson", "count y", f"probability of y, mean {MEAN_COUNT:g}")


def _draw_divergences(width: float) -> "Figure":
    """Figure div_nbf: d_α(a|b) against a for several α, with Kullback-Leibler's as α = ∞."""
    counts = np.linspace(0, 5, 201)
    curves = {α: divergence(α, counts, np.full(len(counts), INTENSITY)) for α in CONCENTRATIONS}
    return _draw_curves(width, counts, curves, "Kullback-Leibler", "a", f"d$_α$(a | b = {INTENSITY:g})  (nats)")


def _draw_levels(width: float, lines: Lines, names: Mapping[str, str], xlabel: str, ylabel: str) -> "Figure":
    """Draw one line per model with error bars of one standard deviation over starts."""
    figure, axes = _figure(width, 2.5)
    for model, levels in lines.items():
        x = sorted(levels)
        mean, sd = zip(*(levels[place] for place in x), strict=True)
        axes.errorbar(x, mean, yerr=np.nan_to_num(sd), capsize=2, label=names[model], **LOOKS[model])
    ticks = sorted({x for levels in lines.values() for x in levels})
    axes.set(xscale="log", xlabel=xlabel, ylabel=ylabel)
    axes.set_xticks(ticks, [str(x) for x in ticks], minor=False)
    axes.set_xticks([], minor=True)
    axes.grid(True, axis="y")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), columnspacing=0.9, handlelength=2.2)
    return figure


def _draw_curves(
    width: float, counts: Any, curves: Mapping[float, Any], limit: str, xlabel: str, ylabel: str
) -> "Figure":
    """Draw one curve per α; `limit` names the one at infinity."""
    figure, axes = _figure(width, 2.5)
    for look, (α, values) in zip(_CURVES, curves.items(), strict=True):
        label = f"α = ∞ ({limit})" if α == math.inf else f"α = {α:g}"
        axes.plot(counts, values, label=label, markevery=max(1, len(counts) // 15), **look)
    axes.set(xlabel=xlabel, ylabel=ylabel, ylim=(0, None))
    axes.grid(True, axis="y")
    axes.legend()
    return figure


def _draw_histogram(study: Study, width: float) -> "Figure":
    from matplotlib.ticker import PercentFormatter  # noqa: PLC0415

    figure, axes = _figure(width, 2.1)
    sizes, numbers = np.unique(study.data.matrix.data, return_counts=True)
    axes.step(sizes, numbers[::-1].cumsum()[::-1] / numbers.sum(), where="pre", color=BLUE)
    axes.set(xscale="log", ylim=(0, 1.05), xlabel="count y", ylabel="non-zero counts\nof at least y")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    for size in (2, 10):
        place = (size, study.share_at_least(size))
        axes.plot(*place, color=VERMILLION, marker="o", linestyle="none", clip_on=False)
        axes.annotate(f"y ≥ {size}: {place[1]:.0%}", place, xytext=(5, 4), textcoords="offset points", fontsize=7)
    _plain_numbers(axes, "x")
    axes.grid(True, axis="y")
    return figure


def _draw_portrait(one: Portrait, width: float) -> "Figure":
    """Draw exposure against count on the left, the scores of unseen items on the right, and a key of names below."""
    lettered = dict(zip(LETTERS, _extremes(one), strict=False))
    numbered = range(min(N_NUMBERED, len(one.unseen)))
    key = ["The user's items: some of the most and the least exposed"]
    key += [f"  {letter}  {_cut(one.taken[n])}" for letter, n in lettered.items()]
    unseen = ["Unseen items: the best scores, by rank", *(f"  {n + 1}  {_cut(one.unseen[n])}" for n in numbered)]
    keys = [key, unseen] if width >= 2 * COLUMN else [key + unseen]  # below each other, or side by side
    below = KEY_LINE * (max(map(len, keys)) + 0.5)
    figure, (left, right) = _figure(width, AXES_HEIGHT + below, 2)
    share = below / (AXES_HEIGHT + below)
    figure.get_layout_engine().set(rect=(0, share, 1, 1 - share), wspace=0.06)  # type: ignore[union-attr, call-arg]
    _draw_taken(left, one, lettered)
    _draw_unseen(right, one, numbered)
    for n, lines in enumerate(keys):
        figure.text(0.03 + n / 2, share, "\n".join(lines), va="top", fontsize=KEY_SIZE, linespacing=1.3)
    return figure


def _draw_taken(axes: "Axes", one: Portrait, lettered: Mapping[str, int]) -> None:
    axes.plot(one.count, one.exposure, "o", color=BLUE, markersize=3, alpha=0.6, markeredgewidth=0)
    axes.axhline(1, color=VERMILLION, linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="count y", ylabel="inferred exposure ⟨a⟩", title="the user's items")
    axes.margins(x=0.12, y=0.1)
    for letter, n in lettered.items():
        _mark(axes, letter, one.count[n], one.exposure[n])
    _plain_numbers(axes, "x", "y")


def _draw_unseen(axes: "Axes", one: Portrait, numbered: Sequence[int]) -> None:
    many = len(one.score) > MOST_SHAPES
    places = range(1, len(one.score) + 1)
    axes.plot(places, one.score, "o", color="0.6", markersize=2.5, markeredgewidth=0, rasterized=many)
    later = [n for n, held_out in enumerate(one.held_out) if held_out]
    if later:
        ranks, scores = [n + 1 for n in later], [one.score[n] for n in later]
        axes.plot(ranks, scores, "D", color=VERMILLION, markersize=3, markeredgewidth=0, label="held out")
        axes.legend(loc="upper right", handletextpad=0.1, handlelength=1, borderpad=0)
    axes.set(xscale="log", xlabel="rank", ylabel="score (expected count)", title="unseen items")
    axes.set_ylim(0, None)
    for n in numbered[:N_MARKED]:
        _mark(axes, str(n + 1), n + 1, one.score[n])
    axes.set_xticks([10**power for power in range(len(str(len(one.score))))])
    _plain_numbers(axes, "x")


def _mark(axes: "Axes", text: str, x: float, y: float) -> None:
    axes.annotate(text, (x, y), xytext=(2.5, 2), textcoords="offset points", fontsize=KEY_SIZE)


def _extremes(one: Portrait) -> list[int]:
    """Return the points that get a letter: of the most and the least exposed those that stand apart, from the top."""
    places = np.stack([_on_unit_axis(one.count), _on_unit_axis(one.exposure)], axis=1)
    order = sorted(range(len(places)), key=lambda n: -one.exposure[n])
    chosen: list[int] = []
    for candidates, size in ((order, len(LETTERS) - 2), (order[::-1], len(LETTERS))):
        for n in candidates:
            if len(chosen) < size and all(np.abs(places[n] - places[other]).max() > 0.1 for other in chosen):
                chosen.append(n)
    return sorted(chosen, key=lambda n: -one.exposure[n])


def _on_unit_axis(values: Sequence[float]) -> Any:
    logarithms = np.log(values)
    return logarithms / (np.ptp(logarithms) or 1.0) if len(values) else logarithms


def _cut(name: str) -> str:
    from matplotlib.textpath import TextPath  # noqa: PLC0415

    while TextPath((0, 0), name, size=KEY_SIZE).get_extents().width > 72 * KEY_WIDTH:
        name = name.removesuffix("…")[:-1].rstrip() + "…"
    return name


def _plain_numbers(axes: "Axes", *which: str) -> None:
    """Write 100, not 10², on a logarithmic axis; on a short one 2 and 5, too."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    for name in which:
        axis = getattr(axes, f"{name}axis")
        low, high = sorted(getattr(axes, f"get_{name}lim")())
        if high < 100 * low:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
