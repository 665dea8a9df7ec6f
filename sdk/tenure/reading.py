"""Messages of the protocol read into the values of `tenure.records`, and back where clients send."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from tenure import codec, failure, payload_codec, policy, records
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import payload_pb2, task_pb2, worker_pb2
from tenure.v1 import registry_service_pb2 as registry
from tenure.v1 import task_service_pb2 as tasks

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from google.protobuf.timestamp_pb2 import Timestamp

    from tenure.v1 import policy_pb2


def task_state(value: task_pb2.TaskState.ValueType) -> records.TaskState:
    """Reads a state; one that this version does not know is UNKNOWN."""
    return records.TaskState(enum_name(task_pb2.TaskState, value, "TASK_STATE_"))


def dead_letter_state(value: admin.DeadLetterState.ValueType) -> records.DeadLetterState:
    """Reads what became of a dead letter."""
    return records.DeadLetterState(enum_name(admin.DeadLetterState, value, "DEAD_LETTER_STATE_"))


def state_number(state: records.TaskState) -> task_pb2.TaskState.ValueType:
    """Returns a state as it travels."""
    return task_pb2.TaskState.Value(f"TASK_STATE_{state.value}")


def dead_letter_state_number(
    state: records.DeadLetterState | None,
) -> admin.DeadLetterState.ValueType:
    """Returns what became of a dead letter as it travels; None is the server's default."""
    if state is None:
        return admin.DEAD_LETTER_STATE_UNSPECIFIED
    return admin.DeadLetterState.Value(f"DEAD_LETTER_STATE_{state.value}")


def task(message: task_pb2.Task) -> records.TaskSnapshot:
    """Reads a task."""
    return records.TaskSnapshot(
        id=message.task_id,
        name=message.name,
        queue=message.queue,
        lane=message.lane,
        state=task_state(message.state),
        priority=message.priority,
        attempt=message.attempt,
        delivery=message.delivery,
        lost_count=message.lost_count,
        policy=_policy(message.policy),
        input=payload(message, "input"),
        output=payload(message, "output"),
        failure=failure_of(message),
        enqueued_at=instant(message, "enqueued_at"),
        ready_at=instant(message, "ready_at"),
        ended_at=instant(message, "ended_at"),
        worker=message.worker,
        key=message.key,
        cancel_requested=message.cancel_requested,
        started_at=instant(message, "started_at"),
        details=payload(message, "details"),
        details_at=instant(message, "details_at"),
        traceparent=message.traceparent,
    )


def delivery(message: task_pb2.Delivery) -> records.Delivery:
    """Reads a delivery."""
    return records.Delivery(
        delivery=message.delivery,
        attempt=message.attempt,
        outcome=records.DeliveryOutcome(
            enum_name(task_pb2.DeliveryOutcome, message.outcome, "DELIVERY_OUTCOME_")
        ),
        final=message.final,
        worker=message.worker,
        started_at=instant(message, "started_at"),
        ended_at=instant(message, "ended_at"),
        failure=failure_of(message),
    )


def outcome(message: task_pb2.TaskResult) -> records.TaskOutcome:
    """Reads how a task was over."""
    return records.TaskOutcome(
        id=message.task_id,
        state=task_state(message.state),
        output=payload(message, "output"),
        failure=failure_of(message),
        attempt=message.attempt,
    )


def explanation(message: tasks.ExplainTaskResponse) -> records.TaskExplanation:
    """Reads why a task stands where it stands."""
    return records.TaskExplanation(
        state=task_state(message.state),
        reasons=list(message.reasons),
        ahead_count=message.ahead_count,
        worker_count=message.worker_count,
        ready_at=instant(message, "ready_at"),
    )


def definition(message: registry.TaskDefinition) -> records.TaskDefinition:
    """Reads a task definition."""
    return records.TaskDefinition(
        name=message.name,
        declared=_policy(message.declared) if message.HasField("declared") else None,
        override=_policy(message.override) if message.HasField("override") else None,
        effective=_policy(message.effective),
        app_version=message.app_version,
        updated_at=instant(message, "updated_at"),
        registered=message.registered,
    )


def queue(message: registry.Queue) -> records.Queue:
    """Reads a queue."""
    return records.Queue(name=message.name, paused_at=instant(message, "paused_at"))


def statistics(message: admin.QueueStatistics) -> records.QueueStatistics:
    """Reads the counts of one queue and task name."""
    return records.QueueStatistics(
        queue=message.queue,
        name=message.name,
        ready_count=message.ready_count,
        delayed_count=message.delayed_count,
        leased_count=message.leased_count,
        oldest_ready_at=instant(message, "oldest_ready_at"),
        worker_count=message.worker_count,
        dead_count=message.dead_count,
    )


