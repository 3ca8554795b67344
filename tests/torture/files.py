"""Damaged and forged files: each is refused with a sentence, or loads and answers; none crashes, hangs or grows.

    python tests/torture/files.py --seconds 600 --seed 0

From good files of every kind it makes bad ones: damaged bytes, and forged contents under checksums that are right, so
that the checks behind the checksums are reached. Cases run in children, in batches; a case that kills its child, takes
more than LONGEST seconds or MOST_BYTES, or raises anything but a documented error is a failure, and the line that
reports it has the seed and the number that reproduce it:

    python tests/torture/files.py --seed 0 --case 1234
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import nbmf
from nbmf.inference.run import FallingObjectiveError
from nbmf.storage.container import CODES, TYPES, StorageError, read

sys.path.insert(0, str(Path(__file__).parents[1]))

from format_1 import seal

LONGEST = 5.0  # seconds of computing for a file of a few kilobytes, however busy the machine is
MOST_BYTES = 50_000_000  # that a file may take, and that a run may grow by
HUNG = 30.0  # seconds after which a child that says nothing is killed
BATCH = 1000  # cases of a child
SETTLED = 100  # cases after which a child has loaded what it needs, so that it must not grow further
ROOM = 1 << 30  # bytes of address space that a child may take beyond what it starts with


# ---- good files -----------------------------------------------------------------------------------------------------


class Good(NamedTuple):
    """The bytes of a good file, what it holds, and what reads such a file and uses what it finds."""

    name: str
    whole: bytes
    document: dict[str, Any]
    arrays: dict[str, np.ndarray]
    use: Callable[[Path], Any]


MATRIX = np.random.default_rng(0).poisson(0.8, (5, 4))
MATRIX[:, 0] += 1
PLAIN: dict[str, Any] = {"max_iter": 3, "random_state": 0, "n_threads": 1, "tol": 0.0, "backend": "cpu"}
MODELS: dict[str, Any] = {
    "exact": nbmf.NBMF(2, exposure="exact", **PLAIN),
    "tied": nbmf.NBMF(2, exposure="tied", n_clusters=2, **PLAIN),
    "maximum likelihood": nbmf.NBMF(1, inference="mm", **PLAIN),
    "learned per item": nbmf.NBMF(2, concentration="learn_per_item", exposure="exact", **PLAIN),
    "rates per row": nbmf.NBMF(2, rates="per_row", shapes="learn", dtype="float64", **PLAIN),
    "start": nbmf.NBMF(
        1, init=(np.ones((5, 1)), np.ones((4, 1))), **PLAIN | {"random_state": np.random.RandomState(1)}
    ),
    "poisson": nbmf.PoissonMF(2, binarize=True, **PLAIN),
    "factorization": nbmf.estimators.factorization.Factorization(1, exposure="exact", **PLAIN),
    "average": nbmf.Averaged(nbmf.NBMF(1, **PLAIN), n_runs=2, random_state=0),
    "blend": nbmf.Blend(
        [
            nbmf.NBSLIM(penalty=1.0, n_threads=1, max_iter=3),
            nbmf.Averaged(nbmf.PoissonMF(1, **PLAIN), n_runs=2, random_state=0),
            nbmf.NBMF(1, exposure="exact", **PLAIN),
        ],
        [0.5, 0.25, 0.25],
    ),
    "encoder": nbmf.NBFISM(2, n_starts=2, **PLAIN),
    "encoder of counts": nbmf.NBFISM(1, likelihood="negative_binomial", target="counts", n_starts=1, **PLAIN),
    "dense weights": nbmf.NBSLIM(penalty=1.0, n_threads=1, max_iter=3),
    "sparse weights": nbmf.NBSLIM(penalty=1.0, n_threads=1, max_iter=3, n_neighbors=2, target="counts"),
}
RESUMED: dict[str, Any] = {
    "checkpoint": nbmf.NBMF(2, exposure="tied", n_clusters=2, **PLAIN),
    "accelerated checkpoint": nbmf.NBMF(2, exposure="exact", accelerate=True, **PLAIN),
    "checkpoint of an encoder": nbmf.NBFISM(2, n_starts=2, **PLAIN),
    "checkpoint of points": nbmf.PoissonMF(1, inference="mm", accelerate=True, **PLAIN),
}


def good_files(folder: Path) -> list[Good]:
    """Write one file of every kind, and use each once, which loads what there is to load."""
    path, found = folder / "good", []
    texts = nbmf.Interactions.from_matrix(MATRIX, users=[f"ann {n}" for n in range(5)], items=list("äbcd"))
    numbers = nbmf.Interactions.from_matrix(MATRIX)
    for n, (name, model) in enumerate(MODELS.items()):
        data, unknown = (texts, numbers)[n % 2], MATRIX > 2
        model.fit(data, **({"unknown": unknown} if name in ("exact", "tied", "encoder of counts") else {})).save(path)
        found.append(_good(name, path, lambda path: answer(nbmf.load(path))))
    for name, model in RESUMED.items():
        model.fit(numbers, checkpoint=path)
        model.set_params(max_iter=5)
        found.append(_good(name, path, lambda path, model=model: model.fit(numbers, resume=path)))
    for name, ids in (("counts", "abcde"), ("numbered counts", range(5))):
        rows = [f"{one}\t{item}\t{MATRIX[user, item]}\n" for user, one in enumerate(ids) for item in range(4)]
        (folder / "plays.tsv").write_text("".join(rows))
        nbmf.store_counts(folder / "plays.tsv", path)
        found.append(_good(name, path, use_counts))
    return found


def _good(name: str, path: Path, use: Callable[[Path], Any]) -> Good:
    use(path)
    contents = read(path)
    return Good(name, path.read_bytes(), contents.document, contents.arrays, use)


def answer(model: Any) -> None:
    """Ask a model everything; ValueError and KeyError, each raised by nbmf, are answers too."""
    user, item = model.users_.tolist()[0], model.items_.tolist()[0]
    rows = np.minimum(np.arange(2 * len(model.items_)).reshape(2, -1), 3)
    questions: list[Callable[[], Any]] = [
        lambda: model.recommend(n=2),
        lambda: model.recommend(user, n=3, exclude_seen=False),
        lambda: model.recommend_for({item: 2}, n=2),
        lambda: model.recommend_for({}),
        lambda: model.explain(user, item),
        lambda: model.explain_for({item: 2}, item),
        lambda: model.similar_items(item, n=2),
        lambda: getattr(model, "score", len)(rows),  # a blend has no likelihood
        lambda: (
            (new := model.predictive(user, model.items_)) and (new.mean, new.sd, new.interval(0.9), new.at_least(1))
        ),
        lambda: model.predict(user, model.items_),
    ]
    for question in questions:
        try:
            question()
        except (ValueError, KeyError) as error:
            if not documented(error):
                raise


def documented(error: BaseException) -> bool:
    """Whether an error was raised by a line of nbmf, on purpose, and not below it by NumPy or SciPy."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    return "nbmf" in Path(frame.f_code.co_filename).parts and line > 0


