"""Namespaces, lanes, policies, task definitions and queues."""

from collections.abc import Sequence
from typing import NamedTuple

from tenure_service.engine.policy import Policy
from tenure_service.store import arrays, rows, statements
from tenure_service.store.database import Conn
from tenure_service.store.jsonb import clean, jsonb, jsonb_text


class Lane(NamedTuple):
    """What a lane is."""

    namespace_id: int
    queue: str
    name: str
    lane_key: str = ""
    suspect: bool = False
    #: Empty for tasks; for runs the version of the code they began with, or `ANY_VERSION`.
    app_version: str = ""

    @property
    def is_of_runs(self) -> bool:
        """True if runs wait in it, not tasks."""
        return bool(self.app_version)


#: Stands for the version of runs that no worker has had yet.
ANY_VERSION = "*"


def namespaces(conn: Conn) -> list[rows.NamespaceRow]:
    """Lists all namespaces."""
    return statements.many(conn, "namespace_list", rows.NamespaceRow, {})


def create_namespace(conn: Conn, name: str) -> None:
    """Creates a namespace, unless it stands."""
    statements.execute(conn, "namespace_insert", {"name": name})


def create_lanes(conn: Conn, lanes: Sequence[Lane]) -> dict[Lane, int]:
    """Creates lanes that do not stand, and gives the ids of all."""
    statements.execute(conn, "lane_insert", _lanes(lanes))
    return find_lanes(conn, lanes)


def find_lanes(conn: Conn, lanes: Sequence[Lane]) -> dict[Lane, int]:
    """Gives the ids of those of the lanes that stand."""
    found = statements.many(conn, "lane_find", rows.LaneRow, _lanes(lanes))
    return {lane_of(row): row.lane_id for row in found}


def _lanes(lanes: Sequence[Lane]) -> dict[str, object]:
    return {
        "namespace_ids": arrays.numbers(lane.namespace_id for lane in lanes),
        "queues": [clean(lane.queue) for lane in lanes],
        "names": [clean(lane.name) for lane in lanes],
        "lane_keys": [clean(lane.lane_key) for lane in lanes],
        "suspects": arrays.booleans(lane.suspect for lane in lanes),
        "app_versions": [clean(lane.app_version) for lane in lanes],
    }


def read_lanes(conn: Conn, lane_ids: Sequence[int]) -> dict[int, Lane]:
    """Reads lanes by id."""
    parameters = {"lane_ids": arrays.numbers(lane_ids)}
    found = statements.many(conn, "lane_get", rows.LaneRow, parameters)
    return {row.lane_id: lane_of(row) for row in found}


def lane_of(row: rows.LaneRow) -> Lane:
    """Gives what a lane is, without its id."""
    return Lane(row.namespace_id, row.queue, row.name, row.lane_key, row.suspect, row.app_version)


def create_policies(conn: Conn, policies: Sequence[Policy]) -> dict[bytes, int]:
    """Stores policies that do not stand, and gives the ids of all by digest."""
    digests = arrays.BytesArray([policy.digest() for policy in policies])
    bodies = [jsonb_text(policy.to_json()) for policy in policies]
    statements.execute(conn, "policy_insert", {"bodies": bodies, "digests": digests})
    found = statements.many(conn, "policy_find", rows.PolicyRow, {"digests": digests})
    return {row.digest: row.policy_id for row in found}


def read_policies(conn: Conn, policy_ids: Sequence[int]) -> dict[int, Policy]:
    """Reads policies by id."""
    parameters = {"policy_ids": arrays.numbers(policy_ids)}
    found = statements.many(conn, "policy_get", rows.PolicyRow, parameters)
    return {row.policy_id: Policy.from_json(row.body) for row in found}


def declare(
    conn: Conn, namespace_id: int, app_version: str, declared: Sequence[tuple[str, rows.Json]]
) -> bool:
    """Notes what code declares of its tasks, as (name, partial policy); False: nothing was new."""
    parameters = {
        "namespace_id": namespace_id,
        "app_version": clean(app_version),
        "names": [clean(name) for name, _ in declared],
        "declareds": [jsonb_text(body) for _, body in declared],
    }
    return statements.execute(conn, "task_def_declare", parameters) > 0


def override(conn: Conn, namespace_id: int, name: str, body: rows.Json | None) -> None:
    """Stores an operator's override; None clears it."""
    parameters = {
        "namespace_id": namespace_id,
        "name": clean(name),
        "override": None if body is None else jsonb(body),
    }
    statements.execute(conn, "task_def_override", parameters)


def policies(conn: Conn) -> list[rows.TaskDefPolicies]:
    """Lists what code declares and operators override."""
    return statements.many(conn, "task_def_policies", rows.TaskDefPolicies, {})


def task_defs(
    conn: Conn, namespace_id: int, *, after: str, row_count_max: int
) -> list[rows.TaskDefRow]:
    """Lists task definitions after a name."""
    parameters = {"namespace_id": namespace_id, "after": after, "row_count_max": row_count_max}
    return statements.many(conn, "task_def_list", rows.TaskDefRow, parameters)


def task_def(conn: Conn, namespace_id: int, name: str) -> rows.TaskDefRow:
    """Reads a task definition that stands."""
    parameters = {"namespace_id": namespace_id, "name": name}
    return statements.one(conn, "task_def_get", rows.TaskDefRow, parameters)


def set_queue(conn: Conn, namespace_id: int, name: str, *, paused: bool) -> rows.QueueRow:
    """Pauses or opens a queue."""
    parameters = {"namespace_id": namespace_id, "name": clean(name), "paused": paused}
    return statements.one(conn, "queue_set", rows.QueueRow, parameters)


def queues(conn: Conn, namespace_id: int, *, after: str, row_count_max: int) -> list[rows.QueueRow]:
    """Lists queues after a name."""
    parameters = {"namespace_id": namespace_id, "after": after, "row_count_max": row_count_max}
    return statements.many(conn, "queue_list", rows.QueueRow, parameters)


def queue_depths(conn: Conn, *, row_count_max: int) -> list[rows.QueueDepthRow]:
    """Counts what stands where, in all namespaces."""
    parameters = {"row_count_max": row_count_max}
    return statements.many(conn, "queue_depth", rows.QueueDepthRow, parameters)


def queue_statistics(
    conn: Conn, namespace_id: int, *, queue: str | None
) -> list[rows.QueueStatisticsRow]:
    """Counts what stands where."""
    parameters = {"namespace_id": namespace_id, "queue": queue}
    return statements.many(conn, "queue_statistics", rows.QueueStatisticsRow, parameters)
