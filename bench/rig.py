"""What every measurement stands on: one durable embedded PostgreSQL with its default settings.

Servers and workers are processes of their own, as in production. Nothing here is asserted; figures
are printed, and ratios are taken within one run.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tenure_service.embedded import EmbeddedPostgres
from tenure_service.store import migrate
from tenure_service.store.database import Database
from tenure_service.usecase import maintain

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = "tenure"
_STOP_SECONDS = 60.0


@contextlib.contextmanager
def postgres() -> Iterator[EmbeddedPostgres]:
    """Runs a durable PostgreSQL on an empty directory."""
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
        server = EmbeddedPostgres.start(Path(folder) / "postgres", durable=True)
        try:
            yield server
        finally:
            server.remove()


@contextlib.contextmanager
def database(server: EmbeddedPostgres, name: str) -> Iterator[str]:
    """Makes an empty, migrated database with partitions, and drops it."""
    admin = server.dsn("postgres")
    with psycopg.connect(admin, autocommit=True) as conn:
        conn.execute(f"create database {name}")
    dsn = server.dsn(name)
    migrate.migrate(dsn, SCHEMA)
    with opened(dsn) as pool:
        maintain.ensure_partitions(pool)
    try:
        yield dsn
    finally:
        with psycopg.connect(admin, autocommit=True) as conn:
            conn.execute(f"drop database {name} with (force)")


@contextlib.contextmanager
def opened(dsn: str) -> Iterator[Database]:
    """Opens the store's own pool, with its settings."""
    pool = Database(dsn, schema=SCHEMA, connection_count=4, name="bench")
    pool.open()
    try:
        yield pool
    finally:
        pool.close()


@dataclass(frozen=True, slots=True)
class Serving:
    """A server process, and where it answers."""

    process: subprocess.Popen[str]
    address: str


def start_server(dsn: str, listen: str = "127.0.0.1:0") -> Serving:
    """Starts a server process, and waits until it listens."""
    command = [sys.executable, "-m", "bench.serve", dsn, listen]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    address = process.stdout.readline().strip() if process.stdout else ""
    if not address:
        process.kill()
        raise RuntimeError("the server did not start")
    return Serving(process, address)


@contextlib.contextmanager
def server_process(dsn: str) -> Iterator[Serving]:
    """Runs a server process."""
    serving = start_server(dsn)
    try:
        yield serving
    finally:
        serving.process.terminate()
        serving.process.wait(60)


@contextlib.contextmanager
def tenure_server(dsn: str) -> Iterator[str]:
    """Runs a server process and gives its address."""
    with server_process(dsn) as serving:
        yield serving.address


@contextlib.contextmanager
def python_worker(
    address: str, *, concurrency: int = 10, count: int = 1, queues: Iterable[str] = ()
) -> Iterator[None]:
    """Runs a process of one worker of the SDK, or of some, with the bench's handlers."""
    command = [sys.executable, "-m", "bench.work", address, str(concurrency), str(count), *queues]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def stopped(
    process: subprocess.Popen[bytes], seconds: float = _STOP_SECONDS
) -> Iterator[subprocess.Popen[bytes]]:
    """Stops a process at the end, and kills it if it does not obey within some seconds."""
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_deliveries(dsn: str, count: int, *, timeout: float = 300) -> None:
    """Waits until so many deliveries are final, looking four times a second."""
    deadline = time.monotonic() + timeout
    with psycopg.connect(dsn, autocommit=True) as conn:
        while time.monotonic() < deadline:
            row = conn.execute("select count(*) from tenure.deliveries where final").fetchone()
            if row is not None and row[0] >= count:
                return
            time.sleep(0.25)
    raise TimeoutError(f"fewer than {count} deliveries in {timeout} s")


def rate(dsn: str) -> float:
    """Gives completions a second, between the first and the last commit."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(
            "select count(*), extract(epoch from max(ended_at) - min(ended_at))"
            " from tenure.deliveries where final"
        ).fetchone()
    if row is None:
        raise RuntimeError("a count always has a row")
    return float(row[0]) / max(float(row[1]), 1e-9)
