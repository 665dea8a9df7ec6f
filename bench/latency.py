"""Prints how long a task takes from its enqueueing, at a steady rate and at half of the drain.

python -m bench.latency [--runs 3] [--rate 100] [--seconds 30] [--tasks 20000] [--poisson]

One server, one worker process of concurrency 10 with `def` handlers, one client process; each task
is enqueued by a call of its own, and the client waits for the result of each. The loop is open:
tasks fall due by the clock, evenly or as a Poisson process, whatever became of those before, and
every time counts from the moment at which a task fell due, so that a client or a server that is
behind makes the figures worse and does not hide. Measured are:

called    the call began: what of the other figures is the client's own lateness
enqueued  the call has returned: the task is committed
started   the handler runs, by the clock that it reads
ended     the transaction that stores the output began (`deliveries.ended_at`), not yet committed
known     `await handle.aresult()` has returned: the output is committed, and the caller knows it

The processor time of each process a task tells what the machine was asked for, however busy it was
with others. All clocks are those of one machine. Before each measurement tasks run for three
seconds unmeasured. The floor, in the same run, is a chain of the same hops and three commits with
nothing of Tenure in between (`bench.chain`): what a queue of this kind would take at least here. Half load is half of the drain of waiting no-op tasks by one worker process,
just before, on the same PostgreSQL. Where one client, the server and the worker together cannot do
as much, which those three seconds show, it is measured at four fifths of what they can.
"""

import argparse
import asyncio
import contextlib
import itertools
import random
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import psycopg
from grpc import aio

from bench import chain, counting, handlers, rig, table
from bench.table import Table
from tenure_service.embedded import EmbeddedPostgres

_WARM_SECONDS = 3.0
_RESULT_SECONDS = 120.0
_WHO = "client / server / worker / PostgreSQL"
_STEPS = ("called", "enqueued", "started", "ended", "known")
# Of what was asked for; less is what cannot be kept up.
_SUSTAINED = 0.95
_MEASURED = 0.8
# How long a computing thread of the client keeps its others waiting: a tenth of Python's default.
_SWITCH_SECONDS = 0.0005


@dataclass(slots=True)
class Sample:
    """One task: when it fell due, and when what happened, by the clock of the machine."""

    due_at: float
    task_id: str = ""
    at: dict[str, float] = field(default_factory=dict)


Follow: TypeAlias = Callable[[Sample], Coroutine[None, None, None]]


def _follow(tasks: handlers.Handlers) -> Follow:
    async def follow(sample: Sample) -> None:
        sample.at["called"] = time.time()
        handle = await tasks.stamp.aenqueue()
        sample.at["enqueued"] = time.time()
        sample.task_id = handle.id.rpartition(":")[2]
        started_at = await handle.aresult(_RESULT_SECONDS)
        sample.at["known"] = time.time()
        sample.at["started"] = started_at

    return follow


async def _produce(follow: Follow, offsets: Iterable[float]) -> list[Sample]:
    """Enqueues when tasks fall due, and follows each to its result.

    Raises:
        TenureError: a call failed, or a result did not come.
    """
    loop = asyncio.get_running_loop()
    samples: list[Sample] = []
    following: list[asyncio.Task[None]] = []
    stop = threading.Event()

    def start(sample: Sample) -> None:
        samples.append(sample)
        following.append(loop.create_task(follow(sample)))

    def arrive() -> None:
        began_at = time.time()
        for offset in offsets:
            wait = began_at + offset - time.time()
            # A thread that waits wakes within 0.1 ms; the loop's own timers are up to 1 ms late.
            if stop.wait(max(wait, 0)):
                return
            loop.call_soon_threadsafe(start, Sample(began_at + offset))

    try:
        await asyncio.to_thread(arrive)
    finally:
        stop.set()
    await asyncio.gather(*following)
    return samples


def _offsets(rate: float, seconds: float, *, poisson: bool) -> Iterator[float]:
    """Gives when tasks fall due, in seconds from the start."""
    at = 0.0
    while at < seconds:
        yield at
        at += random.expovariate(rate) if poisson else 1 / rate


def _rate(samples: list[Sample], step: str) -> float:
    """Gives the tasks a second that got as far, between the first and the last of them."""
    moments = [sample.at[step] for sample in samples]
    return (len(moments) - 1) / (max(moments) - min(moments))


def _note_ends(dsn: str, samples: list[Sample]) -> None:
    query = b"select task_id::text, extract(epoch from ended_at)::float8 from tenure.deliveries"
    with psycopg.connect(dsn, autocommit=True) as conn:
        ended_at = {str(row[0]): float(row[1]) for row in conn.execute(query).fetchall()}
    for sample in samples:
        sample.at["ended"] = ended_at[sample.task_id]


