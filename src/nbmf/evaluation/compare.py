"""Which model ranks better, and how certain that is: paired differences over the same resampled users."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbmf.estimators.metrics import Array, check_whole
from nbmf.estimators.table import RowTable, Shown
from nbmf.evaluation.evaluate import Evaluation
from nbmf.evaluation.resampling import intervals, resampled_means

Evaluations = Evaluation | Sequence[Evaluation]


@dataclass(frozen=True)
class Contender:
    """One model of a comparison, averaged over its starts user by user."""

    name: str
    mean: float
    interval: tuple[float, float]
    difference: float  # the mean minus that of the reference
    difference_interval: tuple[float, float]  # without 0, it tells the two apart
    n_starts: int
    spread: float  # standard deviation of the mean between starts, nan for a single start


@dataclass(frozen=True, repr=False)
class Comparison(Sequence[Contender], RowTable):
    """Models by name or by place, best first, with the difference of each to the reference on the same users."""

    contenders: tuple[Contender, ...]
    metric: str
    reference: str
    n_users: int

    def __getitem__(self, which: Any) -> Any:
        if not isinstance(which, str):
            return self.contenders[which]
        named = {contender.name: contender for contender in self.contenders}
        if which not in named:
            raise KeyError(f"there is no {which!r}; there are {', '.join(named)}")
        return named[which]

    def __len__(self) -> int:
        return len(self.contenders)

    def shown(self) -> Shown:
        """Return title, heads and rows."""
        rows = []
        for c in self.contenders:
            apart = (f"{c.difference:+.4f}", "{:+.4f}, {:+.4f}".format(*c.difference_interval))
            differences = ("", "") if c.name == self.reference else apart
            rows.append((c.name, f"{c.mean:.4f}", "{:.4f}, {:.4f}".format(*c.interval), *differences, str(c.n_starts)))
        head = ("", "mean", "95 % interval", "difference", "95 % interval", "starts")
        return f"{self.metric} of {self.n_users:,} users; differences to {self.reference!r}", head, rows

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain dictionary per model."""
        rows = []
        for c in self.contenders:
            low, high = c.interval
            own = {"name": c.name, "metric": self.metric, "mean": c.mean, "low": low, "high": high}
            low, high = c.difference_interval
            apart = {"difference": c.difference, "difference_low": low, "difference_high": high}
            rows.append({**own, "reference": self.reference, **apart, "n_starts": c.n_starts, "spread": c.spread})
        return rows


def compare(
    results: Mapping[str, Evaluations],
    metric: str = "ndcg_counts",
    *,
    baseline: str | None = None,
    n_boot: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Compare models by their differences user by user, over the same resampled users.

    Parameters
    ----------
    results : mapping
        Evaluations of the same train and test by the models' names; a list, of several starts, is averaged by user.
    metric : str
        Name of a metric that has a value for each user.
    baseline : str, optional
        Name of the model to which the others are compared, by default the best.
    n_boot, seed : int
        Number and seed of the resamples of users.

    Examples
    --------
    >>> import nbmf
    >>> train, test = [[3, 0, 0], [0, 1, 0]], [[0, 4, 0], [1, 0, 1]]
    >>> ones = [[1.0], [1.0]]
    >>> good, bad = (nbmf.evaluate((ones, H), train, test) for H in ([[3.0], [2.0], [1.0]], [[1.0], [2.0], [3.0]]))
    >>> round(nbmf.compare({"good": good, "bad": bad})["bad"].difference, 3)
    -0.185
    """
    check_whole("n_boot", n_boot)
    values, starts = _gather(results, metric)
    if baseline is not None and baseline not in starts:
        raise KeyError(f"the baseline {baseline!r} is not among the results: {', '.join(starts)}")
    judged = ~np.isnan(values).any(axis=1)
    if not judged.any():
        raise ValueError(f"{metric} has no value for any user; only metrics with a value for each user can be compared")
    values = values[judged]
    means, names = values.mean(axis=0), list(starts)
    reference = names.index(baseline) if baseline is not None else int(means.argmax())
    drawn = resampled_means(values, n_boot, seed)
    own, apart = intervals(drawn), intervals(drawn - drawn[:, [reference]])
    contenders = []
    for n in np.argsort(-means, kind="stable"):
        of_starts = starts[names[n]]
        spread = float(np.std(of_starts, ddof=1)) if len(of_starts) > 1 else float("nan")
        difference = float(means[n] - means[reference])
        contenders.append(Contender(names[n], float(means[n]), own[n], difference, apart[n], len(of_starts), spread))
    return Comparison(tuple(contenders), metric, names[reference], int(judged.sum()))


def _gather(results: Mapping[str, Evaluations], metric: str) -> tuple[Array, dict[str, list[float]]]:
    """Return the values, users × models, averaged over the starts, and the mean of each start."""
    for name, given in results.items():
        if hasattr(given, "fit"):
            raise TypeError(f"{name!r} is a model; give what nbmf.evaluate(model, train, test) returns")
    found = {name: [given] if isinstance(given, Evaluation) else list(given) for name, given in results.items()}
    if not found:
        raise ValueError("there are no results to compare")
    first = next(iter(found))
    for name, starts in found.items():
        if not starts:
            raise ValueError(f"{name!r} has no evaluation")
        known = found[first][0]
        if any(start.data != known.data or not np.array_equal(start.users, known.users) for start in starts):
            raise ValueError(f"{first!r} and {name!r} were evaluated on different data; use the same train and test")
    values = [np.mean([start[metric].per_user for start in starts], axis=0) for starts in found.values()]
    return np.stack(values, axis=1), {name: [start[metric].mean for start in starts] for name, starts in found.items()}
