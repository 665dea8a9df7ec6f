"""Turns leased tasks into the message that hands them out."""

from collections.abc import Sequence

from tenure.v1 import payload_pb2 as payload
from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_pb2 as worker
from tenure.v1 import worker_service_pb2 as service
from tenure_service.dispatch.lanes import LaneHint
from tenure_service.dispatch.session import Held
from tenure_service.engine import limits, tokens
from tenure_service.engine.policy import TimeoutKind
from tenure_service.store.rows import LeasedTask
from tenure_service.usecase.lease import Grant

#: What the message around an item may cost beside the item, with room to spare.
_FRAME_BYTES = 16


def assignments(
    grant: Grant, *, queue: str, name: str, suspect: bool
) -> tuple[list[Held], list[worker.Assignment]]:
    """Gives what the server remembers of the tasks, and what the worker is told."""
    if not grant.tasks:
        return [], []
    lease_id = grant.tasks[0].lease_id
    token = tokens.lease_token_text(lease_id, grant.pick.secret)
    held: list[Held] = []
    messages: list[worker.Assignment] = []
    for task in grant.tasks:
        task_id = tokens.task_id_text(task.run_id, task.task_id)
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
            )
        )
        message = worker.Assignment(
            task_id=task_id,
            lease_token=token,
            name=name,
            queue=queue,
            attempt=task.attempt,
            delivery=task.delivery,
            input=_payload(task),
            max_attempts=grant.policies[task.policy_id].max_attempts,
        )
        limit_ms = grant.policies[task.policy_id].limit_ms(TimeoutKind.START_TO_CLOSE)
        if limit_ms is not None:
            message.start_to_close.FromMilliseconds(limit_ms)
        if task.traceparent:
            message.traceparent = task.traceparent
        details = grant.details.get(task.task_id)
        if details is not None:
            message.details.data = details.output
            message.details.encoding = details.output_encoding or ""
            message.details.schema = details.output_schema or ""
        messages.append(message)
    return held, messages


def assignment(grant: Grant, hint: LaneHint) -> tuple[list[Held], list[service.WorkResponse]]:
    """Gives the same as messages of the stream: one, or more where the inputs are large."""
    held, messages = assignments(grant, queue=hint.queue, name=hint.name, suspect=hint.suspect)
    responses: list[service.WorkResponse] = []
    while messages:
        count = fitting(messages)
        part = stream.Assign(assignments=messages[:count])
        responses.append(service.WorkResponse(assign=part))
        messages = messages[count:]
    return held, responses


def fitting(messages: Sequence[worker.Assignment]) -> int:
    """Counts how many of the first messages one answer may carry: one at least."""
    size = 0
    for count, message in enumerate(messages):
        size += message.ByteSize() + _FRAME_BYTES
        if count and size > limits.MESSAGE_BYTES_MAX:
            return count
    return len(messages)


def _payload(task: LeasedTask) -> payload.Payload:
    if task.input_encoding is None and task.input_schema is None:
        return payload.Payload(data=task.input)
    return payload.Payload(
        data=task.input, encoding=task.input_encoding or "", schema=task.input_schema or ""
    )
