"""Steps of runs: recording them, reading them, and how what they started was over."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from tenure_service.engine import limits
from tenure_service.engine.states import StepKind
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import arrays, rows, statements
from tenure_service.store.database import Conn
from tenure_service.store.jsonb import clean, jsonb_text
from tenure_service.store.tasks import Common


class Claim(NamedTuple):
    """The right to record steps of a run, as somebody of a namespace claims it."""

    lease_id: str
    secret: bytes
    namespace_id: int
    run_id: str


Activation = tuple[str, str]
"""The ids of a lease and of the run that it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStep:
    """A step to record, within its limits."""

    run_id: str
    step_id: str
    kind: StepKind
    name: str
    child_id: str | None = None
    sleep_ms: int | None = None
    output: bytes | None = None
    output_encoding: str | None = None
    output_schema: str | None = None
    failure: rows.Json | None = None


class StepTask(NamedTuple):
    """The task of a recorded step, under the id that the step names."""

    run_id: str
    task_id: str
    step_id: str
    common: Common
    input: bytes


class Child(NamedTuple):
    """A task or a run, and the run that started it."""

    parent_id: str
    key: TaskKey


class View(NamedTuple):
    """A recorded step, and how what it started was over."""

    row: rows.StepRow
    result: rows.ChildResultRow | None = None


class Page(NamedTuple):
    """Steps in the order of recording; `next_seq`: there are more after that number."""

    steps: list[View]
    next_seq: int | None = None


def lock_leases(conn: Conn, claims: Iterable[Claim]) -> set[Activation]:
    """Keeps the leases of activations from ending; gives those that are as claimed."""
    claimed = list(claims)
    parameters = {
        "lease_ids": arrays.uuids(claim.lease_id for claim in claimed),
        "secrets": arrays.BytesArray([claim.secret for claim in claimed]),
        "namespace_ids": arrays.numbers(claim.namespace_id for claim in claimed),
        "run_ids": arrays.uuids(claim.run_id for claim in claimed),
    }
    found = statements.many(conn, "step_lease_lock", rows.StepLease, parameters)
    return {(row.lease_id, row.run_id) for row in found}


def lock_runs(conn: Conn, run_ids: Iterable[str]) -> dict[str, str]:
    """Locks runs for recording; gives the first run of the tree of each."""
    parameters = {"run_ids": arrays.uuids(run_ids)}
    found = statements.many(conn, "step_run_lock", rows.StepRun, parameters)
    return {row.run_id: row.root_run_id for row in found}


def running(
    conn: Conn, activations: Sequence[Activation], counted: Mapping[Activation, bool]
) -> dict[Activation, int | None]:
    """Gives the activations that have not ended, with their steps where they are to be counted."""
    parameters = {
        "lease_ids": arrays.uuids(lease_id for lease_id, _ in activations),
        "run_ids": arrays.uuids(run_id for _, run_id in activations),
        "counteds": arrays.booleans(counted.get(one, False) for one in activations),
    }
    found = statements.many(conn, "step_fence", rows.StepFence, parameters)
    return {(row.lease_id, row.run_id): row.step_count for row in found}


def held(conn: Conn, claim: Claim) -> bool:
    """Says whether an activation is with whoever claims it, and has not ended."""
    return bool(statements.many(conn, "step_held", rows.StepLease, claim._asdict()))


def insert(
    conn: Conn, steps: Sequence[NewStep], *, now: datetime | None = None
) -> dict[tuple[str, str], rows.StepInserted]:
    """Records steps that are not recorded; gives those, by run and step id."""
    parameters = {
        "run_ids": arrays.uuids(step.run_id for step in steps),
        "step_ids": [clean(step.step_id) for step in steps],
        "kinds": arrays.words(step.kind for step in steps),
        "names": [clean(step.name) for step in steps],
        "child_ids": arrays.uuids_or_null(step.child_id for step in steps),
        "sleeps_ms": arrays.numbers_or_null(step.sleep_ms for step in steps),
        "outputs": arrays.blobs([step.output for step in steps]),
        "output_encodings": arrays.texts([step.output_encoding for step in steps]),
        "output_schemas": arrays.texts([step.output_schema for step in steps]),
        "failures": arrays.texts(
            [None if step.failure is None else jsonb_text(step.failure) for step in steps]
        ),
        "now": now,
    }
    found = statements.many(conn, "step_insert", rows.StepInserted, parameters)
    return {(row.run_id, row.step_id): row for row in found}


