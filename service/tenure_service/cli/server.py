"""`tenure server`: one server, or several processes on one port."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import json
import logging
import os
import socket
from typing import TYPE_CHECKING, Final

from tenure_service.cli import exits
from tenure_service.cli.worker import stop_with_parent
from tenure_service.telemetry import logs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from tenure_service.config import ServerConfig
    from tenure_service.main import Server

_log = logging.getLogger(__name__)

_REMINDER_SECONDS: Final = 3600.0


def run(values: argparse.Namespace) -> int:
    """Serves until a signal comes."""
    config = configuration(values)
    # The lines of several processes go to one place.
    several = config.processes > 1
    logs.configure(
        config.log_level,
        config.log_format,
        fields={"process_id": os.getpid()} if several else None,
    )
    if values.parent_fd is not None:
        stop_with_parent(values.parent_fd)
    if values.share_port:
        return _one(config, values, share_port=True)
    refuse_taken(config.listen)
    for index in range(config.processes):
        refuse_taken(http_of(config, index))
    if several:
        return _several(config, values)
    return _one(config, values, share_port=False)


def http_of(config: ServerConfig, index: int) -> str:
    """Gives where a process of a server serves HTTP: each on a port of its own, one after another.

    A port that all share would answer a scrape with the figures of any one of them.
    """
    host, _, port = config.http_address.rpartition(":")
    return f"{host}:{int(port) + index}" if port and port != "0" else config.http_address


def configuration(values: argparse.Namespace) -> ServerConfig:
    """Reads the settings from flags and variables.

    Raises:
        CommandFailed: with every setting that is wrong.
    """
    from tenure_service import config

    flags = {
        name: value
        for name, value in vars(values).items()
        if name in config.ServerConfig.model_fields
    }
    try:
        return config.load(flags)
    except config.ConfigInvalid as exc:
        problems = str(exc).splitlines()
        listed = "\n".join(f"  {problem}" for problem in problems)
        count = "one setting is" if len(problems) == 1 else f"{len(problems)} settings are"
        raise exits.CommandFailed(f"{count} wrong:\n{listed}", exits.USAGE) from exc


def _one(config: ServerConfig, values: argparse.Namespace, *, share_port: bool) -> int:
    from tenure_service import main

    with reported():
        asyncio.run(
            main.serve(
                config.model_copy(update={"http": http_of(config, values.process_index)}),
                share_port=share_port,
                first=values.process_index == 0,
                started=functools.partial(_started, config, values),
            )
        )
    return exits.OK


def _started(config: ServerConfig, values: argparse.Namespace, server: Server) -> None:
    if values.json:
        told = {
            "address": server.address,
            "http": server.http_address,
            "process_id": os.getpid(),
        }
        print(json.dumps(told), flush=True)
    elif values.process_index == 0:
        # One line for the one port that all processes share.
        print(f"listening on {server.address}", flush=True)
    _remind(config)


def _remind(config: ServerConfig) -> None:
    """Warns now and each hour while others can reach the server without TLS and keys."""
    if config.is_open:
        missing = [
            text
            for text, there in (("TLS", config.tls_cert), ("keys", config.require_keys))
            if not there
        ]
        _log.warning(
            "%s is open (--insecure): others can reach it, without %s",
            " and ".join(config.open_addresses),
            " and ".join(missing),
        )
        asyncio.get_running_loop().call_later(_REMINDER_SECONDS, _remind, config)


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Turns what a server's start may raise into a sentence.

    Raises:
        CommandFailed: instead of the errors of `main.Server.start`.
    """
    from tenure_service.engine.errors import TenureError
    from tenure_service.store.migrate import MigrationError

    try:
        yield
    except (MigrationError, TenureError, OSError) as exc:
        raise exits.CommandFailed(" ".join(str(exc).split())) from exc


# ------------------------------------------------------------------- several processes


def _several(config: ServerConfig, values: argparse.Namespace) -> int:
    """Runs children that share the port; their settings travel in the environment.

    A command line is for everybody to read, and the database URL may hold a password.
    """
    from tenure_service import main
    from tenure_service.config import variable

    with _reserved(config.listen) as listen:
        settled = config.model_copy(update={"listen": listen, "http": config.http_address})
        for name, value in settled.model_dump().items():
            if value is None:
                os.environ.pop(variable(name), None)
            else:
                # An empty variable counts as not set, hence the digit for False.
                os.environ[variable(name)] = str(int(value) if isinstance(value, bool) else value)
        command = ["server", "--share-port", *(["--json"] if values.json else [])]
        return main.supervise(command, config.processes)


@contextlib.contextmanager
def _reserved(listen: str) -> Iterator[str]:
    """Keeps the port for the children, also between the end of one and the start of the next.

    The socket is bound and does not listen, so the kernel hands it no connection.

    Yields:
        The address, with the port that was found where it says 0.
    """
    host, _, port = listen.rpartition(":")
    with _bound(host, int(port), share=True) as bound:
        yield f"{host}:{bound.getsockname()[1]}"


def refuse_taken(listen: str) -> None:
    """Finds out before anything else starts whether an address can be listened on.

    Raises:
        CommandFailed: somebody else listens there, or it is none of this machine.
    """
    host, _, port = listen.rpartition(":")
    if port not in {"", "0"}:
        _bound(host, int(port), share=False).close()


def _bound(host: str, port: int, *, share: bool) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        try:
            # Connections of a server that has just ended do not keep the port.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if share:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            made.bind(address)
        except BaseException:
            made.close()
            raise
    except (OSError, OverflowError) as exc:
        if isinstance(exc, OverflowError):
            raise exits.CommandFailed(f"{host}:{port} is no port", exits.USAGE) from exc
        if exc.errno == errno.EADDRINUSE:
            raise exits.CommandFailed(
                f"{host}:{port} is taken: another program listens there", exits.CONFLICT
            ) from exc
        raise exits.CommandFailed(f"cannot listen on {host}:{port}: {exc.strerror}") from exc
    return made
