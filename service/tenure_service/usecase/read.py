"""Reading tasks: one, some, those of a state, and why one stands where it stands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tenure_service.engine.errors import not_found
from tenure_service.engine.policy import Policy
from tenure_service.engine.states import TaskState
from tenure_service.engine.tokens import TaskKey, task_id_text
from tenure_service.store import rows, tasks
from tenure_service.store.database import Conn, Database
from tenure_service.usecase.catalogue import Catalogue
from tenure_service.usecase.end import CANCELLED_TYPE

# Other queues that one sentence names.
_ELSEWHERE_COUNT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task and the policy it was enqueued with."""

    row: rows.TaskRow
    policy: Policy

    @property
    def state(self) -> TaskState:
        """Where the task stands."""
        return TaskState(self.row.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a task stands where it stands, the most important reason first."""

    state: TaskState
    reasons: list[str]
    ahead_count: int
    worker_count: int
    ready_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Around:
    """What stands around a task: who holds it, what keeps workers from it, how it is dead."""

    counts: rows.ExplainRow
    holder: rows.HolderRow | None
    aside: rows.AsideRow | None
    letter: rows.LetterRow | None


def get(
    database: Database,
    catalogue: Catalogue,
    namespace_id: int,
    key: TaskKey,
    *,
    include_payloads: bool,
) -> tuple[TaskView, list[rows.DeliveryRow]]:
    """Reads one task and its deliveries.

    Raises:
        TenureError: TASK_NOT_FOUND.
    """

    def work(conn: Conn) -> tuple[list[rows.TaskRow], list[rows.DeliveryRow]]:
        found = tasks.read(
            conn, namespace_id, [key], include_payloads=include_payloads, include_details=True
        )
        return found, tasks.deliveries(conn, key) if found else []

    found, deliveries = database.read(work)
    if not found:
        raise not_found(task_id_text(*key))
    return _views(catalogue, found)[0], deliveries


def list_tasks(
    database: Database,
    catalogue: Catalogue,
    namespace_id: int,
    state: TaskState,
    *,
    queue: str | None,
    name: str | None,
    before: str | None,
    row_count_max: int,
) -> list[TaskView]:
    """Lists tasks of a state, newest first; one that leaves it meanwhile is left out."""

    def work(conn: Conn) -> list[rows.TaskRow]:
        keys = tasks.list_keys(
            conn,
            namespace_id,
            state,
            queue=queue,
            name=name,
            before=before,
            row_count_max=row_count_max,
        )
        return tasks.read(conn, namespace_id, keys, include_payloads=False) if keys else []

    found = database.read(work)
    return _views(catalogue, found)


def results(
    database: Database, wanted: Sequence[tuple[int, TaskKey]]
) -> dict[tuple[int, str], rows.TaskResultRow]:
    """Reads how tasks were over; see `store.tasks.results`."""
    return database.read(lambda conn: tasks.results(conn, wanted))


def over(database: Database, wanted: Sequence[TaskKey]) -> list[str]:
    """Gives the ids of those tasks that are over."""
    return database.read(lambda conn: tasks.over(conn, wanted))


def explain(
    database: Database,
    catalogue: Catalogue,
    namespace_id: int,
    key: TaskKey,
    *,
    may_name: Callable[[str], bool] = lambda _: True,
) -> Explanation:
    """Says why a task stands where it stands; other queues are named only if `may_name` them.

    Raises:
        TenureError: TASK_NOT_FOUND.
    """

    def work(conn: Conn) -> tuple[rows.TaskRow, _Around] | None:
        found = tasks.read(conn, namespace_id, [key], include_payloads=False)
        if not found:
            return None
        (row,) = found
        around = tasks.explain(
            conn, namespace_id, task_id=key.task_id, name=row.name, queue=row.queue
        )
        held = row.state in (TaskState.LEASED, TaskState.RUNNING)
        ready = row.state == TaskState.READY
        return row, _Around(
            around,
            holder=tasks.holder(conn, key.task_id) if held else None,
            aside=tasks.aside(conn, namespace_id, name=row.name, queue=row.queue)
            if ready
            else None,
            letter=tasks.letter(conn, key) if row.state == TaskState.DEAD else None,
        )

    found = database.read(work)
    if found is None:
        raise not_found(task_id_text(*key))
    row, all_around = found
    around = all_around.counts
    (view,) = _views(catalogue, [row])
    return Explanation(
        state=view.state,
        reasons=_reasons(view, all_around, may_name),
        ahead_count=around.ahead_count,
        worker_count=around.worker_count,
        ready_at=None if view.state is TaskState.READY else view.row.ready_at,
    )


def _views(catalogue: Catalogue, found: Sequence[rows.TaskRow]) -> list[TaskView]:
    policies = catalogue.policies({row.policy_id for row in found})
    return [TaskView(row=row, policy=policies[row.policy_id]) for row in found]


def _reasons(view: TaskView, all_around: _Around, may_name: Callable[[str], bool]) -> list[str]:
    row = view.row
    state = view.state
    around = all_around.counts
    reasons: list[str] = []
    if state in (TaskState.DELAYED, TaskState.BACKOFF) and around.timers_held_at is not None:
        reasons.append(
            f"Timers are held since {around.timers_held_at:%Y-%m-%d %H:%M:%S %Z}, because the "
            "database was restored to an earlier moment; `tenure restore-check --release` lets "
            "them go."
        )
    if state is TaskState.DELAYED:
        reasons.append(f"It was enqueued with a delay, until {row.ready_at:%Y-%m-%d %H:%M:%S %Z}.")
    elif state is TaskState.BACKOFF:
        reasons.append(
            f"Attempt {row.attempt} of {view.policy.max_attempts} ended without success; "
            f"the next one waits until {row.ready_at:%Y-%m-%d %H:%M:%S %Z}."
        )
    elif state in (TaskState.LEASED, TaskState.RUNNING):
        reasons += _held_reasons(row, all_around.holder)
    elif state is TaskState.READY:
        reasons += _ready_reasons(row, all_around, may_name)
    else:
        reasons.append(f"It is over: {state}, since {row.ended_at:%Y-%m-%d %H:%M:%S %Z}.")
        if all_around.letter is not None:
            letter = all_around.letter
            waits = (
                "waits to be replayed or discarded" if letter.state == "OPEN" else "was discarded"
            )
            reasons.append(f"As a dead letter ({letter.reason}) it {waits}.")
    if row.cancel_deadline_at is not None:
        why = f" ({row.cancel_reason})" if row.cancel_reason else ""
        reasons.append(
            f"Its cancellation was requested{why}: it ends by "
            f"{row.cancel_deadline_at:%Y-%m-%d %H:%M:%S %Z}, also without its worker."
        )
    if (
        state is TaskState.CANCELLED
        and row.failure is not None
        and row.failure.get("type") == CANCELLED_TYPE
    ):
        reasons.append(f"Why it was cancelled: {row.failure.get('message')}")
    elif row.failure is not None:
        reasons.append(f"Last failure: {row.failure.get('type')}: {row.failure.get('message')}")
    if row.lost_count:
        reasons.append(f"It was lost with its worker {row.lost_count} time(s).")
    return reasons


def _held_reasons(row: rows.TaskRow, holder: rows.HolderRow | None) -> list[str]:
    runs = row.state == TaskState.RUNNING
    doing = "runs on" if runs else "is leased by"
    leased_at = None if holder is None else holder.granted_at
    since_at = row.started_at if runs else leased_at
    since = "" if since_at is None else f" since {since_at:%Y-%m-%d %H:%M:%S %Z}"
    reasons = [f"It {doing} worker {row.worker!r}{since}, attempt {row.attempt}."]
    if holder is None or holder.present:
        return reasons
    if holder.key_ended_at is not None:
        reasons.append(
            f"Its key {holder.key_name!r} ended at {holder.key_ended_at:%Y-%m-%d %H:%M:%S %Z}: give "
            "the worker another one."
        )
    reasons.append(
        f"No server hears of that worker since {holder.seen_at:%Y-%m-%d %H:%M:%S %Z}: unless it "
        "comes back, the task is handed out again when its lease ends, at "
        f"{holder.expires_at:%Y-%m-%d %H:%M:%S %Z}."
    )
    return reasons


def _ready_reasons(
    row: rows.TaskRow, all_around: _Around, may_name: Callable[[str], bool]
) -> list[str]:
    around, aside = all_around.counts, all_around.aside
    reasons: list[str] = []
    if around.paused_at is not None:
        reasons.append(
            f"Queue {row.queue!r} is paused since {around.paused_at:%Y-%m-%d %H:%M:%S %Z}."
        )
    if around.worker_count == 0 and not around.registered:
        reasons.append(
            f"No worker ever registered a task named {row.name!r}; is the name right, and does the "
            "worker's app define it?"
        )
    elif around.worker_count == 0:
        reasons.append(
            f"No worker serves {row.name!r} on queue {row.queue!r} now"
            f"{_elsewhere(around, may_name)}."
        )
    if around.worker_count == 0 and aside is not None and aside.shut_out is not None:
        ended_at = datetime.fromisoformat(aside.shut_out["ended_at"]).astimezone(UTC)
        reasons.append(
            f"Worker {aside.shut_out['worker']!r} serves it, but its key {aside.shut_out['key']!r} "
            f"ended at {ended_at:%Y-%m-%d %H:%M:%S %Z}: give it another one."
        )
    full = around.worker_count > 0 and around.full_count == around.worker_count
    if full:
        reasons.append(
            f"All {around.worker_count} worker(s) that serve it are full: none has a free slot."
        )
    if around.suspect:
        reasons.append(
            "It lost its worker more than once, so it is handed out alone, to a worker that holds "
            "nothing else."
        )
    elif aside is not None and aside.alone_worker is not None:
        reasons.append(
            f"Worker {aside.alone_worker!r} runs a task that lost its worker more than once, and "
            "takes nothing beside it."
        )
    elif aside is not None and aside.suspect_waits:
        reasons.append(
            "A task that lost its worker more than once waits for a worker that holds nothing else: "
            "one that is kept for it takes nothing new."
        )
    if around.ahead_count:
        more = " or more" if around.ahead_count >= 10_000 else ""
        reasons.append(f"{around.ahead_count}{more} task(s) stand before it in its lane.")
    elif full:
        reasons.append("It is next in its lane.")
    if not reasons:
        reasons.append(
            f"It is next in its lane; {around.worker_count} worker(s) serve it and take it as "
            "soon as one has a free slot."
        )
    return reasons


def _elsewhere(around: rows.ExplainRow, may_name: Callable[[str], bool]) -> str:
    """Names workers that serve the task's name on another queue: it may be in the wrong one."""
    found = [(queue, around.elsewhere[queue]) for queue in sorted(around.elsewhere)]
    told = [
        f"worker {worker!r} serves it on queue {queue!r}"
        for queue, worker in found
        if may_name(queue)
    ]
    if len(told) > _ELSEWHERE_COUNT:
        told[_ELSEWHERE_COUNT:] = [f"and {len(told) - _ELSEWHERE_COUNT} more queue(s)"]
    return "; " + ", ".join(told) if told else ""
