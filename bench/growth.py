"""Prints how the drain grows: with tasks behind it, over several queues, beside timers.

python -m bench.growth [waiting] [queues] [timers] [--runs 3] [--tasks 20000]

A drain is the first TASKS completions of one worker process that has just started, from the first
commit to the last, as in bench.run. Each is measured in the same run as one with nothing else in
the database; both begin with databases that were filled in the same way, vacuumed, and copied.
With tasks behind it a drain has no tail of a last few, which helps it by some hundredths.
"""

import argparse
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from bench import backlog, rig, table
from bench.table import Table
from tenure_service.embedded import EmbeddedPostgres

_ALONE = "alone"
_RATE = b"""
    select count(*) / extract(epoch from max(f.ended_at) - min(f.ended_at))
    from (
        select d.ended_at from tenure.deliveries as d where d.final order by d.ended_at limit %s
    ) as f
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything there is."""

    tasks: int
    waiting: int
    queues: int
    timers: int


@dataclass(frozen=True, slots=True)
class Part:
    """What is in the database beside nothing, and which queues the worker serves."""

    title: str
    fill: Callable[[str], None]
    queues: tuple[str, ...] = ()


def parts(sizes: Sizes) -> dict[str, Part]:
    """Gives what can be measured, by name."""
    drained = (sizes.tasks, "default")
    queues = tuple(f"queue-{number}" for number in range(sizes.queues))
    share = -(-sizes.tasks // sizes.queues)
    return {
        "waiting": Part(
            f"{sizes.waiting:,} more waiting behind in the lane",
            lambda dsn: backlog.fill(dsn, [(sizes.tasks + sizes.waiting, "default")]),
        ),
        "queues": Part(
            f"spread over {sizes.queues} queues",
            lambda dsn: backlog.fill(dsn, [(share, queue) for queue in queues]),
            queues,
        ),
        "timers": Part(
            f"{sizes.timers:,} timers pending",
            lambda dsn: backlog.fill(dsn, [drained], delayed=sizes.timers),
        ),
    }


def drain(server: EmbeddedPostgres, template: str, count: int, queues: tuple[str, ...]) -> float:
    """Gives completions a second, the first so many, in a copy of a database."""
    with backlog.clone(server, template, "drain") as dsn:
        with (
            rig.tenure_server(dsn) as address,
            rig.python_worker(address, queues=queues),
        ):
            rig.wait_for_deliveries(dsn, count)
        with psycopg.connect(dsn, autocommit=True) as conn:
            found = conn.execute(_RATE, [count]).fetchone()
    if found is None:
        raise RuntimeError("a count always has a row")
    return float(found[0])


def measure(server: EmbeddedPostgres, part: Part, told: Table, arguments: Namespace) -> None:
    """Fills a database once, and drains copies of it, each beside one with nothing else."""
    with rig.database(server, "grown") as dsn:
        part.fill(dsn)
        if arguments.check:
            backlog.check(dsn)
            table.say(f"{part.title}: the invariants hold")
        for _ in range(arguments.runs):
            alone = drain(server, _ALONE, arguments.tasks, ())
            grown = drain(server, "grown", arguments.tasks, part.queues)
            told.add(f"drain, nothing else, before {part.title} (tasks/s)", alone)
            told.add(f"drain, {part.title} (tasks/s)", grown)
            told.add(f"ratio: {part.title}", grown / alone)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="measures how the drain grows")
    parser.add_argument("parts", nargs="*", metavar="PART", help="waiting, queues or timers")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=10)
    parser.add_argument("--timers", type=int, default=5_000_000)
    parser.add_argument("--check", action="store_true", help="check what was filled, first")
    arguments = parser.parse_args()
    sizes = Sizes(arguments.tasks, arguments.waiting, arguments.queues, arguments.timers)
    known = parts(sizes)
    wanted = table.parts(parser, arguments.parts, known)
    settings = f"{arguments.runs} runs"
    with (
        table.printed(settings) as told,
        rig.postgres() as server,
        rig.database(server, _ALONE) as dsn,
    ):
        backlog.fill(dsn, [(sizes.tasks, "default")])
        for name in wanted:
            measure(server, known[name], told, arguments)


if __name__ == "__main__":
    main()