def use_counts(path: Path) -> None:
    data = nbmf.open_counts(path)
    data.matrix.sum(axis=1)
    if data.nnz:
        try:
            nbmf.PoissonMF(1, max_iter=1, n_threads=1, backend="cpu").fit(data)
        except ValueError as error:
            if not documented(error):
                raise


# ---- bad files ------------------------------------------------------------------------------------------------------


def copied(value: Any) -> Any:
    """Copy what JSON can say, however deep, so that no part of a document can end up inside itself."""
    return json.loads(json.dumps(value))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


GENERATOR = {"generator": {"position": 3, "has_gauss": 0, "gauss": 0.0}}
VALUES: list[Any] = [
    None, True, False, 0, 1, 2, -1, 1.5, 0.0, -2.5, 10**9, 10**12, 2**63, 10**30, -(10**30), 10**400, 1e-320, 1e308,
    1e30, float("nan"), float("inf"), "", "x", "nan", "inf", "-inf", "1", "array", "object", "float16", "float64",
    "gpu", "reference", "learn", "learn_per_user", "per_row", "mm", "exact", "tied", "binary", "log1p", "NBMF",
    "NBSLIM", "NBFISM", "Averaged", "Blend", "blend", "average", "model", "item-item model", "encoder model",
    "point", "gamma", "encoding", "poisson", "negative_binomial", "<U1", "<U65535", "<U536870911",
    "<U99999999999", "<i8", "a" * 50_000, "\ud800", "../../x", [], {}, [1], [4, 4], [4, 4, 4], ["x"], [[]], {"a": 1},
    [2.0, True],
    {"float": "nan"}, {"float": "inf"}, {"float": [1]}, {"arrays": 0}, {"arrays": 1}, {"arrays": 2}, {"arrays": -1},
    {"arrays": 10**9}, {"arrays": True}, GENERATOR, {"generator": None},
    {"likelihood": "negative_binomial", "parameters": {"concentration": 1.0}},
    {"likelihood": "negative_binomial", "parameters": {"concentration": 10**400}},
    {"likelihood": "poisson", "parameters": {"x": "array"}}, {"likelihood": [], "parameters": []},
    nested(30), nested(800), {"shape": [5, 4], "nnz": 1}, 100_000,
]  # fmt: skip
NUMBERS = [0, 1, -1, 2, 7, 127, 255, 2**31 - 1, -(2**31), 2**62, -(2**63), 1e-320, 1e-38, 1e38, 1e300, -1e300]
SPECIAL = [*NUMBERS, np.nan, np.inf, -np.inf]


