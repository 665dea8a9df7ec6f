"""Prints how fast a backlog drains by workers of other shapes, and how fast tasks are enqueued.

python -m bench.shapes [--runs 3] [--tasks 20000] [--spread 1x1 1x8 8x1 2x32] [PART ...]

workers    no-op tasks by so many worker connections: PROCESSESxWORKERS of concurrency 10 each. Two
           cores hold a few processes well: 64 connections are 2 of 32 workers unless told otherwise
handlers   the same by one worker whose handlers are `def` or `async def`, 10 or 100 at once
outputs    the same with outputs of 1 KiB
node       the example workers in Node.js: minimal.mjs runs handlers on its loop, with 10 slots;
           worker.mjs starts a thread for each task and has 4, and is given a twentieth of the tasks
enqueue    one client in bulk, 64 concurrent single calls of one AsyncClient, and one caller after
           another: how long each call takes, and how many round trips to PostgreSQL it costs

Each drain has a database, a server and worker processes of its own. The queue is paused until the
backlog is enqueued and all workers are connected, and then resumed; completions are counted in the
database between the first and the last commit. Server, PostgreSQL and workers share the machine.
"""

import argparse
import asyncio
import contextlib
import functools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from bench import counting, handlers, rig, table, turns
from bench.peers import install
from bench.table import Table
from tenure import AsyncClient, Client, NewTask, ServiceError
from tenure_service.embedded import EmbeddedPostgres

_NODE_EXAMPLE = rig.ROOT / "examples" / "workers" / "node"
_CHUNK = 1_000
_CALLERS = 64
_SINGLE_COUNT = 1_000
_WARM_COUNT = 50
_TURN_COUNT = 200
_TURN_IDLE_SECONDS = 5.0
_THREADS_SHARE = 20

# Starts what is to drain, and says how many connections there will be.
Start = Callable[[contextlib.ExitStack, str], int]


class Spread(NamedTuple):
    """Worker connections, shared by processes."""

    processes: int
    workers: int
    concurrency: int = 10

    def __str__(self) -> str:
        each = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"{self.processes} process{'es' * (self.processes > 1)} of {each}"

    def start(self, stack: contextlib.ExitStack, address: str) -> int:
        """Starts the processes."""
        for _ in range(self.processes):
            stack.enter_context(
                handlers.working(address, concurrency=self.concurrency, count=self.workers)
            )
        return self.processes * self.workers


def _drain(
    server: EmbeddedPostgres, start: Start, count: int, name: str, arguments: dict[str, Any]
) -> float:
    """Gives completions a second."""
    with rig.database(server, "shape") as dsn, rig.tenure_server(dsn) as address:
        client = Client(address)
        client.set_queue("default", paused=True)
        task = NewTask(name=name, arguments=arguments)
        for begin in range(0, count, _CHUNK):
            _checked(client.enqueue_many([task] * min(_CHUNK, count - begin)))
        with contextlib.ExitStack() as stack:
            handlers.wait_for_sessions(dsn, start(stack, address))
            client.set_queue("default", paused=False)
            rig.wait_for_deliveries(dsn, count, timeout=600)
            return rig.rate(dsn)


def _checked(answers: Iterable[object]) -> None:
    for answer in answers:
        if isinstance(answer, ServiceError):
            raise answer


def _number(server: EmbeddedPostgres, spread: Spread, count: int, name: str = "noop") -> float:
    return _drain(server, spread.start, count, name, {"number": 1})


def workers(server: EmbeddedPostgres, options: argparse.Namespace, found: Table) -> None:
    """Measures worker connections."""
    for spread in options.spread:
        found.add(f"{spread} (tasks/s)", _number(server, spread, options.tasks))


def kinds(server: EmbeddedPostgres, options: argparse.Namespace, found: Table) -> None:
    """Measures kinds of handlers."""
    for kind, name in (("def", "noop"), ("async def", "anoop")):
        for concurrency in (10, 100):
            rate = _number(server, Spread(1, 1, concurrency), options.tasks, name)
            found.add(f"`{kind}`, concurrency {concurrency} (tasks/s)", rate)


def outputs(server: EmbeddedPostgres, options: argparse.Namespace, found: Table) -> None:
    """Measures outputs that are not empty."""
    rate = _number(server, Spread(1, 1), options.tasks, "kilobyte")
    found.add("outputs of 1 KiB, `def`, concurrency 10 (tasks/s)", rate)


