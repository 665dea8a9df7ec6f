"""Rows as messages: tasks, deliveries, results, dead letters, workers."""

import base64
from datetime import UTC, datetime

from google.protobuf import timestamp_pb2

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import payload_pb2 as payload
from tenure.v1 import task_pb2 as task
from tenure.v1 import worker_pb2 as worker
from tenure_service.dispatch import failures
from tenure_service.engine import states, tokens
from tenure_service.rpc import policies
from tenure_service.store import rows
from tenure_service.usecase.read import TaskView


def timestamp(at: datetime) -> timestamp_pb2.Timestamp:
    """Gives an instant of the database."""
    message = timestamp_pb2.Timestamp()
    message.FromDatetime(at)
    return message


def payload_message(data: bytes, encoding: str | None, schema: str | None) -> payload.Payload:
    """Gives a payload as it was stored."""
    return payload.Payload(data=data, encoding=encoding or "", schema=schema or "")


def state(name: str) -> task.TaskState.ValueType:
    """Gives the wire's state."""
    return task.TaskState.Value(f"TASK_STATE_{name}")


def task_message(view: TaskView) -> task.Task:
    """Gives a task."""
    row = view.row
    message = task.Task(
        task_id=tokens.task_id_text(row.run_id, row.task_id),
        name=row.name,
        queue=row.queue,
        lane=row.lane_key,
        state=state(row.state),
        priority=row.priority,
        attempt=row.attempt,
        delivery=row.delivery,
        lost_count=row.lost_count,
        policy=policies.write(view.policy),
        enqueued_at=timestamp(row.enqueued_at),
        worker=row.worker or "",
        key=row.key or "",
        cancel_requested=row.cancel_requested,
        traceparent=row.traceparent or "",
    )
    if row.input is not None:
        message.input.CopyFrom(payload_message(row.input, row.input_encoding, row.input_schema))
    if row.output is not None:
        message.output.CopyFrom(payload_message(row.output, row.output_encoding, row.output_schema))
    if row.failure is not None:
        message.failure.CopyFrom(failures.from_json(row.failure))
    if row.ready_at is not None:
        message.ready_at.CopyFrom(timestamp(row.ready_at))
    if row.ended_at is not None:
        message.ended_at.CopyFrom(timestamp(row.ended_at))
    if row.started_at is not None:
        message.started_at.CopyFrom(timestamp(row.started_at))
    if row.details is not None:
        said = row.details
        data = base64.b64decode(said["data"])
        message.details.CopyFrom(payload_message(data, said["encoding"], said["schema"]))
        message.details_at.CopyFrom(timestamp(datetime.fromtimestamp(float(said["at"]), UTC)))
    return message


def delivery_message(row: rows.DeliveryRow) -> task.Delivery:
    """Gives an ended hand-out."""
    message = task.Delivery(
        delivery=row.delivery,
        attempt=row.attempt,
        outcome=task.DeliveryOutcome.Value(f"DELIVERY_OUTCOME_{row.outcome}"),
        final=row.final,
        worker=row.worker or "",
        ended_at=timestamp(row.ended_at),
    )
    if row.started_at is not None:
        message.started_at.CopyFrom(timestamp(row.started_at))
    if row.failure is not None:
        message.failure.CopyFrom(failures.from_json(row.failure))
    return message


def result_message(row: rows.TaskResultRow) -> task.TaskResult:
    """Gives how a task was over."""
    over = states.final_state(row.outcome or "", dead=row.dead)
    message = task.TaskResult(
        task_id=tokens.task_id_text(row.run_id, row.task_id),
        state=state(over),
        attempt=max(row.attempt or 0, 0),
    )
    if over is states.TaskState.COMPLETED:
        message.output.CopyFrom(
            payload_message(row.output or b"", row.output_encoding, row.output_schema)
        )
    elif row.failure is not None:
        message.failure.CopyFrom(failures.from_json(row.failure))
    return message


def dead_letter_message(row: rows.DeadLetterRow) -> admin.DeadLetter:
    """Gives a dead letter."""
    message = admin.DeadLetter(
        task_id=tokens.task_id_text(row.run_id, row.task_id),
        name=row.name,
        queue=row.queue,
        reason=admin.DeadLetterReason.Value(f"DEAD_LETTER_REASON_{row.reason}"),
        state=admin.DeadLetterState.Value(f"DEAD_LETTER_STATE_{row.state}"),
        attempt=row.attempt,
        died_at=timestamp(row.died_at),
        # A replayed one may stand anywhere: that is for GetTask to say.
        task_state=task.TASK_STATE_UNSPECIFIED
        if row.state == states.DeadLetterState.REPLAYED
        else task.TASK_STATE_DEAD,
    )
    if row.failure is not None:
        message.failure.CopyFrom(failures.from_json(row.failure))
    if row.input is not None:
        message.input.CopyFrom(payload_message(row.input, row.input_encoding, row.input_schema))
    return message


def worker_message(row: rows.SessionRow) -> admin.Worker:
    """Gives a worker."""
    return admin.Worker(
        identity=worker.WorkerIdentity(
            name=row.worker,
            sdk=row.sdk,
            sdk_version=row.sdk_version,
            app_version=row.app_version,
        ),
        session_id=row.session_id,
        handlers=[_handler(handler) for handler in row.handlers],
        slots=worker.Slots(
            total=row.slots.get("total", 0),
            by_queue=row.slots.get("by_queue", {}),
            activations=row.slots.get("activations", 0),
        ),
        held_count=row.held_count,
        opened_at=timestamp(row.opened_at),
        seen_at=timestamp(row.seen_at),
        receiving=row.receiving,
        gone=row.gone,
        key_id=row.key_id or "",
        key_name=row.key_name or "",
    )


def _handler(row: rows.Json) -> worker.Handler:
    kind = worker.HANDLER_KIND_WORKFLOW if "version" in row else worker.HANDLER_KIND_UNSPECIFIED
    return worker.Handler(
        name=row["name"],
        queue=row["queue"],
        kind=kind,
        version=row.get("version", ""),
        compatible_versions=row.get("compatible_versions", ()),
        pinned=row.get("pinned", False),
    )


def queue_statistics_message(row: rows.QueueStatisticsRow) -> admin.QueueStatistics:
    """Gives counts of one task name in one queue."""
    message = admin.QueueStatistics(
        queue=row.queue,
        name=row.name,
        ready_count=row.ready_count,
        delayed_count=row.delayed_count,
        leased_count=row.leased_count,
        worker_count=row.worker_count,
        dead_count=row.dead_count,
    )
    if row.oldest_ready_at is not None:
        message.oldest_ready_at.CopyFrom(timestamp(row.oldest_ready_at))
    return message
