"""Which model ranks better, and how sure that is: differences user by user, over the same resampled users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbmf.evaluation.evaluate import Evaluation
from nbmf.evaluation.metrics import Array
from nbmf.evaluation.resampling import check_boot, intervals, resampled_means
from nbmf.evaluation.table import Table


@dataclass(frozen=True)
class Contender:
    """One model of a comparison.

    mean, interval : of the metric; of several starts, user by user their mean
    difference, difference_interval : mean less that of the reference; an interval without 0 tells them apart
    spread : standard deviation of the mean from start to start; nan for one start
    """

    name: str
    mean: float
    interval: tuple[float, float]
    difference: float
    difference_interval: tuple[float, float]
    n_starts: int
    spread: float


@dataclass(frozen=True, repr=False)
class Comparison(Sequence[Contender], Table):
    """Models, best first, and how far each is from the reference on the same users."""

    contenders: tuple[Contender, ...]
    metric: str
    reference: str
    n_users: int

    def __getitem__(self, which: Any) -> Any:
        """Return a contender by place or by name."""
        if isinstance(which, str):
            for contender in self.contenders:
                if contender.name == which:
                    return contender
            raise KeyError(f"there is no {which!r}; there are {', '.join(c.name for c in self.contenders)}")
        return self.contenders[which]

    def __iter__(self) -> Iterator[Contender]:
        """Go through the contenders, best first."""
        return iter(self.contenders)

    def __len__(self) -> int:
        """Count the contenders."""
        return len(self.contenders)

    def __repr__(self) -> str:
        """Show a table."""
        width = max(len(c.name) for c in self.contenders)
        head = f"{self.metric} of {self.n_users:,} users; differences to {self.reference!r}"
        lines = [
            head,
            f"{'':{width}}  {'mean':>8}  {'95 % interval':^18}  {'difference':>10}  {'95 % interval':^20}  starts",
        ]
        for c in self.contenders:
            interval, apart = (
                "{:8.4f}, {:8.4f}".format(*c.interval),
                "{:+9.4f}, {:+9.4f}".format(*c.difference_interval),
            )
            if c.name == self.reference:
                lines.append(f"{c.name:{width}}  {c.mean:8.4f}  {interval:18}  {'':10}  {'':20}  {c.n_starts:6}")
            else:
                lines.append(
                    f"{c.name:{width}}  {c.mean:8.4f}  {interval:18}  {c.difference:+10.4f}  {apart:20}  {c.n_starts:6}"
                )
        return "\n".join(lines)

    def rows(self) -> list[dict[str, Any]]:
        """Return a plain dictionary for each contender."""
        return [
            {
                "name": c.name,
                "metric": self.metric,
                "mean": c.mean,
                "low": c.interval[0],
                "high": c.interval[1],
                "reference": self.reference,
                "difference": c.difference,
                "difference_low": c.difference_interval[0],
                "difference_high": c.difference_interval[1],
                "n_starts": c.n_starts,
                "spread": c.spread,
            }
            for c in self.contenders
        ]


def compare(
    results: Mapping[str, Evaluation | Sequence[Evaluation]],
    metric: str = "ndcg_counts",
    *,
    baseline: str | None = None,
    n_boot: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Say how far models are apart, from differences user by user over the same resampled users.

    Parameters
    ----------
    results : a model's name → its Evaluation, or a list of them from several starts, which are averaged user by user
        first; all on the same train and test
    metric : name of a metric of theirs that has a value for each user
    baseline : the name to which the others are compared; None: the best one
    n_boot, seed : number and seed of the draws of users

    Returns
    -------
    Comparison : the contenders, best mean first (of a popularity rank: largest first); by name too

    Examples
    --------
    >>> import nbmf
    >>> train, test = [[3, 0, 0], [0, 1, 0]], [[0, 4, 0], [1, 0, 1]]
    >>> ones = [[1.0], [1.0]]
    >>> results = {
    ...     name: nbmf.evaluate((ones, H), train, test)
    ...     for name, H in {"good": [[3.0], [2.0], [1.0]], "bad": [[1.0], [2.0], [3.0]]}.items()
    ... }
    >>> round(nbmf.compare(results)["bad"].difference, 3)
    -0.185
    """
    check_boot(n_boot)
    values, starts = _gather(results, metric)
    if baseline is not None and baseline not in starts:
        raise KeyError(f"the baseline {baseline!r} is not among the results: {', '.join(starts)}")
    judged = ~np.isnan(values).any(axis=1)
    if not judged.any():
        raise ValueError(f"{metric} has no value for any user; only metrics with one for each user can be compared")
    values = values[judged]
    means, names = values.mean(axis=0), list(starts)
    reference = names.index(baseline) if baseline is not None else int(means.argmax())
    drawn = resampled_means(values, n_boot, seed)
    own, apart = intervals(drawn), intervals(drawn - drawn[:, [reference]])
    contenders = [
        Contender(
            name,
            float(means[n]),
            own[n],
            float(means[n] - means[reference]),
            apart[n],
            len(starts[name]),
            float(np.std(starts[name], ddof=1)) if len(starts[name]) > 1 else float("nan"),
        )
        for n, name in enumerate(names)
    ]
    order = np.argsort(-means, kind="stable")
    return Comparison(tuple(contenders[n] for n in order), metric, names[reference], int(judged.sum()))


def _gather(
    results: Mapping[str, Evaluation | Sequence[Evaluation]], metric: str
) -> tuple[Array, dict[str, list[float]]]:
    """Return users × models, averaged over the starts, and the mean of each start."""
    columns: list[Array] = []
    starts: dict[str, list[float]] = {}
    known: tuple[str, Evaluation] | None = None
    for name, result in results.items():
        evaluations = [result] if isinstance(result, Evaluation) else list(result)
        if not evaluations:
            raise ValueError(f"{name!r} has no evaluation")
        for evaluation in evaluations:
            known = known or (name, evaluation)
            if evaluation.data != known[1].data or not np.array_equal(evaluation.users, known[1].users):
                raise ValueError(
                    f"{known[0]!r} and {name!r} were judged on different data; evaluate both on the same train and test"
                )
        columns.append(np.mean([evaluation[metric].per_user for evaluation in evaluations], axis=0))
        starts[name] = [evaluation[metric].mean for evaluation in evaluations]
    if not columns:
        raise ValueError("there are no results to compare")
    return np.stack(columns, axis=1), starts
