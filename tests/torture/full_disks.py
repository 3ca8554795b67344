"""Everything that writes, on a disk with too little room for it.

    python tests/torture/full_disks.py --seconds 600 --seed 1
    python tests/torture/full_disks.py --seed 1 --case 17       one of them again

The room is that of a small tmpfs where one can be mounted, otherwise a limit on the size of a file. Each job must end
in success, or in a sentence and exit code 2 with the old file as it was; no temporary file may be left either way.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

import nbmf
from nbmf.cli import main as command_line
from torture import typed_options
from torture.interrupts import make_folder

PAGE = 4096
LIMIT_S = 300.0


@dataclass(frozen=True)
class Job:
    """Writes `output` in the second folder from what is in the first; some jobs succeed without it."""

    output: str
    write: Callable[[Path, Path], None]
    needs_output: bool = True


def typed(*arguments: object) -> None:
    command_line(list(map(str, arguments)), prog_name="nbmf")


JOBS = {
    "save": Job("out.nbmf", lambda source, place: nbmf.load(source / "plays.nbmf").save(place / "out.nbmf")),
    "store_counts": Job(
        "out.counts",
        lambda source, place: nbmf.store_counts(source / "plays.csv", place / "out.counts", memory_limit="1GB"),
    ),
    "fit": Job("out.nbmf", lambda s, p: typed("fit", s / "plays.csv", "-o", p / "out.nbmf", "-k", 3, "--max-iter", 5)),
    "fit with checkpoints": Job(
        "out.ck",
        lambda source, place: typed(
            *("fit", source / "plays.csv", "-o", source / "kept.nbmf", "-k", 3, "--max-iter", 5),
            *("--checkpoint", place / "out.ck", "--checkpoint-every", 1),
        ),
        needs_output=False,
    ),
    "recommend to csv": Job("out.csv", lambda s, p: typed("recommend", s / "plays.nbmf", "--all", "-o", p / "out.csv")),
    "recommend to parquet": Job(
        "out.parquet", lambda s, p: typed("recommend", s / "plays.nbmf", "--all", "-o", p / "out.parquet")
    ),
    "reproduce": Job(
        "out", lambda s, p: typed("reproduce", s / "plays.csv", "-o", p / "out", "-k", 2, "--starts", 1, "--workers", 1)
    ),
    "compare": Job(
        "out", lambda s, p: typed("compare", s / "plays.csv", "--models", "popularity,poisson", "--folder", p / "out")
    ),
}


def in_a_process(job: Job, source: Path, place: Path, most_bytes: int | None) -> tuple[int, str]:
    """Run a job in a process of its own, perhaps with a limit on the size of its files; return its end and words."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        code = 1
        try:
            if most_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
            job.write(source, place)
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
        except (ValueError, OSError) as error:  # of a call in Python: the documented kinds
            sys.stderr.write(f"Error: {error}\n")
            code = 2
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as words:
        told = words.read().decode(errors="replace")  # ends with the process and all that it started
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told


class Disk:
    """A folder with little room: a small file system where mounting is possible, otherwise a plain folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def __enter__(self) -> Disk:
        line = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(self.folder)]
        done = subprocess.run(line, capture_output=True, timeout=60, check=False) if os.getuid() == 0 else None
        self.is_mounted = done is not None and done.returncode == 0
        return self

    def leave(self, n_bytes: int) -> None:
        """Fill the file system but for this many bytes."""
        with (self.folder / "ballast").open("wb") as ballast:
            state = os.statvfs(self.folder)
            ballast.write(bytes(max(0, state.f_bavail * state.f_frsize - n_bytes)))

    def __exit__(self, *exception: object) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self.folder)], capture_output=True, timeout=60, check=False)


def size_of(path: Path) -> int:
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file()) if path.is_dir() else path.stat().st_size


def try_job(job: Job, source: Path, disk: Disk, n_bytes: int) -> str:
    """Run a job with little room; return what is wrong, or nothing."""
    place, old = disk.folder, b"what was here before\n" * 100
    output = place / job.output
    if output.suffix:
        output.write_bytes(old)
    if disk.is_mounted:
        disk.leave(n_bytes)
    code, told = in_a_process(job, source, place, None if disk.is_mounted else n_bytes)
    if "Traceback" in told:
        return "a traceback: " + " | ".join(told.strip().splitlines()[-3:])
    if code not in (0, 2):
        return f"exit code {code}: {told[-300:]!r}"
    if code == 2 and "Error: " not in told:
        return f"no sentence: {told[-300:]!r}"
    if code == 2 and output.suffix and output.read_bytes() != old:
        return "the old file is not as it was"
    if code == 0 and job.needs_output and output.suffix and output.read_bytes() == old:
        return "success, but nothing was written"
    strange = {path.name for path in place.iterdir()} - {job.output, "ballast"}
    return f"left behind: {', '.join(sorted(strange))}" if strange else ""


def case_of(seed: int, case: int) -> tuple[str, float]:
    """Return the job and how much room it gets, relative to what it needs."""
    chance = random.Random(1_000_003 * seed + case)
    jobs = [name for name in JOBS for _ in range(1 if JOBS[name].output == "out" else 5)]  # the two are slow
    return chance.choice(jobs), chance.choice([0, chance.uniform(0, 1), chance.uniform(0.9, 1.1)])


def main() -> int:
    options = typed_options(__doc__, case=None)
    end, needed, n_tried, failed = time.monotonic() + options.seconds, dict[str, int](), 0, 0
    with tempfile.TemporaryDirectory(prefix="nbmf-full-") as name:
        source = Path(name, "source")
        source.mkdir()
        make_folder(source)
        case = 0 if options.case is None else options.case
        while time.monotonic() < end:
            what, share = case_of(options.seed, case)
            job = JOBS[what]
            if what not in needed:
                place = Path(name, f"undisturbed {what}")
                place.mkdir()
                code, told = in_a_process(job, source, place, None)
                assert code == 0, f"{what}, undisturbed: {told}"
                needed[what] = size_of(place / job.output)
            with Disk(Path(name, f"case {case}")) as disk:
                kind = "room" if disk.is_mounted else "files"
                wrong = try_job(job, source, disk, int(share * needed[what]))
            n_tried += 1
            if wrong:
                failed += 1
                print(f"{what}, {kind} of {share:.2f} × {needed[what]:,} bytes: {wrong}")
                print(f"    python tests/torture/full_disks.py --seed {options.seed} --case {case}", flush=True)
            if options.case is not None:
                break
            case += 1
    print(f"full disks: {n_tried - failed} of {n_tried} ended in success or in a sentence, with the old file intact")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
