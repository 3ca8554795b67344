"""Which model of the family suits a data set: the likelihood says which is right, the ranking which recommends best.

Both are asked of counts that the fits have not seen. For the likelihood, cells drawn at random, zeros among them, are
left out of the fit (held_out.py). For the ranking, counts are held out as for `nbmf.evaluate`. Differences are paired:
they are of the same users, resampled.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from nbmf.data.interactions import Interactions
from nbmf.estimators.base import Recommender
from nbmf.estimators.factorize import check_seed
from nbmf.estimators.family import BinaryMF, CompoundMF, RobustMF, ZeroInflatedMF
from nbmf.estimators.metrics import check_whole
from nbmf.estimators.nbmf import NBMF, PoissonMF
from nbmf.estimators.table import RowTable, Shown
from nbmf.evaluation.compare import Comparison, compare
from nbmf.evaluation.held_out import Parts, sampled
from nbmf.evaluation.judging import GOAL, Entrant, Finding
from nbmf.evaluation.resampling import intervals, resampled_ratios
from nbmf.inference.progress import RunsProgress

FAMILY: dict[str, Any] = {
    "PoissonMF": PoissonMF(),
    "NBMF": NBMF(concentration="learn"),  # so that the likelihood is judged, and not α = 1
    "CompoundMF": CompoundMF(),
    "CompoundMF geometric": CompoundMF(jumps="geometric"),
    "ZeroInflatedMF": ZeroInflatedMF(),
    "RobustMF": RobustMF(),
    "BinaryMF": BinaryMF(),
}
"""The models that `choose` compares by default, the simpler before the less simple."""

SHAPES = (0.3, 1.0)  # of both priors: they matter as much as the likelihood, but are not what is being compared
MOST_SWEEPS = 100
PENALTY = 1.5  # of RobustMF, in units of 1/density: 10, 30 and 100 ranked best at 1/density 6, 23 and 75
NEGLIGIBLE = 0.01  # nats per held-out count: no reason for a less simple likelihood, however certain they are
N_BOOT = 1000
SHOWN = {"n_components": "K =", "user_shape": "shape"}  # settings in a table
NONE = math.nan, math.nan


@dataclass(frozen=True)
class Candidate:
    """One model of a choice.

    Attributes
    ----------
    name : str
    estimator : estimator
        Not fitted, with the settings that were found.
    log_likelihood : float
        Mean of ln p(count) over the held-out cells, zeros included; nan if it cannot be compared.
    difference, difference_interval : float, tuple of float
        To the largest log-likelihood; an interval that ends below 0 tells the two apart. One user has no interval.
    ndcg, ndcg_interval : float, tuple of float
        NDCG on counts, of all items that a user has not in train, as `nbmf.evaluate` computes it.
    note : str
        What the likelihood has learned, or why its log-likelihood cannot be compared.
    seconds : float
        Time of one fit.
    """

    name: str
    estimator: Any
    log_likelihood: float
    difference: float
    difference_interval: tuple[float, float]
    ndcg: float
    ndcg_interval: tuple[float, float]
    note: str
    seconds: float


@dataclass(frozen=True, repr=False)
class Choice(Sequence[Candidate], RowTable):
    """The models by name or by place, the most likely first, and which of them is recommended.

    Attributes
    ----------
    recommended, reason : str
        Name of the recommended model, and why, in a sentence or two.
    ranks_best : str
        Name of the model with the largest NDCG.
    n_users, n_counts, n_cells : int
        Users and non-zero counts that were looked at, and cells on which likelihoods were compared.
    """

    candidates: tuple[Candidate, ...]
    recommended: str
    reason: str
    ranks_best: str
    n_users: int
    n_counts: int
    n_cells: int

    @property
    def best(self) -> Any:
        """The recommended estimator with the settings that were found, not fitted: `choice.best.fit(data)`."""
        return clone(self[self.recommended].estimator)

    def __getitem__(self, which: Any) -> Any:
        if not isinstance(which, str):
            return self.candidates[which]
        named = {candidate.name: candidate for candidate in self.candidates}
        if which not in named:
            raise KeyError(f"there is no {which!r}; there are {', '.join(named)}")
        return named[which]

    def __len__(self) -> int:
        return len(self.candidates)

    def shown(self) -> Shown:
        """Return title, heads and rows."""
        rows = []
        for c in self.candidates:
            known, settings = not math.isnan(c.log_likelihood), c.estimator.get_params(deep=False)
            likely = f"{c.log_likelihood:.5f}", f"{c.difference:.5f}", "{:.5f}, {:.5f}".format(*c.difference_interval)
            ranks = f"{c.ndcg:.4f}", "{:.4f}, {:.4f}".format(*c.ndcg_interval)
            chosen = ", ".join(f"{word} {settings[name]}" for name, word in SHOWN.items() if name in settings)
            rows.append([c.name, *(likely if known else [""] * 3), *ranks, f"{c.seconds:.1f}", chosen, c.note])
        likelihood, ranking = ("log-likelihood", "difference", "95 % interval"), ("NDCG", "95 % interval")
        head = "", *likelihood, *ranking, "seconds", "settings", "note"
        return self.reason, head, rows

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain dictionary per model."""
        rows = []
        for c in self.candidates:
            (low, high), (ndcg_low, ndcg_high) = c.difference_interval, c.ndcg_interval
            likely = {"log_likelihood": c.log_likelihood, "difference": c.difference}
            ranks = {"ndcg": c.ndcg, "ndcg_low": ndcg_low, "ndcg_high": ndcg_high}
            settings = {name: c.estimator.get_params(deep=False).get(name) for name in SHOWN}
            own = {**settings, "seconds": c.seconds, "note": c.note, "recommended": c.name == self.recommended}
            rows.append({"name": c.name, **likely, "difference_low": low, "difference_high": high, **ranks, **own})
        return rows


