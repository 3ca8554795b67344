"""Write small model files, checkpoints and a file of counts, for later commits to read.

    PYTHONPATH=<an older checkout>/src python tests/make_fixtures.py tests/fixtures/<name of that state>

expected.json beside them has checksums of their arrays, and what the models answered when they were written. Only
public names are used, so this runs with the sources of any commit.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import scipy.sparse as sp
from scipy.special import digamma, gammaln
from sklearn.base import clone

import nbmf

N_SWEEPS, CUT = 11, 5  # accelerated fits are in the middle of an extrapolation after five
COMMON = {"random_state": 0, "max_iter": N_SWEEPS, "tol": 0, "n_threads": 1}
CHECKPOINTED: dict[str, Any] = {
    "tied": nbmf.NBMF(2, exposure="tied", n_clusters=3, **COMMON),
    "accelerated": nbmf.NBMF(2, exposure="tied", n_clusters=3, accelerate=True, dtype="float64", **COMMON),
    "exact": nbmf.NBMF(2, exposure="exact", rates="per_row", shapes="learn", **COMMON),
    "learn_per_user": nbmf.NBMF(2, concentration="learn_per_user", **COMMON),
    "mm": nbmf.NBMF(2, inference="mm", accelerate=True, **COMMON),
    "binarized": nbmf.PoissonMF(2, binarize=True, **COMMON),
}
MODELS = {
    **CHECKPOINTED,
    "slim": nbmf.NBSLIM(penalty=1.0, n_threads=1),
    "averaged": nbmf.Averaged(nbmf.NBMF(2, exposure="exact", max_iter=N_SWEEPS, tol=0), n_runs=2, random_state=0),
}


def counts() -> nbmf.Interactions:
    """Simulated counts of 12 users and 9 items, with ids of text and of numbers; the last user has none."""
    rng = np.random.RandomState(0)
    matrix = rng.negative_binomial(0.7, 0.25, (12, 9)) * (rng.random_sample((12, 9)) < 0.7)
    matrix[-1] = 0
    users = np.array([f"user {n} é" for n in range(12)], object)
    return nbmf.Interactions.from_matrix(matrix, users=users, items=np.arange(100, 109))


def digest(values: Any) -> str:
    """A checksum of an array, of its type and of its shape."""
    values = values.toarray() if sp.issparse(values) else np.ascontiguousarray(values)
    return sha256(f"{values.dtype.str} {values.shape}".encode() + values.tobytes()).hexdigest()[:16]


def arrays_of(model: Any) -> dict[str, str]:
    """The checksums of everything numeric that a fit has left."""
    names = [name for name in dir(model) if name.endswith("_") and not name.startswith("_")]
    found = {}
    for name in names:
        value = getattr(model, name)
        if sp.issparse(value) or isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype != object):
            found[name] = digest(value)
    for n, member in enumerate(getattr(model, "members_", ())):
        found |= {f"member {n}: {name}": value for name, value in arrays_of(member).items()}
    return found


def answers_of(model: Any) -> dict[str, Any]:
    """What a model says to a few questions."""
    users = model.users_[[0, 5, 11]].tolist()
    best = model.recommend(users, n=4)
    new = model.recommend_for({103: 2, 106: 1}, n=4)
    return {
        "recommended": [*best.items.tolist(), new.items[0].tolist()],
        "scores": [[round(float(score), 6) for score in row] for row in (*best.scores, new.scores[0])],
        "similar": model.similar_items(104, n=3).ids.tolist(),
    }


def arithmetic() -> str:
    """A checksum that differs between processors, libraries and compilers whose sums differ in the last bit."""
    rng = np.random.RandomState(0)
    compiler = llvm.llvm_version_info, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    found = [np.array(repr(compiler))]  # the kernels are compiled for this very processor
    for dtype in (np.float32, np.float64):
        W, H = rng.gamma(1.0, 1.0, (130, 7)).astype(dtype), rng.gamma(1.0, 1.0, (900, 7)).astype(dtype)
        found += [W @ H.T, (W @ H.T) @ H, W[:12, :2] @ H[:9, :2].T, np.exp(-W), np.log(W), W.sum(axis=0), W.sum()]
        found += [digamma(W), gammaln(W)]
    return sha256(b"".join(np.asarray(values).tobytes() for values in found)).hexdigest()[:16]


def main(folder: Path) -> None:
    """Write everything into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    data, expected = counts(), {"arithmetic": {"arithmetic": arithmetic()}}
    for name, estimator in MODELS.items():
        model = clone(estimator).fit(data)
        model.save(folder / f"{name}.nbmf")
        expected[name] = {"class": type(model).__name__, "arrays": arrays_of(model), **answers_of(model)}
    for name, estimator in CHECKPOINTED.items():
        short = clone(estimator).set_params(max_iter=CUT)
        short.fit(data, checkpoint=folder / f"{name}.checkpoint.nbmf", checkpoint_every=N_SWEEPS)
    source = folder / "plays.csv"
    cells = data.matrix.tocoo()
    rows = zip(data.users[cells.row], data.items[cells.col], cells.data, strict=True)
    source.write_text("".join(f"{user},{item},{count}\n" for user, item, count in rows))
    nbmf.store_counts(source, folder / "plays.counts")
    source.unlink()
    stored = nbmf.open_counts(folder / "plays.counts")
    expected["counts"] = {name: digest(getattr(stored.matrix, name)) for name in ("indptr", "indices", "data")}
    lines = (f" {json.dumps(name)}: {json.dumps(facts)}" for name, facts in expected.items())
    (folder / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
