"""Runs: storing them and reading them. What moves them is in `inbox` and `deliveries`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tenure_service.engine.tokens import UUID_MAX
from tenure_service.store import arrays, rows, statements
from tenure_service.store.database import Conn
from tenure_service.store.jsonb import clean, jsonb, jsonb_text


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to store beside its row in tasks. Without a parent it is the root of its tree."""

    run_id: str
    namespace_id: int
    name: str
    recovery_attempts: int
    attributes: rows.Json | None = None
    parent_run_id: str | None = None


def insert(conn: Conn, runs: Sequence[NewRun], *, now: datetime | None = None) -> None:
    """Stores runs; the tree of one with a parent is its parent's."""
    parameters = {
        "run_ids": arrays.uuids(run.run_id for run in runs),
        "namespace_ids": arrays.numbers(run.namespace_id for run in runs),
        "names": [clean(run.name) for run in runs],
        "recovery_attempts": arrays.numbers(run.recovery_attempts for run in runs),
        "parent_run_ids": arrays.uuids_or_null(run.parent_run_id for run in runs),
        "attributes": [jsonb_text(run.attributes) if run.attributes else None for run in runs],
        "now": now,
    }
    statements.execute(conn, "run_insert", parameters)


def read(
    conn: Conn, namespace_id: int, run_ids: Sequence[str], *, include_payloads: bool = False
) -> list[rows.RunRow]:
    """Reads runs in the order of their ids; one that does not exist has no row."""
    parameters = {
        "namespace_id": namespace_id,
        "run_ids": arrays.uuids(run_ids),
        "include_payloads": include_payloads,
    }
    return statements.many(conn, "run_read", rows.RunRow, parameters)


def by_key(conn: Conn, namespace_id: int, key: str) -> str | None:
    """Gives the id of the run that a key stands for, while it is in force."""
    parameters = {"namespace_id": namespace_id, "key": key}
    found = statements.many(conn, "run_by_key", rows.RunNamed, parameters)
    return found[0].run_id if found else None


def find(
    conn: Conn,
    namespace_id: int,
    *,
    statuses: Sequence[str],
    name: str | None,
    attributes: rows.Json | None,
    parent_run_id: str | None,
    before: str | None,
    row_count_max: int,
) -> list[str]:
    """Lists ids of runs of these statuses, newest first, from before an id.

    Each statement has the index of what it looks for first; plans are made without knowing values.
    """
    if parent_run_id is not None:
        query = "run_list_of_parent"
    elif attributes is not None:
        query = "run_list_with"
    elif name is not None:
        query = "run_list_named"
    else:
        query = "run_list"
    parameters = {
        "namespace_id": namespace_id,
        "statuses": arrays.words(statuses),
        "name": None if name is None else clean(name),
        "attributes": None if attributes is None else jsonb(attributes),
        "parent_run_id": parent_run_id,
        "before": before or UUID_MAX,
        "row_count_max": row_count_max,
    }
    return [row.run_id for row in statements.many(conn, query, rows.RunNamed, parameters)]


def fork(conn: Conn, run_id: str, new_run_id: str, *, lane_id: int) -> None:
    """Stores a run that is as another one was when it was started."""
    parameters = {"run_id": run_id, "new_run_id": new_run_id, "lane_id": lane_id}
    statements.execute(conn, "run_fork", parameters)


def fork_steps(conn: Conn, run_id: str, new_run_id: str, *, before_seq: int) -> None:
    """Copies the steps of a run that came before a place."""
    parameters = {"run_id": run_id, "new_run_id": new_run_id, "before_seq": before_seq}
    statements.execute(conn, "run_fork_steps", parameters)


def step_seq(conn: Conn, run_id: str, step_id: str) -> int | None:
    """Gives the place of a step among those of its run."""
    parameters = {"run_id": run_id, "step_id": step_id}
    found = statements.many(conn, "step_place", rows.StepPlace, parameters)
    return found[0].seq if found else None
