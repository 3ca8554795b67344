"""How the seconds and the memory of one fit grow with the number of items, for every model of the leaderboard.

python benchmarks/catalogue.py [--items 5000,40000,400000] [--users 50000] [--draws 2500000] [--models a,b]
                               [--folder DIR] [--memory GB] [--limit SECONDS] [--write]

(extra `bench`.) Users and the number of drawn counts stay the same; their popularity is rank^-0.8. Each model is fitted
with its defaults, but factor models with 50 components and SLIM with larger penalties, in a process of its own with all
cores. A fit that needs more memory or time than the limits is a row that says so. Results go to DIR as they are ready:
the same command resumes an interrupted run, and sizes and models can be added. --write puts the table into
docs/leaderboard.md.
"""

from __future__ import annotations

import argparse
import re
import resource
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbmf
from nbmf.evaluation.experiments.baselines import BASELINES, check_installed
from nbmf.evaluation.experiments.engine import (
    LostWorkerError,
    Outcome,
    OvertimeError,
    attempt,
    available_cores,
    measured,
)
from nbmf.evaluation.experiments.report import literal, table
from nbmf.evaluation.experiments.store import Job, Row, Store
from pages import ROOT, put_between
from workload import popular_counts

N_COMPONENTS = 50
# penalties that ranked well on the groceries; the defaults keep hardly any weight at 0
CHOSEN: Mapping[str, Mapping[str, Any]] = {"slim": {"l1": 3.0, "l2": 100.0, "iterations": 20, "input": "log1p"}}
SIZES = ("factors", "components", "n_components")  # what models call their number of components


@dataclass(frozen=True)
class Attempt:
    """What a process needs in order to fit a model."""

    train: nbmf.Interactions
    gigabytes: float  # the most memory that it may ask for


def main() -> None:
    """Fit every model to every size, and show the table."""
    options = _options()
    for model in options.models:
        check_installed(model)
    found = table_of(measure_all(options), options.items, options.models)
    print(found, flush=True)
    if options.write:
        sizes = ",".join(map(str, options.items))
        drawn = ["--users", str(options.users), "--draws", str(options.draws)]
        limits = ["--memory", f"{options.memory:g}", "--limit", f"{options.limit:g}"]
        command = shlex.join(["python", "benchmarks/catalogue.py", "--items", sizes, *drawn, *limits, "--write"])
        put_between(ROOT / "docs" / "leaderboard.md", "catalogue", f"    {command}\n\n{found}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = partial(_split, kind=int)
    parser.add_argument("--items", type=sizes, default=(5_000, 40_000, 400_000), help="numbers of items")
    parser.add_argument("--users", type=int, default=50_000)
    parser.add_argument("--draws", type=int, default=2_500_000, help="pairs of user and item, before repeated ones go")
    parser.add_argument("--models", type=_split, default=tuple(BASELINES))
    parser.add_argument("--folder", type=Path, default=Path("catalogue"), help="folder of the results")
    parser.add_argument("--memory", type=float, default=16.0, help="limit per fit, in gigabytes")
    parser.add_argument("--limit", type=float, default=900.0, help="time limit per fit, in seconds")
    parser.add_argument("--write", action="store_true", help="write docs/leaderboard.md")
    return parser.parse_args()


def _split(text: str, kind: Any = str) -> tuple[Any, ...]:
    return tuple(map(kind, text.split(",")))


def measure_all(options: argparse.Namespace) -> dict[str, Row]:
    """Run or resume the fits, the smallest catalogue first; return their rows."""
    drawn = {"n_users": options.users, "draws": options.draws, "cores": available_cores()}
    limits = {"gigabytes": options.memory, "seconds": options.limit}
    store = Store(options.folder, {"data": drawn, "limits": limits, "made with": {"nbmf": version("nbmf")}})
    for n_items in sorted(options.items):
        left = store.missing([job_of(model, n_items) for model in options.models])
        if not left:
            continue
        train = nbmf.Interactions.from_matrix(popular_counts(options.users, n_items, options.draws))
        print(train, flush=True)
        for job in left:
            (outcome,) = attempt(fit_once, Attempt(train, options.memory), [job], 1, limit_s=options.limit)
            row = row_of(outcome, options.memory)
            store.add(row)
            print(f"{job.name}: {in_words(row)}", flush=True)
    return store.rows()


def job_of(model: str, n_items: int) -> Job:
    """Return the fit of a model: its settings, with the same number of components for all that have any."""
    defaults = {**BASELINES[model].defaults, **CHOSEN.get(model, {})}
    settings = {**defaults, **{name: N_COMPONENTS for name in SIZES if name in defaults}}
    return Job(f"{model}-{n_items}", model, 0, settings)


def fit_once(task: Attempt, job: Job) -> Row:
    """Fit a model in this process, whose memory is limited from here on."""
    most = int(task.gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    fit = partial(BASELINES[job.model].fit, seed=job.seed, n_threads=available_cores(), **job.settings)
    _, seconds, megabytes = measured(fit, task.train)
    return Row(job, seconds, megabytes)


def row_of(outcome: Outcome, gigabytes: float) -> Row:
    """Return the row of a fit, or why there is none."""
    error = outcome.error
    if error is None:
        return outcome.result
    if isinstance(error, MemoryError):
        asked = re.search(r"Unable to allocate ([\d.]+) (\w+)", str(error))
        array = f", one array alone {float(asked[1]):g} {asked[2]}" if asked else ""
        return Row(outcome.job, problem=f"needs more than {gigabytes:g} GB{array}")
    if isinstance(error, OvertimeError):
        return Row(outcome.job, problem=str(error))
    if isinstance(error, LostWorkerError):  # compiled code may end the process when it is refused memory
        return Row(outcome.job, problem=f"its process died; it probably needs more than {gigabytes:g} GB")
    return Row(outcome.job, problem=" ".join(f"{type(error).__name__}: {error}".split()))


def table_of(rows: Mapping[str, Row], sizes: Sequence[int], models: Sequence[str]) -> str:
    """Return a row per model: seconds and memory of a fit to each size, or why it could not be made."""
    lines = []
    for model in models:
        cells = [in_words(rows[f"{model}-{n_items}"]) for n_items in sizes]
        lines.append([literal(BASELINES[model].label), *map(literal, cells)])
    return table(["model", *(f"{n_items:,} items" for n_items in sizes)], lines)


def in_words(row: Row) -> str:
    """Return the seconds and the memory of a fit, or its problem."""
    if row.problem:
        return row.problem
    seconds = f"{row.seconds:.0f} s" if row.seconds >= 10 else f"{row.seconds:.2g} s"
    return f"{seconds}, {row.megabytes:,.0f} MB"


if __name__ == "__main__":
    main()
