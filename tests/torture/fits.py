"""Random fits: any settings on any matrix, then random questions.

    python tests/torture/fits.py --seconds 600 --seed 1     as many as ten minutes allow, on one core
    python tests/torture/fits.py --seed 1 --case 17         one of them again, printed so that it can be pasted
    python tests/torture/fits.py --only NBFISM --fits 1000  so many of one estimator

A case fails if the objective falls, is not finite or is above 0 (a probability above 1), if a factor or an answer is
not finite, if a file does not come back bit by bit, if NumPy warns, or if anything but a sentence in DOCUMENTED is
raised.
"""

from __future__ import annotations

import copy
import math
import os
import re
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone

import nbmf
from nbmf.estimators import fism
from nbmf.estimators.fism import CHEAP_CELLS
from torture import typed_options

CASE_SECONDS = 300.0  # after which a case hangs; the first ones compile
DOCUMENTED = (  # errors that a random setting or question may be answered with
    "has no priors; use 'cavi'",
    "items that share an exposure cannot have a",
    "a zero would stay zero for ever",
    "is out of the range of float",
    "have no posterior to draw from",
    "has no likelihood of counts",
    "in cells that the fit treats as unknown",
    "the likelihood 'robust_poisson' does not define its",  # it is no distribution
    "too few to learn weights from",
    "as one before it; give each once",
    "the objective of item number",  # NBSLIM: counts out of the range of their numbers, with a remedy
)


SHARES = {  # of the cases
    "NBMF": 0.25,
    "PoissonMF": 0.1,
    "CompoundMF": 0.15,
    "ZeroInflatedMF": 0.15,
    "RobustMF": 0.05,
    "BinaryMF": 0.05,
    "NBSLIM": 0.1,
    "NBFISM": 0.1,
    "Averaged": 0.03,
    "Blend": 0.02,
}
STIFF = "NBSLIM", "Blend"  # whose fits cannot leave cells out
MEMBERS = "NBMF", "NBMF", "PoissonMF", "CompoundMF", "ZeroInflatedMF"  # of an average or a blend


class FaultError(AssertionError):
    """What a case found."""


@dataclass(frozen=True)
class Case:
    """An estimator by name and settings, a matrix, and what the questions are drawn from."""

    name: str
    settings: dict[str, Any]
    matrix: np.ndarray
    unknown: np.ndarray | None
    has_ids: bool
    rng: np.random.Generator
    few_cells: int = CHEAP_CELLS  # beyond which NBFISM lets the unseen cells of a cluster share an exposure

    def estimator(self) -> Any:
        return built(self.name, self.settings)

    def data(self) -> Any:
        return interactions(self.matrix) if self.has_ids else sp.csr_array(self.matrix)

    def control(self) -> dict[str, Any]:
        return {} if self.unknown is None else {"unknown": sp.csr_array(self.unknown)}

    def __str__(self) -> str:
        lines = [f"X = np.array({self.matrix.tolist()})", f"model = {in_python(self.name, self.settings)}"]
        unknown = ""
        if self.unknown is not None:
            lines.append(f"unknown = sp.csr_array(np.array({self.unknown.astype(int).tolist()}))")
            unknown = ", unknown=unknown"
        if self.few_cells != CHEAP_CELLS:
            lines.append(f"nbmf.estimators.fism.CHEAP_CELLS = {self.few_cells}")
        data = "nbmf.Interactions.from_matrix(X, users=[f'u{n}' for n in range(len(X))])" if self.has_ids else "X"
        return "\n".join([*lines, f"model.fit({data}{unknown})"])


def built(name: str, settings: dict[str, Any]) -> Any:
    inner = {"estimator": lambda each: built(*each), "models": lambda several: [built(*each) for each in several]}
    made = {key: inner[key](value) for key, value in settings.items() if key in inner}
    return getattr(nbmf, name)(**settings | made)


def in_python(name: str, settings: dict[str, Any]) -> str:
    words = {key: in_python(*value) if key == "estimator" else repr(value) for key, value in settings.items()}
    if "models" in settings:
        words["models"] = f"[{', '.join(in_python(*each) for each in settings['models'])}]"
    if not isinstance(settings.get("init", ""), str):
        words["init"] = f"({', '.join(f'np.array({values.tolist()})' for values in settings['init'])})"
    return f"nbmf.{name}({', '.join(f'{key}={value}' for key, value in words.items())})"


