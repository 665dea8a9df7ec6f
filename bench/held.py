"""Prints what it costs to hold many long tasks: their leases, renewed at the default heartbeat.

python -m bench.held [block] [single] [--sessions 500] [--tasks 200] [--seconds 60]

block    the tasks wait, and each worker offers all its slots at once: a lease of up to 200 tasks,
         one row to renew for all of them
single   each task was handed out by itself, under a lease of its own: as many rows as tasks, the
         worst that there is

Workers are raw streams (bench/holding.py) that accept, start and hold; all goes through the
protocol. Processor time is that of all of PostgreSQL's processes and of the server, first with the
same streams that hold nothing, then with everything held.
"""

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg

from bench import counting, rig, table
from bench.calls import Calls
from bench.table import Table
from tenure_service.embedded import EmbeddedPostgres

_PARTS = ("block", "single")
_ENQUEUE_COUNT = 10_000
_SETTLE_SECONDS = 20.0
_LEASES = b"""
    select
        (select count(*) from tenure.leases),
        coalesce((select sum(remaining) from tenure.leases), 0)::bigint,
        s.n_tup_upd,
        s.n_tup_hot_upd,
        s.n_dead_tup,
        pg_table_size(s.relid),
        pg_indexes_size(s.relid),
        pg_current_wal_lsn() - '0/0'::pg_lsn
    from pg_stat_all_tables as s
    where s.relid = 'tenure.leases'::regclass
"""


class _Leases(NamedTuple):
    """The table of leases, and the end of the log of changes."""

    rows: int
    held: int
    updated: int
    hot: int
    dead: int
    table: int
    indexes: int
    logged: int


class _Used(NamedTuple):
    """Processor seconds so far."""

    backends: dict[int, float]
    all: float
    server: float


@contextlib.contextmanager
def _holding(address: str, arguments: Namespace, part: str) -> Iterator[subprocess.Popen[str]]:
    words = [address, str(arguments.sessions), str(arguments.tasks), part]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.holding", *words],
        cwd=rig.ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _expect(process: subprocess.Popen[str], word: str) -> None:
    said = process.stdout.readline().strip() if process.stdout else ""
    if said != word:
        raise RuntimeError(f"the workers said {said!r} instead of {word!r}")


async def _enqueue(address: str, count: int) -> None:
    calls = Calls(address)
    for first in range(0, count, _ENQUEUE_COUNT):
        await calls.enqueue(min(_ENQUEUE_COUNT, count - first))
    await calls.channel.close()


def _used(server: EmbeddedPostgres, pid: int) -> _Used:
    """Adds up PostgreSQL: the processes there are, and those that its postmaster saw end."""
    clock = os.sysconf("SC_CLK_TCK")
    backends: dict[int, float] = {}
    total = 0.0
    for path in Path("/proc").glob("[0-9]*"):
        # A process may end while it is looked at: its time is its parent's then.
        with contextlib.suppress(OSError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            own = sum(map(int, fields[11:13])) / clock
            if path.name == str(server.pid):
                total += sum(map(int, fields[11:15])) / clock
            elif fields[1] == str(server.pid):
                total += own
                if b"[local]" in (path / "cmdline").read_bytes():
                    backends[int(path.name)] = own
    return _Used(backends, total, counting.processor_seconds(pid))


def _leases(dsn: str) -> _Leases:
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(_LEASES).fetchone()
    if row is None:
        raise RuntimeError("a count always has a row")
    return _Leases(*(int(value) for value in row))


def _shares(
    told: Table, server: EmbeddedPostgres, serving: rig.Serving, title: str, seconds: float
) -> None:
    """Notes the shares of one core over some seconds, in percent."""
    began, before = time.monotonic(), _used(server, serving.process.pid)
    time.sleep(seconds)
    after = _used(server, serving.process.pid)
    passed = time.monotonic() - began
    backends = sum(used - before.backends.get(pid, 0) for pid, used in after.backends.items())
    # Clocks tick a hundred times a second: what did nothing may seem to have done less.
    rest = max(after.all - before.all - backends, 0.0)
    told.add(f"{title}: backends of PostgreSQL (% of a core)", 100 * backends / passed)
    told.add(f"{title}: its other processes (% of a core)", 100 * rest / passed)
    told.add(f"{title}: the server (% of a core)", 100 * (after.server - before.server) / passed)


def measure(server: EmbeddedPostgres, told: Table, part: str, arguments: Namespace) -> None:
    """Measures one way of holding."""
    count, seconds = arguments.sessions * arguments.tasks, arguments.seconds
    title = f"{part}: {count:,} tasks of {arguments.sessions} workers"
    with (
        rig.database(server, "held") as dsn,
        rig.server_process(dsn) as serving,
        _holding(serving.address, arguments, part) as workers,
    ):
        _expect(workers, "open")
        time.sleep(min(_SETTLE_SECONDS, seconds))
        _shares(told, server, serving, f"{part}: the same workers, nothing held", seconds)
        began = time.monotonic()
        asyncio.run(_enqueue(serving.address, count))
        _expect(workers, "ready")
        told.add(f"{title}: handed out (s)", time.monotonic() - began)
        time.sleep(min(_SETTLE_SECONDS, seconds))
        before = _leases(dsn)
        _shares(told, server, serving, title, seconds)
        after = _leases(dsn)
        if workers.poll() is not None or (after.held, after.rows) != (count, before.rows):
            raise RuntimeError(f"not all was held: {before}, {after}")
        renewed = after.updated - before.updated
        told.add(f"{title}: leases", after.rows)
        told.add(f"{title}: renewals (1/s)", renewed / seconds)
        told.add(
            f"{title}: renewals that write no index (%)",
            100 * (after.hot - before.hot) / max(renewed, 1),
        )
        told.add(
            f"{title}: log of changes (MiB/s)", (after.logged - before.logged) / seconds / 2**20
        )
        told.add(
            f"{title}: leases, their indexes (MiB)", after.table / 2**20, after.indexes / 2**20
        )
        told.add(f"{title}: dead rows", after.dead)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="measures what held tasks cost")
    parser.add_argument("parts", nargs="*", metavar="PART", help=" or ".join(_PARTS))
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--tasks", type=int, default=200, help="of each session")
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    wanted = table.parts(parser, arguments.parts, _PARTS)
    with table.printed(f"over {arguments.seconds:g} s, {arguments.runs} runs") as told:
        for _ in range(arguments.runs):
            for part in wanted:
                with rig.postgres() as server:
                    measure(server, told, part, arguments)


if __name__ == "__main__":
    main()
