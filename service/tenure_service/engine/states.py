"""Words of the task's life that SQL, Python and the protocol share; a test compares all three."""

from enum import StrEnum


class TaskState(StrEnum):
    """Where a task stands; computed by the query task_read, stored nowhere."""

    DELAYED = "DELAYED"
    READY = "READY"
    LEASED = "LEASED"
    RUNNING = "RUNNING"
    BACKOFF = "BACKOFF"
    COMPLETED = "COMPLETED"
    DEAD = "DEAD"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"


FINAL_STATES = frozenset(
    {TaskState.COMPLETED, TaskState.DEAD, TaskState.CANCELLED, TaskState.TIMED_OUT}
)


class Outcome(StrEnum):
    """How a hand-out ended; the enum delivery_outcome in SQL."""

    DONE = "DONE"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    LOST = "LOST"
    RELEASED = "RELEASED"
    SUSPENDED = "SUSPENDED"
    RESCHEDULED = "RESCHEDULED"


class StepKind(StrEnum):
    """What a recorded step is; the enum step_kind in SQL."""

    CALL = "CALL"
    TASK = "TASK"
    CHILD = "CHILD"
    SLEEP = "SLEEP"
    CHOICE = "CHOICE"
    PATCH = "PATCH"


class RunStatus(StrEnum):
    """What a run's row says of it; the enum run_status in SQL. OPEN: its live row says more."""

    OPEN = "OPEN"
    WAITING = "WAITING"
    PAUSED = "PAUSED"
    BLOCKED = "BLOCKED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"
    TERMINATED = "TERMINATED"
    CONTINUED = "CONTINUED"

    @property
    def is_over(self) -> bool:
        """True for the ends."""
        return self not in {
            RunStatus.OPEN,
            RunStatus.WAITING,
            RunStatus.PAUSED,
            RunStatus.BLOCKED,
        }


class RunBlocked(StrEnum):
    """Why a run is BLOCKED; the enum run_blocked in SQL."""

    RECOVERIES_EXHAUSTED = "RECOVERIES_EXHAUSTED"
    HISTORY_MISMATCH = "HISTORY_MISMATCH"


class DeadLetterState(StrEnum):
    """What became of a dead letter; the enum dead_letter_state in SQL."""

    OPEN = "OPEN"
    REPLAYED = "REPLAYED"
    DISCARDED = "DISCARDED"


def final_state(outcome: str, *, dead: bool) -> TaskState:
    """Names the state of a task whose final delivery had this outcome.

    `dead` says whether the task went to the dead letters with it: a timeout that spends the last
    attempt does, one that says that the task is over does not.
    """
    if dead:
        return TaskState.DEAD
    if outcome == Outcome.DONE:
        return TaskState.COMPLETED
    if outcome == Outcome.CANCELLED:
        return TaskState.CANCELLED
    if outcome == Outcome.TIMED_OUT:
        return TaskState.TIMED_OUT
    return TaskState.DEAD
