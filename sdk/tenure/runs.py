"""Runs of workflows as values: what clients send and are answered, and how both travel.

Instants are aware datetimes in UTC, by the database's clock; None where the protocol says unset.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tenure import check, codec, payload_codec, policy, reading, records
from tenure.v1 import payload_pb2, run_pb2

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable

    from tenure.failure import Failure

ATTRIBUTE_COUNT_MAX = 20
_ATTRIBUTE_KEY_BYTES_MAX = 100
_ATTRIBUTE_VALUE_BYTES_MAX = 500
_ATTRIBUTES = "a dict of texts such as {'customer': 'c-7'}"


class RunState(records.Named):
    """RunState is where a run stands."""

    UNKNOWN = "UNKNOWN"
    DELAYED = "DELAYED"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
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
    def over(self) -> bool:
        """True if the run will not go on."""
        return self in _OVER


_OVER = frozenset(
    {
        RunState.COMPLETED,
        RunState.FAILED,
        RunState.CANCELLED,
        RunState.TIMED_OUT,
        RunState.TERMINATED,
        RunState.CONTINUED,
    }
)


class BlockedReason(records.Named):
    """BlockedReason says why a run is BLOCKED."""

    UNKNOWN = "UNKNOWN"
    RECOVERIES_EXHAUSTED = "RECOVERIES_EXHAUSTED"
    HISTORY_MISMATCH = "HISTORY_MISMATCH"


class StepKind(records.Named):
    """StepKind says what a step is."""

    UNKNOWN = "UNKNOWN"
    CALL = "CALL"
    TASK = "TASK"
    CHILD = "CHILD"
    SLEEP = "SLEEP"
    CHOICE = "CHOICE"
    PATCH = "PATCH"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """NewRun is a run to start by the name of its workflow.

    Attributes:
        name: Name of the workflow; it need not be registered.
        arguments: Parameters by name, without the context, or a payload to the byte.
        queue: Queue; empty: `default`.
        priority: -100 to 100, larger first.
        delay: Seconds before it may begin.
        key: Idempotency key; empty: none.
        key_duration: Seconds the key stays in force; None: 24 hours.
        lane: Lane key within the queue; empty: none.
        timeout: Seconds until it ends as TIMED_OUT; None: never.
        attributes: What people search runs by.
        recovery_attempts: Times its activations may lose their workers; None: 10.
        traceparent: W3C trace context; empty: none.
    """

    name: str
    arguments: dict[str, Any] | records.Payload = dataclasses.field(default_factory=dict)
    queue: str = ""
    priority: int = 0
    delay: float = 0.0
    key: str = ""
    key_duration: float | None = None
    lane: str = ""
    timeout: float | None = None
    attributes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    recovery_attempts: int | None = None
    traceparent: str = ""

    def __post_init__(self) -> None:
        # Bounds are left to the server, which names every field that is out of them at once.
        for field in ("name", "queue", "key", "lane", "traceparent"):
            check.instance(getattr(self, field), f"NewRun: {field}", str, "a text")
            check.encodes(getattr(self, field), f"NewRun: {field}")
        check.instance(self.priority, "NewRun: priority", int, "a whole number")
        expected = "a dict of parameters by name, or a Payload"
        check.instance(self.arguments, "NewRun: arguments", (dict, records.Payload), expected)
        check.seconds(self.delay, "NewRun: delay")
        if self.key_duration is not None:
            check.seconds(self.key_duration, "NewRun: key_duration")
        if self.timeout is not None:
            check.seconds(self.timeout, "NewRun: timeout", above_zero=True)
        if self.recovery_attempts is not None:
            check.whole(self.recovery_attempts, "NewRun: recovery_attempts", 1, 1_000)
        check_attributes(self.attributes, "NewRun: attributes")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """StartedRun names a stored run; `existing` if it stood under its key before."""

    id: str
    existing: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """RunSnapshot is a run as it stood at one moment; payloads only where asked for.

    Attributes:
        blocked: Why it is BLOCKED; None: it is not.
        version: Version of the function that it runs with; empty: no worker has had it.
        activation_count: Activations that ended, or run now.
        recovery_count: Activations in a row that lost their workers.
        parent_run_id: Run that started it; empty: none.
        root_run_id: First run of its tree.
        failure: Failure that ended or blocks it.
        wakes_at: When a DELAYED or WAITING run goes on by itself; None: only at an event.
        worker: Worker that has its activation.
        step_count: Steps that are recorded.
    """

    id: str
    name: str
    queue: str
    lane: str
    state: RunState
    blocked: BlockedReason | None
    priority: int
    version: str
    activation_count: int
    recovery_count: int
    key: str
    attributes: Mapping[str, str]
    parent_run_id: str
    root_run_id: str
    input: records.Payload | None
    output: records.Payload | None
    failure: Failure | None
    created_at: datetime.datetime | None
    ended_at: datetime.datetime | None
    wakes_at: datetime.datetime | None
    worker: str
    cancel_requested: bool
    step_count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """RunStep is a recorded operation of a run.

    Attributes:
        id: Id within the run, such as "3", or "1.2" for the second step of the first branch.
        name: What was done.
        kind: What it is.
        output: What it came to; None: nothing yet, or a failure.
        failure: How it failed; None: it did not.
        child_id: Id of the task or run, for TASK and CHILD; empty otherwise.
        remaining: Time left of a SLEEP that is not over.
        recorded_at: When it was recorded.
        ended_at: When it was over; None: it is not.
    """

    id: str
    name: str
    kind: StepKind
    output: records.Payload | None
    failure: Failure | None
    child_id: str
    remaining: datetime.timedelta | None
    recorded_at: datetime.datetime | None
    ended_at: datetime.datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """RunOutcome is how a run was over."""

    id: str
    state: RunState
    output: records.Payload | None
    failure: Failure | None


def check_attributes(value: object, name: str) -> None:
    """Checks what people are to search a run by.

    Raises:
        WrongType: no mapping of texts.
        WrongValue: too many, or a text that is too long.
    """
    if not isinstance(value, Mapping):
        raise check.wrong_type(name, _ATTRIBUTES, value)
    if len(value) > ATTRIBUTE_COUNT_MAX:
        expected = f"at most {ATTRIBUTE_COUNT_MAX} texts by name"
        raise check.wrong_value(name, expected, dict(value))
    for key, text in value.items():
        check.text(key, f"a name in {name}", _ATTRIBUTE_KEY_BYTES_MAX)
        check.text(text, f"{name}[{key!r}]", _ATTRIBUTE_VALUE_BYTES_MAX, empty=True)


def state(value: run_pb2.RunState.ValueType) -> RunState:
    """Reads a state; one that this version does not know is UNKNOWN."""
    return RunState(reading.enum_name(run_pb2.RunState, value, "RUN_STATE_"))


def state_numbers(states: Iterable[RunState]) -> list[run_pb2.RunState.ValueType]:
    """Returns states as they travel."""
    return [run_pb2.RunState.Value(f"RUN_STATE_{each.value}") for each in states]


def run(message: run_pb2.Run) -> RunSnapshot:
    """Reads a run."""
    blocked = None
    if message.blocked:
        name = reading.enum_name(run_pb2.BlockedReason, message.blocked, "BLOCKED_REASON_")
        blocked = BlockedReason(name)
    return RunSnapshot(
        id=message.run_id,
        name=message.name,
        queue=message.queue,
        lane=message.lane,
        state=state(message.state),
        blocked=blocked,
        priority=message.priority,
        version=message.version,
        activation_count=message.activation_count,
        recovery_count=message.recovery_count,
        key=message.key,
        attributes=dict(message.attributes),
        parent_run_id=message.parent_run_id,
        root_run_id=message.root_run_id,
        input=reading.payload(message, "input"),
        output=reading.payload(message, "output"),
        failure=reading.failure_of(message),
        created_at=reading.instant(message, "created_at"),
        ended_at=reading.instant(message, "ended_at"),
        wakes_at=reading.instant(message, "wakes_at"),
        worker=message.worker,
        cancel_requested=message.cancel_requested,
        step_count=message.step_count,
    )


def step(message: run_pb2.Step) -> RunStep:
    """Reads a step."""
    return RunStep(
        id=message.step_id,
        name=message.name,
        kind=StepKind(reading.enum_name(run_pb2.StepKind, message.kind, "STEP_KIND_")),
        output=reading.payload(message, "output"),
        failure=reading.failure_of(message),
        child_id=message.child_id,
        remaining=(message.remaining.ToTimedelta() if message.HasField("remaining") else None),
        recorded_at=reading.instant(message, "recorded_at"),
        ended_at=reading.instant(message, "ended_at"),
    )


def outcome(message: run_pb2.RunResult) -> RunOutcome:
    """Reads how a run was over."""
    return RunOutcome(
        id=message.run_id,
        state=state(message.state),
        output=reading.payload(message, "output"),
        failure=reading.failure_of(message),
    )


def new_run(value: NewRun, hook: payload_codec.PayloadCodec | None = None) -> run_pb2.NewRun:
    """Writes a run to start.

    Raises:
        CodecFailed: the codec could not encode the arguments.
        ValueRefused: JSON cannot carry an argument.
        PayloadTooLarge: the arguments are longer than 2 MiB.
    """
    where = f"arguments of workflow {value.name!r}"
    if isinstance(value.arguments, records.Payload):
        codec.check_size(len(value.arguments.data), where)
        payload = payload_pb2.Payload(
            data=value.arguments.data,
            encoding=value.arguments.encoding,
            schema=value.arguments.schema,
        )
    else:
        data = codec.encode_named(value.arguments, value.name, kind="workflow")
        payload = payload_codec.write(data, where, hook)
    message = run_pb2.NewRun(
        name=value.name,
        queue=value.queue,
        input=payload,
        priority=value.priority,
        key=value.key,
        lane=value.lane,
        attributes=value.attributes,
        traceparent=value.traceparent,
        recovery_attempts=value.recovery_attempts or 0,
    )
    if value.delay:
        message.delay.CopyFrom(policy.duration(value.delay, "delay"))
    if value.key_duration is not None:
        message.key_duration.CopyFrom(policy.duration(value.key_duration, "key_duration"))
    if value.timeout is not None:
        message.timeout.CopyFrom(policy.duration(value.timeout, "timeout"))
    return message
