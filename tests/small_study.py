"""A small study for the tests of experiments: counts in a file, and results whose numbers are given."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from helpers import small_matrix
from nbmf.experiments.grid import Grid
from nbmf.experiments.results import Results
from nbmf.experiments.rows import Row
from nbmf.experiments.runs import open_folder


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
    kept = open_folder(study, grid, folder)
    judged = np.diff(study.test.matrix.indptr) > 0
    for job in grid.jobs():
        values = {}
        for metric in grid.metrics:
            values[metric] = np.full(len(judged), np.nan)
            values[metric][judged] = level(job.model, job.n_components, metric) + noise * rng.normal(size=judged.sum())
        kept.keep_values(job, values)
        means = {metric: float(np.nanmean(column)) for metric, column in values.items()}
        kept.add(Row(job, job.start, "", 10, True, -1.0, 0.1, means))
    return Results(study, grid, kept)
