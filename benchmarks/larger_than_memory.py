"""Reading more data than memory: a simulated play-count file of 48 million rows → a compact file, within a limit.

    python benchmarks/larger_than_memory.py [--rows 48000000] [--memory 2GB] [--folder FOLDER] [--sweeps N]

The file has the sizes of the full Taste Profile: 1,019,318 users of 40 letters, 384,546 items of 18, users one after
another, popularity ~ rank^-0.8. Reading runs in a process of its own, whose peak memory the kernel reports.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

N_USERS, N_ITEMS, AT_A_TIME = 1_019_318, 384_546, 2_000_000
CHILD = """
import json, resource, sys, time
import nbmf
begun = time.perf_counter()
source, path, limit, users, items = sys.argv[1:6]
data = nbmf.store_counts(source, path, memory_limit=limit, min_users_per_item=int(users), min_items_per_user=int(items))
print(json.dumps({
    "seconds": time.perf_counter() - begun, "peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    "users": data.n_users, "items": data.n_items, "nnz": data.nnz, "repeated": data.n_repeated,
}))
"""


def write_plays(path: Path, n_rows: int, seed: int = 0) -> None:
    """Write `user<TAB>item<TAB>count` rows."""
    import pyarrow as pa
    import pyarrow.csv

    rng = np.random.default_rng(seed)
    activity = np.exp(1.1 * rng.standard_normal(N_USERS))
    degrees = rng.multinomial(n_rows - N_USERS, activity / activity.sum()) + 1  # everybody took something
    upto = np.cumsum(rng.permutation(np.arange(1.0, N_ITEMS + 1) ** -0.8))
    words = rng.integers(0, 2**62, (N_USERS, 3))
    user_ids = pa.array([f"{a:016x}{b:016x}{c:016x}"[:40] for a, b, c in words.tolist()])
    item_ids = pa.array([f"SO{n:016X}" for n in rng.permutation(N_ITEMS).tolist()])
    ends = np.cumsum(degrees)
    options = pa.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    schema = pa.schema([("user", pa.string()), ("item", pa.string()), ("count", pa.int64())])
    with pa.csv.CSVWriter(path, schema, write_options=options) as writer:
        for start in range(0, n_rows, AT_A_TIME):
            size = min(AT_A_TIME, n_rows - start)
            users = np.searchsorted(ends, np.arange(start, start + size), side="right")
            items = np.minimum(np.searchsorted(upto, rng.random(size) * upto[-1]), N_ITEMS - 1)
            counts = np.minimum(np.maximum(rng.random(size), 1e-6) ** -0.6, 5000).astype(np.int64)
            columns = [user_ids.take(pa.array(users)), item_ids.take(pa.array(items)), pa.array(counts)]
            writer.write_table(pa.table(columns, schema=schema))


def main() -> None:
    """Write the file unless it is there, and read it within the limit."""
    options = argparse.ArgumentParser()
    options.add_argument("--rows", type=int, default=48_373_586)
    options.add_argument("--memory", default="2GB")
    options.add_argument("--folder", type=Path, default=Path("."))
    options.add_argument("--min-users", default="0")
    options.add_argument("--min-items", default="0")
    chosen = options.parse_args()
    plays, compact = chosen.folder / f"plays-{chosen.rows}.tsv", chosen.folder / "plays.counts"
    if not plays.exists():
        begun = time.perf_counter()
        write_plays(plays, chosen.rows)
        print(f"{plays}: {os.path.getsize(plays) / 1e9:.2f} GB, written in {time.perf_counter() - begun:.0f} s")
    arguments = [str(plays), str(compact), chosen.memory, chosen.min_users, chosen.min_items]
    done = subprocess.run([sys.executable, "-c", CHILD, *arguments], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    print(f"limit {chosen.memory}: peak {found['peak'] / 1e9:.2f} GB, {found['seconds']:.0f} s; {found['users']:,} "
          f"users × {found['items']:,} items, {found['nnz']:,} counts ({found['repeated']:,} rows added to others), "
          f"{os.path.getsize(compact) / 1e9:.2f} GB on disk")  # fmt: skip


if __name__ == "__main__":
    main()
