"""Turns leased tasks, and activations of runs, into the message that hands them out."""

from collections.abc import Iterator, Sequence

from tenure.v1 import worker_pb2 as worker
from tenure_service.dispatch import history, wire
from tenure_service.dispatch.lanes import LaneHint
from tenure_service.dispatch.session import Held
from tenure_service.engine import limits, tokens
from tenure_service.engine.policy import TimeoutKind
from tenure_service.store.rows import LeasedTask
from tenure_service.usecase.lease import Grant

#: What the message around an item may cost beside the item, with room to spare.
_FRAME_BYTES = 16


def assignments(grant: Grant, hint: LaneHint) -> tuple[list[Held], list[bytes]]:
    """Gives what the server remembers of the tasks, and what the worker is told: Assignments."""
    if not grant.tasks:
        return [], []
    lease_id = grant.tasks[0].lease_id
    token = tokens.lease_token_text(lease_id, grant.pick.secret)
    queue, suspect, of_runs = hint.handled.queue, hint.suspect, bool(hint.handled.app_version)
    common: dict[int, bytes] = {}
    held: list[Held] = []
    messages: list[bytes] = []
    for task in grant.tasks:
        if task.policy_id not in common:
            common[task.policy_id] = _common(grant, hint, token, task.policy_id)
        rest = common[task.policy_id]
        if task.traceparent or task.task_id in grant.details:
            rest += _rare(grant, task)
        if of_runs:
            rest += _activation(grant, task)
        held.append(
            Held(
                lease_id,
                token,
                task.run_id,
                task.task_id,
                task.delivery,
                task.attempt,
                queue,
                suspect,
                of_runs,
            )
        )
        messages.append(
            wire.assignment(
                tokens.task_id_text(task.run_id, task.task_id),
                task.attempt,
                task.delivery,
                wire.payload(task.input, task.input_encoding, task.input_schema),
                rest,
            )
        )
    return held, messages


def _common(grant: Grant, hint: LaneHint, token: str, policy_id: int) -> bytes:
    """Writes what the tasks of a lease share that have one policy."""
    policy = grant.policies[policy_id]
    common = worker.Assignment(
        lease_token=token,
        name=hint.handled.name,
        queue=hint.handled.queue,
        max_attempts=policy.max_attempts,
    )
    limit_ms = policy.limit_ms(TimeoutKind.START_TO_CLOSE)
    if limit_ms is not None:
        common.start_to_close.FromMilliseconds(limit_ms)
    return common.SerializeToString()


def _rare(grant: Grant, task: LeasedTask) -> bytes:
    """Writes what few tasks have."""
    message = worker.Assignment()
    if task.traceparent:
        message.traceparent = task.traceparent
    details = grant.details.get(task.task_id)
    if details is not None:
        message.details.data = details.output
        message.details.encoding = details.output_encoding or ""
        message.details.schema = details.output_schema or ""
    return message.SerializeToString()


def _activation(grant: Grant, task: LeasedTask) -> bytes:
    """Writes what a run is handed with."""
    row, page = grant.activations[task.run_id]
    activation = worker.Activation(
        steps=map(history.step, page.steps),
        next_page_token=history.page_token(page.next_seq),
        version=row.version or "",
        key=row.key or "",
        recovery_count=row.recovery_count,
        attributes=row.attributes or {},
    )
    activation.created_at.FromDatetime(row.created_at)
    if row.parent_run_id is not None:
        activation.parent_run_id = tokens.task_id_text(row.parent_run_id, row.parent_run_id)
    return worker.Assignment(activation=activation).SerializeToString()


def sizes(grant: Grant, messages: Sequence[bytes]) -> list[int]:
    """Gives what hand-outs weigh: the inputs of tasks; of runs the steps, too."""
    if grant.pick.of_runs:
        return [len(message) for message in messages]
    return [len(task.input) for task in grant.tasks]


def parts(messages: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Cuts assignments into as many answers as they need: one, unless the inputs are large."""
    while messages:
        count = fitting(messages)
        yield messages[:count]
        messages = messages[count:]


def fitting(messages: Sequence[bytes]) -> int:
    """Counts how many of the first assignments one answer may carry: one at least."""
    size = 0
    for count, message in enumerate(messages):
        size += len(message) + _FRAME_BYTES
        if count and size > limits.MESSAGE_BYTES_MAX:
            return count
    return len(messages)