def _add(found: Table, title: str, samples: list[Sample]) -> None:
    for step in _STEPS:
        took = [1e3 * (sample.at[step] - sample.due_at) for sample in samples]
        found.add(f"{title}: {step}, p50 / p99 / max (ms)", *table.quantiles(took))


def _processor_ms(server: EmbeddedPostgres, *pids: int) -> list[float]:
    """Gives what this process, others and PostgreSQL with its backends have used."""
    used = [time.process_time(), *map(counting.processor_seconds, pids)]
    database = counting.processor_seconds(server.pid)
    for path in Path("/proc").glob("[0-9]*"):
        # A process may end while it is looked at.
        with contextlib.suppress(OSError):
            parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            if parent == str(server.pid):
                database += counting.processor_seconds(int(path.name))
    return [1e3 * each for each in (*used, database)]


def _drain(server: EmbeddedPostgres, count: int) -> float:
    with rig.database(server, "drain") as dsn, rig.tenure_server(dsn) as address:
        handlers.make(address).noop.enqueue_many((number,) for number in range(count))
        with handlers.working(address):
            rig.wait_for_deliveries(dsn, count)
        return rig.rate(dsn)


async def _chain(address: str, offsets: Iterable[float]) -> list[Sample]:
    numbers = itertools.count()
    async with aio.insecure_channel(address) as channel:
        hops = chain.Chain(channel)

        async def follow(sample: Sample) -> None:
            sample.at = await hops.follow(next(numbers))

        return await _produce(follow, offsets)


def _floor(server: EmbeddedPostgres, options: argparse.Namespace, found: Table) -> None:
    """Measures the hops and commits of a task with nothing of Tenure in between."""
    with rig.database(server, "chain") as dsn, chain.running(dsn) as address:
        seconds = _WARM_SECONDS + options.seconds
        offsets = _offsets(options.rate, seconds, poisson=options.poisson)
        samples = asyncio.run(_chain(address, offsets))
    warm = int(len(samples) * _WARM_SECONDS / seconds)
    _add(found, f"floor, {options.rate:g} a second", samples[warm:])


def measure(server: EmbeddedPostgres, options: argparse.Namespace, found: Table) -> None:
    """Measures the floor and the drain, then both rates on a database of their own each."""
    _floor(server, options, found)
    drain = _drain(server, options.tasks)
    found.add("drain (tasks/s)", drain)
    for title, rate in ((f"{options.rate:g} a second", options.rate), ("half load", drain / 2)):
        with (
            rig.database(server, "latency") as dsn,
            rig.server_process(dsn) as serving,
            handlers.working(serving.address) as worker,
            asyncio.Runner() as runner,
        ):
            handlers.wait_for_sessions(dsn, 1)
            tasks = handlers.make(serving.address)
            warm = _offsets(rate, _WARM_SECONDS, poisson=options.poisson)
            can = _rate(runner.run(_produce(_follow(tasks), warm)), "known")
            asked = rate
            if title == "half load":
                asked = rate if can > _SUSTAINED * rate else _MEASURED * can
                found.add("half load: wanted / sustained / asked (tasks/s)", rate, can, asked)
            offsets = _offsets(asked, options.seconds, poisson=options.poisson)
            before = _processor_ms(server, serving.process.pid, worker.pid)
            samples = runner.run(_produce(_follow(tasks), offsets))
            after = _processor_ms(server, serving.process.pid, worker.pid)
            _note_ends(dsn, samples)
        found.add(f"{title}: produced (tasks/s)", _rate(samples, "enqueued"))
        _add(found, title, samples)
        each = [(now - then) / len(samples) for then, now in zip(before, after, strict=True)]
        found.add(f"{title}: processor of {_WHO} (ms a task)", *each)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="measures how long a task takes at a steady rate")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--tasks", type=int, default=20_000, help="of the drain")
    parser.add_argument("--poisson", action="store_true", help="arrivals by a Poisson process")
    options = parser.parse_args()
    sys.setswitchinterval(_SWITCH_SECONDS)
    kind = "Poisson" if options.poisson else "even"
    settings = f"{kind} arrivals for {options.seconds:g} s, {options.runs} runs"
    with table.printed(settings) as found, rig.postgres() as server:
        for run in range(options.runs):
            measure(server, options, found)
            table.say(f"run {run + 1} of {options.runs} done")


if __name__ == "__main__":
    main()
