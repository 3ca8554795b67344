"""Hostile requests against a server: nothing may bring it down, make it grow, or make it answer wrongly.

    python tests/torture/requests.py --seconds 600 --seed 0

The server is a process of its own on this machine, and its model is replaced again and again, now and then by a damaged
file. A failure names the case; `--case N` repeats it alone. Ends with one line and exit code 0, or 1 after a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import socket
import string
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # in place of this folder, whose names are those of other packages

from helpers import child
from serving import TOKEN, Client, query, wait_for, write_model

WARM_UP = 1500  # requests after which memory is measured for the first time
MOST_GROWTH = 50  # megabytes
PATIENCE = 15.0  # seconds for the answer to a complete request
GLANCE = 0.02  # seconds for the answer to one that is not
MOST_LINGERING = 60
GET = ("recommend", "explain", "exposures", "similar/items", "similar/users", "search/items", "search/users")
WHOLE = (
    "/api/model",
    "/api/factors",
    "/api/map",
    "/api/fit",
    "/api/check",
    "/health",
    "/ready",
    "/metrics",
    "/openapi.json",
    "/",
)
POST = ("/api/recommend", "/api/explain", "/api/recommend/batch")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "PROPFIND", "A" * 300)
NUMBERS = (
    "0",
    "-1",
    "1001",
    "9" * 400,
    "1e309",
    "nan",
    "NaN",
    "inf",
    "0x10",
    "1_0",
    "１０",
    "",
    " 5",
    "5.0",
    "true",
    "\0",
)
TRAVERSALS = (
    "../app.py",
    "..%2fapp.py",
    "%2e%2e/app.py",
    "....//app.py",
    "%00",
    "app.js%00.css",
    "..\\app.py",
    "/etc/passwd",
    "%c0%ae%c0%ae/app.py",
    "datasets/tips.csv.gz",
    "a" * 5000,
    "%",
    "%zz",
    "con",
    "app.js/",
    ".",
    "..",
    "~root",
)
TYPES = (
    "application/json",
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/json; charset=utf-16",
    "",
    "application/json\0",
    "APPLICATION/JSON",
    "a" * 3000,
    "*/*",
)
HOSTS = (
    "localhost",
    "evil.example",
    "127.0.0.1.evil.example",
    "",
    "[::1",
    "localhost:99999",
    "localhost, evil.example",
    "LOCALHOST",
    "\xe9.example",
    "localhost\t",
    "@localhost",
    "10.0.0.3:8103",
    "*",
)
TOKENS = (
    f"Bearer {TOKEN}",
    "Bearer wrong",
    f"bearer {TOKEN}",
    f"Bearer {TOKEN} ",
    f"Basic {TOKEN}",
    "Bearer ",
    "\xff" * 40,
    TOKEN,
)


class HarmError(Exception):
    """The server did what it must not do."""


class Attack:
    """A server under attack, and what came of the requests so far."""

    def __init__(self, process: subprocess.Popen[str], port: int, path: Path, log: Path) -> None:
        self.process, self.path, self.log = process, path, log
        self.client = Client(port, TOKEN)
        self.contents: list[bytes] = []
        self.right: dict[str, dict[str, object]] = {}  # answers by model and user
        self.lingering: list[socket.socket] = []
        self.counts: Counter[str] = Counter()

    def run(self, rng: random.Random) -> None:
        """Send what the random numbers say, and check what comes back."""
        rng.choices(CASES, WEIGHTS)[0](self, rng)
        if self.process.poll() is not None:
            raise HarmError(f"the server ended with code {self.process.returncode}")

    def send(self, request: bytes, *, complete: bool = True, linger: bool = False, pieces: int = 1) -> None:
        """Send bytes over a connection of their own; a complete request must be answered, or the connection closed."""
        self.counts["sent"] += 1
        connection = socket.create_connection(("127.0.0.1", self.client.port), timeout=PATIENCE)
        try:
            step = max(1, len(request) // pieces)
            for start in range(0, len(request), step):
                connection.sendall(request[start : start + step])
                if pieces > 1:
                    time.sleep(0.001)
            if linger:
                self.lingering.append(connection)
                connection = None
                if len(self.lingering) > MOST_LINGERING:
                    self.lingering.pop(0).close()
                return
            connection.settimeout(PATIENCE if complete else GLANCE)
            self.check(self.receive(connection, request.startswith(b"HEAD ")), complete)
        except (ConnectionError, BrokenPipeError):
            self.counts["closed"] += 1
        finally:
            if connection is not None:
                connection.close()

    def receive(self, connection: socket.socket, is_head: bool) -> bytes | None:
        """Return the first answer, b"" if the connection was closed without, and None if nothing came."""
        found = b""
        try:
            while b"\r\n\r\n" not in found:
                more = connection.recv(1 << 16)
                if not more:
                    return found
                found += more
            head, _, body = found.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
            while not is_head and length is not None and len(body) < int(length[1]):
                more = connection.recv(1 << 16)
                if not more:
                    raise HarmError(f"an answer was cut short: {found[:200]!r}")
                body += more
        except TimeoutError:
            return found or None
        return head + b"\r\n\r\n" + body

    def check(self, answer: bytes | None, complete: bool) -> None:
        if answer is None:
            if complete:
                raise HarmError(f"no answer within {PATIENCE:g} s")
            self.counts["closed"] += 1  # by us
        elif not answer:
            self.counts["closed"] += 1
        else:
            status = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
            if status is None:
                raise HarmError(f"that is no HTTP: {answer[:200]!r}")
            self.counts["answered"] += 1
            self.counts[status[1].decode()] += 1
            if status[1].startswith(b"5") and status[1] != b"503":
                raise HarmError(f"a server error: {answer[-500:]!r}")
            if re.search(rb"root:x:|Traceback|import asyncio", answer):
                raise HarmError(f"an answer gives away a file or the code: {answer[:500]!r}")

    def replace_model(self, rng: random.Random) -> None:
        """Put another file in the place of the model."""
        content = rng.choice(self.contents)
        if rng.random() < 0.3:
            content = rng.choice((content[: rng.randrange(len(content))], b"", rng.randbytes(3000), b"\0" * 3000))
        other = self.path.with_suffix(".new")
        other.write_bytes(content)
        os.replace(other, self.path)

    def ask_rightly(self) -> None:
        """Ask a question whose answer is known."""
        self.counts["sent"] += 1
        status, answer, _ = self.client.ask(f"/api/recommend?{query(user='ann/7', n=5)}")
        if status != 200 or answer != self.right.get(answer.get("model")):
            raise HarmError(f"a wrong answer to a plain question: {status} {answer}")
        self.counts["answered"] += 1

    def memory(self) -> float:
        """Return the server's resident memory in megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


