"""The experiments of the paper's §5: three models × numbers of components × random starts, and what they show.

A claim of the paper consists of one or more comparisons, "this scores higher than that": the mean difference of NDCG
over users, each model averaged over its starts, with the 95 % interval of resampled users. A claim

    holds            if every interval lies above 0
    does not hold    if some interval lies below 0
    is undecided     otherwise
    is not tested    if the grid has nothing to compare
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nbmf.estimators.nbmf import NBMF
from nbmf.evaluation.experiments.baselines import BASELINES
from nbmf.evaluation.experiments.engine import Engine, Report, Starts, Task, available_cores, check_each_once, timed
from nbmf.evaluation.experiments.store import Job, Store, write_whole
from nbmf.evaluation.experiments.study import Study

LABELS = {"nbmf": "NBMF", "pf": "PF", "binarized_pf": "binarized PF"}
"""The methods of §5.1 under the names of the paper."""
MAXIMA = {"binarized_pf": 20, "nbmf": 50, "pf": 50}
"""The K at which each model was best in the paper."""
REL_A = "ndcg_counts"
N_NAMED = 12  # of a user's best unseen items; more than a figure names
_NAMES = {"nbmf": "nbmf", "pf": "poisson", "binarized_pf": "binary"}
_DENSE_COST = 6  # roughly, a fit of NBMF with exact exposures takes six times as long as one of PF


def at_least(s: int) -> str:
    """Return the name of NDCG with rel_B."""
    return f"ndcg_at_least_{s}"


class Entry(NamedTuple):
    """A model with a number of components, averaged over its starts."""

    model: str
    n_components: int

    def __str__(self) -> str:
        return f"{LABELS[self.model]} (K = {self.n_components})"


# the grid of §5.1 -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """The settings of §5.1. The n-th start of each model and K has the seed `seed + n`."""

    components: tuple[int, ...] = (5, 10, 20, 50, 100, 200)
    n_starts: int = 5
    seed: int = 0
    thresholds: tuple[int, ...] = (1, 2, 3, 5, 10)
    models: tuple[str, ...] = field(default=tuple(LABELS), init=False)
    concentration: float = 1.0
    tol: float = 1e-5
    max_iter: int = 10_000

    def __post_init__(self) -> None:
        for name, values in (("components", self.components), ("thresholds", self.thresholds)):
            check_each_once(name, values)
            if min(values) < 1:
                raise ValueError(f"{name}: {min(values)} is not a whole number from 1")
        if self.n_starts < 1:
            raise ValueError(f"the number of starts is {self.n_starts}; there must be at least 1")
        if not 0 <= self.seed < 2**32 - self.n_starts:
            raise ValueError(f"seed is {self.seed}; it must lie between 0 and 2**32")

    @property
    def entries(self) -> list[Entry]:
        """Every model with every number of components."""
        return [Entry(model, K) for model in self.models for K in self.components]

    def jobs_of(self, entry: Entry) -> list[Job]:
        """Return one fit per random start."""
        model, K = entry
        settings: dict[str, Any] = {"n_components": K, "tol": self.tol, "max_iter": self.max_iter}
        if model == "nbmf":
            settings |= {"concentration": self.concentration, "input": "counts"}
        cost = float((_DENSE_COST if model == "nbmf" else 1) * (K + 10))
        named = ((f"{model}-{K}-{start}", self.seed + start) for start in range(self.n_starts))
        return [Job(name, _NAMES[model], seed, settings, cost) for name, seed in named]

    def jobs(self) -> list[Job]:
        """Return all fits, the longest first, so that all workers finish at about the same time."""
        jobs = [job for entry in self.entries for job in self.jobs_of(entry)]
        return sorted(jobs, key=lambda job: (-job.cost, job.name))


def open_store(study: Study, grid: Grid, path: str | Path) -> Store:
    """Open or create the folder of an experiment; ValueError if it holds another one."""
    return Store(Path(path), {"data": study.source(), "grid": asdict(grid), "made with": {"nbmf": version("nbmf")}})


def run_grid(
    study: Study, grid: Grid, path: str | Path, *, n_workers: int | None = None, report: Report = lambda event: None
) -> "Results":
    """Run a grid of fits in `n_workers` processes, one per core by default. An interrupted run resumes."""
    store, jobs = open_store(study, grid, path), grid.jobs()
    engine = Engine(store, len(jobs), sum(job.cost for job in jobs), report)
    task = Task(study.train, study.test, ("counts", *grid.thresholds), (), timed)
    engine.run(task, jobs, n_workers or available_cores())
    return Results(study, grid, store)


class Results(Starts):
    """All results of a grid, read from its folder."""

    def __init__(self, study: Study, grid: Grid, store: Store) -> None:
        missing = store.missing(grid.jobs())
        if missing:
            names = f"{len(missing)} fits are missing, among them {missing[0].name}"
            raise ValueError(f"{store.folder}: {names}; run the grid again")
        rows = store.rows()
        starts = {entry: [rows[job.name] for job in grid.jobs_of(entry)] for entry in grid.entries}
        super().__init__(store, starts, study.train, study.test)
        self.study, self.grid = study, grid

    def best(self, model: str, *, without: int | None = None) -> Entry:
        """Return the model with the number of components that does best by rel_A (of equals the smallest)."""
        entries = [Entry(model, K) for K in sorted(self.grid.components) if without != K]
        return max(entries, key=lambda entry: self.level(entry).mean)

    def chosen(self) -> list[Entry]:
        """Return each model at its best number of components by rel_A, as in the paper."""
        return [self.best(model) for model in self.grid.models]

    def summary(self) -> dict[str, Any]:
        """Return the tables as plain data: by model and K, and by threshold at each model's best K."""

        def cells(entry: Entry, metric: str) -> dict[str, Any]:
            return {"model": entry.model, "components": entry.n_components, **self.level(entry, metric)._asdict()}

        by_threshold = [{"s": s, **cells(e, at_least(s))} for s in self.grid.thresholds for e in self.chosen()]
        return {"ndcg_counts": [cells(entry, REL_A) for entry in self.grid.entries], "ndcg_at_least": by_threshold}


