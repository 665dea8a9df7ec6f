"""Plans of the hot statements on a filled database, generic as the store's connections make them.

No whole table is read, and a look-up by run touches the partition of that run alone. The plan is
of a prepared statement that is executed: only then are partitions pruned that the parameters rule
out.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import pytest

from tenure_service.store import connections, partitions, queries
from tenure_service.store.database import Database
from tests import fix_db
from tests.store.test_contract import _numbered

FILL = """
    insert into lanes (namespace_id, queue, name)
    select 1, 'default', 'work' || n from generate_series(1, 21) as n;

    create temporary table filled as
    select
        n,
        uuidv7(((n % 3) - 1) * interval '7 days') as id,
        (select min(lane_id) from lanes) + n % 21 as lane_id
    from generate_series(1, 30000) as n;

    insert into tasks (run_id, task_id, namespace_id, lane_id, policy_id, input)
    select id, id, 1, lane_id, 1, '' from filled;

    insert into deliveries (run_id, task_id, delivery, attempt, outcome, final)
    select id, id, 1, 1, 'DONE', true from filled where n % 4 = 0;

    insert into ready_tasks (lane_id, run_id, task_id)
    select lane_id, id, id from filled where n % 4 = 1;

    insert into timers (
        fire_at, run_id, task_id, namespace_id, lane_id, attempt, delivery, lost_count, rank, kind
    )
    select now() + n * interval '1 second', id, id, 1, lane_id, 1, 1, 0, 0, 'DELAY'
    from filled where n % 4 = 2;

    insert into sessions (namespace_id, worker, secret_hash, handlers, slots)
    select 1, 'worker' || n, '', '[]', '{}' from generate_series(1, 1000) as n;

    insert into lanes (namespace_id, queue, name, app_version)
    select 1, 'default', 'flow', 'v' || n from generate_series(1, 200) as n;

    insert into app_versions (namespace_id, queue, name, version, seen_at)
    select 1, 'default', 'flow', 'v' || n, now() - (200 - n) * interval '1 day'
    from generate_series(1, 200) as n;

    insert into ready_tasks (lane_id, run_id, task_id)
    select l.lane_id, i.id, i.id
    from lanes as l
    cross join lateral (
        select uuidv7() as id from generate_series(1, 1000) where l.app_version <> ''
    ) as i
    where l.app_version in ('v1', 'v200');

    insert into queues (namespace_id, name)
    select 1, 'queue' || n from generate_series(1, 1000) as n;

    insert into dead_letters (run_id, task_id, namespace_id, lane_id, delivery, attempt, reason, state)
    select id, id, 1, lane_id, 1, 1, 'NON_RETRYABLE', 'REPLAYED' from filled where n % 8 = 0;

    insert into cancel_requests (run_id, task_id, namespace_id, deadline_at)
    select id, id, 1, now() + interval '1 day' from filled where n % 30 = 1;

    insert into leases (
        session_id, expires_at, namespace_id, lane_id, remaining, secret,
        run_ids, task_ids, seqs, attempts, deliveries, ranks, lost_counts
    )
    select
        (select min(session_id::text)::uuid from sessions), now() + n * interval '1 second', 1, lane_id, 1, '',
        array[id], array[id], array[n], array[1], array[1], array[0], array[0]
    from filled where n % 4 = 3 and n < 12000;

    analyze;
"""
LATER = "2999-01-01"
#: An index on what each renewal changes would cost more than this table, a row a batch, ever does.
WHOLE = {"due": {"leases"}, "lease_lock_expired": {"leases"}}
FORBIDDEN = ("tasks", "deliveries", "ready_tasks", "leases", "timers", "restores")


LOCKED = """
    select lease_id::text, session_id::text, lane_id, run_ids[1]::text from leases limit 1
"""


@pytest.fixture(scope="module")
def filled(
    postgres: str, _admin: psycopg.Connection, _template: str
) -> Iterator[psycopg.Connection]:
    """A connection with the store's settings, on a database with tasks in three widths."""
    with fix_db._checked_clone(postgres, _admin, _template) as dsn:
        opened = Database(dsn, schema="tenure", connection_count=1, name="fill")
        opened.open()
        partitions.ensure(opened)
        opened.close()
        # The script that fills it is many statements, which cannot be prepared.
        settings = connections.for_statements("tenure", "plans") | {"prepare_threshold": None}
        with psycopg.connect(dsn, autocommit=True, **settings) as conn:
            conn.execute(FILL.encode())
            yield conn


