"""What the demo plays on: PostgreSQL, a server and workers, each a process that may be killed."""

import asyncio
import collections
import contextlib
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tenure import Client
from tenure_service.config import ServerConfig
from tenure_service.embedded import EmbeddedPostgres
from tenure_service.main import Server, serve

ROOT = Path(__file__).resolve().parent.parent.parent

#: Leases shorter than the defaults, so that a lost worker is noticed while somebody watches.
LEASES = {
    "lease_seconds": 6,
    "first_lease_seconds": 3,
    "heartbeat_seconds": 1,
    "accept_seconds": 2,
}
_CONCURRENCY = 4


def source_files() -> list[str]:
    """Lists the Python files of the standard library."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    return sorted(str(path) for path in stdlib.rglob("*.py") if "site-packages" not in path.parts)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class Stage:
    """Processes of the demo; all are stopped, and all data removed, when it is left."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.killed: collections.Counter[str] = collections.Counter()
        self.address = f"127.0.0.1:{_free_port()}"
        self._say = say
        self._stack = contextlib.ExitStack()
        self._worker_count = 0
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._say("starting PostgreSQL 18 and a server")
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tenure-demo-"))
            self._postgres = EmbeddedPostgres.start(Path(folder) / "postgres")
            stack.callback(self._postgres.remove)
            self._log = stack.enter_context((Path(folder) / "log").open("wb"))
            self._server = self._start_server()
            stack.callback(lambda: _stop(self._server))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._workers.values():
            process.terminate()
        for process in self._workers.values():
            process.wait(60)
        self._stack.close()

    def start_worker(self) -> None:
        """Starts one more worker process."""
        self._worker_count += 1
        name = f"worker-{self._worker_count}"
        code = (
            "from examples.demo.app import app; from tenure import Worker; "
            f"Worker(app, name={name!r}, concurrency={_CONCURRENCY}).run()"
        )
        command = [sys.executable, "-c", code]
        self._workers[name] = self._spawn(command, os.environ | {"TENURE_ADDRESS": self.address})

    def kill(self, what: str) -> None:
        """Kills a worker, the server or PostgreSQL with SIGKILL, and starts another in its place."""
        if what == "worker":
            name, held = self._busiest()
            process = self._workers[name]
            process.kill()
            process.wait()
            del self._workers[name]
            self._say(f"killed {name} while it held {held} tasks; another takes its place")
            self.start_worker()
        elif what == "server":
            self._server.kill()
            self._server.wait()
            self._say("killed the server; another takes its place")
            self._server = self._start_server()
        else:
            self._postgres.kill()
            self._say("killed PostgreSQL; it is started again")
            self._postgres.restart()
        self.killed[what] += 1

    def _busiest(self) -> tuple[str, int]:
        """Names the worker that holds most tasks, once one holds any: a kill is to hit something."""
        client = Client(self.address)
        for _ in range(100):
            held = {
                worker.name: worker.held_count
                for worker in client.list_workers()
                if worker.name in self._workers
            }
            name = max(held, key=held.__getitem__, default="")
            if name and held[name]:
                return name, held[name]
            time.sleep(0.02)
        return next(iter(self._workers)), 0

    def _start_server(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "examples.demo.stage", self._postgres.dsn(), self.address]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=self._log)
        if process.stdout is None or not process.stdout.readline():
            raise SystemExit(f"the server did not start: {Path(self._log.name).read_text()}")
        return process

    def _spawn(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=self._log, stderr=self._log
        )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(30)


def _serve(dsn: str, address: str) -> None:
    def started(running: Server) -> None:
        print(running.address, flush=True)

    config = ServerConfig.model_validate({"database": dsn, "listen": address} | LEASES)
    asyncio.run(serve(config, started=started))


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2])