def damaged(rng: random.Random, whole: bytes, other: bytes) -> bytes:
    """Return a file with flipped bits, cut, swapped or spliced."""
    data, size = bytearray(whole), len(whole)
    place, length = rng.randrange(size), rng.randint(1, 200)
    match rng.randrange(6):
        case 0:
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(size)] ^= 1 << rng.randrange(8)
        case 1:
            del data[place:]
        case 2:
            data += rng.randbytes(length)
        case 3:
            start = rng.randrange(size)
            data[start : start + length], data[place : place + length] = (
                whole[place : place + length],
                whole[start:][:length],
            )
        case 4:
            data[place:] = other[rng.choice((place, rng.randrange(len(other)))) :]
        case _:
            data[place : place + length] = rng.randbytes(rng.choice((length, 0, 2 * length)))
    return bytes(data)


def forged(rng: random.Random, good: Good, other: Good) -> bytes:
    """Return a file whose contents were changed and whose checksums are right."""
    document, arrays = json.loads(json.dumps(good.document)), dict(good.arrays)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice((in_document, in_document, in_settings, in_arrays, in_arrays, in_arrays))
        change(rng, document, arrays, other)
    header = rng.choice((in_header, as_text)) if rng.random() < 0.15 else None
    return sealed(document, arrays, rng if header is in_header else None, rng if header is as_text else None)


def _part(rng: random.Random, document: dict[str, Any]) -> dict[str, Any]:
    """Return a document, or that of a member of an average."""
    members = document.get("members")
    inner = members and isinstance(members, list) and rng.random() < 0.8
    return rng.choice(members) if inner and isinstance(members[0], dict) else document


def in_document(rng: random.Random, document: dict[str, Any], arrays: dict[str, Any], other: Good) -> None:
    part = _part(rng, document)
    name = rng.choice([*part, "likelihood", "likelihood.concentration"])
    match rng.randrange(5):
        case 0:
            part.pop(name, None)
        case 1:
            part[name] = copied(rng.choice(list(other.document.values())))
        case 2:
            part[name] = copied(other.document.get(name))
        case _:
            part[name] = copied(rng.choice(VALUES))


def in_settings(rng: random.Random, document: dict[str, Any], arrays: dict[str, Any], other: Good) -> None:
    part = _part(rng, document)
    settings = part.get("settings")
    if not isinstance(settings, dict) or not settings:
        return
    name = rng.choice([*settings, "estimator", "binarize", "init", "penalty"])
    settings[name] = copied(rng.choice(VALUES))
    if rng.random() < 0.1:
        arrays[f"settings.{name}.key"] = np.arange(624, dtype=np.uint32)
    if rng.random() < 0.3:
        arrays |= {f"settings.{name}.{n}": np.ones((rng.randint(0, 5), 1)) for n in range(2)}