def choose(
    data: Any,
    models: Iterable[Any] | None = None,
    *,
    n_components: int | Iterable[int] = (10, 30),
    test_fraction: float = 0.2,
    max_counts: int = 100_000,
    random_state: Any = 0,
    n_threads: int | None = None,
    verbose: bool = False,
) -> Choice:
    """Recommend a model for a data set, by the likelihood and the ranking of held-out counts.

    The recommended model is the one whose likelihood makes held-out cells most probable. If its difference to a simpler
    one is within the error (the paired 95 % interval, over resampled users, has 0 in it) or below 0.01 nats per
    held-out count, the simpler one is recommended. The model that ranks best may be another; then the reason names it.
    `RobustMF` and, unless all counts are 0 or 1, `BinaryMF` have no likelihood of counts, and are judged by their
    ranking only. The α that ranks best is not the most likely one; `nbmf.tune` looks for it.

    The running time does not grow with the data: users are drawn at random until they have `max_counts` non-zero
    counts, half a million cells are held out at most, and a fit has at most 100 sweeps. With the other defaults there
    are five fits of each of the seven models: for two numbers of components and the shapes 0.3 and 1 of both priors,
    of which some of the held-out cells choose one (where there is no likelihood, the ranking of counts set aside), and
    once more for the ranking.

    Parameters
    ----------
    data : Interactions or matrix
        Whole counts.
    models : iterable, optional
        The simpler before the less simple: names, or estimators, which keep the settings that they have. By default
        "PoissonMF", "NBMF" (with a learned concentration), "CompoundMF", "CompoundMF geometric", "ZeroInflatedMF",
        "RobustMF" and "BinaryMF", which comes first where all counts are 0 or 1.
    n_components : int or iterable of int
        Numbers of components to choose from.
    test_fraction : float
        Share of the cells, and for the ranking of the non-zero counts, to hold out.
    max_counts : int
        Largest number of non-zero counts to look at.
    random_state : int, RandomState or None
        Seed of everything random.
    n_threads : int, optional
        Number of threads, all cores by default. Results are identical for any number.
    verbose : bool
        Whether to show progress on standard error.

    Examples
    --------
    >>> import nbmf
    >>> data = nbmf.datasets.simulate(100, 60, n_components=2, concentration=0.3, mean_count=2.0, seed=0)
    >>> choice = nbmf.choose(data, ["PoissonMF", "NBMF"], n_components=2)
    >>> choice.recommended
    'NBMF'
    >>> model = choice.best.fit(data)
    """
    check_whole("max_counts", max_counts)
    check_seed(random_state)
    rng = check_random_state(random_state)
    if not isinstance(data, Interactions):
        taken = PoissonMF()._take(data)  # which says what is no matrix of counts, as a fit does
        data = Interactions.from_matrix(taken.matrix, taken.users, taken.items)
    parts = Parts.of(sampled(data, max_counts, rng), test_fraction, rng)
    limits = {"random_state": int(rng.randint(np.iinfo(np.int32).max)), "n_threads": n_threads}
    entrants = _entrants(models, parts, _numbers(n_components), limits)
    findings: list[Finding] = []
    with RunsProgress("choose", compiles=True, what="models", quiet=not verbose) as progress:
        for n, entrant in enumerate(entrants, 1):
            findings.append(entrant.judge(parts, n_threads))
            progress.report(n, len(entrants), n / len(entrants), findings[-1].in_words(parts))
    return decide(findings, parts)