def interactions(matrix: np.ndarray, first: int = 0) -> nbmf.Interactions:
    """With text for the users and numbers for the items."""
    return nbmf.Interactions.from_matrix(matrix, users=[f"u{n + first}" for n in range(len(matrix))])


# ---- what is drawn --------------------------------------------------------------------------------------------------


def draw(seed: int, number: int, only: str = "") -> Case:
    """Return case `number` of a seed, or that of `only` one estimator."""
    rng = np.random.default_rng([seed, number])
    name = only or str(rng.choice(list(SHARES), p=list(SHARES.values())))
    if name == "NBFISM":
        return draw_encoder(rng)
    matrix = draw_matrix(rng)
    unknown = draw_unknown(rng, matrix.shape) if name not in STIFF and rng.random() < 0.15 else None
    if name == "NBSLIM":
        settings = draw_slim(rng)
    elif name == "Averaged":
        member = draw_factors(rng, str(rng.choice(MEMBERS)), matrix.shape)
        settings = {"estimator": member, "n_runs": int(rng.integers(1, 4)), "random_state": 0}
    elif name == "Blend":
        settings = draw_blend(rng, matrix.shape)
    else:
        settings = draw_factors(rng, name, matrix.shape)[1]
    return Case(name, settings, matrix, unknown, bool(rng.random() < 0.5), rng)


def draw_matrix(rng: np.random.Generator, most: tuple[int, int] = (30, 20)) -> np.ndarray:
    """From 1 × 1 to 30 × 20, with the kinds of counts that break things."""
    shape = 1 + int(most[0] * rng.random() ** 2), 1 + int(most[1] * rng.random() ** 1.5)
    kind = rng.choice(["sparse", "bursts", "dense", "zeros", "equal", "huge", "scales", "fractions", "binary"])
    count = rng.poisson(rng.choice([0.1, 0.5, 2.0]), shape).astype(float)
    if kind == "bursts":
        count = rng.negative_binomial(0.3, 0.05, shape) * (rng.random(shape) < 0.5)
    elif kind == "dense":
        count = 1 + rng.poisson(rng.choice([1.0, 30.0]), shape)
    elif kind == "zeros":
        count[:] = 0
    elif kind == "equal":
        count[:] = rng.choice([1, 7, 1000])
    elif kind == "huge":
        count[tuple(map(rng.integers, shape))] = 1e9
    elif kind == "scales":
        count = np.floor(10 ** rng.uniform(-1, 8, shape)) * (rng.random(shape) < 0.6)
    elif kind == "fractions":
        count = rng.gamma(0.3, 3.0, shape).round(3) * (rng.random(shape) < 0.7)
    elif kind == "binary":
        count = rng.random(shape) < 0.3
    count = np.array(count, float)
    for change, chance in ((empty_row, 0.2), (empty_column, 0.2), (full_row, 0.1), (same_rows, 0.1)):
        if rng.random() < chance:
            change(count, rng)
    is_whole = bool(np.all(count % 1 == 0))
    return count.astype(np.int64) if is_whole and rng.random() < 0.5 else count


def empty_row(count: np.ndarray, rng: np.random.Generator) -> None:
    count[rng.integers(len(count))] = 0


def empty_column(count: np.ndarray, rng: np.random.Generator) -> None:
    count[:, rng.integers(count.shape[1])] = 0


def full_row(count: np.ndarray, rng: np.random.Generator) -> None:
    count[rng.integers(len(count))] = rng.integers(1, 5, count.shape[1])


def same_rows(count: np.ndarray, rng: np.random.Generator) -> None:
    count[rng.random(len(count)) < 0.5] = count[0]