# ---- kinds of requests ----------------------------------------------------------------------------------------------


def build(method: str, target: str, body: bytes = b"", *headers: tuple[str, str], host: str = "localhost") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers)]
    if body and not any(name.lower() in ("content-length", "transfer-encoding") for name, _ in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


def authorized(rng: random.Random) -> tuple[str, str]:
    return "Authorization", TOKENS[0] if rng.random() < 0.85 else rng.choice(TOKENS)


def text(rng: random.Random) -> str:
    return rng.choice(
        (
            rng.choice(("ann/7", "104", "blue", "bob 4 é")),
            "".join(rng.choices(string.printable, k=rng.randrange(40))),
            "".join(chr(rng.choice((0, 10, 0x7F, 0xE9, 0x202E, 0xFFFD, 0x1F600))) for _ in range(rng.randrange(20))),
            "a" * rng.choice((499, 500, 501, 5000)),
            rng.choice(NUMBERS),
        )
    )


def questions(attack: Attack, rng: random.Random) -> None:
    """Known routes with odd parameters."""
    names = ("user", "item", "q", "n", "level", "include_seen", "allow", "deny", "x")
    given = [
        (rng.choice(names), rng.choice(NUMBERS) if rng.random() < 0.3 else text(rng)) for _ in range(rng.randrange(6))
    ]
    known = [("user", "ann/7"), ("item", "104")] if rng.random() < 0.6 else []
    asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in (*known, *given))
    target = rng.choice(WHOLE) if rng.random() < 0.2 else f"/api/{rng.choice(GET)}?{asked}"
    attack.send(build(rng.choice(("GET", "GET", "GET", "HEAD")), target, b"", authorized(rng)))


def targets(attack: Attack, rng: random.Random) -> None:
    """Methods and paths that nobody serves, and bytes in place of them."""
    path = rng.choice(
        (
            "/" + "".join(chr(rng.randrange(1, 256)) for _ in range(rng.randrange(30))),
            "/static/" + rng.choice(TRAVERSALS),
            rng.choice((*WHOLE, *POST)) + rng.choice(("/", "//", "%00", "?", "?%", "#x", ";x", "%2f..", "é", " x")),
            rng.choice(("*", "http://evil.example/api/model", "evil.example:80", "//", "/" + "a/" * 3000, "/docs", "")),
        )
    )
    request = build(rng.choice(METHODS), path, b"", authorized(rng))
    attack.send(request, complete=False)


