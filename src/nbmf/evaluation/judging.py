"""How one model fares on held-out cells and held-out counts, with the best of a few settings."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from nbmf.data.interactions import Interactions
from nbmf.estimators.factorization import Factorization
from nbmf.evaluation.evaluate import Evaluation, evaluate
from nbmf.evaluation.held_out import Array, Parts
from nbmf.evaluation.predictive import why_incomparable
from nbmf.inference.progress import Stopwatch
from nbmf.model.likelihood import Likelihood

GOAL = "ndcg_counts"
ASIDE_FRACTION = 0.2  # of the train counts, by whose ranking settings are chosen where there is no likelihood


@dataclass(frozen=True, eq=False)
class Finding:
    """How a model fares."""

    name: str
    estimator: Any  # not fitted, with the settings that were chosen
    totals: Array | None  # Σ ln p(count) over the judged cells of each user; None if it cannot be compared
    ranking: Evaluation
    note: str
    seconds: float  # of one fit

    def in_words(self, parts: Parts) -> str:
        """Return a line of progress."""
        likely = "" if self.totals is None else f"log-likelihood {self.totals.sum() / len(parts.judged):.4f}, "
        return f"{self.name}: {likely}NDCG {self.ranking[GOAL].mean:.4f}"


@dataclass(frozen=True)
class Entrant:
    """A model, the settings to choose from, and the limits of its fits."""

    name: str
    options: Sequence[Any]  # estimators
    limits: Mapping[str, Any]  # settings of the fits that the recommended estimator does not have

    def judge(self, parts: Parts, n_threads: int | None) -> Finding:
        """Choose an option, then compute the likelihood of the judged cells and the ranking of the test counts."""
        fits, note = [], "its fit cannot leave cells out"
        for option in self.options if isinstance(self.options[0], Factorization) else ():
            model = self._fitted(option, parts.known, unknown=parts.unknown)
            note = why_incomparable(model, is_binary=parts.is_binary)
            if note:
                break
            fits.append(model.result_)
        if note:
            best, totals = self._best_ranking(parts, n_threads), None
        else:
            n = int(np.argmax([parts.aside.log_probabilities(fit).sum() for fit in fits]))
            best, totals = self.options[n], parts.judged.log_probabilities(fits[n])
            note = learned(fits[n].model.likelihood)
            if not np.isfinite(totals).all():
                note, totals = "it considers a held-out count impossible", None
        watch = Stopwatch()
        model = self._fitted(best, parts.train)
        seconds = watch.seconds
        return Finding(self.name, best, totals, ranking(model, parts.train, parts.test, n_threads), note, seconds)

    def _best_ranking(self, parts: Parts, n_threads: int | None) -> Any:
        """Return the option that ranks best some counts set aside from the train counts."""
        if len(self.options) == 1:
            return self.options[0]
        known, aside = parts.train.split(ASIDE_FRACTION, seed=0)
        models = (self._fitted(option, known) for option in self.options)
        found = [ranking(model, known, aside, n_threads)[GOAL].mean for model in models]
        return self.options[int(np.argmax(found))]

    def _fitted(self, estimator: Any, data: Interactions, **control: Any) -> Any:
        model = clone(estimator).set_params(**self.limits)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a wrong model may well fit badly
            model.fit(data, **control)
        if model.ending_ == "interrupted":
            raise KeyboardInterrupt  # Ctrl-C ends the choice, not only this fit
        return model


def ranking(model: Any, train: Interactions, test: Interactions, n_threads: int | None) -> Evaluation:
    """Return NDCG on counts, without intervals."""
    return evaluate(model, train, test, ("counts",), at=(), n_boot=1, n_threads=n_threads)


def learned(likelihood: Likelihood) -> str:
    """Return the parameters of a likelihood in words; of one with a parameter per user or item, its range."""
    words = []
    for name, value in likelihood.parameters.items():
        low, high = float(np.min(value)), float(np.max(value))
        words.append(f"{name} {low:.3g}" + ("" if math.isclose(low, high) else f" to {high:.3g}"))
    return ", ".join(words)
