"""Damaged and forged files: each is refused with a sentence, and none of them runs code."""

import ast
import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import nbmf
from format_1 import START, seal
from helpers import small_matrix
from nbmf.estimators import files
from nbmf.estimators.factorization import Factorization
from nbmf.inference import checkpoints
from nbmf.storage import codec, container
from nbmf.storage.container import MissingStorageError, StorageError

# ---- damage ----------------------------------------------------------------------------------------------------------


def test_every_truncation_is_found(small, tmp_path):
    path = tmp_path / "model.nbmf"
    for size in range(len(small)):
        path.write_bytes(small[:size])
        with pytest.raises(StorageError, match=r"model\.nbmf: is"):
            nbmf.load(path)
    for more in (b"\0", b" " * 8, small):
        path.write_bytes(small + more)
        with pytest.raises(StorageError, match=f"{len(more)} bytes follow its end"):
            nbmf.load(path)


def test_flipped_bits_are_found(small, tmp_path):
    path, rng = tmp_path / "model.nbmf", np.random.default_rng(0)
    anywhere = rng.integers(8 * len(small), size=1000).tolist()
    start = range(8 * 200)  # the length, the header's checksum and what follows
    for bit in [*anywhere, *start]:
        damaged = bytearray(small)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match=r"model\.nbmf: is"):
            nbmf.load(path)


def test_swapped_arrays_are_found(small, tmp_path):
    """The arrays are intact, but in each other's place."""
    length = 8 + int.from_bytes(small[:8], "little")
    entries = json.loads(small[8:length])
    one, other = (
        slice(*(length + n for n in entries[f"{who}.row_means"]["data_offsets"])) for who in ("users", "items")
    )
    swapped = bytearray(small)
    swapped[one.start : one.start + 8], swapped[other.start : other.start + 8] = small[other][:8], small[one][:8]
    (tmp_path / "model.nbmf").write_bytes(swapped)
    with pytest.raises(StorageError, match=r"'(users|items)\.row_means' does not match its checksum"):
        nbmf.load(tmp_path / "model.nbmf")


# ---- no model -------------------------------------------------------------------------------------------------------


def test_what_is_no_model_is_named(tmp_path, small):
    path = tmp_path / "model.nbmf"
    with pytest.raises(MissingStorageError, match=r"model\.nbmf: there is no such file"):
        nbmf.load(path)
    with pytest.raises(FileNotFoundError):
        nbmf.load(path)
    with pytest.raises(StorageError, match="is a folder; name the file in it"):
        nbmf.load(tmp_path)
    with pytest.raises(StorageError, match="is a device"):
        nbmf.load("/dev/null")
    for data in (b"", b"user,item\n", safetensors.numpy.save({"users.mean": np.ones(3)})):
        path.write_bytes(data)
        with pytest.raises(StorageError, match=r"model\.nbmf: is not a file of nbmf"):
            nbmf.load(path)
    nbmf.NBMF(2, max_iter=2).fit(small_matrix(12, 9), checkpoint=path)
    with pytest.raises(StorageError, match=r"is a checkpoint, not a model; fit\(X, resume=path\) resumes from it"):
        nbmf.load(path)
    path.write_bytes(small)
    path.chmod(0)
    if not _can_read(path):  # root can read anything
        with pytest.raises(StorageError, match="cannot be read"):
            nbmf.load(path)


def _can_read(path):
    try:
        path.read_bytes()
    except PermissionError:
        return False
    return True


# ---- malice: checksums that are right, contents that are not ---------------------------------------------------------


@pytest.fixture
def contents(small, tmp_path):
    (tmp_path / "model.nbmf").write_bytes(small)
    return container.read(tmp_path / "model.nbmf")


def generator_at(position):
    state = np.random.RandomState(0).get_state(legacy=False)
    return {"position": position, "has_gauss": 0, "gauss": 0.0}, {"settings.random_state.key": state["state"]["key"]}