def enqueue(conn: Conn, tasks: Sequence[StepTask], *, now: datetime | None = None) -> None:
    """Stores the tasks of recorded steps, ready or delayed."""
    commons = [task.common for task in tasks]
    parameters = {
        "run_ids": arrays.uuids(task.run_id for task in tasks),
        "ids": arrays.uuids(task.task_id for task in tasks),
        "refs": [clean(task.step_id) for task in tasks],
        "namespace_ids": arrays.numbers(common.namespace_id for common in commons),
        "lane_ids": arrays.numbers(common.lane_id for common in commons),
        "policy_ids": arrays.numbers(common.policy_id for common in commons),
        "priorities": arrays.numbers(common.priority for common in commons),
        "inputs": arrays.BytesArray([task.input for task in tasks]),
        "input_encodings": arrays.texts([common.input_encoding for common in commons]),
        "input_schemas": arrays.texts([common.input_schema for common in commons]),
        "traceparents": arrays.texts([common.traceparent for common in commons]),
        "delays_ms": arrays.numbers_or_null(common.delay_ms for common in commons),
        "starts_ms": arrays.numbers_or_null(common.start_ms for common in commons),
        "totals_ms": arrays.numbers_or_null(common.total_ms for common in commons),
        "now": now,
    }
    statements.execute(conn, "step_task_insert", parameters)


def get(
    conn: Conn,
    wanted: Sequence[tuple[str, str]],
    *,
    bytes_max: int,
    now: datetime | None = None,
) -> dict[tuple[str, str], View]:
    """Reads steps by run and step id; `bytes_max` bounds the outcomes of what a run has started."""
    parameters = {
        "run_ids": arrays.uuids(run_id for run_id, _ in wanted),
        "step_ids": [clean(step_id) for _, step_id in wanted],
        "now": now,
    }
    found = statements.tuples(conn, "step_get", rows.StepRow, parameters)
    return {(view.row.run_id, view.row.step_id): view for view in _views(conn, found, bytes_max)}


def pages(
    conn: Conn,
    run_ids: Sequence[str],
    bytes_max: int,
    *,
    step_count_max: int = limits.STEP_PAGE_COUNT,
    after_seqs: Sequence[int] | None = None,
    now: datetime | None = None,
) -> dict[str, Page]:
    """Reads the first steps of runs, or those after a number: of each as many as fit, one at least.

    `bytes_max` is of each run. One without steps has a page without any.
    """
    parameters = {
        "run_ids": arrays.uuids(run_ids),
        "after_seqs": arrays.numbers(after_seqs or [0] * len(run_ids)),
        "bytes_max": bytes_max,
        "step_count_max": step_count_max,
        "now": now,
    }
    found = statements.tuples(conn, "step_page", rows.StepRow, parameters)
    by_run: dict[str, list[View]] = {run_id: [] for run_id in run_ids}
    for view in _views(conn, found, bytes_max):
        by_run[view.row.run_id].append(view)
    return {run_id: _cut(views, bytes_max) for run_id, views in by_run.items()}


def _views(conn: Conn, found: Sequence[rows.StepRow], bytes_max: int) -> list[View]:
    """Adds how tasks and runs were over."""
    children = [
        Child(row.run_id, key_of(row.kind, row.run_id, row.child_id))
        for row in found
        if row.child_id is not None
    ]
    known = results(conn, children, bytes_max) if children else {}
    return [View(row, known.get((row.run_id, row.child_id or ""))) for row in found]


def key_of(kind: str, run_id: str, child_id: str) -> TaskKey:
    """Names the row in tasks of what a step has started."""
    return TaskKey(run_id if kind == StepKind.TASK else child_id, child_id)


def _cut(views: list[View], bytes_max: int) -> Page:
    """Leaves out of a page what does not fit once the outcomes are added."""
    size = 0
    for place, (row, result) in enumerate(views):
        size += len(row.output or b"") + (0 if result is None else len(result.output or b""))
        omitted = result is not None and not result.fits
        if place and (omitted or size > bytes_max):
            return Page(views[:place], views[place - 1].row.seq)
    more = bool(views) and views[0].row.found_count > len(views)
    return Page(views, views[-1].row.seq if more else None)


def results(
    conn: Conn, children: Sequence[Child], bytes_max: int
) -> dict[tuple[str, str], rows.ChildResultRow]:
    """Reads how children were over, by parent and child id; one that is not of its run is missing.

    `bytes_max` is of each parent: those of its children that do not fit are told to be over only.
    """
    parameters = {
        "parent_ids": arrays.uuids(child.parent_id for child in children),
        "run_ids": arrays.uuids(child.key.run_id for child in children),
        "task_ids": arrays.uuids(child.key.task_id for child in children),
        "bytes_max": bytes_max,
    }
    found = statements.tuples(conn, "child_result_list", rows.ChildResultRow, parameters)
    return {(row.parent_id, row.child_id): row for row in found}