def in_arrays(rng: random.Random, document: dict[str, Any], arrays: dict[str, Any], other: Good) -> None:
    if not arrays:
        return
    name = rng.choice(list(arrays))
    values = np.array(arrays[name])
    places = [rng.randrange(values.size) for _ in range(rng.randint(1, 3))] if values.size else []
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        match rng.randrange(9):
            case 0:
                del arrays[name]
                return
            case 1:
                values = values.astype(rng.choice(list(TYPES.values())))
            case 2:
                values = np.array(values.T if values.ndim == 2 else values[::-1])
            case 3:
                values = values[: rng.randint(0, len(values))] if values.ndim else values
            case 4:
                values = np.concatenate((values, values)) if values.ndim else values
            case 5:
                shape = rng.choice(
                    ((values.size, 1), (1, values.size), (values.size,), (0, values.size), (values.size, 0))
                )
                values = values.reshape(shape) if 0 not in shape or not values.size else np.empty(shape, values.dtype)
            case 6:
                arrays[name] = rng.choice([*arrays.values(), *other.arrays.values()])
                return
            case _:
                if values.dtype.kind == "f":
                    values.flat[places] = rng.choice(SPECIAL)
                elif values.dtype.kind in "iu":
                    limits = np.iinfo(values.dtype)
                    values.flat[places] = rng.choice(
                        [n for n in NUMBERS if isinstance(n, int) and limits.min <= n <= limits.max]
                    )
    arrays[name] = values


def in_header(rng: random.Random, listed: dict[str, Any]) -> None:
    name = rng.choice(list(listed))
    entry = listed[name]
    if name == "__metadata__":
        entry[rng.choice(("nbmf", "more"))] = copied(rng.choice(VALUES))
        return
    field = rng.choice(list(entry))
    if field == "dtype":
        entry[field] = rng.choice([*TYPES, "O", "F8", None, 3])
    elif rng.random() < 0.5 or not entry[field]:
        entry[field] = rng.choice(
            [[], [0], [-1], [2**62], [2**62, 4], [1e3], ["1"], [[1]], [1, 1, 1], *map(copied, VALUES)]
        )
    else:
        entry[field][rng.randrange(len(entry[field]))] = rng.choice(
            [0, 1, -1, 8, 10**6, 2**40, 2**63, 10**30, 1.0, "1", None]
        )


def as_text(rng: random.Random, text: str) -> str:
    """Spoil the JSON of a header; its beginning stays."""
    place = rng.randrange(120, len(text))
    match rng.randrange(5):
        case 0:
            return (
                text[:place] + rng.choice(('"', "{", "[" * 50_000, "1" * 5000, "\\", "NaN", "\0", "é")) + text[place:]
            )
        case 1:
            return text[:place] + text[place + rng.randint(1, 30) :]
        case 2:  # the same key twice
            return text[:-1] + "," + text[text.index('"}', 100) + 3 :] if '"},' in text else text
        case 3:
            return (
                text[:-1] + ',"x":' + rng.choice(("[" * 900 + "]" * 900, "1" * 4000, '{"dtype":"F64"}', "1e999")) + "}"
            )
        case _:
            return text[:place]


def sealed(
    document: Any,
    arrays: dict[str, Any],
    for_header: random.Random | None = None,
    for_text: random.Random | None = None,
) -> bytes:
    """Return the bytes of a file, as docs/format.md has them."""
    plain = {name: np.ascontiguousarray(values) if values.ndim else values for name, values in arrays.items()}
    inner = {
        "document": document,
        "sha256": {name: sha256(values.tobytes()).hexdigest() for name, values in plain.items()},
    }
    listed: dict[str, Any] = {"__metadata__": {"sha256": "0" * 64, "nbmf": json.dumps(inner)}}
    end = 0
    for name, values in plain.items():
        place = [end, end + values.nbytes]
        listed[name] = {
            "dtype": CODES[values.dtype.newbyteorder("<")],
            "shape": list(values.shape),
            "data_offsets": place,
        }
        end += values.nbytes
    if for_header is not None:
        in_header(for_header, listed)
    text = json.dumps(listed, separators=(",", ":"))
    if for_text is not None:
        text = as_text(for_text, text)
    header = text.encode("utf-8", "surrogatepass")
    return seal(header + b" " * (-len(header) % 8), b"".join(values.tobytes() for values in plain.values()))


def bad_file(seed: int, case: int, good: list[Good]) -> tuple[Good, bytes]:
    """Return the file of a case, and the good one that it was made from."""
    rng = random.Random(f"{seed} {case}")
    one, other = rng.choice(good), rng.choice(good)
    return one, damaged(rng, one.whole, other.whole) if rng.random() < 0.25 else forged(rng, one, other)


