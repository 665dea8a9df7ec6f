"""What a suspended activation waits for, read from its report."""

from datetime import timedelta
from typing import Final

from tenure.v1 import worker_pb2 as worker
from tenure_service.engine import limits
from tenure_service.engine.tokens import TaskKey, task_id_parse
from tenure_service.store.inbox import WaitSet

Violation = tuple[str, str]
_WAKE_MS_MAX: Final = limits.ENQUEUE_DELAY_MAX // timedelta(milliseconds=1)


def violations(key: TaskKey, kind: str, result: worker.Result) -> list[Violation]:
    """Says what is wrong with the report of a suspended or blocked activation, but its waits."""
    found: list[Violation] = []
    if key.run_id != key.task_id:
        found.append(("outcome", f"must not be `{kind}` for a task"))
    if kind == "blocked" and not result.blocked.HasField("failure"):
        found.append(("blocked.failure", "must be set"))
    if kind == "suspended":
        said = result.suspended
        if not said.waits and not said.HasField("wake_after"):
            found.append(("suspended", "must have `waits` or `wake_after`: nothing would wake it"))
        if said.HasField("wake_after") and not 0 <= wake_ms(said) <= _WAKE_MS_MAX:
            found.append(("suspended.wake_after", "must be 0 to 3,650 days"))
    return found


def wake_ms(said: worker.Suspended) -> int:
    """Gives the time after which the run goes on, in whole milliseconds, never too few."""
    return said.wake_after.seconds * 1000 - (-said.wake_after.nanos // 1_000_000)


def waits(key: TaskKey, said: worker.Suspended) -> tuple[list[WaitSet], list[Violation]]:
    """Reads what a run waits for, and says what is wrong with it."""
    found: list[WaitSet] = []
    wrong: list[Violation] = []
    if sum(len(one.child_ids) for one in said.waits) > limits.SUSPENDED_WAIT_COUNT_MAX:
        text = f"must name at most {limits.SUSPENDED_WAIT_COUNT_MAX:,} in all"
        return [], [("suspended.waits", text)]
    for number, one in enumerate(said.waits):
        children: dict[str, None] = {}
        for text in one.child_ids:
            child = task_id_parse(text)
            if child is None or child.run_id not in (child.task_id, key.run_id) or child == key:
                wrong.append(
                    (
                        f"suspended.waits[{number}].child_ids",
                        "must be tasks and runs that the run has started",
                    )
                )
                break
            children[child.task_id] = None
        else:
            if not 1 <= one.needed_count <= len(children):
                wrong.append(
                    (
                        f"suspended.waits[{number}].needed_count",
                        f"must be 1 to the number of children, {len(children)}",
                    )
                )
        found.append(WaitSet(list(children), one.needed_count))
    return found, wrong