NESTED = [[[[[[[[[[[]]]]]]]]]]]


@pytest.mark.parametrize(
    ("entries", "arrays", "message"),
    [
        ({"class": "os.system"}, {}, "holds a 'os.system', and nbmf.load knows NBMF"),
        ({"class": ["NBMF"]}, {}, "'class' is \\['NBMF'\\], not of type str"),
        ({"settings": {"__class__": "os"}}, {}, "has the setting '__class__'"),
        ({"settings": {"n_components": {"import": "os"}}}, {}, "'settings.n_components' is"),
        ({"settings": {"init": {"arrays": 10**9}}}, {}, "'settings.init' is"),
        ({"settings": {"random_state": {"generator": generator_at(10**9)[0]}}}, generator_at(0)[1], "an invalid state"),
        ({"settings": 3}, {}, "'settings' is 3, not of type dict"),
        ({"version": 2}, {}, "format version 2; this nbmf reads versions up to 1, so install a newer nbmf"),
        ({"version": 0}, {}, "format version 0"),
        ({"version": "1"}, {}, "'version' is '1', not of type int"),
        ({"kind": "song"}, {}, "is a song, not a model; name another file"),
        ({"concentration": "1"}, {}, "'concentration' is '1', not a number"),
        ({"concentration": -1.0}, {}, "not above 0"),
        ({"concentration": 1e300}, {}, "concentration is"),
        ({"concentration": "array"}, {"concentration": np.ones((3, 3))}, r"shape \(3, 3\) for 4 × 3"),
        ({"ending": "well"}, {}, "its ending is 'well'"),
        ({"users.law": "cauchy"}, {}, "follows the law 'cauchy'"),
        ({"users.law": "point"}, {"users.value": np.ones((4, 1))}, "differ in kind or in number of components"),
        ({"user_ids": "<U999999999"}, {}, "are of type <U999999999, which makes them too long"),
        ({"user_ids": "<U4000000"}, {}, r"too long .*: 64,000,000 bytes from 37 bytes of the file"),
        ({"item_ids": "float64"}, {}, "its item_ids are int64, not 'float64'"),
        ({"users.prior.shape": "nan"}, {}, "'users.prior.shape' is 'nan', not a number"),
        ({"items.prior.rate": "inf"}, {}, "'items.prior.rate' is inf, not above 0 and finite"),
        ({"class": NESTED}, {}, r"'class' is \[\[\[\[\[\[\[...\]+, not of type str"),
        ({"settings": {"tol": NESTED}}, {}, r"'settings.tol' is \[\["),
        ({"settings": {"tol": {"likelihood": "poisson", "parameters": {"x": 10**400}}}}, {}, "'settings.tol' is"),
        ({"concentration": "array"}, {"concentration": np.ones((4, 3))}, r"shape \(4, 3\) for 4 × 3"),
        ({}, {"items.row_means": np.array([1, np.inf, 1])}, "'items.row_means' has entries that are not finite"),
        ({}, {"items.row_logs": np.array([1, np.nan, 1])}, "logarithms or entropies of its factor 'items' are not"),
        ({}, {"items.mean": np.ones((3, 1))}, "moments of its factor 'items' have different shapes or types"),
        ({}, {"objective": np.empty(0)}, "it has no sweep"),
        ({}, {"counts.indptr": "int64"}, "indices of its counts are int32 and int64"),
        ({}, {"counts.data": "float16"}, "its counts are of type float16"),
        ({}, {"users.mean": np.ones((5, 1))}, r"'users.mean' has type float64 and shape \(5, 1\); it must be 4 × any"),
        ({}, {"users.mean": np.array([[1.0], [2], [np.nan], [1]])}, "not finite numbers from 0"),
        ({}, {"users.mean": np.array([[1.0], [2], [-1], [1]])}, "not finite numbers from 0"),
        ({}, {"users.mean": np.ones((4, 1), np.int64)}, "has type int64"),
        ({}, {"items.exposed": np.ones((2, 1))}, "have different shapes"),
        ({}, {"items.row_logs": None}, "has no array 'items.row_logs'"),
        ({}, {"user_ids.ends": np.array([3, 1, 4, 5])}, "do not ascend"),
        ({}, {"user_ids.ends": np.array([1, 2, 4, 5])}, "are not UTF-8"),
        ({}, {"user_ids.ends": np.array([1, 2, 3, 50])}, r"'user_ids.utf8' has type uint8 and shape \(5,\)"),
        ({}, {"counts.indices": "+1000"}, "are not of 3 items, each once and in order"),
        ({}, {"counts.indices": "-1"}, "are not of 3 items"),
        ({}, {"counts.indptr": "reversed"}, "rows of its counts do not follow each other"),
        ({}, {"counts.data": "negative"}, "Negative values"),
    ],
)
def test_lies_are_found(contents, entries, arrays, message):
    path = Path(contents.path)
    changes = {
        "+1000": lambda a: a + 1000,
        "-1": lambda a: a - 1,
        "reversed": lambda a: a[::-1],
        "negative": lambda a: -a,
        "int64": lambda a: a.astype(np.int64),
        "float16": lambda a: a.astype(np.float16),
    }
    forged = dict(contents.arrays)
    for name, value in arrays.items():
        if value is None:
            del forged[name]
        else:
            forged[name] = changes[value](forged[name]) if isinstance(value, str) else value
    container.write(path, contents.document | entries, forged)
    with pytest.raises(StorageError, match=message):
        nbmf.load(path)