# ---- running them ---------------------------------------------------------------------------------------------------


def bytes_of(name: str) -> int:
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def outcome(good: Good, path: Path) -> str:
    """Return "refused" or "answered"; anything else is raised."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, begun = bytes_of("VmRSS"), time.process_time()
    try:
        good.use(path)
        done = "answered"
    except (StorageError, FallingObjectiveError) as error:
        if "does not fit into the memory" in str(error):
            raise
        done = "refused"
    seconds, taken = time.process_time() - begun, bytes_of("VmHWM") - before
    if seconds > LONGEST:
        raise AssertionError(f"took {seconds:.1f} s")
    if taken > MOST_BYTES:
        raise AssertionError(f"took {taken:,} bytes")
    return done


def run_case(seed: int, case: int, good: list[Good], folder: Path) -> str:
    one, data = bad_file(seed, case, good)
    path = folder / "bad"
    path.write_bytes(data)
    try:
        return outcome(one, path)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise AssertionError(
            f"{one.name}: {type(error).__name__}: {str(error)[:300]} ({Path(where.filename).name}:{where.lineno})"
        ) from error


def child(seed: int, cases: range, good: list[Good], folder: Path, pipe: int) -> None:
    """Run cases and report each of them to a pipe: that it begins, and how it ended."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    limit = bytes_of("VmSize") + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    settled = 0
    for n, case in enumerate(cases):
        os.write(pipe, f"begun {case}\n".encode())
        try:
            said = run_case(seed, case, good, folder)
        except AssertionError as failure:
            said = f"failed {failure}".replace("\n", " ")
        os.write(pipe, f"{said}\n".encode("utf-8", "replace"))
        if n == SETTLED:
            settled = bytes_of("VmRSS")
    if settled and bytes_of("VmRSS") > settled + MOST_BYTES:
        os.write(pipe, f"failed grew from {settled:,} to {bytes_of('VmRSS'):,} bytes\n".encode())


def lines_of(seed: int, cases: range, good: list[Good], folder: Path, until: float) -> Iterator[str]:
    """Run cases in a child and yield the lines it reports, and one more if it died or hung; stop it when time is up."""
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        os.close(reader)
        try:
            child(seed, cases, good, folder, writer)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writer)
    rest, is_late = b"", False
    with open(reader, "rb", buffering=0) as pipe:
        while not is_late:
            if not select.select([pipe], [], [], HUNG)[0]:
                os.kill(process, signal.SIGKILL)
                yield f"failed hung for {HUNG:.0f} s"
                break
            more = pipe.read(1 << 16)
            if not more:
                break
            *lines, rest = (rest + more).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in lines)
            is_late = time.monotonic() > until
    if is_late:
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
        yield f"failed died of signal {os.WTERMSIG(status)}"
    elif os.WIFEXITED(status) and os.WEXITSTATUS(status):
        yield f"failed ended with {os.WEXITSTATUS(status)}"


def main(seconds: float, seed: int, case: int | None = None, most: int | None = None) -> int:
    """Run cases for some seconds, at most so many, or one of them; return the number of failures."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        folder = Path(name)
        good = good_files(folder)
        if case is not None:
            print(run_case(seed, case, good, folder))
            return 0
        until, counted, begins = time.monotonic() + seconds, {"refused": 0, "answered": 0, "failed": 0}, 0
        while time.monotonic() < until and begins != most:
            at, end = begins, begins + BATCH if most is None else min(begins + BATCH, most)
            for line in lines_of(seed, range(begins, end), good, folder, until):
                kind, _, rest = line.partition(" ")
                if kind == "begun":
                    at = int(rest)
                    continue
                counted[kind] += 1
                if kind == "failed":
                    print(f"files: seed {seed}, case {at}: {rest}", flush=True)
            begins = at + 1
    refused, answered, failed = counted.values()
    done = f"{refused} refused, {answered} loaded and answered, {failed} failures"
    print(f"files: {sum(counted.values())} damaged or forged, {done}")
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run only this one")
    parser.add_argument("--most", type=int, help="stop after so many")
    given = parser.parse_args()
    sys.exit(1 if main(given.seconds, given.seed, given.case, given.most) else 0)
