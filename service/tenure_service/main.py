"""Composition root: the only place that builds pools, dispatch, servers and loops.

`Server` is one process's server, for whoever has an event loop; `run` serves until a signal comes.
"""

import asyncio
import functools
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Final

from tenure_service import __version__
from tenure_service.certificates import Files
from tenure_service.config import ServerConfig, is_loopback
from tenure_service.dispatch import measures
from tenure_service.dispatch.depth import Depth
from tenure_service.dispatch.hub import Durations, Hub
from tenure_service.engine.errors import Reason, TenureError
from tenure_service.loops import garbage, push, readiness, upkeep, versions
from tenure_service.loops.due import DueLoop
from tenure_service.loops.supervisor import Health, Supervisor
from tenure_service.rpc.server import RpcServer
from tenure_service.store import migrate
from tenure_service.store.database import Database
from tenure_service.store.rows import QueueStatisticsRow
from tenure_service.telemetry import metrics, otlp, spans
from tenure_service.telemetry.instruments import Observed, Observer
from tenure_service.usecase import maintain, operate
from tenure_service.usecase.access import Keys
from tenure_service.usecase.catalogue import Catalogue
from tenure_service.web import app as web
from tenure_service.web.listener import Listener

_log = logging.getLogger(__name__)

_WATCH_SECONDS: Final = 0.2
_START_SECONDS: Final = 5.0
_RESTART_PAUSE_SECONDS: Final = 0.5
_RESTART_PAUSE_MAX_SECONDS: Final = 15.0
#: For how long a thread that computes keeps the event loop waiting: a fifth of Python's default.
_SWITCH_SECONDS: Final = 0.001


def _durations(config: ServerConfig) -> Durations:
    return Durations(
        first_lease=timedelta(seconds=config.first_lease_seconds),
        lease=timedelta(seconds=config.lease_seconds),
        heartbeat=timedelta(seconds=config.heartbeat_seconds),
        accept=timedelta(seconds=config.accept_seconds),
    )


def _tls_files(config: ServerConfig) -> Files | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    return Files(config.tls_cert, config.tls_key, config.tls_client_ca)


