"""Handlers of every shape, and a program that serves them until SIGTERM.

python -m bench.handlers ADDRESS CONCURRENCY COUNT runs COUNT workers of one process.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import psycopg

from bench import rig
from tenure import App, AsyncTask, SyncTask, Worker, current_task

_CONNECT_SECONDS = 120.0
_KILOBYTE = "x" * 1022  # with its quotes, 1,024 bytes of JSON


class Handlers(NamedTuple):
    """The tasks of an app."""

    app: App
    noop: SyncTask[[int], None]
    anoop: AsyncTask[[int], None]
    kilobyte: SyncTask[[int], str]
    stamp: SyncTask[[], float]
    nap: SyncTask[[float], None]
    hold: SyncTask[[float], None]


def make(address: str) -> Handlers:
    """Makes the app of a server."""
    app = App("bench", address=address)

    @app.task
    def noop(number: int) -> None:
        """Does nothing."""

    @app.task
    async def anoop(number: int) -> None:
        """Does nothing, on an event loop."""

    @app.task
    def kilobyte(number: int) -> str:
        """Has an output of 1 KiB."""
        del number
        return _KILOBYTE

    @app.task
    def stamp() -> float:
        """Says when its handler started, by the clock of the machine."""
        return time.time()

    @app.task
    def nap(seconds: float) -> None:
        """Takes its time."""
        time.sleep(seconds)

    @app.task
    def hold(seconds: float) -> None:
        """Takes its time, unless an earlier hand-out was lost."""
        if current_task().delivery == 1:
            time.sleep(seconds)

    return Handlers(app, noop, anoop, kilobyte, stamp, nap, hold)


@contextlib.contextmanager
def working(
    address: str, *, concurrency: int = 10, count: int = 1
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a process of workers; stops it at the end if it still runs."""
    command = [sys.executable, "-m", "bench.handlers", address, str(concurrency), str(count)]
    with rig.stopped(subprocess.Popen(command, cwd=rig.ROOT)) as process:
        yield process


def wait_for_sessions(dsn: str, count: int) -> None:
    """Waits until so many workers are connected."""
    query = b"select count(*) from tenure.sessions where receiving and closed_at is null"
    wait_for_count(dsn, query, count, _CONNECT_SECONDS)


def wait_for_count(dsn: str, query: bytes, count: int, seconds: float) -> None:
    """Waits until a query counts at least so many, looking twenty times a second."""
    until = time.monotonic() + seconds
    with psycopg.connect(dsn, autocommit=True) as conn:
        while True:
            row = conn.execute(query).fetchone()
            if row is not None and row[0] >= count:
                return
            if time.monotonic() > until:
                raise TimeoutError(
                    f"{row} instead of {count} after {seconds:g} s: {query.decode()}"
                )
            time.sleep(0.05)


def main() -> None:
    """Serves."""
    address, concurrency, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    app = make(address).app
    workers = [Worker(app, concurrency=concurrency) for _ in range(count)]
    for worker in workers[1:]:
        worker.start()
    workers[0].run()


if __name__ == "__main__":
    main()
