"""Kill workers of a cluster with SIGKILL in the middle of sweeps; the result must be that of an undisturbed fit.

python tests/torture/workers.py --fits 20
python tests/torture/workers.py --seconds 600 --seed 1
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

import numpy as np

import nbmf
import nbmf.backends.dask
from nbmf.backends.counts import Counts
from nbmf.backends.dask import Part
from torture import typed_options

SETTINGS = {"n_components": 5, "random_state": 0, "max_iter": 12, "tol": 0, "exposure": "tied", "n_clusters": 6}


class Deadly(Part):
    """A part that kills whoever reads it."""

    def load(self) -> Counts:
        """Kill this process."""
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("nobody survives that")


def write_counts(folder: Path, n_users: int = 3000, n_items: int = 400) -> Path:
    """Write a compact file of simulated counts, by way of a folder of parquet parts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    n_rows, parts = 40 * n_users, folder / "parts"
    parts.mkdir()
    columns = rng.integers(0, n_users, n_rows), rng.integers(0, n_items, n_rows), rng.integers(1, 9, n_rows)
    for n in range(3):
        rows = slice(n * n_rows // 3, (n + 1) * n_rows // 3)
        table = pa.table({name: c[rows] for name, c in zip(("user", "item", "count"), columns, strict=True)})
        pq.write_table(table, parts / f"part.{n}.parquet")
    nbmf.store_counts(parts, folder / "plays.counts", memory_limit="1GB")
    return folder / "plays.counts"


def fit(path: Path, client: Any, **options: Any) -> nbmf.NBMF:
    """Fit with the same parts each time."""
    return nbmf.distributed.fit(nbmf.NBMF(**SETTINGS), path, client=client, n_parts=4, **options)


def kill_one(cluster: Any, rng: np.random.Generator) -> None:
    """Kill one of the busy workers, as the operating system does when memory runs out."""
    there = {worker.address for worker in cluster.scheduler.workers.values()}
    pids = [nanny.pid for nanny in cluster.workers.values() if nanny.worker_address in there]
    if pids:
        os.kill(int(rng.choice(pids)), signal.SIGKILL)


def disturbed_fit(path: Path, client: Any, cluster: Any, seed: int) -> nbmf.NBMF:
    """Fit while another thread kills a worker at a random time in a random sweep."""
    rng = np.random.default_rng(seed)
    chosen, delay, started = int(rng.integers(1, 8)), float(rng.random() * 0.2), threading.Event()

    def watch(snapshot: Any) -> None:
        if snapshot.sweep == chosen:
            started.set()

    def kill() -> None:
        if started.wait(300):
            time.sleep(delay)
            kill_one(cluster, rng)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    model = fit(path, client, callbacks=[watch])
    killer.join(300)
    return model


def main() -> int:
    """Kill a worker in each fit; return 1 if any of them differs from the undisturbed one."""
    options = typed_options(__doc__, fits=10**6)
    from distributed import Client

    warnings.simplefilter("error")
    end, n_fits, wrong = time.monotonic() + options.seconds, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        path = write_counts(Path(folder))
        with nbmf.distributed.local_cluster(2) as cluster, Client(cluster) as client:
            plain = fit(path, client)
            while n_fits < options.fits and time.monotonic() < end:
                model = disturbed_fit(path, client, cluster, options.seed + n_fits)
                same = all(
                    getattr(model, name).tobytes() == getattr(plain, name).tobytes()
                    for name in ("objective_", "user_factors_", "item_factors_")
                )
                wrong += not same
                if not same:
                    print(f"    other bits: python tests/torture/workers.py --seed {options.seed + n_fits} --fits 1")
                n_fits += 1
    print(f"workers: {n_fits - wrong} of {n_fits} fits with a killed worker ended as the undisturbed one")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
