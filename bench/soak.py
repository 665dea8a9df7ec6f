"""Prints what time does: churn for half an hour, and a snapshot that somebody holds.

python -m bench.soak [churn] [snapshot] [--minutes 30] [--rate 2000] [--hold 10] [--hold-rate 500]

churn      a drain, then tasks enqueued and completed at a steady rate for so many minutes, then
           the drain again, in the same database and by the same server; and how large the tables
           were meanwhile, with their dead rows
snapshot   tasks at a steady rate; after a while a transaction of REPEATABLE READ is opened and
           held for so many minutes, in which no dead row can be removed: how long PostgreSQL takes
           to lease before, during and after it

A drain is of a backlog, by one worker process that has just started, from its first commit to its
last. All rates are of an open loop: bench/pace.py.
"""

import argparse
import contextlib
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg

from bench import apps, rig, sampled, sizes, table
from bench.pace import Pace
from bench.sampled import Sample
from bench.table import Table
from tenure_service.embedded import EmbeddedPostgres

_LOOK_SECONDS = 0.25
_SETTLE_SECONDS = 10.0
_CALM_SECONDS_MAX = 120.0
_DRAIN_SECONDS_MAX = 300.0
_DONE = b"select count(*) from tenure.deliveries where final and run_id > %s"
_RATE = b"""
    select count(*) / extract(epoch from max(ended_at) - min(ended_at))
    from tenure.deliveries where final and run_id > %s
"""


def _one(conn: psycopg.Connection, query: bytes, *parameters: object) -> float:
    row = conn.execute(query, parameters).fetchone()
    if row is None:
        raise RuntimeError("one row was asked for")
    return float(row[0])


def drain(conn: psycopg.Connection, address: str, count: int) -> float:
    """Gives completions a second of a backlog that is enqueued first."""
    # Ids rise with time, so what is enqueued from here on is found by them.
    row = conn.execute("select uuidv7()").fetchone()
    before = row[0] if row else None
    apps.make(address).noop.enqueue_many((number,) for number in range(count))
    with rig.python_worker(address):
        until = time.monotonic() + _DRAIN_SECONDS_MAX
        while _one(conn, _DONE, before) < count:
            if time.monotonic() > until:
                raise TimeoutError(f"fewer than {count} were done in {_DRAIN_SECONDS_MAX:g} s")
            time.sleep(_LOOK_SECONDS)
    return _one(conn, _RATE, before)


def churn(server: EmbeddedPostgres, told: Table, arguments: Namespace) -> Iterator[str]:
    """Measures the drain before and after some time of steady work; gives a row a sample."""
    minutes, rate, count = arguments.minutes, arguments.rate, arguments.tasks
    after = f"drain, after {minutes:g} minutes at {rate:g}/s (tasks/s)"
    yield from sizes.HEAD
    with contextlib.ExitStack() as stack:
        dsn = stack.enter_context(rig.database(server, "churn"))
        address = stack.enter_context(rig.tenure_server(dsn))
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        before = [drain(conn, address, count) for _ in range(arguments.runs)]
        for value in before:
            told.add("drain, before the churn (tasks/s)", value)
        pace = Pace(address, rate)
        with rig.python_worker(address), pace:
            yield from _watch(conn, minutes * 60, arguments.every)
        told.add("enqueued meanwhile (tasks)", pace.stored)
        told.add("refused meanwhile (tasks)", pace.failed)
        yield sizes.take(conn).row("at the end", None)
        for earlier in before:
            later = drain(conn, address, count)
            told.add(after, later)
            told.add("ratio: drain after the churn", later / earlier)


def _watch(conn: psycopg.Connection, seconds: float, every: float) -> Iterator[str]:
    """Looks at the tables again and again."""
    began = time.monotonic()
    last = sizes.take(conn)
    yield last.row("0.0", None)
    while (left := began + seconds - time.monotonic()) > 0:
        time.sleep(min(left, every))
        now = sizes.take(conn)
        yield now.row(f"{(time.monotonic() - began) / 60:.1f}", last)
        last = now


@dataclass(slots=True)
class _Phase:
    """A part of the time, and how long leasing took in it."""

    title: str
    begin: int
    end: int = 0
    dead: str = ""