def _explain(
    conn: psycopg.Connection, name: str, parameters: Mapping[str, object]
) -> list[dict[str, Any]]:
    """Runs a statement by its generic plan, takes its effects back, and lists the plan's nodes."""
    text = queries.get(name).text
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", text.decode())))
    assert set(names) == set(parameters)
    conn.execute(b"prepare planned as " + _numbered(text))
    try:
        with conn.transaction(force_rollback=True), psycopg.ClientCursor(conn) as cursor:
            places = ", ".join(["%s"] * len(names))
            cursor.execute(
                f"explain (analyze, costs off, timing off, format json) execute planned({places})".encode(),
                [parameters[name] for name in names],
            )
            ((found,),) = cursor.fetchall()
    finally:
        conn.execute("deallocate planned")
    nodes: list[dict[str, Any]] = []
    todo = [found[0]["Plan"]]
    while todo:
        node = todo.pop()
        nodes.append(node)
        todo += node.get("Plans", [])
    return nodes


def _of(relation: str) -> str:
    """The table that a partition belongs to."""
    return relation.rsplit("_p", 1)[0] if re.search(r"_p\d+$", relation) else relation


def _seq_scans(nodes: list[dict[str, Any]]) -> set[str]:
    scanned = {n["Relation Name"] for n in nodes if n["Node Type"] == "Seq Scan"}
    return {name for name in scanned if _of(name) in FORBIDDEN}


def _full_index_scans(nodes: list[dict[str, Any]]) -> set[str]:
    """Indexes that were read from end to end; the smallest of an index is one entry."""
    return {
        f"{n['Index Name']}: {n['Actual Rows']} rows"
        for n in nodes
        if n["Node Type"] in {"Index Scan", "Index Only Scan"}
        and n["Actual Loops"] > 0
        and "Index Cond" not in n
        and n["Actual Rows"] + n.get("Rows Removed by Filter", 0) > 1
    }


def _touched(nodes: list[dict[str, Any]], table: str) -> set[str]:
    """The partitions of a table that were looked into."""
    return {
        n["Relation Name"]
        for n in nodes
        if _of(n.get("Relation Name", "")) == table
        and n["Actual Loops"] > 0
        and n["Node Type"] != "ModifyTable"
    }


def _of_runs(
    filled: psycopg.Connection, lease_id: str, lane_id: int, run_id: str
) -> dict[str, dict[str, object]]:
    (flow_lane_id,) = filled.execute(
        "select lane_id from lanes where app_version = 'v1'"
    ).fetchone() or (0,)
    return {
        "activation_get": {"lease_ids": [lease_id], "run_ids": [run_id]},
        "version_orphan": {
            "namespace_ids": [1],
            "queues": ["default"],
            "names": ["flow"],
            "grace_ms": 600_000,
            "now": None,
        },
        "version_adopt": {
            "lane_ids": [flow_lane_id],
            "target_lane_ids": [lane_id],
            "grace_ms": 600_000,
            "run_count_max": 1_000,
            "now": None,
        },
    }


