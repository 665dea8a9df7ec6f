"""Prints one table of this machine: the floor, the product, and their ratio in the same run.

python -m bench.run [--runs 3] [--tasks 20000] [--naps]
"""

import argparse
import os
import platform
import statistics
import sys
import time
from typing import TYPE_CHECKING

from bench import apps, floor, rig
from tenure import as_completed
from tenure_service.embedded import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Callable

Figures = dict[str, float]


def queue(server: EmbeddedPostgres, count: int) -> Figures:
    """Measures the floor and then the product, each on a database of its own.

    The drain is counted in the database, from its first to its last commit, with a worker process
    that has just started: what it takes to earn prefetch is part of it.
    """
    floor_enqueue, floor_drain = floor.measure(server, count)
    with rig.database(server, "drain") as dsn, rig.tenure_server(dsn) as address:
        bench = apps.make(address)
        began = time.perf_counter()
        bench.noop.enqueue_many((number,) for number in range(count))
        enqueue = count / (time.perf_counter() - began)
        with rig.python_worker(address):
            rig.wait_for_deliveries(dsn, count)
        drain = rig.rate(dsn)
    return {
        "floor: enqueue, batches of 500 (tasks/s)": floor_enqueue,
        "floor: lease 400, report 2 x 200 (tasks/s)": floor_drain,
        "enqueue_many by one client (tasks/s)": enqueue,
        "drain by one worker process (tasks/s)": drain,
        "ratio of drain to floor": drain / floor_drain,
    }


def naps(server: EmbeddedPostgres, _: int) -> Figures:
    """Measures 16 tasks of 5 s on two workers of concurrency 4: no worker may hoard."""
    with rig.database(server, "naps") as dsn, rig.tenure_server(dsn) as address:
        bench = apps.make(address)
        with rig.python_worker(address, concurrency=4), rig.python_worker(address, concurrency=4):
            bench.nap.enqueue(0.0).result(timeout=30)
            began = time.perf_counter()
            handles = bench.nap.enqueue_many((5.0,) for _ in range(16))
            for handle in as_completed(handles, timeout=60):
                handle.result()
            return {"16 tasks of 5 s, 2 workers of 4 (s)": time.perf_counter() - began}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="measures on this machine, prints one table")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--naps", action="store_true", help="also 16 tasks of 5 s on two workers")
    arguments = parser.parse_args()
    measurements: list[Callable[[EmbeddedPostgres, int], Figures]] = [queue]
    if arguments.naps:
        measurements.append(naps)
    results: dict[str, list[float]] = {}
    with rig.postgres() as server:
        for run in range(arguments.runs):
            for measure in measurements:
                for name, value in measure(server, arguments.tasks).items():
                    results.setdefault(name, []).append(value)
            print(f"run {run + 1} of {arguments.runs} done", file=sys.stderr, flush=True)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{arguments.tasks} tasks, {arguments.runs} runs"
    )
    print("| what | median | every run |")
    print("|---|---|---|")
    for name, values in results.items():
        every = ", ".join(_figure(value) for value in values)
        print(f"| {name} | {_figure(statistics.median(values))} | {every} |")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


if __name__ == "__main__":
    main()