def namespace(message: admin.Namespace) -> records.Namespace:
    """Reads a namespace."""
    return records.Namespace(name=message.name, created_at=instant(message, "created_at"))


def worker(message: admin.Worker) -> records.WorkerInfo:
    """Reads a worker."""
    return records.WorkerInfo(
        name=message.identity.name,
        session_id=message.session_id,
        sdk=message.identity.sdk,
        sdk_version=message.identity.sdk_version,
        app_version=message.identity.app_version,
        handlers=[
            records.HandlerInfo(
                name=each.name,
                queue=each.queue,
                is_workflow=each.kind == worker_pb2.HANDLER_KIND_WORKFLOW,
                version=each.version,
            )
            for each in message.handlers
        ],
        slots=message.slots.total,
        held_count=message.held_count,
        opened_at=instant(message, "opened_at"),
        seen_at=instant(message, "seen_at"),
        receiving=message.receiving,
        gone=message.gone,
        key_id=message.key_id,
        key_name=message.key_name,
    )


def dead_letter(message: admin.DeadLetter) -> records.DeadLetter:
    """Reads a dead letter."""
    return records.DeadLetter(
        task_id=message.task_id,
        name=message.name,
        queue=message.queue,
        reason=records.DeadLetterReason(
            enum_name(admin.DeadLetterReason, message.reason, "DEAD_LETTER_REASON_")
        ),
        state=dead_letter_state(message.state),
        failure=failure_of(message),
        attempt=message.attempt,
        died_at=instant(message, "died_at"),
        input=payload(message, "input"),
        task_state=task_state(message.task_state),
    )


def new_task(
    value: records.NewTask, hook: payload_codec.PayloadCodec | None = None
) -> tasks.NewTask:
    """Writes a task to enqueue.

    Raises:
        CodecFailed: the codec could not encode the arguments.
        ValueRefused: JSON cannot carry an argument.
        PayloadTooLarge: the arguments are longer than 2 MiB.
    """
    where = f"arguments of task {value.name!r}"
    if isinstance(value.arguments, records.Payload):
        codec.check_size(len(value.arguments.data), where)
        given = payload_pb2.Payload(
            data=value.arguments.data,
            encoding=value.arguments.encoding,
            schema=value.arguments.schema,
        )
    else:
        given = payload_codec.write(codec.encode_named(value.arguments, value.name), where, hook)
    message = tasks.NewTask(
        name=value.name,
        queue=value.queue,
        input=given,
        priority=value.priority,
        key=value.key,
        lane=value.lane,
        policy=policy_message(value.policy),
        traceparent=value.traceparent,
    )
    if value.delay:
        message.delay.CopyFrom(policy.duration(value.delay, "delay"))
    if value.key_duration is not None:
        message.key_duration.CopyFrom(policy.duration(value.key_duration, "key_duration"))
    return message


def policy_message(value: records.Policy | None) -> policy_pb2.TaskPolicy | None:
    """Writes a policy; None stays None."""
    return None if value is None else policy.to_proto(value.retry, value.timeouts)


def _policy(message: policy_pb2.TaskPolicy) -> records.Policy:
    return records.Policy(
        retry=policy.retry_from_proto(message.retry) if message.HasField("retry") else None,
        timeouts=(
            policy.timeouts_from_proto(message.timeouts) if message.HasField("timeouts") else None
        ),
    )


def failure_of(message: Any) -> failure.Failure | None:
    """Reads the field `failure`; None if it is not set."""
    return failure.from_proto(message.failure) if message.HasField("failure") else None


def payload(message: Message, field: str) -> records.Payload | None:
    """Reads a payload; None if it is not set."""
    if not message.HasField(field):
        return None
    found: payload_pb2.Payload = getattr(message, field)
    return records.Payload(
        data=found.data, encoding=found.encoding or codec.ENCODING, schema=found.schema
    )


def instant(message: Message, field: str) -> datetime.datetime | None:
    """Reads an instant; None if it is not set."""
    if not message.HasField(field):
        return None
    found: Timestamp = getattr(message, field)
    return found.ToDatetime(tzinfo=datetime.UTC)


def enum_name(names: Any, value: int, prefix: str) -> str:
    """Returns the name of a value without its prefix; UNKNOWN for one of a newer server."""
    try:
        name: str = names.Name(value)
    except ValueError:
        return "UNKNOWN"
    return name.removeprefix(prefix)
