"""Plans of the statements that read runs, generic, on a database with many of them."""

from collections.abc import Iterator

import psycopg
import pytest

from tenure_service.store import connections, partitions
from tenure_service.store.database import Database
from tests import fix_db
from tests.store.test_plans import _explain, _full_index_scans, _of, _touched

FILL = """
    insert into lanes (namespace_id, queue, name, app_version) values (1, 'default', 'flow', 'v1');

    create temporary table filled as
    select n, uuidv7(((n % 3) - 1) * interval '7 days') as id from generate_series(1, 20000) as n;

    insert into tasks (run_id, task_id, namespace_id, lane_id, policy_id, input)
    select id, id, 1, 1, 1, '' from filled;

    insert into runs (
        run_id, namespace_id, recovery_attempts, name, root_run_id, status, ended_at, attributes,
        parent_run_id
    )
    select
        id, 1, 10, 'flow' || n % 100, id,
        case when n % 200 = 0 then 'WAITING' else 'COMPLETED' end::run_status, now(),
        jsonb_build_object('customer', 'c' || n % 5000),
        case when n % 1000 = 1 then (select f.id from filled as f where f.n = 1) end
    from filled;

    insert into deliveries (run_id, task_id, delivery, attempt, outcome, final)
    select id, id, 1, 1, 'DONE', true from filled where n % 200 <> 0;

    insert into timers (
        fire_at, run_id, task_id, namespace_id, lane_id, attempt, delivery, lost_count, rank, kind
    )
    select '9999-01-01', id, id, 1, 1, 1, 2, 0, 0, 'WAIT' from filled where n % 200 = 0;

    insert into steps (run_id, step_id, kind, name)
    select f.id, i::text, 'CALL', 'reserve'
    from filled as f
    cross join generate_series(1, 20) as i
    where f.n % 20 = 0;

    insert into idempotency_keys (
        namespace_id, kind, key, run_id, task_id, name, input_hash, expires_at
    )
    select 1, 'RUN', n::text, id, id, 'flow', '', now() + interval '1 day' from filled;

    analyze;
"""
WANTED = """
    select r.run_id::text
    from runs as r
    where r.name = 'flow0'
    order by r.run_id
    limit 1
"""
LARGE = {"runs", "tasks", "deliveries", "timers", "steps", "idempotency_keys"}
LAST = "ffffffff-ffff-ffff-ffff-ffffffffffff"


@pytest.fixture(scope="module")
def filled(
    postgres: str, _admin: psycopg.Connection, _template: str
) -> Iterator[psycopg.Connection]:
    """A connection with the store's settings, on a database with runs in three widths."""
    with fix_db._checked_clone(postgres, _admin, _template) as dsn:
        opened = Database(dsn, schema="tenure", connection_count=1, name="fill")
        opened.open()
        partitions.ensure(opened)
        opened.close()
        settings = connections.for_statements("tenure", "plans") | {"prepare_threshold": None}
        with psycopg.connect(dsn, autocommit=True, **settings) as conn:
            conn.execute(FILL.encode())
            yield conn


@pytest.fixture
def parameters(filled: psycopg.Connection) -> dict[str, dict[str, object]]:
    """Parameters of each statement, for rows that are there."""
    (run_id,) = filled.execute(WANTED.encode()).fetchone() or ("",)
    listing: dict[str, object] = {
        "namespace_id": 1,
        "statuses": "{WAITING,COMPLETED}",
        "before": LAST,
        "row_count_max": 100,
    }
    found: dict[str, object] = {"name": None, "attributes": None}
    return {
        "run_read": {"namespace_id": 1, "run_ids": [run_id], "include_payloads": True},
        "run_by_key": {"namespace_id": 1, "key": "7"},
        "run_list": listing | {"statuses": "{WAITING}"},
        "run_list_named": listing | {"name": "flow7", "statuses": "{WAITING,COMPLETED}"},
        "run_list_of_parent": listing | found | {"parent_run_id": run_id},
        "run_list_with": listing | {"name": None, "attributes": '{"customer": "c7"}'},
        "step_place": {"run_id": run_id, "step_id": "3"},
        "run_fork_steps": {"run_id": run_id, "new_run_id": run_id, "before_seq": 0},
        "task_result_list": {"namespace_ids": [1], "run_ids": [run_id], "task_ids": [run_id]},
        "step_page": {
            "run_ids": [run_id],
            "after_seqs": [0],
            "bytes_max": 1_000_000,
            "step_count_max": 1_000,
            "now": None,
        },
    }


@pytest.mark.parametrize(
    "name",
    [
        "run_read",
        "run_by_key",
        "run_list",
        "run_list_named",
        "run_list_of_parent",
        "run_list_with",
        "step_place",
        "run_fork_steps",
        "task_result_list",
        "step_page",
    ],
)
def test_plan__many_runs__reads_no_table_whole(
    filled: psycopg.Connection, parameters: dict[str, dict[str, object]], name: str
) -> None:
    nodes = _explain(filled, name, parameters[name])
    scanned = {_of(n["Relation Name"]) for n in nodes if n["Node Type"] == "Seq Scan"}
    assert scanned & LARGE == set()
    assert _full_index_scans(nodes) == set()


@pytest.mark.parametrize("name", ["run_list", "run_list_named"])
def test_plan__a_page_of_many__reads_little_more_than_it(
    filled: psycopg.Connection, parameters: dict[str, dict[str, object]], name: str
) -> None:
    nodes = _explain(filled, name, parameters[name] | {"row_count_max": 10})
    read = [n for n in nodes if _of(n.get("Relation Name", "")) == "runs"]
    rows = sum(
        (n["Actual Rows"] + n.get("Rows Removed by Filter", 0)) * n["Actual Loops"] for n in read
    )
    assert 10 <= rows <= 30


def test_plan__one_run__touches_its_partition_alone(
    filled: psycopg.Connection, parameters: dict[str, dict[str, object]]
) -> None:
    nodes = _explain(filled, "run_read", parameters["run_read"])
    for table in ("runs", "tasks", "deliveries", "steps"):
        assert len(_touched(nodes, table)) <= 1, table
