"""Prints what durable functions cost: steps, fan-outs, sleepers, a long history.

python -m bench.functions [one] [ten] [map] [sleep] [long] [--runs 3]

one     functions of one step, started in bulk and then run by one worker, in one process: runs a
        second from the first recorded step to the last end, beside the drain of as many tasks
ten     functions of ten steps each: recorded steps a second
map     one function that maps a task over 1,000 and over 10,000 items: its time, its activations
sleep   runs that all sleep: what server and worker hold for them, and, when 10,000 are due in one
        second, how long until the last has run
long    a run with 10,000 recorded steps whose worker is killed: from the next hand-out to its end
"""

import argparse
import contextlib
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg

from bench import apps, rig, table
from bench.table import Table
from tenure_service.embedded import EmbeddedPostgres

_LOOK_SECONDS = 0.1
_WAIT_SECONDS_MAX = 600.0
_KIB = 1024
_OPEN = b"select count(*) from tenure.runs where ended_at is null"
_RUNS = b"""
    select count(*) / extract(epoch from max(r.ended_at) - (
        select min(s.recorded_at) from tenure.steps as s
    ))
    from tenure.runs as r
"""
_STEPS = b"""
    select count(*) / extract(epoch from max(recorded_at) - min(recorded_at)) from tenure.steps
"""
_DRAIN = b"""
    select count(*) / extract(epoch from max(ended_at) - min(ended_at))
    from tenure.deliveries where final
"""
_ASLEEP = b"select count(*) from tenure.runs where status = 'WAITING'"
#: A sleep is over by its step, and the timer hands the run out: both are brought forward.
_WAKE = b"""
    with due as (
        update tenure.timers set fire_at = now() + random() * interval '1 second'
        where run_id in (select run_id from tenure.timers order by run_id limit %s)
        returning run_id
    )
    update tenure.steps as s set wake_at = now() from due as d
    where s.run_id = d.run_id and s.kind = 'SLEEP'
"""


def _one(conn: psycopg.Connection, query: bytes) -> float:
    row = conn.execute(query).fetchone()
    if row is None or row[0] is None:
        raise RuntimeError("nothing was recorded")
    return float(row[0])


def _until(conn: psycopg.Connection, query: bytes, count: int) -> None:
    until = time.monotonic() + _WAIT_SECONDS_MAX
    while _one(conn, query) != count:
        if time.monotonic() > until:
            raise TimeoutError(f"still {_one(conn, query):,.0f} after {_WAIT_SECONDS_MAX:g} s")
        time.sleep(_LOOK_SECONDS)


@contextlib.contextmanager
def _stage(
    server: EmbeddedPostgres,
) -> Iterator[tuple[apps.Bench, psycopg.Connection, rig.Serving]]:
    """Runs a server on an empty database."""
    with (
        rig.database(server, "functions") as dsn,
        rig.server_process(dsn) as serving,
        psycopg.connect(dsn, autocommit=True) as conn,
    ):
        yield apps.make(serving.address), conn, serving