# the claims of §5.2 ---------------------------------------------------------------------------------------------------


class Verdict(StrEnum):
    """What the results say about a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNDECIDED = "undecided"
    UNTESTED = "not tested"


def judge(low: float, high: float) -> Verdict:
    """Decide the claim that a difference is positive by its interval."""
    if low > 0:
        return Verdict.HOLDS
    return Verdict.FAILS if high < 0 else Verdict.UNDECIDED


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Decide a claim by several comparisons: the worst verdict is that of the claim."""
    order = (Verdict.FAILS, Verdict.UNDECIDED, Verdict.HOLDS)
    return min(verdicts, key=order.index, default=Verdict.UNTESTED)


def tally(verdicts: Iterable[Verdict]) -> str:
    """Return how many claims hold, in one sentence.

    >>> tally([Verdict.HOLDS, Verdict.UNDECIDED, Verdict.UNDECIDED])
    '1 of 3 claims holds, 2 are undecided.'
    """
    found = list(verdicts)
    n = {verdict: found.count(verdict) for verdict in Verdict}
    verbs = {
        Verdict.HOLDS: ("holds", "hold"),
        Verdict.FAILS: ("does not hold", "do not hold"),
        Verdict.UNDECIDED: ("is undecided", "are undecided"),
        Verdict.UNTESTED: ("was not tested", "were not tested"),
    }
    parts = [f"{n[verdict]} {one if n[verdict] == 1 else many}" for verdict, (one, many) in verbs.items() if n[verdict]]
    first, *others = parts if n[Verdict.HOLDS] else ["0 hold", *parts]
    number, _, verb = first.partition(" ")
    return ", ".join([f"{number} of {len(found)} claims {verb}", *others]) + "."


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
        levels = f"{self.better} {self.levels[0]:.4f}, {self.worse} {self.levels[1]:.4f}"
        return f"{levels}: {self.difference:+.4f} ({in_words(self.interval)})"


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
        return {**vars(self), "evidence": [{**vars(item), "verdict": item.verdict} for item in self.evidence]}


