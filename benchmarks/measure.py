"""How the benchmarks measure: seconds of a job, memory of this process, and work in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import scipy.sparse as sp

Found = TypeVar("Found")


def timed(job: Callable[[], Found]) -> tuple[float, Found]:
    """Return the seconds of a job, and what it returned."""
    started = time.perf_counter()
    found = job()
    return time.perf_counter() - started, found


def repeated(job: Callable[[], object], times: int = 5) -> list[float]:
    """Return the seconds of each run, after one more that compiles and warms up."""
    job()
    return [timed(job)[0] for _ in range(times)]


def seconds(job: Callable[[], object], times: int = 5) -> float:
    """Return the median seconds of several runs, after one more that compiles and warms up."""
    return float(np.median(repeated(job, times)))


def memory(name: str) -> int:
    """Return bytes of this process as Linux counts them: VmRSS is what it has now, VmHWM the most it ever had."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(f"{name}:"))


def in_a_process(code: str, *arguments: object) -> str:
    """Run Python code, which may import this module, in a separate process and return what it prints."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


def on_matrix(code: str, matrix: sp.csr_array) -> str:
    """Run code in a separate process; `sys.argv[1]` names a file of the matrix, for `scipy.sparse.load_npz`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "matrix.npz"
        sp.save_npz(path, sp.csr_matrix(matrix), compressed=False)
        return in_a_process(code, path)