@contextlib.contextmanager
def _worker(address: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a process of one worker, and kills it if it still runs."""
    process = subprocess.Popen([sys.executable, "-m", "bench.work", address, "10"], cwd=rig.ROOT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def one(server: EmbeddedPostgres, told: Table, arguments: Namespace) -> None:
    """Measures functions of one step beside tasks."""
    count = arguments.functions
    with _stage(server) as (bench, conn, serving):
        bench.noop.enqueue_many((number,) for number in range(count))
        with rig.python_worker(serving.address):
            _until(conn, b"select count(*) from tenure.deliveries where final", count)
        drain = _one(conn, _DRAIN)
    with _stage(server) as (bench, conn, serving):
        began = time.monotonic()
        bench.one_step.start_many((number,) for number in range(count))
        told.add("functions started in bulk (1/s)", count / (time.monotonic() - began))
        with rig.python_worker(serving.address):
            _until(conn, _OPEN, 0)
        rate = _one(conn, _RUNS)
    told.add("tasks drained (1/s)", drain)
    told.add("functions of one step (1/s)", rate)
    told.add("ratio of functions to tasks", rate / drain)


def ten(server: EmbeddedPostgres, told: Table, arguments: Namespace) -> None:
    """Measures functions of ten steps."""
    with _stage(server) as (bench, conn, serving):
        bench.ten_steps.start_many((number,) for number in range(arguments.functions // 5))
        with rig.python_worker(serving.address):
            _until(conn, _OPEN, 0)
        told.add("functions of ten steps: steps (1/s)", _one(conn, _STEPS))


def mapped(server: EmbeddedPostgres, told: Table, _: Namespace) -> None:
    """Measures a fan-out."""
    for count in (1_000, 10_000):
        with _stage(server) as (bench, _conn, serving), rig.python_worker(serving.address):
            bench.one_step.start(0).result(timeout=60)
            began = time.monotonic()
            handle = bench.mapping.start(count)
            handle.result(timeout=_WAIT_SECONDS_MAX)
            seconds = time.monotonic() - began
            told.add(
                f"map over {count:,} tasks (s / activations)",
                seconds,
                handle.status().activation_count,
            )


def _memory(process_id: int) -> float:
    """Gives what a process and its children hold, in MiB."""
    pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _KIB / _KIB


def sleeping(server: EmbeddedPostgres, told: Table, arguments: Namespace) -> None:
    """Measures runs that sleep, and many that are due at once."""
    count = arguments.sleepers
    with _stage(server) as (bench, conn, serving), _worker(serving.address) as worker:
        warm = bench.sleeper.start_many((0.0,) for _ in range(1_000))
        for handle in warm:
            handle.result(timeout=_WAIT_SECONDS_MAX)
        before = _memory(serving.process.pid), _memory(worker.pid)
        bench.sleeper.start_many((864_000.0,) for _ in range(count))
        _until(conn, _ASLEEP, count)
        after = _memory(serving.process.pid), _memory(worker.pid)
        told.add("memory before: server / worker (MiB)", *before)
        told.add(f"memory with {count:,} asleep: server / worker (MiB)", *after)
        began = time.monotonic()
        due = min(count, 10_000)
        conn.execute(_WAKE, [due])
        _until(conn, _OPEN, count - due)
        seconds = time.monotonic() - began
        told.add(f"{due:,} due within a second: until the last has ended (s)", seconds)


def long(server: EmbeddedPostgres, told: Table, arguments: Namespace) -> None:
    """Measures how long a run of many steps takes to go on."""
    with _stage(server) as (bench, conn, serving):
        handle = bench.long_history.start(arguments.steps)
        with _worker(serving.address):
            _until(conn, _ASLEEP, 1)
        conn.execute(_WAKE, [1])
        with _worker(serving.address):
            began = time.monotonic()
            handle.result(timeout=_WAIT_SECONDS_MAX)
            told.add(
                f"{arguments.steps:,} recorded steps: from a worker's start to the end (s)",
                time.monotonic() - began,
            )


PARTS: dict[str, Callable[[EmbeddedPostgres, Table, Namespace], None]] = {
    "one": one,
    "ten": ten,
    "map": mapped,
    "sleep": sleeping,
    "long": long,
}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="measures what durable functions cost")
    parser.add_argument("parts", nargs="*", metavar="PART", help=" or ".join(PARTS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--functions", type=int, default=5_000)
    parser.add_argument("--sleepers", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=10_000)
    arguments = parser.parse_args()
    wanted = table.parts(parser, arguments.parts, PARTS)
    with table.printed(f"{arguments.runs} runs") as told, rig.postgres() as server:
        for _ in range(arguments.runs):
            for part in wanted:
                PARTS[part](server, told, arguments)


if __name__ == "__main__":
    main()
