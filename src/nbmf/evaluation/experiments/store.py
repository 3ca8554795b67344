"""The results of an experiment on disk: the SQLite file `results.sqlite` in the folder of the experiment.

Each row is committed together with its per-user values as soon as its job has ended, as a whole or not at all. Several
processes may write to one folder.
"""

import io
import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbmf.storage.container import replacing

Array = NDArray[np.float64]
Settings = Mapping[str, Mapping[str, Any]]

LOCK_SECONDS = 60.0  # how long to wait while another process writes
_EXPERIMENT = "CREATE TABLE IF NOT EXISTS experiment (settings TEXT NOT NULL)"
_RESULTS = "CREATE TABLE IF NOT EXISTS results (name TEXT PRIMARY KEY, row TEXT NOT NULL, per_user BLOB)"


@dataclass(frozen=True)
class Job:
    """One fit to be made."""

    name: str  # unique within the experiment; the row is stored under it
    model: str  # a key of `baselines.BASELINES`
    seed: int
    settings: Mapping[str, Any]
    cost: float = field(default=1.0, compare=False)  # relative running time, to estimate the time left


@dataclass(frozen=True)
class Row:
    """The result of one job."""

    job: Job
    seconds: float = math.nan  # of the fit
    megabytes: float = math.nan  # by which the process's memory grew during the fit, if that was measured
    problem: str = ""  # why the fit failed
    convergence: Mapping[str, Any] = field(default_factory=dict)  # of models that have it: sweeps, converged, objective
    means: Mapping[str, float] = field(default_factory=dict)  # of each metric; empty if the fit failed
    log_likelihood: float = math.nan  # per cell not in train, if it was computed and can be compared


class Store:
    """The results in one folder, which is created if necessary; one with results of other `settings` is refused."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self.path = folder, folder / "results.sqlite"
        self.settings = json.loads(json.dumps(settings))  # tuples become lists, as they are stored
        folder.mkdir(parents=True, exist_ok=True)
        with self._transaction() as database:
            database.execute(_EXPERIMENT)
            database.execute(_RESULTS)
            stored = database.execute("SELECT settings FROM experiment").fetchone()
            if stored is not None:
                self._check_same(stored[0])
            elif database.execute("SELECT name FROM results").fetchone():
                raise ValueError(f"{self.path} has results but no settings; use another folder")
            else:
                database.execute("INSERT INTO experiment VALUES (?)", [json.dumps(settings, ensure_ascii=False)])

    def rows(self) -> dict[str, Row]:
        """Return all rows by the names of their jobs."""
        with self._transaction() as database:
            found = database.execute("SELECT name, row FROM results ORDER BY rowid").fetchall()
        rows = {}
        for name, text in found:
            try:
                cells = json.loads(text)
                rows[name] = Row(Job(**cells.pop("job")), **cells)
            except (AttributeError, KeyError, TypeError, ValueError):
                raise ValueError(f"{self.path}: the row {name!r} is damaged; delete the folder") from None
        return rows

    def missing(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs that have no row yet, or only one of other settings."""
        rows = self.rows()
        return [job for job in jobs if job.name not in rows or rows[job.name].job != job]

    def add(self, row: Row, per_user: bytes | None = None) -> None:
        """Commit a row and its `packed` per-user values; an older row of the same job is replaced."""
        text = json.dumps(asdict(row), ensure_ascii=False)
        with self._transaction() as database:
            database.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", (row.job.name, text, per_user))

    def per_user(self, name: str) -> dict[str, Array]:
        """Return the values of each metric of a job, in the order of the data's users."""
        with self._transaction() as database:
            (content,) = database.execute("SELECT per_user FROM results WHERE name = ?", [name]).fetchone()
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            return dict(stored)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=LOCK_SECONDS)) as database, database:
                database.execute("BEGIN IMMEDIATE")
                yield database
        except sqlite3.OperationalError as error:
            raise OSError(f"{self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{self.path} is damaged ({error}); use another folder, or delete it") from error

    def _check_same(self, stored: str) -> None:
        try:
            before, now = _flat(json.loads(stored)), _flat(self.settings)
        except (ValueError, AttributeError):
            raise ValueError(f"{self.path} is damaged; use another folder, or delete it") from None
        for name in dict.fromkeys([*before, *now]):
            if before.get(name) != now.get(name):
                differs = f"its {name} is {before.get(name)!r}, not {now.get(name)!r}"
                remedy = "choose another folder, repeat those settings, or delete the folder"
                raise ValueError(f"{self.folder} holds another experiment: {differs}; {remedy}")


def packed(values: Mapping[str, Array]) -> bytes:
    """Return the per-user values of each metric as they are stored."""
    content, named = io.BytesIO(), dict[str, Any](values)
    np.savez_compressed(content, **named)  # without `allow_pickle`, which NumPy 2.0 takes for the name of an array
    return content.getvalue()


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that is there as a whole or not at all."""
    with replacing(str(path)) as temporary:
        Path(temporary).write_bytes(content.encode() if isinstance(content, str) else content)


def _flat(settings: Settings) -> dict[str, Any]:
    return {f"{part} {name}": value for part, group in settings.items() for name, value in group.items()}