def _entrants(
    models: Iterable[Any] | None, parts: Parts, numbers: Sequence[int], limits: dict[str, Any]
) -> list[Entrant]:
    """Return the models to compare: names have settings to choose from, and estimators keep their own."""
    given = list(FAMILY if models is None else [models] if isinstance(models, str | Recommender) else models)
    if models is None and parts.is_binary:
        given.sort(key=lambda name: name != "BinaryMF")
    found: dict[str, Entrant] = {}
    for n, each in enumerate(given, 1):
        if not isinstance(each, str | Recommender):
            raise TypeError(f"{each!r} is neither an estimator nor one of {', '.join(map(repr, FAMILY))}")
        kind = each if isinstance(each, str) else type(each).__name__
        name = kind if kind not in found else f"{kind} {n}"
        if isinstance(each, Recommender):
            own = each.get_params(deep=False)
            limit = {key: value for key, value in limits.items() if key in own and own[key] is None}
            found[name] = Entrant(name, [each], limit)
        elif each in filter(lambda other: isinstance(other, str), given[: n - 1]):
            raise ValueError(f"give each model once: {each!r} appears twice")
        else:
            found[name] = Entrant(name, _options(each, parts, numbers), {**limits, "max_iter": MOST_SWEEPS})
    if not found:
        raise ValueError(f"there are no models to choose from; give some of {', '.join(map(repr, FAMILY))}")
    return list(found.values())


def _options(name: str, parts: Parts, numbers: Sequence[int]) -> list[Any]:
    """Return a named model with each of the settings to choose from."""
    if name not in FAMILY:
        known = {each.lower(): each for each in FAMILY}
        near = get_close_matches(name.lower(), known, 1)
        hint = f"did you mean {known[near[0]]!r}?" if near else f"there are {', '.join(map(repr, FAMILY))}"
        raise ValueError(f"unknown model {name!r}; {hint}")
    own = {"penalty": float(f"{PENALTY / parts.density:.2g}")} if name == "RobustMF" else {}
    settings = [{"n_components": k, "user_shape": s, "item_shape": s, **own} for k, s in product(numbers, SHAPES)]
    return [clone(FAMILY[name]).set_params(**each) for each in settings]


