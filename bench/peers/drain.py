"""One drain: a backlog made in bulk, then one worker process that has just started."""

import contextlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import psycopg
from psycopg import conninfo

from bench import apps, rig
from bench.peers import install, watch
from bench.peers.catalogue import Peer
from tenure_service.embedded import EmbeddedPostgres

_STOP_SECONDS = 20.0
_LOG_CHARACTERS = 300
_ERROR = re.compile(r"^\w*Error\b.*", re.MULTILINE)
_OURS_LEFT = b"""
    select (select count(*) from tenure.tasks)
         - (select count(*) from tenure.deliveries where final)
"""
_VARIABLES = {
    "host": "PGHOST",
    "port": "PGPORT",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "dbname": "PGDATABASE",
}


class Figures(NamedTuple):
    """Tasks a second."""

    enqueue: float
    drain: float


def ours(server: EmbeddedPostgres, count: int) -> Figures:
    """Measures the product: a server process, and a worker process of concurrency 10."""
    with rig.database(server, "ours") as dsn, rig.tenure_server(dsn) as address:
        bench = apps.make(address)
        began = time.perf_counter()
        bench.noop.enqueue_many((number,) for number in range(count))
        enqueue = count / (time.perf_counter() - began)
        _settle(dsn)
        with rig.python_worker(address):
            return Figures(enqueue, watch.rate(dsn, _OURS_LEFT, count, check=lambda: None))


def theirs(server: EmbeddedPostgres, peer: Peer, runtime: Path, count: int) -> Figures:
    """Measures a peer: one process of its program enqueues, another works."""
    with _database(server) as dsn, tempfile.TemporaryFile("w+") as log:
        program = _Program(peer, (str(runtime), str(install.FOLDER / peer.program)), dsn, log)
        program.call("prepare")
        seconds = float(program.call("enqueue", str(count)))
        _settle(dsn)
        with program.working() as check:
            return Figures(count / seconds, watch.rate(dsn, peer.left, count, check))


@contextlib.contextmanager
def _database(server: EmbeddedPostgres) -> Iterator[str]:
    """Makes an empty database, and drops it."""
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as conn:
        conn.execute("create database peer")
        try:
            yield server.dsn("peer")
        finally:
            conn.execute("drop database peer with (force)")


def _settle(dsn: str) -> None:
    """Does what autovacuum does to a backlog that has waited for a minute."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("vacuum (analyze)")


@dataclass(frozen=True, slots=True)
class _Program:
    """A peer's program on a database; what it complains of goes to the log."""

    peer: Peer
    command: tuple[str, ...]
    dsn: str
    log: IO[str]

    def call(self, *words: str) -> str:
        """Runs one action to its end; gives what it prints."""
        done = subprocess.run(
            [*self.command, *words],
            check=False,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{words[0]} ended with {done.returncode}: {self._complaint()}")
        return done.stdout

    @contextlib.contextmanager
    def working(self) -> Iterator[Callable[[], None]]:
        """Runs a worker; gives a check that raises once it has ended."""
        process = subprocess.Popen(
            [*self.command, "work"], env=self._environment(), stdout=self.log, stderr=self.log
        )

        def check() -> None:
            if process.poll() is not None:
                raise RuntimeError(f"work ended with {process.returncode}: {self._complaint()}")

        with rig.stopped(process, _STOP_SECONDS):
            yield check

    def _environment(self) -> dict[str, str]:
        found = dict(os.environ, BENCH_SETTINGS=json.dumps(self.peer.settings))
        if self.peer.step:
            found["BENCH_STEP"] = "1"
        database = conninfo.conninfo_to_dict(self.dsn)
        return found | {name: str(database[key]) for key, name in _VARIABLES.items()}

    def _complaint(self) -> str:
        self.log.seek(0)
        text = self.log.read()
        found = _ERROR.search(text)
        return found[0] if found else " ".join(text.split())[-_LOG_CHARACTERS:]