def in_words(interval: tuple[float, float]) -> str:
    """Return both ends of the interval of a difference."""
    return f"{interval[0]:+.4f} to {interval[1]:+.4f}"


def all_claims(results: Results) -> list[Claim]:
    """Return every claim of §5.2, in the order of the paper."""
    above_one = [s for s in results.grid.thresholds if s > 1]
    thresholds = ", ".join(map(str, above_one))
    return [
        # Figure map_k: "NBMF clearly outperforms PF without pre-processing stage"
        _ahead_on_counts(results, "pf", "NBMF clearly outperforms PF on raw counts (rel_A)"),
        # Figure map_k: NBMF "seems slightly better than PF on binarized data"
        _ahead_on_counts(results, "binarized_pf", "NBMF is slightly better than binarized PF (rel_A)"),
        *(_peaks_at(results, model, K) for model, K in MAXIMA.items()),
        # Figure map threshold: "for s = 1, binarized PF seems better"
        _leads(results, "binarized_pf", [1], "at s = 1", "At s = 1 binarized PF is the best (rel_B)"),
        # Figure map threshold: for s > 1 "NBMF presents the best performances"
        _leads(results, "nbmf", above_one, "for s > 1", f"For s > 1 ({thresholds}) NBMF is the best (rel_B)"),
    ]


def data_shares(study: Study) -> list[tuple[str, int, float]]:
    """Return each share that §5.1 gives for its data, in whole per cent, and that of this data."""
    data, at_least = study.data, study.share_at_least
    return [
        ("cells that are not zero", 5, data.nnz / (data.n_users * data.n_items)),
        ("non-zero counts that are 1", 54, at_least(1) - at_least(2)),
        ("non-zero counts from 2", 46, at_least(2)),
        ("non-zero counts from 10", 5, at_least(10)),
    ]


def _ahead_on_counts(results: Results, other: str, statement: str) -> Claim:
    """Compare each model at its best K, which decides, and both at the same K, which informs."""
    evidence = [_compare(results, results.best("nbmf"), results.best(other), REL_A)]
    for K in results.grid.components:
        evidence.append(_compare(results, Entry("nbmf", K), Entry(other, K), REL_A, decides=False))
    return _claim(f"NBMF beats {LABELS[other]}", statement, evidence)


def _peaks_at(results: Results, model: str, K: int) -> Claim:
    """Compare "the maximum score is achieved at" K with the best of the other numbers of components."""
    evidence = []
    if K in results.grid.components and len(results.grid.components) > 1:
        evidence.append(_compare(results, Entry(model, K), results.best(model, without=K), REL_A))
    remark = f"The highest mean is at K = {results.best(model).n_components}. "
    return _claim(f"{model} peaks at {K}", f"The maximum of {LABELS[model]} is at K = {K} (rel_A)", evidence, remark)


def _leads(results: Results, model: str, thresholds: list[int], where: str, statement: str) -> Claim:
    """Compare a model with all others, each at its best K by rel_A."""
    others = [entry for entry in results.chosen() if entry.model != model]
    known = [s for s in thresholds if s in results.grid.thresholds]
    evidence = [_compare(results, results.best(model), other, at_least(s)) for s in known for other in others]
    return _claim(f"{LABELS[model]} leads {where}", statement, evidence)


def _compare(results: Results, better: Entry, worse: Entry, metric: str, *, decides: bool = True) -> Evidence:
    comparison = results.compare([better, worse], metric, baseline=worse)
    ours, theirs = comparison[str(better)], comparison[str(worse)]
    levels = (ours.mean, theirs.mean)
    return Evidence(str(better), str(worse), metric, levels, ours.difference, ours.difference_interval, decides)


