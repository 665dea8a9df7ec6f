"""Prints one table of the measurements of this machine, medians of several runs."""

import argparse
import os
import platform
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import floor, rig
from bench.apps import noop
from tenure_service.embedded import EmbeddedPostgres


def drain(server: EmbeddedPostgres, count: int) -> tuple[float, float]:
    """Gives enqueues and completions a second through the product, one Python worker process."""
    with rig.database(server, "drain") as dsn, rig.tenure_server(dsn) as address:
        os.environ["TENURE_ADDRESS"] = address
        from tenure import App

        app = App("bench-client", address=address)
        task = app.remote("noop", input=int) if False else noop
        began = time.perf_counter()
        task.enqueue_many((number,) for number in range(count))
        enqueued = count / (time.perf_counter() - began)
        with rig.python_worker(address):
            rig.wait_for_deliveries(dsn, count)
        return enqueued, rig.rate(dsn)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=20_000)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    results: dict[str, list[float]] = {}
    with rig.postgres() as server:
        for _ in range(arguments.runs):
            a, b = floor.measure(server, arguments.tasks)
            c, d = drain(server, arguments.tasks)
            for name, value in (("floor enqueue", a), ("floor drain", b), ("enqueue_many", c), ("drain", d)):
                results.setdefault(name, []).append(value)
                print(f"  {name}: {value:,.0f}/s", flush=True)
    for name, values in results.items():
        print(f"{name:14} median {statistics.median(values):10,.0f}/s  runs {[round(v) for v in values]}")


if __name__ == "__main__":
    main()