def snapshot(server: EmbeddedPostgres, told: Table, arguments: Namespace) -> Iterator[str]:
    """Measures leasing before, during and after a snapshot is held; gives a row a phase."""
    seconds = arguments.hold * 60
    calm = min(seconds, _CALM_SECONDS_MAX)
    titles = ("first third", "second third", "last third")
    with contextlib.ExitStack() as stack:
        dsn = stack.enter_context(rig.database(server, "held"))
        address = stack.enter_context(rig.tenure_server(dsn))
        stack.enter_context(rig.python_worker(address))
        stack.enter_context(Pace(address, arguments.hold_rate))
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        sample = stack.enter_context(sampled.sampling(server, arguments.sample))
        time.sleep(_SETTLE_SECONDS)
        phases = [_spent(conn, sample, "before", calm)]
        with psycopg.connect(dsn) as holder:
            holder.execute("set transaction isolation level repeatable read")
            holder.execute("select count(*) from tenure.lanes")
            phases += [
                _spent(conn, sample, f"snapshot held, {title}", seconds / 3) for title in titles
            ]
        phases.append(_spent(conn, sample, "after it", calm))
        yield from _phases(told, sample, phases)


def _spent(conn: psycopg.Connection, sample: Sample, title: str, seconds: float) -> _Phase:
    phase = _Phase(title, sample.mark())
    table.say(f"{title}: {seconds:g} s")
    time.sleep(seconds)
    phase.end = sample.mark()
    phase.dead = sizes.take(conn).dead()
    return phase


def _phases(told: Table, sample: Sample, phases: Sequence[_Phase]) -> Iterator[str]:
    yield "| phase | sampled | lease_take: p50, p99, max (ms) | its transaction (ms) | dead rows |"
    yield "|---|---|---|---|---|"
    usual: list[tuple[float, float, float]] = []
    for phase in phases:
        found = sample.leases(phase.begin, phase.end)
        if not found:
            yield f"| {phase.title} | none | | | {phase.dead} |"
            continue
        high = [table.quantiles(values) for values in zip(*found, strict=True)]
        cells = [", ".join(f"{value:.2f}" for value in each) for each in high]
        yield f"| {phase.title} | {len(found):,} | {' | '.join(cells)} | {phase.dead} |"
        told.add(f"p99 of lease_take, {phase.title} (ms)", high[0][1])
        if not usual:
            usual = high
            continue
        told.add(f"ratio: p50 of lease_take, {phase.title}", high[0][0] / usual[0][0])
        told.add(f"ratio: p99 of lease_take, {phase.title}", high[0][1] / usual[0][1])
        told.add(f"ratio: p99 of its transaction, {phase.title}", high[1][1] / usual[1][1])


PARTS = {"churn": churn, "snapshot": snapshot}


def _arguments() -> Namespace:
    parser = argparse.ArgumentParser(description="measures what time does")
    parser.add_argument("parts", nargs="*", metavar="PART", help="churn or snapshot")
    parser.add_argument("--minutes", type=float, default=30, help="of churn")
    parser.add_argument("--rate", type=float, default=2_000, help="of churn, tasks a second")
    parser.add_argument("--every", type=float, default=60, help="seconds between looks")
    parser.add_argument("--tasks", type=int, default=20_000, help="of a drain")
    parser.add_argument("--runs", type=int, default=3, help="drains before, and after")
    parser.add_argument("--hold", type=float, default=10, help="minutes that a snapshot is held")
    parser.add_argument("--hold-rate", type=float, default=500, help="tasks a second meanwhile")
    parser.add_argument("--sample", type=float, default=0.1, help="share of transactions logged")
    arguments = parser.parse_args()
    arguments.parts = table.parts(parser, arguments.parts, PARTS)
    return arguments


def main() -> None:
    """Measures and prints."""
    arguments = _arguments()
    lines: list[str] = []
    try:
        with table.printed(f"{arguments.tasks} tasks") as told:
            for name in arguments.parts:
                lines.append("")
                with rig.postgres() as server:
                    for line in PARTS[name](server, told, arguments):
                        lines.append(line)
                        table.say(line)
    finally:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
