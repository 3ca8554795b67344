"""Recommendations per second over HTTP and their latency, measured by wrk, and the time until the server is ready.

python benchmarks/server.py [MODEL]     (takes a minute; MODEL is nbmf-demo/groceries.nbmf from `make demo` by default)

Client and server share the cores of this machine. Every request asks for the ten best items of another user.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote

import nbmf

SECONDS, CONNECTIONS, READY_SECONDS = 8, (1, 16, 64), 120
SCRIPT = """
local users = {{ {users} }}
local n = 0
request = function()
  n = n + 1
  return wrk.format("GET", "/api/recommend?user=" .. users[n % #users + 1])
end
{delay}
"""


def start(path: str) -> tuple[subprocess.Popen[str], str, float]:
    """Start the server; return its process, its address, and the seconds until it was ready."""
    began = time.perf_counter()
    command = [str(Path(sys.executable).with_name("nbmf")), "serve", path, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    found = re.search(r"http://\S+", process.stderr.readline())
    assert found is not None
    while time.perf_counter() - began < READY_SECONDS:
        try:
            urllib.request.urlopen(f"{found[0]}ready", timeout=READY_SECONDS).close()
            return process, found[0], time.perf_counter() - began
        except OSError:
            time.sleep(0.01)
    process.kill()
    raise TimeoutError(f"the server was not ready within {READY_SECONDS} s")


def load(address: str, users: list[str], connections: int, rate: float | None = None) -> dict[str, float]:
    """Run wrk with a number of connections, at full speed or at about a given rate, and return its figures."""
    pause = f"delay = function() return {1000 * connections / rate:.0f} end" if rate else ""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(SCRIPT.format(users=", ".join(f'"{quote(user, safe="")}"' for user in users), delay=pause))
        script.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{SECONDS}", "--latency", "-s", script.name, address]
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS + 60).stdout
    unit = {"us": 1e-3, "ms": 1.0, "s": 1e3}
    found = {share: re.search(rf"{share}%\s+([\d.]+)(us|ms|s)", text) for share in ("50", "99")}
    answers = re.search(r"Requests/sec:\s+([\d.]+)", text)
    errors = sum(map(int, re.findall(r"(?:Non-2xx.*: |connect |read |write |timeout )(\d+)", text)))
    assert answers is not None
    times = {f"p{share}": float(part[1]) * unit[part[2]] for share, part in found.items() if part is not None}
    return {"rate": float(answers[1]), **times, "errors": float(errors)}


def show(name: str, found: dict[str, float]) -> None:
    """Print one row of the table."""
    print(f"{name:>12} {found['rate']:10,.0f} {found['p50']:8.2f} {found['p99']:8.2f} {found['errors']:7.0f}")


def main() -> None:
    """Start the server, put load on it, and print the table."""
    path = sys.argv[1] if len(sys.argv) > 1 else "nbmf-demo/groceries.nbmf"
    model = nbmf.load(path)
    users = [str(user) for user in model.users_.tolist()[:2000]]
    print(f"{path}: {type(model).__name__}, {len(model.users_):,} users × {len(model.items_):,} items")
    process, address, seconds = start(path)
    print(f"ready after {seconds:.2f} s")
    try:
        print(f"{'connections':>12} {'answers/s':>10} {'p50 ms':>8} {'p99 ms':>8} {'errors':>7}")
        peak = 0.0
        for connections in CONNECTIONS:
            found = load(address, users, connections)
            peak = max(peak, found["rate"])
            show(str(connections), found)
        show("half of peak", load(address, users, 16, peak / 2))
    finally:
        process.terminate()
        process.wait(60)


if __name__ == "__main__":
    main()
