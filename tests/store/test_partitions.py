"""Partitions: made by whoever comes first, ahead of time, and without a gap at their edges."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tenure_service.engine import limits
from tenure_service.store import partitions
from tenure_service.store.database import Database
from tests.eventually import eventually

IN_ANOTHER_PROCESS = """
import sys
from tenure_service.store import partitions
from tenure_service.store.database import Database
database = Database(sys.argv[1], schema="tenure", connection_count=2, name="other")
database.open()
print("ready", flush=True)
sys.stdin.readline()
print(len(partitions.ensure(database)), flush=True)
database.close()
"""
WIDTH = limits.PARTITION_WIDTH
PARENT_COUNT = len(partitions.PARENTS)
INSERT = (
    "insert into tasks (run_id, task_id, namespace_id, lane_id, policy_id, input)"
    " values (%s, %s, 1, 1, 1, '') returning tableoid::regclass::text"
)


@pytest.fixture
def opened(database: str) -> Iterator[Database]:
    found = Database(database, schema="tenure", connection_count=2, name="test")
    found.open()
    try:
        yield found
    finally:
        found.close()


def _names(conn: psycopg.Connection) -> list[str]:
    rows = conn.execute(
        "select inhrelid::regclass::text from pg_inherits"
        " where inhparent = any(%s::regclass[]) order by 1",
        [list(partitions.PARENTS)],
    ).fetchall()
    return [name for (name,) in rows]


def test_ensure__empty_database__makes_all_widths_of_all_parents(
    opened: Database, conn: psycopg.Connection
) -> None:
    made = partitions.ensure(opened)
    assert sorted(made) == _names(conn)
    assert len(made) == PARENT_COUNT * (limits.PARTITIONS_AHEAD + 2)
    assert partitions.ensure(opened) == []


def test_ensure__two_processes_at_once__both_succeed_and_each_is_made_once(
    database: str, conn: psycopg.Connection
) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", IN_ANOTHER_PROCESS, database],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    made = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sum(made) == len(_names(conn)) == PARENT_COUNT * (limits.PARTITIONS_AHEAD + 2)


def test_ensure__reader_holds_the_parent__does_not_wait_for_it(
    opened: Database, conn: psycopg.Connection
) -> None:
    with conn.transaction():
        conn.execute("select count(*) from tasks, deliveries")
        made = partitions.ensure(opened)
        assert len(made) == PARENT_COUNT * (limits.PARTITIONS_AHEAD + 2)


def test_ensure__somebody_locks_the_parent__steps_aside_and_makes_it_later(
    opened: Database, database: str, conn: psycopg.Connection
) -> None:
    def blocked() -> bool:
        row = conn.execute(
            "select from pg_stat_activity"
            " where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0"
        ).fetchone()
        return row is not None

    with psycopg.connect(database, options="-c search_path=tenure") as holder:
        holder.execute("lock table deliveries in share update exclusive mode")
        with ThreadPoolExecutor(1) as pool:
            made = pool.submit(partitions.ensure, opened, ahead=0)
            assert eventually(blocked), "it does not wait for the lock"
            # It leaves the line by itself, so that writers behind it are not held up for long.
            assert eventually(lambda: not blocked()), "it does not give up"
            holder.commit()
            assert len(made.result(20)) == 2 * PARENT_COUNT


def test_ahead_duration__all_made__is_at_least_the_promised_widths(opened: Database) -> None:
    assert partitions.ahead_duration(opened) <= timedelta(0)
    partitions.ensure(opened)
    ahead = partitions.ahead_duration(opened)
    assert limits.PARTITIONS_AHEAD * WIDTH <= ahead <= (limits.PARTITIONS_AHEAD + 1) * WIDTH


def test_ahead_duration__one_table_is_behind__is_the_least(
    opened: Database, conn: psycopg.Connection
) -> None:
    partitions.ensure(opened)
    last = max(name for name in _names(conn) if name.startswith("tasks_p"))
    conn.execute(f"drop table {last}".encode())
    ahead = partitions.ahead_duration(opened)
    assert (limits.PARTITIONS_AHEAD - 1) * WIDTH <= ahead <= limits.PARTITIONS_AHEAD * WIDTH


def test_ahead_duration__gap_before_the_last__ends_at_the_gap(
    opened: Database, conn: psycopg.Connection
) -> None:
    partitions.ensure(opened)
    *_, gap, _ = (name for name in _names(conn) if name.startswith("tasks_p"))
    conn.execute(f"drop table {gap}".encode())
    assert partitions.ahead_duration(opened) <= (limits.PARTITIONS_AHEAD - 1) * WIDTH
    assert partitions.ensure(opened) == [gap]


def test_insert__at_the_edges_of_widths__finds_the_partition_that_is_named_so(
    opened: Database, conn: psycopg.Connection
) -> None:
    partitions.ensure(opened)
    for start, end in partitions.widths(datetime.now(UTC), limits.PARTITIONS_AHEAD):
        first = partitions.uuid_at(start)
        last = f"{partitions.uuid_at(end - timedelta(milliseconds=1))[:13]}-7fff-bfff-ffffffffffff"
        for id_ in (first, last):
            assert conn.execute(INSERT, [id_, id_]).fetchone() == (f"tasks_p{start:%Y%m%d}",)


def test_insert__beyond_the_last_width__is_refused_by_name(
    opened: Database, conn: psycopg.Connection
) -> None:
    partitions.ensure(opened)
    *_, (_, end) = partitions.widths(datetime.now(UTC), limits.PARTITIONS_AHEAD)
    id_ = partitions.uuid_at(end)
    with pytest.raises(psycopg.errors.CheckViolation, match="no partition of relation"):
        conn.execute(INSERT, [id_, id_])


def test_make_ids__now__fall_into_the_width_of_now(
    opened: Database, conn: psycopg.Connection
) -> None:
    partitions.ensure(opened, ahead=0)
    row = conn.execute(
        "insert into tasks (run_id, task_id, namespace_id, lane_id, policy_id, input)"
        " select id, id, 1, 1, 1, '' from (select uuidv7() as id) as made"
        " returning tableoid::regclass::text"
    ).fetchone()
    _, (start, _) = partitions.widths(datetime.now(UTC), 0)
    assert row == (f"tasks_p{start:%Y%m%d}",)
