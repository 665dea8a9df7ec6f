"""Tasks: storing them and reading them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from tenure_service.engine.states import TaskState
from tenure_service.engine.tokens import UUID_MAX, TaskKey
from tenure_service.store import arrays, rows, statements
from tenure_service.store.database import Conn
from tenure_service.store.jsonb import clean


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What tasks to store have in common; the texts are within their limits, `lane` resolved."""

    namespace_id: int
    lane_id: int
    policy_id: int
    priority: int
    input_encoding: str | None
    input_schema: str | None
    traceparent: str | None
    delay_ms: int | None
    start_ms: int | None = None
    total_ms: int | None = None


class NewTask(NamedTuple):
    """A task to store."""

    common: Common
    input: bytes
    key: str | None


def make_ids(conn: Conn, id_count: int) -> list[str]:
    """Makes ids, rising in time."""
    return [row.id for row in statements.many(conn, "id_make", rows.IdMade, {"id_count": id_count})]


def insert(
    conn: Conn, ids: Sequence[str], tasks: Sequence[NewTask], *, now: datetime | None = None
) -> None:
    """Stores stand-alone tasks under their ids, ready or delayed."""
    commons = [task.common for task in tasks]
    parameters = {
        "ids": arrays.uuids(ids),
        "namespace_ids": arrays.numbers([common.namespace_id for common in commons]),
        "lane_ids": arrays.numbers([common.lane_id for common in commons]),
        "policy_ids": arrays.numbers([common.policy_id for common in commons]),
        "priorities": arrays.numbers([common.priority for common in commons]),
        "inputs": arrays.BytesArray([task.input for task in tasks]),
        "input_encodings": arrays.texts([common.input_encoding for common in commons]),
        "input_schemas": arrays.texts([common.input_schema for common in commons]),
        "keys": arrays.texts([clean(task.key) if task.key else None for task in tasks]),
        "traceparents": arrays.texts([common.traceparent for common in commons]),
        "delays_ms": arrays.numbers_or_null([common.delay_ms for common in commons]),
        "starts_ms": arrays.numbers_or_null([common.start_ms for common in commons]),
        "totals_ms": arrays.numbers_or_null([common.total_ms for common in commons]),
        "now": now,
    }
    statements.execute(conn, "task_insert", parameters)


def read(
    conn: Conn,
    namespace_id: int,
    keys: Sequence[TaskKey],
    *,
    include_payloads: bool,
    include_details: bool = False,
) -> list[rows.TaskRow]:
    """Reads tasks in the order of the keys; one that does not exist has no row."""
    parameters = arrays.task_keys(keys) | {
        "namespace_id": namespace_id,
        "include_payloads": include_payloads,
        "include_details": include_details,
    }
    return statements.many(conn, "task_read", rows.TaskRow, parameters)


def deliveries(conn: Conn, key: TaskKey) -> list[rows.DeliveryRow]:
    """Lists the ended hand-outs of a task, oldest first."""
    return statements.many(conn, "delivery_list", rows.DeliveryRow, key._asdict())


def results(
    conn: Conn, wanted: Sequence[tuple[int, TaskKey]]
) -> dict[tuple[int, str], rows.TaskResultRow]:
    """Reads how tasks were over, by (namespace, task id); a task that does not exist is missing."""
    parameters = {
        "namespace_ids": arrays.numbers(namespace_id for namespace_id, _ in wanted),
        "run_ids": arrays.uuids(key.run_id for _, key in wanted),
        "task_ids": arrays.uuids(key.task_id for _, key in wanted),
    }
    found = statements.many(conn, "task_result_list", rows.TaskResultRow, parameters)
    by_id = {row.task_id: row for row in found}
    return {
        (namespace_id, key.task_id): by_id[key.task_id]
        for namespace_id, key in wanted
        if key.task_id in by_id
    }


def over(conn: Conn, wanted: Sequence[TaskKey]) -> list[str]:
    """Gives the ids of those tasks that are over."""
    parameters = {
        "run_ids": arrays.uuids(key.run_id for key in wanted),
        "task_ids": arrays.uuids(key.task_id for key in wanted),
    }
    found = statements.many(conn, "task_over_list", rows.TaskOver, parameters)
    return [row.task_id for row in found]


def explain(
    conn: Conn, namespace_id: int, *, task_id: str, name: str, queue: str
) -> rows.ExplainRow:
    """Counts what stands around a task."""
    parameters = {"namespace_id": namespace_id, "task_id": task_id, "name": name, "queue": queue}
    return statements.one(conn, "task_explain", rows.ExplainRow, parameters)


def letter(conn: Conn, key: TaskKey) -> rows.LetterRow | None:
    """Reads the dead letter of a task, if there is one."""
    found = statements.many(conn, "task_letter", rows.LetterRow, key._asdict())
    return found[0] if found else None


def aside(conn: Conn, namespace_id: int, *, name: str, queue: str) -> rows.AsideRow:
    """Reads what keeps workers from a task that they serve."""
    parameters = {"namespace_id": namespace_id, "name": name, "queue": queue}
    return statements.one(conn, "task_aside", rows.AsideRow, parameters)


def holder(conn: Conn, task_id: str) -> rows.HolderRow | None:
    """Reads who holds a task; None: nobody does."""
    found = statements.many(conn, "task_holder", rows.HolderRow, {"task_id": task_id})
    return found[0] if found else None


_LISTS: dict[TaskState, tuple[str, dict[str, object]]] = {
    TaskState.READY: ("ready_list", {}),
    TaskState.DELAYED: ("timer_list", {"delayed": True}),
    TaskState.BACKOFF: ("timer_list", {"delayed": False}),
    TaskState.LEASED: ("leased_list", {"started": False}),
    TaskState.RUNNING: ("leased_list", {"started": True}),
    TaskState.COMPLETED: ("done_list", {}),
    TaskState.DEAD: ("dead_list", {}),
    TaskState.CANCELLED: ("ended_otherwise_list", {"outcome": "CANCELLED"}),
    TaskState.TIMED_OUT: ("ended_otherwise_list", {"outcome": "TIMED_OUT"}),
}


def list_keys(
    conn: Conn,
    namespace_id: int,
    state: TaskState,
    *,
    queue: str | None,
    name: str | None,
    before: str | None,
    row_count_max: int,
) -> list[TaskKey]:
    """Lists tasks of a state, newest first, from before a task id."""
    query, extra = _LISTS[state]
    parameters = {
        "namespace_id": namespace_id,
        "queue": queue,
        "name": name,
        "before": before or UUID_MAX,
        "row_count_max": row_count_max,
        **extra,
    }
    found = statements.many(conn, query, rows.TaskKey, parameters)
    return [TaskKey(row.run_id, row.task_id) for row in found]
