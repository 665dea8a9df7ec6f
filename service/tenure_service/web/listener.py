"""Listens for HTTP beside gRPC, on the same event loop, with the same TLS files.

One event loop for both: the loop that cannot serve gRPC any more does not answer `/healthz` either.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn
from starlette.applications import Starlette

_log = logging.getLogger(__name__)

#: Answers that are under way when a server stops get this long.
_STOP_SECONDS: Final = 1


@dataclass(frozen=True, slots=True)
class Files:
    """Certificate and key, and who signs those of clients (none: anybody may connect)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


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
        context = None if self._files is None else _Certificate(self._files).context
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


class _Certificate:
    """Reads the files again when they change: a renewed certificate needs no restart."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._stamp = self._look()
        self._fresh = self.context = self._read()
        self.context.sni_callback = self._greet

    def _read(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self._files.certificate, self._files.key)
            if self._files.client_ca is not None:
                context.load_verify_locations(self._files.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except ssl.SSLError as exc:
            raise OSError(f"the TLS files are not what they should be: {exc.reason}") from exc
        return context

    def _look(self) -> list[tuple[int, int]]:
        files = self._files
        paths = (files.certificate, files.key, files.client_ca)
        found = [path.stat() for path in paths if path is not None]
        return [(one.st_mtime_ns, one.st_ino) for one in found]

    def _greet(self, connection: ssl.SSLObject, _name: object, _context: object) -> None:
        """Is asked at each handshake."""
        try:
            stamp = self._look()
            if stamp != self._stamp:
                self._stamp = stamp
                self._fresh = self._read()
        except OSError as exc:
            _log.error("the changed TLS files are not used for HTTP: %s", exc)
        connection.context = self._fresh
