"""Turns leased tasks into the message that hands them out."""

from tenure.v1 import payload_pb2 as payload
from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_pb2 as worker
from tenure.v1 import worker_service_pb2 as service
from tenure_service.dispatch.lanes import LaneHint
from tenure_service.dispatch.session import Held
from tenure_service.engine import tokens
from tenure_service.store.rows import LeasedTask
from tenure_service.usecase.lease import Grant


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
        if task.traceparent:
            message.traceparent = task.traceparent
        details = grant.details.get(task.task_id)
        if details is not None:
            message.details.data = details.output
            message.details.encoding = details.output_encoding or ""
            message.details.schema = details.output_schema or ""
        messages.append(message)
    return held, messages


def assignment(grant: Grant, hint: LaneHint) -> tuple[list[Held], service.WorkResponse]:
    """Gives the same as one message of the stream."""
    held, messages = assignments(grant, queue=hint.queue, name=hint.name, suspect=hint.suspect)
    return held, service.WorkResponse(assign=stream.Assign(assignments=messages))


def _payload(task: LeasedTask) -> payload.Payload:
    if task.input_encoding is None and task.input_schema is None:
        return payload.Payload(data=task.input)
    return payload.Payload(
        data=task.input, encoding=task.input_encoding or "", schema=task.input_schema or ""
    )