def headers(attack: Attack, rng: random.Random) -> None:
    """Forged hosts, wrong tokens, and headers that are long, many, twice or odd."""
    odd = [
        ("X", "y" * rng.choice((10, 8000, 70_000))),
        *((f"X-{n}", "y") for n in range(rng.choice((0, 1000)))),
        ("Authorization", rng.choice(TOKENS)),
        ("Host", rng.choice(HOSTS)),
        ("Content-Length", rng.choice(("-1", "9" * 30, "abc", "1, 2", "+5", ""))),
        ("Transfer-Encoding", rng.choice(("chunked", "gzip, chunked", "identity", "xchunked", "chunked, chunked"))),
        ("Connection", rng.choice(("close", "upgrade", "keep-alive, x", ""))),
        ("Upgrade", rng.choice(("websocket", "h2c", ""))),
        ("Expect", rng.choice(("100-continue", "200-ok"))),
        ("Accept-Encoding", rng.choice(("gzip", "gzip;q=nan", "br" * 4000))),
        ("Range", rng.choice(("bytes=0-", "bytes=-1", "bytes=9-1", "bytes=" + "0-1," * 1000))),
        ("If-None-Match", "*"),
        ("Origin", "null"),
        ("Accept", "\0"),
        ("X y", "z"),
        ("", ""),
    ]
    chosen = rng.sample(odd, rng.randrange(1, 4))
    path = rng.choice((*WHOLE, "/static/app.js", "/api/recommend?user=ann/7"))
    method = rng.choice(("GET", "HEAD", "POST", "OPTIONS"))
    attack.send(build(method, path, b"", authorized(rng), *chosen, host=rng.choice(HOSTS)), complete=False)


def value(rng: random.Random, depth: int = 0) -> str:
    """A JSON value, or something like one."""
    kind = rng.randrange(9 if depth < 4 else 6)
    if kind < 2:
        return json.dumps(text(rng))
    if kind == 2:
        return rng.choice(
            ("1", "104", "-1", "1e400", "NaN", "-Infinity", "Infinity", "9" * 400, "0.1", "-0", "01", "1e-320")
        )
    if kind < 6:
        return rng.choice(("null", "true", '"\\ud800"', '"\\u0000"', "{}", "[]", '{"item": 104}', "'x'", "undefined"))
    inside = [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return f"[{', '.join(inside)}]"
    return "{" + ", ".join(f"{json.dumps(rng.choice(('item', 'count', 'n', 'x')))}: {each}" for each in inside) + "}"


def bodies(attack: Attack, rng: random.Random) -> None:
    """JSON of the right shape with wrong values, of the wrong shape, too deep, too long, or not JSON at all."""
    names = ("items", "item", "users", "n", "level", "allow", "deny", "include_seen", "more")
    fields = [f'"{name}": {value(rng)}' for name in rng.sample(names, rng.randrange(1, 5))]
    basket = [f'{{"item": {rng.choice(("104", value(rng)))}, "count": {value(rng)}}}' for _ in range(rng.randrange(3))]
    depth = rng.choice((10, 900, 30_000))
    body = rng.choice(
        (
            "{" + ", ".join(fields) + "}",
            '{"items": [' + ", ".join(basket) + '], "n": 3}',
            '{"users": ["ann/7", ' + value(rng) + '], "n": 3}',
            value(rng),
            "[" * depth + "]" * depth,
            '{"items":' * depth,
            '{"items": [' + ", ".join(['{"item": 104}'] * rng.choice((1000, 1001, 10_000))) + "]}",
            '{"items": [], "items": [{"item": 104}], "n": 2}',
            "x" * rng.choice((100, 262_144, 262_145, 400_000)),
        )
    ).encode("utf-8", "surrogatepass")
    if rng.random() < 0.15:
        body = rng.choice(
            (body[: len(body) // 2], rng.randbytes(200), body.decode("utf-8", "replace").encode("utf-16"))
        )
    content_type = "application/json" if rng.random() < 0.8 else rng.choice(TYPES)
    attack.send(build("POST", rng.choice(POST), body, authorized(rng), ("Content-Type", content_type)))


def broken_bodies(attack: Attack, rng: random.Random) -> None:
    """Bodies shorter or longer than announced, in chunks that are none, in small pieces, or never finished."""
    body = b'{"items": [{"item": 104, "count": 3}], "n": 4}'
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:10], body[10:])) + b"0\r\n\r\n"
    coded = ("Transfer-Encoding", "chunked")
    length, content, extra = rng.choice(
        (
            (len(body), body, ()),
            (len(body) + rng.randrange(1, 300), body, ()),
            (len(body) - rng.randrange(1, 20), body, ()),
            (None, chunked, (coded,)),
            (None, chunked[: rng.randrange(len(chunked))], (coded,)),
            (None, b"zz\r\n" + body, (coded,)),
            (None, b"ffffffffffffffff\r\n" + body, (coded,)),
            (None, b"-1\r\n" + body, (coded,)),
            (None, rng.randbytes(300), (coded,)),
            (None, b"1\r\nx\r\n" * 3000, (coded,)),
            (len(body), chunked, (coded,)),
        )
    )
    announced = () if length is None else (("Content-Length", str(length)),)
    request = build("POST", rng.choice(POST), content, authorized(rng), *announced, *extra)
    request = request[: rng.randrange(len(request))] if rng.random() < 0.2 else request
    pieces, linger = rng.choice((1, 1, 1, 30)), rng.random() < 0.1
    attack.send(request, complete=False, linger=linger, pieces=pieces)


