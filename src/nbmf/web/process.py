"""The server process: its socket, time limits for slow clients, and a shutdown that drops no request."""

import asyncio
import socket
from asyncio import TimerHandle, Transport

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nbmf.web.middleware import Guard

MOST_HEADER_BYTES = 64 * 1024
FINISH_SECONDS = 30  # for requests that are in flight when the server has drained
BACKLOG = 2048


class _TimedProtocol(HttpToolsProtocol):
    """HTTP protocol that closes a connection if the headers of a request are too long or take too long."""

    header_seconds: float
    _timer: TimerHandle | None = None
    _n_bytes = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._timer is not None:
            self._n_bytes += len(data)
            if self._n_bytes > MOST_HEADER_BYTES:
                self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._timer is None:  # a further request on the same connection
            self._start_timer()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()

    def _start_timer(self) -> None:
        self._n_bytes = 0
        self._timer = self.loop.call_later(self.header_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Server(uvicorn.Server):
    """Server that, before it closes its socket, asks clients with each response to close their connections."""

    drain_seconds = 0.5  # in which it still answers, and asks

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain connections, finish requests in flight, and stop."""
        self.config.app.draining = True  # type: ignore[union-attr]
        await asyncio.sleep(self.drain_seconds)
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; port 0 stands for any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = family is socket.AF_INET6 and socket.has_dualstack_ipv6()  # :: accepts IPv4 clients, too
    # requests that arrive while the model loads wait in the backlog
    return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)


def make_server(guard: Guard, log_level: str = "warning") -> Server:
    """Return a server for the application, ready to `run(sockets=[…])`; it logs as the process is set up to."""
    config = uvicorn.Config(
        guard,
        lifespan="on",
        http=type("Protocol", (_TimedProtocol,), {"header_seconds": guard.limits.header_seconds}),
        ws="none",
        access_log=False,
        log_level=log_level,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=FINISH_SECONDS,
    )
    return Server(config)
