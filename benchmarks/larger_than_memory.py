"""Data larger than memory: read a simulated file of 48 million play counts, filter it and fit a model, within limits.

    python benchmarks/larger_than_memory.py [--rows N] [--memory 2GB] [--folder FOLDER]

The file has the sizes of the full Taste Profile: 1,019,318 users with ids of 40 letters, 384,546 items with ids of 18,
sorted by user, popularity ~ rank^-0.8. It is stored as it is and with the paper's filters; then a fit is planned and
run from the stored file. Each step is a process of its own, whose peak memory Linux reports (VmHWM, RssAnon, RssFile).
Its arrays are its own; pages of the mapped file can be reclaimed when other processes need memory. Files that are
already in FOLDER are used again and kept; without --folder everything goes into a temporary folder that is removed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from measure import in_a_process

N_USERS, N_ITEMS, AT_A_TIME = 1_019_318, 384_546, 2_000_000
STEPS = ["read", "filter", "fit"]
MEASURED = """
import json, sys, threading, time
import nbmf
from measure import memory

def watch():
    while not done.wait(0.02):
        for name in most:
            most[name] = max(most[name], memory(name))

most, done = {"RssAnon": 0, "RssFile": 0}, threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
begun = time.perf_counter()
try:
    found = work(*sys.argv[1:])
finally:
    done.set()
    watcher.join()
print(json.dumps({"seconds": time.perf_counter() - begun, **found, **most, "peak": memory("VmHWM")}))
"""
STORE = """
def work(source, path, limit, users, items):
    least = {"min_users_per_item": int(users), "min_items_per_user": int(items)}
    data = nbmf.store_counts(source, path, memory_limit=limit, **least)
    return {"users": data.n_users, "items": data.n_items, "nnz": data.nnz, "repeated": data.n_repeated}
"""
FIT = """
def work(path, components, sweeps):
    ends = [time.perf_counter()]
    model = nbmf.NBMF(int(components), exposure="tied", random_state=0, max_iter=int(sweeps), tol=0, backend="cpu")
    model.fit(nbmf.open_counts(path), callbacks=[lambda snapshot: ends.append(time.perf_counter())])
    return {"sweep": min(after - before for before, after in zip(ends[1:], ends[2:]))}
"""


def write_plays(path: Path, n_rows: int, seed: int = 0) -> None:
    """Write `user<TAB>item<TAB>count` rows."""
    import pyarrow as pa
    import pyarrow.csv

    rng = np.random.default_rng(seed)
    activity = np.exp(1.1 * rng.standard_normal(N_USERS))
    degrees = rng.multinomial(n_rows - N_USERS, activity / activity.sum()) + 1  # every user has at least one
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


def measured(work: str, *arguments: object) -> dict[str, float]:
    """Run some work in a process of its own, and return its results with its time and memory."""
    found: dict[str, float] = json.loads(in_a_process(work + MEASURED, *arguments))
    return found


def planned(path: Path, components: int) -> dict[str, float]:
    """Return what `nbmf plan` predicts for the tied fit."""
    command = [
        sys.executable,
        "-c",
        "from nbmf.cli import main; main()",
        "plan",
        str(path),
        "-k",
        str(components),
        "--json",
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    (tied,) = (each for each in json.loads(done.stdout)["plans"] if each["exposure"] == "tied")
    return tied


def show(step: str, stated: str, found: dict[str, float], more: str) -> None:
    """Print a row of the table."""
    sizes = (f"{found[name] / 1e9:.2f}" for name in ("peak", "RssAnon", "RssFile"))
    print(f"| {step} | {stated} | {' | '.join(sizes)} | {found['seconds']:.0f} | {more} |", flush=True)


def measure(folder: Path, steps: list[str], rows: int, limit: str, components: int, sweeps: int) -> None:
    """Write the file unless it exists; store it, filter it, plan a fit and run it."""
    plays, compact = folder / f"plays-{rows}.tsv", folder / f"plays-{rows}.counts"
    if not plays.exists():
        begun = time.perf_counter()
        write_plays(plays, rows)
        print(f"{plays.name}: {plays.stat().st_size / 1e9:.2f} GB, written in {time.perf_counter() - begun:.0f} s\n")
    print("| step | limit or predicted | peak, GB | own arrays | pages of files | seconds | |\n" + 7 * "|---" + "|")
    for step, path, least in (("read", compact, (0, 0)), ("filter", folder / "filtered.counts", (50, 20))):
        if step in steps:
            found = measured(STORE, plays, path, limit, *least)
            sizes = f"{found['users']:,} × {found['items']:,}, {found['nnz']:,} counts"
            show(step, limit, found, f"{sizes}, {path.stat().st_size / 1e9:.2f} GB on disk")
    if "fit" in steps:
        plan = planned(compact, components)
        found = measured(FIT, compact, components, sweeps)
        show(f"fit, K = {components}, {sweeps} sweeps", f"{plan['memory'] / 1e9:.2f} GB", found,
             f"{found['sweep']:.2f} s per sweep, {plan['seconds_per_sweep']:.2f} predicted")  # fmt: skip


def main() -> None:
    """Measure in the given folder, or in a temporary one."""
    options = argparse.ArgumentParser()
    options.add_argument("--rows", type=int, default=48_373_586)
    options.add_argument("--memory", default="2GB", help="memory limit for reading")
    options.add_argument("--folder", type=Path, help="folder with enough space, 5 GB by default")
    options.add_argument("--components", type=int, default=50)
    options.add_argument("--sweeps", type=int, default=4)
    options.add_argument(
        "--steps",
        nargs="+",
        choices=STEPS,
        default=STEPS,
        help="steps to run; fit needs what read stored",
    )
    chosen = options.parse_args()
    arguments = (chosen.steps, chosen.rows, chosen.memory, chosen.components, chosen.sweeps)
    if chosen.folder is not None:
        measure(chosen.folder, *arguments)
        return
    with tempfile.TemporaryDirectory(prefix="nbmf-") as folder:
        measure(Path(folder), *arguments)


if __name__ == "__main__":
    main()
