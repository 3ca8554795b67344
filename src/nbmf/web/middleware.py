"""What stands before every route: who may ask, how much, how many at a time, and for how long."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from nbmf.inference.progress import Stopwatch
from nbmf.web.metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "PATCH", "DELETE"})
OPEN = frozenset({"/", "/favicon.svg", "/favicon.ico", "/health", "/ready"})
"""What is answered without a token, with /static/: the page's own files, and whether the server is up."""

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


@dataclass(frozen=True)
class Limits:
    """How much one server takes on.

    in_flight : requests answered at a time; one more is told to come back (503)
    body_bytes : of one request (413)
    seconds : to answer one request (503)
    body_seconds : for a body to arrive (408)
    header_seconds : for a request's first lines to arrive, before the connection is closed
    """

    in_flight: int = 256
    body_bytes: int = 256 * 1024
    seconds: float = 10.0
    body_seconds: float = 10.0
    header_seconds: float = 10.0


@dataclass(frozen=True)
class Access:
    """Who may ask.

    hosts : names that the server may be called by, so that no other site's name can be pointed at it
    token : what a request must carry as `Authorization: Bearer …`; None asks for nothing
    origins : other sites whose pages may ask
    """

    hosts: frozenset[str] = LOOPBACK
    token: str | None = field(default=None, repr=False)
    origins: tuple[str, ...] = ()


class Refusal(Exception):  # noqa: N818 (not an error of ours)
    """A request that is not answered, and why."""

    def __init__(self, status: int, sentence: str, *headers: tuple[bytes, bytes]) -> None:
        """Keep what to tell."""
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, headers


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: App, limits: Limits, access: Access, metrics: Metrics) -> None:
        """Begin with nothing in flight."""
        self.app, self.limits, self.access, self.metrics = app, limits, access, metrics
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch, status = Stopwatch(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), *HEADERS]
                message = {**message, "headers": [*headers, (b"connection", b"close")] if self.draining else headers}
            await send(message)

        self.metrics.in_flight += 1
        try:
            self._admit(scope)
            given = await self._body(scope, receive)
            async with asyncio.timeout(self.limits.seconds):
                await self.app(scope, given, noting)
        except Refusal as refusal:
            await _tell(noting, refusal)
        except TimeoutError:
            if status == 0:
                await _tell(noting, Refusal(503, f"no answer within {self.limits.seconds:g} s", (b"retry-after", b"1")))
        finally:
            self.metrics.in_flight -= 1
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.metrics.note(method, route, status, watch.seconds)

    def _admit(self, scope: Scope) -> None:
        """Raise what this request is refused for."""
        headers = scope["headers"]
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or host_name(hosts[0].decode("latin-1")) not in self.access.hosts:
            raise Refusal(421, "this server is not called so; start it with --allow-host NAME to let it answer")
        path = scope["path"]
        is_open = path in OPEN or path.startswith("/static/")
        # a browser asks without a token whether a page of another site may ask with one
        is_asking_leave = scope["method"] == "OPTIONS" and bool(self.access.origins)
        if self.access.token is not None and not is_open and not is_asking_leave:
            given = next((value for name, value in headers if name == b"authorization"), b"")
            if not hmac.compare_digest(given, b"Bearer " + self.access.token.encode()):
                told = (b"www-authenticate", b"Bearer")
                raise Refusal(401, "this server asks for its token: Authorization: Bearer TOKEN", told)
        if self.metrics.in_flight > self.limits.in_flight:
            sentence = f"{self.limits.in_flight} requests are being answered; come back in a second"
            raise Refusal(503, sentence, (b"retry-after", b"1"))

    async def _body(self, scope: Scope, receive: Receive) -> Receive:
        """Take the whole body, if it is not too long, and return what hands it on."""
        most = self.limits.body_bytes
        sent = {name: value for name, value in scope["headers"] if name in (b"content-length", b"transfer-encoding")}
        if not sent:
            return receive
        length = sent.get(b"content-length", b"0")
        too_long = Refusal(413, f"the body is longer than {most} bytes; ask in parts", (b"connection", b"close"))
        if not length.isdigit() or int(length[:20]) > most:
            raise too_long
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(400, "the client went away")
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise too_long
                    more = message.get("more_body", False)
        except TimeoutError:
            sentence = f"the body did not arrive within {self.limits.body_seconds:g} s"
            raise Refusal(408, sentence, (b"connection", b"close")) from None
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def given() -> Message:
            return whole.pop() if whole else await receive()

        return given


async def _tell(send: Send, refusal: Refusal) -> None:
    body = json.dumps({"error": refusal.sentence}).encode()
    length = (b"content-length", str(len(body)).encode())
    headers = [(b"content-type", b"application/json"), length, *refusal.headers]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def host_name(host: str) -> str:
    """Return a Host header without its port, in small letters.

    >>> host_name("Example.org:8000"), host_name("[::1]:8000"), host_name("127.0.0.1")
    ('example.org', '::1', '127.0.0.1')
    """
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host