def node(server: EmbeddedPostgres, options: argparse.Namespace, found: Table) -> None:
    """Measures the example workers in Node.js."""
    titles = {
        "minimal.mjs": (options.tasks, "Node.js, minimal.mjs, handlers on its loop (tasks/s)"),
        "worker.mjs": (
            max(options.tasks // _THREADS_SHARE, 10),
            "Node.js, worker.mjs, a thread a task (tasks/s)",
        ),
    }
    try:
        command = _node()
    except (OSError, RuntimeError) as error:
        for _, title in titles.values():
            found.fail(title, str(error))
        return
    for program, (count, title) in titles.items():
        start = functools.partial(_start_node, [command, str(_NODE_EXAMPLE / program)])
        text = {"text": "to be or not to be"}
        found.add(title, _drain(server, start, count, "word_count", text))


def _node() -> str:
    """Gives Node.js; installs the packages of the example as its README says."""
    command = install.node()
    if not (_NODE_EXAMPLE / "node_modules").exists():
        npm = ["npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(npm, cwd=_NODE_EXAMPLE, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"npm ci failed: {(done.stdout + done.stderr).strip()[-200:]}")
    return str(command)


def _start_node(command: list[str], stack: contextlib.ExitStack, address: str) -> int:
    environment = dict(os.environ, TENURE_ADDRESS=address)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    stack.enter_context(rig.stopped(process))
    return 1


def enqueue(server: EmbeddedPostgres, options: argparse.Namespace, found: Table) -> None:
    """Measures producers; nobody works."""
    count = options.tasks
    with rig.database(server, "enqueue") as dsn, rig.tenure_server(dsn) as address:
        tasks = handlers.make(address)
        began = time.perf_counter()
        tasks.noop.enqueue_many((number,) for number in range(count))
        found.add("enqueue_many by one client (tasks/s)", count / (time.perf_counter() - began))
        rate = asyncio.run(_concurrent(address, count))
        found.add(f"{_CALLERS} concurrent callers of one AsyncClient (tasks/s)", rate)
        times = [_timed(tasks.noop.enqueue, number) for number in range(_single_count(count))]
        _add_times(found, "one caller of task.enqueue", times)
        times = asyncio.run(_one_by_one(address, _single_count(count)))
        _add_times(found, "one caller of AsyncClient.enqueue", times)
    with (
        rig.database(server, "turns") as dsn,
        turns.between(dsn) as (counted, passing),
        rig.tenure_server(counted) as address,
    ):
        found.add("round trips to PostgreSQL of one enqueue", _turns(address, passing))
        for text, each in _messages(server, address):
            found.add(f"messages of one enqueue: {text}", each)


def _single_count(count: int) -> int:
    return _WARM_COUNT + min(count, _SINGLE_COUNT)


def _add_times(found: Table, name: str, times: list[float]) -> None:
    figures = table.quantiles([1e3 * each for each in times[_WARM_COUNT:]])
    found.add(f"{name}: p50 / p99 / max (ms)", *figures)


def _timed(call: Callable[[int], object], number: int) -> float:
    began = time.perf_counter()
    call(number)
    return time.perf_counter() - began


async def _concurrent(address: str, count: int) -> float:
    """Gives tasks a second of callers that each wait for their call before the next."""
    client = AsyncClient(address)
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await client.enqueue(NewTask(name="noop", arguments={"number": number}))

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(_CALLERS)))
    return count / (time.perf_counter() - began)


async def _one_by_one(address: str, count: int) -> list[float]:
    client = AsyncClient(address)
    times = []
    for number in range(count):
        began = time.perf_counter()
        await client.enqueue(NewTask(name="noop", arguments={"number": number}))
        times.append(time.perf_counter() - began)
    return times


def _turns(address: str, passing: turns.Turns) -> float:
    """Gives round trips an enqueue, less what an idle server asks meanwhile."""
    task = handlers.make(address).noop
    for number in range(_WARM_COUNT):
        task.enqueue(number)
    before, began = passing.count, time.monotonic()
    time.sleep(_TURN_IDLE_SECONDS)
    idle = (passing.count - before) / (time.monotonic() - began)
    before, began = passing.count, time.monotonic()
    for number in range(_TURN_COUNT):
        task.enqueue(number)
    asked = passing.count - before - idle * (time.monotonic() - began)
    return asked / _TURN_COUNT


def _messages(server: EmbeddedPostgres, address: str) -> Iterator[tuple[str, float]]:
    """Gives messages an enqueue by statement; what is sent less often than once in ten is not."""
    task = handlers.make(address).noop

    def produce() -> None:
        time.sleep(_TURN_IDLE_SECONDS / 4)
        for number in range(_TURN_COUNT):
            task.enqueue(number)

    producing = threading.Thread(target=produce)
    producing.start()
    found = counting.sent(server, _TURN_IDLE_SECONDS)
    producing.join()
    for text, count in found.most_common():
        if count > _TURN_COUNT / 10:
            yield text, count / _TURN_COUNT


PARTS: dict[str, Callable[[EmbeddedPostgres, argparse.Namespace, Table], None]] = {
    "workers": workers,
    "handlers": kinds,
    "outputs": outputs,
    "node": node,
    "enqueue": enqueue,
}


def _spread(text: str) -> Spread:
    processes, cross, each = text.partition("x")
    if not (cross and processes.isdigit() and each.isdigit() and int(processes) and int(each)):
        raise argparse.ArgumentTypeError(f"{text} is not PROCESSESxWORKERS, such as 2x32")
    return Spread(int(processes), int(each))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="measures workers and producers of other shapes")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=20_000)
    usual = [Spread(1, 1), Spread(1, 8), Spread(8, 1), Spread(2, 32)]
    parser.add_argument("--spread", type=_spread, nargs="+", default=usual, metavar="PxW")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    options = parser.parse_args()
    wanted = table.parts(parser, options.parts, PARTS)
    settings = f"{options.tasks} tasks, {options.runs} runs"
    with table.printed(settings) as found, rig.postgres() as server:
        for run in range(options.runs):
            for part in wanted:
                PARTS[part](server, options, found)
            table.say(f"run {run + 1} of {options.runs} done")


if __name__ == "__main__":
    main()
