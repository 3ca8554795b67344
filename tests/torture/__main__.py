"""Run all parts within a given time, and say whether everything held.

    make torture SECONDS=600 SEED=1
    python tests/torture --seconds 600 --seed 1 --only fits

Each part is a script of this folder that can be run alone. Two run side by side: the random fits on one core, the
others in turn. Every failure is printed with the command that reproduces it; the exit code is 1 if there was one.
"""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from threading import Lock

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from torture import typed_options

FOLDER = Path(__file__).parent
LANES = [  # each is a core's work: its parts, and what share of the time they get
    {"fits": 1.0},
    {"files": 0.22, "requests": 0.22, "interrupts": 0.3, "kills": 0.1, "workers": 0.06, "full_disks": 0.1},
]
NEEDS = {"requests": "uvicorn", "workers": "distributed"}
GRACE_S = 300.0  # for what a part has begun, and for compiling
QUIET = Lock()


def run(part: str, seconds: float, seed: int) -> bool:
    """Run one part and print what it says; return whether it held."""
    script = FOLDER / f"{part}.py"
    if not script.exists():
        tell(f"{part}: skipped, this checkout has no {script.name}")
        return True
    if part in NEEDS and find_spec(NEEDS[part]) is None:
        tell(f"{part}: skipped, {NEEDS[part]} is not installed")
        return True
    line, begun = [sys.executable, str(script), "--seconds", f"{seconds:.0f}", "--seed", str(seed)], time.monotonic()
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=seconds + GRACE_S, check=False)
    except subprocess.TimeoutExpired as hung:
        tell(f"{part}: FAILED, still running after {seconds + GRACE_S:.0f} s\n{(hung.stdout or b'').decode()}")
        return False
    told = done.stdout.strip()
    if done.returncode:
        tell(f"{told}\n{done.stderr[-2000:]}\n{part}: FAILED ({' '.join(line[1:])})")
    else:
        tell(f"{told.splitlines()[-1] if told else part + ': held'} ({time.monotonic() - begun:.0f} s)")
    return done.returncode == 0


def tell(text: str) -> None:
    with QUIET:
        print(text.strip(), flush=True)


def main() -> int:
    options = typed_options(__doc__, only="all")
    begun = time.monotonic()

    def run_lane(lane: dict[str, float]) -> list[bool]:
        parts = {part: share for part, share in lane.items() if options.only in ("all", part)}
        return [run(part, options.seconds * share / sum(parts.values()), options.seed) for part, share in parts.items()]

    with ThreadPoolExecutor(len(LANES)) as threads:
        held = [each for lane in threads.map(run_lane, LANES) for each in lane]
    verdict = "everything held" if all(held) else f"{held.count(False)} of {len(held)} parts FAILED"
    tell(f"torture: {verdict}; seed {options.seed}, {time.monotonic() - begun:.0f} s")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
