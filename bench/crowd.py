"""Prints what a crowd costs one server: idle, many streams, a reconnect of all, many waiters.

python -m bench.crowd [idle] [streams] [reconnect] [waiters] [handles]
"""

import argparse
import asyncio
import contextlib
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg

from bench import counting, rig, table
from bench.calls import Calls
from tenure_service.embedded import EmbeddedPostgres

Row = tuple[str, str]

_COUNT_SECONDS = 30.0
_PROBE_SECONDS = 20.0
_RECONNECT_SECONDS = 120.0


def _load() -> str:
    return f"load {os.getloadavg()[0]:.1f}"


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def _milliseconds(values: list[float]) -> str:
    if not values:
        return "none"
    middle, high = statistics.median(values), _quantile(values, 0.99)
    return f"p50 {middle * 1e3:.1f}, p99 {high * 1e3:.1f}, max {max(values) * 1e3:.1f} ms"


@contextlib.contextmanager
def _program(*words: str, stdin: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """Runs a program of the bench until it has said `ready`, and kills it at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=rig.ROOT,
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        if process.stdin is not None and stdin is not None:
            process.stdin.write(stdin)
            process.stdin.close()
        if process.stdout is None or process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{words[0]} did not begin")
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _streams(
    address: str, *, processes: int, channels: int, streams: int, beat: float
) -> Iterator[None]:
    """Holds streams, shared by some client processes."""
    share = str(channels // processes)
    words = ("bench.streams", address, share, str(streams), str(beat))
    with contextlib.ExitStack() as stack:
        for _ in range(processes):
            stack.enter_context(_program(*words))
        yield


def idle(postgres: EmbeddedPostgres) -> Iterator[Row]:
    """Counts what an idle server asks PostgreSQL."""
    for workers in (0, 10, 100):
        with rig.database(postgres, "idle") as dsn, rig.server_process(dsn) as server:
            held: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if workers:
                held = _streams(server.address, processes=1, channels=workers, streams=1, beat=5)
            with held:
                time.sleep(3)
                found = counting.sent(postgres, _COUNT_SECONDS)
        yield f"{workers} workers: sent a second", f"{found.total() / _COUNT_SECONDS:.1f}"
        for text, count in found.most_common():
            yield f"{workers} workers: {text}", f"{count / _COUNT_SECONDS:.2f}"


@dataclass(frozen=True, slots=True)
class _Shape:
    """How streams are spread, and whether they speak."""

    channels: int
    streams: int
    beat: float

    def __str__(self) -> str:
        heard = f"a heartbeat each {self.beat:g} s" if self.beat else "silent"
        return f"{self.channels * self.streams} streams on {self.channels} channels, {heard}"


def streams(postgres: EmbeddedPostgres) -> Iterator[Row]:
    """Measures unary calls beside many idle streams, and what a stream costs."""
    for shape in (_Shape(50, 100, 5), _Shape(50, 100, 0), _Shape(1000, 5, 5), _Shape(1000, 1, 0)):
        with rig.database(postgres, "streams") as dsn, rig.server_process(dsn) as server:
            pid = server.process.pid
            asyncio.run(_probe(server.address, 2))
            alone = asyncio.run(_probe(server.address, 5))
            before = counting.resident_kib(pid)
            began = time.monotonic()
            with _streams(
                server.address,
                processes=2,
                channels=shape.channels,
                streams=shape.streams,
                beat=shape.beat,
            ):
                opened = time.monotonic() - began
                time.sleep(10)
                grown = counting.resident_kib(pid) - before
                share = counting.processor_share(pid, _PROBE_SECONDS)
                found = asyncio.run(_probe(server.address, _PROBE_SECONDS))
                sent = counting.sent(postgres, 10).total() / 10
                handed = _hand_out(server.address, dsn)
        count = shape.channels * shape.streams
        yield f"{shape}: opened", f"{opened:.1f} s, {_load()}"
        yield f"{shape}: memory a stream", f"{grown / count:.0f} KiB"
        yield f"{shape}: server's processor, idle", f"{share:.0f} % of a core"
        yield f"{shape}: sent to PostgreSQL", f"{sent:.1f} a second"
        yield f"{shape}: one task, enqueued to leased", _milliseconds(handed)
        for name, values in found.items():
            yield f"{shape}: {name}", f"{_milliseconds(values)}; alone {_milliseconds(alone[name])}"


async def _probe(address: str, seconds: float) -> dict[str, list[float]]:
    """Calls one after another, with pauses, and gives how long each call took."""
    calls = Calls(address)
    (task_id,) = await calls.enqueue(name="nobody")
    found: dict[str, list[float]] = {"GetTask": [], "EnqueueTasks": []}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        await calls.get(task_id)
        middle = time.monotonic()
        await calls.enqueue(name="nobody")
        found["GetTask"].append(middle - began)
        found["EnqueueTasks"].append(time.monotonic() - middle)
        await asyncio.sleep(0.01)
    await calls.channel.close()
    return found


def _hand_out(address: str, dsn: str) -> list[float]:
    """Enqueues one task after another that any of the streams could have; times each lease."""
    found: list[float] = []
    with psycopg.connect(dsn, autocommit=True) as conn, asyncio.Runner() as runner:
        calls = runner.run(_open(address))
        for number in range(30):
            began = time.monotonic()
            runner.run(calls.enqueue())
            while _count(conn, b"select count(*) from tenure.leases", ()) <= number:
                time.sleep(0.001)
            found.append(time.monotonic() - began)
        runner.run(calls.channel.close())
    return found


async def _open(address: str) -> Calls:
    return Calls(address)


_RESUMED = b"select count(*) from tenure.sessions where epoch > 1 and closed_at is null"
_ASSIGNED = b"""
    select count(distinct l.session_id)
    from tenure.leases as l
    where uuid_extract_timestamp(l.lease_id) > %s::timestamptz
"""


def reconnect(postgres: EmbeddedPostgres) -> Iterator[Row]:
    """Kills a server of 1,000 raw workers and 20 of the SDK, and starts it again at once."""
    raw, fleet, alone = 1000, 18, 2
    total = raw + fleet + alone
    with contextlib.ExitStack() as stack:
        dsn = stack.enter_context(rig.database(postgres, "reconnect"))
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        server = rig.start_server(dsn)
        stack.enter_context(_streams(server.address, processes=2, channels=raw, streams=1, beat=5))
        for _ in range(alone):
            stack.enter_context(rig.python_worker(server.address, concurrency=1))
        stack.enter_context(rig.python_worker(server.address, concurrency=1, count=fleet))
        open_ = b"select count(*) from tenure.sessions where receiving"
        _reached(conn, open_, (), total, 60)
        asyncio.run(_give(server.address, raw, 0))
        held = b"select count(*) from tenure.leases"
        _reached(conn, held, (), raw, 60)
        now = conn.execute("select clock_timestamp()").fetchone() or ()
        server.process.kill()
        server.process.wait()
        began = time.monotonic()
        server = rig.start_server(dsn, server.address)
        stack.callback(server.process.wait, 60)
        stack.callback(server.process.terminate)
        yield "server answers again", f"{time.monotonic() - began:.1f} s after the kill, {_load()}"
        asyncio.run(_give(server.address, 2 * raw, 4 * (fleet + alone)))
        reached = {"resumed": 0.0, "assigned": 0.0}
        half = {"resumed": 0.0, "assigned": 0.0}
        asked = {"resumed": (_RESUMED, ()), "assigned": (_ASSIGNED, now)}
        while not all(reached.values()) and time.monotonic() - began < _RECONNECT_SECONDS:
            for name, (query, parameters) in asked.items():
                count = _count(conn, query, parameters)
                seconds = time.monotonic() - began
                half[name] = half[name] or (seconds if count >= total / 2 else 0)
                reached[name] = reached[name] or (seconds if count >= total else 0)
            time.sleep(0.05)
        for name, seconds in reached.items():
            all_ = f"{seconds:.1f} s" if seconds else f"not within {_RECONNECT_SECONDS:g} s"
            yield f"{total} workers: {name}", f"half {half[name]:.1f} s, all {all_}"


async def _give(address: str, crowd: int, naps: int) -> None:
    calls = Calls(address)
    await calls.enqueue(crowd)
    if naps:
        await calls.enqueue(naps, "nap", b'{"seconds": 60.0}')
    await calls.channel.close()


def _count(conn: psycopg.Connection, query: bytes, parameters: tuple[object, ...]) -> int:
    row = conn.execute(query, parameters).fetchone()
    return int(row[0]) if row else 0


def _reached(
    conn: psycopg.Connection,
    query: bytes,
    parameters: tuple[object, ...],
    wanted: int,
    seconds: float,
) -> None:
    until = time.monotonic() + seconds
    while _count(conn, query, parameters) < wanted:
        if time.monotonic() > until:
            raise TimeoutError(f"fewer than {wanted} within {seconds:g} s")
        time.sleep(0.05)


def waiters(postgres: EmbeddedPostgres) -> Iterator[Row]:
    """Measures 10,000 waiters, 9,000 of them calls of their own: their cost, how soon each is told."""
    yield from _waiters(postgres, call_count=9_000)


def handles(postgres: EmbeddedPostgres) -> Iterator[Row]:
    """Measures 10,000 waiters that are handles of three programs with the SDK, as programs have them."""
    yield from _waiters(postgres, call_count=0)


def _waiters(postgres: EmbeddedPostgres, *, call_count: int) -> Iterator[Row]:
    half = call_count // 2
    with contextlib.ExitStack() as stack:
        dsn = stack.enter_context(rig.database(postgres, "waiters"))
        here = stack.enter_context(rig.server_process(dsn))
        there = stack.enter_context(rig.server_process(dsn))
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        ids = asyncio.run(_enqueue(here.address, 10_000))
        answered: dict[str, float] = {}
        left = ids[::2][half:] + ids[1::2][half:]
        shares = {
            "calls": (ids[::2][:half], ids[1::2][:half]),
            "sdk": (left,) if call_count else (left[::3], left[1::3], left[2::3]),
        }
        for kind, parts in shares.items():
            for part in filter(None, parts):
                words = ("bench.waits", here.address, kind)
                process = stack.enter_context(_program(*words, stdin="\n".join(part)))
                threading.Thread(target=_listen, args=(process, answered), daemon=True).start()
        time.sleep(10)
        found = counting.sent(postgres, _COUNT_SECONDS)
        yield "two servers, 10,000 waiters: sent", f"{found.total() / _COUNT_SECONDS:.1f} a second"
        for text, count in found.most_common():
            yield f"10,000 waiters: {text}", f"{count / _COUNT_SECONDS:.2f}"
        share = counting.processor_share(here.process.pid, 15)
        yield "server of the waiters: processor", f"{share:.0f} % of a core, {_load()}"
        for name, server in (("the same server", here), ("another server", there)):
            yield from _ends(conn, answered, server.address, f"ended on {name}")
        with _deaf(dsn):
            yield from _ends(conn, answered, there.address, "ended on another, no NOTIFY")


async def _enqueue(address: str, count: int) -> list[str]:
    calls = Calls(address)
    ids = await calls.enqueue(count)
    await calls.channel.close()
    return ids


def _listen(process: subprocess.Popen[str], answered: dict[str, float]) -> None:
    for line in process.stdout or ():
        task_id, at = line.split()
        answered[task_id] = float(at)


def _ends(
    conn: psycopg.Connection, answered: dict[str, float], address: str, title: str
) -> Iterator[Row]:
    """Ends 300 tasks, 25 a second, and compares with when their ends were told."""
    ended = asyncio.run(_end_some(address, 300))
    until = time.monotonic() + 10
    while time.monotonic() < until and not answered.keys() >= set(ended):
        time.sleep(0.05)
    rows = conn.execute(
        "select task_id::text, extract(epoch from ended_at)::float8 from tenure.deliveries"
    ).fetchall()
    ends = {row[0]: row[1] for row in rows}
    late = [answered[one] - ends[_uuid(one)] for one in ended if one in answered]
    missing = len(ended) - len(late)
    yield title, f"{_milliseconds(late)}" + (f", {missing} not within 10 s" if missing else "")


def _uuid(task_id: str) -> str:
    """Gives the database's id of a task: the last part of what clients see."""
    return task_id.rpartition(":")[2]


async def _end_some(address: str, count: int) -> list[str]:
    calls = Calls(address)
    found = []
    for _ in range(count):
        task_id = await calls.end_one("poller")
        if task_id is not None:
            found.append(task_id)
        await asyncio.sleep(0.03)
    await calls.channel.close()
    return found


@contextlib.contextmanager
def _deaf(dsn: str) -> Iterator[None]:
    """Cuts the servers' listening connections, again and again."""
    stop = threading.Event()

    def cut() -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            while not stop.wait(0.02):
                conn.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where datname = current_database() and application_name = 'tenure listen'"
                )

    cutting = threading.Thread(target=cut)
    cutting.start()
    try:
        yield
    finally:
        stop.set()
        cutting.join()


PARTS: dict[str, Callable[[EmbeddedPostgres], Iterator[Row]]] = {
    "idle": idle,
    "streams": streams,
    "reconnect": reconnect,
    "waiters": waiters,
    "handles": handles,
}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="measures what a crowd costs one server")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}")
    wanted = table.parts(parser, parser.parse_args().parts, PARTS)
    # What was started ends with it, also when it is asked to stop.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print("| what | figure |\n|---|---|")
    for part in wanted:
        with rig.postgres() as postgres:
            for what, figure in PARTS[part](postgres):
                print(f"| {what} | {figure} |", flush=True)


if __name__ == "__main__":
    main()
