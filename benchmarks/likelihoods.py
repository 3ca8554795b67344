"""One picture per likelihood: the probability of each count beside Poisson's, and what a count pulls on the factors.

python benchmarks/likelihoods.py                  (extra `plots`; takes a few seconds)

Writes docs/images/likelihood-NAME.png. On the left, counts have mean 3. Binary counts cannot, so they have intensity 1,
like Poisson beside them. The robust likelihood does not sum to 1; a logarithmic axis shows where it departs from
Poisson. On the right, at the same intensity: the events that a count counts for or, if exposures vary, its exposure.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from nbmf.estimators.check import INK, PAPER
from nbmf.evaluation.experiments.figures import BLUE, STYLE, VERMILLION
from nbmf.model.family import BernoulliPoisson, GeometricJumps, LogarithmicJumps, RobustPoisson, ZeroInflatedPoisson
from nbmf.model.likelihood import Likelihood, NegativeBinomial, Poisson, log_probability

FOLDER = Path(__file__).parents[1] / "docs" / "images"
SIZE, DPI, N_COLORS = (5.2, 2.0), 160, 64  # inches, pixels per inch, and a palette that keeps the files small
MEAN, BINARY_INTENSITY = 3.0, 1.0
INKS = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)


@dataclass(frozen=True)
class Case:
    """A likelihood, its name in words, and the ranges of the two panels."""

    likelihood: Likelihood
    name: str
    most: int = 15  # largest count on the left
    highest: float = 20.0  # end of the vertical axis on the right
    noted: int = 50  # count whose value is written out, the largest one on the right unless it is 0

    @property
    def intensity(self) -> float:
        """The intensity at which both panels are drawn."""
        return BINARY_INTENSITY if self.likelihood.most == 1 else MEAN / float(self.likelihood.unit_mean)

    @property
    def has_mean(self) -> bool:
        """Whether its counts have the mean; a binary count is too small for it, and a profile likelihood has none."""
        return self.likelihood.is_normalized and self.likelihood.most > MEAN

    @property
    def color(self) -> str:
        """Blue for Poisson itself."""
        return BLUE if isinstance(self.likelihood, Poisson) else VERMILLION


CASES = {
    "poisson": Case(Poisson(), f"Poisson, mean {MEAN:g}", highest=60),
    "negative-binomial": Case(NegativeBinomial(1.0), "negative binomial, α = 1"),
    "logarithmic-jumps": Case(LogarithmicJumps(0.9), "logarithmic jumps, θ = 0.9"),
    "geometric-jumps": Case(GeometricJumps(0.75), "geometric jumps, p = 0.75"),
    "zero-inflated": Case(ZeroInflatedPoisson(0.5), "zero-inflated, π = 0.5", highest=1.25, noted=0),
    "robust": Case(RobustPoisson(2.0), "robust, ρ = 2", most=25),
    "binary": Case(BernoulliPoisson(), "binary", most=6),
}


def draw_probability(axes: Axes, case: Case) -> None:
    """Draw bars for the likelihood and dots for Poisson, or dots for both, and the legend of the figure."""
    counts, names = np.arange(case.most + 1), [case.name]
    ours = np.exp(log_probability(case.likelihood, counts, case.intensity))
    if case.likelihood.is_normalized:
        handles = [axes.bar(counts, np.where(counts <= case.likelihood.most, ours, 0), 0.7, color=case.color)]
    else:
        handles = axes.semilogy(counts, ours, "s-", color=case.color)
    if case.color != BLUE:
        at, what = (MEAN, "mean") if case.has_mean else (case.intensity, "intensity")
        poisson = np.exp(log_probability(Poisson(), counts, at))
        handles += axes.plot(counts, poisson, "o--", color=BLUE, linewidth=0.8, markersize=3)
        names += [f"Poisson, same {what} ({at:g})"]
    axes.set(ylabel="probability" if case.likelihood.is_normalized else "likelihood")
    axes.figure.legend(handles, names, loc="outside upper center", ncols=2, handlelength=1.6)


def draw_pull(axes: Axes, case: Case) -> None:
    """Draw the events or the exposures of counts, and those of Poisson: as many events as counts, and exposure 1."""
    counts, has_exposure = np.arange((case.noted or case.most) + 1), case.likelihood.has_exposure
    poisson, ours = (
        (likelihood.exposure if has_exposure else likelihood.events)(counts, case.intensity)
        for likelihood in (Poisson(), case.likelihood)
    )
    axes.plot(counts, ours, "-" if case.noted else "s", color=case.color, linewidth=2, clip_on=False)
    if case.color != BLUE:
        axes.plot(counts, poisson, "--", color=BLUE, zorder=2 if case.noted else 1)
    note = f"count {case.noted}: " + ("exposure {:.2g}" if has_exposure else "{:.2g} events").format(ours[case.noted])
    look = {"xytext": (0, 5), "ha": "right"} if case.noted else {"xytext": (6, 4), "ha": "left"}
    look |= {"textcoords": "offset points", "color": case.color, "fontsize": 7}
    axes.annotate(note, (case.noted, ours[case.noted]), **look)
    axes.set(ylabel="exposure" if has_exposure else "events it counts for", ylim=(0, case.highest))


def main() -> None:
    """Draw all pictures."""
    with mpl.rc_context(INKS, fname=STYLE):
        for name, case in CASES.items():
            figure, content = Figure(figsize=SIZE, layout="constrained", facecolor=PAPER), io.BytesIO()
            for axes, draw in zip(figure.subplots(1, 2), (draw_probability, draw_pull), strict=True):
                draw(axes, case)
                axes.set(xlabel="count", facecolor=PAPER)
                axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True))
            figure.savefig(content, dpi=DPI)
            Image.open(content).convert("RGB").quantize(N_COLORS).save(FOLDER / f"likelihood-{name}.png", optimize=True)


if __name__ == "__main__":
    main()
