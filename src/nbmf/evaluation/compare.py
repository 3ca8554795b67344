"""Which model ranks better, and how certain that is: paired differences over the same resampled users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbmf.evaluation.evaluate import Evaluation
from nbmf.evaluation.metrics import Array
from nbmf.evaluation.resampling import check_boot, intervals, resampled_means
from nbmf.evaluation.table import Table, as_text


@dataclass(frozen=True)
class Contender:
    """One model of a comparison.

    Attributes
    ----------
    mean, interval : float, tuple of float
        Of the metric, averaged over the starts user by user.
    difference, difference_interval : float, tuple of float
        The mean minus that of the reference; an interval without 0 tells the two apart.
    n_starts, spread : int, float
        Number of starts, and the standard deviation of the mean between them (nan for a single start).
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
    """Models, best first, with the difference of each to the reference on the same users."""

    contenders: tuple[Contender, ...]
    metric: str
    reference: str
    n_users: int

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, str):
            for contender in self.contenders:
                if contender.name == which:
                    return contender
            raise KeyError(f"there is no {which!r}; there are {', '.join(c.name for c in self.contenders)}")
        return self.contenders[which]

    def __len__(self) -> int:
        return len(self.contenders)

    def __repr__(self) -> str:
        rows = []
        for c in self.contenders:
            apart = (f"{c.difference:+.4f}", "{:+.4f}, {:+.4f}".format(*c.difference_interval))
            differences = ("", "") if c.name == self.reference else apart
            rows.append((c.name, f"{c.mean:.4f}", "{:.4f}, {:.4f}".format(*c.interval), *differences, str(c.n_starts)))
        head = ("", "mean", "95 % interval", "difference", "95 % interval", "starts")
        return as_text(f"{self.metric} of {self.n_users:,} users; differences to {self.reference!r}", head, rows)

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain dictionary per model."""
        return [
            {
                "name": c.name,
                "metric": self.metric,
                "mean": c.mean,
                **dict(zip(("low", "high"), c.interval, strict=True)),
                "reference": self.reference,
                "difference": c.difference,
                **dict(zip(("difference_low", "difference_high"), c.difference_interval, strict=True)),
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
    """Compare models by their differences user by user, over the same resampled users.

    Parameters
    ----------
    results : mapping
        Evaluations by the models' names, all of the same train and test; a list of evaluations, from several random
        starts of a model, is averaged user by user.
    metric : str
        Name of a metric that has a value for each user.
    baseline : str, optional
        Name of the model to which the others are compared; by default the best one.
    n_boot, seed : int
        Number and seed of the resamples of users.

    Returns
    -------
    Comparison
        The contenders by name or by place, in decreasing order of their means.

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
        raise ValueError(f"{metric} has no value for any user; only metrics with a value for each user can be compared")
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
    """Return the values, users × models, averaged over the starts, and the mean of each start."""
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
                    f"{known[0]!r} and {name!r} were evaluated on different data; use the same train and test"
                )
        columns.append(np.mean([evaluation[metric].per_user for evaluation in evaluations], axis=0))
        starts[name] = [evaluation[metric].mean for evaluation in evaluations]
    if not columns:
        raise ValueError("there are no results to compare")
    return np.stack(columns, axis=1), starts
