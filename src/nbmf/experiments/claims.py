"""Each claim of the paper's §5 as a function of the rows, and the one rule that says whether it holds.

A claim is one or more comparisons, "this scores higher than that": the difference of NDCG user by user, each model
averaged over its starts, with the 95 % interval of users drawn anew. The rule, `judge` and `together`:

    holds            every interval lies above 0
    does not hold    some interval lies below 0
    undecided        otherwise, and where the grid has nothing to compare
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nbmf.experiments.grid import LABELS, at_least
from nbmf.experiments.results import REL_A, Entry, Results, count_shares

PAPER_MAXIMA = {"binarized_pf": 20, "nbmf": 50, "pf": 50}
"""The K at which each model was best in the paper."""


class Verdict(StrEnum):
    """What the numbers say of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNDECIDED = "undecided"


def judge(low: float, high: float) -> Verdict:
    """Say what the interval of a difference means for the claim that it is positive."""
    if low > 0:
        return Verdict.HOLDS
    return Verdict.FAILS if high < 0 else Verdict.UNDECIDED


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Say what several comparisons mean for the claim that is made of all of them."""
    found = set(verdicts)
    if found == {Verdict.HOLDS}:
        return Verdict.HOLDS
    return Verdict.FAILS if Verdict.FAILS in found else Verdict.UNDECIDED


@dataclass(frozen=True)
class Evidence:
    """One comparison: `better` should score higher than `worse`.

    levels : the NDCG of both
    difference, interval : of better less worse
    decides : False where it is told for information only
    """

    better: str
    worse: str
    metric: str
    levels: tuple[float, float]
    difference: float
    interval: tuple[float, float]
    decides: bool = True

    @property
    def verdict(self) -> Verdict:
        """What it says by itself."""
        return judge(*self.interval)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and what the numbers say of it."""

    name: str
    statement: str
    measured: str
    evidence: tuple[Evidence, ...]
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        evidence = [{**vars(item), "verdict": item.verdict} for item in self.evidence]
        return {**vars(self), "evidence": evidence}


@dataclass(frozen=True)
class Share:
    """A share that §5.1 tells of its data, in whole per cent."""

    what: str
    paper: int
    measured: float

    @property
    def agrees(self) -> bool:
        """Whether ours is the same after rounding."""
        return round(100 * self.measured) == self.paper


def all_claims(results: Results) -> list[Claim]:
    """Return every claim of §5.2, in the order of the paper."""
    return [
        beats_raw_counts(results),
        beats_binarized(results),
        *(peaks_at(results, model, K) for model, K in PAPER_MAXIMA.items()),
        binarized_leads_at_one(results),
        leads_above_one(results),
    ]


def beats_raw_counts(results: Results) -> Claim:
    """Judge Figure map_k: "NBMF clearly outperforms PF without pre-processing stage"."""
    return _ahead_on_counts(results, "pf", "NBMF clearly outperforms PF on raw counts (rel_A)")


def beats_binarized(results: Results) -> Claim:
    """Judge Figure map_k: NBMF "seems slightly better than PF on binarized data"."""
    return _ahead_on_counts(results, "binarized_pf", "NBMF is slightly better than binarized PF (rel_A)")


def peaks_at(results: Results, model: str, n_components: int) -> Claim:
    """Judge "the maximum score is achieved at" a K, against the best of the other numbers of components."""
    statement = f"The maximum of {LABELS[model]} is at K = {n_components} (rel_A)"
    name = f"{model} peaks at {n_components}"
    others = [K for K in results.grid.components if n_components != K]
    if model not in results.grid.models or n_components not in results.grid.components or not others:
        return _claim(name, statement, [])
    best = results.best(model)
    evidence = _apart(results, Entry(model, n_components), results.best(model, without=n_components), REL_A)
    return _claim(name, statement, [evidence], f"the highest mean is at K = {best.n_components}. ")


def binarized_leads_at_one(results: Results) -> Claim:
    """Judge Figure map threshold: "for s = 1, binarized PF seems better"."""
    statement = "At s = 1 binarized PF is the best (rel_B)"
    return _claim("binarized PF leads at s = 1", statement, _leads(results, "binarized_pf", [1]))


def leads_above_one(results: Results) -> Claim:
    """Judge Figure map threshold: for s > 1 "NBMF presents the best performances"."""
    above = [s for s in results.grid.thresholds if s > 1]
    statement = f"For s > 1 ({', '.join(map(str, above))}) NBMF is the best (rel_B)"
    return _claim("NBMF leads for s > 1", statement, _leads(results, "nbmf", above))


def data_shares(results: Results) -> list[Share]:
    """Return what §5.1 says of its data, beside what this data has."""
    data, shares = results.study.data, count_shares(results.study)
    ones = shares.at_least(1) - shares.at_least(2)
    return [
        Share("cells that are not zero", 5, data.nnz / (data.n_users * data.n_items)),
        Share("non-zero counts that are 1", 54, ones),
        Share("non-zero counts from 2", 46, shares.at_least(2)),
        Share("non-zero counts from 10", 5, shares.at_least(10)),
    ]


def _ahead_on_counts(results: Results, other: str, statement: str) -> Claim:
    """Each model at its best K decides; the same K for both is told beside it."""
    name = f"NBMF beats {LABELS[other]}"
    if not {"nbmf", other} <= set(results.grid.models):
        return _claim(name, statement, [])
    evidence = [_apart(results, results.best("nbmf"), results.best(other), REL_A)]
    for K in results.grid.components:
        evidence.append(_apart(results, Entry("nbmf", K), Entry(other, K), REL_A, decides=False))
    return _claim(name, statement, evidence)


def _leads(results: Results, model: str, thresholds: list[int]) -> list[Evidence]:
    """Compare a model with all others, each at its best K by rel_A."""
    if model not in results.grid.models:
        return []
    rivals = [entry for entry in results.chosen() if entry.model != model]
    known = [s for s in thresholds if s in results.grid.thresholds]
    return [_apart(results, results.best(model), rival, at_least(s)) for s in known for rival in rivals]


def _apart(results: Results, better: Entry, worse: Entry, metric: str, *, decides: bool = True) -> Evidence:
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
        measured = remark + in_words(deciding[0])
    else:
        found = ", ".join(f"{verdict} in {verdicts.count(verdict)}" for verdict in Verdict if verdict in verdicts)
        measured = f"{len(deciding)} comparisons: {found}"
    return Claim(name, statement, measured, tuple(evidence), together(verdicts))


def in_words(item: Evidence) -> str:
    """Return a comparison in a line."""
    low, high = item.interval
    levels = f"{item.better} {item.levels[0]:.4f}, {item.worse} {item.levels[1]:.4f}"
    return f"{levels}: {item.difference:+.4f} ({low:+.4f} to {high:+.4f})"
