"""Prints what an end costs: how soon tasks run elsewhere when a worker or a server goes away.

python -m bench.returns [--runs 3] [PART ...]

killed     a worker that works among others is killed with -9: seconds until each task that it held
           runs again on another. Once with tasks of 1 s, most of whose leases are young, and once
           with tasks that were held past heartbeats, whose leases are full ones of 30 s
unheard    an assignment that never arrives (the worker never accepts it, and its heartbeats do not
           name it): seconds until another worker has the task
stopped    a worker is asked to stop with SIGTERM: with tasks of 1 s, how soon it has ended and what
           ran twice; with tasks of 50 ms, of which it holds many and of which more wait than the
           other can take, how soon the other is handed what it gives back
restarted  the only server is killed with -9 amid a backlog and started again at once: seconds until
           it answers, until results come in, until tasks are handed out, and what ran twice

All settings are the defaults. Moments of the database (`started_at`, the age of a lease by its id,
`ended_at`) are compared with the clock at the kill: all are of one machine. Where several tasks
are spoken of, the figures are the first, the median and the last.
"""

import argparse
import asyncio
import contextlib
import random
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psycopg

from bench import handlers, rig, table
from bench.calls import Calls
from bench.table import Table
from tenure import SyncTask
from tenure.v1 import payload_pb2, worker_pb2
from tenure.v1 import work_stream_pb2 as messages
from tenure.v1 import worker_service_pb2 as service
from tenure_service.embedded import EmbeddedPostgres

_CONCURRENCY = 20
_RATE = 16.0
_HELD_COUNT = 8
_HOLD_SECONDS = 3600.0
_SHORT_SECONDS = 0.05
_SHORT_COUNT = 3_000
_UNHEARD_COUNT = 8
_UNHEARD_BEAT_SECONDS = 2.0
_END_SECONDS = 120.0

_STARTED_AGAIN = b"""
    select extract(epoch from n.started_at)::float8
    from tenure.deliveries as e
    join tenure.deliveries as n on n.task_id = e.task_id and n.delivery = e.delivery + 1
    where e.outcome::text = any(%s)
"""
_LEASED_AGAIN = b"""
    select extract(epoch from uuid_extract_timestamp(n.lease_id))::float8
    from tenure.deliveries as e
    join tenure.deliveries as n on n.task_id = e.task_id and n.delivery = e.delivery + 1
    where e.outcome::text = any(%s)
"""


