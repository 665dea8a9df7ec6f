"""What calls that store tasks and calls that start runs have in common."""

import hashlib
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from tenure.v1 import run_pb2 as run
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import workflow_service_pb2 as workflows
from tenure_service.dispatch.hub import Hub
from tenure_service.engine import limits
from tenure_service.engine.errors import TenureError
from tenure_service.rpc.call import PRINCIPAL
from tenure_service.rpc.check import Check, input_size
from tenure_service.usecase import enqueue

QUEUE_DEFAULT = "default"

New = TypeVar("New", tasks.NewTask, run.NewRun)


class Items(Generic[New]):
    """Reads the tasks or runs of one call; what equal ones share is read once."""

    def __init__(self, field: str, read: Callable[[Check, New], enqueue.Shape]) -> None:
        """Prepares it.

        Args:
            field: Name of the field that they are in.
            read: Reads all of one but its input and key.
        """
        self._field = field
        self._read: Callable[[Check, New], enqueue.Shape] = read
        self._shapes: dict[bytes, enqueue.Shape] = {}

    def read(self, place: int, message: New) -> enqueue.Item:
        """Reads one; its input and key are gone from the message then.

        Raises:
            TenureError: FIELD_INVALID with every field that is wrong, PAYLOAD_TOO_LARGE,
                SCOPE_MISSING.
        """
        data, key = message.input.data, message.key
        message.input.ClearField("data")
        message.ClearField("key")
        written = message.SerializeToString()
        shape = self._shapes.get(written)
        if shape is None or key:
            check = Check(f"{self._field}[{place}].")
            shape = shape or self._read(check, message)
            check.text("key", key, limits.KEY_BYTES_MAX)
            check.done()
            PRINCIPAL.get().check_queue(shape.queue)
            self._shapes[written] = shape
        input_size(shape.name, len(data))
        return enqueue.Item(shape, data, key or None)


def key_ms(check: Check, message: tasks.NewTask | run.NewRun) -> int:
    """Reads for how long a key is to be in force."""
    if message.HasField("key_duration"):
        return check.duration_ms("key_duration", message.key_duration, high=limits.KEY_DURATION_MAX)
    return int(limits.KEY_DURATION_DEFAULT.total_seconds() * 1000)


def read_shape(
    check: Check, message: tasks.NewTask | run.StepTask | run.NewRun, keyed_ms: int = 0
) -> enqueue.Shape:
    """Reads what tasks and runs have in common, but input and key."""
    has_delay = message.HasField("delay")
    delay_ms = (
        check.duration_ms("delay", message.delay, high=limits.ENQUEUE_DELAY_MAX) if has_delay else 0
    )
    return enqueue.Shape(
        queue=check.name("queue", message.queue) or QUEUE_DEFAULT,
        name=check.name("name", message.name, required=True),
        input_encoding=check.encoding("input.encoding", message.input.encoding) or None,
        input_schema=check.text("input.schema", message.input.schema, limits.SCHEMA_BYTES_MAX)
        or None,
        priority=check.number(
            "priority", message.priority, limits.PRIORITY_MIN, limits.PRIORITY_MAX
        ),
        delay_ms=delay_ms or None,
        key_ms=keyed_ms,
        lane_key=check.text("lane", message.lane, limits.LANE_BYTES_MAX),
        traceparent=check.text("traceparent", message.traceparent, limits.TRACEPARENT_BYTES_MAX)
        or None,
    )


async def store(
    hub: Hub,
    namespace_id: int,
    messages: Iterable[New],
    items: Items[New],
    request_id: str | None,
    digest: bytes,
) -> list[enqueue.Answer]:
    """Stores what can be read of one call; gives the answer for each message, in order.

    Raises:
        TenureError: for the whole call: OVERLOADED, REQUEST_ID_REUSED, DATABASE_UNAVAILABLE.
    """
    outcomes: list[enqueue.Item | TenureError] = []
    for place, message in enumerate(messages):
        try:
            outcomes.append(items.read(place, message))
        except TenureError as exc:
            outcomes.append(exc)
    fine = [outcome for outcome in outcomes if isinstance(outcome, enqueue.Item)]
    answers: list[enqueue.Answer] = []
    if fine:
        call = enqueue.Call(
            namespace_id=namespace_id, items=fine, request_id=request_id, digest=digest
        )
        answers = await hub.enqueue(call, sum(len(item.input) for item in fine))
    stored = iter(answers)
    return [outcome if isinstance(outcome, TenureError) else next(stored) for outcome in outcomes]


def digest_of(
    request: tasks.EnqueueTasksRequest | workflows.StartRunsRequest, request_id: str | None
) -> bytes:
    """Tells one call from another under a request id; taken before reading, which takes it apart."""
    if not request_id:
        return b""
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()


def grace_ms(check: Check, request: tasks.CancelTasksRequest | workflows.CancelRunsRequest) -> int:
    """Reads the grace of a request to cancel, and looks at its reason."""
    if len(request.reason.encode("utf-8", "replace")) > limits.REASON_BYTES_MAX:
        check.wrong("reason", f"has more than {limits.REASON_BYTES_MAX} bytes")
    if request.HasField("grace_duration"):
        return check.duration_ms(
            "grace_duration", request.grace_duration, high=limits.CANCEL_GRACE_MAX
        )
    return int(limits.CANCEL_GRACE_DEFAULT.total_seconds() * 1000)
