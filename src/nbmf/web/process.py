"""The server process: sockets, patience with slow clients, and an end that drops nobody."""

from __future__ import annotations

import asyncio
import socket
from asyncio import TimerHandle, Transport
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nbmf.web.middleware import Guard

MOST_HEADER_BYTES = 64 * 1024
DRAIN_SECONDS = 0.5  # during which clients are told to close their connections, and still answered
BACKLOG = 2048
FINISH_SECONDS = 30  # for what is in flight then


class Patient(HttpToolsProtocol):
    """HTTP for clients that may never finish a sentence: a request's head must be short, and arrive in time."""

    header_seconds = 10.0
    _waiting: TimerHandle | None = None
    _n_bytes = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in what came, unless it is the endless head of a request."""
        super().data_received(data)
        if self._waiting is not None:
            self._n_bytes += len(data)
            if self._n_bytes > MOST_HEADER_BYTES:
                self.transport.close()

    def on_message_begin(self) -> None:
        """A new request on an open connection."""
        super().on_message_begin()
        if self._waiting is None:
            self._wait()

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._wait_no_more()
        super().on_headers_complete()

    def _wait(self) -> None:
        self._n_bytes = 0
        self._waiting = self.loop.call_later(self.header_seconds, self._give_up)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """A server that, asked to end, first tells its clients so with each answer, and only then closes its door."""

    def __init__(self, config: uvicorn.Config, guard: Guard) -> None:
        """Keep the guard, which tells them."""
        super().__init__(config)
        self.guard, self.drain_seconds = guard, DRAIN_SECONDS

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, finish what is in flight, end."""
        self.guard.draining = True
        await asyncio.sleep(self.drain_seconds)
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(BACKLOG)  # who asks before the model is loaded waits
    except OSError:
        found.close()
        raise
    return found


def make_server(guard: Guard) -> Server:
    """Return a server for the application, ready to `run(sockets=[…])`."""
    protocol = type("Protocol", (Patient,), {"header_seconds": guard.limits.header_seconds})
    settings: dict[str, Any] = {
        "http": protocol,
        "ws": "none",
        "access_log": False,
        "log_level": "warning",
        "server_header": False,
        "proxy_headers": False,
        "backlog": BACKLOG,
        "timeout_keep_alive": 30,
        "timeout_graceful_shutdown": FINISH_SECONDS,
    }
    return Server(uvicorn.Config(guard, lifespan="on", **settings), guard)
