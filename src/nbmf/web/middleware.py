"""Checks that every request passes before it reaches a route: host, token, number in flight, size and time."""

import asyncio
import hmac
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nbmf.inference.progress import Stopwatch

log = logging.getLogger("nbmf.access")  # one line per request, where somebody listens; see `LOGGED`

LOGGED = ("client", "method", "path", "status", "milliseconds", "bytes")  # the arguments of each line
MOST_LOGGED = 200  # characters of a path
ANY = "*"  # among the names of a server: any name
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "PATCH", "DELETE"})
PROBES = frozenset({"/health", "/ready"})  # answer under any name: balancers and kubelets ask by address
OPEN = frozenset({"/", "/favicon.svg", "/favicon.ico", *PROBES})  # need no token, like /static/
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
        b"style-src 'self' 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # bounds of the histogram
RETRY, CLOSE = {"retry-after": "1"}, {"connection": "close"}


@dataclass(frozen=True)
class Limits:
    """How much work one server accepts."""

    in_flight: int = 256  # requests answered at the same time; further ones are refused with 503
    body_bytes: int = 256 * 1024  # longer bodies are refused with 413
    seconds: float = 10.0  # to answer a request, which is then refused with 503
    body_seconds: float = 10.0  # for a body to arrive, which is then refused with 408
    header_seconds: float = 10.0  # for the headers of a request to arrive, before the connection is closed


@dataclass(frozen=True)
class Access:
    """Who may send requests."""

    hosts: frozenset[str] = LOOPBACK  # names of this server; others are refused: a foreign site may point its name here
    token: str | None = field(default=None, repr=False)  # required as `Authorization: Bearer …`, unless it is None
    origins: tuple[str, ...] = ()  # other sites whose pages may call the API


class Guard:
    """ASGI middleware that refuses requests outside of the limits, and counts and times the others."""

    def __init__(self, app: ASGIApp, limits: Limits, access: Access, registry: CollectorRegistry) -> None:
        self.app, self.limits, self.access = app, limits, access
        self.in_flight, self.draining = 0, False
        self.requests = Counter("nbmf_requests", "Requests answered.", ["method", "route", "code"], registry=registry)
        self.seconds = Histogram(
            "nbmf_request_seconds", "Time to answer a request.", ["route"], buckets=SECONDS, registry=registry
        )
        in_flight = Gauge("nbmf_requests_in_flight", "Requests being answered.", registry=registry)
        in_flight.set_function(lambda: self.in_flight)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse a request."""
        await (self._answer if scope["type"] == "http" else self.app)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch, status, n_bytes = Stopwatch(), 0, 0
        # a HEAD is answered as a GET; the server process leaves out the body
        asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope

        async def send_and_note(message: Message) -> None:
            nonlocal status, n_bytes
            n_bytes += len(message.get("body", b""))
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), *HEADERS]
                message = {**message, "headers": [*headers, (b"connection", b"close")] if self.draining else headers}
            await send(message)

        self.in_flight += 1
        try:
            self._admit(scope)
            buffered = await self._read_body(scope, receive)
            async with asyncio.timeout(self.limits.seconds):
                await self.app(asked, buffered, send_and_note)
        except HTTPException as error:
            await refusal(error.status_code, error.detail, error.headers)(scope, receive, send_and_note)
        except TimeoutError:
            if status == 0:
                late = refusal(503, f"no answer within {self.limits.seconds:g} s", RETRY)
                await late(scope, receive, send_and_note)
        finally:
            self.in_flight -= 1
            # only our own routes become labels: clients may ask for any path
            other = "/static/{name}" if scope["path"].startswith("/static/") else "other"
            route = getattr(asked.get("route"), "path", other)
            method, seconds = scope["method"] if scope["method"] in METHODS else "other", watch.seconds
            self.requests.labels(method, route, status).inc()
            self.seconds.labels(route).observe(seconds)
            if log.isEnabledFor(logging.INFO):  # without the query, which names users
                client, path = (scope.get("client") or ("-",))[0], quote(scope["path"][:MOST_LOGGED])
                sent = 0 if method == "HEAD" else n_bytes
                log.info("%s %s %s %d %s ms %d bytes", client, method, path, status, round(1000 * seconds, 1), sent)

    def _admit(self, scope: Scope) -> None:
        """Raise an error if this request must be refused."""
        headers, path = scope["headers"], scope["path"]
        # metrics are a probe too, but only if the token keeps them from sites that point their name here
        is_probe = path in PROBES or (path == "/metrics" and self.access.token is not None)
        if not is_probe and not self._is_ours([value for name, value in headers if name == b"host"]):
            raise HTTPException(421, "unknown host name; to accept it, start the server with --allow-host NAME")
        is_open = path in OPEN or path.startswith("/static/")
        # before a page of another site may send a token, its browser sends this request without one
        is_preflight = scope["method"] == "OPTIONS" and bool(self.access.origins)
        if self.access.token is not None and not is_open and not is_preflight:
            given = next((value for name, value in headers if name == b"authorization"), b"")
            if not hmac.compare_digest(given, b"Bearer " + self.access.token.encode()):
                needed = "missing or wrong token; send it as Authorization: Bearer TOKEN"
                raise HTTPException(401, needed, {"www-authenticate": "Bearer"})
        if self.in_flight > self.limits.in_flight:
            raise HTTPException(503, f"{self.limits.in_flight} requests are in flight; try again in a second", RETRY)

    def _is_ours(self, hosts: list[bytes]) -> bool:
        if len(hosts) != 1:
            return False
        return ANY in self.access.hosts or host_name(hosts[0].decode("latin-1")) in self.access.hosts

    async def _read_body(self, scope: Scope, receive: Receive) -> Receive:
        """Read the whole body, unless it is too long, and return a `receive` that delivers it."""
        headers = dict(scope["headers"])
        if b"content-length" not in headers and b"transfer-encoding" not in headers:
            return receive
        too_long = HTTPException(413, f"the body is longer than {self.limits.body_bytes} bytes; send less", CLOSE)
        length, body = headers.get(b"content-length", b"0"), bytearray()
        if not length.isdigit() or int(length[:20]) > self.limits.body_bytes:
            raise too_long
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for chunk in Request(scope, receive).stream():
                    body += chunk
                    if len(body) > self.limits.body_bytes:
                        raise too_long
        except ClientDisconnect:
            raise HTTPException(400, "the client disconnected") from None
        except TimeoutError:
            late = f"the body did not arrive within {self.limits.body_seconds:g} s"
            raise HTTPException(408, late, CLOSE) from None
        pending: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def deliver() -> Message:
            return pending.pop() if pending else await receive()

        return deliver


def refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the response that reports an error."""
    return JSONResponse({"error": sentence}, status, headers)


def host_name(host: str) -> str:
    """Return a Host header in lower case and without its port.

    >>> host_name("Example.org:8000"), host_name("[::1]:8000"), host_name("127.0.0.1")
    ('example.org', '::1', '127.0.0.1')
    """
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host
