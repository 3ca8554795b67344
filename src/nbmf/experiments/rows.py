"""The folder of an experiment: its settings, one row a finished run, and each run's NDCG user by user.

    settings.json           what the rows are rows of; another experiment may not write here
    runs.csv                one row a finished run, added as a whole
    per_user/RUN.npz        each metric's values, one a user

A run's values are there under their final name before its row is: whoever finds a row finds its values too. So a
process may be killed at any time; what it leaves is whole rows and perhaps part of one, which is dropped.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from nbmf.experiments.grid import Job

Array = NDArray[np.float64]


class OtherExperimentError(ValueError):
    """The folder holds rows of other data or other settings."""


class DamagedFolderError(ValueError):
    """A file of the folder is not what this program writes."""


class RowOfRun(Protocol):
    """What a folder keeps of a run: cells for its columns, then one for each metric."""

    COLUMNS: ClassVar[tuple[str, ...]]

    @property
    def job(self) -> Hashable:
        """Which run; as a string, the name of a file."""

    @property
    def has_values(self) -> bool:
        """Whether there are values, user by user: not of a run that failed."""

    def cells(self) -> list[Any]:
        """Return what the row of the table says."""

    @classmethod
    def of(cls, cells: Mapping[str, str]) -> Self:
        """Take a row of the table."""


Kind = TypeVar("Kind", bound=RowOfRun)


@dataclass(frozen=True)
class Row:
    """One finished run.

    exposure : "exact" or "tied" (NBMF); "" where the model has none
    means : NDCG by metric, each the mean over users
    """

    COLUMNS: ClassVar = (
        "model",
        "components",
        "start",
        "seed",
        "exposure",
        "sweeps",
        "converged",
        "objective",
        "seconds",
    )

    job: Job
    seed: int
    exposure: str
    n_iter: int
    converged: bool
    objective: float
    seconds: float
    means: Mapping[str, float]

    @property
    def has_values(self) -> bool:
        """Always: a run that fails ends the experiment."""
        return True

    def cells(self) -> list[Any]:
        """Return what the row of the table says."""
        fit = (self.seed, self.exposure, self.n_iter, int(self.converged), repr(self.objective), f"{self.seconds:.3f}")
        return [self.job.model, self.job.n_components, self.job.start, *fit, *map(repr, self.means.values())]

    @classmethod
    def of(cls, cells: Mapping[str, str]) -> Row:
        """Take a row of the table."""
        return cls(
            Job(cells["model"], int(cells["components"]), int(cells["start"])),
            int(cells["seed"]),
            cells["exposure"],
            int(cells["sweeps"]),
            bool(int(cells["converged"])),
            float(cells["objective"]),
            float(cells["seconds"]),
            {name: float(value) for name, value in cells.items() if name not in cls.COLUMNS},
        )


class RunsFolder(Generic[Kind]):
    """Rows on disk. A subclass says of which kind; open it with its `open`."""

    kind: type[Kind]

    def __init__(self, path: Path, settings: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """Name the files; nothing is touched."""
        self.path, self.settings, self.metrics = path, settings, tuple(metrics)
        self.table, self.per_user = path / "runs.csv", path / "per_user"

    @classmethod
    def open(cls, path: Path, settings: Mapping[str, Any], metrics: Sequence[str]) -> Self:
        """Make a folder for these settings, or go on in one that was made for the same; anything else is refused."""
        folder = cls(path, settings, metrics)
        known = path / "settings.json"
        if known.exists():
            _check_same(known, settings)
        elif folder.table.exists():
            raise DamagedFolderError(f"{folder.table} has rows but {known} is gone; use another folder")
        folder.per_user.mkdir(parents=True, exist_ok=True)
        write_whole(known, json.dumps(settings, indent=1, ensure_ascii=False) + "\n")
        for left in folder.per_user.glob("*.part"):  # by a run that was killed
            left.unlink(missing_ok=True)
        folder._mend()
        return folder

    def rows(self) -> dict[Hashable, Kind]:
        """Return the finished runs whose values are there too; of a run with several rows the last."""
        found: dict[Hashable, Kind] = {}
        with self.table.open(newline="", encoding="utf-8") as stream:
            for number, cells in enumerate(csv.DictReader(stream), start=2):
                try:
                    row = self.kind.of(cells)
                except (KeyError, TypeError, ValueError):
                    raise DamagedFolderError(
                        f"{self.table}, line {number}: is not a run; delete the line, and its run is made again"
                    ) from None
                if not row.has_values or self._values_of(row.job).exists():
                    found[row.job] = row
        return found

    def add(self, row: Kind) -> None:
        """Add a row as a whole; its values must have been kept before."""
        line = _line(row.cells()).encode()
        descriptor = os.open(self.table, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, line)  # one write: a kill comes before or after it
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def keep_values(self, job: Hashable, values: Mapping[str, Array]) -> None:
        """Write the values of a run, users in the order of the data."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **values)
        write_whole(self._values_of(job), buffer.getvalue())

    def values(self, job: Hashable) -> dict[str, Array]:
        """Return what `keep_values` kept."""
        with np.load(self._values_of(job), allow_pickle=False) as stored:
            return {name: stored[name] for name in self.metrics}

    def _values_of(self, job: Hashable) -> Path:
        return self.per_user / f"{job}.npz"

    def _mend(self) -> None:
        """Make the table, or drop a last line that a kill cut short."""
        header = _line((*self.kind.COLUMNS, *self.metrics)).encode()
        stored = self.table.read_bytes() if self.table.exists() else b""
        whole = stored[: stored.rfind(b"\n") + 1] or header
        if not whole.startswith(header):
            raise DamagedFolderError(
                f"{self.table}: its first line is not {header.decode().strip()}; use another folder"
            )
        if whole != stored:
            write_whole(self.table, whole)


class Folder(RunsFolder[Row]):
    """The runs of a grid."""

    kind = Row


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that is there as a whole or not at all."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            part.unlink()
        raise


def _line(cells: Sequence[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


def _check_same(known: Path, settings: Mapping[str, Any]) -> None:
    try:
        stored = json.loads(known.read_text(encoding="utf-8"))
        before, now = _flat(stored), _flat(settings)
    except (ValueError, AttributeError):
        raise DamagedFolderError(f"{known} is damaged; use another folder, or delete this one") from None
    for name in [*before, *(name for name in now if name not in before)]:
        if before.get(name) != now.get(name):
            raise OtherExperimentError(
                f"{known.parent} holds another experiment: its {name} is {before.get(name)!r}, not {now.get(name)!r}; "
                "name another folder, repeat those settings, or delete the folder to start anew"
            )


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{part} {name}": value for part, group in settings.items() for name, value in group.items()}