def _read(dsn: str, query: bytes, *parameters: object) -> list[float]:
    """Gives the one column of a query."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return [float(row[0]) for row in conn.execute(query, parameters).fetchall()]


def _spread(found: Table, title: str, began_at: float, moments: Iterable[float]) -> None:
    """Notes the first, the median and the last of some moments, and how many there were."""
    seconds = sorted(moment - began_at for moment in moments)
    if not seconds:
        found.add(f"{title}: tasks", 0)
        return
    figures = (seconds[0], statistics.median(seconds), seconds[-1])
    found.add(f"{title}: first / median / last (s)", *figures)
    found.add(f"{title}: tasks", len(seconds))


@contextlib.contextmanager
def _fed(task: SyncTask[[float], None], seconds: float) -> Iterator[Callable[[], int]]:
    """Enqueues tasks at a steady rate; gives what stops it and says how many there are."""
    stop = threading.Event()
    count = 0

    def feed() -> None:
        nonlocal count
        while not stop.wait(1 / _RATE):
            task.enqueue(seconds)
            count += 1

    feeding = threading.Thread(target=feed)
    feeding.start()

    def end() -> int:
        stop.set()
        feeding.join()
        return count

    try:
        yield end
    finally:
        end()


def killed(server: EmbeddedPostgres, found: Table) -> None:
    """Kills a worker that works among others."""
    with rig.database(server, "killed") as dsn, rig.tenure_server(dsn) as address:
        tasks = handlers.make(address)
        with (
            handlers.working(address, concurrency=_CONCURRENCY),
            handlers.working(address, concurrency=_CONCURRENCY) as victim,
        ):
            handlers.wait_for_sessions(dsn, 2)
            with _fed(tasks.nap, 1.0) as end:
                time.sleep(random.uniform(8, 13))
                victim.kill()
                began_at = time.time()
                count = end()
            rig.wait_for_deliveries(dsn, count, timeout=_END_SECONDS)
        again = _read(dsn, _STARTED_AGAIN, ["LOST"])
        _spread(found, "worker killed, tasks of 1 s run again", began_at, again)
    with rig.database(server, "killed") as dsn, rig.tenure_server(dsn) as address:
        tasks = handlers.make(address)
        with handlers.working(address, concurrency=_CONCURRENCY) as victim:
            for _ in range(_HELD_COUNT):
                tasks.hold.enqueue(_HOLD_SECONDS)
            started = b"select coalesce(sum(cardinality(started_task_ids)), 0) from tenure.leases"
            handlers.wait_for_count(dsn, started, _HELD_COUNT, _END_SECONDS)
            with handlers.working(address, concurrency=_CONCURRENCY):
                handlers.wait_for_sessions(dsn, 2)
                time.sleep(random.uniform(10, 15))
                victim.kill()
                began_at = time.time()
                rig.wait_for_deliveries(dsn, _HELD_COUNT, timeout=_END_SECONDS)
        again = _read(dsn, _STARTED_AGAIN, ["LOST"])
        _spread(found, "worker killed, tasks held past heartbeats run again", began_at, again)


class _Stream:
    """A worker by hand: it completes what it is given, or never hears of it."""

    def __init__(self, calls: Calls, name: str, slots: int, *, hears: bool) -> None:
        self._call = calls.work.Work()
        self._name = name
        self._slots = slots
        self._hears = hears
        self._sending = asyncio.Lock()
        self.opened = asyncio.Event()
        #: When the server's message was here, by task; the first counts.
        self.came: dict[str, float] = {}
        self.repeated = 0

    async def serve(self) -> None:
        """Serves until it is cancelled."""
        opening = messages.Open(
            worker=worker_pb2.WorkerIdentity(name=self._name, sdk="bench"),
            handlers=[worker_pb2.Handler(name="unheard")],
            slots=worker_pb2.Slots(total=self._slots),
            protocol_version="1.0",
        )
        await self._send(open=opening)
        beating = asyncio.create_task(self._beat())
        try:
            # A stream that ended reads as EOF, which has no message.
            while isinstance(response := await self._call.read(), service.WorkResponse):
                if response.HasField("opened"):
                    self.opened.set()
                for assignment in response.assign.assignments:
                    await self._came(assignment)
        finally:
            beating.cancel()
            self._call.cancel()

    async def _came(self, assignment: worker_pb2.Assignment) -> None:
        if assignment.task_id in self.came:
            self.repeated += 1
        self.came.setdefault(assignment.task_id, time.monotonic())
        if self._hears:
            await self._send(accept=messages.Accept(lease_tokens=[assignment.lease_token]))
            result = worker_pb2.Result(
                task_id=assignment.task_id,
                lease_token=assignment.lease_token,
                completed=worker_pb2.Completed(output=payload_pb2.Payload(data=b"null")),
            )
            await self._send(report=messages.Report(report_id=len(self.came), results=[result]))

    async def _beat(self) -> None:
        number = 0
        while True:
            await asyncio.sleep(_UNHEARD_BEAT_SECONDS)
            number += 1
            await self._send(heartbeat=messages.Heartbeat(heartbeat_id=number))

    async def _send(self, **message: Any) -> None:
        async with self._sending:
            await self._call.write(service.WorkRequest(**message))


def unheard(server: EmbeddedPostgres, found: Table) -> None:
    """Loses assignments on their way."""
    with rig.database(server, "unheard") as dsn, rig.tenure_server(dsn) as address:
        seconds, repeated = asyncio.run(_unheard(address))
    _spread(found, "assignment lost, another worker has the task", 0, seconds)
    found.add("assignment lost, handed to the same worker again: tasks", repeated)


async def _unheard(address: str) -> tuple[list[float], int]:
    calls = Calls(address)
    async with asyncio.timeout(_END_SECONDS), asyncio.TaskGroup() as group:
        serving = []

        async def start(name: str, slots: int, *, hears: bool) -> _Stream:
            stream = _Stream(calls, name, slots, hears=hears)
            serving.append(group.create_task(stream.serve()))
            await stream.opened.wait()
            return stream

        # One after another, so that they fall due at all moments of the server's second.
        deaf = []
        for number in range(_UNHEARD_COUNT):
            deaf.append(await start(f"deaf-{number}", 1, hears=False))
            await calls.enqueue(name="unheard")
            await _until(lambda: len(_came(deaf)) > len(deaf) - 1)
            await asyncio.sleep(random.uniform(0.1, 0.4))
        other = await start("other", _UNHEARD_COUNT, hears=True)
        await _until(lambda: len(other.came) == _UNHEARD_COUNT)
        for task in serving:
            task.cancel()
    await calls.channel.close()
    first = _came(deaf)
    seconds = [at - first[task_id] for task_id, at in other.came.items()]
    return seconds, sum(one.repeated for one in deaf) + sum(len(one.came) - 1 for one in deaf)


def _came(streams: Iterable[_Stream]) -> dict[str, float]:
    """Gives when each task was first handed out."""
    found: dict[str, float] = {}
    for stream in streams:
        for task_id, at in stream.came.items():
            found[task_id] = min(at, found.get(task_id, at))
    return found


async def _until(probe: Callable[[], bool]) -> None:
    while not probe():  # noqa: ASYNC110 - what is waited for comes on several streams
        await asyncio.sleep(0.002)


def stopped(server: EmbeddedPostgres, found: Table) -> None:
    """Asks a worker that works among others to stop."""
    ends = ["RELEASED", "LOST"]
    for title, seconds in (("1 s", 1.0), ("50 ms", _SHORT_SECONDS)):
        with rig.database(server, "stopped") as dsn, rig.tenure_server(dsn) as address:
            tasks = handlers.make(address)
            with (
                handlers.working(address, concurrency=10),
                handlers.working(address, concurrency=10) as leaving,
            ):
                handlers.wait_for_sessions(dsn, 2)
                if seconds == _SHORT_SECONDS:
                    tasks.nap.enqueue_many((seconds,) for _ in range(_SHORT_COUNT))
                    # Both have earned by now that they are given many at a time.
                    half = b"select count(*) from tenure.deliveries where final"
                    handlers.wait_for_count(dsn, half, _SHORT_COUNT // 2, _END_SECONDS)
                    count, began_at = _SHORT_COUNT, _stop(leaving, found, title)
                else:
                    with _fed(tasks.nap, seconds) as end:
                        time.sleep(random.uniform(3, 5))
                        began_at = _stop(leaving, found, title)
                        count = end()
                rig.wait_for_deliveries(dsn, count, timeout=_END_SECONDS)
            again = _read(dsn, _LEASED_AGAIN, ends)
            _spread(found, f"worker stopped, tasks of {title} handed out again", began_at, again)
            lost = _read(dsn, b"select 1 from tenure.deliveries where outcome = 'LOST'")
            found.add(f"worker stopped, tasks of {title} lost", len(lost))


def _stop(leaving: subprocess.Popen[bytes], found: Table, title: str) -> float:
    began_at = time.time()
    leaving.terminate()
    leaving.wait(_END_SECONDS)
    found.add(f"worker stopped, tasks of {title}: its end (s)", _since(began_at))
    return began_at


def restarted(server: EmbeddedPostgres, found: Table) -> None:
    """Kills the only server, and starts it again at once."""
    with rig.database(server, "restarted") as dsn, contextlib.ExitStack() as stack:
        first = rig.start_server(dsn)
        stack.callback(_end, first)
        tasks = handlers.make(first.address)
        tasks.nap.enqueue_many((_SHORT_SECONDS,) for _ in range(_SHORT_COUNT))
        # The worker ends before the server that it says goodbye to.
        with handlers.working(first.address):
            some = b"select count(*) from tenure.deliveries where final"
            handlers.wait_for_count(dsn, some, _SHORT_COUNT // 6, _END_SECONDS)
            first.process.kill()
            began_at = time.time()
            first.process.wait()
            called = threading.Thread(target=_call, args=(tasks.nap, began_at, found))
            called.start()
            second = rig.start_server(dsn, first.address)
            stack.callback(_end, second)
            found.add("server restarted: it listens (s)", _since(began_at))
            called.join()
            rig.wait_for_deliveries(dsn, _SHORT_COUNT + 1, timeout=_END_SECONDS)
        _note_restart(dsn, began_at, found)


def _call(task: SyncTask[[float], None], began_at: float, found: Table) -> None:
    """Enqueues at the moment of the kill."""
    task.enqueue(_SHORT_SECONDS)
    found.add("server restarted: an enqueue called at the kill is answered (s)", _since(began_at))


def _since(began_at: float) -> float:
    return time.time() - began_at


def _end(serving: rig.Serving) -> None:
    serving.process.terminate()
    serving.process.wait(60)


def _note_restart(dsn: str, began_at: float, found: Table) -> None:
    ends = _read(
        dsn,
        b"select extract(epoch from ended_at)::float8 from tenure.deliveries"
        b" where extract(epoch from ended_at) > %s and outcome = 'DONE'",
        began_at,
    )
    leased = _read(
        dsn,
        b"select extract(epoch from uuid_extract_timestamp(lease_id))::float8"
        b" from tenure.deliveries where extract(epoch from uuid_extract_timestamp(lease_id)) > %s",
        began_at,
    )
    held = _read(
        dsn,
        b"select extract(epoch from ended_at)::float8 from tenure.deliveries"
        b" where extract(epoch from ended_at) > %s and outcome = 'DONE'"
        b" and extract(epoch from uuid_extract_timestamp(lease_id)) <= %s",
        began_at,
        began_at,
    )
    again = _read(dsn, b"select delivery from tenure.deliveries where delivery > 1")
    found.add("server restarted: first result recorded (s)", min(ends) - began_at)
    found.add("server restarted: first task handed out (s)", min(leased) - began_at)
    _spread(
        found, "server restarted: tasks held at the kill completed by their worker", began_at, held
    )
    found.add("server restarted: tasks handed out again", len(again))


PARTS: dict[str, Callable[[EmbeddedPostgres, Table], None]] = {
    "killed": killed,
    "unheard": unheard,
    "stopped": stopped,
    "restarted": restarted,
}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="measures how soon tasks run elsewhere")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    options = parser.parse_args()
    wanted = table.parts(parser, options.parts, PARTS)
    with table.printed(f"{options.runs} runs") as found, rig.postgres() as server:
        for run in range(options.runs):
            for part in wanted:
                PARTS[part](server, found)
            table.say(f"run {run + 1} of {options.runs} done")


if __name__ == "__main__":
    main()
