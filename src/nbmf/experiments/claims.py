"""The claims of the paper's §5, each decided by comparisons of the results.

A claim consists of one or more comparisons, "this scores higher than that": the mean difference of NDCG over users,
each model averaged over its starts, with the 95 % interval of resampled users. A claim

    holds            if every interval lies above 0
    does not hold    if some interval lies below 0
    is undecided     otherwise, or if the grid has nothing to compare
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from nbmf.experiments.paper import LABELS, REL_A, Entry, Results, at_least
from nbmf.experiments.study import Study

PAPER_MAXIMA = {"binarized_pf": 20, "nbmf": 50, "pf": 50}
"""The K at which each model was best in the paper."""


class Verdict(StrEnum):
    """What the results say about a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNDECIDED = "undecided"


def judge(low: float, high: float) -> Verdict:
    """Decide the claim that a difference is positive by its interval."""
    if low > 0:
        return Verdict.HOLDS
    return Verdict.FAILS if high < 0 else Verdict.UNDECIDED


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Decide a claim that consists of several comparisons: the worst verdict is that of the claim."""
    order = (Verdict.FAILS, Verdict.UNDECIDED, Verdict.HOLDS)
    return min(verdicts, key=order.index, default=Verdict.UNDECIDED)


@dataclass(frozen=True)
class Evidence:
    """One comparison: `better` should score higher than `worse`."""

    better: str
    worse: str
    metric: str
    levels: tuple[float, float]  # the NDCG of both
    difference: float  # better minus worse
    interval: tuple[float, float]
    decides: bool = True  # or is only informative

    @property
    def verdict(self) -> Verdict:
        """What this comparison says on its own."""
        return judge(*self.interval)

    def __str__(self) -> str:
        low, high = self.interval
        levels = f"{self.better} {self.levels[0]:.4f}, {self.worse} {self.levels[1]:.4f}"
        return f"{levels}: {self.difference:+.4f} ({low:+.4f} to {high:+.4f})"


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and what the results say about it."""

    name: str
    statement: str
    measured: str
    evidence: tuple[Evidence, ...]
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        evidence = [{**vars(item), "verdict": item.verdict} for item in self.evidence]
        return {**vars(self), "evidence": evidence}


class Share(NamedTuple):
    """A share that §5.1 gives for its data, in whole per cent, and ours."""

    what: str
    paper: int
    measured: float

    @property
    def agrees(self) -> bool:
        """Whether ours is the same after rounding."""
        return round(100 * self.measured) == self.paper


def all_claims(results: Results) -> list[Claim]:
    """Return every claim of §5.2, in the order of the paper."""
    above_one = [s for s in results.grid.thresholds if s > 1]
    thresholds = ", ".join(map(str, above_one))
    return [
        # Figure map_k: "NBMF clearly outperforms PF without pre-processing stage"
        _ahead_on_counts(results, "pf", "NBMF clearly outperforms PF on raw counts (rel_A)"),
        # Figure map_k: NBMF "seems slightly better than PF on binarized data"
        _ahead_on_counts(results, "binarized_pf", "NBMF is slightly better than binarized PF (rel_A)"),
        *(_peaks_at(results, model, K) for model, K in PAPER_MAXIMA.items()),
        # Figure map threshold: "for s = 1, binarized PF seems better"
        _leads(results, "binarized_pf", [1], "at s = 1", "At s = 1 binarized PF is the best (rel_B)"),
        # Figure map threshold: for s > 1 "NBMF presents the best performances"
        _leads(results, "nbmf", above_one, "for s > 1", f"For s > 1 ({thresholds}) NBMF is the best (rel_B)"),
    ]


def data_shares(study: Study) -> list[Share]:
    """Return what §5.1 says about its data beside what this data shows."""
    data, at_least = study.data, study.share_at_least
    return [
        Share("cells that are not zero", 5, data.nnz / (data.n_users * data.n_items)),
        Share("non-zero counts that are 1", 54, at_least(1) - at_least(2)),
        Share("non-zero counts from 2", 46, at_least(2)),
        Share("non-zero counts from 10", 5, at_least(10)),
    ]


def _ahead_on_counts(results: Results, other: str, statement: str) -> Claim:
    """Compare each model at its best K, which decides, and both at the same K, which informs."""
    name = f"NBMF beats {LABELS[other]}"
    if not {"nbmf", other} <= set(results.grid.models):
        return _claim(name, statement, [])
    evidence = [_compare(results, results.best("nbmf"), results.best(other), REL_A)]
    for K in results.grid.components:
        evidence.append(_compare(results, Entry("nbmf", K), Entry(other, K), REL_A, decides=False))
    return _claim(name, statement, evidence)


def _peaks_at(results: Results, model: str, n_components: int) -> Claim:
    """Compare "the maximum score is achieved at" K with the best of the other numbers of components."""
    statement = f"The maximum of {LABELS[model]} is at K = {n_components} (rel_A)"
    name = f"{model} peaks at {n_components}"
    components = results.grid.components
    if model not in results.grid.models or n_components not in components or len(components) == 1:
        return _claim(name, statement, [])
    evidence = _compare(results, Entry(model, n_components), results.best(model, without=n_components), REL_A)
    return _claim(name, statement, [evidence], f"the highest mean is at K = {results.best(model).n_components}. ")


def _leads(results: Results, model: str, thresholds: list[int], where: str, statement: str) -> Claim:
    """Compare a model with all others, each at its best K by rel_A."""
    name = f"{LABELS[model]} leads {where}"
    if model not in results.grid.models:
        return _claim(name, statement, [])
    others = [entry for entry in results.chosen() if entry.model != model]
    known = [s for s in thresholds if s in results.grid.thresholds]
    evidence = [_compare(results, results.best(model), other, at_least(s)) for s in known for other in others]
    return _claim(name, statement, evidence)


def _compare(results: Results, better: Entry, worse: Entry, metric: str, *, decides: bool = True) -> Evidence:
    comparison = results.compare([better, worse], metric, baseline=worse)
    ours, theirs = comparison[str(better)], comparison[str(worse)]
    levels = (ours.mean, theirs.mean)
    return Evidence(str(better), str(worse), metric, levels, ours.difference, ours.difference_interval, decides)


def _claim(name: str, statement: str, evidence: list[Evidence], remark: str = "") -> Claim:
    deciding = [item for item in evidence if item.decides]
    verdicts = [item.verdict for item in deciding]
    if not deciding:
        measured = "the grid has nothing to compare"
    elif len(deciding) == 1:
        measured = f"{remark}{deciding[0]}"
    else:
        found = ", ".join(f"{verdict} in {verdicts.count(verdict)}" for verdict in Verdict if verdict in verdicts)
        measured = f"{len(deciding)} comparisons: {found}"
    return Claim(name, statement, measured, tuple(evidence), together(verdicts))