@pytest.fixture
def parameters(filled: psycopg.Connection) -> dict[str, dict[str, object]]:
    """Parameters of each statement, for rows that are there."""
    row = filled.execute(LOCKED.encode()).fetchone()
    assert row is not None
    lease_id, session_id, lane_id, run_id = row
    one = {"run_ids": [run_id], "task_ids": [run_id], "lease_ids": [lease_id]}
    ended = one | {
        "session_ids": [session_id],
        "run_ms": [1.0],
        "deliveries": [1],
        "attempts": [1],
        "outputs": [b"1"],
        "output_encodings": None,
        "output_schemas": None,
    }
    return _of_runs(filled, lease_id, lane_id, run_id) | {
        "lease_take": {
            "session_id": session_id,
            "epoch": 1,
            "namespace_id": 1,
            "lane_id": lane_id,
            "task_count_max": 100,
            "secret": b"",
            "lease_ms": 1000,
            "low_rank": -32768,
            "low_seq": 0,
            "rank_max": 32767,
            "now": None,
        },
        "lane_head": {"lane_ids": list(range(1, 20))},
        "delivery_complete": ended | {"held_lease_ids": [lease_id]},
        "delivery_insert": ended
        | {"outcomes": ["DONE"], "finals": [True], "failures": None, "now": None},
        "delivery_classify": one,
        "task_read": {
            "namespace_id": 1,
            "run_ids": [run_id],
            "task_ids": [run_id],
            "include_payloads": True,
            "include_details": True,
        },
        "task_result_list": {"namespace_ids": [1], "run_ids": [run_id], "task_ids": [run_id]},
        "task_over_list": {"run_ids": [run_id], "task_ids": [run_id]},
        "task_policy_list": {"run_ids": [run_id], "task_ids": [run_id]},
        "lease_lock": {"lease_ids": [lease_id], "now": None},
        "lease_lock_expired": {"lease_count_max": 20, "now": LATER},
        "lease_lock_overdue": {"lease_count_max": 20, "now": LATER},
        "waiting_take_overdue": {"task_count_max": 500, "now": LATER},
        "lease_of_task": {"task_ids": [run_id]},
        "lease_outstanding": {"lease_ids": [lease_id]},
        "due": {
            "namespace_ids": [1, 1],
            "queues": ["default", "default"],
            "names": ["work1", "work2"],
            "app_versions": ["", ""],
            "now": None,
        },
        "timer_fire": {"timer_count_max": 500, "now": LATER},
        "ready_delete": {"task_ids": [run_id]},
        "timer_delete": {"task_ids": [run_id]},
    }


STATEMENTS = [
    "lease_take",
    "lane_head",
    "delivery_complete",
    "delivery_insert",
    "delivery_classify",
    "task_read",
    "task_result_list",
    "task_over_list",
    "task_policy_list",
    "lease_lock",
    "lease_lock_expired",
    "lease_lock_overdue",
    "waiting_take_overdue",
    "lease_of_task",
    "lease_outstanding",
    "due",
    "activation_get",
    "version_orphan",
    "version_adopt",
    "timer_fire",
    "ready_delete",
    "timer_delete",
]


@pytest.mark.parametrize("name", STATEMENTS)
def test_plan__filled_database__reads_no_table_whole(
    filled: psycopg.Connection, parameters: dict[str, dict[str, object]], name: str
) -> None:
    nodes = _explain(filled, name, parameters[name])
    assert _seq_scans(nodes) <= WHOLE.get(name, set())
    assert _full_index_scans(nodes) == set()


def test_plan__task_read__finds_a_replayed_letter_by_its_task(
    filled: psycopg.Connection, parameters: dict[str, dict[str, object]]
) -> None:
    """Not by walking all replayed ones, which the index for listing invites to."""
    nodes = _explain(filled, "task_read", parameters["task_read"])
    found = [n["Index Name"] for n in nodes if n.get("Relation Name") == "dead_letters"]
    assert found == ["dead_letters_pkey"]


@pytest.mark.parametrize(
    "name",
    ["task_read", "task_result_list", "task_policy_list", "delivery_classify", "lease_outstanding"],
)
def test_plan__one_run__touches_its_partition_alone(
    filled: psycopg.Connection, parameters: dict[str, dict[str, object]], name: str
) -> None:
    nodes = _explain(filled, name, parameters[name])
    assert len(_touched(nodes, "tasks")) <= 1
    assert len(_touched(nodes, "deliveries")) <= 1
    assert _touched(nodes, "tasks") | _touched(nodes, "deliveries") != set()


def test_plan__lease_take__looks_into_one_partition_of_ready_tasks(
    filled: psycopg.Connection, parameters: dict[str, dict[str, object]]
) -> None:
    nodes = _explain(filled, "lease_take", parameters["lease_take"])
    assert len(_touched(nodes, "ready_tasks")) <= 1
    scans = [n for n in nodes if _of(n.get("Relation Name", "")) == "ready_tasks"]
    assert {n["Node Type"] for n in scans} <= {"Index Scan", "Tid Scan", "ModifyTable"}
    picked = [n for n in scans if n["Node Type"] == "Index Scan" and n["Actual Loops"] > 0]
    assert [n["Actual Rows"] for n in picked] == [100]
    assert all("lane_id" in n["Index Cond"] for n in picked)
    assert all("ROW(" in n["Index Cond"] for n in picked), "the hint is no index condition"