def _numbers(n_components: int | Iterable[int]) -> list[int]:
    found: list[Any] = [n_components]
    if isinstance(n_components, Iterable) and not isinstance(n_components, str):
        found = list(n_components)
    for number in found:
        check_whole("n_components", number)
    if not found:
        raise ValueError("n_components is empty; give a number, or several to choose from")
    return found


def decide(findings: Sequence[Finding], parts: Parts) -> Choice:
    """Compare what was found, and recommend the most likely model, or the simplest that is as good."""
    likely = _differences([each for each in findings if each.totals is not None], parts)
    least = -NEGLIGIBLE * parts.judged.n_nonzero / max(len(parts.judged), 1)
    good = [name for name, (_, difference, (_, high)) in likely.items() if not high < 0 or difference >= least]
    board = compare({each.name: each.ranking for each in findings}, GOAL, baseline=good[0] if good else None)
    candidates = []
    for each in findings:
        ranks = board[each.name].mean, board[each.name].interval if board.n_users > 1 else NONE
        known = likely.get(each.name, (math.nan, math.nan, NONE))
        candidates.append(Candidate(each.name, each.estimator, *known, *ranks, each.note, each.seconds))
    candidates.sort(key=lambda c: (c.name not in likely, -c.log_likelihood if c.name in likely else -c.ndcg))
    sizes = parts.train.n_users, parts.train.nnz + parts.test.nnz, len(parts.judged)
    reason = _because(candidates, good, board, parts)
    return Choice(tuple(candidates), board.reference, reason, board[0].name, *sizes)


def _differences(findings: Sequence[Finding], parts: Parts) -> dict[str, tuple[float, float, tuple[float, float]]]:
    """Return the mean of ln p(count) of each model, and the paired difference to the largest, with its interval."""
    if not findings:
        return {}
    totals = np.stack([np.asarray(each.totals) for each in findings], axis=1)
    n_cells = parts.judged.per_user[:, None]
    means = totals.sum(axis=0) / n_cells.sum()
    first = int(means.argmax())
    drawn = resampled_ratios(totals, np.repeat(n_cells, len(findings), axis=1), N_BOOT, 0)
    # one user, however often drawn, says nothing about others
    apart = intervals(drawn - drawn[:, [first]]) if np.count_nonzero(n_cells) > 1 else [NONE] * len(findings)
    names = [each.name for each in findings]
    return dict(zip(names, zip(means.tolist(), (means - means[first]).tolist(), apart, strict=True), strict=True))


def _because(candidates: Sequence[Candidate], good: Sequence[str], board: Comparison, parts: Parts) -> str:
    """Return why the reference of the board is recommended."""
    chosen = next(c for c in candidates if c.name == board.reference)
    others = [c for c in candidates if c is not chosen]
    if not others:
        return f"{chosen.name} is the only model"
    rival = others[0]  # the most likely of the others or, without likelihoods, the one that ranks best
    against = f"NDCG {chosen.ndcg:.3f} against {rival.ndcg:.3f}"
    if not good:
        return f"{chosen.name}: {against} of {rival.name}; none has a likelihood that can be compared"
    if math.isnan(rival.log_likelihood):
        words = [f"{chosen.name}: the only one whose likelihood can be compared, and {against} of {rival.name}"]
    else:
        tied = f" is the simplest of {len(good)} models that the held-out cells cannot tell apart" * (len(good) > 1)
        likely = f"{chosen.log_likelihood:.4f} against {rival.log_likelihood:.4f} of {rival.name}"
        words = [f"{chosen.name}{tied}: held-out log-likelihood per cell {likely}, and {against}"]
    words += [chosen.note] if chosen.note else []
    words.append("all counts are 0 or 1" if parts.is_binary else f"the largest count is {parts.largest:,.0f}")
    top = board[0]
    better = top.name != chosen.name and top.difference_interval[0] > 0 and board.n_users > 1
    ranks = f". {top.name} ranks better: NDCG {top.mean:.3f} against {chosen.ndcg:.3f}" if better else ""
    return "; ".join(words) + ranks