def no_http(attack: Attack, rng: random.Random) -> None:
    """Bytes that are no request, several requests at once, and connections on which nothing is said."""
    good = build("GET", "/api/recommend?user=ann/7", b"", authorized(rng))
    request = rng.choice(
        (
            rng.randbytes(rng.randrange(1, 2000)),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(200),
            b"GET /\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET / HTTP/1.0\r\n\r\n",
            b"\r\n" * rng.randrange(1, 3000),
            b"\0" * 500,
            good * rng.randrange(2, 20),
            good.replace(b"\r\n", b"\n"),
            good[: rng.randrange(len(good))],
            b"",
        )
    )
    attack.send(request, complete=False, linger=rng.random() < 0.1)


def replaced_models(attack: Attack, rng: random.Random) -> None:
    attack.replace_model(rng)


def right_questions(attack: Attack, rng: random.Random) -> None:
    attack.ask_rightly()


CASES = (questions, targets, headers, bodies, broken_bodies, no_http, replaced_models, right_questions)
WEIGHTS = (30, 20, 20, 30, 15, 12, 1, 3)


# ---- the run --------------------------------------------------------------------------------------------------------


@contextmanager
def server_under_attack(folder: Path) -> Iterator[Attack]:
    """Start a server of its own for two models that will take turns."""
    path, log, token = folder / "model.nbmf", folder / "log", folder / "token"
    token.write_text(TOKEN)
    contents, right = [], {}
    from nbmf.web.reload import ServedModel

    for seed in (1, 0):
        write_model(path, seed=seed)
        views = ServedModel(str(path)).views
        contents.append(path.read_bytes())
        right[views.mark] = json.loads(json.dumps(views.recommend("ann/7", 5)))
    options = ["--port", "0", "--token-file", token, "--access-log", "json", "--log-level", "warning"]
    with (
        open(log, "wb") as stream,
        child([sys.executable, "-m", "nbmf", "serve", path, *options], seconds=7200, stderr=stream) as process,
    ):
        wait_for(lambda: b"serving at" in log.read_bytes(), 60)
        attack = Attack(process, int(re.search(rb":(\d+)/", log.read_bytes())[1]), path, log)
        attack.contents, attack.right = contents, right
        wait_for(lambda: attack.client.ask("/ready")[0] == 200, 60)
        yield attack
        for connection in attack.lingering:
            connection.close()
        process.send_signal(signal.SIGTERM)
        if process.wait(60) != 0:
            raise HarmError(f"after SIGTERM the server ended with code {process.returncode}")
        if b"Traceback" in log.read_bytes():
            raise HarmError(
                "the server's log has a traceback:\n" + log.read_bytes().partition(b"Traceback")[2].decode()[:3000]
            )


def torture(seconds: float, seed: int, most: int | None = None, case: int | None = None) -> int:
    """Send requests for so many seconds, and return the exit code."""
    attack, n, growth = None, case or 0, 0.0
    try:
        with tempfile.TemporaryDirectory() as folder, server_under_attack(Path(folder)) as attack:
            before, end = attack.memory(), time.monotonic() + seconds
            while time.monotonic() < end and n != most:
                if attack.counts["sent"] <= WARM_UP:
                    before = max(before, attack.memory()) if attack.counts["sent"] % 50 == 0 else before
                attack.run(random.Random(f"{seed}/{n}"))
                n += 1
                if case is not None:
                    break
            attack.path.write_bytes(attack.contents[0])
            for _ in range(20):
                attack.ask_rightly()
            growth = max(attack.memory() - before, 0.0)
            if growth > MOST_GROWTH:
                raise HarmError(f"the server grew by {growth:.0f} MB after the first {WARM_UP} requests")
    except (HarmError, AssertionError, OSError) as error:
        sys.stderr.write(f"case {n} of seed {seed} failed: {error}\n")
        sys.stderr.write(f"to repeat it: python tests/torture/requests.py --seed {seed} --case {n}\n")
        failures = 1
    else:
        failures = 0
    counts = attack.counts if attack is not None else Counter()
    numbers = f"{counts['sent']} sent, {counts['answered']} answered, {counts['closed']} closed"
    sys.stdout.write(f"requests: {numbers}, {failures} server errors, memory +{growth:.0f} MB\n")
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="repeat this case alone")
    given = parser.parse_args()
    with suppress(KeyboardInterrupt):
        sys.exit(torture(given.seconds, given.seed, case=given.case))


if __name__ == "__main__":
    main()
