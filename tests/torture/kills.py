"""Kill a checkpointing fit (kill -9) at random moments, resume it, and see whether it ends as if nothing had happened.

    python tests/torture/kills.py --kills 100
    python tests/torture/kills.py --seconds 600 --seed 1

Each fit runs in its own process, forked from this one so that a kill costs no imports. Only kills that hit a running
fit are counted. What a kill leaves is resumed, to be killed again or to finish, and the final model file must have the
bytes of an undisturbed fit.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

import nbmf
from helpers import small_matrix
from torture import typed_options

SETTINGS: list[tuple[type, dict[str, Any]]] = [
    (nbmf.NBMF, {"exposure": "exact"}),
    (nbmf.NBMF, {"exposure": "tied", "n_clusters": 6, "accelerate": True, "dtype": "float64"}),
    (nbmf.NBMF, {"exposure": "tied", "n_clusters": 6, "inference": "mm"}),
    (nbmf.PoissonMF, {"inference": "mm", "accelerate": True}),
    (nbmf.PoissonMF, {"binarize": True, "dtype": "float64"}),
]
MATRIX = small_matrix(120, 80)


def fit(kind: type, settings: dict[str, Any], folder: Path) -> None:
    """Fit, resuming from a checkpoint if there is one, and save the model."""
    checkpoint = folder / "checkpoint.nbmf"
    model = kind(5, **settings, random_state=7, max_iter=60, tol=0, n_threads=1)
    resume = checkpoint if checkpoint.exists() else None
    model.fit(MATRIX, checkpoint=checkpoint, checkpoint_every=1, resume=resume).save(folder / "model.nbmf")


def in_a_process(kind: type, settings: dict[str, Any], folder: Path) -> int:
    """Start a fit and return its process id."""
    child = os.fork()
    if child == 0:
        try:
            fit(kind, settings, folder)
        except BaseException as error:
            (folder / "error").write_text(repr(error))
            os._exit(1)
        os._exit(0)
    return child


def has_ended(child: int) -> bool:
    """Return whether the process has ended; if so, it must have succeeded."""
    ended, status = os.waitpid(child, os.WNOHANG)
    assert not ended or status == 0, f"the fit failed with status {status}"
    return bool(ended)


def kill_fits(n_kills: int, seconds: float, seed: int, folder: Path) -> dict[str, int]:
    """Kill this many times, or as often as the seconds allow.

    Returns how many kills left a checkpoint, and how many fits were resumed to their end.
    """
    chance, done = random.Random(seed), {"kills": 0, "resumed": 0, "identical ends": 0, "unfinished writes": 0}
    end, alone, durations = time.monotonic() + seconds, [], []
    for n, (kind, settings) in enumerate(SETTINGS):
        (folder / f"alone-{n}").mkdir()
        for _ in range(2):  # the first compiles
            (folder / f"alone-{n}" / "checkpoint.nbmf").unlink(missing_ok=True)
            started = time.monotonic()
            fit(kind, settings, folder / f"alone-{n}")
            durations.append(time.monotonic() - started)
        del durations[-2]
        alone.append((folder / f"alone-{n}" / "model.nbmf").read_bytes())
    for n in range(10 * n_kills):
        if done["kills"] >= n_kills or time.monotonic() > end:
            break
        which = n % len(SETTINGS)
        place = folder / f"killed-{n}"
        place.mkdir()
        for _ in range(chance.randint(1, 3)):
            child = in_a_process(*SETTINGS[which], place)
            time.sleep(chance.uniform(0, durations[which]))
            if not has_ended(child):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                done["kills"] += 1
                done["resumed"] += (place / "checkpoint.nbmf").exists()
                done["unfinished writes"] += any("unfinished" in name for name in os.listdir(place))
        fit(*SETTINGS[which], place)  # whatever a kill left, the fit can resume from it
        assert (place / "model.nbmf").read_bytes() == alone[which], f"{SETTINGS[which]} ended otherwise after kills"
        assert not [name for name in os.listdir(place) if name.startswith(".checkpoint")], "an unfinished one is left"
        done["identical ends"] += 1
    return done


def main() -> int:
    options = typed_options(__doc__, kills=10**6)
    with tempfile.TemporaryDirectory(prefix="nbmf-kills-") as name:
        found = kill_fits(options.kills, options.seconds, options.seed, Path(name))
    print(f"kills: {', '.join(f'{number} {what}' for what, number in found.items())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
