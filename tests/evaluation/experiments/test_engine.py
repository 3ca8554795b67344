"""The engine: progress counts the work of this run, and costs are those of the fit."""

import math
import subprocess
import sys

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


TAKEN = """
import numpy as np
from nbmf.evaluation.experiments.engine import peak_memory
before = peak_memory(reset=True)
np.ones(10_000_000)
print(peak_memory() - before)
"""


def test_memory_is_that_of_the_fit():
    """In a process of its own: one that has freed memory takes less for the same array."""
    if math.isnan(peak_memory()):
        pytest.skip("this system does not report the peak of a process's memory")
    done = subprocess.run([sys.executable, "-c", TAKEN], capture_output=True, text=True, timeout=300, check=True)
    assert 75 < float(done.stdout) < 120  # of 80 megabytes
