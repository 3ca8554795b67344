"""The engine: progress counts the work of this run, and costs are those of the fit."""

import math

import numpy as np
import pytest

from nbmf.evaluation.experiments.engine import Engine, peak_memory
from nbmf.evaluation.experiments.store import Job, Store


def test_progress_counts_only_the_work_that_is_left(tmp_path, monkeypatch):
    jobs = [Job(str(n), "nbmf", n, {}, cost) for n, cost in enumerate((3.0, 1.0))]
    events = []
    engine = Engine(Store(tmp_path, {}), 2, 4.0, events.append)
    engine.skip(jobs[:1])
    assert (events[-1].n_done, events[-1].n_jobs, events[-1].share) == (1, 2, 0.0)
    engine.skip(jobs[1:])
    assert (events[-1].n_done, events[-1].share) == (2, 1.0)


def test_memory_is_that_of_the_fit():
    before = peak_memory(reset=True)
    if math.isnan(before):
        pytest.skip("this system does not report the peak of a process's memory")
    np.ones(10_000_000)
    assert 75 < peak_memory() - before < 120  # of 80 megabytes