class Server:
    """One server: started and stopped on the running event loop."""

    def __init__(
        self, config: ServerConfig, *, share_port: bool = False, first: bool = True
    ) -> None:
        self._config = config
        self._database = Database(
            config.database,
            schema=config.schema_name,
            connection_count=config.connections,
            name="tenure server",
        )
        self._catalogue = Catalogue(self._database)
        self._share_port = share_port
        self._supervisor = Supervisor()
        self._hub: Hub | None = None
        self._rpc: RpcServer | None = None
        self._depth = Depth(self._database) if first else None
        self._http: Listener | None = None
        self._push: otlp.Push | None = None
        self._spans: spans.Spans | None = None
        #: Monotonic time since which it can do its work; None while it cannot.
        self._ready_since: float | None = None
        self._forget_observers: list[Callable[[], None]] = []

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return 0 if self._rpc is None else self._rpc.port

    @property
    def health(self) -> dict[str, Health]:
        """How each loop fares."""
        return self._supervisor.health

    async def queue_statistics(self, namespace: str) -> list[QueueStatisticsRow]:
        """Counts what stands where in a namespace, for whoever runs the server in its process.

        Raises:
            TenureError: DATABASE_UNAVAILABLE; NOT_REGISTERED: no such namespace.
        """
        namespace_id = await asyncio.to_thread(self._catalogue.namespace_id, namespace)
        return await asyncio.to_thread(
            operate.queue_statistics, self._database, namespace_id, queue=None
        )

    async def served_queues(self, namespace: str, name: str) -> list[str]:
        """Lists the queues on which workers serve a task now, for whoever runs the server.

        Raises:
            TenureError: as of `queue_statistics`.
        """
        namespace_id = await asyncio.to_thread(self._catalogue.namespace_id, namespace)
        workers = await asyncio.to_thread(operate.list_workers, self._database, namespace_id)
        handlers = [handler for row in workers if row.receiving for handler in row.handlers]
        return sorted({each["queue"] for each in handlers if each["name"] == name})

    async def start(self) -> None:
        """Connects, checks the schema, starts the loops, and listens.

        Raises:
            TenureError: DATABASE_UNAVAILABLE.
            migrate.MigrationError: the schema is not what this release needs.
            OSError: the address cannot be listened on.
        """
        config = self._config
        await asyncio.to_thread(self._prepare_database)
        hub = Hub(
            self._database,
            self._catalogue,
            _durations(config),
            keys=Keys(self._database, required=config.require_keys),
            memory_bytes=config.payload_memory_mib * 1024**2,
        )
        self._hub = hub
        self._spans = spans.from_environment()
        self._rpc = RpcServer(
            hub,
            config.listen,
            share_port=self._share_port,
            tls_files=_tls_files(config),
            spans=self._spans,
        )
        due = DueLoop(hub)
        self._supervisor.start("lease", functools.partial(_plain, hub.leaser.run))
        self._supervisor.start("due", due.run, every_seconds=due.every_seconds)
        self._supervisor.start("notify", functools.partial(_plain, hub.wake.tell))
        self._supervisor.start("listen", functools.partial(_plain, hub.wake.hear))
        self._supervisor.start(
            "partitions",
            functools.partial(upkeep.partitions, hub),
            every_seconds=upkeep.PARTITION_SECONDS,
        )
        if config.require_keys:
            self._supervisor.start(
                "keys", functools.partial(upkeep.keys, hub), every_seconds=upkeep.KEYS_SECONDS
            )
        self._supervisor.start(
            "forget", functools.partial(upkeep.forget, hub), every_seconds=upkeep.FORGET_SECONDS
        )
        grace = timedelta(seconds=config.version_grace_seconds)
        self._supervisor.start(
            "versions",
            functools.partial(versions.run, hub, grace),
            every_seconds=versions.POLL_SECONDS,
        )
        await self._rpc.start()
        self._ready_since = time.monotonic()
        ready = functools.partial(readiness.run, hub, self._set_ready)
        self._supervisor.start("ready", ready, every_seconds=readiness.POLL_SECONDS)
        await self._start_telling(hub)
        _log.info("listening on %s", self.address)

    async def _start_telling(self, hub: Hub) -> None:
        """Lets others see how it fares: by HTTP, and pushed where a collector is named."""
        observers: list[Observer] = [
            functools.partial(measures.observe, hub),
            self._supervisor.observe,
            self._observe,
        ]
        if self._depth is not None:
            observers.append(self._depth.observe)
        self._forget_observers = [metrics.REGISTRY.observe(each) for each in observers]
        config = self._config
        self._push = otlp.from_environment(metrics.REGISTRY)
        if self._push is not None:
            self._supervisor.start("push", functools.partial(push.run, self._push, self._renew))
        if not config.http_address:
            return
        asks_keys = config.require_keys and not is_loopback(config.http_address)
        sources = web.Sources(
            ready=lambda: self._is_ready,
            stuck=self._stuck,
            renew=self._renew,
            keys=hub.keys if asks_keys else None,
        )
        self._http = Listener(web.make(sources), config.http_address, _tls_files(config))
        await self._http.start()
        _log.info("metrics and health over HTTP on %s", self.http_address)

    @property
    def address(self) -> str:
        """Host and port that it listens on."""
        return f"{self._config.listen.rpartition(':')[0]}:{self.port}"

    @property
    def http_address(self) -> str:
        """Host and port that it serves HTTP on; empty: it does not."""
        if self._http is None:
            return ""
        return f"{self._config.http_address.rpartition(':')[0]}:{self._http.port}"

    @property
    def _is_ready(self) -> bool:
        return self._ready_since is not None and self._hub is not None and not self._hub.draining

    async def _set_ready(self, *, ready: bool) -> None:
        self._ready_since = time.monotonic() if ready else None
        if self._rpc is not None:
            await self._rpc.set_ready(ready=ready)

    def _stuck(self) -> list[str]:
        """Names the loops that hang; those that wait for a database that is away do not."""
        return [] if self._ready_since is None else self._supervisor.stuck(self._ready_since)

    def _observe(self) -> Iterator[Observed]:
        yield metrics.READY, self._is_ready, ()
        yield metrics.BUILD, 1, (__version__,)

    async def _renew(self) -> None:
        if self._depth is not None:
            await self._depth.renew()

    async def stop(self) -> None:
        """Drains and stops; safe to call after a start that failed."""
        if self._rpc is not None:
            await self._rpc.stop(self._config.stop_grace)
        # Last of what is told: how the draining went.
        if self._http is not None:
            await self._http.stop()
        if self._depth is not None:
            self._depth.close()
        if self._push is not None:
            await asyncio.to_thread(self._push.close)
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)
        for forget in self._forget_observers:
            forget()
        self._forget_observers = []
        await self._supervisor.stop()
        if self._rpc is not None:
            self._rpc.close()
        if self._hub is not None:
            self._hub.close()
        await asyncio.to_thread(self._database.close)

    def _prepare_database(self) -> None:
        config = self._config
        if config.migrate:
            for applied in migrate.migrate(config.database, config.schema_name):
                _log.info("applied migration %s", applied.name)
        schema = migrate.check_ready(config.database, config.schema_name)
        for warning in schema.warnings:
            _log.warning("%s", warning)
        if not schema.ready:
            raise migrate.MigrationError("; ".join(schema.problems))
        self._database.open()
        maintain.ensure_partitions(self._database)
        if not maintain.is_writable(self._database):
            raise TenureError(Reason.DATABASE_UNAVAILABLE, "PostgreSQL is read-only")


