"""Dead letters: listing them, and marking what an operator did."""

from collections.abc import Sequence
from datetime import datetime

from tenure_service.engine.states import DeadLetterState
from tenure_service.engine.tokens import UUID_MAX, TaskKey
from tenure_service.store import arrays, rows, statements
from tenure_service.store.database import Conn


def list_(
    conn: Conn,
    namespace_id: int,
    state: DeadLetterState,
    *,
    queue: str | None,
    name: str | None,
    include_payloads: bool,
    before: tuple[datetime, str] | None,
    row_count_max: int,
    bytes_max: int,
) -> list[rows.DeadLetterRow]:
    """Lists dead letters of one state, the latest death first, until they hold so many bytes."""
    parameters = {
        "namespace_id": namespace_id,
        "state": state,
        "queue": queue,
        "name": name,
        "include_payloads": include_payloads,
        "before_at": before[0] if before else None,
        "before": before[1] if before else UUID_MAX,
        "row_count_max": row_count_max,
        "bytes_max": bytes_max,
    }
    return statements.many(conn, "dead_letter_list", rows.DeadLetterRow, parameters)


def lock(conn: Conn, namespace_id: int, keys: Sequence[TaskKey]) -> list[rows.DeadLetterHeld]:
    """Locks dead letters; one that does not exist has no row."""
    parameters = arrays.task_keys(keys) | {"namespace_id": namespace_id}
    return statements.many(conn, "dead_letter_lock", rows.DeadLetterHeld, parameters)


def mark(conn: Conn, keys: Sequence[TaskKey], state: DeadLetterState) -> None:
    """Notes what was done with locked dead letters."""
    statements.execute(conn, "dead_letter_mark", arrays.task_keys(keys) | {"state": state})