NO_COUNT = ("x", True, 0, -1, 1.5, {"float": "nan"}, 2**63, 10**400, {"arrays": 2})
NO_SIZE = ("x", None, True, -1, {"float": "nan"}, 10**400, {"arrays": 2})
NO_NAME = ("x", None, True, 3, {"arrays": 2})
HOSTILE = {
    "n_threads": NO_COUNT, "max_iter": (None, *NO_COUNT), "tol": NO_SIZE, "backend": NO_NAME, "dtype": ("f2", *NO_NAME),
    "accelerate": ("yes", None, 2, {"arrays": 2}), "verbose": ("yes", None, -1),
    "concentration": (0, 1e31, *NO_SIZE),
}  # fmt: skip
OF_FACTORS = HOSTILE | {
    "n_components": (None, *NO_COUNT), "user_shape": (0, {"float": "inf"}, *NO_SIZE), "item_shape": (0, *NO_SIZE),
    "rates": NO_NAME, "shapes": NO_NAME, "inference": ("svi", *NO_NAME),
    "random_state": ("x", True, -1, 2**32, 0.5, 10**400), "init": ("best", None, 3, {"arrays": 1}, {"arrays": -1}),
}  # fmt: skip
OF_EXPOSURES = {"exposure": NO_NAME, "n_clusters": (None, *NO_COUNT)}
SETTINGS = {
    "NBMF": OF_FACTORS | OF_EXPOSURES,
    "PoissonMF": OF_FACTORS | {"binarize": ("yes", None, 2)},
    "Factorization": OF_FACTORS | OF_EXPOSURES | {"likelihood": ("poisson", None, 3, {"arrays": 2})},
    "NBSLIM": HOSTILE | {"penalty": NO_SIZE, "input": NO_NAME, "target": NO_NAME, "n_neighbors": NO_COUNT},
    "Averaged": {
        "n_runs": (None, *NO_COUNT),
        "random_state": ("x", True, -1),
        "tol": (1,),
        "estimator": (None, "NBMF"),
    },
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The contents of a small file of each estimator; an average has the setting `tol` only in its members."""
    path, found = tmp_path_factory.mktemp("saved") / "model.nbmf", {}
    one = {"max_iter": 2, "random_state": 0}
    models = nbmf.NBMF(1, **one), nbmf.PoissonMF(1, **one), Factorization(1, **one), nbmf.NBSLIM(penalty=1.0)
    for model in (*models, nbmf.Averaged(nbmf.NBMF(1, max_iter=2), n_runs=2, random_state=0)):
        model.fit(small_matrix(6, 5)).save(path)
        found[type(model).__name__] = container.read(path)
    return found


@pytest.mark.parametrize(("name", "setting"), [(name, setting) for name, of in SETTINGS.items() for setting in of])
def test_settings_that_fit_would_refuse_are_refused(saved, tmp_path, name, setting):
    """Of every estimator, with the name of the setting; `concentration` is no setting of PoissonMF, and unknown."""
    path, found = tmp_path / "model.nbmf", saved[name]
    for value in SETTINGS[name][setting]:
        changed = found.document["settings"] | {setting: value}
        pair = {f"settings.{setting}.{n}": np.ones((2, 1)) for n in range(2)}
        container.write(path, found.document | {"settings": changed}, found.arrays | pair)
        with pytest.raises(StorageError, match=rf"model.nbmf: ({setting} is |has the setting '{setting}', unknown)"):
            nbmf.load(path)


def test_settings_of_members_are_checked(saved, tmp_path):
    found = saved["Averaged"]
    for setting, values in (SETTINGS["NBMF"]).items():
        members = copy.deepcopy(found.document["members"])
        members[1]["settings"][setting] = values[0]
        container.write(tmp_path / "a", found.document | {"members": members}, found.arrays)
        with pytest.raises(StorageError, match=f"a: {setting} is "):
            nbmf.load(tmp_path / "a")


@pytest.mark.parametrize(
    ("of_the_second", "arrays"),
    [
        ({"class": "PoissonMF"}, {}),
        ({"concentration": "inf"}, {}),
        ({"concentration": "array"}, {"1/concentration": np.ones((1, 5))}),
        ({}, {"1/item_ids": np.arange(1, 6)}),
    ],
)
def test_members_that_cannot_be_averaged_are_found(saved, tmp_path, of_the_second, arrays):
    found = saved["Averaged"]
    members = copy.deepcopy(found.document["members"])
    members[1] |= of_the_second
    members[1]["settings"] = {}
    container.write(tmp_path / "a", found.document | {"members": members}, found.arrays | arrays)
    with pytest.raises(StorageError, match="members are not fits of one estimator to the same users and items"):
        nbmf.load(tmp_path / "a")


def test_many_members_of_few_arrays_are_refused(saved, tmp_path, monkeypatch):
    """Each takes memory for its factors, which the file holds only once."""
    found = saved["Averaged"]
    many = found.document | {"members": found.document["members"][:1] * 50}
    container.write(tmp_path / "a", many, found.arrays)
    assert len(nbmf.load(tmp_path / "a").members_) == 50  # small enough
    monkeypatch.setattr(codec, "FREE_BYTES", 0)
    monkeypatch.setattr(codec, "MOST_PER_BYTE", 1)
    with pytest.raises(StorageError, match="its 50 members take too much memory"):
        nbmf.load(tmp_path / "a")


@pytest.mark.parametrize(
    "rest",
    [
        "}",
        '"{}"}}',
        "[" * 100_000,
        '"' + "[" * 100_000 + '"}}',
        '"{\\"document\\":[],\\"sha256\\":{}}"}}',
        '"{\\"document\\":{},\\"sha256\\":{}}"},"x":{"dtype":"F64","shape":[1e3],"data_offsets":[0,8]}}',
        '"{\\"document\\":{},\\"sha256\\":{}}"},"x":{"dtype":"F64","shape":[-1],"data_offsets":[0,8]}}',
        '"{\\"document\\":{},\\"sha256\\":{}}"},"x":{"dtype":"object","shape":[1],"data_offsets":[0,8]}}',
        '"{\\"document\\":{},\\"sha256\\":{}}"},"x":{"dtype":"F64","shape":[9e99],"data_offsets":[0,8]}}',
        '"{\\"document\\":{},\\"sha256\\":{}}"},"x":{"dtype":"F64","shape":[0,99999999999999],"data_offsets":[0,0]}}',
        '"{\\"document\\":{},\\"sha256\\":{}}"},"x":{"dtype":"F64","shape":[1,1,1],"data_offsets":[0,8]}}',
        '"{\\"document\\":{},\\"sha256\\":{}}"},"x":{"dtype":"F64","shape":[1],"data_offsets":[8,16]}}',
        '"{\\"document\\":{},\\"sha256\\":{}}"},"x":{"dtype":"F64","shape":[1000],"data_offsets":[0,8000]}}',
        '"{\\"document\\":{},\\"sha256\\":{}}"}}',
    ],
)
def test_forged_headers_are_found(tmp_path, rest):
    path = tmp_path / "model.nbmf"
    path.write_bytes(seal((START + rest).encode(), b"12345678"))
    with pytest.raises(StorageError, match=r"model\.nbmf: "):
        nbmf.load(path)


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


def test_loading_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bomb = pickle.dumps(Bomb())
    for data in (bomb, b"\x93NUMPY" + bomb, seal((START + '"').encode() + bomb + b'"}}')):
        Path("model.nbmf").write_bytes(data)
        with pytest.raises(StorageError):
            nbmf.load("model.nbmf")
    assert not Path("exploded").exists()
    pickle.loads(bomb)
    assert Path("exploded").exists()  # so the test would have noticed


@pytest.mark.parametrize("module", [container, codec, files, checkpoints])
def test_nothing_that_runs_code_is_named(module):
    tree = ast.parse(Path(module.__file__).read_text())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    forbidden = {"pickle", "marshal", "shelve", "joblib", "eval", "exec", "__import__", "import_module", "load"}
    assert not names & forbidden


# ---- rows that wrap around -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [np.int32, np.int64])
@pytest.mark.parametrize("kind", ["model", "counts"])
def test_rows_whose_differences_overflow_are_found(tmp_path, kind, whole):
    """All differences are positive after they overflow, and compiled loops would read outside the arrays."""
    plays, path = tmp_path / "plays.tsv", tmp_path / "file"
    plays.write_text("".join(f"u{n // 3}\ti{n:02}\t2\n" for n in range(12)))
    nbmf.store_counts(plays, path)
    if kind == "model":
        nbmf.NBMF(2, max_iter=2, random_state=0).fit(nbmf.open_counts(path)).save(path)
    contents, limits = container.read(path), np.iinfo(whole)
    forged = {"counts.indptr": np.array([0, limits.max, limits.min, -1, 12], whole)}
    forged["counts.indices"] = contents.arrays["counts.indices"].astype(whole)
    container.write(path, contents.document, contents.arrays | forged)
    with pytest.raises(StorageError, match="rows of its counts do not follow each other"):
        nbmf.load(path) if kind == "model" else nbmf.open_counts(path)


@pytest.mark.parametrize(
    ("arrays", "entries"),
    [
        ({"counts.data": np.full(12, np.inf)}, {}),
        ({"counts.data": np.full(12, 2**63, np.uint64)}, {}),
        ({"counts.data": np.zeros(12, np.int32)}, {}),
        ({}, {"n_items": 10**12}),
        ({}, {"n_repeated": -5}),
    ],
)
def test_counts_that_make_no_sense_are_found(tmp_path, arrays, entries):
    plays, path = tmp_path / "plays.tsv", tmp_path / "plays.counts"
    plays.write_text("".join(f"u{n // 3}\ti{n:02}\t2\n" for n in range(12)))
    nbmf.store_counts(plays, path)
    contents = container.read(path)
    container.write(path, contents.document | entries, contents.arrays | arrays)
    with pytest.raises(StorageError, match="not how nbmf writes a file"):
        nbmf.open_counts(path)
