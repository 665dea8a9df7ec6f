"""Tasks by the million: one goes through the product, and its rows are copied by SQL.

So a copy has what the product wrote, lane, policy and encodings; only its ids, its place in the
lane and its time are its own. Databases are filled once and cloned for each run, so that every
drain begins with the same files.
"""

import contextlib
from collections.abc import Iterator, Sequence

import psycopg

from bench import apps, rig, table
from tenure_service.embedded import EmbeddedPostgres
from tenure_service.store.invariants import check_invariants

#: One transaction: large enough to be quick, small enough to tell how far it is.
_COPY_COUNT_MAX = 100_000
DELAY_SECONDS = 86_400.0
#: Timers are set in the order of their tasks, and fire in another, over thirty days.
_COPY = b"""
    with made as materialized (
        select uuidv7() as id, n.number
        from generate_series(%(first)s::bigint, %(last)s::bigint) as n (number)
    ),
    stored as (
        insert into tenure.tasks (
            run_id, task_id, namespace_id, lane_id, policy_id, priority, input, input_encoding,
            input_schema, traceparent
        )
        select
            m.id, m.id, t.namespace_id, t.lane_id, t.policy_id, t.priority, t.input,
            t.input_encoding, t.input_schema, t.traceparent
        from made as m
        cross join tenure.tasks as t
        where t.task_id = %(task_id)s::uuid
    ),
    ready as (
        insert into tenure.ready_tasks (lane_id, rank, run_id, task_id, total_by, deadline_at)
        select r.lane_id, r.rank, m.id, m.id, r.total_by, r.deadline_at
        from made as m
        cross join tenure.ready_tasks as r
        where r.task_id = %(task_id)s::uuid
        order by m.number
    )
    insert into tenure.timers (
        fire_at, run_id, task_id, namespace_id, lane_id, attempt, delivery, lost_count, rank, kind,
        total_by, start_ms
    )
    select
        w.fire_at + make_interval(secs => m.number * 2654435761 %% 2592000), m.id, m.id,
        w.namespace_id, w.lane_id, w.attempt, w.delivery, w.lost_count, w.rank, w.kind, w.total_by,
        w.start_ms
    from made as m
    cross join tenure.timers as w
    where w.task_id = %(task_id)s::uuid
    order by m.number
"""


def fill(dsn: str, counts: Sequence[tuple[int, str]], *, delayed: int = 0) -> None:
    """Enqueues no-op tasks, by (count, queue), and delayed ones; lets autovacuum's work be done."""
    with rig.tenure_server(dsn) as address:
        noop = apps.make(address).noop
        patterns = [(count, noop.using(queue=queue).enqueue(0).id) for count, queue in counts]
        if delayed:
            patterns.append((delayed, noop.using(delay=DELAY_SECONDS).enqueue(0).id))
    with psycopg.connect(dsn, autocommit=True) as conn:
        for count, task_id in patterns:
            _copy(conn, count, task_id)
        conn.execute("vacuum (analyze)")
        conn.execute("checkpoint")


def _copy(conn: psycopg.Connection, count: int, task_id: str) -> None:
    """Copies a task until there are so many of it."""
    for first in range(2, count + 1, _COPY_COUNT_MAX):
        last = min(first + _COPY_COUNT_MAX - 1, count)
        uuid = task_id.rpartition(":")[2]
        conn.execute(_COPY, {"first": first, "last": last, "task_id": uuid})
        if count > _COPY_COUNT_MAX:
            table.say(f"{last:,} of {count:,} tasks are there")


def check(dsn: str) -> None:
    """Checks the invariants of a database that was filled.

    Raises:
        RuntimeError: something does not hold.
    """
    with rig.opened(dsn) as database:
        broken = database.transact(check_invariants)
    if broken:
        raise RuntimeError(f"the database was filled wrongly: {broken}")


@contextlib.contextmanager
def clone(server: EmbeddedPostgres, template: str, name: str) -> Iterator[str]:
    """Copies a database that nobody is connected to, and drops the copy."""
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as conn:
        conn.execute(f"create database {name} template {template} strategy file_copy".encode())
    try:
        yield server.dsn(name)
    finally:
        with psycopg.connect(server.dsn("postgres"), autocommit=True) as conn:
            conn.execute(f"drop database {name} with (force)".encode())
