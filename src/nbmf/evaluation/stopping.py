"""When to stop a fit: held-out counts may be predicted worse long before the objective has converged."""

import math
import re
from typing import Any

import numpy as np

from nbmf.estimators.metrics import check_whole
from nbmf.evaluation.evaluate import evaluate
from nbmf.evaluation.predictive import log_likelihood
from nbmf.inference.run import Snapshot

_METRIC = re.compile(
    r"log_likelihood|ndcg_(?:(counts|log2)|at_least_(\d+))|(?:ndcg_counts|ndcg_binary|recall|precision|map)_at_(\d+)"
)


class EarlyStopping:
    """Ends a fit when held-out counts are no longer predicted better, and keeps the factors of the best sweep.

    Parameters
    ----------
    train, test, n_threads
        As for `nbmf.evaluate`; train is what is fitted.
    metric : str
        "ndcg_counts", "ndcg_log2", "ndcg_at_least_s", "ndcg_counts_at_k", "ndcg_binary_at_k", "recall_at_k",
        "precision_at_k" or "map_at_k" of `nbmf.evaluate`, or "log_likelihood".
    patience : int
        Number of evaluations without a new best that end the fit.
    every : int
        Sweeps between evaluations; the last sweep is always evaluated.

    Attributes
    ----------
    history : list of (int, float)
        Sweep and value of the metric for each evaluation of the last fit.
    best : Snapshot or None
        Snapshot of the best evaluation, the first of equals; None before the first.

    Examples
    --------
    >>> import nbmf
    >>> train, test = nbmf.datasets.simulate(60, 40, n_components=3, seed=0).split(seed=0)
    >>> stopping = EarlyStopping(train, test, patience=2, every=2)
    >>> model = nbmf.NBMF(8, random_state=0).fit(train, stopping=stopping)
    >>> model.ending_, model.n_iter_ == max(stopping.history, key=lambda look: look[1])[0]
    ('stopped', True)
    """

    def __init__(
        self,
        train: Any,
        test: Any,
        *,
        metric: str = "ndcg_counts",
        patience: int = 5,
        every: int = 5,
        n_threads: int | None = None,
    ) -> None:
        parts = _METRIC.fullmatch(metric)
        if parts is None:
            raise ValueError(
                f"metric is {metric!r}; it must be 'log_likelihood', 'ndcg_counts', 'ndcg_log2', 'ndcg_at_least_s' or "
                "'ndcg_counts_at_k', 'ndcg_binary_at_k', 'recall_at_k', 'precision_at_k', 'map_at_k' with whole "
                "numbers for s and k"
            )
        check_whole("patience", patience)
        check_whole("every", every)
        counts, least, cutoff = parts.groups()
        self.relevance = [counts] if counts else [int(least)] if least else []
        self.cutoffs = [int(cutoff)] if cutoff else []
        self.train, self.test, self.metric = train, test, metric
        self.patience, self.every, self.n_threads = patience, every, n_threads
        self.history: list[tuple[int, float]] = []
        self.best: Snapshot | None = None

    def __call__(self, snapshot: Snapshot) -> bool:
        """Evaluate every so many sweeps; True ends the fit."""
        if snapshot.sweep == 1:  # a new fit
            self.history, self.best = [], None
        if snapshot.sweep % self.every == 0:
            self._evaluate(snapshot)
        values = [value for _, value in self.history]
        return len(values) > self.patience and max(values[: -self.patience]) >= max(values[-self.patience :])

    def choose(self, last: Snapshot) -> Snapshot:
        """Return the best snapshot, after evaluating the last one."""
        if not self.history or self.history[-1][0] != last.sweep:
            self._evaluate(last)
        return self.best or last

    def value_of(self, model: Any, likelihood: Any = None) -> float:
        """Return the metric of a model; −∞ where it has none."""
        data = self.train, self.test
        walking: dict[str, Any] = {"n_boot": 1, "n_threads": self.n_threads}
        if self.metric == "log_likelihood":
            value = log_likelihood(model, *data, likelihood=likelihood, **walking).mean
        else:
            value = evaluate(model, *data, self.relevance, at=self.cutoffs, **walking)[self.metric].mean
        return -math.inf if math.isnan(value) else value

    def _evaluate(self, snapshot: Snapshot) -> None:
        likelihood, items = snapshot.state.model.likelihood, snapshot.item_factors
        unit = np.asarray(likelihood.unit_mean)  # scores are this times the intensity
        if self.metric != "log_likelihood" and unit.ndim and unit.shape[1] > 1:
            items = np.asarray(items) * unit.T.astype(items.dtype)
        value = self.value_of((snapshot.user_factors, items), likelihood)
        if not self.history or value > max(earlier for _, earlier in self.history):
            self.best = snapshot
        self.history.append((snapshot.sweep, value))
