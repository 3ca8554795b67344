"""Small data, results with given numbers, and fits without processes, for the tests of experiments."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import nbmf
from helpers import small_matrix
from nbmf.evaluation.experiments import engine
from nbmf.evaluation.experiments.engine import Outcome
from nbmf.evaluation.experiments.paper import Grid, Results, open_store
from nbmf.evaluation.experiments.store import Row, packed
from nbmf.evaluation.experiments.tuned import TunedComparison

N_GROUPS = 4
QUICK = TunedComparison(("popularity", "ease", "poisson"), n_trials=3, n_starts=2)


def write_plays(folder):
    """Write counts with a split of their own, and names beside them; return the path of the counts."""
    matrix = small_matrix(60, 40)
    user, item = np.nonzero(matrix)
    columns = {"user": user, "item": item, "count": matrix[user, item], "test": np.arange(len(user)) % 5 == 2}
    pq.write_table(pa.table(columns), folder / "plays.parquet")
    names = [f"Song {n % 38}" for n in range(40)]
    pq.write_table(pa.table({"item": np.arange(40), "title": names}), folder / "items.parquet")
    return folder / "plays.parquet"


def constructed(study, folder, level, *, noise=0.001, components=(20, 50, 100)):
    """Make results whose NDCG is `level(model, K, metric)`, with a little noise from user to user."""
    grid, rng = Grid(components, n_starts=2, thresholds=(1, 2, 5)), np.random.default_rng(0)
    store = open_store(study, grid, folder)
    tested = np.diff(study.test.matrix.indptr) > 0
    convergence = {"sweeps": 10, "converged": True, "objective": -1.0, "exposure": ""}
    for entry in grid.entries:
        for job in grid.jobs_of(entry):
            values = {}
            for metric in ("ndcg_counts", *(f"ndcg_at_least_{s}" for s in grid.thresholds)):
                values[metric] = np.full(len(tested), np.nan)
                values[metric][tested] = level(*entry, metric) + noise * rng.normal(size=tested.sum())
            means = {metric: float(np.nanmean(column)) for metric, column in values.items()}
            store.add(Row(job, 0.1, convergence=convergence, means=means), packed(values))
    return Results(study, grid, store)


def as_in_the_paper(model, n_components, metric):
    """Return levels for `constructed` for which every claim of the paper holds."""
    best = {"nbmf": 50, "pf": 50, "binarized_pf": 20}[model]
    ahead = {"nbmf": 0.02, "pf": 0.0, "binarized_pf": 0.01}[model]
    if metric == "ndcg_at_least_1" and model == "binarized_pf":
        ahead = 0.05
    return 0.3 + ahead - 0.01 * (n_components != best)


def planted(seed=0):
    """Return counts of users who take from their own group of items, one of them nothing; an item nobody takes."""
    rng = np.random.RandomState(seed)
    user_group, item_group = np.arange(120) % N_GROUPS, np.arange(60) % N_GROUPS
    chance = np.where(user_group[:, None] == item_group, 0.6, 0.06)
    counts = (rng.random_sample((120, 60)) < chance) * (1 + rng.negative_binomial(1, 0.4, (120, 60)))
    counts[-1], counts[:, -1] = 0, 0
    return nbmf.Interactions.from_matrix(counts).split(0.2, seed=seed)


def in_this_process(work, shared, jobs, n_workers, *, limit_s=None):
    """Do what `attempt` does, without processes."""
    for job in jobs:
        try:
            yield Outcome(job, work(shared, job), None)
        except Exception as error:
            yield Outcome(job, None, error)


def make_quick(patch):
    """Fit in this process, each model once."""
    patch.setattr(engine, "attempt", in_this_process)
    patch.setattr(engine, "REPEATS", 1)
