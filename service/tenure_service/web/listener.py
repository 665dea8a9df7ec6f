"""Listens for HTTP beside gRPC, on the same event loop, with the same TLS files.

One event loop for both: the loop that cannot serve gRPC any more does not answer `/healthz` either.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from typing import Final

import uvicorn
from starlette.applications import Starlette

from tenure_service.certificates import Files, Watched

_log = logging.getLogger(__name__)

#: Answers that are under way when a server stops get this long.
_STOP_SECONDS: Final = 1


class _Uvicorn(uvicorn.Server):
    """One whose process has signal handlers of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone."""
        yield


class Listener:
    """One address on which an application is served; started and stopped on the event loop."""

    def __init__(self, application: Starlette, address: str, files: Files | None) -> None:
        self._application = application
        self._host, _, self._port = address.rpartition(":")
        self._files = files
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self) -> None:
        """Begins to listen.

        Raises:
            OSError: the address is in use, or none of this machine; a TLS file cannot be read, or
                is not what it should be.
        """
        context = None if self._files is None else _context(self._files)
        bound = await asyncio.to_thread(self._bind)
        self.port = bound.getsockname()[1]
        config = uvicorn.Config(
            self._application,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_STOP_SECONDS,
            ssl_context_factory=None if context is None else lambda *_: context,
        )
        self._server = _Uvicorn(config)
        self._serving = asyncio.get_running_loop().create_task(
            self._server.serve(sockets=[bound]), name="http"
        )

    async def stop(self) -> None:
        """Ends it, after the answers that are under way."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait({self._serving})
            if (exc := self._serving.exception()) is not None:
                _log.error("HTTP was not served any more", exc_info=exc)

    def _bind(self) -> socket.socket:
        where = f"{self._host}:{self._port}"
        try:
            family, kind, protocol, _, place = socket.getaddrinfo(
                self._host.strip("[]"),
                int(self._port),
                type=socket.SOCK_STREAM,
                flags=socket.AI_PASSIVE,
            )[0]
            made = socket.socket(family, kind, protocol)
        except OSError as exc:
            raise OSError(f"cannot listen on {where} for HTTP: {exc.strerror}") from exc
        try:
            # Connections of a server that has just ended do not keep the port.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(place)
            made.listen()
        except OSError as exc:
            made.close()
            raise OSError(f"cannot listen on {where} for HTTP: {exc.strerror}") from exc
        return made


def _context(files: Files) -> ssl.SSLContext:
    """Gives a context that at each handshake is replaced by one of the files as they are then."""
    watched = Watched(files, Files.context, "HTTP")

    def greet(connection: ssl.SSLObject, _name: object, _context: object) -> None:
        watched.changed()
        connection.context = watched.latest

    watched.latest.sni_callback = greet
    return watched.latest
