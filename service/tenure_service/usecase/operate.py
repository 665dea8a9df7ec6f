"""What operators do: dead letters, queues, definitions, namespaces, and looking around."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from tenure_service.engine import limits
from tenure_service.engine.errors import Reason, TenureError
from tenure_service.engine.policy import PartialPolicy
from tenure_service.engine.states import DeadLetterState
from tenure_service.engine.tokens import TaskKey, task_id_text
from tenure_service.store import dead_letters, deliveries, partitions, registry, rows, sessions
from tenure_service.store.database import Conn, Database
from tenure_service.telemetry import metrics
from tenure_service.usecase.catalogue import Catalogue


def list_dead_letters(
    database: Database,
    namespace_id: int,
    state: DeadLetterState,
    *,
    queue: str | None,
    name: str | None,
    include_payloads: bool,
    before: tuple[datetime, str] | None,
    row_count_max: int,
) -> list[rows.DeadLetterRow]:
    """Lists dead letters of one state, the latest death first; fewer where one message is full."""
    return database.read(
        lambda conn: dead_letters.list_(
            conn,
            namespace_id,
            state,
            queue=queue,
            name=name,
            include_payloads=include_payloads,
            before=before,
            row_count_max=row_count_max,
            bytes_max=limits.MESSAGE_BYTES_MAX,
        )
    )


def replay(
    database: Database, namespace_id: int, keys: Sequence[TaskKey]
) -> tuple[list[DeadLetterState | TenureError], dict[int, int]]:
    """Makes dead tasks ready again: the same task, its next delivery, attempts from 1.

    Returns:
        An answer for each key, in order; the lanes that have something new, with its rank.
    """

    def work(
        conn: Conn,
    ) -> tuple[tuple[list[DeadLetterState | TenureError], dict[int, int]], int]:
        held = {row.task_id: row for row in dead_letters.lock(conn, namespace_id, keys)}
        chosen = _open_ones(keys, held)
        backs = [_fresh(row, namespace_id) for row in chosen.values()]
        if backs:
            dead_letters.mark(conn, list(chosen), DeadLetterState.REPLAYED)
            deliveries.put_back(conn, backs)
        lanes = {back.lane_id: back.rank for back in backs}
        answers = _answers(keys, held, chosen, DeadLetterState.REPLAYED)
        return (answers, lanes), len(backs)

    answered, replayed_count = database.transact(work)
    metrics.TASKS_REPLAYED.add(replayed_count)
    return answered


def discard(
    database: Database, namespace_id: int, keys: Sequence[TaskKey]
) -> list[DeadLetterState | TenureError]:
    """Marks dead letters as dealt with; an answer for each key, in order."""

    def work(conn: Conn) -> tuple[list[DeadLetterState | TenureError], int]:
        held = {row.task_id: row for row in dead_letters.lock(conn, namespace_id, keys)}
        chosen = _open_ones(keys, held)
        if chosen:
            dead_letters.mark(conn, list(chosen), DeadLetterState.DISCARDED)
        return _answers(keys, held, chosen, DeadLetterState.DISCARDED), len(chosen)

    answers, discarded_count = database.transact(work)
    metrics.TASKS_DISCARDED.add(discarded_count)
    return answers


def _open_ones(
    keys: Sequence[TaskKey], held: dict[str, rows.DeadLetterHeld]
) -> dict[TaskKey, rows.DeadLetterHeld]:
    return {
        key: held[key.task_id]
        for key in keys
        if key.task_id in held and held[key.task_id].state == DeadLetterState.OPEN
    }


def _fresh(row: rows.DeadLetterHeld, namespace_id: int) -> deliveries.PutBack:
    return deliveries.PutBack(
        run_id=row.run_id,
        task_id=row.task_id,
        namespace_id=namespace_id,
        lane_id=row.lane_id,
        rank=-row.priority,
        attempt=1,
        delivery=row.delivery + 1,
        lost_count=0,
    )


def _answers(
    keys: Sequence[TaskKey],
    held: dict[str, rows.DeadLetterHeld],
    chosen: dict[TaskKey, rows.DeadLetterHeld],
    state: DeadLetterState,
) -> list[DeadLetterState | TenureError]:
    answers: list[DeadLetterState | TenureError] = []
    for key in keys:
        text = task_id_text(*key)
        if key in chosen:
            answers.append(state)
        elif key.task_id in held:
            current = held[key.task_id].state
            answers.append(
                TenureError(
                    Reason.STATE_CONFLICT,
                    f"dead letter {text} is {current}, not OPEN",
                    metadata={"state": current, "allowed": "OPEN"},
                )
            )
        else:
            answers.append(
                TenureError(
                    Reason.NOT_REGISTERED,
                    f"no dead letter {text} in this namespace",
                    metadata={"kind": "dead_letter", "name": text},
                )
            )
    return answers


def create_namespace(database: Database, catalogue: Catalogue, name: str) -> rows.NamespaceRow:
    """Creates a namespace, and gives it; one that stands is given as it is."""
    database.transact(lambda conn: registry.create_namespace(conn, name))
    return next(row for row in catalogue.namespaces() if row.name == name)


def list_workers(database: Database, namespace_id: int) -> list[rows.SessionRow]:
    """Lists the workers of a namespace."""
    return database.read(lambda conn: sessions.list_(conn, namespace_id))


def queue_depths(
    database: Database, *, row_count_max: int
) -> tuple[list[rows.QueueDepthRow], timedelta]:
    """Counts what stands where, in all namespaces; says how long partitions last, too."""

    def work(conn: Conn) -> tuple[list[rows.QueueDepthRow], timedelta]:
        depths = registry.queue_depths(conn, row_count_max=row_count_max)
        return depths, partitions.ahead(conn)

    return database.read(work)


def queue_statistics(
    database: Database, namespace_id: int, *, queue: str | None
) -> list[rows.QueueStatisticsRow]:
    """Counts what stands where."""
    return database.read(lambda conn: registry.queue_statistics(conn, namespace_id, queue=queue))


def set_task_definition(
    database: Database,
    catalogue: Catalogue,
    namespace_id: int,
    name: str,
    override: PartialPolicy,
) -> rows.TaskDefRow:
    """Stores an operator's override, or clears it with an empty one; gives the definition."""
    body = override.to_json() or None

    def work(conn: Conn) -> rows.TaskDefRow:
        registry.override(conn, namespace_id, name, body)
        return registry.task_def(conn, namespace_id, name)

    row = database.transact(work)
    catalogue.forget_sources()
    return row


def list_task_definitions(
    database: Database, namespace_id: int, *, after: str, row_count_max: int
) -> list[rows.TaskDefRow]:
    """Lists task definitions after a name."""
    return database.read(
        lambda conn: registry.task_defs(
            conn, namespace_id, after=after, row_count_max=row_count_max
        )
    )


def set_queue(database: Database, namespace_id: int, name: str, *, paused: bool) -> rows.QueueRow:
    """Pauses or opens a queue."""
    return database.transact(
        lambda conn: registry.set_queue(conn, namespace_id, name, paused=paused)
    )


def list_queues(
    database: Database, namespace_id: int, *, after: str, row_count_max: int
) -> list[rows.QueueRow]:
    """Lists queues after a name."""
    return database.read(
        lambda conn: registry.queues(conn, namespace_id, after=after, row_count_max=row_count_max)
    )
