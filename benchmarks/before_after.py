"""Compare the speed of this source tree with another, say of the commit before, in one run.

    git worktree add ../before HEAD~1
    python benchmarks/before_after.py ../before/src [--quick] [--rounds 7] [--cases "sweep of PoissonMF" ...]

Each tree runs in its own process, set up once per case, and the two take turns, so that other load on the machine hits
both. Only public names are used, so any commit will do. Each row shows the median seconds of both trees, the median
ratio after / before over the rounds with its quartiles, and the ratio of the least seconds, which load disturbs less.
Takes two minutes with --quick, otherwise about fifteen.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import nbmf
from measure import repeated
from workload import N_CLUSTERS, N_COMPONENTS, popular_counts

SWEEPS, QUESTIONS = 6, 200
Job = Callable[[], list[float]]


def start(matrix: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Return the same factors for every tree."""
    rng = np.random.RandomState(0)
    W, H = (rng.gamma(1, 1, (n, N_COMPONENTS)).astype(np.float32) for n in matrix.shape)
    return W, H


def sweeps(model: nbmf.NBMF | nbmf.PoissonMF, matrix: sp.csr_array) -> Job:
    """Return a job that fits for some sweeps and returns the seconds of each but the first."""
    model.set_params(init=start(matrix), max_iter=SWEEPS, tol=0)

    def job() -> list[float]:
        ends: list[float] = []
        model.fit(matrix, callbacks=[lambda snapshot: ends.append(time.perf_counter())])
        return np.diff(ends).tolist()

    return job


def tied_sweep(quick: bool) -> Job:
    """Sweep the data of peers.py with tied exposures."""
    matrix = popular_counts(20_000, 8_000, 800_000) if quick else popular_counts()
    return sweeps(nbmf.NBMF(N_COMPONENTS, exposure="tied", n_clusters=N_CLUSTERS, random_state=0), matrix)


def poisson_sweep(quick: bool) -> Job:
    """Sweep the data of peers.py without exposures."""
    matrix = popular_counts(20_000, 8_000, 800_000) if quick else popular_counts()
    return sweeps(nbmf.PoissonMF(N_COMPONENTS, random_state=0), matrix)


def exact_sweep(quick: bool) -> Job:
    """Sweep over every cell: few non-zeros, so that the dense pass of passes.py takes nearly all of the time."""
    matrix = popular_counts(*((4_096, 2_048) if quick else (16_384, 8_192)), 20_000)
    return sweeps(nbmf.NBMF(N_COMPONENTS, exposure="exact", random_state=0), matrix)


QUESTIONS_ASKED: dict[str, Callable[[nbmf.NBMF, int, sp.csr_array], object]] = {
    "recommend(user)": lambda model, user, row: model.recommend(user),
    "recommend_for({…})": lambda model, user, row: model.recommend_for(dict(zip(row.indices, row.data, strict=True))),
    "transform(row)": lambda model, user, row: model.transform(row),
    "explain(user, item)": lambda model, user, row: model.explain(user, 0),
    "similar_items(item)": lambda model, user, row: model.similar_items(0),
    "predictive(user, item)": lambda model, user, row: model.predictive(user, 0).interval(),
}


def question(name: str, quick: bool) -> Job:
    """Ask what serving.py asks: about one user with some 30 counts."""
    matrix = popular_counts(2_000, 40_000, 100_000) if quick else popular_counts(20_000, 40_000, 1_000_000)
    user = int(np.argmin(np.abs(np.diff(matrix.indptr) - 30)))
    settings = {"exposure": "tied", "n_clusters": N_CLUSTERS, "init": start(matrix), "max_iter": 2, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # two sweeps are not enough
        model = nbmf.NBMF(N_COMPONENTS, **settings).fit(matrix)
    row = matrix[[user]]
    return lambda: repeated(lambda: QUESTIONS_ASKED[name](model, user, row), QUESTIONS)


CASES = {
    "sweep of NBMF, tied": tied_sweep,
    "sweep of PoissonMF": poisson_sweep,
    "sweep of NBMF, exact": exact_sweep,
    **{name: partial(question, name) for name in QUESTIONS_ASKED},
}


def work(case: str, quick: bool) -> None:
    """Set a case up, then run it once for each line of standard input and print the seconds of its parts."""
    job = CASES[case](quick)
    job()  # compiles and warms up
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(job()), flush=True)


@contextmanager
def worker(source: Path, case: str, quick: bool) -> Iterator[Job]:
    """Start a process with a tree's sources; yields a function that has it run once."""
    paths = [str(source), str(Path(__file__).parent)]
    command = [sys.executable, __file__, str(source), "--work", case, *(["--quick"] if quick else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout
        if stdout.readline() != "ready\n":
            raise RuntimeError(f"{source}: {case} cannot be run; the reason stands above")

        def run() -> list[float]:
            stdin.write("once\n")
            found: list[float] = json.loads(stdout.readline())
            return found

        yield run
        stdin.close()


def compare(case: str, before: Path, after: Path, rounds: int, quick: bool) -> None:
    """Run a case in turns, changing which tree runs first in every round, and print a row."""
    with worker(before, case, quick) as old, worker(after, case, quick) as new:
        found: dict[Job, list[list[float]]] = {old: [], new: []}
        for n in range(rounds):
            for run in (old, new) if n % 2 else (new, old):
                found[run].append(run())
    before_seconds, after_seconds = (np.median(found[run], axis=1) for run in (old, new))
    low, ratio, high = np.quantile(after_seconds / before_seconds, [0.25, 0.5, 0.75])
    least = np.min(found[new]) / np.min(found[old])
    medians = f"{np.median(before_seconds):10.5f} {np.median(after_seconds):10.5f}"
    print(f"{case:22} {medians} {ratio:8.3f}  ({low:.3f} to {high:.3f})  {least:8.3f}", flush=True)


def main() -> None:
    """Compare all cases, or act as one of the two workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the other tree's src")
    parser.add_argument("--quick", action="store_true", help="smaller data")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--work", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        if Path(nbmf.__file__).parents[1] != options.before:
            raise ImportError(f"{nbmf.__file__} was imported, not the package in {options.before}")
        work(options.work, options.quick)
        return
    if not (options.before / "nbmf").is_dir():
        parser.error(f"{options.before} has no nbmf; name the src of the other tree")
    print(f"{'seconds':22} {'before':>10} {'after':>10} {'ratio':>8}  {'(quartiles)':16}  {'of least':>8}")
    for case in options.cases:
        compare(case, options.before.resolve(), Path(__file__).parents[1] / "src", options.rounds, options.quick)


if __name__ == "__main__":
    main()