def draw_unknown(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Some cells, and perhaps a whole row and a whole column."""
    unknown = rng.random(shape) < rng.choice([0.0, 0.1, 0.5])
    if rng.random() < 0.4:
        unknown[rng.integers(shape[0])] = True
    if rng.random() < 0.4:
        unknown[:, rng.integers(shape[1])] = True
    return unknown


def draw_factors(rng: np.random.Generator, name: str, shape: tuple[int, int]) -> tuple[str, dict[str, Any]]:
    n_components = int(rng.integers(1, 6))
    found: dict[str, Any] = {"n_components": n_components, "random_state": int(rng.integers(100)), "n_threads": 1}
    found["dtype"] = str(rng.choice(["float32", "float64"]))
    found["max_iter"], found["tol"] = (500, 0) if rng.random() < 0.02 else (int(rng.integers(1, 60)), draw_tol(rng))
    found["accelerate"] = bool(rng.random() < 0.3)
    found["backend"] = "reference" if rng.random() < 0.1 else "cpu"
    if find_spec("torch") is not None and rng.random() < 0.005:
        found["backend"] = "gpu"
    found["inference"] = "mm" if rng.random() < 0.3 else "cavi"
    if rng.random() < 0.5:
        found["user_shape"], found["item_shape"] = (float(10 ** rng.uniform(-2, 2)) for _ in range(2))
    if rng.random() < (0.02 if found["inference"] == "mm" else 0.3):
        found["rates"], found["shapes"] = str(rng.choice(["shared", "per_row"])), str(rng.choice(["fixed", "learn"]))
    if rng.random() < 0.1:
        starts = [rng.gamma(rng.choice([0.05, 1.0]), 1.0, (n, n_components)) for n in shape]
        if rng.random() < 0.8:
            starts = [np.maximum(start, 1e-20) for start in starts]
        else:
            starts[0][0, 0] = 0
        found["init"] = tuple(starts)
    if name in ("NBMF", "ZeroInflatedMF"):
        found["exposure"] = str(rng.choice(["exact", "tied", "auto"], p=[0.4, 0.4, 0.2]))
        found["n_clusters"] = int(rng.integers(1, shape[1] + 3))
    return name, found | draw_likelihood(rng, name)


def draw_likelihood(rng: np.random.Generator, name: str) -> dict[str, Any]:
    """Return the settings of an estimator's own likelihood."""
    if name == "PoissonMF":
        return {"binarize": bool(rng.random() < 0.4)}
    if name == "RobustMF":
        return {"penalty": float(10 ** rng.uniform(-3, 4))}
    if name == "CompoundMF":
        jump = [draw_share(rng), str(rng.choice(["learn", "learn_per_item"]))][rng.choice(2, p=[0.4, 0.6])]
        return {"jumps": str(rng.choice(["logarithmic", "geometric"])), "jump": jump}
    if name == "ZeroInflatedMF":
        learned = str(rng.choice(["learn", "learn_per_user", "learn_per_item"]))
        return {"probability": [draw_share(rng), learned][rng.choice(2, p=[0.4, 0.6])]}
    if name == "NBMF":
        wide, usual = float(10 ** rng.uniform(-10, 10)), float(10 ** rng.uniform(-2, 2))
        learned = "learn", "learn_per_user", "learn_per_item"
        return {"concentration": [wide, usual, 1.0, str(rng.choice(learned))][rng.choice(4, p=[0.3, 0.3, 0.15, 0.25])]}
    return {}


def draw_blend(rng: np.random.Generator, shape: tuple[int, int]) -> dict[str, Any]:
    models: list[Any] = [draw_factors(rng, str(rng.choice(MEMBERS)), shape) for _ in range(rng.integers(1, 3))]
    if rng.random() < 0.7:
        models.insert(0, ("NBSLIM", draw_slim(rng)))
    weights = "learn" if rng.random() < 0.7 else [1.0] + [0.0] * (len(models) - 1)
    return {"models": models, "weights": weights, "random_state": int(rng.integers(100))}


def draw_share(rng: np.random.Generator) -> float:
    """Return a number between 0 and 1, some of them close to an end."""
    near = 10 ** rng.uniform(-9, -1)
    return float([near, 1 - near, rng.uniform(0.05, 0.95)][rng.integers(3)])


def draw_tol(rng: np.random.Generator) -> float:
    return float(rng.choice([0, 1e-5, 1e-3]))


def draw_slim(rng: np.random.Generator) -> dict[str, Any]:
    forms = "log1p", "binary", "counts"
    return {
        "concentration": float(10 ** rng.uniform(-3, 4)),
        "penalty": float(rng.choice([0.0, 20.0, 10 ** rng.uniform(-3, 3)])),
        "input": str(rng.choice(forms)),
        "target": str(rng.choice(forms)),
        "n_neighbors": ["auto", None, 1, 3, 50][rng.integers(5)],
        "max_iter": int(rng.integers(1, 60)),
        "tol": float(rng.choice([0.0, 0.1, 5.0])),
        "accelerate": bool(rng.random() < 0.5),
        "backend": str(rng.choice(["cpu", "reference"], p=[0.8, 0.2])),
        "dtype": str(rng.choice(["float32", "float64"])),
        "n_threads": 1,
    }


def draw_encoder(rng: np.random.Generator) -> Case:
    """Fits of up to 200 sweeps at up to 400 components, a fifth of them with that many of both."""
    matrix = draw_matrix(rng, (150, 100) if rng.random() < 0.1 else (30, 20))
    n_components, max_iter = 1 + int(400 * rng.random() ** 2), 1 + int(200 * rng.random())
    if rng.random() < 0.2:
        n_components, max_iter = 400, 200
    wide, usual = float(10 ** rng.uniform(-28, 28)), float(10 ** rng.uniform(-2, 2))
    forms = "log1p", "binary", "counts"
    settings = {
        "n_components": n_components,
        "likelihood": str(rng.choice(["poisson", "negative_binomial"])),
        "concentration": [wide, usual, 3.0][rng.choice(3, p=[0.2, 0.4, 0.4])],
        "penalty": float(rng.choice([0.0, 10.0, 1e6, 10 ** rng.uniform(-6, 6)])),
        "input": str(rng.choice(forms)),
        "target": str(rng.choice(forms)),
        "n_clusters": int(rng.integers(1, matrix.shape[1] + 3)),
        "n_starts": int(rng.choice([1, 2, 4], p=[0.6, 0.2, 0.2])),
        "max_iter": max_iter,
        "tol": float(rng.choice([0.0, 2e-4, 1e-5], p=[0.7, 0.15, 0.15])),
        "backend": str(rng.choice(["cpu", "reference"], p=[0.9, 0.1])),
        "dtype": str(rng.choice(["float32", "float64"], p=[0.7, 0.3])),
        "n_threads": 1,
        "random_state": int(rng.integers(100)),
    }
    unknown = draw_unknown(rng, matrix.shape) if rng.random() < 0.25 else None
    few_cells = 0 if rng.random() < 0.25 else CHEAP_CELLS
    return Case("NBFISM", settings, matrix, unknown, bool(rng.random() < 0.5), rng, few_cells)


# ---- what must hold -------------------------------------------------------------------------------------------------


def hold(condition: Any, what: str) -> None:
    if not condition:
        raise FaultError(what)


def check_numbers(values: Any, what: str) -> None:
    values = values.data if sp.issparse(values) else np.asarray(values)
    hold(np.isfinite(values).all(), f"{what}: not finite")
    hold((values >= 0).all(), f"{what}: below 0")


def check_fit(model: Any, case: Case) -> None:
    objective = model.objective_
    if case.name == "Blend":
        hold(abs(model.weights_.sum() - 1) < 1e-9 and (model.weights_ >= 0).all(), "weights_: do not sum to 1")
        check_numbers(model.scales_, "scales_")
        return
    hold(len(objective) == model.n_iter_, "objective_: not one per sweep")
    hold(np.isfinite(objective).all(), "objective_: not finite")
    if case.name == "NBSLIM":
        check_numbers(model.weights_, "weights_")
        check_numbers(model.intercept_, "intercept_")
        return
    check_numbers(model.user_factors_, "user_factors_")
    check_numbers(model.item_factors_, "item_factors_")
    if case.name == "NBFISM":
        check_numbers(model.encoder_, "encoder_")
    seen = case.matrix if case.unknown is None else np.where(case.unknown, 0, case.matrix)
    eps = float(np.finfo(model.item_factors_.dtype).eps)
    rounding = 1e3 * eps * (np.abs(objective).max() + seen.sum() + case.matrix.size + model.item_factors_.size)
    if getattr(model, "exposure_", None) != "tied":  # new ties are another bound, which may be lower
        hold((np.diff(objective) >= -rounding).all(), "objective_: falls")
    if not (seen % 1).any() and model.get_params().get("target") != "log1p":
        hold(objective[-1] <= rounding, "objective_: the probability of the counts is above 1")


def pick(rng: np.random.Generator, ids: np.ndarray) -> Any:
    return ids[rng.integers(len(ids))].item()


def ask_recommend(model: Any, case: Case) -> None:
    rng, n = case.rng, int(case.rng.integers(1, 30))
    items = model.items_[rng.random(len(model.items_)) < 0.5].tolist()
    users = [None, pick(rng, model.users_), model.users_[:3].tolist()][rng.integers(3)]
    options = [{}, {"deny": items}, {"allow": items}, {"exclude_seen": False}][rng.integers(4)]
    found = model.recommend(users, n, **options)
    there = found.items != np.array(None)
    hold(np.isfinite(found.scores[there]).all(), "recommend: a score is not finite")
    hold((np.diff(np.where(there, found.scores, -1), axis=1) <= 0).all(), "recommend: not in order")
    if "deny" in options or "allow" in options:
        given = np.isin(found.items[there].astype(model.items_.dtype), items)
        hold(given.all() if "allow" in options else not given.any(), "recommend: an item that may not be")


def ask_recommend_for(model: Any, case: Case) -> None:
    rng = case.rng
    basket = {
        pick(rng, model.items_): int(rng.choice([1, 3, 10**9], p=[0.6, 0.35, 0.05])) for _ in range(rng.integers(4))
    }
    for found in (model.recommend_for(basket, 5), model.recommend_for(draw_rows(rng, model), 5)):
        hold(np.isfinite(found.scores[found.items != np.array(None)]).all(), "recommend_for: a score is not finite")


def ask_explain(model: Any, case: Case) -> None:
    user, item = pick(case.rng, model.users_), pick(case.rng, model.items_)
    why = model.explain(user, item)
    parts = np.append(why.contributions, why.prior)
    hold(np.isfinite(parts).all(), "explain: a part is not finite")
    apart = abs(parts.sum() - why.score)
    hold(apart <= 1e-5 * np.abs(parts).sum() + 1e-30, "explain: the parts do not sum to the score")
    predicted = float(model.predict(user, item)[0])
    if case.name == "BinaryMF":  # it predicts probabilities, and its scores are intensities
        why = replace(why, score=-math.expm1(-why.score))
    hold(abs(predicted - why.score) <= 1e-4 * abs(predicted) + 1e-30, "explain: not the score that predict returns")


def ask_predictive(model: Any, case: Case) -> None:
    options = {}
    if case.name not in STIFF and case.rng.random() < 0.3:
        options = {"factors": "posterior", "n_draws": 5}
    new = model.predictive(pick(case.rng, model.users_), model.items_.tolist(), **options)
    check_numbers(new.mean, "predictive.mean")
    check_numbers(new.sd, "predictive.sd")
    for name, chance in (("at_least", new.at_least(1)), ("probability", new.probability(0))):
        hold(((chance >= 0) & (chance <= 1 + 1e-6)).all(), f"predictive.{name}: not a probability")
    lower, upper = new.interval(0.9)
    hold((lower <= upper).all() and (lower >= 0).all(), "predictive.interval: not an interval")


def ask_exposures(model: Any, case: Case) -> None:
    found = model.exposures(pick(case.rng, model.users_))
    for name in ("intensity", "exposure", "sd"):
        check_numbers(getattr(found, name), f"exposures.{name}")


def ask_score(model: Any, case: Case) -> None:
    """−∞ only where a count has intensity 0, NaN only where there is nothing to score."""
    rows = draw_rows(case.rng, model)
    found = model.score(rows)
    if case.name in ("NBSLIM", "NBFISM"):  # which may have no weights between two items
        hold(not np.isnan(found), "score: NaN")
        return
    count = rows.matrix.toarray() if isinstance(rows, nbmf.Interactions) else rows
    μ = model.transform(rows) @ model.item_factors_.T
    is_possible = bool((μ[count > 0] > 0).all())
    hold(np.isfinite(found) if is_possible else not np.isnan(found), f"score: {found} though every count is possible")


def ask_similar(model: Any, case: Case) -> None:
    check_numbers(model.similar_items(pick(case.rng, model.items_), 5).similarity, "similar_items")
    if hasattr(model, "similar_users"):
        check_numbers(model.similar_users(pick(case.rng, model.users_), 5).similarity, "similar_users")


def ask_transform(model: Any, case: Case) -> None:
    check_numbers(model.transform(draw_rows(case.rng, model)), "transform")


def ask_grow(model: Any, case: Case) -> None:
    rng, model = case.rng, copy.deepcopy(model)
    how = rng.integers(3)
    if how == 0:
        what, new = "add_users", draw_rows(rng, model)
        model.add_users(new)
    elif how == 1:
        what, columns = "add_items", rng.poisson(0.7, (len(model.users_), 2))
        new = nbmf.Interactions.from_matrix(columns, users=model.users_, items=model.items_.max() + 1 + np.arange(2))
        model.add_items(new if case.has_ids else columns)
    else:
        n_users, n_items = len(model.users_) // 2 + 2, len(model.items_) // 2 + 2
        counts, users = rng.poisson(0.7, (n_users, n_items)), np.arange(n_users) + n_users // 2
        users = [f"u{n}" for n in users] if case.has_ids else users
        what, refresh = "partial_fit", int(rng.integers(3))
        new = nbmf.Interactions.from_matrix(counts, users=users, items=np.arange(n_items) + n_items // 2)
        model.partial_fit(new, refresh=refresh)
    check_numbers(model.user_factors_, f"{what}: user_factors_")
    check_numbers(model.item_factors_, f"{what}: item_factors_")
    hold(np.isfinite(model.recommend(None, 3, exclude_seen=False).scores).all(), f"{what}: a score is not finite")


def ask_file(model: Any, case: Case) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        path = Path(folder, "model.nbmf")
        model.save(path)
        first, loaded = path.read_bytes(), nbmf.load(path)
        loaded.save(path)
        hold(path.read_bytes() == first, "a loaded model is saved as other bytes")
    for one, other in zip(*(vars(m.recommend(None, 3)).values() for m in (model, loaded)), strict=True):
        hold(np.array_equal(one, other), "a loaded model recommends something else")


def ask_again(model: Any, case: Case) -> None:
    again = clone(model).fit(case.data(), **case.control())
    hold(again.objective_.tobytes() == model.objective_.tobytes(), "the same fit again has other bits")


QUESTIONS: dict[str, tuple[float, Callable[[Any, Case], None]]] = {  # and how often they are asked
    "recommend": (0.4, ask_recommend),
    "recommend_for": (0.4, ask_recommend_for),
    "explain": (0.4, ask_explain),
    "predictive": (0.4, ask_predictive),
    "exposures": (0.3, ask_exposures),
    "score": (0.4, ask_score),
    "similar": (0.3, ask_similar),
    "transform": (0.3, ask_transform),
    "grow": (0.3, ask_grow),
    "file": (0.3, ask_file),
    "again": (0.03, ask_again),
}
NOT_ASKED = {"NBSLIM": ("exposures", "transform", "grow"), "Blend": ("exposures", "transform", "grow", "score")}


def draw_rows(rng: np.random.Generator, model: Any) -> Any:
    """Return counts of new users, in the form of the data of the fit; one may have none, and one a huge count."""
    count = rng.poisson(rng.choice([0.2, 2.0]), (int(rng.integers(1, 4)), len(model.items_)))
    if rng.random() < 0.1:
        count[0, 0] = 10**9
    if model.users_.dtype.kind in "iu":
        return count
    return nbmf.Interactions.from_matrix(count, users=[f"new {n}" for n in range(len(count))], items=model.items_)


def attempt(what: str, act: Callable[[], Any]) -> Any:
    """Return what is answered, or None where the answer is a documented error."""
    try:
        return act()
    except FaultError:
        raise
    except Exception as error:
        text = str(error.args[0]) if error.args else ""
        if isinstance(error, ValueError | KeyError | ArithmeticError) and any(part in text for part in DOCUMENTED):
            return None
        raise FaultError(f"{what}: {type(error).__name__}: {text}") from error


def try_case(case: Case) -> int:
    """Fit and ask; return how many questions were answered, or raise FaultError."""
    with warnings.catch_warnings(), patch.object(fism, "CHEAP_CELLS", case.few_cells):
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", RuntimeWarning)
        model = attempt("fit", lambda: case.estimator().fit(case.data(), **case.control()))
        if model is None:
            return 0
        check_fit(model, case)
        n_asked = 0
        for name, (share, ask) in QUESTIONS.items():
            if case.rng.random() < share and name not in NOT_ASKED.get(case.name, ()):
                attempt(name, lambda ask=ask: ask(model, case))
                n_asked += 1
        return n_asked


# ---- running --------------------------------------------------------------------------------------------------------


def work(seed: int, first: int, only: str, pipe: int) -> None:
    """Try cases for ever, and report each: its number when it starts, then a tab and what it found."""
    number = first
    while True:
        os.write(pipe, f"{number}".encode())
        try:
            found = f"\t{try_case(draw(seed, number, only))}"
        except FaultError as fault:
            found = f"\t{' '.join(str(fault).split())[:300]}"
        os.write(pipe, f"{found}\n".encode())
        number += 1


def search(seconds: float, seed: int, only: str = "", most: int = 10**9) -> tuple[int, int, dict[int, str]]:
    """Try cases in a process that may crash; return how many were tried and asked, and what failed by number."""
    end, number, n_asked, failed = time.monotonic() + seconds, 0, 0, dict[int, str]()
    while time.monotonic() < end and number < most:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                work(seed, number, only, writer)
            finally:
                os._exit(70)
        os.close(writer)
        fault, rest = "", b""
        while not fault and time.monotonic() < end and number < most:
            if not select.select([reader], [], [], min(CASE_SECONDS, max(0.1, end - time.monotonic())))[0]:
                fault = f"hangs for more than {CASE_SECONDS:.0f} s" if time.monotonic() < end else ""
                continue
            content = os.read(reader, 1 << 16)
            if not content:
                fault = f"crash: the process died with status {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}"
                break
            *lines, rest = (rest + content).split(b"\n")
            for line in lines:
                one, _, found = line.decode().partition("\t")
                number = int(one) + 1
                if found.isdecimal():
                    n_asked += int(found)
                else:
                    failed[int(one)] = found
        os.close(reader)
        if not fault.startswith("crash"):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if fault:
            failed[number] = fault
            number += 1
    return number, n_asked, failed


def kind_of(fault: str) -> str:
    """What the fault is, without its numbers and folders."""
    return re.sub(r"/\S+/|[-+]?(\d+\.?\d*(e[-+]?\d+)?|inf|nan)", "#", fault)


def show_case(seed: int, number: int, only: str) -> int:
    """Print a case and what comes of it."""
    case = draw(seed, number, only)
    print(f"import numpy as np, scipy.sparse as sp, nbmf\n{case}", flush=True)
    try:
        print(f"# held; {try_case(case)} questions asked")
    except FaultError:
        traceback.print_exc(file=sys.stdout)
        return 1
    return 0


def main() -> int:
    options = typed_options(__doc__, case=None, only="", fits=10**9)
    if options.case is not None:
        return show_case(options.seed, options.case, options.only)
    n_fits, n_asked, failed = search(options.seconds, options.seed, options.only, options.fits)
    again = f"--only {options.only} " if options.only else ""
    kinds = Counter(map(kind_of, failed.values()))
    for kind, times in kinds.most_common():
        examples = [number for number, fault in failed.items() if kind_of(fault) == kind]
        print(f"{times} × {failed[examples[0]]}")
        for number in examples[:3]:
            print(f"    python tests/torture/fits.py {again}--seed {options.seed} --case {number}")
    print(f"fits: {n_fits:,} fits, {n_asked:,} answers checked, {len(failed):,} failures of {len(kinds)} kinds")
    return min(len(failed), 1)


if __name__ == "__main__":
    sys.exit(main())