def _claim(name: str, statement: str, evidence: list[Evidence], remark: str = "") -> Claim:
    deciding = [item for item in evidence if item.decides]
    verdicts = [item.verdict for item in deciding]
    measured = f"{remark}{deciding[0]}" if deciding else f"{remark}The grid has nothing to compare."
    if len(deciding) > 1:
        found = ", ".join(f"{verdict} in {verdicts.count(verdict)}" for verdict in Verdict if verdict in verdicts)
        measured = f"{len(deciding)} comparisons: {found}"
    return Claim(name, statement, measured, tuple(evidence), together(verdicts))


# one user of §5.2 -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Portrait:
    """One user according to one fitted NBMF."""

    user: str
    model: str
    n_components: int
    taken: list[str]  # names of the user's items in train, largest count first
    count: list[float]  # y of each
    exposure: list[float]  # ⟨a⟩ of each
    unseen: list[str]  # names of the best items not in train
    score: list[float]  # Σ_k ⟨w⟩⟨h⟩ of all items not in train, best first
    held_out: list[bool]  # whether each of those is in test


def portray(study: Study, model: Any, user: Any = None) -> Portrait:
    """Return the portrait of a user, chosen by `row_of`, by an NBMF fitted to `study.train`."""
    row = row_of(study, user)
    named = study.data.users.tolist()[row]
    exposures, labels = model.exposures(named), study.labels()
    label_of = dict(zip(study.data.items.tolist(), labels, strict=True))
    score = (model.item_factors_ @ model.user_factors_[row]).astype(np.float64)
    unseen = np.setdiff1d(np.arange(study.data.n_items), study.train.matrix[[row]].indices)
    unseen = unseen[np.argsort(-score[unseen], kind="stable")]
    return Portrait(
        str(named),
        type(model).__name__,
        model.n_components,
        [label_of[item] for item in exposures.item.tolist()],
        exposures.count.astype(float).tolist(),
        exposures.exposure.astype(float).tolist(),
        [labels[item] for item in unseen[:N_NAMED]],
        score[unseen].tolist(),
        np.isin(unseen, study.test.matrix[[row]].indices).tolist(),
    )


def kept_portrait(results: Results, user: Any = None) -> Portrait:
    """Return the portrait by the best NBMF fit, which is kept in the folder.

    The fit is repeated from its seed, which gives the same bits, so that no factors need to be stored.
    """
    # the fit with the highest objective at the best number of components by rel_A
    job = max(results.rows[results.best("nbmf")], key=lambda row: row.convergence["objective"]).job
    wanted = {"fit": job.name, "asked for": None if user is None else str(user)}
    path = results.store.folder / "portrait.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if stored and all(stored.get(name) == value for name, value in wanted.items()):
        return Portrait(**stored["portrait"])
    row_of(results.study, user)  # raises for an unknown user before the fit
    model = BASELINES[job.model].fit(results.study.train, job.seed, available_cores(), **job.settings)
    assert isinstance(model, NBMF)
    if not model.converged_ and model.n_iter_ < results.grid.max_iter:
        raise KeyboardInterrupt  # Ctrl-C cut the fit short
    portrait = portray(results.study, model, user)
    write_whole(path, json.dumps({**wanted, "portrait": asdict(portrait)}, indent=1, ensure_ascii=False) + "\n")
    return portrait


def row_of(study: Study, user: Any = None) -> int:
    """Return the row of a user given by id, as a value or as text.

    None chooses, among users with a middling number of items, the one with the most different counts.
    """
    ids, matrix = study.data.users.tolist(), study.train.matrix
    if user is None:
        n_items = np.diff(matrix.indptr)
        low, high = np.quantile(n_items, (0.25, 0.75))
        middling = np.flatnonzero((n_items >= low) & (n_items <= high))
        counts = np.split(matrix.data, matrix.indptr[1:-1])
        return int(max(middling, key=lambda row: len(np.unique(counts[row]))))
    named = [n for n, known in enumerate(ids) if known == user or str(known) == str(user)]
    if not named:
        raise ValueError(f"user {user!r} is not among the {len(ids)} users; the first is {ids[0]!r}")
    return named[0]