async def _plain(run: Callable[[], object], health: Health) -> None:
    """Runs a loop that does not tell of its passes: it fares well from its start."""
    health.succeeded()
    await run()  # type: ignore[misc]


async def serve(
    config: ServerConfig,
    *,
    share_port: bool = False,
    first: bool = True,
    started: Callable[[Server], None] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, then drains and stops.

    Args:
        config: The settings.
        share_port: Whether other processes may listen on the same gRPC port.
        first: Whether it tells of the queues; one process of a group is enough.
        started: Called once it listens.
    """
    server = Server(config, share_port=share_port, first=first)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # The process is this server's alone: so are its collector and its interpreter.
    sys.setswitchinterval(_SWITCH_SECONDS)
    collecting = loop.create_task(garbage.run())
    try:
        await server.start()
        if started is not None:
            started(server)
        await stop.wait()
        _log.info("stopping")
    finally:
        collecting.cancel()
        await server.stop()


def supervise(command: Sequence[str], processes: int) -> int:
    """Runs several servers on one port as child processes, and replaces those that die.

    A child that fails at the very start ends the group, since its settings are wrong; a replacement
    that fails is replaced again, later and later, since the database may be away for a while.

    Returns:
        The exit code: 0 after a signal, else that of the child that failed at the start.
    """
    stopping = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    # The children hold the reading end; the writing end goes with this process, however it ends.
    alive, _kept = os.pipe()
    children = [_Child([*command, f"--process-index={index}"], alive) for index in range(processes)]
    code = 0
    while not stopping and not code:
        time.sleep(_WATCH_SECONDS)
        code = max(child.watch() for child in children)
    for child in children:
        child.process.terminate()
    for child in children:
        child.process.wait()
    return code


class _Child:
    """One server process of a group, and those that replace it."""

    def __init__(self, command: Sequence[str], alive: int) -> None:
        self._command = command
        self._alive = alive
        self._first = True
        self._pause = _RESTART_PAUSE_SECONDS
        self._restart_at: float | None = None
        self._start()

    def _start(self) -> None:
        self.process = _spawn(self._command, self._alive)
        self._began = time.monotonic()
        self._restart_at = None

    def watch(self) -> int:
        """Replaces the process if it has ended; gives its exit code if it failed at the start."""
        status = self.process.poll()
        if status is None:
            return 0
        now = time.monotonic()
        lived = now - self._began
        if self._restart_at is None:
            if self._first and status > 0 and lived < _START_SECONDS:
                return status
            self._first = False
            self._pause = (
                _RESTART_PAUSE_SECONDS
                if lived > _RESTART_PAUSE_MAX_SECONDS
                else min(self._pause * 2, _RESTART_PAUSE_MAX_SECONDS)
            )
            self._restart_at = now + self._pause
            _log.error(
                "server process %d ended with %d; another starts in %g s",
                self.process.pid,
                status,
                self._pause,
            )
        elif now >= self._restart_at:
            self._start()
        return 0


def _spawn(command: Sequence[str], alive: int) -> subprocess.Popen[bytes]:
    """Starts a child that ends when the other end of the pipe `alive` is gone."""
    words = [sys.executable, "-m", "tenure_service", *command, f"--parent-fd={alive}"]
    return subprocess.Popen(words, pass_fds=[alive])  # noqa: S603 - our own command line
